//! Errors of reading measured data, each with its source location.

use fabricast_topologies::SourceLocation;

/// Reason why a log or a manifest could not be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MeasuredError {
    /// A file does not exist, is too large or is not text.
    #[error(transparent)]
    Unreadable(fabricast_topologies::Error),
    /// A text is malformed or contains an invalid value.
    #[error("{place}: {message}")]
    Invalid {
        /// Source location of the fault.
        place: SourceLocation,
        /// Description of the value found and the value expected.
        message: String,
        /// Advice in addition to the message, if any.
        help: Option<String>,
    },
    /// A manifest names a fabric that cannot be loaded.
    #[error("{place}: {error}")]
    Fabric {
        /// Source location of the fabric's name in the manifest.
        place: SourceLocation,
        /// Reason why the fabric cannot be loaded.
        error: Box<fabricast_topologies::Error>,
    },
}

impl MeasuredError {
    pub(crate) fn invalid(location: SourceLocation, message: impl Into<String>) -> Self {
        Self::Invalid { place: location, message: message.into(), help: None }
    }

    /// Source location of the fault; `None` if the fault is not in a text.
    #[must_use]
    pub fn location(&self) -> Option<&SourceLocation> {
        match self {
            Self::Unreadable(error) => error.location(),
            Self::Invalid { place, .. } | Self::Fabric { place, .. } => Some(place),
        }
    }

    /// Advice in addition to the message, if any.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        match self {
            Self::Unreadable(error) => error.help(),
            Self::Invalid { help, .. } => help.as_deref(),
            Self::Fabric { error, .. } => error.help(),
        }
    }
}
