//! Chart of the composition of times by message size: the share of each cost, stacked, and its time.

use fabricast_topologies::{Bytes, Picos};

use super::{Axis, Band, BandColour, Figure, Line, LineChart, Quantity, Role, palette};

/// Chart of the composition of a call's time, by message size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BreakdownChart {
    /// Title of the chart, which names the call.
    pub title: String,
    /// Line below the title: fabric, ranks, profile.
    pub subtitle: String,
    /// Names of the costs in stacking order, from the bottom.
    pub costs: Vec<String>,
    /// Composition of the time at each size, by ascending size.
    pub rows: Vec<BreakdownRow>,
}

/// Message size and the composition of its time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BreakdownRow {
    /// Message size as nccl-tests defines it.
    pub bytes: Bytes,
    /// Time of each cost, in the order of [`BreakdownChart::costs`].
    pub times: Vec<Picos>,
}

/// Index of the last series, which contains all costs without a separate colour.
const LAST: usize = palette::COLOURS.len() - 1;

impl BreakdownChart {
    /// Returns the figure: a panel of shares above a panel of times.
    #[must_use]
    pub fn figure(&self) -> Figure {
        let chart = self.without_small();
        Figure {
            title: self.title.clone(),
            subtitle: self.subtitle.clone(),
            panels: vec![chart.shares(), chart.times()],
            ..Figure::default()
        }
    }

    /// Limits the number of costs to the number of colours. Costs with the largest shares at any size remain, and the
    /// others are added up.
    fn without_small(&self) -> Self {
        if self.costs.len() <= palette::COLOURS.len() {
            return self.clone();
        }
        let max_share = |cost: usize| {
            let shares = self.rows.iter().map(|row| share(row.times.get(cost), &row.times));
            shares.fold(0.0, f64::max)
        };
        let mut order: Vec<usize> = (0..self.costs.len()).collect();
        order.sort_by(|&a, &b| max_share(b).total_cmp(&max_share(a)));
        let (named, small) = order.split_at(LAST);
        let mut named = named.to_vec();
        named.sort_unstable();
        let pick = |times: &[Picos], cost: usize| times.get(cost).copied().unwrap_or_default();
        let names = named.iter().filter_map(|&cost| self.costs.get(cost).cloned());
        let row = |row: &BreakdownRow| BreakdownRow {
            bytes: row.bytes,
            times: named
                .iter()
                .map(|&cost| pick(&row.times, cost))
                .chain([small.iter().map(|&cost| pick(&row.times, cost)).sum()])
                .collect(),
        };
        Self {
            costs: names.chain([format!("{} others", small.len())]).collect(),
            rows: self.rows.iter().map(row).collect(),
            title: self.title.clone(),
            subtitle: self.subtitle.clone(),
        }
    }

    fn shares(&self) -> LineChart {
        let band = |(number, name): (usize, &String)| Band {
            name: name.clone(),
            shade: BandColour::Series(number),
            points: self
                .rows
                .iter()
                .map(|row| {
                    let below: f64 = (0..number).map(|series| share(row.times.get(series), &row.times)).sum();
                    (row.bytes.0 as f64, below, below + share(row.times.get(number), &row.times))
                })
                .collect(),
        };
        LineChart {
            title: "Share of the time".into(),
            x_title: "message size".into(),
            x: Axis::binary(Quantity::Bytes),
            y: Axis::linear(Quantity::Share),
            bands: self.costs.iter().enumerate().map(band).collect(),
            lines: Vec::new(),
        }
    }

    fn times(&self) -> LineChart {
        let line = |(number, name): (usize, &String)| Line {
            name: name.clone(),
            role: Role::Series(number),
            points: self
                .rows
                .iter()
                .map(|row| (row.bytes.0 as f64, row.times.get(number).map_or(0.0, |time| time.us())))
                .collect(),
        };
        let total = Line {
            name: "total time".into(),
            role: Role::Bound,
            points: self
                .rows
                .iter()
                .map(|row| (row.bytes.0 as f64, row.times.iter().copied().sum::<Picos>().us()))
                .collect(),
        };
        LineChart {
            title: "Time".into(),
            x_title: "message size".into(),
            x: Axis::binary(Quantity::Bytes),
            y: Axis::logarithmic(Quantity::Time),
            bands: Vec::new(),
            lines: self.costs.iter().enumerate().map(line).chain([total]).collect(),
        }
    }
}

fn share(time: Option<&Picos>, times: &[Picos]) -> f64 {
    let sum: Picos = times.iter().copied().sum();
    time.map_or(0.0, |time| time.0 as f64 / sum.0.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_stacked_and_small_ones_merged() {
        let row = |bytes| BreakdownRow { bytes: Bytes(bytes), times: vec![Picos(3_000_000), Picos(1_000_000)] };
        let chart =
            BreakdownChart { costs: vec!["a".into(), "b".into()], rows: vec![row(1), row(2)], ..Default::default() };
        let figure = chart.figure();
        assert_eq!(figure.panels[0].bands[0].points, [(1.0, 0.0, 0.75), (2.0, 0.0, 0.75)]);
        assert_eq!(figure.panels[0].bands[1].points, [(1.0, 0.75, 1.0), (2.0, 0.75, 1.0)]);
        assert_eq!(figure.panels[1].lines[2].points, [(1.0, 4.0), (2.0, 4.0)]);
        let input = BreakdownChart {
            costs: (0..12).map(|n| n.to_string()).collect(),
            rows: vec![BreakdownRow { bytes: Bytes(1), times: (1..=12).map(Picos).collect() }],
            ..Default::default()
        };
        let merged = input.without_small();
        assert_eq!(merged.costs.last().map(String::as_str), Some("3 others"));
        assert_eq!(merged.rows[0].times.last(), Some(&Picos(6)));
        assert_eq!(merged.rows[0].times.iter().copied().sum::<Picos>(), Picos(78));
    }
}
