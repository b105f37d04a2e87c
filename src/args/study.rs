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
    /// as text and as a table (ranking.txt, ranking.csv), and runs.jsonl, which gets a line as each run ends. The same
    /// command resumes: only missing runs are computed.
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
    /// Merge the results of shards of the same study from these folders; goes after STUDY
    #[arg(long, value_name = "DIR", num_args = 1.., conflicts_with_all = ["template", "shard"])]
    pub merge: Vec<PathBuf>,
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
