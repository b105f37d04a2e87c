//! Shards of a study: selection of their runs, and merging of their results.

use std::path::{Path, PathBuf};

use fabricast_study::cases::{Cases, RunSpec};
use fabricast_study::key::Key;
use fabricast_study::{Run, Study};
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
struct ShardLabel {
    /// Kind of file: `fabricast-shard`.
    #[serde(default)]
    format: String,
    /// Fingerprint of all runs of the study.
    study: String,
    number: usize,
    #[serde(rename = "of")]
    count: usize,
}

/// Returns the runs of a shard. Every n-th run belongs to the shard, so that the runs of large candidates are spread
/// over all shards.
pub fn cases(cases: &Cases, shard: Shard) -> Vec<RunSpec> {
    cases.runs.iter().copied().skip(shard.number - 1).step_by(shard.count).collect()
}

/// JSON that identifies a shard.
///
/// # Errors
/// [`Failure`]: the value cannot be written as JSON.
pub fn label(cases: &Cases, shard: Shard) -> Result<String, Failure> {
    output::json(&ShardLabel {
        format: "fabricast-shard".to_owned(),
        study: cases.study().to_string(),
        number: shard.number,
        count: shard.count,
    })
}

/// Returns the runs of all shards, in the order of the study.
///
/// # Errors
/// [`Failure`]: a folder has no valid shard of this study, shards belong to different divisions, or runs are missing.
pub fn merge_shards(study: &Study, cases: &Cases, folders: &[PathBuf], output: &Output) -> Result<Vec<Run>, Failure> {
    let mut runs: FxHashMap<Key, (Run, &Path)> = FxHashMap::default();
    let mut seen: Vec<(Shard, &Path)> = Vec::new();
    for folder in folders {
        let shard = shard(cases, folder)?;
        if let Some((other, earlier)) = seen.first().filter(|(other, _)| other.count != shard.count) {
            return Err(Failure::input(format!(
                "{} is shard {shard} and {} is shard {other}: expected parts of the same division",
                folder.display(),
                earlier.display()
            )));
        }
        if let Some((_, earlier)) = seen.iter().find(|(other, _)| *other == shard) {
            let message = format!("shard {shard} is given twice: {} and {}", earlier.display(), folder.display());
            return Err(Failure::input(message));
        }
        seen.push((shard, folder));
        let path = folder.join(RUNS);
        let bytes = read::read_binary_file(&path, Limit::RUNS)?;
        let journal = book::read(&bytes, &path)?;
        if let Some(line) = journal.incomplete_line {
            output.warn(&format!("{}:{line}: the line is truncated and is dropped", path.display()));
        }
        for run in journal.runs {
            match runs.get(&run.key) {
                Some((other, earlier)) if other.outcome != run.outcome => {
                    return Err(Failure::input(format!(
                        "{} is in {} and in {}, with different results: expected each run once",
                        run.title,
                        earlier.display(),
                        path.display()
                    )));
                }
                Some(_) => {}
                None => drop(runs.insert(run.key, (run, folder))),
            }
        }
    }
    missing(study, cases, &seen, &runs)?;
    Ok(cases.runs.iter().filter_map(|case| runs.remove(&case.key).map(|(run, _)| run)).collect())
}

/// Returns the shard whose results are in a folder. Returns an error if the folder has no shard of this study.
fn shard(cases: &Cases, folder: &Path) -> Result<Shard, Failure> {
    let path = folder.join(SHARD);
    let text = read::read_text_file(&path, Limit::SHARD).map_err(|error| {
        Failure::from(error).or_with_help("expected the folder of `study --shard`; run an unfinished one again")
    })?;
    let label: ShardLabel = serde_json::from_str(&text).map_err(|error| {
        Failure::input(format!("{}:{}:{}: not a shard: {error}", path.display(), error.line(), error.column()))
    })?;
    if label.study != cases.study().to_string() {
        return Err(Failure::input_with_help(
            format!("{}: a part of another study, or of this one before it was changed", path.display()),
            "run its shard again: only changed runs are repeated",
        ));
    }
    match (1..=label.count).contains(&label.number) {
        true => Ok(Shard { number: label.number, count: label.count }),
        false => Err(Failure::input(format!("{}: there is no shard {}/{}", path.display(), label.number, label.count))),
    }
}

/// Returns an error that names the missing runs and shards.
fn missing(
    study: &Study,
    cases: &Cases,
    seen: &[(Shard, &Path)],
    runs: &FxHashMap<Key, (Run, &Path)>,
) -> Result<(), Failure> {
    let missing_cases: Vec<&RunSpec> = cases.runs.iter().filter(|case| !runs.contains_key(&case.key)).collect();
    let Some(first) = missing_cases.first() else { return Ok(()) };
    let shard_count = seen.first().map_or(0, |(shard, _)| shard.count);
    let absent: Vec<String> = (1..=shard_count)
        .filter(|number| seen.iter().all(|(shard, _)| shard.number != *number))
        .map(|number| Shard { number, count: shard_count }.to_string())
        .collect();
    let shards = match absent.as_slice() {
        [] => String::new(),
        numbers => format!("; no folder of shard {}", numbers.join(", ")),
    };
    let (count, title) = (missing_cases.len(), cases.title(study, first));
    Err(Failure::input(format!("{count} of {} runs are missing, the first of them {title}{shards}", cases.runs.len())))
}
