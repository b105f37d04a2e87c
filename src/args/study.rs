//! Arguments of `study`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

/// A study.
#[derive(Debug, Args)]
pub struct StudyArgs {
    /// Candidates, jobs, constraints, sensitivities and assumptions (TOML); `--template` writes one to start from. With
    /// `-o DIR` the folder gets results.json, a page to read (index.html), the ranking as text and as a table (ranking.txt,
    /// ranking.csv), and runs.jsonl, a line for each run as it ends: the same command again makes only those that are missing
    #[arg(value_name = "STUDY", required_unless_present = "template")]
    pub study: Option<PathBuf>,
    /// Write a study to start from
    #[arg(long, conflicts_with = "study")]
    pub template: bool,
    /// Make only every n-th run, from the i-th on, into the folder of `-o`: one of n machines
    #[arg(long, value_name = "I/N", conflicts_with = "template")]
    pub shard: Option<Shard>,
    /// Put together what shards of the same study made in these folders; after STUDY
    #[arg(long, value_name = "DIR", num_args = 1.., conflicts_with_all = ["template", "shard"])]
    pub merge: Vec<PathBuf>,
}

/// One of several parts of a study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shard {
    /// Which, from 1.
    pub number: usize,
    /// Of how many.
    pub of: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match parts {
            Some((number, of)) if (1..=of).contains(&number) => Ok(Self { number, of }),
            _ => Err("expected I/N with I from 1 to N, as in 2/4".to_owned()),
        }
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}
