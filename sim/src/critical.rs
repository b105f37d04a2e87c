//! The critical path: the chain of operations that a run's end hangs on, and what each link of the chain took.

use fabricast_topologies::Picos;
use rustc_hash::FxHashMap;

use crate::engine::{Costs, PerOp, Span, Workload};
use crate::spans::Spans;

/// One operation of the chain. The five durations of all steps add up to the run's end, and by kind to its costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CriticalStep {
    /// When it happened.
    pub span: Span,
    /// From the end of the step before (or from the start-up) until it was ready: its rank started late.
    pub held_back: Picos,
    /// Software time of the step; of the first one, the start-up too.
    pub software: Picos,
    /// Latency of its path.
    pub latency: Picos,
    /// Its bytes at the rate that it would have alone.
    pub bandwidth: Picos,
    /// What sharing with others added.
    pub sharing: Picos,
}

/// The chain that ends last, first operation first; background runs do not count. Of predecessors that end at the same
/// instant the one whose chain the engine charges is named, and of equal ones that with the lowest run and index. An
/// operation that goes in turn may hang on the beginning of the one before it, which then counts up to the end of its
/// software time; one that stands in line may hang on the one that flowed before.
#[must_use]
pub fn critical_path(workload: &Workload, spans: &Spans) -> Vec<CriticalStep> {
    let mut at = spans.last().map(|span| Link { span, costs: span.costs, until: span.done, part: Part::Flowed });
    let mut path = Vec::new();
    let mut lines = Lines::of(workload, spans);
    while let Some(link) = at {
        let before = link.before(&mut lines);
        path.push(CriticalStep::between(before.map(|before| before.costs).unwrap_or_default(), link));
        at = before;
    }
    path.reverse();
    path
}

/// What flowed on the lines that the chain comes by, in order.
struct Lines<'a> {
    workload: &'a Workload,
    spans: &'a Spans,
    /// The operations of each line: all of a run, or one.
    ops: Vec<Vec<(u32, Option<u32>)>>,
    known: FxHashMap<u32, Vec<Span>>,
}

impl<'a> Lines<'a> {
    fn of(workload: &'a Workload, spans: &'a Spans) -> Self {
        let mut ops: Vec<Vec<(u32, Option<u32>)>> = vec![Vec::new(); workload.line_count()];
        for (run, standing) in (0u32..).zip(&workload.standings) {
            let is_each = standing.is_some_and(|standing| matches!(standing.line, PerOp::Each(_)));
            for (index, &line) in (0u32..).zip(workload.lines_of(run)) {
                if let Some(ops) = ops.get_mut(line as usize) {
                    ops.push((run, is_each.then_some(index)));
                }
            }
        }
        Self { workload, spans, ops, known: FxHashMap::default() }
    }

    /// The operation that flowed on an operation's line until an instant.
    fn until(&mut self, (run, index): (u32, u32), instant: Picos) -> Option<Span> {
        let Self { ops, known, .. } = self;
        let (workload, spans) = (self.workload, self.spans);
        let line = workload.line(run, index)?;
        let flowed = known.entry(line).or_insert_with(|| {
            let ops = ops.get(line as usize).into_iter().flatten();
            let all = ops.flat_map(|&(run, index)| {
                let indexes = index.map_or(0..workload.runs[run as usize].len, |index| index..index + 1);
                indexes.filter_map(move |i| spans.get(run, i))
            });
            // (What moves nothing does not stand in line.)
            let mut flowed: Vec<Span> = all.filter(|span| span.flowing < span.done).collect();
            flowed.sort_unstable_by_key(|span| span.done);
            flowed
        });
        let place = flowed.partition_point(|span| span.done < instant);
        flowed.get(place).copied().filter(|span| span.done == instant)
    }
}

/// An operation of the chain up to its end, or up to the end of its software time.
#[derive(Clone, Copy)]
struct Link {
    span: Span,
    /// Of the chain until then.
    costs: Costs,
    until: Picos,
    part: Part,
}

/// How far an operation of the chain went.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Up to the end of its software time: when it could flow does not matter.
    Prepared,
    /// Further.
    Flowed,
}

impl Link {
    /// What this operation hung on.
    fn before(self, lines: &mut Lines<'_>) -> Option<Self> {
        let Span { run, index, flowing, begun, .. } = self.span;
        if self.part == Part::Flowed {
            // It could have flowed before, and the one ahead of it did.
            if let Some(span) = lines.until((run, index), flowing).filter(|span| span.costs == begun) {
                return Some(Self { span, costs: span.costs, until: span.done, part: Part::Flowed });
            }
        }
        let Lines { workload, spans, .. } = *lines;
        let awaited = workload.waits_of(run).iter().filter_map(|edge| {
            let target = edge.target(index, workload.runs[edge.run as usize].len)?;
            let span = spans.get(edge.run, target)?;
            let spacing = workload.pace(edge.run, target).spacing;
            let freed = Costs { software: span.begun.software + spacing, ..span.begun };
            let done = Self { span, costs: span.costs, until: span.done, part: Part::Flowed };
            let gated = edge.is_turn() && self.part == Part::Flowed;
            Some(match edge.is_turn() {
                // It was ready in time and had to wait until the one before was done, or its spacing over.
                true if gated && span.done == flowing && span.costs == begun => (true, done),
                true if gated && span.flowing + spacing == flowing && freed == begun => {
                    (true, Self { costs: freed, until: flowing, ..done })
                }
                true => {
                    let until = span.prepared.total();
                    (false, Self { costs: span.prepared, until, part: Part::Prepared, ..done })
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
    /// What an operation adds to the costs of the chain before it.
    fn between(before: Costs, link: Link) -> Self {
        let Link { span, costs: after, .. } = link;
        Self {
            span,
            held_back: after.late - before.late,
            software: after.software - before.software,
            latency: after.latency - before.latency,
            bandwidth: after.bandwidth - before.bandwidth,
            sharing: after.sharing() - before.sharing(),
        }
    }

    /// Everything it took.
    #[must_use]
    pub fn total(&self) -> Picos {
        self.held_back + self.software + self.latency + self.bandwidth + self.sharing
    }
}
