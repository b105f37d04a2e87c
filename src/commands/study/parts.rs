//! Shards of a study: selection of their runs, and merging of their results.

use std::path::{Path, PathBuf};

use fabricast_planner::study::cases::{Case, Cases};
use fabricast_planner::study::key::Key;
use fabricast_planner::study::{Run, Study};
use fabricast_topologies::read::{self, Limit};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::book::{self, RUNS};
use crate::args::Shard;
use crate::failure::Failure;
use crate::output::{self, Output};

/// Name of the file that identifies the shard in a folder.
pub const SHARD: &str = "shard.json";

#[derive(Serialize, Deserialize)]
struct Part {
    /// Identifies the kind of file.
    #[serde(default)]
    format: String,
    /// Fingerprint of all runs of the study.
    study: String,
    number: usize,
    of: usize,
}

/// Returns the runs of a shard: every n-th one, which spreads the runs of large candidates over the shards.
pub fn cases(cases: &Cases, shard: Shard) -> Vec<Case> {
    cases.cases.iter().copied().skip(shard.number - 1).step_by(shard.of).collect()
}

/// JSON that identifies a shard.
pub fn label(cases: &Cases, shard: Shard) -> Result<String, Failure> {
    output::json(&Part {
        format: "fabricast-shard".to_owned(),
        study: cases.study().to_string(),
        number: shard.number,
        of: shard.of,
    })
}

/// Returns the runs of all shards, in the order of the study.
pub fn merged(study: &Study, cases: &Cases, folders: &[PathBuf], output: &Output) -> Result<Vec<Run>, Failure> {
    let mut found: FxHashMap<Key, (Run, &Path)> = FxHashMap::default();
    let mut seen: Vec<(Shard, &Path)> = Vec::new();
    for folder in folders {
        let shard = shard(cases, folder)?;
        if let Some((other, before)) = seen.first().filter(|(other, _)| other.of != shard.of) {
            return Err(Failure::input(format!(
                "{} is shard {shard} and {} is shard {other}: expected parts of the same division",
                folder.display(),
                before.display()
            )));
        }
        if let Some((_, before)) = seen.iter().find(|(other, _)| *other == shard) {
            let message = format!("shard {shard} stands twice: {} and {}", before.display(), folder.display());
            return Err(Failure::input(message));
        }
        seen.push((shard, folder));
        let path = folder.join(RUNS);
        let bytes = read::bytes_of_file(&path, Limit::RUNS)?;
        let journal = book::read(&bytes, &path)?;
        if let Some(line) = journal.torn {
            output.warn(&format!("{}:{line}: the line lacks its end and is dropped", path.display()));
        }
        for run in journal.runs {
            match found.get(&run.key) {
                Some((other, before)) if other.outcome != run.outcome => {
                    return Err(Failure::input(format!(
                        "{} is in {} and in {}, with different results: expected each run once",
                        run.title,
                        before.display(),
                        path.display()
                    )));
                }
                Some(_) => {}
                None => drop(found.insert(run.key, (run, folder))),
            }
        }
    }
    missing(study, cases, &seen, &found)?;
    Ok(cases.cases.iter().filter_map(|case| found.remove(&case.key).map(|(run, _)| run)).collect())
}

/// Returns the shard in a folder, if it belongs to this study.
fn shard(cases: &Cases, folder: &Path) -> Result<Shard, Failure> {
    let path = folder.join(SHARD);
    let text = read::text_of_file(&path, Limit::SHARD).map_err(|error| {
        Failure::from(error).or_help("expected the folder of `study --shard`; one that did not end is to be run again")
    })?;
    let part: Part = serde_json::from_str(&text).map_err(|error| {
        Failure::input(format!("{}:{}:{}: not a shard: {error}", path.display(), error.line(), error.column()))
    })?;
    if part.study != cases.study().to_string() {
        return Err(Failure::input_with_help(
            format!("{}: a part of another study, or of this one before it was changed", path.display()),
            "run its shard again: only what changed is made anew",
        ));
    }
    match (1..=part.of).contains(&part.number) {
        true => Ok(Shard { number: part.number, of: part.of }),
        false => Err(Failure::input(format!("{}: there is no shard {}/{}", path.display(), part.number, part.of))),
    }
}

/// Returns an error that names the missing runs and shards.
fn missing(
    study: &Study,
    cases: &Cases,
    seen: &[(Shard, &Path)],
    found: &FxHashMap<Key, (Run, &Path)>,
) -> Result<(), Failure> {
    let lacking: Vec<&Case> = cases.cases.iter().filter(|case| !found.contains_key(&case.key)).collect();
    let Some(first) = lacking.first() else { return Ok(()) };
    let of = seen.first().map_or(0, |(shard, _)| shard.of);
    let absent: Vec<String> = (1..=of)
        .filter(|number| seen.iter().all(|(shard, _)| shard.number != *number))
        .map(|number| Shard { number, of }.to_string())
        .collect();
    let shards = match absent.as_slice() {
        [] => String::new(),
        some => format!("; no folder of shard {}", some.join(", ")),
    };
    let (count, title) = (lacking.len(), cases.title(study, first));
    Err(Failure::input(format!("{count} of {} runs are missing, the first of them {title}{shards}", cases.cases.len())))
}
