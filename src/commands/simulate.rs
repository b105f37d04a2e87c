//! `simulate`: simulates one call with one strategy, a schedule file, flows or a job.

use fabricast_collectives::bound::Bounds;
use fabricast_sim::{SimulationOptions, simulate};
use fabricast_topologies::route::Router;
use fabricast_topologies::{NodeId, Picos};

use super::critical::CriticalPath;
use super::memory::MemoryShortfall;
use super::simulation_progress::with_progress;
use super::simulation_result::{SimulationAnswer, TableColumns};
use super::strategy::SingleSchedule;
use super::{bottleneck, load, strategy, trace, verified};
use crate::args::{CollectiveChoice, SimulateArgs};
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{self, AdditionalFile, Output};
use crate::output_format::Format;
use crate::setup;

pub fn run(args: &SimulateArgs, output: &Output) -> Result<(), Failure> {
    if output.format == Format::Csv && (args.critical_path || args.utilization_over_time.is_some()) {
        let message = "--critical-path and --utilization-over-time do not fit the one table of --format csv";
        return Err(Failure::input_with_help(message, "use text or json"));
    }
    if let Some(path) = &args.trace {
        output.check_additional_file(path)?;
    }
    let fabric = setup::fabric(&args.fabric.fabric, &args.fabric.size, &args.what_if, output)?;
    // A call may name an algorithm of its own.
    if args.calls.is_empty() {
        setup::check_trees(&args.strategy)?;
        if args.nccl_group {
            return Err(Failure::input_with_help("--nccl-group needs calls", "name each with --call"));
        }
    }
    if let Some(path) = &args.flows {
        return super::flows::run(args, path, &fabric, output);
    }
    if let Some(path) = &args.job {
        return super::job::run(args, path, &fabric, output);
    }
    if let Some(CollectiveChoice::Exchange(operation)) = args.call.collective {
        return super::experts::run(args, operation, &fabric, output);
    }
    if args.experts.tokens.is_some() {
        return Err(Failure::input("--tokens goes with --collective dispatch or combine"));
    }
    if let Some(path) = &args.breakdown {
        return super::breakdown::run(args, path, &fabric, output);
    }
    if !args.groups.is_empty() || !args.calls.is_empty() {
        return super::groups::run(args, &fabric, output);
    }
    if super::sweep::is_requested(args) {
        return super::sweep::run(args, &fabric, output);
    }
    let ranks = setup::ranks(&fabric, args.fabric.ranks_per_gpu)?;
    let mode = setup::launch_mode(&args.costs, &fabric, &ranks);
    let router = Router::new(&fabric, setup::call_options(&args.fabric, &fabric)?);
    let profile = setup::library_profile(&args.library, &args.costs, &fabric)?;
    setup::sources(&fabric, &profile, output);
    let SingleSchedule { generator, trees } = match &args.schedule {
        Some(path) => {
            let listed = args.call.sizes.as_ref().and_then(|sizes| sizes.0.first().copied());
            let bytes = args.call.bytes.or(listed).map(|size| args.call.round_to_elements(size)).transpose()?;
            SingleSchedule { generator: Box::new(verified::read(path, bytes, &args.verify)?), trees: None }
        }
        None => {
            let setting =
                strategy::RunSetting { fabric: &fabric, router: &router, placement: &ranks, profile: &profile, mode };
            let is_named = args.trace.is_some() || args.critical_path;
            let purpose = if is_named { strategy::SchedulePurpose::Named } else { strategy::SchedulePurpose::Timed };
            strategy::single(&args.call, &args.strategy, &args.library, setting, purpose)?
        }
    };
    let call = generator.header().call;
    let with_schedule_file =
        |failure: Failure| args.schedule.iter().fold(failure, |failure, path| failure.with_file(path));
    let placement = setup::schedule_ranks(&ranks, call.ranks).map_err(with_schedule_file)?;
    let delays = setup::delays(&args.stragglers, &fabric, placement)?;
    let environment = setup::environment(&fabric, &router, placement, &profile, &delays);
    let background = setup::background(args.background.as_deref(), &fabric)?;
    let options = SimulationOptions { folding: args.folding(), background: &background };
    let shortfall = MemoryShortfall::check_schedule(generator.header(), &fabric, placement);
    if let Some(shortfall) = &shortfall {
        shortfall.warn(output);
    }
    let timeline = with_progress(output, args.recording(), |watcher| {
        simulate(generator.as_ref(), environment, mode, options, watcher)
    })
    .map_err(|error| with_schedule_file(error.into()))?;
    let bounds = Bounds::new(&fabric, &router, placement, call.root.0)
        .with_in_network(setup::in_network(&args.strategy))
        .with_matrix(generator.header().matrix().as_ref());
    let bound = bounds.bound(&call);
    let mut answer = SimulationAnswer::new(generator.header(), &timeline, &bound, &fabric, output.format);
    answer.trees = trees;
    answer.verified = args.schedule.as_ref().map(|_| !args.verify.no_verify);
    answer.bottleneck = bottleneck::bottleneck_of_run(&timeline, &fabric, last_starter(&delays, placement));
    answer.memory_exceeded = shortfall;
    answer.path = args.critical_path.then(|| CriticalPath::new(generator.as_ref(), &timeline));
    answer.critical_path = answer.path.as_ref().map(CriticalPath::json);
    answer.load = load::load_json(args.utilization_over_time, &timeline.utilization, timeline.load.as_ref(), &fabric);
    let text = match output.format {
        Format::Json => output::json(&Document::Simulation.with(&answer))?,
        Format::Text => answer.text(fabric.name(), &super::profile_and_library(&profile, &fabric), output),
        Format::Csv => super::csv(&answer.table(TableColumns::WithLabels))?,
    };
    match &args.trace {
        Some(path) => {
            let trace = trace::write_trace(generator.as_ref(), &timeline, &fabric, &profile, output)?;
            output.write_with(&text, Some(AdditionalFile { path, content: &trace }))
        }
        None => output.write(&text),
    }
}

/// The GPU that starts last, if any is delayed.
fn last_starter(delays: &[Picos], placement: &[NodeId]) -> Option<NodeId> {
    let (delay, device) = delays.iter().zip(placement).rev().max_by_key(|(delay, _)| **delay)?;
    (*delay > Picos::ZERO).then_some(*device)
}
