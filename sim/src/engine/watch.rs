//! Observation and control of a run from outside.

use std::sync::atomic::{AtomicBool, Ordering};

use fabricast_topologies::Picos;

use super::{EngineError, SteadyStates};
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

impl Watch<'_> {
    /// Sets the number of operations of the run.
    pub(super) fn begin(&self, operations: u64) {
        if let Some(progress) = self.progress {
            progress.total.store(operations, Ordering::Relaxed);
        }
    }

    /// Reports the number of operations that have ended.
    pub(super) fn report(&self, operations: u64) {
        if let Some(progress) = self.progress {
            progress.done.store(operations, Ordering::Relaxed);
        }
    }

    /// Reports the number of operations that have ended, and returns an error if another thread stops the run.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`].
    pub(super) fn poll(&self, operations: u64) -> Result<(), EngineError> {
        self.report(operations);
        match self.interrupt {
            Some(flag) if flag.load(Ordering::Relaxed) => Err(EngineError::Interrupted),
            _ => Ok(()),
        }
    }
}
