//! Flags of `calibrate`: what a profile is fitted to.

use std::path::PathBuf;

use clap::Args;
use fabricast_validate::calibrate::{HoldOut, Prior};

/// A profile from measurements. The profile goes to the file of -o; what was found is printed.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Manifests, JSON of `gpu run`, and JSON of `gpu bench`, which tells what copy engines and PCIe reach. Device costs are fitted to the first of the former two, with the launch costs of its modes; to the others only the launch
    /// costs of modes that the first does not have
    #[arg(value_name = "MANIFEST", required = true)]
    pub manifests: Vec<PathBuf>,
    /// Where the fit begins, and what figures that no row tells are taken from; the best match for the GPUs by default
    #[arg(long, value_name = "NAME|FILE", help_heading = "Software")]
    pub profile: Option<String>,
    /// How firmly device costs stay at those figures: `open` (for data that tell nearly everything), `plain` (the same, all rows
    /// counted alike and nothing thought of what they leave open: for several numbers of GPUs), `proportional` (for few
    /// rows of another device: all times by a common factor, single figures only as the rows say so clearly)
    #[arg(long, value_name = "PRIOR", default_value_t, help_heading = "Software")]
    pub prior: Prior,
    /// The name of the new profile; that of the one where the fit begins by default
    #[arg(long, value_name = "NAME", help_heading = "Software")]
    pub name: Option<String>,
    /// Date of the data, as in 2026-11-20; that of the profile where the fit begins by default
    #[arg(long, value_name = "YYYY-MM-DD", help_heading = "Software")]
    pub date: Option<String>,
    /// Fit a network alone, with the costs of GPUs and launching kept, and write it as a network: to rows of several hosts
    /// whose network is the shipped one of this name, or to all of them where none has it
    #[arg(long, value_name = "NAME", help_heading = "Software")]
    pub network: Option<String>,
    /// Fit without these rows too, and predict them: gpus=2, nodes=4, collective=all_gather,reduce_scatter, protocol=ll (may be
    /// repeated)
    #[arg(long, value_name = "WHAT=…")]
    pub hold_out: Vec<HoldOut>,
    /// Draw the errors and the parameters with their intervals (.svg or .png)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub chart: Option<PathBuf>,
}
