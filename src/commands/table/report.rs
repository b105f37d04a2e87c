//! Result of `table --check`.

use fabricast_collectives::strategy::Strategy;
use fabricast_libraries::Library;
use fabricast_reports::format::percent;
use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_search::export::{Finding, Severity};
use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::{Bytes, Picos};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::format_count;
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::output_format::Format;

/// Minimum time difference, as a fraction, that the first line counts.
const NOTABLE: f64 = 0.01;
/// Maximum number of findings shown as text; further ones are counted.
const MAX_FINDINGS: usize = 40;

/// Selection of a table for a call, and its predicted time.
pub struct SelectionRow {
    pub collective: Collective,
    pub bytes: Bytes,
    pub selected: Option<SelectedStrategy>,
    pub time: Option<Picos>,
    pub library_default: Option<Picos>,
    pub plan: Picos,
    /// Reason why the selection is invalid or has no predicted time.
    pub reason: Option<String>,
}

/// Algorithm, protocol and channels that a table selects, either explicitly or by the library's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedStrategy {
    /// fabricast's name of the algorithm, else the name in the file.
    pub algorithm: String,
    pub protocol: Option<Protocol>,
    /// Number of channels. For a schedule: the largest number of thread blocks on a GPU, which corresponds to channels.
    pub channels: Option<u16>,
}

impl From<Strategy> for SelectedStrategy {
    fn from(strategy: Strategy) -> Self {
        let algorithm = strategy.algorithm.name().to_owned();
        Self { algorithm, protocol: Some(strategy.protocol), channels: Some(strategy.channels) }
    }
}

/// Result of checking a table: problems of the table, and its selection for each call.
pub struct TableReport<'a> {
    pub format: &'a str,
    pub fabric: &'a str,
    pub profile: &'a str,
    pub library: Library,
    pub findings: Vec<Finding>,
    pub rows: Vec<SelectionRow>,
}

/// JSON of `table --check`.
#[derive(Serialize, JsonSchema)]
pub struct CheckedJson<'a> {
    /// Format of the table.
    table_format: &'a str,
    /// Name of the fabric.
    fabric: &'a str,
    /// Name of the cost profile.
    profile: &'a str,
    /// Library and version, such as `nccl-2.28.9`.
    library: String,
    /// Problems of the table.
    findings: &'a [Finding],
    /// Selections of the table, with predicted times.
    rows: Vec<SelectionRowJson<'a>>,
}

/// Selection of the table for a call.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RowJson")]
struct SelectionRowJson<'a> {
    /// The collective, as nccl-tests names it.
    collective: Collective,
    /// Size of the call in bytes: the larger buffer of a rank.
    bytes: Bytes,
    /// Selected algorithm: fabricast's name, else the name in the file; null if the table selects none.
    algorithm: Option<&'a str>,
    /// Selected protocol; null if it is not known.
    protocol: Option<&'static str>,
    /// Selected number of channels; null if it is not known.
    channels: Option<u16>,
    /// Predicted time of the selection, in µs; null if it has none.
    time_us: Option<f64>,
    /// Predicted time of the library's default, in µs; null if it is unknown.
    library_default_us: Option<f64>,
    /// Predicted time of the best strategy, in µs.
    plan_us: f64,
    /// True if the selection can be used on the fabric.
    valid: bool,
    /// Reason why the selection is invalid or has no predicted time; otherwise null.
    reason: Option<&'a str>,
}

impl TableReport<'_> {
    /// Writes the result of the check.
    ///
    /// # Errors
    /// [`Failure`]: the destination cannot be written, or an entry of the table is invalid on the fabric.
    pub fn write(&self, output: &Output) -> Result<(), Failure> {
        let text = match output.format {
            Format::Json => output::json(&Document::TableCheck.with(&self.json()))?,
            Format::Csv => {
                // CSV has no field for findings, so they are printed as warnings.
                self.finding_texts().for_each(|finding| output.warn(&finding));
                crate::commands::csv(&self.table())?
            }
            Format::Text => self.text(output),
        };
        output.write(&text)?;
        let errors = self.findings.iter().filter(|finding| finding.severity == Severity::Error).count();
        let invalid = self.rows.iter().filter(|row| row.reason.is_some()).count();
        if errors + invalid == 0 {
            return Ok(());
        }
        let (rows, sizes) = (format_count(errors as u64, "row"), format_count(invalid as u64, "size"));
        Err(Failure::Failed(format!(
            "{rows} of the table cannot be used on {}, at {sizes} of those evaluated",
            self.fabric
        )))
    }

    fn json(&self) -> CheckedJson<'_> {
        let rows = self.rows.iter().map(|row| SelectionRowJson {
            collective: row.collective,
            bytes: row.bytes,
            algorithm: row.selected.as_ref().map(|selected| selected.algorithm.as_str()),
            protocol: row.selected.as_ref().and_then(|selected| selected.protocol).map(Protocol::name),
            channels: row.selected.as_ref().and_then(|selected| selected.channels),
            time_us: row.time.map(Picos::us),
            library_default_us: row.library_default.map(Picos::us),
            plan_us: row.plan.us(),
            valid: row.reason.is_none(),
            reason: row.reason.as_deref(),
        });
        CheckedJson {
            table_format: self.format,
            fabric: self.fabric,
            profile: self.profile,
            library: self.library.to_string(),
            findings: &self.findings,
            rows: rows.collect(),
        }
    }

    /// Texts of the first findings, at most [`MAX_FINDINGS`], with line numbers.
    fn finding_texts(&self) -> impl Iterator<Item = String> {
        self.findings.iter().take(MAX_FINDINGS).map(|finding| {
            let line = finding.line.map_or_else(String::new, |line| format!("line {line}: "));
            format!("{line}{}", finding.message)
        })
    }

    fn text(&self, output: &Output) -> String {
        let options = output.text_options();
        let mut text = format!(
            "{}\n{} on {} · profile {} · {}\n",
            options.wrap(&self.verdict()),
            self.format,
            self.fabric,
            self.profile,
            self.library
        );
        for (finding, message) in self.findings.iter().zip(self.finding_texts()) {
            let severity = if finding.severity == Severity::Error { "error" } else { "warning" };
            text.push_str(&options.wrap_lines(&format!("{severity}: {message}\n")));
        }
        if self.findings.len() > MAX_FINDINGS {
            text.push_str(&format!("and {} more; JSON has all\n", self.findings.len() - MAX_FINDINGS));
        }
        if !self.rows.is_empty() {
            text.push_str(&self.table().text(&options));
        }
        text
    }

    /// First line: states that the table can or cannot be used, and its gain over the library's default.
    fn verdict(&self) -> String {
        let errors = self.findings.iter().filter(|finding| finding.severity == Severity::Error).count();
        let invalid = self.rows.iter().filter(|row| row.reason.is_some()).count();
        let total = format_count(self.rows.len() as u64, "size");
        if errors + invalid > 0 {
            let rows = format_count(errors as u64, "row");
            return format!("unusable: {rows} of the table cannot be used, at {invalid} of {total}");
        }
        let ratio = |row: &SelectionRow| Some(row.library_default?.0 as f64 / row.time?.0.max(1) as f64);
        let ratios: Vec<f64> = self.rows.iter().filter_map(ratio).collect();
        let count = |is_counted: fn(f64) -> bool| ratios.iter().filter(|ratio| is_counted(**ratio)).count();
        let (faster, slower) = (count(|ratio| ratio > 1.0 + NOTABLE), count(|ratio| ratio < 1.0 - NOTABLE));
        let gain = percent(ratios.iter().copied().fold(1.0, f64::max) - 1.0);
        let loss = percent(1.0 / ratios.iter().copied().fold(1.0, f64::min) - 1.0);
        let library = self.library;
        match (faster, slower) {
            (0, 0) => format!("valid: as fast as {library}'s default at {total}"),
            (_, 0) => format!("valid: of {total}, {faster} faster than {library}'s default (by up to {gain} %)"),
            (0, _) => format!("valid: of {total}, {slower} slower than {library}'s default (by up to {loss} %)"),
            _ => format!(
                "valid: of {total}, {faster} faster than {library}'s default (by up to {gain} %), {slower} slower (by up to \
                 {loss} %)"
            ),
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::new("collective", "collective", Unit::Text),
            Column::new("bytes", "size", Unit::Bytes),
            Column::new("algorithm", "algorithm", Unit::Text),
            Column::new("protocol", "protocol", Unit::Text),
            Column::new("channels", "channels", Unit::Number),
            Column::new("time_us", "time", Unit::Micros),
            Column::new("library_default_us", "default", Unit::Micros),
            Column::new("plan_us", "plan", Unit::Micros).spare(),
            Column::new("valid", "valid", Unit::Text),
            Column::new("reason", "reason", Unit::Text).spare(),
        ]);
        for row in &self.rows {
            let selected = row.selected.as_ref();
            table.row(vec![
                Value::text(row.collective.name()).into(),
                Value::Bytes(row.bytes).into(),
                Value::or_missing(selected, |selected| Value::text(&selected.algorithm)).into(),
                Value::or_missing(selected.and_then(|selected| selected.protocol), |protocol| {
                    Value::text(protocol.name())
                })
                .into(),
                Value::or_missing(selected.and_then(|selected| selected.channels), |channels| {
                    Value::Count(channels.into())
                })
                .into(),
                Value::or_missing(row.time, Value::Time).into(),
                Value::or_missing(row.library_default, Value::Time).into(),
                Value::Time(row.plan).into(),
                Value::text(if row.reason.is_none() { "yes" } else { "no" }).into(),
                Value::or_missing(row.reason.as_ref(), Value::text).into(),
            ]);
        }
        table
    }
}
