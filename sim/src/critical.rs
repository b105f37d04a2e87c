//! The critical path: the chain of operations that a run's end hangs on, and what each link of the chain took.

use fabricast_topologies::Picos;

use crate::engine::{Span, Workload};

/// One operation of the chain. The five durations of all steps add up to the run's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CriticalStep {
    /// When it happened.
    pub span: Span,
    /// From the end of the step before (or from 0) until it was ready: start-up, and ranks that start late.
    pub held_back: Picos,
    /// Software time of the step.
    pub software: Picos,
    /// Latency of its path.
    pub latency: Picos,
    /// Its bytes at the rate that it would have alone.
    pub bandwidth: Picos,
    /// What sharing with others added.
    pub sharing: Picos,
}

/// The chain that ends last, first operation first. `spans` are those of every operation, by run and index; background
/// runs do not count. Of predecessors that end at the same instant the one with the lowest run and index is named.
#[must_use]
pub fn critical_path(workload: &Workload, spans: &[Span]) -> Vec<CriticalStep> {
    let mut first_span = vec![0usize; workload.runs.len() + 1];
    for (run, work_run) in workload.runs.iter().enumerate() {
        first_span[run + 1] = first_span[run] + work_run.len as usize;
    }
    let span_of = |run: u32, index: u32| spans.get(first_span[run as usize] + index as usize);
    let counted = spans.iter().filter(|span| span.run < workload.background_from);
    let mut at = counted.copied().max_by_key(|span| (span.done, std::cmp::Reverse((span.run, span.index))));
    let mut path = Vec::new();
    while let Some(span) = at {
        let awaited = workload.waits_of(span.run).iter().filter_map(|edge| {
            let index = edge.target(span.index, workload.runs[edge.run as usize].len)?;
            span_of(edge.run, index)
        });
        let before = awaited.copied().max_by_key(|b| (b.done, std::cmp::Reverse((b.run, b.index))));
        path.push(step(workload, span, before.map_or(Picos::ZERO, |b| b.done)));
        at = before;
    }
    path.reverse();
    path
}

fn step(workload: &Workload, span: Span, since: Picos) -> CriticalStep {
    let passage = workload.passage(span.run, span.index);
    let taken = span.done - span.flowing;
    let solo = passage.route.map(|route| workload.system.solo(route));
    let alone = solo.and_then(|rate| workload.work(span.run, span.index).duration(rate)).unwrap_or(Picos::ZERO);
    let bandwidth = alone.min(taken);
    CriticalStep {
        span,
        held_back: span.ready - since,
        software: workload.pace(span.run).software,
        latency: passage.latency,
        bandwidth,
        sharing: taken - bandwidth,
    }
}

impl CriticalStep {
    /// Everything it took.
    #[must_use]
    pub fn total(&self) -> Picos {
        self.held_back + self.software + self.latency + self.bandwidth + self.sharing
    }
}
