//! Invariants of every run of a trace.

use fabricast_topologies::Picos;

use super::{Outcome, Trace};

/// Asserts that no event starts before its predecessors end or before its start time, and that no call is faster than
/// alone.
pub(super) fn assert_invariants(trace: &Trace, outcome: &Outcome) {
    assert_eq!(trace.events.len(), outcome.spans.len());
    for (event, span) in trace.events.iter().zip(&outcome.spans) {
        assert!(span.begin >= event.start && span.end - span.begin >= span.alone, "{event:?} {span:?}");
        for &before in &event.after {
            assert!(outcome.spans[before as usize].end <= span.begin, "{event:?} {span:?}");
        }
    }
    let last = outcome.spans.iter().map(|span| span.end).max().unwrap_or(Picos::ZERO);
    assert_eq!(outcome.time, last);
}
