//! Files of `--job`: a job (TOML), a table (CSV), an NCCL log, the Chakra traces of all ranks, or JSON traces of
//! PyTorch's profiler, NCCL's Inspector or NCCL's example profiler (a file, or a folder with the files of all ranks).

use std::path::{Path, PathBuf};

use fabricast_sim::profile::Profile;
use fabricast_study::{EfficiencyOverrides, read_only_job};
use fabricast_topologies::Fabric;
use fabricast_topologies::read::{self, Limit};
use fabricast_workload::job::{CollectiveCandidates, Job, configuration_notes};
use fabricast_workload::trace::{self, Contents, Trace};

use super::format_count;
use crate::args::LibraryArgs;
use crate::failure::Failure;
use crate::output::Output;

/// Maximum number of trace files of a job; each rank has one.
const MAX_FILES: u32 = 1 << 17;

/// Parsed `--job` file: either a job description or a trace of events.
pub enum JobFile {
    /// Job description as in studies, without a fixed parallelism, and the kernel efficiencies that the study sets.
    Job(Box<Job>, EfficiencyOverrides),
    /// Events of a job, recorded in a trace or listed in a table.
    Trace(Trace),
}

/// Reads a job file. `ranks` is the number of ranks of table rows that name none.
///
/// # Errors
/// [`Failure`]: the file or a file that it refers to cannot be read or is invalid.
pub fn read(path: &Path, ranks: usize, output: &Output) -> Result<JobFile, Failure> {
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml")) {
        let text = read::read_text_file(path, Limit::STUDY)?;
        let traces = |name: &str| contents(&path.with_file_name(name)).map_err(|failure| failure.to_string());
        let texts = |name: &str| self::text(&path.with_file_name(name), output);
        let (job, efficiency) = read_only_job(&text, &path.display().to_string(), &texts, &traces)?;
        return Ok(JobFile::Job(Box::new(job), efficiency));
    }
    let trace = trace::read(&contents(path)?, Some(ranks as u32))?;
    for reason in &trace.ignored {
        output.warn(reason);
    }
    Ok(JobFile::Trace(trace))
}

/// Reads a file that a job or study refers to (a price list, or the configuration of a model) and returns its path and
/// text. Simplifications in the model of a configuration are reported as warnings.
///
/// # Errors
/// A text that names the file and the reason why it cannot be read.
pub fn text(path: &Path, output: &Output) -> Result<(String, String), String> {
    let text = read::read_text_file(path, Limit::STUDY).map_err(|error| error.to_string())?;
    let name = path.display().to_string();
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
        // An invalid configuration is reported as an error where the job refers to it.
        for note in configuration_notes(&text).unwrap_or_default() {
            output.warn(&format!("{name}: {note}"));
        }
    }
    Ok((name, text))
}

/// Heading of a result table: job, fabric, number of ranks, profile.
pub fn heading(source: &str, ranks: u32, fabric: &Fabric, profile: &Profile) -> String {
    let ranks = format_count(ranks.into(), "rank");
    let profile = super::profile_and_library(profile, fabric);
    format!("{source} on {} · {ranks} · profile {profile}", fabric.name())
}

/// Returns the implementations that calls may use: those of the library if one is named, otherwise those that the job
/// names. A trace names none and allows all, as in `plan`.
pub fn collectives(library: &LibraryArgs, job: Option<&Job>) -> CollectiveCandidates {
    match library.library {
        Some(_) => CollectiveCandidates::Library,
        None => job.map_or(CollectiveCandidates::Any, Job::collectives),
    }
}

/// Reads the files of a trace, given the path of one of them or of their folder.
///
/// # Errors
/// [`Failure`]: a file cannot be read, a folder has no traces, or the Chakra traces do not cover all ranks.
pub fn contents(path: &Path) -> Result<Vec<Contents>, Failure> {
    if path.is_dir() {
        return read_all(&trace_files(path)?, Limit::JSON_TRACE, Limit::ALL_TRACES);
    }
    if is_json_or_gzip(path) {
        return Ok(vec![(path.display().to_string(), read::read_binary_file(path, Limit::JSON_TRACE)?)]);
    }
    if path.extension().is_some_and(|extension| extension == "et") {
        return read_chakra_traces(path);
    }
    let text = read::read_text_file(path, Limit::TRACE)?;
    Ok(vec![(path.display().to_string(), text.into_bytes())])
}

/// Reads the Chakra traces of all ranks, from rank 0 on, in the folder of the given trace.
fn read_chakra_traces(path: &Path) -> Result<Vec<Contents>, Failure> {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let numbered = stem.rsplit_once('.').filter(|(_, number)| number.parse::<u32>().is_ok());
    let Some((name, _)) = numbered else {
        let message = format!("{}: expected a number of the rank before .et, as in trace.0.et", path.display());
        return Err(Failure::input(message));
    };
    let rank_path = |rank: u32| path.with_file_name(format!("{name}.{rank}.et"));
    let paths: Vec<PathBuf> = (0..MAX_FILES).map(rank_path).take_while(|path| path.exists()).collect();
    if paths.is_empty() {
        return Err(Failure::input(format!("{}: there is no such file", rank_path(0).display())));
    }
    // If the trace of a rank is missing, the job would silently have fewer ranks, so this is an error.
    let extra_rank = |file_name: &std::ffi::OsString| {
        let number = file_name.to_str()?.strip_prefix(&format!("{name}."))?.strip_suffix(".et")?.parse::<u32>().ok()?;
        (number as usize >= paths.len()).then_some(number)
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    if let Some(extra) = names.filter_map(|file_name| extra_rank(&file_name)).min() {
        let missing = rank_path(paths.len() as u32);
        let message = format!(
            "{}: there is no such file, and there is one of rank {extra}: expected one for each rank",
            missing.display()
        );
        return Err(Failure::input(message));
    }
    read_all(&paths, Limit::CHAKRA, Limit::ALL_CHAKRA)
}

/// Reads files of up to `limit` each and `total` together.
///
/// # Errors
/// [`Failure`]: a file cannot be read or exceeds a limit.
fn read_all(paths: &[PathBuf], limit: Limit, total: Limit) -> Result<Vec<Contents>, Failure> {
    let mut all = Vec::with_capacity(paths.len());
    let mut remaining = total.bytes;
    for path in paths {
        let bytes = read::read_binary_file(path, limit)?;
        let rest = remaining.checked_sub(bytes.len() as u64);
        remaining = rest.ok_or_else(|| Failure::input(format!("{}: {}", path.display(), total.exceeded())))?;
        all.push((path.display().to_string(), bytes));
    }
    Ok(all)
}

/// Returns true for names of traces that may be larger than a log: JSON and gzip.
fn is_json_or_gzip(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    ["json", "jsonl", "gz"].iter().any(|known| extension.eq_ignore_ascii_case(known))
}

/// Returns the trace files of a folder by name: JSON, gzip, and the logs and texts that NCCL's profilers write.
///
/// # Errors
/// [`Failure`]: the folder cannot be read, or has no or too many traces.
fn trace_files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let fail = |message: String| Failure::input(format!("{}: {message}", folder.display()));
    let entries = std::fs::read_dir(folder).map_err(|error| fail(error.to_string()))?;
    let is_trace = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        path.is_file() && (is_json_or_gzip(path) || matches!(extension, "log" | "txt"))
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_trace).collect();
    paths.sort_unstable();
    if paths.is_empty() {
        return Err(fail("no traces: expected *.json, *.json.gz, *.log or *.txt, one for each rank".to_owned()));
    }
    if paths.len() > MAX_FILES as usize {
        return Err(fail(format!("{} traces are more than {MAX_FILES}", paths.len())));
    }
    Ok(paths)
}
