//! Writes schedules as MSCCL's algorithm files.
//!
//! Every transfer becomes a send and a receive, in the thread blocks of [`assign`](super::assign). What an operation waits
//! for must be something that its rank takes part in, or, where the memory it writes must not be written yet, something
//! that its target takes part in: MSCCL's thread blocks wait for others of their GPU only.
//!
//! A schedule is for one size, so the file is for that size. Gets become sends by the other rank. One-sided protocols are
//! written as `Simple`, for MSCCL has FIFOs only. Unless relayed, what is received goes through memory.

use std::fmt::Write;

use quick_xml::escape::escape;

use super::assign::{Act, Assignment};
use fabricast_topologies::Bytes;

use crate::schedule::format::{Format, WriteError};
use crate::schedule::order::Graph;
use crate::schedule::plain::{Plain, Switches, collective_name, named_once};
use crate::schedule::precedence::{are_before, waits};
use crate::schedule::units::Stretch;
use crate::schedule::{Buffer, BufferUse, ChunkRef, OpId, OpKind, Protocol, Schedule};

/// Writes a schedule as an MSCCL file, for exactly its size.
///
/// # Errors
/// [`WriteError`]: too large, chunks that are not multiples of a common one, operations that MSCCL has no steps for.
pub fn to_xml(schedule: &Schedule) -> Result<String, WriteError> {
    let bytes = schedule.header().call.bytes;
    to_xml_for(schedule, (bytes, bytes))
}

/// The same, for sizes from the first to the last: chunks are parts of whatever size there is.
///
/// # Errors
/// [`WriteError`], as [`to_xml`].
pub fn to_xml_for(schedule: &Schedule, sizes: (Bytes, Bytes)) -> Result<String, WriteError> {
    let mut plain = Plain::new(schedule, "MSCCL", Switches::Unknown)?;
    plain.see_through_waits()?;
    let ranks = schedule.header().call.ranks;
    let relaying = Steps::new(&plain, Assignment::new(&plain, ranks, true)?)?;
    let steps = match relaying.check(&plain)? {
        Checked::Ordered => relaying,
        // What thread blocks do one after the other would wait for itself.
        Checked::Circle(_) => {
            let steps = Steps::new(&plain, Assignment::new(&plain, ranks, false)?)?;
            if let Checked::Circle(operation) = steps.check(&plain)? {
                return Err(WriteError::Deadlock { operation });
            }
            steps
        }
    };
    steps.text(schedule, &plain, sizes)
}

/// No place.
const NONE: u32 = u32::MAX;

/// Steps in one numbering, with what each waits for.
struct Steps {
    assignment: Assignment,
    /// First step of each thread block, GPU by GPU.
    firsts: Vec<Vec<u32>>,
    acts: Vec<Act>,
    /// The thread block of each step.
    block_of: Vec<u32>,
    /// For each operation, the step that sends it or does it, and the one that receives it.
    made_at: Vec<u32>,
    received_at: Vec<u32>,
    /// The last steps of other thread blocks of the GPU that each step waits for, by thread block.
    after: Vec<Vec<(u32, u32)>>,
    /// Waits that no thread block can be told: an operation and what it waits for.
    untold: Vec<(u32, u32)>,
}

enum Checked {
    Ordered,
    Circle(OpId),
}

impl Steps {
    fn new(plain: &Plain, assignment: Assignment) -> Result<Self, WriteError> {
        let (mut firsts, mut acts, mut block_of) = (Vec::new(), Vec::new(), Vec::new());
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
        let after = vec![Vec::new(); acts.len()];
        let mut steps = Self { assignment, firsts, acts, block_of, made_at, received_at, after, untold: Vec::new() };
        steps.find_waits(plain);
        Ok(steps)
    }

    /// The step at which a rank takes part in an operation, and is done with it.
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
        for (id, op) in plain.ops.iter().enumerate().filter(|(_, op)| op.kind.moves_data()) {
            for &on in &op.after {
                let told = if let Some(part) = self.part(plain, on, op.source()) {
                    Some((self.made_at[id], part))
                } else if op.crosses() {
                    self.part(plain, on, op.target()).map(|part| (self.received_at[id], part))
                } else {
                    None
                };
                match told {
                    None => self.untold.push((id as u32, on)),
                    Some((step, part)) => self.wait(step, part),
                }
            }
        }
        self.after.iter_mut().for_each(|after| after.sort_unstable());
    }

    /// A step waits for another of its GPU; of the same thread block it does anyway.
    fn wait(&mut self, step: u32, on: u32) {
        let (own, other) = (self.block_of[step as usize], self.block_of[on as usize]);
        if own == other {
            return;
        }
        let after = &mut self.after[step as usize];
        match after.iter_mut().find(|(block, _)| *block == other) {
            Some((_, last)) => *last = (*last).max(on),
            None => after.push((other, on)),
        }
    }

    /// Whether thread blocks that do their steps in turn do everything in order.
    fn check(&self, plain: &Plain) -> Result<Checked, WriteError> {
        let mut starts = vec![false; self.acts.len() + 1];
        self.firsts.iter().flatten().for_each(|&first| starts[first as usize] = true);
        let schedule = waits((0..self.acts.len() as u32).map(|step| {
            let others = self.after[step as usize].iter().map(|(_, on)| *on);
            let before = (!starts[step as usize]).then(|| step - 1);
            let sent = self.acts[step as usize].received().map(|op| self.made_at[op as usize]);
            others.chain(before).chain(sent)
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

    fn text(&self, schedule: &Schedule, plain: &Plain, sizes: (Bytes, Bytes)) -> Result<String, WriteError> {
        let (header, call) = (schedule.header(), schedule.header().call);
        let channels = self.assignment.channels.values().map(|channel| channel + 1).max().unwrap_or(1);
        let proto = match Format::MscclXml.protocol(header.protocol) {
            Protocol::Ll => "LL",
            Protocol::Ll128 => "LL128",
            _ => "Simple",
        };
        let in_place = call.buffers == BufferUse::InPlace;
        let (name, coll) = (escape(header.name.as_str()), collective_name(call.collective));
        let (chunks, ranks) = (plain.places.chunks, call.ranks);
        let (first, last) = (sizes.0.0, sizes.1.0);
        let root = if call.root.0 == 0 { String::new() } else { format!(" root=\"{}\"", call.root.0) };
        let (inside, outside) = (u8::from(in_place), u8::from(!in_place));
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "<algo name=\"{name}\" proto=\"{proto}\" nchannels=\"{channels}\" nchunksperloop=\"{chunks}\" \
             ngpus=\"{ranks}\" coll=\"{coll}\" inplace=\"{inside}\" outofplace=\"{outside}\" minBytes=\"{first}\" \
             maxBytes=\"{last}\"{root}>"
        );
        let (input, output) = plain.places.per_gpu;
        let numbers = self.numbers();
        let mut told = vec![false; self.acts.len()];
        self.after.iter().flatten().for_each(|&(_, on)| told[on as usize] = true);
        for (gpu, blocks) in self.assignment.gpus.iter().enumerate() {
            let _ = writeln!(
                text,
                "  <gpu id=\"{gpu}\" i_chunks=\"{input}\" o_chunks=\"{output}\" s_chunks=\"{}\">",
                plain.scratch
            );
            for (number, block) in blocks.iter().enumerate() {
                let send = block.sends.map_or(-1, |(_, to, _)| i64::from(to));
                let recv = block.receives.map_or(-1, |(from, ..)| i64::from(from));
                // A relay has one number for both its connections.
                let connection = block.sends.or(block.receives);
                let chan = connection.and_then(|connection| self.assignment.channels.get(&connection)).unwrap_or(&0);
                let _ = writeln!(text, "    <tb id=\"{number}\" send=\"{send}\" recv=\"{recv}\" chan=\"{chan}\">");
                for step in (0..block.acts.len() as u32).map(|i| self.firsts[gpu][number] + i) {
                    let after = &self.after[step as usize];
                    let mut at = numbers[step as usize] - (after.len() as u32).saturating_sub(1);
                    let (last, others) = match after.split_last() {
                        Some((last, others)) => (Some(*last), others),
                        None => (None, &[][..]),
                    };
                    for &(block, on) in others {
                        let _ = writeln!(
                            text,
                            "      <step s=\"{at}\" type=\"nop\" srcbuf=\"i\" srcoff=\"-1\" dstbuf=\"o\" dstoff=\"-1\" \
                             cnt=\"0\" depid=\"{block}\" deps=\"{}\" hasdep=\"0\"/>",
                            numbers[on as usize]
                        );
                        at += 1;
                    }
                    let _ = write!(text, "      <step s=\"{at}\" ");
                    self.words(plain, schedule, self.acts[step as usize], &mut text)?;
                    let (block, on) =
                        last.map_or((-1, -1), |(block, on)| (i64::from(block), i64::from(numbers[on as usize])));
                    let hasdep = u8::from(told[step as usize]);
                    let _ = writeln!(text, " depid=\"{block}\" deps=\"{on}\" hasdep=\"{hasdep}\"/>");
                }
                text.push_str("    </tb>\n");
            }
            text.push_str("  </gpu>\n");
        }
        text.push_str("</algo>\n");
        Ok(text)
    }

    /// The number of each step in its thread block, steps that only wait counted.
    fn numbers(&self) -> Vec<u32> {
        let mut numbers = vec![0; self.acts.len()];
        for blocks in self.firsts.iter().zip(&self.assignment.gpus) {
            for (&first, block) in blocks.0.iter().zip(blocks.1) {
                let mut next = 0;
                for step in first..first + block.acts.len() as u32 {
                    next += (self.after[step as usize].len() as u32).saturating_sub(1);
                    numbers[step as usize] = next;
                    next += 1;
                }
            }
        }
        numbers
    }

    /// Writes type, chunks and count of a step.
    fn words(&self, plain: &Plain, schedule: &Schedule, act: Act, text: &mut String) -> Result<(), WriteError> {
        let (Act::Local(id) | Act::Send(id) | Act::Receive(id) | Act::Relay(id, _)) = act;
        let op = &plain.ops[id as usize];
        let call = schedule.header().call;
        let reduces = op.kind.reduces();
        let kind = match act {
            Act::Local(_) => {
                if reduces {
                    "re"
                } else {
                    "cpy"
                }
            }
            Act::Send(_) => "s",
            Act::Receive(_) => {
                if reduces {
                    "rrc"
                } else {
                    "r"
                }
            }
            Act::Relay(..) => {
                if reduces {
                    "rrcs"
                } else {
                    "rcs"
                }
            }
        };
        // What a receive adds is the receiver's; what it does not add to is the sender's, for whoever reads the file.
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
        let _ = write!(
            text,
            "type=\"{kind}\" srcbuf=\"{}\" srcoff=\"{}\" dstbuf=\"{}\" dstoff=\"{}\" cnt=\"{}\"",
            src.0, src.1, dst.0, dst.1, op.dst.count
        );
        Ok(())
    }
}
