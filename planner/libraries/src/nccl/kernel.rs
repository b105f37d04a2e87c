//! Prediction of a call's launch parameters: threads, channels and chunk size.
//!
//! Source: NCCL 2.30.7 `src/enqueue.cc`: `topoGetAlgoInfo` (threads and channels by thresholds),
//! `scheduleCollTasksToPlan` (channels that receive work, by traffic), `calcCollChunking` (chunk and loop).

use fabricast_topologies::{Bandwidth, Bytes};

use super::communicator::Communicator;
use super::index::{Algo, AlgoProto, Function, Proto};
use super::settings::Settings;
use super::table::CostTable;
use super::time::Request;
use super::version::{ChannelSplit, NcclVersion, RingThreads, TreeThreads};

/// Number of threads per warp.
const WARP: u32 = 32;
/// Maximum number of threads per block (NCCL_MAX_NTHREADS).
const MAX_THREADS: u32 = 640;
/// Number of slots of a connection's buffer (NCCL_STEPS).
const SLOTS: u64 = 8;

/// Launch parameters of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Number of thread blocks that receive work.
    pub channels: u16,
    /// Number of thread blocks that the thresholds allow.
    pub max_channels: u16,
    /// Number of threads per block.
    pub threads: u16,
    /// Bytes per chunk of a channel.
    pub chunk: Bytes,
    /// Number of loops of the channel with the most work.
    pub loops: u64,
}

/// Maximum number of threads of an algorithm and protocol (`src/graph/tuning.cc`), logged by NCCL as `Max NThreads`.
#[must_use]
pub fn max_threads(
    communicator: &Communicator,
    version: NcclVersion,
    settings: &Settings,
    algo: Algo,
    proto: Proto,
) -> u32 {
    // Bandwidth of a PCIe 3 link, GB/s (PCI_BW, src/graph/topo.h).
    const PCI: f64 = 12.0;
    let ring = &communicator.graphs.ring;
    let slow = ring.intra_bandwidth.gb_per_s() * f64::from(ring.channels) <= PCI;
    match (algo, proto) {
        (Algo::Ring, Proto::Simple) if slow && version.rules().ring_threads == RingThreads::BySpeed => {
            settings.threads(256)
        }
        (Algo::Ring | Algo::Tree, Proto::Simple | Proto::Ll) => settings.threads(512),
        (Algo::Ring | Algo::Tree, Proto::Ll128) => settings.ll128_threads(MAX_THREADS),
        (Algo::Pat, _) => 0,
        (_, Proto::Simple) => MAX_THREADS,
        _ => 0,
    }
}

/// Minimum bytes per thread that justify an additional channel or additional threads.
fn threshold(ranks: u32, settings: &Settings, algo: Algo, proto: Proto) -> u64 {
    let setting = settings.thread_threshold(algo, proto);
    setting.unwrap_or(match (algo, proto) {
        (Algo::Ring, Proto::Ll) => 8 * u64::from(ranks),
        (_, Proto::Ll | Proto::Ll128) => 8,
        (Algo::CollNetDirect | Algo::CollNetChain, Proto::Simple) => 512,
        (_, Proto::Simple) => 64,
    })
}

/// Predicts the launch parameters of a call for a given algorithm and protocol.
#[must_use]
pub fn kernel(
    communicator: &Communicator,
    version: NcclVersion,
    settings: &Settings,
    table: &CostTable,
    request: &Request,
    strategy: AlgoProto,
) -> Kernel {
    kernel_with_max_channels(communicator, version, settings, table, request, strategy, None)
}

/// Variant of [`kernel`] with a maximum number of channels set by a tuner, which replaces the number that the
/// thresholds allow. The number of threads still follows from the thresholds (`ncclGetAlgoInfo`).
#[must_use]
pub fn kernel_with_max_channels(
    communicator: &Communicator,
    version: NcclVersion,
    settings: &Settings,
    table: &CostTable,
    request: &Request,
    strategy: AlgoProto,
    tuned: Option<u16>,
) -> Kernel {
    let AlgoProto { algo, proto } = strategy;
    let bytes = request.bytes.0;
    let available = communicator.channels(settings);
    let threshold = threshold(communicator.ranks, settings, algo, proto);
    let mut threads = max_threads(communicator, version, settings, algo, proto);
    let mut channels = available;
    if algo.is_nvls() {
        channels = communicator.nvls_shape(version, settings).channels;
    } else {
        channels = justified_channels(bytes, channels, threads, threshold);
        while bytes < justified_bytes(channels, threads, threshold) && threads > 0 && threads.is_multiple_of(128) {
            threads /= 2;
        }
    }
    if proto == Proto::Simple {
        // Additional warps that synchronize while the other warps copy.
        threads += match algo {
            Algo::Ring => WARP,
            Algo::Tree => 4 * WARP,
            _ => 0,
        };
    }
    threads = threads.max(3 * WARP);
    let full_block = match algo {
        Algo::Tree => version.rules().tree_threads == TreeThreads::All,
        _ => algo == Algo::Pat,
    };
    if full_block {
        threads = MAX_THREADS;
    }
    let channels = tuned.unwrap_or(channels);
    let split = Split::new(communicator, version, request, proto, channels);
    let shape = Chunking { communicator, version, settings, table, request, algo, proto };
    let chunk = shape.chunk(split.max_bytes);
    let round = chunk.max(1).saturating_mul(shape.chunks_per_loop());
    Kernel {
        channels: split.channels,
        max_channels: channels,
        threads: threads as u16,
        chunk: Bytes(chunk),
        loops: split.max_bytes.div_ceil(round).max(1),
    }
}

/// Minimum message size, in bytes, that justifies `channels` channels of `threads` threads, at `threshold` bytes per
/// thread.
fn justified_bytes(channels: u16, threads: u32, threshold: u64) -> u64 {
    u64::from(channels) * u64::from(threads) * threshold
}

/// Number of channels, at most `channels`, that a message of `bytes` justifies at `threshold` bytes per thread.
pub(crate) fn justified_channels(bytes: u64, channels: u16, threads: u32, threshold: u64) -> u16 {
    let mut channels = channels;
    while channels >= 2 && bytes < justified_bytes(channels, threads, threshold) {
        channels -= 1;
    }
    channels
}

/// Returns the number of channels, of `channels` allowed ones, that receive work by the traffic of the call. No other
/// limit applies (for example with a channel count set by a tuner).
#[must_use]
pub fn working_channels(
    communicator: &Communicator,
    version: NcclVersion,
    request: &Request,
    proto: Proto,
    channels: u16,
) -> u16 {
    Split::new(communicator, version, request, proto, channels).channels
}

/// Variant of [`working_channels`] for any number of ranks and any rule of division.
pub(crate) fn channels_with_work(
    split: ChannelSplit,
    ranks: u32,
    request: &Request,
    proto: Proto,
    channels: u16,
) -> u16 {
    Split::by_rule(split, ranks, request, proto, channels).channels
}

/// Division of a call's bytes over channels.
struct Split {
    channels: u16,
    /// Bytes on the channel with the most bytes, as a part of the call's size.
    max_bytes: u64,
}

impl Split {
    fn new(
        communicator: &Communicator,
        version: NcclVersion,
        request: &Request,
        proto: Proto,
        max_channels: u16,
    ) -> Self {
        Self::by_rule(version.rules().channel_split, communicator.ranks, request, proto, max_channels)
    }

    fn by_rule(rule: ChannelSplit, ranks: u32, request: &Request, proto: Proto, max_channels: u16) -> Self {
        let ranks = u64::from(ranks.max(1));
        let max = u64::from(max_channels.max(1));
        // Bytes of a rank's own part, and channel traffic in bytes per byte of this part.
        let (rank_bytes, per_byte) = match request.function {
            Function::AllReduce => (request.bytes.0, 2),
            Function::AllGather | Function::ReduceScatter => (request.bytes.0.div_ceil(ranks), ranks),
            Function::Broadcast | Function::Reduce => (request.bytes.0, 1),
        };
        let blocks = if request.function.is_blockwise() { ranks } else { 1 };
        let part = match rule {
            ChannelSplit::Evenly => split_evenly(rank_bytes, max),
            ChannelSplit::Cells => split_by_cells(rank_bytes, max, per_byte),
            ChannelSplit::Traffic(min_traffic) if proto == Proto::Ll => {
                split_by_traffic(rank_bytes, max, 4 * per_byte, min_traffic.0)
            }
            ChannelSplit::Traffic(min_traffic) => split_by_traffic(rank_bytes, max, per_byte, min_traffic.0),
        };
        Self { channels: part.channels as u16, max_bytes: part.max.min(rank_bytes).saturating_mul(blocks) }
    }
}

/// Granularity of a channel's part, bytes.
const GRAIN: u64 = 16;

/// Division of a rank's bytes, or of cells of several bytes, over channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    /// Number of channels that receive work.
    channels: u64,
    /// Size of the largest part, in bytes or cells.
    max: u64,
}

/// Divides a rank's bytes equally over channels, in multiples of 16 bytes; the parts are in bytes.
fn split_evenly(rank_bytes: u64, max_channels: u64) -> Parts {
    let each = rank_bytes.div_ceil(max_channels).div_ceil(GRAIN).max(1) * GRAIN;
    Parts { channels: rank_bytes.div_ceil(each).max(1), max: each }
}

/// Variant of [`split_evenly`] with cells of 16 bytes and at least 512 bytes of traffic per channel.
fn split_by_cells(rank_bytes: u64, max_channels: u64, per_byte: u64) -> Parts {
    const MIN_TRAFFIC: u64 = 512;
    let share = (rank_bytes.saturating_mul(per_byte) / max_channels).max(MIN_TRAFFIC);
    let per_cell = GRAIN * per_byte;
    let cells = rank_bytes.div_ceil(GRAIN).max(1);
    let each = cells.min(share.div_ceil(per_cell));
    let first = if max_channels == 1 { cells } else { cells.min(share / per_cell) };
    let parts = distribute_cells(cells, max_channels, first, each);
    Parts { max: parts.max * GRAIN, ..parts }
}

/// Variant of [`split_evenly`] with cells of the minimum traffic of a channel.
fn split_by_traffic(rank_bytes: u64, max_channels: u64, per_byte: u64, min_traffic: u64) -> Parts {
    let traffic = rank_bytes.saturating_mul(per_byte).max(min_traffic);
    let per_channel = (traffic / max_channels).div_ceil(GRAIN) * GRAIN;
    let cell = min_traffic.div_ceil(per_byte).div_ceil(GRAIN) * GRAIN;
    let cells = rank_bytes.div_ceil(cell).max(1);
    let each = cells.min(per_channel.div_ceil(cell * per_byte)).max(1);
    let first = if max_channels == 1 { cells } else { each };
    let parts = distribute_cells(cells, max_channels, first, each);
    Parts { max: parts.max.saturating_mul(cell), ..parts }
}

/// Divides cells over channels; the parts are in cells. The first channel has `first` cells, the following ones `each`,
/// the last the remainder. If this needs more than `max_channels` channels, all channels but the first share the
/// remaining cells equally, and the last one also has the remainder of that division.
fn distribute_cells(cells: u64, max_channels: u64, first: u64, each: u64) -> Parts {
    let remaining = cells - first;
    let lead = u64::from(first > 0);
    let channels = lead + remaining.div_ceil(each);
    if channels <= max_channels {
        return Parts { channels, max: first.max(each.min(remaining)) };
    }
    let others = max_channels - lead;
    let share = remaining / others;
    Parts { channels: max_channels, max: first.max(share + remaining % others) }
}

struct Chunking<'a> {
    communicator: &'a Communicator,
    version: NcclVersion,
    settings: &'a Settings,
    table: &'a CostTable,
    request: &'a Request,
    algo: Algo,
    proto: Proto,
}

impl Chunking<'_> {
    /// Chunk size in bytes of a channel that processes `bytes` bytes of the call's size.
    fn chunk(&self, bytes: u64) -> u64 {
        let slot = self.settings.buffer(self.proto).0 / SLOTS;
        let max_chunk = match (self.algo, self.proto) {
            (Algo::Ring, Proto::Simple) if self.is_chain() => slot,
            // A chunk has four slots, and a slice two (ALLREDUCE_CHUNKSTEPS, src/include/collectives.h).
            (Algo::Ring, Proto::Simple) => 4 * slot,
            // Half of each line is flags.
            (_, Proto::Ll) => slot / 2,
            // 15 of the 16 words of each line are data.
            (_, Proto::Ll128) => slot / 16 * 15,
            _ => slot,
        };
        let chunk = match self.algo {
            Algo::Nvls => self.nvls(max_chunk, bytes),
            Algo::NvlsTree => self.nvls_tree(bytes),
            Algo::CollNetChain => self.collnet_chain(max_chunk, bytes),
            Algo::Tree if self.proto == Proto::Ll128 => self.tree_ll128(max_chunk, bytes),
            Algo::Pat => {
                let rounds = if self.request.function == Function::AllGather { 32 } else { 16 };
                halve_while(max_chunk, 64 << 10, |chunk| chunk * rounds > bytes)
            }
            _ => max_chunk,
        };
        let grain = match self.proto {
            Proto::Ll => 16,
            Proto::Ll128 => 1920,
            Proto::Simple => 512,
        };
        chunk / grain * grain
    }

    fn is_chain(&self) -> bool {
        matches!(self.request.function, Function::Broadcast | Function::Reduce)
    }

    fn heads(&self) -> u64 {
        u64::from(self.communicator.nvls_heads()).max(1)
    }

    fn nvls(&self, max_chunk: u64, bytes: u64) -> u64 {
        const SLOW: Bandwidth = Bandwidth(150_000_000_000);
        let speed = self.table.cell(Function::AllReduce, Algo::Nvls, Proto::Simple).bandwidth;
        let slow = self.communicator.nodes > 1 && speed < SLOW;
        let limit = if slow { 32 << 10 } else { self.communicator.nvls_shape(self.version, self.settings).chunk.0 };
        let limits = [
            ChunkLimit { rounds: 64, chunk: 64 << 10 },
            ChunkLimit { rounds: 8, chunk: 32 << 10 },
            ChunkLimit { rounds: 2, chunk: 16 << 10 },
        ];
        lower_to_limits(max_chunk.min(limit), bytes, self.heads(), &limits)
    }

    fn nvls_tree(&self, bytes: u64) -> u64 {
        let shape = self.communicator.nvls_shape(self.version, self.settings);
        let limits = [
            ChunkLimit { rounds: 32, chunk: 256 << 10 },
            ChunkLimit { rounds: 16, chunk: 128 << 10 },
            ChunkLimit { rounds: 4, chunk: 64 << 10 },
            ChunkLimit { rounds: 1, chunk: 32 << 10 },
        ];
        lower_to_limits(shape.chunk.0.min(shape.tree_chunk.0), bytes, self.heads(), &limits)
    }

    /// Chunk size of CollNetChain (2.30.7 `src/enqueue.cc`, `calcCollChunking`); the chain has as many ranks as a node.
    fn collnet_chain(&self, max_chunk: u64, bytes: u64) -> u64 {
        let limits = [
            ChunkLimit { rounds: 64, chunk: 128 << 10 },
            ChunkLimit { rounds: 8, chunk: 64 << 10 },
            ChunkLimit { rounds: 1, chunk: 32 << 10 },
        ];
        let depth = u64::from(self.communicator.max_ranks_per_node);
        limits.iter().fold(max_chunk.min(256 << 10), |chunk, limit| {
            halve_while(chunk, limit.chunk, |chunk| bytes / chunk < depth * limit.rounds)
        })
    }

    fn tree_ll128(&self, max_chunk: u64, bytes: u64) -> u64 {
        let per_node = self.communicator.ranks_per_node();
        let steps = 1.0 + f64::from(self.communicator.nodes.max(1).ilog2()) + 0.1 * per_node;
        let has_few_rounds = |chunk: u64, rounds: f64| ((bytes / chunk.max(1)) as f64) < steps * rounds / per_node;
        let chunk = halve_while(max_chunk, 128 << 10, |chunk| has_few_rounds(chunk, 64.0));
        halve_while(chunk, 32 << 10, |chunk| has_few_rounds(chunk, 16.0))
    }

    /// Number of chunks per loop of a channel: one per rank in a ring, one per head with NVLS.
    fn chunks_per_loop(&self) -> u64 {
        match self.algo {
            Algo::Ring if !self.is_chain() => u64::from(self.communicator.ranks),
            Algo::Nvls | Algo::NvlsTree => self.heads(),
            _ => 1,
        }
    }
}

/// Halves a chunk size, in bytes, while it is above `floor` and `test` is true.
fn halve_while(chunk: u64, floor: u64, test: impl Fn(u64) -> bool) -> u64 {
    let mut chunk = chunk;
    while chunk > floor && test(chunk) {
        chunk /= 2;
    }
    chunk
}

/// Limit of the chunk size of calls that have fewer bytes than a number of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChunkLimit {
    /// Number of rounds; one round has one chunk per head.
    rounds: u64,
    /// Maximum chunk size, in bytes.
    chunk: u64,
}

/// Lowers a chunk size, in bytes, to each element of `limits` whose number of rounds needs more than `bytes` bytes.
fn lower_to_limits(chunk: u64, bytes: u64, heads: u64, limits: &[ChunkLimit]) -> u64 {
    limits.iter().fold(
        chunk,
        |chunk, limit| {
            if bytes < limit.rounds * heads * chunk { chunk.min(limit.chunk) } else { chunk }
        },
    )
}
