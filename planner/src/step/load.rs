//! What each link carries in a step: the calls of the step, all of their groups, over the ways that they take.
//!
//! Bytes are those on the wire, framing included, and follow from the schedules and the routes; nothing is run for them. So they are
//! those of all groups, also where one was simulated for others, and of whole calls, also where a part was timed.

use std::collections::BTreeMap;

use fabricast_sim::lower::{Party, Resource, Setting, lower_first_blocks, sent};
use fabricast_sim::quantity::WORK_PER_BYTE;
use fabricast_sim::schedule::Rank;
use fabricast_sim::sharing::ResourceId;
use fabricast_topologies::route::{Hop, Router};
use fabricast_topologies::{LinkId, NodeId, Picos};

use super::calls::{Often, PricedCall};
use super::price::Simulated;
use super::together::Planned;
use crate::job::{Dimension, GroupShape, Layout, Phase};

/// Bytes that each direction of each link carries, by [`LinkId`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    bytes: Vec<f64>,
}

impl Load {
    /// What a link carries.
    #[must_use]
    pub fn of(&self, link: LinkId) -> f64 {
        self.bytes.get(link.0 as usize).copied().unwrap_or_default()
    }

    /// The part of what each link could carry in that time, at the rate that the fabric states, by [`LinkId`]; none of links
    /// without a rate.
    #[must_use]
    pub fn utilization(&self, router: &Router<'_>, time: Picos) -> Vec<f64> {
        let seconds = time.0.max(1) as f64 / 1e12;
        let of = |(id, link): (LinkId, &fabricast_topologies::fabric::Link)| {
            link.bandwidth.map_or(0.0, |rate| self.of(id) / (rate.0 as f64 * seconds))
        };
        router.fabric().links().map(of).collect()
    }

    /// Bytes between devices, each by its way.
    fn add_ways(&mut self, router: &Router<'_>, sent: &BTreeMap<(NodeId, NodeId), f64>) {
        let mut hops = Vec::new();
        for (&ends, &bytes) in sent {
            self.add_way(router, ends, bytes, &mut hops);
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

    /// Bytes from one device to another.
    fn add_way(&mut self, router: &Router<'_>, (from, to): (NodeId, NodeId), bytes: f64, hops: &mut Vec<Hop>) {
        hops.clear();
        // What cannot be reached was refused when it was priced.
        if router.route_into(from, to, 0, hops).is_ok() {
            for hop in hops.iter() {
                self.add(hop.link, bytes * f64::from(hop.share.numerator) / f64::from(hop.share.denominator.max(1)));
            }
        }
    }
}

impl Simulated<'_> {
    /// What links carry in a step of these calls.
    #[must_use]
    pub fn load(&self, layout: &Layout, calls: &[PricedCall]) -> Load {
        let mut load = Load::default();
        // What goes from one device to another in all calls goes the same way.
        let mut between = BTreeMap::new();
        // Calls that load the same links alike, and how often there is one of them: forward and backward, say.
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
        let at_once: Vec<_> = groups.iter().map(|group| (planned, group.as_slice(), Picos::ZERO)).collect();
        for (generator, groups) in self.written(&at_once).by_generator() {
            match sent(generator, profile) {
                Some(sent) => {
                    for group in groups {
                        let device = |rank: Rank| group.get(rank.0 as usize).copied();
                        for (&(from, to), work) in &sent {
                            if let (Some(from), Some(to)) = (device(from), device(to)) {
                                *between.entry((from, to)).or_default() += work.bytes() * times;
                            }
                        }
                    }
                }
                // Through switches that reduce and copy: what passes is worked out with the ways.
                None => {
                    let party = |placement| {
                        let setting = Setting { fabric: router.fabric(), router, placement, profile, delays: &[] };
                        Party { generator, setting }
                    };
                    let parties: Vec<Party<'_>> = groups.into_iter().map(party).collect();
                    let Ok((lowered, _)) = lower_first_blocks(&parties) else { continue };
                    for (id, resource) in (0..).zip(&lowered.resources) {
                        if let Resource::Link(link) = *resource {
                            let passed = lowered.traffic.through(ResourceId(id)).0 as f64 / WORK_PER_BYTE as f64;
                            load.add(link, passed * times);
                        }
                    }
                }
            }
        }
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

/// The groups that call in a phase: words are looked up on the first stage, and scored on the last.
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
    use fabricast_topologies::route::RouteOptions;
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

    /// What links carry is what they carry when all groups are simulated together, none for another.
    #[test]
    fn links_carry_what_a_simulation_of_all_groups_carries() {
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

    /// Each stage sends what it computes once forward and once back, and with stretches the last one the first.
    #[test]
    fn stages_hand_over_each_way() {
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
