//! The formats of schedule files: which one a text is, and reading and writing by name.
//!
//! | format | what it is | read by |
//! |---|---|---|
//! | `json` | this project's own, lossless ([`json`]) | fabricast |
//! | `msccl-xml` | two-sided steps of thread blocks ([`msccl_xml`]) | MSCCL, RCCL |
//! | `mscclpp` | one-sided operations of thread blocks ([`mscclpp`]) | MSCCL++ |

use std::ops::Range;

use fabricast_topologies::{Bytes, Place};

use super::{Collective, OpId, Protocol, Schedule, json, msccl_xml, mscclpp};

/// A format of schedule files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// This project's own.
    Json,
    /// MSCCL's algorithm files.
    MscclXml,
    /// MSCCL++'s execution plans.
    Mscclpp,
}

impl Format {
    /// The format that a text looks like. What is none of them is taken for [`Format::Json`], whose reader says what is
    /// wrong with it.
    #[must_use]
    pub fn of(text: &str) -> Self {
        if text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']).starts_with('<') {
            return Self::MscclXml;
        }
        // Own files begin with their version; plans have neither it nor a call.
        if !text.contains("\"fabricast_schedule\"") && text.contains("\"gpus\"") { Self::Mscclpp } else { Self::Json }
    }

    /// Its name: `msccl-xml`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::MscclXml => "msccl-xml",
            Self::Mscclpp => "mscclpp",
        }
    }

    /// What becomes of a protocol in this format: MSCCL moves everything through FIFOs, MSCCL++ stores and loads straight
    /// or sends packets.
    #[must_use]
    pub fn protocol(self, protocol: Protocol) -> Protocol {
        match (self, protocol) {
            (Self::MscclXml, Protocol::Symmetric | Protocol::CopyEngine) => Protocol::Simple,
            (Self::Mscclpp, Protocol::Simple | Protocol::CopyEngine) => Protocol::Symmetric,
            (Self::Mscclpp, Protocol::Ll128) => Protocol::Ll,
            (_, protocol) => protocol,
        }
    }
}

/// Why a text is not a schedule, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct FormatError {
    /// Where in the text.
    pub place: Place,
    /// What was found and what was expected.
    pub message: String,
}

impl From<json::JsonError> for FormatError {
    fn from(error: json::JsonError) -> Self {
        Self { place: error.place, message: error.message }
    }
}

/// Why a schedule cannot be written in a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// More operations than a file of this format should have.
    #[error("{operations} operations; {format} files are written up to {most}")]
    TooLarge {
        /// The format.
        format: &'static str,
        /// How many there are.
        operations: u64,
        /// How many there may be.
        most: u64,
    },
    /// A collective that the format has no word for.
    #[error("{format} files have no {collective}")]
    Collective {
        /// The format.
        format: &'static str,
        /// The collective.
        collective: Collective,
    },
    /// The chunks have no common size.
    #[error("chunks of different sizes that are not multiples of a common one: {reason}")]
    UnequalChunks {
        /// What they are.
        reason: String,
    },
    /// The common size of the chunks is so small that a file would move too many.
    #[error("chunks whose common size is so small that {moved} are moved; expected at most {most}")]
    TooFine {
        /// How many chunks of that size all operations move, at both ends.
        moved: u64,
        /// How many files may move.
        most: u64,
    },
    /// An operation that the format has no words for.
    #[error("operation {} ({what}): {reason}", .operation.0)]
    Unsupported {
        /// The operation.
        operation: OpId,
        /// What it is: `rank 0, put to rank 4`.
        what: String,
        /// What the format cannot say.
        reason: String,
    },
    /// Operations that wait for each other: no file can have them in order.
    #[error("operation {} waits for itself", .operation.0)]
    Deadlock {
        /// One of them.
        operation: OpId,
    },
}

/// Reads a schedule in whichever format it is. `source` is what errors call the text.
///
/// # Errors
/// [`FormatError`] with line and column.
pub fn read(text: &str, source: &str) -> Result<Schedule, FormatError> {
    read_for(text, source).map(|(schedule, _)| schedule)
}

/// The same, with the first and the last size that the file is for; [`Bytes`] of `u64::MAX` where there is no last one. A schedule of
/// our own is for its size.
///
/// # Errors
/// [`FormatError`], as [`read()`].
pub fn read_for(text: &str, source: &str) -> Result<(Schedule, (Bytes, Bytes)), FormatError> {
    match Format::of(text) {
        Format::Json => {
            let schedule = json::from_json(text, source)?;
            let bytes = schedule.header().call.bytes;
            Ok((schedule, (bytes, bytes)))
        }
        Format::MscclXml => msccl_xml::from_xml_for(text, source),
        Format::Mscclpp => mscclpp::from_plan_for(text, source),
    }
}

/// Writes a schedule in a format.
///
/// # Errors
/// [`WriteError`] where the format cannot say what the schedule says.
pub fn write(schedule: &Schedule, format: Format) -> Result<String, WriteError> {
    match format {
        Format::Json => Ok(json::to_json(schedule)),
        Format::MscclXml => msccl_xml::to_xml(schedule),
        Format::Mscclpp => mscclpp::to_plan(schedule),
    }
}

/// Writes a schedule in a format of another tool, for sizes from the first to the last, at the end of a text: who writes many files
/// needs no memory for each.
///
/// # Errors
/// [`WriteError`], as [`write()`]; the text is then as it was.
pub fn write_for(
    schedule: &Schedule,
    format: Format,
    sizes: (Bytes, Bytes),
    text: &mut String,
) -> Result<(), WriteError> {
    let before = text.len();
    let written = match format {
        Format::Json => {
            text.push_str(&json::to_json(schedule));
            Ok(())
        }
        Format::MscclXml => msccl_xml::write_xml(schedule, sizes, text),
        Format::Mscclpp => mscclpp::write_plan(schedule, sizes, text),
    };
    if written.is_err() {
        text.truncate(before);
    }
    written
}

/// A text that is read, for errors with places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) text: &'a str,
    pub(super) name: &'a str,
}

impl Source<'_> {
    /// An error about a part of the text.
    pub(super) fn error(&self, bytes: Range<usize>, message: impl Into<String>) -> FormatError {
        FormatError { place: Place::in_text(self.name, self.text, bytes), message: message.into() }
    }

    /// Where a part of the text stands in it.
    pub(super) fn offset(&self, part: &str) -> usize {
        (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize).min(self.text.len())
    }
}

/// At most the first 40 characters, for error messages.
#[must_use]
pub fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
