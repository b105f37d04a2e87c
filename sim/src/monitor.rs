//! Observation and interruption of a computation by other threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Progress of a computation in steps, for other threads to read.
#[derive(Debug, Default)]
pub struct Progress {
    /// Number of steps done so far.
    pub done: AtomicU64,
    /// Total number of steps known so far; 0 until it is known.
    pub total: AtomicU64,
}

/// Progress counters that a computation updates, and the flag that stops it. Neither affects its result.
#[derive(Clone, Copy, Debug, Default)]
pub struct Monitor<'a> {
    /// Flag that another thread sets to stop the computation; `None` if it cannot be stopped.
    pub interrupt: Option<&'a AtomicBool>,
    /// Counters that the computation updates; `None` if progress is not counted.
    pub progress: Option<&'a Progress>,
}

impl Monitor<'_> {
    /// Returns true if the computation must stop.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.interrupt.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// Adds steps to the total.
    pub fn add_total(&self, steps: usize) {
        if let Some(progress) = self.progress {
            progress.total.fetch_add(steps as u64, Ordering::Relaxed);
        }
    }

    /// Adds steps to those done.
    pub fn add_done(&self, steps: usize) {
        if let Some(progress) = self.progress {
            progress.done.fetch_add(steps as u64, Ordering::Relaxed);
        }
    }
}
