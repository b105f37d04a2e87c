//! Charts of a study: cost against speed, and the composition of steps and memory.

use fabricast_perf::step::Share;
use fabricast_study::answer::{Answer, JobKind, ResultRow};

use super::super::LinesWithTooltips;
use super::{is_within, step_term};
use crate::chart::{Axis, Bar, BarChart, Figure, Line, LineChart, Quantity, Role, Scale};
use crate::format;

/// Ratio of the largest to the smallest value above which an axis is logarithmic.
const LOGARITHMIC_RATIO: f64 = 8.0;

fn job_results<'a>(answer: &'a Answer, job: &'a str) -> impl Iterator<Item = (usize, &'a ResultRow)> {
    let number = |row: &ResultRow| answer.candidates.iter().position(|one| one.name == row.candidate);
    answer.results.iter().filter(move |row| row.job == job).filter_map(move |row| Some((number(row)?, row)))
}

fn axis(quantity: Quantity, values: impl Iterator<Item = f64>) -> Axis {
    let (low, high) = values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    if high > low * LOGARITHMIC_RATIO { Axis::logarithmic(quantity) } else { Axis::linear(quantity) }
}

/// Returns the chart of cost per hour against the time by which candidates are compared: of a step or, for inference,
/// whose steps differ, of a million tokens. It has one point per candidate, with the price band, and the Pareto front;
/// `None` without prices.
#[must_use]
pub fn pareto(answer: &Answer, job: &str) -> Option<Figure> {
    let lines = pareto_lines(answer, job)?;
    Some(Figure {
        title: format!("Cost against speed: {job}"),
        subtitle: lines.remark,
        panels: vec![lines.chart],
        ..Figure::default()
    })
}

pub(super) fn pareto_lines(answer: &Answer, job: &str) -> Option<LinesWithTooltips> {
    let priced: Vec<(usize, &ResultRow, f64)> =
        job_results(answer, job).filter_map(|(number, row)| Some((number, row, row.cost_per_hour?))).collect();
    if priced.is_empty() {
        return None;
    }
    let answers = priced.iter().any(|(_, row, _)| row.kind == JobKind::Inference);
    let unit = if answers { "a million tokens" } else { "a step" };
    let x = |row: &ResultRow| 1e6 * if answers { row.seconds_per_unit() } else { row.step_time_s };
    let ruled_out = priced.iter().any(|(_, row, _)| !is_within(answer, &row.candidate));
    let (mut lines, mut tooltips) = (Vec::new(), Vec::new());
    let mut add = |line: Line, details: Vec<String>| {
        lines.push(line);
        tooltips.push(details);
    };
    let mut front: Vec<(f64, f64)> = Vec::new();
    for (_, row, cost) in priced.iter().filter(|(_, row, _)| is_within(answer, &row.candidate)) {
        let is_dominated = priced.iter().any(|(_, other_row, price)| {
            is_within(answer, &other_row.candidate)
                && (x(other_row) <= x(row) && price <= cost)
                && (x(other_row) < x(row) || price < cost)
        });
        if !is_dominated {
            front.push((x(row), *cost));
        }
    }
    front.sort_by(|a, b| a.0.total_cmp(&b.0));
    if front.len() > 1 {
        add(Line { name: "Pareto front".into(), role: Role::Bound, points: front }, Vec::new());
    }
    for (number, row, _) in &priced {
        if let (Some(low), Some(high)) = (row.cost_per_hour_low, row.cost_per_hour_high) {
            let points = vec![(x(row), low), (x(row), high)];
            add(Line { name: row.candidate.clone(), role: Role::Range(*number), points }, Vec::new());
        }
    }
    for (number, row, cost) in &priced {
        let divided = row.parallel.map_or_else(String::new, |parallel| format!(", {parallel}"));
        let mut details = vec![format!("{} GPUs{divided}", row.ranks)];
        if let Some(per_million) = row.cost_per_million_tokens {
            details.push(format!("{} {} per million tokens", format::significant(per_million), answer.currency));
        }
        let tokens =
            row.tokens_per_s.map_or_else(String::new, |rate| format!("{} tokens/s, ", format::significant(rate)));
        details.push(format!("{tokens}bottleneck: {}", step_term(&row.bottleneck)));
        if !row.fits {
            details.push("does not fit its memory".to_owned());
        }
        let line = Line { name: row.candidate.clone(), role: Role::Points(*number), points: vec![(x(row), *cost)] };
        add(line, vec![details.join("\n")]);
    }
    let costs = priced.iter().flat_map(|(_, row, cost)| [Some(*cost), row.cost_per_hour_low, row.cost_per_hour_high]);
    let x_axis = axis(Quantity::Time, priced.iter().map(|(_, row, _)| x(row)));
    let y_axis = axis(Quantity::Count, costs.flatten());
    let scales = match (x_axis.scale == Scale::Linear, y_axis.scale == Scale::Linear) {
        (true, true) => "",
        (false, true) => " Times are on a logarithmic axis.",
        (true, false) => " Costs are on a logarithmic axis.",
        (false, false) => " Both axes are logarithmic.",
    };
    Some(LinesWithTooltips {
        chart: LineChart {
            title: format!("{job}: cost per hour, {}, against the time of {unit}", answer.currency),
            x_title: format!("time of {unit}"),
            x: x_axis,
            y: y_axis,
            bands: Vec::new(),
            lines,
        },
        tooltips,
        remark: format!(
            "Down is cheaper, left is faster; bars are price bands. Candidates on the Pareto front are not dominated in both.{}{scales}",
            if ruled_out { " Candidates that violate a constraint are not on it, whatever they cost." } else { "" }
        ),
    })
}

/// Returns the chart of the composition of a job's steps, with one bar per candidate, best first.
#[must_use]
pub fn breakdown(answer: &Answer, job: &str) -> BarChart {
    let names = Share::ALL.map(Share::name);
    let mut parts: Vec<String> = names.map(String::from).to_vec();
    // The parts of all jobs are included, so that a part has the same colour in all charts.
    let further = answer.results.iter().flat_map(|row| row.step_s.keys());
    let mut further: Vec<String> = further.filter(|name| !names.contains(&name.as_str())).cloned().collect();
    further.sort_unstable();
    further.dedup();
    parts.extend(further);
    let is_used = |part: &String| answer.results.iter().any(|row| row.step_s.get(part).is_some_and(|s| *s > 0.0));
    parts.retain(is_used);
    let bars = sort_results(answer, job).map(|row| Bar {
        name: row.candidate.clone(),
        parts: parts.iter().map(|part| row.step_s.get(part).copied().unwrap_or_default() * 1e6).collect(),
        remark: row.efficiency.map_or_else(String::new, |share| format!("{} %", format::percent(share))),
    });
    BarChart {
        title: format!("{job}: breakdown of a step"),
        subtitle: "After the bar: the time of a step, and the scaling efficiency against one GPU with enough memory."
            .into(),
        axis: Axis::linear(Quantity::Time),
        bars: bars.collect(),
        parts: parts.iter().map(|part| step_term(part)).collect(),
    }
}

/// Returns the chart of the memory use of the most loaded GPU, with one bar per candidate, best first; `None` for a
/// trace, which does not contain memory use.
#[must_use]
pub fn memory(answer: &Answer, job: &str) -> Option<BarChart> {
    let rows: Vec<(&ResultRow, Vec<(String, f64)>)> =
        sort_results(answer, job).map(|row| (row, memory_parts(row))).collect();
    let mut parts: Vec<String> = ["weights", "gradients", "optimizer", "activations"].map(String::from).to_vec();
    for (name, _) in rows.iter().flat_map(|(_, row_parts)| row_parts) {
        if !parts.contains(name) {
            parts.push(name.clone());
        }
    }
    let size_of = |row_parts: &[(String, f64)], part: &String| {
        row_parts.iter().find(|(name, _)| name == part).map_or(0.0, |one| one.1)
    };
    parts.retain(|part| rows.iter().any(|(_, row_parts)| size_of(row_parts, part) > 0.0));
    let bars = rows.iter().map(|(row, row_parts)| Bar {
        name: row.candidate.clone(),
        parts: parts.iter().map(|part| size_of(row_parts, part)).collect(),
        remark: row.memory_excess_gb.map_or_else(String::new, |over| format!("{} too much", format::significant(over))),
    });
    (!parts.is_empty()).then(|| BarChart {
        title: format!("{job}: memory of the most loaded GPU, GB"),
        subtitle: String::new(),
        axis: Axis::linear(Quantity::Count),
        bars: bars.collect(),
        parts: parts.iter().map(|part| part.replace('_', " ")).collect(),
    })
}

/// Returns the parts of a GPU's memory by their names in the results: `weights_gb` and others.
fn memory_parts(row: &ResultRow) -> Vec<(String, f64)> {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(row.memory) else { return Vec::new() };
    let part =
        |(key, value): (&String, &serde_json::Value)| Some((key.strip_suffix("_gb")?.to_owned(), value.as_f64()?));
    fields.iter().filter_map(part).collect()
}

/// Returns the results of a job, in the ranking order of their candidates.
pub(super) fn sort_results<'a>(answer: &'a Answer, job: &'a str) -> impl Iterator<Item = &'a ResultRow> {
    let of = move |name: &'a str| answer.results.iter().find(move |row| row.job == job && row.candidate == name);
    answer.ranking.iter().filter_map(move |ranked| of(&ranked.candidate))
}
