//! The critical path: the chain of operations that a run's end hangs on, and what each link of the chain took.

use fabricast_topologies::Picos;

use crate::engine::{Costs, Span, Workload};
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
/// instant the one whose chain the engine charges is named, and of equal ones that with the lowest run and index.
#[must_use]
pub fn critical_path(workload: &Workload, spans: &Spans) -> Vec<CriticalStep> {
    let mut at = spans.last();
    let mut path = Vec::new();
    while let Some(span) = at {
        let awaited = workload.waits_of(span.run).iter().filter_map(|edge| {
            let index = edge.target(span.index, workload.runs[edge.run as usize].len)?;
            spans.get(edge.run, index)
        });
        let before = awaited.max_by_key(|b| (b.done, b.costs, std::cmp::Reverse((b.run, b.index))));
        path.push(CriticalStep::between(before.map(|before| before.costs).unwrap_or_default(), span));
        at = before;
    }
    path.reverse();
    path
}

impl CriticalStep {
    /// What `span` adds to the costs of the chain before it.
    fn between(before: Costs, span: Span) -> Self {
        let after = span.costs;
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
