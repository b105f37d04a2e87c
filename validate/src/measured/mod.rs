//! Measured data: logs of nccl-tests and CSV files, and the manifests that say what they are logs of.
//!
//! Plain data, no GPU: [`read_log`] turns a text into [`Table`]s of [`Row`]s, [`manifest::load`] turns a manifest into
//! [`Measurement`](manifest::Measurement)s, a table each with its fabric and configuration. What cannot be used is never
//! dropped in silence: it comes back as [`Rejected`], with its line and the reason.

mod context;
mod csv_table;
mod error;
mod evidence;
pub mod gpu_run;
mod library;
pub mod manifest;
mod nccl_tests;
pub(crate) mod neighbours;
mod number;
mod rejected;
mod size_rule;
mod table;

pub use context::LogContext;
pub use error::MeasuredError;
pub use evidence::{Evidence, Factor};
pub use library::{Library, LibraryName};
pub use rejected::{Reason, Rejected};
pub use table::{Clock, Counting, Device, Header, Inferred, P2pChannels, Row, Spread, Table, Timing};

/// The formats that a log can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// What nccl-tests prints.
    NcclTestsText,
    /// What nccl-tests writes with `-J`.
    NcclTestsJson,
    /// The output of rccl-tests with `-Z json`.
    RcclTestsJson,
    /// `bytes,time_us`.
    Csv,
}

impl LogFormat {
    /// The format of a text, by its first lines.
    #[must_use]
    pub fn of(text: &str) -> Self {
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

/// Returns true for texts with a JSON object in each line, as container runtimes store logs.
fn is_lines_of_json(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let is_object = |line: &str| serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(line).is_ok();
    lines.next().is_some_and(is_object) && lines.next().is_some_and(is_object)
}

/// The tables of a log, whatever its format; `source` names it in errors.
///
/// # Errors
/// [`MeasuredError`], with the line: no table at all, or a text that is not what its first lines promise.
pub fn read_log(text: &str, source: &str) -> Result<Vec<Table>, MeasuredError> {
    match LogFormat::of(text) {
        LogFormat::NcclTestsText => nccl_tests::text::read(text, source),
        LogFormat::NcclTestsJson => nccl_tests::json::read(text, source),
        LogFormat::RcclTestsJson => nccl_tests::rccl_json::read(text, source),
        LogFormat::Csv => csv_table::read(text, source),
    }
}
