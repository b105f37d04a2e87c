//! Charts of a comparison.

use fabricast_reports::chart::{
    self, CompareChart, ComparedPoint, ComparedSeries, CurvePanel, Format, MeasuredCurve, RateScale,
};
use fabricast_validate::compare::Compared;
use fabricast_validate::measured::manifest::Measurement;

use super::super::format_count;
use super::{ComparisonAnswer, group_name};
use crate::failure::Failure;

/// Draws all rows, with a series for each algorithm and protocol.
///
/// # Errors
/// [`Failure`]: the chart cannot be rendered.
pub fn draw(answer: &ComparisonAnswer<'_>, format: Format) -> Result<Vec<u8>, Failure> {
    let comparison = answer.comparison;
    let mut series: Vec<(_, ComparedSeries)> = Vec::new();
    for row in &comparison.rows {
        let key = (row.strategy.algorithm, row.strategy.protocol);
        let point = compared_point(row);
        match series.iter_mut().find(|(other, _)| *other == key) {
            Some((_, series)) => series.points.push(point),
            None => {
                let name = format!("{} {}", key.0, key.1);
                let protocol = key.1.to_string();
                series.push((key, ComparedSeries { name, protocol, points: vec![point] }));
            }
        }
    }
    series.sort_by_key(|(key, series)| (std::cmp::Reverse(series.points.len()), *key));
    let title = title(answer);
    let subtitle = summary(answer);
    let figure =
        CompareChart { title, subtitle, series: series.into_iter().map(|(_, series)| series).collect() }.figure();
    chart::render(&figure, format).map_err(|error| Failure::Failed(error.to_string()))
}

/// Largest number of groups in a panel of curves: taller pictures cannot be read on a screen.
const MAX_GROUPS: usize = 12;

/// Draws a row for each group: time and bus bandwidth, measured and predicted.
///
/// # Errors
/// [`Failure`]: there are more than [`MAX_GROUPS`] groups, or the chart cannot be rendered.
pub fn draw_panel(answer: &ComparisonAnswer<'_>, rate_scale: RateScale, format: Format) -> Result<Vec<u8>, Failure> {
    let groups = &answer.comparison.groups;
    if groups.len() > MAX_GROUPS {
        return Err(Failure::input_with_help(
            format!("--panel draws at most {MAX_GROUPS} groups, and there are {}", groups.len()),
            "name fewer logs, or draw all rows in one chart without --panel",
        ));
    }
    let curves = groups.iter().enumerate().map(|(number, group)| {
        let first = group.measurements.first().and_then(|&first| answer.measurements.get(first));
        MeasuredCurve {
            name: group_name(answer, number),
            bus_factor: first.map_or(1.0, Measurement::bus_factor),
            points: group.rows.iter().filter_map(|&row| answer.comparison.rows.get(row)).map(compared_point).collect(),
        }
    });
    let (title, subtitle) = (title(answer), summary(answer));
    let panel = CurvePanel { title, subtitle, curves: curves.collect(), rate_scale };
    chart::render(&panel.figure(), format).map_err(|error| Failure::Failed(error.to_string()))
}

fn compared_point(row: &Compared) -> ComparedPoint {
    ComparedPoint { bytes: row.bytes, measured: row.measured, predicted: row.predicted, low: row.low, high: row.high }
}

/// Title of the charts: the name of a single group, or the number of groups.
fn title(answer: &ComparisonAnswer<'_>) -> String {
    let comparison = answer.comparison;
    match comparison.groups.len() {
        1 => group_name(answer, 0),
        groups => format!(
            "{} in {}",
            format_count(comparison.summary.rows as u64, "row"),
            format_count(groups as u64, "group")
        ),
    }
}

/// Line below the title: summary of the errors.
fn summary(answer: &ComparisonAnswer<'_>) -> String {
    let summary = answer.comparison.summary;
    format!(
        "error: median {:.1} %, mean {:.1} %, bias {:+.1} %; {:.0} % inside the 80 % prediction interval",
        summary.median * 100.0,
        summary.mean * 100.0,
        summary.bias * 100.0,
        answer.comparison.coverage.share() * 100.0
    )
}
