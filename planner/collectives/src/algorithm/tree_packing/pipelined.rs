//! Selection of packed trees and of the number of loops for a call.
//!
//! Trees of the highest throughput may be deep: where capacity is scarce, data reaches many ranks along chains. Small
//! calls are faster over shallower trees, which leave part of the bandwidth unused.

use fabricast_sim::schedule::Call;
use fabricast_topologies::{Bytes, Picos};

use super::TreeLayout;
use super::streams::{Chain, StreamDivision};
use super::transfer_costs::TransferCosts;
use crate::packing::Forests;

/// Loops per edge of the longest chain. Filling the pipeline adds at most the reciprocal of this number to the time.
const LOOPS_PER_EDGE: u64 = 64;

/// Relative difference up to which estimated times are equal.
const ROUNDING: f64 = 1e-9;

/// Ratio of successive numbers of loops that are tried.
const LOOPS_STEP: f64 = 1.1;

/// Share of the highest possible throughput above which no other trees are tried: the packer loses at most 1 % by rounding
/// to few trees per root, and 0.5 % by the division among channels.
const MIN_SHARE_OF_BOUND: f64 = 0.985;

/// Largest ratio of the estimated times of two packings of which the first may be the faster one in a simulation.
const MAX_ESTIMATE_RATIO: f64 = 2.0;

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
    /// throughput in the graph of the links. `None` if the family is empty.
    pub(crate) fn select(
        call: Call,
        channels: u16,
        costs: TransferCosts<'_>,
        family: impl IntoIterator<Item = Forests>,
    ) -> Option<Self> {
        let mut family = family.into_iter().map(|forests| Self::new(call, channels, costs, forests));
        let fastest = family.next()?;
        if fastest.is_unsurpassed() {
            return Some(fastest);
        }
        let others = family.filter(|trees| trees.time.is_some());
        Some(others.fold(fastest, |best, trees| if trees.time < best.time { trees } else { best }))
    }

    /// Returns the trees of a family that may be the fastest ones.
    pub(crate) fn all(
        call: Call,
        channels: u16,
        costs: TransferCosts<'_>,
        family: impl IntoIterator<Item = Forests>,
    ) -> Vec<Self> {
        let mut family = family.into_iter().map(|forests| Self::new(call, channels, costs, forests));
        match family.next() {
            Some(first) if first.is_unsurpassed() => vec![first],
            first => first.into_iter().chain(family.filter(|trees| trees.time.is_some())).collect(),
        }
    }

    /// Returns the items whose estimated time is at most [`MAX_ESTIMATE_RATIO`] times the shortest.
    pub(crate) fn near_fastest<T>(items: Vec<(T, Option<Picos>)>) -> Vec<T> {
        let shortest = items.iter().filter_map(|(_, time)| *time).min().unwrap_or_default();
        let is_near = |time: Picos| time.0 as f64 <= shortest.0 as f64 * MAX_ESTIMATE_RATIO;
        items.into_iter().filter(|(_, time)| time.is_none_or(is_near)).map(|(item, _)| item).collect()
    }

    /// Returns true if other trees cannot be faster, or cannot be compared. Otherwise they save at most the time in which
    /// the pipeline fills, and what routes that overload links cost.
    pub(crate) fn is_unsurpassed(&self) -> bool {
        self.share_of_bound.is_none_or(|share| self.is_filled && share >= MIN_SHARE_OF_BOUND)
    }

    fn new(call: Call, channels: u16, costs: TransferCosts<'_>, forests: Forests) -> Self {
        let pipeline = pipeline(call, channels, &forests);
        let parts = [&forests.collect, &forests.spread].into_iter().flatten();
        let blocks = parts.map(|forest| forest.parts(call.ranks)).max().unwrap_or(1);
        let units = u64::from(pipeline.units) * u64::from(blocks);
        let slowdown = StreamDivision::new(call.collective, &forests, call.ranks).slowdown(channels);
        let share = forests.proof.as_ref().map(|proof| proof.share_of_bound() / slowdown);
        let widest = call.bytes.0.div_ceil(units.max(1)).saturating_mul(pipeline.widest.into());
        let slot = forests.proof.as_ref().map(|proof| {
            let on_links = proof.upper.value() * slowdown * 1e12 / costs.efficiency();
            let on_blocks = costs.time_per_byte() * f64::from(pipeline.block_load) / units.max(1) as f64;
            let busiest = call.bytes.0 as f64 * on_links.max(on_blocks);
            Slot { costs, pipeline, widest, busiest, latency: forests.latency.0 as f64 }
        });
        let filled = LOOPS_PER_EDGE * u64::from(pipeline.depth);
        let max_loops = filled.min(MAX_TRANSFERS / pipeline.transfers.max(1)).max(1);
        let loops = slot.map_or(max_loops, |slot| slot.best_loops(max_loops));
        let min_loops = costs.max_message.map_or(1, |message| widest.div_ceil(message.0.max(1)));
        let loops = loops.max(min_loops);
        let unit = call.bytes.0.div_ceil(units.saturating_mul(loops).max(1)).max(1);
        Self {
            forests,
            chunk: Bytes(unit.saturating_mul(pipeline.widest.into())),
            time: slot.map(|slot| costs.startup() + Picos(slot.time(loops) as u64)),
            share_of_bound: share,
            is_filled: loops >= filled,
        }
    }
}

/// Times of a pipeline, in picoseconds.
#[derive(Clone, Copy, Debug)]
struct Slot<'a> {
    costs: TransferCosts<'a>,
    pipeline: Pipeline,
    /// Bytes of the widest message if there is one loop.
    widest: u64,
    /// Time of the busiest link or thread block for the whole call, with bandwidth shared equally by streams.
    busiest: f64,
    /// Latency of a message.
    latency: f64,
}

impl Slot<'_> {
    /// Time of a call of `loops` loops: the first loop passes its longest chain of messages, and each other one needs a
    /// slot, which lasts as long as the busiest link and the software need, but at least the latencies. Each message of a
    /// stream follows when the previous one has arrived.
    fn time(&self, loops: u64) -> f64 {
        let message = self.costs.message(Bytes(self.widest.div_ceil(loops.max(1)))).0 as f64;
        let (messages, chain) = (f64::from(self.pipeline.messages), f64::from(self.pipeline.chain));
        let share = self.busiest / loops as f64;
        let fill = chain * (message + self.latency) + self.pipeline.fill * share;
        fill + (loops as f64 - 1.0) * (share + messages * message).max(messages * self.latency)
    }

    /// Number of loops with the shortest time: exact for few loops, otherwise within [`LOOPS_STEP`].
    fn best_loops(&self, max_loops: u64) -> u64 {
        let next = |&loops: &u64| Some((loops as f64 * LOOPS_STEP).ceil() as u64).filter(|&next| next < max_loops);
        let tried: Vec<u64> = std::iter::successors(Some(1), next).chain([max_loops]).collect();
        let shortest = tried.iter().map(|&loops| self.time(loops)).fold(f64::INFINITY, f64::min);
        // Of equal times, that of the most loops is least affected by messages of unequal sizes.
        let is_shortest = |&loops: &u64| self.time(loops) <= shortest * (1.0 + ROUNDING);
        tried.into_iter().rev().find(is_shortest).unwrap_or(1)
    }
}

/// Numbers on which the pipeline of packed trees depends.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pipeline {
    /// Slots that one loop needs: one more than the largest lag.
    depth: u32,
    /// Units into which a block is divided.
    units: u32,
    /// Largest number of units that a message carries.
    widest: u32,
    /// Largest number of messages of a stream in one loop.
    messages: u32,
    /// Largest number of units that a thread block, a channel of a rank, sends in one loop.
    block_load: u32,
    /// Messages on the longest chain of one loop.
    chain: u32,
    /// Times of a full slot in which the data of the longest chain moves: each message has a part of the slot.
    fill: f64,
    /// Transfers in one loop of the ranks that represent all others.
    transfers: u64,
}

/// Returns the pipeline of a call over the trees of a packing.
fn pipeline(call: Call, channels: u16, forests: &Forests) -> Pipeline {
    let (collect, spread) = (forests.collect.as_deref(), forests.spread.as_deref());
    let (symmetry, sharing) = (forests.symmetry(), forests.sharing.clone());
    let layout = TreeLayout::new(call.collective, call.ranks, channels, collect, spread, symmetry, sharing);
    let Chain { messages: chain, units } = layout.pieces.longest_chains(&layout.edges);
    let messages = layout.pieces.messages_per_stream();
    let stream_load = layout.pieces.units_per_stream();
    Pipeline {
        fill: (f64::from(units) / f64::from(stream_load)).max(f64::from(chain) / f64::from(messages)),
        depth: layout.edges.iter().map(|edge| edge.lag + 1).max().unwrap_or(1),
        units: layout.units,
        widest: layout.pieces.widest(),
        messages,
        block_load: layout.pieces.units_per_block(),
        chain,
        transfers: layout.pieces.pieces.len() as u64,
    }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::profile::{OperationKind, Profile};
    use fabricast_sim::schedule::Protocol;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The time of a neighbouring number of loops differs by at most the ratio of both numbers.
        #[test]
        fn no_number_of_loops_is_much_faster(
            busiest in 0.0f64..1e9,
            latency in prop_oneof![Just(0.0), 0.1f64..1e6],
            chain in 1u32..20,
            messages in 1u32..6,
            widest in 1u64..1 << 24,
            protocol in prop_oneof![Just(Protocol::Ll), Just(Protocol::Simple), Just(Protocol::Symmetric)],
            max_loops in 1u64..300,
        ) {
            let profile = Profile::named("nccl-2.27-a100").unwrap();
            let (protocol, operation) = (profile.protocol(protocol), OperationKind::Copy);
            let costs = TransferCosts { protocol, threads: 512, operation, link_efficiency: 1.0, max_message: None };
            let fill = f64::from(chain);
            let pipeline = Pipeline { depth: 1, units: 1, widest: 1, messages, block_load: 1, chain, fill, transfers: 1 };
            let slot = Slot { costs, pipeline, widest, busiest, latency };
            let best = slot.best_loops(max_loops);
            prop_assert!((1..=max_loops).contains(&best));
            for loops in 1..=max_loops {
                prop_assert!(slot.time(best) <= slot.time(loops) * LOOPS_STEP, "{best} {loops}");
            }
        }
    }

    /// Messages without costs take the same time in any number of loops; many loops divide unequal ones best.
    #[test]
    fn messages_without_costs_move_in_the_most_loops() {
        let profile = Profile::ideal();
        let (protocol, operation) = (profile.protocol(Protocol::Simple), OperationKind::Copy);
        let costs = TransferCosts { protocol, threads: 512, operation, link_efficiency: 1.0, max_message: None };
        let pipeline =
            Pipeline { depth: 1, units: 1, widest: 1, messages: 2, block_load: 1, chain: 2, fill: 1.0, transfers: 1 };
        let slot = Slot { costs, pipeline, widest: 1 << 20, busiest: 1e9, latency: 0.0 };
        assert_eq!(slot.best_loops(200), 200);
    }
}
