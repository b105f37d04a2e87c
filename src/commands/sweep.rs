//! `simulate` with lists: a row per size, algorithm, protocol and number of channels.

use std::sync::atomic::{AtomicUsize, Ordering};

use fabricast_collectives::bound::Bounds;
use fabricast_reports::table::{Column, Table, Unit};
use fabricast_sim::engine::Watch;
use fabricast_sim::profile::Profile;
use fabricast_sim::{SimulationOptions, simulate};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric};
use rayon::prelude::*;

use super::simulation_result::SimulationAnswer;
use super::strategy::{self, RunSetting, SchedulePurpose, SingleSchedule};
use super::{bottleneck, format_count, verified};
use crate::args::{CallArgs, SimulateArgs, StrategyArgs};
use crate::control::Position;
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::output_format::Format;
use crate::run_control;
use crate::setup;

/// Maximum number of warnings about combinations that do not exist; the number of further ones is stated.
const MAX_WARNINGS: usize = 4;

/// Returns true if the flags list several sizes, algorithms, protocols or numbers of channels.
pub fn is_requested(args: &SimulateArgs) -> bool {
    let StrategyArgs { algorithm, protocol, channels, .. } = &args.strategy;
    let sizes = args.call.sizes.as_ref().map_or(0, |sizes| sizes.0.len());
    [sizes, algorithm.len(), protocol.len(), channels.len()].into_iter().any(|count| count > 1)
}

/// One combination of the lists.
struct SweepCase {
    bytes: Option<Bytes>,
    strategy: StrategyArgs,
}

/// All combinations of the lists; sizes vary slowest.
fn cases(args: &SimulateArgs) -> Vec<SweepCase> {
    fn options<T: Clone>(list: &[T]) -> Vec<Option<T>> {
        if list.is_empty() { vec![None] } else { list.iter().cloned().map(Some).collect() }
    }
    let flags = &args.strategy;
    let sizes = args.call.sizes.as_ref().map(|sizes| sizes.0.as_slice()).unwrap_or_default();
    let sizes = if sizes.is_empty() { vec![args.call.bytes] } else { options(sizes) };
    let mut cases = Vec::new();
    for bytes in sizes {
        for algorithm in options(&flags.algorithm) {
            for protocol in options(&flags.protocol) {
                for channels in options(&flags.channels) {
                    let strategy = StrategyArgs {
                        algorithm: algorithm.into_iter().collect(),
                        protocol: protocol.into_iter().collect(),
                        channels: channels.into_iter().collect(),
                        ..flags.clone()
                    };
                    cases.push(SweepCase { bytes, strategy });
                }
            }
        }
    }
    cases
}

/// Simulates every combination and writes a row for each. Combinations that do not exist are reported; it is an error
/// if none exists.
pub fn run(args: &SimulateArgs, fabric: &Fabric, output: &Output) -> Result<(), Failure> {
    if args.trace.is_some() || args.critical_path || args.utilization_over_time.is_some() {
        let message = "--trace, --critical-path and --utilization-over-time show one simulation";
        return Err(Failure::input_with_help(message, "name one size, algorithm, protocol and number of channels"));
    }
    let router = Router::new(fabric, setup::call_options(&args.fabric, fabric)?);
    let profile = setup::library_profile(&args.library, &args.costs, fabric)?;
    setup::sources(fabric, &profile, output);
    let cases = cases(args);
    let done = AtomicUsize::new(0);
    let position = || Position { done: done.load(Ordering::Relaxed) as u64, total: cases.len() as u64 };
    let results: Vec<Result<SimulationAnswer, Failure>> =
        run_control::with_progress(output, "simulating", position, || {
            let simulate = |case| {
                let answer = simulate_case(args, case, fabric, &router, &profile, output);
                done.fetch_add(1, Ordering::Relaxed);
                answer
            };
            cases.par_iter().with_max_len(1).map(simulate).collect()
        });
    output.check_interrupt()?;
    let (mut answers, mut failures) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(answer) => answers.push(answer),
            Err(failure) => failures.push(failure),
        }
    }
    if answers.is_empty() {
        return match failures.into_iter().next() {
            Some(failure) => Err(failure),
            None => Err(Failure::input("nothing to simulate")),
        };
    }
    for failure in failures.iter().take(MAX_WARNINGS) {
        output.warn(&format!("skipped: {failure}"));
    }
    if failures.len() > MAX_WARNINGS {
        output.warn(&format!("skipped: {}", format_count((failures.len() - MAX_WARNINGS) as u64, "more combination")));
    }
    let text = match output.format {
        Format::Json => output::json(&Document::Simulations.with_rows(&answers))?,
        Format::Csv => super::csv(&SimulationAnswer::labelled_table(&answers))?,
        Format::Text => text(&answers, fabric, &profile, output),
    };
    output.write(&text)
}

fn simulate_case(
    args: &SimulateArgs,
    case: &SweepCase,
    fabric: &Fabric,
    router: &Router<'_>,
    profile: &Profile,
    output: &Output,
) -> Result<SimulationAnswer, Failure> {
    let ranks = setup::ranks(fabric, args.fabric.ranks_per_gpu)?;
    let mode = setup::launch_mode(&args.costs, fabric, &ranks);
    let SingleSchedule { generator, trees } = match &args.schedule {
        Some(path) => {
            let bytes = case.bytes.map(|size| args.call.round_to_elements(size)).transpose()?;
            SingleSchedule { generator: Box::new(verified::read(path, bytes, &args.verify)?), trees: None }
        }
        None => {
            let setting = RunSetting { fabric, router, placement: &ranks, profile, mode };
            let call = CallArgs { bytes: case.bytes, sizes: None, ..args.call.clone() };
            strategy::single(&call, &case.strategy, &args.library, setting, SchedulePurpose::Timed)?
        }
    };
    let call = generator.header().call;
    let placement = setup::schedule_ranks(&ranks, call.ranks)?;
    let delays = setup::delays(&args.stragglers, fabric, placement)?;
    let environment = setup::environment(fabric, router, placement, profile, &delays);
    let background = setup::background(args.background.as_deref(), fabric)?;
    let watch = Watch { interrupt: output.interrupt(), ..Watch::default() };
    let options = SimulationOptions { folding: args.folding(), background: &background };
    let timeline = simulate(generator.as_ref(), environment, mode, options, watch)?;
    let bounds = Bounds::new(fabric, router, placement, call.root.0)
        .with_in_network(setup::in_network(&args.strategy))
        .with_matrix(generator.header().matrix().as_ref());
    let mut answer = SimulationAnswer::new(generator.header(), &timeline, &bounds.bound(&call), fabric, Format::Csv);
    answer.trees = trees;
    answer.bottleneck = bottleneck::bottleneck_of_run(&timeline, fabric, None);
    Ok(answer)
}

/// Table of all combinations. Properties that all rows share are in the heading instead of a column.
fn text(answers: &[SimulationAnswer], fabric: &Fabric, profile: &Profile, output: &Output) -> String {
    let mut table = Table::new(vec![
        Column::new("bytes", "size", Unit::Bytes),
        Column::new("algorithm", "algorithm", Unit::Text),
        Column::new("protocol", "protocol", Unit::Text),
        Column::new("channels", "channels", Unit::Number),
        Column::new("time_us", "time", Unit::Micros),
        Column::new("busbw_gb_per_s", "busbw", Unit::GbPerS),
        Column::new("bound_share", "of peak", Unit::Percent),
        Column::new("bottleneck", "bottleneck", Unit::Text).spare(),
        Column::new("low_us", "low", Unit::Micros).spare(),
        Column::new("high_us", "high", Unit::Micros).spare(),
        Column::new("algbw_gb_per_s", "algbw", Unit::GbPerS).spare(),
        Column::new("bound_us", "bound", Unit::Micros).spare(),
    ]);
    for answer in answers {
        table.row(answer.sweep_cells().into_iter().map(Into::into).collect());
    }
    let (collective, ranks) = answers.first().map_or(("", 0), SimulationAnswer::call);
    table.heading(format!(
        "{collective} on {} · {} · profile {}",
        fabric.name(),
        format_count(ranks.into(), "rank"),
        super::profile_and_library(profile, fabric)
    ));
    table.text(&output.text_options())
}
