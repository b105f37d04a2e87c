//! Observation and control of a run from outside.

use std::sync::atomic::{AtomicBool, AtomicU64};

use fabricast_topologies::Picos;

use super::SteadyStates;

/// Times that a run records. Each variant includes the previous ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recording {
    /// The run records the end of the last operation only.
    #[default]
    End,
    /// The run also records the end of every run of operations.
    RunEnds,
    /// The run also records times and costs of every operation ([`Span`](super::Span)).
    Spans,
}

/// Progress of a run, for other threads to read.
#[derive(Debug, Default)]
pub struct Progress {
    /// Number of operations done so far.
    pub done: AtomicU64,
    /// Number of operations of the workload; 0 until the engine starts.
    pub total: AtomicU64,
}

/// Observation and control of a run from outside.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch<'a> {
    /// Flag that another thread sets to stop the run.
    pub interrupt: Option<&'a AtomicBool>,
    /// Counters that the engine updates every few thousand events.
    pub progress: Option<&'a Progress>,
    /// Times that the run records.
    pub recording: Recording,
    /// Deadline; a run that cannot be done by then is abandoned.
    pub until: Option<Picos>,
    /// Treatment of steady states: skip or simulate their periods.
    pub steady_states: SteadyStates,
}
