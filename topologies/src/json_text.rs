//! Where parts of a JSON text stand in it, for readers that look into a value only after they have found it.

use std::ops::Range;

use crate::error::Origin;

impl Origin<'_> {
    /// The bytes of a part that was borrowed from the text.
    #[must_use]
    pub fn bytes_of(self, part: &str) -> Range<usize> {
        let start = (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize).min(self.text.len());
        start..(start + part.len()).min(self.text.len())
    }

    /// What serde_json says of the bytes `within` the text, which it read on their own: where in the text, and its words
    /// without the place that it ends them with. It counts lines from 1, columns in bytes from 1.
    #[must_use]
    pub fn json_fault(self, within: Range<usize>, error: &serde_json::Error) -> (Range<usize>, String) {
        let part = self.text.get(within.clone()).unwrap_or_default();
        let line: usize = part.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        let at = (within.start + line + error.column().saturating_sub(1)).min(self.text.len());
        let said = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        (at..at, said.strip_suffix(place.as_str()).unwrap_or(&said).to_owned())
    }
}
