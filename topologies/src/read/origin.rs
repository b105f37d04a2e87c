//! Constructors of the errors of fabric readers.

use std::ops::Range;

use crate::error::{Error, Origin};

impl Origin<'_> {
    /// Creates the error for ill-formed text at a byte range.
    pub(crate) fn syntax(self, bytes: Range<usize>, message: impl Into<String>) -> Error {
        Error::Syntax { location: self.locate(bytes), message: message.into() }
    }

    /// Creates the error for well-formed text whose value at a byte range is invalid.
    pub(crate) fn invalid(self, bytes: Range<usize>, message: impl Into<String>) -> Error {
        Error::Invalid { location: self.locate(bytes), message: message.into(), help: None }
    }

    /// Variant of [`Origin::invalid`] with advice.
    pub(crate) fn invalid_with_help(
        self,
        bytes: Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Error {
        Error::Invalid { location: self.locate(bytes), message: message.into(), help: Some(help.into()) }
    }

    /// Default name of a fabric: the file name without folder and extension.
    pub(crate) fn stem(self) -> String {
        let file = self.source.rsplit(['/', '\\']).next().unwrap_or(self.source);
        let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
        if stem.is_empty() { "fabric".to_owned() } else { stem.to_owned() }
    }
}
