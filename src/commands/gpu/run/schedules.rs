//! Schedules to run: a schedule file, the rows of a plan, the strategies that the flags name, or the strategy that a
//! plan selects.

use fabricast_collectives::algorithm::{self, Shape};
use fabricast_collectives::strategy::Strategy;
use fabricast_search::candidates::candidates;
use fabricast_search::export::{SavedPick, SavedRow};
use fabricast_search::plan::{Effort, PlanRequest, plan};
use fabricast_sim::monitor::Monitor;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule, TrafficMatrix};
use fabricast_topologies::Bytes;
use fabricast_validate::execute::round_to_elements;

use super::RunContext;
use crate::args::Sizes;
use crate::commands::call_request::{self, CallRequest};
use crate::commands::table::read_plan;
use crate::failure::Failure;
use crate::output::Output;
use crate::setup;

/// Schedule to execute, and the strategy from which it was generated. The strategy is `None` for a schedule from a
/// file.
pub(super) struct ScheduleToRun {
    pub(super) schedule: Schedule,
    strategy: Option<Strategy>,
    matrix: Option<TrafficMatrix>,
}

impl ScheduleToRun {
    /// Strategy from which the schedule was generated; `None` for a schedule from a file.
    pub(super) fn strategy(&self) -> Option<Strategy> {
        self.strategy
    }

    /// Variant of the schedule for copy engines, with one channel. `None` for a schedule from a file.
    pub(super) fn copy_engine_variant(&self, context: &RunContext<'_>) -> Result<Option<Schedule>, Failure> {
        let Some(strategy) = self.strategy else { return Ok(None) };
        let variant = Strategy { protocol: Protocol::CopyEngine, channels: 1, ..strategy };
        let call = self.schedule.header().call;
        schedule(context, call.collective, call.bytes, variant, self.matrix.as_ref())
            .map(|scheduled| Some(scheduled.schedule))
    }

    /// Variant of the schedule as the kernels execute it, with each thread block as a channel. `None` if every channel
    /// has a single block.
    pub(super) fn block_variant(&self, context: &RunContext<'_>, blocks: u32) -> Result<Option<Schedule>, Failure> {
        let header = self.schedule.header();
        if blocks <= u32::from(header.channels) {
            return Ok(None);
        }
        let channels = u16::try_from(blocks).unwrap_or(u16::MAX);
        let Some(strategy) = self.strategy else {
            let split = self.schedule.split_channels(channels / header.channels.max(1));
            return split.map(Some).map_err(|error| Failure::input(error.to_string()));
        };
        let call = header.call;
        let variant = Strategy { channels, ..strategy };
        schedule(context, call.collective, call.bytes, variant, self.matrix.as_ref())
            .map(|scheduled| Some(scheduled.schedule))
    }
}

/// Returns all schedules, in the order of execution.
pub(super) fn schedules(context: &RunContext<'_>, output: &Output) -> Result<Vec<ScheduleToRun>, Failure> {
    let args = context.args;
    if let Some(path) = &args.schedule {
        let bytes = args.call.bytes.map(|size| args.call.round_to_elements(size)).transpose()?;
        let schedule = crate::commands::verified::read(path, bytes, &args.verify)?;
        return Ok(vec![ScheduleToRun { schedule, strategy: None, matrix: None }]);
    }
    if let Some(path) = &args.plan {
        let row = |row: &SavedRow| {
            let SavedPick { algorithm, protocol, channels, threads, chunk, .. } = row.pick;
            let strategy =
                Strategy { threads, chunk: chunk.map(Bytes), ..Strategy::new(algorithm, protocol, channels) };
            schedule(context, row.collective, row.bytes, strategy, None)
        };
        let plan = read_plan(path)?;
        if plan.ranks as usize != context.placement.len() {
            return Err(Failure::input_with_help(
                format!(
                    "the plan is of {} ranks on {}, and this fabric has {}",
                    plan.ranks,
                    plan.fabric,
                    context.placement.len()
                ),
                "name the fabric that it was made for, or plan again for this one",
            ));
        }
        return plan.rows.iter().map(row).collect();
    }
    let CallRequest { collectives, matrix, sizes } =
        CallRequest::from_args(&args.call, context.placement.len(), &Sizes::default().0)?;
    crate::commands::check_root(&args.call, context.placement)?;
    let mut all = Vec::new();
    for collective in collectives {
        for &bytes in &sizes {
            for strategy in strategies(context, collective, bytes, matrix.as_ref(), output)? {
                all.push(schedule(context, collective, bytes, strategy, matrix.as_ref())?);
            }
        }
    }
    Ok(all)
}

/// Returns the strategies for one size: all strategies that the flags name, or the one that a plan selects if the flags
/// name no algorithm.
fn strategies(
    context: &RunContext<'_>,
    collective: Collective,
    bytes: Bytes,
    matrix: Option<&TrafficMatrix>,
    output: &Output,
) -> Result<Vec<Strategy>, Failure> {
    let args = context.args;
    let flags = crate::args::StrategyArgs {
        protocol: call_request::protocols(&args.call, &args.strategy),
        ..args.strategy.clone()
    };
    let restriction = setup::restriction(&flags);
    let ranks_per_node = context.fabric.max_devices_per_host(context.placement);
    if !flags.algorithm.is_empty() {
        let ranks = setup::placed_ranks(context.fabric, context.router, context.placement, args.call.root);
        let capabilities = restriction.capabilities(&ranks);
        let matching = candidates(collective, &capabilities, &restriction, context.kernels.software(), bytes);
        if matching.is_empty() {
            output.warn(&format!("{collective}: no such strategy"));
        }
        // Kernels divide a channel among thread blocks themselves, so one channel is enough.
        return Ok(matching
            .into_iter()
            .filter(|strategy| !flags.channels.is_empty() || strategy.channels == 1)
            .collect());
    }
    let request = PlanRequest {
        library: None,
        fabric: context.fabric,
        router: context.router,
        placement: context.placement,
        profile: context.kernels,
        ranks_per_node,
        mode: setup::launch_mode(&args.costs, context.fabric, context.placement),
        buffers: buffers(context),
        root: args.call.root,
        matrix,
        collectives: &[collective],
        sizes: &[bytes],
        restriction: &restriction,
        effort: Effort::Contenders,
    };
    Ok(plan(&request, Monitor::default())?.rows.iter().map(|row| row.pick.strategy).collect())
}

fn buffers(context: &RunContext<'_>) -> BufferUse {
    if context.args.call.in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace }
}

fn schedule(
    context: &RunContext<'_>,
    collective: Collective,
    bytes: Bytes,
    strategy: Strategy,
    matrix: Option<&TrafficMatrix>,
) -> Result<ScheduleToRun, Failure> {
    let ranks = context.placement.len() as u32;
    let dtype = context.args.call.dtype.unwrap_or_default();
    let matrix = matrix.map(|matrix| matrix.scaled(bytes));
    let call = Call {
        collective,
        bytes: if matrix.is_some() { bytes } else { round_to_elements(collective, bytes, ranks, dtype) },
        ranks,
        root: Rank(context.args.call.root),
        buffers: buffers(context),
    };
    let ranks_per_node = context.fabric.max_devices_per_host(context.placement);
    let flags = crate::args::StrategyArgs { algorithm: vec![strategy.algorithm], ..context.args.strategy.clone() };
    let placed = setup::placed_ranks(context.fabric, context.router, context.placement, context.args.call.root);
    let capabilities = setup::restriction(&flags).capabilities(&placed);
    let shape =
        Shape { matrix: matrix.clone(), ..strategy.shape(call, context.kernels, ranks_per_node, &capabilities) };
    let generator =
        algorithm::generator(strategy.algorithm, &shape).map_err(|error| Failure::input(error.to_string()))?;
    let schedule = Schedule::build(generator.as_ref()).map_err(|error| Failure::input(error.to_string()))?;
    Ok(ScheduleToRun { schedule, strategy: Some(strategy), matrix })
}
