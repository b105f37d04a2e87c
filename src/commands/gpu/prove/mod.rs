//! `gpu prove`: NCCL by its own choice and with a table, in turns: whether it does what the table says, and whether that is slower.

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

use crate::args::{GpuProveArgs, Sizes};
use crate::failure::Failure;
use crate::output::{Format, Output, json, note};
use answer::{Answer, Measured};

/// The plugin's file, as cargo names it.
const PLUGIN: &str = "libnccl_tuner_fabricast.so";

pub fn run(args: &GpuProveArgs, output: &Output) -> Result<(), Failure> {
    let text = fabricast_topologies::read::text_of_file(&args.table)?;
    let table = nccl_tuner::read(&text, &args.table.display().to_string())
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
    let (nccl, measured, is_whole) = measured(args, &plugin, ranks, &trials, &logs, output)?;
    let said = |side: Side| std::fs::read_to_string(logs.of(side)).unwrap_or_default();
    let (default, tuned) = (said(Side::Default), said(Side::Tuned));
    let spoken: Vec<String> = tuned
        .lines()
        .filter_map(|line| line.split_once("TUNER/fabricast: "))
        .map(|(_, said)| said.to_owned())
        .collect();
    let (default, tuned) = (logged::all(&default, ranks), logged::all(&tuned, ranks));
    let rows = measured.into_iter().map(|one| {
        let function = Function::of(one.trial.collective);
        let of = |all: &BTreeMap<(Function, u64), BTreeSet<Ran>>| {
            function.and_then(|function| all.get(&(function, one.trial.bytes.0))).cloned().unwrap_or_default()
        };
        // A captured call's buffers count as registered (`ncclParamGraphRegister`, on by default since 2.19).
        let row = function.and_then(|function| lookup.find(function, one.trial.bytes.0, 1, Buffers::Registered));
        answer::Row::new(&one, row, of(&default), of(&tuned))
    });
    let answer = Answer {
        nccl,
        ranks,
        table: args.table.display().to_string(),
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

/// The plugin's file. NCCL opens it itself, so it is named in full.
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
    let sizes = args.sizes.clone().unwrap_or_else(Sizes::default).0;
    let of = |&collective: &Collective| {
        sizes.iter().map(move |&bytes| Trial { collective, bytes, dtype: args.dtype, calls: calls(bytes) })
    };
    Ok(args.collective.iter().flat_map(of).collect())
}

/// Calls of a graph: together they take some hundred microseconds at least.
fn calls(bytes: Bytes) -> u32 {
    const CALLS: [(u64, u32); 3] = [(1 << 20, 50), (16 << 20, 20), (128 << 20, 8)];
    CALLS.iter().find(|(most, _)| bytes.0 <= *most).map_or(4, |&(_, calls)| calls)
}

/// NCCL's version, what was measured, and whether that is all.
fn measured(
    args: &GpuProveArgs,
    plugin: &Path,
    ranks: u32,
    trials: &[Trial],
    logs: &Logs,
    output: &Output,
) -> Result<(String, Vec<Measured>, bool), Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("this program does not know its own file: {error}")))?;
    let table = args.table.canonicalize().unwrap_or_else(|_| args.table.clone());
    let room = trials.iter().map(|trial| trial.bytes).max().unwrap_or_default();
    let patience = Duration::from_secs(args.patience);
    let setting = Setting { library: args.nccl.clone(), ranks, room, patience };
    let begun = Instant::now();
    let (mut sides, nccl) = Sides::start(&setting, |side| {
        let mut command = Command::new(&program);
        // Whoever has a tuner of their own is asked about this one.
        command.args(["gpu", "prove-side"]).env_remove("NCCL_TUNER_CONFIG_FILE");
        command.envs(environment(side, plugin, &table, &logs.of(side)));
        command
    })?;
    let mut all = Vec::with_capacity(trials.len());
    for &trial in trials {
        if interrupt::requested() {
            return Err(Failure::Interrupted);
        }
        if begun.elapsed() >= Duration::from_secs(args.limit) {
            break;
        }
        let one = one(&mut sides, trial, args.turns)?;
        if output.shows_progress() {
            note(&format!("{} of {}: {:.2} × the default", trial.collective, trial.bytes, one.ratio()));
        }
        all.push(one);
    }
    sides.end()?;
    let is_whole = all.len() == trials.len();
    Ok((nccl, all, is_whole))
}

/// Times of one size: the sides take turns, and which of them begins alternates too.
fn one(sides: &mut Sides, trial: Trial, turns: u32) -> Result<Measured, ProveError> {
    Side::BOTH.into_iter().try_for_each(|side| sides.prepare(side, trial))?;
    let mut times: [Vec<Picos>; 2] = Default::default();
    /// Turns that are not counted.
    const WARM: u32 = 2;
    for turn in 0..turns + WARM {
        let mut order = Side::BOTH;
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
    Ok(Measured { trial, default, tuned })
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

/// The folder of NCCL's logs, taken away at the end unless it is to be kept.
struct Logs {
    folder: PathBuf,
    is_kept: Kept,
}

/// Whether a folder stays.
#[derive(PartialEq, Eq)]
enum Kept {
    Yes,
    No,
}

impl Logs {
    fn new(asked: Option<&Path>) -> Result<Self, Failure> {
        let (folder, is_kept) = match asked {
            Some(folder) => (folder.to_owned(), Kept::Yes),
            None => (std::env::temp_dir().join(format!("fabricast-prove-{}", std::process::id())), Kept::No),
        };
        let failed = |error: std::io::Error| Failure::input(format!("{}: {error}", folder.display()));
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let folder = folder.canonicalize().map_err(failed)?;
        let logs = Self { folder, is_kept };
        for side in Side::BOTH {
            // NCCL appends to a log of before.
            match std::fs::remove_file(logs.of(side)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        Ok(logs)
    }

    fn of(&self, side: Side) -> PathBuf {
        self.folder.join(format!("{}.log", side.name()))
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        if self.is_kept == Kept::No {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}
