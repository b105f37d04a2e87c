//! Critical path: the chain of operations that determines a run's end, and the duration of each step.

use fabricast_topologies::Picos;
use rustc_hash::FxHashMap;

use crate::engine::{Costs, PerOp, Span, Workload};
use crate::spans::Spans;

/// Operation on the critical path. The five durations of all steps add up to the end of the run, and each kind of
/// duration adds up to the run's cost of that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CriticalStep {
    /// Times and costs of the operation.
    pub span: Span,
    /// Time that the step waits because its rank starts late: from the end of the previous step (or of the start-up)
    /// until the operation is ready.
    pub held_back: Picos,
    /// Software time of the step. The first step includes the start-up.
    pub software: Picos,
    /// Latency of the operation's path.
    pub latency: Picos,
    /// Time of the operation's bytes at the rate without contention.
    pub bandwidth: Picos,
    /// Time added because capacities are shared with other transfers.
    pub sharing: Picos,
}

/// Returns the chain of operations that ends last, first operation first; background runs are excluded.
///
/// Among predecessors that end at the same instant, the chain contains the one whose costs the engine charges; among
/// equal ones, the one with the lowest run and index. An operation of a run in
/// [`RunOrder::InTurn`](crate::engine::RunOrder::InTurn) may depend on the start of the previous operation; the previous one
/// then counts up to the end of its software time. An operation on an ordered connection (line) may depend on the
/// operation that transferred data before it.
#[must_use]
pub fn critical_path(workload: &Workload, spans: &Spans) -> Vec<CriticalStep> {
    let mut at = spans.last().map(|span| Link { span, costs: span.costs, until: span.done, part: OpPart::Flowed });
    let mut path = Vec::new();
    let mut lines = OrderedTransfers::new(workload, spans);
    while let Some(link) = at {
        let before = link.predecessor(&mut lines);
        path.push(CriticalStep::from_costs(before.map(|before| before.costs).unwrap_or_default(), link));
        at = before;
    }
    path.reverse();
    path
}

/// Operations that transferred data on the lines (ordered connections) of the chain, in order.
struct OrderedTransfers<'a> {
    workload: &'a Workload,
    spans: &'a Spans,
    /// Operations on each line, by line number. An entry is a run and the index of one of its operations; `None` means
    /// all its operations.
    ops: Vec<Vec<(u32, Option<u32>)>>,
    known: FxHashMap<u32, Vec<Span>>,
}

impl<'a> OrderedTransfers<'a> {
    fn new(workload: &'a Workload, spans: &'a Spans) -> Self {
        let mut ops: Vec<Vec<(u32, Option<u32>)>> = vec![Vec::new(); workload.line_count()];
        for (run, line_position) in (0u32..).zip(&workload.line_positions) {
            let is_each = line_position.is_some_and(|line_position| matches!(line_position.line, PerOp::Each(_)));
            for (index, &line) in (0u32..).zip(workload.run_lines(run)) {
                if let Some(ops) = ops.get_mut(line as usize) {
                    ops.push((run, is_each.then_some(index)));
                }
            }
        }
        Self { workload, spans, ops, known: FxHashMap::default() }
    }

    /// Returns the operation that transferred data on the same line until `operation` began to; `None` if there is
    /// none.
    fn predecessor_in_line(&mut self, operation: &Span) -> Option<Span> {
        self.previous_in_line(operation).filter(|span| span.done == operation.flowing)
    }

    /// Returns the last operation on the same line whose transfer ended when that of `operation` began, or before; `None`
    /// if there is none.
    fn previous_in_line(&mut self, operation: &Span) -> Option<Span> {
        let Self { ops, known, .. } = self;
        let (workload, spans) = (self.workload, self.spans);
        let line = workload.line(operation.run, operation.index)?;
        let flowed = known.entry(line).or_insert_with(|| {
            let ops = ops.get(line as usize).into_iter().flatten();
            let all = ops.flat_map(|&(run, index)| {
                let indexes = index.map_or(0..workload.runs[run as usize].len, |index| index..index + 1);
                indexes.filter_map(move |i| spans.get(run, i))
            });
            // Operations without bytes use no line.
            let mut flowed: Vec<Span> = all.filter(|span| span.flowing < span.done).collect();
            flowed.sort_unstable_by_key(|span| span.done);
            flowed
        });
        // One operation at a time transfers data on a line, so no two end at the same instant.
        let position = flowed.partition_point(|span| span.done <= operation.flowing);
        flowed.get(position.checked_sub(1)?).copied()
    }
}

/// Returns the costs of the chain of an operation up to the end of the spacing after its first byte.
fn costs_after_spacing(workload: &Workload, span: &Span) -> Costs {
    let spacing = workload.pace(span.run, span.index).spacing;
    Costs { software: span.costs_at_first_byte.software + spacing, ..span.costs_at_first_byte }
}

/// Operation of the chain, up to its end or to the end of its software time.
#[derive(Clone, Copy)]
struct Link {
    span: Span,
    /// Costs of the chain up to the end of this part of the operation.
    costs: Costs,
    until: Picos,
    part: OpPart,
}

/// Part of an operation that belongs to the chain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpPart {
    /// The operation up to the end of its software time; its transfer does not belong to the chain.
    Prepared,
    /// The operation up to the end of its transfer, or of the spacing after its first byte.
    Flowed,
}

impl Link {
    /// Returns the operation that this one depended on; `None` for the first of the chain.
    fn predecessor(self, lines: &mut OrderedTransfers<'_>) -> Option<Self> {
        let Span { run, index, flowing, costs_at_first_byte: begun, .. } = self.span;
        if self.part == OpPart::Flowed {
            // It was ready to flow earlier, but the one ahead of it in the line was flowing.
            if let Some(span) = lines.predecessor_in_line(&self.span).filter(|span| span.costs == begun) {
                return Some(Self { span, costs: span.costs, until: span.done, part: OpPart::Flowed });
            }
            // The spacing after the one ahead of it was not over.
            if let Some(span) = lines.previous_in_line(&self.span) {
                let freed = costs_after_spacing(lines.workload, &span);
                let spacing = lines.workload.pace(span.run, span.index).spacing;
                if spacing > Picos::ZERO && span.flowing + spacing == flowing && freed == begun {
                    return Some(Self { span, costs: freed, until: flowing, part: OpPart::Flowed });
                }
            }
        }
        let OrderedTransfers { workload, spans, .. } = *lines;
        let awaited = workload.run_waits(run).iter().filter_map(|edge| {
            let target = edge.target(index, workload.runs[edge.run as usize].len)?;
            let span = spans.get(edge.run, target)?;
            let spacing = workload.pace(edge.run, target).spacing;
            let freed = costs_after_spacing(workload, &span);
            let done = Self { span, costs: span.costs, until: span.done, part: OpPart::Flowed };
            let gated = edge.is_turn() && self.part == OpPart::Flowed;
            Some(match edge.is_turn() {
                // It was ready, but had to wait for the end of the one before, or of its spacing.
                true if gated && span.done == flowing && span.costs == begun => (true, done),
                true if gated && span.flowing + spacing == flowing && freed == begun => {
                    (true, Self { costs: freed, until: flowing, ..done })
                }
                true => {
                    let until = span.costs_after_software.total();
                    (false, Self { costs: span.costs_after_software, until, part: OpPart::Prepared, ..done })
                }
                false => (false, done),
            })
        });
        let key = |(gates, link): &(bool, Self)| {
            (*gates, link.until, link.costs, std::cmp::Reverse((link.span.run, link.span.index)))
        };
        awaited.max_by_key(key).map(|(_, link)| link)
    }
}

impl CriticalStep {
    /// Creates the step of an operation from the difference between the costs of the chain after and before it.
    fn from_costs(before: Costs, link: Link) -> Self {
        let Link { span, costs: after, .. } = link;
        Self {
            span,
            held_back: after.start_delay - before.start_delay,
            software: after.software - before.software,
            latency: after.latency - before.latency,
            bandwidth: after.bandwidth - before.bandwidth,
            sharing: after.sharing() - before.sharing(),
        }
    }

    /// Returns the sum of the five durations.
    #[must_use]
    pub fn total(&self) -> Picos {
        self.held_back + self.software + self.latency + self.bandwidth + self.sharing
    }
}
