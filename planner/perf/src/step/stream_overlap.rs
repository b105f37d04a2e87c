//! Overlap of gradient and weight communication with a pass, if states are sharded within groups and replicated among
//! groups (hybrid sharding): communication within a group and reduction among groups.
//!
//! The two run concurrently if the job's software has a stream for each ([`ReductionStreams`]) and they use different
//! links, such as NVLink within a host and NICs between hosts. For n layers with time s within groups and r among
//! groups, both end after n max(s, r) + min(s, r), since the reduction of a layer among groups follows that within its
//! group. If the condition does not hold, they run in sequence.

use fabricast_topologies::Picos;

use super::call_costs::CallCosts;
use super::interference::{OverlapCost, OverlappedCall};
use crate::time::scaled;
use fabricast_workload::job::{Dimension, Overlap, ReductionStreams, Training};

/// Gradient and weight communication that overlaps with a pass, by stream.
#[derive(Clone, Debug, Default)]
pub(super) struct GradientStreams {
    /// Total time of the calls within sharding groups, and the dimensions of these calls.
    within: (OverlappedCall, Vec<Dimension>),
    /// Total time of the calls among sharding groups, and the dimensions of these calls.
    among_groups: (OverlappedCall, Vec<Dimension>),
}

impl GradientStreams {
    /// Adds a call of the groups of a dimension to the stream of that dimension.
    pub(super) fn add(&mut self, dimension: Dimension, call: OverlappedCall) {
        let (sum, dimensions) = if dimension.is_replica_group() { &mut self.among_groups } else { &mut self.within };
        *sum = sum.plus(call);
        dimensions.push(dimension);
    }

    /// Returns the dimensions of the calls of both streams.
    pub(super) fn dimensions(&self) -> Vec<Dimension> {
        self.within.1.iter().chain(&self.among_groups.1).copied().collect()
    }

    /// Returns the total time of the calls of both streams in sequence.
    pub(super) fn communication(&self) -> Picos {
        self.within.0.call + self.among_groups.0.call
    }

    /// Returns both streams combined. `links_busy`: time of a pass during which its other calls use links that calls of
    /// some dimensions need.
    pub(super) fn overlap(
        &self,
        job: &Training,
        call_costs: &CallCosts<'_>,
        links_busy: impl Fn(&[Dimension]) -> Picos,
    ) -> CombinedStreams {
        let ((within, within_dimensions), (among, among_dimensions)) = (&self.within, &self.among_groups);
        let shares_links = |&one: &Dimension| {
            among_dimensions.iter().any(|&other| call_costs.collective_costs.share_links(call_costs.layout, one, other))
        };
        let is_concurrent = (job.overlap, job.streams()) == (Overlap::On, ReductionStreams::Separate);
        let (within_busy, among_busy) = (links_busy(within_dimensions), links_busy(among_dimensions));
        match is_concurrent && !within_dimensions.iter().any(shares_links) {
            true => {
                let call = within.concurrent_with(*among);
                // Each stream needs its links for its own calls and for the other calls on them.
                let link_time = (within.call + within_busy).max(among.call + among_busy);
                CombinedStreams { call, last: within.call.min(among.call), links_busy: link_time - call.call }
            }
            false => CombinedStreams {
                call: within.plus(*among),
                last: Picos::ZERO,
                links_busy: within_busy.max(among_busy),
            },
        }
    }
}

/// Both streams of gradient and weight communication.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CombinedStreams {
    /// Communication of both, and the slowdown that it causes.
    pub call: OverlappedCall,
    /// Additional time of the last round in the stream with less communication.
    pub last: Picos,
    /// Time of the pass during which the communication waits for links.
    pub links_busy: Picos,
}

/// Communication that overlaps with each layer of a model chunk in a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OverlappedLayers {
    /// Communication of one layer, and the slowdown that it causes.
    pub each: OverlappedCall,
    /// Additional time of the last layer in the stream with less communication.
    pub last: Picos,
    /// Time of the pass of one layer during which other calls use the links of the communication.
    pub links_busy: Picos,
}

impl OverlappedLayers {
    /// Returns the cost of the overlap of the communication of all layers with `work`, while the links are not busy with
    /// other calls. The communication of one layer cannot be hidden.
    pub(super) fn cost(kinds: impl Iterator<Item = (Self, u64)> + Clone, work: Picos) -> OverlapCost {
        let kinds = kinds.filter(|(_, layers)| *layers > 0);
        let total =
            kinds.clone().fold(OverlappedCall::default(), |sum, (one, layers)| sum.plus(one.each.times(layers)));
        let links_busy = kinds.clone().map(|(one, layers)| scaled(one.links_busy, layers)).sum();
        let OverlapCost { exposed: unhidden, slowdown } = total.cost(work - links_busy);
        let longest_layer = kinds.clone().map(|(one, _)| one.each.call).max().unwrap_or_default();
        let exposed = (unhidden + longest_layer).min(total.call);
        let hidden = OverlappedCall { call: total.call - unhidden, slowdown };
        OverlapCost {
            exposed: exposed + kinds.map(|(one, _)| one.last).max().unwrap_or_default(),
            slowdown: hidden.partial_slowdown(total.call - exposed),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the end of the communication of layers whose passes end at equal intervals. The gradients of each layer
    /// are reduced first within its group, then among groups.
    fn communication_end(layers: u64, work: u64, (within, among): (u64, u64)) -> u64 {
        (1..=layers)
            .fold((0, 0), |(reduced, added), layer| {
                let reduced = u64::max(reduced, work * layer / layers) + within;
                (reduced, u64::max(reduced, added) + among)
            })
            .1
    }

    proptest! {
        /// Without overlap, the time is n max(s, r) + min(s, r). Overlapped with a pass, it is that of a layer-by-layer
        /// schedule, or up to the calls of one layer longer.
        #[test]
        fn concurrent_streams_match_layer_by_layer_schedule(layers in 1u64..40, work in 0u64..4000, within in 0u64..200, among in 0u64..200) {
            let overlapped = |call: u64| OverlappedCall { call: Picos(call), slowdown: Picos::ZERO };
            let each = overlapped(within).concurrent_with(overlapped(among));
            let overlapped_layers = OverlappedLayers { each, last: Picos(within.min(among)), links_busy: Picos::ZERO };
            let kinds = std::iter::once((overlapped_layers, layers));
            let exposed = |work: u64| OverlappedLayers::cost(kinds.clone(), Picos(work)).exposed.0;
            prop_assert_eq!(exposed(0), communication_end(layers, 0, (within, among)));
            let exact = communication_end(layers, work, (within, among)) - work;
            let limit = exact + within.max(among) + layers;
            prop_assert!(exact <= exposed(work) && exposed(work) <= limit, "{} {}", exact, exposed(work));
        }

        /// A pass and its communication need at least the time of all calls on their links, and no more time than one
        /// after the other.
        #[test]
        fn links_carry_one_call_at_a_time(layers in 1u64..40, each in 0u64..300, busy in 0u64..300, rest in 0u64..300, percent in 0u64..100) {
            let each = OverlappedCall { call: Picos(each), slowdown: Picos(each * percent / 100) };
            let overlapped_layers = OverlappedLayers { each, last: Picos::ZERO, links_busy: Picos(busy) };
            let work = layers * (busy + rest);
            let cost = OverlappedLayers::cost(std::iter::once((overlapped_layers, layers)), Picos(work));
            let time = work + cost.exposed.0 + cost.slowdown.0;
            prop_assert!(layers * (each.call.0 + busy) <= time && time <= work + layers * each.call.0);
        }
    }
}
