//! Flags of `compare`: what is measured, and for logs without a manifest, what they are logs of.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use fabricast_planner::algorithm::Algorithm;
use fabricast_sim::schedule::{Collective, DataType, Protocol};
use fabricast_topologies::NetworkSpec;
use fabricast_validate::measured::Library;

use super::shared::at_least_one;
use super::{Launch, Processes};

/// Predicted against measured.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Manifests (TOML), JSON of `gpu run`, or logs: what nccl-tests prints, its JSON (-J), CSV with the header `bytes,time_us`
    #[arg(value_name = "MANIFEST|LOG", required = true)]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub log: LogArgs,
    /// `ideal`, a shipped profile, or a profile file; the best match for the GPUs by default
    #[arg(long, value_name = "NAME|FILE", help_heading = "Software")]
    pub profile: Option<String>,
    /// No GPU reads or writes a peer's memory: GPUs of a host talk through host memory
    #[arg(long, help_heading = "Fabric")]
    pub no_p2p: bool,
    /// NICs do not read or write GPU memory: network traffic passes host memory
    #[arg(long, help_heading = "Fabric")]
    pub no_gdr: bool,
    /// Fail (exit 1) where the median of the absolute errors is larger, as in 0.1
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub max_error: Option<f64>,
    /// Do not look for the figure that would explain a group that is off
    #[arg(long)]
    pub no_explain: bool,
    /// Which rows text shows; JSON and CSV have all [default: all of one group, those outside their band of several]
    #[arg(long, value_enum, help_heading = "Output")]
    pub rows: Option<RowChoice>,
    /// Draw measured against predicted, and what is left by size (.svg or .png)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub chart: Option<PathBuf>,
}

/// Which rows are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RowChoice {
    /// All.
    All,
    /// Those outside the band of their prediction.
    Outside,
    /// None: groups only.
    None,
}

/// What logs without a manifest are logs of; what is left out they may say themselves.
#[derive(Debug, Args)]
#[command(next_help_heading = "Logs without a manifest")]
pub struct LogArgs {
    /// A preset (`fabric list`), a spec (TOML), an NCCL topology file (XML), or the output of `nvidia-smi topo -m`
    #[arg(long, value_name = "NAME|FILE")]
    pub fabric: Option<String>,
    /// Hosts; those that the log lists by default, or one
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    pub nodes: Option<u32>,
    /// GPUs in use on each host; by the log's ranks by default, or all
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    pub gpus: Option<u32>,
    /// Which GPU it is, where the fabric's file does not say: a name of `list gpus`, or as nvidia-smi and rocm-smi print it
    #[arg(long, value_name = "MODEL")]
    pub gpu_model: Option<String>,
    /// The network between hosts: a kind, then what differs from the default, as in `rail,nics_per_node=8,nic=400Gb/s`
    #[arg(long, value_name = "KIND[,key=value…]")]
    pub network: Option<NetworkSpec>,
    /// The collective, where the log does not say
    #[arg(long, value_name = "NAME")]
    pub collective: Option<Collective>,
    /// The algorithm that was forced (NCCL_ALGO); the library's choice by default
    #[arg(long, value_name = "A")]
    pub algorithm: Option<Algorithm>,
    /// The protocol that was forced (NCCL_PROTO); the library's choice by default
    #[arg(long, value_name = "P")]
    pub protocol: Option<Protocol>,
    /// Channels that were forced; the library's choice by default
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub channels: Option<u16>,
    /// The element type, where the log does not say
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<DataType>,
    /// The library, as in nccl-2.28.9; the log's by default
    #[arg(long, value_name = "NAME-VERSION")]
    pub library: Option<Library>,
    /// How calls were launched, where the log does not say
    #[arg(long, value_enum)]
    pub launch: Option<Launch>,
    /// Whether a process or thread drives each GPU, or one all of a host, where the log does not say
    #[arg(long, value_enum)]
    pub processes: Option<Processes>,
    /// How buffers are registered with the library
    #[arg(long, value_enum)]
    pub registered: Option<Registered>,
    /// No reduction or multicast in NVSwitches
    #[arg(long)]
    pub no_nvls: bool,
}

/// How buffers are registered with a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Registered {
    /// Not at all
    Plain,
    /// As symmetric windows
    Symmetric,
}

fn share(text: &str) -> Result<f64, String> {
    let read = text.parse::<f64>().ok().filter(|share| *share >= 0.0 && share.is_finite());
    read.ok_or_else(|| format!("`{text}` is not a share: expected a number from 0, as in 0.1 for 10 %"))
}
