//! Curves of measured calls as nccl-tests users draw them: time and bus bandwidth, against message size, with the
//! predicted curve and its interval.

use fabricast_topologies::{Bytes, Picos};

use super::{Arrangement, Axis, Band, BandColour, ComparedPoint, Figure, Line, LineChart, Quantity, RateScale, Role};

/// Measured and predicted curves, with a row of panels for each group of measurements: time and bus bandwidth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CurvePanel {
    /// Title of the figure.
    pub title: String,
    /// Line below the title.
    pub subtitle: String,
    /// Curves, one row of panels each.
    pub curves: Vec<MeasuredCurve>,
    /// Scale of the axes of bus bandwidths.
    pub rate_scale: RateScale,
}

/// Measured and predicted times of a call by message size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredCurve {
    /// Name of the measurements, which is the title of their row.
    pub name: String,
    /// Bus bandwidth ÷ algorithm bandwidth of the collective (nccl-tests: 2(n−1)/n for an all_reduce).
    pub bus_factor: f64,
    /// Measured and predicted times, in any order.
    pub points: Vec<ComparedPoint>,
}

impl CurvePanel {
    /// Returns the figure of these curves.
    #[must_use]
    pub fn figure(&self) -> Figure {
        Figure {
            title: self.title.clone(),
            subtitle: self.subtitle.clone(),
            ribbon: None,
            panels: self.curves.iter().flat_map(|curve| curve.charts(self.rate_scale)).collect(),
            arrangement: Arrangement::Pairs,
            row_titles: match self.curves.as_slice() {
                // The title of the figure names the only measurements.
                [_] => Vec::new(),
                curves => curves.iter().map(|curve| curve.name.clone()).collect(),
            },
        }
    }
}

impl MeasuredCurve {
    /// Returns the charts of time and of bus bandwidth.
    #[must_use]
    pub fn charts(&self, rate_scale: RateScale) -> [LineChart; 2] {
        let rate = |bytes: Bytes, time: Picos| self.bus_bandwidth(bytes, time);
        let points = || self.points.iter();
        let measured = points().map(|point| rate(point.bytes, point.measured));
        let highest = measured.clone().chain(points().map(|point| rate(point.bytes, point.low))).fold(0.0, f64::max);
        [
            self.chart("Time", Axis::logarithmic(Quantity::Time), &|_, time| time.us()),
            self.chart("Bus bandwidth (GB/s)", Axis::rate(rate_scale, measured, highest), &rate),
        ]
    }

    /// Bus bandwidth in GB/s as nccl-tests defines it: size ÷ time × factor of the collective.
    fn bus_bandwidth(&self, bytes: Bytes, time: Picos) -> f64 {
        // One byte per picosecond is 1 TB/s.
        bytes.0 as f64 / time.0.max(1) as f64 * 1e3 * self.bus_factor
    }

    fn chart(&self, title: &str, y: Axis, value: &dyn Fn(Bytes, Picos) -> f64) -> LineChart {
        let mut points: Vec<&ComparedPoint> = self.points.iter().collect();
        points.sort_by_key(|point| (point.bytes, point.measured));
        let line = |name: &str, role, time: fn(&ComparedPoint) -> Picos| Line {
            name: name.to_owned(),
            role,
            points: points.iter().map(|point| (point.bytes.0 as f64, value(point.bytes, time(point)))).collect(),
        };
        let interval = |point: &&ComparedPoint| {
            let ends = (value(point.bytes, point.low), value(point.bytes, point.high));
            (point.bytes.0 as f64, ends.0.min(ends.1), ends.0.max(ends.1))
        };
        LineChart {
            title: title.to_owned(),
            x_title: "message size".into(),
            x: Axis::binary(Quantity::Bytes),
            y,
            bands: vec![Band {
                name: "80 % prediction interval".into(),
                shade: BandColour::Pale,
                points: points.iter().map(interval).collect(),
            }],
            lines: vec![
                line("predicted", Role::Series(0), |point| point.predicted),
                line("measured", Role::Measured, |point| point.measured),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Format, Scale, render};
    use super::*;

    fn curve(sizes: &[u64]) -> MeasuredCurve {
        let point = |&bytes: &u64| {
            let us = 10 + bytes / 100_000;
            let time = |us: u64| Picos(us * 1_000_000);
            let (measured, predicted) = (time(2 * us), time(us));
            ComparedPoint { bytes: Bytes(bytes), measured, predicted, low: predicted, high: measured }
        };
        MeasuredCurve { name: "all_reduce".into(), bus_factor: 1.75, points: sizes.iter().map(point).collect() }
    }

    #[test]
    fn each_curve_is_a_row_of_time_and_bus_bandwidth() {
        let title = "two logs".to_owned();
        let curves = vec![curve(&[1 << 30, 1 << 10, 1 << 20]), curve(&[1 << 28, 1 << 29])];
        let figure = CurvePanel { title, curves, ..CurvePanel::default() }.figure();
        let titles: Vec<&str> = figure.panels.iter().map(|panel| panel.title.as_str()).collect();
        assert_eq!(titles[..2], ["Time", "Bus bandwidth (GB/s)"]);
        assert_eq!(figure.row_titles, ["all_reduce"; 2]);
        // 1 KiB in 20 µs, and 1 GiB in 2 × 10,747 µs.
        let measured = &figure.panels[1].lines[1].points;
        assert!((measured[0].1 - 1024.0 / 20_000.0 * 1.75).abs() < 1e-9);
        assert!((measured[2].1 - 1_073_741_824.0 / 21_494_000.0 * 1.75).abs() < 1e-6);
        assert_eq!((figure.panels[1].y.scale, figure.panels[3].y.scale), (Scale::Log10, Scale::Linear));
        let svg = String::from_utf8(render(&figure, Format::Svg).unwrap()).unwrap();
        // Panels of a column share the title of their x axis.
        assert_eq!(svg.matches("message size").count(), 2);
    }
}
