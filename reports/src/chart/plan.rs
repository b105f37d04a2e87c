//! Chart of a plan: time in the upper panel and bus bandwidth in the lower panel, against message size.

use fabricast_topologies::{Bytes, Picos};

use super::{Axis, Band, BandColour, Figure, Line, LineChart, Quantity, RateScale, Ribbon, RibbonPart, Role, palette};

/// Data of the chart of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanChart {
    /// Title of the chart, such as `all_reduce on hgx-h200`.
    pub title: String,
    /// Line below the title: ranks, profile, launch.
    pub subtitle: String,
    /// Bus bandwidth ÷ algorithm bandwidth of the collective (nccl-tests: 2(n−1)/n for an all_reduce).
    pub bus_factor: f64,
    /// Strategies to compare, in order of importance. The first [`PlanChart::NAMED`] have colours, the others are grey.
    pub strategies: Vec<Strategy>,
    /// Selected strategy at each size, by ascending size.
    pub picks: Vec<Pick>,
    /// Lower bound on the time of any schedule, by ascending size.
    pub bound: Vec<PlanPoint>,
    /// Prediction interval of the selected strategy at each size; may be empty.
    pub band: Vec<PredictionInterval>,
    /// Measured times; `None` if there are none.
    pub measured: Option<MeasuredSeries>,
    /// Scale of the axis of bus bandwidths.
    pub rate_scale: RateScale,
}

/// Strategy whose times are a line of the chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strategy {
    /// Name in the legend, such as `ring ll128 · 8 channels`.
    pub name: String,
    /// Completion times of the strategy, by ascending size.
    pub points: Vec<PlanPoint>,
}

/// Completion time at one message size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanPoint {
    /// Message size as nccl-tests defines it: the larger buffer.
    pub bytes: Bytes,
    /// Completion time.
    pub time: Picos,
}

/// Selected strategy at one message size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Message size as nccl-tests defines it.
    pub bytes: Bytes,
    /// Index of the strategy in [`PlanChart::strategies`].
    pub strategy: usize,
}

/// Prediction interval of the time at one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictionInterval {
    /// Message size as nccl-tests defines it.
    pub bytes: Bytes,
    /// Lower end of the prediction interval.
    pub low: Picos,
    /// Upper end of the prediction interval.
    pub high: Picos,
}

/// Measured times, shown next to the predictions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredSeries {
    /// Name in the legend, such as `measured, NCCL 2.28.9`.
    pub name: String,
    /// Measured time at each size.
    pub points: Vec<PlanPoint>,
}

impl PlanChart {
    /// Maximum number of strategies that have a separate colour, marker and name.
    pub const NAMED: usize = palette::COLOURS.len();

    /// Returns the figure of this plan.
    #[must_use]
    pub fn figure(&self) -> Figure {
        Figure {
            title: self.title.clone(),
            subtitle: self.subtitle.clone(),
            ribbon: self.ribbon(),
            panels: self.panels().into(),
            ..Figure::default()
        }
    }

    /// Returns the panels of time and bus bandwidth.
    pub(super) fn panels(&self) -> [LineChart; 2] {
        let rate = |point: &PlanPoint| self.bus_bandwidth(point.bytes, point.time);
        let all = self.strategies.iter().flat_map(|strategy| &strategy.points).chain(&self.bound);
        let highest = all.map(rate).filter(|rate| rate.is_finite()).fold(0.0, f64::max);
        let picked = self.picked_points();
        [
            self.panel("Time", Axis::logarithmic(Quantity::Time), &|_, time| time.us()),
            self.panel(
                "Bus bandwidth (GB/s)",
                Axis::rate(self.rate_scale, picked.iter().map(rate), highest),
                &|bytes, time| self.bus_bandwidth(bytes, time),
            ),
        ]
    }

    /// Returns the bus bandwidth in GB/s as nccl-tests defines it: size ÷ time × factor of the collective.
    fn bus_bandwidth(&self, bytes: Bytes, time: Picos) -> f64 {
        // One byte per picosecond is 1 TB/s.
        bytes.0 as f64 / time.0 as f64 * 1e3 * self.bus_factor
    }

    fn panel(&self, title: &str, y: Axis, value: &dyn Fn(Bytes, Picos) -> f64) -> LineChart {
        let coordinates = |points: &[PlanPoint]| -> Vec<(f64, f64)> {
            points.iter().map(|point| (point.bytes.0 as f64, value(point.bytes, point.time))).collect()
        };
        let mut lines = Vec::new();
        if !self.picks.is_empty() {
            lines.push(Line { name: "the pick".into(), role: Role::Pick, points: coordinates(&self.picked_points()) });
        }
        for (number, strategy) in self.strategies.iter().enumerate() {
            lines.push(Line { name: strategy.name.clone(), role: role(number), points: coordinates(&strategy.points) });
        }
        if !self.bound.is_empty() {
            lines.push(Line { name: "bound".into(), role: Role::Bound, points: coordinates(&self.bound) });
        }
        if let Some(measured) = &self.measured {
            lines.push(Line {
                name: measured.name.clone(),
                role: Role::Measured,
                points: coordinates(&measured.points),
            });
        }
        LineChart {
            title: title.to_owned(),
            x_title: "message size".into(),
            x: Axis::binary(Quantity::Bytes),
            y,
            bands: self.bands(value),
            lines,
        }
    }

    fn bands(&self, value: &dyn Fn(Bytes, Picos) -> f64) -> Vec<Band> {
        if self.band.is_empty() {
            return Vec::new();
        }
        let edges = |spread: &PredictionInterval| {
            let (a, b) = (value(spread.bytes, spread.low), value(spread.bytes, spread.high));
            (spread.bytes.0 as f64, a.min(b), a.max(b))
        };
        vec![Band {
            name: "80 % interval of the pick".into(),
            shade: BandColour::Pale,
            points: self.band.iter().map(edges).collect(),
        }]
    }

    fn picked_points(&self) -> Vec<PlanPoint> {
        let time_at = |pick: &Pick| {
            let strategy = self.strategies.get(pick.strategy)?;
            strategy.points.iter().find(|point| point.bytes == pick.bytes).copied()
        };
        self.picks.iter().filter_map(time_at).collect()
    }

    /// Returns the ribbon. Adjacent sizes with the same selected strategy are one range, and boundaries are at the
    /// geometric mean of two sizes.
    fn ribbon(&self) -> Option<Ribbon> {
        let mut parts: Vec<RibbonPart> = Vec::new();
        let mut previous: Option<Pick> = None;
        for &pick in &self.picks {
            let Some(strategy) = self.strategies.get(pick.strategy) else {
                continue;
            };
            let bytes = pick.bytes.0 as f64;
            match (parts.last_mut(), previous) {
                (Some(part), Some(before)) if before.strategy == pick.strategy => part.to = bytes,
                (last, _) => {
                    let border = last.map_or(bytes, |part| {
                        part.to = (part.to * bytes).sqrt();
                        part.to
                    });
                    let label = strategy.name.clone();
                    parts.push(RibbonPart { from: border, to: bytes, label, role: role(pick.strategy) });
                }
            }
            previous = Some(pick);
        }
        (!parts.is_empty()).then(|| Ribbon { title: "pick".into(), parts })
    }
}

fn role(strategy: usize) -> Role {
    if strategy < PlanChart::NAMED { Role::Series(strategy) } else { Role::Other }
}
