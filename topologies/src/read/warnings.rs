//! Warnings of a reader: deduplicated, with the line of the first occurrence, and limited in number.

use rustc_hash::FxHashMap;

/// Maximum number of distinct warnings that are stored; further ones are counted.
const MAX_WARNINGS: usize = 20;

/// A distinct warning with the line of its first occurrence.
#[derive(Debug)]
struct Warning {
    message: String,
    line: Option<u32>,
    /// Number of occurrences after the first.
    repetitions: usize,
}

/// Collector of warnings, in the order in which they occur.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    warnings: Vec<Warning>,
    index: FxHashMap<String, usize>,
    omitted: usize,
}

impl Warnings {
    /// Adds a warning about the whole text.
    pub fn add(&mut self, message: impl Into<String>) {
        self.insert(message.into(), || None);
    }

    /// Adds a warning about a line. `line` is called only for the first occurrence, because counting lines is
    /// expensive.
    pub fn add_at(&mut self, message: impl Into<String>, line: impl FnOnce() -> u32) {
        self.insert(message.into(), || Some(line()));
    }

    fn insert(&mut self, message: String, line: impl FnOnce() -> Option<u32>) {
        if let Some(warning) = self.index.get(&message).and_then(|&at| self.warnings.get_mut(at)) {
            warning.repetitions += 1;
        } else if self.warnings.len() >= MAX_WARNINGS {
            self.omitted += 1;
        } else {
            self.index.insert(message.clone(), self.warnings.len());
            self.warnings.push(Warning { message, line: line(), repetitions: 0 });
        }
    }

    /// Converts all warnings to text, for the fabric.
    pub fn into_lines(self) -> Vec<String> {
        let worded =
            self.warnings.into_iter().map(|Warning { message, line, repetitions: again }| match (line, again) {
                (None, _) => message,
                (Some(line), 0) => format!("line {line}: {message}"),
                (Some(line), again) => format!("line {line} and {again} more: {message}"),
            });
        let omitted_note = (self.omitted > 0).then(|| format!("{} more warnings of this reader", self.omitted));
        worded.chain(omitted_note).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_deduplicated_and_limited() {
        let mut warnings = Warnings::default();
        for line in 1..=3 {
            warnings.add("whole");
            warnings.add_at("part", || line);
        }
        for i in 0..100 {
            warnings.add_at(format!("other {i}"), || 9);
        }
        let lines = warnings.into_lines();
        assert_eq!(lines[..3], ["whole", "line 1 and 2 more: part", "line 9: other 0"]);
        assert_eq!(lines.len(), MAX_WARNINGS + 1);
        assert_eq!(lines[MAX_WARNINGS], "82 more warnings of this reader");
    }
}
