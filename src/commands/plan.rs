//! `plan`: the fastest strategy per size, its prediction interval, and its distance from the lower bound.

use fabricast_collectives::strategy::Strategy;
use fabricast_libraries::{Chooser, Library};
use fabricast_reports::table::{self, Cell, Column, Emphasis, Table, TextOptions, Unit, Value};
use fabricast_search::candidates::Restriction;
use fabricast_search::plan::{
    Advice, Effort, Exclusion, Plan, PlanRequest, PlanRow, SearchSpace, TimedStrategy, advise, plan_table,
};
use fabricast_sim::schedule::BufferUse;
use fabricast_topologies::Fabric;
use fabricast_topologies::route::Router;

use super::call_request;
use super::library_default::{self, RowField};
use super::memory::MemoryShortfall;
use super::plan_advice;
use super::plan_candidates::{self, CandidateJson};
use super::plan_chart::{ChartFile, ChartStyle};
use super::plan_json::{PlanInputs, PlanJson, RequestedFabric};
use super::{bottleneck, format_count, measured};
use crate::args::{PlanArgs, Sizes, StrategyArgs};
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{self, AdditionalFile, Output};
use crate::output_format::Format;
use crate::run_control;
use crate::setup;

pub fn run(args: &PlanArgs, output: &Output) -> Result<(), Failure> {
    if let Some(path) = &args.job {
        return super::plan_job::run(args, path, output);
    }
    setup::check_trees(&args.strategy)?;
    let collectives = call_request::collectives(&args.call)?;
    let style = ChartStyle::from_args(args);
    let chart = args.chart.as_deref().map(|path| ChartFile::new(path, style, &collectives, output)).transpose()?;
    let fabric = setup::fabric(&args.fabric.fabric, &args.fabric.size, &args.what_if, output)?;
    let placement = setup::ranks(&fabric, args.fabric.ranks_per_gpu)?;
    let router = Router::new(&fabric, setup::call_options(&args.fabric, &fabric)?);
    let profile = setup::library_profile(&args.library, &args.costs, &fabric)?;
    setup::sources(&fabric, &profile, output);
    let flags = StrategyArgs { protocol: call_request::protocols(&args.call, &args.strategy), ..args.strategy.clone() };
    let chooser = setup::library(&args.library, &profile)
        .map(|library| setup::chooser(library, &router, &placement, &args.library, &args.call, &args.strategy));
    let offer = chooser.as_ref().map(Chooser::capabilities);
    let restricting = setup::restricting_library(&args.library, &profile);
    // The capabilities from the chooser are preferred for the same library, because they include its tables for this
    // fabric.
    let restricting = restricting.map(|named| offer.filter(|offer| offer.library == named.library).unwrap_or(named));
    let restriction = Restriction { library: restricting, ..setup::restriction(&flags) };
    let mode = setup::launch_mode(&args.costs, &fabric, &placement);
    let ranks_per_node = fabric.max_devices_per_host(&placement);
    let hosts = (placement.len() as u32 / ranks_per_node).max(1);
    let filter = measured::MeasurementFilter {
        ranks_and_hosts: (placement.len() as u32, hosts),
        mode,
        fabric: &fabric,
        library: chooser.as_ref().map(Chooser::library),
        restriction: &restriction,
    };
    let measurements = measured::for_plan(&args.measured, &filter, output)?;
    super::check_root(&args.call, &placement)?;
    let call_request::CallRequest { collectives, matrix, sizes } =
        call_request::CallRequest::from_args(&args.call, placement.len(), &Sizes::default().0)?;
    let request = PlanRequest {
        fabric: &fabric,
        router: &router,
        placement: &placement,
        profile: &profile,
        ranks_per_node,
        mode,
        buffers: if args.call.in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace },
        root: args.call.root,
        matrix: matrix.as_ref(),
        collectives: &collectives,
        sizes: &sizes,
        restriction: &restriction,
        library: chooser.as_ref(),
        effort: if chart.is_some() { Effort::EveryPair } else { Effort::Contenders },
    };
    let shortfall = MemoryShortfall::check_plan(&request);
    if let Some(shortfall) = &shortfall {
        shortfall.warn(output);
    }
    let plan = run_control::with_monitor(output, "planning", |monitor| plan_table(&request, &measurements, monitor))?;
    for (_, reason) in &plan.left_out {
        output.warn(reason);
    }
    let candidates = args
        .all
        .then(|| plan_candidates::simulate(&request, chooser.as_ref(), output))
        .transpose()?
        .unwrap_or_default();
    let mut space = SearchSpace::new(&request);
    space.add_omitted(&plan.rows);
    let advice =
        offer.filter(|_| !is_library_unpredicted(&request)).map(|offer| (offer, advise(&request, offer, &plan.rows)));
    // If the library's choice is unknown at all sizes, there is no advice.
    let advice = advice.filter(|(_, advice)| advice.unknown < advice.rows.len());
    let answer = match output.format {
        Format::Json => output::json(&Document::Plan.with(&PlanJson::new(
            &plan,
            &fabric,
            &PlanInputs {
                request: &request,
                hosts,
                requested_fabric: RequestedFabric::from_args(args),
                offer,
                memory_shortfall: shortfall,
                space: &space,
                candidates: args.all.then(|| candidates.iter().map(CandidateJson::from).collect()),
                advice: advice.as_ref().map(|(offer, advice)| plan_advice::PlanAdviceJson::new(advice, *offer)),
            },
        )))?,
        Format::Text => {
            let options = output.text_options();
            let heading = options.wrap(&heading(&plan, &request, hosts));
            let (opening, table) = match &advice {
                Some((offer, advice)) => {
                    let lines = plan_advice::lines(advice, *offer);
                    let lines: String = lines.iter().map(|line| format!("{}\n", options.wrap(line))).collect();
                    let unknown = options.wrap_lines(&library_default::unknown_choices(&plan));
                    (lines, advised_text(&plan, advice, &fabric, &heading, &options) + &unknown)
                }
                // Without the library's choice there is no advice, and the reason is the answer.
                None => {
                    let unknown = options.wrap_lines(&library_default::unknown_choices(&plan));
                    (unknown, text(&plan, &fabric, &heading, &options))
                }
            };
            let listed = if args.all { plan_candidates::text(&candidates, &options) } else { String::new() };
            format!("{opening}{table}{}{listed}", options.wrap_lines(&describe_search(&space)))
        }
        Format::Csv if args.all => super::csv(&plan_candidates::table(&candidates))?,
        Format::Csv => super::csv(&csv(&plan, &fabric))?,
    };
    match chart {
        Some(chart) => {
            let picture = chart.draw(&plan)?;
            output.write_with(&answer, Some(AdditionalFile { path: chart.path, content: &picture }))
        }
        None => output.write(&answer),
    }
}

/// Maximum number of lines about schedules that are too large.
const MAX_TOO_LARGE_LINES: usize = 6;

/// Describes the channel counts that were tried, and the strategies that the fabric supports but the search space
/// excludes.
fn describe_search(space: &SearchSpace) -> String {
    let mut lines = String::new();
    let counts: Vec<String> = space.channels.iter().map(u16::to_string).collect();
    let mut restricting_library = None;
    let mut omitted = Vec::new();
    for excluded in &space.excluded {
        match excluded {
            Exclusion::OtherChannels => {
                lines.push_str(&format!("channels tried: {}; others with --channels\n", counts.join(", ")));
            }
            Exclusion::Omitted { .. } => omitted.push(format!("not tried: {excluded}\n")),
            Exclusion::ManyChannels { .. } | Exclusion::PackedTrees => {
                lines.push_str(&format!("not tried: {excluded}\n"));
            }
            Exclusion::UnsupportedByLibrary { library, .. } | Exclusion::UnselectableChannels(library) => {
                restricting_library = Some(library);
            }
            Exclusion::Impossible { .. } => {}
        }
    }
    let hidden = omitted.len().saturating_sub(MAX_TOO_LARGE_LINES);
    lines.extend(omitted.into_iter().take(MAX_TOO_LARGE_LINES));
    if hidden > 0 {
        lines.push_str(&format!("not tried: {hidden} more (--format json lists them)\n"));
    }
    if let Some(library) = restricting_library {
        lines.push_str(&format!("not tried: strategies that {library} does not run (--format json lists them)\n"));
    }
    lines
}

/// Heading of a plan: `all_reduce on hgx-h200 · 8 ranks · profile nccl-2.28-h200`.
fn heading(plan: &Plan, request: &PlanRequest<'_>, hosts: u32) -> String {
    let hosts_label = if hosts > 1 { format!("{hosts} hosts, ") } else { String::new() };
    let collective_label = match request.collectives {
        [collective] => format!("{collective} on "),
        _ => String::new(),
    };
    let ranks = format_count(plan.ranks.into(), "rank");
    let rccl_note = match is_library_unpredicted(request) {
        true => {
            " · RCCL's choices are not predicted on these hosts: only the bound and fabricast's schedules are shown"
        }
        false => "",
    };
    format!("{collective_label}{} · {hosts_label}{ranks} · profile {}{rccl_note}", plan.fabric, plan.profile)
}

/// Returns true if the choices of the GPUs' library cannot be predicted (RCCL on some hosts) and no other library is
/// requested.
fn is_library_unpredicted(request: &PlanRequest<'_>) -> bool {
    let is_other = request.library.is_some_and(|chooser| matches!(chooser.library(), Library::OpenMpi(_)));
    !is_other && !super::has_predicted_library(request.fabric, request.placement)
}

fn field<'a>(column: Column, cell: impl Fn(&PlanRow) -> Cell + 'a) -> RowField<'a> {
    (column, Box::new(cell))
}

fn fill_table<'a>(fields: Vec<RowField<'_>>, rows: impl Iterator<Item = &'a PlanRow>) -> Table {
    let (columns, cells): (Vec<Column>, Vec<_>) = fields.into_iter().unzip();
    let mut table = Table::new(columns);
    for row in rows {
        table.row(cells.iter().map(|cell| cell(row)).collect());
    }
    table
}

/// Slowdown of the runner-up relative to the selected strategy, as a fraction.
fn runner_up_slowdown(row: &PlanRow) -> Option<f64> {
    row.runner_up.map(|second| second.time.0 as f64 / row.pick.time.0.max(1) as f64 - 1.0)
}

/// Tables of the library's best strategies, for a plan that is not restricted to the library. A plan that is restricted
/// to it has these strategies in its rows already.
fn advised_text(plan: &Plan, advice: &Advice, fabric: &Fabric, heading: &str, options: &TextOptions) -> String {
    let advised = Plan { rows: advice.rows.clone(), ..plan.clone() };
    text(&advised, fabric, heading, options)
}

/// Tables of all collectives. On a narrow terminal, columns are hidden from the right.
fn text(plan: &Plan, fabric: &Fabric, heading: &str, options: &TextOptions) -> String {
    let groups: Vec<&[PlanRow]> = plan.rows.chunk_by(|a, b| a.collective == b.collective).collect();
    let tables: Vec<Table> = groups
        .iter()
        .map(|rows| {
            let mut table = fill_table(text_fields(plan, fabric), rows.iter());
            if let (true, [first, ..]) = (groups.len() > 1, rows) {
                table.heading(format!("\n{}", first.collective));
            }
            table
        })
        .collect();
    let notes = options.wrap_lines(&library_default::notes(plan));
    format!("{heading}\n{}{notes}", table::stacked(&tables, options))
}

fn text_fields<'a>(plan: &'a Plan, fabric: &'a Fabric) -> Vec<RowField<'a>> {
    let name = |strategy: Strategy| Value::text(format!("{} {}", strategy.algorithm, strategy.protocol));
    let mut fields = vec![
        field(Column::new("bytes", "size", Unit::Bytes), |row| Value::Bytes(row.bytes).into()),
        field(Column::new("algorithm", "algorithm", Unit::Text), |row| {
            Cell::from(Value::text(row.pick.strategy.algorithm.name())).tone(Emphasis::Strong)
        }),
        field(Column::new("protocol", "protocol", Unit::Text), |row| {
            Cell::from(Value::text(row.pick.strategy.protocol.name())).tone(Emphasis::Strong)
        }),
        field(Column::new("channels", "channels", Unit::Number), |row| {
            Value::Count(row.pick.strategy.channels.into()).into()
        }),
    ];
    if plan.rows.iter().any(|row| row.pick.strategy.trees.is_some()) {
        fields.push(field(Column::new("trees", "trees", Unit::Text), |row| {
            Value::or_missing(row.pick.strategy.trees, |trees| Value::text(trees.to_string())).into()
        }));
    }
    fields.extend([
        field(Column::new("time_us", "time", Unit::Micros), |row| Value::Time(row.pick.time).into()),
        field(Column::new("busbw_gb_per_s", "busbw", Unit::GbPerS), |row| {
            Value::Rate(row.busbw_gb_per_s(row.pick.time, plan.ranks)).into()
        }),
        field(Column::new("bound_share", "of peak", Unit::Percent), |row| Value::Share(row.fraction_of_bound()).into()),
        field(Column::new("bottleneck", "bottleneck", Unit::Text).spare(), |row| {
            Value::text(bottleneck::bottleneck_of_row(row, fabric)).into()
        }),
        field(Column::new("runner_up", "runner-up", Unit::Text).spare(), move |row| {
            Value::or_missing(row.runner_up, |second| name(second.strategy)).into()
        }),
        field(Column::new("slower", "slower", Unit::Percent).spare(), |row| {
            Value::or_missing(runner_up_slowdown(row), Value::Share).into()
        }),
    ]);
    fields.extend(library_default::text_fields(plan));
    fields.extend([
        field(Column::new("bound_us", "bound", Unit::Micros).spare(), |row| Value::Time(row.bound.time).into()),
        field(Column::new("low_us", "low", Unit::Micros).spare(), |row| Value::Time(row.pick.low).into()),
        field(Column::new("high_us", "high", Unit::Micros).spare(), |row| Value::Time(row.pick.high).into()),
    ]);
    fields
}

/// One table for all collectives, with the JSON keys as column names.
fn csv(plan: &Plan, fabric: &Fabric) -> Table {
    let text_column = |key: &str| Column::new(key, key, Unit::Text);
    let number_column = |key: &str| Column::new(key, key, Unit::Number);
    let second = |value: fn(&TimedStrategy) -> Value| {
        move |row: &PlanRow| -> Cell { row.runner_up.as_ref().map_or(Value::Missing, value).into() }
    };
    let mut fields: Vec<RowField<'_>> = vec![
        field(text_column("collective"), |row| Value::text(row.collective.name()).into()),
        field(number_column("bytes"), |row| Value::Bytes(row.bytes).into()),
        field(text_column("algorithm"), |row| Value::text(row.pick.strategy.algorithm.name()).into()),
        field(text_column("protocol"), |row| Value::text(row.pick.strategy.protocol.name()).into()),
        field(number_column("channels"), |row| Value::Count(row.pick.strategy.channels.into()).into()),
        field(number_column("time_us"), |row| Value::Time(row.pick.time).into()),
        field(number_column("low_us"), |row| Value::Time(row.pick.low).into()),
        field(number_column("high_us"), |row| Value::Time(row.pick.high).into()),
        field(number_column("busbw_gb_per_s"), |row| Value::Rate(row.busbw_gb_per_s(row.pick.time, plan.ranks)).into()),
        field(number_column("bound_us"), |row| Value::Time(row.bound.time).into()),
        field(number_column("bound_share"), |row| Value::Share(row.fraction_of_bound()).into()),
        field(text_column("bottleneck"), |row| Value::text(bottleneck::bottleneck_of_row(row, fabric)).into()),
        field(text_column("runner_up_algorithm"), second(|p| Value::text(p.strategy.algorithm.name()))),
        field(text_column("runner_up_protocol"), second(|p| Value::text(p.strategy.protocol.name()))),
        field(number_column("runner_up_channels"), second(|p| Value::Count(p.strategy.channels.into()))),
        field(number_column("runner_up_time_us"), second(|p| Value::Time(p.time))),
    ];
    fields.extend(library_default::csv_fields());
    fill_table(fields, plan.rows.iter())
}
