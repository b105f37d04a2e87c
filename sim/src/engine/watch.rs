//! Observation and control of a run from outside.

use std::sync::atomic::{AtomicBool, AtomicU64};

use fabricast_topologies::Picos;

use super::SteadyStates;

/// Detail of the recorded times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recording {
    /// The end only.
    #[default]
    End,
    /// The end of every run as well.
    RunEnds,
    /// A [`Span`](super::Span) per operation as well.
    Spans,
}

/// Progress of a run.
#[derive(Debug, Default)]
pub struct Progress {
    /// Operations done so far.
    pub done: AtomicU64,
    /// Total operations; 0 until the engine starts.
    pub total: AtomicU64,
}

/// Observation and control of a run from outside.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch<'a> {
    /// Set from outside to stop the run.
    pub interrupt: Option<&'a AtomicBool>,
    /// Updated every few thousand events.
    pub progress: Option<&'a Progress>,
    /// Times to record.
    pub recording: Recording,
    /// Deadline; a run that cannot be done by then is abandoned.
    pub until: Option<Picos>,
    /// Treatment of steady states.
    pub steady_states: SteadyStates,
}
