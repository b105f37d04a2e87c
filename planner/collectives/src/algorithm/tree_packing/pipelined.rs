//! Selection of packed trees and of the number of loops for a call.
//!
//! Trees of the highest throughput may be deep: where capacity is scarce, data reaches many ranks along chains. Small
//! calls are faster over shallower trees, which leave part of the bandwidth unused.

use fabricast_sim::schedule::Call;
use fabricast_topologies::{Bytes, Picos};

use super::TreeLayout;
use super::streams::StreamDivision;
use crate::packing::Forests;

/// Loops per edge of the longest chain. Filling the pipeline adds at most the reciprocal of this number to the time.
const LOOPS_PER_EDGE: u64 = 64;

/// Share of the highest possible throughput above which no other trees are tried: the packer loses at most 1 % by rounding
/// to few trees per root, and 0.5 % by the division among channels.
const MIN_SHARE_OF_BOUND: f64 = 0.985;

/// Maximum number of transfers, a limit on the time of simulations.
const MAX_TRANSFERS: u64 = 6_000_000;

/// Packed trees with the pipeline in which a call moves over them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PipelinedTrees {
    pub forests: Forests,
    /// Size of a message.
    pub chunk: Bytes,
    /// Estimated time of the call; `None` for trees without a proven rate.
    pub time: Option<Picos>,
    /// Throughput as a share of the highest possible one; `None` for trees without a proven rate.
    share_of_bound: Option<f64>,
    /// True if filling the pipeline takes a small part of the time.
    is_filled: bool,
}

impl PipelinedTrees {
    /// Selects from a family of trees those with the shortest estimated time. The first member has the highest
    /// throughput in the graph of the links. `message_cost`: software cost of a message. `None` if the family is empty.
    pub(crate) fn select(
        call: Call,
        channels: u16,
        message_cost: Picos,
        family: impl IntoIterator<Item = Forests>,
    ) -> Option<Self> {
        let mut family = family.into_iter().map(|forests| Self::new(call, channels, message_cost, forests));
        let fastest = family.next()?;
        if fastest.is_unsurpassed() {
            return Some(fastest);
        }
        let others = family.filter(|trees| trees.time.is_some());
        Some(others.fold(fastest, |best, trees| if trees.time < best.time { trees } else { best }))
    }

    /// Returns true if other trees cannot be faster, or cannot be compared. Otherwise they save at most the time in which
    /// the pipeline fills, and what routes that overload links cost.
    pub(crate) fn is_unsurpassed(&self) -> bool {
        self.share_of_bound.is_none_or(|share| self.is_filled && share >= MIN_SHARE_OF_BOUND)
    }

    fn new(call: Call, channels: u16, message_cost: Picos, forests: Forests) -> Self {
        let pipeline = pipeline(call, channels, &forests);
        let parts = [&forests.collect, &forests.spread].into_iter().flatten();
        let roots = parts.map(|forest| forest.roots.count(call.ranks)).max().unwrap_or(1);
        let units = u64::from(pipeline.units) * u64::from(roots);
        let slowdown = StreamDivision::new(call.collective, &forests, call.ranks).slowdown(channels);
        let share = forests.proof.as_ref().map(|proof| proof.share_of_bound() / slowdown);
        let slot = forests.proof.as_ref().map(|proof| Slot {
            busiest: proof.upper.value() * slowdown * call.bytes.0 as f64 * 1e12,
            cost: message_cost.0 as f64 * f64::from(pipeline.messages),
            latency: forests.latency.0 as f64 * f64::from(pipeline.messages),
        });
        let filled = LOOPS_PER_EDGE * u64::from(pipeline.depth);
        let max_loops = filled.min(MAX_TRANSFERS / pipeline.transfers.max(1)).max(1);
        let loops = slot.map_or(max_loops, |slot| slot.best_loops(pipeline.depth, max_loops));
        let unit = call.bytes.0.div_ceil(units.saturating_mul(loops).max(1)).max(1);
        Self {
            forests,
            chunk: Bytes(unit.saturating_mul(pipeline.widest.into())),
            time: slot.map(|slot| Picos(slot.time(pipeline.depth, loops) as u64)),
            share_of_bound: share,
            is_filled: loops >= filled,
        }
    }
}

/// Times of a slot, in picoseconds.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Time of the busiest link for the whole call, with bandwidth shared equally by streams.
    busiest: f64,
    /// Software cost of the messages that a stream sends in a slot, each after the previous one has arrived.
    cost: f64,
    /// Sum of the latencies of these messages.
    latency: f64,
}

impl Slot {
    /// Time of a call of `loops` loops that need `depth` slots each: a slot lasts as long as the busiest link and the
    /// software need, but at least the latencies.
    fn time(self, depth: u32, loops: u64) -> f64 {
        let slots = loops as f64 + f64::from(depth) - 1.0;
        slots * (self.busiest / loops as f64 + self.cost).max(self.latency)
    }

    /// Number of loops with the shortest time.
    ///
    /// Let T be the time of the busiest link, c and α the cost and the latency of a slot, and d its depth. The time
    /// (l + d − 1)·(T/l + c) of l loops is minimal for l = √((d − 1)·T ÷ c). It grows with l from l = T ÷ (α − c) on, where
    /// the latency determines the slot.
    fn best_loops(self, depth: u32, max_loops: u64) -> u64 {
        let by_cost = ((f64::from(depth) - 1.0) * self.busiest / self.cost).sqrt();
        let by_latency = self.busiest / (self.latency - self.cost).max(0.0);
        let best = [by_cost, by_latency].into_iter().filter(|loops| loops.is_finite()).fold(max_loops as f64, f64::min);
        // The time has one minimum, so that the best whole number is next to the best number.
        let (below, above) = (best.floor().max(1.0) as u64, (best.ceil().max(1.0) as u64).min(max_loops));
        if self.time(depth, above) < self.time(depth, below) { above } else { below }
    }
}

/// Numbers on which the pipeline of packed trees depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pipeline {
    /// Slots that one loop needs: one more than the largest lag.
    depth: u32,
    /// Units into which a root's block is divided.
    units: u32,
    /// Largest number of units that a message carries.
    widest: u32,
    /// Largest number of messages of a stream in one loop.
    messages: u32,
    /// Transfers of all ranks in one loop.
    transfers: u64,
}

/// Returns the pipeline of a call over the trees of a packing.
fn pipeline(call: Call, channels: u16, forests: &Forests) -> Pipeline {
    let (collect, spread) = (forests.collect.as_deref(), forests.spread.as_deref());
    let layout = TreeLayout::new(call.collective, call.ranks, channels, collect, spread, forests.sharing.clone());
    Pipeline {
        depth: layout.edges.iter().map(|edge| edge.lag + 1).max().unwrap_or(1),
        units: layout.units,
        widest: layout.pieces.widest(),
        messages: layout.pieces.messages_per_stream(&layout.edges),
        transfers: layout.pieces.pieces.len() as u64,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// No number of loops has a shorter time.
        #[test]
        fn no_number_of_loops_is_faster(
            busiest in 0.0f64..1e6,
            cost in prop_oneof![Just(0.0), 0.1f64..1e3],
            latency in prop_oneof![Just(0.0), 0.1f64..1e3],
            depth in 1u32..20,
            max_loops in 1u64..300,
        ) {
            let slot = Slot { busiest, cost, latency };
            let best = slot.best_loops(depth, max_loops);
            prop_assert!((1..=max_loops).contains(&best));
            for loops in 1..=max_loops {
                prop_assert!(slot.time(depth, best) <= slot.time(depth, loops) * (1.0 + 1e-12), "{best} {loops}");
            }
        }
    }
}
