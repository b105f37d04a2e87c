//! Schedules to run: a schedule file, the rows of a plan, the strategies that the flags name, or the plan's pick.

use fabricast_planner::abilities::Abilities;
use fabricast_planner::algorithm::{self, Shape};
use fabricast_planner::export::{SavedPick, SavedRow};
use fabricast_planner::plan::{Effort, PlanRequest, Watcher, plan};
use fabricast_planner::strategy::{Strategy, candidates};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Matrix, Protocol, Rank, Schedule};
use fabricast_topologies::Bytes;
use fabricast_validate::execute::whole_bytes;

use super::Ground;
use crate::args::Sizes;
use crate::commands::asked::{self, Asked};
use crate::commands::table::read_plan;
use crate::failure::Failure;
use crate::output::Output;
use crate::setup;

/// Schedule, with the strategy that it was generated from, if any.
pub(super) struct Ask {
    pub(super) schedule: Schedule,
    strategy: Option<Strategy>,
    matrix: Option<Matrix>,
}

impl Ask {
    /// Strategy that the schedule was generated from, if any.
    pub(super) fn strategy(&self) -> Option<Strategy> {
        self.strategy
    }

    /// Copy-engine variant of the schedule, for any protocol and number of channels.
    pub(super) fn by_copy_engines(&self, ground: &Ground<'_>) -> Result<Option<Schedule>, Failure> {
        let Some(strategy) = self.strategy else { return Ok(None) };
        let over = Strategy { protocol: Protocol::CopyEngine, channels: 1, ..strategy };
        let call = self.schedule.header().call;
        schedule(ground, call.collective, call.bytes, over, self.matrix.as_ref()).map(|ask| Some(ask.schedule))
    }

    /// Variant of the schedule as it is executed, with each thread block as a channel. `None` if no channel is divided
    /// among blocks.
    pub(super) fn over_blocks(&self, ground: &Ground<'_>, blocks: u32) -> Result<Option<Schedule>, Failure> {
        let header = self.schedule.header();
        if blocks <= u32::from(header.channels) {
            return Ok(None);
        }
        let channels = u16::try_from(blocks).unwrap_or(u16::MAX);
        let Some(strategy) = self.strategy else {
            let spread = self.schedule.spread(channels / header.channels.max(1));
            return spread.map(Some).map_err(|why| Failure::input(why.to_string()));
        };
        let call = header.call;
        let over = Strategy { channels, ..strategy };
        schedule(ground, call.collective, call.bytes, over, self.matrix.as_ref()).map(|ask| Some(ask.schedule))
    }
}

/// Returns all schedules, in the order of execution.
pub(super) fn schedules(ground: &Ground<'_>, output: &Output) -> Result<Vec<Ask>, Failure> {
    let args = ground.args;
    if let Some(path) = &args.schedule {
        let bytes = args.call.bytes.map(|size| args.call.whole(size)).transpose()?;
        let schedule = crate::commands::verified::read(path, bytes, &args.verify)?;
        return Ok(vec![Ask { schedule, strategy: None, matrix: None }]);
    }
    if let Some(path) = &args.plan {
        let row = |row: &SavedRow| {
            let SavedPick { algorithm, protocol, channels, threads, chunk, .. } = row.pick;
            let strategy = Strategy { algorithm, protocol, channels, threads, chunk: chunk.map(Bytes) };
            schedule(ground, row.collective, row.bytes, strategy, None)
        };
        let plan = read_plan(path)?;
        if plan.ranks as usize != ground.placement.len() {
            return Err(Failure::input_with_help(
                format!(
                    "the plan is of {} ranks on {}, and this fabric has {}",
                    plan.ranks,
                    plan.fabric,
                    ground.placement.len()
                ),
                "name the fabric that it was made for, or plan anew for this one",
            ));
        }
        return plan.rows.iter().map(row).collect();
    }
    let Asked { collectives, matrix, sizes } = Asked::of(&args.call, ground.placement.len(), &Sizes::default().0)?;
    crate::commands::check_root(&args.call, ground.placement)?;
    let mut all = Vec::new();
    for collective in collectives {
        for &bytes in &sizes {
            for strategy in strategies(ground, collective, bytes, matrix.as_ref(), output)? {
                all.push(schedule(ground, collective, bytes, strategy, matrix.as_ref())?);
            }
        }
    }
    Ok(all)
}

/// Returns the strategies for one size: all that the flags name, or the plan's pick if they name no algorithm.
fn strategies(
    ground: &Ground<'_>,
    collective: Collective,
    bytes: Bytes,
    matrix: Option<&Matrix>,
    output: &Output,
) -> Result<Vec<Strategy>, Failure> {
    let args = ground.args;
    let flags =
        crate::args::StrategyArgs { protocol: asked::protocols(&args.call, &args.strategy), ..args.strategy.clone() };
    let restriction = setup::restriction(&flags);
    let ranks_per_node = ground.fabric.most_on_a_host(ground.placement);
    if !flags.algorithm.is_empty() {
        let abilities =
            Abilities::of(ground.fabric, ground.router, ground.placement, ranks_per_node, setup::in_network(&flags));
        let found = candidates(collective, &abilities, &restriction, (ground.kernels.software(), bytes));
        if found.is_empty() {
            output.warn(&format!("{collective}: no such strategy"));
        }
        // Kernels divide a channel among blocks themselves, so the default is one channel.
        return Ok(found.into_iter().filter(|one| !flags.channels.is_empty() || one.channels == 1).collect());
    }
    let request = PlanRequest {
        library: None,
        fabric: ground.fabric,
        router: ground.router,
        placement: ground.placement,
        profile: ground.kernels,
        ranks_per_node,
        mode: setup::launch_mode(&args.costs, ground.fabric, ground.placement),
        buffers: buffers(ground),
        root: args.call.root,
        matrix,
        collectives: &[collective],
        sizes: &[bytes],
        restriction: &restriction,
        effort: Effort::Contenders,
    };
    Ok(plan(&request, Watcher::default())?.rows.iter().map(|row| row.pick.strategy).collect())
}

fn buffers(ground: &Ground<'_>) -> BufferUse {
    if ground.args.call.in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace }
}

fn schedule(
    ground: &Ground<'_>,
    collective: Collective,
    bytes: Bytes,
    strategy: Strategy,
    matrix: Option<&Matrix>,
) -> Result<Ask, Failure> {
    let ranks = ground.placement.len() as u32;
    let dtype = ground.args.call.dtype.unwrap_or_default();
    let matrix = matrix.map(|matrix| matrix.scaled(bytes));
    let call = Call {
        collective,
        bytes: if matrix.is_some() { bytes } else { whole_bytes(collective, bytes, ranks, dtype) },
        ranks,
        root: Rank(ground.args.call.root),
        buffers: buffers(ground),
    };
    let ranks_per_node = ground.fabric.most_on_a_host(ground.placement);
    let in_network = setup::in_network(&ground.args.strategy);
    let abilities = Abilities::of(ground.fabric, ground.router, ground.placement, ranks_per_node, in_network);
    let shape = Shape { matrix: matrix.clone(), ..strategy.shape(call, ground.kernels, ranks_per_node, &abilities) };
    let generator = algorithm::generator(strategy.algorithm, &shape).map_err(|why| Failure::input(why.to_string()))?;
    let schedule = Schedule::build(generator.as_ref()).map_err(|why| Failure::input(why.to_string()))?;
    Ok(Ask { schedule, strategy: Some(strategy), matrix })
}
