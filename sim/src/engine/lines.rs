//! Operations that stand in line: of each line one flows at a time, the first that came.
//!
//! Who flows next is decided when all events of an instant are handled, so that their order does not matter. Of operations that
//! come at one instant the one of the lowest level goes first, so that the order does not depend on how a program is divided
//! into runs either.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::VecDeque;

use fabricast_topologies::Picos;

use super::costs::Spent;
use super::levels::Levels;
use super::{Standing, Workload};

/// An operation that waits in a line.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    came: Picos,
    /// Place of its run in the line.
    place: u32,
    run: u32,
    index: u32,
    slot: u32,
}

/// One line.
#[derive(Clone, Debug, Default)]
struct Line {
    /// Who waits, in order.
    waiting: VecDeque<Ticket>,
    /// Whether one flows.
    flows: bool,
    /// When the last one was done, and what its chain had cost by then.
    last: Option<(Picos, Spent)>,
    /// Whether it is among those to look at.
    is_noted: bool,
}

/// All lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    lines: Vec<Line>,
    /// Lines at which something happened at this instant.
    noted: Vec<u32>,
    /// Computed when several come at one instant for the first time.
    levels: OnceCell<Levels>,
}

impl Lines {
    pub(super) fn new(workload: &Workload) -> Self {
        Self { lines: vec![Line::default(); workload.line_count()], noted: Vec::new(), levels: OnceCell::new() }
    }

    /// Operation `index` of a run comes.
    pub(super) fn join(
        &mut self,
        workload: &Workload,
        standing: Standing,
        now: Picos,
        (run, index): (u32, u32),
        slot: u32,
    ) {
        let Self { lines, noted, levels } = self;
        let Some(line) = lines.get_mut(standing.line as usize) else { return };
        let ticket = Ticket { came: now, place: standing.place, run, index, slot };
        let level = |one: &Ticket| levels.get_or_init(|| Levels::of(workload)).at(one.run, one.index);
        let order = |a: &Ticket, b: &Ticket| {
            a.came.cmp(&b.came).then_with(|| (level(a), a.place, a.index).cmp(&(level(b), b.place, b.index)))
        };
        // (Of those that wait only some that came at this instant may be behind.)
        let behind = line.waiting.iter().rev().take_while(|other| order(other, &ticket) == Ordering::Greater).count();
        line.waiting.insert(line.waiting.len() - behind, ticket);
        note(line, standing.line, noted);
    }

    /// The one that flows is done.
    pub(super) fn leave(&mut self, standing: Standing, now: Picos, spent: Spent) {
        let Some(line) = self.lines.get_mut(standing.line as usize) else { return };
        (line.flows, line.last) = (false, Some((now, spent)));
        note(line, standing.line, &mut self.noted);
    }

    /// One that may flow now: its slot, and what the chain of the one before it had cost if that ended this instant.
    pub(super) fn next(&mut self, now: Picos) -> Option<(u32, Option<Spent>)> {
        while let Some(number) = self.noted.pop() {
            let Some(line) = self.lines.get_mut(number as usize) else { continue };
            line.is_noted = false;
            if line.flows {
                continue;
            }
            if let Some(first) = line.waiting.pop_front() {
                line.flows = true;
                let held = line.last.filter(|last| last.0 == now).map(|last| last.1);
                return Some((first.slot, held));
            }
        }
        None
    }
}

fn note(line: &mut Line, number: u32, noted: &mut Vec<u32>) {
    if !line.is_noted {
        line.is_noted = true;
        noted.push(number);
    }
}
