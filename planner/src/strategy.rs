//! Strategies: algorithm × protocol × channels × chunk, and which of them a fabric allows.

use std::fmt;

use fabricast_sim::profile::{Profile, Software};
use fabricast_sim::schedule::{Call, Collective, Protocol};
use fabricast_topologies::Bytes;
use serde::{Deserialize, Serialize};

use crate::abilities::{Abilities, BuffersElsewhere, Hosts, NoMulticast, NoPeerAccess};
use crate::algorithm::{Algorithm, Shape};
use crate::bound::InNetwork;
use crate::library::Offer;

/// A way to do a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Strategy {
    /// The communication pattern.
    pub algorithm: Algorithm,
    /// How a step moves bytes.
    pub protocol: Protocol,
    /// Independent lanes.
    pub channels: u16,
    /// Threads of a channel's block; `None` is the protocol's own.
    pub threads: Option<u16>,
    /// The largest chunk that a step moves; `None` is the protocol's own.
    pub chunk: Option<Bytes>,
}

/// More pieces than this in a stream tell nothing.
const MOST_PIECES: u64 = 64;

impl Strategy {
    /// The shape of a call done this way, with the profile's chunks where the strategy names none. Hosts have
    /// `ranks_per_node` ranks.
    #[must_use]
    pub fn shape(&self, call: Call, profile: &Profile, ranks_per_node: u32, abilities: &Abilities) -> Shape {
        let costs = profile.protocol(self.protocol);
        let lane = call.bytes.0 / u64::from(self.channels.max(1));
        let piece = costs.stream.filter(|_| self.algorithm == Algorithm::Tree);
        let piece = piece.map(|stream| Bytes(stream.0.max(lane / MOST_PIECES)));
        let chunk = self.chunk.or(match self.moves_single_slots(call.collective) {
            true => costs.slot(),
            false => costs.chunk,
        });
        // Chunks stream piece by piece inside a host, and leave it whole.
        let whole = chunk.unwrap_or(Bytes(lane)).min(Bytes(lane.max(1)));
        Shape {
            message: piece.filter(|&piece| piece < whole).map(|_| whole),
            channels: self.channels,
            threads: self.threads,
            chunk: chunk.map_or(piece, |chunk| Some(piece.map_or(chunk, |piece| piece.min(chunk)))),
            ranks_per_node,
            ranks_per_team: abilities.ranks_per_team(),
            workplace: profile.workplace(call.collective),
            ..Shape::new(call, self.protocol)
        }
        .over_nics(self.algorithm, abilities.nics_per_host)
    }

    /// Whether a step moves one slot of a connection's buffer: so in double trees and along chains, while those of other rings move
    /// four (NCCL 2.28 src/enqueue.cc, `calcCollChunking`; ALLREDUCE_CHUNKSTEPS, BROADCAST_CHUNKSTEPS and REDUCE_CHUNKSTEPS in
    /// src/include/collectives.h).
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

/// What may be chosen from; an empty list means everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restriction {
    /// Algorithms to consider.
    pub algorithms: Vec<Algorithm>,
    /// Protocols to consider.
    pub protocols: Vec<Protocol>,
    /// Channel counts to consider.
    pub channels: Vec<u16>,
    /// The chunk to use.
    pub chunk: Option<Bytes>,
    /// Whether switches may reduce and multicast.
    pub in_network: InNetwork,
    /// The library that has to run it; `None`: whatever runs.
    pub library: Option<Offer>,
}

impl Restriction {
    /// Whether a strategy for a collective is within it.
    #[must_use]
    pub fn allows(&self, strategy: &Strategy, collective: Collective) -> bool {
        (self.algorithms.is_empty() || self.algorithms.contains(&strategy.algorithm))
            && (self.protocols.is_empty() || self.protocols.contains(&strategy.protocol))
            && (self.channels.is_empty() || self.channels.contains(&strategy.channels))
            && self.chunk.is_none_or(|chunk| strategy.chunk == Some(chunk))
            && self.library.is_none_or(|offer| offer.runs(strategy.algorithm, strategy.protocol, collective))
    }
}

/// Channel counts that are tried where none is given: NCCL's usual powers of two and its 24 on NVSwitch hosts
/// (validate/data/h200-node/nccl-2.28.9-tuning.txt).
const CHANNELS: [u16; 7] = [1, 2, 4, 8, 16, 24, 32];

/// The same for kernels that are made of schedules, whose channels are thread blocks: up to one for each SM, nearly, of GPUs with
/// 132, as `gpu run` spreads what has fewer.
const CHANNELS_OF_KERNELS: [u16; 9] = [1, 2, 4, 8, 16, 24, 32, 64, 128];

/// Blocks beyond 32 of such kernels are for this many bytes of a call each: small calls on two H100 take 0.3 µs longer on 64 blocks than
/// on 32 and 0.6 µs longer on 128, which no profile tells (validate/runs/2026-11-25-2xh100).
const ENOUGH_FOR_A_BLOCK: Bytes = Bytes(32 << 10);

/// Why an algorithm and a protocol do not go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Copy engines move data; they cannot add.
    #[error("copy engines cannot reduce")]
    CopyEnginesCannotReduce,
    /// Copy engines move data, and there is none.
    #[error("moves no data that copy engines could copy")]
    NothingToCopy,
    /// FIFO protocols forward chunk by chunk; one-sided algorithms write into the peers' buffers at once.
    #[error("writes straight into peers' buffers, which needs symmetric memory or copy engines")]
    NeedsOneSided,
    /// Ranks do not reach each other's memory.
    #[error(transparent)]
    NoPeerAccess(#[from] NoPeerAccess),
    /// It works on symmetric or registered device memory.
    #[error(transparent)]
    BuffersElsewhere(#[from] BuffersElsewhere),
    /// There is no multicast.
    #[error(transparent)]
    NoMulticast(#[from] NoMulticast),
    /// Switches reach their own NVLink domain only.
    #[error("needs all ranks in one NVLink domain; nvls_tree joins several")]
    NeedsOneDomain,
    /// Its trees are between NVLink domains.
    #[error("has trees between NVLink domains, and there is one")]
    NeedsDomains,
    /// The switch operations have one implementation.
    #[error("goes through the switches with protocol simple only")]
    NeedsSimple,
    /// Hosts are its levels.
    #[error("has levels of hosts, and there is one host")]
    NeedsHosts,
    /// Copy engines are driven in one step: every copy is queued before any arrives.
    #[error("passes on what arrived, and copy engines are driven in one step")]
    NeedsThreads,
    /// The one-sided protocols have no implementation of pipelined chains.
    #[error("is a pipeline over FIFO slots")]
    NeedsFifo,
}

/// Whether an algorithm runs over a protocol for a collective: the one table of combinations.
///
/// # Errors
/// The reason why not.
pub fn combination(
    algorithm: Algorithm,
    protocol: Protocol,
    collective: Collective,
    abilities: &Abilities,
) -> Result<(), Mismatch> {
    let reduces = matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce);
    let device_memory = matches!(protocol, Protocol::Symmetric | Protocol::CopyEngine)
        || matches!(algorithm, Algorithm::Nvls | Algorithm::NvlsTree);
    // The flags of a barrier are nobody's buffers.
    if device_memory && collective != Collective::Barrier {
        abilities.buffers?;
    }
    // Without peer access the driver still copies between GPUs, through host memory; MIG instances it leaves apart.
    match (protocol, abilities.peers) {
        (Protocol::Symmetric, Err(why)) | (Protocol::CopyEngine, Err(why @ NoPeerAccess::Mig)) => {
            return Err(why.into());
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
            Err(why) => Err(Mismatch::NoMulticast(why)),
            Ok(team) if (team == abilities.ranks) == (algorithm == Algorithm::Nvls) => Ok(()),
            Ok(_) if algorithm == Algorithm::Nvls => Err(Mismatch::NeedsOneDomain),
            Ok(_) => Err(Mismatch::NeedsDomains),
        },
        (Algorithm::Nvls | Algorithm::NvlsTree, _) => Err(Mismatch::NeedsSimple),
        (Algorithm::Ring | Algorithm::Tree | Algorithm::Hierarchical, Protocol::CopyEngine) => Err(Mismatch::NeedsFifo),
        // What arrived is passed on, and that takes somebody who waits for it.
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

/// Protocols over which a search within a restriction tries an algorithm for a collective; none where it does not try the algorithm.
pub(crate) fn protocols(
    collective: Collective,
    algorithm: Algorithm,
    abilities: &Abilities,
    restriction: &Restriction,
) -> impl Iterator<Item = Protocol> {
    let Restriction { algorithms, protocols, library, .. } = restriction;
    let is_chosen = algorithm.supports(collective) && (algorithms.is_empty() || algorithms.contains(&algorithm));
    Protocol::ALL.into_iter().filter(move |&protocol| {
        let is_wanted = is_chosen && (protocols.is_empty() || protocols.contains(&protocol));
        let runs = library.is_none_or(|offer| offer.runs(algorithm, protocol, collective));
        is_wanted && runs && combination(algorithm, protocol, collective, abilities).is_ok()
    })
}

/// The smallest call for which a search tries so many blocks of kernels that are made of schedules.
pub(crate) fn least_bytes(blocks: u16) -> Bytes {
    if blocks <= CHANNELS[CHANNELS.len() - 1] { Bytes(0) } else { Bytes(u64::from(blocks) * ENOUGH_FOR_A_BLOCK.0) }
}

/// Channel counts that a search tries for a call of a software where none is given; of the greatest ones only as many as small calls
/// can fill.
pub(crate) fn channel_counts(software: Software, bytes: Bytes) -> &'static [u16] {
    let of_kernels = CHANNELS_OF_KERNELS.partition_point(|&blocks| least_bytes(blocks) <= bytes);
    match software {
        Software::Kernels => &CHANNELS_OF_KERNELS[..of_kernels],
        Software::Nccl | Software::Mpi => &CHANNELS,
    }
}

/// All strategies of a software for a collective of so many bytes within a restriction, in a fixed order.
#[must_use]
pub fn candidates(
    collective: Collective,
    abilities: &Abilities,
    restriction: &Restriction,
    (software, bytes): (Software, Bytes),
) -> Vec<Strategy> {
    let mut found = Vec::new();
    for algorithm in Algorithm::ALL {
        for protocol in protocols(collective, algorithm, abilities, restriction) {
            let channels: &[u16] = match (protocol, restriction.channels.as_slice()) {
                // Signals of a barrier are not divided.
                _ if collective == Collective::Barrier => &CHANNELS[..1],
                // Copies take whichever engine is free, on however many channels.
                (Protocol::CopyEngine, []) => &CHANNELS[..1],
                (_, []) if restriction.library.and_then(Offer::most_channels) == Some(1) => &CHANNELS[..1],
                (_, []) => channel_counts(software, bytes),
                (_, given) => given,
            };
            found.extend(channels.iter().map(|&channels| Strategy {
                algorithm,
                protocol,
                channels,
                threads: None,
                chunk: restriction.chunk,
            }));
        }
    }
    found
}

/// What goes together for a collective, an algorithm each: `ring (ll, ll128, simple, symmetric)`.
#[must_use]
pub fn possible(collective: Collective, abilities: &Abilities) -> Vec<String> {
    let offered = Algorithm::ALL.into_iter().filter(|algorithm| algorithm.supports(collective));
    let described = offered.filter_map(|algorithm| {
        let fits = |protocol: &Protocol| combination(algorithm, *protocol, collective, abilities).is_ok();
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

    /// The most channels that are tried for all_reduce on two GPUs.
    fn most(software: Software, bytes: u64) -> Option<u16> {
        let fabric = load(&FabricRequest { gpus: Some(2), ..FabricRequest::of("hgx-h100") }).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let abilities = Abilities::of(&fabric, &router, fabric.gpus(), 2, InNetwork::Off);
        let found = candidates(Collective::AllReduce, &abilities, &Restriction::default(), (software, Bytes(bytes)));
        found.into_iter().map(|strategy| strategy.channels).max()
    }

    #[test]
    fn blocks_of_kernels_have_enough_to_do() {
        let sizes = [1024, (2 << 20) - 1, 2 << 20, 4 << 20, 1 << 30];
        assert_eq!(sizes.map(|bytes| most(Software::Kernels, bytes)), [32, 32, 64, 128, 128].map(Some));
        assert_eq!(sizes.map(|bytes| most(Software::Nccl, bytes)), [32; 5].map(Some));
    }
}
