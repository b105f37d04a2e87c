//! `plan diff`: the rows in which two saved plans differ.

use std::collections::BTreeMap;

use fabricast_planner::export::{SavedPick, SavedPlan, SavedRow};
use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos};
use serde::Serialize;

use super::{counted, table::read_plan};
use crate::args::DiffArgs;
use crate::failure::Failure;
use crate::output::{self, Format, Output};

#[derive(Serialize)]
struct Diff<'a> {
    before: Side<'a>,
    after: Side<'a>,
    /// Rows that both have and that are alike.
    alike: usize,
    rows: Vec<RowDiff>,
}

#[derive(Serialize)]
struct Side<'a> {
    fabric: &'a str,
    profile: &'a str,
    profile_date: &'a str,
    library: Option<String>,
    ranks: u32,
    nodes: u32,
}

/// A row that is not alike; null where one plan has none.
#[derive(Serialize)]
struct RowDiff {
    collective: Collective,
    bytes: Bytes,
    before: Option<PickJson>,
    after: Option<PickJson>,
    /// Time after over time before, less one.
    change: Option<f64>,
}

#[derive(Serialize)]
struct PickJson {
    algorithm: &'static str,
    protocol: &'static str,
    channels: u16,
    time_us: f64,
}

impl PickJson {
    fn of(pick: &SavedPick) -> Self {
        let (algorithm, protocol) = (pick.algorithm.name(), pick.protocol.name());
        Self { algorithm, protocol, channels: pick.channels, time_us: pick.counted_us() }
    }

    fn name(&self) -> String {
        format!("{} {} × {}", self.algorithm, self.protocol, self.channels)
    }

    fn strategy(&self) -> (&str, &str, u16) {
        (self.algorithm, self.protocol, self.channels)
    }
}

pub fn run(args: &DiffArgs, output: &Output) -> Result<(), Failure> {
    let (before, after) = (read_plan(&args.before)?, read_plan(&args.after)?);
    let (alike, rows) = differing(&before, &after);
    let diff = Diff { before: side(&before), after: side(&after), alike, rows };
    let text = match output.format {
        Format::Json => output::json(&diff)?,
        Format::Csv => super::csv(&table(&diff.rows))?,
        Format::Text => {
            let heading = format!("{} differ, {alike} are alike\n", counted(diff.rows.len() as u64, "row"));
            let sides = format!("before: {}\nafter: {}\n", named(&diff.before), named(&diff.after));
            let rows = if diff.rows.is_empty() { String::new() } else { table(&diff.rows).text(&output.look()) };
            format!("{sides}{heading}{rows}")
        }
    };
    output.write(&text)
}

fn side(plan: &SavedPlan) -> Side<'_> {
    Side {
        fabric: &plan.fabric,
        profile: &plan.profile,
        profile_date: &plan.profile_date,
        library: plan.library.map(|library| library.to_string()),
        ranks: plan.ranks,
        nodes: plan.nodes,
    }
}

fn named(side: &Side<'_>) -> String {
    let library = side.library.as_deref().unwrap_or("no library");
    let ranks = counted(side.ranks.into(), "rank");
    format!("{} · {ranks} · profile {} {} · {library}", side.fabric, side.profile, side.profile_date)
}

/// A row of the one and of the other.
type Sides<'a> = (Option<&'a SavedRow>, Option<&'a SavedRow>);

/// How many rows are alike, and the others.
fn differing(before: &SavedPlan, after: &SavedPlan) -> (usize, Vec<RowDiff>) {
    let mut rows: BTreeMap<(Collective, Bytes), Sides<'_>> = BTreeMap::new();
    for row in &before.rows {
        rows.entry((row.collective, row.bytes)).or_default().0 = Some(row);
    }
    for row in &after.rows {
        rows.entry((row.collective, row.bytes)).or_default().1 = Some(row);
    }
    let all = rows.len();
    let pick = |row: Option<&SavedRow>| row.map(|row| PickJson::of(&row.pick));
    let differ = rows.into_iter().filter_map(|((collective, bytes), (before, after))| {
        let (before, after) = (pick(before), pick(after));
        let alike = before
            .as_ref()
            .zip(after.as_ref())
            .is_some_and(|(a, b)| a.strategy() == b.strategy() && a.time_us.to_bits() == b.time_us.to_bits());
        let change = before.as_ref().zip(after.as_ref()).filter(|(before, _)| before.time_us > 0.0);
        let change = change.map(|(before, after)| after.time_us / before.time_us - 1.0);
        (!alike).then_some(RowDiff { collective, bytes, before, after, change })
    });
    let differ: Vec<RowDiff> = differ.collect();
    (all - differ.len(), differ)
}

fn table(rows: &[RowDiff]) -> Table {
    let mut table = Table::new(vec![
        Column::new("collective", "collective", Unit::Text),
        Column::new("bytes", "size", Unit::Bytes),
        Column::new("before", "before", Unit::Text),
        Column::new("after", "after", Unit::Text),
        Column::new("before_us", "before", Unit::Micros),
        Column::new("after_us", "after", Unit::Micros),
        Column::new("change", "change", Unit::Percent),
    ]);
    for row in rows {
        let name = |pick: &Option<PickJson>| Value::or_missing(pick.as_ref(), |pick| Value::text(pick.name()));
        let time = |pick: &Option<PickJson>| {
            Value::or_missing(pick.as_ref(), |pick| Value::Time(Picos::from_us(pick.time_us)))
        };
        table.row(vec![
            Value::text(row.collective.name()).into(),
            Value::Bytes(row.bytes).into(),
            name(&row.before).into(),
            name(&row.after).into(),
            time(&row.before).into(),
            time(&row.after).into(),
            Value::or_missing(row.change, Value::Deviation).into(),
        ]);
    }
    table
}
