//! Text and CSV of a comparison.

use fabricast_reports::format::percent;
use fabricast_reports::table::{Cell, Column, Emphasis, Table, TextOptions, Unit, Value, stacked};
use fabricast_validate::compare::{Compared, Group, RangeFinding, Regret, Summary, Verdict, has_unpredicted_rccl};
use fabricast_validate::measured::LogContext;
use fabricast_validate::measured::manifest::{Measurement, Role, launch_name, processes_name};

use super::super::format_count;
use super::gate::GateOutcome;
use super::{ComparisonAnswer, group_name, verdict};
use crate::args::RowChoice;

/// Formats the comparison: verdicts and causes, error statistics of the predictions, a table of groups, and tables of
/// rows.
pub fn comparison_text(
    answer: &ComparisonAnswer<'_>,
    judged: Option<&GateOutcome>,
    rows: Option<RowChoice>,
    options: &TextOptions,
) -> String {
    let summary = answer.comparison.summary;
    let mut profiles = answer.comparison.profiles.clone();
    profiles.sort_unstable();
    profiles.dedup();
    let rccl_count = answer.measurements.iter().filter(|measurement| has_unpredicted_rccl(measurement)).count();
    let rccl_note = match rccl_count {
        0 => "",
        all if all == answer.measurements.len() => {
            "RCCL's choices are not predicted on these hosts: times are compared with its fastest algorithm and protocol · "
        }
        _ => {
            "RCCL's choices are not predicted on some hosts: its times are compared with its fastest algorithm and protocol · "
        }
    };
    let groups = answer.comparison.groups.len();
    let is_single = groups == 1;
    let mut text = String::new();
    // Remarks state that the log contradicts its description, on which the verdicts depend.
    let remarks = distinct(answer, |context| &context.remarks);
    text.extend(remarks.iter().map(|remark| format!("note: {remark}\n")));
    text.extend(judged.iter().flat_map(|judged| judged.lines(answer)).map(|line| format!("{line}\n")));
    text.extend(verdict::lines(answer).iter().map(|line| format!("{line}\n")));
    text.push_str(&format!(
        "{rccl_note}{} · error median {} %, mean {} %, p90 {} %, bias {} % · {} % inside the 80 % prediction interval · profile {}\n",
        format_count(summary.rows as u64, "row"),
        percent(summary.median),
        percent(summary.mean),
        percent(summary.p90),
        signed(summary.bias),
        percent(answer.comparison.coverage.share()),
        profiles.join(", "),
    ));
    let assumptions = distinct(answer, |context| &context.assumptions);
    if !assumptions.is_empty() {
        text.push_str(&format!("assumed: {}\n", assumptions.join(", ")));
    }
    if let Some(Regret { calls, strategies, mean, p90, worst }) = answer.comparison.regret {
        text.push_str(&format!(
            "pick slower than the fastest of {} forced for {}, by measured times: mean {} %, p90 {} %, worst {} %\n",
            format_count(strategies as u64, "candidate"),
            format_count(calls as u64, "call"),
            percent(mean),
            percent(p90),
            percent(worst),
        ));
    }
    text.push_str(&without_outliers(answer));
    let choice = rows.unwrap_or(if is_single { RowChoice::All } else { RowChoice::Outside });
    let mut tables: Vec<Table> = Vec::new();
    if is_single {
        text.push_str(&format!("{}\n", group_name(answer, 0)));
        text = options.wrap_lines(&text);
    } else {
        text = options.wrap_lines(&text);
        text.push_str(&group_table(answer).text(options));
        text = format!("{}\n", text.trim_end());
    }
    for number in 0..groups {
        if let Some(mut table) = row_table(answer, number, choice) {
            if !is_single {
                table.heading(format!("\n{}", group_name(answer, number)));
            }
            tables.push(table);
        }
    }
    if !tables.is_empty() {
        text.push_str(&stacked(&tables, options));
    }
    text
}

/// Distinct texts of the measurements' contexts, in order of first occurrence.
pub(super) fn distinct<'a>(
    answer: &ComparisonAnswer<'a>,
    select: impl Fn(&'a LogContext) -> &'a Vec<String>,
) -> Vec<&'a str> {
    let mut texts: Vec<&str> = Vec::new();
    for text in answer.measurements.iter().flat_map(|measurement| select(&measurement.context)) {
        if !texts.contains(&text.as_str()) {
            texts.push(text);
        }
    }
    texts
}

/// Error statistics without outliers of the measurement; separate for the rows of a fit and others if both occur. Empty
/// if there are no outliers.
fn without_outliers(answer: &ComparisonAnswer<'_>) -> String {
    let comparison = answer.comparison;
    let outliers: Vec<&Compared> = comparison.rows.iter().filter(|row| row.outlier.is_some()).collect();
    if outliers.is_empty() {
        return String::new();
    }
    let line = |label: &str, summary: Summary| {
        format!(
            "{label}: {} · error median {} %, mean {} %, p90 {} %, bias {} %\n",
            format_count(summary.rows as u64, "row"),
            percent(summary.median),
            percent(summary.mean),
            percent(summary.p90),
            signed(summary.bias),
        )
    };
    let summarize_role = |role: Role| {
        let has_role = |row: &&Compared| {
            answer.measurements.get(row.measurement).is_some_and(|measurement| measurement.role == role)
        };
        let smooth = comparison.rows.iter().filter(|row| row.outlier.is_none());
        Summary::from_errors(smooth.filter(has_role).map(Compared::error))
    };
    let mut text = line("without outliers of the measurement", comparison.without_outliers);
    let (fit, check) = (summarize_role(Role::Fit), summarize_role(Role::Check));
    if fit.rows > 0 && check.rows > 0 {
        text.push_str(&line("  for fitting", fit));
        text.push_str(&line("  for checking", check));
    }
    let location = |row: &&Compared| {
        let measurement = answer.measurements.get(row.measurement)?;
        Some(format!("{}:{}", measurement.name, row.line))
    };
    let names: Vec<String> = outliers.iter().filter_map(location).collect();
    text.push_str(&format!(
        "{} more than 25 % outside the range that the neighbours in size allow: {}\n",
        format_count(outliers.len() as u64, "outlier"),
        names.join(", ")
    ));
    text
}

pub(super) fn signed(share: f64) -> String {
    let sign = if share > 0.0 { "+" } else { "" };
    format!("{sign}{}", percent(share))
}

fn group_table(answer: &ComparisonAnswer<'_>) -> Table {
    let mut table = Table::new(vec![
        Column::new("group", "group", Unit::Text),
        Column::new("verdict", "verdict", Unit::Text),
        Column::new("rows", "rows", Unit::Number),
        Column::new("median", "median", Unit::Percent),
        Column::new("mean", "mean", Unit::Percent),
        Column::new("p90", "p90", Unit::Percent),
        Column::new("bias", "bias", Unit::Percent),
        Column::new("slower", "slower", Unit::Number),
        Column::new("faster", "faster", Unit::Number),
    ]);
    for (number, group) in answer.comparison.groups.iter().enumerate() {
        let count = |count: usize| match count {
            0 => Cell::from(Value::Count(0)).tone(Emphasis::Faint),
            count => Cell::from(Value::Count(count as u64)).tone(Emphasis::Doubtful),
        };
        let overall = verdict::overall(group);
        table.row(vec![
            Value::text(group_name(answer, number)).into(),
            Cell::from(Value::text(overall.name())).tone(match overall {
                RangeFinding::Expected => Emphasis::Good,
                RangeFinding::Slow => Emphasis::Bad,
                RangeFinding::Fast => Emphasis::Doubtful,
            }),
            Value::Count(group.summary.rows as u64).into(),
            Value::Share(group.summary.median).into(),
            Value::Share(group.summary.mean).into(),
            Value::Share(group.summary.p90).into(),
            Value::Deviation(group.summary.bias).into(),
            count(group.slower),
            count(group.faster),
        ]);
    }
    table
}

/// Factor from algorithm bandwidth to bus bandwidth for a group's collective.
fn bus_factor(answer: &ComparisonAnswer<'_>, group: &Group) -> f64 {
    let first = group.measurements.first().and_then(|&first| answer.measurements.get(first));
    first.map_or(1.0, Measurement::bus_factor)
}

/// Table of a group's rows; `None` if no row is selected.
fn row_table(answer: &ComparisonAnswer<'_>, number: usize, choice: RowChoice) -> Option<Table> {
    let group = answer.comparison.groups.get(number)?;
    let is_shown = |row: &&Compared| match choice {
        RowChoice::All => true,
        RowChoice::Outside => row.verdict() != Verdict::Expected,
        RowChoice::None => false,
    };
    let rows: Vec<&Compared> =
        group.rows.iter().filter_map(|&row| answer.comparison.rows.get(row)).filter(is_shown).collect();
    if rows.is_empty() {
        return None;
    }
    let mut table = Table::new(vec![
        Column::new("bytes", "size", Unit::Bytes),
        Column::new("measured_us", "measured", Unit::Micros),
        Column::new("predicted_us", "predicted", Unit::Micros),
        Column::new("measured_busbw_gb_per_s", "busbw", Unit::GbPerS),
        Column::new("predicted_busbw_gb_per_s", "expected", Unit::GbPerS),
        Column::new("verdict", "verdict", Unit::Text),
        Column::new("error", "error", Unit::Percent).spare(),
        Column::new("algorithm", "algorithm", Unit::Text).spare(),
        Column::new("protocol", "protocol", Unit::Text).spare(),
        Column::new("channels", "channels", Unit::Number).spare(),
        Column::new("low_us", "low", Unit::Micros).spare(),
        Column::new("high_us", "high", Unit::Micros).spare(),
    ]);
    let factor = bus_factor(answer, group);
    for row in rows {
        let verdict = row.verdict();
        let (text, tone) = match verdict {
            Verdict::Expected => (verdict.name().to_owned(), Emphasis::Good),
            Verdict::Faster { outside } => (format!("faster by {} %", percent(-outside)), Emphasis::Doubtful),
            Verdict::Slower { outside } => (format!("slower by {} %", percent(outside)), Emphasis::Bad),
            Verdict::Slow { slowdown: by } => (format!("slow: {} % over", percent(by)), Emphasis::Bad),
        };
        table.row(vec![
            Value::Bytes(row.bytes).into(),
            Value::Time(row.measured).into(),
            Value::Time(row.predicted).into(),
            Value::Rate(row.bus_bandwidth(row.measured, factor)).into(),
            Value::Rate(row.bus_bandwidth(row.predicted, factor)).into(),
            Cell::from(Value::text(text)).tone(tone),
            Value::Deviation(row.error()).into(),
            Value::text(row.strategy.algorithm.name()).into(),
            Value::text(row.strategy.protocol.name()).into(),
            Value::Count(row.strategy.channels.into()).into(),
            Value::Time(row.low).into(),
            Value::Time(row.high).into(),
        ]);
    }
    Some(table)
}

/// CSV table of all rows, with the JSON keys as column names.
pub fn csv(answer: &ComparisonAnswer<'_>) -> Table {
    let text_column = |key: &str| Column::new(key, key, Unit::Text);
    let number_column = |key: &str| Column::new(key, key, Unit::Number);
    let mut table = Table::new(vec![
        text_column("file"),
        number_column("line"),
        text_column("collective"),
        number_column("ranks"),
        number_column("nodes"),
        number_column("bytes"),
        text_column("algorithm"),
        text_column("protocol"),
        number_column("channels"),
        text_column("launch"),
        text_column("processes"),
        number_column("measured_us"),
        number_column("predicted_us"),
        number_column("low_us"),
        number_column("high_us"),
        number_column("error"),
        text_column("verdict"),
        number_column("outside"),
        number_column("neighbours_us"),
        number_column("measured_busbw_gb_per_s"),
        number_column("predicted_busbw_gb_per_s"),
    ]);
    for row in &answer.comparison.rows {
        let Some(measurement) = answer.measurements.get(row.measurement) else { continue };
        let configuration = &measurement.configuration;
        table.row(vec![
            Value::text(&measurement.name).into(),
            Value::Count(row.line.into()).into(),
            Value::text(configuration.collective.name()).into(),
            Value::Count(measurement.ranks().into()).into(),
            Value::Count(configuration.nodes.into()).into(),
            Value::Bytes(row.bytes).into(),
            Value::text(row.strategy.algorithm.name()).into(),
            Value::text(row.strategy.protocol.name()).into(),
            Value::Count(row.strategy.channels.into()).into(),
            Value::text(launch_name(configuration.launch)).into(),
            Value::text(processes_name(configuration.processes)).into(),
            Value::Time(row.measured).into(),
            Value::Time(row.predicted).into(),
            Value::Time(row.low).into(),
            Value::Time(row.high).into(),
            Value::Number(row.error()).into(),
            Value::text(row.verdict().name()).into(),
            Value::Number(row.verdict().outside()).into(),
            Value::or_missing(row.outlier, Value::Time).into(),
            Value::Rate(row.bus_bandwidth(row.measured, measurement.bus_factor())).into(),
            Value::Rate(row.bus_bandwidth(row.predicted, measurement.bus_factor())).into(),
        ]);
    }
    table
}
