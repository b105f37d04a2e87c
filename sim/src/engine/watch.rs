//! Observation and control of a run from outside.

use std::sync::atomic::AtomicBool;

use fabricast_topologies::Picos;

use super::SteadyStates;
use crate::monitor::Progress;

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

/// Observation and control of a run from outside.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch<'a> {
    /// Flag that another thread sets to stop the run.
    pub interrupt: Option<&'a AtomicBool>,
    /// Counters of operations, which the engine updates every few thousand events and at the end.
    pub progress: Option<&'a Progress>,
    /// Times that the run records.
    pub recording: Recording,
    /// Deadline; a run that cannot be done by then is abandoned.
    pub until: Option<Picos>,
    /// Treatment of steady states: skip or simulate their periods.
    pub steady_states: SteadyStates,
}
