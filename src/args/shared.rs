//! Arguments that several commands share.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::packing::TreeVariant;
use fabricast_experts::Operation;
use fabricast_sim::schedule::{Boundary, Collective, DataType, Protocol, ReduceOp};
use fabricast_topologies::partition::Partition;
use fabricast_topologies::route::{BufferLocation, Ecmp};
use fabricast_topologies::{Bytes, NetworkSpec};

use super::{Grid, Sizes};
use crate::failure::Failure;

/// Fabric of a call.
#[derive(Debug, Args)]
#[command(next_help_heading = "Fabric")]
pub struct FabricArgs {
    /// Fabric: preset (`fabric list`), spec (TOML), NCCL topology (XML), `nvidia-smi topo -m`
    #[arg(long, value_name = "NAME|FILE")]
    pub fabric: String,
    #[command(flatten)]
    pub size: ClusterArgs,
    /// Ranks per GPU or MIG instance under MPS, 1 to 48; default: 1
    ///
    /// These ranks share the memory, links, SMs and copy engines of the GPU.
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=MPS_CLIENTS))]
    pub ranks_per_gpu: u32,
    /// Location of send and receive buffers; default: device
    ///
    /// `device`: GPU memory. `pinned`, `pageable`: host memory. `managed`: unified memory, whose pages start on the CPU
    /// and move to the GPU when first read, at the rate of a prefetch. `grace`: CPU memory over NVLink-C2C.
    /// `peer=gpu0`: memory of another GPU.
    #[arg(long, value_name = "PLACE", default_value = "device", hide_default_value = true)]
    pub buffers: Buffers,
}

/// Location of buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// Location that needs no device name.
    Place(BufferLocation),
    /// Memory of the named GPU.
    Peer(String),
}

impl FromStr for Buffers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self::Place(match text {
            "device" => BufferLocation::Device,
            "pinned" => BufferLocation::Pinned,
            "pageable" => BufferLocation::Pageable,
            "grace" => BufferLocation::Grace,
            "managed" => BufferLocation::Managed,
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

/// Maximum number of MPS clients per GPU (NVIDIA Multi-Process Service, "Volta MPS client limit").
const MPS_CLIENTS: i64 = 48;

/// Help of `--network` in a line.
pub(super) const NETWORK_HELP: &str =
    "Network between hosts: a kind and settings, e.g. `rail,nics_per_node=8,nic=400Gb/s`";

/// Help of `--network` with all kinds of networks and their keys.
pub(super) fn network_long_help() -> String {
    format!("{NETWORK_HELP}\n\n{}", NetworkSpec::help())
}

/// Size and settings of the fabric.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Fabric")]
pub struct ClusterArgs {
    /// Number of hosts; a preset or file of one host is replicated
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    pub nodes: Option<u32>,
    /// GPUs in use per host; default: all
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    pub gpus: Option<u32>,
    /// Network between hosts
    #[arg(long, value_name = "KIND[,key=value…]", help = NETWORK_HELP, long_help = network_long_help())]
    pub network: Option<NetworkSpec>,
    /// GPU model if the fabric file has none: a name of `list gpus`
    ///
    /// The name that nvidia-smi or rocm-smi prints is accepted too.
    #[arg(long, value_name = "MODEL")]
    pub gpu_model: Option<String>,
    /// Split a GPU into MIG instances, for example `gpu0=3g.71gb,4g.71gb`; may be repeated
    ///
    /// Each instance is a rank in place of the GPU. To split several GPUs: `gpu[0-7]=7g.141gb`.
    #[arg(long, value_name = "GPU=PROFILE[,…]")]
    pub mig: Vec<Partition>,
    /// Disable GPU peer-to-peer access: GPUs of a host communicate through host memory
    #[arg(long)]
    pub no_p2p: bool,
    /// Load balancing over equal-cost network paths: `averaged`, `hashed` or `hashed=SEED`
    ///
    /// `averaged` spreads each flow evenly over all equal-cost paths. `hashed` selects one path by a hash of the flow's
    /// endpoints, so flows may collide.
    #[arg(long, value_name = "MODE", default_value = "averaged", value_parser = ecmp)]
    pub ecmp: Ecmp,
    /// Disable GPUDirect RDMA: network traffic passes through host memory
    #[arg(long)]
    pub no_gdr: bool,
}

pub(super) fn parse_count(text: &str) -> Result<u32, String> {
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

/// Collective call.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Call")]
pub struct CallArgs {
    /// Collective, for example all_reduce; on `plan`, `all` for all with arbitrary sizes
    ///
    /// Values, with the meaning of nccl-tests: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all,
    /// gather, scatter, send_recv, all_to_allv (with --matrix), barrier. `halo` (with --grid) is an all_to_allv between
    /// neighbours. `dispatch` and `combine` (with --tokens, on `simulate`) exchange tokens with their experts.
    #[arg(long, value_name = "NAME", value_parser = collective_choice)]
    pub collective: Option<CollectiveChoice>,
    /// Message size, for example 4096, 64K, 64KiB or 64KB (64,000 bytes)
    ///
    /// The definition is that of nccl-tests: the larger of a rank's send and receive buffers. For all_to_allv it is the
    /// total that the matrix is scaled to; for halo, the size of a face.
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, conflicts_with = "sizes")]
    pub bytes: Option<Bytes>,
    /// Several message sizes: ranges, both ends included, or a list as in 64KiB,1MiB [default: 1KiB..1GiB by factors of 2]
    #[arg(long, value_name = "A..B[:FACTOR][,C…]", allow_negative_numbers = true)]
    pub sizes: Option<Sizes>,
    /// Element type, for example f32 or bf16
    ///
    /// Sizes are rounded down to whole elements, as in nccl-tests. Without a type, sizes are used as given.
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<DataType>,
    /// Reduction: sum, prod, max or min
    ///
    /// All are bound by memory bandwidth and have the same predicted time.
    #[arg(long, value_name = "OP", default_value = "sum")]
    pub op: ReduceOp,
    /// Root rank of broadcast, reduce, gather and scatter
    #[arg(long, value_name = "RANK", allow_negative_numbers = true, default_value_t = 0)]
    pub root: u32,
    /// Use the same buffer for input and output
    #[arg(long)]
    pub in_place: bool,
    /// Matrix of all_to_allv: CSV of sizes, a line per sender, a column per receiver
    #[arg(long, value_name = "FILE")]
    pub matrix: Option<PathBuf>,
    /// Rank grid of halo: one to three side lengths, fastest-varying first, for example 4x2x1
    #[arg(long, value_name = "X[xY[xZ]]", conflicts_with = "matrix")]
    pub grid: Option<Grid>,
    /// Periodic grid boundaries: the ends of each dimension are neighbours
    #[arg(long)]
    pub periodic: bool,
}

impl CallArgs {
    /// Boundary condition of the grid.
    pub fn boundary(&self) -> Boundary {
        if self.periodic { Boundary::Periodic } else { Boundary::Open }
    }

    /// Rounds a size down to whole elements of the type, if a type is given.
    ///
    /// # Errors
    ///
    /// The size is larger than zero and smaller than one element.
    pub fn round_to_elements(&self, size: Bytes) -> Result<Bytes, Failure> {
        let Some(element) = self.dtype else { return Ok(size) };
        let rounded = Bytes(size.0 - size.0 % element.size().0);
        if rounded.0 == 0 && size.0 > 0 {
            let message = format!("{size} is less than one element of {element} ({})", element.size());
            return Err(Failure::input(message));
        }
        Ok(rounded)
    }
}

/// One collective, or all that can be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveChoice {
    /// A single collective.
    One(Collective),
    /// An all_to_allv between neighbours on a grid.
    Halo,
    /// Dispatch of tokens to their experts, or combine of the experts' outputs.
    Exchange(Operation),
    /// All collectives with arbitrary sizes.
    All,
}

/// Parses a collective name, `halo`, `dispatch`, `combine` or `all`.
///
/// # Errors
/// A text that names the unknown collective.
pub(super) fn collective_choice(name: &str) -> Result<CollectiveChoice, String> {
    match name {
        "all" => return Ok(CollectiveChoice::All),
        "halo" => return Ok(CollectiveChoice::Halo),
        "dispatch" => return Ok(CollectiveChoice::Exchange(Operation::Dispatch)),
        "combine" => return Ok(CollectiveChoice::Exchange(Operation::Combine)),
        _ => {}
    }
    name.parse().map(CollectiveChoice::One).map_err(|error: fabricast_sim::schedule::UnknownName| error.to_string())
}

/// Strategy to run, or candidates to choose from.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Strategy")]
pub struct StrategyArgs {
    /// Algorithms, comma-separated, for example ring or tree; docs/algorithms.md lists them
    #[arg(long, value_name = "A[,A…]", value_delimiter = ',')]
    pub algorithm: Vec<Algorithm>,
    /// Protocols, comma-separated: ll, ll128, simple, symmetric, copy_engine
    #[arg(long, value_name = "P[,P…]", value_delimiter = ',')]
    pub protocol: Vec<Protocol>,
    /// Numbers of channels, comma-separated, 1 to 1024; a channel is one thread block
    #[arg(long, value_name = "N[,N…]", value_delimiter = ',', allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub channels: Vec<u16>,
    /// Maximum chunk size of a step, for example 512KiB; default: the protocol's
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub chunk: Option<Bytes>,
    /// Trees of tree_packing: at most K per root, 1 to 256; optimal; or widened-2, widened-4, widened-16, which are
    /// shallower and use a part of the bandwidth; default: the fastest
    #[arg(long, value_name = "K|VARIANT", allow_negative_numbers = true)]
    pub trees: Option<TreeVariant>,
    /// Disable NVLink SHARP (reduction and multicast in NVSwitches)
    #[arg(long)]
    pub no_nvls: bool,
}

/// Cost profile and launch mode.
#[derive(Debug, Args)]
#[command(next_help_heading = "Software")]
pub struct CostArgs {
    /// Cost profile: `ideal`, a shipped name, or a file; default: best match for the GPUs
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: Option<String>,
    /// Launch mode of calls
    #[arg(long, value_enum, default_value_t)]
    pub launch: Launch,
    /// Process layout: one process or thread per GPU, or one process per host
    #[arg(long, value_enum, default_value_t)]
    pub processes: Processes,
}

/// Launch mode of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Launch {
    /// From a CUDA graph
    #[default]
    Graph,
    /// On a stream
    Stream,
}

/// Process layout of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Processes {
    /// One process or thread per GPU
    #[default]
    #[value(name = "per_gpu")]
    PerGpu,
    /// One process for all GPUs of a host
    Single,
}

/// Verification of schedules.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Skip the proof that schedules compute their collective without races and deadlocks
    #[arg(long)]
    pub no_verify: bool,
}

/// Faults of the fabric.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "What if")]
pub struct WhatIfArgs {
    /// Take a link (`a->b`, `a-b`) or a device out of service; may be repeated
    #[arg(long, value_name = "LINK|DEVICE")]
    pub fail: Vec<String>,
    /// Reduce a link to a fraction of its bandwidth, e.g. `gpu0-nvswitch0=0.5`; may be repeated
    #[arg(long, value_name = "LINK=FACTOR")]
    pub slow: Vec<String>,
}
