//! Flags of `gpu run`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::Bytes;
use fabricast_validate::execute::nvshmem::Way;
use fabricast_validate::kernel::{Carrier, GridShape};

use super::{CallArgs, CostArgs, FabricArgs, StrategyArgs, VerifyArgs, WhatIfArgs};

/// Strategies on this machine's GPUs.
#[derive(Debug, Args)]
pub struct GpuRunArgs {
    #[command(flatten)]
    pub fabric: FabricArgs,
    #[command(flatten)]
    pub call: CallArgs,
    #[command(flatten)]
    pub strategy: StrategyArgs,
    #[command(flatten)]
    pub costs: CostArgs,
    #[command(flatten)]
    pub what_if: WhatIfArgs,
    /// Run this schedule file: fabricast's JSON, MSCCL XML or an MSCCL++ plan
    #[arg(long, value_name = "FILE", conflicts_with_all = ["collective", "algorithm", "protocol", "channels", "chunk", "plan"])]
    pub schedule: Option<PathBuf>,
    #[command(flatten)]
    pub verify: VerifyArgs,
    /// Run every row of a plan: what `plan --format json` wrote
    #[arg(long, value_name = "FILE", conflicts_with_all = ["collective", "algorithm", "protocol", "channels", "chunk", "bytes", "sizes"])]
    pub plan: Option<PathBuf>,
    /// Check instead that results are right: every pair of collective, executor, type, reduction, size, offset, place and number
    /// of ranks, in as few calls as that takes
    #[arg(long, conflicts_with_all = ["collective", "algorithm", "protocol", "channels", "chunk", "bytes", "sizes", "plan", "schedule", "in_place", "root"])]
    pub pairs: bool,
    #[command(flatten)]
    pub execution: ExecutionArgs,
}

/// How things are run.
#[derive(Debug, Args)]
#[command(next_help_heading = "Execution")]
pub struct ExecutionArgs {
    /// Executors: kernels (generated from the schedule), copies (copy engines), nccl (its own choice), nccl-symmetric (likewise,
    /// with its buffers registered as symmetric windows), nccl-forced (each strategy asked for that NCCL has, forced on a
    /// communicator of its own), nvshmem (a process a GPU, in the ways of --nvshmem-by). By default kernels, copies for what is
    /// picked for copy engines, and nccl; with --pairs all
    #[arg(long, value_name = "E[,E…]", value_delimiter = ',')]
    pub executor: Vec<ExecutorChoice>,
    /// What carries messages in generated kernels; by default what fits the protocol and the size
    #[arg(long, value_name = "C[,C…]", value_delimiter = ',')]
    pub carrier: Vec<CarrierChoice>,
    /// Blocks, threads, words of a thread and tiles that are in a phase together, as in `8x512x2`; by default what measured best
    /// and all tiles. `sweep` tries many and shows the fastest
    #[arg(long, value_name = "BLOCKSxTHREADSxWORDS[xTILES]")]
    pub shape: Option<ShapeChoice>,
    /// Launch a kernel when the one before it has ended, not while it still runs
    #[arg(long)]
    pub no_overlap: bool,
    /// The library of NCCL, or the folder it is in
    #[arg(long, value_name = "PATH")]
    pub nccl: Option<PathBuf>,
    /// The library of NVSHMEM, or the folder it is in
    #[arg(long, value_name = "PATH")]
    pub nvshmem: Option<PathBuf>,
    /// How NVSHMEM runs a call: collectives (its own, on a stream), puts (the schedule's, with signals on a stream), heap
    /// (generated kernels that reach its heap), device (the schedule's puts by its device library)
    #[arg(long, value_name = "W[,W…]", value_delimiter = ',', default_values_t = NvshmemBy::ALL)]
    pub nvshmem_by: Vec<NvshmemBy>,
    /// Let buffers begin so many bytes after an aligned address
    #[arg(long, value_name = "SIZE", default_value = "0", hide_default_value = true)]
    pub offset: Bytes,
    /// Checks of the result, each with fresh contents; every second one after several calls
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub checks: u32,
    /// Also so many calls one after the other, each with fresh contents, compared without the host waiting in between
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub streak: u32,
    /// Check results and take no times
    #[arg(long)]
    pub untimed: bool,
    /// Time so many single calls, for the slowest of a hundred
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub singles: u32,
    /// Write times into this folder too, with a manifest.toml, as `compare` and `calibrate` read them (they read the JSON of --format json as well)
    #[arg(long, value_name = "FOLDER")]
    pub measurements: Option<PathBuf>,
    /// Seconds until whatever does not end is given up
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub patience: u64,
    /// Let this rank never come, to see how that ends
    #[arg(long, value_name = "RANK", hide = true)]
    pub lose: Option<usize>,
}

impl ExecutionArgs {
    /// Whether an executor is asked for, of schedules of a protocol; by default copy engines run what was made for them.
    pub fn wants(&self, choice: ExecutorChoice, protocol: Protocol) -> bool {
        if !self.executor.is_empty() {
            return self.executor.contains(&choice);
        }
        match choice {
            ExecutorChoice::Kernels | ExecutorChoice::Nccl => true,
            ExecutorChoice::Copies => protocol == Protocol::CopyEngine,
            ExecutorChoice::NcclSymmetric | ExecutorChoice::NcclForced | ExecutorChoice::Nvshmem => false,
        }
    }

    /// The shape that is given, if one is.
    pub fn given_shape(&self) -> Option<GridShape> {
        match self.shape {
            Some(ShapeChoice::Given(shape)) => Some(shape),
            Some(ShapeChoice::Sweep) | None => None,
        }
    }
}

/// How generated kernels are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapeChoice {
    /// Many are tried.
    Sweep,
    /// This one.
    Given(GridShape),
}

impl FromStr for ShapeChoice {
    type Err = String;

    /// `sweep`, `8x512x2`, or `8x512x2x4`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "sweep" {
            return Ok(Self::Sweep);
        }
        let wrong = || format!("'{text}' is no shape; expected `sweep` or blocks x threads x words, as in `8x512x2`");
        let number = |number: &str| number.parse().ok().filter(|&number: &u32| number > 0).ok_or_else(wrong);
        let numbers = text.split('x').map(number).collect::<Result<Vec<u32>, _>>()?;
        let (split, threads, unroll, together) = match numbers[..] {
            [split, threads, unroll] => (split, threads, unroll, 1),
            [split, threads, unroll, together] => (split, threads, unroll, together),
            _ => return Err(wrong()),
        };
        if !threads.is_multiple_of(32) || !(64..=1024).contains(&threads) {
            return Err(format!("{threads} threads: expected a multiple of 32 from 64 to 1024"));
        }
        Ok(Self::Given(GridShape { split, threads, unroll, together }))
    }
}

/// An executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExecutorChoice {
    /// Kernels generated from the schedule
    Kernels,
    /// Copy engines
    Copies,
    /// NCCL's own choice
    Nccl,
    /// NCCL's own choice, with its buffers registered as symmetric windows
    NcclSymmetric,
    /// NCCL, forced to the strategy
    NcclForced,
    /// NVSHMEM
    Nvshmem,
}

impl std::fmt::Display for ExecutorChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Kernels => "kernels",
            Self::Copies => "copies",
            Self::Nccl => "nccl",
            Self::NcclSymmetric => "nccl-symmetric",
            Self::NcclForced => "nccl-forced",
            Self::Nvshmem => "nvshmem",
        })
    }
}

/// How NVSHMEM runs a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NvshmemBy {
    /// Its own collectives on a stream
    Collectives,
    /// Puts with signals on a stream
    Puts,
    /// Generated kernels on its heap
    Heap,
    /// Puts with signals by its device library
    Device,
}

impl NvshmemBy {
    const ALL: [Self; 4] = [Self::Collectives, Self::Puts, Self::Heap, Self::Device];
}

impl From<NvshmemBy> for Way {
    fn from(choice: NvshmemBy) -> Self {
        match choice {
            NvshmemBy::Collectives => Self::Collectives,
            NvshmemBy::Puts => Self::Puts,
            NvshmemBy::Heap => Self::Heap,
            NvshmemBy::Device => Self::Device,
        }
    }
}

impl std::fmt::Display for NvshmemBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(Way::from(*self).name())
    }
}

/// What carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CarrierChoice {
    /// 8 bytes of data and 8 of flags
    Packets,
    /// 120 bytes of data and 8 of a flag
    Lines,
    /// Plain vectors, then a flag
    Flags,
}

impl From<CarrierChoice> for Carrier {
    fn from(choice: CarrierChoice) -> Self {
        match choice {
            CarrierChoice::Packets => Self::Packets,
            CarrierChoice::Lines => Self::Lines,
            CarrierChoice::Flags => Self::Flags,
        }
    }
}
