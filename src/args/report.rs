//! Arguments of `report`.

use std::path::PathBuf;

use clap::Args;

/// A page.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// What the page is made of, told by content: results.json of `study` (and the study beside it, for the best machine's fabric and what
    /// the library would choose there), what `plan`, `compare` and `simulate` write with --format json, the trace of `simulate
    /// --trace`, schedules, fabrics (which show the load of a run beside them)
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// Draw the charts of studies into this folder as well, as SVG and PNG; made if missing
    #[arg(long, value_name = "FOLDER", help_heading = "Output")]
    pub charts: Option<PathBuf>,
}
