//! Bytes that each link carries in a step: all calls, all groups, along their routes.
//!
//! Bytes are counted on the wire, framing included. They follow from the schedules and the routes without simulation.
//! They therefore cover all groups even if only a representative was simulated, and whole calls even if only a part was
//! timed.

use std::collections::BTreeMap;

use fabricast_sim::lower::{Environment, Resource, ScheduleInstance, lower_first_blocks, rank_traffic};
use fabricast_sim::quantity::WORK_PER_BYTE;
use fabricast_sim::schedule::{Rank, ScheduleGenerator};
use fabricast_sim::sharing::ResourceId;
use fabricast_topologies::route::{Hop, Router};
use fabricast_topologies::{LinkId, NodeId, Picos};

use rayon::prelude::*;

use super::call_times::SimulatedCosts;
use super::concurrent_calls::CallWithStrategy;
use super::step_calls::{CallCount, TimedCall};
use fabricast_workload::job::{Dimension, GroupShape, Layout, Phase};

/// Number of routes that one task accumulates before its load is merged.
const ROUTES_PER_TASK: usize = 1 << 13;

/// Bytes carried by each direction of each link, indexed by [`LinkId`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkLoad {
    bytes: Vec<f64>,
}

impl LinkLoad {
    /// Returns the bytes that a link carries.
    #[must_use]
    pub fn bytes_on(&self, link: LinkId) -> f64 {
        self.bytes.get(link.0 as usize).copied().unwrap_or_default()
    }

    /// Utilization of each link over `time`, relative to the bandwidth that the fabric states, indexed by [`LinkId`].
    /// Links without a stated bandwidth have utilization 0.
    #[must_use]
    pub fn utilization(&self, router: &Router<'_>, time: Picos) -> Vec<f64> {
        let seconds = time.0.max(1) as f64 / 1e12;
        let link_utilization = |(id, link): (LinkId, &fabricast_topologies::fabric::Link)| {
            link.bandwidth.map_or(0.0, |rate| self.bytes_on(id) / (rate.0 as f64 * seconds))
        };
        router.fabric().links().map(link_utilization).collect()
    }

    /// Adds bytes between devices along their routes.
    fn add_routes(&mut self, router: &Router<'_>, sent: &BTreeMap<(NodeId, NodeId), f64>) {
        let sent: Vec<_> = sent.iter().map(|(&ends, &bytes)| (ends, bytes)).collect();
        let partial_load = |routes: &[((NodeId, NodeId), f64)]| {
            let (mut load, mut hops) = (Self::default(), Vec::new());
            routes.iter().for_each(|&((from, to), bytes)| load.add_route(router, from, to, bytes, &mut hops));
            load
        };
        // Summation order does not depend on the number of threads.
        let loads: Vec<Self> = sent.par_chunks(ROUTES_PER_TASK).with_max_len(1).map(partial_load).collect();
        for load in loads {
            (0u32..)
                .zip(load.bytes)
                .filter(|(_, bytes)| *bytes > 0.0)
                .for_each(|(link, bytes)| self.add(LinkId(link), bytes));
        }
    }

    /// Copies the load of representative links to the links that they represent.
    fn copy_to_represented(&mut self, router: &Router<'_>) {
        for link in (0..self.bytes.len() as u32).map(LinkId) {
            let bytes = self.bytes_on(link);
            // (`represented_links` returns nothing for links that represent only themselves, and represented links
            // represent no others.)
            for &other in router.represented_links(link).into_iter().flatten().filter(|&&other| other != link) {
                self.add(other, bytes);
            }
        }
    }

    fn add(&mut self, link: LinkId, bytes: f64) {
        let index = link.0 as usize;
        if self.bytes.len() <= index {
            self.bytes.resize(index + 1, 0.0);
        }
        if let Some(sum) = self.bytes.get_mut(index) {
            *sum += bytes;
        }
    }

    /// Adds bytes from one device to another along their route.
    fn add_route(&mut self, router: &Router<'_>, from: NodeId, to: NodeId, bytes: f64, hops: &mut Vec<Hop>) {
        hops.clear();
        // Unreachable pairs were already rejected when the call was timed.
        if router.route_into(from, to, 0, hops).is_ok() {
            for hop in hops.iter() {
                self.add(hop.link, bytes * f64::from(hop.share.numerator) / f64::from(hop.share.denominator.max(1)));
            }
        }
    }
}

impl SimulatedCosts<'_> {
    /// Bytes that links carry in a step with these calls.
    #[must_use]
    pub fn load(&self, layout: &Layout, calls: &[TimedCall]) -> LinkLoad {
        let mut load = LinkLoad::default();
        // Traffic between the same two devices takes the same route in all calls, so it is summed before routing.
        let mut pair_bytes = BTreeMap::new();
        // Distinct calls with their number of executions; forward and backward calls, for example, are often equal.
        let mut distinct: Vec<(&TimedCall, Vec<Vec<u32>>, f64)> = Vec::new();
        for timed in calls {
            let groups = groups(layout, timed.call.exchange.dimension, timed.call.phase);
            let CallCount::Calls(times) = timed.call.count else {
                self.add_pipeline_transfers(timed, &self.group_devices(&groups, timed), &mut pair_bytes);
                continue;
            };
            let is_same = |(other, other_groups, _): &&mut (&TimedCall, Vec<Vec<u32>>, f64)| {
                (other.call.exchange, other.strategy) == (timed.call.exchange, timed.strategy)
                    && *other_groups == groups
            };
            match distinct.iter_mut().find(is_same) {
                Some((.., sum)) => *sum += times,
                None => distinct.push((timed, groups, times)),
            }
        }
        for (timed, groups, times) in distinct {
            self.add_calls(timed, &self.group_devices(&groups, timed), times, &mut load, &mut pair_bytes);
        }
        load.add_routes(self.router, &pair_bytes);
        load.copy_to_represented(self.router);
        load
    }

    fn group_devices(&self, groups: &[Vec<u32>], timed: &TimedCall) -> Vec<Vec<NodeId>> {
        groups.iter().map(|group| self.ordered_devices(group, timed.call.exchange.collective)).collect()
    }

    fn add_calls(
        &self,
        timed: &TimedCall,
        groups: &[Vec<NodeId>],
        times: f64,
        load: &mut LinkLoad,
        pair_bytes: &mut BTreeMap<(NodeId, NodeId), f64>,
    ) {
        let Self { router, profile, .. } = *self;
        let call = CallWithStrategy {
            collective: timed.call.exchange.collective,
            bytes: timed.call.exchange.bytes,
            strategy: timed.strategy,
        };
        // In-network reduction and multicast: the lowered schedule yields the traffic of each link.
        let add_in_network = |generator: &dyn ScheduleGenerator, groups: Vec<&[NodeId]>| {
            let instance = |placement| {
                let setting = Environment { fabric: router.fabric(), router, placement, profile, delays: &[] };
                ScheduleInstance { generator, setting }
            };
            let instances: Vec<ScheduleInstance<'_>> = groups.into_iter().map(instance).collect();
            let Ok((lowered, _)) = lower_first_blocks(&instances) else { return };
            for (id, resource) in (0..).zip(&lowered.resources) {
                if let Resource::Link(link) = *resource {
                    let carried = lowered.traffic.resource_work(ResourceId(id)).0 as f64 / WORK_PER_BYTE as f64;
                    load.add(link, carried * times);
                }
            }
        };
        self.add_sent(call, groups, times, pair_bytes, add_in_network);
    }

    /// Adds the bytes that devices send to each other in a call of all groups. Passes in-network operations to
    /// `add_in_network`.
    fn add_sent(
        &self,
        call: CallWithStrategy,
        groups: &[Vec<NodeId>],
        times: f64,
        pair_bytes: &mut BTreeMap<(NodeId, NodeId), f64>,
        mut add_in_network: impl FnMut(&dyn ScheduleGenerator, Vec<&[NodeId]>),
    ) {
        let calls: Vec<_> = groups.iter().map(|group| (call, group.as_slice(), Picos::ZERO)).collect();
        for (generator, groups) in self.generate_calls(&calls).by_generator() {
            let Some(sent) = rank_traffic(generator, self.profile) else {
                add_in_network(generator, groups);
                continue;
            };
            for group in groups {
                let device = |rank: Rank| group.get(rank.0 as usize).copied();
                for (&(from, to), work) in &sent {
                    if let (Some(from), Some(to)) = (device(from), device(to)) {
                        *pair_bytes.entry((from, to)).or_default() += work.bytes() * times;
                    }
                }
            }
        }
    }

    /// Lower bound on the completion time of a call with all groups concurrent: transfer time of the busiest link.
    pub(super) fn busiest_link_bound(&self, groups: &[Vec<NodeId>], call: CallWithStrategy) -> Picos {
        let (mut load, mut pair_bytes) = (LinkLoad::default(), BTreeMap::new());
        // (In-network traffic is ignored: the bound stays valid.)
        self.add_sent(call, groups, 1.0, &mut pair_bytes, |_, _| {});
        load.add_routes(self.router, &pair_bytes);
        let a_second = Picos(1_000_000_000_000);
        let busiest = load.utilization(self.router, a_second).into_iter().fold(0.0, f64::max);
        Picos((busiest * a_second.0 as f64) as u64)
    }

    fn add_pipeline_transfers(
        &self,
        timed: &TimedCall,
        groups: &[Vec<NodeId>],
        pair_bytes: &mut BTreeMap<(NodeId, NodeId), f64>,
    ) {
        let CallCount::PipelineTransfers { forward, backward, wrap_around } = timed.call.count else {
            return;
        };
        let bytes = timed.call.exchange.bytes.0 as f64 / self.profile.protocol(timed.strategy.protocol).wire_efficiency;
        for group in groups {
            let mut add = |from: NodeId, to: NodeId, times: f64| {
                if times > 0.0 {
                    *pair_bytes.entry((from, to)).or_default() += bytes * times;
                }
            };
            for pair in group.windows(2) {
                if let &[this, next] = pair {
                    add(this, next, forward);
                    add(next, this, backward);
                }
            }
            if let (Some(&first), Some(&last)) = (group.first(), group.last()) {
                add(last, first, wrap_around);
                add(first, last, wrap_around);
            }
        }
    }
}

/// Returns the groups that call in a phase. The embedding is on the first pipeline stage, the logits are on the last.
fn groups(layout: &Layout, dimension: Dimension, phase: Phase) -> Vec<Vec<u32>> {
    let GroupShape { size: stages, stride, .. } = layout.shape(Dimension::Pipeline);
    let stage = match phase {
        Phase::Embedding => Some(0),
        Phase::Logits => Some(stages.saturating_sub(1)),
        _ => None,
    };
    let makes_call = |group: &Vec<u32>| {
        let first_stage = group.first().map(|rank| rank / stride.max(1) % stages.max(1));
        stage.is_none_or(|stage| first_stage == Some(stage))
    };
    layout.groups(dimension).into_iter().filter(makes_call).collect()
}

#[cfg(test)]
mod tests {
    use fabricast_sim::engine::Watch;
    use fabricast_sim::profile::Profile;
    use fabricast_sim::schedule::{Collective, Protocol};
    use fabricast_sim::{LaunchMode, SimulationOptions, simulate_concurrent};
    use fabricast_topologies::route::{LinkListing, RouteOptions};
    use fabricast_topologies::{Bytes, FabricRequest, load};

    use super::*;
    use crate::step::tests::rails;
    use crate::step::{Exchange, StepCall};
    use fabricast_collectives::algorithm::Algorithm;
    use fabricast_collectives::strategy::Strategy;
    use fabricast_workload::job::{Degrees, Layout};

    fn timed_call(exchange: Exchange, strategy: Strategy, count: CallCount) -> TimedCall {
        let call = StepCall { phase: Phase::LayerForward, exchange, count };
        TimedCall { call, strategy, time: Picos(1) }
    }

    /// Link loads equal those of a simulation of all groups, without representatives.
    #[test]
    fn link_load_matches_simulation_of_all_groups() {
        let fabric = rails(4);
        let router = Router::new(&fabric, RouteOptions::default());
        let profile = Profile::for_fabric(&fabric).unwrap();
        let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
        let layout = Layout { degrees: Degrees { tensor: 4, data: 8, ..Degrees::default() } };
        let cases = [
            (Dimension::Tensor, Collective::AllReduce, Algorithm::Ring, Protocol::Ll128, 8),
            (Dimension::Tensor, Collective::AllReduce, Algorithm::Nvls, Protocol::Simple, 16),
            (Dimension::Tensor, Collective::AllToAll, Algorithm::Direct, Protocol::Simple, 4),
            (Dimension::Data, Collective::ReduceScatter, Algorithm::Ring, Protocol::Simple, 8),
            (Dimension::Data, Collective::AllReduce, Algorithm::Tree, Protocol::Simple, 8),
            (Dimension::Data, Collective::AllToAll, Algorithm::Direct, Protocol::Simple, 8),
        ];
        for (dimension, collective, algorithm, protocol, channels) in cases {
            let strategy = Strategy { algorithm, protocol, channels, threads: None, chunk: None };
            let exchange = Exchange { dimension, collective, bytes: Bytes(48 << 20) };
            let link_load = simulated.load(&layout, &[timed_call(exchange, strategy, CallCount::Calls(3.0))]);
            let groups: Vec<Vec<NodeId>> =
                layout.groups(dimension).iter().map(|group| simulated.devices(group)).collect();
            let call = CallWithStrategy { collective, bytes: exchange.bytes, strategy };
            let calls: Vec<_> = groups.iter().map(|group| (call, group.as_slice(), Picos::ZERO)).collect();
            let generated = simulated.generate_calls(&calls);
            let instances: Vec<ScheduleInstance<'_>> = generated
                .by_generator()
                .flat_map(|(generator, groups)| groups.into_iter().map(move |placement| (generator, placement)))
                .map(|(generator, placement)| {
                    let setting =
                        Environment { fabric: &fabric, router: &router, placement, profile: &profile, delays: &[] };
                    ScheduleInstance { generator, setting }
                })
                .collect();
            let mode = LaunchMode::default();
            let timeline =
                simulate_concurrent(&instances, mode, SimulationOptions::default(), Watch::default()).unwrap();
            let carried: BTreeMap<LinkId, f64> = timeline
                .utilization
                .iter()
                .filter_map(|one| if let Resource::Link(link) = one.resource { Some((link, one.bytes)) } else { None })
                .collect();
            assert!(!carried.is_empty());
            for (link, _) in fabric.links() {
                let (expected, actual) =
                    (3.0 * carried.get(&link).copied().unwrap_or_default(), link_load.bytes_on(link));
                let name = fabric.link_name(link);
                assert!(
                    (actual - expected).abs() <= 1e-6 * expected.max(1.0),
                    "{strategy} {name}: {actual} {expected}"
                );
            }
        }
    }

    /// A router that lists one representative of equivalent links yields the same load as one that lists all links. No
    /// call is faster than its busiest link.
    #[test]
    fn equivalent_links_carry_equal_load_and_bound_holds() {
        for (network, has_equivalent_links) in
            [("fat_tree,radix=16,oversubscription=3", true), ("fat_tree,tiers=3,radix=16", true), ("torus", false)]
        {
            let network = Some(format!("{network},nic=400Gb/s").parse().unwrap());
            let fabric = load(&FabricRequest { nodes: Some(32), network, ..FabricRequest::new("hgx-h100") }).unwrap();
            let profile = Profile::for_fabric(&fabric).unwrap();
            let layout = Layout { degrees: Degrees { tensor: 8, data: 32, ..Degrees::default() } };
            let compute = |links: LinkListing, exchange: Exchange, strategy: Strategy| {
                let router = Router::with_link_listing(&fabric, RouteOptions::default(), links);
                let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
                let link_load = simulated.load(&layout, &[timed_call(exchange, strategy, CallCount::Calls(1.0))]);
                let groups = simulated.concurrent_groups(&layout.groups(Dimension::Data), exchange.collective);
                let call = CallWithStrategy { collective: exchange.collective, bytes: exchange.bytes, strategy };
                let lower_bound = simulated.busiest_link_bound(&groups, call);
                let time = simulated.slowest(&groups, call.collective, call.bytes, strategy).unwrap();
                assert!(lower_bound <= time && lower_bound.0 > 0, "{strategy}: {lower_bound} {time}");
                (link_load, lower_bound, time)
            };
            for (collective, algorithm) in [
                (Collective::AllGather, Algorithm::Ring),
                (Collective::ReduceScatter, Algorithm::Pat),
                (Collective::AllReduce, Algorithm::Tree),
            ] {
                let strategy =
                    Strategy { algorithm, protocol: Protocol::Simple, channels: 8, threads: None, chunk: None };
                let exchange = Exchange { dimension: Dimension::Data, collective, bytes: Bytes(64 << 20) };
                let (all, ..) = compute(LinkListing::All, exchange, strategy);
                let (representative, lower_bound, time) = compute(LinkListing::Representatives, exchange, strategy);
                for (link, _) in fabric.links() {
                    let (all, representative) = (all.bytes_on(link), representative.bytes_on(link));
                    assert!(
                        (all - representative).abs() <= 1e-9 * all,
                        "{strategy} {}: {all} {representative}",
                        fabric.link_name(link)
                    );
                }
                // Large rings are limited mostly by their busiest link.
                assert!(algorithm != Algorithm::Ring || lower_bound.0 * 10 > time.0 * 6, "{lower_bound} {time}");
            }
            let router = Router::with_link_listing(&fabric, RouteOptions::default(), LinkListing::Representatives);
            assert_eq!(fabric.links().any(|(link, _)| router.represented_links(link).is_some()), has_equivalent_links);
        }
    }

    /// Each stage sends its activations forward and its gradients backward. With interleaving the last stage also sends
    /// to the first.
    #[test]
    fn pipeline_transfers_load_links_in_both_directions() {
        let fabric = load(&FabricRequest::new("hgx-h100")).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let profile = Profile::for_fabric(&fabric).unwrap();
        let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
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
        let count = CallCount::PipelineTransfers { forward: 6.0, backward: 6.0, wrap_around: 3.0 };
        let load = simulated.load(&layout, &[timed_call(exchange, strategy, count)]);
        let wire_bytes = f64::from(1 << 20) / profile.protocol(Protocol::Simple).wire_efficiency;
        let outgoing_bytes = |rank: usize| -> f64 {
            fabric.outgoing_links(fabric.gpus()[rank]).iter().map(|&link| load.bytes_on(link)).sum()
        };
        for rank in 0..8 {
            let messages = if (2..6).contains(&rank) { 12.0 } else { 9.0 };
            assert!(
                (outgoing_bytes(rank) / wire_bytes - messages).abs() < 1e-9,
                "{rank}: {}",
                outgoing_bytes(rank) / wire_bytes
            );
        }
    }
}
