//! Chart of a comparison: measured against predicted times, and errors by size.

use fabricast_topologies::{Bytes, Picos};

use std::collections::BTreeMap;

use super::{Axis, Band, BandColour, Figure, Line, LineChart, Quantity, Role, palette};

/// Chart of measured against predicted times, and of the errors by message size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompareChart {
    /// Title of the chart, which names the measurements.
    pub title: String,
    /// Line below the title: summary of the errors.
    pub subtitle: String,
    /// Series, in order of decreasing number of rows. The first ones have separate colours, the others share one.
    pub series: Vec<ComparedSeries>,
}

/// Compared rows of one algorithm and protocol.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ComparedSeries {
    /// Name in the legend, such as `ring ll128`.
    pub name: String,
    /// Protocol of the series. The errors of each protocol are shown in a separate panel.
    pub protocol: String,
    /// Measured and predicted times, one point per row of the comparison.
    pub points: Vec<ComparedPoint>,
}

/// Measured and predicted time of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComparedPoint {
    /// Message size as nccl-tests defines it.
    pub bytes: Bytes,
    /// Measured completion time.
    pub measured: Picos,
    /// Predicted completion time.
    pub predicted: Picos,
    /// Lower end of the prediction interval.
    pub low: Picos,
    /// Upper end of the prediction interval.
    pub high: Picos,
}

impl CompareChart {
    /// Returns the figure of this comparison.
    #[must_use]
    pub fn figure(&self) -> Figure {
        Figure {
            title: self.title.clone(),
            subtitle: self.subtitle.clone(),
            panels: std::iter::once(self.measured_vs_predicted())
                .chain(self.protocols().map(|protocol| self.residuals(protocol)))
                .collect(),
            ..Figure::default()
        }
    }

    /// Returns the protocols in order of decreasing number of rows.
    fn protocols(&self) -> impl Iterator<Item = &str> {
        let series = self.series.iter().enumerate();
        let is_first = |number: usize, name: &str| self.series.iter().take(number).all(|other| other.protocol != name);
        series.filter(move |(number, one)| is_first(*number, &one.protocol)).map(|(_, one)| one.protocol.as_str())
    }

    fn points(&self) -> impl Iterator<Item = &ComparedPoint> {
        self.series.iter().flat_map(|series| &series.points)
    }

    /// Returns the series of a protocol (of all protocols for `None`) as scattered points.
    fn scattered(&self, protocol: Option<&str>, coordinates: impl Fn(&ComparedPoint) -> (f64, f64)) -> Vec<Line> {
        let is_wanted = |series: &ComparedSeries| protocol.is_none_or(|wanted| series.protocol == wanted);
        let series = self.series.iter().enumerate().filter(|(_, series)| is_wanted(series));
        let line = |(number, series): (usize, &ComparedSeries)| Line {
            name: series.name.clone(),
            role: Role::Points(number.min(palette::COLOURS.len() - 1)),
            points: series.points.iter().map(&coordinates).collect(),
        };
        series.map(line).collect()
    }

    /// Returns the medians of the ends of the prediction intervals, as multiples of the prediction. Medians are used
    /// because the lower bound of a row can truncate its interval.
    fn band(&self) -> Option<(f64, f64)> {
        let share = |select: fn(&ComparedPoint) -> Picos| {
            let mut shares: Vec<f64> =
                self.points().map(|point| select(point).0 as f64 / point.predicted.0.max(1) as f64).collect();
            shares.sort_unstable_by(f64::total_cmp);
            shares.get(shares.len() / 2).copied()
        };
        Some((share(|point| point.low)?, share(|point| point.high)?))
    }

    /// Returns the smallest and the largest positive result of `value_of` over all points; `None` if no result is
    /// positive.
    fn range(&self, value_of: impl Fn(&ComparedPoint) -> f64) -> Option<(f64, f64)> {
        let mut values: Vec<f64> =
            self.points().map(value_of).filter(|value| value.is_finite() && *value > 0.0).collect();
        values.sort_unstable_by(f64::total_cmp);
        Some((values.first().copied()?, values.last().copied()?))
    }

    fn measured_vs_predicted(&self) -> LineChart {
        let mut lines = self.scattered(None, |point| (point.predicted.us(), point.measured.us()));
        let mut bands = Vec::new();
        if let (Some((first, last)), Some((low, high))) = (self.range(|point| point.predicted.us()), self.band()) {
            let ends = [first, last];
            bands.push(Band {
                name: BAND.into(),
                shade: BandColour::Pale,
                points: ends.map(|x| (x, x * low, x * high)).to_vec(),
            });
            lines.push(Line { name: AGREED.into(), role: Role::Bound, points: ends.map(|x| (x, x)).to_vec() });
        }
        LineChart {
            title: "Measured time".into(),
            x_title: "predicted time".into(),
            x: Axis::logarithmic(Quantity::Time),
            y: Axis::logarithmic(Quantity::Time),
            bands,
            lines,
        }
    }

    /// Returns the chart of errors by size, with the median prediction interval at each size.
    fn residuals(&self, protocol: &str) -> LineChart {
        let mut lines = self.scattered(Some(protocol), |point| {
            (point.bytes.0 as f64, point.predicted.0 as f64 / point.measured.0.max(1) as f64 - 1.0)
        });
        let mut by_size: BTreeMap<u64, [Vec<f64>; 2]> = BTreeMap::new();
        let matching = self.series.iter().filter(|series| series.protocol == protocol);
        for point in matching.flat_map(|series| &series.points) {
            let [below, above] = by_size.entry(point.bytes.0).or_default();
            // Error that a measurement at an end of the interval would have.
            let error = |end: Picos| point.predicted.0 as f64 / end.0.max(1) as f64 - 1.0;
            below.push(error(point.high));
            above.push(error(point.low));
        }
        let middle = |mut errors: Vec<f64>| {
            errors.sort_unstable_by(f64::total_cmp);
            errors.get(errors.len() / 2).copied().unwrap_or_default()
        };
        let edges = by_size.into_iter().filter(|(bytes, _)| *bytes > 0);
        let points: Vec<(f64, f64, f64)> =
            edges.map(|(bytes, [below, above])| (bytes as f64, middle(below), middle(above))).collect();
        let bands = vec![Band { name: BAND.into(), shade: BandColour::Pale, points: points.clone() }];
        if let (Some(first), Some(last)) = (points.first(), points.last()) {
            lines.push(Line { name: AGREED.into(), role: Role::Bound, points: vec![(first.0, 0.0), (last.0, 0.0)] });
        }
        LineChart {
            title: format!("Error of {protocol}: predicted ÷ measured − 1"),
            x_title: "message size".into(),
            x: Axis::binary(Quantity::Bytes),
            y: Axis::linear(Quantity::Share),
            bands,
            lines,
        }
    }
}

const BAND: &str = "80 % prediction interval";
const AGREED: &str = "as predicted";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{Format, render};

    fn point(bytes: u64, measured: u64, predicted: u64) -> ComparedPoint {
        let us = |us: u64| Picos(us * 1_000_000);
        ComparedPoint {
            bytes: Bytes(bytes),
            measured: us(measured),
            predicted: us(predicted),
            low: Picos(predicted * 750_000),
            high: Picos(predicted * 1_250_000),
        }
    }

    #[test]
    fn points_are_plotted_at_their_values() {
        let series = ComparedSeries {
            name: "ring ll".into(),
            protocol: "ll".into(),
            points: vec![point(1024, 20, 10), point(4096, 40, 80)],
        };
        let figure = CompareChart { title: "t".into(), subtitle: String::new(), series: vec![series] }.figure();
        assert_eq!(figure.panels[0].lines[0].points, [(10.0, 20.0), (80.0, 40.0)]);
        assert_eq!(figure.panels[1].lines[0].points, [(1024.0, -0.5), (4096.0, 1.0)]);
        assert_eq!(figure.panels[0].bands[0].points, [(10.0, 7.5, 12.5), (80.0, 60.0, 100.0)]);
        let svg = String::from_utf8(render(&figure, Format::Svg).unwrap()).unwrap();
        for text in ["ring ll", BAND, AGREED, "Error"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(render(&figure, Format::Png).unwrap().starts_with(b"\x89PNG"));
    }

    #[test]
    fn empty_charts_are_errors() {
        assert!(render(&CompareChart::default().figure(), Format::Svg).is_err());
    }
}
