//! `study`: which machine for these jobs.

mod book;
mod page;
mod parts;
mod text;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use fabricast_planner::study::answer::{Answer, answer};
use fabricast_planner::study::cases::{Case, Cases};
use fabricast_planner::study::{self, Run, Study, Watch, read_study_with};
use fabricast_reports::table::Look;
use fabricast_topologies::{Error, Fabric, FabricRequest, Place};
use rayon::prelude::*;

use crate::args::StudyArgs;
use crate::failure::Failure;
use crate::files;
use crate::output::{self, Format, Output};
use crate::watch::{self, Position};
use book::{Book, RUNS};

pub fn run(args: &StudyArgs, output: &Output) -> Result<(), Failure> {
    let folder = output.file.as_deref();
    let Some(path) = &args.study else {
        return match folder {
            Some(folder) => files::write_folder(folder, &[("study.toml", study::TEMPLATE.to_owned())]),
            None => output.write(study::TEMPLATE),
        };
    };
    if args.shard.is_some() && folder.is_none() {
        return Err(Failure::input("--shard makes a part of a study, which `-o DIR` keeps: expected a folder"));
    }
    let asked = Asked::read(path)?;
    let load = |request: &FabricRequest| asked.load(request);
    let Asked { study, fabrics, .. } = &asked;
    let cases = Cases::of(study, fabrics, &load)?;
    if let Some(folder) = folder.filter(|folder| folder.exists() && !folder.is_dir()) {
        return Err(Failure::input(format!("cannot make the folder {}: expected a folder", folder.display())));
    }
    let book = Book::open(folder, output)?;
    let wanted = args.shard.map_or_else(|| cases.cases.clone(), |shard| parts::cases(&cases, shard));
    let made = match args.merge.as_slice() {
        [] => make(&asked, &cases, &wanted, &book, output)?,
        folders => parts::merged(study, &cases, folders, output)?,
    };
    let mut files = vec![(RUNS, book.in_order(&wanted, &made)?)];
    if let (Some(shard), Some(folder)) = (args.shard, folder) {
        files.push((parts::SHARD, parts::label(&cases, shard)?));
        return files::write_folder(folder, &files);
    }
    let mut outcomes = book.outcomes();
    outcomes.extend(made.into_iter().map(|run| (run.key, run.outcome)));
    let answer = answer(study, fabrics, &cases, &outcomes)
        .ok_or_else(|| Failure::Failed("a run of the study is missing".to_owned()))?;
    let Some(folder) = folder else {
        return output.write(&shown(&answer, output, &output.look())?);
    };
    files.push(("results.json", output::json(&answer)?));
    files.push(("index.html", page::html(study, &answer, fabrics)));
    match output.format {
        Format::Text => files.push(("ranking.txt", shown(&answer, output, &Look::default())?)),
        Format::Csv => files.push(("ranking.csv", shown(&answer, output, &Look::default())?)),
        Format::Json => {}
    }
    files::write_folder(folder, &files)
}

/// The answer in the format that was asked for.
fn shown(answer: &Answer, output: &Output, look: &Look) -> Result<String, Failure> {
    match output.format {
        Format::Text => Ok(text::page(answer, look)),
        Format::Csv => super::csv(&text::results(answer)),
        Format::Json => output::json(answer),
    }
}

/// Makes the runs that the book has not.
fn make(asked: &Asked<'_>, cases: &Cases, wanted: &[Case], book: &Book, output: &Output) -> Result<Vec<Run>, Failure> {
    let known = book.outcomes();
    let missing: Vec<Case> = wanted.iter().copied().filter(|case| !known.contains_key(&case.key)).collect();
    if missing.len() < wanted.len() {
        output.detail(&format!("{} of {} runs are kept", wanted.len() - missing.len(), wanted.len()));
    }
    let (done, stop, refused) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
    let ended = |run: &Run| {
        if let Err(failure) = book.add(run) {
            stop.store(true, Ordering::Relaxed);
            refused.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        }
    };
    let position = || Position { done: done.load(Ordering::Relaxed) as u64, total: missing.len() as u64 };
    let load = |request: &FabricRequest| asked.load(request);
    let watch = Watch { ended: &ended, done: &done, stop: &stop };
    let made = watch::with_progress(output, "running jobs", position, || {
        study::run(&asked.study, &asked.fabrics, cases, &missing, &load, &watch)
    });
    match refused.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(failure) => Err(failure),
        None => Ok(made?),
    }
}

/// A study with its fabrics.
struct Asked<'a> {
    study: Study,
    fabrics: Vec<Fabric>,
    /// What files are relative to.
    folder: &'a Path,
}

impl<'a> Asked<'a> {
    /// Reads a study and the fabrics of its candidates, and refuses what cannot be before anything runs.
    fn read(path: &'a Path) -> Result<Self, Failure> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let text = fabricast_topologies::read::text_of_file(path)?;
        let list = |name: &str| {
            let file = folder.join(name);
            let text = fabricast_topologies::read::text_of_file(&file).map_err(|error| error.to_string())?;
            Ok((file.display().to_string(), text))
        };
        let study = read_study_with(&text, &path.display().to_string(), &list)?;
        let mut asked = Self { study, fabrics: Vec::new(), folder };
        let fabrics: Vec<Result<Fabric, Failure>> =
            asked.study.candidates.par_iter().map(|candidate| asked.fabric(candidate)).collect();
        asked.fabrics = fabrics.into_iter().collect::<Result<_, _>>()?;
        study::check(&asked.study, &asked.fabrics)?;
        asked.check_constraints()?;
        Ok(asked)
    }

    /// Loads a fabric; files are relative to the study.
    fn load(&self, request: &FabricRequest) -> fabricast_topologies::Result<Fabric> {
        let beside = self.folder.join(&request.fabric);
        let is_file = fabricast_topologies::preset::text(&request.fabric).is_none() && beside.exists();
        match is_file {
            true => {
                fabricast_topologies::load(&FabricRequest { fabric: beside.display().to_string(), ..request.clone() })
            }
            false => fabricast_topologies::load(request),
        }
    }

    fn fabric(&self, candidate: &study::Candidate) -> Result<Fabric, Failure> {
        let at = |place: &Place, error: &Error| {
            Failure::at(format!("{place}: {error}"), error.help().map(str::to_owned), Some(place))
        };
        let fabric = self.load(&candidate.fabric).map_err(|error| match &error {
            // What is wrong in a file of its own is shown there.
            Error::Syntax { .. } | Error::Invalid { .. } => error.into(),
            other => at(&candidate.fabric_place, other),
        })?;
        if fabric.gpus().is_empty() {
            return Err(Failure::at("no GPUs in use", None, Some(&candidate.fabric_place)));
        }
        Ok(fabric)
    }

    /// Constraints that nothing keeps are told with who comes nearest.
    fn check_constraints(&self) -> Result<(), Failure> {
        let gpus: Vec<usize> = self.fabrics.iter().map(|fabric| fabric.gpus().len()).collect();
        let nearest = study::nearest(&self.study, &gpus);
        let Some((candidate, gpus)) =
            nearest.and_then(|number| Some((self.study.candidates.get(number)?, gpus.get(number)?)))
        else {
            return Ok(());
        };
        let terms = study::Terms::of(self.study.assumptions);
        let (constraints, why) = (&self.study.constraints, candidate.beyond(*gpus, &terms, &self.study.constraints));
        let message = format!(
            "{}: no candidate keeps within the constraints; `{}` comes nearest: {}",
            constraints.place,
            candidate.name,
            why.join("; ")
        );
        Err(Failure::at(message, None, Some(&constraints.place)))
    }
}
