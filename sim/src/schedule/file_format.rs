//! File formats of schedules, the call sizes for which a file is valid, and errors of reading and writing.

use std::ops::Range;

use fabricast_topologies::{Bytes, SourceLocation};

use super::{Collective, OpId, Protocol, json};

/// File format of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// fabricast's own lossless JSON.
    Json,
    /// Algorithm files of MSCCL (XML).
    MscclXml,
    /// Execution plans of MSCCL++ (JSON).
    Mscclpp,
}

/// Range of call sizes, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSizes {
    /// Smallest call size.
    pub min: Bytes,
    /// Largest call size; `u64::MAX` if unlimited.
    pub max: Bytes,
}

impl CallSizes {
    /// Creates the range that contains one size.
    #[must_use]
    pub const fn only(bytes: Bytes) -> Self {
        Self { min: bytes, max: bytes }
    }
}

impl Format {
    /// Detects the format of a text. Unrecognized text counts as [`Format::Json`], whose reader reports the error.
    #[must_use]
    pub fn detect(text: &str) -> Self {
        if text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']).starts_with('<') {
            return Self::MscclXml;
        }
        // Files of fabricast begin with their version; execution plans have neither a version nor a call.
        if !text.contains("\"fabricast_schedule\"") && text.contains("\"gpus\"") { Self::Mscclpp } else { Self::Json }
    }

    /// Returns the name, such as `msccl-xml`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::MscclXml => "msccl-xml",
            Self::Mscclpp => "mscclpp",
        }
    }

    /// Returns the protocol by which `protocol` is represented in this format. MSCCL sends all data through FIFOs;
    /// MSCCL++ stores and loads directly, or sends packets.
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

/// Error of reading a schedule, with its location in the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {message}")]
pub struct FormatError {
    /// Location in the text.
    pub location: SourceLocation,
    /// Content found and content expected.
    pub message: String,
}

impl From<json::JsonError> for FormatError {
    fn from(error: json::JsonError) -> Self {
        Self { location: error.location, message: error.message }
    }
}

/// Reasons why a schedule cannot be written in a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The schedule has more operations than a file of this format may have.
    #[error("{operations} operations; {format} files are written up to {most}")]
    TooLarge {
        /// Name of the format.
        format: &'static str,
        /// Number of operations.
        operations: u64,
        /// Largest number of operations allowed.
        most: u64,
    },
    /// The format cannot express the collective.
    #[error("{format} files have no {collective}")]
    Collective {
        /// Name of the format.
        format: &'static str,
        /// Collective that the format lacks.
        collective: Collective,
    },
    /// The chunks have no common unit size.
    #[error("chunks of different sizes that are not multiples of a common one: {reason}")]
    UnequalChunks {
        /// Description of the chunks that have no common unit.
        reason: String,
    },
    /// The common unit of the chunks is so small that the file would move too many units.
    #[error("chunks whose common size is so small that {moved} are moved; expected at most {most}")]
    TooFine {
        /// Number of units moved by all operations, counted at both ends.
        moved: u64,
        /// Largest number of units that a file may move.
        most: u64,
    },
    /// The format cannot express an operation.
    #[error("operation {} ({description}): {reason}", .operation.0)]
    Unsupported {
        /// Id of the operation.
        operation: OpId,
        /// Description, such as `rank 0, put to rank 4`.
        description: String,
        /// Description of the unsupported feature.
        reason: String,
    },
    /// Operations wait for each other in a cycle and cannot be ordered in a file.
    #[error("operation {} waits for itself", .operation.0)]
    Deadlock {
        /// Id of one operation of the cycle.
        operation: OpId,
    },
    /// Thread blocks would wait for each other because connections hold only a few messages.
    #[error("operation {} waits for itself once connections hold {messages} unread messages, as many as MSCCL's FIFOs", .operation.0)]
    FullFifos {
        /// Id of one operation of the cycle.
        operation: OpId,
        /// Number of messages that a connection holds.
        messages: u32,
    },
}

/// Text being read, and its name for error messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) text: &'a str,
    pub(super) name: &'a str,
}

impl Source<'_> {
    /// Creates an error located at a range of the text.
    pub(super) fn error(&self, bytes: Range<usize>, message: impl Into<String>) -> FormatError {
        FormatError { location: SourceLocation::locate(self.name, self.text, bytes), message: message.into() }
    }

    /// Byte offset of a substring of the text.
    pub(super) fn offset(&self, part: &str) -> usize {
        (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize).min(self.text.len())
    }
}

/// Returns the first 40 characters of a text at most, for error messages.
#[must_use]
pub fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
