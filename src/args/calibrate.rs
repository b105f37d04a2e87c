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
    /// modes. Later files only add the launch costs of other modes. A `gpu bench` file adds the rates of copy engines
    /// and PCIe. If the only input is a study file with measured steps, the efficiency curve of kernels is fitted
    /// instead.
    #[arg(value_name = "MANIFEST", required = true)]
    pub manifests: Vec<PathBuf>,
    /// Starting profile of the fit: a shipped name or a file; default: best match for the GPUs
    ///
    /// Parameters that no row determines keep the values of this profile.
    #[arg(long, value_name = "NAME|FILE", help_heading = "Software")]
    pub profile: Option<String>,
    /// Prior of device costs around the starting profile: `open`, `plain` or `proportional`
    ///
    /// `open`: parameters are free; for data that determine nearly all of them. `plain`: as `open`, but with equal
    /// weights of all rows and without default values for undetermined combinations; for data with several numbers of
    /// GPUs. `proportional`: all times differ from the starting profile by a common factor, and single parameters
    /// deviate only on clear evidence; for few rows of another device.
    #[arg(long, value_name = "PRIOR", default_value_t, help_heading = "Software")]
    pub prior: Prior,
    /// Name of the new profile; default: the name of the starting profile
    #[arg(long, value_name = "NAME", help_heading = "Software")]
    pub name: Option<String>,
    /// Date of the measurements, for example 2026-11-20; default: the starting profile's date
    #[arg(long, value_name = "YYYY-MM-DD", help_heading = "Software")]
    pub date: Option<String>,
    /// Fit only the costs of a network and write them under this name, for example `efa-p5`
    ///
    /// GPU and launch costs come from --profile, or from the shipped profile of each machine. The fit uses the rows of
    /// several hosts whose network is the shipped network of this name, or all rows of several hosts if there are none.
    /// The prediction interval is derived by holding out one cluster at a time.
    #[arg(long, value_name = "NAME", help_heading = "Software")]
    pub network: Option<String>,
    /// Rows held out for validation, for example gpus=2 or protocol=ll; may be repeated
    ///
    /// These rows are predicted by a second fit to all other rows. Keys: gpus=2, nodes=4,
    /// collective=all_gather,reduce_scatter, protocol=ll, cluster=TEXT (part of the manifest's `cluster`, or of
    /// `hardware` if there is none).
    #[arg(long, value_name = "WHAT=…")]
    pub hold_out: Vec<HoldOut>,
    /// Draw errors, and parameters with their intervals, to this file (.svg or .png)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub chart: Option<PathBuf>,
}
