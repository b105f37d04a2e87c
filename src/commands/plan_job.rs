//! `plan --job`: the calls of a job, their counts and the strategies selected for them. For a TOML job, the parallelism
//! is selected first, as in studies. Traces, logs and tables list their calls.

use std::path::Path;

use fabricast_perf::call_mix::{self, CallGroup, ExchangeGroup, JobCalls, PlannedCalls};
use fabricast_perf::communication::SimulatedCosts;
use fabricast_perf::step::{Machine, TimeError};
use fabricast_reports::format;
use fabricast_reports::table::{Cell, Column, Emphasis, Table, Unit, Value};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, Picos};
use schemars::JsonSchema;
use serde::Serialize;

use super::job_file::{self, JobFile};
use super::library_default;
use super::memory::MemoryShortfall;
use crate::args::PlanArgs;
use crate::document::Document;
use crate::failure::Failure;
use crate::output::Output;
use crate::output_format::Format;
use crate::run_control;
use crate::setup;

pub fn run(args: &PlanArgs, path: &Path, output: &Output) -> Result<(), Failure> {
    let fabric = setup::fabric(&args.fabric.fabric, &args.fabric.size, &args.what_if, output)?;
    let ranks = setup::ranks(&fabric, args.fabric.ranks_per_gpu)?;
    let router = Router::new(&fabric, setup::call_options(&args.fabric, &fabric)?);
    let profile = setup::library_profile(&args.library, &args.costs, &fabric)?;
    setup::sources(&fabric, &profile, output);
    let source = path.display().to_string();
    let (heading, ranks, rows, exchanges) = match job_file::read(path, ranks.len(), output)? {
        JobFile::Trace(trace) => {
            trace.check_ranks(ranks.len(), &source)?;
            let rows = run_control::with_monitor(output, "planning", |monitor| {
                let simulated = SimulatedCosts::new(&router, &profile, &ranks).with_monitor(monitor);
                let calls = call_mix::trace_calls(&trace, &simulated);
                warn_about_memory(&calls, &fabric, output);
                call_mix::plan_calls(calls, &simulated, job_file::collectives(&args.library, None))
            });
            let rows = rows.map_err(|error| Failure::from(error).with_file(path))?;
            (job_file::heading(&source, trace.ranks, &fabric, &profile), trace.ranks, rows, Vec::new())
        }
        JobFile::Job(job, efficiency) => {
            if args.fabric.ranks_per_gpu > 1 {
                let message = format!("--ranks-per-gpu: {source} has a rank on each GPU");
                return Err(Failure::input_with_help(message, "omit it"));
            }
            let ranks = job.rank_devices(&fabric)?;
            let planned = run_control::with_monitor(output, "planning", |monitor| {
                let simulated = SimulatedCosts::new(&router, &profile, &ranks).with_monitor(monitor);
                let curve = efficiency.resolve(&fabric);
                let machine = Machine { router: &router, ranks: &ranks, simulated: &simulated, curve };
                let JobCalls { layout, calls, exchanges, replaced } = call_mix::job_calls(&job, &machine)?;
                if let Some(reason) = replaced {
                    output.warn(&format!("{reason}: an all_to_all exchanges the tokens of experts instead"));
                }
                warn_about_memory(&calls, &fabric, output);
                let collectives = job_file::collectives(&args.library, Some(&job));
                Ok::<_, TimeError>((layout, call_mix::plan_calls(calls, &simulated, collectives)?, exchanges))
            });
            let (layout, rows, exchanges) = planned.map_err(|error| Failure::from(error).with_file(path))?;
            let heading = job_file::heading(&source, ranks.len() as u32, &fabric, &profile);
            let layout_label = layout.map_or_else(String::new, |layout| format!(" · {}", layout.degrees));
            (format!("{heading}{layout_label}"), ranks.len() as u32, rows, exchanges)
        }
    };
    let answer = PlanJobAnswer { rows: &rows, exchanges: &exchanges };
    match output.format {
        Format::Json => output.write_json(&Document::JobPlan.with(&PlanJobJson {
            fabric: fabric.name(),
            profile: &profile.name,
            job: &source,
            ranks,
            rows: rows.iter().map(PlannedCallsJson::new).collect(),
            exchanges: exchanges.iter().map(ExchangeGroupJson::new).collect(),
            total_us: answer.picks(),
            library_total_us: answer.library(),
        })),
        Format::Csv => output.write(&super::csv(&answer.table())?),
        Format::Text => {
            let mut table = answer.table();
            table.heading(heading);
            let time = |us: f64| format::time(Picos::from_us(us));
            table.note(match answer.library() {
                Some(library) => format!(
                    "all calls, those of a group in sequence: {} with these picks, {} with the library's defaults",
                    time(answer.picks()),
                    time(library)
                ),
                None => format!("all calls, those of a group in sequence: {} with these picks", time(answer.picks())),
            });
            output.write(&table.text(&output.text_options()))
        }
    }
}

/// Warns if the buffers of a call exceed the memory of a GPU; names the smallest such call.
fn warn_about_memory(calls: &[CallGroup], fabric: &Fabric, output: &Output) {
    if let Some(shortfall) = MemoryShortfall::check_calls(calls, fabric) {
        shortfall.warn(output);
    }
}

struct PlanJobAnswer<'a> {
    rows: &'a [PlannedCalls],
    exchanges: &'a [ExchangeGroup],
}

/// JSON of `plan --job`.
#[derive(Serialize, JsonSchema)]
pub struct PlanJobJson<'a> {
    /// Name of the fabric.
    fabric: &'a str,
    /// Name of the cost profile.
    profile: &'a str,
    /// File of the job.
    job: &'a str,
    /// Number of ranks.
    ranks: u32,
    /// Calls of the job by collective, size and group.
    rows: Vec<PlannedCallsJson>,
    /// Dispatches and combines of the job by the kernels of a library; absent if it has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    exchanges: Vec<ExchangeGroupJson>,
    /// Time of all rows and exchanges, each weighted by the number of calls per group, in µs.
    total_us: f64,
    /// Total with the library's default choices, in µs; absent if one of them is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    library_total_us: Option<f64>,
}

/// Calls of a job that share a collective, size and kind of group.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RowJson")]
struct PlannedCallsJson {
    /// The collective, as nccl-tests names it.
    collective: &'static str,
    /// Size of the call in bytes: the larger buffer of a rank.
    bytes: Bytes,
    /// Number of ranks in a group.
    ranks: usize,
    /// Number of groups.
    groups: usize,
    /// Number of calls over all groups.
    calls: u64,
    /// Mean number of calls per group.
    calls_each: f64,
    /// Algorithm of the strategy.
    algorithm: &'static str,
    /// Protocol of the strategy.
    protocol: &'static str,
    /// Number of channels of the strategy.
    channels: u16,
    /// Predicted time of a call, in µs.
    time_us: f64,
    /// Lower end of the 80 % prediction interval, in µs.
    low_us: f64,
    /// Upper end of the 80 % prediction interval, in µs.
    high_us: f64,
    /// Lower bound on the time of any schedule on this fabric, in µs.
    bound_us: f64,
    /// Predicted time of a group's calls, in µs.
    total_us: f64,
    /// The library's default choice; absent if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    library_default: Option<DefaultJson>,
}

/// Dispatches or combines of equal tokens by the kernel of a library.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "JobExchangeJson")]
struct ExchangeGroupJson {
    /// Operation: dispatch or combine.
    operation: &'static str,
    /// Kernel that exchanges the tokens.
    kernel: &'static str,
    /// Element type in which tokens are sent.
    token_type: &'static str,
    /// Number of tokens of each rank.
    tokens: u64,
    /// Bytes of a rank if each token has a copy for each of its experts.
    bytes: Bytes,
    /// Number of ranks in a group.
    ranks: u32,
    /// Number of groups.
    groups: usize,
    /// Mean number of exchanges per group.
    calls_each: f64,
    /// Predicted time of an exchange with all groups concurrent, in µs.
    time_us: f64,
    /// Predicted time of a group's exchanges, in µs.
    total_us: f64,
}

impl ExchangeGroupJson {
    fn new(group: &ExchangeGroup) -> Self {
        let ExchangeGroup { exchange, ranks, groups, exchanges_per_group, time } = *group;
        Self {
            operation: exchange.operation.name(),
            kernel: exchange.kernel.name(),
            token_type: exchange.token_type.name(),
            tokens: exchange.tokens,
            bytes: exchange.copied_bytes(),
            ranks,
            groups,
            calls_each: exchanges_per_group,
            time_us: time.us(),
            total_us: exchange_total(group),
        }
    }
}

/// Time of all exchanges of a group, in µs.
fn exchange_total(group: &ExchangeGroup) -> f64 {
    group.exchanges_per_group * group.time.us()
}

/// The library's default choice, with its predicted time.
#[derive(Serialize, JsonSchema)]
struct DefaultJson {
    /// Algorithm of the strategy.
    algorithm: &'static str,
    /// Protocol of the strategy.
    protocol: &'static str,
    /// Number of channels of the strategy.
    channels: u16,
    /// Predicted time, in µs.
    time_us: f64,
}

impl PlannedCallsJson {
    fn new(planned: &PlannedCalls) -> Self {
        let (pick, repeated) = (&planned.row.pick, &planned.calls);
        Self {
            collective: repeated.collective.name(),
            bytes: repeated.bytes,
            ranks: repeated.devices.len(),
            groups: repeated.groups,
            calls: (repeated.calls_per_group * repeated.groups as f64).round() as u64,
            calls_each: repeated.calls_per_group,
            algorithm: pick.strategy.algorithm.name(),
            protocol: pick.strategy.protocol.name(),
            channels: pick.strategy.channels,
            time_us: pick.time.us(),
            low_us: pick.low.us(),
            high_us: pick.high.us(),
            bound_us: planned.row.bound.time.us(),
            total_us: total(planned, pick.time),
            library_default: planned.row.library_default.as_ref().map(|default| DefaultJson {
                algorithm: default.timed.strategy.algorithm.name(),
                protocol: default.timed.strategy.protocol.name(),
                channels: default.timed.strategy.channels,
                time_us: default.timed.time.us(),
            }),
        }
    }
}

/// Time of all calls of a group, in µs.
fn total(planned: &PlannedCalls, time: Picos) -> f64 {
    planned.calls.calls_per_group * time.us()
}

impl PlanJobAnswer<'_> {
    fn picks(&self) -> f64 {
        self.rows.iter().map(|planned| total(planned, planned.row.pick.time)).sum::<f64>() + self.exchange_total()
    }

    fn exchange_total(&self) -> f64 {
        self.exchanges.iter().map(exchange_total).sum()
    }

    fn library(&self) -> Option<f64> {
        let library_time = |planned: &PlannedCalls| {
            planned.row.library_default.as_ref().map(|default| total(planned, default.timed.time))
        };
        let calls: Option<f64> = self.rows.iter().map(library_time).sum();
        Some(calls? + self.exchange_total())
    }

    fn table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::new("collective", "collective", Unit::Text),
            Column::new("bytes", "size", Unit::Bytes),
            Column::new("ranks", "ranks", Unit::Number),
            Column::new("groups", "groups", Unit::Number).spare(),
            Column::new("calls_each", "calls each", Unit::Number).spare(),
            Column::new("algorithm", "algorithm", Unit::Text),
            Column::new("protocol", "protocol", Unit::Text),
            Column::new("channels", "channels", Unit::Number).spare(),
            Column::new("time_us", "time", Unit::Micros),
            Column::new("total_us", "total", Unit::Micros),
            Column::new("library_default", "library", Unit::Text).spare(),
            Column::new("library_default_us", "default time", Unit::Micros).spare(),
        ]);
        for planned in self.rows {
            let (pick, repeated) = (&planned.row.pick, &planned.calls);
            let default = planned.row.library_default.as_ref();
            table.row(vec![
                Value::text(repeated.collective.name()).into(),
                Value::Bytes(repeated.bytes).into(),
                Value::Count(repeated.devices.len() as u64).into(),
                Value::Count(repeated.groups as u64).into(),
                Value::Number(repeated.calls_per_group).into(),
                Cell::from(Value::text(pick.strategy.algorithm.name())).tone(Emphasis::Strong),
                Cell::from(Value::text(pick.strategy.protocol.name())).tone(Emphasis::Strong),
                Value::Count(pick.strategy.channels.into()).into(),
                Value::Time(pick.time).into(),
                Value::Time(Picos::from_us(total(planned, pick.time))).into(),
                library_default::strategy_cell(&planned.row),
                Value::or_missing(default, |default| Value::Time(default.timed.time)).into(),
            ]);
        }
        // The kernel of a library carries an exchange of tokens.
        for group in self.exchanges {
            table.row(vec![
                Value::text(group.exchange.operation.name()).into(),
                Value::Bytes(group.exchange.copied_bytes()).into(),
                Value::Count(group.ranks.into()).into(),
                Value::Count(group.groups as u64).into(),
                Value::Number(group.exchanges_per_group).into(),
                Cell::from(Value::text(group.exchange.kernel.name())).tone(Emphasis::Strong),
                Value::Missing.into(),
                Value::Missing.into(),
                Value::Time(group.time).into(),
                Value::Time(Picos::from_us(exchange_total(group))).into(),
                Value::Missing.into(),
                Value::Missing.into(),
            ]);
        }
        table
    }
}
