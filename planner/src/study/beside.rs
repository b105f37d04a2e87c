//! What the library would choose by itself in the calls of a step, beside what is picked, and bus bandwidths of those calls over sizes.
//!
//! Worked out of a result for its page, not with the runs: it needs searches at sizes that no step calls, which the ranking does
//! not ask for; so groups of many ranks are left out, whose choices are not known. The step with the library's choices is the same
//! step of the same kernels with other prices of calls.

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

/// Kinds of call that are shown over sizes, those that take the most of a step.
const CURVES: usize = 3;

/// Sizes of a curve besides those that are called: 1 KiB to 1 GiB.
const SIZES: [u64; 6] = [1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26, 1 << 30];

/// Ranks of a group inside of an NVLink domain up to which it is asked about.
pub const MOST_INSIDE: usize = 128;

/// The same of a group that leaves its domain: a search over more hosts takes as long as the run itself.
pub const MOST_BETWEEN: usize = 32;

/// Larger calls are chosen for as those of this size are: what a library chooses no longer depends on it.
const MOST_BYTES: Bytes = Bytes(4 << 30);

/// Ranks of a call that is shown at most.
const MOST_SHOWN: usize = 32;

/// Bytes of each rank in a call that is shown at most: no more than a round or two of any algorithm.
const SHOWN_BYTES: u64 = 64 << 10;

/// What a library would do, beside what is picked.
#[derive(Clone, Debug)]
pub struct Beside {
    /// Whose choices they are.
    pub library: Library,
    /// By call of the result: the library's choice; `None` where it is not known.
    pub calls: Vec<Option<OwnChoice>>,
    /// A step as it is picked, and with the library's choices instead, in seconds.
    pub step_s: (f64, f64),
    /// Calls over sizes, those that take the most of a step first.
    pub curves: Vec<Curve>,
    /// What ranks do in the call that takes the most of a step; `None` where all are of many ranks.
    pub shown: Option<Shown>,
}

/// What the ranks of a group do in a call: on one channel, and of a large call what they do in one that takes a round or two.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Among whom.
    pub among: Dimension,
    /// The size of the call in the step.
    pub bytes: Bytes,
    /// How it is done there.
    pub pick: Strategy,
    /// The schedule.
    pub schedule: Schedule,
}

/// The library's choice of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnChoice {
    /// In its own words: `Ring LL`.
    pub name: String,
    /// In ours.
    pub strategy: Strategy,
    /// What one takes, with all groups at once, µs.
    pub time_us: f64,
}

/// A kind of call over sizes, of one group alone.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Among whom.
    pub among: Dimension,
    /// What.
    pub collective: Collective,
    /// The sizes that the step calls.
    pub called: Vec<Bytes>,
    /// At all sizes: the pick with its band, the library's choice, the bound.
    pub plan: SavedPlan,
}

/// Those of a result of a study on the fabric of its candidate; `None` where the result is another job's, or has no calls.
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

/// Calls of one collective among the groups of a dimension.
struct Kind {
    dimension: Dimension,
    collective: Collective,
    /// Upwards, each once.
    sizes: Vec<Bytes>,
    /// All of them in a step, µs.
    time_us: f64,
}

impl Kind {
    fn is_of(&self, exchange: Exchange) -> bool {
        (self.dimension, self.collective) == (exchange.dimension, exchange.collective)
    }
}

/// The kinds of calls, those that take the most of a step first.
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

/// Where and how calls are made.
struct Asked<'a> {
    simulated: &'a Simulated<'a>,
    layout: &'a Layout,
    collectives: Collectives,
}

impl Asked<'_> {
    /// What is best for a kind of call of one group alone, at the sizes that are called and, where they are wanted, others.
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

    /// The call that takes the most of a step, of those whose groups are small enough to be looked at.
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

    /// The library's choice of a call, with all groups at once.
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

/// Seconds of a step whose calls take what is listed.
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
