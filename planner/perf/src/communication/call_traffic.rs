//! Traffic of a call, from its schedule, without simulation.

use fabricast_sim::lower::rank_traffic;
use fabricast_sim::schedule::{Rank, ScheduleGenerator};
use fabricast_topologies::{NodeId, Picos};

use super::calls::CallWithStrategy;
use super::concurrent_calls::ConcurrentCalls;
use super::link_load::{LinkLoad, PairTraffic};

/// Call of several groups, with its number of executions.
#[derive(Clone, Copy)]
pub(super) struct RepeatedCall<'g> {
    pub call: CallWithStrategy,
    pub groups: &'g [Vec<NodeId>],
    pub times: f64,
}

impl RepeatedCall<'_> {
    /// Adds the bytes that devices send to each other to `pair_bytes`. Passes schedules with in-network operations and
    /// the groups that run them to `add_in_network`, since their traffic is not between pairs.
    pub(super) fn add_sent(
        &self,
        calls: &ConcurrentCalls<'_>,
        pair_bytes: &mut PairTraffic,
        mut add_in_network: impl FnMut(&dyn ScheduleGenerator, Vec<&[NodeId]>),
    ) {
        for (generator, groups) in calls.generate_each(self.groups, self.call).by_generator() {
            let Some(sent) = rank_traffic(generator, calls.profile) else {
                add_in_network(generator, groups);
                continue;
            };
            for group in groups {
                let device = |rank: Rank| group.get(rank.0 as usize).copied();
                for (&(from, to), work) in &sent {
                    if let (Some(from), Some(to)) = (device(from), device(to)) {
                        *pair_bytes.entry((from, to)).or_default() += work.bytes() * self.times;
                    }
                }
            }
        }
    }
}

/// Lower bound on the completion time of a call with all groups concurrent: transfer time of the busiest link.
pub(super) fn busiest_link_bound(calls: &ConcurrentCalls<'_>, groups: &[Vec<NodeId>], call: CallWithStrategy) -> Picos {
    let (mut load, mut pair_bytes) = (LinkLoad::default(), PairTraffic::new());
    // (In-network traffic is ignored: the bound stays valid.)
    RepeatedCall { call, groups, times: 1.0 }.add_sent(calls, &mut pair_bytes, |_, _| {});
    load.add_routes(calls.router, &pair_bytes);
    let a_second = Picos(1_000_000_000_000);
    let busiest = load.utilization(calls.router, a_second).into_iter().fold(0.0, f64::max);
    Picos((busiest * a_second.0 as f64) as u64)
}
