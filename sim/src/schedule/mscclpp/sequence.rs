//! Which thread block does what in which order, and who must tell whom.
//!
//! A GPU is done when its thread blocks are, so what others put there must have been waited for by then.

use rustc_hash::FxHashMap;

use super::fuse::Fused;
use crate::schedule::format::WriteError;
use crate::schedule::order::Graph;
use crate::schedule::plain::{Plain, PlainOp};
use crate::schedule::precedence::waits;
use crate::schedule::{OpId, OpKind, RunId, Schedule};

/// A signal to or from another thread block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Signal {
    /// Place in the order of the thread block that this is about: before it (a wait), or after it.
    pub(super) position: u32,
    /// The other thread block.
    pub(super) other: u32,
}

/// Thread blocks, numbered over all GPUs.
pub(super) struct Sequences {
    /// The GPU and lane of each thread block, in order.
    blocks: Vec<(u32, u16)>,
    ops: Vec<Vec<u32>>,
    /// In order of position, then of thread block.
    waits: Vec<Vec<Signal>>,
    signals: Vec<Vec<Signal>>,
}

impl Sequences {
    /// The rank that executes an operation: what is put and reduced is read by the target.
    pub(super) fn executor(op: &PlainOp) -> u32 {
        match op.kind {
            OpKind::PutReduce | OpKind::PutReduceInput => op.target(),
            _ => op.rank,
        }
    }

    pub(super) fn new(schedule: &Schedule, plain: &Plain, fused: &Fused<'_>) -> Result<Self, WriteError> {
        if let Some(op) = plain.ops.iter().position(|op| op.kind == OpKind::PutReduceInput && !op.crosses()) {
            return Err(plain.unsupported(op as u32, "it reduces within a rank into a third place"));
        }
        let mut blocks: Vec<(u32, u16)> = plain.ops.iter().map(|op| (Self::executor(op), op.channel)).collect();
        blocks.sort_unstable();
        blocks.dedup();
        // Who only gets needs somebody to wait for it.
        let targets = |op: &PlainOp| {
            let (members, channel) = (fused.members(op), op.channel);
            members.iter().map(|rank| rank.0).chain([op.target()]).map(move |rank| (rank, channel))
        };
        let idle = |target: &(u32, u16)| blocks.binary_search_by_key(&target.0, |block| block.0).is_err();
        let mut waiting: Vec<(u32, u16)> = plain.ops.iter().flat_map(targets).filter(idle).collect();
        waiting.sort_unstable();
        waiting.dedup_by_key(|block| block.0);
        blocks.extend(waiting);
        blocks.sort_unstable();
        let block_of: Vec<u32> = plain
            .ops
            .iter()
            .map(|op| blocks.binary_search(&(Self::executor(op), op.channel)).unwrap_or(0) as u32)
            .collect();
        let in_order = |order: &[u32]| {
            let mut ops = vec![Vec::new(); blocks.len()];
            order.iter().for_each(|&op| ops[block_of[op as usize] as usize].push(op));
            ops
        };
        // Operations that were listed one by one stay in the order of the list, where that is one that they can be done
        // in; those of runs are taken level by level.
        let mut order: Vec<u32> = (0..plain.ops.len() as u32).collect();
        let is_list = (0..schedule.run_count()).all(|run| schedule.run(RunId(run)).len <= 1)
            && plain.ops.iter().all(|op| Self::executor(op) == op.rank);
        let mut ops = in_order(&order);
        if !is_list || circle(plain, &ops).is_some() {
            order.sort_by_key(|&op| (plain.ops[op as usize].level, op));
            ops = in_order(&order);
            if let Some(operation) = circle(plain, &ops) {
                return Err(WriteError::Deadlock { operation });
            }
        }
        let (waits, signals) = signalled(plain, fused, &blocks, (&ops, &block_of));
        Ok(Self { blocks, ops, waits, signals })
    }

    pub(super) fn rank(&self, block: u32) -> u32 {
        self.blocks[block as usize].0
    }

    pub(super) fn ops(&self, block: u32) -> &[u32] {
        &self.ops[block as usize]
    }

    /// The thread blocks of a GPU.
    pub(super) fn blocks_of(&self, rank: u32) -> std::ops::Range<u32> {
        let start = |rank: u32| self.blocks.partition_point(|block| block.0 < rank) as u32;
        start(rank)..start(rank + 1)
    }

    /// What a thread block waits for before the operation at a position.
    pub(super) fn waits(&self, block: u32, position: u32) -> &[Signal] {
        at(&self.waits[block as usize], position)
    }

    /// Whom a thread block tells that the operation at a position is done.
    pub(super) fn signals(&self, block: u32, position: u32) -> &[Signal] {
        at(&self.signals[block as usize], position)
    }

    /// Pairs of own and other thread blocks that signal each other across GPUs: by peer, then by pair, so that both ends
    /// count the same.
    pub(super) fn channels_of(&self, rank: u32) -> Vec<(u32, u32)> {
        let mut pairs: Vec<(u32, u32)> = self.told(rank, false);
        pairs.sort_unstable_by_key(|&(own, other)| (self.rank(other), own.min(other), own.max(other)));
        pairs.dedup();
        pairs
    }

    /// Pairs of thread blocks of a GPU of which the first tells the second.
    pub(super) fn semaphores_of(&self, rank: u32) -> Vec<(u32, u32)> {
        let mut pairs = self.told(rank, true);
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    }

    fn told(&self, rank: u32, same_gpu: bool) -> Vec<(u32, u32)> {
        let of = |block: u32| {
            let tells = self.signals[block as usize].iter();
            let hears = self.waits[block as usize].iter().filter(move |_| !same_gpu);
            tells.chain(hears).map(move |signal| (block, signal.other))
        };
        self.blocks_of(rank).flat_map(of).filter(|&(_, other)| (self.rank(other) == rank) == same_gpu).collect()
    }
}

fn at(signals: &[Signal], position: u32) -> &[Signal] {
    let start = signals.partition_point(|signal| signal.position < position);
    let end = signals.partition_point(|signal| signal.position <= position);
    &signals[start..end]
}

/// An operation that waits for itself when thread blocks do theirs in this order.
fn circle(plain: &Plain, ops: &[Vec<u32>]) -> Option<OpId> {
    let mut before = vec![None; plain.ops.len()];
    for ops in ops {
        for pair in ops.windows(2) {
            if let [first, second] = pair {
                before[*second as usize] = Some(*first);
            }
        }
    }
    let after = plain.ops.iter().zip(before).map(|(op, before)| op.after.iter().copied().chain(before));
    let schedule = waits(after);
    Graph::new(&schedule).order().err().map(|cycle| cycle.0.first().copied().unwrap_or_default())
}

/// The waits and signals of every thread block.
fn signalled(
    plain: &Plain,
    fused: &Fused<'_>,
    blocks: &[(u32, u16)],
    (ops, block_of): (&[Vec<u32>], &[u32]),
) -> (Vec<Vec<Signal>>, Vec<Vec<Signal>>) {
    let mut position = vec![0u32; plain.ops.len()];
    for ops in ops {
        for (at, &op) in ops.iter().enumerate() {
            position[op as usize] = at as u32;
        }
    }
    let (mut waits, mut signals) = (vec![Vec::new(); ops.len()], vec![Vec::new(); ops.len()]);
    // How far each other thread block is known to be, by some thread block of a GPU in the end.
    let mut known_in_the_end: FxHashMap<(u32, u32), u32> = FxHashMap::default();
    let mut known: FxHashMap<u32, u32> = FxHashMap::default();
    for (block, ops) in ops.iter().enumerate() {
        known.clear();
        for (at, &op) in ops.iter().enumerate() {
            let mut needed: Vec<(u32, u32)> = plain.ops[op as usize]
                .after
                .iter()
                .map(|&on| (block_of[on as usize], position[on as usize]))
                .filter(|&(other, _)| other as usize != block)
                .collect();
            needed.sort_unstable();
            // Of each thread block, the last.
            for last in needed.chunk_by(|a, b| a.0 == b.0).filter_map(<[(u32, u32)]>::last) {
                let far = known.get(&last.0);
                if far.is_none_or(|&far| far < last.1) {
                    known.insert(last.0, last.1);
                    let far = known_in_the_end.entry((blocks[block].0, last.0)).or_default();
                    *far = (*far).max(last.1 + 1);
                    waits[block].push(Signal { position: at as u32, other: last.0 });
                    signals[last.0 as usize].push(Signal { position: last.1, other: block as u32 });
                }
            }
        }
    }
    // The last that each thread block puts into each GPU.
    let mut put: Vec<(u32, u32, u32)> = Vec::new();
    for (op, plain) in plain.ops.iter().enumerate().filter(|(_, op)| op.kind == OpKind::Put && op.crosses()) {
        put.push((plain.target(), block_of[op], position[op]));
    }
    for (id, op) in (0u32..).zip(&plain.ops).filter(|&(id, op)| fused.stores(id, op)) {
        let others = fused.members(op).iter().filter(|rank| rank.0 != op.rank);
        put.extend(others.map(|rank| (rank.0, block_of[id as usize], position[id as usize])));
    }
    put.sort_unstable();
    for &(gpu, from, at) in put.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)).filter_map(<[(u32, u32, u32)]>::last) {
        if known_in_the_end.get(&(gpu, from)).is_some_and(|&far| far > at) {
            continue;
        }
        // The thread block of the same lane waits for it, or the first.
        let lane = blocks[from as usize].1;
        let found =
            blocks.binary_search(&(gpu, lane)).unwrap_or_else(|_| blocks.partition_point(|block| block.0 < gpu));
        waits[found].push(Signal { position: ops[found].len() as u32, other: from });
        signals[from as usize].push(Signal { position: at, other: found as u32 });
    }
    signals.iter_mut().for_each(|signals: &mut Vec<Signal>| signals.sort_unstable());
    (waits, signals)
}
