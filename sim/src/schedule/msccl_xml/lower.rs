//! Translates steps into operations.
//!
//! A send and its receive become one transfer, executed by the sender: in MSCCL the data passes through a FIFO slot of
//! the receiver and does not stay there. The transfer waits for the dependencies of the sending step. If the receiver's
//! memory must not be written yet ([`hazards`](super::hazards)), it waits for that as well.
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
//! A step that also sends (`rcs`, `rrs`, `rrcs`) sends the result of its receive. Channels are thread blocks.

use rustc_hash::FxHashSet;

use super::hazards::{self, Settled};
use super::pair::{NONE, Steps};
use super::parse::{Algo, Gpu, StepKind};
use crate::schedule::draft::{Draft, DraftOp};
use crate::schedule::format::{FormatError, Source};
use crate::schedule::places::{Places, same_memory};
use crate::schedule::plain::MOST_MOVED;
use crate::schedule::{Blocks, Buffer, BufferUse, Call, ChunkRef, Header, Layout, OpKind, Rank, Schedule};

/// Largest number of rounds that resolve dependency cycles; files that need more are rejected.
const MOST_ROUNDS: u32 = 64;

/// Placement of the data that a step receives.
#[derive(Clone, Copy, Debug)]
struct Landing {
    kind: OpKind,
    at: ChunkRef,
    /// Subsequent local operations of the receiver as (kind, source, destination).
    then: [Option<(OpKind, ChunkRef, ChunkRef)>; 2],
    /// Location of the result.
    result: ChunkRef,
}

impl Landing {
    /// Places the data at its destination, with an optional reduction of `add` into it.
    fn at(kind: OpKind, at: ChunkRef, add: Option<ChunkRef>) -> Self {
        Self { kind, at, then: [add.map(|src| (OpKind::Reduce, src, at)), None], result: at }
    }
}

/// State after a step: the last operation of its own thread block, and the last transfer to it since then.
pub(super) type Done = [Option<u32>; 2];

/// Builds the schedule.
pub(super) fn lower(source: Source<'_>, algo: &Algo) -> Result<Schedule, FormatError> {
    let steps = Steps::new(source, algo)?;
    let in_algo = |message: String| source.error(algo.at.clone(), message);
    let buffers = if algo.in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace };
    let most = |count: fn(&Gpu) -> u32| algo.gpus.iter().map(count).max().unwrap_or(0);
    let per_gpu = (most(|gpu| gpu.input_chunks), most(|gpu| gpu.output_chunks));
    let mut places = Places::new(algo.collective, buffers, algo.gpus.len(), per_gpu).map_err(in_algo)?;
    let scratch = algo.gpus.iter().map(|gpu| gpu.scratch_chunks).max().unwrap_or(0);
    let passes_through = algo.gpus.iter().flat_map(|gpu| &gpu.blocks).flat_map(|block| &block.steps);
    let passes_through = passes_through.clone().any(|step| step.kind == StepKind::ReceiveReduceSend);
    places.scratch_from = if passes_through { places.chunks } else { 0 };
    let moved: u64 = steps.steps.iter().map(|step| u64::from(step.count)).sum();
    if moved > MOST_MOVED || steps.steps.len() as u64 > MOST_MOVED {
        return Err(in_algo(format!("{moved} chunks moved in all; expected at most {MOST_MOVED}")));
    }
    let slots_from = u64::from(places.scratch_from) + u64::from(scratch);
    let mut in_fifo: FxHashSet<u32> = FxHashSet::default();
    let mut rounds = 0;
    let (draft, all_scratch) = loop {
        let mut lowering = Lowering {
            steps: &steps,
            places: &places,
            draft: Draft::default(),
            landings: vec![None; steps.steps.len()],
            outgoing: vec![NONE; steps.steps.len()],
            own_last: vec![NONE; steps.steps.len()],
            own_first: vec![NONE; steps.steps.len()],
            acts_at: Vec::new(),
            next_slot: vec![slots_from; algo.gpus.len()],
            in_fifo: &in_fifo,
        };
        lowering.land()?;
        lowering.make()?;
        lowering.order();
        let all_scratch = lowering.next_slot.iter().copied().max().unwrap_or(slots_from);
        let Lowering { mut draft, acts_at, .. } = lowering;
        match hazards::settle(&steps, &mut draft, &acts_at, buffers)? {
            Settled::Joined => break (draft, all_scratch),
            Settled::Circle(receives) => {
                let before = in_fifo.len();
                in_fifo.extend(&receives);
                rounds += 1;
                if in_fifo.len() == before || rounds > MOST_ROUNDS {
                    let first = receives.first().copied().unwrap_or(0);
                    return Err(steps.error(first, "cannot take its data: too much would have to stay in FIFOs"));
                }
            }
        }
    };
    let scratch_chunks = u32::try_from(all_scratch)
        .map_err(|_| in_algo(format!("{all_scratch} scratch chunks; expected fewer than {}", u32::MAX)))?;
    let blocks = algo.gpus.iter().map(|gpu| gpu.blocks.len()).max().unwrap_or(0);
    let bytes = places.assumed_bytes(algo.min_bytes, algo.max_bytes);
    let ranks = algo.gpus.len() as u32;
    let header = Header {
        name: algo.name.clone(),
        call: Call { collective: algo.collective, bytes, ranks, root: Rank(algo.root), buffers },
        protocol: algo.protocol,
        channels: u16::try_from(blocks).unwrap_or(u16::MAX).max(1),
        blocks: Blocks::default(),
        layout: Layout::equal(bytes, places.chunks),
        teams: Vec::new(),
        scratch_chunks,
    };
    draft.schedule(header).map_err(|error| in_algo(error.to_string()))
}

struct Lowering<'a> {
    steps: &'a Steps<'a>,
    places: &'a Places,
    draft: Draft,
    landings: Vec<Option<Landing>>,
    /// The transfer of each sending step.
    outgoing: Vec<u32>,
    /// First and last operation executed by the step's own GPU.
    own_first: Vec<u32>,
    own_last: Vec<u32>,
    /// Steps at which each operation reads and writes.
    acts_at: Vec<(u32, u32)>,
    /// Next free scratch slot of each GPU.
    next_slot: Vec<u64>,
    /// Receiving steps whose data stays in the FIFO until they execute.
    in_fifo: &'a FxHashSet<u32>,
}

impl Lowering<'_> {
    fn place(&self, step: u32, chunk: (Buffer, u32)) -> Result<ChunkRef, FormatError> {
        let count = self.steps.steps[step as usize].count;
        self.places.place(self.steps.block(step).gpu, chunk, count).ok_or_else(|| {
            let message = format!("uses {} chunk {} and on, which the collective does not have", chunk.0, chunk.1);
            self.steps.error(step, message)
        })
    }

    /// Determines the location of all received data.
    fn land(&mut self) -> Result<(), FormatError> {
        let mut passing: FxHashSet<(u32, u32)> = FxHashSet::default();
        for number in 0..self.steps.steps.len() as u32 {
            let step = self.steps.steps[number as usize];
            if !step.kind.receives() {
                continue;
            }
            let landing = if !step.kind.reduces_received() {
                Landing::at(OpKind::Put, self.place(number, step.dst)?, None)
            } else {
                let src = self.place(number, step.src)?;
                if step.kind == StepKind::ReceiveReduceSend {
                    self.land_in_passing(number, src, &mut passing)
                } else {
                    let dst = self.place(number, step.dst)?;
                    self.land_reduced(src, dst)
                }
            };
            let waits = self.in_fifo.contains(&number);
            self.landings[number as usize] = Some(if waits { self.land_in_fifo(number, landing) } else { landing });
        }
        Ok(())
    }

    fn land_reduced(&self, src: ChunkRef, dst: ChunkRef) -> Landing {
        if same_memory(src, dst, self.places.buffers) {
            Landing::at(OpKind::PutReduce, dst, None)
        } else if self.places.is_input(src) && src.index == dst.index {
            Landing::at(OpKind::PutReduceInput, dst, None)
        } else {
            Landing::at(OpKind::Put, dst, Some(src))
        }
    }

    /// Places the data of an `rrs` step, which MSCCL does not store, in scratch of its own.
    fn land_in_passing(&mut self, step: u32, src: ChunkRef, passing: &mut FxHashSet<(u32, u32)>) -> Landing {
        let (gpu, count) = (self.steps.block(step).gpu, self.steps.steps[step as usize].count);
        let span = src.index..src.index + count;
        if self.places.is_input(src) && span.clone().all(|chunk| !passing.contains(&(gpu, chunk))) {
            passing.extend(span.map(|chunk| (gpu, chunk)));
            let at = ChunkRef { buffer: Buffer::Scratch, index: src.index };
            return Landing::at(OpKind::PutReduceInput, at, None);
        }
        Landing::at(OpKind::Put, self.slot(gpu, count), Some(src))
    }

    /// Places the data in a slot until the receiving step executes, in lieu of the FIFO.
    fn land_in_fifo(&mut self, step: u32, landing: Landing) -> Landing {
        let (gpu, count) = (self.steps.block(step).gpu, self.steps.steps[step as usize].count);
        let (slot, dst) = (self.slot(gpu, count), landing.at);
        let input = ChunkRef { buffer: Buffer::Input, index: dst.index };
        let then = match landing.kind {
            OpKind::PutReduce => [Some((OpKind::Reduce, slot, dst)), None],
            OpKind::PutReduceInput => [Some((OpKind::Copy, input, dst)), Some((OpKind::Reduce, slot, dst))],
            _ => [Some((OpKind::Copy, slot, dst)), landing.then[0]],
        };
        Landing { kind: OpKind::Put, at: slot, then, result: dst }
    }

    /// Allocates unused scratch.
    fn slot(&mut self, gpu: u32, count: u32) -> ChunkRef {
        let slot = &mut self.next_slot[gpu as usize];
        // Past 2³² the schedule is rejected.
        let at = ChunkRef { buffer: Buffer::Scratch, index: *slot as u32 };
        *slot += u64::from(count);
        at
    }

    /// Creates the operations, thread block by thread block.
    fn make(&mut self) -> Result<(), FormatError> {
        for number in 0..self.steps.steps.len() as u32 {
            let step = self.steps.steps[number as usize];
            let (gpu, channel) = {
                let block = self.steps.block(number);
                (block.gpu, block.number as u16)
            };
            let landing = self.landings[number as usize];
            let mut own = Vec::new();
            let local = |kind, src, dst| DraftOp {
                rank: gpu,
                peer: gpu,
                channel,
                kind,
                src,
                dst,
                span: step.count,
                after: Vec::new(),
            };
            for (kind, src, dst) in landing.iter().flat_map(|landing| landing.then).flatten() {
                own.push((local(kind, src, dst), number));
            }
            if let StepKind::Copy | StepKind::Reduce = step.kind {
                let kind = if step.kind == StepKind::Copy { OpKind::Copy } else { OpKind::Reduce };
                own.push((local(kind, self.place(number, step.src)?, self.place(number, step.dst)?), number));
            }
            let receiver = self.receiver_of(number);
            if let Some((receiver, to)) = receiver {
                let src = match landing {
                    Some(landing) => landing.result,
                    None => self.place(number, step.src)?,
                };
                let peer = self.steps.block(receiver).gpu;
                own.push((DraftOp { peer, kind: to.kind, src, dst: to.at, ..local(OpKind::Put, src, src) }, receiver));
            }
            for (op, writes_at) in own {
                let transfers = op.kind.is_transfer();
                let id = self.draft.push(op);
                self.acts_at.push((number, writes_at));
                let first = &mut self.own_first[number as usize];
                *first = (*first).min(id);
                self.own_last[number as usize] = id;
                if transfers {
                    self.outgoing[number as usize] = id;
                }
            }
        }
        Ok(())
    }

    fn receiver_of(&self, step: u32) -> Option<(u32, Landing)> {
        let receiver = self.steps.receiver[step as usize];
        self.landings.get(receiver as usize).copied().flatten().map(|landing| (receiver, landing))
    }

    /// The transfer that a step receives.
    fn incoming(&self, step: u32) -> Option<u32> {
        self.outgoing.get(self.steps.sender[step as usize] as usize).copied().filter(|&op| op != NONE)
    }

    /// Adds the dependencies on preceding and awaited steps to every operation.
    fn order(&mut self) {
        let done = self.done();
        for at in &self.steps.blocks {
            // State before the current step, and the pending dependencies of steps without operations.
            let mut before: Done = [None; 2];
            let mut awaited: Vec<u32> = Vec::new();
            for step in at.steps() {
                let waits_for = self.steps.awaited[step as usize];
                awaited.extend(done.get(waits_for as usize).into_iter().flatten().flatten());
                if self.steps.steps[step as usize].kind == StepKind::Nothing {
                    continue;
                }
                let (own, incoming) = (self.own_first[step as usize], self.incoming(step));
                if let Some(incoming) = incoming.filter(|_| !self.in_fifo.contains(&step)) {
                    // The thread block waits before it receives anything.
                    self.draft.wait(incoming, awaited.drain(..).filter(|&on| on != incoming));
                }
                if own != NONE {
                    self.draft
                        .wait(own, incoming.into_iter().chain(before.into_iter().flatten()).chain(awaited.drain(..)));
                    let last = self.own_last[step as usize];
                    (own..last).for_each(|op| self.draft.wait(op + 1, [op]));
                }
                awaited.clear();
                before = done[step as usize];
            }
        }
    }

    /// State after each step. Transfers to a thread block are sequential, so only the last one counts.
    fn done(&self) -> Vec<Done> {
        let mut done = vec![[None; 2]; self.steps.steps.len()];
        for at in &self.steps.blocks {
            let mut state: Done = [None; 2];
            for step in at.steps() {
                let own = self.own_last[step as usize];
                if own != NONE {
                    state = [Some(own), None];
                } else if let Some(incoming) = self.incoming(step) {
                    state[1] = Some(incoming);
                }
                done[step as usize] = state;
            }
        }
        done
    }
}
