//! `table --explain`: rows where the table differs from the library's default choice.

use fabricast_planner::export::{Departure, SavedPlan, Taken, departures};
use fabricast_reports::table::{Column, Table, Unit, Value};
use serde::Serialize;

use crate::commands::counted;
use crate::failure::Failure;
use crate::output::{self, Format, Output};

#[derive(Serialize)]
struct Explained<'a> {
    fabric: &'a str,
    profile: &'a str,
    library: Option<String>,
    /// Number of rows, including rows between the requested sizes.
    rows: usize,
    /// Number of rows for which the plan lacks the library's choice.
    rows_untold: usize,
    /// Number of ranges of collectives without rows, as in tables.
    ranges: usize,
    /// Number of those ranges for which the file lacks the library's choice.
    ranges_untold: usize,
    departures: &'a [Departure],
}

/// Writes the rows where `taken` differs from the library's choice.
pub fn write(plan: &SavedPlan, taken: Taken, output: &Output) -> Result<(), Failure> {
    let departures = departures(plan, taken);
    let ranges = plan.ranges_alone().count();
    let explained = Explained {
        fabric: &plan.fabric,
        profile: &plan.profile,
        library: plan.library.map(|library| library.to_string()),
        rows: plan.all_rows().count(),
        rows_untold: plan.all_rows().filter(|row| row.library_default.is_none()).count(),
        ranges,
        ranges_untold: if plan.departures.is_none() { ranges } else { 0 },
        departures: &departures,
    };
    let text = match output.format {
        Format::Json => output::json(&explained)?,
        Format::Csv => {
            // The CSV has no place for missing information.
            explained.untold().iter().for_each(|untold| output.warn(untold));
            crate::commands::csv(&table(&departures))?
        }
        Format::Text => {
            let mut lines = vec![explained.told(plan)];
            lines.extend(explained.untold());
            if !departures.is_empty() {
                lines.push(table(&departures).text(&output.look()));
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

impl Explained<'_> {
    fn library(&self) -> &str {
        self.library.as_deref().unwrap_or("the library")
    }

    /// Summary: number of differing rows and ranges.
    fn told(&self, plan: &SavedPlan) -> String {
        let saved = self.departures.iter().filter(|one| !plan.has_rows(one.collective)).count();
        let of_rows = || format!("{} of {}", self.departures.len() - saved, counted(self.rows as u64, "row"));
        let of_ranges = || format!("{} in {}", counted(saved as u64, "size"), counted(self.ranges as u64, "range"));
        let what = match (self.rows, self.ranges - self.ranges_untold) {
            (0, 0) => return format!("nothing is known of departures from what {} takes by itself", self.library()),
            (_, 0) => of_rows(),
            (0, _) => of_ranges(),
            (_, _) => format!("{} and {}", of_rows(), of_ranges()),
        };
        format!("{what} depart from what {} takes by itself", self.library())
    }

    /// Notes on missing information.
    fn untold(&self) -> Vec<String> {
        let mut untold = Vec::new();
        if self.rows_untold > 0 {
            untold.push(format!("of {} it is not known what that would be", self.rows_untold));
        }
        if self.ranges_untold > 0 {
            untold.push(format!(
                "the file has {} without rows, and says neither times nor what {} takes there: `table --check` prices both on a fabric",
                counted(self.ranges_untold as u64, "range"),
                self.library()
            ));
        }
        untold
    }
}

fn table(departures: &[Departure]) -> Table {
    let mut table = Table::new(vec![
        Column::new("collective", "collective", Unit::Text),
        Column::new("bytes", "size", Unit::Bytes),
        Column::new("taken", "taken", Unit::Text),
        Column::new("library_default", "by itself", Unit::Text),
        Column::new("predicted_gain", "predicted gain", Unit::Percent),
        Column::new("least_gain", "at least", Unit::Percent),
        Column::new("most_gain", "at most", Unit::Percent),
        Column::new("measured_gain", "measured gain", Unit::Percent),
    ]);
    for one in departures {
        table.row(vec![
            Value::text(one.collective.name()).into(),
            Value::Bytes(one.bytes).into(),
            Value::text(&one.taken).into(),
            Value::text(&one.library_default).into(),
            Value::Deviation(one.predicted_gain).into(),
            Value::or_missing(one.least_gain, Value::Deviation).into(),
            Value::or_missing(one.most_gain, Value::Deviation).into(),
            Value::or_missing(one.measured_gain, Value::Deviation).into(),
        ]);
    }
    table
}
