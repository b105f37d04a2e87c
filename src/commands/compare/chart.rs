//! Chart of a comparison.

use fabricast_reports::chart::{self, CompareChart, ComparedPoint, ComparedSeries, Format};

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
        let point = ComparedPoint {
            bytes: row.bytes,
            measured: row.measured,
            predicted: row.predicted,
            low: row.low,
            high: row.high,
        };
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
    let title = match comparison.groups.len() {
        1 => group_name(answer, 0),
        groups => format!(
            "{} in {}",
            format_count(comparison.summary.rows as u64, "row"),
            format_count(groups as u64, "group")
        ),
    };
    let summary = comparison.summary;
    let subtitle = format!(
        "error: median {:.1} %, mean {:.1} %, bias {:+.1} %; {:.0} % inside the 80 % prediction interval",
        summary.median * 100.0,
        summary.mean * 100.0,
        summary.bias * 100.0,
        comparison.coverage.share() * 100.0
    );
    let figure =
        CompareChart { title, subtitle, series: series.into_iter().map(|(_, series)| series).collect() }.figure();
    chart::render(&figure, format).map_err(|error| Failure::Failed(error.to_string()))
}
