//! Search for the profile parameter whose change would explain the error of a group.
//!
//! The gap of a group is the median of ln(predicted ÷ measured) over its rows. Each parameter is scaled separately
//! until the gap vanishes (by bisection in the logarithm of the factor), and the parameter with the smallest factor is
//! reported. Strategies are not changed. The result is a hint and not a fit: several parameters may differ from the
//! machine, and `calibrate` fits them jointly.

use fabricast_sim::lower::Resource;
use fabricast_sim::profile::{Profile, Role};
use fabricast_topologies::LinkKind;

use super::statistics::median;
use super::{CompareError, Compared, ComparisonRequest, Group, ProfileParameter, profile};
use crate::measured::Row;
use crate::measured::manifest::Measurement;
use crate::measurement_simulation::{MeasurementSimulation, SimulatedRow};

/// A parameter change that would explain the error of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Parameter to change.
    pub parameter: ProfileParameter,
    /// Factor by which the parameter would have to be multiplied.
    pub factor: f64,
    /// Current value of the parameter, with its unit.
    pub current: String,
    /// Value of the parameter after the change, with its unit.
    pub required: String,
    /// Median error of the group before the change, predicted ÷ measured − 1.
    pub before: f64,
    /// Median error of the group with the parameter changed, predicted ÷ measured − 1.
    pub after: f64,
}

/// Minimum gap that is explained, as a natural logarithm. Repeated measurements differ by up to 4 % (H200 node, two
/// hosts).
const SIGNIFICANT: f64 = 0.05;
/// Minimum fraction of rows that must deviate in the same direction.
const ONE_SIDED: f64 = 2.0 / 3.0;
/// Minimum number of rows of a group to be explained.
const MIN_ROWS: usize = 3;
/// Maximum number of rows simulated to determine a gap; of more rows, evenly spaced ones are selected.
const MAX_ROWS: usize = 9;
/// Maximum total number of simulation events to determine a gap once. A search determines the gap some hundred times.
const MAX_EVENTS: u64 = 300_000;
/// Steps of the search, as natural logarithms of the factor on a parameter: from 5 % to tenfold.
const SEARCH_STEPS: [f64; 7] = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.3];
/// Number of bisections of the search step in which the gap vanishes.
const HALVINGS: usize = 6;
/// Maximum remaining gap, as a natural logarithm, at which a gap is explained.
const CLOSED: f64 = 0.005;

/// Searches for an explanation of a group's error. `None` if the rows do not deviate in one direction, or if no
/// parameter explains the gap.
pub(super) fn explain(
    request: &ComparisonRequest<'_>,
    group: &Group,
    rows: &[Compared],
) -> Result<Option<Explanation>, CompareError> {
    let chosen: Vec<&Compared> = group.rows.iter().filter_map(|&row| rows.get(row)).collect();
    let gaps: Vec<f64> = chosen.iter().map(|row| (1.0 + row.error()).ln()).collect();
    let sorted = sorted(gaps);
    let gap = median(&sorted);
    let same_sign = sorted.iter().filter(|value| value.signum() == gap.signum()).count();
    if chosen.len() < MIN_ROWS || gap.abs() < SIGNIFICANT || (same_sign as f64) < ONE_SIDED * chosen.len() as f64 {
        return Ok(None);
    }
    let Some(measurement) = group.measurements.first().and_then(|&first| request.measurements.get(first)) else {
        return Ok(None);
    };
    let profile = profile(request, measurement)?;
    let thinned = sample_evenly(&chosen, MAX_ROWS);
    let numbered =
        |&number: &usize| Some((number, MeasurementSimulation::new(request.measurements.get(number)?, request.routes)));
    let reruns: Vec<(usize, MeasurementSimulation<'_>)> = group.measurements.iter().filter_map(numbered).collect();
    let full_case = ExplainedRows { reruns: &reruns, profile: &profile, rows: &thinned };
    let chosen = full_case.affordable();
    let case = ExplainedRows { reruns: &reruns, profile: &profile, rows: &chosen };
    let Some(start) = case.gap(&profile).filter(|start| start.abs() > CLOSED && start.signum() == gap.signum()) else {
        return Ok(None);
    };
    let knobs: Vec<ProfileParameter> =
        knobs(measurement, &chosen).into_iter().filter(|knob| knob.value(&profile).is_some()).collect();
    let best = case.find_smallest_change(&knobs, start);
    Ok(best.map(|ScaledParameter { knob, log_factor, gap: after }| Explanation {
        parameter: knob,
        factor: log_factor.exp(),
        current: knob.format_value(&profile),
        required: knob.format_value(&knob.scale(&profile, log_factor.exp())),
        before: start.exp_m1(),
        after: after.exp_m1(),
    }))
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// Selects at most `max` rows, at least 2, evenly spaced.
pub(super) fn sample_evenly<'a>(rows: &[&'a Compared], max: usize) -> Vec<&'a Compared> {
    if rows.len() <= max {
        return rows.to_vec();
    }
    let last = rows.len() - 1;
    (0..max).filter_map(|n| rows.get(n * last / (max - 1)).copied()).collect()
}

/// Candidate parameters: costs of the protocols in use, launch costs, and efficiencies of links that are the
/// bottleneck.
fn knobs(measurement: &Measurement, rows: &[&Compared]) -> Vec<ProfileParameter> {
    let mut knobs = Vec::new();
    let mut add = |knob: ProfileParameter| {
        if !knobs.contains(&knob) {
            knobs.push(knob);
        }
    };
    for row in rows {
        let protocol = row.strategy.protocol;
        let passes = [Role::Send, Role::Forward].map(|role| ProfileParameter::Pass(protocol, role));
        for knob in
            [ProfileParameter::Startup(protocol), ProfileParameter::Step(protocol), ProfileParameter::Channel(protocol)]
                .into_iter()
                .chain(passes)
        {
            add(knob);
        }
        if let Some(Resource::Link(link)) = row.busiest.map(|busiest| busiest.resource) {
            // InfiniBand and Ethernet share one parameter.
            match measurement.fabric.link(link).kind {
                LinkKind::Ethernet => add(ProfileParameter::Links(LinkKind::Infiniband)),
                kind => add(ProfileParameter::Links(kind)),
            }
        }
        if row.strategy.algorithm.in_network() == fabricast_collectives::bound::InNetwork::Allowed {
            add(ProfileParameter::Multicast);
        }
    }
    let (launch, processes) = (measurement.configuration.launch, measurement.configuration.processes);
    for knob in [
        ProfileParameter::Added(launch, processes),
        ProfileParameter::Floor(launch, processes),
        ProfileParameter::FloorPerGpu(launch, processes),
    ] {
        add(knob);
    }
    knobs
}

/// Rows whose error is to be explained.
struct ExplainedRows<'a> {
    /// Simulations of the rows' measurements, each with the index of its measurement.
    reruns: &'a [(usize, MeasurementSimulation<'a>)],
    profile: &'a Profile,
    rows: &'a [&'a Compared],
}

impl ExplainedRows<'_> {
    /// Simulates a row under a profile; `None` if the row cannot be simulated.
    fn run(&self, row: &Compared, profile: &Profile) -> Option<SimulatedRow> {
        let (_, rerun) = self.reruns.iter().find(|(number, _)| *number == row.measurement)?;
        let rows: &[Row] = &rerun.measurement.rows;
        // Rows are mostly in the order of their lines.
        let index = rows.binary_search_by_key(&row.line, |candidate| candidate.line).ok();
        let candidate = rows.get(index.or_else(|| rows.iter().position(|candidate| candidate.line == row.line))?)?;
        rerun.simulate(&*rerun.schedule(row.strategy, candidate, profile)?, profile)
    }

    /// Selects the rows with the fewest simulation events: at most [`MAX_EVENTS`] events in total, but at least
    /// [`MIN_ROWS`] rows.
    fn affordable(&self) -> Vec<&'_ Compared> {
        let cost = |row: &&'_ Compared| self.run(row, self.profile).map_or(u64::MAX, |run| run.events);
        let mut priced: Vec<(u64, &Compared)> = self.rows.iter().map(|row| (cost(row), *row)).collect();
        priced.sort_by_key(|&(cost, row)| (cost, row.bytes, row.line));
        let mut total = 0u64;
        let selected = priced.into_iter().enumerate().take_while(|&(number, (cost, _))| {
            total = total.saturating_add(cost);
            number < MIN_ROWS || total <= MAX_EVENTS
        });
        selected.map(|(_, (_, row))| row).collect()
    }

    /// Median of ln(predicted ÷ measured) over the rows under a profile; `None` if a row cannot be simulated.
    fn gap(&self, profile: &Profile) -> Option<f64> {
        let gap = |row: &&Compared| {
            let time = self.run(row, profile)?.time;
            Some((time.0.max(1) as f64 / row.measured.0.max(1) as f64).ln())
        };
        let gaps: Option<Vec<f64>> = self.rows.iter().map(gap).collect();
        Some(median(&sorted(gaps?)))
    }

    /// Finds the parameter that needs the smallest factor; `None` if no factor up to ten explains the gap. All
    /// parameters are scaled in growing steps, upwards if a larger value changes the prediction in the required
    /// direction and downwards otherwise. Once some parameters explain the gap, their factors are found by bisection.
    fn find_smallest_change(&self, knobs: &[ProfileParameter], start: f64) -> Option<ScaledParameter> {
        let mut lower = 0.0;
        for upper in SEARCH_STEPS {
            let crossed = knobs.iter().filter_map(|&knob| {
                let sign = if knob.is_cost() { -start.signum() } else { start.signum() };
                let gap = self.gap(&knob.scale(self.profile, (sign * upper).exp()))?;
                let crossed = gap.signum() != start.signum() || gap.abs() <= CLOSED;
                crossed
                    .then(|| {
                        let bracket = Bracket { lower: sign * lower, upper: sign * upper };
                        self.bisect(knob, start.signum(), bracket, gap)
                    })
                    .flatten()
            });
            // Of equal factors, the first one takes precedence: device costs before link efficiencies, these before
            // launch costs.
            let best =
                crossed.reduce(|best, next| if next.log_factor.abs() < best.log_factor.abs() { next } else { best });
            if best.is_some() {
                return best;
            }
            lower = upper;
        }
        None
    }

    /// Bisects the range of factors in which the gap changes its sign.
    fn bisect(&self, knob: ProfileParameter, sign: f64, bracket: Bracket, gap: f64) -> Option<ScaledParameter> {
        let Bracket { mut lower, mut upper } = bracket;
        let mut best = ScaledParameter { knob, log_factor: upper, gap };
        for _ in 0..HALVINGS {
            if best.gap.abs() <= CLOSED {
                break;
            }
            let log_factor = f64::midpoint(lower, upper);
            let gap = self.gap(&knob.scale(self.profile, log_factor.exp()))?;
            if gap.abs() < best.gap.abs() {
                best = ScaledParameter { knob, log_factor, gap };
            }
            if gap.signum() == sign {
                lower = log_factor;
            } else {
                upper = log_factor;
            }
        }
        Some(best)
    }
}

/// Logarithms of two factors between which the gap changes its sign; `lower` is nearer to 0.
#[derive(Clone, Copy)]
struct Bracket {
    lower: f64,
    upper: f64,
}

/// A parameter, the logarithm of its factor, and the remaining gap.
#[derive(Clone, Copy)]
struct ScaledParameter {
    knob: ProfileParameter,
    log_factor: f64,
    gap: f64,
}
