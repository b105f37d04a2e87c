//! Arguments of `study`.

use std::path::PathBuf;

use clap::Args;

/// A study.
#[derive(Debug, Args)]
pub struct StudyArgs {
    /// Candidates, jobs, constraints and assumptions (TOML); `--template` writes one to start from. With `-o DIR` the
    /// folder gets results.json, and the ranking in the chosen format beside it (ranking.txt or ranking.csv)
    #[arg(value_name = "STUDY", required_unless_present = "template")]
    pub study: Option<PathBuf>,
    /// Write a study to start from
    #[arg(long, conflicts_with = "study")]
    pub template: bool,
}
