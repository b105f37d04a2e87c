//! Writer of MSCCL algorithm files.
//!
//! Every transfer becomes a send and a receive, in the thread blocks of [`assign`](super::assign). MSCCL's thread
//! blocks wait only for others of the same GPU. The dependencies of an operation must therefore be operations that
//! involve its rank or, if they protect the memory that it writes, operations that involve its target.
//!
//! A schedule is valid for one size, and so is its file by default. Gets become sends by the other rank. One-sided
//! protocols are written as `Simple`, because MSCCL only has FIFOs. Received data goes through memory unless it is
//! relayed.
//!
//! A connection holds few messages that were not received yet. A schedule whose thread blocks would wait for each other
//! through full connections is not written, because MSCCL would hang.

use fabricast_topologies::visible::visible;
use quick_xml::escape::escape;

use super::assign::{Assignment, RelayUse};
use super::deadlock::all_blocks_complete;
use super::thread_block::{NONE, StepAction};
use crate::schedule::chunk_numbering::ChunksPerGpu;
use crate::schedule::file_format::{CallSizes, Format, WriteError};
use crate::schedule::flat::{FlatSchedule, SwitchSupport, canonical_chunk, collective_name};
use crate::schedule::lists::{Lists, order_by_key};
use crate::schedule::order::Graph;
use crate::schedule::precedence::{precedes_each, wait_only_schedule};
use crate::schedule::text::put;
use crate::schedule::units::UnitRange;
use crate::schedule::{Buffer, BufferUse, ChunkRef, OpId, OpKind, Protocol, Schedule, fifo};

/// FIFO slots of a message of `Simple` in MSCCL (`MSCCL_CHUNKSTEPS` in `mscclRunAlgo`, half of `NCCL_STEPS`); a message
/// of the other protocols has one.
const SIMPLE_SLOTS_PER_MESSAGE: u32 = fifo::NCCL_DEPTH / 2;

/// Returns the number of messages that a connection holds until they are received.
fn messages_in_flight(protocol: Protocol) -> u32 {
    match protocol {
        Protocol::Ll | Protocol::Ll128 => fifo::NCCL_DEPTH,
        Protocol::Simple | Protocol::Symmetric | Protocol::CopyEngine => fifo::NCCL_DEPTH / SIMPLE_SLOTS_PER_MESSAGE,
    }
}

/// Writes a schedule as an MSCCL file for exactly its size.
///
/// # Errors
/// [`WriteError`]: too large, chunks without a common size, or operations that MSCCL has no steps for.
pub fn to_xml(schedule: &Schedule) -> Result<String, WriteError> {
    let bytes = schedule.header().call.bytes;
    let mut text = String::new();
    write_xml(schedule, CallSizes::only(bytes), &mut text)?;
    Ok(text)
}

/// Appends a schedule as an MSCCL file to `text`, declared valid for the call sizes `sizes`; chunks scale with the
/// size.
///
/// # Errors
/// [`WriteError`], as [`to_xml`]; `text` may then end with a partial file.
pub(in crate::schedule) fn write_xml(
    schedule: &Schedule,
    sizes: CallSizes,
    text: &mut String,
) -> Result<(), WriteError> {
    let mut flat = FlatSchedule::new(schedule, "MSCCL", SwitchSupport::Unsupported)?;
    flat.inline_waits()?;
    let ranks = schedule.header().call.ranks;
    let in_flight = messages_in_flight(schedule.header().protocol);
    let relaying = StepList::new(&flat, Assignment::new(&flat, ranks, RelayUse::Allowed)?, in_flight);
    let steps = match relaying.check(&flat)? {
        OrderCheck::Ordered => relaying,
        // With relays, the steps of some thread blocks would wait for themselves.
        OrderCheck::Cycle(_) => {
            let steps = StepList::new(&flat, Assignment::new(&flat, ranks, RelayUse::Forbidden)?, in_flight);
            match steps.check(&flat)? {
                OrderCheck::Ordered => steps,
                OrderCheck::Cycle(operation) => {
                    let unlimited = StepList::new(&flat, steps.assignment, u32::MAX);
                    return Err(match unlimited.check(&flat)? {
                        OrderCheck::Ordered => WriteError::FullFifos { operation, messages: in_flight },
                        OrderCheck::Cycle(operation) => WriteError::Deadlock { operation },
                    });
                }
            }
        }
    };
    steps.write(schedule, &flat, sizes, text)
}

/// All steps, by number, with their dependencies.
struct StepList {
    assignment: Assignment,
    /// First step of each thread block, by GPU.
    first_steps: Vec<Vec<u32>>,
    actions: Vec<StepAction>,
    /// Index of each step's thread block within the GPU.
    block_by_step: Vec<u32>,
    /// Step that sends or executes each operation.
    send_step: Vec<u32>,
    /// Step that receives each operation.
    receive_step: Vec<u32>,
    /// Step that receives the message whose slots each step's message uses, or [`NONE`].
    freeing_step: Vec<u32>,
    /// Dependencies of each step on other thread blocks of its GPU, as (thread block, last step awaited there).
    after: Lists<(u32, u32)>,
    /// Dependencies that no thread block can wait for, as (operation, awaited operation).
    unsignalled: Vec<(u32, u32)>,
}

enum OrderCheck {
    Ordered,
    Cycle(OpId),
}

impl StepList {
    fn new(flat: &FlatSchedule, assignment: Assignment, in_flight: u32) -> Self {
        let blocks = assignment.gpus.iter().flatten();
        let count = blocks.map(|block| block.actions.len()).sum();
        let (mut actions, mut block_of) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut firsts = Vec::with_capacity(assignment.gpus.len());
        let mut send_step = vec![NONE; flat.ops.len()];
        let mut received_at = vec![NONE; flat.ops.len()];
        for blocks in &assignment.gpus {
            let mut first = Vec::with_capacity(blocks.len());
            for (number, block) in blocks.iter().enumerate() {
                first.push(actions.len() as u32);
                for action in &block.actions {
                    let step = actions.len() as u32;
                    if let Some(op) =
                        action.sent().or(if let StepAction::Local(op) = action { Some(*op) } else { None })
                    {
                        send_step[op as usize] = step;
                    }
                    if let Some(op) = action.received() {
                        received_at[op as usize] = step;
                    }
                    actions.push(*action);
                    block_of.push(number as u32);
                }
            }
            firsts.push(first);
        }
        let (after, unsignalled) = (Lists::with_capacity(0), Vec::new());
        let mut steps = Self {
            assignment,
            first_steps: firsts,
            actions,
            block_by_step: block_of,
            send_step,
            receive_step: received_at,
            freeing_step: Vec::new(),
            after,
            unsignalled,
        };
        steps.find_waits(flat);
        steps.find_slots(in_flight);
        steps
    }

    /// Returns the step after which a rank has finished its part of an operation; `None` if the rank is not involved.
    fn completion_step(&self, flat: &FlatSchedule, op: u32, rank: u32) -> Option<u32> {
        let flat_op = &flat.ops[op as usize];
        let step = if flat_op.crosses() && flat_op.target() == rank {
            self.receive_step[op as usize]
        } else if flat_op.source() == rank {
            self.send_step[op as usize]
        } else {
            NONE
        };
        (step != NONE).then_some(step)
    }

    fn find_waits(&mut self, flat: &FlatSchedule) {
        // Pairs of a step and one of the same GPU that it waits for.
        let mut waits: Vec<(u32, u32)> = Vec::with_capacity(flat.waits.items().len());
        for (id, op) in (0u32..).zip(&flat.ops).filter(|(_, op)| op.kind.moves_data()) {
            for &on in flat.dependencies(id) {
                if let Some(part) = self.completion_step(flat, on, op.source()) {
                    waits.push((self.send_step[id as usize], part));
                } else if let Some(part) = op.crosses().then(|| self.completion_step(flat, on, op.target())).flatten() {
                    waits.push((self.receive_step[id as usize], part));
                } else {
                    self.unsignalled.push((id, on));
                }
            }
        }
        // Dependencies within a thread block are implied by its order.
        waits.retain(|&(step, on)| self.block_by_step[step as usize] != self.block_by_step[on as usize]);
        let order = order_by_key(waits.iter().map(|(step, _)| *step));
        let mut ordered = order.iter().map(|&index| waits[index as usize]).peekable();
        let mut after = Lists::with_capacity(self.actions.len());
        let mut step_waits: Vec<(u32, u32)> = Vec::new();
        for step in 0..self.actions.len() as u32 {
            step_waits.clear();
            while let Some((_, on)) = ordered.next_if(|(waiting_step, _)| *waiting_step == step) {
                step_waits.push((self.block_by_step[on as usize], on));
            }
            step_waits.sort_unstable();
            after.extend(step_waits.chunk_by(|a, b| a.0 == b.0).filter_map(<[(u32, u32)]>::last).copied());
            after.close();
        }
        self.after = after;
    }

    /// Finds the steps that free the slots of later messages. The thread block that sends on a connection does so in the
    /// order of its steps.
    fn find_slots(&mut self, in_flight: u32) {
        let mut sent: Vec<Vec<u32>> = vec![Vec::new(); self.assignment.connections.routes.len()];
        self.freeing_step = vec![NONE; self.actions.len()];
        for (action, freeing) in self.actions.iter().zip(&mut self.freeing_step) {
            let Some(op) = action.sent() else { continue };
            let messages = &mut sent[self.assignment.connections.connection_of_op[op as usize] as usize];
            if let Some(before) = messages.len().checked_sub(in_flight as usize) {
                *freeing = self.receive_step[messages[before] as usize];
            }
            messages.push(op);
        }
    }

    /// Returns the dependencies of a step, except for the preceding step of its thread block.
    fn waits_for(&self, step: u32) -> impl Iterator<Item = u32> + '_ {
        let sent = self.actions[step as usize].received().map(|op| self.send_step[op as usize]);
        let freeing = Some(self.freeing_step[step as usize]).filter(|&step| step != NONE);
        self.after.get(step).iter().map(|(_, on)| *on).chain(sent).chain(freeing)
    }

    /// Checks that the thread blocks, which execute their steps in sequence, satisfy all dependencies.
    fn check(&self, flat: &FlatSchedule) -> Result<OrderCheck, WriteError> {
        let first_steps: Vec<u32> = self.first_steps.iter().flatten().copied().collect();
        if self.unsignalled.is_empty()
            && all_blocks_complete(&first_steps, self.actions.len() as u32, |step| self.waits_for(step))
        {
            return Ok(OrderCheck::Ordered);
        }
        let mut starts = vec![false; self.actions.len() + 1];
        first_steps.iter().for_each(|&first| starts[first as usize] = true);
        let schedule = wait_only_schedule((0..self.actions.len() as u32).map(|step| {
            let before = (!starts[step as usize]).then(|| step - 1);
            self.waits_for(step).chain(before)
        }));
        let graph = Graph::new(&schedule);
        let order = match graph.order() {
            Ok(order) => order,
            Err(cycle) => {
                let first = cycle.0.first().map_or(0, |step| step.0);
                let action = self.actions[first as usize];
                let op = action.received().or(action.sent()).unwrap_or(0);
                return Ok(OrderCheck::Cycle(OpId(op)));
            }
        };
        let last_step = |op: u32| match self.receive_step[op as usize] {
            NONE => self.send_step[op as usize],
            step => step,
        };
        let pairs: Vec<(u32, u32)> =
            self.unsignalled.iter().map(|&(op, on)| (last_step(on), self.send_step[op as usize])).collect();
        for (&(op, on), is_implied) in self.unsignalled.iter().zip(precedes_each(&graph, &order, &pairs)) {
            if !is_implied {
                let reason = format!("it waits for operation {on}, in which neither of its ranks takes part");
                return Err(flat.unsupported(op, &reason));
            }
        }
        Ok(OrderCheck::Ordered)
    }

    fn write(
        &self,
        schedule: &Schedule,
        flat: &FlatSchedule,
        sizes: CallSizes,
        text: &mut String,
    ) -> Result<(), WriteError> {
        let (header, call) = (schedule.header(), schedule.header().call);
        let channels = self.assignment.channels.iter().map(|channel| channel + 1).max().unwrap_or(1);
        let proto = match Format::MscclXml.protocol(header.protocol) {
            Protocol::Ll => "LL",
            Protocol::Ll128 => "LL128",
            _ => "Simple",
        };
        let (inside, outside) = if call.buffers == BufferUse::InPlace { ("1", "0") } else { ("0", "1") };
        put!(text, "<algo name=\"", &*escape(&*visible(&header.name)), "\" proto=\"", proto);
        put!(text, "\" nchannels=\"", channels, "\" nchunksperloop=\"", flat.numbering.chunks);
        put!(text, "\" ngpus=\"", call.ranks, "\" coll=\"", collective_name(call.collective));
        put!(text, "\" inplace=\"", inside, "\" outofplace=\"", outside);
        put!(text, "\" minBytes=\"", sizes.min.0, "\" maxBytes=\"", sizes.max.0, "\"");
        if call.root.0 != 0 {
            put!(text, " root=\"", call.root.0, "\"");
        }
        put!(text, ">\n");
        let ChunksPerGpu { input, output } = flat.numbering.per_gpu;
        let numbers = self.numbers();
        let mut sets_flag = vec![false; self.actions.len()];
        self.after.items().iter().for_each(|&(_, on)| sets_flag[on as usize] = true);
        let route = |connection: u32| self.assignment.connections.routes[connection as usize];
        for ((blocks, firsts), gpu) in self.assignment.gpus.iter().zip(&self.first_steps).zip(0u32..) {
            put!(text, "  <gpu id=\"", gpu, "\" i_chunks=\"", input, "\" o_chunks=\"", output);
            put!(text, "\" s_chunks=\"", flat.scratch, "\">\n");
            for ((block, &first), number) in blocks.iter().zip(firsts).zip(0u32..) {
                let send = block.sends.map(|connection| route(connection).1);
                let recv = block.receives.map(|connection| route(connection).0);
                // A relay uses one channel number for both of its connections.
                let connection = block.sends.or(block.receives);
                let chan = connection.map_or(0, |connection| self.assignment.channels[connection as usize]);
                put!(text, "    <tb id=\"", number, "\" send=\"", send, "\" recv=\"", recv);
                put!(text, "\" chan=\"", chan, "\">\n");
                for (&action, step) in block.actions.iter().zip(first..) {
                    let after = self.after.get(step);
                    let mut step_number = numbers[step as usize] - (after.len() as u32).saturating_sub(1);
                    let (last, others) = match after.split_last() {
                        Some((last, others)) => (Some(*last), others),
                        None => (None, &[][..]),
                    };
                    for &(block, on) in others {
                        put!(
                            text,
                            "      <step s=\"",
                            step_number,
                            "\" type=\"nop\" srcbuf=\"i\" srcoff=\"-1\" dstbuf=\"o\" "
                        );
                        put!(text, "dstoff=\"-1\" cnt=\"0\" depid=\"", block, "\" deps=\"", numbers[on as usize]);
                        put!(text, "\" hasdep=\"0\"/>\n");
                        step_number += 1;
                    }
                    put!(text, "      <step s=\"", step_number, "\" ");
                    self.write_step_fields(flat, schedule, action, text)?;
                    put!(text, " depid=\"", last.map(|(block, _)| block));
                    put!(text, "\" deps=\"", last.map(|(_, on)| numbers[on as usize]));
                    put!(text, if sets_flag[step as usize] { "\" hasdep=\"1\"/>\n" } else { "\" hasdep=\"0\"/>\n" });
                }
                put!(text, "    </tb>\n");
            }
            put!(text, "  </gpu>\n");
        }
        put!(text, "</algo>\n");
        Ok(())
    }

    /// Returns the number of each step in its thread block; steps that only wait count as well.
    fn numbers(&self) -> Vec<u32> {
        let mut numbers = vec![0; self.actions.len()];
        for blocks in self.first_steps.iter().zip(&self.assignment.gpus) {
            for (&first, block) in blocks.0.iter().zip(blocks.1) {
                let mut next = 0;
                for step in first..first + block.actions.len() as u32 {
                    next += (self.after.get(step).len() as u32).saturating_sub(1);
                    numbers[step as usize] = next;
                    next += 1;
                }
            }
        }
        numbers
    }

    /// Writes the type, chunks and number of chunks of a step.
    fn write_step_fields(
        &self,
        flat: &FlatSchedule,
        schedule: &Schedule,
        action: StepAction,
        text: &mut String,
    ) -> Result<(), WriteError> {
        let (StepAction::Local(id) | StepAction::Send(id) | StepAction::Receive(id) | StepAction::Relay(id, _)) =
            action;
        let op = &flat.ops[id as usize];
        let call = schedule.header().call;
        let reduces = op.kind.reduces();
        let kind = match (action, reduces) {
            (StepAction::Local(_), true) => "re",
            (StepAction::Local(_), false) => "cpy",
            (StepAction::Send(_), _) => "s",
            (StepAction::Receive(_), true) => "rrc",
            (StepAction::Receive(_), false) => "r",
            (StepAction::Relay(..), true) => "rrcs",
            (StepAction::Relay(..), false) => "rcs",
        };
        // The source of a reducing receive is in the receiver's memory. Otherwise `src` is the sender's chunk, for
        // information only.
        let src = match action {
            StepAction::Receive(_) | StepAction::Relay(..) if op.kind == OpKind::PutReduceInput => {
                let input = ChunkRef { buffer: Buffer::Input, index: op.dst.start };
                let input = canonical_chunk(input, call.collective, call.buffers);
                flat.name(id, op.target(), UnitRange { buffer: input.buffer, start: input.index, count: op.dst.count })?
            }
            StepAction::Receive(_) | StepAction::Relay(..) if reduces => flat.name(id, op.target(), op.dst)?,
            _ => flat.name(id, op.source(), op.src)?,
        };
        let dst = flat.name(id, op.target(), op.dst)?;
        put!(text, "type=\"", kind, "\" srcbuf=\"", src.0, "\" srcoff=\"", src.1);
        put!(text, "\" dstbuf=\"", dst.0, "\" dstoff=\"", dst.1, "\" cnt=\"", op.dst.count, "\"");
        Ok(())
    }
}
