//! `simulate --group` and `simulate --call`: concurrent calls, either one call on several groups of ranks or several
//! different calls.

use fabricast_collectives::bound::Bounds;
use fabricast_reports::format;
use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_search::group_launch::{GroupInstance, GroupPart, simulate_group};
use fabricast_search::plan::{algbw_gb_per_s, busbw_gb_per_s};
use fabricast_sim::engine::Recording;
use fabricast_sim::lower::Environment;
use fabricast_sim::schedule::{Header, ScheduleGenerator};
use fabricast_sim::{ScheduleInstance, SimulationOptions, Timeline, simulate_concurrent};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, NodeId, Picos};
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Serialize;

use super::simulation_progress::with_progress;
use super::strategy::PartSchedule;
use super::{format_count, strategy};
use crate::args::{CallArgs, RankSet, SimulateArgs, StrategyArgs};
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::output_format::Format;
use crate::setup;

pub fn run(args: &SimulateArgs, fabric: &Fabric, output: &Output) -> Result<(), Failure> {
    let ranks = setup::ranks(fabric, args.fabric.ranks_per_gpu)?;
    let router = Router::new(fabric, setup::call_options(&args.fabric, fabric)?);
    let profile = setup::library_profile(&args.library, &args.costs, fabric)?;
    setup::sources(fabric, &profile, output);
    let mode = setup::launch_mode(&args.costs, fabric, &ranks);
    let members = members(args, ranks.len())?;
    let placements = placements(args, &members, &ranks)?;
    let kind = match (args.calls.is_empty(), args.nccl_group) {
        (true, _) => CallOrigin::Groups,
        (false, false) => CallOrigin::Calls,
        (false, true) => CallOrigin::NcclGroup,
    };
    let rank_delays = setup::delays(&args.stragglers, fabric, &ranks)?;
    let device_delays: FxHashMap<NodeId, Picos> = ranks.iter().copied().zip(rank_delays).collect();
    let base = strategy::RunSetting { fabric, router: &router, placement: &ranks, profile: &profile, mode };
    let Schedules { members, generators, parts } = match (args.nccl_group, placements.first()) {
        (true, Some(placement)) => group_schedules(args, members, strategy::RunSetting { placement, ..base })?,
        _ => {
            let purpose = strategy::SchedulePurpose::Timed;
            let generator = |(placement, member): (&Vec<NodeId>, &Member)| {
                let setting = strategy::RunSetting { placement, ..base };
                let single = strategy::single(&member.call, &member.strategy, &args.library, setting, purpose)?;
                Ok(single.generator)
            };
            let generators = placements.iter().zip(&members).map(generator).collect::<Result<_, Failure>>()?;
            Schedules { members, generators, parts: None }
        }
    };
    let delays: Vec<Vec<Picos>> = placements
        .iter()
        .map(|placement| placement.iter().map(|gpu| device_delays.get(gpu).copied().unwrap_or_default()).collect())
        .collect();
    let background = setup::background(args.background.as_deref(), fabric)?;
    let options = SimulationOptions { folding: args.folding(), background: &background };
    let environments = placements.iter().zip(&delays).map(|(p, d)| setup::environment(fabric, &router, p, &profile, d));
    let environments: Vec<Environment<'_>> = environments.collect();
    let instances: Vec<ScheduleInstance<'_>> = generators
        .iter()
        .zip(&environments)
        .map(|(generator, &setting)| ScheduleInstance::new(generator.as_ref(), setting))
        .collect();
    let (concurrent, isolated) = with_progress(output, Recording::End, |watch| {
        let concurrent = match &parts {
            Some(parts) => {
                let calls = group_instances(parts, &environments);
                simulate_group(&calls, mode, options, watch)?
            }
            None => simulate_concurrent(&instances, mode, options, watch)?,
        };
        // A call that NCCL discards has no time of its own.
        let is_run =
            |number: usize| parts.as_ref().and_then(|parts| parts.get(number)).is_none_or(|parts| !parts.is_empty());
        let isolated = instances.iter().enumerate().map(|(number, &instance)| {
            is_run(number).then(|| simulate_concurrent(&[instance], mode, options, watch)).transpose()
        });
        Ok::<_, Failure>((concurrent, isolated.collect::<Result<Vec<_>, _>>()?))
    })?;
    let groups = members.iter().zip(&instances).zip(concurrent.instance_times.iter().zip(&isolated));
    let groups = groups.map(|((member, instance), (&time, isolated))| {
        let call = instance.generator.header().call;
        let bounds = Bounds::new(fabric, &router, instance.setting.placement, call.root.0);
        let bounds = bounds.with_in_network(setup::in_network(&args.strategy));
        let bounds = bounds.with_matrix(instance.generator.header().matrix().as_ref());
        let isolated =
            isolated.as_ref().map(|isolated| IsolatedCall { time: isolated.time, bound: bounds.bound(&call).time });
        Group::new(&member.ranks, instance.generator.header(), time, isolated)
    });
    let answer = ConcurrentCallsAnswer::new(&concurrent, groups.collect(), kind);
    let text = match output.format {
        Format::Json => output::json(&Document::ConcurrentCalls.with(&answer))?,
        Format::Text => answer.text(fabric.name(), &super::profile_and_library(&profile, fabric), output),
        Format::Csv => super::csv(&answer.table())?,
    };
    output.write(&text)
}

/// Returns the calls of a group with the schedules of their parts.
fn group_instances<'a>(calls: &'a [Vec<PartSchedule>], settings: &[Environment<'a>]) -> Vec<GroupInstance<'a>> {
    let mut instances = Vec::with_capacity(calls.len());
    for (parts, &setting) in calls.iter().zip(settings) {
        let mut call = GroupInstance::default();
        for PartSchedule { channels, generator } in parts {
            let instance = ScheduleInstance::new(generator.as_ref(), setting);
            call.parts.push(GroupPart { instance, channels: *channels });
        }
        instances.push(call);
    }
    instances
}

/// Schedules of the concurrent calls.
struct Schedules {
    members: Vec<Member>,
    generators: Vec<Box<dyn ScheduleGenerator + Send + Sync>>,
    /// Parts of each call on channels if the calls are one group of NCCL.
    parts: Option<Vec<Vec<PartSchedule>>>,
}

/// Returns the schedules of calls that NCCL runs as one group, in the order in which channels run them.
fn group_schedules(
    args: &SimulateArgs,
    members: Vec<Member>,
    setting: strategy::RunSetting<'_>,
) -> Result<Schedules, Failure> {
    if let Some(call) = args.calls.iter().find(|call| call.sets_strategy()) {
        let message = format!("--call {}: NCCL chooses the strategies of a group", call.text);
        return Err(Failure::input(message));
    }
    let all = members.first().map(|member| member.ranks.ranks.clone()).unwrap_or_default();
    if let Some((_, call)) = members.iter().zip(&args.calls).find(|(member, _)| member.ranks.ranks != all) {
        let message = format!("--call {}: calls of a group have the same ranks", call.text);
        return Err(Failure::input(message));
    }
    let calls: Vec<CallArgs> = members.iter().map(|member| member.call.clone()).collect();
    let schedules = strategy::group(&calls, &args.library, &args.strategy, setting)?;
    let mut members: Vec<Option<Member>> = members.into_iter().map(Some).collect();
    let mut ordered = Schedules { members: Vec::new(), generators: Vec::new(), parts: None };
    let mut parts = Vec::new();
    for strategy::GroupSchedule { call, generator, parts: of_call } in schedules {
        ordered.members.extend(members.get_mut(call).and_then(Option::take));
        ordered.generators.push(generator);
        parts.push(of_call);
    }
    ordered.parts = Some(parts);
    Ok(ordered)
}

/// One of the concurrent calls: its ranks and flags.
struct Member {
    ranks: RankSet,
    call: CallArgs,
    strategy: StrategyArgs,
}

/// Returns the concurrent calls that `--group` and `--call` name.
fn members(args: &SimulateArgs, ranks: usize) -> Result<Vec<Member>, Failure> {
    let groups = args
        .groups
        .iter()
        .map(|ranks| Ok(Member { ranks: ranks.clone(), call: args.call.clone(), strategy: args.strategy.clone() }));
    let calls = args.calls.iter().map(|grouped_call| {
        let (call, strategy) = grouped_call.apply_to(&args.call, &args.strategy).map_err(Failure::input)?;
        setup::check_trees(&strategy)?;
        Ok(Member { ranks: grouped_call.ranks.clone().unwrap_or_else(|| RankSet::all(ranks)), call, strategy })
    });
    groups.chain(calls).collect()
}

/// Returns the devices of each call. Groups must be disjoint; calls may share ranks.
fn placements(args: &SimulateArgs, members: &[Member], gpus: &[NodeId]) -> Result<Vec<Vec<NodeId>>, Failure> {
    let mut used = vec![false; gpus.len()];
    let mut placements = Vec::with_capacity(members.len());
    for (number, Member { ranks: set, .. }) in members.iter().enumerate() {
        let flag = || match args.calls.get(number) {
            Some(call) => format!("--call {}", call.text),
            None => format!("--group {}", set.text),
        };
        let mut placement = Vec::with_capacity(set.ranks.len());
        for &rank in &set.ranks {
            let Some(&gpu) = gpus.get(rank as usize) else {
                let message = format!("{}: there is no rank {rank}; the fabric has {}", flag(), gpus.len());
                return Err(Failure::input(message));
            };
            if args.calls.is_empty() && std::mem::replace(&mut used[rank as usize], true) {
                return Err(Failure::input(format!("{}: rank {rank} is in another group", flag())));
            }
            placement.push(gpu);
        }
        placements.push(placement);
    }
    Ok(placements)
}

/// Origin of the concurrent calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallOrigin {
    /// One call on several groups of ranks (`--group`).
    Groups,
    /// Several calls with their own settings (`--call`).
    Calls,
    /// Several calls that NCCL runs as one kernel (`--nccl-group`).
    NcclGroup,
}

/// JSON of `simulate --group …` and `simulate --call …`.
#[derive(Serialize, JsonSchema)]
pub struct ConcurrentCallsAnswer {
    /// Collective of all groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    collective: Option<&'static str>,
    /// Size of the calls of all groups, in bytes: the larger buffer of a rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Bytes>,
    /// Time until all calls have ended, in µs.
    time_us: f64,
    /// Number of simulated operations.
    operations: u64,
    /// Number of events of the simulation.
    events: u64,
    /// True if one representative of interchangeable ranks or channels was simulated.
    folded: bool,
    /// Number of operations that a simulated one represents; 1 if nothing was folded.
    fold_factor: f64,
    /// Results by group; only with `--group`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<Group>,
    /// Results by call; only with `--call`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    calls: Vec<Group>,
    #[serde(skip)]
    time: Picos,
    #[serde(skip)]
    kind: CallOrigin,
}

/// Result of one group or call.
#[derive(Serialize, JsonSchema)]
struct Group {
    /// The collective, as nccl-tests names it.
    collective: &'static str,
    /// Size of the call in bytes: the larger buffer of a rank.
    bytes: Bytes,
    /// Ranks of the call.
    ranks: Vec<u32>,
    /// Algorithm of the strategy.
    algorithm: String,
    /// Protocol of the strategy.
    protocol: &'static str,
    /// Number of channels of the strategy; 0 for a call without data of a group, which NCCL discards.
    channels: u16,
    /// Predicted time with the concurrent calls, in µs; 0 without channels.
    time_us: f64,
    /// Predicted time without the concurrent calls, in µs; absent without channels.
    #[serde(rename = "alone_us", skip_serializing_if = "Option::is_none")]
    isolated_us: Option<f64>,
    /// Algorithm bandwidth, size ÷ time, in GB/s (10⁹ bytes per second).
    algbw_gb_per_s: f64,
    /// Bus bandwidth as nccl-tests defines it, in GB/s (10⁹ bytes per second).
    busbw_gb_per_s: f64,
    /// Lower bound on the time of any schedule on this fabric, in µs; absent without channels.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound_us: Option<f64>,
    #[serde(skip)]
    name: String,
    #[serde(skip)]
    time: Picos,
    #[serde(skip)]
    isolated: Option<IsolatedCall>,
}

/// A call without the concurrent ones.
#[derive(Clone, Copy)]
struct IsolatedCall {
    /// Predicted time.
    time: Picos,
    /// Lower bound on the time of any schedule on the fabric.
    bound: Picos,
}

impl Group {
    fn new(set: &RankSet, header: &Header, time: Picos, isolated: Option<IsolatedCall>) -> Self {
        let call = header.call;
        // A call that NCCL discards has no bandwidth.
        let rate = |rate: f64| if isolated.is_some() { rate } else { 0.0 };
        Self {
            ranks: set.ranks.clone(),
            algorithm: header.name.clone(),
            protocol: header.protocol.name(),
            channels: if isolated.is_some() { header.blocks_per_rank() } else { 0 },
            time_us: time.us(),
            isolated_us: isolated.map(|call| call.time.us()),
            algbw_gb_per_s: rate(algbw_gb_per_s(header.size(), time)),
            busbw_gb_per_s: rate(busbw_gb_per_s(call.collective, header.size(), time, call.ranks)),
            bound_us: isolated.map(|call| call.bound.us()),
            name: set.text.clone(),
            time,
            isolated,
            collective: call.collective.name(),
            bytes: call.bytes,
        }
    }
}

impl ConcurrentCallsAnswer {
    fn new(timeline: &Timeline, members: Vec<Group>, kind: CallOrigin) -> Self {
        let shared =
            members.first().filter(|_| kind == CallOrigin::Groups).map(|group| (group.collective, group.bytes));
        let (groups, calls) = match kind {
            CallOrigin::Groups => (members, Vec::new()),
            CallOrigin::Calls | CallOrigin::NcclGroup => (Vec::new(), members),
        };
        Self {
            collective: shared.map(|shared| shared.0),
            bytes: shared.map(|shared| shared.1),
            time_us: timeline.time.us(),
            operations: timeline.operations,
            events: timeline.events,
            folded: timeline.fold_factor.is_some(),
            fold_factor: timeline.fold_factor.unwrap_or(1.0),
            groups,
            calls,
            time: timeline.time,
            kind,
        }
    }

    fn table(&self) -> Table {
        let call_columns =
            [Column::new("collective", "collective", Unit::Text), Column::new("bytes", "size", Unit::Bytes)];
        let columns = [
            Column::new("ranks", "ranks", Unit::Text),
            Column::new("algorithm", "algorithm", Unit::Text),
            Column::new("protocol", "protocol", Unit::Text),
            Column::new("channels", "channels", Unit::Number),
            Column::new("time_us", "time", Unit::Micros),
            Column::new("alone_us", "alone", Unit::Micros),
            Column::new("algbw_gb_per_s", "algbw", Unit::GbPerS),
            Column::new("busbw_gb_per_s", "busbw", Unit::GbPerS),
            Column::new("bound_us", "bound alone", Unit::Micros),
        ];
        // With `--group`, the heading names the call that all groups run, so the columns for it are omitted.
        let call_columns = call_columns.into_iter().filter(|_| !self.calls.is_empty());
        let mut table = Table::new(call_columns.chain(columns).collect());
        for group in self.groups.iter().chain(&self.calls) {
            let call_values = [Value::text(group.collective), Value::Bytes(group.bytes)];
            let values = [
                Value::text(&*group.name),
                Value::text(&*group.algorithm),
                Value::text(group.protocol),
                Value::Count(group.channels.into()),
                Value::Time(group.time),
                Value::or_missing(group.isolated, |call| Value::Time(call.time)),
                Value::or_missing(group.isolated, |_| Value::Rate(group.algbw_gb_per_s)),
                Value::or_missing(group.isolated, |_| Value::Rate(group.busbw_gb_per_s)),
                Value::or_missing(group.isolated, |call| Value::Time(call.bound)),
            ];
            let call_values = call_values.into_iter().filter(|_| !self.calls.is_empty());
            table.row(call_values.chain(values).map(Into::into).collect());
        }
        table
    }

    fn text(&self, fabric: &str, profile: &str, output: &Output) -> String {
        let mut table = self.table();
        let heading = match (self.collective, self.bytes) {
            (Some(collective), Some(bytes)) => {
                let (groups, bytes) = (format_count(self.groups.len() as u64, "group"), format::bytes(bytes));
                format!("{collective} of {bytes} on {fabric} · {groups}, concurrent · profile {profile}")
            }
            _ => {
                let kind = if self.kind == CallOrigin::NcclGroup { "one group of NCCL" } else { "concurrent" };
                let calls = format_count(self.calls.len() as u64, "call");
                format!("{calls}, {kind}, on {fabric} · profile {profile}")
            }
        };
        table.heading(format!("all done after {}: {heading}", format::time(self.time)));
        table.text(&output.text_options())
    }
}
