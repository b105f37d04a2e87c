//! Why a job cannot be, or cannot be on these ranks: always with the place in its file.

use fabricast_topologies::Place;

/// A job that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct JobError {
    /// Where it stands.
    pub place: Place,
    /// What is wrong, and what was expected.
    pub message: String,
    /// What to do about it, where there is something better than the message.
    pub help: Option<String>,
}

impl JobError {
    pub(crate) fn at(place: &Place, message: impl Into<String>) -> Self {
        Self { place: place.clone(), message: message.into(), help: None }
    }
}
