//! `gpu prove`: runs NCCL alternately with its default choice and with a tuner table. It checks that NCCL follows the
//! table and is not slower with it.

mod answer;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use fabricast_planner::export::nccl_tuner::{self, Buffers, Lookup};
use fabricast_planner::library::nccl::Function;
use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos};
use fabricast_validate::cuda::{Driver, interrupt};
use fabricast_validate::execute::{ExecuteError, whole_bytes};
use fabricast_validate::nvshmem::NvshmemError;
use fabricast_validate::prove::logged::{self, Ran};
use fabricast_validate::prove::{ProveError, Setting, Side, Sides, Trial, environment};

use crate::args::GpuProveArgs;
use crate::failure::Failure;
use crate::files::Scratch;
use crate::output::{Format, Output, json};
use crate::terminal;
use answer::{Answer, Measured};

/// File name of the plugin, as cargo builds it.
const PLUGIN: &str = "libnccl_tuner_fabricast.so";

pub fn run(args: &GpuProveArgs, output: &Output) -> Result<(), Failure> {
    let text = fabricast_topologies::read::text_of_file(&args.table, fabricast_topologies::read::Limit::TABLE)?;
    let table = nccl_tuner::read_either(&text, &args.table.display().to_string())
        .map_err(|error| Failure::at(error.to_string(), None, Some(&error.place)))?;
    let plugin = plugin(args)?;
    let trials = trials(args)?;
    if let Some(raw) = &args.raw {
        output.check_beside(raw)?;
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
        .map(|trial| Trial { bytes: whole_bytes(trial.collective, trial.bytes, ranks, trial.dtype), ..trial })
        .filter(|trial| trial.bytes.0 > 0)
        .collect();
    let _heed = interrupt::heed();
    let Proof { nccl, measured, rounds } = measured(args, &plugin, ranks, &trials, &logs, output)?;
    let said = |side: Side| logs.read(side, rounds);
    let (default, tuned) = (said(Side::Default), said(Side::Tuned));
    let mut spoken: Vec<String> = Vec::new();
    for (_, line) in tuned.lines().filter_map(|line| line.split_once("TUNER/fabricast: ")) {
        if !spoken.iter().any(|known| known == line) {
            spoken.push(line.to_owned());
        }
    }
    let (default, tuned) = (logged::all(&default, ranks), logged::all(&tuned, ranks));
    let is_whole = rounds == args.rounds && measured.len() == trials.len();
    let rows = measured.into_iter().map(|one| {
        let function = Function::of(one.trial.collective);
        let of = |all: &BTreeMap<(Function, u64), BTreeSet<Ran>>| {
            function.and_then(|function| all.get(&(function, one.trial.bytes.0))).cloned().unwrap_or_default()
        };
        // Buffers of captured calls count as registered (`getAlgoInfo` of NCCL's src/enqueue.cc:
        // `ncclParamGraphRegister`).
        let row = function.and_then(|function| lookup.find(function, one.trial.bytes.0, 1, Buffers::Registered));
        answer::Row::new(&one, row, of(&default), of(&tuned))
    });
    let answer = Answer {
        nccl,
        ranks,
        table: args.table.display().to_string(),
        rounds,
        turns: args.turns,
        is_whole,
        plugin: spoken,
        rows: rows.collect(),
    };
    let raw = args.raw.as_deref().map(|path| Ok::<_, Failure>((path, json(&answer)?))).transpose()?;
    let beside = raw.as_ref().map(|(path, text)| (*path, text.as_bytes()));
    match output.format {
        Format::Json => output.write_with(&json(&answer)?, beside)?,
        Format::Csv => output.write_with(&crate::commands::csv(&answer.csv())?, beside)?,
        Format::Text => output.write_with(&answer.text().text(&output.look()), beside)?,
    }
    answer.judged()
}

/// Canonical path of the plugin file, which NCCL opens itself.
fn plugin(args: &GpuProveArgs) -> Result<PathBuf, Failure> {
    let beside = || {
        let program = std::env::current_exe().ok()?;
        Some(program.parent()?.join(PLUGIN))
    };
    let named = args.plugin.clone().or_else(beside).unwrap_or_else(|| PathBuf::from(PLUGIN));
    named.canonicalize().map_err(|error| {
        let help = "`cargo build --release -p fabricast-tuner-plugin` makes it; --plugin names it";
        Failure::input_with_help(format!("{}: {error}", named.display()), help)
    })
}

fn trials(args: &GpuProveArgs) -> Result<Vec<Trial>, Failure> {
    if let Some(other) = args.collective.iter().find(|&&one| Function::of(one).is_none()) {
        return Err(Failure::input(format!("{other}: NCCL makes it of sends and receives, and asks no tuner")));
    }
    let sizes = args.sizes.clone().unwrap_or_default().0;
    let of = |&collective: &Collective| {
        sizes.iter().map(move |&bytes| Trial { collective, bytes, dtype: args.dtype, calls: calls(bytes) })
    };
    Ok(args.collective.iter().flat_map(of).collect())
}

/// Number of calls per graph, which makes a graph last some hundred microseconds at least.
fn calls(bytes: Bytes) -> u32 {
    const CALLS: [(u64, u32); 3] = [(1 << 20, 50), (16 << 20, 20), (128 << 20, 8)];
    CALLS.iter().find(|(most, _)| bytes.0 <= *most).map_or(4, |&(_, calls)| calls)
}

/// Measured times.
struct Proof {
    /// NCCL version.
    nccl: String,
    /// Sizes measured within the time limit.
    measured: Vec<Measured>,
    /// Number of process pairs.
    rounds: u32,
}

fn measured(
    args: &GpuProveArgs,
    plugin: &Path,
    ranks: u32,
    trials: &[Trial],
    logs: &Logs,
    output: &Output,
) -> Result<Proof, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("this program does not know its own file: {error}")))?;
    let table = args.table.canonicalize().unwrap_or_else(|_| args.table.clone());
    let room = trials.iter().map(|trial| trial.bytes).max().unwrap_or_default();
    let patience = Duration::from_secs(args.patience);
    let setting = Setting { library: args.nccl.clone(), ranks, room, patience };
    let limit = Duration::from_secs(args.limit);
    let begun = Instant::now();
    let mut proof = Proof { nccl: String::new(), measured: Vec::with_capacity(trials.len()), rounds: 0 };
    let mut longest = Duration::ZERO;
    while proof.rounds < args.rounds && begun.elapsed() + longest < limit {
        let since = Instant::now();
        let round = proof.rounds;
        let first = if round.is_multiple_of(2) { Side::Default } else { Side::Tuned };
        let (mut sides, nccl) = Sides::start(&setting, first, |side| {
            let mut command = Command::new(&program);
            // A tuner table configured by the user must not replace the tested one.
            command.args(["gpu", "prove-side"]).env_remove("NCCL_TUNER_CONFIG_FILE");
            command.envs(environment(side, plugin, &table, &logs.of(side, round)));
            command
        })?;
        proof.nccl = nccl;
        if round == 0 {
            proof.measured = trials.iter().copied().map(Measured::none).collect();
        }
        let mut reached = 0;
        for one in &mut proof.measured {
            if interrupt::requested() {
                return Err(Failure::Interrupted);
            }
            if round == 0 && begun.elapsed() >= limit {
                break;
            }
            take(&mut sides, one, args.turns, first)?;
            reached += 1;
        }
        proof.measured.truncate(reached);
        sides.end()?;
        proof.rounds += 1;
        longest = longest.max(since.elapsed());
        if output.shows_progress() {
            terminal::note(&format!(
                "round {} of {}: {:.0} s",
                proof.rounds,
                args.rounds,
                since.elapsed().as_secs_f64()
            ));
        }
    }
    Ok(proof)
}

/// Measures one size in one pair of processes. The processes alternate, and so does the one that starts.
fn take(sides: &mut Sides, one: &mut Measured, turns: u32, first: Side) -> Result<(), ProveError> {
    /// Number of warm-up turns.
    const WARM: u32 = 1;
    first.and_other().into_iter().try_for_each(|side| sides.prepare(side, one.trial))?;
    let mut times: [Vec<Picos>; 2] = Default::default();
    for turn in 0..turns + WARM {
        let mut order = first.and_other();
        if turn % 2 == 1 {
            order.reverse();
        }
        for side in order {
            let time = sides.time(side)?;
            if let Some(own) = times.get_mut(side as usize).filter(|_| turn >= WARM) {
                own.push(time);
            }
        }
    }
    Side::BOTH.into_iter().try_for_each(|side| sides.forget(side))?;
    let [default, tuned] = times;
    one.default.push(default);
    one.tuned.push(tuned);
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
    fn new(asked: Option<&Path>) -> Result<Self, Failure> {
        let scratch = if asked.is_none() { Some(Scratch::new("fabricast-prove")?) } else { None };
        let folder = asked.or(scratch.as_ref().map(Scratch::path)).unwrap_or(Path::new("."));
        let failed = |error: std::io::Error| Failure::input(format!("{}: {error}", folder.display()));
        std::fs::create_dir_all(folder).map_err(failed)?;
        let folder = folder.canonicalize().map_err(failed)?;
        Ok(Self { folder, _scratch: scratch })
    }

    fn of(&self, side: Side, round: u32) -> PathBuf {
        self.folder.join(format!("{}-{round}.log", side.name()))
    }

    /// Log of all rounds.
    fn read(&self, side: Side, rounds: u32) -> String {
        (0..rounds)
            .filter_map(|round| std::fs::read_to_string(self.of(side, round)).ok())
            .collect::<Vec<_>>()
            .join("\n")
    }
}
