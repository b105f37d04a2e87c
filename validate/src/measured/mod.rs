//! Measured data: logs of nccl-tests, CSV files, and manifests that describe them.
//!
//! [`read_log`] parses a text into [`Table`]s of [`Row`]s. [`manifest::load`] loads a manifest into
//! [`Measurement`](manifest::Measurement)s, each a table with its fabric and configuration. Rows that cannot be used
//! are returned as [`RejectedRow`], with line and reason. No GPU is needed.

mod context;
mod csv_table;
mod error;
mod evidence;
pub mod gpu_run;
mod inference;
pub(crate) mod interpolation;
mod library;
pub mod manifest;
mod nccl_report;
mod nccl_tests;
mod number;
mod rejected;
mod size_rule;
mod table;

pub use context::LogContext;
pub use error::MeasuredError;
pub use evidence::{Evidence, Factor};
pub use library::{LibraryName, MeasuredLibrary};
pub use nccl_report::{ConnectionCounts, NcclReport, TopologySearch};
pub use rejected::{Reason, RejectedRow};
pub use table::{
    Clock, Counting, Header, InferredHeader, ListedDevice, P2pChannels, PciBus, Row, Spread, Table, Timing,
};

/// Format of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text output of nccl-tests.
    NcclTestsText,
    /// JSON output of nccl-tests (`-J`).
    NcclTestsJson,
    /// JSON output of rccl-tests (`-Z json`).
    RcclTestsJson,
    /// CSV with the columns `bytes,time_us`.
    Csv,
}

impl LogFormat {
    /// Detects the format of a text from its first lines.
    #[must_use]
    pub fn detect(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let start = text.trim_start();
        let in_object = start.strip_prefix('{').map(str::trim_start);
        if in_object.is_some_and(|object| object.starts_with(['"', '}'])) && !is_lines_of_json(start) {
            return Self::NcclTestsJson;
        }
        let in_list = start.strip_prefix('[').map(str::trim_start);
        if in_list.is_some_and(|list| list.starts_with(['{', ']'])) {
            return Self::RcclTestsJson;
        }
        let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
        if first.is_some_and(csv_table::is_head) { Self::Csv } else { Self::NcclTestsText }
    }
}

/// Returns true if each line of a text is a JSON object, as in logs of container runtimes.
fn is_lines_of_json(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let is_object = |line: &str| serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(line).is_ok();
    lines.next().is_some_and(is_object) && lines.next().is_some_and(is_object)
}

/// Reads the tables of a log in any format; `source` names the log in errors.
///
/// # Errors
/// [`MeasuredError`] with the line, if there is no table or the text does not match its detected format.
pub fn read_log(text: &str, source: &str) -> Result<Vec<Table>, MeasuredError> {
    match LogFormat::detect(text) {
        LogFormat::NcclTestsText => nccl_tests::text::read(text, source),
        LogFormat::NcclTestsJson => nccl_tests::json::read(text, source),
        LogFormat::RcclTestsJson => nccl_tests::rccl_json::read(text, source),
        LogFormat::Csv => csv_table::read(text, source),
    }
}
