//! Hazards: memory of a receiver that a transfer must not write before other operations have finished with it.
//!
//! In MSCCL the receiving thread block takes data out of the FIFO when it reaches that step. All its earlier steps, and
//! those it waited for, have then finished with the memory that it writes. A transfer directly to the destination must
//! therefore wait for the operations on the same memory that precede the receiving step in the file, unless they
//! precede the transfer anyway. Accesses that the file does not order stay unordered, and the verifier reports them.

use rustc_hash::FxHashMap;

use super::pair::{NONE, StepPairing};
use crate::schedule::chunk_numbering::cell;
use crate::schedule::draft::Draft;
use crate::schedule::file_format::FormatError;
use crate::schedule::order::{Cycle, Graph, TotalOrder};
use crate::schedule::precedence::{precedes_each, wait_only_schedule};
use crate::schedule::{Buffer, BufferUse, ChunkRef, OpKind, Schedule};

/// Last operation that wrote a chunk, and the operations that have read the chunk since then.
#[derive(Default)]
struct ChunkAccesses {
    writer: Option<u32>,
    readers: Vec<u32>,
}

/// Operation that accesses a chunk before a transfer does, in one order of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EarlierAccess {
    transfer: u32,
    earlier: u32,
}

/// Result of [`add_hazard_dependencies`].
pub(super) enum HazardResult {
    /// Every transfer writes directly to its destination.
    Resolved,
    /// Receiving steps that cannot be merged with their sends, because merging would create a dependency cycle.
    Cycle(Vec<u32>),
}

/// Steps in which an operation accesses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AccessSteps {
    /// Step that reads the source.
    pub reads_at: u32,
    /// Step that writes the destination.
    pub writes_at: u32,
}

/// Makes transfers wait for earlier accesses to the memory of their receivers. `access_steps`: steps in which each
/// operation accesses memory.
pub(super) fn add_hazard_dependencies(
    steps: &StepPairing<'_>,
    draft: &mut Draft,
    access_steps: &[AccessSteps],
    buffers: BufferUse,
) -> Result<HazardResult, FormatError> {
    let schedule = step_schedule(steps);
    let step_graph = Graph::new(&schedule);
    let step_order = step_graph.order().map_err(|cycle| deadlock(steps, &cycle))?;
    let conflicts = conflicts(draft, access_steps, &step_order, buffers);
    // Operations already ordered before the transfer need no dependency.
    let operation_schedule =
        |draft: &Draft| wait_only_schedule(draft.ops.iter().map(|op| op.dependencies.iter().copied()));
    let operations = operation_schedule(draft);
    let graph = Graph::new(&operations);
    let order = match graph.order() {
        Ok(order) => order,
        Err(cycle) => return Ok(merged_cycle(access_steps, &cycle)),
    };
    let unordered: Vec<EarlierAccess> = {
        let pairs: Vec<(u32, u32)> = conflicts.iter().map(|c| (c.earlier, c.transfer)).collect();
        let ordered = precedes_each(&graph, &order, &pairs);
        conflicts.iter().zip(ordered).filter(|(_, ordered)| !ordered).map(|(conflict, _)| *conflict).collect()
    };
    let pairs: Vec<(u32, u32)> = unordered
        .iter()
        .map(|c| (last_use_step(steps, draft, access_steps, *c), access_steps[c.transfer as usize].writes_at))
        .collect();
    let implied = precedes_each(&step_graph, &step_order, &pairs);
    let mut changed = false;
    for (conflict, _) in unordered.iter().zip(implied).filter(|(_, implied)| *implied) {
        draft.wait(conflict.transfer, [conflict.earlier]);
        changed = true;
    }
    if changed && let Err(cycle) = Graph::new(&operation_schedule(draft)).order() {
        return Ok(merged_cycle(access_steps, &cycle));
    }
    Ok(HazardResult::Resolved)
}

/// Returns the step after which the earlier operation of a conflict no longer uses the memory of the transfer's
/// receiver.
fn last_use_step(steps: &StepPairing<'_>, draft: &Draft, access_steps: &[AccessSteps], conflict: EarlierAccess) -> u32 {
    let receiver = draft.ops[conflict.transfer as usize].peer;
    let AccessSteps { reads_at, writes_at } = access_steps[conflict.earlier as usize];
    if steps.block(writes_at).gpu == receiver { writes_at } else { reads_at }
}

/// Returns the steps as a schedule of operations that move no data.
fn step_schedule(steps: &StepPairing<'_>) -> Schedule {
    let ops = steps.blocks.iter().flat_map(|block| block.steps().map(move |step| (block.first, step))).map(
        |(first, step)| {
            let before = (step > first).then(|| step - 1);
            let others = [steps.sender[step as usize], steps.awaited[step as usize]];
            before.into_iter().chain(others.into_iter().filter(|&on| on != NONE))
        },
    );
    wait_only_schedule(ops)
}

/// Returns the accesses to a receiver's memory that precede those of a transfer, in the order of the steps.
fn conflicts(
    draft: &Draft,
    access_steps: &[AccessSteps],
    order: &TotalOrder,
    buffers: BufferUse,
) -> Vec<EarlierAccess> {
    // Accesses in order of step: an operation reads in one step and writes in another; within a step, arriving data
    // comes first.
    let mut accesses: Vec<(u32, bool, u32, bool)> = Vec::with_capacity(access_steps.len() * 2);
    for (op, &AccessSteps { reads_at, writes_at }) in access_steps.iter().enumerate() {
        let same_step = reads_at == writes_at;
        accesses.push((order.positions[reads_at as usize], true, op as u32, false));
        accesses.push((order.positions[writes_at as usize], same_step, op as u32, true));
    }
    accesses.sort_unstable();
    let mut memory: FxHashMap<(u32, ChunkRef), ChunkAccesses> = FxHashMap::default();
    let mut conflicts = Vec::new();
    for (_, same_step, id, writes) in accesses {
        let op = &draft.ops[id as usize];
        let (rank, first) = if writes { (op.peer, op.dst) } else { (op.rank, op.src) };
        for chunk in (0..op.span).map(|i| ChunkRef { index: first.index + i, ..first }) {
            if writes && op.kind == OpKind::PutReduceInput {
                let input = ChunkRef { buffer: Buffer::Input, ..chunk };
                let chunk_accesses = memory.entry((rank, cell(input, buffers))).or_default();
                conflicts.extend(chunk_accesses.writer.map(|earlier| EarlierAccess { transfer: id, earlier }));
                chunk_accesses.readers.push(id);
            }
            let chunk_accesses = memory.entry((rank, cell(chunk, buffers))).or_default();
            if !writes {
                chunk_accesses.readers.push(id);
                continue;
            }
            if !same_step {
                let earlier = chunk_accesses.writer.into_iter().chain(chunk_accesses.readers.iter().copied());
                conflicts.extend(
                    earlier.filter(|&earlier| earlier != id).map(|earlier| EarlierAccess { transfer: id, earlier }),
                );
            }
            *chunk_accesses = ChunkAccesses { writer: Some(id), readers: Vec::new() };
        }
    }
    conflicts.sort_unstable();
    conflicts.dedup();
    conflicts
}

fn deadlock(steps: &StepPairing<'_>, cycle: &Cycle) -> FormatError {
    const SHOWN: usize = 6;
    let names: Vec<String> = cycle.0.iter().skip(1).take(SHOWN).map(|op| steps.name(op.0)).collect();
    let more = if cycle.0.len() > SHOWN + 1 { ", and more" } else { "" };
    let first = cycle.0.first().map_or(0, |op| op.0);
    steps.error(first, format!("waits for itself through {}{more}", names.join(", ")))
}

/// Returns the receiving steps in a dependency cycle that arises only because each send is merged with its receive.
fn merged_cycle(access_steps: &[AccessSteps], cycle: &Cycle) -> HazardResult {
    let steps = cycle.0.iter().map(|op| access_steps[op.0 as usize]);
    HazardResult::Cycle(steps.filter(|step| step.reads_at != step.writes_at).map(|step| step.writes_at).collect())
}
