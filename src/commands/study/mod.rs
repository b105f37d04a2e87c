//! `study`: compares machines for a set of jobs.

mod book;
mod disaggregation;
mod goodput;
mod loaded_study;
pub(super) mod page;
mod parts;
mod results;
mod slurm;
mod text;
mod trace;

use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use fabricast_reports::table::TextOptions;
use fabricast_study::answer::{Answer, build_answer};
use fabricast_study::cases::{Cases, RunSpec};
use fabricast_study::{Outcome, Run, Watch};
use fabricast_topologies::FabricRequest;
use fabricast_topologies::visible::visible_lines;

use crate::args::StudyArgs;
use crate::control::Position;
use crate::failure::Failure;
use crate::files;
use crate::output::{self, AdditionalFile, Output};
use crate::output_format::Format;
use crate::run_control;
use book::{RUNS, RunLog};
pub use loaded_study::LoadedStudy;

pub fn run(args: &StudyArgs, output: &Output) -> Result<(), Failure> {
    let folder = output.file.as_deref();
    if let Some(path) = &args.trace {
        output.check_additional_file(path)?;
    }
    let Some(path) = &args.study else {
        return match folder {
            Some(folder) => {
                files::write_folder(folder, &[("study.toml", fabricast_study::TEMPLATE.to_owned())], output.replace)
            }
            None => output.write(fabricast_study::TEMPLATE),
        };
    };
    if args.shard.is_some() && folder.is_none() {
        return Err(Failure::input("--shard runs a part of a study, which `-o DIR` stores: expected a folder"));
    }
    let loaded = LoadedStudy::read(path, output)?.validate()?;
    let load = |request: &FabricRequest| loaded.load(request);
    let LoadedStudy { study, fabrics, .. } = &loaded;
    let cases = Cases::new(study, fabrics, &load)?;
    if let Some(folder) = folder.filter(|folder| folder.exists() && !folder.is_dir()) {
        return Err(Failure::input(format!("cannot make the folder {}: expected a folder", folder.display())));
    }
    if let Some(tasks) = args.slurm {
        return slurm::run(args, path, tasks, output);
    }
    let log = RunLog::open(folder, output)?;
    let selected = args.shard.map_or_else(|| cases.runs.clone(), |shard| parts::cases(&cases, shard));
    let new_runs = match args.merge.as_slice() {
        [] => run_missing_cases(&loaded, &cases, &selected, &log, output)?,
        folders => parts::merge_shards(study, &cases, folders, output)?,
    };
    let runs = log.in_order(&selected, &new_runs)?;
    if let (Some(shard), Some(folder)) = (args.shard, folder) {
        return write(folder, &runs, &[(parts::SHARD, parts::label(&cases, shard)?)], output);
    }
    let mut outcomes = log.outcomes();
    outcomes.extend(new_runs.into_iter().map(|run| (run.key, run.outcome)));
    fabricast_study::check_outcomes(study, &cases, &outcomes)?;
    let answer = build_answer(study, fabrics, &cases, &outcomes)
        .ok_or_else(|| Failure::Failed("a run of the study is missing".to_owned()))?;
    let trace = match args.trace.as_deref() {
        Some(path) => Some((path, trace::write_trace(&answer, output)?)),
        None => None,
    };
    let Some(folder) = folder else {
        let text = format_answer(&answer, output, &output.text_options())?;
        let file = trace.as_ref().map(|(path, content)| AdditionalFile { path, content });
        return output.write_with(&text, file);
    };
    if let Some((path, content)) = &trace {
        files::commit(&[files::StagedFile::new(path, content, output.replace)?])?;
    }
    let results = output::json(&answer)?;
    output.pass_to_caller(&results);
    let predictions = |candidate: usize, job: usize| match outcomes.get(&cases.key(0, candidate, job)?)? {
        Outcome::Done(prediction) => Some(Cow::Borrowed(&**prediction)),
        Outcome::Refused(_) => None,
    };
    let details = page::BestCandidateDetails::new(study, &answer, fabrics, &predictions);
    let files = [
        ("results.json", results),
        ("index.html", details.page(&answer).html()),
        ("ranking.txt", visible_lines(&text::page(&answer, &TextOptions::default())).into_owned()),
        ("ranking.csv", super::csv(&results::csv(&answer))?),
    ];
    write(folder, &runs, &files, output)
}

/// Names of the files of a study folder, in addition to `runs.jsonl`.
const RESULTS: [&str; 5] = [parts::SHARD, "results.json", "index.html", "ranking.txt", "ranking.csv"];

/// Replaces all files of a study folder, so that it never contains results of different studies.
fn write(folder: &Path, runs: &str, files: &[(&str, String)], output: &Output) -> Result<(), Failure> {
    let mut staged = files::stage_folder(folder, files, output.replace)?;
    // The old file can be replaced, because the new one contains all its runs.
    staged.push(files::stage_text(folder, RUNS, runs, files::Replace::All)?);
    let foreign = |names: &[String]| {
        Failure::input_with_help(
            format!("{} has {} of another study: nothing is written", folder.display(), names.join(", ")),
            "--force removes it; otherwise move it away or name another folder",
        )
    };
    files::commit_replacing_folder(&staged, folder, |name| RESULTS.contains(&name), output.replace, foreign)
}

/// Formats the answer in the requested format.
fn format_answer(answer: &Answer, output: &Output, options: &TextOptions) -> Result<String, Failure> {
    match output.format {
        Format::Text => Ok(text::page(answer, options)),
        Format::Csv => super::csv(&results::csv(answer)),
        Format::Json => output::json(answer),
    }
}

/// Runs the cases that are not saved yet.
fn run_missing_cases(
    loaded: &LoadedStudy<'_>,
    cases: &Cases,
    selected: &[RunSpec],
    log: &RunLog,
    output: &Output,
) -> Result<Vec<Run>, Failure> {
    let saved = log.outcomes();
    let missing: Vec<RunSpec> = selected.iter().copied().filter(|case| !saved.contains_key(&case.key)).collect();
    if missing.len() < selected.len() {
        output.detail(&format!("{} of {} runs are cached", selected.len() - missing.len(), selected.len()));
    }
    let (done, own_stop, write_failure) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
    let stop = output.interrupt().unwrap_or(&own_stop);
    let ended = |run: &Run| {
        if let Err(failure) = log.add(run) {
            stop.store(true, Ordering::Relaxed);
            write_failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        }
    };
    let position = || Position { done: done.load(Ordering::Relaxed) as u64, total: missing.len() as u64 };
    let load = |request: &FabricRequest| loaded.load(request);
    let watch = Watch { ended: &ended, done: &done, stop };
    let result = run_control::with_progress(output, "running jobs", position, || {
        fabricast_study::run(&loaded.study, &loaded.fabrics, cases, &missing, &load, &watch)
    });
    match write_failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(failure) => Err(failure),
        None => {
            let runs = result?;
            output.check_interrupt()?;
            Ok(runs)
        }
    }
}
