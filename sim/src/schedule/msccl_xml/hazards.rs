//! Hazards: memory of a receiver that a transfer must not write yet.
//!
//! In MSCCL the receiving thread block takes data out of the FIFO when it reaches that step. All its earlier steps, and
//! those it waited for, have then finished with the memory that it writes. A transfer directly to the destination must
//! wait for exactly those: operations on the same memory that precede the receiving step in the file and do not precede
//! the transfer otherwise. Accesses that the file leaves unordered stay unordered, for the verifier to report.

use rustc_hash::FxHashMap;

use super::pair::{NONE, Steps};
use crate::schedule::draft::Draft;
use crate::schedule::format::FormatError;
use crate::schedule::order::{Cycle, Graph, Order};
use crate::schedule::places::cell;
use crate::schedule::precedence::{are_before, waits};
use crate::schedule::{Buffer, BufferUse, ChunkRef, OpKind, Schedule};

/// Operations on one chunk since its last write, including that write.
#[derive(Default)]
struct Touched {
    writer: Option<u32>,
    readers: Vec<u32>,
}

/// An operation that accesses a chunk before a transfer does, in one order of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Conflict {
    transfer: u32,
    earlier: u32,
}

/// Result of [`settle`].
pub(super) enum Settled {
    /// Every transfer can write directly to its destination.
    Joined,
    /// Receiving steps that cannot be merged with their sends because of a dependency cycle.
    Circle(Vec<u32>),
}

/// Makes transfers wait for other accesses to the memory of their receivers. `acts_at` has the steps at which each
/// operation reads its source and writes its destination.
pub(super) fn settle(
    steps: &Steps<'_>,
    draft: &mut Draft,
    acts_at: &[(u32, u32)],
    buffers: BufferUse,
) -> Result<Settled, FormatError> {
    let by_steps = step_schedule(steps);
    let step_graph = Graph::new(&by_steps);
    let step_order = step_graph.order().map_err(|cycle| deadlock(steps, &cycle))?;
    let conflicts = conflicts(draft, acts_at, &step_order, buffers);
    // Operations already ordered before the transfer need no dependency.
    let joined = |draft: &Draft| waits(draft.ops.iter().map(|op| op.after.iter().copied()));
    let before = joined(draft);
    let graph = Graph::new(&before);
    let order = match graph.order() {
        Ok(order) => order,
        Err(cycle) => return Ok(circle(acts_at, &cycle)),
    };
    let open: Vec<Conflict> = {
        let pairs: Vec<(u32, u32)> = conflicts.iter().map(|c| (c.earlier, c.transfer)).collect();
        let ordered = are_before(&graph, &order, &pairs);
        conflicts.iter().zip(ordered).filter(|(_, ordered)| !ordered).map(|(conflict, _)| *conflict).collect()
    };
    let pairs: Vec<(u32, u32)> =
        open.iter().map(|c| (last_step_of(steps, draft, acts_at, *c), acts_at[c.transfer as usize].1)).collect();
    let said = are_before(&step_graph, &step_order, &pairs);
    let mut changed = false;
    for (conflict, _) in open.iter().zip(said).filter(|(_, said)| *said) {
        draft.wait(conflict.transfer, [conflict.earlier]);
        changed = true;
    }
    if changed && let Err(cycle) = Graph::new(&joined(draft)).order() {
        return Ok(circle(acts_at, &cycle));
    }
    Ok(Settled::Joined)
}

/// The step after which the earlier operation of a conflict no longer uses the memory of the transfer's receiver.
fn last_step_of(steps: &Steps<'_>, draft: &Draft, acts_at: &[(u32, u32)], conflict: Conflict) -> u32 {
    let receiver = draft.ops[conflict.transfer as usize].peer;
    let (reads_at, writes_at) = acts_at[conflict.earlier as usize];
    if steps.block(writes_at).gpu == receiver { writes_at } else { reads_at }
}

/// The steps as a schedule of operations that move no data.
fn step_schedule(steps: &Steps<'_>) -> Schedule {
    let ops = steps.blocks.iter().flat_map(|at| at.steps().map(move |step| (at.first, step))).map(|(first, step)| {
        let before = (step > first).then(|| step - 1);
        let others = [steps.sender[step as usize], steps.awaited[step as usize]];
        before.into_iter().chain(others.into_iter().filter(|&on| on != NONE))
    });
    waits(ops)
}

/// Accesses to a receiver's memory that precede a transfer's, in the order of the steps.
fn conflicts(draft: &Draft, acts_at: &[(u32, u32)], order: &Order, buffers: BufferUse) -> Vec<Conflict> {
    // Every operation acts where it reads and where it writes; within one step, arriving data comes first.
    let mut acts: Vec<(u32, bool, u32, bool)> = Vec::with_capacity(acts_at.len() * 2);
    for (op, &(reads_at, writes_at)) in acts_at.iter().enumerate() {
        let own = reads_at == writes_at;
        acts.push((order.positions[reads_at as usize], true, op as u32, false));
        acts.push((order.positions[writes_at as usize], own, op as u32, true));
    }
    acts.sort_unstable();
    let mut memory: FxHashMap<(u32, ChunkRef), Touched> = FxHashMap::default();
    let mut found = Vec::new();
    for (_, own, id, writes) in acts {
        let op = &draft.ops[id as usize];
        let (rank, first) = if writes { (op.peer, op.dst) } else { (op.rank, op.src) };
        for chunk in (0..op.span).map(|i| ChunkRef { index: first.index + i, ..first }) {
            if writes && op.kind == OpKind::PutReduceInput {
                let input = ChunkRef { buffer: Buffer::Input, ..chunk };
                let held = memory.entry((rank, cell(input, buffers))).or_default();
                found.extend(held.writer.map(|earlier| Conflict { transfer: id, earlier }));
                held.readers.push(id);
            }
            let held = memory.entry((rank, cell(chunk, buffers))).or_default();
            if !writes {
                held.readers.push(id);
                continue;
            }
            if !own {
                let earlier = held.writer.into_iter().chain(held.readers.iter().copied());
                found
                    .extend(earlier.filter(|&earlier| earlier != id).map(|earlier| Conflict { transfer: id, earlier }));
            }
            *held = Touched { writer: Some(id), readers: Vec::new() };
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn deadlock(steps: &Steps<'_>, cycle: &Cycle) -> FormatError {
    const SHOWN: usize = 6;
    let names: Vec<String> = cycle.0.iter().skip(1).take(SHOWN).map(|op| steps.name(op.0)).collect();
    let more = if cycle.0.len() > SHOWN + 1 { ", and more" } else { "" };
    let first = cycle.0.first().map_or(0, |op| op.0);
    steps.error(first, format!("waits for itself, by way of {}{more}", names.join(", ")))
}

/// Reports a dependency cycle that arises only from merging each send with its receive.
fn circle(acts_at: &[(u32, u32)], cycle: &Cycle) -> Settled {
    let acts = cycle.0.iter().map(|op| acts_at[op.0 as usize]);
    Settled::Circle(acts.filter(|(sends, receives)| sends != receives).map(|(_, receives)| receives).collect())
}
