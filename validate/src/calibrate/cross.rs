//! Cross-validation: every row is predicted by a fit without it, and prediction intervals are derived from the errors.
//!
//! Rows are left out in five folds. A fold contains every fifth schedule with all of its rows, so that no fit uses a
//! schedule that it predicts. Intervals are validated in the same way: a row of one fold is compared with the intervals
//! derived from the other four folds.

use fabricast_sim::profile::{
    Bottleneck, CallTraits, FittedTraits, PredictionInterval, PredictionIntervals, Profile, RegimeBand, WideningFactors,
};
use fabricast_sim::schedule::Protocol;

use super::cases::Cases;
use super::fit::ProfileFit;
use super::hold_out_selection::HoldOut;
use super::parameters::FitParameter;
use super::points::FitPoint;
use super::prior::Prior;
use super::solve::StartDistance;
use super::{HeldOutErrors, Residual, errors};
use crate::compare::Coverage;

/// Number of cross-validation folds.
pub(super) const FOLDS: usize = 5;
/// Minimum number of rows from which an interval or a widening factor is derived. A regime (protocol and bottleneck)
/// with fewer rows uses the interval of all rows.
const MIN_ROWS: usize = 20;
/// Minimum half-width of an interval, as a natural logarithm. Equal sweeps on another host differ by 1.2 % in the
/// median (validate/data/h200-node, logs-repeat).
const MIN_HALF_WIDTH: f64 = 0.012;

/// A row and its prediction by a fit that excludes this row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LeftOut {
    pub residual: Residual,
    pub call: CallTraits,
    /// Index of the row's fold, from 0 to [`FOLDS`] − 1.
    fold: usize,
}

impl LeftOut {
    /// Natural logarithm of measured ÷ predicted time.
    fn ratio(&self) -> f64 {
        -(1.0 + self.residual.error).ln()
    }

    fn is_inside(&self, band: PredictionInterval) -> bool {
        (band.low.ln()..=band.high.ln()).contains(&self.ratio())
    }

    /// Factor by which the logarithmic width of the interval must be multiplied to contain the row.
    fn required_widening(&self, band: PredictionInterval) -> f64 {
        let end = if self.ratio() < 0.0 { band.low.ln() } else { band.high.ln() };
        if end == 0.0 { f64::INFINITY } else { self.ratio() / end }
    }
}

/// Rows for validation, and the parameters that are fitted to them.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, 'p> {
    pub cases: &'p Cases<'a>,
    pub device: &'p [&'p FitPoint],
    pub parameters: &'p [FitParameter],
    /// Further rows, which determine launch costs only.
    pub further: &'p [&'p FitPoint],
    pub modes: &'p [FitParameter],
    /// Prior of the device costs around `base`.
    pub prior: Prior,
    pub base: &'p Profile,
}

impl<'p> Rows<'_, 'p> {
    /// Predicts every row by a fit without its fold. Each fit starts at the result of the fit to all rows, or at `base`
    /// if the prior holds costs close to `base`.
    pub fn left_out(self, fitted: &Profile) -> Vec<LeftOut> {
        let folds = (0..FOLDS).flat_map(|fold| {
            let is_training = |point: &&&FitPoint| point.case % FOLDS != fold;
            let training = |points: &[&'p FitPoint]| points.iter().filter(is_training).copied().collect::<Vec<_>>();
            let (device, further) = (training(self.device), training(self.further));
            let fit = |points, base: &Profile, parameters, prior, start| {
                ProfileFit { cases: self.cases, points, base, parameters, prior }.run(start).0
            };
            let training_device = device.clone();
            let mut profile = match self.prior {
                Prior::Open | Prior::Plain => fit(device, fitted, self.parameters, self.prior, StartDistance::Near),
                Prior::Proportional => fit(device, self.base, self.parameters, self.prior, StartDistance::Far),
            };
            if !self.modes.is_empty() {
                let training_points: Vec<&FitPoint> = training_device.into_iter().chain(further).collect();
                profile = fit(training_points, &profile, self.modes, Prior::Open, StartDistance::Near);
            }
            let validation: Vec<&FitPoint> =
                self.device.iter().chain(self.further).filter(|p| !is_training(p)).copied().collect();
            self.cases.monitor().add_done(1);
            predict_rows(self.cases, &validation, &profile)
        });
        folds.collect()
    }
}

/// Predicts rows with a profile and returns their errors, call traits and folds.
pub(super) fn predict_rows(cases: &Cases<'_>, points: &[&FitPoint], profile: &Profile) -> Vec<LeftOut> {
    let residuals = errors(cases, points, profile);
    points
        .iter()
        .zip(residuals)
        .map(|(point, residual)| LeftOut { call: point.traits(residual.decides), residual, fold: point.case % FOLDS })
        .collect()
}

/// 80 % prediction interval of measured ÷ predicted time, and the number of rows; `None` for fewer than [`MIN_ROWS`]
/// rows. The ends are order statistics selected to cover a further row with 80 % probability.
fn interval<'a>(rows: impl Iterator<Item = &'a LeftOut>) -> Option<(PredictionInterval, u32)> {
    let mut ratios: Vec<f64> = rows.map(LeftOut::ratio).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let count = ratios.len();
    let order_statistic = |rank: f64| ratios.get((rank as usize).clamp(1, count.max(1)) - 1).copied();
    let tenth = (count as f64 + 1.0) * 0.1;
    let (low, high) = (order_statistic(tenth.floor())?, order_statistic((count as f64 + 1.0 - tenth).ceil())?);
    let band = PredictionInterval { low: low.min(-MIN_HALF_WIDTH).exp(), high: high.max(MIN_HALF_WIDTH).exp() };
    (count >= MIN_ROWS).then_some((band, count as u32))
}

/// Returns the interval of all rows, and the intervals of the regimes that have enough rows.
fn regimes(rows: &[&LeftOut]) -> (PredictionInterval, Vec<RegimeBand>) {
    let usual = interval(rows.iter().copied()).map_or(PredictionInterval { low: 0.5, high: 2.0 }, |result| result.0);
    let regime = |(protocol, decides): (Protocol, Bottleneck)| {
        let matching = rows.iter().filter(|row| (row.call.protocol, row.call.decides) == (protocol, decides));
        let (band, rows) = interval(matching.copied())?;
        Some(RegimeBand { protocol, decides, band, rows })
    };
    let all = Protocol::ALL.into_iter().flat_map(|protocol| Bottleneck::ALL.map(|decides| (protocol, decides)));
    (usual, all.filter_map(regime).collect())
}

/// Result of [`evaluate_intervals`].
pub(super) struct IntervalEvaluation {
    /// Intervals derived from left-out rows.
    pub bands: PredictionIntervals,
    /// Coverage of the intervals in cross-validation.
    pub coverage: Coverage,
    /// Held-out rows with their coverage.
    pub held_out: Vec<HeldOutErrors>,
}

/// Derives intervals from left-out rows, and determines their coverage of these rows and of each set of held-out rows.
pub(super) fn evaluate_intervals(
    rows: &[LeftOut],
    held_out: Vec<(HeldOutErrors, Vec<LeftOut>)>,
    known: FittedTraits,
    before: WideningFactors,
) -> IntervalEvaluation {
    let (bands, coverage) = intervals(rows, &held_out, known, before);
    let covered = |(held_out, rows): (HeldOutErrors, Vec<LeftOut>)| HeldOutErrors {
        coverage: coverage_beyond(&bands, &rows),
        ..held_out
    };
    let held_out = held_out.into_iter().map(covered).collect();
    IntervalEvaluation { bands, coverage, held_out }
}

/// Returns the intervals derived from left-out rows, and their coverage in cross-validation. The widening for calls
/// with unknown traits is derived from rows that were held out by these traits; without such rows it is unchanged.
fn intervals(
    rows: &[LeftOut],
    held_out: &[(HeldOutErrors, Vec<LeftOut>)],
    known: FittedTraits,
    before: WideningFactors,
) -> (PredictionIntervals, Coverage) {
    let derive_intervals = |is_included: &dyn Fn(&LeftOut) -> bool| {
        let included: Vec<&LeftOut> = rows.iter().filter(|row| is_included(row)).collect();
        let (usual, regimes) = regimes(&included);
        PredictionIntervals { default: usual, regimes, known: FittedTraits::default(), widening: before }
    };
    let inside = (0..FOLDS).flat_map(|fold| {
        let bands = derive_intervals(&|row| row.fold != fold);
        let fold_rows = rows.iter().filter(move |row| row.fold == fold);
        fold_rows.map(move |row| row.is_inside(bands.interval(row.call))).collect::<Vec<_>>()
    });
    let coverage = Coverage::count(inside);
    let mut bands = derive_intervals(&|_| true);
    for (hold_out, left_out) in held_out {
        if let Some(times) = widening(&bands, left_out.iter()) {
            match hold_out.selection {
                HoldOut::Collectives(_) => bands.widening.collective = times,
                HoldOut::Ranks(_) => bands.widening.gpus = times,
                HoldOut::Nodes(_) => bands.widening.nodes = times,
                HoldOut::Protocols(_) | HoldOut::Cluster(_) => {}
            }
        }
    }
    bands.known = known;
    (bands, coverage)
}

/// Factor by which intervals must be widened to contain 80 % of the rows, at least 1; `None` if there are fewer than
/// [`MIN_ROWS`] rows.
fn widening<'a>(bands: &PredictionIntervals, rows: impl Iterator<Item = &'a LeftOut>) -> Option<f64> {
    let mut needed: Vec<f64> =
        rows.map(|row| row.required_widening(bands.regime_interval(row.call.protocol, row.call.decides))).collect();
    needed.sort_unstable_by(f64::total_cmp);
    let count = needed.len();
    let rank = ((count as f64 + 1.0) * 0.8).ceil() as usize;
    (count >= MIN_ROWS).then(|| needed.get(rank.min(count) - 1).copied().unwrap_or(1.0).max(1.0))
}

/// Coverage of held-out rows by widened intervals: the widening for rows of even folds is derived from rows of odd
/// folds, and vice versa.
fn coverage_beyond(bands: &PredictionIntervals, rows: &[LeftOut]) -> Coverage {
    let halves = [0, 1].map(|half| {
        let (evaluated, others): (Vec<&LeftOut>, Vec<&LeftOut>) = rows.iter().partition(|row| row.fold % 2 == half);
        let times = widening(bands, others.into_iter()).unwrap_or(1.0);
        let band = |row: &LeftOut| bands.regime_interval(row.call.protocol, row.call.decides).widened(times);
        Coverage::count(evaluated.into_iter().map(|row| row.is_inside(band(row))))
    });
    let [even, odd] = halves;
    Coverage { rows: even.rows + odd.rows, inside: even.inside + odd.inside }
}
