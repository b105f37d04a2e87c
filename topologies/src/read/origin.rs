//! What readers of fabrics say of the text that they read.

use std::ops::Range;

use crate::error::{Error, Origin};

impl Origin<'_> {
    /// The text is not well formed here.
    pub(crate) fn syntax(self, bytes: Range<usize>, message: impl Into<String>) -> Error {
        Error::Syntax { place: self.place(bytes), message: message.into() }
    }

    /// What stands here cannot be.
    pub(crate) fn invalid(self, bytes: Range<usize>, message: impl Into<String>) -> Error {
        Error::Invalid { place: self.place(bytes), message: message.into(), help: None }
    }

    /// What stands here cannot be, and this would help.
    pub(crate) fn invalid_with_help(
        self,
        bytes: Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Error {
        Error::Invalid { place: self.place(bytes), message: message.into(), help: Some(help.into()) }
    }

    /// A name for a fabric whose text gives none: the file's name without folder and extension.
    pub(crate) fn stem(self) -> String {
        let file = self.source.rsplit(['/', '\\']).next().unwrap_or(self.source);
        let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
        if stem.is_empty() { "fabric".to_owned() } else { stem.to_owned() }
    }
}
