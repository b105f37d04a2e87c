//! `plan diff`: the rows in which two saved plans differ.

use std::collections::{BTreeMap, BTreeSet};

use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_search::export::{SavedPick, SavedPlan, SavedRow};
use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos};
use schemars::JsonSchema;
use serde::Serialize;

use super::{format_count, table::read_plan};
use crate::args::DiffArgs;
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::output_format::Format;

/// JSON of `plan diff`.
#[derive(Serialize, JsonSchema)]
pub struct Diff<'a> {
    /// The first plan.
    before: Side<'a>,
    /// The second plan.
    after: Side<'a>,
    /// Number of rows that are equal in both plans.
    equal_rows: usize,
    /// Rows that differ, by collective and size.
    rows: Vec<RowDiff>,
}

/// One of the compared plans.
#[derive(Serialize, JsonSchema)]
struct Side<'a> {
    /// Name of the fabric.
    fabric: &'a str,
    /// Name of the cost profile.
    profile: &'a str,
    /// Date of the cost profile.
    profile_date: &'a str,
    /// Library and version; null if the plan has none.
    library: Option<String>,
    /// Number of ranks.
    ranks: u32,
    /// Number of hosts.
    nodes: u32,
}

/// Row that differs; `before` or `after` is null if that plan has no such row.
#[derive(Serialize, JsonSchema)]
struct RowDiff {
    /// The collective, as nccl-tests names it.
    collective: Collective,
    /// Size of the call in bytes: the larger buffer of a rank.
    bytes: Bytes,
    /// Strategy and time of the first plan.
    before: Option<PickJson>,
    /// Strategy and time of the second plan.
    after: Option<PickJson>,
    /// Relative change of the time: after ÷ before − 1.
    change: Option<f64>,
}

/// Selected strategy of a plan.
#[derive(Serialize, JsonSchema)]
struct PickJson {
    /// Algorithm of the strategy.
    algorithm: &'static str,
    /// Protocol of the strategy.
    protocol: &'static str,
    /// Number of channels of the strategy.
    channels: u16,
    /// Predicted time, in µs; null if the plan has a range but no row.
    time_us: Option<f64>,
}

impl PickJson {
    fn from_pick(pick: &SavedPick) -> Self {
        let (algorithm, protocol) = (pick.algorithm.name(), pick.protocol.name());
        Self { algorithm, protocol, channels: pick.channels, time_us: Some(pick.effective_us()) }
    }

    /// Returns a plan's strategy for a size: that of the row, or that of the range around the size if the collective
    /// has no rows.
    fn pick_at(plan: &SavedPlan, rows: &RowsByCall<'_>, collective: Collective, bytes: Bytes) -> Option<Self> {
        if plan.has_rows(collective) {
            return rows.get(&(collective, bytes)).map(|row| Self::from_pick(&row.pick));
        }
        plan.find_range(collective, bytes).map(|range| {
            let (algorithm, protocol) = (range.algorithm.name(), range.protocol.name());
            Self { algorithm, protocol, channels: range.channels, time_us: None }
        })
    }

    fn name(&self) -> String {
        format!("{} {} × {}", self.algorithm, self.protocol, self.channels)
    }

    fn has_strategy_of(&self, other: &Self) -> bool {
        (self.algorithm, self.protocol, self.channels) == (other.algorithm, other.protocol, other.channels)
    }
}

pub fn run(args: &DiffArgs, output: &Output) -> Result<(), Failure> {
    let (before, after) = (read_plan(&args.before)?, read_plan(&args.after)?);
    let (equal_rows, rows) = compare_rows(&before, &after);
    let diff = Diff { before: side(&before), after: side(&after), equal_rows, rows };
    let text = match output.format {
        Format::Json => output::json(&Document::PlanDiff.with(&diff))?,
        Format::Csv => super::csv(&table(&diff.rows))?,
        Format::Text => {
            let heading = format!("{} differ, {equal_rows} are equal\n", format_count(diff.rows.len() as u64, "row"));
            let sides = format!("before: {}\nafter: {}\n", describe_side(&diff.before), describe_side(&diff.after));
            let rows =
                if diff.rows.is_empty() { String::new() } else { table(&diff.rows).text(&output.text_options()) };
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

fn describe_side(side: &Side<'_>) -> String {
    let library = side.library.as_deref().unwrap_or("no library");
    let ranks = format_count(side.ranks.into(), "rank");
    format!("{} · {ranks} · profile {} {} · {library}", side.fabric, side.profile, side.profile_date)
}

type RowsByCall<'a> = BTreeMap<(Collective, Bytes), &'a SavedRow>;

/// Returns the number of equal rows, and the rows that differ. Plans are compared at the sizes of their rows. For a
/// collective without rows in both plans, they are compared at the first size of each range.
fn compare_rows(before: &SavedPlan, after: &SavedPlan) -> (usize, Vec<RowDiff>) {
    let rows = |plan| -> RowsByCall<'_> {
        let plan: &SavedPlan = plan;
        plan.rows.iter().map(|row| ((row.collective, row.bytes), row)).collect()
    };
    let (rows_before, rows_after) = (rows(before), rows(after));
    let has_rows = |collective| before.has_rows(collective) || after.has_rows(collective);
    let ranges = before.ranges.iter().chain(&after.ranges).filter(|range| !has_rows(range.collective));
    let keys = rows_before.keys().chain(rows_after.keys()).copied();
    let keys: BTreeSet<(Collective, Bytes)> =
        keys.chain(ranges.map(|range| (range.collective, range.min_bytes))).collect();
    let count = keys.len();
    let differences = keys.into_iter().filter_map(|(collective, bytes)| {
        let (before, after) = (
            PickJson::pick_at(before, &rows_before, collective, bytes),
            PickJson::pick_at(after, &rows_after, collective, bytes),
        );
        let both = before.as_ref().zip(after.as_ref());
        let times = both.and_then(|(before, after)| before.time_us.zip(after.time_us));
        let same_time = times.is_none_or(|(before, after)| before.to_bits() == after.to_bits());
        let is_equal = both.is_some_and(|(before, after)| before.has_strategy_of(after) && same_time);
        let change = times.filter(|(before, _)| *before > 0.0).map(|(before, after)| after / before - 1.0);
        (!is_equal).then_some(RowDiff { collective, bytes, before, after, change })
    });
    let differences: Vec<RowDiff> = differences.collect();
    (count - differences.len(), differences)
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
            let time = pick.as_ref().and_then(|pick| pick.time_us);
            Value::or_missing(time, |time| Value::Time(Picos::from_us(time)))
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
