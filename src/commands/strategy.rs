//! Resolves the flags of a single run to one strategy.

use fabricast_planner::abilities::Abilities;
use fabricast_planner::algorithm::{self, Algorithm, Shape};
use fabricast_planner::plan::{Effort, PlanError, PlanRequest, Watcher, plan};
use fabricast_planner::strategy::{Restriction, Strategy, combination, possible};
use fabricast_sim::LaunchMode;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Generate, Matrix, Protocol, Rank};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, NodeId};

use super::asked::{self, Asked};
use crate::args::{CallArgs, CollectiveChoice, LibraryArgs, LibraryChoice, StrategyArgs};
use crate::failure::Failure;
use crate::setup;

/// Default message size of a single run.
const DEFAULT_BYTES: Bytes = Bytes(1 << 20);

/// Setting of a single strategy.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// Fabric of the call.
    pub fabric: &'a Fabric,
    /// Routes of the fabric.
    pub router: &'a Router<'a>,
    /// Device of each rank.
    pub placement: &'a [NodeId],
    /// Cost profile.
    pub profile: &'a Profile,
    /// Launch mode of calls.
    pub mode: LaunchMode,
}

/// Purpose of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Shown, written, verified or executed: chunks and operations must be named.
    Named,
    /// Only timed: [`algorithm::timed`] may generate shorter programs.
    Timed,
}

/// Returns the generator for the flags: one collective, one algorithm, one protocol. If the flags name a library and no
/// part of a strategy, it is the library's default choice. Otherwise the plan's pick fills what the flags leave open.
/// With the profile `ideal`, where all strategies cost the same, the default is the simplest one with one channel.
pub fn single(
    call: &CallArgs,
    strategy: &StrategyArgs,
    library: &LibraryArgs,
    place: Place<'_>,
    wanted: Wanted,
) -> Result<Box<dyn Generate + Send + Sync>, Failure> {
    let Place { fabric, placement, profile, .. } = place;
    let ranks_per_node = fabric.most_on_a_host(placement);
    if call.collective == Some(CollectiveChoice::All) {
        return Err(Failure::input_with_help("one collective is wanted here, not all", "`plan` takes all"));
    }
    super::check_root(call, placement)?;
    let call_flags = call;
    let ranks = placement.len() as u32;
    let asked = Asked::of(call, placement.len(), &[DEFAULT_BYTES])?;
    let collective = one("--collective", None, Some(&asked.collectives), Collective::AllReduce)?;
    let bytes = one("--sizes", None, Some(&asked.sizes), DEFAULT_BYTES)?;
    let matrix = asked.matrix.map(|matrix| matrix.scaled(bytes));
    let strategy = &StrategyArgs { protocol: asked::protocols(call, strategy), ..strategy.clone() };
    let call = Call {
        collective,
        bytes,
        ranks,
        root: Rank(call.root),
        buffers: if call.in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace },
    };
    let picked = match librarys_own(&call, call_flags, strategy, library, place)? {
        Some(chosen) => Some(chosen),
        None => picked(&call, matrix.as_ref(), (strategy, library), place)?,
    };
    let first = Algorithm::ALL.into_iter().find(|a| a.supports(collective)).unwrap_or(Algorithm::Ring);
    let first = picked.map_or(first, |picked| picked.algorithm);
    let algorithm = one("--algorithm", None, Some(&strategy.algorithm), first)?;
    let abilities = Abilities::of(fabric, place.router, placement, ranks_per_node, setup::in_network(strategy));
    let usual = Protocol::ALL.into_iter().rev().filter(|p| *p != Protocol::CopyEngine);
    let usual: Vec<Protocol> = usual.filter(|&p| combination(algorithm, p, collective, &abilities).is_ok()).collect();
    let simple = usual.iter().copied().find(|p| *p == Protocol::Simple);
    let protocol = simple.or_else(|| usual.first().copied()).unwrap_or(Protocol::Simple);
    let protocol = picked.map_or(protocol, |picked| picked.protocol);
    let protocol = one("--protocol", None, Some(&strategy.protocol), protocol)?;
    if let Err(why) = combination(algorithm, protocol, collective, &abilities) {
        let possible = possible(collective, &abilities).join(", ");
        return Err(Failure::input_with_help(
            format!("{algorithm} over {protocol} does not exist for {collective}: {algorithm} {why}"),
            format!("{collective} has {possible}"),
        ));
    }
    let chosen = Strategy {
        algorithm,
        protocol,
        channels: one("--channels", None, Some(&strategy.channels), picked.map_or(1, |picked| picked.channels))?,
        threads: picked.and_then(|picked| picked.threads),
        chunk: strategy.chunk.or(picked.and_then(|picked| picked.chunk)),
    };
    let shape =
        Shape { grid: fabric.host_grid().to_vec(), matrix, ..chosen.shape(call, profile, ranks_per_node, &abilities) };
    let generator = match wanted {
        Wanted::Named => algorithm::generator(algorithm, &shape),
        Wanted::Timed => algorithm::timed(algorithm, &shape, place.router.options().buffers),
    };
    generator.map_err(|why| Failure::input(why.to_string()))
}

/// Default choice of the named library, if the flags name no part of a strategy.
fn librarys_own(
    call: &Call,
    flags: &CallArgs,
    strategy: &StrategyArgs,
    library: &LibraryArgs,
    place: Place<'_>,
) -> Result<Option<Strategy>, Failure> {
    let Some(LibraryChoice::One(named)) = library.library else { return Ok(None) };
    let left = [strategy.algorithm.is_empty(), strategy.protocol.is_empty(), strategy.channels.is_empty()];
    if left.contains(&false) || strategy.chunk.is_some() || call.ranks <= 1 {
        return Ok(None);
    }
    let chooser = setup::chooser(named, place.router, place.placement, library, flags, strategy);
    match chooser.choose(call) {
        Ok(choice) => Ok(Some(choice.strategy)),
        Err(unknown) => Err(Failure::input_with_help(unknown.to_string(), "name a strategy with --algorithm")),
    }
}

/// The plan's pick within the flags. `None` for `ideal`, and if the flags leave nothing open or list several values.
fn picked(
    call: &Call,
    matrix: Option<&Matrix>,
    (flags, library): (&StrategyArgs, &LibraryArgs),
    place: Place<'_>,
) -> Result<Option<Strategy>, Failure> {
    let lists = [flags.algorithm.len(), flags.protocol.len(), flags.channels.len()];
    if place.profile.is_ideal() || lists.iter().all(|&given| given == 1) || lists.iter().any(|&given| given > 1) {
        return Ok(None);
    }
    let library = setup::restricting_library(library, place.profile);
    let restriction = Restriction { library, ..setup::restriction(flags) };
    let request = PlanRequest {
        library: None,
        fabric: place.fabric,
        router: place.router,
        placement: place.placement,
        profile: place.profile,
        ranks_per_node: place.fabric.most_on_a_host(place.placement),
        mode: place.mode,
        buffers: call.buffers,
        root: call.root.0,
        matrix,
        collectives: &[call.collective],
        sizes: &[call.bytes],
        restriction: &restriction,
        effort: Effort::Contenders,
    };
    match plan(&request, Watcher::default()) {
        Ok(plan) => Ok(plan.rows.first().map(|row| row.pick.strategy)),
        // The caller reports the invalid combination, with the possible ones.
        Err(PlanError::NothingToChoose { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the single value of a flag that accepts several in other commands.
fn one<T: Copy>(flag: &str, value: Option<T>, list: Option<&[T]>, default: T) -> Result<T, Failure> {
    match (value, list.unwrap_or_default()) {
        (Some(value), _) => Ok(value),
        (None, []) => Ok(default),
        (None, [value]) => Ok(*value),
        (None, several) => {
            Err(Failure::input(format!("{flag} takes one value here, not {}: `plan` compares several", several.len())))
        }
    }
}
