//! Comparison of a step's selected strategies with the library default, and bus bandwidths of the step's calls over
//! message sizes.
//!
//! The comparison is computed from a result for its page, not during the runs, because it needs searches at sizes that
//! no step uses. Groups with too many ranks, for which the library's choice cannot be predicted, are omitted. The step
//! with the library default differs only in its call times.

use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{Collective, Schedule};
use fabricast_topologies::route::{LinkListing, RouteOptions, Router};
use fabricast_topologies::{Bytes, Fabric, Picos};
use rayon::prelude::*;

use super::link_utilization::{predicted_calls, predicted_layout};
use super::prediction::{PredictedCall, Prediction};
use fabricast_collectives::strategy::Strategy;
use fabricast_libraries::Library;
use fabricast_perf::communication::{
    CallWithStrategy, Exchange, LibraryChoiceScope, ListedCall, ListedCosts, SimulatedCosts, StepCall,
    unsupported_dispatcher,
};
use fabricast_perf::serve;
use fabricast_perf::step::{self, Efficiency, Machine, active_ranks};
use fabricast_search::export::SavedPlan;
use fabricast_search::plan::Plan;
use fabricast_workload::job::{CollectiveCandidates, Dimension, Job, Layout, LoadedServing};

/// Maximum number of curves over message sizes. They show the kinds of calls with the most time in a step.
const CURVES: usize = 3;

/// Message sizes of a curve in bytes, in addition to those of the step: 1 KiB to 1 GiB.
const SIZES: [u64; 6] = [1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26, 1 << 30];

/// Maximum number of ranks of a group inside an NVLink domain for which the library default is predicted.
pub const MAX_RANKS_IN_DOMAIN: usize = 128;

/// Maximum number of ranks of a group that spans several NVLink domains for which the library default is predicted. For
/// larger groups, the search would need as much time as the run.
pub const MAX_RANKS_BETWEEN_DOMAINS: usize = 32;

/// Maximum message size of the search. Above it, the library's choice does not depend on the size.
const MAX_SEARCH_BYTES: Bytes = Bytes(4 << 30);

/// Maximum number of ranks of a group whose schedule is shown.
const MAX_SHOWN_RANKS: usize = 32;

/// Maximum number of bytes per rank of a schedule that is shown: one or two loops of any algorithm.
const SHOWN_BYTES: u64 = 64 << 10;

/// Comparison of the selected strategies of a step with the library default.
#[derive(Clone, Debug)]
pub struct LibraryComparison {
    /// Library whose default is compared.
    pub library: Library,
    /// Library default of each call, in the order of the result's calls; `None` if it cannot be predicted.
    pub calls: Vec<Option<LibraryDefault>>,
    /// Times of the step.
    pub step: StepTimes,
    /// Curves over message sizes, ordered by decreasing time of the calls in a step.
    pub curves: Vec<Curve>,
    /// Schedule of the call with the most time in a step, among calls of groups that are small enough; `None` if there
    /// is none.
    pub shown: Option<ShownSchedule>,
}

/// Times of a step with two selections of strategies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTimes {
    /// Time with the selected strategies.
    pub picked: Picos,
    /// Time with the library default.
    pub library_default: Picos,
}

/// Schedule of a group's call, reduced to one channel and, for large calls, to one or two loops.
#[derive(Clone, Debug)]
pub struct ShownSchedule {
    /// Dimension whose groups make the call.
    pub dimension: Dimension,
    /// Message size of the call in the step.
    pub bytes: Bytes,
    /// Strategy of the call in the step.
    pub pick: Strategy,
    /// Schedule of the reduced call.
    pub schedule: Schedule,
}

/// Strategy that the library selects by default for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryDefault {
    /// Name of the strategy in the library's terms, such as `Ring LL`.
    pub name: String,
    /// Equivalent of the library's choice.
    pub strategy: Strategy,
    /// Completion time of one call with all groups concurrent.
    pub time: Picos,
}

/// Plan of one kind of call over message sizes, for a single group without concurrent groups.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Dimension whose groups make the calls.
    pub dimension: Dimension,
    /// Collective that the groups call.
    pub collective: Collective,
    /// Message sizes that the step uses, sorted.
    pub sizes: Vec<Bytes>,
    /// Plan for all sizes: the selected strategy with its prediction interval, the library default and the lower bound.
    pub plan: SavedPlan,
}

/// Compares the calls of a prediction on a candidate with the library default; `None` if the prediction belongs to
/// another job or has no calls, or if an all_to_all replaces the kernels of its dispatcher, whose calls the prediction
/// does not list. `curve`: kernel efficiency of the candidate's GPUs.
#[must_use]
pub fn compare(job: &Job, prediction: &Prediction, fabric: &Fabric, curve: Efficiency) -> Option<LibraryComparison> {
    let layout = predicted_layout(job, prediction, fabric)?;
    let calls = predicted_calls(job, prediction, &layout)?;
    let router = Router::with_link_listing(fabric, RouteOptions::default(), LinkListing::Representatives);
    let profile = Profile::for_fabric(fabric).ok()?;
    let ranks = active_ranks(job, fabric).ok()?;
    let simulated = SimulatedCosts::new(&router, &profile, &ranks);
    let machine = Machine { router: &router, ranks: &ranks, simulated: &simulated, curve };
    if unsupported_dispatcher(job, &machine, &layout).is_some() {
        return None;
    }
    let kinds = kinds(&calls, &prediction.calls);
    let context = CallContext { simulated: &simulated, layout: &layout, collectives: job.collectives() };
    let plans: Vec<Option<GroupPlan>> = kinds
        .par_iter()
        .enumerate()
        .with_max_len(1)
        .map(|(number, kind)| context.plan(kind, if number < CURVES { &SIZES } else { &[] }))
        .collect();
    let library = plans.iter().flatten().find_map(|planned| planned.plan.library)?;
    let defaults: Vec<Option<LibraryDefault>> = calls
        .par_iter()
        .zip(&prediction.calls)
        .with_max_len(1)
        .map(|(call, predicted)| {
            let number = kinds.iter().position(|kind| kind.matches(call.exchange))?;
            context.library_default(&plans.get(number)?.as_ref()?.plan, call.exchange, predicted)
        })
        .collect();
    let picked_calls = calls
        .iter()
        .zip(&prediction.calls)
        .map(|(call, predicted)| simulated.list_call(&layout, call.exchange, &predicted.strategy, predicted.time));
    let picked_calls: Vec<ListedCall> = picked_calls.collect();
    let default_calls = picked_calls.iter().zip(&defaults).map(|(&picked, default)| match default {
        Some(default) => simulated.list_call(&layout, picked.exchange, &default.strategy, default.time),
        None => picked,
    });
    let default_calls: Vec<ListedCall> = default_calls.collect();
    let allowed = simulated.restricted_to(job.collectives());
    let concurrent_requests = prediction.service().and_then(|service| service.concurrent_requests);
    let time = |calls: Vec<ListedCall>| {
        step_time(job, concurrent_requests, &layout, &machine, &ListedCosts { calls, exchanges: &allowed })
    };
    let step = StepTimes { picked: time(picked_calls)?, library_default: time(default_calls)? };
    let curves = kinds.into_iter().zip(plans).take(CURVES).filter_map(|(kind, plan)| {
        let GroupPlan { plan, hosts } = plan.filter(|planned| planned.plan.rows.len() > 1)?;
        let plan = SavedPlan::from_plan(&plan, &profile.date, hosts);
        Some(Curve { dimension: kind.dimension, collective: kind.collective, sizes: kind.sizes, plan })
    });
    let shown = context.shown_schedule(&calls, &prediction.calls);
    Some(LibraryComparison { library, calls: defaults, step, curves: curves.collect(), shown })
}

/// Plan of one group, and the number of its hosts.
struct GroupPlan {
    plan: Plan,
    hosts: u32,
}

/// Kind of call: one collective by the groups of a dimension.
struct CallKind {
    dimension: Dimension,
    collective: Collective,
    /// Message sizes, sorted and without duplicates.
    sizes: Vec<Bytes>,
    /// Total time of these calls in a step, in µs.
    time_us: f64,
}

impl CallKind {
    fn matches(&self, exchange: Exchange) -> bool {
        (self.dimension, self.collective) == (exchange.dimension, exchange.collective)
    }
}

/// Returns the kinds of calls, ordered by decreasing total time in a step.
fn kinds(calls: &[StepCall], predicted_calls: &[PredictedCall]) -> Vec<CallKind> {
    let mut kinds: Vec<CallKind> = Vec::new();
    for (call, predicted) in calls.iter().zip(predicted_calls) {
        let Exchange { dimension, collective, bytes } = call.exchange;
        let time_us = predicted.time.us() * predicted.times;
        match kinds.iter_mut().find(|kind| kind.matches(call.exchange)) {
            Some(kind) => {
                kind.sizes.push(bytes);
                kind.time_us += time_us;
            }
            None => kinds.push(CallKind { dimension, collective, sizes: vec![bytes], time_us }),
        }
    }
    for kind in &mut kinds {
        kind.sizes.sort_unstable();
        kind.sizes.dedup();
    }
    kinds.sort_by(|a, b| b.time_us.total_cmp(&a.time_us));
    kinds
}

/// Cost model, layout and candidate strategies of the calls to be compared.
struct CallContext<'a> {
    simulated: &'a SimulatedCosts<'a>,
    layout: &'a Layout,
    collectives: CollectiveCandidates,
}

impl CallContext<'_> {
    /// Plans one kind of call for a single group, at the message sizes of the step and at `additional_sizes`, in bytes.
    /// `None` if the group is too large or there is no plan.
    fn plan(&self, kind: &CallKind, additional_sizes: &[u64]) -> Option<GroupPlan> {
        let group = self.simulated.first_group(self.layout, kind.dimension, kind.collective)?;
        let max_ranks =
            if self.simulated.islands(&group).len() > 1 { MAX_RANKS_BETWEEN_DOMAINS } else { MAX_RANKS_IN_DOMAIN };
        if group.len() > max_ranks {
            return None;
        }
        let mut sizes: Vec<Bytes> = kind.sizes.iter().map(|&size| size.min(MAX_SEARCH_BYTES)).collect();
        sizes.extend(additional_sizes.iter().copied().map(Bytes));
        sizes.sort_unstable();
        sizes.dedup();
        let plan =
            self.simulated.plan(&group, kind.collective, &sizes, self.collectives, LibraryChoiceScope::Everywhere);
        let hosts = self.simulated.fabric().group_by_host(&group).len();
        plan.ok().map(|plan| GroupPlan { plan, hosts: hosts as u32 })
    }

    /// Returns the call with the most time in a step, among calls of groups that are small enough, with its reduced
    /// schedule.
    fn shown_schedule(&self, calls: &[StepCall], predicted_calls: &[PredictedCall]) -> Option<ShownSchedule> {
        let time_us = |call: &PredictedCall| call.time.us() * call.times;
        let mut heaviest: Vec<(&StepCall, &PredictedCall)> = calls.iter().zip(predicted_calls).collect();
        heaviest.sort_by(|(_, a), (_, b)| time_us(b).total_cmp(&time_us(a)));
        heaviest.into_iter().find_map(|(call, predicted)| {
            let Exchange { dimension, collective, bytes } = call.exchange;
            let group = self.simulated.first_group(self.layout, dimension, collective)?;
            if group.len() > MAX_SHOWN_RANKS {
                return None;
            }
            let shown_bytes = bytes.min(Bytes(SHOWN_BYTES * group.len() as u64));
            let planned = CallWithStrategy {
                collective,
                bytes: shown_bytes,
                strategy: Strategy { channels: 1, ..predicted.strategy },
            };
            let schedule = self.simulated.schedule(planned, &group)?;
            Some(ShownSchedule { dimension, bytes, pick: predicted.strategy, schedule })
        })
    }

    /// Returns the library default of a call, timed with all groups concurrent; `None` if it cannot be predicted.
    fn library_default(&self, plan: &Plan, exchange: Exchange, predicted: &PredictedCall) -> Option<LibraryDefault> {
        let row = plan.rows.iter().find(|row| row.bytes == exchange.bytes.min(MAX_SEARCH_BYTES))?;
        let default = row.library_default.as_ref()?;
        let strategy = default.timed.strategy;
        let time = match strategy == predicted.strategy {
            true => predicted.time,
            false => self.simulated.time_with_strategy(self.layout, exchange, strategy).ok()?,
        };
        Some(LibraryDefault { name: default.choice.name.clone(), strategy, time })
    }
}

/// Returns the step time with the given call times; `None` if the job has no steps or cannot run.
fn step_time(
    job: &Job,
    concurrent_requests: Option<u64>,
    layout: &Layout,
    machine: &Machine<'_>,
    costs: &ListedCosts<'_>,
) -> Option<Picos> {
    Some(match job {
        Job::Training(job) => {
            let rates = machine.training_rates(job).ok()?;
            step::step(job, layout, &rates, &machine.curve, costs).ok()?.time
        }
        Job::Inference(job) => {
            let loaded = LoadedServing { job, concurrent_requests: concurrent_requests? };
            serve::mean_step(&loaded, layout, machine, costs).ok()?.time
        }
        Job::Trace(_) => return None,
    })
}
