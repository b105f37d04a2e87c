//! Source locations of parts of a JSON text, for readers that parse a value only after they have found it.

use std::ops::Range;

use crate::error::Origin;

impl Origin<'_> {
    /// Byte range of `part`, which must be a slice of the text.
    #[must_use]
    pub fn byte_range(self, part: &str) -> Range<usize> {
        let start = (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize).min(self.text.len());
        start..(start + part.len()).min(self.text.len())
    }

    /// Byte range and message of an error of serde_json. `range` is the part of the text that serde_json parsed; the
    /// returned range is empty and refers to the whole text. The message lacks serde_json's suffix ` at line … column
    /// …`, whose numbers refer to the part.
    #[must_use]
    pub fn locate_json_error(self, range: Range<usize>, error: &serde_json::Error) -> (Range<usize>, String) {
        let part = self.text.get(range.clone()).unwrap_or_default();
        let line: usize = part.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        let at = (range.start + line + error.column().saturating_sub(1)).min(self.text.len());
        let message = error.to_string();
        let suffix = format!(" at line {} column {}", error.line(), error.column());
        (at..at, message.strip_suffix(suffix.as_str()).unwrap_or(&message).to_owned())
    }
}
