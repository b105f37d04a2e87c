//! Flags that mean the same on every command.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use fabricast_planner::algorithm::Algorithm;
use fabricast_sim::schedule::{Boundary, Collective, DataType, Protocol, ReduceOp};
use fabricast_topologies::partition::Partition;
use fabricast_topologies::route::{BufferPlace, Ecmp};
use fabricast_topologies::{Bytes, NetworkSpec};

use super::{Grid, Sizes};
use crate::failure::Failure;

/// Which fabric.
#[derive(Debug, Args)]
#[command(next_help_heading = "Fabric")]
pub struct FabricArgs {
    /// A preset (`fabric list`), a spec (TOML), an NCCL topology file (XML), or the output of `nvidia-smi topo -m`
    #[arg(long, value_name = "NAME|FILE")]
    pub fabric: String,
    #[command(flatten)]
    pub size: ClusterArgs,
    /// Ranks on each GPU or MIG instance, under MPS: they share its memory, links, SMs and copy engines
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=MPS_CLIENTS))]
    pub ranks_per_gpu: u32,
    /// Where send and receive buffers lie: device, pinned or pageable host memory, managed (pages lie with the CPU and move
    /// to the GPU when first read, as fast as a prefetch), grace (a CPU's memory over C2C), or peer=gpu0 (another GPU's
    /// memory)
    #[arg(long, value_name = "PLACE", default_value = "device", hide_default_value = true)]
    pub buffers: Buffers,
}

/// Where buffers lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// A place that needs no name.
    Place(BufferPlace),
    /// The memory of the GPU of this name.
    Peer(String),
}

impl FromStr for Buffers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self::Place(match text {
            "device" => BufferPlace::Device,
            "pinned" => BufferPlace::Pinned,
            "pageable" => BufferPlace::Pageable,
            "grace" => BufferPlace::Grace,
            "managed" => BufferPlace::Managed,
            _ => match text.strip_prefix("peer=") {
                Some(gpu) if !gpu.is_empty() => return Ok(Self::Peer(gpu.to_owned())),
                _ => {
                    return Err(
                        "expected device, pinned, pageable, managed, grace or peer=GPU, as in peer=gpu0".to_owned()
                    );
                }
            },
        }))
    }
}

/// Clients that MPS lets onto one GPU (NVIDIA Multi-Process Service, "Volta MPS client limit").
const MPS_CLIENTS: i64 = 48;

/// How much of the fabric.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Fabric")]
pub struct ClusterArgs {
    /// Hosts; a preset or file of one host is copied
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    pub nodes: Option<u32>,
    /// GPUs in use on each host; all by default
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    pub gpus: Option<u32>,
    /// The network between hosts: a kind, then what differs from the default, as in `rail,nics_per_node=8,nic=400Gb/s`
    #[arg(long, value_name = "KIND[,key=value…]")]
    pub network: Option<NetworkSpec>,
    /// Which GPU it is, where the fabric's file does not say: a name of `list gpus`, or as nvidia-smi and rocm-smi print it
    #[arg(long, value_name = "MODEL")]
    pub gpu_model: Option<String>,
    /// Cut a GPU into MIG instances, which are ranks in its place, as in `gpu0=3g.71gb,4g.71gb` or `gpu[0-7]=7g.141gb`; may
    /// be repeated
    #[arg(long, value_name = "GPU=PROFILE[,…]")]
    pub mig: Vec<Partition>,
    /// No GPU reads or writes a peer's memory: GPUs of a host talk through host memory
    #[arg(long)]
    pub no_p2p: bool,
    /// What a flow does where several ways through the network are equally good: `averaged` spreads it evenly over all,
    /// `hashed` or `hashed=SEED` takes one by a hash of its ends, so that flows collide
    #[arg(long, value_name = "MODE", default_value = "averaged", value_parser = ecmp)]
    pub ecmp: Ecmp,
    /// NICs do not read or write GPU memory: network traffic passes host memory
    #[arg(long)]
    pub no_gdr: bool,
}

pub(super) fn at_least_one(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|&count| count > 0)
        .ok_or_else(|| format!("expected a whole number from 1 to {}", u32::MAX))
}

fn ecmp(text: &str) -> Result<Ecmp, String> {
    match text.split_once('=').unwrap_or((text, "0")) {
        ("averaged", "0") => Ok(Ecmp::Averaged),
        ("hashed", seed) => seed
            .parse()
            .map(|seed| Ecmp::Hashed { seed })
            .map_err(|_| format!("`{seed}` is not a seed: expected a whole number, as in hashed=7")),
        _ => Err("expected averaged, hashed or hashed=SEED".to_owned()),
    }
}

/// Which call.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Call")]
pub struct CallArgs {
    /// The collective, in nccl-tests' sense: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, gather,
    /// scatter, send_recv, all_to_allv (with --matrix), barrier; `halo` (with --grid) is an all_to_allv between neighbours.
    /// `all` on `plan`: those that come in any size
    #[arg(long, value_name = "NAME", value_parser = collective_choice)]
    pub collective: Option<CollectiveChoice>,
    /// One size: nccl-tests' size, the larger buffer of a rank, as in 4096, 64K, 64KiB or 64KB (64,000). Of an all_to_allv
    /// what the matrix is scaled to in all, of a halo a face
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, conflicts_with = "sizes")]
    pub bytes: Option<Bytes>,
    /// Several sizes, both ends included [default: 1KiB..1GiB by factors of 2]
    #[arg(long, value_name = "A..B[:FACTOR]", allow_negative_numbers = true)]
    pub sizes: Option<Sizes>,
    /// Element type, as in f32 or bf16. Sizes are rounded down to whole elements of it, as nccl-tests does; without it
    /// they are taken as they are
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<DataType>,
    /// Reduction: sum, prod, max, min. They are limited by memory alike and take the same time
    #[arg(long, value_name = "OP", default_value = "sum")]
    pub op: ReduceOp,
    /// Root of broadcast, reduce, gather and scatter
    #[arg(long, value_name = "RANK", allow_negative_numbers = true, default_value_t = 0)]
    pub root: u32,
    /// Input and output are the same memory
    #[arg(long)]
    pub in_place: bool,
    /// Who sends how much to whom in an all_to_allv: CSV, a line for each sender, a size for each receiver
    #[arg(long, value_name = "FILE")]
    pub matrix: Option<PathBuf>,
    /// The grid that the ranks of a halo stand in: one to three sides, those of neighbouring ranks first
    #[arg(long, value_name = "X[xY[xZ]]", conflicts_with = "matrix")]
    pub grid: Option<Grid>,
    /// Join the ends of each side of the grid
    #[arg(long)]
    pub periodic: bool,
}

impl CallArgs {
    /// Whether the ends of a grid's sides are joined.
    pub fn boundary(&self) -> Boundary {
        if self.periodic { Boundary::Periodic } else { Boundary::Open }
    }

    /// A size in whole elements of the type, where one is named.
    pub fn whole(&self, size: Bytes) -> Result<Bytes, Failure> {
        let Some(element) = self.dtype else { return Ok(size) };
        let whole = Bytes(size.0 - size.0 % element.size().0);
        if whole.0 == 0 && size.0 > 0 {
            let message = format!("{size} is less than one element of {element} ({})", element.size());
            return Err(Failure::input(message));
        }
        Ok(whole)
    }
}

/// One collective, or all that can be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveChoice {
    /// One.
    One(Collective),
    /// An all_to_allv between neighbours on a grid.
    Halo,
    /// All that come in any size.
    All,
}

/// A collective, or a word for several.
pub(super) fn collective_choice(word: &str) -> Result<CollectiveChoice, String> {
    match word {
        "all" => return Ok(CollectiveChoice::All),
        "halo" => return Ok(CollectiveChoice::Halo),
        _ => {}
    }
    word.parse().map(CollectiveChoice::One).map_err(|error: fabricast_sim::schedule::UnknownWord| error.to_string())
}

/// Which strategy, or which to choose from.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Strategy")]
pub struct StrategyArgs {
    /// Algorithms, as in ring, tree, one_shot, direct or hierarchical; docs/algorithms.md lists them by collective
    #[arg(long, value_name = "A[,A…]", value_delimiter = ',')]
    pub algorithm: Vec<Algorithm>,
    /// Protocols: ll, ll128, simple, symmetric, copy_engine
    #[arg(long, value_name = "P[,P…]", value_delimiter = ',')]
    pub protocol: Vec<Protocol>,
    /// Channels: independent lanes, a thread block each
    #[arg(long, value_name = "N[,N…]", value_delimiter = ',', allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub channels: Vec<u16>,
    /// The largest chunk of a step; the protocol's own by default
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub chunk: Option<Bytes>,
    /// No reduction or multicast in NVSwitches
    #[arg(long)]
    pub no_nvls: bool,
}

/// What software costs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Software")]
pub struct CostArgs {
    /// `ideal`, a shipped profile, or a profile file; the best match for the GPUs by default
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: Option<String>,
    /// How calls are launched
    #[arg(long, value_enum, default_value_t)]
    pub launch: Launch,
    /// Whether a process or thread drives each GPU, or one all of a host
    #[arg(long, value_enum, default_value_t)]
    pub processes: Processes,
}

/// How calls are launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Launch {
    /// From a CUDA graph
    #[default]
    Graph,
    /// On a stream
    Stream,
}

/// Who launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Processes {
    /// One for each GPU
    #[default]
    #[value(name = "per_gpu")]
    PerGpu,
    /// One for all GPUs of a host
    Single,
}

/// Whether schedules are verified.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Take schedules as they are: do not first prove that they compute their collective, without races and deadlocks
    #[arg(long)]
    pub no_verify: bool,
}

/// What differs from the healthy fabric.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "What if")]
pub struct WhatIfArgs {
    /// Take a link (`a->b`, `a-b`) or a device out of service; may be repeated
    #[arg(long, value_name = "LINK|DEVICE")]
    pub fail: Vec<String>,
    /// Keep a part of a link's bandwidth, as in `gpu0-nvswitch0=0.5`; may be repeated
    #[arg(long, value_name = "LINK=FACTOR")]
    pub slow: Vec<String>,
}
