//! Progress bar of a simulation.

use std::sync::atomic::Ordering;

use fabricast_sim::engine::{Progress, Recording, Watch};

use crate::output::Output;
use crate::run_control::{self, Position};

/// Runs `work` with a progress bar on a terminal.
pub fn with_progress<T>(output: &Output, recording: Recording, work: impl FnOnce(Watch<'_>) -> T) -> T {
    let progress = Progress::default();
    let position =
        || Position { done: progress.done.load(Ordering::Relaxed), total: progress.total.load(Ordering::Relaxed) };
    let watcher = Watch { interrupt: output.interrupt(), progress: Some(&progress), recording, ..Watch::default() };
    run_control::with_progress(output, "simulating", position, || work(watcher))
}
