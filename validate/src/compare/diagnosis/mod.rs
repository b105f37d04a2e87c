//! Causes of slow sizes: hypotheses are simulated and ranked by the likelihood of the measured times.
//!
//! A hypothesis is a fault of the fabric, a setting of the library or another launch mode ([`Cause`]). Rows with slow
//! sizes and other rows are predicted again under each hypothesis. The scatter that prediction intervals state
//! determines the likelihood of the measured times ([`evidence`]). Causes that explain half of the gap of the slow sizes
//! are ranked by their posterior probability, and so is the absence of a fault ([`prior`]). If the latter is more likely,
//! the times are within the error of the prediction, and the causes are not established
//! ([`RankedCause::is_established`]). Times of one collective often cannot separate causes that limit the same path. A
//! cause is therefore called likely only if it is at least twice as likely as all alternatives in total
//! ([`RankedCause::is_likely`]). Each cause has a command that confirms or refutes it.

mod apply;
mod basis;
mod candidates;
mod cause;
mod defects;
mod evidence;
mod prior;
pub(super) mod rules;

use std::sync::Arc;

use fabricast_collectives::strategy::Strategy;
use fabricast_sim::profile::Profile;
use rayon::prelude::*;

pub use basis::Basis;
pub use cause::{Cause, Extent, PcieDevice};
pub use defects::{KnownDefect, Slowdown};

use super::range::RangeFinding;
use super::{CompareError, Compared, ComparisonRequest, Group, has_unpredicted_rccl, profile};
use crate::measured::Row;
use crate::measured::manifest::Measurement;
use crate::measurement_simulation::{MeasurementSimulation, SimulatedRow};
use apply::{Hypothesis, StrategySource};
use prior::{Candidate, ComparedCause, NoFault, Priors};

/// A hypothesis that explains why a group is slow.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedCause {
    /// The hypothesis.
    pub cause: Cause,
    /// Reason to expect the cause before times are compared.
    pub basis: Basis,
    /// Fraction of the slow sizes' gap that the cause explains, at most 1. The gap of a row is |ln(measured ÷
    /// predicted)|.
    pub closed: f64,
    /// Posterior probability of the cause's class. All classes without a [`Basis`] have the same prior probability; that
    /// there is no fault and the prediction is wrong has ten times the prior probability of all of them.
    pub probability: f64,
    /// Posterior probability that there is a fault.
    pub fault_probability: f64,
    /// Number of slow sizes that the cause was compared with.
    pub sizes: usize,
}

impl RankedCause {
    /// Returns true if the cause is at least twice as likely as all others in total, by three or more slow sizes.
    /// Otherwise the times do not separate the cause from others.
    #[must_use]
    pub fn is_likely(&self) -> bool {
        self.probability >= MIN_PROBABILITY && self.sizes >= MIN_SIZES
    }

    /// Returns true if it is more likely that the machine has a fault than that the prediction is wrong. Otherwise the times
    /// are inside the error of the prediction, and the cause is the most likely one if there is a fault.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.fault_probability >= 0.5
    }
}

/// Minimum probability of a likely cause: odds of two to one against all others.
const MIN_PROBABILITY: f64 = 2.0 / 3.0;
/// Minimum fraction of the gap that a reported cause explains.
const MIN_CLOSED: f64 = 0.5;
/// Odds of the most likely hypothesis, by the first rows, against those that are not simulated further. A class with many
/// variants has less of the prior for each, so that these odds exceed those of further reported causes.
const HOPELESS_ODDS: f64 = 400.0;
/// Minimum number of sizes in a slow range for which causes are searched, unless the log has fewer sizes.
const MIN_SIZES: usize = 3;
/// Maximum number of rows with slow sizes, and of other rows, that are simulated for each hypothesis.
const MAX_SLOW_ROWS: usize = 6;
const MAX_OTHER_ROWS: usize = 4;
/// Number of rows that are simulated for every hypothesis. The most likely hypotheses are then simulated for all rows.
const FIRST_ROWS: usize = 3;
/// Maximum number of simulation events for the prediction of the slow rows without a fault; also applies to the other
/// rows.
const MAX_EVENTS: u64 = 500_000;
/// Maximum ratio of the events of a hypothesis to [`MAX_EVENTS`]. Faults that break the symmetry of a fabric need more
/// events.
const MAX_EVENT_RATIO: u64 = 4;

/// A measured row with its prediction and the standard deviation of the prediction.
struct DiagnosedRow<'a> {
    compared: &'a Compared,
    row: &'a Row,
    deviation: f64,
    is_slow: bool,
}

/// Ranks the hypotheses that explain a slow group, in order of decreasing likelihood. Empty if the group is not slow or
/// if no hypothesis explains it.
pub(super) fn causes<'a>(
    request: &ComparisonRequest<'a>,
    group: &Group,
    rows: &'a [Compared],
) -> Result<Vec<RankedCause>, CompareError> {
    let sizes: usize = group.ranges.iter().map(|range| range.sizes).sum();
    let needed = MIN_SIZES.min(sizes);
    let is_slow = group.ranges.iter().any(|range| range.finding == RangeFinding::Slow && range.sizes >= needed);
    let first = group.measurements.first().and_then(|&first| request.measurements.get(first));
    let (true, Some(measurement)) = (is_slow, first) else { return Ok(Vec::new()) };
    if has_unpredicted_rccl(measurement) {
        return Ok(Vec::new());
    }
    let profile = profile(request, measurement)?;
    let undisturbed = Hypothesis::undisturbed(measurement, request.routes);
    let simulation = MeasurementSimulation::new(&undisturbed.measurement, undisturbed.routes);
    let cases = cases(request, group, rows, &simulation, &profile);
    let slow = cases.iter().filter(|case| case.is_slow).count();
    if slow < needed {
        return Ok(Vec::new());
    }
    let predicted: Vec<u64> = cases.iter().map(|case| case.compared.predicted.0).collect();
    let (sound, gap) = (surprise(&cases, &predicted), slow_gap(&cases, &predicted));
    let candidates = candidates::candidates(measurement, &cases.iter().map(|case| case.compared).collect::<Vec<_>>());
    let Priors { candidates, no_fault } = Priors::new(candidates, measurement);
    let trials = CauseTrial::run(candidates, measurement, request, &cases, &profile);
    let compared = trials.into_iter().map(|CauseTrial { candidate, predicted, surprise, .. }| {
        let closed = 1.0 - slow_gap(&cases, &predicted) / gap;
        let Candidate { cause, basis, prior } = candidate;
        let ranked = RankedCause { cause, basis, closed, probability: 0.0, fault_probability: 0.0, sizes: slow };
        ComparedCause { ranked, prior, surprise }
    });
    let explaining = compared.filter(|compared| compared.ranked.closed >= MIN_CLOSED).collect();
    Ok(prior::likeliest(explaining, NoFault { prior: no_fault, surprise: sound }))
}

/// Selects the rows to simulate: rows with slow sizes and others, with few simulation events, in order of the
/// information that they give.
fn cases<'a>(
    request: &ComparisonRequest<'a>,
    group: &Group,
    rows: &'a [Compared],
    simulation: &MeasurementSimulation<'_>,
    profile: &Profile,
) -> Vec<DiagnosedRow<'a>> {
    let is_slow = |row: &Compared| {
        let mut slow = group.ranges.iter().filter(|range| range.finding == RangeFinding::Slow);
        slow.any(|range| (range.min..=range.max).contains(&row.bytes))
    };
    let (slow, other): (Vec<&Compared>, Vec<&Compared>) =
        group.usable_rows(rows).into_iter().partition(|row| is_slow(row));
    let sample = |rows: &[&'a Compared], count, is_slow| -> Vec<DiagnosedRow<'a>> {
        let sampled = super::explanation::sample_evenly(rows, count);
        let case = |compared: &'a Compared| {
            let row = compared.measured_row(request.measurements)?;
            let deviation = evidence::deviation(compared.low.0, compared.high.0);
            Some(DiagnosedRow { compared, row, deviation, is_slow })
        };
        let cases = sampled.into_iter().filter_map(case).collect();
        affordable(cases, simulation, profile)
    };
    let slow = sample(&slow, MAX_SLOW_ROWS, true);
    // The ends and the middle of the slow sizes come first, because the first rows decide which hypotheses are
    // simulated further.
    let last = slow.len().saturating_sub(1);
    let mut order: Vec<(usize, DiagnosedRow<'a>)> = slow.into_iter().enumerate().collect();
    order.sort_by_key(|(number, _)| (![0, last / 2, last].contains(number), *number));
    let slow = order.into_iter().map(|(_, case)| case);
    slow.chain(sample(&other, MAX_OTHER_ROWS, false)).collect()
}

impl DiagnosedRow<'_> {
    /// ln(measured ÷ predicted) for a predicted time.
    fn ratio(&self, predicted: u64) -> f64 {
        (self.compared.measured.0.max(1) as f64 / predicted.max(1) as f64).ln()
    }
}

/// [`evidence::surprise`] of the measured times of the first rows, given their predicted times under a hypothesis.
fn surprise(cases: &[DiagnosedRow<'_>], predicted: &[u64]) -> f64 {
    let residual = |(case, &time): (&DiagnosedRow<'_>, &u64)| evidence::HypothesisResidual {
        ratio: case.ratio(time),
        effect: (time.max(1) as f64 / case.compared.predicted.0.max(1) as f64).ln(),
        deviation: case.deviation,
    };
    evidence::surprise(&cases.iter().zip(predicted).map(residual).collect::<Vec<_>>())
}

/// Sum of the slow rows' gaps between measured times and the given predicted times of all rows.
fn slow_gap(cases: &[DiagnosedRow<'_>], predicted: &[u64]) -> f64 {
    let slow = cases.iter().zip(predicted).filter(|(case, _)| case.is_slow);
    slow.map(|(case, &time)| case.ratio(time).abs()).sum::<f64>().max(f64::MIN_POSITIVE)
}

/// Selects the rows with the fewest simulation events: at most [`MAX_EVENTS`] events in total, but at least
/// [`MIN_SIZES`] rows.
fn affordable<'a>(
    cases: Vec<DiagnosedRow<'a>>,
    simulation: &MeasurementSimulation<'_>,
    profile: &Profile,
) -> Vec<DiagnosedRow<'a>> {
    let mut total = 0u64;
    let mut chosen = Vec::new();
    for case in cases {
        let run = run(simulation, case.compared.strategy, &case, profile);
        total = total.saturating_add(run.map_or(MAX_EVENTS, |run| run.events));
        if chosen.len() >= MIN_SIZES && total > MAX_EVENTS {
            break;
        }
        chosen.push(case);
    }
    chosen
}

fn run(
    simulation: &MeasurementSimulation<'_>,
    strategy: Strategy,
    case: &DiagnosedRow<'_>,
    profile: &Profile,
) -> Option<SimulatedRow> {
    simulation.simulate(&*simulation.schedule(strategy, case.row, profile)?, profile)
}

/// A cause with the rows that were predicted under it.
struct CauseTrial {
    candidate: Candidate,
    hypothesis: Hypothesis,
    /// Predicted times of the rows that were simulated, in ps.
    predicted: Vec<u64>,
    /// [`evidence::surprise`] of these rows.
    surprise: f64,
}

impl CauseTrial {
    /// Simulates the causes in the order of `candidates`. A cause is dropped if its first rows show that it cannot be
    /// reported, because [`evidence::surprise`] never decreases when rows are added.
    fn run(
        candidates: Vec<Candidate>,
        measurement: &Measurement,
        request: &ComparisonRequest<'_>,
        cases: &[DiagnosedRow<'_>],
        profile: &Profile,
    ) -> Vec<Self> {
        let first = cases.get(..FIRST_ROWS).unwrap_or(cases);
        let begin = |candidate: Candidate| {
            let hypothesis = apply::apply(&candidate.cause, measurement, request.routes, profile)?;
            Self { candidate, hypothesis, predicted: Vec::new(), surprise: 0.0 }.extended(first, profile)
        };
        let mut trials: Vec<Self> = candidates.into_par_iter().filter_map(begin).collect();
        let promising = trials.iter().enumerate().min_by(|(_, a), (_, b)| a.score().total_cmp(&b.score()));
        let Some((leader, _)) = promising else { return Vec::new() };
        let complete = |trial: Self| trial.extended(cases, profile);
        let Some(led) = complete(trials.remove(leader)) else {
            return trials.into_par_iter().filter_map(complete).collect();
        };
        let limit = led.score() + 2.0 * HOPELESS_ODDS.ln();
        let keep = |(number, trial): (usize, Self)| {
            if trial.score() > limit && !trial.candidate.basis.is_stated() {
                None
            } else {
                complete(trial).map(|trial| (number, trial))
            }
        };
        let mut retained: Vec<(usize, Self)> = trials.into_par_iter().enumerate().filter_map(keep).collect();
        let place = retained.iter().position(|(number, _)| *number >= leader).unwrap_or(retained.len());
        retained.insert(place, (leader, led));
        retained.into_iter().map(|(_, trial)| trial).collect()
    }

    /// Twice the negative logarithm of the posterior probability, up to a constant. Classes without a basis have equal prior
    /// probabilities, which their variants do not divide here.
    fn score(&self) -> f64 {
        self.surprise - 2.0 * self.candidate.prior.max(1.0).ln()
    }

    /// Simulates the remaining rows of `cases`; `None` if one of them cannot be simulated.
    fn extended(self, cases: &[DiagnosedRow<'_>], profile: &Profile) -> Option<Self> {
        let hypothesis = &self.hypothesis;
        let profile = hypothesis.profile.as_deref().unwrap_or(profile);
        let simulation = MeasurementSimulation::new(&hypothesis.measurement, hypothesis.routes);
        let seen = match &hypothesis.choice {
            StrategySource::LibraryFor(fabric) => {
                Some(Measurement { fabric: Arc::clone(fabric), ..hypothesis.measurement.clone() })
            }
            StrategySource::Library | StrategySource::Known | StrategySource::Affected | StrategySource::Unchanged => {
                None
            }
        };
        let seen = seen.as_ref().map(|seen| MeasurementSimulation::new(seen, hypothesis.routes));
        let strategies = seen.as_ref().unwrap_or(&simulation).strategies();
        let (mut events, mut predicted) = (0u64, self.predicted.clone());
        for case in cases.iter().skip(predicted.len()) {
            let usual = case.compared.strategy;
            let defect = hypothesis.defect.filter(|(defect, _)| defect.affects(case.compared));
            let strategy = match hypothesis.choice {
                StrategySource::Library | StrategySource::LibraryFor(_) => {
                    strategies.strategy(case.row).unwrap_or(usual)
                }
                StrategySource::Known => strategies.strategy(case.row)?,
                StrategySource::Affected if defect.is_some_and(|(defect, _)| defect.kernel().is_some()) => {
                    strategies.strategy(case.row)?
                }
                StrategySource::Affected => usual,
                StrategySource::Unchanged => usual,
            };
            let run = run(&simulation, strategy, case, profile)?;
            events = events.saturating_add(run.events);
            if events > MAX_EVENTS * MAX_EVENT_RATIO {
                return None;
            }
            predicted.push(defect.map_or(run.time.0, |(_, slowdown)| slowdown.apply(run.time.0)));
        }
        let surprise = surprise(cases, &predicted);
        Some(Self { predicted, surprise, ..self })
    }
}
