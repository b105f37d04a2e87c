//! Candidate strategies of a call, and restrictions on them.

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::bound::InNetwork;
use fabricast_collectives::capabilities::FabricCapabilities;
use fabricast_collectives::packing::{TreePacker, TreeVariant};
use fabricast_collectives::strategy::{Strategy, check_combination};
use fabricast_libraries::LibraryCapabilities;
use fabricast_sim::profile::Software;
use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, NodeId};

/// Constraints on the candidate strategies of a search. An empty list sets no constraint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restriction {
    /// Algorithms to consider; empty for all.
    pub algorithms: Vec<Algorithm>,
    /// Protocols to consider; empty for all.
    pub protocols: Vec<Protocol>,
    /// Channel counts to consider; empty for the default channel counts of the software.
    pub channels: Vec<u16>,
    /// Chunk size of every strategy, in bytes; `None` for the profile's default.
    pub chunk: Option<Bytes>,
    /// Variant of packed trees; `None` for all.
    pub trees: Option<TreeVariant>,
    /// Use of reduction and multicast in switches.
    pub in_network: InNetwork,
    /// Library that must be able to run the strategy; `None` for any implementation.
    pub library: Option<LibraryCapabilities>,
}

/// Ranks of calls on the devices of a fabric.
#[derive(Clone, Copy)]
pub struct PlacedRanks<'a> {
    /// Fabric of the devices.
    pub fabric: &'a Fabric,
    /// Routes between the devices of the fabric.
    pub router: &'a Router<'a>,
    /// Device of each rank, indexed by rank.
    pub placement: &'a [NodeId],
    /// Root rank of broadcast, reduce, gather and scatter.
    pub root: u32,
    /// Number of ranks on each host, for hierarchical algorithms.
    pub ranks_per_node: u32,
}

impl Restriction {
    /// Returns the capabilities of the fabric for the candidates that satisfy the constraints.
    #[must_use]
    pub fn capabilities(&self, ranks: &PlacedRanks<'_>) -> FabricCapabilities {
        let PlacedRanks { fabric, router, placement, root, ranks_per_node } = *ranks;
        let capabilities = FabricCapabilities::new(fabric, router, placement, ranks_per_node, self.in_network);
        match self.includes_packed_trees(ranks) {
            true => capabilities.with_packer(TreePacker::new(fabric, router, placement, root, self.trees)),
            false => capabilities,
        }
    }

    /// Returns true if packed trees are candidates: if the constraints name them, or if the fabric as built has no path
    /// between some ranks, so that algorithms that do not follow the links cannot run. In other cases, packing and
    /// simulating trees for every call would take far longer than the rest of the plan, and a plan could be faster with
    /// a failed link than without, because the trees are others. Failures are ignored here: otherwise only the plan of
    /// the damaged fabric would have packed trees.
    fn includes_packed_trees(&self, ranks: &PlacedRanks<'_>) -> bool {
        let PlacedRanks { fabric, router, placement, .. } = *ranks;
        match self.algorithms.as_slice() {
            // No library runs packed trees.
            [] if self.library.is_some() => false,
            [] => {
                let is_packable = (2..=MAX_UNNAMED_RANKS).contains(&placement.len());
                let is_whole = fabric.links().all(|(_, link)| !link.failed);
                is_packable && is_whole && !router.unreachable_pairs(placement, 1).is_empty()
            }
            named => named.contains(&Algorithm::TreePacking),
        }
    }

    /// Returns true if packed trees are no candidates although they use links that the candidates leave idle: on GPUs that
    /// are linked to each other without a switch.
    pub(crate) fn leaves_mesh_unpacked(&self, ranks: &PlacedRanks<'_>) -> bool {
        let PlacedRanks { fabric, placement, .. } = *ranks;
        let is_rank = |id: NodeId| placement.contains(&id);
        self.algorithms.is_empty()
            && self.library.is_none()
            && (3..=MAX_UNNAMED_RANKS).contains(&placement.len())
            && fabric.link_pairs().any(|(_, [link, _])| is_rank(link.from) && is_rank(link.to))
            && !self.includes_packed_trees(ranks)
    }

    /// Returns true if a strategy for a collective satisfies the constraints.
    #[must_use]
    pub fn allows(&self, strategy: &Strategy, collective: Collective) -> bool {
        (self.algorithms.is_empty() || self.algorithms.contains(&strategy.algorithm))
            && (self.protocols.is_empty() || self.protocols.contains(&strategy.protocol))
            && (self.channels.is_empty() || self.channels.contains(&strategy.channels))
            && self.chunk.is_none_or(|chunk| strategy.chunk == Some(chunk))
            && (strategy.algorithm != Algorithm::TreePacking
                || self.trees.is_none_or(|trees| strategy.trees == Some(trees)))
            && self.library.is_none_or(|offer| offer.runs(strategy.algorithm, strategy.protocol, collective))
    }
}

/// Largest number of ranks for which packed trees are candidates without being named. Without
/// symmetry, those of more ranks are packed in seconds, but simulating their variants needs minutes.
const MAX_UNNAMED_RANKS: usize = 64;

/// Default channel counts: the powers of two that NCCL uses, and 24, its maximum on NVSwitch hosts
/// (validate/data/h200-node/nccl-2.28.9-tuning.txt).
const CHANNELS: [u16; 7] = [1, 2, 4, 8, 16, 24, 32];

/// Default channel counts of generated kernels, whose channels are thread blocks. On GPUs with 132 SMs, each of at most
/// 128 blocks has its own SM.
const KERNEL_CHANNELS: [u16; 9] = [1, 2, 4, 8, 16, 24, 32, 64, 128];

/// Minimum bytes per block of a generated kernel with more than 32 blocks. Small calls on two H100 are 0.3 µs slower
/// with 64 blocks than with 32, and no profile models this cost (validate/runs/2026-11-25-2xh100).
const MIN_BYTES_PER_BLOCK: Bytes = Bytes(32 << 10);

/// Protocols with which a search tries an algorithm for a collective under a restriction; empty if the restriction
/// excludes the algorithm.
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

/// Default channel counts of a search. Counts of more than 32 blocks are included only for large messages
/// ([`min_bytes`]).
pub(crate) fn channel_counts(software: Software, bytes: Bytes) -> &'static [u16] {
    let kernel_counts = KERNEL_CHANNELS.partition_point(|&blocks| min_bytes(blocks) <= bytes);
    match software {
        Software::Kernels => &KERNEL_CHANNELS[..kernel_counts],
        Software::Nccl | Software::Mpi => &CHANNELS,
    }
}

/// Default channel counts of rings. On hosts whose GPUs are linked in pairs, the counts that use all links equally are
/// added.
pub(crate) fn ring_channel_counts(abilities: &FabricCapabilities, software: Software, bytes: Bytes) -> Vec<u16> {
    let usual = channel_counts(software, bytes);
    let rings = u16::try_from(abilities.rings_over_all_links()).unwrap_or(0);
    let max = usual.last().copied().unwrap_or(1);
    let mut counts: Vec<u16> =
        usual.iter().copied().chain([rings, rings.saturating_mul(2)]).filter(|&count| count <= max).collect();
    counts.retain(|&count| count > 0);
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Default channel counts of packed trees: the numbers with which connections share links in the ratio of their loads,
/// and the two largest multiples by a power of two of the number for the highest throughput. Both small and large calls
/// benefit from many blocks, but each additional count needs a long simulation.
fn packed_channel_counts(
    collective: Collective,
    abilities: &FabricCapabilities,
    software: Software,
    bytes: Bytes,
) -> Vec<u16> {
    let usual = channel_counts(software, bytes);
    let max = usual.last().copied().unwrap_or(1);
    let needed = abilities.packed_trees(collective).map_or(1, |forests| forests.channels).clamp(1, max);
    let multiples = std::iter::successors(Some(needed), |&count| count.checked_mul(2).filter(|&count| count <= max));
    let mut counts: Vec<u16> = multiples.collect();
    let unused = 1..counts.len().saturating_sub(2).max(1);
    counts.drain(unused);
    counts.extend(abilities.packed_tree_channels(collective).into_iter().filter(|&count| count <= max));
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Returns all strategies within a restriction for a collective of `bytes` bytes that `software` can run, in a fixed
/// order.
#[must_use]
pub fn candidates(
    collective: Collective,
    abilities: &FabricCapabilities,
    restriction: &Restriction,
    software: Software,
    bytes: Bytes,
) -> Vec<Strategy> {
    let mut strategies = Vec::new();
    for algorithm in Algorithm::ALL {
        for protocol in protocols(collective, algorithm, abilities, restriction) {
            let rings;
            let packed;
            let channels: &[u16] = match (protocol, restriction.channels.as_slice()) {
                // The channel count does not affect a barrier, because its signals are not divided over channels.
                _ if collective == Collective::Barrier => &CHANNELS[..1],
                (_, []) if restriction.library.and_then(LibraryCapabilities::max_channels) == Some(1) => &CHANNELS[..1],
                (_, []) if algorithm == Algorithm::Ring => {
                    rings = ring_channel_counts(abilities, software, bytes);
                    &rings
                }
                (_, []) if algorithm == Algorithm::TreePacking => {
                    packed = packed_channel_counts(collective, abilities, software, bytes);
                    &packed
                }
                (_, []) => channel_counts(software, bytes),
                (_, requested) => requested,
            };
            strategies.extend(channels.iter().map(|&channels| Strategy {
                chunk: restriction.chunk,
                trees: restriction.trees.filter(|_| algorithm == Algorithm::TreePacking),
                ..Strategy::new(algorithm, protocol, channels)
            }));
        }
    }
    strategies
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
        let strategies = candidates(Collective::AllReduce, &abilities, &Restriction::default(), software, Bytes(bytes));
        strategies.into_iter().map(|strategy| strategy.channels).max()
    }

    #[test]
    fn large_block_counts_need_large_calls() {
        let sizes = [1024, (2 << 20) - 1, 2 << 20, 4 << 20, 1 << 30];
        assert_eq!(sizes.map(|bytes| max_channels(Software::Kernels, bytes)), [32, 32, 64, 128, 128].map(Some));
        assert_eq!(sizes.map(|bytes| max_channels(Software::Nccl, bytes)), [32; 5].map(Some));
    }
}
