//! Arguments of `gpu run`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::Bytes;
use fabricast_topologies::variants::variants;
use fabricast_validate::execute::nvshmem::NvshmemMethod;
use fabricast_validate::kernel::{Carrier, GridShape};
use strum::{EnumCount, VariantArray};

use super::{CallArgs, CostArgs, FabricArgs, StrategyArgs, VerifyArgs, WhatIfArgs};

/// Arguments of `gpu run`, which runs strategies on the GPUs of this machine.
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
    /// Schedule file to run: fabricast's JSON, MSCCL XML or an MSCCL++ plan
    #[arg(long, value_name = "FILE", conflicts_with_all = ["collective", "algorithm", "protocol", "channels", "chunk", "plan"])]
    pub schedule: Option<PathBuf>,
    #[command(flatten)]
    pub verify: VerifyArgs,
    /// Run every row of a plan written by `plan --format json`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["collective", "algorithm", "protocol", "channels", "chunk", "bytes", "sizes"])]
    pub plan: Option<PathBuf>,
    /// Test correctness by pairwise coverage instead of one call
    ///
    /// Every pair of values of collective, executor, type, reduction, size, offset, in-place flag and number of ranks
    /// occurs at least once, in as few calls as possible.
    #[arg(long, conflicts_with_all = ["collective", "algorithm", "protocol", "channels", "chunk", "bytes", "sizes", "plan", "schedule", "in_place", "root"])]
    pub pairs: bool,
    #[command(flatten)]
    pub execution: ExecutionArgs,
}

/// Options of execution: executors, kernel shapes, libraries, checks and timing.
#[derive(Debug, Args)]
#[command(next_help_heading = "Execution")]
pub struct ExecutionArgs {
    /// Executors, comma-separated; default: kernels, nccl, and copies for the protocol copy_engine
    ///
    /// `kernels`: generated from the schedule. `copies`: copy engines. `nccl`: NCCL's own choice. `nccl-symmetric`:
    /// NCCL's own choice with buffers registered as symmetric windows. `nccl-forced`: each requested strategy that NCCL
    /// has, forced on a separate communicator. `nvshmem`: one process per GPU, by the methods of --nvshmem-by. Default
    /// with --pairs: all.
    #[arg(long, value_name = "E[,E…]", value_delimiter = ',')]
    pub executor: Vec<ExecutorChoice>,
    /// Message formats of generated kernels; default: chosen by protocol and size
    #[arg(long, value_name = "C[,C…]", value_delimiter = ',')]
    pub carrier: Vec<MessageFormatChoice>,
    /// Kernel shape: blocks per channel, threads, words per thread, tiles, e.g. `8x512x2`
    ///
    /// TILES is the number of tiles of a block that share a phase. `sweep` times many shapes and shows the fastest.
    /// Default: the shape that was fastest in measurements, with all tiles.
    #[arg(long, value_name = "BLOCKSxTHREADSxWORDS[xTILES]")]
    pub shape: Option<ShapeChoice>,
    /// Disable overlap of consecutive kernels: launch each after the previous one has ended
    #[arg(long)]
    pub no_overlap: bool,
    /// NCCL library file or its folder
    #[arg(long, value_name = "PATH")]
    pub nccl: Option<PathBuf>,
    /// NVSHMEM library file or its folder
    #[arg(long, value_name = "PATH")]
    pub nvshmem: Option<PathBuf>,
    /// NVSHMEM methods, comma-separated
    ///
    /// `collectives`: NVSHMEM's own, on a stream. `puts`: the schedule's puts, with signals on a stream. `heap`:
    /// generated kernels with buffers on the symmetric heap. `device`: the schedule's puts by the device library.
    #[arg(long, value_name = "W[,W…]", value_delimiter = ',', default_values_t = NvshmemChoice::ALL)]
    pub nvshmem_by: Vec<NvshmemChoice>,
    /// Offset of buffers from an aligned address, for example 4 or 1KiB
    #[arg(long, value_name = "SIZE", default_value = "0", hide_default_value = true)]
    pub offset: Bytes,
    /// Number of result checks, each with new contents; every second check follows several calls
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub checks: u32,
    /// Additional back-to-back calls, each with new contents and a check
    ///
    /// The host does not wait between these calls.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub streak: u32,
    /// Check results only, without timing
    #[arg(long)]
    pub untimed: bool,
    /// Number of single calls to time, for the 99th percentile
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub singles: u32,
    /// Also write the times to this folder, with a manifest.toml for `compare` and `calibrate`
    ///
    /// Both commands also read the JSON of --format json.
    #[arg(long, value_name = "FOLDER")]
    pub measurements: Option<PathBuf>,
    /// Timeout in seconds for a call that does not end
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub patience: u64,
    /// Fault injection: this rank never joins the call
    #[arg(long, value_name = "RANK", hide = true)]
    pub lose: Option<usize>,
}

impl ExecutionArgs {
    /// Returns true if an executor is requested for schedules of a protocol. Without `--executor`, generated kernels
    /// and NCCL run all schedules, and copy engines run schedules of the protocol `copy_engine`.
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

    /// Kernel shape given on the command line, if any.
    pub fn given_shape(&self) -> Option<GridShape> {
        match self.shape {
            Some(ShapeChoice::Given(shape)) => Some(shape),
            Some(ShapeChoice::Sweep) | None => None,
        }
    }
}

/// Choice of the shape of generated kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapeChoice {
    /// Run with many shapes and show the fastest.
    Sweep,
    /// Run with the given shape.
    Given(GridShape),
}

impl FromStr for ShapeChoice {
    type Err = String;

    /// Parses `sweep`, or a shape in the form `BLOCKSxTHREADSxWORDS[xTILES]`, such as `8x512x2`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "sweep" {
            return Ok(Self::Sweep);
        }
        let invalid_shape =
            || format!("'{text}' is not a shape; expected `sweep` or blocks x threads x words, as in `8x512x2`");
        let parse = |number: &str| number.parse().ok().filter(|&number: &u32| number > 0).ok_or_else(invalid_shape);
        let numbers = text.split('x').map(parse).collect::<Result<Vec<u32>, _>>()?;
        let (split, threads, unroll, tiles_per_phase) = match numbers[..] {
            [split, threads, unroll] => (split, threads, unroll, 1),
            [split, threads, unroll, tiles_per_phase] => (split, threads, unroll, tiles_per_phase),
            _ => return Err(invalid_shape()),
        };
        if !threads.is_multiple_of(32) || !(64..=1024).contains(&threads) {
            return Err(format!("{threads} threads: expected a multiple of 32 from 64 to 1024"));
        }
        Ok(Self::Given(GridShape { split, threads, unroll, tiles_per_phase }))
    }
}

/// Executor of a schedule.
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

/// Method by which NVSHMEM runs a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, VariantArray, ValueEnum)]
pub enum NvshmemChoice {
    /// NVSHMEM's own collectives on a stream
    Collectives,
    /// Puts with signals on a stream
    Puts,
    /// Generated kernels with buffers on the symmetric heap
    Heap,
    /// Puts with signals by the device library
    Device,
}

impl NvshmemChoice {
    const ALL: [Self; Self::COUNT] = variants();
}

impl From<NvshmemChoice> for NvshmemMethod {
    fn from(choice: NvshmemChoice) -> Self {
        match choice {
            NvshmemChoice::Collectives => Self::Collectives,
            NvshmemChoice::Puts => Self::Puts,
            NvshmemChoice::Heap => Self::Heap,
            NvshmemChoice::Device => Self::Device,
        }
    }
}

impl std::fmt::Display for NvshmemChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(NvshmemMethod::from(*self).name())
    }
}

/// Message format of generated kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MessageFormatChoice {
    /// 8 bytes of data and 8 bytes of flags (NCCL's LL)
    Packets,
    /// 120 bytes of data and an 8-byte flag (NCCL's LL128)
    Lines,
    /// Plain vectors followed by a flag
    Flags,
}

impl From<MessageFormatChoice> for Carrier {
    fn from(choice: MessageFormatChoice) -> Self {
        match choice {
            MessageFormatChoice::Packets => Self::Packets,
            MessageFormatChoice::Lines => Self::Lines,
            MessageFormatChoice::Flags => Self::Flags,
        }
    }
}
