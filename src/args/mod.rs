//! Command line of fabricast: all arguments and their help texts. This module only parses; it reads no files and runs
//! nothing.

mod calibrate;
mod chart;
mod compare;
mod examples;
mod experts;
mod gpu;
mod gpu_prove;
mod gpu_run;
mod grid;
mod grouped;
mod library;
mod ranks;
mod report;
mod schema;
#[cfg(feature = "serve")]
mod serve;
mod shared;
mod shell;
mod sizes;
mod study;
mod table;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use fabricast_sim::Folding;
use fabricast_sim::engine::Recording;

use crate::output_format::{Format, PathKind};
pub use calibrate::CalibrateArgs;
pub use chart::BandwidthAxis;
pub use compare::{CompareArgs, LogArgs, RegistrationChoice, RowChoice};
pub use examples::with_examples;
pub use experts::ExpertArgs;
pub use gpu::{BenchArgs, DoctorArgs, GpuCommand, ProbeArgs};
pub use gpu_prove::GpuProveArgs;
pub use gpu_run::{ExecutionArgs, ExecutorChoice, GpuRunArgs, ShapeChoice};
pub use grid::Grid;
pub use grouped::GroupedCall;
pub use library::{LibraryArgs, LibraryChoice};
pub use ranks::RankSet;
pub use report::ReportArgs;
pub use schema::SchemaArgs;
#[cfg(feature = "serve")]
pub use serve::ServeArgs;
pub use shared::{
    Buffers, CallArgs, ClusterArgs, CollectiveChoice, CostArgs, FabricArgs, Launch, Processes, StrategyArgs,
    VerifyArgs, WhatIfArgs,
};
#[cfg(test)]
pub use shell::every_command;
pub use shell::{CompletionsArgs, visible_commands};
pub use sizes::Sizes;
pub use study::{Shard, SlurmArgs, StudyArgs};
pub use table::{DiffArgs, PlanCommand, TableArgs, TableFormat};

/// Predict the time of collective communication on GPU fabrics and find the best strategy
#[derive(Debug, Parser)]
#[command(name = "fabricast", version, propagate_version = true, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub global: GlobalArgs,
}

/// Arguments of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct GlobalArgs {
    /// Output format: text for people, JSON and CSV for programs
    #[arg(long, value_enum, default_value_t, global = true)]
    pub format: Format,
    /// Write the result to a file instead of standard output
    ///
    /// Without it, `report` writes report.html. `study`, `man`, and `table` with a format of several files write to a
    /// folder, which is created if missing.
    #[arg(short = 'o', long, value_name = "FILE", global = true)]
    pub output: Option<PathBuf>,
    /// Show all columns of tables; default: as many as fit the width of the terminal (or COLUMNS)
    #[arg(long, global = true)]
    pub wide: bool,
    /// Columns of tables to show in text, by name or JSON key, for example `size,busbw`
    #[arg(long, value_name = "C[,C…]", value_delimiter = ',', global = true)]
    pub columns: Vec<String>,
    /// Overwrite existing files, even if they were changed or not written by fabricast
    #[arg(long, global = true)]
    pub force: bool,
    /// Number of threads, which does not affect results; default: all cores
    #[arg(long, value_name = "N", global = true, value_parser = clap::value_parser!(u16).range(1..=1024), allow_negative_numbers = true)]
    pub threads: Option<u16>,
    /// Suppress progress and warnings
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Report sources of parameters and wall time on standard error
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

/// Commands of fabricast.
#[expect(clippy::large_enum_variant, reason = "made once, from the command line")]
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show, check, list and convert fabrics
    #[command(subcommand)]
    Fabric(FabricCommand),
    /// Simulate one call, schedule file, flow list or job on a fabric
    Simulate(SimulateArgs),
    /// Generate, verify, convert and show schedule files
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Find the fastest strategy for each size, and its distance from the lower bound
    Plan(PlanCommand),
    /// Write a plan as a tuning file for a library, or check such a file and predict its times
    Table(Box<TableArgs>),
    /// Compare predicted with measured times and explain the differences
    Compare(CompareArgs),
    /// Compare machines for training and inference jobs: time, cost and bottlenecks
    Study(StudyArgs),
    /// Build one offline HTML page from the output of other commands
    Report(ReportArgs),
    /// Serve a what-if page for studies to a browser on this machine
    #[cfg(feature = "serve")]
    Serve(ServeArgs),
    /// Fit a cost profile to measurements
    Calibrate(CalibrateArgs),
    /// Probe, measure and test the GPUs of this machine
    #[command(subcommand)]
    Gpu(GpuCommand),
    /// List shipped GPU models, language models, prices and presets
    #[command(subcommand)]
    List(ListCommand),
    /// Print the JSON Schema of a JSON document, or list the documents
    Schema(SchemaArgs),
    /// Print the completion script of a shell
    Completions(CompletionsArgs),
    /// Write manual pages: all pages to the folder of `-o`, or the main page to standard output
    Man,
}

impl Command {
    /// Kind of path that `-o` names.
    pub fn output_kind(&self) -> PathKind {
        match self {
            Self::Table(args) if matches!(args.to, Some(TableFormat::Mscclpp | TableFormat::MscclXml)) => {
                PathKind::Folder
            }
            Self::Study(_) | Self::Man => PathKind::Folder,
            _ => PathKind::File,
        }
    }
}

/// Lists of shipped data.
#[derive(Debug, Subcommand)]
pub enum ListCommand {
    /// List the GPU models that --gpu-model and `model = "…"` in specs accept, with their data
    Gpus,
    /// List the models that jobs name, as in `model = "llama-3-70b"`
    Models,
    /// List the prices that candidates of studies name, as in `price = "AWS p5.48xlarge on demand"`
    Prices,
    /// List the presets (same as `fabric list`)
    Presets,
}

/// Commands on a fabric.
#[derive(Debug, Subcommand)]
pub enum FabricCommand {
    /// List the presets
    List,
    /// Show devices, links and paths
    Show(FabricTarget),
    /// Report errors and unusual properties of a fabric
    Check(FabricTarget),
    /// Write the fabric in another format
    Export {
        #[command(flatten)]
        target: FabricTarget,
        /// Output format
        #[arg(long, value_enum)]
        to: ExportFormat,
    },
}

/// A fabric by name or file, as a positional argument.
#[derive(Debug, Args)]
pub struct FabricTarget {
    /// Fabric: preset (`fabric list`), spec (TOML), NCCL topology (XML), `nvidia-smi topo -m`
    #[arg(value_name = "FABRIC")]
    pub fabric: String,
    #[command(flatten)]
    pub size: ClusterArgs,
    #[command(flatten)]
    pub what_if: WhatIfArgs,
}

/// Output formats of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// NCCL topology file
    NcclXml,
    /// fabricast's spec (TOML)
    Spec,
    /// Graphviz
    Dot,
    /// SVG drawing
    Svg,
    /// JSON in the format of `fabric show --format json`
    Json,
}

/// Arguments of `simulate`.
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
    pub experts: ExpertArgs,
    #[command(flatten)]
    pub costs: CostArgs,
    #[command(flatten)]
    pub what_if: WhatIfArgs,
    /// Schedule file to run instead of a strategy: fabricast's JSON, MSCCL XML or MSCCL++ plan
    #[arg(long, value_name = "FILE", conflicts_with_all = ["collective", "algorithm", "protocol", "channels", "chunk", "root", "in_place", "matrix", "grid"])]
    pub schedule: Option<PathBuf>,
    #[command(flatten)]
    pub verify: VerifyArgs,
    /// Timed flows to run instead of a collective: CSV with the header `src,dst,bytes,start_us`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["schedule", "collective", "algorithm", "protocol", "channels", "chunk", "bytes", "sizes", "root", "in_place", "matrix", "grid", "background", "stragglers", "trace", "critical_path"])]
    pub flows: Option<PathBuf>,
    /// Job to run instead of a collective: CSV, traces of PyTorch's profiler, NCCL's records, Chakra traces
    ///
    /// CSV: calls and computations of ranks (columns collective, bytes, time_us, ranks, count, name, after, start_us).
    /// PyTorch's profiler: its JSON of one rank, or a folder with those of several ranks. NCCL log: NCCL_DEBUG=INFO,
    /// NCCL_DEBUG_SUBSYS=INIT,COLL. NCCL's Inspector and example profiler: a file, or a folder with those of all
    /// processes. Chakra: any one of NAME.0.et, NAME.1.et, … JSON may be in gzip.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["schedule", "flows", "groups", "calls", "collective", "algorithm", "protocol", "channels", "chunk", "bytes", "sizes", "root", "in_place", "matrix", "grid", "background", "stragglers", "critical_path", "utilization_over_time", "breakdown", "no_fold"])]
    pub job: Option<PathBuf>,
    /// Background flows that share the fabric with the run, in the format of --flows
    #[arg(long, value_name = "FILE")]
    pub background: Option<PathBuf>,
    /// Delay the start of a GPU, for example `gpu5=20us`; may be repeated
    #[arg(long = "straggler", value_name = "GPU=TIME")]
    pub stragglers: Vec<String>,
    /// Ranks of a group that runs the call, for example `0-3,8`; may be repeated
    ///
    /// All groups run the call concurrently and share the fabric, like the tensor-parallel groups of a job.
    #[arg(long = "group", value_name = "RANKS", conflicts_with_all = ["schedule", "flows", "trace", "critical_path", "utilization_over_time"])]
    pub groups: Vec<RankSet>,
    /// Concurrent call, for example `all_gather:ranks=0-3,bytes=1MiB`; may be repeated
    ///
    /// All calls start at the same time and share the fabric, like kernels of several streams. A value is a collective and
    /// settings that override the other flags, for example `all_gather:ranks=0-3,bytes=1MiB,algorithm=ring`. Keys:
    /// ranks (default: all; calls may share ranks), bytes, algorithm, protocol, channels, chunk, root, matrix, grid.
    #[arg(long = "call", value_name = "NAME[:key=value,…]", conflicts_with_all = ["collective", "groups", "schedule", "flows", "trace", "critical_path", "utilization_over_time"])]
    pub calls: Vec<GroupedCall>,
    /// Run all calls of --call in one kernel, as NCCL runs a group of calls
    ///
    /// NCCL does so with calls between ncclGroupStart and ncclGroupEnd. It chooses their algorithms and protocols jointly and
    /// divides the channels among them. Calls on the same channel run in sequence, others concurrently. Only collectives
    /// of all ranks can be in a group.
    #[arg(long, conflicts_with_all = ["algorithm", "protocol", "channels", "chunk"])]
    pub nccl_group: bool,
    /// Simulate every operation, even if ranks are proved to be interchangeable
    #[arg(long)]
    pub no_fold: bool,
    /// Write a Chrome trace for Perfetto: a track per rank and channel, link utilization
    ///
    /// Of a job: tracks of each rank for computation, waiting and each communication group, with arrows to what waits.
    /// Operations of large runs are merged to keep the file below 50 MB.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub trace: Option<PathBuf>,
    /// Show the critical path: the dependent operations whose durations add up to the time
    ///
    /// Needs about 120 bytes of memory per simulated operation, like --trace and --utilization-over-time.
    #[arg(long, help_heading = "Output")]
    pub critical_path: bool,
    /// Show the utilization of the N busiest resources over time [default N: 10]
    ///
    /// Resources are links, memories and switches. The N busiest channels are added if the profile limits channels.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "10", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Output")]
    pub utilization_over_time: Option<u32>,
    /// Break the times of all --sizes down by cost parameter of the profile (.svg or .png)
    #[arg(long, value_name = "FILE", help_heading = "Output", conflicts_with_all = ["schedule", "flows", "groups", "calls", "background", "stragglers", "trace", "critical_path", "utilization_over_time", "no_fold"])]
    pub breakdown: Option<PathBuf>,
}

impl SimulateArgs {
    /// Policy for simulating one representative of equal operations.
    pub fn folding(&self) -> Folding {
        // The simulator uses `WhereProved` if spans, background traffic or several schedules need it.
        if self.no_fold { Folding::Off } else { Folding::GroupsFirst }
    }

    /// Detail that the simulation must record.
    pub fn recording(&self) -> Recording {
        let needs_spans = self.trace.is_some() || self.critical_path || self.utilization_over_time.is_some();
        if needs_spans { Recording::Spans } else { Recording::End }
    }
}

/// Commands on a schedule.
#[derive(Debug, Subcommand)]
pub enum ScheduleCommand {
    /// Write the schedule of a strategy to a file
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
        #[command(flatten)]
        what_if: WhatIfArgs,
        /// Output format
        #[arg(long, value_enum, default_value_t, help_heading = "Output")]
        to: ScheduleFormat,
    },
    /// Verify that a schedule computes its collective, without races and deadlocks
    Verify {
        /// Schedule file: fabricast JSON, MSCCL XML or MSCCL++ JSON
        file: PathBuf,
        /// Maximum number of unread transfers per connection, as in FIFO protocols
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        fifo_depth: Option<u32>,
    },
    /// Check the optimality certificate of a synthesised schedule
    ///
    /// Proves that the schedule computes its collective, that no schedule is faster than the certificate's lower bound,
    /// and that no link is busy for longer than the certificate states. Schedules of the algorithm tree_packing have a
    /// certificate.
    Certify {
        /// Schedule file in fabricast's JSON
        file: PathBuf,
        #[command(flatten)]
        fabric: FabricArgs,
        #[command(flatten)]
        what_if: WhatIfArgs,
        /// Draw the fabric with the load of its links by the trees (.svg)
        #[arg(long, value_name = "FILE", help_heading = "Output")]
        picture: Option<PathBuf>,
        /// Draw only the trees of this root
        #[arg(long, value_name = "RANK", requires = "picture", help_heading = "Output")]
        root: Option<u32>,
    },
    /// Write the schedule in another format
    Convert {
        /// Schedule file: fabricast JSON, MSCCL XML or MSCCL++ JSON
        file: PathBuf,
        /// Output format
        #[arg(long, value_enum)]
        to: ScheduleFormat,
    },
    /// Show the operations of each rank as a table or a picture
    Show {
        /// Schedule file: fabricast JSON, MSCCL XML or MSCCL++ JSON
        file: PathBuf,
        /// Maximum number of operations shown
        #[arg(long, value_name = "N", default_value_t = 200)]
        limit: usize,
        /// Draw steps against ranks (.svg or .png)
        #[arg(long, value_name = "FILE", help_heading = "Output")]
        picture: Option<PathBuf>,
    },
}

/// Output formats of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ScheduleFormat {
    /// fabricast's JSON, lossless
    #[default]
    Json,
    /// Algorithm file of MSCCL and RCCL
    MscclXml,
    /// Execution plan of MSCCL++
    Mscclpp,
}

/// Arguments of `plan`.
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
    /// Job whose calls are planned, weighted by their counts: TOML, or a recorded job
    ///
    /// TOML: a job as in studies. CSV: calls and computations of ranks (columns collective, bytes, time_us, ranks,
    /// count, name, after, start_us). PyTorch's profiler: its JSON of one rank, or a folder with those of several ranks.
    /// NCCL log: NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,COLL. NCCL's Inspector and example profiler: a file, or a
    /// folder with those of all processes. Chakra: any one of NAME.0.et, NAME.1.et, … JSON may be in gzip.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["collective", "algorithm", "protocol", "channels", "chunk", "bytes", "sizes", "root", "in_place", "matrix", "grid", "measured", "chart"])]
    pub job: Option<PathBuf>,
    /// Manifest of measured times, which replace predicted ones; may be repeated
    ///
    /// The format is that of `compare`. Measurements are used if they have the plan's numbers of ranks and hosts and
    /// its launch mode.
    #[arg(long, value_name = "MANIFEST", help_heading = "Software")]
    pub measured: Vec<PathBuf>,
    /// List every candidate of each size with its time, fastest first
    #[arg(long, help_heading = "Output", conflicts_with = "job")]
    pub all: bool,
    /// Draw time and bus bandwidth against size, a line per strategy (.svg, .png or .pdf)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub chart: Option<PathBuf>,
    /// Draw a row per collective in the chart: time and bus bandwidth
    #[arg(long, requires = "chart", help_heading = "Output")]
    pub panel: bool,
    /// Scale of the chart's axis of bus bandwidths [default: log if a linear axis hides small sizes]
    #[arg(long, value_enum, value_name = "SCALE", requires = "chart", help_heading = "Output")]
    pub bandwidth_axis: Option<BandwidthAxis>,
}
