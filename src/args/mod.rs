//! The command line: every flag and its meaning, in one place. Parsing only; nothing is read or done here.

mod calibrate;
mod compare;
mod gpu;
mod gpu_prove;
mod gpu_run;
mod grid;
mod grouped;
mod library;
mod ranks;
mod report;
mod shared;
mod shell;
mod sizes;
mod study;
mod table;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use fabricast_sim::Folding;
use fabricast_sim::engine::Recording;

use crate::output::{Format, Place};
pub use calibrate::CalibrateArgs;
pub use compare::{CompareArgs, LogArgs, Registered, RowChoice};
pub use gpu::{BenchArgs, DoctorArgs, GpuCommand, ProbeArgs};
pub use gpu_prove::GpuProveArgs;
pub use gpu_run::{ExecutionArgs, ExecutorChoice, GpuRunArgs, ShapeChoice};
pub use grid::Grid;
pub use grouped::GroupedCall;
pub use library::{LibraryArgs, LibraryChoice};
pub use ranks::RankSet;
pub use report::ReportArgs;
pub use shared::{
    Buffers, CallArgs, ClusterArgs, CollectiveChoice, CostArgs, FabricArgs, Launch, Processes, StrategyArgs,
    VerifyArgs, WhatIfArgs,
};
#[cfg(test)]
pub use shell::every_command;
pub use shell::{CompletionsArgs, told_commands};
pub use sizes::Sizes;
pub use study::{Shard, StudyArgs};
pub use table::{DiffArgs, PlanCommand, TableArgs, TableFormat};

/// Forecasts what collective communication costs on a GPU fabric, and picks the best way to do it.
#[derive(Debug, Parser)]
#[command(name = "fabricast", version, propagate_version = true, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub global: GlobalArgs,
}

/// Flags of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct GlobalArgs {
    /// Form of the result: text for people, JSON and CSV for programs
    #[arg(long, value_enum, default_value_t, global = true)]
    pub format: Format,
    /// Write the result to a file, and nothing to standard output; of `study` and `man` a folder, made if missing
    #[arg(short = 'o', long, value_name = "FILE", global = true)]
    pub output: Option<PathBuf>,
    /// Replace existing files, also those that fabricast did not write or that were changed since
    #[arg(long, global = true)]
    pub force: bool,
    /// Threads to use; all cores by default. Results do not depend on it
    #[arg(long, value_name = "N", global = true, value_parser = clap::value_parser!(u16).range(1..=1024), allow_negative_numbers = true)]
    pub threads: Option<u16>,
    /// No progress and no warnings
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// More detail on standard error: sources of the figures, wall time
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

/// The commands.
#[expect(clippy::large_enum_variant, reason = "made once, from the command line")]
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Fabrics: presets, topology files, specs
    #[command(subcommand)]
    Fabric(FabricCommand),
    /// One run of one strategy, or of a schedule file, on a fabric
    Simulate(SimulateArgs),
    /// Schedules as files: write them, prove them, look at them
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Which strategy for which size, and how far from the bound
    Plan(PlanCommand),
    /// The plan as a file that another library loads, and any such file checked and priced
    Table(Box<TableArgs>),
    /// Predicted against measured: how far off, whether that was to be expected, and what would explain it
    Compare(CompareArgs),
    /// What to buy or rent: training and inference on several machines, their time, cost and what they wait for
    Study(StudyArgs),
    /// One HTML page of what other commands wrote: opens from a file, needs no network
    Report(ReportArgs),
    /// A profile fitted to measurements
    Calibrate(CalibrateArgs),
    /// The GPUs of this machine
    #[command(subcommand)]
    Gpu(GpuCommand),
    /// What ships: GPU models, presets
    #[command(subcommand)]
    List(ListCommand),
    /// What a shell completes behind `fabricast`: commands, flags and their values, as a script that the shell reads
    Completions(CompletionsArgs),
    /// Manual pages: one for each command into the folder of `-o`, or the first of them
    Man,
}

impl Command {
    /// What `-o` names.
    pub fn place(&self) -> Place {
        match self {
            Self::Table(args) if matches!(args.to, Some(TableFormat::Mscclpp | TableFormat::MscclXml)) => Place::Folder,
            Self::Study(_) | Self::Man => Place::Folder,
            _ => Place::File,
        }
    }
}

/// What to list.
#[derive(Debug, Subcommand)]
pub enum ListCommand {
    /// The GPU models that --gpu-model and `model = "…"` of specs know, with their figures
    Gpus,
    /// The presets, as `fabric list`
    Presets,
}

/// What to do with a fabric.
#[derive(Debug, Subcommand)]
pub enum FabricCommand {
    /// The presets
    List,
    /// Devices, links and paths
    Show(FabricTarget),
    /// What looks wrong or unusual
    Check(FabricTarget),
    /// The fabric in another format
    Export {
        #[command(flatten)]
        target: FabricTarget,
        /// The format
        #[arg(long, value_enum)]
        to: ExportFormat,
    },
}

/// A fabric by name or file, as a plain argument.
#[derive(Debug, Args)]
pub struct FabricTarget {
    /// A preset (`fabric list`), a spec (TOML), an NCCL topology file (XML), or the output of `nvidia-smi topo -m`
    #[arg(value_name = "FABRIC")]
    pub fabric: String,
    #[command(flatten)]
    pub size: ClusterArgs,
    #[command(flatten)]
    pub what_if: WhatIfArgs,
}

/// Formats a fabric can be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// NCCL topology file
    NcclXml,
    /// fabricast's own spec (TOML)
    Spec,
    /// Graphviz
    Dot,
    /// A picture
    Svg,
    /// As `fabric show --format json`
    Json,
}

/// One run.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    #[command(flatten)]
    pub fabric: FabricArgs,
    #[command(flatten)]
    pub call: CallArgs,
    #[command(flatten)]
    pub strategy: StrategyArgs,
    #[command(flatten)]
    pub library: LibraryArgs,
    #[command(flatten)]
    pub costs: CostArgs,
    #[command(flatten)]
    pub what_if: WhatIfArgs,
    /// Run this schedule file instead of a generated one: fabricast's JSON, MSCCL XML or an MSCCL++ plan
    #[arg(long, value_name = "FILE", conflicts_with_all = ["collective", "algorithm", "protocol", "channels", "chunk", "sizes", "root", "in_place", "matrix", "grid"])]
    pub schedule: Option<PathBuf>,
    #[command(flatten)]
    pub verify: VerifyArgs,
    /// Run timed flows instead of a collective: CSV with the header `src,dst,bytes,start_us`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["schedule", "collective", "algorithm", "protocol", "channels", "chunk", "bytes", "sizes", "root", "in_place", "matrix", "grid", "background", "stragglers", "trace", "critical_path"])]
    pub flows: Option<PathBuf>,
    /// Run a job instead of a collective: calls and computations of ranks in a CSV (columns collective, bytes, time_us, ranks, count,
    /// name, after, start_us), a log of NCCL (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,COLL), or Chakra traces (any of
    /// NAME.0.et, NAME.1.et, …)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["schedule", "flows", "groups", "calls", "collective", "algorithm", "protocol", "channels", "chunk", "bytes", "sizes", "root", "in_place", "matrix", "grid", "background", "stragglers", "trace", "critical_path", "utilization_over_time", "breakdown", "no_fold"])]
    pub job: Option<PathBuf>,
    /// Flows that share the fabric with the run, in the form of --flows
    #[arg(long, value_name = "FILE")]
    pub background: Option<PathBuf>,
    /// Start a GPU later than the others, as in `gpu5=20us`; may be repeated
    #[arg(long = "straggler", value_name = "GPU=TIME")]
    pub stragglers: Vec<String>,
    /// Run the call on these ranks only (`0-3,8`); repeated, on each group at the same time, sharing the fabric, as the
    /// tensor-parallel groups of a job do
    #[arg(long = "group", value_name = "RANKS", conflicts_with_all = ["schedule", "flows", "trace", "critical_path", "utilization_over_time"])]
    pub groups: Vec<RankSet>,
    /// Run several calls at once, as grouped calls of NCCL: they start together and share the fabric; repeated, a collective
    /// each, then what differs from the other flags, as in `all_gather:ranks=0-3,bytes=1MiB,algorithm=ring`. Keys: ranks
    /// (all by default; calls may share ranks), bytes, algorithm, protocol, channels, chunk, root, matrix, grid
    #[arg(long = "call", value_name = "NAME[:key=value,…]", conflicts_with_all = ["collective", "groups", "schedule", "flows", "trace", "critical_path", "utilization_over_time"])]
    pub calls: Vec<GroupedCall>,
    /// Simulate every operation, also where ranks are proved to be interchangeable
    #[arg(long)]
    pub no_fold: bool,
    /// Write a Chrome trace (opens in Perfetto): a track per rank and channel, the use of the busiest links as graphs.
    /// Large runs are joined to stay below 50 MB
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub trace: Option<PathBuf>,
    /// Show the chain of operations that the end hangs on, whose durations add up to the time. Like --trace and
    /// --utilization-over-time it keeps some 120 bytes for each operation simulated
    #[arg(long, help_heading = "Output")]
    pub critical_path: bool,
    /// Show how much of the N busiest links, memories and switches, and of the N busiest channels where the profile
    /// limits them, was used over time [default N: 10]
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "10", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Output")]
    pub utilization_over_time: Option<u32>,
    /// Take the times of all --sizes apart by the named costs of the profile, and draw them (.svg or .png)
    #[arg(long, value_name = "FILE", help_heading = "Output", conflicts_with_all = ["schedule", "flows", "groups", "calls", "background", "stragglers", "trace", "critical_path", "utilization_over_time", "no_fold"])]
    pub breakdown: Option<PathBuf>,
}

impl SimulateArgs {
    /// Whether one of many equals may stand for all.
    pub fn folding(&self) -> Folding {
        // (Where more is asked for than this tells, it is as `WhereProved`.)
        if self.no_fold { Folding::Off } else { Folding::BlocksFirst }
    }

    /// What must be kept of the run.
    pub fn recording(&self) -> Recording {
        let wanted = self.trace.is_some() || self.critical_path || self.utilization_over_time.is_some();
        if wanted { Recording::Spans } else { Recording::End }
    }
}

/// What to do with a schedule.
#[expect(clippy::large_enum_variant, reason = "made once, from the command line")]
#[derive(Debug, Subcommand)]
pub enum ScheduleCommand {
    /// Write the schedule of a strategy as a file
    Generate {
        #[command(flatten)]
        fabric: FabricArgs,
        #[command(flatten)]
        call: CallArgs,
        #[command(flatten)]
        strategy: StrategyArgs,
        #[command(flatten)]
        library: LibraryArgs,
        #[command(flatten)]
        costs: CostArgs,
        /// The format
        #[arg(long, value_enum, default_value_t, help_heading = "Output")]
        to: ScheduleFormat,
    },
    /// Prove that a schedule computes its collective, without races and deadlocks
    Verify {
        /// The schedule file: fabricast's JSON, an MSCCL algorithm (XML) or an MSCCL++ execution plan (JSON)
        file: PathBuf,
        /// Let at most this many transfers wait unread on a connection, as FIFO protocols do
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        fifo_depth: Option<u32>,
    },
    /// The schedule in another format
    Convert {
        /// The schedule file: fabricast's JSON, an MSCCL algorithm (XML) or an MSCCL++ execution plan (JSON)
        file: PathBuf,
        /// The format
        #[arg(long, value_enum)]
        to: ScheduleFormat,
    },
    /// What each rank does, as a table and as a picture
    Show {
        /// The schedule file: fabricast's JSON, an MSCCL algorithm (XML) or an MSCCL++ execution plan (JSON)
        file: PathBuf,
        /// At most this many operations
        #[arg(long, value_name = "N", default_value_t = 200)]
        limit: usize,
        /// Draw steps against ranks (.svg or .png)
        #[arg(long, value_name = "FILE", help_heading = "Output")]
        picture: Option<PathBuf>,
    },
}

/// Formats a schedule can be written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ScheduleFormat {
    /// fabricast's own, lossless
    #[default]
    Json,
    /// An algorithm file of MSCCL and RCCL
    MscclXml,
    /// An execution plan of MSCCL++
    Mscclpp,
}

/// A plan.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub fabric: FabricArgs,
    #[command(flatten)]
    pub call: CallArgs,
    #[command(flatten)]
    pub strategy: StrategyArgs,
    #[command(flatten)]
    pub library: LibraryArgs,
    #[command(flatten)]
    pub costs: CostArgs,
    #[command(flatten)]
    pub what_if: WhatIfArgs,
    /// Plan the calls of a job, each as often as it occurs: a job as studies have it (.toml), calls and computations of ranks in a CSV (columns collective, bytes, time_us, ranks, count,
    /// name, after, start_us), a log of NCCL (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,COLL), or Chakra traces (any of
    /// NAME.0.et, NAME.1.et, …)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["collective", "algorithm", "protocol", "channels", "chunk", "bytes", "sizes", "root", "in_place", "matrix", "grid", "measured", "chart"])]
    pub job: Option<PathBuf>,
    /// Measured times stand in for predicted ones where there are any: those of a manifest, as `compare`
    /// reads, whose ranks, hosts and launch are the plan's; may be repeated
    #[arg(long, value_name = "MANIFEST", help_heading = "Software")]
    pub measured: Vec<PathBuf>,
    /// Draw time and bus bandwidth against size, a line per strategy (.svg or .png)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub chart: Option<PathBuf>,
}
