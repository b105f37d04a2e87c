//! Programs without rank numbers: lines of code that refer to operands by index. Ranks and rounds with equal lines
//! share one function, and table rows hold their different operands.

use rustc_hash::FxHashMap;

use super::exchange::MessageExchange;
use super::local_operations::Moves;
use super::program::{Instruction, RankProgram, UserChunk, Value};
use super::{Carrier, KernelError};

/// A line of generated code. Operands are indexed in the order in which the lines use them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum CodeLine {
    /// Reads a chunk of the caller's buffers. Operands: address and bytes.
    Load { value: Value, operand: u32 },
    /// Writes a chunk of the caller's buffers, on this rank or a peer. Operands: address and bytes.
    Store { value: Value, operand: u32 },
    /// Writes to a slot of a peer. Operands: address and, if message sizes differ, number of words.
    Send { value: Value, operand: u32 },
    /// Reads a slot of this rank. The operands are those of `Send`.
    Receive { value: Value, operand: u32 },
    /// Reduces two values into a third.
    Reduce { value: Value, left: Value, right: Value },
    /// Defines a value without contents, which only represents progress.
    Token { value: Value },
    /// Notifies `count` peers (one operand each) that all previous writes are complete. `flush`: index of the
    /// notification.
    Flush { flush: u32, operand: u32, count: u32 },
    /// Waits for `count` peers (one operand each: the rank and its flush).
    Wait { operand: u32, count: u32 },
}

/// Meaning of an entry of the operand table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    /// Address of a chunk of the caller's buffers on a rank.
    User { rank: u32, place: UserChunk },
    /// Length in bytes of a chunk of the caller's buffers.
    Bytes { chunk: UserChunk },
    /// Address of the receiver's slot for a message.
    Slot { message: u32 },
    /// Number of words of a message.
    Words { message: u32 },
    /// Rank that a flush notifies.
    Peer { rank: u32 },
    /// Rank for whose flush a wait waits, and the index of the flush.
    Flushed { rank: u32, flush: u32 },
}

/// Code of one rank in a round: lines, with the operands that they refer to.
#[derive(Clone, Debug, Default)]
pub(super) struct Body {
    pub(super) lines: Vec<CodeLine>,
    pub(super) operands: Vec<Operand>,
    /// Number of flushes among the lines of the body.
    pub(super) flushes: u32,
}

impl Body {
    fn operand(&mut self, operand: Operand) -> u32 {
        self.operands.push(operand);
        self.operands.len() as u32 - 1
    }

    fn user(&mut self, rank: u32, place: UserChunk) -> u32 {
        let operand = self.operand(Operand::User { rank, place });
        self.operand(Operand::Bytes { chunk: place });
        operand
    }

    fn slot(&mut self, message: u32, sizes: Sizes) -> u32 {
        let operand = self.operand(Operand::Slot { message });
        if sizes == Sizes::Mixed {
            self.operand(Operand::Words { message });
        }
        operand
    }
}

/// Equality of the message sizes of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sizes {
    /// All messages have the same number of words.
    Uniform,
    /// Each message has its own number of words.
    Mixed,
}

/// Returns the body of every rank in a round.
///
/// # Errors
/// [`KernelError::Deadlock`] for a message that no rank sends.
pub(super) fn bodies(
    moves: &Moves,
    programs: &[RankProgram],
    exchange: &MessageExchange,
    carrier: Carrier,
    sizes: Sizes,
) -> Result<Vec<Body>, KernelError> {
    if carrier != Carrier::Flags {
        let packets = |(rank, program): (usize, &RankProgram)| packets(program, rank as u32, sizes);
        return Ok(programs.iter().enumerate().map(packets).collect());
    }
    // Index of the flush that follows each message, for all ranks. It is computed before waits are generated.
    let mut flushed = FxHashMap::default();
    for program in programs {
        let (mut flush, mut pending) = (0, false);
        for instruction in &program.instructions {
            match *instruction {
                Instruction::Send { message, .. } => {
                    flushed.insert(message, flush);
                    pending = true;
                }
                Instruction::Receive { .. } if pending => {
                    flush += 1;
                    pending = false;
                }
                _ => {}
            }
        }
    }
    programs
        .iter()
        .enumerate()
        .map(|(rank, program)| flags(moves, program, rank as u32, exchange, &flushed, sizes))
        .collect()
}

/// Body for message formats that contain arrival flags (packets, lines). Loads come first, and all receives between two
/// sends are polled together.
fn packets(program: &RankProgram, rank: u32, sizes: Sizes) -> Body {
    let mut body = Body::default();
    for instruction in &program.instructions {
        if let Instruction::Load { value, place } = *instruction {
            let operand = body.user(rank, place);
            body.lines.push(CodeLine::Load { value, operand });
        }
    }
    // Receives since the last send are moved in front of the operations that use them.
    let mut receive_index = body.lines.len();
    for instruction in &program.instructions {
        match *instruction {
            Instruction::Load { .. } => {}
            Instruction::Send { message, value } => {
                let operand = body.slot(message, sizes);
                body.lines.push(CodeLine::Send { value, operand });
                receive_index = body.lines.len();
            }
            Instruction::Receive { message, value } => {
                let operand = body.slot(message, sizes);
                body.lines.insert(receive_index, CodeLine::Receive { value, operand });
                receive_index += 1;
            }
            Instruction::Reduce { value, left, right } => body.lines.push(CodeLine::Reduce { value, left, right }),
            Instruction::Store { place, value } => {
                let operand = body.user(rank, place);
                body.lines.push(CodeLine::Store { value, operand });
            }
            Instruction::Token { value } => body.lines.push(CodeLine::Token { value }),
        }
    }
    body
}

fn flags(
    moves: &Moves,
    program: &RankProgram,
    rank: u32,
    exchange: &MessageExchange,
    flushed: &FxHashMap<u32, u32>,
    sizes: Sizes,
) -> Result<Body, KernelError> {
    let mut body = Body::default();
    let mut pending: Vec<u32> = Vec::new();
    // Number of flushes of every rank for which the body has already waited.
    let mut waited: FxHashMap<u32, u32> = FxHashMap::default();
    let is_used = |value: Value| {
        program.instructions.iter().any(|candidate| match *candidate {
            Instruction::Send { value: used, .. } | Instruction::Store { value: used, .. } => used == value,
            Instruction::Reduce { left, right, .. } => left == value || right == value,
            _ => false,
        })
    };
    for (i, instruction) in program.instructions.iter().enumerate() {
        match *instruction {
            Instruction::Load { value, place } => {
                let operand = body.user(rank, place);
                body.lines.push(CodeLine::Load { value, operand });
            }
            Instruction::Send { message, value } => {
                let to = moves.messages[message as usize].to;
                match exchange.direct[message as usize] {
                    Some(place) => {
                        let operand = body.user(to, place);
                        body.lines.push(CodeLine::Store { value, operand });
                    }
                    None => {
                        let operand = body.slot(message, sizes);
                        body.lines.push(CodeLine::Send { value, operand });
                    }
                }
                if !pending.contains(&to) {
                    pending.push(to);
                }
            }
            Instruction::Receive { message, value } => {
                flush(&mut body, &mut pending);
                let flush = *flushed.get(&message).ok_or(KernelError::Deadlock)?;
                if waited.get(&moves.messages[message as usize].from).is_none_or(|&waited| waited <= flush) {
                    wait(&mut body, moves, &program.instructions[i..], flushed, &mut waited)?;
                }
                match exchange.direct[message as usize] {
                    Some(place) if is_used(value) => {
                        let operand = body.user(rank, place);
                        body.lines.push(CodeLine::Load { value, operand });
                    }
                    Some(_) => {}
                    None => {
                        let operand = body.slot(message, sizes);
                        body.lines.push(CodeLine::Receive { value, operand });
                    }
                }
            }
            Instruction::Reduce { value, left, right } => body.lines.push(CodeLine::Reduce { value, left, right }),
            Instruction::Store { place, value } => {
                let operand = body.user(rank, place);
                body.lines.push(CodeLine::Store { value, operand });
            }
            Instruction::Token { value } => body.lines.push(CodeLine::Token { value }),
        }
    }
    flush(&mut body, &mut pending);
    Ok(body)
}

fn flush(body: &mut Body, pending: &mut Vec<u32>) {
    let count = pending.len() as u32;
    let operand = body.operands.len() as u32;
    for rank in pending.drain(..) {
        body.operand(Operand::Peer { rank });
    }
    if count > 0 {
        body.lines.push(CodeLine::Flush { flush: body.flushes, operand, count });
        body.flushes += 1;
    }
}

/// Adds a wait for all messages that are received before the next send.
fn wait(
    body: &mut Body,
    moves: &Moves,
    remaining: &[Instruction],
    flushed: &FxHashMap<u32, u32>,
    waited: &mut FxHashMap<u32, u32>,
) -> Result<(), KernelError> {
    let mut awaited: Vec<(u32, u32)> = Vec::new();
    for instruction in remaining.iter().take_while(|entry| !matches!(entry, Instruction::Send { .. })) {
        let Instruction::Receive { message, .. } = *instruction else { continue };
        let (from, flush) =
            (moves.messages[message as usize].from, *flushed.get(&message).ok_or(KernelError::Deadlock)?);
        if waited.get(&from).is_some_and(|&waited| waited > flush) {
            continue;
        }
        waited.insert(from, flush + 1);
        match awaited.iter_mut().find(|entry| entry.0 == from) {
            Some(entry) => entry.1 = flush,
            None => awaited.push((from, flush)),
        }
    }
    let (operand, count) = (body.operands.len() as u32, awaited.len() as u32);
    for (rank, flush) in awaited {
        body.operand(Operand::Flushed { rank, flush });
    }
    body.lines.push(CodeLine::Wait { operand, count });
    Ok(())
}
