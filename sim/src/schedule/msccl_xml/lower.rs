//! Translates steps into operations.
//!
//! A send and its receive become one transfer, executed by the sender: in MSCCL the data passes through a FIFO slot of
//! the receiver and is not stored there. The transfer waits for the dependencies of the sending step and, if other
//! operations still use the receiver's memory ([`hazards`](super::hazards)), for those operations.
//!
//! | receiving step | transfer | then, at the receiver |
//! |---|---|---|
//! | `r`, `rcs` | put | – |
//! | `rrc`, `rrcs` with `src` the same memory as `dst` | put_reduce | – |
//! | `rrc`, `rrcs` with `src` the input chunk of the number of `dst` | put_reduce_input | – |
//! | `rrc`, `rrcs`, otherwise | put | reduce |
//! | `rrs` of an input chunk | put_reduce_input into a slot, for MSCCL stores nothing | – |
//! | `rrs`, otherwise | put into a slot | reduce |
//!
//! If a transfer to its final location would create a dependency cycle, the data must stay in the FIFO: the transfer
//! puts it into a separate scratch slot, and the receiving step copies or reduces it from there.
//!
//! A step that also sends (`rcs`, `rrs`, `rrcs`) sends the result of its receive. Each thread block becomes a channel
//! of the schedule.

use rustc_hash::FxHashSet;

use super::hazards::{self, AccessSteps, HazardResult};
use super::pair::{NONE, StepPairing};
use super::parse::{Algo, GpuElement, StepKind};
use crate::schedule::chunk_numbering::{ChunkNumbering, ChunksPerGpu, FileChunk, same_memory};
use crate::schedule::draft::{Draft, DraftOp};
use crate::schedule::file_format::{FormatError, Source};
use crate::schedule::flat::MAX_UNITS_MOVED;
use crate::schedule::{Blocks, Buffer, BufferUse, Call, ChunkRef, Header, Layout, OpKind, Rank, Schedule};

/// Maximum number of rounds to resolve dependency cycles. Files that need more are rejected.
const MAX_ROUNDS: u32 = 64;

/// Location of the data that a step receives, and the local operations that follow.
#[derive(Clone, Copy, Debug)]
struct Placement {
    kind: OpKind,
    location: ChunkRef,
    /// Local operations of the receiver after the transfer, as (kind, source, destination).
    follow_ups: [Option<(OpKind, ChunkRef, ChunkRef)>; 2],
    /// Location of the result of the receiving step.
    result: ChunkRef,
}

impl Placement {
    /// Creates a placement of the data at its destination, with an optional reduction of `add` into it.
    fn new(kind: OpKind, location: ChunkRef, add: Option<ChunkRef>) -> Self {
        Self { kind, location, follow_ups: [add.map(|src| (OpKind::Reduce, src, location)), None], result: location }
    }
}

/// State after a step: the last operation of the thread block, and the last transfer to it since then.
pub(super) type BlockState = [Option<u32>; 2];

/// Builds the schedule of a parsed file.
///
/// # Errors
/// [`FormatError`] located at the step that cannot be translated.
pub(super) fn lower(source: Source<'_>, algo: &Algo) -> Result<Schedule, FormatError> {
    let steps = StepPairing::new(source, algo)?;
    let algo_error = |message: String| source.error(algo.span.clone(), message);
    let buffers = if algo.in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace };
    let max_count = |count: fn(&GpuElement) -> u32| algo.gpus.iter().map(count).max().unwrap_or(0);
    let per_gpu = ChunksPerGpu { input: max_count(|gpu| gpu.input_chunks), output: max_count(|gpu| gpu.output_chunks) };
    let mut numbering = ChunkNumbering::new(algo.collective, buffers, algo.gpus.len(), per_gpu).map_err(algo_error)?;
    let scratch = algo.gpus.iter().map(|gpu| gpu.scratch_chunks).max().unwrap_or(0);
    let passes_through = algo.gpus.iter().flat_map(|gpu| &gpu.blocks).flat_map(|block| &block.steps);
    let passes_through = passes_through.clone().any(|step| step.kind == StepKind::ReceiveReduceSend);
    numbering.scratch_offset = if passes_through { numbering.chunks } else { 0 };
    let moved: u64 = steps.steps.iter().map(|step| u64::from(step.count)).sum();
    if moved > MAX_UNITS_MOVED || steps.steps.len() as u64 > MAX_UNITS_MOVED {
        return Err(algo_error(format!("{moved} chunks moved in all; expected at most {MAX_UNITS_MOVED}")));
    }
    let first_slot = u64::from(numbering.scratch_offset) + u64::from(scratch);
    let mut in_fifo: FxHashSet<u32> = FxHashSet::default();
    let mut rounds = 0;
    let (draft, total_scratch) = loop {
        let mut lowering = Lowering {
            steps: &steps,
            numbering: &numbering,
            draft: Draft::default(),
            placements: vec![None; steps.steps.len()],
            outgoing: vec![NONE; steps.steps.len()],
            last_op: vec![NONE; steps.steps.len()],
            first_op: vec![NONE; steps.steps.len()],
            access_steps: Vec::new(),
            next_slot: vec![first_slot; algo.gpus.len()],
            in_fifo: &in_fifo,
        };
        lowering.place_received()?;
        lowering.create_operations()?;
        lowering.order();
        let total_scratch = lowering.next_slot.iter().copied().max().unwrap_or(first_slot);
        let Lowering { mut draft, access_steps, .. } = lowering;
        match hazards::add_hazard_dependencies(&steps, &mut draft, &access_steps, buffers)? {
            HazardResult::Resolved => break (draft, total_scratch),
            HazardResult::Cycle(receives) => {
                let previous_len = in_fifo.len();
                in_fifo.extend(&receives);
                rounds += 1;
                if in_fifo.len() == previous_len || rounds > MAX_ROUNDS {
                    let first = receives.first().copied().unwrap_or(0);
                    return Err(steps.error(first, "cannot receive its data: too much would have to stay in FIFOs"));
                }
            }
        }
    };
    let scratch_chunks = u32::try_from(total_scratch)
        .map_err(|_| algo_error(format!("{total_scratch} scratch chunks; expected fewer than {}", u32::MAX)))?;
    let blocks = algo.gpus.iter().map(|gpu| gpu.blocks.len()).max().unwrap_or(0);
    let bytes = numbering.assumed_bytes(algo.min_bytes, algo.max_bytes);
    let ranks = algo.gpus.len() as u32;
    let header = Header {
        name: algo.name.clone(),
        call: Call { collective: algo.collective, bytes, ranks, root: Rank(algo.root), buffers },
        protocol: algo.protocol,
        channels: u16::try_from(blocks).unwrap_or(u16::MAX).max(1),
        blocks: Blocks::default(),
        layout: Layout::equal(bytes, numbering.chunks),
        teams: Vec::new(),
        certificate: None,
        scratch_chunks,
    };
    draft.schedule(header).map_err(|error| algo_error(error.to_string()))
}

struct Lowering<'a> {
    steps: &'a StepPairing<'a>,
    numbering: &'a ChunkNumbering,
    draft: Draft,
    placements: Vec<Option<Placement>>,
    /// Operation of the draft that is the transfer of each sending step; [`NONE`] for other steps.
    outgoing: Vec<u32>,
    /// First and last operation that each step's own GPU executes.
    first_op: Vec<u32>,
    last_op: Vec<u32>,
    /// Steps at which each operation reads and writes.
    access_steps: Vec<AccessSteps>,
    /// Next free scratch slot of each GPU.
    next_slot: Vec<u64>,
    /// Receiving steps whose data stays in the FIFO until the step is executed.
    in_fifo: &'a FxHashSet<u32>,
}

impl Lowering<'_> {
    fn locate(&self, step: u32, chunk: FileChunk) -> Result<ChunkRef, FormatError> {
        let count = self.steps.steps[step as usize].count;
        self.numbering.locate(self.steps.block(step).gpu, chunk, count).ok_or_else(|| {
            let message =
                format!("uses {} chunk {} and on, which the collective does not have", chunk.buffer, chunk.offset);
            self.steps.error(step, message)
        })
    }

    /// Determines the location of all received data.
    fn place_received(&mut self) -> Result<(), FormatError> {
        let mut passing: FxHashSet<(u32, u32)> = FxHashSet::default();
        for number in 0..self.steps.steps.len() as u32 {
            let step = self.steps.steps[number as usize];
            if !step.kind.receives() {
                continue;
            }
            let placement = if !step.kind.reduces_received() {
                Placement::new(OpKind::Put, self.locate(number, step.dst)?, None)
            } else {
                let src = self.locate(number, step.src)?;
                if step.kind == StepKind::ReceiveReduceSend {
                    self.place_unstored(number, src, &mut passing)
                } else {
                    let dst = self.locate(number, step.dst)?;
                    self.place_reduced(src, dst)
                }
            };
            let waits = self.in_fifo.contains(&number);
            self.placements[number as usize] =
                Some(if waits { self.place_in_slot(number, placement) } else { placement });
        }
        Ok(())
    }

    fn place_reduced(&self, src: ChunkRef, dst: ChunkRef) -> Placement {
        if same_memory(src, dst, self.numbering.buffers) {
            Placement::new(OpKind::PutReduce, dst, None)
        } else if self.numbering.is_input(src) && src.index == dst.index {
            Placement::new(OpKind::PutReduceInput, dst, None)
        } else {
            Placement::new(OpKind::Put, dst, Some(src))
        }
    }

    /// Places the data of an `rrs` step in separate scratch chunks, since MSCCL does not store it.
    fn place_unstored(&mut self, step: u32, src: ChunkRef, passing: &mut FxHashSet<(u32, u32)>) -> Placement {
        let (gpu, count) = (self.steps.block(step).gpu, self.steps.steps[step as usize].count);
        let span = src.index..src.index + count;
        if self.numbering.is_input(src) && span.clone().all(|chunk| !passing.contains(&(gpu, chunk))) {
            passing.extend(span.map(|chunk| (gpu, chunk)));
            let chunk = ChunkRef { buffer: Buffer::Scratch, index: src.index };
            return Placement::new(OpKind::PutReduceInput, chunk, None);
        }
        Placement::new(OpKind::Put, self.slot(gpu, count), Some(src))
    }

    /// Places the data in a scratch slot, which represents the FIFO, until the receiving step is executed.
    fn place_in_slot(&mut self, step: u32, placement: Placement) -> Placement {
        let (gpu, count) = (self.steps.block(step).gpu, self.steps.steps[step as usize].count);
        let (slot, dst) = (self.slot(gpu, count), placement.location);
        let input = ChunkRef { buffer: Buffer::Input, index: dst.index };
        let follow_ups = match placement.kind {
            OpKind::PutReduce => [Some((OpKind::Reduce, slot, dst)), None],
            OpKind::PutReduceInput => [Some((OpKind::Copy, input, dst)), Some((OpKind::Reduce, slot, dst))],
            _ => [Some((OpKind::Copy, slot, dst)), placement.follow_ups[0]],
        };
        Placement { kind: OpKind::Put, location: slot, follow_ups, result: dst }
    }

    /// Allocates `count` unused scratch chunks of a GPU; returns the first of them.
    fn slot(&mut self, gpu: u32, count: u32) -> ChunkRef {
        let slot = &mut self.next_slot[gpu as usize];
        // If the number exceeds 2³², the schedule is rejected later.
        let chunk = ChunkRef { buffer: Buffer::Scratch, index: *slot as u32 };
        *slot += u64::from(count);
        chunk
    }

    /// Creates the operations of all steps, thread block by thread block.
    fn create_operations(&mut self) -> Result<(), FormatError> {
        for number in 0..self.steps.steps.len() as u32 {
            let step = self.steps.steps[number as usize];
            let (gpu, channel) = {
                let block = self.steps.block(number);
                (block.gpu, block.number as u16)
            };
            let placement = self.placements[number as usize];
            let mut operations = Vec::new();
            let local = |kind, src, dst| DraftOp {
                rank: gpu,
                peer: gpu,
                channel,
                kind,
                src,
                dst,
                span: step.count,
                dependencies: Vec::new(),
            };
            for (kind, src, dst) in placement.iter().flat_map(|placement| placement.follow_ups).flatten() {
                operations.push((local(kind, src, dst), number));
            }
            if let StepKind::Copy | StepKind::Reduce = step.kind {
                let kind = if step.kind == StepKind::Copy { OpKind::Copy } else { OpKind::Reduce };
                operations.push((local(kind, self.locate(number, step.src)?, self.locate(number, step.dst)?), number));
            }
            let receiver = self.find_receiver(number);
            if let Some((receiver, target)) = receiver {
                let src = match placement {
                    Some(placement) => placement.result,
                    None => self.locate(number, step.src)?,
                };
                let peer = self.steps.block(receiver).gpu;
                operations.push((
                    DraftOp { peer, kind: target.kind, src, dst: target.location, ..local(OpKind::Put, src, src) },
                    receiver,
                ));
            }
            for (op, writes_at) in operations {
                let transfers = op.kind.is_transfer();
                let id = self.draft.push(op);
                self.access_steps.push(AccessSteps { reads_at: number, writes_at });
                let first = &mut self.first_op[number as usize];
                *first = (*first).min(id);
                self.last_op[number as usize] = id;
                if transfers {
                    self.outgoing[number as usize] = id;
                }
            }
        }
        Ok(())
    }

    fn find_receiver(&self, step: u32) -> Option<(u32, Placement)> {
        let receiver = self.steps.receiver[step as usize];
        self.placements.get(receiver as usize).copied().flatten().map(|placement| (receiver, placement))
    }

    /// Returns the transfer that a step receives; `None` if it receives nothing.
    fn incoming(&self, step: u32) -> Option<u32> {
        self.outgoing.get(self.steps.sender[step as usize] as usize).copied().filter(|&op| op != NONE)
    }

    /// Adds dependencies on preceding and awaited steps to every operation.
    fn order(&mut self) {
        let states = self.block_states();
        for block in &self.steps.blocks {
            // State before the current step, and the pending dependencies of steps without operations.
            let mut state: BlockState = [None; 2];
            let mut awaited: Vec<u32> = Vec::new();
            for step in block.steps() {
                let waits_for = self.steps.awaited[step as usize];
                awaited.extend(states.get(waits_for as usize).into_iter().flatten().flatten());
                if self.steps.steps[step as usize].kind == StepKind::Nothing {
                    continue;
                }
                let (first_op, incoming) = (self.first_op[step as usize], self.incoming(step));
                if let Some(incoming) = incoming.filter(|_| !self.in_fifo.contains(&step)) {
                    // The thread block waits before it receives anything.
                    self.draft.wait(incoming, awaited.drain(..).filter(|&on| on != incoming));
                }
                if first_op != NONE {
                    self.draft.wait(
                        first_op,
                        incoming.into_iter().chain(state.into_iter().flatten()).chain(awaited.drain(..)),
                    );
                    let last = self.last_op[step as usize];
                    (first_op..last).for_each(|op| self.draft.wait(op + 1, [op]));
                }
                awaited.clear();
                state = states[step as usize];
            }
        }
    }

    /// Returns the state after each step. Transfers to a thread block are sequential, so only the last one counts.
    fn block_states(&self) -> Vec<BlockState> {
        let mut states = vec![[None; 2]; self.steps.steps.len()];
        for block in &self.steps.blocks {
            let mut state: BlockState = [None; 2];
            for step in block.steps() {
                let last_op = self.last_op[step as usize];
                if last_op != NONE {
                    state = [Some(last_op), None];
                } else if let Some(incoming) = self.incoming(step) {
                    state[1] = Some(incoming);
                }
                states[step as usize] = state;
            }
        }
        states
    }
}
