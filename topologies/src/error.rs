//! Errors that occur while a text is read into a fabric. Errors in the text itself have a source location.

use std::fmt;
use std::ops::Range;

use crate::lines::LineIndex;

/// Result of the fallible functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A source location (span) in a text. Lines and columns count from 1; columns count characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceLocation {
    /// Name of the text: a file name, a preset name or `<input>`.
    pub source: String,
    /// Line, from 1; 0 if no line is known (a missing file).
    pub line: u32,
    /// Column in characters, from 1; 0 if no column is known.
    pub column: u32,
    /// Byte range in the text, for underlining.
    pub bytes: Range<usize>,
}

impl SourceLocation {
    /// Creates a location that names the source only.
    #[must_use]
    pub fn from_source(source: &str) -> Self {
        Self { source: source.to_owned(), ..Self::default() }
    }

    /// The location of a byte range of `text`. Ranges past the end are clamped to it. Each call reads the text up to
    /// the range; a reader that needs the locations of many items uses [`Origin::with_line_index`].
    #[must_use]
    pub fn locate(source: &str, text: &str, bytes: Range<usize>) -> Self {
        Origin::new(source, text).locate(bytes)
    }

    /// The location of a CSV field in the first line at or after byte `start` that is neither empty nor a comment
    /// (`#`). `before` contains the known fields to the left of the field. An empty field is located at the start of
    /// the line or behind the last field of `before`.
    #[must_use]
    pub fn locate_field<'a>(
        source: &str,
        text: &str,
        start: usize,
        before: impl IntoIterator<Item = &'a str>,
        field: &str,
    ) -> Self {
        Origin::new(source, text).locate_field(start, before, field)
    }
}

/// A text and its name, from which errors derive their line and column.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// Name of the text: a file name, a preset name or `<input>`.
    pub source: &'a str,
    /// The whole text that is read.
    pub text: &'a str,
    lines: Option<&'a LineIndex>,
}

impl<'a> Origin<'a> {
    /// Creates an origin without a line index. Each lookup reads the text up to the location, which suits readers that
    /// need few locations.
    #[must_use]
    pub fn new(source: &'a str, text: &'a str) -> Self {
        Self { source, text, lines: None }
    }

    /// Variant of this origin with a line index of its text, for readers that store the location of every item.
    #[must_use]
    pub fn with_line_index(self, lines: &'a LineIndex) -> Self {
        Self { lines: Some(lines), ..self }
    }

    /// The location of a byte range. Ranges past the end are clamped to it.
    #[must_use]
    pub fn locate(self, bytes: Range<usize>) -> SourceLocation {
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
        SourceLocation {
            source: self.source.to_owned(),
            line,
            column,
            bytes: start..bytes.end.clamp(start, text.len()),
        }
    }

    /// The location of a CSV field; see [`SourceLocation::locate_field`].
    #[must_use]
    pub fn locate_field<'b>(
        self,
        start: usize,
        before: impl IntoIterator<Item = &'b str>,
        field: &str,
    ) -> SourceLocation {
        let mut begin = start;
        let mut record = "";
        for line in self.text.get(start..).unwrap_or_default().split_inclusive('\n') {
            record = line.trim();
            if !record.is_empty() && !record.starts_with('#') {
                begin += line.len() - line.trim_start().len();
                break;
            }
            begin += line.len();
        }
        let passed = before.into_iter().fold(0, |at, previous| {
            let remaining = record.get(at..).unwrap_or_default();
            // The comma is skipped as well.
            remaining.find(previous).map_or(at, |offset| (at + offset + previous.len() + 1).min(record.len()))
        });
        let remaining = record.get(passed..).unwrap_or_default();
        let at =
            begin + remaining.find(field).map_or_else(|| record.find(field).unwrap_or(0), |offset| passed + offset);
        self.locate(at..at + field.len())
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.column) {
            (0, _) => write!(f, "{}", self.source),
            (line, 0) => write!(f, "{}:{line}", self.source),
            (line, column) => write!(f, "{}:{line}:{column}", self.source),
        }
    }
}

/// Reasons why a fabric could not be read, built or routed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The file does not exist or cannot be read as text.
    #[error("{location}: cannot read: {reason}")]
    Unreadable {
        /// The path of the file; line and column are 0.
        location: SourceLocation,
        /// Reason given by the operating system or the decoder.
        reason: String,
    },
    /// The text is not well formed (XML, TOML, a matrix).
    #[error("{location}: {message}")]
    Syntax {
        /// Location of the syntax error.
        location: SourceLocation,
        /// Description with the found and the expected text.
        message: String,
    },
    /// The text is well-formed, but a value in it is invalid or contradicts the rest.
    #[error("{location}: {message}")]
    Invalid {
        /// Location of the invalid value.
        location: SourceLocation,
        /// Description of the fault and of valid contents.
        message: String,
        /// Advice on how to fix it, where it adds to the message.
        help: Option<String>,
    },
    /// No preset, device or link has this name.
    #[error("unknown {item} `{name}`{}", near_misses(.suggestions))]
    Unknown {
        /// Kind of name that was looked up: `fabric`, `device`, `link`.
        item: &'static str,
        /// The name as given.
        name: String,
        /// Known names that are similar, best match first.
        suggestions: Vec<String>,
    },
    /// No usable path joins two devices.
    #[error("no path from {from} to {to}: {reason}")]
    Unreachable {
        /// Id of the device at which the path would start.
        from: String,
        /// Id of the device at which the path would end.
        to: String,
        /// The reason why no path is usable.
        reason: String,
    },
    /// A request that the fabric cannot satisfy (0 GPUs, more GPUs than the preset has, a network key out of range).
    #[error("{0}")]
    Request(String),
}

fn near_misses(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(", ")) }
}

impl Error {
    /// The source location of the error; `None` for errors that are not about a text.
    #[must_use]
    pub fn location(&self) -> Option<&SourceLocation> {
        match self {
            Self::Unreadable { location: place, .. }
            | Self::Syntax { location: place, .. }
            | Self::Invalid { location: place, .. } => Some(place),
            Self::Unknown { .. } | Self::Unreachable { .. } | Self::Request(_) => None,
        }
    }

    /// Advice on how to fix the cause; `None` if the message suffices.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        match self {
            Self::Invalid { help, .. } => help.as_deref(),
            Self::Unknown { item: "fabric", .. } => {
                Some("`fabricast fabric list` names the presets; a file is given by its path")
            }
            _ => None,
        }
    }
}
