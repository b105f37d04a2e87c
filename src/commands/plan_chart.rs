//! `plan --chart`: time and bus bandwidth against size, with a line per algorithm and protocol.

use std::path::Path;

use fabricast_reports::chart::{self, PlanChart, PlanPanel, RateScale};
use fabricast_search::plan::{Plan, PlanRow, TimedStrategy};
use fabricast_sim::schedule::Collective;

use super::format_count;
use crate::args::{BandwidthAxis, PlanArgs};
use crate::failure::Failure;
use crate::output::Output;

/// Arrangement of the chart of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChartLayout {
    /// One collective, time above bus bandwidth.
    Stacked,
    /// A row for each collective, time and bus bandwidth.
    Panel,
}

/// Style of the chart of a plan.
#[derive(Clone, Copy, Debug)]
pub struct ChartStyle {
    layout: ChartLayout,
    rate_scale: RateScale,
}

impl ChartStyle {
    /// Returns the style that the arguments of `plan` state.
    pub fn from_args(args: &PlanArgs) -> Self {
        let layout = if args.panel { ChartLayout::Panel } else { ChartLayout::Stacked };
        Self { layout, rate_scale: BandwidthAxis::scale(args.bandwidth_axis) }
    }
}

/// File of the chart of a plan.
pub struct ChartFile<'a> {
    pub path: &'a Path,
    format: chart::Format,
    style: ChartStyle,
}

impl<'a> ChartFile<'a> {
    /// Creates the chart's destination. Checks that the chart can be drawn and written, before the plan is computed.
    ///
    /// # Errors
    /// [`Failure`]: the extension of the file names no image format, the layout shows one collective and there are
    /// several, or the file cannot be written.
    pub fn new(
        path: &'a Path,
        style: ChartStyle,
        collectives: &[Collective],
        output: &Output,
    ) -> Result<Self, Failure> {
        let format = chart::Format::from_path(path).map_err(|error| Failure::input(error.to_string()))?;
        if style.layout == ChartLayout::Stacked && collectives.len() > 1 {
            return Err(Failure::input_with_help(
                "a chart shows one collective",
                "name it with --collective, or show all in one picture with --panel",
            ));
        }
        output.check_additional_file(path)?;
        Ok(Self { path, format, style })
    }

    /// Renders the chart of a plan in the format of its file.
    ///
    /// # Errors
    /// [`Failure`]: the chart cannot be rendered.
    pub fn draw(&self, plan: &Plan) -> Result<Vec<u8>, Failure> {
        let subtitle = format!("{}, profile {}", format_count(plan.ranks.into(), "rank"), plan.profile);
        let mut plans: Vec<(Collective, PlanChart)> = plan
            .rows
            .chunk_by(|a, b| a.collective == b.collective)
            .filter_map(|rows| {
                let chart = PlanChart { rate_scale: self.style.rate_scale, ..plan_chart(plan, rows) };
                Some((rows.first()?.collective, chart))
            })
            .collect();
        let figure = match (self.style.layout, plans.as_mut_slice()) {
            (ChartLayout::Stacked, [(collective, chart)]) => {
                chart.title = format!("{collective} on {}", plan.fabric);
                chart.subtitle = subtitle;
                chart.figure()
            }
            _ => {
                let title = match plans.as_slice() {
                    [(collective, _)] => format!("{collective} on {}", plan.fabric),
                    _ => format!("{} on {}", format_count(plans.len() as u64, "collective"), plan.fabric),
                };
                PlanPanel { title, subtitle, plans: plans.into_iter().map(|(_, chart)| chart).collect() }.figure()
            }
        };
        chart::render(&figure, self.format).map_err(|error| Failure::Failed(error.to_string()))
    }
}

/// Returns the chart of the rows of one collective; its title is the name of the collective.
fn plan_chart(plan: &Plan, rows: &[PlanRow]) -> PlanChart {
    let point = |row: &PlanRow, priced: &TimedStrategy| chart::PlanPoint { bytes: row.bytes, time: priced.time };
    let mut strategies: Vec<(_, chart::Strategy)> = Vec::new();
    for row in rows {
        for pair in &row.pairs {
            let key = (pair.strategy.algorithm, pair.strategy.protocol);
            match strategies.iter_mut().find(|(known, _)| *known == key) {
                Some((_, strategy)) => strategy.points.push(point(row, pair)),
                None => {
                    let name = format!("{} {}", key.0, key.1);
                    strategies.push((key, chart::Strategy { name, points: vec![point(row, pair)] }));
                }
            }
        }
    }
    let wins = |key| rows.iter().filter(|r| (r.pick.strategy.algorithm, r.pick.strategy.protocol) == key).count();
    strategies.sort_by_key(|(key, _)| (std::cmp::Reverse(wins(*key)), *key));
    let picks = rows.iter().filter_map(|row| {
        let key = (row.pick.strategy.algorithm, row.pick.strategy.protocol);
        let strategy = strategies.iter().position(|(known, _)| *known == key)?;
        Some(chart::Pick { bytes: row.bytes, strategy })
    });
    let collective = rows.first().map(|row| row.collective);
    PlanChart {
        title: collective.map_or_else(String::new, |collective| collective.to_string()),
        bus_factor: collective.map_or(1.0, |collective| collective.busbw_factor(plan.ranks)),
        picks: picks.collect(),
        bound: rows.iter().map(|row| chart::PlanPoint { bytes: row.bytes, time: row.bound.time }).collect(),
        band: rows
            .iter()
            .map(|row| chart::PredictionInterval { bytes: row.bytes, low: row.pick.low, high: row.pick.high })
            .collect(),
        strategies: strategies.into_iter().map(|(_, strategy)| strategy).collect(),
        ..PlanChart::default()
    }
}
