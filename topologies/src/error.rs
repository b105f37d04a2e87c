//! What can go wrong between a user's text and a fabric, always with the place in the text.

use std::fmt;
use std::ops::Range;

use crate::lines::LineIndex;

/// The result of everything fallible in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Where in a source text something stands. Lines and columns count from 1; columns count characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// File name, preset name or `<input>`.
    pub source: String,
    /// Line, from 1; 0 where no line is known (a missing file).
    pub line: u32,
    /// Column in characters, from 1; 0 where no column is known.
    pub column: u32,
    /// Byte range in the text, for underlining.
    pub bytes: Range<usize>,
}

impl Place {
    /// A place that names the source only.
    #[must_use]
    pub fn of_source(source: &str) -> Self {
        Self { source: source.to_owned(), ..Self::default() }
    }

    /// The place of a byte range of `text`. Ranges past the end are cut to it. Reads the text up to there: a reader that
    /// needs places of many items, and not of its one error, asks an [`Origin::indexed`].
    #[must_use]
    pub fn in_text(source: &str, text: &str, bytes: Range<usize>) -> Self {
        Origin::new(source, text).place(bytes)
    }

    /// The place of a field of the first line from byte `start` of `text` on that holds more than a comment (`#`), where
    /// readers of CSV stand before what they pass over; of the line's first word where the field is empty. Other fields stand `before` it, as
    /// far as they are known.
    #[must_use]
    pub fn in_line<'a>(
        source: &str,
        text: &str,
        start: usize,
        (before, field): (impl IntoIterator<Item = &'a str>, &str),
    ) -> Self {
        Origin::new(source, text).place_in_line(start, (before, field))
    }
}

/// A text being read and where it came from, so that every error can point at its line and column.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// File name, preset name or `<input>`.
    pub source: &'a str,
    /// The whole text.
    pub text: &'a str,
    lines: Option<&'a LineIndex>,
}

impl<'a> Origin<'a> {
    /// A text for which few places are asked: each is found by reading the text up to it.
    #[must_use]
    pub fn new(source: &'a str, text: &'a str) -> Self {
        Self { source, text, lines: None }
    }

    /// The same with the index of its text, for readers that keep the place of every item.
    #[must_use]
    pub fn indexed(self, lines: &'a LineIndex) -> Self {
        Self { lines: Some(lines), ..self }
    }

    /// The place of a byte range. Ranges past the end are cut to it.
    #[must_use]
    pub fn place(self, bytes: Range<usize>) -> Place {
        let text = self.text;
        let mut start = bytes.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let (line, column) = match self.lines {
            Some(lines) => lines.line_and_column(text, start),
            None => {
                let before = &text[..start];
                let line_start = before.rfind('\n').map_or(0, |i| i + 1);
                let line = before.bytes().filter(|&b| b == b'\n').count() as u32;
                (1 + line, 1 + before[line_start..].chars().count() as u32)
            }
        };
        Place { source: self.source.to_owned(), line, column, bytes: start..bytes.end.clamp(start, text.len()) }
    }

    /// The place of a field of a line, as [`Place::in_line`] finds it.
    #[must_use]
    pub fn place_in_line<'b>(self, start: usize, (before, field): (impl IntoIterator<Item = &'b str>, &str)) -> Place {
        let mut begin = start;
        let mut own = "";
        for line in self.text.get(start..).unwrap_or_default().split_inclusive('\n') {
            own = line.trim();
            if !own.is_empty() && !own.starts_with('#') {
                begin += line.len() - line.trim_start().len();
                break;
            }
            begin += line.len();
        }
        let passed = before.into_iter().fold(0, |at, other| {
            let rest = own.get(at..).unwrap_or_default();
            // (Past the comma, too.)
            rest.find(other).map_or(at, |found| (at + found + other.len() + 1).min(own.len()))
        });
        let rest = own.get(passed..).unwrap_or_default();
        let at = begin + rest.find(field).map_or_else(|| own.find(field).unwrap_or(0), |found| passed + found);
        self.place(at..at + field.len())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.column) {
            (0, _) => write!(f, "{}", self.source),
            (line, 0) => write!(f, "{}:{line}", self.source),
            (line, column) => write!(f, "{}:{line}:{column}", self.source),
        }
    }
}

/// Why a fabric could not be had.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The file does not exist or cannot be read as text.
    #[error("{place}: cannot read: {reason}")]
    Unreadable {
        /// The file.
        place: Place,
        /// What the operating system or the decoder said.
        reason: String,
    },
    /// The text is not well formed (XML, TOML, a matrix).
    #[error("{place}: {message}")]
    Syntax {
        /// Where.
        place: Place,
        /// What was found and what was expected.
        message: String,
    },
    /// The text is well formed, and says something that cannot be.
    #[error("{place}: {message}")]
    Invalid {
        /// Where.
        place: Place,
        /// What is wrong and what was expected.
        message: String,
        /// What to do about it, where there is something better than the message.
        help: Option<String>,
    },
    /// No preset, device or link has this name.
    #[error("unknown {what} `{name}`{}", near_misses(.near))]
    Unknown {
        /// What was looked up: `fabric`, `device`, `link`.
        what: &'static str,
        /// The name as given.
        name: String,
        /// Known names that look like it, best first.
        near: Vec<String>,
    },
    /// Two devices are not joined by any usable path.
    #[error("no path from {from} to {to}: {reason}")]
    Unreachable {
        /// Id of the first device.
        from: String,
        /// Id of the second device.
        to: String,
        /// What stands in the way.
        reason: String,
    },
    /// A request that no fabric could meet (0 GPUs, more GPUs than the preset has, a network key out of range).
    #[error("{0}")]
    Request(String),
}

fn near_misses(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(", ")) }
}

impl Error {
    /// The place in a text, where there is one.
    #[must_use]
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Unreadable { place, .. } | Self::Syntax { place, .. } | Self::Invalid { place, .. } => Some(place),
            Self::Unknown { .. } | Self::Unreachable { .. } | Self::Request(_) => None,
        }
    }

    /// Advice that goes beyond the message.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        match self {
            Self::Invalid { help, .. } => help.as_deref(),
            Self::Unknown { what: "fabric", .. } => {
                Some("`fabricast fabric list` names the presets; a file is given by its path")
            }
            _ => None,
        }
    }
}
