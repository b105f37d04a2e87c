//! Runs a schedule on a fabric and says what happened: the front door of this crate.

use fabricast_topologies::Picos;

use crate::critical::{self, CriticalStep};
use crate::engine::{self, Costs, EngineError, Outcome, Recording, Watch, Workload};
use crate::flows::{self, Flow};
use crate::fold::{self, Folded};
use crate::load::{LoadOverTime, load_over_time};
use crate::lower::{self, LowerError, Lowered, Party, Resource, Setting, Traffic};
use crate::profile::{Band, Circumstances, Decides, HostWork, Launch, Processes, Profile};
use crate::quantity::Work;
use crate::schedule::{Generate, Header, Rank};
use crate::sharing::{ResourceId, System};
use crate::spans::Spans;

/// How the call is launched, for the costs that the device does not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchMode {
    /// Graph or stream.
    pub launch: Launch,
    /// Processes per host.
    pub processes: Processes,
    /// GPUs in use on a host.
    pub gpus_per_host: u32,
}

impl LaunchMode {
    /// As profile files call it: `graph.per_gpu`.
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

    /// What decides the time of a run that was launched so, of whose end on the device bytes took a part.
    fn decides(self, profile: &Profile, work: HostWork, end: Picos, bytes: Picos) -> Decides {
        let costs = profile.launch(self.launch, self.processes);
        Decides::of(costs.apply(end, work), end + costs.added(work.gpus), bytes)
    }

    /// What the host has to do for a schedule.
    #[must_use]
    pub fn host_work(self, header: &Header) -> HostWork {
        HostWork::of(self.gpus_per_host, header.call.collective, header.protocol, header.call.ranks)
    }

    /// The interval of a schedule's time of whose end on the device bytes took a part.
    #[must_use]
    pub fn band(self, header: &Header, profile: &Profile, end: Picos, bytes: Picos) -> Band {
        profile.bands.of(self.circumstances(header, self.decides(profile, self.host_work(header), end, bytes)))
    }

    /// What the interval of a party's time depends on.
    fn circumstances(self, header: &Header, decides: Decides) -> Circumstances {
        let ranks = header.call.ranks;
        let gpus = if self.gpus_per_host == 0 { ranks } else { self.gpus_per_host.min(ranks) };
        let nodes = ranks.div_ceil(gpus.max(1));
        Circumstances { collective: header.call.collective, protocol: header.protocol, gpus, nodes, decides }
    }
}

/// The widest of the parties' intervals.
fn band(parties: &[Party<'_>], mode: LaunchMode, decides: Decides) -> Band {
    let of = |party: &Party<'_>| party.setting.profile.bands.of(mode.circumstances(party.generator.header(), decides));
    let widest = |a: Band, b: Band| Band { low: a.low.min(b.low), high: a.high.max(b.high) };
    parties.iter().map(of).reduce(widest).unwrap_or(Band::NONE)
}

/// Slices of [`Timeline::load`].
pub const LOAD_SLICES: usize = 100;

/// Whether one of many equals may be simulated for all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Folding {
    /// Where the symmetry is proved on the fabric at hand.
    #[default]
    WhereProved,
    /// The same, and thread blocks that are alike are not even lowered: for a time, costs and utilisations only. What a generator claims
    /// of its symmetry ([`Symmetry`](crate::schedule::Symmetry)) is believed then. Of the
    /// channels' own capacities those of the first block are listed. (With spans or traffic beside them, as [`Self::WhereProved`], and
    /// with several schedules unless each has as many blocks.)
    BlocksFirst,
    /// Never.
    Off,
}

/// What a schedule runs beside: nothing, or flows that share the fabric.
#[derive(Clone, Copy, Debug, Default)]
pub struct Surroundings<'a> {
    /// Whether one of many equals may stand for all.
    pub folding: Folding,
    /// Traffic that shares the fabric and does not count for the end.
    pub background: &'a [Flow],
}

/// Why a schedule could not be simulated.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SimulateError {
    /// Nothing was to be run.
    #[error("no schedule to run")]
    NoParties,
    /// It does not fit the fabric.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// It did not end.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl SimulateError {
    /// Whether it has more operations or runs than are simulated.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::Engine(EngineError::TooManyOperations { .. }) | Self::Lower(LowerError::TooLarge(_)))
    }

    /// Whether the run was stopped from outside.
    #[must_use]
    pub fn is_interrupt(&self) -> bool {
        matches!(self, Self::Engine(EngineError::Interrupted))
    }
}

/// How much of a capacity a run used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Utilization {
    /// The capacity.
    pub resource: Resource,
    /// Bytes that passed (coefficients included).
    pub bytes: f64,
    /// Bytes ÷ what could have passed until the end.
    pub fraction: f64,
}

impl Utilization {
    /// The capacity that was used most, the first of equals.
    #[must_use]
    pub fn busiest(all: &[Self]) -> Option<Self> {
        let best = |a: Self, b: &Self| if b.fraction > a.fraction { *b } else { a };
        all.split_first().map(|(first, rest)| rest.iter().fold(*first, best))
    }
}

/// What a run says.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// From 0 (undelayed ranks start) to the end of the last operation, launch costs and floors included.
    pub time: Picos,
    /// The part of `time` that launching adds to the end of the last operation: launch costs and floors.
    pub launch: Picos,
    /// What decides `time`.
    pub decides: Decides,
    /// The interval around `time` in which four of five measurements are expected; of several parties the widest.
    pub band: Band,
    /// As `time`, of each party by itself.
    pub party_times: Vec<Picos>,
    /// Where the time went along the chain of operations that ended last; adds up to `time`, launching (which is
    /// software) included.
    pub costs: Costs,
    /// Operations of the schedule.
    pub operations: u64,
    /// Operations of the schedule ÷ operations simulated; `None` where nothing was folded.
    pub fold_factor: Option<f64>,
    /// Events handled.
    pub events: u64,
    /// Every capacity that was used, in order of id.
    pub utilization: Vec<Utilization>,
    /// When each operation happened, if recorded.
    pub spans: Spans,
    /// The chain of operations that ended last, if spans were recorded; with `launch` it adds up to `time`, unless there
    /// is no operation at all.
    pub critical_path: Vec<CriticalStep>,
    /// How much of each capacity (in the order of `utilization`) was used over time, if spans were recorded.
    pub load: Option<LoadOverTime>,
    /// First run of each rank, to read `spans` by.
    pub rank_starts: Vec<u32>,
}

impl Timeline {
    /// The rank that a recorded run belongs to.
    #[must_use]
    pub fn rank_of(&self, run: u32) -> Rank {
        Rank((self.rank_starts.partition_point(|&start| start <= run) as u32).saturating_sub(1))
    }
}

/// Runs what `generator` says on the fabric of `setting`.
///
/// # Errors
/// [`SimulateError`]: ranks without devices or paths, a deadlock, an interrupt.
pub fn simulate(
    generator: &dyn Generate,
    setting: Setting<'_>,
    mode: LaunchMode,
    surroundings: Surroundings<'_>,
    watch: Watch<'_>,
) -> Result<Timeline, SimulateError> {
    simulate_together(&[Party { generator, setting }], mode, surroundings, watch)
}

/// Runs several schedules that start together and share the fabric: the groups of a job, or the calls of an NCCL group.
/// `time` is that of the last one to end, [`Timeline::party_times`] has each. Ranks are numbered through.
///
/// # Errors
/// [`SimulateError`]: no party at all, ranks without devices or paths, a deadlock, an interrupt.
pub fn simulate_together(
    parties: &[Party<'_>],
    mode: LaunchMode,
    surroundings: Surroundings<'_>,
    watch: Watch<'_>,
) -> Result<Timeline, SimulateError> {
    let setting = parties.first().ok_or(SimulateError::NoParties)?.setting;
    let recording =
        if parties.len() > 1 && watch.recording == Recording::End { Recording::RunEnds } else { watch.recording };
    let watch = Watch { recording, ..watch };
    let (mut lowered, blocks) = match surroundings.folding {
        Folding::BlocksFirst if watch.recording != Recording::Spans && surroundings.background.is_empty() => {
            lower::lower_first_blocks(parties)?
        }
        _ => (lower::lower(parties)?, None),
    };
    let operations = lowered.workload.operation_count() * blocks.unwrap_or(1);
    lowered.workload.background_from = lowered.workload.runs.len() as u32;
    flows::add(surroundings.background, setting, &mut lowered)?;
    let folded = match surroundings.folding {
        Folding::WhereProved | Folding::BlocksFirst => fold::fold(&lowered.workload),
        Folding::Off => None,
    };
    let (outcome, records) = run(&lowered.workload, folded.as_ref(), watch)?;
    let Records { spans, load } = records.unwrap_or_default();
    let of_each = parties.iter().map(|party| mode.host_work(party.generator.header()));
    let work = of_each.max_by_key(|work| work.peers).unwrap_or_default();
    let launched = |end| setting.profile.launch(mode.launch, mode.processes).apply(end, work);
    let time = launched(outcome.end);
    let launch = time - outcome.end;
    let ends =
        if outcome.run_ends.is_empty() { vec![outcome.end] } else { party_ends(&lowered, folded.as_ref(), &outcome) };
    let party_times = ends.into_iter().map(launched).collect();
    let mut costs = outcome.costs;
    let decides = mode.decides(setting.profile, work, outcome.end, outcome.costs.bandwidth + outcome.costs.waiting);
    let band = band(parties, mode, decides);
    costs.software += launch;
    let fold_factor = match &folded {
        None => blocks.map(|blocks| blocks as f64),
        Some(folded) => Some(folded.factor() * blocks.unwrap_or(1) as f64),
    };
    let critical_path = critical::critical_path(&lowered.workload, &spans);
    let Lowered { workload, resources, traffic, rank_starts, .. } = lowered;
    drop(folded);
    // Of a large workload the system is the small part, and nothing else is needed any more.
    let system = only_system(workload);
    Ok(Timeline {
        time,
        party_times,
        launch,
        decides,
        band,
        costs,
        operations,
        fold_factor,
        events: outcome.events,
        utilization: utilization(&system, &resources, &traffic, outcome.end),
        critical_path,
        spans,
        load,
        rank_starts,
    })
}

/// What was recorded of a run, told of the whole workload.
#[derive(Default)]
struct Records {
    spans: Spans,
    load: Option<LoadOverTime>,
}

/// Runs the folded workload where there is one, otherwise the whole.
fn run(
    workload: &Workload,
    folded: Option<&Folded>,
    watch: Watch<'_>,
) -> Result<(Outcome, Option<Records>), EngineError> {
    let recorded = watch.recording == Recording::Spans;
    let load_of =
        |workload: &Workload, outcome: &Outcome| load_over_time(workload, &outcome.rates, outcome.end, LOAD_SLICES);
    match folded.map(|folded| (folded, engine::run(&folded.workload, watch))) {
        Some((folded, Ok(mut outcome))) => {
            let runs = workload.background_from as usize;
            let records = recorded.then(|| Records {
                load: Some(folded.unfold_load(load_of(&folded.workload, &outcome))),
                spans: folded.unfold_spans(std::mem::take(&mut outcome.spans), runs),
            });
            Ok((outcome, records))
        }
        Some((_, Err(error @ (EngineError::Interrupted | EngineError::Abandoned { .. })))) => Err(error),
        // Which operation is stuck, and how many were done before, only the whole run can tell.
        Some((_, Err(_))) | None => {
            let mut outcome = engine::run(workload, watch)?;
            let records = recorded.then(|| Records {
                load: Some(load_of(workload, &outcome)),
                spans: Spans::of_workload(workload, std::mem::take(&mut outcome.spans)),
            });
            Ok((outcome, records))
        }
    }
}

/// When the last operation of each party was done; that of a party without operations is the start-up.
fn party_ends(lowered: &Lowered, folded: Option<&Folded>, outcome: &Outcome) -> Vec<Picos> {
    // Where the folded run failed, the whole one was run.
    let ends = match folded.filter(|folded| folded.workload.runs.len() == outcome.run_ends.len()) {
        Some(folded) => folded.unfold_runs(&outcome.run_ends),
        None => outcome.run_ends.clone(),
    };
    let runs = lowered.workload.background_from as usize;
    let bounds = lowered.party_starts.iter().map(|&start| start as usize).chain([runs]).collect::<Vec<_>>();
    let end_of = |party: &[usize]| ends.get(party[0]..party[1]).and_then(|ends| ends.iter().max()).copied();
    bounds.windows(2).map(|party| end_of(party).unwrap_or_default().max(lowered.workload.startup)).collect()
}

/// Drops everything else.
fn only_system(workload: Workload) -> System {
    workload.system
}

/// How much of each capacity was used until `end`.
pub(crate) fn utilization(system: &System, resources: &[Resource], traffic: &Traffic, end: Picos) -> Vec<Utilization> {
    let of_resource = |(id, &resource): (u32, &Resource)| {
        let (id, passed) = (ResourceId(id), traffic.through(ResourceId(id)));
        let could = Work::passed(system.capacity(id), end);
        let fraction = if could.0 == 0 { 0.0 } else { passed.0 as f64 / could.0 as f64 };
        Utilization { resource, bytes: passed.bytes(), fraction }
    };
    (0..).zip(resources).map(of_resource).collect()
}
