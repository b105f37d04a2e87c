//! `study`: which machine for these jobs.

mod text;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use fabricast_planner::study::answer::answer;
use fabricast_planner::study::{self, Study, read_study};
use fabricast_reports::table::Look;
use fabricast_topologies::{Error, Fabric, FabricRequest, Place};
use rayon::prelude::*;

use crate::args::StudyArgs;
use crate::failure::Failure;
use crate::files;
use crate::output::{self, Format, Output};
use crate::watch::{self, Position};

pub fn run(args: &StudyArgs, output: &Output) -> Result<(), Failure> {
    let folder = output.file.as_deref();
    let Some(path) = &args.study else {
        return match folder {
            Some(folder) => files::write_folder(folder, &[("study.toml", study::TEMPLATE.to_owned())]),
            None => output.write(study::TEMPLATE),
        };
    };
    let text = fabricast_topologies::read::text_of_file(path)?;
    let study = read_study(&text, &path.display().to_string())?;
    let fabrics = fabrics(&study, path.parent().unwrap_or(Path::new("")))?;
    let total = (study.candidates.len() * study.jobs.len()) as u64;
    let done = AtomicUsize::new(0);
    let position = || Position { done: done.load(Ordering::Relaxed) as u64, total };
    let results = watch::with_progress(output, "running jobs", position, || study::run(&study, &fabrics, Some(&done)))?;
    let ranking = study::rank(&study, &results);
    let answer = answer(&study, &fabrics, &results, &ranking);
    let json = || output::json(&answer);
    match folder {
        Some(folder) => {
            let mut files = vec![("results.json", json()?)];
            match output.format {
                Format::Text => files.push(("ranking.txt", text::page(&answer, &Look::default()))),
                Format::Csv => files.push(("ranking.csv", super::csv(&text::results(&answer))?)),
                Format::Json => {}
            }
            files::write_folder(folder, &files)
        }
        None => output.write(&match output.format {
            Format::Text => text::page(&answer, &output.look()),
            Format::Csv => super::csv(&text::results(&answer))?,
            Format::Json => json()?,
        }),
    }
}

/// The fabrics of all candidates; files are relative to the study.
fn fabrics(study: &Study, folder: &Path) -> Result<Vec<Fabric>, Failure> {
    let load = |candidate: &study::Candidate| {
        let name = &candidate.fabric.fabric;
        let beside = folder.join(name);
        let is_file = fabricast_topologies::preset::text(name).is_none() && beside.exists();
        let request = match is_file {
            true => FabricRequest { fabric: beside.display().to_string(), ..candidate.fabric.clone() },
            false => candidate.fabric.clone(),
        };
        let at = |place: &Place, error: &Error| {
            Failure::at(format!("{place}: {error}"), error.help().map(str::to_owned), Some(place))
        };
        let fabric = fabricast_topologies::load(&request).map_err(|error| match &error {
            // What is wrong in a file of its own is shown there.
            Error::Syntax { .. } | Error::Invalid { .. } => error.into(),
            other => at(&candidate.fabric_place, other),
        })?;
        if fabric.gpus().is_empty() {
            return Err(Failure::at("no GPUs in use", None, Some(&candidate.fabric_place)));
        }
        Ok(fabric)
    };
    study.candidates.par_iter().map(load).collect::<Vec<_>>().into_iter().collect()
}
