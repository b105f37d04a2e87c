//! Arguments of `study`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

/// Arguments of `study`.
#[derive(Debug, Args)]
pub struct StudyArgs {
    /// Study file (TOML): candidates, jobs, constraints, sensitivities and assumptions
    ///
    /// `--template` writes an example. With `-o DIR` the folder receives results.json, a page (index.html), the ranking
    /// as text and as a table (ranking.txt, ranking.csv), and runs.jsonl, to which each finished run is appended. If
    /// the command is repeated, only missing runs are computed.
    #[arg(value_name = "STUDY", required_unless_present = "template")]
    pub study: Option<PathBuf>,
    /// Write an example study file
    #[arg(long, conflicts_with = "study")]
    pub template: bool,
    /// Compute every N-th run only, starting at run I, into the folder of `-o`, e.g. `2/4`
    ///
    /// Divides a study among N machines; --merge combines the results.
    #[arg(long, value_name = "I/N", conflicts_with = "template")]
    pub shard: Option<Shard>,
    /// Merge the results of shards of the same study from these folders; place it after STUDY
    #[arg(long, value_name = "DIR", num_args = 1.., conflicts_with_all = ["template", "shard"])]
    pub merge: Vec<PathBuf>,
    /// Write a Chrome trace for Perfetto: the steps of each job on each candidate, a process per pipeline stage
    ///
    /// Threads are computation, overlapped communication and waiting time; arrows connect what waits.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["template", "shard", "slurm"])]
    pub trace: Option<PathBuf>,
    /// Write job scripts for Slurm: an array of N tasks, one shard each, and a final merge
    ///
    /// The folder of `-o` receives tasks.sbatch, merge.sbatch and submit.sh, which submits both. The merge writes the
    /// results to the same folder; the shards are in `shards`, the logs in `logs`. The folder must be on storage that
    /// all hosts share. Requeued tasks do not repeat saved runs. Run `bash submit.sh` again to compute missing runs.
    #[arg(long, value_name = "N", conflicts_with_all = ["template", "shard", "merge"], value_parser = clap::value_parser!(u32).range(1..=MAX_TASKS), help_heading = "Slurm")]
    pub slurm: Option<u32>,
    #[command(flatten)]
    pub slurm_flags: SlurmArgs,
}

/// Maximum number of tasks of an array: Slurm's limit of `MaxArraySize`, less one.
const MAX_TASKS: i64 = 4_000_000;

/// Job options for Slurm.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Slurm")]
pub struct SlurmArgs {
    /// Submit the scripts with sbatch
    #[arg(long, requires = "slurm")]
    pub submit: bool,
    /// Partition of the jobs
    #[arg(long, value_name = "NAME", requires = "slurm", value_parser = job_option)]
    pub partition: Option<String>,
    /// Account of the jobs
    #[arg(long, value_name = "NAME", requires = "slurm", value_parser = job_option)]
    pub account: Option<String>,
    /// Time limit of each task, in Slurm's format, e.g. `30` minutes or `1:00:00`
    #[arg(long, value_name = "TIME", requires = "slurm", value_parser = job_option)]
    pub time: Option<String>,
}

/// Accepts a value that is one word in a line of a job script.
fn job_option(text: &str) -> Result<String, String> {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_.,:@+/".contains(character);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("expected letters, digits and -_.,:@+/".to_owned()),
    }
}

/// One of several shards of a study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shard {
    /// Number of this shard, from 1.
    pub number: usize,
    /// Number of shards of the study.
    pub count: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(number, count)| Some((number.parse().ok()?, count.parse().ok()?)));
        match parts {
            Some((number, count)) if (1..=count).contains(&number) => Ok(Self { number, count }),
            _ => Err("expected I/N with I from 1 to N, as in 2/4".to_owned()),
        }
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.number, self.count)
    }
}
