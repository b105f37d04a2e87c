//! Lines: ordered connections on each of which one operation flows at a time.
//!
//! The order of the operations on a line is fixed before the run. Dependencies between programs determine part of it;
//! the rest is taken from a run in which every rank starts on time ([`Pace::delay`]). In that run, operations are
//! served in the order of arrival. Among operations that arrive at the same instant, the one with the lowest level
//! ([`levels`]) is first, so that the order does not depend on the division of a program into runs. Because delays
//! change no order, an operation that arrives late delays the following ones by at most its own delay.
//!
//! The next operation is chosen after all events of an instant are handled, so that their order does not matter.
//!
//! [`Pace::delay`]: super::Pace::delay

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::VecDeque;

use fabricast_topologies::Picos;

use super::Workload;
use super::by_operation::{ByOperation, OperationIndex};
use super::costs::ChainCosts;
use super::distance::Distance;
use super::levels::levels;

/// An operation that waits in a line.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    arrival: Picos,
    /// Position of the operation's run in the line ([`LinePosition::position`](super::LinePosition::position)).
    position: u32,
    operation: OperationIndex,
    slot: u32,
}

/// State of one line.
#[derive(Clone, Debug, Default)]
struct Line {
    /// Waiting operations, in the order in which they are to be served.
    waiting: VecDeque<Ticket>,
    /// Number of operations whose transfer has started.
    passed: u32,
    /// True while an operation on the line transfers data.
    flows: bool,
    /// End of the last transfer on the line, and the costs of its chain; `None` before the first.
    last: Option<(Picos, ChainCosts)>,
    /// End of the spacing after the last operation that started its transfer, and the costs of its chain up to then.
    free: (Picos, ChainCosts),
    /// True if the line is listed in `LineStates::noted`.
    is_noted: bool,
}

/// Number of operations that transferred data on the line of each operation before it.
type Positions = ByOperation;

/// Rule for the order of the operations on a line.
#[derive(Clone, Debug)]
enum Rule {
    /// First come, first served. Levels are computed when several operations first arrive at the same instant. `seen`
    /// records the order if a later run is to repeat it.
    FirstCome { levels: OnceCell<ByOperation>, seen: Option<Positions> },
    /// Order recorded in an earlier run of the workload.
    Known(Positions),
}

/// State of one line for the steady-state search.
pub(super) struct LineState<W> {
    /// True if a transfer is in progress.
    pub flows: bool,
    /// End of the spacing, and the costs of the chain up to then.
    pub free: (Picos, ChainCosts),
    /// Waiting operations, in order.
    pub waiting: W,
}

/// State of all lines of a workload.
#[derive(Clone, Debug)]
pub(super) struct LineStates {
    lines: Vec<Line>,
    /// Numbers of the lines on which an operation arrived or ended at the current instant.
    noted: Vec<u32>,
    rule: Rule,
    /// Number of pairs of operations of different runs that arrived in a line at the same instant.
    level_ties: u64,
}

impl LineStates {
    /// Creates lines in first-come order.
    pub(super) fn first_come_first_served(workload: &Workload) -> Self {
        Self::with(workload, Rule::FirstCome { levels: OnceCell::new(), seen: None })
    }

    /// Creates lines in first-come order, and records that order for [`LineStates::repeated`].
    pub(super) fn recorded(workload: &Workload) -> Self {
        let seen = Some(Positions::new(workload, 0));
        Self::with(workload, Rule::FirstCome { levels: OnceCell::new(), seen })
    }

    /// Creates lines that repeat the recorded order of these lines; without a recorded order, lines with the same rule.
    pub(super) fn repeated(self, workload: &Workload) -> Self {
        match self.rule {
            Rule::FirstCome { seen: Some(seen), .. } => Self::with(workload, Rule::Known(seen)),
            rule => Self::with(workload, rule),
        }
    }

    fn with(workload: &Workload, rule: Rule) -> Self {
        Self { lines: vec![Line::default(); workload.line_count()], noted: Vec::new(), rule, level_ties: 0 }
    }

    /// Adds an operation of a run to a line.
    pub(super) fn join(&mut self, workload: &Workload, number: u32, now: Picos, operation: OperationIndex, slot: u32) {
        let Self { lines, noted, rule, level_ties } = self;
        let Some(line) = lines.get_mut(number as usize) else { return };
        let position = workload.line_position(operation.run).map_or(0, |line_position| line_position.position);
        let ticket = Ticket { arrival: now, position, operation, slot };
        let is_tie = |other: &&Ticket| other.arrival == now && other.operation.run != operation.run;
        *level_ties += line.waiting.iter().rev().filter(is_tie).count() as u64;
        let is_behind = |other: &&Ticket| rule.order(workload, other, &ticket) == Ordering::Greater;
        let behind = line.waiting.iter().rev().take_while(is_behind).count();
        line.waiting.insert(line.waiting.len() - behind, ticket);
        note(line, number, noted);
    }

    /// Records that the transfer in progress on a line is done. Returns the end of the spacing after it, if that is
    /// later.
    pub(super) fn leave(&mut self, number: u32, now: Picos, chain_costs: ChainCosts) -> Option<Picos> {
        let line = self.lines.get_mut(number as usize)?;
        (line.flows, line.last) = (false, Some((now, chain_costs)));
        note(line, number, &mut self.noted);
        Some(line.free.0).filter(|&free| free > now)
    }

    /// Records the end of the spacing after an operation that starts its transfer on a line, and the costs of its chain up
    /// to then.
    pub(super) fn space(&mut self, number: u32, free: (Picos, ChainCosts)) {
        if let Some(line) = self.lines.get_mut(number as usize) {
            line.free = free;
        }
    }

    /// Records that the spacing on a line has ended.
    pub(super) fn free(&mut self, number: u32) {
        if let Some(line) = self.lines.get_mut(number as usize) {
            note(line, number, &mut self.noted);
        }
    }

    /// Returns the slot of an operation that may start its transfer at `now`, and the costs of the chain of the
    /// previous operation on its line if that chain, or the spacing after it, ended at the same instant.
    pub(super) fn next(&mut self, now: Picos) -> Option<(u32, Option<ChainCosts>)> {
        while let Some(number) = self.noted.pop() {
            let Some(line) = self.lines.get_mut(number as usize) else { continue };
            line.is_noted = false;
            let Some(first) = line
                .waiting
                .front()
                .filter(|first| !line.flows && line.free.0 <= now && self.rule.may_flow(first, line.passed))
            else {
                continue;
            };
            let slot = first.slot;
            self.rule.record(first.operation, line.passed);
            line.waiting.pop_front();
            (line.flows, line.passed) = (true, line.passed + 1);
            let ends = [line.last, (line.passed > 1).then_some(line.free)];
            let blocking_costs = ends.into_iter().flatten().filter(|end| end.0 == now).map(|end| end.1).max();
            return Some((slot, blocking_costs));
        }
        None
    }
}

/// Functions for the steady-state search.
impl LineStates {
    /// Returns true if the order depends only on relative times, except for ties that levels resolve.
    pub(super) fn are_relative(&self) -> bool {
        self.lines.is_empty() || matches!(self.rule, Rule::FirstCome { seen: None, .. })
    }

    /// Returns the number of ties that levels have resolved so far.
    pub(super) fn level_ties(&self) -> u64 {
        self.level_ties
    }

    /// Returns, for each line, true if a transfer is in progress on it, the end of its spacing with the costs of the
    /// chain up to then, and the waiting operations in order.
    pub(super) fn states(&self) -> impl Iterator<Item = LineState<impl Iterator<Item = OperationIndex> + '_>> + '_ {
        self.lines.iter().map(|line| LineState {
            flows: line.flows,
            free: line.free,
            waiting: line.waiting.iter().map(|ticket| ticket.operation),
        })
    }

    /// Advances all lines by whole periods that last `time` in total. `indexes`: number of operations by which each run
    /// advances.
    pub(super) fn jump(&mut self, Distance { time, costs, .. }: Distance, indexes: impl Fn(u32) -> u32) {
        for line in &mut self.lines {
            line.free = (line.free.0 + time, line.free.1 + costs);
        }
        for ticket in self.lines.iter_mut().flat_map(|line| &mut line.waiting) {
            ticket.arrival += time;
            ticket.operation.index += indexes(ticket.operation.run);
        }
    }
}

impl Rule {
    /// Compares two waiting operations of a line by the order in which they are to be served.
    fn order(&self, workload: &Workload, a: &Ticket, b: &Ticket) -> Ordering {
        match self {
            Self::FirstCome { levels: known, .. } => {
                let level = |ticket: &Ticket| known.get_or_init(|| levels(workload)).at(ticket.operation);
                let tie_break = |ticket: &Ticket| (level(ticket), ticket.position, ticket.operation.index);
                a.arrival.cmp(&b.arrival).then_with(|| tie_break(a).cmp(&tie_break(b)))
            }
            Self::Known(positions) => positions.at(a.operation).cmp(&positions.at(b.operation)),
        }
    }

    /// Returns true if the first waiting operation may start after `passed` others.
    fn may_flow(&self, first: &Ticket, passed: u32) -> bool {
        match self {
            Self::FirstCome { .. } => true,
            Self::Known(positions) => positions.at(first.operation) == passed,
        }
    }

    /// Records that an operation starts its transfer after `passed` others.
    fn record(&mut self, operation: OperationIndex, passed: u32) {
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
