//! Measured data: logs of nccl-tests and CSV files, and the manifests that say what they are logs of.
//!
//! Plain data, no GPU: [`read_log`] turns a text into [`Table`]s of [`Row`]s, [`manifest::load`] turns a manifest into
//! [`Measurement`](manifest::Measurement)s, a table each with its fabric and configuration. What cannot be used is never
//! dropped in silence: it comes back as [`Rejected`], with its line and the reason.

mod csv_table;
mod error;
pub mod gpu_run;
mod library;
pub mod manifest;
mod nccl_tests;
pub(crate) mod neighbours;
mod number;
mod rejected;
mod size_rule;
mod table;

pub use error::MeasuredError;
pub use library::{Library, LibraryName};
pub use rejected::{Reason, Rejected};
pub use table::{Clock, Counting, Device, Header, Row, Spread, Table, Timing};

/// The formats that a log can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// What nccl-tests prints.
    NcclTestsText,
    /// What nccl-tests writes with `-J`.
    NcclTestsJson,
    /// `bytes,time_us`.
    Csv,
}

impl LogFormat {
    /// The format of a text, by its first lines.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if text.trim_start().starts_with('{') {
            return Self::NcclTestsJson;
        }
        let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
        if first.is_some_and(csv_table::is_head) { Self::Csv } else { Self::NcclTestsText }
    }
}

/// The tables of a log, whatever its format; `source` names it in errors.
///
/// # Errors
/// [`MeasuredError`], with the line: no table at all, or a text that is not what its first lines promise.
pub fn read_log(text: &str, source: &str) -> Result<Vec<Table>, MeasuredError> {
    match LogFormat::of(text) {
        LogFormat::NcclTestsText => nccl_tests::text::read(text, source),
        LogFormat::NcclTestsJson => nccl_tests::json::read(text, source),
        LogFormat::Csv => csv_table::read(text, source),
    }
}
