//! Strategies (algorithm × protocol × channels × chunk), and the combinations that a fabric supports.

use std::fmt;

use fabricast_sim::profile::{OperationKind, Profile};
use fabricast_sim::schedule::{Call, Collective, Protocol};
use fabricast_topologies::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::algorithm::tree_packing::{PipelinedTrees, TransferCosts};
use crate::algorithm::{Algorithm, Shape};
use crate::capabilities::{
    BuffersNotOnDevice, FabricCapabilities, Hosts, NoMulticast, NoNetworkReduction, NoPeerAccess,
};
use crate::packing::{Forests, PackingError, TreeUse, TreeVariant};

/// Candidate implementation of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Strategy {
    /// Communication pattern.
    pub algorithm: Algorithm,
    /// Protocol of the transfers.
    pub protocol: Protocol,
    /// Number of channels, which work independently.
    pub channels: u16,
    /// Threads per thread block; the protocol's default if `None`.
    pub threads: Option<u16>,
    /// Maximum chunk size; the protocol's default if `None`.
    pub chunk: Option<Bytes>,
    /// Variant of packed trees; that with the shortest estimated time if `None`. Other algorithms have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trees: Option<TreeVariant>,
}

/// Maximum number of pieces of a stream. A larger number does not change the simulated time.
const MAX_PIECES: u64 = 64;

/// Maximum chunk of CollNetChain (NCCL 2.30.7 src/enqueue.cc, `calcCollChunking`).
const MAX_CHAIN_CHUNK: Bytes = Bytes(256 << 10);

/// Maximum chunk of NVLS over several domains by default, so that the steps of different chunks overlap: NCCL's on Hopper
/// (2.30.7 src/transport/nvls.cc, NCCL_NVLS_CHUNKSIZE).
const MAX_NVLS_NETWORK_CHUNK: Bytes = Bytes(128 << 10);

impl Strategy {
    /// Creates a strategy with the default threads and chunk of its protocol.
    #[must_use]
    pub fn new(algorithm: Algorithm, protocol: Protocol, channels: u16) -> Self {
        Self { algorithm, protocol, channels, threads: None, chunk: None, trees: None }
    }

    /// Returns the shape of a call with this strategy on hosts with `ranks_per_node` ranks. The chunk size defaults to
    /// that of the profile.
    #[must_use]
    pub fn shape(&self, call: Call, profile: &Profile, ranks_per_node: u32, abilities: &FabricCapabilities) -> Shape {
        let costs = profile.protocol(self.protocol);
        let bytes_per_channel = call.bytes.0 / u64::from(self.channels.max(1));
        let piece = costs.stream.filter(|_| self.algorithm == Algorithm::Tree);
        let piece = piece.map(|stream| Bytes(stream.0.max(bytes_per_channel / MAX_PIECES)));
        let chunk = self.chunk.or(self.default_chunk(call.collective, profile));
        let trees = match self.algorithm {
            Algorithm::TreePacking => self.packed_trees(call, profile, abilities),
            _ => None,
        };
        let chunk = match &trees {
            Some(trees) if self.chunk.is_none() => Some(trees.chunk.min(chunk.unwrap_or(Bytes(u64::MAX)))),
            None if self.chunk.is_none() && self.algorithm == Algorithm::Nvls && !abilities.is_one_domain() => {
                chunk.map(|chunk| chunk.min(MAX_NVLS_NETWORK_CHUNK))
            }
            _ => chunk,
        };
        // Chunks are streamed in pieces inside a host, and are sent to other hosts as a whole.
        let whole_chunk = chunk.unwrap_or(Bytes(bytes_per_channel)).min(Bytes(bytes_per_channel.max(1)));
        Shape {
            message: piece.filter(|&piece| piece < whole_chunk).map(|_| whole_chunk),
            channels: self.channels,
            threads: self.threads,
            chunk: chunk.map_or(piece, |chunk| Some(piece.map_or(chunk, |piece| piece.min(chunk)))),
            ranks_per_node,
            ranks_per_team: abilities.ranks_per_team(),
            forests: trees.map(|trees| trees.forests),
            reduction_device: profile.processor(call.collective),
            ..Shape::new(call, self.protocol)
        }
        .with_ring_orders(self.algorithm, abilities.nics_per_host, abilities.host_links)
    }

    /// Returns the packed trees of the strategy's variant, or those that are estimated to be fastest for a call; `None` if
    /// there are none.
    fn packed_trees(&self, call: Call, profile: &Profile, abilities: &FabricCapabilities) -> Option<PipelinedTrees> {
        let family = abilities.packed_tree_family(call.collective, self.trees);
        PipelinedTrees::select(call, self.channels, self.transfer_costs(call, profile, abilities), family)
    }

    /// Costs of the transfers of a call.
    fn transfer_costs<'a>(
        &self,
        call: Call,
        profile: &'a Profile,
        abilities: &FabricCapabilities,
    ) -> TransferCosts<'a> {
        let protocol = profile.protocol(self.protocol);
        let links = &profile.links;
        TransferCosts {
            protocol,
            threads: self.threads.unwrap_or(protocol.threads),
            operation: match TreeUse::of(call.collective, call.root.0).is_some_and(TreeUse::reduces) {
                true => OperationKind::Reduce,
                false => OperationKind::Copy,
            },
            link_efficiency: match abilities.hosts {
                Hosts::One => links.nvlink,
                Hosts::Several => links.nvlink.min(links.network),
            },
            max_message: self.chunk.or(self.default_chunk(call.collective, profile)),
        }
    }

    /// Replaces strategies of packed trees of one protocol by those with a variant of the trees that may be the fastest:
    /// with an estimated time near the shortest. Other strategies are retained.
    #[must_use]
    pub fn with_variants_of_trees(
        strategies: Vec<Self>,
        call: Call,
        profile: &Profile,
        abilities: &FabricCapabilities,
    ) -> Vec<Self> {
        let (packed, mut all): (Vec<Self>, Vec<Self>) =
            strategies.into_iter().partition(|strategy| strategy.algorithm == Algorithm::TreePacking);
        for same_protocol in packed.chunk_by(|a, b| a.protocol == b.protocol) {
            let variants = same_protocol.iter().flat_map(|strategy| {
                let family = abilities.packed_tree_family(call.collective, strategy.trees);
                let costs = strategy.transfer_costs(call, profile, abilities);
                let trees = PipelinedTrees::all(call, strategy.channels, costs, family);
                trees.into_iter().map(|trees| (Self { trees: trees.forests.variant, ..*strategy }, trees.time))
            });
            all.extend(PipelinedTrees::near_fastest(variants.collect()));
        }
        all
    }

    /// Returns a variant with the number of channels and the trees that are estimated to be fastest, if it is of packed
    /// trees.
    #[must_use]
    pub fn with_channels_of_trees(self, call: Call, profile: &Profile, abilities: &FabricCapabilities) -> Self {
        if self.algorithm != Algorithm::TreePacking {
            return self;
        }
        let Ok(Forests { channels, .. }) = abilities.packed_trees(call.collective) else { return self };
        let usual = Self { channels, ..self };
        let mut variants = abilities.packed_tree_channels(call.collective);
        variants.extend(abilities.parallel_tree_channels(call.collective));
        if profile.is_ideal() {
            // Channels cost nothing, and more of them divide shared links closer to the loads of the streams.
            let most = variants.iter().copied().max().unwrap_or(channels).max(channels);
            variants = vec![most];
        } else if usual.packed_trees(call, profile, abilities).is_none_or(|trees| trees.is_unsurpassed()) {
            return usual;
        }
        let variants = variants.into_iter().map(|channels| Self { channels, ..usual });
        let timed = variants.filter_map(|strategy| {
            let time = strategy.packed_trees(call, profile, abilities)?.time?;
            Some((time, strategy))
        });
        timed.min_by_key(|(time, _)| *time).map_or(usual, |(_, strategy)| strategy)
    }

    /// Returns the largest chunk of a schedule if the strategy states no chunk size; `None` if the profile does not limit
    /// chunks.
    #[must_use]
    pub fn default_chunk(&self, collective: Collective, profile: &Profile) -> Option<Bytes> {
        let costs = profile.protocol(self.protocol);
        match self.algorithm {
            Algorithm::CollnetChain => costs.slot().map(|slot| slot.min(MAX_CHAIN_CHUNK)),
            _ if self.moves_single_slots(collective) => costs.slot(),
            _ => costs.chunk,
        }
    }

    /// Returns true if both strategies have the same schedule and costs for a collective: they differ at most in stating
    /// a number of threads or a chunk size that is the default.
    #[must_use]
    pub fn is_equivalent(&self, other: &Self, collective: Collective, profile: &Profile) -> bool {
        // Trees that depend on the size also bound the default chunk, and that of NVLS depends on the number of domains.
        let has_default = !self.algorithm.has_size_dependent_trees() && self.algorithm != Algorithm::Nvls;
        let resolve = |strategy: &Self| Self {
            threads: strategy.threads.or(Some(profile.protocol(strategy.protocol).threads)),
            chunk: strategy.chunk.or(strategy.default_chunk(collective, profile).filter(|_| has_default)),
            ..*strategy
        };
        resolve(self) == resolve(other)
    }

    /// Returns true if a step moves one slot of a connection's buffer, as in double trees and in the chains of
    /// broadcast and reduce. In rings of other collectives a step moves four slots (NCCL 2.28 src/enqueue.cc,
    /// `calcCollChunking`; ALLREDUCE_CHUNKSTEPS, BROADCAST_CHUNKSTEPS and REDUCE_CHUNKSTEPS in
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

/// Reason why an algorithm and a protocol cannot be combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The algorithm does not compute the collective.
    #[error("offers only {}", .0.collectives().iter().map(|collective| collective.name()).collect::<Vec<_>>().join(", "))]
    OtherCollective(Algorithm),
    /// Copy engines only move data; they cannot reduce.
    #[error("copy engines cannot reduce")]
    CopyEnginesCannotReduce,
    /// Copy engines only move data, and the collective moves none.
    #[error("moves no data, so copy engines have nothing to copy")]
    NothingToCopy,
    /// FIFO protocols forward chunk by chunk, while one-sided algorithms write directly into the peers' buffers.
    #[error("writes directly into peers' buffers, which needs symmetric memory or copy engines")]
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
    /// The switches of the network do not reduce.
    #[error(transparent)]
    NoNetworkReduction(#[from] NoNetworkReduction),
    /// NVSwitches reach only their own NVLink domain, and the switches of the network do not reduce.
    #[error(
        "needs all ranks in one NVLink domain, or an all_reduce over a network whose switches reduce (sharp=true); use \
         nvls_tree for several domains"
    )]
    NeedsOneDomain,
    /// The trees connect NVLink domains, and there is only one.
    #[error("needs several NVLink domains, but there is only one")]
    NeedsDomains,
    /// Multicast operations are implemented for one protocol only.
    #[error("supports only the protocol simple")]
    NeedsSimple,
    /// The algorithm's levels are hosts, and there is only one.
    #[error("needs several hosts, but there is only one")]
    NeedsHosts,
    /// Copy engines execute algorithms of a single step only, because every copy is queued before any data arrives.
    #[error("forwards received data, but copy engines run only algorithms of one step")]
    NeedsThreads,
    /// No trees are packed into the links of the fabric.
    #[error(transparent)]
    NoPacking(#[from] PackingError),
    /// The one-sided protocols do not implement pipelined chains.
    #[error("is pipelined over FIFO slots, which copy engines do not have")]
    NeedsFifo,
}

/// Checks whether an algorithm can use a protocol for a collective. This function is the only definition of valid
/// combinations.
///
/// # Errors
/// [`Mismatch`] with the reason why the combination is not possible.
pub fn check_combination(
    algorithm: Algorithm,
    protocol: Protocol,
    collective: Collective,
    abilities: &FabricCapabilities,
) -> Result<(), Mismatch> {
    if !algorithm.supports(collective) {
        return Err(Mismatch::OtherCollective(algorithm));
    }
    let reduces = matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce);
    let device_memory = matches!(protocol, Protocol::Symmetric | Protocol::CopyEngine)
        || matches!(algorithm, Algorithm::Nvls | Algorithm::NvlsTree);
    // The flags of a barrier are not in user buffers.
    if device_memory && collective != Collective::Barrier {
        abilities.buffer_placement?;
    }
    // Without peer access, the driver copies between GPUs through host memory, except for MIG instances.
    match (protocol, abilities.peer_access) {
        (Protocol::Symmetric, Err(reason)) | (Protocol::CopyEngine, Err(reason @ NoPeerAccess::Mig)) => {
            return Err(reason.into());
        }
        _ => {}
    }
    match (algorithm, protocol) {
        (Algorithm::Hierarchical | Algorithm::NvlsTree | Algorithm::CollnetChain, _)
            if abilities.hosts == Hosts::One =>
        {
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
            Ok(_) if algorithm == Algorithm::Nvls => match abilities.network_reduction {
                Ok(()) if collective == Collective::AllReduce => Ok(()),
                _ => Err(Mismatch::NeedsOneDomain),
            },
            Ok(_) => Err(Mismatch::NeedsDomains),
        },
        (Algorithm::CollnetChain, Protocol::Simple) => Ok(abilities.network_reduction?),
        (Algorithm::Nvls | Algorithm::NvlsTree | Algorithm::CollnetChain, _) => Err(Mismatch::NeedsSimple),
        (Algorithm::Ring | Algorithm::Tree | Algorithm::Hierarchical, Protocol::CopyEngine) => Err(Mismatch::NeedsFifo),
        // Forwarding received data needs threads that wait for it.
        (_, Protocol::CopyEngine) => Err(Mismatch::NeedsThreads),
        (Algorithm::TreePacking, _) => Ok(abilities.check_packed_trees(collective)?),
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

/// Returns the possible combinations for a collective, one text per algorithm: `ring (ll, ll128, simple, symmetric)`.
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
    use super::*;
    use crate::capabilities::{HostLinks, Hosts, NoNetworkReduction, PackedTrees};

    #[test]
    fn collectives_that_an_algorithm_does_not_offer_are_refused_as_such() {
        let abilities = FabricCapabilities {
            hosts: Hosts::One,
            peer_access: Ok(()),
            buffer_placement: Ok(()),
            multicast: Ok(8),
            network_reduction: Err(NoNetworkReduction::NoInNetworkOperations),
            ranks: 8,
            nics_per_host: 0,
            host_links: HostLinks::Other,
            packing: PackedTrees::Unavailable(PackingError::NotPrepared),
        };
        for algorithm in Algorithm::ALL {
            for collective in Collective::ALL.into_iter().filter(|&collective| !algorithm.supports(collective)) {
                for protocol in Protocol::ALL {
                    let refused = check_combination(algorithm, protocol, collective, &abilities);
                    assert_eq!(
                        refused,
                        Err(Mismatch::OtherCollective(algorithm)),
                        "{algorithm} {protocol} {collective}"
                    );
                }
            }
        }
    }
}
