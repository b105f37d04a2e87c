//! Part of a recording that a timeline covers.

use super::recording::{GpuOperation, Nanos, Recording};

/// Part of a recording, by the host time of launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub start: Nanos,
    pub end: Nanos,
    /// End of the host's work, which may be later than its last launch; `None` if it is unknown.
    pub host_end: Option<Nanos>,
}

impl Window {
    /// Returns the whole of a recording.
    pub fn whole(recording: &Recording) -> Self {
        let first = |operation: &GpuOperation| {
            let launch = operation.correlation.and_then(|number| recording.launches.get(&number));
            launch.map_or(operation.start, |launch| launch.start.min(operation.start))
        };
        let start = recording.operations.iter().map(first).min().unwrap_or_default();
        let end = recording.operations.iter().map(|operation| operation.end).max().unwrap_or_default();
        Self { start, end: end + 1, host_end: None }
    }
}
