//! Trace jobs: replay of a recorded trace.
//!
//! Ranks and kernel times are those of the trace on every machine; only collectives differ. A machine with fewer GPUs
//! cannot run the job; on a larger one the remaining GPUs are idle.

use std::sync::Arc;

use super::{CollectiveCandidates, JobSpans};
use crate::trace::Trace;

/// Job that replays a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceJob {
    /// Name.
    pub name: String,
    /// File name as given in the study.
    pub file: String,
    /// Recorded events.
    pub trace: Arc<Trace>,
    /// Candidates for its collectives.
    pub collectives: CollectiveCandidates,
    /// Weight among several jobs, above 0.
    pub weight: f64,
    /// Source locations.
    pub spans: JobSpans,
}
