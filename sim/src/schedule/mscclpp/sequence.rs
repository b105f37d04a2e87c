//! Assignment of operations to thread blocks, their order, and the signals between thread blocks.
//!
//! A GPU is done when its thread blocks are done. They must therefore wait for all data that other GPUs put into its
//! memory.

use rustc_hash::FxHashMap;

use super::fuse::FusedSwitchOps;
use crate::schedule::file_format::WriteError;
use crate::schedule::flat::{FlatOp, FlatSchedule};
use crate::schedule::order::Graph;
use crate::schedule::precedence::wait_only_schedule;
use crate::schedule::{OpId, OpKind, RunId, Schedule};

/// Signal or wait between two thread blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Signal {
    /// Position in the order of the thread block. A wait precedes the operation at this position; a signal follows it.
    pub(super) position: u32,
    /// Thread block at the other end of the signal.
    pub(super) other: u32,
}

/// Thread blocks of all GPUs, numbered consecutively.
pub(super) struct Sequences {
    /// GPU and channel of each thread block, in sorted order.
    blocks: Vec<(u32, u16)>,
    ops: Vec<Vec<u32>>,
    /// Waits and signals of each thread block, by position, then by the other thread block.
    waits: Vec<Vec<Signal>>,
    signals: Vec<Vec<Signal>>,
}

impl Sequences {
    /// Returns the rank that executes an operation. A put that reduces is executed as a read by its target.
    pub(super) fn executor(op: &FlatOp) -> u32 {
        match op.kind {
            OpKind::PutReduce | OpKind::PutReduceInput => op.target(),
            _ => op.rank,
        }
    }

    pub(super) fn new(
        schedule: &Schedule,
        flat: &FlatSchedule,
        fused: &FusedSwitchOps<'_>,
    ) -> Result<Self, WriteError> {
        if let Some(op) = flat.ops.iter().position(|op| op.kind == OpKind::PutReduceInput && !op.crosses()) {
            return Err(flat.unsupported(op as u32, "it reduces within a rank into a third location"));
        }
        // Consecutive operations mostly belong to one thread block.
        let lane = |op: &FlatOp| (Self::executor(op), op.channel);
        let mut blocks: Vec<(u32, u16)> = Vec::new();
        for lane in flat.ops.iter().map(lane) {
            if blocks.last() != Some(&lane) {
                blocks.push(lane);
            }
        }
        blocks.sort_unstable();
        blocks.dedup();
        // A rank without operations needs a thread block that waits for the data it receives.
        let mut is_idle = vec![true; schedule.header().call.ranks as usize];
        blocks.iter().for_each(|block| is_idle[block.0 as usize] = false);
        if is_idle.contains(&true) {
            let targets = |op: &FlatOp| {
                let (members, channel) = (fused.members(op), op.channel);
                members.iter().map(|rank| rank.0).chain([op.target()]).map(move |rank| (rank, channel))
            };
            let idle = |target: &(u32, u16)| is_idle[target.0 as usize];
            let mut waiting: Vec<(u32, u16)> = flat.ops.iter().flat_map(targets).filter(idle).collect();
            waiting.sort_unstable();
            waiting.dedup_by_key(|block| block.0);
            blocks.extend(waiting);
            blocks.sort_unstable();
        }
        let mut last = ((u32::MAX, 0), 0);
        let block_of = flat.ops.iter().map(lane).map(|lane| {
            if lane != last.0 {
                last = (lane, blocks.binary_search(&lane).unwrap_or(0) as u32);
            }
            last.1
        });
        let block_of: Vec<u32> = block_of.collect();
        let group_ops = |order: &[u32]| {
            let mut ops = vec![Vec::new(); blocks.len()];
            order.iter().for_each(|&op| ops[block_of[op as usize] as usize].push(op));
            ops
        };
        // Operations listed one by one retain the order of the list if that has no deadlock; operations of longer runs
        // are ordered by level.
        let is_list = (0..schedule.run_count()).all(|run| schedule.run(RunId(run)).len <= 1)
            && flat.ops.iter().all(|op| Self::executor(op) == op.rank);
        let list: Option<Vec<Vec<u32>>> = is_list.then(|| group_ops(&(0..flat.ops.len() as u32).collect::<Vec<_>>()));
        let ops = match list.filter(|ops| find_deadlock(flat, ops, |op| (0, op)).is_none()) {
            Some(ops) => ops,
            None => {
                let ops = group_ops(&flat.level_order());
                if let Some(operation) = find_deadlock(flat, &ops, |op| (flat.ops[op as usize].level, op)) {
                    return Err(WriteError::Deadlock { operation });
                }
                ops
            }
        };
        let (waits, signals) = plan_signals(flat, fused, &blocks, &ops, &block_of);
        Ok(Self { blocks, ops, waits, signals })
    }

    pub(super) fn rank(&self, block: u32) -> u32 {
        self.blocks[block as usize].0
    }

    pub(super) fn ops(&self, block: u32) -> &[u32] {
        &self.ops[block as usize]
    }

    /// Returns the thread blocks of a GPU.
    pub(super) fn rank_blocks(&self, rank: u32) -> std::ops::Range<u32> {
        let start = |rank: u32| self.blocks.partition_point(|block| block.0 < rank) as u32;
        start(rank)..start(rank + 1)
    }

    /// Returns the waits of a thread block, to be consumed by position.
    pub(super) fn waits(&self, block: u32) -> Cursor<'_> {
        Cursor(&self.waits[block as usize])
    }

    /// Returns the signals of a thread block, to be consumed by position.
    pub(super) fn signals(&self, block: u32) -> Cursor<'_> {
        Cursor(&self.signals[block as usize])
    }

    /// Returns the pairs of a thread block of this GPU and one of another GPU that signal each other, ordered by peer,
    /// then by pair, so that both GPUs number the channels in the same way.
    pub(super) fn rank_channels(&self, rank: u32) -> Vec<(u32, u32)> {
        let mut pairs: Vec<(u32, u32)> = self.signalling_pairs(rank, PeerBlocks::OtherGpus);
        pairs.sort_unstable_by_key(|&(block, other)| (self.rank(other), block.min(other), block.max(other)));
        pairs
    }

    /// Returns the pairs of thread blocks of a GPU of which the first signals the second.
    pub(super) fn rank_semaphores(&self, rank: u32) -> Vec<(u32, u32)> {
        let mut pairs = self.signalling_pairs(rank, PeerBlocks::SameGpu);
        pairs.sort_unstable();
        pairs
    }

    /// Returns the pairs of a thread block of the GPU and another one with a signal between them, without duplicates.
    fn signalling_pairs(&self, rank: u32, peers: PeerBlocks) -> Vec<(u32, u32)> {
        let same_gpu = peers == PeerBlocks::SameGpu;
        let own_blocks = self.rank_blocks(rank);
        let mut last_block = vec![u32::MAX; self.blocks.len()];
        let mut pairs = Vec::new();
        for block in own_blocks.clone() {
            let signals = self.signals[block as usize].iter();
            let waits = self.waits[block as usize].iter().filter(|_| !same_gpu);
            for Signal { other, .. } in signals.chain(waits) {
                let last_block = &mut last_block[*other as usize];
                if *last_block != block && own_blocks.contains(other) == same_gpu {
                    *last_block = block;
                    pairs.push((block, *other));
                }
            }
        }
        pairs
    }
}

/// Thread blocks that signal each other with those of a GPU.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerBlocks {
    SameGpu,
    OtherGpus,
}

/// Signals of a thread block that have not been consumed yet.
pub(super) struct Cursor<'a>(&'a [Signal]);

impl<'a> Cursor<'a> {
    /// Consumes the signals up to `position`, and returns them.
    pub(super) fn take(&mut self, position: u32) -> &'a [Signal] {
        let count = self.0.iter().take_while(|signal| signal.position <= position).count();
        let (consumed, remaining) = self.0.split_at(count);
        self.0 = remaining;
        consumed
    }

    /// Returns true if there are unconsumed signals up to `position`.
    pub(super) fn has(&self, position: u32) -> bool {
        self.0.first().is_some_and(|signal| signal.position <= position)
    }
}

/// Returns an operation that waits for itself if thread blocks execute in the order `ops`; `None` if no operation does.
/// The order must be consistent with `key`.
fn find_deadlock(flat: &FlatSchedule, ops: &[Vec<u32>], key: impl Fn(u32) -> (u32, u32)) -> Option<OpId> {
    let after = |op: u32| flat.dependencies(op).iter().all(|&on| key(on) < key(op));
    if (0..flat.ops.len() as u32).all(after) {
        // Every operation comes after its dependencies and after the preceding operations of its thread block.
        return None;
    }
    let mut previous = vec![None; flat.ops.len()];
    for ops in ops {
        for pair in ops.windows(2) {
            if let [first, second] = pair {
                previous[*second as usize] = Some(*first);
            }
        }
    }
    let after = (0u32..).zip(previous).map(|(op, previous)| flat.dependencies(op).iter().copied().chain(previous));
    let schedule = wait_only_schedule(after);
    Graph::new(&schedule).order().err().map(|cycle| cycle.0.first().copied().unwrap_or_default())
}

/// Determines the waits and signals of every thread block. A GPU is done when its thread blocks are done, so one of
/// them waits at the end for all received data that no other dependency covers.
fn plan_signals(
    flat: &FlatSchedule,
    fused: &FusedSwitchOps<'_>,
    blocks: &[(u32, u16)],
    ops: &[Vec<u32>],
    block_of: &[u32],
) -> (Vec<Vec<Signal>>, Vec<Vec<Signal>>) {
    let mut position = vec![0u32; flat.ops.len()];
    for ops in ops {
        for (index, &op) in ops.iter().enumerate() {
            position[op as usize] = index as u32;
        }
    }
    let puts = puts(flat, fused, ops);
    let (mut waits, mut signals) = (vec![Vec::new(); ops.len()], vec![Vec::new(); ops.len()]);
    // Known progress of other thread blocks: as known to one thread block, and as known to any thread block of the GPU
    // at its end.
    let mut progress = KnownProgress::new(blocks.len());
    let mut final_progress = KnownProgress::new(blocks.len());
    let mut needed: Vec<(u32, u32)> = Vec::new();
    let mut first = 0;
    for gpu_blocks in blocks.chunk_by(|a, b| a.0 == b.0) {
        let (gpu, block_range) = (gpu_blocks[0].0, first..first + gpu_blocks.len());
        first = block_range.end;
        final_progress.reset();
        for block in block_range.clone() {
            progress.reset();
            for (&op, index) in ops[block].iter().zip(0..) {
                needed.clear();
                let others = flat.dependencies(op).iter().map(|&on| (block_of[on as usize], position[on as usize]));
                needed.extend(others.filter(|&(other, _)| other as usize != block));
                needed.sort_unstable();
                // The last dependency on each thread block.
                for last in needed.chunk_by(|a, b| a.0 == b.0).filter_map(<[(u32, u32)]>::last) {
                    if progress.record(last.0, last.1) {
                        final_progress.record(last.0, last.1);
                        waits[block].push(Signal { position: index, other: last.0 });
                        signals[last.0 as usize].push(Signal { position: last.1, other: block as u32 });
                    }
                }
            }
        }
        let after = puts.partition_point(|put| put.gpu < gpu);
        for put in puts.iter().skip(after).take_while(|put| put.gpu == gpu) {
            if final_progress.record(put.from, put.position) {
                // The thread block of the same channel waits; without one, the first does.
                let lane = blocks[put.from as usize].1;
                let receiver = block_range.start + gpu_blocks.binary_search(&(gpu, lane)).unwrap_or(0);
                waits[receiver].push(Signal { position: ops[receiver].len() as u32, other: put.from });
                signals[put.from as usize].push(Signal { position: put.position, other: receiver as u32 });
            }
        }
    }
    signals.iter_mut().for_each(|signals: &mut Vec<Signal>| signals.sort_unstable());
    (waits, signals)
}

/// Last operation of each thread block that is known to be done.
struct KnownProgress {
    /// Round of the last update, and known position, of each thread block.
    positions: Vec<(u32, u32)>,
    round: u32,
}

impl KnownProgress {
    fn new(blocks: usize) -> Self {
        Self { positions: vec![(0, 0); blocks], round: 0 }
    }

    /// Resets the known progress of all thread blocks.
    fn reset(&mut self) {
        self.round += 1;
    }

    /// Records that a thread block has completed the operation at `position`. Returns true if this was not known
    /// before.
    fn record(&mut self, block: u32, position: u32) -> bool {
        let known = &mut self.positions[block as usize];
        let is_new = known.0 != self.round || known.1 < position;
        if is_new {
            *known = (self.round, position);
        }
        is_new
    }
}

/// Last put of thread block `from` into the memory of another GPU.
struct LastPut {
    gpu: u32,
    from: u32,
    position: u32,
}

/// Returns the last put of each thread block into each other GPU, by GPU, then by thread block.
fn puts(flat: &FlatSchedule, fused: &FusedSwitchOps<'_>, ops: &[Vec<u32>]) -> Vec<LastPut> {
    let mut puts = Vec::new();
    let mut last_puts: FxHashMap<u32, u32> = FxHashMap::default();
    for (from, ops) in (0u32..).zip(ops) {
        for (&id, position) in ops.iter().zip(0u32..) {
            let op = &flat.ops[id as usize];
            if op.kind == OpKind::Put && op.crosses() {
                last_puts.insert(op.target(), position);
            } else if fused.stores(id, op) {
                let others = fused.members(op).iter().filter(|rank| rank.0 != op.rank);
                last_puts.extend(others.map(|rank| (rank.0, position)));
            }
        }
        puts.extend(last_puts.drain().map(|(gpu, position)| LastPut { gpu, from, position }));
    }
    puts.sort_unstable_by_key(|put| (put.gpu, put.from));
    puts
}
