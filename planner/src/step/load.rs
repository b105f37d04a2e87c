//! Bytes that each link carries in a step: all calls, all groups, along their routes.
//!
//! Bytes are counted on the wire, framing included. They follow from the schedules and the routes without simulation.
//! They therefore cover all groups even if only a representative was simulated, and whole calls even if only a part was
//! timed.

use std::collections::BTreeMap;

use fabricast_sim::lower::{Party, Resource, Setting, lower_first_blocks, sent};
use fabricast_sim::quantity::WORK_PER_BYTE;
use fabricast_sim::schedule::{Generate, Rank};
use fabricast_sim::sharing::ResourceId;
use fabricast_topologies::route::{Hop, Router};
use fabricast_topologies::{LinkId, NodeId, Picos};

use rayon::prelude::*;

use super::calls::{Often, PricedCall};
use super::price::Simulated;
use super::together::Planned;
use crate::job::{Dimension, GroupShape, Layout, Phase};

/// Number of routes that one task accumulates before its load is merged.
const WAYS_AT_ONCE: usize = 1 << 13;

/// Bytes carried by each direction of each link, indexed by [`LinkId`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    bytes: Vec<f64>,
}

impl Load {
    /// Returns the bytes that a link carries.
    #[must_use]
    pub fn of(&self, link: LinkId) -> f64 {
        self.bytes.get(link.0 as usize).copied().unwrap_or_default()
    }

    /// Utilization of each link over `time`, relative to the bandwidth that the fabric states, indexed by [`LinkId`].
    /// Links without a stated bandwidth have utilization 0.
    #[must_use]
    pub fn utilization(&self, router: &Router<'_>, time: Picos) -> Vec<f64> {
        let seconds = time.0.max(1) as f64 / 1e12;
        let of = |(id, link): (LinkId, &fabricast_topologies::fabric::Link)| {
            link.bandwidth.map_or(0.0, |rate| self.of(id) / (rate.0 as f64 * seconds))
        };
        router.fabric().links().map(of).collect()
    }

    /// Adds bytes between devices along their routes.
    fn add_ways(&mut self, router: &Router<'_>, sent: &BTreeMap<(NodeId, NodeId), f64>) {
        let sent: Vec<_> = sent.iter().map(|(&ends, &bytes)| (ends, bytes)).collect();
        let of_some = |some: &[((NodeId, NodeId), f64)]| {
            let (mut load, mut hops) = (Self::default(), Vec::new());
            some.iter().for_each(|&(ends, bytes)| load.add_way(router, ends, bytes, &mut hops));
            load
        };
        // Summation order does not depend on the number of threads.
        let loads: Vec<Self> = sent.par_chunks(WAYS_AT_ONCE).with_max_len(1).map(of_some).collect();
        for load in loads {
            (0u32..)
                .zip(load.bytes)
                .filter(|(_, bytes)| *bytes > 0.0)
                .for_each(|(link, bytes)| self.add(LinkId(link), bytes));
        }
    }

    /// Copies the load of representative links to the links that they represent.
    fn tell_alike(&mut self, router: &Router<'_>) {
        for link in (0..self.bytes.len() as u32).map(LinkId) {
            let bytes = self.of(link);
            // (`alike` returns nothing for links that represent only themselves, and represented links represent no
            // others.)
            for &other in router.alike(link).into_iter().flatten().filter(|&&other| other != link) {
                self.add(other, bytes);
            }
        }
    }

    fn add(&mut self, link: LinkId, bytes: f64) {
        let number = link.0 as usize;
        if self.bytes.len() <= number {
            self.bytes.resize(number + 1, 0.0);
        }
        if let Some(sum) = self.bytes.get_mut(number) {
            *sum += bytes;
        }
    }

    /// Adds bytes from one device to another along their route.
    fn add_way(&mut self, router: &Router<'_>, (from, to): (NodeId, NodeId), bytes: f64, hops: &mut Vec<Hop>) {
        hops.clear();
        // Unreachable pairs were already rejected when the call was timed.
        if router.route_into(from, to, 0, hops).is_ok() {
            for hop in hops.iter() {
                self.add(hop.link, bytes * f64::from(hop.share.numerator) / f64::from(hop.share.denominator.max(1)));
            }
        }
    }
}

impl Simulated<'_> {
    /// Bytes that links carry in a step with these calls.
    #[must_use]
    pub fn load(&self, layout: &Layout, calls: &[PricedCall]) -> Load {
        let mut load = Load::default();
        // Traffic between the same two devices takes the same route in all calls, so it is summed before routing.
        let mut between = BTreeMap::new();
        // Distinct calls with their number of executions; forward and backward calls, for example, are often equal.
        let mut alike: Vec<(&PricedCall, Vec<Vec<u32>>, f64)> = Vec::new();
        for one in calls {
            let groups = groups(layout, one.call.exchange.dimension, one.call.phase);
            let Often::Calls(times) = one.call.often else {
                self.add_hand_offs(one, &self.placed(&groups, one), &mut between);
                continue;
            };
            let same = |(other, of, _): &&mut (&PricedCall, Vec<Vec<u32>>, f64)| {
                (other.call.exchange, other.strategy) == (one.call.exchange, one.strategy) && *of == groups
            };
            match alike.iter_mut().find(same) {
                Some((.., sum)) => *sum += times,
                None => alike.push((one, groups, times)),
            }
        }
        for (one, groups, times) in alike {
            self.add_calls(one, (&self.placed(&groups, one), times), &mut load, &mut between);
        }
        load.add_ways(self.router, &between);
        load.tell_alike(self.router);
        load
    }

    fn placed(&self, groups: &[Vec<u32>], one: &PricedCall) -> Vec<Vec<NodeId>> {
        groups.iter().map(|group| self.members(group, one.call.exchange.collective)).collect()
    }

    fn add_calls(
        &self,
        one: &PricedCall,
        (groups, times): (&[Vec<NodeId>], f64),
        load: &mut Load,
        between: &mut BTreeMap<(NodeId, NodeId), f64>,
    ) {
        let Self { router, profile, .. } = *self;
        let planned = Planned {
            collective: one.call.exchange.collective,
            bytes: one.call.exchange.bytes,
            strategy: one.strategy,
        };
        // In-network reduction and multicast: the lowered schedule yields the traffic of each link.
        let by_teams = |generator: &dyn Generate, groups: Vec<&[NodeId]>| {
            let party = |placement| {
                let setting = Setting { fabric: router.fabric(), router, placement, profile, delays: &[] };
                Party { generator, setting }
            };
            let parties: Vec<Party<'_>> = groups.into_iter().map(party).collect();
            let Ok((lowered, _)) = lower_first_blocks(&parties) else { return };
            for (id, resource) in (0..).zip(&lowered.resources) {
                if let Resource::Link(link) = *resource {
                    let passed = lowered.traffic.through(ResourceId(id)).0 as f64 / WORK_PER_BYTE as f64;
                    load.add(link, passed * times);
                }
            }
        };
        self.add_sent(planned, (groups, times), between, by_teams);
    }

    /// Adds the bytes that devices send to each other in a call of all groups. Passes in-network operations to
    /// `by_teams`.
    fn add_sent(
        &self,
        call: Planned,
        (groups, times): (&[Vec<NodeId>], f64),
        between: &mut BTreeMap<(NodeId, NodeId), f64>,
        mut by_teams: impl FnMut(&dyn Generate, Vec<&[NodeId]>),
    ) {
        let at_once: Vec<_> = groups.iter().map(|group| (call, group.as_slice(), Picos::ZERO)).collect();
        for (generator, groups) in self.written(&at_once).by_generator() {
            let Some(sent) = sent(generator, self.profile) else {
                by_teams(generator, groups);
                continue;
            };
            for group in groups {
                let device = |rank: Rank| group.get(rank.0 as usize).copied();
                for (&(from, to), work) in &sent {
                    if let (Some(from), Some(to)) = (device(from), device(to)) {
                        *between.entry((from, to)).or_default() += work.bytes() * times;
                    }
                }
            }
        }
    }

    /// Lower bound on the completion time of a call with all groups concurrent: transfer time of the busiest link.
    pub(super) fn least_of_links(&self, groups: &[Vec<NodeId>], call: Planned) -> Picos {
        let (mut load, mut between) = (Load::default(), BTreeMap::new());
        // (In-network traffic is ignored: the bound stays valid.)
        self.add_sent(call, (groups, 1.0), &mut between, |_, _| {});
        load.add_ways(self.router, &between);
        let a_second = Picos(1_000_000_000_000);
        let busiest = load.utilization(self.router, a_second).into_iter().fold(0.0, f64::max);
        Picos((busiest * a_second.0 as f64) as u64)
    }

    fn add_hand_offs(&self, one: &PricedCall, groups: &[Vec<NodeId>], between: &mut BTreeMap<(NodeId, NodeId), f64>) {
        let Often::HandOffs { forward, back, round } = one.call.often else { return };
        let bytes = one.call.exchange.bytes.0 as f64 / self.profile.protocol(one.strategy.protocol).wire_efficiency;
        for group in groups {
            let mut add = |from: NodeId, to: NodeId, times: f64| {
                if times > 0.0 {
                    *between.entry((from, to)).or_default() += bytes * times;
                }
            };
            for pair in group.windows(2) {
                if let &[this, next] = pair {
                    add(this, next, forward);
                    add(next, this, back);
                }
            }
            if let (Some(&first), Some(&last)) = (group.first(), group.last()) {
                add(last, first, round);
                add(first, last, round);
            }
        }
    }
}

/// Returns the groups that call in a phase. The embedding is on the first pipeline stage, the logits are on the last.
fn groups(layout: &Layout, dimension: Dimension, phase: Phase) -> Vec<Vec<u32>> {
    let GroupShape { size: stages, step: stride, .. } = layout.shape(Dimension::Pipeline);
    let stage = match phase {
        Phase::Words => Some(0),
        Phase::Logits => Some(stages.saturating_sub(1)),
        _ => None,
    };
    let is_there = |group: &Vec<u32>| {
        let of_first = group.first().map(|rank| rank / stride.max(1) % stages.max(1));
        stage.is_none_or(|stage| of_first == Some(stage))
    };
    layout.groups(dimension).into_iter().filter(is_there).collect()
}

#[cfg(test)]
mod tests {
    use fabricast_sim::engine::Watch;
    use fabricast_sim::profile::Profile;
    use fabricast_sim::schedule::{Collective, Protocol};
    use fabricast_sim::{LaunchMode, Surroundings, simulate_together};
    use fabricast_topologies::route::{Links, RouteOptions};
    use fabricast_topologies::{Bytes, FabricRequest, load};

    use super::*;
    use crate::algorithm::Algorithm;
    use crate::job::{Degrees, Layout};
    use crate::step::tests::rails;
    use crate::step::{Exchange, StepCall};
    use crate::strategy::Strategy;

    fn priced(exchange: Exchange, strategy: Strategy, often: Often) -> PricedCall {
        let call = StepCall { phase: Phase::LayerForward, exchange, often };
        PricedCall { call, strategy, time: Picos(1) }
    }

    /// Link loads equal those of a simulation of all groups, without representatives.
    #[test]
    fn link_load_matches_simulation_of_all_groups() {
        let fabric = rails(4);
        let router = Router::new(&fabric, RouteOptions::default());
        let profile = Profile::for_fabric(&fabric).unwrap();
        let simulated = Simulated::new(&router, &profile, fabric.gpus());
        let layout = Layout { degrees: Degrees { tensor: 4, data: 8, ..Degrees::default() } };
        let ways = [
            (Dimension::Tensor, Collective::AllReduce, Algorithm::Ring, Protocol::Ll128, 8),
            (Dimension::Tensor, Collective::AllReduce, Algorithm::Nvls, Protocol::Simple, 16),
            (Dimension::Tensor, Collective::AllToAll, Algorithm::Direct, Protocol::Simple, 4),
            (Dimension::Data, Collective::ReduceScatter, Algorithm::Ring, Protocol::Simple, 8),
            (Dimension::Data, Collective::AllReduce, Algorithm::Tree, Protocol::Simple, 8),
            (Dimension::Data, Collective::AllToAll, Algorithm::Direct, Protocol::Simple, 8),
        ];
        for (dimension, collective, algorithm, protocol, channels) in ways {
            let strategy = Strategy { algorithm, protocol, channels, threads: None, chunk: None };
            let exchange = Exchange { dimension, collective, bytes: Bytes(48 << 20) };
            let found = simulated.load(&layout, &[priced(exchange, strategy, Often::Calls(3.0))]);
            let groups: Vec<Vec<NodeId>> =
                layout.groups(dimension).iter().map(|group| simulated.devices(group)).collect();
            let planned = Planned { collective, bytes: exchange.bytes, strategy };
            let at_once: Vec<_> = groups.iter().map(|group| (planned, group.as_slice(), Picos::ZERO)).collect();
            let written = simulated.written(&at_once);
            let parties: Vec<Party<'_>> = written
                .by_generator()
                .flat_map(|(generator, groups)| groups.into_iter().map(move |placement| (generator, placement)))
                .map(|(generator, placement)| {
                    let setting =
                        Setting { fabric: &fabric, router: &router, placement, profile: &profile, delays: &[] };
                    Party { generator, setting }
                })
                .collect();
            let mode = LaunchMode::default();
            let timeline = simulate_together(&parties, mode, Surroundings::default(), Watch::default()).unwrap();
            let carried: BTreeMap<LinkId, f64> = timeline
                .utilization
                .iter()
                .filter_map(|one| if let Resource::Link(link) = one.resource { Some((link, one.bytes)) } else { None })
                .collect();
            assert!(!carried.is_empty());
            for (link, _) in fabric.links() {
                let (expected, found) = (3.0 * carried.get(&link).copied().unwrap_or_default(), found.of(link));
                let name = fabric.link_name(link);
                assert!((found - expected).abs() <= 1e-6 * expected.max(1.0), "{strategy} {name}: {found} {expected}");
            }
        }
    }

    /// A router that lists one representative of equivalent links yields the same load as one that lists all links. No
    /// call is faster than its busiest link.
    #[test]
    fn equivalent_links_carry_equal_load_and_bound_holds() {
        for (network, is_alike) in
            [("fat_tree,radix=16,oversubscription=3", true), ("fat_tree,tiers=3,radix=16", true), ("torus", false)]
        {
            let network = Some(format!("{network},nic=400Gb/s").parse().unwrap());
            let fabric = load(&FabricRequest { nodes: Some(32), network, ..FabricRequest::of("hgx-h100") }).unwrap();
            let profile = Profile::for_fabric(&fabric).unwrap();
            let layout = Layout { degrees: Degrees { tensor: 8, data: 32, ..Degrees::default() } };
            let of = |links: Links, exchange: Exchange, strategy: Strategy| {
                let router = Router::listing(&fabric, RouteOptions::default(), links);
                let simulated = Simulated::new(&router, &profile, fabric.gpus());
                let found = simulated.load(&layout, &[priced(exchange, strategy, Often::Calls(1.0))]);
                let groups = simulated.together(&layout.groups(Dimension::Data), exchange.collective);
                let call = Planned { collective: exchange.collective, bytes: exchange.bytes, strategy };
                let least = simulated.least_of_links(&groups, call);
                let takes = simulated.slowest(&groups, (call.collective, call.bytes), strategy).unwrap();
                assert!(least <= takes && least.0 > 0, "{strategy}: {least} {takes}");
                (found, least, takes)
            };
            for (collective, algorithm) in [
                (Collective::AllGather, Algorithm::Ring),
                (Collective::ReduceScatter, Algorithm::Pat),
                (Collective::AllReduce, Algorithm::Tree),
            ] {
                let strategy =
                    Strategy { algorithm, protocol: Protocol::Simple, channels: 8, threads: None, chunk: None };
                let exchange = Exchange { dimension: Dimension::Data, collective, bytes: Bytes(64 << 20) };
                let (each, ..) = of(Links::Each, exchange, strategy);
                let (one, least, takes) = of(Links::OneOfAlike, exchange, strategy);
                for (link, _) in fabric.links() {
                    let (each, one) = (each.of(link), one.of(link));
                    assert!((each - one).abs() <= 1e-9 * each, "{strategy} {}: {each} {one}", fabric.link_name(link));
                }
                // Large rings are limited mostly by their busiest link.
                assert!(algorithm != Algorithm::Ring || least.0 * 10 > takes.0 * 6, "{least} {takes}");
            }
            let router = Router::listing(&fabric, RouteOptions::default(), Links::OneOfAlike);
            assert_eq!(fabric.links().any(|(link, _)| router.alike(link).is_some()), is_alike);
        }
    }

    /// Each stage sends its activations forward and its gradients backward. With interleaving the last stage also sends
    /// to the first.
    #[test]
    fn pipeline_transfers_load_links_in_both_directions() {
        let fabric = load(&FabricRequest::of("hgx-h100")).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let profile = Profile::for_fabric(&fabric).unwrap();
        let simulated = Simulated::new(&router, &profile, fabric.gpus());
        let layout = Layout { degrees: Degrees { pipeline: 4, tensor: 2, ..Degrees::default() } };
        let strategy = Strategy {
            algorithm: Algorithm::Direct,
            protocol: Protocol::Simple,
            channels: 1,
            threads: None,
            chunk: None,
        };
        let exchange =
            Exchange { dimension: Dimension::Pipeline, collective: Collective::SendRecv, bytes: Bytes(1 << 20) };
        let often = Often::HandOffs { forward: 6.0, back: 6.0, round: 3.0 };
        let load = simulated.load(&layout, &[priced(exchange, strategy, often)]);
        let framed = f64::from(1 << 20) / profile.protocol(Protocol::Simple).wire_efficiency;
        let leaves =
            |rank: usize| -> f64 { fabric.leaving(fabric.gpus()[rank]).iter().map(|&link| load.of(link)).sum() };
        for rank in 0..8 {
            let messages = if (2..6).contains(&rank) { 12.0 } else { 9.0 };
            assert!((leaves(rank) / framed - messages).abs() < 1e-9, "{rank}: {}", leaves(rank) / framed);
        }
    }
}
