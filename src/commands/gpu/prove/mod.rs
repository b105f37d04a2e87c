//! `gpu prove`: runs NCCL with its default choice and with a tuner table, in turns. It checks that NCCL follows the
//! table and is not slower with it.

pub mod answer;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use fabricast_libraries::nccl::Function;
use fabricast_search::export::nccl_tuner::{self, Buffers, Lookup};
use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos};
use fabricast_validate::ab_test::logged::{self, LoggedStrategy};
use fabricast_validate::ab_test::{ProveError, TestSide, Trial, WorkerPair, WorkerSettings, environment};
use fabricast_validate::cuda::{Driver, interrupt};
use fabricast_validate::execute::{ExecuteError, round_to_elements};
use fabricast_validate::nvshmem::NvshmemError;

use crate::args::GpuProveArgs;
use crate::document::Document;
use crate::failure::Failure;
use crate::files::Scratch;
use crate::output::{AdditionalFile, Output, json};
use crate::output_format::Format;
use crate::terminal;
use answer::{CallTimes, ProveAnswer};

/// File name of the plugin, as cargo builds it.
const PLUGIN: &str = "libnccl_tuner_fabricast.so";

pub fn run(args: &GpuProveArgs, output: &Output) -> Result<(), Failure> {
    let text = fabricast_topologies::read::read_text_file(&args.table, fabricast_topologies::read::Limit::TABLE)?;
    let table = nccl_tuner::read_table_or_plan(&text, &args.table.display().to_string())
        .map_err(|error| Failure::input_at(error.to_string(), None, Some(&error.location)))?;
    let plugin = plugin(args)?;
    let trials = trials(args)?;
    if let Some(raw) = &args.raw {
        output.check_additional_file(raw)?;
    }
    let gpus = Driver::load().map_err(ExecuteError::from)?.device_count();
    let ranks = args.gpus.unwrap_or(gpus as u32);
    if gpus < 2 || ranks as usize > gpus {
        return Err(ExecuteError::TooFewGpus { ranks: ranks.max(2), gpus }.into());
    }
    let lookup = Lookup::new(&table, 1, ranks);
    if lookup.is_empty() {
        let help = format!("made for this machine it would have rows of 1 node and {ranks} ranks");
        return Err(Failure::input_with_help(format!("{}: no row is for {ranks} GPUs", args.table.display()), help));
    }
    let logs = Logs::new(args.logs.as_deref())?;
    let trials: Vec<Trial> = trials
        .into_iter()
        .map(|trial| Trial { bytes: round_to_elements(trial.collective, trial.bytes, ranks, trial.dtype), ..trial })
        .filter(|trial| trial.bytes.0 > 0)
        .collect();
    let _polling = interrupt::start_polling();
    let TableProof { nccl, measured, rounds } = run_rounds(args, &plugin, ranks, &trials, &logs, output)?;
    let read_log = |side: TestSide| logs.read(side, rounds);
    let (default, tuned) = (read_log(TestSide::Default), read_log(TestSide::Tuned));
    let mut plugin_lines: Vec<String> = Vec::new();
    for (_, line) in tuned.lines().filter_map(|line| line.split_once("TUNER/fabricast: ")) {
        if !plugin_lines.iter().any(|known| known == line) {
            plugin_lines.push(line.to_owned());
        }
    }
    let (default, tuned) = (logged::parse_log(&default, ranks), logged::parse_log(&tuned, ranks));
    let is_whole = rounds == args.rounds && measured.len() == trials.len();
    let rows = measured.into_iter().map(|measurement| {
        let function = Function::from_collective(measurement.trial.collective);
        let logged_strategies = |log: &BTreeMap<(Function, u64), BTreeSet<LoggedStrategy>>| {
            function.and_then(|function| log.get(&(function, measurement.trial.bytes.0))).cloned().unwrap_or_default()
        };
        // Buffers of captured calls count as registered (`getAlgoInfo` of NCCL's src/enqueue.cc:
        // `ncclParamGraphRegister`).
        let row =
            function.and_then(|function| lookup.find(function, measurement.trial.bytes.0, 1, Buffers::Registered));
        answer::ProveRow::new(&measurement, row, logged_strategies(&default), logged_strategies(&tuned))
    });
    let answer = ProveAnswer {
        nccl,
        ranks,
        table: args.table.display().to_string(),
        rounds,
        turns: args.turns,
        is_complete: is_whole,
        plugin: plugin_lines,
        rows: rows.collect(),
    };
    let raw =
        args.raw.as_deref().map(|path| Ok::<_, Failure>((path, json(&Document::AbTest.with(&answer))?))).transpose()?;
    let additional_file = raw.as_ref().map(|(path, text)| AdditionalFile { path, content: text.as_bytes() });
    match output.format {
        Format::Json => output.write_with(&json(&Document::AbTest.with(&answer))?, additional_file)?,
        Format::Csv => output.write_with(&crate::commands::csv(&answer.csv())?, additional_file)?,
        Format::Text => output.write_with(&answer.text().text(&output.text_options()), additional_file)?,
    }
    answer.check()
}

/// Canonical path of the plugin file. NCCL opens the file itself.
fn plugin(args: &GpuProveArgs) -> Result<PathBuf, Failure> {
    let next_to_program = || {
        let program = std::env::current_exe().ok()?;
        Some(program.parent()?.join(PLUGIN))
    };
    let path = args.plugin.clone().or_else(next_to_program).unwrap_or_else(|| PathBuf::from(PLUGIN));
    path.canonicalize().map_err(|error| {
        let help = "`cargo build --release -p fabricast-tuner-plugin` builds it; --plugin names it";
        Failure::input_with_help(format!("{}: {error}", path.display()), help)
    })
}

fn trials(args: &GpuProveArgs) -> Result<Vec<Trial>, Failure> {
    if let Some(unsupported) =
        args.collective.iter().find(|&&collective| Function::from_collective(collective).is_none())
    {
        return Err(Failure::input(format!(
            "{unsupported}: NCCL implements it with sends and receives, and queries no tuner"
        )));
    }
    let sizes = args.sizes.clone().unwrap_or_default().0;
    let collective_trials = |&collective: &Collective| {
        sizes.iter().map(move |&bytes| Trial { collective, bytes, dtype: args.dtype, calls: calls(bytes) })
    };
    Ok(args.collective.iter().flat_map(collective_trials).collect())
}

/// Number of calls per CUDA graph, so that a graph runs for some hundred microseconds at least.
fn calls(bytes: Bytes) -> u32 {
    const CALLS: [(u64, u32); 3] = [(1 << 20, 50), (16 << 20, 20), (128 << 20, 8)];
    CALLS.iter().find(|(max_bytes, _)| bytes.0 <= *max_bytes).map_or(4, |&(_, calls)| calls)
}

/// Times measured with the table and without it.
struct TableProof {
    /// Version of the NCCL library that was measured.
    nccl: String,
    /// Sizes measured within the time limit.
    measured: Vec<CallTimes>,
    /// Number of process pairs that were measured.
    rounds: u32,
}

fn run_rounds(
    args: &GpuProveArgs,
    plugin: &Path,
    ranks: u32,
    trials: &[Trial],
    logs: &Logs,
    output: &Output,
) -> Result<TableProof, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("cannot find the executable of this program: {error}")))?;
    let table = args.table.canonicalize().unwrap_or_else(|_| args.table.clone());
    let buffer_bytes = trials.iter().map(|trial| trial.bytes).max().unwrap_or_default();
    let timeout = Duration::from_secs(args.patience);
    let settings = WorkerSettings { library: args.nccl.clone(), ranks, buffer_bytes, timeout };
    let limit = Duration::from_secs(args.limit);
    let started = Instant::now();
    let mut proof = TableProof { nccl: String::new(), measured: Vec::with_capacity(trials.len()), rounds: 0 };
    let mut longest = Duration::ZERO;
    while proof.rounds < args.rounds && started.elapsed() + longest < limit {
        let round_start = Instant::now();
        let round = proof.rounds;
        let first = if round.is_multiple_of(2) { TestSide::Default } else { TestSide::Tuned };
        let (mut sides, nccl) = WorkerPair::start(&settings, first, |side| {
            let mut command = Command::new(&program);
            // A tuner table that the user has configured must not replace the tested table.
            command.args(["gpu", "prove-side"]).env_remove("NCCL_TUNER_CONFIG_FILE");
            command.envs(environment(side, plugin, &table, &logs.log_path(side, round)));
            command
        })?;
        proof.nccl = nccl;
        if round == 0 {
            proof.measured = trials.iter().copied().map(CallTimes::new).collect();
        }
        let mut measured_sizes = 0;
        for measurement in &mut proof.measured {
            if interrupt::is_requested() {
                return Err(Failure::Interrupted);
            }
            if round == 0 && started.elapsed() >= limit {
                break;
            }
            measure_trial(&mut sides, measurement, args.turns, first)?;
            measured_sizes += 1;
        }
        proof.measured.truncate(measured_sizes);
        sides.end()?;
        proof.rounds += 1;
        longest = longest.max(round_start.elapsed());
        if output.shows_progress() {
            terminal::write_stderr(&format!(
                "round {} of {}: {:.0} s",
                proof.rounds,
                args.rounds,
                round_start.elapsed().as_secs_f64()
            ));
        }
    }
    Ok(proof)
}

/// Measures one size in one pair of processes. Turns alternate between the processes, and so does the process that has
/// the first turn.
fn measure_trial(
    sides: &mut WorkerPair,
    measurement: &mut CallTimes,
    turns: u32,
    first: TestSide,
) -> Result<(), ProveError> {
    /// Number of warm-up turns.
    const WARM: u32 = 1;
    first.order_from().into_iter().try_for_each(|side| sides.prepare(side, measurement.trial))?;
    let mut times: [Vec<Picos>; 2] = Default::default();
    for turn in 0..turns + WARM {
        let mut order = first.order_from();
        if turn % 2 == 1 {
            order.reverse();
        }
        for side in order {
            let time = sides.time(side)?;
            if let Some(side_times) = times.get_mut(side as usize).filter(|_| turn >= WARM) {
                side_times.push(time);
            }
        }
    }
    TestSide::BOTH.into_iter().try_for_each(|side| sides.discard(side))?;
    let [default, tuned] = times;
    measurement.default.push(default);
    measurement.tuned.push(tuned);
    Ok(())
}

impl From<ProveError> for Failure {
    fn from(error: ProveError) -> Self {
        match error {
            ProveError::NoGpu(message) => Self::NoGpu(message),
            ProveError::Processes(NvshmemError::Cuda(error)) => error.into(),
            error => Self::Failed(error.to_string()),
        }
    }
}

/// Folder of NCCL's logs: the requested one, or a temporary one.
struct Logs {
    folder: PathBuf,
    /// Temporary folder, removed on drop.
    _scratch: Option<Scratch>,
}

impl Logs {
    fn new(requested: Option<&Path>) -> Result<Self, Failure> {
        let scratch = if requested.is_none() { Some(Scratch::new("fabricast-prove")?) } else { None };
        let folder = requested.or(scratch.as_ref().map(Scratch::path)).unwrap_or(Path::new("."));
        let failed = |error: std::io::Error| Failure::input(format!("{}: {error}", folder.display()));
        std::fs::create_dir_all(folder).map_err(failed)?;
        let folder = folder.canonicalize().map_err(failed)?;
        Ok(Self { folder, _scratch: scratch })
    }

    fn log_path(&self, side: TestSide, round: u32) -> PathBuf {
        self.folder.join(format!("{}-{round}.log", side.name()))
    }

    /// Returns NCCL's logs of one side, in the order of the rounds.
    fn read(&self, side: TestSide, rounds: u32) -> String {
        (0..rounds)
            .filter_map(|round| std::fs::read_to_string(self.log_path(side, round)).ok())
            .collect::<Vec<_>>()
            .join("\n")
    }
}
