//! Comparison of the picked strategies of a step's calls with the library default, and bus bandwidths of those calls
//! over message sizes.
//!
//! It is computed from a result for its page, not during the runs, because it needs searches at sizes that no step
//! uses. Groups with too many ranks, for which the library's choice cannot be predicted, are left out. The step with
//! the library default has the same kernels with other call times.

use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{Collective, Schedule};
use fabricast_topologies::route::{Links, RouteOptions, Router};
use fabricast_topologies::{Bytes, Fabric, Picos};
use rayon::prelude::*;

use super::Study;
use super::answer::{CallRow, ResultRow};
use super::load::{calls_of_row, layout_of_row};
use crate::export::SavedPlan;
use crate::job::{Collectives, Dimension, Job, Layout, Loaded};
use crate::library::Library;
use crate::serve;
use crate::step::{self, Exchange, Listed, ListedCall, Machine, Planned, Simulated, StepCall, ranks_at_work};
use crate::strategy::Strategy;

/// Number of kinds of calls with curves over sizes: those with the most time in a step.
const CURVES: usize = 3;

/// Message sizes of a curve in addition to those of the step: 1 KiB to 1 GiB.
const SIZES: [u64; 6] = [1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26, 1 << 30];

/// Largest group inside an NVLink domain that is examined.
pub const MOST_INSIDE: usize = 128;

/// Variant of [`MOST_INSIDE`] for groups that leave their domain: a search over more hosts takes as long as the run
/// itself.
pub const MOST_BETWEEN: usize = 32;

/// Largest message size of the search; above it the library's choice does not depend on the size.
const MOST_BYTES: Bytes = Bytes(4 << 30);

/// Largest group whose schedule is shown.
const MOST_SHOWN: usize = 32;

/// Largest number of bytes per rank in a schedule that is shown: one or two rounds of any algorithm.
const SHOWN_BYTES: u64 = 64 << 10;

/// Comparison of picks with the library default.
#[derive(Clone, Debug)]
pub struct Beside {
    /// The library.
    pub library: Library,
    /// The library default by call of the result; `None` if it cannot be predicted.
    pub calls: Vec<Option<OwnChoice>>,
    /// Step time in seconds with the picks, and with the library default.
    pub step_s: (f64, f64),
    /// Curves over message sizes, those with the most time in a step first.
    pub curves: Vec<Curve>,
    /// Schedule of the call with the most time in a step among those with small enough groups; `None` if there is none.
    pub shown: Option<Shown>,
}

/// Schedule of a group's call, reduced to one channel and, for large calls, to one or two rounds.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Dimension of the group.
    pub among: Dimension,
    /// Message size of the call in the step.
    pub bytes: Bytes,
    /// Strategy of the call in the step.
    pub pick: Strategy,
    /// The reduced schedule.
    pub schedule: Schedule,
}

/// Library default of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnChoice {
    /// Name in the library's terms: `Ring LL`.
    pub name: String,
    /// The equivalent strategy.
    pub strategy: Strategy,
    /// Completion time of one call with all groups concurrent, in µs.
    pub time_us: f64,
}

/// One kind of call over message sizes, for one group alone.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Dimension of the group.
    pub among: Dimension,
    /// The collective.
    pub collective: Collective,
    /// Message sizes that the step uses.
    pub called: Vec<Bytes>,
    /// Plan for all sizes: the pick with its band, the library default and the lower bound.
    pub plan: SavedPlan,
}

/// Compares the calls of a result on the fabric of its candidate; `None` if the result belongs to another job or has no
/// calls.
#[must_use]
pub fn of_row(study: &Study, job: &Job, row: &ResultRow, fabric: &Fabric) -> Option<Beside> {
    let layout = layout_of_row(job, row, fabric)?;
    let calls = calls_of_row(job, row, &layout)?;
    let router = Router::listing(fabric, RouteOptions::default(), Links::OneOfAlike);
    let profile = Profile::for_fabric(fabric).ok()?;
    let ranks = ranks_at_work(job, fabric).ok()?;
    let simulated = Simulated::new(&router, &profile, &ranks);
    let candidate = study.candidates.iter().position(|one| one.name == row.candidate)?;
    let curve = study.curve(candidate, fabric);
    let machine = Machine { router: &router, ranks: &ranks, simulated: &simulated, curve };
    let kinds = kinds(&calls, &row.calls);
    let asked = Asked { simulated: &simulated, layout: &layout, collectives: job.collectives() };
    let plans: Vec<Option<SavedPlan>> = kinds
        .par_iter()
        .enumerate()
        .with_max_len(1)
        .map(|(number, kind)| asked.plan(kind, &profile.date, number < CURVES))
        .collect();
    let library = plans.iter().flatten().find_map(|plan| plan.library)?;
    let own: Vec<Option<OwnChoice>> = calls
        .par_iter()
        .zip(&row.calls)
        .with_max_len(1)
        .map(|(call, told)| {
            let number = kinds.iter().position(|kind| kind.is_of(call.exchange))?;
            asked.own(plans.get(number)?.as_ref()?, call.exchange, told)
        })
        .collect();
    let ours = calls
        .iter()
        .zip(&row.calls)
        .map(|(call, told)| simulated.listed(&layout, call.exchange, &told.pick, Picos::from_us(told.time_us)));
    let ours: Vec<ListedCall> = ours.collect();
    let theirs = ours.iter().zip(&own).map(|(&ours, own)| match own {
        Some(own) => simulated.listed(&layout, ours.exchange, &own.strategy, Picos::from_us(own.time_us)),
        None => ours,
    });
    let theirs: Vec<ListedCall> = theirs.collect();
    let of = |calls: Vec<ListedCall>| step_time((job, row.in_flight), &layout, &machine, &Listed(calls));
    let step_s = (of(ours)?, of(theirs)?);
    let curves = kinds.into_iter().zip(plans).take(CURVES).filter_map(|(kind, plan)| {
        let plan = plan.filter(|plan| plan.rows.len() > 1)?;
        Some(Curve { among: kind.dimension, collective: kind.collective, called: kind.sizes, plan })
    });
    let shown = asked.shown(&calls, &row.calls);
    Some(Beside { library, calls: own, step_s, curves: curves.collect(), shown })
}

/// Calls of one collective for the groups of a dimension.
struct Kind {
    dimension: Dimension,
    collective: Collective,
    /// Message sizes, sorted and without duplicates.
    sizes: Vec<Bytes>,
    /// Total time of these calls in a step, in µs.
    time_us: f64,
}

impl Kind {
    fn is_of(&self, exchange: Exchange) -> bool {
        (self.dimension, self.collective) == (exchange.dimension, exchange.collective)
    }
}

/// Returns the kinds of calls, those with the most time in a step first.
fn kinds(calls: &[StepCall], told: &[CallRow]) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    for (call, told) in calls.iter().zip(told) {
        let Exchange { dimension, collective, bytes } = call.exchange;
        let time_us = told.time_us * told.times;
        match kinds.iter_mut().find(|kind| kind.is_of(call.exchange)) {
            Some(kind) => {
                kind.sizes.push(bytes);
                kind.time_us += time_us;
            }
            None => kinds.push(Kind { dimension, collective, sizes: vec![bytes], time_us }),
        }
    }
    for kind in &mut kinds {
        kind.sizes.sort_unstable();
        kind.sizes.dedup();
    }
    kinds.sort_by(|a, b| b.time_us.total_cmp(&a.time_us));
    kinds
}

/// Context of the calls.
struct Asked<'a> {
    simulated: &'a Simulated<'a>,
    layout: &'a Layout,
    collectives: Collectives,
}

impl Asked<'_> {
    /// Plans one kind of call for one group alone, at the message sizes of the step and, if requested, additional ones.
    fn plan(&self, kind: &Kind, date: &str, with_others: bool) -> Option<SavedPlan> {
        let group = self.simulated.first_group(self.layout, kind.dimension, kind.collective)?;
        let most = if self.simulated.islands(&group).len() > 1 { MOST_BETWEEN } else { MOST_INSIDE };
        if group.len() > most {
            return None;
        }
        let mut sizes: Vec<Bytes> = kind.sizes.iter().map(|&size| size.min(MOST_BYTES)).collect();
        if with_others {
            sizes.extend(SIZES.map(Bytes));
        }
        sizes.sort_unstable();
        sizes.dedup();
        let plan = self.simulated.plan(&group, kind.collective, &sizes, self.collectives, step::OwnChoice::Everywhere);
        let hosts = self.simulated.fabric().by_host(&group).len();
        plan.ok().map(|plan| SavedPlan::of(&plan, date, hosts as u32))
    }

    /// Returns the call with the most time in a step among those with small enough groups, with its reduced schedule.
    fn shown(&self, calls: &[StepCall], told: &[CallRow]) -> Option<Shown> {
        let mut heaviest: Vec<(&StepCall, &CallRow)> = calls.iter().zip(told).collect();
        heaviest.sort_by(|(_, a), (_, b)| (b.time_us * b.times).total_cmp(&(a.time_us * a.times)));
        heaviest.into_iter().find_map(|(call, told)| {
            let Exchange { dimension, collective, bytes } = call.exchange;
            let group = self.simulated.first_group(self.layout, dimension, collective)?;
            if group.len() > MOST_SHOWN {
                return None;
            }
            let least = bytes.min(Bytes(SHOWN_BYTES * group.len() as u64));
            let planned = Planned { collective, bytes: least, strategy: Strategy { channels: 1, ..told.pick } };
            let schedule = self.simulated.schedule(planned, &group)?;
            Some(Shown { among: dimension, bytes, pick: told.pick, schedule })
        })
    }

    /// Returns the library default of a call, timed with all groups concurrent.
    fn own(&self, plan: &SavedPlan, exchange: Exchange, told: &CallRow) -> Option<OwnChoice> {
        let row = plan.rows.iter().find(|row| row.bytes == exchange.bytes.min(MOST_BYTES))?;
        let pick = row.library_default.as_ref()?;
        let strategy = pick.strategy();
        let time_us = match strategy == told.pick {
            true => told.time_us,
            false => self.simulated.time_as(self.layout, exchange, strategy).ok()?.us(),
        };
        let name = pick.name.clone().unwrap_or_else(|| strategy.to_string());
        Some(OwnChoice { name, strategy, time_us })
    }
}

/// Step time in seconds with the listed call times.
fn step_time(
    (job, in_flight): (&Job, Option<u64>),
    layout: &Layout,
    machine: &Machine<'_>,
    tariff: &Listed,
) -> Option<f64> {
    let time = match job {
        Job::Training(job) => {
            let speeds = machine.speeds_to_train(job).ok()?;
            step::step(job, layout, &speeds, &machine.curve, tariff).ok()?.time
        }
        Job::Inference(job) => {
            let loaded = Loaded { job, in_flight: in_flight? };
            serve::step_of(&loaded, layout, machine, tariff).ok()?.time
        }
        Job::Trace(_) => return None,
    };
    Some(time.0 as f64 / 1e12)
}
