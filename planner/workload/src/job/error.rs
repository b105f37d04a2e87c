//! Errors of jobs, with the source location in the job file.

use fabricast_topologies::SourceLocation;

/// Error of an invalid job, or of a job that cannot run on the given ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {message}")]
pub struct JobError {
    /// Location of the invalid value in the job file.
    pub location: SourceLocation,
    /// Description of the problem, and the expected value.
    pub message: String,
    /// Suggested fix, in addition to the message.
    pub help: Option<String>,
}

impl JobError {
    /// Creates an error at a location, without a suggested fix.
    pub fn at(location: &SourceLocation, message: impl Into<String>) -> Self {
        Self { location: location.clone(), message: message.into(), help: None }
    }
}
