//! Phases: the work on a tile between two waits.
//!
//! A phase begins at the start of a program, or with the first receive after a send. Between phases, a block notifies
//! its peers of its writes and waits for theirs, while links are idle. A block therefore runs one phase for several
//! tiles before it runs the next phase for the first of them. It notifies and waits once for all of these tiles, and
//! its stores occupy the links much longer than the notification and the wait.
//!
//! Tiles are different words of the same chunks, with separate slots, so a group of tiles behaves like one larger tile.
//! Values are an exception, because a thread holds them for one tile only. If a later phase needs memory of the caller,
//! that phase reads the memory again ([`with_phase_local_loads`]), and the analysis of overwrites uses the last read.
//! If a phase needs a value that an earlier phase computed, tiles run one by one.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::body::CodeLine;
use super::program::{Instruction, RankProgram, UserChunk, Value};

/// Order in which a block processes tiles and phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tiles {
    /// Each tile runs through all phases before the next tile begins.
    OneByOne,
    /// Several tiles run through a phase before the first of them begins the next phase.
    Grouped,
}

/// Origin of a value, which determines if a later phase can obtain the value again.
#[derive(Clone, Copy)]
enum ValueOrigin {
    /// Read from a chunk of the caller's buffers.
    Loaded(UserChunk),
    /// Token without contents.
    Token,
    /// Received from a peer, or the result of a reduction.
    Computed,
}

/// Rewrites a program so that each phase itself reads the memory of the caller that it needs. `None` if a phase needs a
/// value that an earlier phase received or computed, or memory that was overwritten since an earlier phase read it.
pub(super) fn with_phase_local_loads(program: &RankProgram) -> Option<RankProgram> {
    let phases = assign_phases(program);
    let mut origin: FxHashMap<Value, (usize, ValueOrigin)> = FxHashMap::default();
    let mut next = 0;
    for (instruction, &phase) in program.instructions.iter().zip(&phases) {
        if let Some((value, from)) = defined(*instruction) {
            origin.insert(value, (phase, from));
            next = next.max(value.0 + 1);
        }
    }
    // Values that each phase reads again, and loads whose value is used in their own phase.
    let mut repeated: FxHashMap<(Value, usize), Value> = FxHashMap::default();
    let mut reread: Vec<Vec<Instruction>> = vec![Vec::new(); phases.last().map_or(0, |last| last + 1)];
    let mut used_in_own_phase: FxHashMap<Value, ()> = FxHashMap::default();
    for (i, (instruction, &phase)) in program.instructions.iter().zip(&phases).enumerate() {
        for value in used(*instruction).into_iter().flatten() {
            let &(load_phase, from) = origin.get(&value)?;
            if load_phase == phase {
                used_in_own_phase.insert(value, ());
                continue;
            }
            if repeated.contains_key(&(value, phase)) {
                continue;
            }
            let fresh = Value(next);
            next += 1;
            let read = match from {
                ValueOrigin::Loaded(place) => {
                    let is_stored = |candidate: &Instruction| matches!(*candidate, Instruction::Store { place: to, .. } if to == place);
                    if program.instructions.iter().take(i).any(is_stored) {
                        return None;
                    }
                    Instruction::Load { value: fresh, place }
                }
                ValueOrigin::Token => Instruction::Token { value: fresh },
                ValueOrigin::Computed => return None,
            };
            repeated.insert((value, phase), fresh);
            reread.get_mut(phase)?.push(read);
        }
    }
    let mut written = RankProgram::default();
    let mut last_phase = None;
    for (instruction, &phase) in program.instructions.iter().zip(&phases) {
        let is_idle = match defined(*instruction) {
            Some((_, ValueOrigin::Computed)) | None => false,
            Some((value, _)) => !used_in_own_phase.contains_key(&value),
        };
        if !is_idle {
            written.instructions.push(renamed(*instruction, |value| repeated.get(&(value, phase)).copied()));
        }
        // A later phase begins with a receive; its repeated reads come after the wait for this receive.
        if phase > 0 && last_phase != Some(phase) {
            written.instructions.append(reread.get_mut(phase)?);
        }
        last_phase = Some(phase);
    }
    Some(written)
}

/// Returns true if a rank reduces the data that it receives and forwards none of it. The links of a block are idle
/// during the reduction. If tiles run one by one, other blocks use the links in the meantime (reduce_scatter of 256 MiB
/// on 4 × H200: 597 µs, compared with 640 µs for grouped tiles, validate/runs/2026-11-21-4xh200).
pub(super) fn reduces_without_forwarding(program: &RankProgram) -> bool {
    let after = program.instructions.iter().skip_while(|one| !matches!(one, Instruction::Receive { .. }));
    let (mut sums, mut sends) = (false, false);
    for instruction in after {
        sums |= matches!(instruction, Instruction::Reduce { .. });
        sends |= matches!(instruction, Instruction::Send { .. });
    }
    sums && !sends
}

/// Returns the index of the phase of every instruction, from 0.
fn assign_phases(program: &RankProgram) -> Vec<usize> {
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

fn defined(instruction: Instruction) -> Option<(Value, ValueOrigin)> {
    match instruction {
        Instruction::Load { value, place } => Some((value, ValueOrigin::Loaded(place))),
        Instruction::Token { value } => Some((value, ValueOrigin::Token)),
        Instruction::Receive { value, .. } | Instruction::Reduce { value, .. } => Some((value, ValueOrigin::Computed)),
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

/// Divides lines into ranges that run for every tile, and flushes and waits, which a block runs once for all tiles.
pub(super) fn line_ranges(lines: &[CodeLine], tiles: Tiles) -> Vec<LineRange> {
    if tiles == Tiles::OneByOne {
        return vec![LineRange::EachTile(0..lines.len())];
    }
    let mut ranges: Vec<LineRange> = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        match (line, ranges.last_mut()) {
            (CodeLine::Flush { .. } | CodeLine::Wait { .. }, _) => ranges.push(LineRange::Once(i)),
            (_, Some(LineRange::EachTile(range))) => range.end = i + 1,
            _ => ranges.push(LineRange::EachTile(i..i + 1)),
        }
    }
    ranges
}

/// Consecutive lines of a body that run for the same tiles, by line index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LineRange {
    /// Lines that the block runs for every tile.
    EachTile(Range<usize>),
    /// A line that the block runs once for all tiles in the phase.
    Once(usize),
}
