//! The text being read and its name, so that every error can point at its line and column.

use std::ops::Range;

use crate::error::{Error, Place};

/// A text and where it came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin<'a> {
    /// File name, preset name or `<input>`.
    pub source: &'a str,
    /// The whole text.
    pub text: &'a str,
}

impl Origin<'_> {
    /// The place of a byte range.
    pub fn place(self, bytes: Range<usize>) -> Place {
        Place::in_text(self.source, self.text, bytes)
    }

    /// The text is not well formed here.
    pub fn syntax(self, bytes: Range<usize>, message: impl Into<String>) -> Error {
        Error::Syntax { place: self.place(bytes), message: message.into() }
    }

    /// What stands here cannot be.
    pub fn invalid(self, bytes: Range<usize>, message: impl Into<String>) -> Error {
        Error::Invalid { place: self.place(bytes), message: message.into(), help: None }
    }

    /// What stands here cannot be, and this would help.
    pub fn invalid_with_help(self, bytes: Range<usize>, message: impl Into<String>, help: impl Into<String>) -> Error {
        Error::Invalid { place: self.place(bytes), message: message.into(), help: Some(help.into()) }
    }

    /// A name for a fabric whose text gives none: the file's name without folder and extension.
    pub fn stem(self) -> String {
        let file = self.source.rsplit(['/', '\\']).next().unwrap_or(self.source);
        let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
        if stem.is_empty() { "fabric".to_owned() } else { stem.to_owned() }
    }
}
