//! Operations that stand in line: of each line one flows at a time.
//!
//! The order is that of a program, which is fixed before anything happens: programs say which operation waits for which, and the
//! rest is read off a run in which every rank starts on time ([`Pace::late`]). There who comes first flows first; of operations that
//! come at one instant that of the lowest level ([`levels`]), so that the order does not depend on how a program is
//! divided into runs. Since lateness changes no order, what comes later by a time delays what stands behind it by no more than that.
//!
//! Who flows next is decided when all events of an instant are handled, so that the order of these does not matter.
//!
//! [`Pace::late`]: super::Pace::late

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::VecDeque;

use fabricast_topologies::Picos;

use super::Workload;
use super::by_operation::ByOperation;
use super::costs::Spent;
use super::levels::levels;

/// An operation that waits in a line.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    came: Picos,
    /// Place of its run in the line.
    place: u32,
    /// Its run, and its number there.
    operation: (u32, u32),
    slot: u32,
}

/// One line.
#[derive(Clone, Debug, Default)]
struct Line {
    /// Who waits, in order.
    waiting: VecDeque<Ticket>,
    /// Number of operations that have flowed, or flow.
    passed: u32,
    /// Whether one flows.
    flows: bool,
    /// When the last one was done, and what its chain had cost by then.
    last: Option<(Picos, Spent)>,
    /// Whether it is among those to look at.
    is_noted: bool,
}

/// By operation: the number of others that passed its line before.
type Positions = ByOperation;

/// Who goes first.
#[derive(Clone, Debug)]
enum Rule {
    /// Who comes first. Levels are computed when several come at one instant for the first time.
    FirstCome { levels: OnceCell<ByOperation>, seen: Option<Positions> },
    /// An order that is known.
    Known(Positions),
}

/// All lines.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    lines: Vec<Line>,
    /// Lines at which something happened at this instant.
    noted: Vec<u32>,
    rule: Rule,
}

impl Lines {
    /// Lines where who comes first goes first.
    pub(super) fn first_come(workload: &Workload) -> Self {
        Self::with(workload, Rule::FirstCome { levels: OnceCell::new(), seen: None })
    }

    /// Such lines whose order is recorded for [`Lines::repeated`].
    pub(super) fn recorded(workload: &Workload) -> Self {
        let seen = Some(Positions::new(workload, 0));
        Self::with(workload, Rule::FirstCome { levels: OnceCell::new(), seen })
    }

    /// Lines in the order in which these were passed, where it was recorded.
    pub(super) fn repeated(self, workload: &Workload) -> Self {
        match self.rule {
            Rule::FirstCome { seen: Some(seen), .. } => Self::with(workload, Rule::Known(seen)),
            rule => Self::with(workload, rule),
        }
    }

    fn with(workload: &Workload, rule: Rule) -> Self {
        Self { lines: vec![Line::default(); workload.line_count()], noted: Vec::new(), rule }
    }

    /// An operation of a run comes.
    pub(super) fn join(&mut self, workload: &Workload, number: u32, now: Picos, (run, index): (u32, u32), slot: u32) {
        let Self { lines, noted, rule } = self;
        let Some(line) = lines.get_mut(number as usize) else { return };
        let place = workload.standing(run).map_or(0, |standing| standing.place);
        let ticket = Ticket { came: now, place, operation: (run, index), slot };
        let is_behind = |other: &&Ticket| rule.order(workload, other, &ticket) == Ordering::Greater;
        let behind = line.waiting.iter().rev().take_while(is_behind).count();
        line.waiting.insert(line.waiting.len() - behind, ticket);
        note(line, number, noted);
    }

    /// The one that flows is done.
    pub(super) fn leave(&mut self, number: u32, now: Picos, spent: Spent) {
        let Some(line) = self.lines.get_mut(number as usize) else { return };
        (line.flows, line.last) = (false, Some((now, spent)));
        note(line, number, &mut self.noted);
    }

    /// One that may flow now: its slot, and what the chain of the one before it had cost if that ended this instant.
    pub(super) fn next(&mut self, now: Picos) -> Option<(u32, Option<Spent>)> {
        while let Some(number) = self.noted.pop() {
            let Some(line) = self.lines.get_mut(number as usize) else { continue };
            line.is_noted = false;
            let Some(first) = line.waiting.front().filter(|first| !line.flows && self.rule.lets(first, line.passed))
            else {
                continue;
            };
            let slot = first.slot;
            self.rule.see(first.operation, line.passed);
            line.waiting.pop_front();
            (line.flows, line.passed) = (true, line.passed + 1);
            let held = line.last.filter(|last| last.0 == now).map(|last| last.1);
            return Some((slot, held));
        }
        None
    }
}

impl Rule {
    /// Which of two operations of a line goes first.
    fn order(&self, workload: &Workload, a: &Ticket, b: &Ticket) -> Ordering {
        match self {
            Self::FirstCome { levels: known, .. } => {
                let level = |one: &Ticket| known.get_or_init(|| levels(workload)).at(one.operation);
                let at_once = |one: &Ticket| (level(one), one.place, one.operation.1);
                a.came.cmp(&b.came).then_with(|| at_once(a).cmp(&at_once(b)))
            }
            Self::Known(positions) => positions.at(a.operation).cmp(&positions.at(b.operation)),
        }
    }

    /// Returns true if the first of those that have come may flow after so many others.
    fn lets(&self, first: &Ticket, passed: u32) -> bool {
        match self {
            Self::FirstCome { .. } => true,
            Self::Known(positions) => positions.at(first.operation) == passed,
        }
    }

    /// An operation flows after so many others.
    fn see(&mut self, operation: (u32, u32), passed: u32) {
        if let Self::FirstCome { seen: Some(seen), .. } = self {
            seen.set(operation, passed);
        }
    }
}

fn note(line: &mut Line, number: u32, noted: &mut Vec<u32>) {
    if !line.is_noted {
        line.is_noted = true;
        noted.push(number);
    }
}
