//! Simulation of schedules on a fabric: the main entry point of this crate.

use std::ops::Range;
use std::sync::Arc;

use fabricast_topologies::Picos;

use crate::critical::{self, CriticalStep};
use crate::engine::{self, Costs, EngineError, Outcome, Recording, SteadyStates, Watch, Workload};
use crate::flows::{self, Flow};
use crate::fold::{self, FoldedWorkload};
use crate::load::{LoadOverTime, load_over_time};
use crate::lower::{self, Environment, LowerError, LoweredWorkload, RankClasses, ScheduleInstance};
use crate::profile::{Bottleneck, CallTraits, HostWork, Launch, PredictionInterval, Processes, Profile};
use crate::schedule::{Header, Rank, ScheduleGenerator};
use crate::sharing::System;
use crate::simulate_error::SimulateError;
use crate::spans::Spans;
use crate::utilization::{LOAD_SLICES, Utilization, expand, utilization};

/// Launch mode of a call, which determines the costs outside the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchMode {
    /// Replay of a CUDA graph, or launch on a stream.
    pub launch: Launch,
    /// One process per GPU, or one per host.
    pub processes: Processes,
    /// Number of GPUs in use on a host.
    pub gpus_per_host: u32,
}

impl LaunchMode {
    /// Returns the name in profile files, such as `graph.per_gpu`.
    #[must_use]
    pub fn name(self) -> String {
        let launch = match self.launch {
            Launch::Graph => "graph",
            Launch::Stream => "stream",
        };
        let processes = match self.processes {
            Processes::PerGpu => "per_gpu",
            Processes::Single => "single",
        };
        format!("{launch}.{processes}")
    }

    /// Returns the bottleneck of a run with this launch mode. `end`: end of the run on the device; `bytes`: data
    /// transfer part of that time.
    fn bottleneck(self, profile: &Profile, work: HostWork, end: Picos, bytes: Picos) -> Bottleneck {
        let costs = profile.launch(self.launch, self.processes);
        Bottleneck::classify(costs.call_time(end, work), end + costs.added(work.gpus), bytes)
    }

    /// Returns the work of a host for one call of a schedule.
    #[must_use]
    pub fn host_work(self, header: &Header) -> HostWork {
        HostWork::for_call(self.gpus_per_host, header.call.collective, header.protocol, header.call.ranks)
    }

    /// Returns the prediction interval of a schedule's time. `end`: end of the run on the device; `bytes`: data
    /// transfer part of that time.
    #[must_use]
    pub fn band(self, header: &Header, profile: &Profile, end: Picos, bytes: Picos) -> PredictionInterval {
        profile.bands.interval(self.circumstances(header, self.bottleneck(profile, self.host_work(header), end, bytes)))
    }

    /// Returns the traits of a call that its prediction interval depends on.
    fn circumstances(self, header: &Header, decides: Bottleneck) -> CallTraits {
        let ranks = header.call.ranks;
        let gpus = if self.gpus_per_host == 0 { ranks } else { self.gpus_per_host.min(ranks) };
        let nodes = ranks.div_ceil(gpus.max(1));
        CallTraits { collective: header.call.collective, protocol: header.protocol, gpus, nodes, decides }
    }
}

/// Returns the smallest interval that contains the prediction intervals of all schedule instances.
fn band(parties: &[ScheduleInstance<'_>], mode: LaunchMode, decides: Bottleneck) -> PredictionInterval {
    let party_band = |party: &ScheduleInstance<'_>| {
        party.setting.profile.bands.interval(mode.circumstances(party.generator.header(), decides))
    };
    let widest = |a: PredictionInterval, b: PredictionInterval| PredictionInterval {
        low: a.low.min(b.low),
        high: a.high.max(b.high),
    };
    parties.iter().map(party_band).reduce(widest).unwrap_or(PredictionInterval::NONE)
}

/// Policy for simulating one representative of equal operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Folding {
    /// Symmetric operations are folded if the symmetry is proven on the actual fabric.
    #[default]
    WhereProved,
    /// Equal to [`Self::WhereProved`], except that only the first of equal groups of thread blocks is lowered. Gives
    /// time, costs and utilizations only. Relies on the symmetry that the generator declares
    /// ([`Symmetry`](crate::schedule::Symmetry)). Of the channels' own capacities, only those of the first group are
    /// listed. Equals [`Self::WhereProved`] if spans or background traffic are requested, and for several schedules
    /// unless all have the same number of groups.
    GroupsFirst,
    /// Every operation is simulated: no folding, and no skipping of steady states.
    Off,
}

/// Conditions of a simulation: folding policy, and background flows that share the fabric.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimulationOptions<'a> {
    /// Policy for simulating one representative of equal operations.
    pub folding: Folding,
    /// Background traffic, which shares the fabric but does not count towards the end.
    pub background: &'a [Flow],
}

/// Result of a simulation.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Time from 0 (the start of ranks without delay) to the end of the last operation, including launch costs and
    /// floors.
    pub time: Picos,
    /// Part of `time` that the launch adds to the end of the last operation: launch costs and floors.
    pub launch: Picos,
    /// Bottleneck that determines `time`.
    pub bottleneck: Bottleneck,
    /// 80 % prediction interval of `time`. For several schedule instances, the smallest interval that contains those of
    /// all instances.
    pub band: PredictionInterval,
    /// Completion time of each schedule instance, defined as `time` is.
    pub instance_times: Vec<Picos>,
    /// Ends of the schedules on the devices: their times without the launch. One entry as for `instance_times`.
    pub instance_ends: Vec<Picos>,
    /// Ends of the channels of each schedule on the devices, by channel; empty for a single schedule, and where equal
    /// groups of channels were folded.
    pub channel_ends: Vec<Vec<Picos>>,
    /// Costs of the chain of operations that ended last. They add up to `time`; launch costs count as software.
    pub costs: Costs,
    /// Number of operations of the schedule.
    pub operations: u64,
    /// Number of operations of the schedule ÷ number of simulated operations; `None` if nothing was folded.
    pub fold_factor: Option<f64>,
    /// Number of events that the engine handled.
    pub events: u64,
    /// Utilization of every used capacity, in order of id.
    pub utilization: Vec<Utilization>,
    /// Times of each operation; empty if not recorded.
    pub spans: Spans,
    /// Chain of operations that ended last, if spans were recorded. With `launch` its durations add up to `time`,
    /// unless there are no operations.
    pub critical_path: Vec<CriticalStep>,
    /// Used fraction of each capacity over time, in the order of `utilization`, if spans were recorded.
    pub load: Option<LoadOverTime>,
    /// Number of the first run of each rank, to index `spans`.
    pub rank_starts: Vec<u32>,
}

impl Timeline {
    /// Returns the timeline of `instances` schedule instances without operations and without a launch, which take no
    /// time.
    #[must_use]
    pub fn without_operations(instances: usize) -> Self {
        Self {
            time: Picos::ZERO,
            launch: Picos::ZERO,
            bottleneck: Bottleneck::Latency,
            band: PredictionInterval { low: 1.0, high: 1.0 },
            instance_times: vec![Picos::ZERO; instances],
            instance_ends: vec![Picos::ZERO; instances],
            channel_ends: Vec::new(),
            costs: Costs::default(),
            operations: 0,
            fold_factor: None,
            events: 0,
            utilization: Vec::new(),
            spans: Spans::default(),
            critical_path: Vec::new(),
            load: None,
            rank_starts: Vec::new(),
        }
    }

    /// Returns the rank that executes a run.
    #[must_use]
    pub fn run_rank(&self, run: u32) -> Rank {
        Rank((self.rank_starts.partition_point(|&start| start <= run) as u32).saturating_sub(1))
    }
}

/// Simulates the schedule of `generator` in `setting`.
///
/// # Errors
/// [`SimulateError`]: ranks without devices or paths, a deadlock, an interrupt.
pub fn simulate(
    generator: &dyn ScheduleGenerator,
    setting: Environment<'_>,
    mode: LaunchMode,
    surroundings: SimulationOptions<'_>,
    watch: Watch<'_>,
) -> Result<Timeline, SimulateError> {
    simulate_concurrent(&[ScheduleInstance::new(generator, setting)], mode, surroundings, watch)
}

/// Simulates several concurrent schedules that start at the same time and share the fabric: the groups of a job, or the
/// calls of an NCCL group. `time` is the end of the last schedule; [`Timeline::instance_times`] has the time of each.
/// Ranks are numbered consecutively over the schedules.
///
/// # Errors
/// [`SimulateError`]: no schedule, ranks without devices or paths, a deadlock, an interrupt.
pub fn simulate_concurrent(
    parties: &[ScheduleInstance<'_>],
    mode: LaunchMode,
    surroundings: SimulationOptions<'_>,
    watch: Watch<'_>,
) -> Result<Timeline, SimulateError> {
    let setting = parties.first().ok_or(SimulateError::NoParties)?.setting;
    let recording =
        if parties.len() > 1 && watch.recording == Recording::End { Recording::RunEnds } else { watch.recording };
    let steady_states = match surroundings.folding {
        Folding::Off => SteadyStates::Simulate,
        Folding::WhereProved | Folding::GroupsFirst => watch.steady_states,
    };
    let watch = Watch { recording, steady_states, ..watch };
    // Channels that start at different times are not equal.
    let starts_together = parties.iter().all(|party| party.channel_starts.is_empty());
    let LoweredParties { mut lowered, groups, classes } = match surroundings.folding {
        Folding::GroupsFirst
            if starts_together && watch.recording != Recording::Spans && surroundings.background.is_empty() =>
        {
            lower_first_of_equals(parties)?
        }
        _ => LoweredParties { lowered: lower::lower(parties)?, groups: None, classes: None },
    };
    let class_size = classes.as_ref().map_or(1, |classes| u64::from(classes.size()));
    let operations = lowered.workload.operation_count() * groups.unwrap_or(1) * class_size;
    lowered.workload.background_from = lowered.workload.runs.len() as u32;
    flows::add(surroundings.background, setting, &mut lowered)?;
    // The recorded load must cover all capacities.
    if watch.recording != Recording::Spans {
        lowered.workload.remove_idle_capacities();
    }
    let folded = match surroundings.folding {
        Folding::WhereProved | Folding::GroupsFirst => fold::fold(&lowered.workload),
        Folding::Off => None,
    };
    let WorkloadRun { outcome, records, folded: run_folded } = run(&lowered.workload, folded.as_ref(), watch)?;
    let Records { spans, load } = records.unwrap_or_default();
    let host_works = parties.iter().map(|party| mode.host_work(party.generator.header()));
    let work = host_works.max_by_key(|work| work.peers).unwrap_or_default();
    let launched = |end| setting.profile.launch(mode.launch, mode.processes).call_time(end, work);
    let time = launched(outcome.end);
    let launch = time - outcome.end;
    let party_ends = PartyEnds::new(&lowered, run_folded, &outcome);
    let ends = party_ends.as_ref().map_or_else(|| vec![outcome.end], PartyEnds::of_parties);
    let channel_ends = match (&party_ends, groups) {
        (Some(ends), None) if parties.len() > 1 => ends.of_channels(),
        _ => Vec::new(),
    };
    let party_times = ends.iter().copied().map(launched).collect();
    let mut costs = outcome.costs;
    let decides = mode.bottleneck(setting.profile, work, outcome.end, outcome.costs.bandwidth + outcome.costs.waiting);
    let band = band(parties, mode, decides);
    costs.software += launch;
    let simulated = run_folded.map_or(&lowered.workload, |folded| &folded.workload).operation_count();
    let is_folded = run_folded.is_some() || groups.is_some() || classes.is_some() || outcome.skipped > 0;
    let fold_factor = is_folded.then(|| operations as f64 / (simulated - outcome.skipped).max(1) as f64);
    let critical_path = critical::critical_path(&lowered.workload, &spans);
    let LoweredWorkload { workload, resources, traffic, rank_starts, .. } = lowered;
    drop(folded);
    // The system is a small part of a large workload. The rest of the workload is not needed any more.
    let system = only_system(workload);
    let utilization = utilization(&system, &resources, &traffic, outcome.end);
    Ok(Timeline {
        time,
        instance_times: party_times,
        instance_ends: ends,
        channel_ends,
        launch,
        bottleneck: decides,
        band,
        costs,
        operations,
        fold_factor,
        events: outcome.events,
        utilization: match &classes {
            Some(classes) => expand(utilization, classes),
            None => utilization,
        },
        critical_path,
        spans,
        load,
        rank_starts,
    })
}

/// Lowered schedules, and the number of ranks and groups that they represent.
struct LoweredParties {
    lowered: LoweredWorkload,
    /// Number of groups of blocks that each first group represents; `None` if all blocks are lowered.
    groups: Option<u64>,
    /// Classes of ranks of which only representatives are lowered; `None` if all ranks are.
    classes: Option<Arc<RankClasses>>,
}

/// Lowers only first groups of blocks and, for a single schedule, only the first rank of each class.
///
/// # Errors
/// [`LowerError`]: ranks without devices or paths.
fn lower_first_of_equals(parties: &[ScheduleInstance<'_>]) -> Result<LoweredParties, LowerError> {
    if let &[party] = parties
        && let Some(classes) = RankClasses::find(&party)
        && let Some((lowered, groups)) = lower::lower_first_ranks(party, &classes)?
    {
        return Ok(LoweredParties { lowered, groups: Some(groups), classes: Some(classes) });
    }
    let (lowered, groups) = lower::lower_first_groups(parties)?;
    Ok(LoweredParties { lowered, groups, classes: None })
}

/// Recorded spans and loads of a run, expanded to the whole workload.
#[derive(Default)]
struct Records {
    spans: Spans,
    load: Option<LoadOverTime>,
}

/// Completed run of a workload.
pub(crate) struct WorkloadRun<'a> {
    pub(crate) outcome: Outcome,
    /// Records of the run, if spans were recorded.
    records: Option<Records>,
    /// The folded workload if that was simulated; `None` if the whole workload was.
    folded: Option<&'a FoldedWorkload>,
}

/// Runs the folded workload if there is one; runs the whole workload otherwise, or if the folded one fails.
///
/// # Errors
/// [`EngineError`] of the run of the whole workload.
pub(crate) fn run<'a>(
    workload: &Workload,
    folded: Option<&'a FoldedWorkload>,
    watch: Watch<'_>,
) -> Result<WorkloadRun<'a>, EngineError> {
    let recorded = watch.recording == Recording::Spans;
    let measure_load =
        |workload: &Workload, outcome: &Outcome| load_over_time(workload, &outcome.rates, outcome.end, LOAD_SLICES);
    match folded.map(|folded| (folded, engine::run(&folded.workload, watch))) {
        Some((folded, Ok(mut outcome))) => {
            let runs = workload.background_from as usize;
            let records = recorded.then(|| Records {
                load: Some(folded.unfold_load(measure_load(&folded.workload, &outcome))),
                spans: folded.unfold_spans(std::mem::take(&mut outcome.spans), runs),
            });
            Ok(WorkloadRun { outcome, records, folded: Some(folded) })
        }
        Some((_, Err(error @ (EngineError::Interrupted | EngineError::Abandoned { .. })))) => Err(error),
        // Only a run of the whole workload identifies the operation that cannot proceed and the number of completed
        // ones.
        Some((_, Err(_))) | None => {
            let mut outcome = engine::run(workload, watch)?;
            let records = recorded.then(|| Records {
                load: Some(measure_load(workload, &outcome)),
                spans: Spans::from_workload(workload, std::mem::take(&mut outcome.spans)),
            });
            Ok(WorkloadRun { outcome, records, folded: None })
        }
    }
}

/// Ends of the runs of a simulation.
struct PartyEnds<'a> {
    lowered: &'a LoweredWorkload,
    /// End of each run, background traffic excluded.
    runs: Vec<Picos>,
}

impl<'a> PartyEnds<'a> {
    /// Unfolds the ends of runs; `None` if they were not recorded.
    fn new(lowered: &'a LoweredWorkload, folded: Option<&FoldedWorkload>, outcome: &Outcome) -> Option<Self> {
        if outcome.run_ends.is_empty() {
            return None;
        }
        let mut runs = match folded {
            Some(folded) => folded.unfold_runs(&outcome.run_ends),
            None => outcome.run_ends.clone(),
        };
        runs.truncate(lowered.workload.background_from as usize);
        Some(Self { lowered, runs })
    }

    /// Returns the runs of each schedule instance.
    fn parties(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let starts = || self.lowered.instance_starts.iter().map(|&start| start as usize);
        starts().zip(starts().skip(1).chain([self.runs.len()])).map(|(start, end)| start..end)
    }

    /// Returns the end of each schedule instance.
    fn of_parties(&self) -> Vec<Picos> {
        let last_end = |party: Range<usize>| self.runs.get(party).and_then(|ends| ends.iter().max()).copied();
        self.parties().map(|party| last_end(party).unwrap_or_default().max(self.lowered.workload.startup)).collect()
    }

    /// Returns the end of each channel of each schedule instance; the start-up for a channel without operations.
    fn of_channels(&self) -> Vec<Vec<Picos>> {
        let of_party = |party: Range<usize>| {
            let mut ends: Vec<Picos> = Vec::new();
            let channels = self.lowered.run_channels.get(party.clone()).unwrap_or_default();
            for (&channel, &end) in channels.iter().zip(self.runs.get(party).unwrap_or_default()) {
                let channel = usize::from(channel);
                if ends.len() <= channel {
                    ends.resize(channel + 1, self.lowered.workload.startup);
                }
                ends[channel] = ends[channel].max(end);
            }
            ends
        };
        self.parties().map(of_party).collect()
    }
}

/// Returns the system of a workload, and drops the rest.
fn only_system(workload: Workload) -> System {
    workload.system
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Edge, Pace, RouteLatency};
    use crate::quantity::Work;

    /// Builds `runs` equal runs of four operations without bytes. Each run has these dependencies.
    fn workload(runs: u32, waits: &[Edge]) -> Workload {
        let mut workload = Workload::new();
        for _ in 0..runs {
            let passage = RouteLatency { route: None, latency: Picos(1000) };
            workload.add_uniform_run(4, passage, Work(0), Pace::default(), waits);
        }
        workload
    }

    #[test]
    fn a_failed_folded_run_does_not_count_as_folded() {
        let whole = workload(4, &[]);
        let mut folded = fold::fold(&whole).unwrap();
        let proved = run(&whole, Some(&folded), Watch::default()).unwrap();
        assert_eq!(proved.folded.map(FoldedWorkload::operations), Some(16));
        // Each operation waits for itself.
        folded.workload = workload(1, &[Edge { run: 0, start: 0, step: 1 }]);
        let failed = run(&whole, Some(&folded), Watch::default()).unwrap();
        assert!(failed.folded.is_none());
        assert_eq!(failed.outcome.operations, whole.operation_count());
    }
}
