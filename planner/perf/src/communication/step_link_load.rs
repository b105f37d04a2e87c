//! Bytes that each link carries in a step: all calls, all groups, along their routes.
//!
//! Bytes are counted on the wire, framing included. They are computed from the schedules and the routes without
//! simulation. They therefore include all groups even if only a representative was simulated, and whole calls even if
//! only a sample was timed.

use fabricast_sim::lower::{Environment, Resource, ScheduleInstance, lower_first_groups};
use fabricast_sim::quantity::WORK_PER_BYTE;
use fabricast_sim::schedule::ScheduleGenerator;
use fabricast_sim::sharing::ResourceId;
use fabricast_topologies::NodeId;

use super::call_traffic::RepeatedCall;
use super::calls::{CallCount, CallWithStrategy, StepExchange, TimedCall};
use super::concurrent_calls::ConcurrentCalls;
use super::link_load::{LinkLoad, PairTraffic};
use super::placement::Placement;
use super::token_exchange::TokenExchangeTimer;
use fabricast_workload::job::{Dimension, GroupShape, Layout, Phase};

/// Call of a step with the groups that make it and its number of executions per step.
struct DistinctCall<'c> {
    timed: &'c TimedCall,
    groups: Vec<Vec<u32>>,
    times: f64,
}

/// Computes the load of links by the calls of a step.
pub(super) struct StepTraffic<'a> {
    pub placement: &'a Placement<'a>,
    pub calls: ConcurrentCalls<'a>,
}

impl StepTraffic<'_> {
    /// Bytes that each link carries in a step with these calls.
    pub(super) fn load(&self, layout: &Layout, calls: &[TimedCall], exchanges: &[StepExchange]) -> LinkLoad {
        let (mut load, mut pair_bytes) = (LinkLoad::default(), PairTraffic::new());
        let timer = TokenExchangeTimer { placement: self.placement, profile: self.calls.profile };
        exchanges.iter().for_each(|exchange| timer.add_traffic(layout, exchange, &mut pair_bytes));
        // Forward and backward calls, for example, are often equal.
        let mut distinct: Vec<DistinctCall<'_>> = Vec::new();
        for timed in calls {
            let groups = groups(layout, timed.call.exchange.dimension, timed.call.phase);
            let CallCount::Calls(times) = timed.call.count else {
                self.add_pipeline_transfers(timed, &self.group_devices(&groups, timed), &mut pair_bytes);
                continue;
            };
            let is_same = |other: &&mut DistinctCall<'_>| {
                (other.timed.call.exchange, other.timed.strategy) == (timed.call.exchange, timed.strategy)
                    && other.groups == groups
            };
            match distinct.iter_mut().find(is_same) {
                Some(known) => known.times += times,
                None => distinct.push(DistinctCall { timed, groups, times }),
            }
        }
        for DistinctCall { timed, groups, times } in distinct {
            let groups = self.group_devices(&groups, timed);
            let call = CallWithStrategy {
                collective: timed.call.exchange.collective,
                bytes: timed.call.exchange.bytes,
                strategy: timed.strategy,
            };
            self.add_call(RepeatedCall { call, groups: &groups, times }, &mut load, &mut pair_bytes);
        }
        let router = self.placement.router();
        load.add_routes(router, &pair_bytes);
        load.copy_to_represented(router);
        load
    }

    fn group_devices(&self, groups: &[Vec<u32>], timed: &TimedCall) -> Vec<Vec<NodeId>> {
        let collective = timed.call.exchange.collective;
        groups.iter().map(|group| self.placement.ordered_devices(group, collective)).collect()
    }

    fn add_call(&self, call: RepeatedCall<'_>, load: &mut LinkLoad, pair_bytes: &mut PairTraffic) {
        let (router, profile) = (self.placement.router(), self.calls.profile);
        // With in-network reduction and multicast, the traffic of each link is taken from the lowered schedule.
        let add_in_network = |generator: &dyn ScheduleGenerator, groups: Vec<&[NodeId]>| {
            let instance = |placement| {
                let setting = Environment { fabric: router.fabric(), router, placement, profile, delays: &[] };
                ScheduleInstance::new(generator, setting)
            };
            let instances: Vec<ScheduleInstance<'_>> = groups.into_iter().map(instance).collect();
            let Ok((lowered, _)) = lower_first_groups(&instances) else { return };
            for (id, resource) in (0..).zip(&lowered.resources) {
                if let Resource::Link(link) = *resource {
                    let carried = lowered.traffic.resource_work(ResourceId(id)).0 as f64 / WORK_PER_BYTE as f64;
                    load.add(link, carried * call.times);
                }
            }
        };
        call.add_sent(&self.calls, pair_bytes, add_in_network);
    }

    fn add_pipeline_transfers(&self, timed: &TimedCall, groups: &[Vec<NodeId>], pair_bytes: &mut PairTraffic) {
        let CallCount::PipelineTransfers { forward, backward, wrap_around } = timed.call.count else {
            return;
        };
        let protocol = self.calls.profile.protocol(timed.strategy.protocol);
        let bytes = timed.call.exchange.bytes.0 as f64 / protocol.wire_efficiency;
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

/// Returns the groups of a dimension that make calls in a phase. The embedding is on the first pipeline stage, the
/// logits are on the last.
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
