//! Arguments of `compare`: measurements, and the setup of logs that have no manifest.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use fabricast_collectives::algorithm::Algorithm;
use fabricast_sim::schedule::{Collective, DataType, Protocol};
use fabricast_topologies::NetworkSpec;
use fabricast_validate::measured::MeasuredLibrary;

use super::shared::{NETWORK_HELP, network_long_help, parse_count};
use super::{BandwidthAxis, Launch, Processes};

/// Arguments of `compare`, which compares predicted with measured times.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Measurements: manifests (TOML), JSON of `gpu run`, or nccl-tests logs
    ///
    /// A log is the text that nccl-tests prints, its JSON (-J), or CSV with the header `bytes,time_us`.
    #[arg(value_name = "MANIFEST|LOG", required = true)]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub log: LogArgs,
    /// Cost profile: `ideal`, a shipped name, or a file; default: best match for the GPUs
    #[arg(long, value_name = "NAME|FILE", help_heading = "Software")]
    pub profile: Option<String>,
    /// Disable GPU peer-to-peer access: GPUs of a host communicate through host memory
    #[arg(long, help_heading = "Fabric")]
    pub no_p2p: bool,
    /// Disable GPUDirect RDMA: network traffic passes through host memory
    #[arg(long, help_heading = "Fabric")]
    pub no_gdr: bool,
    /// Exit with 1 if the median absolute relative error is larger, for example 0.1 for 10 %
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub max_error: Option<f64>,
    /// Rules that the measured rows must meet (TOML); exit with 1 if one is not met
    ///
    /// docs/gate.md describes the keys. A rule limits the measured share of the expected bus bandwidth, the bus
    /// bandwidth, or the time.
    #[arg(long, value_name = "FILE", help_heading = "Gate")]
    pub gate: Option<PathBuf>,
    /// Write the gate's results as JUnit XML
    #[arg(long, value_name = "FILE", requires = "gate", help_heading = "Gate")]
    pub junit: Option<PathBuf>,
    /// Write the gate's results and all bus bandwidths as Prometheus metrics
    #[arg(long, value_name = "FILE", requires = "gate", help_heading = "Gate")]
    pub prometheus: Option<PathBuf>,
    /// Skip the search for the profile parameter that would explain a group's error
    #[arg(long)]
    pub no_explain: bool,
    /// Rows of the text table; JSON and CSV contain all rows
    ///
    /// Default: all rows if there is a single group, otherwise the rows outside their prediction interval.
    #[arg(long, value_enum, help_heading = "Output")]
    pub rows: Option<RowChoice>,
    /// Draw measured against predicted times, and residuals by size (.svg, .png or .pdf)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub chart: Option<PathBuf>,
    /// Draw a row per group in the chart instead: measured and predicted time and bus bandwidth
    #[arg(long, requires = "chart", help_heading = "Output")]
    pub panel: bool,
    /// Scale of the panel's axes of bus bandwidths [default: log if a linear axis hides small sizes]
    #[arg(long, value_enum, value_name = "SCALE", requires = "panel", help_heading = "Output")]
    pub bandwidth_axis: Option<BandwidthAxis>,
}

/// Rows of the text table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RowChoice {
    /// All rows.
    All,
    /// Rows outside the prediction interval.
    Outside,
    /// No rows, only groups.
    None,
}

/// Setup of logs without a manifest. Values that are not given are taken from the log if it has them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Logs without a manifest")]
pub struct LogArgs {
    /// Fabric: preset (`fabric list`), spec (TOML), NCCL topology (XML), `nvidia-smi topo -m`
    #[arg(long, value_name = "NAME|FILE")]
    pub fabric: Option<String>,
    /// Number of hosts; default: the hosts listed in the log, else 1
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    pub nodes: Option<u32>,
    /// GPUs in use per host; default: derived from the ranks in the log, else all
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    pub gpus: Option<u32>,
    /// GPU model if the fabric file has none: a name of `list gpus`
    ///
    /// The name that nvidia-smi or rocm-smi prints is accepted too.
    #[arg(long, value_name = "MODEL")]
    pub gpu_model: Option<String>,
    /// Network between hosts
    #[arg(long, value_name = "KIND[,key=value…]", help = NETWORK_HELP, long_help = network_long_help())]
    pub network: Option<NetworkSpec>,
    /// Collective, if the log does not name it, for example all_reduce
    #[arg(long, value_name = "NAME")]
    pub collective: Option<Collective>,
    /// Forced algorithm (NCCL_ALGO), for example ring; default: the library's choice
    #[arg(long, value_name = "A")]
    pub algorithm: Option<Algorithm>,
    /// Forced protocol (NCCL_PROTO), for example ll128; default: the library's choice
    #[arg(long, value_name = "P")]
    pub protocol: Option<Protocol>,
    /// Forced number of channels, 1 to 1024; default: the library's choice
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub channels: Option<u16>,
    /// Element type, if the log does not name it, for example f32 or bf16
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<DataType>,
    /// Library and version, for example nccl-2.28.9; default: that of the log
    #[arg(long, value_name = "NAME-VERSION")]
    pub library: Option<MeasuredLibrary>,
    /// Launch mode, if the log does not name it
    #[arg(long, value_enum)]
    pub launch: Option<Launch>,
    /// Process layout, if the log does not show it: one process or thread per GPU, or per host
    #[arg(long, value_enum)]
    pub processes: Option<Processes>,
    /// Registration of buffers with the library
    #[arg(long, value_enum)]
    pub registered: Option<RegistrationChoice>,
    /// Disable NVLink SHARP (reduction and multicast in NVSwitches)
    #[arg(long)]
    pub no_nvls: bool,
}

/// Registration of buffers with a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RegistrationChoice {
    /// Not registered
    Plain,
    /// Registered as symmetric windows
    Symmetric,
}

fn parse_share(text: &str) -> Result<f64, String> {
    let parsed = text.parse::<f64>().ok().filter(|share| *share >= 0.0 && share.is_finite());
    parsed.ok_or_else(|| format!("`{text}` is not a share: expected a number from 0, as in 0.1 for 10 %"))
}
