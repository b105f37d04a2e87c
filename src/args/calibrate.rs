//! Arguments of `calibrate`: measurements, starting profile and prior of the fit.

use std::path::PathBuf;

use clap::Args;
use fabricast_validate::calibrate::{HoldOut, Prior};

/// Arguments of `calibrate`, which fits a profile to measurements. The profile goes to the file of `-o`; a report of
/// the fit is printed.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Measurements: manifests (TOML), JSON of `gpu run` or `gpu bench`, or one study
    ///
    /// Device costs are fitted to the first manifest or `gpu run` file, together with the launch costs of its launch
    /// modes. Later ones only add launch costs of modes that the first does not have. A `gpu bench` file adds the rates
    /// of copy engines and PCIe. A single study file with measured steps is accepted instead; the efficiency curve of
    /// kernels is then fitted.
    #[arg(value_name = "MANIFEST", required = true)]
    pub manifests: Vec<PathBuf>,
    /// Starting profile of the fit: a shipped name or a file; default: best match for the GPUs
    ///
    /// Parameters that no row determines keep the values of this profile.
    #[arg(long, value_name = "NAME|FILE", help_heading = "Software")]
    pub profile: Option<String>,
    /// Prior of device costs around the starting profile: `open`, `plain` or `proportional`
    ///
    /// `open`: parameters are free; for data that determine nearly all of them. `plain`: as `open`, with equal weights
    /// of all rows and no preference for undetermined combinations; for data with several numbers of GPUs.
    /// `proportional`: all times differ from the starting profile by a common factor, single parameters only on clear
    /// evidence; for few rows of another device.
    #[arg(long, value_name = "PRIOR", default_value_t, help_heading = "Software")]
    pub prior: Prior,
    /// Name of the new profile; default: the name of the starting profile
    #[arg(long, value_name = "NAME", help_heading = "Software")]
    pub name: Option<String>,
    /// Date of the measurements, for example 2026-11-20; default: the starting profile's date
    #[arg(long, value_name = "YYYY-MM-DD", help_heading = "Software")]
    pub date: Option<String>,
    /// Fit a network only and write it as a network, for example `efa-p5`
    ///
    /// Costs of GPUs and launches are those of --profile, or of the shipped profile of each machine. The interval is from
    /// clusters that are held out, one at a time. The fit uses rows of several hosts whose network is the shipped one
    /// of this name, or all rows of several hosts if none has it.
    #[arg(long, value_name = "NAME", help_heading = "Software")]
    pub network: Option<String>,
    /// Rows held out for validation, for example gpus=2 or protocol=ll; may be repeated
    ///
    /// A second fit leaves these rows out and predicts them. Keys: gpus=2, nodes=4,
    /// collective=all_gather,reduce_scatter, protocol=ll, cluster=TEXT (part of the manifest's `cluster`, or of
    /// `hardware` where there is none).
    #[arg(long, value_name = "WHAT=…")]
    pub hold_out: Vec<HoldOut>,
    /// Draw errors, and parameters with their intervals, to this file (.svg or .png)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub chart: Option<PathBuf>,
}
