//! Strategies (algorithm × protocol × channels × chunk), and the strategies that a fabric supports.

use std::fmt;

use fabricast_sim::profile::{Profile, Software};
use fabricast_sim::schedule::{Call, Collective, Protocol};
use fabricast_topologies::Bytes;
use serde::{Deserialize, Serialize};

use crate::abilities::{BuffersNotOnDevice, FabricCapabilities, Hosts, NoMulticast, NoPeerAccess};
use crate::algorithm::{Algorithm, Shape};
use crate::bound::InNetwork;
use crate::library::LibraryCapabilities;

/// Candidate implementation of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Strategy {
    /// Communication pattern.
    pub algorithm: Algorithm,
    /// Protocol of the transfers.
    pub protocol: Protocol,
    /// Number of channels, which are independent.
    pub channels: u16,
    /// Threads per thread block; the protocol's default if `None`.
    pub threads: Option<u16>,
    /// Maximum chunk size; the protocol's default if `None`.
    pub chunk: Option<Bytes>,
}

/// Maximum number of pieces in a stream; more do not change the result.
const MAX_PIECES: u64 = 64;

impl Strategy {
    /// Returns the shape of a call with this strategy. The chunk defaults to the profile's. Hosts have `ranks_per_node`
    /// ranks.
    #[must_use]
    pub fn shape(&self, call: Call, profile: &Profile, ranks_per_node: u32, abilities: &FabricCapabilities) -> Shape {
        let costs = profile.protocol(self.protocol);
        let bytes_per_channel = call.bytes.0 / u64::from(self.channels.max(1));
        let piece = costs.stream.filter(|_| self.algorithm == Algorithm::Tree);
        let piece = piece.map(|stream| Bytes(stream.0.max(bytes_per_channel / MAX_PIECES)));
        let chunk = self.chunk.or(match self.moves_single_slots(call.collective) {
            true => costs.slot(),
            false => costs.chunk,
        });
        // Chunks are streamed in pieces inside a host, and are sent to other hosts as a whole.
        let whole_chunk = chunk.unwrap_or(Bytes(bytes_per_channel)).min(Bytes(bytes_per_channel.max(1)));
        Shape {
            message: piece.filter(|&piece| piece < whole_chunk).map(|_| whole_chunk),
            channels: self.channels,
            threads: self.threads,
            chunk: chunk.map_or(piece, |chunk| Some(piece.map_or(chunk, |piece| piece.min(chunk)))),
            ranks_per_node,
            ranks_per_team: abilities.ranks_per_team(),
            reduction_device: profile.processor(call.collective),
            ..Shape::new(call, self.protocol)
        }
        .with_nics(self.algorithm, abilities.nics_per_host)
    }

    /// Returns true if a step moves one slot of a connection's buffer, as in double trees and along chains. Other rings
    /// move four (NCCL 2.28 src/enqueue.cc, `calcCollChunking`; ALLREDUCE_CHUNKSTEPS, BROADCAST_CHUNKSTEPS and
    /// REDUCE_CHUNKSTEPS in src/include/collectives.h).
    fn moves_single_slots(&self, collective: Collective) -> bool {
        match self.algorithm {
            Algorithm::Tree => collective == Collective::AllReduce,
            Algorithm::Ring => matches!(collective, Collective::Broadcast | Collective::Reduce),
            _ => false,
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} × {}", self.algorithm, self.protocol, self.channels)
    }
}

/// Constraints on strategies; an empty list allows everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restriction {
    /// Algorithms to consider.
    pub algorithms: Vec<Algorithm>,
    /// Protocols to consider.
    pub protocols: Vec<Protocol>,
    /// Channel counts to consider.
    pub channels: Vec<u16>,
    /// Chunk to use.
    pub chunk: Option<Bytes>,
    /// Use of reduction and multicast in switches.
    pub in_network: InNetwork,
    /// Library that has to run the strategy; `None` for any implementation.
    pub library: Option<LibraryCapabilities>,
}

impl Restriction {
    /// Returns true if a strategy for a collective satisfies the constraints.
    #[must_use]
    pub fn allows(&self, strategy: &Strategy, collective: Collective) -> bool {
        (self.algorithms.is_empty() || self.algorithms.contains(&strategy.algorithm))
            && (self.protocols.is_empty() || self.protocols.contains(&strategy.protocol))
            && (self.channels.is_empty() || self.channels.contains(&strategy.channels))
            && self.chunk.is_none_or(|chunk| strategy.chunk == Some(chunk))
            && self.library.is_none_or(|offer| offer.runs(strategy.algorithm, strategy.protocol, collective))
    }
}

/// Default channel counts: NCCL's usual powers of two and its 24 on NVSwitch hosts
/// (validate/data/h200-node/nccl-2.28.9-tuning.txt).
const CHANNELS: [u16; 7] = [1, 2, 4, 8, 16, 24, 32];

/// Default channel counts of generated kernels, whose channels are thread blocks: up to nearly one per SM of GPUs with
/// 132, as `gpu run` distributes fewer blocks.
const KERNEL_CHANNELS: [u16; 9] = [1, 2, 4, 8, 16, 24, 32, 64, 128];

/// Minimum bytes per block of a generated kernel with more than 32 blocks. Small calls on two H100 are 0.3 µs slower
/// with 64 blocks than with 32, which no profile models (validate/runs/2026-11-25-2xh100).
const MIN_BYTES_PER_BLOCK: Bytes = Bytes(32 << 10);

/// Reason why an algorithm and a protocol cannot be combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Copy engines move data and cannot reduce.
    #[error("copy engines cannot reduce")]
    CopyEnginesCannotReduce,
    /// Copy engines move data, and the collective has none.
    #[error("moves no data that copy engines could copy")]
    NothingToCopy,
    /// FIFO protocols forward chunk by chunk, while one-sided algorithms write directly into the peers' buffers.
    #[error("writes straight into peers' buffers, which needs symmetric memory or copy engines")]
    NeedsOneSided,
    /// Ranks cannot access each other's memory.
    #[error(transparent)]
    NoPeerAccess(#[from] NoPeerAccess),
    /// The combination needs symmetric or registered device memory.
    #[error(transparent)]
    BuffersElsewhere(#[from] BuffersNotOnDevice),
    /// Multicast is not available.
    #[error(transparent)]
    NoMulticast(#[from] NoMulticast),
    /// Switches reach only their own NVLink domain.
    #[error("needs all ranks in one NVLink domain; nvls_tree joins several")]
    NeedsOneDomain,
    /// The trees connect NVLink domains, and there is only one.
    #[error("has trees between NVLink domains, and there is one")]
    NeedsDomains,
    /// Multicast operations are implemented for one protocol only.
    #[error("goes through the switches with protocol simple only")]
    NeedsSimple,
    /// The algorithm's levels are hosts, and there is only one.
    #[error("has levels of hosts, and there is one host")]
    NeedsHosts,
    /// Copy engines run in one step: every copy is queued before any arrives.
    #[error("passes on what arrived, and copy engines are driven in one step")]
    NeedsThreads,
    /// The one-sided protocols do not implement pipelined chains.
    #[error("is a pipeline over FIFO slots")]
    NeedsFifo,
}

/// Checks if an algorithm runs over a protocol for a collective. This is the only table of combinations.
///
/// # Errors
/// Returns the reason if the combination is not possible.
pub fn check_combination(
    algorithm: Algorithm,
    protocol: Protocol,
    collective: Collective,
    abilities: &FabricCapabilities,
) -> Result<(), Mismatch> {
    let reduces = matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce);
    let device_memory = matches!(protocol, Protocol::Symmetric | Protocol::CopyEngine)
        || matches!(algorithm, Algorithm::Nvls | Algorithm::NvlsTree);
    // The flags of a barrier are not in user buffers.
    if device_memory && collective != Collective::Barrier {
        abilities.buffer_placement?;
    }
    // Without peer access the driver still copies between GPUs through host memory, except for MIG instances.
    match (protocol, abilities.peer_access) {
        (Protocol::Symmetric, Err(reason)) | (Protocol::CopyEngine, Err(reason @ NoPeerAccess::Mig)) => {
            return Err(reason.into());
        }
        _ => {}
    }
    match (algorithm, protocol) {
        (Algorithm::Hierarchical | Algorithm::NvlsTree, _) if abilities.hosts == Hosts::One => {
            Err(Mismatch::NeedsHosts)
        }
        (_, Protocol::CopyEngine) if reduces => Err(Mismatch::CopyEnginesCannotReduce),
        (_, Protocol::CopyEngine) if collective == Collective::Barrier => Err(Mismatch::NothingToCopy),
        (Algorithm::OneShot | Algorithm::TwoShot, Protocol::Symmetric) => Ok(()),
        (Algorithm::OneShot | Algorithm::TwoShot, _) => Err(Mismatch::NeedsOneSided),
        (Algorithm::Direct | Algorithm::Pairwise | Algorithm::Linear, _) => Ok(()),
        (Algorithm::Nvls | Algorithm::NvlsTree, Protocol::Simple) => match abilities.multicast {
            Err(reason) => Err(Mismatch::NoMulticast(reason)),
            Ok(team) if (team == abilities.ranks) == (algorithm == Algorithm::Nvls) => Ok(()),
            Ok(_) if algorithm == Algorithm::Nvls => Err(Mismatch::NeedsOneDomain),
            Ok(_) => Err(Mismatch::NeedsDomains),
        },
        (Algorithm::Nvls | Algorithm::NvlsTree, _) => Err(Mismatch::NeedsSimple),
        (Algorithm::Ring | Algorithm::Tree | Algorithm::Hierarchical, Protocol::CopyEngine) => Err(Mismatch::NeedsFifo),
        // Forwarding received data needs threads that wait for it.
        (_, Protocol::CopyEngine) => Err(Mismatch::NeedsThreads),
        (
            Algorithm::Ring
            | Algorithm::Tree
            | Algorithm::Hierarchical
            | Algorithm::RecursiveDoubling
            | Algorithm::RecursiveHalvingDoubling
            | Algorithm::Bruck
            | Algorithm::Pat
            | Algorithm::GridRing
            | Algorithm::ScatterAllGather
            | Algorithm::Dissemination
            | Algorithm::LinearSync
            | Algorithm::Knomial
            | Algorithm::BinaryTree
            | Algorithm::InOrderTree
            | Algorithm::SplitTree
            | Algorithm::Chains
            | Algorithm::NeighbourExchange
            | Algorithm::Butterfly
            | Algorithm::ReduceThenBroadcast
            | Algorithm::ReduceThenScatter,
            _,
        ) => Ok(()),
    }
}

/// Protocols over which a search within a restriction tries an algorithm for a collective; none if the algorithm is
/// excluded.
pub(crate) fn protocols(
    collective: Collective,
    algorithm: Algorithm,
    abilities: &FabricCapabilities,
    restriction: &Restriction,
) -> impl Iterator<Item = Protocol> {
    let Restriction { algorithms, protocols, library, .. } = restriction;
    let is_chosen = algorithm.supports(collective) && (algorithms.is_empty() || algorithms.contains(&algorithm));
    Protocol::ALL.into_iter().filter(move |&protocol| {
        let is_wanted = is_chosen && (protocols.is_empty() || protocols.contains(&protocol));
        let runs = library.is_none_or(|offer| offer.runs(algorithm, protocol, collective));
        is_wanted && runs && check_combination(algorithm, protocol, collective, abilities).is_ok()
    })
}

/// Minimum message size for which a search tries `blocks` thread blocks of a generated kernel.
pub(crate) fn min_bytes(blocks: u16) -> Bytes {
    if blocks <= CHANNELS[CHANNELS.len() - 1] { Bytes(0) } else { Bytes(u64::from(blocks) * MIN_BYTES_PER_BLOCK.0) }
}

/// Default channel counts of a search for a call; the largest counts are limited by the message size.
pub(crate) fn channel_counts(software: Software, bytes: Bytes) -> &'static [u16] {
    let kernel_counts = KERNEL_CHANNELS.partition_point(|&blocks| min_bytes(blocks) <= bytes);
    match software {
        Software::Kernels => &KERNEL_CHANNELS[..kernel_counts],
        Software::Nccl | Software::Mpi => &CHANNELS,
    }
}

/// Returns all strategies for a collective of `bytes` bytes with a software within a restriction, in a fixed order.
#[must_use]
pub fn candidates(
    collective: Collective,
    abilities: &FabricCapabilities,
    restriction: &Restriction,
    (software, bytes): (Software, Bytes),
) -> Vec<Strategy> {
    let mut strategies = Vec::new();
    for algorithm in Algorithm::ALL {
        for protocol in protocols(collective, algorithm, abilities, restriction) {
            let channels: &[u16] = match (protocol, restriction.channels.as_slice()) {
                // The signals of a barrier are not divided.
                _ if collective == Collective::Barrier => &CHANNELS[..1],
                (_, []) if restriction.library.and_then(LibraryCapabilities::max_channels) == Some(1) => &CHANNELS[..1],
                (_, []) => channel_counts(software, bytes),
                (_, requested) => requested,
            };
            strategies.extend(channels.iter().map(|&channels| Strategy {
                algorithm,
                protocol,
                channels,
                threads: None,
                chunk: restriction.chunk,
            }));
        }
    }
    strategies
}

/// Returns the possible combinations for a collective, one string per algorithm: `ring (ll, ll128, simple, symmetric)`.
#[must_use]
pub fn describe_combinations(collective: Collective, abilities: &FabricCapabilities) -> Vec<String> {
    let offered = Algorithm::ALL.into_iter().filter(|algorithm| algorithm.supports(collective));
    let described = offered.filter_map(|algorithm| {
        let fits = |protocol: &Protocol| check_combination(algorithm, *protocol, collective, abilities).is_ok();
        let protocols: Vec<&str> = Protocol::ALL.into_iter().filter(fits).map(Protocol::name).collect();
        (!protocols.is_empty()).then(|| format!("{algorithm} ({})", protocols.join(", ")))
    });
    described.collect()
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::route::{RouteOptions, Router};
    use fabricast_topologies::{FabricRequest, load};

    use super::*;

    /// Maximum number of channels that are tried for all_reduce on two GPUs.
    fn max_channels(software: Software, bytes: u64) -> Option<u16> {
        let fabric = load(&FabricRequest { gpus: Some(2), ..FabricRequest::new("hgx-h100") }).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let abilities = FabricCapabilities::new(&fabric, &router, fabric.gpus(), 2, InNetwork::Off);
        let strategies =
            candidates(Collective::AllReduce, &abilities, &Restriction::default(), (software, Bytes(bytes)));
        strategies.into_iter().map(|strategy| strategy.channels).max()
    }

    #[test]
    fn large_block_counts_need_large_calls() {
        let sizes = [1024, (2 << 20) - 1, 2 << 20, 4 << 20, 1 << 30];
        assert_eq!(sizes.map(|bytes| max_channels(Software::Kernels, bytes)), [32, 32, 64, 128, 128].map(Some));
        assert_eq!(sizes.map(|bytes| max_channels(Software::Nccl, bytes)), [32; 5].map(Some));
    }
}
