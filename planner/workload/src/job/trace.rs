//! Trace jobs: replay of a recorded trace.
//!
//! Ranks and kernel times are those of the trace on every machine; only the times of collectives differ. A machine with
//! too few GPUs cannot run the job; on a larger machine the remaining GPUs are idle.

use std::sync::Arc;

use super::{CollectiveCandidates, JobSpans};
use crate::trace::Trace;

/// Job that replays a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceJob {
    /// Name of the job.
    pub name: String,
    /// Name of the trace file as given in the study.
    pub file: String,
    /// Recorded events of all ranks.
    pub trace: Arc<Trace>,
    /// Candidate strategies for the job's collectives.
    pub collectives: CollectiveCandidates,
    /// Weight of the job among several jobs, above 0.
    pub weight: f64,
    /// Source locations of the job's parts.
    pub spans: JobSpans,
}
