//! `simulate --collective dispatch` and `combine`: exchange of tokens between ranks and their experts.

use std::path::Path;

use fabricast_experts::{
    Exchange, ExchangeCosts, ExchangeError, ExchangeKernel, ExchangeRanks, ExchangeTime, Operation, RoutingPattern,
    Timing, TokenRouting, TokenType, Traffic, UnsupportedExchange, UnsupportedGpus,
};
use fabricast_reports::share::{self, TimePart};
use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_sim::schedule::{ReduceOp, TrafficMatrix};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bandwidth, Fabric, Picos};
use schemars::JsonSchema;
use serde::Serialize;

use super::format_count;
use crate::args::{Launch, SimulateArgs};
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{self, AdditionalFile, Output};
use crate::output_format::Format;
use crate::setup;

/// Default hidden size, number of experts and experts per token: those of DeepSeek-V3, with which most published kernel
/// measurements were made.
const DEFAULT_HIDDEN: u32 = 7168;
const DEFAULT_EXPERTS: u32 = 256;
const DEFAULT_TOP_K: u32 = 8;

/// JSON of `simulate --collective dispatch` and `combine`.
#[derive(Serialize, JsonSchema)]
pub struct ExchangeJson {
    /// Operation: dispatch or combine.
    collective: &'static str,
    /// Kernel that exchanges the tokens.
    kernel: &'static str,
    /// Number of SMs of the kernel; null if the kernel determines it.
    sms: Option<u32>,
    /// Number of ranks.
    ranks: u32,
    /// Number of NVLink domains: sets of ranks that reach each other without the network.
    nvlink_domains: u32,
    /// Number of tokens of each rank.
    tokens: u64,
    /// Number of elements of a token (hidden size).
    hidden: u32,
    /// Number of experts over all ranks.
    experts: u32,
    /// Number of experts of each token.
    top_k: u32,
    /// Element type in which tokens are sent.
    token_type: &'static str,
    /// Size of a token with its scales, in bytes.
    token_bytes: u64,
    /// Mean number of ranks that have an expert of a token.
    ranks_per_token: f64,
    /// Mean number of NVLink domains that have an expert of a token.
    domains_per_token: f64,
    /// Predicted time, in µs.
    time_us: f64,
    /// Lower end of the 80 % prediction interval, in µs.
    low_us: f64,
    /// Upper end of the 80 % prediction interval, in µs.
    high_us: f64,
    /// Time of the kernels that count tokens before a dispatch, in µs; not included in `time_us`. Null for combine, and
    /// for kernels that count tokens during the dispatch.
    prepare_us: Option<f64>,
    /// Network bandwidth in GB/s as DeepEP defines it: bytes of the token copies for all NVLink domains (low-latency
    /// kernels: for all experts) ÷ time. Copies that remain in their own domain are included. Null within one domain.
    network_gb_per_s: Option<f64>,
    /// NVLink bandwidth in GB/s as DeepEP defines it: bytes of the token copies for all ranks with one of their experts
    /// (low-latency kernels: for all experts) ÷ time. Copies that remain on their own rank are included.
    nvlink_gb_per_s: f64,
    /// Lower bound on the time of any kernel, in µs.
    bound_us: f64,
    /// Share of the theoretical peak: bound ÷ predicted time.
    bound_share: f64,
    /// Resource that limits the transfer: NVLink, network, SMs or warps.
    bottleneck: &'static str,
    /// Predicted time by part, in µs.
    cost_us: ExchangeCostsJson,
}

/// Parts of the time of an exchange, in µs.
#[derive(Serialize, JsonSchema)]
struct ExchangeCostsJson {
    /// Time of launches, flags and synchronization, in µs.
    fixed: f64,
    /// Time of moving tokens at the rate of the bottleneck, in µs.
    transfer: f64,
    /// Time of filling and draining forwarding buffers, in µs.
    fill: f64,
    /// Time of copies and sums from receive buffers, in µs.
    receive: f64,
}

/// Result for JSON, with additional data for the text.
struct ExchangeAnswer {
    json: ExchangeJson,
    time: ExchangeTime,
    interval: [Picos; 2],
    bound: Picos,
}

pub fn run(args: &SimulateArgs, operation: Operation, fabric: &Fabric, output: &Output) -> Result<(), Failure> {
    let flags = &args.experts;
    let Some(tokens) = flags.tokens else {
        let message = format!("a {} needs the tokens of each rank", operation.name());
        return Err(Failure::input_with_help(message, "add --tokens 4096, for example"));
    };
    check_other_flags(args, operation)?;
    let profile = setup::library_profile(&args.library, &args.costs, fabric)?;
    setup::sources(fabric, &profile, output);
    let router = Router::new(fabric, setup::route_options(&args.fabric.size));
    let devices = setup::ranks(fabric, args.fabric.ranks_per_gpu)?;
    let ranks = ExchangeRanks::new(&router, &devices).map_err(failure)?;
    let routing = TokenRouting::new(
        tokens,
        flags.hidden.unwrap_or(DEFAULT_HIDDEN),
        flags.experts.unwrap_or(DEFAULT_EXPERTS),
        flags.top_k.unwrap_or(DEFAULT_TOP_K),
        flags.routing.unwrap_or_default(),
    );
    let routing = routing.and_then(|routing| routing.with_skew(flags.skew.unwrap_or(1.0))).map_err(failure)?;
    let kernel = flags.kernel.unwrap_or_default();
    if flags.sms.is_some() && !kernel.has_sms() {
        return Err(Failure::input(format!(
            "the number of SMs of {} cannot be chosen: --sms goes with deepep",
            kernel.name()
        )));
    }
    let exchange =
        Exchange { router: &router, ranks: &ranks, links: &profile.links, routing: &routing, kernel, sms: flags.sms };
    let token_type = flags.token_type.unwrap_or(match operation {
        Operation::Combine => TokenType::Bf16,
        Operation::Prepare | Operation::Dispatch => TokenType::Fp8,
    });
    exchange.check_support(token_type).map_err(unsupported)?;
    let timing = if args.costs.launch == Launch::Stream { Timing::Host } else { Timing::Kernel };
    let answer = ExchangeAnswer::new(&exchange, operation, token_type, timing).map_err(failure)?;
    let text = match output.format {
        Format::Json => output::json(&Document::Exchange.with(&answer.json))?,
        Format::Text => answer.text(&exchange, fabric.name(), &profile.name, output),
        Format::Csv => super::csv(&answer.csv())?,
    };
    match &flags.write_matrix {
        Some(path) => write_matrix(path, &exchange, token_type, &text, output),
        None => output.write(&text),
    }
}

/// Rejects flags that apply to schedules only. An exchange has a number of tokens instead of a message size, and a
/// kernel instead of a strategy.
fn check_other_flags(args: &SimulateArgs, operation: Operation) -> Result<(), Failure> {
    let (call, strategy) = (&args.call, &args.strategy);
    let given = [
        ("--bytes", call.bytes.is_some()),
        ("--sizes", call.sizes.is_some()),
        ("--dtype", call.dtype.is_some()),
        ("--matrix", call.matrix.is_some()),
        ("--grid", call.grid.is_some()),
        ("--in-place", call.in_place),
        ("--op", call.op != ReduceOp::Sum),
        ("--root", call.root != 0),
        ("--algorithm", !strategy.algorithm.is_empty()),
        ("--protocol", !strategy.protocol.is_empty()),
        ("--channels", !strategy.channels.is_empty()),
        ("--chunk", strategy.chunk.is_some()),
        ("--group", !args.groups.is_empty()),
        ("--background", args.background.is_some()),
        ("--straggler", !args.stragglers.is_empty()),
        ("--trace", args.trace.is_some()),
        ("--critical-path", args.critical_path),
        ("--utilization-over-time", args.utilization_over_time.is_some()),
        ("--breakdown", args.breakdown.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => Err(Failure::input(format!(
            "{flag} does not go with --collective {}: it has tokens and a kernel (--tokens, --kernel)",
            operation.name()
        ))),
        None => Ok(()),
    }
}

fn unsupported(reason: UnsupportedExchange) -> Failure {
    let gpus = match reason {
        UnsupportedExchange::Tokens { error, .. } => return failure(error),
        UnsupportedExchange::Gpus(gpus) => gpus,
    };
    let help = match gpus {
        UnsupportedGpus::SeveralDomains(_) => "use --kernel deepep, deepep-ll, deepep-v2, nccl-ep-ll or pplx",
        UnsupportedGpus::TokenType(_) => "use --token-type fp8 or bf16",
        UnsupportedGpus::NvLink(_) => "use --kernel deepep-ll, nccl-ep-ll or pplx",
        UnsupportedGpus::Vendor(_) | UnsupportedGpus::Capability(_) | UnsupportedGpus::PeerAccess(_) => {
            "`plan --collective all_to_all` predicts an exchange by the collective library, which runs on all GPUs"
        }
    };
    Failure::input_with_help(gpus.to_string(), help)
}

fn failure(error: ExchangeError) -> Failure {
    match error {
        ExchangeError::Unreachable(error) => error.into(),
        ExchangeError::Uneven { experts, parts, what: "ranks" } => Failure::input_with_help(
            error.to_string(),
            format!("add redundant experts: --experts {}", experts.next_multiple_of(parts)),
        ),
        other => Failure::input(other.to_string()),
    }
}

fn write_matrix(
    path: &Path,
    exchange: &Exchange<'_>,
    token_type: TokenType,
    text: &str,
    output: &Output,
) -> Result<(), Failure> {
    let traffic = Traffic::new(exchange.ranks, exchange.routing).map_err(failure)?;
    let matrix = traffic.matrix(token_type.token_bytes(exchange.routing.hidden())).map_err(failure)?;
    let content = matrix_csv(&matrix);
    output.write_with(text, Some(AdditionalFile { path, content: content.as_bytes() }))
}

/// Matrix in the format of `--matrix`: a line per sender, a size per receiver.
fn matrix_csv(matrix: &TrafficMatrix) -> String {
    let line = |from: u32| {
        let sizes: Vec<String> = (0..matrix.ranks()).map(|to| matrix.get(from, to).0.to_string()).collect();
        sizes.join(",") + "\n"
    };
    (0..matrix.ranks()).map(line).collect()
}

/// Table of one row.
fn single_row(cells: impl IntoIterator<Item = (Column, Value)>) -> Table {
    let (columns, values): (Vec<Column>, Vec<Value>) = cells.into_iter().unzip();
    let mut table = Table::new(columns);
    table.row(values.into_iter().map(Into::into).collect());
    table
}

impl ExchangeAnswer {
    fn new(
        exchange: &Exchange<'_>,
        operation: Operation,
        token_type: TokenType,
        timing: Timing,
    ) -> Result<Self, ExchangeError> {
        let costs = &ExchangeCosts::FITTED;
        let time = exchange.time(&exchange.load(operation, token_type)?, costs, timing);
        let total = time.total();
        let bound = exchange.bound(operation, token_type)?;
        let prepare_us = match (operation, exchange.kernel) {
            (Operation::Dispatch, ExchangeKernel::TensorRtTwoSided) => {
                let load = exchange.load(Operation::Prepare, token_type)?;
                Some(exchange.time(&load, costs, timing).total().us())
            }
            _ => None,
        };
        let traffic = Traffic::new(exchange.ranks, exchange.routing)?;
        let network = exchange.network_bandwidth(token_type, total)?;
        let interval = exchange.ranks.extent().prediction_interval(total);
        let (routing, ranks) = (exchange.routing, exchange.ranks);
        let json = ExchangeJson {
            collective: operation.name(),
            kernel: exchange.kernel.name(),
            sms: exchange.kernel.has_sms().then(|| exchange.sms.unwrap_or(exchange.kernel.default_sms())),
            ranks: ranks.count(),
            nvlink_domains: ranks.domains().len() as u32,
            tokens: routing.tokens(),
            hidden: routing.hidden(),
            experts: routing.experts(),
            top_k: routing.top_k(),
            token_type: token_type.name(),
            token_bytes: token_type.token_bytes(routing.hidden()),
            ranks_per_token: traffic.ranks_per_token(),
            domains_per_token: traffic.domains_per_token(),
            time_us: total.us(),
            low_us: interval[0].us(),
            high_us: interval[1].us(),
            prepare_us,
            network_gb_per_s: network.map(Bandwidth::gb_per_s),
            nvlink_gb_per_s: exchange.nvlink_bandwidth(token_type, total)?.gb_per_s(),
            bound_us: bound.us(),
            bound_share: bound.0 as f64 / total.0.max(1) as f64,
            bottleneck: time.bottleneck,
            cost_us: ExchangeCostsJson {
                fixed: time.fixed.us(),
                transfer: time.transfer.us(),
                fill: time.fill.us(),
                receive: time.receive.us(),
            },
        };
        Ok(Self { json, time, interval, bound })
    }

    /// Table of the times, for text.
    fn table(&self) -> Table {
        single_row(self.times())
    }

    /// Table of the exchange and its times, for CSV.
    fn csv(&self) -> Table {
        let json = &self.json;
        let text = |key, value: &str| (Column::new(key, key, Unit::Text), Value::text(value));
        let count = |key, value: u64| (Column::new(key, key, Unit::Number), Value::Count(value));
        let exchange = [
            text("collective", json.collective),
            text("kernel", json.kernel),
            count("ranks", json.ranks.into()),
            count("tokens", json.tokens),
            count("hidden", json.hidden.into()),
            count("experts", json.experts.into()),
            count("top_k", json.top_k.into()),
            text("token_type", json.token_type),
        ];
        single_row(exchange.into_iter().chain(self.times()))
    }

    fn times(&self) -> [(Column, Value); 8] {
        let json = &self.json;
        let [low, high] = self.interval;
        [
            (Column::new("time_us", "time", Unit::Micros), Value::Time(self.time.total())),
            (Column::new("low_us", "low", Unit::Micros), Value::Time(low)),
            (Column::new("high_us", "high", Unit::Micros), Value::Time(high)),
            (
                Column::new("network_gb_per_s", "network", Unit::GbPerS),
                Value::or_missing(json.network_gb_per_s, Value::Rate),
            ),
            (Column::new("nvlink_gb_per_s", "NVLink", Unit::GbPerS), Value::Rate(json.nvlink_gb_per_s)),
            (Column::new("bound_us", "bound", Unit::Micros), Value::Time(self.bound)),
            (Column::new("bound_share", "of peak", Unit::Percent).spare(), Value::Share(json.bound_share)),
            (Column::new("bottleneck", "bottleneck", Unit::Text), Value::text(json.bottleneck)),
        ]
    }

    fn text(&self, exchange: &Exchange<'_>, fabric: &str, profile: &str, output: &Output) -> String {
        let json = &self.json;
        let mut table = self.table();
        let sms = json.sms.map(|sms| format!(" × {sms} SMs")).unwrap_or_default();
        table.heading(format!(
            "{} of {} per rank on {fabric} · {} · {}{sms} · profile {profile}",
            json.collective,
            format_count(json.tokens, "token"),
            format_count(json.ranks.into(), "rank"),
            json.kernel,
        ));
        let routing = match exchange.routing.pattern() {
            RoutingPattern::Random => "random routing".to_owned(),
            RoutingPattern::Balanced => "balanced routing".to_owned(),
            RoutingPattern::GroupLimited { groups, limit } => format!("experts in {limit} of {groups} groups"),
        };
        let mut text = table.text(&output.text_options());
        text.push_str("\nwhere the time goes\n");
        let parts = self.time.parts().into_iter().filter(|(_, time)| *time > Picos::ZERO);
        let parts: Vec<TimePart> = parts.map(|(part, time)| TimePart { name: part.name().to_owned(), time }).collect();
        text.push_str(&share::bars(&parts, 40, output.text_options().glyphs));
        text.push_str(&format!(
            "\na token: {} elements {}, {} bytes, top-{} of {} experts, {routing}\nits experts: on {:.2} of {}, in {:.2} of {}\n",
            json.hidden,
            json.token_type,
            json.token_bytes,
            json.top_k,
            json.experts,
            json.ranks_per_token,
            format_count(json.ranks.into(), "rank"),
            json.domains_per_token,
            format_count(json.nvlink_domains.into(), "NVLink domain"),
        ));
        if let Some(prepare) = json.prepare_us {
            text.push_str(&format!("counting tokens before the dispatch: {prepare:.1} µs more\n"));
        }
        text
    }
}
