//! Operations that stand in line: of each line one flows at a time, the first that came.
//!
//! Who flows next is decided when all events of an instant are handled, so that their order does not matter.

use std::collections::VecDeque;

use fabricast_topologies::Picos;

use super::costs::Spent;
use super::{Standing, Workload};

/// When an operation came, where its run stands, which of the run it is: who is least goes first.
type Ticket = (Picos, u32, u32);

/// One line.
#[derive(Clone, Debug, Default)]
struct Line {
    /// Who waits, with their slots, in order.
    waiting: VecDeque<(Ticket, u32)>,
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
}

impl Lines {
    pub(super) fn new(workload: &Workload) -> Self {
        Self { lines: vec![Line::default(); workload.line_count()], noted: Vec::new() }
    }

    /// An operation comes.
    pub(super) fn join(&mut self, standing: Standing, (now, index): (Picos, u32), slot: u32) {
        let Some(line) = self.lines.get_mut(standing.line as usize) else { return };
        let ticket = (now, standing.place, index);
        // (Of those that wait only some that came at this instant may be behind.)
        let behind = line.waiting.iter().rev().take_while(|(other, _)| *other > ticket).count();
        line.waiting.insert(line.waiting.len() - behind, (ticket, slot));
        note(line, standing.line, &mut self.noted);
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
            if let Some((_, slot)) = line.waiting.pop_front() {
                line.flows = true;
                let held = line.last.filter(|last| last.0 == now).map(|last| last.1);
                return Some((slot, held));
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
