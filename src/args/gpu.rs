//! Arguments of `gpu`, whose commands use the GPUs of this machine.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use fabricast_validate::gpu::Choices;

use super::{GpuProveArgs, GpuRunArgs};

/// Commands on the GPUs of this machine.
#[derive(Debug, Subcommand)]
pub enum GpuCommand {
    /// List GPUs, links and communication libraries of this machine
    Probe(ProbeArgs),
    /// Measure the GPUs and their links
    ///
    /// Measures transfers by copy engines and thread blocks, flags, host links and launches. `gpu doctor --from` and
    /// `calibrate` read the JSON.
    Bench(BenchArgs),
    /// Diagnose GPU links: compare measured rates with the expected ones
    ///
    /// The exit code is 1 if a link is slower than expected or another fault is found.
    Doctor(DoctorArgs),
    /// Run strategies on the GPUs: verify results, compare times with predictions and NCCL
    Run(Box<GpuRunArgs>),
    /// Test that NCCL follows a tuner table, and that it is not slower with the table than without
    ///
    /// Alternates between a process with the table and a process without it. Both launch CUDA graphs, with one host
    /// thread per GPU. The exit code is 1 if NCCL does not follow the table, or if a size is slower by more than 2 %
    /// beyond noise.
    Prove(Box<GpuProveArgs>),
    /// Process that drives all GPUs; `prove` starts one with and one without the table
    #[command(hide = true)]
    ProveSide,
    /// Process that drives one GPU; `run` starts one per GPU for NVSHMEM
    #[command(hide = true)]
    NvshmemRank,
}

/// Arguments of `gpu probe`, which lists the GPUs of this machine, their links, and the libraries that can drive them.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    #[command(flatten)]
    pub libraries: LibraryPaths,
    /// Also write the fabric of this machine to a file, which --fabric accepts
    #[arg(long, value_name = "FILE")]
    pub fabric: Option<PathBuf>,
}

/// Arguments of `gpu bench`, which measures transfers by copy engines and thread blocks, flags, host links and
/// launches. `gpu doctor --from` and `calibrate` read its JSON.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    pub libraries: LibraryPaths,
    /// Number of GPUs to measure, from the first; default: all
    #[arg(long, value_name = "N")]
    pub gpus: Option<NonZeroUsize>,
    /// Measure each pair at the largest size only; skip other sizes and shapes
    #[arg(long)]
    pub quick: bool,
}

/// Arguments of `gpu doctor`, which measures every pair and the host links, or reads such a measurement, and compares
/// each with the fabric. The exit code is 1 if a fault is found.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Diagnose a saved `gpu bench --format json` file; needs no GPU
    #[arg(long, value_name = "BENCH.json")]
    pub from: Option<PathBuf>,
    /// Expected fabric: a preset or a file; `auto` is the fabric that the driver reports
    #[arg(long, value_name = "NAME|FILE|auto", default_value = "auto")]
    pub fabric: String,
    /// Number of GPUs to diagnose, starting with the first; default: all
    ///
    /// With `auto`, these are the GPUs of this machine, or those of the --from file.
    #[arg(long, value_name = "N")]
    pub gpus: Option<NonZeroU32>,
    #[command(flatten)]
    pub libraries: LibraryPaths,
}

/// Locations of communication libraries.
#[derive(Debug, Args)]
#[command(next_help_heading = "Libraries")]
pub struct LibraryPaths {
    /// NCCL library file or its folder; default: search the library folders and Python wheels
    #[arg(long, value_name = "PATH")]
    pub nccl: Option<PathBuf>,
    /// NVSHMEM library file or its folder; default: search as for NCCL
    #[arg(long, value_name = "PATH")]
    pub nvshmem: Option<PathBuf>,
}

impl LibraryPaths {
    /// Returns the paths as the probe expects them.
    pub fn choices(&self) -> Choices<'_> {
        Choices { nccl: self.nccl.as_deref(), nvshmem: self.nvshmem.as_deref() }
    }
}
