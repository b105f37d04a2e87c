//! Resolves the flags of a single run to one strategy.

use fabricast_collectives::algorithm::{self, Algorithm, Shape};
use fabricast_collectives::packing::TreeVariant;
use fabricast_collectives::strategy::{Strategy, check_combination, describe_combinations};
use fabricast_libraries::nccl::{ChannelPart, ChannelRange};
use fabricast_libraries::{Chooser, GroupChoice};
use fabricast_search::candidates::Restriction;
use fabricast_search::plan::{Effort, PlanError, PlanRequest, PlanRow, plan};
use fabricast_sim::LaunchMode;
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, ScheduleGenerator, TrafficMatrix};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, NodeId};

use super::call_request::{self, CallRequest};
use crate::args::{CallArgs, CollectiveChoice, LibraryArgs, LibraryChoice, StrategyArgs};
use crate::failure::Failure;
use crate::setup;

/// Default message size of a single run.
const DEFAULT_BYTES: Bytes = Bytes(1 << 20);

/// Fabric, ranks, profile and launch mode of a run with a single strategy.
#[derive(Clone, Copy)]
pub struct RunSetting<'a> {
    /// Fabric of the call.
    pub fabric: &'a Fabric,
    /// Router of the fabric, with the routing options of the run.
    pub router: &'a Router<'a>,
    /// Device of each rank.
    pub placement: &'a [NodeId],
    /// Cost profile of the run.
    pub profile: &'a Profile,
    /// Launch mode of the run's calls.
    pub mode: LaunchMode,
}

/// The one call that flags describe.
struct SingleCall {
    call: Call,
    /// Matrix of an all_to_allv, scaled to the call's size.
    matrix: Option<TrafficMatrix>,
}

impl SingleCall {
    /// Returns the call of the flags.
    ///
    /// # Errors
    /// [`Failure`]: the flags name several collectives or sizes, or a root that is no rank.
    fn from_args(args: &CallArgs, placement: &[NodeId]) -> Result<Self, Failure> {
        if args.collective == Some(CollectiveChoice::All) {
            return Err(Failure::input_with_help("expected one collective here, not all", "`plan` accepts all"));
        }
        super::check_root(args, placement)?;
        let request = CallRequest::from_args(args, placement.len(), &[DEFAULT_BYTES])?;
        let collective = single_value("--collective", None, Some(&request.collectives), Collective::AllReduce)?;
        let bytes = single_value("--sizes", None, Some(&request.sizes), DEFAULT_BYTES)?;
        let buffers = if args.in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace };
        let call = Call { collective, bytes, ranks: placement.len() as u32, root: Rank(args.root), buffers };
        Ok(Self { call, matrix: request.matrix.map(|matrix| matrix.scaled(bytes)) })
    }
}

/// Purpose of a schedule, which determines the detail of its programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulePurpose {
    /// The user receives or executes the schedule (it is shown, written, verified or run), so its chunks and operations
    /// must be complete.
    Named,
    /// The schedule is only timed, so [`algorithm::timing_generator`] may generate shorter programs.
    Timed,
}

/// Schedule of a single strategy.
pub struct SingleSchedule {
    /// Generator of the schedule.
    pub generator: Box<dyn ScheduleGenerator + Send + Sync>,
    /// Variant of packed trees of the schedule; `None` for other algorithms.
    pub trees: Option<TreeVariant>,
}

/// Returns the schedule of the strategy that the flags describe: one collective, one algorithm, one protocol. If the
/// flags name a library and no part of a strategy, the strategy is the library's default choice. Otherwise a plan
/// selects all parts that the flags do not set. With the profile `ideal`, in which all strategies have equal costs, the
/// default is the simplest algorithm with one channel.
///
/// # Errors
/// [`Failure`]: the flags name several collectives or sizes, or no strategy satisfies them.
pub fn single(
    call: &CallArgs,
    strategy: &StrategyArgs,
    library: &LibraryArgs,
    setting: RunSetting<'_>,
    purpose: SchedulePurpose,
) -> Result<SingleSchedule, Failure> {
    let RunSetting { fabric, placement, profile, .. } = setting;
    let ranks_per_node = fabric.max_devices_per_host(placement);
    let call_flags = call;
    let strategy = &StrategyArgs { protocol: call_request::protocols(call, strategy), ..strategy.clone() };
    let SingleCall { call, matrix } = SingleCall::from_args(call, placement)?;
    let collective = call.collective;
    let chooser = setup::library(library, profile)
        .map(|used| setup::chooser(used, setting.router, placement, library, call_flags, strategy));
    let picked = match library_default(&call, strategy, library, chooser.as_ref())? {
        Some(chosen) => Some(chosen),
        None => plan_pick(&call, matrix.as_ref(), strategy, library, setting, chooser.as_ref())?,
    };
    let first = Algorithm::ALL.into_iter().find(|a| a.supports(collective)).unwrap_or(Algorithm::Ring);
    let first = picked.map_or(first, |picked| picked.algorithm);
    let algorithm = single_value("--algorithm", None, Some(&strategy.algorithm), first)?;
    let named = StrategyArgs { algorithm: vec![algorithm], ..strategy.clone() };
    let placed = setup::placed_ranks(fabric, setting.router, placement, call.root.0);
    let capabilities = setup::restriction(&named).capabilities(&placed);
    let supported_protocols = Protocol::ALL.into_iter().rev().filter(|p| *p != Protocol::CopyEngine);
    let supported_protocols: Vec<Protocol> =
        supported_protocols.filter(|&p| check_combination(algorithm, p, collective, &capabilities).is_ok()).collect();
    let simple = supported_protocols.iter().copied().find(|p| *p == Protocol::Simple);
    let protocol = simple.or_else(|| supported_protocols.first().copied()).unwrap_or(Protocol::Simple);
    let protocol = picked.map_or(protocol, |picked| picked.protocol);
    let protocol = single_value("--protocol", None, Some(&strategy.protocol), protocol)?;
    if let Err(error) = check_combination(algorithm, protocol, collective, &capabilities) {
        let possible = describe_combinations(collective, &capabilities).join(", ");
        return Err(Failure::input_with_help(
            format!("{algorithm} over {protocol} does not exist for {collective}: {algorithm} {error}"),
            format!("{collective} has {possible}"),
        ));
    }
    let usual = Strategy {
        threads: picked.and_then(|picked| picked.threads),
        trees: picked.and_then(|picked| picked.trees),
        chunk: strategy.chunk.or(picked.and_then(|picked| picked.chunk)),
        ..Strategy::new(algorithm, protocol, picked.map_or(1, |picked| picked.channels))
    };
    let usual = match picked {
        Some(_) => usual,
        None => usual.with_channels_of_trees(call, profile, &capabilities),
    };
    let channels = single_value("--channels", None, Some(&strategy.channels), usual.channels)?;
    let chosen = Strategy { channels, ..usual };
    // A strategy of the library has its chunks, as in a plan.
    let chosen = chooser.as_ref().map_or(chosen, |chooser| chooser.with_chunk(&call, chosen, profile));
    let shape = Shape {
        grid: fabric.host_grid().to_vec(),
        matrix,
        ..chosen.shape(call, profile, ranks_per_node, &capabilities)
    };
    let generator = match purpose {
        SchedulePurpose::Named => algorithm::generator(algorithm, &shape),
        SchedulePurpose::Timed => algorithm::timing_generator(algorithm, &shape, setting.router.options().buffers),
    };
    let generator = generator.map_err(|error| Failure::input(error.to_string()))?;
    Ok(SingleSchedule { generator, trees: shape.forests.and_then(|forests| forests.variant) })
}

/// Strategy of a call of a group that the library runs as one kernel, and its schedule.
pub struct GroupSchedule {
    /// Index of the call.
    pub call: usize,
    /// Schedule of the call alone.
    pub generator: Box<dyn ScheduleGenerator + Send + Sync>,
    /// Schedules of the parts of the call on channels.
    pub parts: Vec<PartSchedule>,
}

/// Schedule of a part of a call on consecutive channels with equal shares.
pub struct PartSchedule {
    /// Channels of the part.
    pub channels: ChannelRange,
    /// Schedule of the part.
    pub generator: Box<dyn ScheduleGenerator + Send + Sync>,
}

/// Returns the schedules of calls that NCCL runs as one kernel, in the order in which channels run them.
///
/// # Errors
/// [`Failure`]: a call that is not complete, or whose choice cannot be predicted.
pub fn group(
    calls: &[CallArgs],
    library: &LibraryArgs,
    flags: &StrategyArgs,
    setting: RunSetting<'_>,
) -> Result<Vec<GroupSchedule>, Failure> {
    let RunSetting { fabric, router, placement, profile, .. } = setting;
    let Some(used) = setup::library(library, profile) else {
        return Err(Failure::input_with_help("--nccl-group needs a library", "--library nccl"));
    };
    let Some(first) = calls.first() else { return Ok(Vec::new()) };
    let named = calls.iter().map(|args| Ok(SingleCall::from_args(args, placement)?.call));
    let named: Vec<Call> = named.collect::<Result<_, Failure>>()?;
    let chooser = setup::chooser(used, router, placement, library, first, flags);
    let choices = chooser.choose_group(&named).map_err(|error| Failure::input(error.to_string()))?;
    let ranks_per_node = fabric.max_devices_per_host(placement);
    let timed = |call: Call, strategy: Strategy| {
        let placed = setup::placed_ranks(fabric, router, placement, call.root.0);
        let capabilities = setup::restriction(flags).capabilities(&placed);
        let shape =
            Shape { grid: fabric.host_grid().to_vec(), ..strategy.shape(call, profile, ranks_per_node, &capabilities) };
        algorithm::timing_generator(strategy.algorithm, &shape, router.options().buffers)
            .map_err(|error| Failure::input(error.to_string()))
    };
    let schedule = |GroupChoice { call: number, strategy, placement }: GroupChoice| {
        let call = *named.get(number)?;
        let part = |part: &ChannelPart| {
            let strategy = Strategy { channels: part.channels.count, ..strategy };
            let generator = timed(Call { bytes: part.bytes, ..call }, strategy)?;
            Ok(PartSchedule { channels: part.channels, generator })
        };
        let parts = || placement.parts.iter().map(part).collect::<Result<_, Failure>>();
        let schedule = || Ok(GroupSchedule { call: number, generator: timed(call, strategy)?, parts: parts()? });
        Some(schedule())
    };
    choices.into_iter().filter_map(schedule).collect()
}

/// Default choice of the named library, if the flags name no part of a strategy.
fn library_default(
    call: &Call,
    strategy: &StrategyArgs,
    library: &LibraryArgs,
    chooser: Option<&Chooser>,
) -> Result<Option<Strategy>, Failure> {
    let (Some(LibraryChoice::One(_)), Some(chooser)) = (library.library, chooser) else { return Ok(None) };
    let unset = [strategy.algorithm.is_empty(), strategy.protocol.is_empty(), strategy.channels.is_empty()];
    if unset.contains(&false) || strategy.chunk.is_some() || call.ranks <= 1 {
        return Ok(None);
    }
    match chooser.choose(call) {
        Ok(choice) => Ok(Some(choice.strategy)),
        Err(error) => Err(Failure::input_with_help(error.to_string(), "name a strategy with --algorithm")),
    }
}

/// Strategy that a plan selects under the restrictions of the flags. `None` for the profile `ideal`, and if the flags
/// set all parts or list several values.
fn plan_pick(
    call: &Call,
    matrix: Option<&TrafficMatrix>,
    flags: &StrategyArgs,
    library: &LibraryArgs,
    setting: RunSetting<'_>,
    chooser: Option<&Chooser>,
) -> Result<Option<Strategy>, Failure> {
    let value_counts = [flags.algorithm.len(), flags.protocol.len(), flags.channels.len()];
    // The variant of packed trees is selected by simulation, also with a given protocol and number of channels.
    let selects_trees = flags.algorithm == [Algorithm::TreePacking] && flags.trees.is_none();
    if setting.profile.is_ideal()
        || value_counts.iter().all(|&count| count == 1) && !selects_trees
        || value_counts.iter().any(|&count| count > 1)
    {
        return Ok(None);
    }
    let library = setup::restricting_library(library, setting.profile);
    let restriction = Restriction { library, ..setup::restriction(flags) };
    let request = PlanRequest {
        library: chooser,
        fabric: setting.fabric,
        router: setting.router,
        placement: setting.placement,
        profile: setting.profile,
        ranks_per_node: setting.fabric.max_devices_per_host(setting.placement),
        mode: setting.mode,
        buffers: call.buffers,
        root: call.root.0,
        matrix,
        collectives: &[call.collective],
        sizes: &[call.bytes],
        restriction: &restriction,
        effort: Effort::Contenders,
    };
    match plan(&request, Monitor::default()) {
        // The fastest strategy, also where a plan prefers the library's default within the error of the prediction.
        Ok(plan) => {
            let fastest = |row: &PlanRow| row.preference.rejected_fastest().unwrap_or(&row.pick).strategy;
            Ok(plan.rows.first().map(fastest))
        }
        // The caller reports the invalid combination together with the valid ones.
        Err(PlanError::NothingToChoose { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the single value of a flag that accepts several in other commands.
fn single_value<T: Copy>(flag: &str, value: Option<T>, list: Option<&[T]>, default: T) -> Result<T, Failure> {
    match (value, list.unwrap_or_default()) {
        (Some(value), _) => Ok(value),
        (None, []) => Ok(default),
        (None, [value]) => Ok(*value),
        (None, several) => Err(Failure::input(format!(
            "{flag} accepts one value here, not {}: `plan` compares several",
            several.len()
        ))),
    }
}
