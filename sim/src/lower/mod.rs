//! Lowers a schedule's programs to a [`Workload`] on a fabric, with the costs of a profile.
//!
//! Ranks are mapped to devices, peers to routes over links, chunks to amounts of work, and protocols to costs. After
//! lowering, the engine handles only runs, routes and capacities.

mod block_time;
mod buffer_access;
mod capacities;
mod channels;
mod concurrent_peers;
mod connection_order;
mod device_demand;
mod devices;
mod error;
mod first_groups;
mod message;
mod message_route;
mod network;
mod operation_cost;
mod pass_sharing;
mod passages;
mod pieces;
mod rank_bound;
mod rank_classes;
mod rank_traffic;
mod sum_destination;
mod traffic;

use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, NodeId, Picos};
use rustc_hash::FxHashMap;

use crate::engine::{Edge, Pace, PerOp, RunOrder, WorkRun, Workload};
use crate::profile::{Destination, Profile};
use crate::quantity::Work;
use crate::schedule::{
    Buffer, Channel, Dependency, Header, OpKind, Program, Rank, Run, Schedule, ScheduleError, ScheduleGenerator, Walk,
};
use block_time::whole_bytes;
use buffer_access::{BufferAccess, Results};
pub use capacities::Resource;
use capacities::{Capacities, SharedCapacities};
use concurrent_peers::Partners;
use connection_order::ConnectionLines;
use device_demand::DeviceDemand;
pub(crate) use devices::{Devices, PlaceholderRecovery};
pub use error::LowerError;
pub use first_groups::lower_first_groups;
pub(crate) use first_groups::{find_representative_group, lower_first_ranks};
pub(crate) use network::{Crossing, Latency};
use operation_cost::{ConnectionExtent, OutgoingExtents, PeerBlocks, RunCosts};
pub(crate) use operation_cost::{OperationCost, OperationCosts, Start, Task, Tasks};
use pass_sharing::PassSharing;
use passages::PassageBuilder;
use pieces::{PieceStarts, Ranges, RunWork};
pub use rank_bound::{RankBound, RankSends};
pub(crate) use rank_classes::RankClasses;
pub use rank_traffic::rank_traffic;
use sum_destination::SumDestinations;
pub use traffic::Traffic;

/// Placement of a schedule on a fabric, and the software costs of its profile.
#[derive(Clone, Copy)]
pub struct Environment<'a> {
    /// Fabric on which the schedule runs.
    pub fabric: &'a Fabric,
    /// Router that determines the paths between devices of the fabric.
    pub router: &'a Router<'a>,
    /// Device of each rank, in order of rank.
    pub placement: &'a [NodeId],
    /// Software costs of the communication library.
    pub profile: &'a Profile,
    /// Start delay of each rank, in order of rank; ranks beyond the end are not delayed.
    pub delays: &'a [Picos],
}

impl Environment<'_> {
    /// Returns true if some rank is delayed.
    pub(crate) fn has_delays(&self) -> bool {
        self.delays.iter().any(|&delay| delay > Picos::ZERO)
    }
}

/// Workload, and the meaning of its capacities and runs.
#[derive(Debug, Default)]
pub struct LoweredWorkload {
    /// Workload to run on the engine.
    pub workload: Workload,
    /// Meaning of each capacity of the workload's system, by resource id.
    pub resources: Vec<Resource>,
    /// Total work that passes through each capacity.
    pub traffic: Traffic,
    /// Number of the first run of each rank, followed by the total number of runs.
    pub rank_starts: Vec<u32>,
    /// Number of the first run of each schedule instance (party).
    pub instance_starts: Vec<u32>,
    /// Channel of each run.
    pub run_channels: Vec<u16>,
}

/// Schedule with its placement and costs. The instances of one simulation (its parties) run concurrently.
#[derive(Clone, Copy)]
pub struct ScheduleInstance<'a> {
    /// Generator of the schedule.
    pub generator: &'a dyn ScheduleGenerator,
    /// Placement and costs. Parties of one run share fabric, router and profile; each has its own devices and delays.
    pub setting: Environment<'a>,
    /// Earliest start of each channel on all ranks; channels beyond the end start with their ranks.
    pub channel_starts: &'a [Picos],
}

impl<'a> ScheduleInstance<'a> {
    /// Creates an instance whose channels start with their ranks.
    #[must_use]
    pub fn new(generator: &'a dyn ScheduleGenerator, setting: Environment<'a>) -> Self {
        Self { generator, setting, channel_starts: &[] }
    }
}

/// Lowers all ranks of all schedule instances into one workload. The instances start at the same time and share every
/// capacity of the fabric. Ranks and runs are numbered consecutively, instance after instance.
///
/// # Errors
/// [`LowerError`]: ranks without devices or paths, missing teams, runs that do not exist, or too many runs.
pub fn lower(parties: &[ScheduleInstance<'_>]) -> Result<LoweredWorkload, LowerError> {
    lower_with(parties, None, &mut Tables::default())
}

/// Lowers the representatives of a schedule's ranks, with the traffic of all ranks; `None` if the traffic of a class
/// cannot be divided among capacities.
///
/// # Errors
/// [`LowerError`], as [`lower`].
pub(crate) fn lower_representatives(
    party: ScheduleInstance<'_>,
    classes: &RankClasses,
) -> Result<Option<LoweredWorkload>, LowerError> {
    lower_with(&[party], Some(classes), &mut Tables::default()).map(|lowered| classes.merge_capacities(lowered))
}

/// Result of [`lower_for_any_size`]: a lowered schedule whose costs are placeholders.
pub(crate) struct SizelessLowering {
    /// Workload with placeholders in place of the costs that depend on the size.
    pub lowered: LoweredWorkload,
    /// Tasks that the placeholders identify.
    pub tasks: Tasks,
    /// State of the placeholders: recoverable from the costs of the workload, or not.
    pub codes: PlaceholderRecovery,
}

/// Lowers a schedule into a template for calls of any size that divide into chunks the same way. Costs that depend on
/// the size are replaced by placeholders that identify an entry of [`Tasks`]: software times, channel coefficients, and
/// the latency and proxy coefficient of operations that leave their host.
///
/// # Errors
/// [`LowerError`].
pub(crate) fn lower_for_any_size(
    party: ScheduleInstance<'_>,
    classes: Option<&RankClasses>,
) -> Result<Option<SizelessLowering>, LowerError> {
    let mut tables = Tables { tasks: Some(Tasks::default()), ..Tables::default() };
    let lowered = lower_with(&[party], classes, &mut tables)?;
    let lowered = match classes {
        Some(classes) => classes.merge_capacities(lowered),
        None => Some(lowered),
    };
    let (tasks, codes) = (tables.tasks.unwrap_or_default(), tables.codes);
    Ok(lowered.map(|lowered| SizelessLowering { lowered, tasks, codes }))
}

/// Lowers all ranks of all schedule instances. With `classes`, there is one instance, and only its representative ranks
/// are lowered.
fn lower_with(
    parties: &[ScheduleInstance<'_>],
    classes: Option<&RankClasses>,
    tables: &mut Tables,
) -> Result<LoweredWorkload, LowerError> {
    for ScheduleInstance { generator, setting, .. } in parties {
        let (ranks, devices) = (generator.header().call.ranks, setting.placement.len());
        if devices < ranks as usize {
            return Err(LowerError::TooFewDevices { ranks, devices });
        }
    }
    let surveys: Vec<Survey<'_>> = parties.iter().map(|party| Survey::new(party, classes)).collect::<Result<_, _>>()?;
    let crowd = DeviceDemand::new(parties, surveys.iter().map(|survey| survey.has_local_work));
    let startup =
        |party: &ScheduleInstance<'_>| OperationCosts::new(party.setting.profile, party.generator.header()).startup();
    let mut lowered = LoweredWorkload { rank_starts: vec![0], ..LoweredWorkload::default() };
    lowered.workload = Workload { startup: parties.iter().map(startup).min().unwrap_or_default(), ..Workload::new() };
    for (&party, survey) in parties.iter().zip(surveys) {
        lowered.instance_starts.push(lowered.workload.runs.len() as u32);
        add_party(party, &survey, &crowd, tables, &mut lowered)?;
    }
    Ok(lowered)
}

/// Returns the extent of the connection between two ranks.
fn extent_between(setting: &Environment<'_>, one: Rank, other: Rank) -> ConnectionExtent {
    let island = |rank: Rank| setting.placement.get(rank.0 as usize).map(|&device| setting.router.island_of(device));
    match island(one) == island(other) {
        true => ConnectionExtent::Host,
        false => ConnectionExtent::Network,
    }
}

/// Returns the assignment of the peers of pairwise exchanges to blocks, by the extent of the whole call.
fn peer_blocks(setting: &Environment<'_>) -> PeerBlocks {
    let mut islands = setting.placement.iter().map(|&device| setting.router.island_of(device));
    let first = islands.next();
    match islands.all(|island| Some(island) == first) {
        true => PeerBlocks::Separate,
        false => PeerBlocks::Shared,
    }
}

/// Returns the extent of the connection that determines a run's costs. For messages in `RunOrder::InTurn`, it is the
/// connection to their peer; for others, the connection on which the awaited data arrives.
fn connection_extent(
    setting: &Environment<'_>,
    rank: Rank,
    run: &Run,
    order: RunOrder,
    waits: &[Dependency],
) -> ConnectionExtent {
    let other = match order {
        RunOrder::InTurn => Some(Rank(run.peer.at(0))),
        RunOrder::Free => waits.iter().map(|wait| wait.rank).find(|&other| other != rank),
    };
    other.map_or(ConnectionExtent::Host, |other| extent_between(setting, rank, other))
}

/// Returns the extents of the connections on which a run's operations send, each with its peer.
fn outgoing_extents(setting: &Environment<'_>, rank: Rank, run: &Run) -> OutgoingExtents {
    if !run.kind.is_transfer() || run.len == 0 {
        return OutgoingExtents::Same(ConnectionExtent::Host);
    }
    let extent = |i: u32| extent_between(setting, rank, Rank(run.peer.at(i)));
    let first = extent(0);
    if run.peer.is_fixed() || (1..run.len).all(|i| extent(i) == first) {
        return OutgoingExtents::Same(first);
    }
    OutgoingExtents::Each((0..run.len).map(extent).collect())
}

/// Adds the ranks of one schedule instance to those already lowered.
fn add_party(
    party: ScheduleInstance<'_>,
    survey: &Survey<'_>,
    crowd: &DeviceDemand,
    tables: &mut Tables,
    lowered: &mut LoweredWorkload,
) -> Result<(), LowerError> {
    let ScheduleInstance { generator, setting, channel_starts } = party;
    let header = generator.header();
    let operation_costs = OperationCosts::new(setting.profile, header);
    let first_rank = lowered.rank_starts.len() as u32 - 1;
    let first_run = lowered.workload.runs.len() as u32;
    let resources = std::mem::take(&mut lowered.resources);
    let traffic = std::mem::take(&mut lowered.traffic);
    let workload = &mut lowered.workload;
    let shared = std::mem::take(&mut tables.shared);
    let capacities = Capacities::new(setting, header, crowd, first_rank, resources, shared);
    let mut passages = PassageBuilder::new(setting, header, capacities, traffic)?;
    let mut scratch = Program::default();
    let mut waits = Vec::new();
    let (mut partners, mut pass_sharing, mut lines) =
        (Partners::default(), PassSharing::default(), ConnectionLines::default());
    let mut destinations = SumDestinations::default();
    let first_start = setting.delays.iter().copied().min().unwrap_or(Picos::ZERO);
    let peer_blocks = peer_blocks(&setting);
    for rank in RankClasses::lowered_ranks(survey.classes, header.call.ranks) {
        passages.next_rank();
        let program = generator.read(rank, &mut scratch);
        let delay = setting.delays.get(rank.0 as usize).copied().unwrap_or(Picos::ZERO);
        partners.read(header, rank, program);
        pass_sharing.read(header, rank, program);
        destinations.read(survey.sums, rank, program);
        lines.read(header.channels, program);
        for (number, run) in program.runs().iter().enumerate() {
            let begin = channel_starts.get(usize::from(run.channel.0)).map_or(delay, |&start| start.max(delay));
            let start = Start { not_before: operation_costs.startup() + begin, delay: delay - first_start };
            let work = tables.add_works(header, run, passages.framing(), &mut workload.works);
            let dependencies = program.dependencies(number);
            let order = operation_costs.order(rank, number as u32, run, dependencies);
            let role = operation_costs.role(rank, run, dependencies, survey);
            let task = OperationCosts::task(run, role, order, partners.count(program, number as u32));
            let task = task.with_shared(pass_sharing.get(number as u32)).with_destination(destinations.get(number));
            let task = task.with_extent(connection_extent(&setting, rank, run, order, dependencies));
            let on_wire = |i: u32| workload.works[work.work.entry(i)];
            let payload = |i: u32| passages.framing().payload(on_wire(i));
            let mut task_costs = |task: Task| match &mut tables.tasks {
                None => operation_costs.run_costs(run, task, &work, payload, on_wire),
                Some(tasks) => RunCosts::Same(operation_costs.placeholder_cost(tasks, task, run.span)),
            };
            // Only messages that are ordered have a spacing between them.
            let is_ordered = order == RunOrder::InTurn || lines.has_line(run, order);
            let is_pairwise = header.call.collective.is_pairwise();
            let to = |extent: ConnectionExtent| {
                let task = if is_ordered { task.with_outgoing(extent) } else { task };
                if is_pairwise {
                    task.with_send_buffer(extent.send_buffer()).with_peer_blocks(peer_blocks)
                } else {
                    task
                }
            };
            let outgoing = match is_ordered || is_pairwise {
                true => outgoing_extents(&setting, rank, run),
                false => OutgoingExtents::Same(ConnectionExtent::Host),
            };
            let run_costs = match outgoing {
                OutgoingExtents::Same(extent) => task_costs(to(extent)),
                OutgoingExtents::Each(extents) => RunCosts::ByExtent {
                    host: Box::new(task_costs(to(ConnectionExtent::Host))),
                    network: Box::new(task_costs(to(ConnectionExtent::Network))),
                    extents,
                },
            };
            let access = BufferAccess::new(&header.call, survey.results, rank, run, dependencies);
            let access = passages.run_access(header, rank, run, access);
            let passage = passages.add_run_passages(rank, run, &access, &run_costs, &work, workload)?;
            let pace = tables.add_paces(&run_costs, start, &mut workload.paces);
            waits.clear();
            for &dependency in dependencies {
                let no_such_run = LowerError::NoSuchRun { rank, run: number as u32 };
                let previous = Dependency::shifted(rank, number as u32, -1);
                let edge = survey.edge(dependency, first_run).ok_or(no_such_run)?;
                let is_turn = order == RunOrder::InTurn && dependency == previous;
                let edge = if is_turn { Edge::turn(edge.run) } else { edge };
                // The edge that marks a run as in order is added once, even if several dependencies name it.
                if !(is_turn && waits.contains(&edge)) {
                    waits.push(edge);
                }
            }
            lowered.run_channels.push(run.channel.0);
            let added = workload.add_run(WorkRun { len: run.len, passage, work: work.work, pace }, &waits);
            if let Some(line_position) = lines.add_run(run, order, &mut tables.lines, workload) {
                workload.set_line_position(added, line_position);
            }
        }
    }
    // The cost of an MPI message depends on its size in ways that no placeholder can represent.
    if passages.codes() == PlaceholderRecovery::Unrecoverable || setting.profile.messages.is_some() {
        tables.codes = PlaceholderRecovery::Unrecoverable;
    }
    ((lowered.resources, tables.shared), lowered.traffic) = passages.finish();
    lowered.rank_starts.extend(survey.rank_starts[1..].iter().map(|start| first_run + start));
    Ok(())
}

/// Facts about all ranks that must be known before the first rank is lowered. Programs are generated twice instead of
/// stored: at 65,536 ranks, storing them is slower than generating them again.
struct Survey<'a> {
    /// Classes of ranks of which only representatives are lowered; `None` if all ranks are.
    classes: Option<&'a RankClasses>,
    /// Number of the first run of each rank, followed by the total number of runs.
    rank_starts: Vec<u32>,
    /// True if any rank copies or reduces within its memory, in addition to transfers.
    has_local_work: bool,
    /// Channel of each run. Empty unless costs depend on the channel on which data arrives.
    channels: Vec<Channel>,
    /// Method by which ranks obtain the results of an all_reduce.
    results: Results,
    /// Destination of local sums. Determined only if costs depend on it.
    sums: Destination,
}

impl<'a> Survey<'a> {
    fn new(
        ScheduleInstance { generator, setting, .. }: &ScheduleInstance<'_>,
        classes: Option<&'a RankClasses>,
    ) -> Result<Self, LowerError> {
        let mut survey = Self {
            classes,
            rank_starts: vec![0],
            has_local_work: false,
            channels: Vec::new(),
            results: Results::Summed,
            sums: Destination::Forwarded,
        };
        let effort = OperationCosts::new(setting.profile, generator.header());
        let tells_channels = effort.depends_on_arrival_channels();
        survey.sums = if effort.depends_on_sum_destinations() { Destination::Stored } else { Destination::Forwarded };
        let mut scratch = Program::default();
        let mut runs = 0;
        for rank in RankClasses::lowered_ranks(classes, generator.header().call.ranks) {
            let program = generator.read(rank, &mut scratch);
            runs += program.runs().len() as u32;
            if program.is_truncated() || runs as usize > Schedule::MAX_RUNS {
                return Err(LowerError::TooLarge(ScheduleError::TooManyRuns));
            }
            survey.rank_starts.push(runs);
            let is_local = |run: &Run| run.kind.moves_data() && !run.kind.is_transfer() && run.len > 0;
            survey.has_local_work |= program.runs().iter().any(is_local);
            if tells_channels {
                survey.channels.extend(program.runs().iter().map(|run| run.channel));
            }
            if program.runs().iter().any(sum_destination::sends_on) {
                survey.sums = Destination::Forwarded;
            }
            let delivers = |run: &Run| run.kind == OpKind::Put && run.dst_buffer == Buffer::Output && run.len > 0;
            if program.runs().iter().any(delivers) {
                survey.results = Results::Put;
            }
        }
        Ok(survey)
    }

    /// Returns a dependency with the awaited rank replaced by the index of the lowered rank that represents it.
    fn on_lowered(&self, dependency: Dependency) -> Option<Dependency> {
        self.classes.map_or(Some(dependency), |classes| classes.on_representative(dependency))
    }

    /// Returns the channel of the run that a dependency names; `None` if channels are not recorded.
    fn channel(&self, dependency: Dependency) -> Option<Channel> {
        let dependency = self.on_lowered(dependency)?;
        let first = self.rank_starts.get(dependency.rank.0 as usize)?;
        self.channels.get(first.checked_add(dependency.run)? as usize).copied()
    }

    /// Converts a dependency to an edge between runs of the whole workload, in which the runs of this schedule instance
    /// start at `first_run`. `None` if the dependency refers to a run that does not exist.
    fn edge(&self, dependency: Dependency, first_run: u32) -> Option<Edge> {
        let dependency = self.on_lowered(dependency)?;
        let rank = dependency.rank.0 as usize;
        let (&first, &end) = (self.rank_starts.get(rank)?, self.rank_starts.get(rank + 1)?);
        let run = first.checked_add(dependency.run).filter(|&run| run < end)?;
        Some(Edge { run: first_run + run, start: dependency.start, step: dependency.step })
    }
}

/// Entries of the workload's tables by value; equal values share one entry.
#[derive(Default)]
struct Tables {
    works: FxHashMap<Work, u32>,
    paces: FxHashMap<Pace, u32>,
    work_ranges: Ranges<Work>,
    pace_ranges: Ranges<Pace>,
    /// Ids of the shared capacities created so far.
    shared: SharedCapacities,
    /// Number of lines (ordered connections) so far.
    lines: u32,
    /// Distinct tasks, if costs are placeholders that identify them; otherwise `None`.
    tasks: Option<Tasks>,
    /// State of the placeholders: recoverable from the costs, or not.
    codes: PlaceholderRecovery,
}

impl Tables {
    /// Returns the location of the delays of a run's operations in the table `paces`; adds missing entries.
    fn add_paces(&mut self, run_costs: &RunCosts, start: Start, paces: &mut Vec<Pace>) -> PerOp {
        match run_costs {
            RunCosts::Same(cost) => PerOp::Same(self.pace(cost.pace(start), paces)),
            RunCosts::Pieces { pieces, each } => {
                let values = pieces.with_values(each.iter().map(|cost| cost.pace(start)));
                match values[..] {
                    [(pace, _)] => PerOp::Same(self.pace(pace, paces)),
                    _ => PerOp::Each(self.pace_ranges.intern_list(values, paces)),
                }
            }
            RunCosts::Each(each) => {
                let first = paces.len() as u32;
                paces.extend(each.iter().map(|cost| cost.pace(start)));
                PerOp::Each(first)
            }
            RunCosts::ByExtent { extents, .. } => {
                let mut values: Vec<(Pace, u32)> = Vec::new();
                for pace in (0..extents.len() as u32).filter_map(|i| run_costs.at(i)).map(|cost| cost.pace(start)) {
                    match values.last_mut() {
                        Some((last, count)) if *last == pace => *count += 1,
                        _ => values.push((pace, 1)),
                    }
                }
                PerOp::Each(self.pace_ranges.intern_list(values, paces))
            }
        }
    }

    fn pace(&mut self, pace: Pace, paces: &mut Vec<Pace>) -> u32 {
        *self.paces.entry(pace).or_insert_with(|| {
            paces.push(pace);
            paces.len() as u32 - 1
        })
    }

    fn work(&mut self, work: Work, works: &mut Vec<Work>) -> u32 {
        *self.works.entry(work).or_insert_with(|| {
            works.push(work);
            works.len() as u32 - 1
        })
    }

    /// Returns the location of the amounts on the wire of a run's operations in the table `works`; adds missing
    /// entries.
    fn add_works(&mut self, header: &Header, run: &Run, framing: Framing, works: &mut Vec<Work>) -> RunWork {
        if !run.kind.moves_data() || run.len == 0 {
            return RunWork::same(self.work(Work(0), works));
        }
        let walk = size_walk(run);
        let work_at = |i: u32| framing.on_wire(payload(header, walk.at(i), run.span));
        let first = work_at(0);
        if is_surely_even(header, run) {
            return RunWork::same(self.work(first, works));
        }
        if let Some(pieces) = PieceStarts::find(header, run) {
            let values = pieces.with_values(pieces.starts().map(work_at));
            return match values[..] {
                [(all, _)] => RunWork::same(self.work(all, works)),
                _ => RunWork { work: PerOp::Each(self.work_ranges.intern_list(values, works)), pieces: Some(pieces) },
            };
        }
        if (1..run.len).all(|i| work_at(i) == first) {
            return RunWork::same(self.work(first, works));
        }
        let offset = works.len() as u32;
        works.extend((0..run.len).map(work_at));
        RunWork { work: PerOp::Each(offset), pieces: None }
    }
}

/// Returns the walk over the chunks that determine the sizes of a run's operations: the destination chunks, or the
/// source chunks if the destination is scratch.
pub(crate) fn size_walk(run: &Run) -> Walk {
    if run.dst_buffer == Buffer::Scratch { run.src } else { run.dst }
}

/// Returns true if all operations of a run are known to have the size of the first, without examining each.
fn is_surely_even(header: &Header, run: &Run) -> bool {
    let walk = size_walk(run);
    header.layout.is_even() || walk.is_fixed() || has_uniform_size(header, walk, run)
}

/// Returns true if a run moves up through the buffer and all its chunks lie in one range of chunks of equal size.
fn has_uniform_size(header: &Header, walk: Walk, run: &Run) -> bool {
    let layout = &header.layout;
    let chunks = layout.chunks().max(1);
    let distance = u128::from(walk.step) * u128::from(walk.stride);
    let extent = distance * u128::from(run.len.max(1) - 1) + u128::from(run.span.max(1)) - 1;
    let (at, first) = (u128::from(walk.at(0)), walk.at(0) % chunks);
    let last = u128::from(first) + extent;
    let is_increasing = walk.modulus == 0 && at + extent <= u128::from(u32::MAX) && last < u128::from(chunks);
    is_increasing && layout.uniform_range_index(first) == layout.uniform_range_index(last as u32)
}

/// Exact size of `span` chunks, beginning with `first`.
pub(crate) fn payload(header: &Header, first: u32, span: u32) -> Work {
    let layout = &header.layout;
    let chunks = layout.chunks().max(1);
    let start = first % chunks;
    let last = start.saturating_add(span.saturating_sub(1));
    if last < chunks && layout.uniform_range_index(start) == layout.uniform_range_index(last) {
        return Work::from_chunks(layout.size(start), span);
    }
    Work((0..span).map(|k| Work::from_chunks(layout.size(start + k), 1).0).sum())
}

/// Ratio of payload to wire bytes, as an exact fraction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    /// Payload bytes ÷ wire bytes, in units of 2⁻²⁰.
    efficiency: u64,
}

impl Framing {
    const ONE: u64 = 1 << 20;

    pub(crate) fn new(wire_efficiency: f64) -> Self {
        Self { efficiency: ((wire_efficiency * Self::ONE as f64).round() as u64).clamp(1, Self::ONE) }
    }

    pub(crate) fn on_wire(self, payload: Work) -> Work {
        match self.efficiency {
            Self::ONE => payload,
            efficiency => Work(payload.0 * u128::from(Self::ONE) / u128::from(efficiency)),
        }
    }

    /// Payload of an amount on the wire, rounded up to bytes.
    pub(crate) fn payload(self, on_wire: Work) -> Bytes {
        match self.efficiency {
            Self::ONE => whole_bytes(on_wire),
            efficiency => whole_bytes(Work(on_wire.0 * u128::from(efficiency) / u128::from(Self::ONE))),
        }
    }

    /// Scales a coefficient up, for transfers that reach only this fraction of a capacity.
    fn scale_coefficient(self, coefficient: u64) -> u64 {
        (coefficient * Self::ONE).div_ceil(self.efficiency)
    }

    /// Scales a coefficient down, for bytes that pass a capacity without framing although the transfer rate counts
    /// bytes with framing.
    fn unframed(self, coefficient: u64) -> u64 {
        (coefficient * self.efficiency).div_ceil(Self::ONE)
    }

    /// Returns the coefficient, per byte on the wire, of a capacity that the payload passes `times` times.
    fn coefficient(self, times: u64) -> u64 {
        (crate::sharing::WHOLE * times * self.efficiency).div_ceil(Self::ONE)
    }
}
