//! Threads, channels and chunk size of a call.
//!
//! NCCL 2.30.7 `src/enqueue.cc`: `topoGetAlgoInfo` (threads and channels by thresholds), `scheduleCollTasksToPlan`
//! (channels that receive work, by their traffic), `calcCollChunking` (chunk and loop).

use fabricast_topologies::{Bandwidth, Bytes};

use super::communicator::Communicator;
use super::index::{Algo, Function, Proto};
use super::settings::Settings;
use super::table::Table;
use super::time::Request;
use super::version::{Deal, RingThreads, TreeThreads, Version};

/// Threads per warp.
const WARP: u32 = 32;
/// Maximum number of threads per block (NCCL_MAX_NTHREADS).
const MOST_THREADS: u32 = 640;
/// Slots of a connection's buffer (NCCL_STEPS).
const SLOTS: u64 = 8;

/// Launch parameters of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Number of thread blocks that receive work.
    pub channels: u16,
    /// Number of thread blocks that the thresholds allow.
    pub most_channels: u16,
    /// Threads per block.
    pub threads: u16,
    /// Bytes per chunk of a channel.
    pub chunk: Bytes,
    /// Number of loops of the busiest channel.
    pub loops: u64,
}

/// Maximum number of threads of an algorithm and protocol (`src/graph/tuning.cc`), logged by NCCL as `Max NThreads`.
#[must_use]
pub fn most_threads(
    communicator: &Communicator,
    version: Version,
    settings: &Settings,
    algo: Algo,
    proto: Proto,
) -> u32 {
    // Bandwidth of a PCIe 3 link, GB/s (PCI_BW, src/graph/topo.h).
    const PCI: f64 = 12.0;
    let ring = &communicator.graphs.ring;
    let slow = ring.inside.gbps() * f64::from(ring.channels) <= PCI;
    match (algo, proto) {
        (Algo::Ring, Proto::Simple) if slow && version.rules().ring_threads == RingThreads::BySpeed => {
            settings.threads(256)
        }
        (Algo::Ring | Algo::Tree, Proto::Simple | Proto::Ll) => settings.threads(512),
        (Algo::Ring | Algo::Tree, Proto::Ll128) => settings.ll128_threads(MOST_THREADS),
        (Algo::Pat, _) => 0,
        (_, Proto::Simple) => MOST_THREADS,
        _ => 0,
    }
}

/// Minimum bytes per thread that justify a further channel or further threads.
fn threshold(ranks: u32, settings: &Settings, algo: Algo, proto: Proto) -> u64 {
    let given = settings.thread_threshold(algo, proto);
    given.unwrap_or(match (algo, proto) {
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
    version: Version,
    settings: &Settings,
    table: &Table,
    request: &Request,
    way: (Algo, Proto),
) -> Kernel {
    kernel_on(communicator, version, settings, table, request, way, None)
}

/// Variant of [`kernel`] with a maximum number of channels set by a tuner. It replaces the number that the thresholds
/// allow; the number of threads still follows from the thresholds (`ncclGetAlgoInfo`).
#[must_use]
pub fn kernel_on(
    communicator: &Communicator,
    version: Version,
    settings: &Settings,
    table: &Table,
    request: &Request,
    (algo, proto): (Algo, Proto),
    tuned: Option<u16>,
) -> Kernel {
    let bytes = request.bytes.0;
    let all = communicator.channels(settings);
    let threshold = threshold(communicator.ranks, settings, algo, proto);
    let mut threads = most_threads(communicator, version, settings, algo, proto);
    let mut channels = all;
    if algo.is_nvls() {
        channels = communicator.nvls(version, settings).channels;
    } else {
        let wanted = |channels: u16, threads: u32| u64::from(channels) * u64::from(threads) * threshold;
        while channels >= 2 && bytes < wanted(channels, threads) {
            channels -= 1;
        }
        while bytes < wanted(channels, threads) && threads > 0 && threads.is_multiple_of(128) {
            threads /= 2;
        }
    }
    if proto == Proto::Simple {
        // Additional warps that wait while the others copy.
        threads += match algo {
            Algo::Ring => WARP,
            Algo::Tree => 4 * WARP,
            _ => 0,
        };
    }
    threads = threads.max(3 * WARP);
    let whole = match algo {
        Algo::Tree => version.rules().tree_threads == TreeThreads::All,
        _ => algo == Algo::Pat,
    };
    if whole {
        threads = MOST_THREADS;
    }
    let channels = tuned.unwrap_or(channels);
    let split = Split::new(communicator, version, request, proto, channels);
    let shape = Chunking { communicator, version, settings, table, request, algo, proto };
    let chunk = shape.chunk(split.most_bytes);
    let round = chunk.max(1).saturating_mul(shape.chunks_per_loop());
    Kernel {
        channels: split.channels,
        most_channels: channels,
        threads: threads as u16,
        chunk: Bytes(chunk),
        loops: split.most_bytes.div_ceil(round).max(1),
    }
}

/// Returns how many of `channels` channels receive work, by their traffic, without other limits (for example with a
/// tuner's number).
#[must_use]
pub fn working_channels(
    communicator: &Communicator,
    version: Version,
    request: &Request,
    proto: Proto,
    channels: u16,
) -> u16 {
    Split::new(communicator, version, request, proto, channels).channels
}

/// Distribution of a call's bytes over channels.
struct Split {
    channels: u16,
    /// Bytes (of the call's size) on the channel with the most.
    most_bytes: u64,
}

impl Split {
    fn new(communicator: &Communicator, version: Version, request: &Request, proto: Proto, most_channels: u16) -> Self {
        let ranks = u64::from(communicator.ranks.max(1));
        let most = u64::from(most_channels.max(1));
        // Bytes of a rank's own part, and bytes through a channel per byte of it.
        let (own, per_byte) = match request.function {
            Function::AllReduce => (request.bytes.0, 2),
            Function::AllGather | Function::ReduceScatter => (request.bytes.0.div_ceil(ranks), ranks),
            Function::Broadcast | Function::Reduce => (request.bytes.0, 1),
        };
        let whole = if request.function.is_blockwise() { ranks } else { 1 };
        let (channels, bytes) = match version.rules().deal {
            Deal::Evenly => evenly(own, most),
            Deal::Cells => by_cells(own, most, per_byte),
            Deal::Traffic(least) if proto == Proto::Ll => by_traffic(own, most, 4 * per_byte, least.0),
            Deal::Traffic(least) => by_traffic(own, most, per_byte, least.0),
        };
        Self { channels: channels as u16, most_bytes: bytes.min(own).saturating_mul(whole) }
    }
}

/// Granularity of a channel's part, bytes.
const GRAIN: u64 = 16;

/// Number of channels that receive work, and bytes of the largest: equal parts in multiples of 16 bytes.
fn evenly(own: u64, most: u64) -> (u64, u64) {
    let each = own.div_ceil(most).div_ceil(GRAIN).max(1) * GRAIN;
    (own.div_ceil(each).max(1), each)
}

/// Variant of [`evenly`] with cells of 16 bytes and at least 512 bytes of traffic per channel.
fn by_cells(own: u64, most: u64, per_byte: u64) -> (u64, u64) {
    const LEAST: u64 = 512;
    let share = (own.saturating_mul(per_byte) / most).max(LEAST);
    let per_cell = GRAIN * per_byte;
    let cells = own.div_ceil(GRAIN).max(1);
    let each = cells.min(share.div_ceil(per_cell));
    let first = if most == 1 { cells } else { cells.min(share / per_cell) };
    let (cells, channels) = deal(cells, most, first, each);
    (channels, cells * GRAIN)
}

/// Variant of [`evenly`] with cells of the minimum traffic of a channel.
fn by_traffic(own: u64, most: u64, per_byte: u64, least: u64) -> (u64, u64) {
    let traffic = own.saturating_mul(per_byte).max(least);
    let per_channel = (traffic / most).div_ceil(GRAIN) * GRAIN;
    let cell = least.div_ceil(per_byte).div_ceil(GRAIN) * GRAIN;
    let cells = own.div_ceil(cell).max(1);
    let each = cells.min(per_channel.div_ceil(cell * per_byte)).max(1);
    let first = if most == 1 { cells } else { each };
    let (most_cells, channels) = deal(cells, most, first, each);
    (channels, most_cells.saturating_mul(cell))
}

/// Number of cells of the largest channel, and number of channels. The first channel has `first` cells, the following
/// ones `each`, the last the remainder. If this needs more than `most` channels, all but the first share the remaining
/// cells equally, and the last also has the rest of the division.
fn deal(cells: u64, most: u64, first: u64, each: u64) -> (u64, u64) {
    let left = cells - first;
    let lead = u64::from(first > 0);
    let channels = lead + left.div_ceil(each);
    if channels <= most {
        return (first.max(each.min(left)), channels);
    }
    let between = most - lead;
    let share = left / between;
    (first.max(share + left % between), most)
}

struct Chunking<'a> {
    communicator: &'a Communicator,
    version: Version,
    settings: &'a Settings,
    table: &'a Table,
    request: &'a Request,
    algo: Algo,
    proto: Proto,
}

impl Chunking<'_> {
    /// Chunk size of a channel with `bytes` of the call's size.
    fn chunk(&self, bytes: u64) -> u64 {
        let slot = self.settings.buffer(self.proto).0 / SLOTS;
        let most = match (self.algo, self.proto) {
            (Algo::Ring, Proto::Simple) if self.is_chain() => slot,
            // Four slots per chunk, two per slice (ALLREDUCE_CHUNKSTEPS, src/include/collectives.h).
            (Algo::Ring, Proto::Simple) => 4 * slot,
            // Half of a line is flags.
            (_, Proto::Ll) => slot / 2,
            // 15 of 16 words of a line are data.
            (_, Proto::Ll128) => slot / 16 * 15,
            _ => slot,
        };
        let chunk = match self.algo {
            Algo::Nvls => self.nvls(most, bytes),
            Algo::NvlsTree => self.nvls_tree(bytes),
            Algo::Tree if self.proto == Proto::Ll128 => self.tree_ll128(most, bytes),
            Algo::Pat => {
                let rounds = if self.request.function == Function::AllGather { 32 } else { 16 };
                halved(most, 64 << 10, |chunk| chunk * rounds > bytes)
            }
            _ => most,
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

    fn nvls(&self, most: u64, bytes: u64) -> u64 {
        const SLOW: Bandwidth = Bandwidth(150_000_000_000);
        let speed = self.table.cell(Function::AllReduce, Algo::Nvls, Proto::Simple).bandwidth;
        let slow = self.communicator.nodes > 1 && speed < SLOW;
        let limit = if slow { 32 << 10 } else { self.communicator.nvls(self.version, self.settings).chunk.0 };
        lowered(most.min(limit), bytes, self.heads(), &[(64, 64 << 10), (8, 32 << 10), (2, 16 << 10)])
    }

    fn nvls_tree(&self, bytes: u64) -> u64 {
        let shape = self.communicator.nvls(self.version, self.settings);
        let steps = [(32, 256 << 10), (16, 128 << 10), (4, 64 << 10), (1, 32 << 10)];
        lowered(shape.chunk.0.min(shape.tree_chunk.0), bytes, self.heads(), &steps)
    }

    fn tree_ll128(&self, most: u64, bytes: u64) -> u64 {
        let per_node = self.communicator.ranks_per_node();
        let steps = 1.0 + f64::from(self.communicator.nodes.max(1).ilog2()) + 0.1 * per_node;
        let few = |chunk: u64, rounds: f64| ((bytes / chunk.max(1)) as f64) < steps * rounds / per_node;
        let chunk = halved(most, 128 << 10, |chunk| few(chunk, 64.0));
        halved(chunk, 32 << 10, |chunk| few(chunk, 16.0))
    }

    /// Chunks per loop of a channel: one per rank in a ring, one per head with NVLS.
    fn chunks_per_loop(&self) -> u64 {
        match self.algo {
            Algo::Ring if !self.is_chain() => u64::from(self.communicator.ranks),
            Algo::Nvls | Algo::NvlsTree => self.heads(),
            _ => 1,
        }
    }
}

/// Halves a chunk while it is above `floor` and the test holds.
fn halved(chunk: u64, floor: u64, test: impl Fn(u64) -> bool) -> u64 {
    let mut chunk = chunk;
    while chunk > floor && test(chunk) {
        chunk /= 2;
    }
    chunk
}

/// Lowers a chunk to each limit whose number of rounds is not filled by the bytes.
fn lowered(chunk: u64, bytes: u64, heads: u64, limits: &[(u64, u64)]) -> u64 {
    limits.iter().fold(
        chunk,
        |chunk, &(rounds, limit)| {
            if bytes < rounds * heads * chunk { chunk.min(limit) } else { chunk }
        },
    )
}
