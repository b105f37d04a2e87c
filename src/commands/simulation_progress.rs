//! Progress of a simulation.

use fabricast_sim::engine::{Recording, Watch};

use crate::output::Output;
use crate::run_control;

/// Runs `work` and shows its progress.
pub fn with_progress<T>(output: &Output, recording: Recording, work: impl FnOnce(Watch<'_>) -> T) -> T {
    run_control::with_monitor(output, "simulating", |monitor| {
        work(Watch { interrupt: monitor.interrupt, progress: monitor.progress, recording, ..Watch::default() })
    })
}
