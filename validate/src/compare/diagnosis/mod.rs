//! Causes of slow sizes: hypotheses that are simulated, and ranked by the share of the gap that they close.
//!
//! The gap of a row is |ln(measured ÷ predicted)| in units of the scatter that its prediction interval states, so that
//! rows with sure predictions count more. A hypothesis is a fault of the fabric, a setting of the library or another
//! launch mode ([`Cause`]); rows of the slow sizes and of the others are predicted again under it. It is credited with
//! the gap of the slow sizes that it closes; what it makes worse at other sizes counts against it, and what it improves
//! there, which may be scatter, is not credited. A hypothesis is a hint with a command that confirms or refutes it.

mod apply;
mod candidates;
mod cause;

use fabricast_collectives::strategy::Strategy;
use fabricast_sim::profile::Profile;
use rayon::prelude::*;

pub use cause::{Cause, Device, Extent};

use super::range::Finding;
use super::{CompareError, Compared, Group, Request, has_unpredicted_rccl, profile};
use crate::measured::Row;
use crate::measurement_simulation::{MeasurementSimulation, Simulated};
use apply::{Choice, Hypothesis};

/// A hypothesis that would explain why a group is slow.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedCause {
    /// The hypothesis.
    pub cause: Cause,
    /// Share of the group's gap that it closes, at most 1.
    pub closed: f64,
}

/// Smallest share of the gap that a named cause closes.
const MIN_CLOSED: f64 = 0.5;
/// Largest difference between the shares closed by causes that are equally likely. The earlier candidate is named.
const EQUAL: f64 = 0.03;
/// Largest difference between the shares closed by the first cause and by the further ones that are named.
const SIMILAR: f64 = 0.1;
/// Largest number of causes that are named.
const MAX_CAUSES: usize = 3;
/// Smallest number of sizes of a slow range whose cause is sought.
const MIN_SIZES: usize = 3;
/// Largest number of rows of slow sizes, and of other rows, that are simulated for each hypothesis.
const MAX_ROWS: usize = 7;
/// Largest number of simulation events of the undisturbed prediction of the slow rows, and of the other rows.
const MAX_EVENTS: u64 = 500_000;
/// Largest ratio of the events of a hypothesis to [`MAX_EVENTS`]: faults that break the symmetry of a fabric need more.
const MAX_EVENT_RATIO: u64 = 4;
/// Width of an 80 % interval of a normal distribution, in standard deviations.
const INTERVAL: f64 = 2.563;
/// Smallest standard deviation of ln(measured): measurements repeat within 4 % (H200 node, two hosts).
const MIN_DEVIATION: f64 = 0.02;

/// A row with its prediction, its scatter and the measured row that it was predicted for.
struct Case<'a> {
    compared: &'a Compared,
    row: &'a Row,
    deviation: f64,
    is_slow: bool,
}

/// Ranks the hypotheses that explain a slow group, the likeliest first. Empty if the group is not slow or if no
/// hypothesis closes enough of its gap.
pub(super) fn causes<'a>(
    request: &Request<'a>,
    group: &Group,
    rows: &'a [Compared],
) -> Result<Vec<RankedCause>, CompareError> {
    let is_slow = group.ranges.iter().any(|range| range.finding == Finding::Slow && range.sizes >= MIN_SIZES);
    let first = group.measurements.first().and_then(|&first| request.measurements.get(first));
    let (true, Some(measurement)) = (is_slow, first) else { return Ok(Vec::new()) };
    if has_unpredicted_rccl(measurement) {
        return Ok(Vec::new());
    }
    let profile = profile(request, measurement)?;
    let mut usable: Vec<&Compared> =
        group.rows.iter().filter_map(|&row| rows.get(row)).filter(|row| row.outlier.is_none()).collect();
    usable.sort_by_key(|row| (row.bytes, row.line));
    let is_slow = |row: &Compared| {
        let mut slow = group.ranges.iter().filter(|range| range.finding == Finding::Slow);
        slow.any(|range| (range.min..=range.max).contains(&row.bytes))
    };
    let (slow, other): (Vec<&Compared>, Vec<&Compared>) = usable.into_iter().partition(|row| is_slow(row));
    let sample = |rows: &[&'a Compared], is_slow| -> Vec<Case<'a>> {
        let sampled = super::explanation::sample_evenly(rows, MAX_ROWS);
        sampled.into_iter().filter_map(|compared| case(request, compared, is_slow)).collect()
    };
    let (slow, other) = (sample(&slow, true), sample(&other, false));
    let undisturbed = Hypothesis::undisturbed(measurement, request.routes);
    let simulation = MeasurementSimulation::new(&undisturbed.measurement, undisturbed.routes);
    let mut cases = affordable(slow, &simulation, &profile);
    let gap: f64 = cases.iter().map(|case| case.gap(case.compared.predicted.0)).sum();
    if cases.len() < MIN_SIZES || gap <= 0.0 {
        return Ok(Vec::new());
    }
    cases.extend(affordable(other, &simulation, &profile));
    let candidates = candidates::candidates(measurement, &cases.iter().map(|case| case.compared).collect::<Vec<_>>());
    let mut ranked: Vec<RankedCause> = candidates
        .into_par_iter()
        .filter_map(|cause| {
            let hypothesis = apply::apply(&cause, measurement, request.routes)?;
            let closed = closed_gap(&hypothesis, &cases, &profile)?;
            Some(RankedCause { cause, closed: closed / gap })
        })
        .filter(|ranked| ranked.closed >= MIN_CLOSED)
        .collect();
    let best = ranked.iter().map(|ranked| ranked.closed).fold(f64::NEG_INFINITY, f64::max);
    // Candidates come in the order of their likelihood, which decides between equals.
    let Some(first) = ranked.iter().position(|ranked| ranked.closed >= best - EQUAL) else { return Ok(Vec::new()) };
    let named = ranked.remove(first);
    ranked.retain(|other| other.closed >= named.closed - SIMILAR);
    ranked.sort_by(|a, b| b.closed.total_cmp(&a.closed));
    let mut causes = vec![named];
    for other in ranked {
        // Variants of a named cause are no further causes.
        if causes.len() < MAX_CAUSES && causes.iter().all(|named| named.cause.class() != other.cause.class()) {
            causes.push(other);
        }
    }
    Ok(causes)
}

fn case<'a>(request: &Request<'a>, compared: &'a Compared, is_slow: bool) -> Option<Case<'a>> {
    let rows: &'a [Row] = &request.measurements.get(compared.measurement)?.rows;
    let row = rows.iter().find(|row| row.line == compared.line)?;
    let width = (compared.high.0.max(1) as f64 / compared.low.0.max(1) as f64).ln();
    Some(Case { compared, row, deviation: (width / INTERVAL).max(MIN_DEVIATION), is_slow })
}

impl Case<'_> {
    /// Gap between the measured time and a predicted one, in standard deviations.
    fn gap(&self, predicted: u64) -> f64 {
        (self.compared.measured.0.max(1) as f64 / predicted.max(1) as f64).ln().abs() / self.deviation
    }
}

/// Selects the rows with the fewest simulation events, up to [`MAX_EVENTS`] in total but at least [`MIN_SIZES`] rows.
fn affordable<'a>(cases: Vec<Case<'a>>, simulation: &MeasurementSimulation<'_>, profile: &Profile) -> Vec<Case<'a>> {
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
    case: &Case<'_>,
    profile: &Profile,
) -> Option<Simulated> {
    simulation.simulate(&*simulation.schedule(strategy, case.row, profile)?, profile)
}

/// Gap of the slow rows that a hypothesis closes, less the gap that it adds to other rows; `None` if a row cannot be
/// simulated under it.
fn closed_gap(hypothesis: &Hypothesis, cases: &[Case<'_>], profile: &Profile) -> Option<f64> {
    let simulation = MeasurementSimulation::new(&hypothesis.measurement, hypothesis.routes);
    let strategies = simulation.strategies();
    let (mut events, mut sum) = (0u64, 0.0);
    for case in cases {
        let predicted = case.compared.strategy;
        let strategy = match hypothesis.choice {
            Choice::Library => strategies.strategy(case.row).unwrap_or(predicted),
            Choice::Known => strategies.strategy(case.row)?,
            Choice::Unchanged => predicted,
        };
        let run = run(&simulation, strategy, case, profile)?;
        events = events.saturating_add(run.events);
        if events > MAX_EVENTS * MAX_EVENT_RATIO {
            return None;
        }
        let closed = case.gap(case.compared.predicted.0) - case.gap(run.time.0);
        sum += if case.is_slow { closed } else { closed.min(0.0) };
    }
    Some(sum)
}
