//! Why measured data could not be had, each with its place.

use fabricast_topologies::Place;

/// Why a log or a manifest could not be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MeasuredError {
    /// A file does not exist, is too large or is no text.
    #[error(transparent)]
    Unreadable(fabricast_topologies::Error),
    /// A text is not well formed, or says something that cannot be.
    #[error("{place}: {message}")]
    Invalid {
        /// Where.
        place: Place,
        /// What was found and what was expected.
        message: String,
        /// What to do about it, where there is something better than the message.
        help: Option<String>,
    },
    /// A manifest names a fabric that cannot be had.
    #[error("{place}: {error}")]
    Fabric {
        /// Where the manifest names it.
        place: Place,
        /// Why it cannot be had.
        error: Box<fabricast_topologies::Error>,
    },
}

impl MeasuredError {
    pub(super) fn invalid(place: Place, message: impl Into<String>) -> Self {
        Self::Invalid { place, message: message.into(), help: None }
    }

    /// The place in a text, where there is one.
    #[must_use]
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Unreadable(error) => error.place(),
            Self::Invalid { place, .. } | Self::Fabric { place, .. } => Some(place),
        }
    }

    /// Advice that goes beyond the message.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        match self {
            Self::Unreadable(error) => error.help(),
            Self::Invalid { help, .. } => help.as_deref(),
            Self::Fabric { error, .. } => error.help(),
        }
    }
}
