//! Reader of profile and network files, and its errors.

use std::fmt;

use fabricast_topologies::{SourceLocation, UnitError};
use toml::de::DeTable;

use super::PredictionInterval;

/// Error in reading or selecting a profile.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProfileError {
    /// Invalid TOML or an unexpected structure.
    #[error("{location}: {message}")]
    Syntax {
        /// Location in the file.
        location: SourceLocation,
        /// Description of the problem.
        message: String,
    },
    /// Key with an invalid value.
    #[error("{location}: {key}: {message}")]
    Value {
        /// Location in the file.
        location: SourceLocation,
        /// Dotted key, such as `protocol.ll.step`.
        key: String,
        /// Description of the problem and of the expected value.
        message: String,
    },
    /// The machine file does not identify the GPU model, and the possible models have different compute capabilities.
    #[error(
        "{fabric} does not state its GPU model: name one by --gpu-model (gpu = \"…\" in manifests and studies), one of {candidates}"
    )]
    UnknownGpu {
        /// Name of the fabric.
        fabric: String,
        /// Possible models, with their compute capabilities.
        candidates: String,
    },
    /// No profile has this name.
    #[error("unknown profile `{name}`; expected one of {known}, or the path of a file{}", did_you_mean(.near))]
    Unknown {
        /// Name that was requested.
        name: String,
        /// Names of built-in profiles similar to it, best first.
        near: Vec<String>,
        /// Names of all built-in profiles, separated by commas.
        known: String,
    },
}

fn did_you_mean(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) }
}

impl ProfileError {
    /// Returns the location of the error in its file; `None` if the error concerns no file.
    #[must_use]
    pub fn location(&self) -> Option<&SourceLocation> {
        match self {
            Self::Syntax { location: place, .. } | Self::Value { location: place, .. } => Some(place),
            Self::Unknown { .. } | Self::UnknownGpu { .. } => None,
        }
    }
}

/// Reader of the text of one file, whose name (`source`) and location appear in errors.
pub(super) struct ProfileReader<'a> {
    pub source: &'a str,
    pub text: &'a str,
}

impl ProfileReader<'_> {
    /// Parses TOML into a structure.
    ///
    /// # Errors
    /// [`ProfileError::Syntax`] with the location.
    pub(super) fn read<T: serde::de::DeserializeOwned>(&self) -> Result<T, ProfileError> {
        toml::from_str(self.text).map_err(|error| {
            let location = SourceLocation::locate(self.source, self.text, error.span().unwrap_or_default());
            ProfileError::Syntax { location, message: error.message().to_owned() }
        })
    }

    /// Returns the prediction interval with these bounds.
    ///
    /// # Errors
    /// [`ProfileError::Value`] at the key `band` if the bounds are invalid.
    pub(super) fn band(&self, low: f64, high: f64) -> Result<PredictionInterval, ProfileError> {
        if low > 0.0 && low <= 1.0 && high >= 1.0 && high.is_finite() {
            Ok(PredictionInterval { low, high })
        } else {
            Err(self.error("band", "expected 0 < low ≤ 1 ≤ high"))
        }
    }

    /// Creates an error at the value of a dotted key.
    pub(super) fn error(&self, key: &str, message: impl fmt::Display) -> ProfileError {
        let location = SourceLocation::locate(self.source, self.text, self.span(key).unwrap_or_default());
        ProfileError::Value { location, key: key.to_owned(), message: message.to_string() }
    }

    /// Returns the byte range of the value of a dotted key; `None` if the text has no such key.
    fn span(&self, key: &str) -> Option<std::ops::Range<usize>> {
        let document = DeTable::parse(self.text).ok()?;
        let mut table = Some(document.get_ref());
        let mut span = None;
        for part in key.split('.') {
            let value = table?.get(part)?;
            span = Some(value.span());
            table = value.get_ref().as_table();
        }
        span
    }

    /// Parses a quantity with a unit, such as `1.5 us`.
    ///
    /// # Errors
    /// [`ProfileError::Value`] located at `key`.
    pub(super) fn quantity<T: std::str::FromStr<Err = UnitError>>(
        &self,
        key: &str,
        text: &str,
    ) -> Result<T, ProfileError> {
        text.parse().map_err(|error| self.error(key, error))
    }

    /// Returns `value` if it is a fraction: more than 0 and at most 1.
    ///
    /// # Errors
    /// [`ProfileError::Value`] located at `key`.
    pub(super) fn fraction(&self, key: &str, value: f64) -> Result<f64, ProfileError> {
        if value > 0.0 && value <= 1.0 {
            Ok(value)
        } else {
            Err(self.error(key, format!("{value} is not a fraction: expected more than 0 and at most 1")))
        }
    }

    /// Parses an optional quantity with a unit.
    pub(super) fn optional<T: std::str::FromStr<Err = UnitError>>(
        &self,
        key: &str,
        text: Option<&str>,
    ) -> Result<Option<T>, ProfileError> {
        text.map(|text| self.quantity(key, text)).transpose()
    }
}
