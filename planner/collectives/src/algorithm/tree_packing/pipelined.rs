//! Selection of packed trees and of the number of loops for a call.
//!
//! Trees of the highest throughput may be deep: where capacity is scarce, data reaches many ranks along chains. Small
//! calls are faster over shallower trees, which leave part of the bandwidth unused.

use fabricast_sim::schedule::Call;
use fabricast_topologies::{Bytes, Picos};

use super::TreeLayout;
use crate::packing::Forests;

/// Loops per edge of the longest chain. Filling the pipeline adds at most the reciprocal of this number to the time.
const LOOPS_PER_EDGE: u64 = 64;

/// Maximum number of transfers, a limit on the time of simulations.
const MAX_TRANSFERS: u64 = 6_000_000;

/// Packed trees with the pipeline in which a call moves over them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PipelinedTrees {
    pub forests: Forests,
    /// Size of a message.
    pub chunk: Bytes,
    /// Estimated time of the call; `None` for trees without a proven rate.
    time: Option<Picos>,
    /// True if filling the pipeline takes a small part of the time.
    is_filled: bool,
}

impl PipelinedTrees {
    /// Selects from a family of trees, by decreasing throughput, those with the shortest estimated time. `message_cost`:
    /// software cost of a message. `None` if the family is empty.
    pub(crate) fn select(
        call: Call,
        channels: u16,
        message_cost: Picos,
        family: impl IntoIterator<Item = Forests>,
    ) -> Option<Self> {
        let mut family = family.into_iter().map(|forests| Self::new(call, channels, message_cost, forests));
        let fastest = family.next()?;
        // Shallower trees save at most the time in which the pipeline fills.
        if fastest.time.is_none() || fastest.is_filled {
            return Some(fastest);
        }
        let others = family.filter(|trees| trees.time.is_some());
        Some(others.fold(fastest, |best, trees| if trees.time < best.time { trees } else { best }))
    }

    /// Divides a call into the number of loops with the shortest time.
    ///
    /// Be T the time of the busiest link, d the number of slots of one loop, and k the number of messages of cost c that a
    /// stream sends in a slot, one after the other has arrived. A slot of l loops lasts T/l + k·c, but at least k
    /// latencies. The time (l + d − 1)·(T/l + k·c) is minimal for l = √(d·T ÷ (k·c)); slots that are shorter than k
    /// latencies save nothing.
    fn new(call: Call, channels: u16, message_cost: Picos, forests: Forests) -> Self {
        let pipeline = pipeline(call, channels, &forests);
        let parts = [&forests.collect, &forests.spread].into_iter().flatten();
        let roots = parts.map(|forest| forest.roots.count(call.ranks)).max().unwrap_or(1);
        let units = u64::from(pipeline.units) * u64::from(roots);
        let message = (call.bytes.0 / units.max(1)).saturating_mul(pipeline.widest.into());
        let busiest = forests.proof.as_ref().map(|proof| proof.upper.value() * call.bytes.0 as f64 * 1e12);
        let cost = message_cost.0 as f64 * f64::from(pipeline.messages);
        let latency = forests.latency.0 as f64 * f64::from(pipeline.messages);
        let depth = f64::from(pipeline.depth);
        let mut loops = pipeline.max_loops();
        if let Some(busiest) = busiest {
            for limit in [(depth * busiest / cost).sqrt(), busiest / latency] {
                if limit.is_finite() {
                    loops = loops.min(limit as u64);
                }
            }
        }
        let loops = loops.max(1);
        let time = busiest.map(|busiest| {
            let slot = (busiest / loops as f64 + cost).max(latency);
            Picos(((loops as f64 + depth - 1.0) * slot) as u64)
        });
        Self { forests, chunk: Bytes(message.div_ceil(loops).max(1)), time, is_filled: loops == pipeline.max_loops() }
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

impl Pipeline {
    fn max_loops(&self) -> u64 {
        (LOOPS_PER_EDGE * u64::from(self.depth)).min(MAX_TRANSFERS / self.transfers.max(1)).max(1)
    }
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
