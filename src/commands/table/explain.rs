//! `table --explain`: where the table departs from the library's own choice.

use fabricast_planner::export::{Departure, SavedPlan, departures};
use fabricast_reports::table::{Column, Table, Unit, Value};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{self, Format, Output};

#[derive(Serialize)]
struct Explained<'a> {
    fabric: &'a str,
    profile: &'a str,
    library: Option<String>,
    rows: usize,
    departures: &'a [Departure],
}

/// Writes the departures.
pub fn write(plan: &SavedPlan, output: &Output) -> Result<(), Failure> {
    let departures = departures(plan);
    let library = plan.library.map(|library| library.to_string());
    let text = match output.format {
        Format::Json => output::json(&Explained {
            fabric: &plan.fabric,
            profile: &plan.profile,
            library,
            rows: plan.rows.len(),
            departures: &departures,
        })?,
        Format::Csv => crate::commands::csv(&table(&departures))?,
        Format::Text => {
            let known = plan.rows.iter().filter(|row| row.library_default.is_some()).count();
            let name = library.as_deref().unwrap_or("the library");
            let mut text =
                format!("{} of {} rows depart from what {name} takes by itself\n", departures.len(), plan.rows.len());
            if known < plan.rows.len() {
                text.push_str(&format!("of {} it is not known what that would be\n", plan.rows.len() - known));
            }
            if !departures.is_empty() {
                text.push_str(&table(&departures).text(&output.look()));
            }
            text
        }
    };
    output.write(&text)
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
