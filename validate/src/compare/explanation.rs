//! Which figure of the profile would have to differ, and by how much, for a group to fit.
//!
//! One figure at a time: the group's gap is the median over its rows of ln(predicted ÷ measured); a figure is scaled
//! until the gap is closed (by halving in its logarithm), and the one that needs the smallest factor is named. The strategies
//! stay what they were. It is a pointer, not a fit: several figures may be off, and `calibrate` moves them together.

use fabricast_sim::lower::Resource;
use fabricast_sim::profile::{Profile, Role};
use fabricast_topologies::LinkKind;

use super::group::median;
use super::{CompareError, Compared, Group, Knob, Request, profile};
use crate::measured::Row;
use crate::measured::manifest::Measurement;
use crate::rerun::{Again, Rerun};

/// What would make a group fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The figure.
    pub knob: Knob,
    /// What it would have to be multiplied with.
    pub factor: f64,
    /// As it is, with its unit.
    pub now: String,
    /// As it would have to be.
    pub then: String,
    /// The group's median error before: signed, predicted ÷ measured − 1.
    pub before: f64,
    /// And with the figure changed.
    pub after: f64,
}

/// A median gap below this is not explained: figures repeat within 4 % (data of the H200 node, two hosts).
const SIGNIFICANT: f64 = 0.05;
/// So many of the rows must be off to the same side.
const ONE_SIDED: f64 = 2.0 / 3.0;
/// Fewer rows say nothing.
const LEAST_ROWS: usize = 3;
/// Most rows that are simulated for a gap; more are thinned out evenly.
const MOST_ROWS: usize = 9;
/// Most events that the runs behind one gap may have together; a gap is asked for some hundred times.
const EVENTS: u64 = 300_000;
/// How far figures are turned, step by step, in the logarithm of the factor: 5 % to tenfold.
const REACHES: [f64; 7] = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.3];
/// Halvings of the last step.
const HALVINGS: usize = 6;
/// What counts as closed, in the logarithm.
const CLOSED: f64 = 0.005;

/// Explains a group that is off as a whole.
pub(super) fn explain(
    request: &Request<'_>,
    group: &Group,
    rows: &[Compared],
) -> Result<Option<Explanation>, CompareError> {
    let chosen: Vec<&Compared> = group.rows.iter().filter_map(|&row| rows.get(row)).collect();
    let gaps: Vec<f64> = chosen.iter().map(|row| (1.0 + row.error()).ln()).collect();
    let sorted = sorted(gaps);
    let gap = median(&sorted);
    let beside = sorted.iter().filter(|other| other.signum() == gap.signum()).count();
    if chosen.len() < LEAST_ROWS || gap.abs() < SIGNIFICANT || (beside as f64) < ONE_SIDED * chosen.len() as f64 {
        return Ok(None);
    }
    let Some(measurement) = group.measurements.first().and_then(|&first| request.measurements.get(first)) else {
        return Ok(None);
    };
    let profile = profile(request, measurement)?;
    let thinned = thinned(&chosen);
    let numbered = |&number: &usize| Some((number, Rerun::new(request.measurements.get(number)?, request.routes)));
    let reruns: Vec<(usize, Rerun<'_>)> = group.measurements.iter().filter_map(numbered).collect();
    let whole = Case { reruns: &reruns, profile: &profile, rows: &thinned };
    let chosen = whole.affordable();
    let case = Case { reruns: &reruns, profile: &profile, rows: &chosen };
    let Some(start) = case.gap(&profile).filter(|start| start.abs() > CLOSED && start.signum() == gap.signum()) else {
        return Ok(None);
    };
    let knobs: Vec<Knob> =
        knobs(measurement, &chosen).into_iter().filter(|knob| knob.value(&profile).is_some()).collect();
    let best = case.smallest(&knobs, start);
    Ok(best.map(|Turn { knob, turn, gap: after }| Explanation {
        knob,
        factor: turn.exp(),
        now: knob.shown(&profile),
        then: knob.shown(&knob.turned(&profile, turn.exp())),
        before: start.exp_m1(),
        after: after.exp_m1(),
    }))
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// At most [`MOST_ROWS`], evenly.
fn thinned<'a>(rows: &[&'a Compared]) -> Vec<&'a Compared> {
    if rows.len() <= MOST_ROWS {
        return rows.to_vec();
    }
    let last = rows.len() - 1;
    (0..MOST_ROWS).filter_map(|n| rows.get(n * last / (MOST_ROWS - 1)).copied()).collect()
}

/// What could explain rows: the costs of the protocols that ran, the launch, and the links that bind.
fn knobs(measurement: &Measurement, rows: &[&Compared]) -> Vec<Knob> {
    let mut knobs = Vec::new();
    let mut add = |knob: Knob| {
        if !knobs.contains(&knob) {
            knobs.push(knob);
        }
    };
    for row in rows {
        let protocol = row.strategy.protocol;
        let of_block = [Role::Send, Role::Forward].map(|role| Knob::Pass(protocol, role));
        for knob in [Knob::Startup(protocol), Knob::Step(protocol), Knob::Channel(protocol)].into_iter().chain(of_block)
        {
            add(knob);
        }
        if let Some(Resource::Link(link)) = row.busiest.map(|busiest| busiest.resource) {
            // InfiniBand and Ethernet are one figure.
            match measurement.fabric.link(link).kind {
                LinkKind::Ethernet => add(Knob::Links(LinkKind::Infiniband)),
                kind => add(Knob::Links(kind)),
            }
        }
        if row.strategy.algorithm.in_network() == fabricast_planner::bound::InNetwork::Allowed {
            add(Knob::Multicast);
        }
    }
    let (launch, by) = (measurement.configuration.launch, measurement.configuration.processes);
    for knob in [Knob::Added(launch, by), Knob::Floor(launch, by), Knob::FloorPerGpu(launch, by)] {
        add(knob);
    }
    knobs
}

/// Rows to be explained.
struct Case<'a> {
    /// The measurements that they are of, by number.
    reruns: &'a [(usize, Rerun<'a>)],
    profile: &'a Profile,
    rows: &'a [&'a Compared],
}

impl Case<'_> {
    /// The run of a row under a profile.
    fn run(&self, row: &Compared, profile: &Profile) -> Option<Again> {
        let (_, rerun) = self.reruns.iter().find(|(number, _)| *number == row.measurement)?;
        let rows: &[Row] = &rerun.measurement.rows;
        // (Mostly in the order of their lines.)
        let place = rows.binary_search_by_key(&row.line, |found| found.line).ok();
        let found = rows.get(place.or_else(|| rows.iter().position(|found| found.line == row.line))?)?;
        rerun.simulate(&*rerun.schedule(row.strategy, found, profile)?, profile)
    }

    /// The rows with the shortest runs that together stay within [`EVENTS`], at least [`LEAST_ROWS`].
    fn affordable(&self) -> Vec<&'_ Compared> {
        let cost = |row: &&'_ Compared| self.run(row, self.profile).map_or(u64::MAX, |run| run.events);
        let mut priced: Vec<(u64, &Compared)> = self.rows.iter().map(|row| (cost(row), *row)).collect();
        priced.sort_by_key(|&(cost, row)| (cost, row.bytes, row.line));
        let mut total = 0u64;
        let kept = priced.into_iter().enumerate().take_while(|&(number, (cost, _))| {
            total = total.saturating_add(cost);
            number < LEAST_ROWS || total <= EVENTS
        });
        kept.map(|(_, (_, row))| row).collect()
    }

    /// The median of ln(predicted ÷ measured) under a profile; none where a row cannot be simulated.
    fn gap(&self, profile: &Profile) -> Option<f64> {
        let gap = |row: &&Compared| {
            let time = self.run(row, profile)?.time;
            Some((time.0.max(1) as f64 / row.measured.0.max(1) as f64).ln())
        };
        let gaps: Option<Vec<f64>> = self.rows.iter().map(gap).collect();
        Some(median(&sorted(gaps?)))
    }

    /// The figure that needs the smallest factor. All are turned further and further, the way that helps (more cost where
    /// the prediction is too short), until one closes the gap; those that do are narrowed down.
    fn smallest(&self, knobs: &[Knob], start: f64) -> Option<Turn> {
        let mut from = 0.0;
        for reach in REACHES {
            let crossed = knobs.iter().filter_map(|&knob| {
                let way = if knob.is_cost() { -start.signum() } else { start.signum() };
                let gap = self.gap(&knob.turned(self.profile, (way * reach).exp()))?;
                let crossed = gap.signum() != start.signum() || gap.abs() <= CLOSED;
                crossed.then(|| self.narrowed(knob, start.signum(), (way * from, way * reach), gap)).flatten()
            });
            // Of equals the first: costs of the device before links, links before launches.
            let best = crossed.reduce(|best, next| if next.turn.abs() < best.turn.abs() { next } else { best });
            if best.is_some() {
                return best;
            }
            from = reach;
        }
        None
    }

    /// Halves the range in which a gap changes its sign.
    fn narrowed(&self, knob: Knob, sign: f64, (mut near, mut far): (f64, f64), gap: f64) -> Option<Turn> {
        let mut found = Turn { knob, turn: far, gap };
        for _ in 0..HALVINGS {
            if found.gap.abs() <= CLOSED {
                break;
            }
            let turn = f64::midpoint(near, far);
            let gap = self.gap(&knob.turned(self.profile, turn.exp()))?;
            if gap.abs() < found.gap.abs() {
                found = Turn { knob, turn, gap };
            }
            if gap.signum() == sign {
                near = turn;
            } else {
                far = turn;
            }
        }
        Some(found)
    }
}

/// A figure, how far it is turned (the logarithm of its factor), and the gap that is left.
#[derive(Clone, Copy)]
struct Turn {
    knob: Knob,
    turn: f64,
    gap: f64,
}
