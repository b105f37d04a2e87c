//! `plan --all`: every candidate of each call with its predicted time.

use fabricast_collectives::strategy::Strategy;
use fabricast_libraries::Chooser;
use fabricast_reports::table::{Cell, Column, Emphasis, Table, TextOptions, Unit, Value, stacked};
use fabricast_search::plan::{PlanRequest, StrategyCall, TimedStrategy, busbw_gb_per_s, simulate_strategies};
use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;
use schemars::JsonSchema;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::Output;
use crate::run_control;

/// A candidate with its time.
pub struct Candidate {
    collective: Collective,
    bytes: Bytes,
    timed: TimedStrategy,
    busbw_gb_per_s: f64,
    /// Slowdown relative to the fastest candidate of the call, as a fraction.
    slower: f64,
    /// True if the library of the plan can run the candidate; `None` without a library.
    is_of_library: Option<bool>,
}

/// Simulates all candidates of a request, by collective and size, fastest first. Candidates without a schedule at a
/// size are omitted.
///
/// # Errors
/// [`Failure`]: the simulation of a strategy fails, or the caller has stopped the command.
pub fn simulate(
    request: &PlanRequest<'_>,
    chooser: Option<&Chooser>,
    output: &Output,
) -> Result<Vec<Candidate>, Failure> {
    let abilities = request.fabric_capabilities();
    let mut calls = Vec::new();
    for &collective in request.collectives {
        for &bytes in request.sizes {
            let call = request.call(collective, bytes);
            let mut strategies = request.candidates(call, &abilities);
            let default = chooser.and_then(|chooser| chooser.choose(&call).ok()).map(|choice| choice.strategy);
            let default = default.filter(|default| request.restriction.allows(default, collective));
            // The library's kernel may have other numbers of threads than the candidate.
            let is_listed = |default: &Strategy| {
                strategies.iter().any(|strategy| strategy.is_equivalent(default, collective, request.profile))
            };
            strategies.extend(default.filter(|default| !is_listed(default)));
            calls.extend(strategies.into_iter().map(|strategy| StrategyCall { collective, bytes, strategy }));
        }
    }
    let simulated = run_control::with_monitor(output, "simulating candidates", |monitor| {
        simulate_strategies(request, &calls, monitor)
    })?;
    let capabilities = chooser.map(Chooser::capabilities);
    let ranks = request.placement.len() as u32;
    let mut found: Vec<Candidate> = calls
        .iter()
        .zip(simulated)
        .filter_map(|(call, timed)| {
            let timed = timed.ok()?;
            let strategy = timed.strategy;
            Some(Candidate {
                collective: call.collective,
                bytes: call.bytes,
                timed,
                busbw_gb_per_s: busbw_gb_per_s(call.collective, call.bytes, timed.time, ranks),
                slower: 0.0,
                is_of_library: capabilities
                    .map(|capabilities| capabilities.runs(strategy.algorithm, strategy.protocol, call.collective)),
            })
        })
        .collect();
    let call_of = |candidate: &Candidate| (candidate.collective, candidate.bytes);
    for call in found.chunk_by_mut(|a, b| call_of(a) == call_of(b)) {
        call.sort_by_key(|candidate| (candidate.timed.time, candidate.timed.strategy));
        let fastest = call.first().map_or(1, |first| first.timed.time.0.max(1));
        for candidate in call {
            candidate.slower = candidate.timed.time.0 as f64 / fastest as f64 - 1.0;
        }
    }
    Ok(found)
}

/// Tables by call, in text.
pub fn text(found: &[Candidate], options: &TextOptions) -> String {
    let tables: Vec<Table> = found
        .chunk_by(|a, b| (a.collective, a.bytes) == (b.collective, b.bytes))
        .map(|call| {
            let mut table = table(call);
            if let Some(first) = call.first() {
                let size = fabricast_reports::format::bytes(first.bytes);
                table.heading(format!("\nall candidates for {} of {size}", first.collective));
            }
            table
        })
        .collect();
    stacked(&tables, options)
}

/// One table of candidates, with the JSON keys as column names.
pub fn table(found: &[Candidate]) -> Table {
    let mut table = Table::new(vec![
        Column::new("collective", "collective", Unit::Text).spare(),
        Column::new("bytes", "size", Unit::Bytes).spare(),
        Column::new("algorithm", "algorithm", Unit::Text),
        Column::new("protocol", "protocol", Unit::Text),
        Column::new("channels", "channels", Unit::Number),
        Column::new("time_us", "time", Unit::Micros),
        Column::new("busbw_gb_per_s", "busbw", Unit::GbPerS),
        Column::new("slower", "slower", Unit::Percent),
        Column::new("library", "library", Unit::Text),
        Column::new("low_us", "low", Unit::Micros).spare(),
        Column::new("high_us", "high", Unit::Micros).spare(),
    ]);
    for candidate in found {
        let strategy = candidate.timed.strategy;
        let (word, tone) = match candidate.is_of_library {
            Some(true) => ("yes", Emphasis::Plain),
            Some(false) => ("no", Emphasis::Faint),
            None => ("", Emphasis::Faint),
        };
        table.row(vec![
            Value::text(candidate.collective.name()).into(),
            Value::Bytes(candidate.bytes).into(),
            Value::text(strategy.algorithm.name()).into(),
            Value::text(strategy.protocol.name()).into(),
            Value::Count(strategy.channels.into()).into(),
            Value::Time(candidate.timed.time).into(),
            Value::Rate(candidate.busbw_gb_per_s).into(),
            Value::Share(candidate.slower).into(),
            Cell::from(Value::text(word)).tone(tone),
            Value::Time(candidate.timed.low).into(),
            Value::Time(candidate.timed.high).into(),
        ]);
    }
    table
}

/// JSON of a candidate.
#[derive(Serialize, JsonSchema)]
pub struct CandidateJson {
    /// The collective, as nccl-tests names it.
    collective: Collective,
    /// Size of the call in bytes: the larger buffer of a rank.
    bytes: Bytes,
    /// Algorithm of the strategy.
    algorithm: &'static str,
    /// Protocol of the strategy.
    protocol: &'static str,
    /// Number of channels of the strategy.
    channels: u16,
    /// Predicted time, in µs.
    time_us: f64,
    /// Lower end of the 80 % prediction interval, in µs.
    low_us: f64,
    /// Upper end of the 80 % prediction interval, in µs.
    high_us: f64,
    /// Bus bandwidth as nccl-tests defines it, in GB/s (10⁹ bytes per second).
    busbw_gb_per_s: f64,
    /// Slowdown relative to the fastest candidate of the call, as a fraction: time ÷ time of the fastest − 1.
    slower: f64,
    /// True if the library of the plan can run the strategy; null without a library.
    is_of_library: Option<bool>,
}

impl From<&Candidate> for CandidateJson {
    fn from(candidate: &Candidate) -> Self {
        let TimedStrategy { strategy, time, low, high, .. } = candidate.timed;
        Self {
            collective: candidate.collective,
            bytes: candidate.bytes,
            algorithm: strategy.algorithm.name(),
            protocol: strategy.protocol.name(),
            channels: strategy.channels,
            time_us: time.us(),
            low_us: low.us(),
            high_us: high.us(),
            busbw_gb_per_s: candidate.busbw_gb_per_s,
            slower: candidate.slower,
            is_of_library: candidate.is_of_library,
        }
    }
}
