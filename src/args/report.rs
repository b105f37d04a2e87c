//! Arguments of `report`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `report`, which builds an HTML page.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Files to show; their kind is recognized by content
    ///
    /// Accepted: results.json of `study`; output of `plan`, `compare` and `simulate` with --format json; traces of
    /// `simulate --trace`; schedules; and fabrics, shown with the link load of a run if one is given. If the study file
    /// is given with its results.json, the page also shows the best machine's fabric and the library's default choices.
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// Also write the charts of studies to this folder, as SVG and PNG; created if missing
    #[arg(long, value_name = "FOLDER", help_heading = "Output")]
    pub charts: Option<PathBuf>,
}
