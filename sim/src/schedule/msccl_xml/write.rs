//! Writer of MSCCL algorithm files.
//!
//! Every transfer becomes a send and a receive, in the thread blocks of [`assign`](super::assign). The dependencies of
//! an operation must be operations that its rank takes part in or, if they protect the memory it writes, that its
//! target takes part in: MSCCL's thread blocks wait only for others of the same GPU.
//!
//! A schedule is for one size, and so is its file by default. Gets become sends by the other rank. One-sided protocols
//! are written as `Simple`, because MSCCL only has FIFOs. Received data goes through memory unless it is relayed.

use fabricast_topologies::visible::visible;
use quick_xml::escape::escape;

use super::assign::{Act, Assignment, NONE};
use super::turns::come_to_an_end;
use fabricast_topologies::Bytes;

use crate::schedule::format::{Format, WriteError};
use crate::schedule::lists::{Lists, by_key};
use crate::schedule::order::Graph;
use crate::schedule::plain::{Plain, Switches, collective_name, named_once};
use crate::schedule::precedence::{are_before, waits};
use crate::schedule::text::put;
use crate::schedule::units::Stretch;
use crate::schedule::{Buffer, BufferUse, ChunkRef, OpId, OpKind, Protocol, Schedule};

/// Writes a schedule as an MSCCL file for exactly its size.
///
/// # Errors
/// [`WriteError`]: too large, chunks without a common size, or operations that MSCCL has no steps for.
pub fn to_xml(schedule: &Schedule) -> Result<String, WriteError> {
    let bytes = schedule.header().call.bytes;
    let mut text = String::new();
    write_xml(schedule, (bytes, bytes), &mut text)?;
    Ok(text)
}

/// Variant of [`to_xml`] that appends to `text` and covers call sizes from `sizes.0` to `sizes.1`; chunks scale with
/// the size.
///
/// # Errors
/// [`WriteError`], as [`to_xml`]; `text` may then end with a partial file.
pub(in crate::schedule) fn write_xml(
    schedule: &Schedule,
    sizes: (Bytes, Bytes),
    text: &mut String,
) -> Result<(), WriteError> {
    let mut plain = Plain::new(schedule, "MSCCL", Switches::Unknown)?;
    plain.see_through_waits()?;
    let ranks = schedule.header().call.ranks;
    let relaying = Steps::new(&plain, Assignment::new(&plain, ranks, true)?);
    let steps = match relaying.check(&plain)? {
        Checked::Ordered => relaying,
        // Relays would make the steps of some thread blocks wait for themselves.
        Checked::Circle(_) => {
            let steps = Steps::new(&plain, Assignment::new(&plain, ranks, false)?);
            if let Checked::Circle(operation) = steps.check(&plain)? {
                return Err(WriteError::Deadlock { operation });
            }
            steps
        }
    };
    steps.put(schedule, &plain, sizes, text)
}

/// All steps, numbered, with their dependencies.
struct Steps {
    assignment: Assignment,
    /// First step of each thread block, by GPU.
    firsts: Vec<Vec<u32>>,
    acts: Vec<Act>,
    /// Index within its GPU of the thread block of each step.
    block_of: Vec<u32>,
    /// For each operation, the step that sends or executes it, and the step that receives it.
    made_at: Vec<u32>,
    received_at: Vec<u32>,
    /// The last step of each other thread block of the GPU that a step waits for, as (thread block, step).
    after: Lists<(u32, u32)>,
    /// Dependencies that no thread block can wait for, as (operation, dependency).
    untold: Vec<(u32, u32)>,
}

enum Checked {
    Ordered,
    Circle(OpId),
}

impl Steps {
    fn new(plain: &Plain, assignment: Assignment) -> Self {
        let blocks = assignment.gpus.iter().flatten();
        let count = blocks.map(|block| block.acts.len()).sum();
        let (mut acts, mut block_of) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut firsts = Vec::with_capacity(assignment.gpus.len());
        let mut made_at = vec![NONE; plain.ops.len()];
        let mut received_at = vec![NONE; plain.ops.len()];
        for blocks in &assignment.gpus {
            let mut first = Vec::with_capacity(blocks.len());
            for (number, block) in blocks.iter().enumerate() {
                first.push(acts.len() as u32);
                for act in &block.acts {
                    let step = acts.len() as u32;
                    if let Some(op) = act.sent().or(if let Act::Local(op) = act { Some(*op) } else { None }) {
                        made_at[op as usize] = step;
                    }
                    if let Some(op) = act.received() {
                        received_at[op as usize] = step;
                    }
                    acts.push(*act);
                    block_of.push(number as u32);
                }
            }
            firsts.push(first);
        }
        let (after, untold) = (Lists::with_capacity(0), Vec::new());
        let mut steps = Self { assignment, firsts, acts, block_of, made_at, received_at, after, untold };
        steps.find_waits(plain);
        steps
    }

    /// The step after which a rank has finished its part in an operation; `None` if it has no part.
    fn part(&self, plain: &Plain, op: u32, rank: u32) -> Option<u32> {
        let plain = &plain.ops[op as usize];
        let step = if plain.crosses() && plain.target() == rank {
            self.received_at[op as usize]
        } else if plain.source() == rank {
            self.made_at[op as usize]
        } else {
            NONE
        };
        (step != NONE).then_some(step)
    }

    fn find_waits(&mut self, plain: &Plain) {
        // Pairs of a step and one of the same GPU that it waits for.
        let mut told: Vec<(u32, u32)> = Vec::with_capacity(plain.waits.all().len());
        for (id, op) in (0u32..).zip(&plain.ops).filter(|(_, op)| op.kind.moves_data()) {
            for &on in plain.after(id) {
                if let Some(part) = self.part(plain, on, op.source()) {
                    told.push((self.made_at[id as usize], part));
                } else if let Some(part) = op.crosses().then(|| self.part(plain, on, op.target())).flatten() {
                    told.push((self.received_at[id as usize], part));
                } else {
                    self.untold.push((id, on));
                }
            }
        }
        // Dependencies within a thread block are implied by its order.
        told.retain(|&(step, on)| self.block_of[step as usize] != self.block_of[on as usize]);
        let order = by_key(told.iter().map(|(step, _)| *step));
        let mut in_order = order.iter().map(|&at| told[at as usize]).peekable();
        let mut after = Lists::with_capacity(self.acts.len());
        let mut of_step: Vec<(u32, u32)> = Vec::new();
        for step in 0..self.acts.len() as u32 {
            of_step.clear();
            while let Some((_, on)) = in_order.next_if(|(own, _)| *own == step) {
                of_step.push((self.block_of[on as usize], on));
            }
            of_step.sort_unstable();
            after.extend(of_step.chunk_by(|a, b| a.0 == b.0).filter_map(<[(u32, u32)]>::last).copied());
            after.close();
        }
        self.after = after;
    }

    /// Dependencies of a step, except for the preceding step of its thread block.
    fn waits_for(&self, step: u32) -> impl Iterator<Item = u32> + '_ {
        let sent = self.acts[step as usize].received().map(|op| self.made_at[op as usize]);
        self.after.of(step).iter().map(|(_, on)| *on).chain(sent)
    }

    /// Checks that thread blocks, executing their steps in sequence, satisfy all dependencies.
    fn check(&self, plain: &Plain) -> Result<Checked, WriteError> {
        let firsts: Vec<u32> = self.firsts.iter().flatten().copied().collect();
        if self.untold.is_empty() && come_to_an_end(&firsts, self.acts.len() as u32, |step| self.waits_for(step)) {
            return Ok(Checked::Ordered);
        }
        let mut starts = vec![false; self.acts.len() + 1];
        firsts.iter().for_each(|&first| starts[first as usize] = true);
        let schedule = waits((0..self.acts.len() as u32).map(|step| {
            let before = (!starts[step as usize]).then(|| step - 1);
            self.waits_for(step).chain(before)
        }));
        let graph = Graph::new(&schedule);
        let order = match graph.order() {
            Ok(order) => order,
            Err(cycle) => {
                let first = cycle.0.first().map_or(0, |step| step.0);
                let act = self.acts[first as usize];
                let op = act.received().or(act.sent()).unwrap_or(0);
                return Ok(Checked::Circle(OpId(op)));
            }
        };
        let last = |op: u32| match self.received_at[op as usize] {
            NONE => self.made_at[op as usize],
            step => step,
        };
        let pairs: Vec<(u32, u32)> =
            self.untold.iter().map(|&(op, on)| (last(on), self.made_at[op as usize])).collect();
        for (&(op, on), told) in self.untold.iter().zip(are_before(&graph, &order, &pairs)) {
            if !told {
                let reason = format!("it waits for operation {on}, in which neither of its ranks takes part");
                return Err(plain.unsupported(op, &reason));
            }
        }
        Ok(Checked::Ordered)
    }

    fn put(
        &self,
        schedule: &Schedule,
        plain: &Plain,
        sizes: (Bytes, Bytes),
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
        put!(text, "\" nchannels=\"", channels, "\" nchunksperloop=\"", plain.places.chunks);
        put!(text, "\" ngpus=\"", call.ranks, "\" coll=\"", collective_name(call.collective));
        put!(text, "\" inplace=\"", inside, "\" outofplace=\"", outside);
        put!(text, "\" minBytes=\"", sizes.0.0, "\" maxBytes=\"", sizes.1.0, "\"");
        if call.root.0 != 0 {
            put!(text, " root=\"", call.root.0, "\"");
        }
        put!(text, ">\n");
        let (input, output) = plain.places.per_gpu;
        let numbers = self.numbers();
        let mut told = vec![false; self.acts.len()];
        self.after.all().iter().for_each(|&(_, on)| told[on as usize] = true);
        let way = |connection: u32| self.assignment.connections.ways[connection as usize];
        for ((blocks, firsts), gpu) in self.assignment.gpus.iter().zip(&self.firsts).zip(0u32..) {
            put!(text, "  <gpu id=\"", gpu, "\" i_chunks=\"", input, "\" o_chunks=\"", output);
            put!(text, "\" s_chunks=\"", plain.scratch, "\">\n");
            for ((block, &first), number) in blocks.iter().zip(firsts).zip(0u32..) {
                let send = block.sends.map(|connection| way(connection).1);
                let recv = block.receives.map(|connection| way(connection).0);
                // A relay uses one channel number for both of its connections.
                let connection = block.sends.or(block.receives);
                let chan = connection.map_or(0, |connection| self.assignment.channels[connection as usize]);
                put!(text, "    <tb id=\"", number, "\" send=\"", send, "\" recv=\"", recv);
                put!(text, "\" chan=\"", chan, "\">\n");
                for (&act, step) in block.acts.iter().zip(first..) {
                    let after = self.after.of(step);
                    let mut at = numbers[step as usize] - (after.len() as u32).saturating_sub(1);
                    let (last, others) = match after.split_last() {
                        Some((last, others)) => (Some(*last), others),
                        None => (None, &[][..]),
                    };
                    for &(block, on) in others {
                        put!(text, "      <step s=\"", at, "\" type=\"nop\" srcbuf=\"i\" srcoff=\"-1\" dstbuf=\"o\" ");
                        put!(text, "dstoff=\"-1\" cnt=\"0\" depid=\"", block, "\" deps=\"", numbers[on as usize]);
                        put!(text, "\" hasdep=\"0\"/>\n");
                        at += 1;
                    }
                    put!(text, "      <step s=\"", at, "\" ");
                    self.words(plain, schedule, act, text)?;
                    put!(text, " depid=\"", last.map(|(block, _)| block));
                    put!(text, "\" deps=\"", last.map(|(_, on)| numbers[on as usize]));
                    put!(text, if told[step as usize] { "\" hasdep=\"1\"/>\n" } else { "\" hasdep=\"0\"/>\n" });
                }
                put!(text, "    </tb>\n");
            }
            put!(text, "  </gpu>\n");
        }
        put!(text, "</algo>\n");
        Ok(())
    }

    /// Number of each step in its thread block, counting the steps that only wait.
    fn numbers(&self) -> Vec<u32> {
        let mut numbers = vec![0; self.acts.len()];
        for blocks in self.firsts.iter().zip(&self.assignment.gpus) {
            for (&first, block) in blocks.0.iter().zip(blocks.1) {
                let mut next = 0;
                for step in first..first + block.acts.len() as u32 {
                    next += (self.after.of(step).len() as u32).saturating_sub(1);
                    numbers[step as usize] = next;
                    next += 1;
                }
            }
        }
        numbers
    }

    /// Writes the type, chunks and count of a step.
    fn words(&self, plain: &Plain, schedule: &Schedule, act: Act, text: &mut String) -> Result<(), WriteError> {
        let (Act::Local(id) | Act::Send(id) | Act::Receive(id) | Act::Relay(id, _)) = act;
        let op = &plain.ops[id as usize];
        let call = schedule.header().call;
        let reduces = op.kind.reduces();
        let kind = match (act, reduces) {
            (Act::Local(_), true) => "re",
            (Act::Local(_), false) => "cpy",
            (Act::Send(_), _) => "s",
            (Act::Receive(_), true) => "rrc",
            (Act::Receive(_), false) => "r",
            (Act::Relay(..), true) => "rrcs",
            (Act::Relay(..), false) => "rcs",
        };
        // The source of a reducing receive is the receiver's; otherwise it is the sender's, for information only.
        let src = match act {
            Act::Receive(_) | Act::Relay(..) if op.kind == OpKind::PutReduceInput => {
                let input = ChunkRef { buffer: Buffer::Input, index: op.dst.from };
                let input = named_once(input, call.collective, call.buffers);
                plain.name(id, op.target(), Stretch { buffer: input.buffer, from: input.index, count: op.dst.count })?
            }
            Act::Receive(_) | Act::Relay(..) if reduces => plain.name(id, op.target(), op.dst)?,
            _ => plain.name(id, op.source(), op.src)?,
        };
        let dst = plain.name(id, op.target(), op.dst)?;
        put!(text, "type=\"", kind, "\" srcbuf=\"", src.0, "\" srcoff=\"", src.1);
        put!(text, "\" dstbuf=\"", dst.0, "\" dstoff=\"", dst.1, "\" cnt=\"", op.dst.count, "\"");
        Ok(())
    }
}
