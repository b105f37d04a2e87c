//! Arguments of `gpu prove`.

use std::path::PathBuf;

use clap::Args;
use fabricast_sim::schedule::{Collective, DataType};

use super::Sizes;

/// Arguments of `gpu prove`, which alternates between an NCCL process with a table and one without it. Both launch CUDA
/// graphs, with one host thread per GPU. NCCL's log is compared with the table, and the times with each other. The exit
/// code is 1 if NCCL does not follow the table, or if a size is slower by more than 2 % beyond noise.
#[derive(Debug, Args)]
pub struct GpuProveArgs {
    /// NCCL tuner table (written by `table --to nccl-tuner`), or a saved plan
    #[arg(value_name = "TABLE")]
    pub table: PathBuf,
    /// Tuner plugin that NCCL loads; default: the one next to this program
    #[arg(long, value_name = "libnccl_tuner_fabricast.so")]
    pub plugin: Option<PathBuf>,
    /// Number of GPUs, from the first; default: all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub gpus: Option<u32>,
    /// Collectives, comma-separated
    #[arg(long, value_name = "C[,C…]", value_delimiter = ',', default_values_t = TUNED_COLLECTIVES)]
    pub collective: Vec<Collective>,
    /// Message sizes: ranges, both ends included, or a list as in 64KiB,1MiB [default: 1KiB..1GiB by factors of 2]
    #[arg(long, value_name = "A..B[:FACTOR][,C…]")]
    pub sizes: Option<Sizes>,
    /// Element type; the reduction is sum
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub dtype: DataType,
    /// Number of process pairs, run one after the other
    ///
    /// The medians of processes are compared, because processes with equal settings differ from each other.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(5..=40))]
    pub rounds: u32,
    /// Repetitions of each size per process
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub turns: u32,
    /// NCCL library file or its folder
    #[arg(long, value_name = "PATH")]
    pub nccl: Option<PathBuf>,
    /// Also write all measurements to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub raw: Option<PathBuf>,
    /// Save NCCL's logs in this folder
    #[arg(long, value_name = "FOLDER")]
    pub logs: Option<PathBuf>,
    /// Time limit of the measurement, in seconds
    ///
    /// After the limit, no further size of the first round is started. A later round is started only if it is expected
    /// to end within the limit.
    #[arg(long, value_name = "SECONDS", default_value_t = 480, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub limit: u64,
    /// Timeout in seconds for a call that does not end
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub patience: u64,
}

/// Collectives that NCCL has a cost model for and queries a tuner about.
const TUNED_COLLECTIVES: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];
