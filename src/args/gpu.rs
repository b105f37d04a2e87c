//! Flags of `gpu`: what to do with the GPUs of this machine.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use fabricast_validate::gpu::Choices;

use super::{GpuProveArgs, GpuRunArgs};

/// What to do with GPUs.
#[derive(Debug, Subcommand)]
pub enum GpuCommand {
    /// Which GPUs, links and libraries there are
    Probe(ProbeArgs),
    /// How fast the GPUs and their links are
    Bench(BenchArgs),
    /// Whether the GPUs' links are as fast as they should be, and what is wrong if not
    Doctor(DoctorArgs),
    /// Strategies on this machine's GPUs: checked, timed, beside what was predicted and what NCCL takes
    Run(Box<GpuRunArgs>),
    /// NCCL with a tuner's table against its own choice: whether it does what the table says, and whether that is slower
    Prove(Box<GpuProveArgs>),
    /// A process of all GPUs, which `prove` starts for each side
    #[command(hide = true)]
    ProveSide,
    /// A process of one GPU, which `run` starts for NVSHMEM
    #[command(hide = true)]
    NvshmemRank,
}

/// The GPUs of this machine, how they are joined, and the libraries that could drive them.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    #[command(flatten)]
    pub libraries: LibraryPaths,
    /// Write the fabric of this machine to a file too, which --fabric takes
    #[arg(long, value_name = "FILE")]
    pub fabric: Option<PathBuf>,
}

/// Transfers by copy engines and thread blocks, flags, the host's links, launches. JSON is what `gpu doctor --from` and
/// `calibrate` read.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    pub libraries: LibraryPaths,
    /// Measure the first N GPUs; all by default
    #[arg(long, value_name = "N")]
    pub gpus: Option<NonZeroUsize>,
    /// Each pair at the largest size only, no other sizes and shapes
    #[arg(long)]
    pub quick: bool,
}

/// Measures every pair and the host's links, or reads such a measurement, and holds each against the fabric. Exit code 1
/// where something is wrong.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Judge what `gpu bench --format json` wrote, without a GPU
    #[arg(long, value_name = "BENCH.json")]
    pub from: Option<PathBuf>,
    /// What should describe the machine: a preset or a file; by default what its driver says of it
    #[arg(long, value_name = "NAME|FILE|auto", default_value = "auto")]
    pub fabric: String,
    /// GPUs of that fabric, the first ones; with `auto` judge the first N of this machine, or of the file
    #[arg(long, value_name = "N")]
    pub gpus: Option<NonZeroU32>,
    #[command(flatten)]
    pub libraries: LibraryPaths,
}

/// Where libraries are.
#[derive(Debug, Args)]
#[command(next_help_heading = "Libraries")]
pub struct LibraryPaths {
    /// NCCL: its file, or the folder of it; found by itself in the usual places and in Python's wheels
    #[arg(long, value_name = "PATH")]
    pub nccl: Option<PathBuf>,
    /// NVSHMEM likewise
    #[arg(long, value_name = "PATH")]
    pub nvshmem: Option<PathBuf>,
}

impl LibraryPaths {
    /// As the probe takes them.
    pub fn choices(&self) -> Choices<'_> {
        Choices { nccl: self.nccl.as_deref(), nvshmem: self.nvshmem.as_deref() }
    }
}
