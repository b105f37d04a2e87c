//! `table --explain`: rows where the table differs from the library's default choice.

use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_search::export::{ComparedStrategies, Departure, SavedPlan, departures};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::format_count;
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::output_format::Format;

/// JSON of `table --explain`.
#[derive(Serialize, JsonSchema)]
pub struct TableExplanationJson<'a> {
    /// Name of the fabric.
    fabric: &'a str,
    /// Name of the cost profile.
    profile: &'a str,
    /// Library and version; null if the plan has none.
    library: Option<String>,
    /// Number of rows, including rows between the requested sizes.
    rows: usize,
    /// Number of rows for which the library's default choice is unknown.
    rows_without_default: usize,
    /// Number of size ranges of collectives that have no rows.
    ranges: usize,
    /// Number of those ranges for which the library's default choice is unknown.
    ranges_without_default: usize,
    /// Sizes at which the strategy differs from the library's default.
    departures: &'a [Departure],
}

/// Writes the rows where `compared` differs from the library's choice.
///
/// # Errors
/// [`Failure`]: the destination cannot be written.
pub fn write(plan: &SavedPlan, compared: ComparedStrategies, output: &Output) -> Result<(), Failure> {
    let departures = departures(plan, compared);
    let ranges = plan.ranges_without_rows().count();
    let explained = TableExplanationJson {
        fabric: &plan.fabric,
        profile: &plan.profile,
        library: plan.library.map(|library| library.to_string()),
        rows: plan.all_rows().count(),
        rows_without_default: plan.all_rows().filter(|row| row.library_default.is_none()).count(),
        ranges,
        ranges_without_default: if plan.departures.is_none() { ranges } else { 0 },
        departures: &departures,
    };
    let text = match output.format {
        Format::Json => output::json(&Document::Explanation.with(&explained))?,
        Format::Csv => {
            // CSV has no field for notes on missing information, so they are printed as warnings.
            explained.missing_notes().iter().for_each(|note| output.warn(note));
            crate::commands::csv(&table(&departures))?
        }
        Format::Text => {
            let mut lines = vec![explained.summary(plan)];
            lines.extend(explained.missing_notes());
            if !departures.is_empty() {
                lines.push(table(&departures).text(&output.text_options()));
            }
            let mut text = lines.join("\n");
            if !text.ends_with('\n') {
                text.push('\n');
            }
            text
        }
    };
    output.write(&text)
}

impl TableExplanationJson<'_> {
    fn library(&self) -> &str {
        self.library.as_deref().unwrap_or("the library")
    }

    /// Summary: number of differing rows and ranges.
    fn summary(&self, plan: &SavedPlan) -> String {
        let range_sizes = self.departures.iter().filter(|departure| !plan.has_rows(departure.collective)).count();
        let rows_text =
            || format!("{} of {}", self.departures.len() - range_sizes, format_count(self.rows as u64, "row"));
        let ranges_text =
            || format!("{} in {}", format_count(range_sizes as u64, "size"), format_count(self.ranges as u64, "range"));
        let subject = match (self.rows, self.ranges - self.ranges_without_default) {
            (0, 0) => return format!("differences from the default of {} are unknown", self.library()),
            (_, 0) => rows_text(),
            (0, _) => ranges_text(),
            (_, _) => format!("{} and {}", rows_text(), ranges_text()),
        };
        format!("{subject} differ from the default of {}", self.library())
    }

    /// Notes on missing information.
    fn missing_notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.rows_without_default > 0 {
            notes.push(format!("the default of {} is unknown", self.rows_without_default));
        }
        if self.ranges_without_default > 0 {
            notes.push(format!(
                "the file has {} without rows, and states neither times nor the default of {} there: `table --check` evaluates both on a fabric",
                format_count(self.ranges_without_default as u64, "range"),
                self.library()
            ));
        }
        notes
    }
}

fn table(departures: &[Departure]) -> Table {
    let mut table = Table::new(vec![
        Column::new("collective", "collective", Unit::Text),
        Column::new("bytes", "size", Unit::Bytes),
        Column::new("used", "used", Unit::Text),
        Column::new("library_default", "default", Unit::Text),
        Column::new("predicted_gain", "predicted gain", Unit::Percent),
        Column::new("min_gain", "at least", Unit::Percent),
        Column::new("max_gain", "at most", Unit::Percent),
        Column::new("measured_gain", "measured gain", Unit::Percent),
    ]);
    for departure in departures {
        table.row(vec![
            Value::text(departure.collective.name()).into(),
            Value::Bytes(departure.bytes).into(),
            Value::text(&departure.used).into(),
            Value::text(&departure.library_default).into(),
            Value::Deviation(departure.predicted_gain).into(),
            Value::or_missing(departure.min_gain, Value::Deviation).into(),
            Value::or_missing(departure.max_gain, Value::Deviation).into(),
            Value::or_missing(departure.measured_gain, Value::Deviation).into(),
        ]);
    }
    table
}
