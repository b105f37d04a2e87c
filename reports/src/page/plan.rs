//! Page of a plan: bus bandwidth with prediction interval and lower bound, comparison of the selected strategy with the
//! library's default, and size ranges.

use fabricast_search::export::{SavedPick, SavedPlan, SavedRow};
use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos};

use super::{Block, Choice, LinesWithTooltips, Page, Section};
use crate::chart::{Axis, Band, BandColour, Line, LineChart, Quantity, RateScale, Role};
use crate::format;
use crate::table::{Cell, Column, Emphasis, Table, Unit, Value};

pub(super) fn page(plan: &SavedPlan) -> Page {
    let mut collectives: Vec<Collective> = plan.rows.iter().map(|row| row.collective).collect();
    collectives.dedup();
    let build = |make: &dyn Fn(Collective, &[&SavedRow]) -> Vec<Block>| {
        let options = collectives.iter().map(|&one| {
            let rows: Vec<&SavedRow> = plan.rows.iter().filter(|row| row.collective == one).collect();
            (one.to_string(), make(one, &rows))
        });
        Choice::blocks("Collective", options.collect())
    };
    let names: Vec<String> = collectives.iter().map(ToString::to_string).collect();
    let subject = if names.len() > 3 { format!("{} collectives", names.len()) } else { names.join(", ") };
    let ranks = format!("{} GPUs on {} {}", plan.ranks, plan.nodes, if plan.nodes == 1 { "node" } else { "nodes" });
    let library = plan.library.map(|library| library.to_string());
    let mut facts = vec![
        format!("Fabric {}, {ranks}.", plan.fabric),
        format!("Costs of software: profile {}{}.", plan.profile, dated(&plan.profile_date)),
        "The 80 % interval contains four of five measurements; the bound is a lower bound on the time of any schedule on this fabric.".to_owned(),
    ];
    if let Some(library) = &library {
        facts.push(format!("{library} is compared by its default choices."));
    }
    Page {
        title: format!("{subject} on {}, {ranks}", plan.fabric),
        answer: answer(plan, library.as_deref()),
        sections: vec![
            Section::new("Time and bus bandwidth", build(&|one, rows| time_and_busbw(plan, one, rows))),
            Section::new("Selected strategy by size", vec![Block::Table("Ranges of one pick".into(), ranges(plan))]),
            Section::new(
                "Every size",
                build(&|one, rows| vec![Block::Table(format!("{one} on {}", plan.fabric), sizes(plan, rows))]),
            ),
            Section::new("Assumptions and sources", vec![Block::List(facts)]),
        ],
    }
}

fn dated(date: &str) -> String {
    if date.is_empty() { String::new() } else { format!(" of {date}") }
}

/// Returns the relative speed-up of the selected strategy over the library's default, as a fraction of one; `None` if
/// the default is unknown.
fn gain(row: &SavedRow) -> Option<f64> {
    row.library_default.as_ref().map(|default| default.effective_us() / row.pick.effective_us() - 1.0)
}

fn answer(plan: &SavedPlan, library: Option<&str>) -> Vec<String> {
    let mut sentences = Vec::new();
    let best =
        plan.rows.iter().max_by(|a, b| bus_bandwidth(plan, a, &a.pick).total_cmp(&bus_bandwidth(plan, b, &b.pick)));
    let library_name = library.unwrap_or("the library");
    let gains: Vec<(&SavedRow, f64)> = plan.rows.iter().filter_map(|row| Some((row, gain(row)?))).collect();
    let better: Vec<&(&SavedRow, f64)> = gains.iter().filter(|(_, gain)| *gain > 0.005).collect();
    match (gains.len(), better.iter().max_by(|a, b| a.1.total_cmp(&b.1))) {
        (0, _) => sentences.push(format!("{} sizes are planned.", plan.rows.len())),
        (all, None) => sentences.push(format!("{library_name}'s own choice is retained for all {all} sizes: no candidate is faster by more than the interval.")),
        (all, Some((row, max_gain))) => sentences.push(format!(
            "{library_name} is slower at {} of {all} sizes: by up to {} % at {} of {}, where {} has {} instead of {}.",
            better.len(),
            format::percent(*max_gain),
            row.collective,
            format::bytes(row.bytes),
            row.pick,
            time(row.pick.effective_us()),
            row.library_default.as_ref().map_or_else(String::new, |default| time(default.effective_us()))
        )),
    }
    if let Some(row) = best {
        let share = row.bound_us.map_or_else(String::new, |bound| {
            format!(", {} % of the theoretical peak", format::percent(bound / row.pick.effective_us()))
        });
        sentences.push(format!(
            "The highest bus bandwidth is {} GB/s at {} of {}{share}.",
            format::gb_per_s(bus_bandwidth(plan, row, &row.pick)),
            row.collective,
            format::bytes(row.bytes)
        ));
    }
    sentences
}

fn time(us: f64) -> String {
    format::time(Picos::from_us(us))
}

/// Returns the bus bandwidth in GB/s as nccl-tests defines it.
fn bus_bandwidth(plan: &SavedPlan, row: &SavedRow, pick: &SavedPick) -> f64 {
    rate(plan, row, pick.effective_us())
}

fn rate(plan: &SavedPlan, row: &SavedRow, us: f64) -> f64 {
    row.bytes.0 as f64 / us.max(1e-6) / 1e3 * row.collective.busbw_factor(plan.ranks)
}

/// Quantity that a chart shows against message size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CurveQuantity {
    Time,
    BusBandwidth,
}

/// Returns the chart of bus bandwidth over sizes: the selected strategy with its prediction interval, the library's
/// default, the second-best strategy, and the lower bound.
pub(super) fn busbw(plan: &SavedPlan, collective: Collective, rows: &[&SavedRow]) -> LinesWithTooltips {
    curves(plan, collective, rows, CurveQuantity::BusBandwidth)
}

/// Returns the charts of time and of bus bandwidth over sizes.
fn time_and_busbw(plan: &SavedPlan, collective: Collective, rows: &[&SavedRow]) -> Vec<Block> {
    [CurveQuantity::Time, CurveQuantity::BusBandwidth]
        .map(|quantity| Block::Lines(curves(plan, collective, rows, quantity)))
        .into()
}

fn curves(plan: &SavedPlan, collective: Collective, rows: &[&SavedRow], quantity: CurveQuantity) -> LinesWithTooltips {
    let value = |row: &SavedRow, us: f64| match quantity {
        CurveQuantity::Time => us,
        CurveQuantity::BusBandwidth => rate(plan, row, us),
    };
    let mut tooltips: Vec<Vec<String>> = Vec::new();
    let mut lines: Vec<Line> = Vec::new();
    let mut add = |name: String, role: Role, select: &dyn Fn(&SavedRow) -> Option<SavedPick>| {
        let picks: Vec<(&SavedRow, SavedPick)> = rows.iter().filter_map(|row| Some((*row, select(row)?))).collect();
        if picks.is_empty() {
            return;
        }
        let point = |(row, pick): &(&SavedRow, SavedPick)| (row.bytes.0 as f64, value(row, pick.effective_us()));
        lines.push(Line { name, role, points: picks.iter().map(point).collect() });
        let word = |(row, pick): &(&SavedRow, SavedPick)| {
            let bottleneck = row.bottleneck.as_ref().filter(|_| role == Role::Series(0));
            let bottleneck = bottleneck.map_or_else(String::new, |bottleneck| format!("\nbottleneck: {bottleneck}"));
            format!("{pick}, {}{bottleneck}", time(pick.effective_us()))
        };
        tooltips.push(picks.iter().map(word).collect());
    };
    add("the pick".into(), Role::Series(0), &|row| Some(row.pick.clone()));
    let library_name = plan.library.map_or_else(|| "the library".to_owned(), |library| library.to_string());
    add(format!("{library_name}, default"), Role::Series(1), &|row| row.library_default.clone());
    add("the runner-up".into(), Role::Series(3), &|row| row.runner_up.clone());
    let bound = rows.iter().filter_map(|row| Some((row.bytes.0 as f64, value(row, row.bound_us?))));
    lines.push(Line { name: "bound".into(), role: Role::Bound, points: bound.collect() });
    let band = rows.iter().filter_map(|row| {
        let (low, high) = (value(row, row.pick.low_us?), value(row, row.pick.high_us?));
        Some((row.bytes.0 as f64, low.min(high), low.max(high)))
    });
    let band = Band { name: "80 % interval of the pick".into(), shade: BandColour::Pale, points: band.collect() };
    let values = |line: &Line| line.points.iter().map(|point| point.1).collect::<Vec<f64>>();
    let (title, y) = match quantity {
        CurveQuantity::Time => (format!("Time of {collective}"), Axis::logarithmic(Quantity::Time)),
        CurveQuantity::BusBandwidth => {
            let picked = lines.first().map(values).unwrap_or_default();
            let highest = lines.iter().flat_map(values).fold(0.0, f64::max);
            (
                format!("Bus bandwidth of {collective}, GB/s"),
                Axis::rate(RateScale::Automatic, picked.into_iter(), highest),
            )
        }
    };
    LinesWithTooltips {
        chart: LineChart {
            title,
            x_title: "message size".into(),
            x: Axis::binary(Quantity::Bytes),
            y,
            bands: if band.points.is_empty() { Vec::new() } else { vec![band] },
            lines,
        },
        tooltips,
        remark: String::new(),
    }
}

fn ranges(plan: &SavedPlan) -> Table {
    let mut table = Table::new(vec![
        Column::new("collective", "collective", Unit::Text),
        Column::new("min_bytes", "from", Unit::Bytes),
        Column::new("max_bytes", "to", Unit::Bytes),
        Column::new("algorithm", "algorithm", Unit::Text),
        Column::new("protocol", "protocol", Unit::Text),
        Column::new("channels", "channels", Unit::Number),
    ]);
    for range in &plan.ranges {
        table.row(vec![
            Value::text(range.collective.to_string()).into(),
            Value::Bytes(range.min_bytes).into(),
            Value::Bytes(range.max_bytes).into(),
            Cell::from(Value::text(range.algorithm.to_string())).tone(Emphasis::Strong),
            Value::text(range.protocol.to_string()).into(),
            Value::Count(range.channels.into()).into(),
        ]);
    }
    table
}

fn sizes(plan: &SavedPlan, rows: &[&SavedRow]) -> Table {
    let time = |key: &str, title: &str| Column::new(key, title, Unit::Micros);
    let mut table = Table::new(vec![
        Column::new("bytes", "size", Unit::Bytes),
        Column::new("pick", "pick", Unit::Text),
        time("time_us", "time"),
        time("low_us", "low"),
        time("high_us", "high"),
        Column::new("busbw_gb_per_s", "busbw", Unit::GbPerS),
        Column::new("bound_share", "of peak", Unit::Percent),
        Column::new("library_default", "library default", Unit::Text),
        time("library_us", "default time"),
        Column::new("gain", "gain of pick", Unit::Percent),
        Column::new("bottleneck", "bottleneck", Unit::Text),
    ]);
    let us = |us: Option<f64>| Value::or_missing(us, |us| Value::Time(Picos::from_us(us)));
    for row in rows {
        let (pick, default) = (&row.pick, row.library_default.as_ref());
        let gain = gain(row);
        let tone = if gain.is_some_and(|gain| gain > 0.005) { Emphasis::Good } else { Emphasis::Plain };
        table.row(vec![
            Value::Bytes(Bytes(row.bytes.0)).into(),
            Value::text(pick.to_string()).into(),
            us(Some(pick.effective_us())).into(),
            us(pick.low_us).into(),
            us(pick.high_us).into(),
            Value::Rate(bus_bandwidth(plan, row, pick)).into(),
            Value::or_missing(row.bound_us, |bound| Value::Share(bound / pick.effective_us())).into(),
            Value::or_missing(default, |default| {
                Value::text(default.name.clone().unwrap_or_else(|| default.to_string()))
            })
            .into(),
            us(default.map(SavedPick::effective_us)).into(),
            Cell::from(Value::or_missing(gain, Value::Deviation)).tone(tone),
            Value::or_missing(row.bottleneck.as_ref(), Value::text).into(),
        ]);
    }
    table
}
