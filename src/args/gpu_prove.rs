//! Flags of `gpu prove`.

use std::path::PathBuf;

use clap::Args;
use fabricast_sim::schedule::{Collective, DataType};

use super::Sizes;

/// Runs NCCL by its own choice and with a table, in turns, a process each, from CUDA graphs and a host thread a GPU; compares what
/// NCCL logs with the table, and times. Exit code 1 where NCCL does not do what the table says, or where a size is slower by
/// more than 2 % beyond noise.
#[derive(Debug, Args)]
pub struct GpuProveArgs {
    /// A table of NCCL's tuner (what `table --to nccl-tuner` wrote), or a saved plan
    #[arg(value_name = "TABLE")]
    pub table: PathBuf,
    /// The plugin that NCCL loads; by default beside this program
    #[arg(long, value_name = "libnccl_tuner_fabricast.so")]
    pub plugin: Option<PathBuf>,
    /// The first N GPUs; all by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub gpus: Option<u32>,
    /// Collectives
    #[arg(long, value_name = "C[,C…]", value_delimiter = ',', default_values_t = PRICED)]
    pub collective: Vec<Collective>,
    /// Sizes, both ends included [default: 1KiB..1GiB by factors of 2]
    #[arg(long, value_name = "A..B[:FACTOR]")]
    pub sizes: Option<Sizes>,
    /// Element type; reductions are sums
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub dtype: DataType,
    /// Pairs of processes, one after the other: what is compared is the medians of processes, since processes that run the same
    /// differ among themselves
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(5..=40))]
    pub rounds: u32,
    /// Turns of each process at each size
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub turns: u32,
    /// The library of NCCL, or the folder it is in
    #[arg(long, value_name = "PATH")]
    pub nccl: Option<PathBuf>,
    /// Write all that was measured to this file too, as JSON
    #[arg(long, value_name = "FILE")]
    pub raw: Option<PathBuf>,
    /// Keep what NCCL logged in this folder
    #[arg(long, value_name = "FOLDER")]
    pub logs: Option<PathBuf>,
    /// Seconds after which no further size of the first round is begun, nor a round that would take longer than is left
    #[arg(long, value_name = "SECONDS", default_value_t = 480, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub limit: u64,
    /// Seconds until whatever does not end is given up
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub patience: u64,
}

/// What NCCL prices, and asks a tuner about.
const PRICED: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];
