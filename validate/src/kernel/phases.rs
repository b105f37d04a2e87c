//! What a tile may do before it must wait for somebody: phases.
//!
//! A phase begins with the first message received after messages were sent, or at the start. Between phases a block tells its
//! peers what it has written and waits for theirs, and a link has nothing to carry meanwhile. So a block takes several tiles
//! through a phase before any of them goes into the next: it tells and waits once for all of them, and what it stores
//! keeps its links busy much longer than telling and waiting take. Tiles are different words of the same chunks, with slots of
//! their own; several of them through their phases together are no more than one larger tile, but for values, which a thread
//! keeps for one tile only. Hence what a later phase needs of the caller's memory is read anew there ([`apart`]), and whoever
//! works out what may be overwritten when sees the last time that it is read. Where a phase needs what an earlier one computed,
//! tiles go one by one.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::body::Line;
use super::program::{Instruction, Place, Program, Value};

/// How a block takes its tiles through the phases of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tiles {
    /// Each through all phases before the next begins.
    OneByOne,
    /// Several through a phase before the first of them goes into the next.
    Together,
}

/// Where a value comes from, as far as it can come from there again.
#[derive(Clone, Copy)]
enum Origin {
    /// Read from the caller's memory.
    Loaded(Place),
    /// Stands for nothing.
    Token,
    /// Received or computed.
    Made,
}

/// The same program, each phase of which reads for itself what it needs of the caller's memory; nothing where a phase needs
/// what an earlier one received or computed, or what has been overwritten since it was read.
pub(super) fn apart(program: &Program) -> Option<Program> {
    let phases = phases_of(program);
    let mut origin: FxHashMap<Value, (usize, Origin)> = FxHashMap::default();
    let mut next = 0;
    for (instruction, &phase) in program.instructions.iter().zip(&phases) {
        if let Some((value, from)) = defined(*instruction) {
            origin.insert(value, (phase, from));
            next = next.max(value.0 + 1);
        }
    }
    // What each phase reads again, and the loads that are used in the phase they stand in.
    let mut again: FxHashMap<(Value, usize), Value> = FxHashMap::default();
    let mut reread: Vec<Vec<Instruction>> = vec![Vec::new(); phases.last().map_or(0, |last| last + 1)];
    let mut used_at_home: FxHashMap<Value, ()> = FxHashMap::default();
    for (i, (instruction, &phase)) in program.instructions.iter().zip(&phases).enumerate() {
        for value in used(*instruction).into_iter().flatten() {
            let &(home, from) = origin.get(&value)?;
            if home == phase {
                used_at_home.insert(value, ());
                continue;
            }
            if again.contains_key(&(value, phase)) {
                continue;
            }
            let fresh = Value(next);
            next += 1;
            let read = match from {
                Origin::Loaded(place) => {
                    let is_stored =
                        |one: &Instruction| matches!(*one, Instruction::Store { place: to, .. } if to == place);
                    if program.instructions.iter().take(i).any(is_stored) {
                        return None;
                    }
                    Instruction::Load { value: fresh, place }
                }
                Origin::Token => Instruction::Token { value: fresh },
                Origin::Made => return None,
            };
            again.insert((value, phase), fresh);
            reread.get_mut(phase)?.push(read);
        }
    }
    let mut written = Program::default();
    let mut begun = None;
    for (instruction, &phase) in program.instructions.iter().zip(&phases) {
        let is_idle = match defined(*instruction) {
            Some((_, Origin::Made)) | None => false,
            Some((value, _)) => !used_at_home.contains_key(&value),
        };
        if !is_idle {
            written.instructions.push(renamed(*instruction, |value| again.get(&(value, phase)).copied()));
        }
        // A later phase begins with a message received: what is read for it comes after what is waited for.
        if phase > 0 && begun != Some(phase) {
            written.instructions.append(reread.get_mut(phase)?);
        }
        begun = Some(phase);
    }
    Some(written)
}

/// Whether a rank sums up what it receives and sends none of it on: while a block does that for many tiles its links have nothing
/// to carry, so tiles go one by one, and blocks that are elsewhere fill the gap (reduce_scatter of 256 MiB on 4 × H200: 597 µs so,
/// 640 with tiles together, validate/runs/2026-11-21-4xh200).
pub(super) fn only_sums(program: &Program) -> bool {
    let after = program.instructions.iter().skip_while(|one| !matches!(one, Instruction::Receive { .. }));
    let (mut sums, mut sends) = (false, false);
    for instruction in after {
        sums |= matches!(instruction, Instruction::Reduce { .. });
        sends |= matches!(instruction, Instruction::Send { .. });
    }
    sums && !sends
}

/// The phase of every instruction.
fn phases_of(program: &Program) -> Vec<usize> {
    let (mut phase, mut receives) = (0, false);
    let number = |instruction: &Instruction| {
        match instruction {
            Instruction::Receive { .. } if !receives => {
                phase += 1;
                receives = true;
            }
            Instruction::Send { .. } => receives = false,
            _ => {}
        }
        phase
    };
    program.instructions.iter().map(number).collect()
}

fn defined(instruction: Instruction) -> Option<(Value, Origin)> {
    match instruction {
        Instruction::Load { value, place } => Some((value, Origin::Loaded(place))),
        Instruction::Token { value } => Some((value, Origin::Token)),
        Instruction::Receive { value, .. } | Instruction::Reduce { value, .. } => Some((value, Origin::Made)),
        Instruction::Send { .. } | Instruction::Store { .. } => None,
    }
}

fn used(instruction: Instruction) -> [Option<Value>; 2] {
    match instruction {
        Instruction::Send { value, .. } | Instruction::Store { value, .. } => [Some(value), None],
        Instruction::Reduce { left, right, .. } => [Some(left), Some(right)],
        _ => [None, None],
    }
}

fn renamed(instruction: Instruction, name: impl Fn(Value) -> Option<Value>) -> Instruction {
    let new = |value: Value| name(value).unwrap_or(value);
    match instruction {
        Instruction::Send { message, value } => Instruction::Send { message, value: new(value) },
        Instruction::Store { place, value } => Instruction::Store { place, value: new(value) },
        Instruction::Reduce { value, left, right } => Instruction::Reduce { value, left: new(left), right: new(right) },
        other => other,
    }
}

/// Lines in order: what every tile does, and between it what a block does once, flushes and waits.
pub(super) fn stretches(lines: &[Line], tiles: Tiles) -> Vec<Stretch> {
    if tiles == Tiles::OneByOne {
        return vec![Stretch::EachTile(0..lines.len())];
    }
    let mut found: Vec<Stretch> = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        match (line, found.last_mut()) {
            (Line::Flush { .. } | Line::Wait { .. }, _) => found.push(Stretch::Once(i)),
            (_, Some(Stretch::EachTile(range))) => range.end = i + 1,
            _ => found.push(Stretch::EachTile(i..i + 1)),
        }
    }
    found
}

/// A part of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stretch {
    /// Lines that every tile runs.
    EachTile(Range<usize>),
    /// A line that the block runs once for all tiles that are in the phase.
    Once(usize),
}
