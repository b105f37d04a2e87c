//! Communication algorithms, one file each. An algorithm writes the program of every rank of a collective call.
//!
//! Rules common to all algorithms:
//! - An operation waits for the data that it moves, for the last use of memory that it overwrites, and, if two ranks
//!   exchange several chunks on one channel, for the previous chunk. All other operations are concurrent.
//! - Bytes are divided into *lanes* (one per channel; trees have at least two, and direct exchanges over several hosts
//!   fewer), and lanes into *loops* of at most [`Shape::chunk`] bytes per chunk. All chunks of a loop have exactly the
//!   same size.
//! - Input is read in place, the result is built in the output, and intermediate data that fits in neither goes to
//!   scratch.
//! - Ranks are numbered host by host, [`Shape::ranks_per_node`] each, if that divides them.
//!
//! # Example
//! Generates, builds and verifies an all_gather of six ranks with every algorithm that supports all_gather and needs no
//! multicast in switches.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_sim::verify::{VerifyOptions, verify};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllGather, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(6 << 10), ranks: 6, root: Rank(0), buffers };
//! let mut verified = Vec::new();
//! for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.supports(collective)) {
//!     let Ok(written) = generator(algorithm, &Shape::new(call, Protocol::Simple)) else { continue };
//!     verify(&Schedule::build(written.as_ref())?, &VerifyOptions::default())?;
//!     verified.push(algorithm);
//! }
//! assert!(verified.contains(&Algorithm::Bruck) && !verified.contains(&Algorithm::Nvls));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod barrier;
mod binary_tree;
mod binomial_blocks;
mod bruck;
mod butterfly;
mod chains;
mod circle;
mod collnet_chain;
mod cut;
mod direct;
mod doubling;
pub mod facts;
mod grid;
mod halving_doubling;
mod hierarchical;
mod host_channels;
mod host_trees;
mod in_order_tree;
mod knomial;
mod lane;
mod linear;
mod linear_sync;
mod local;
mod matrix_cut;
pub(crate) mod mesh;
mod neighbours;
mod nvls;
mod nvls_network;
mod nvls_tree;
mod one_shot;
mod order;
mod pat;
mod peers;
mod power_of_two;
mod rails;
mod reduce_then_broadcast;
mod reduce_then_scatter;
mod ring;
mod rooted;
mod scatter_all_gather;
mod shape;
mod split_tree;
mod staged;
mod steps;
mod tree;
pub(crate) mod tree_packing;
mod two_shot;
mod uneven;

use std::fmt;
use std::str::FromStr;

use fabricast_sim::schedule::{Call, Collective, Processor, Program, Schedule, ScheduleGenerator, UnknownName};
use fabricast_topologies::Bytes;
use fabricast_topologies::route::BufferLocation;
use fabricast_topologies::variants::variants;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{EnumCount, VariantArray};

use crate::bound::InNetwork;
use crate::capabilities::Hosts;
use direct::PartnerOrder;
use ring::BlockNumbering;
use rooted::{ChildOrder, Tree, TreeRooted};
pub use shape::{Shape, Unsupported};

/// Communication pattern.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    EnumCount,
    VariantArray,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Ring, in which each rank sends to its successor; broadcast and reduce use the ring as a chain.
    Ring,
    /// Double binary tree over hosts with chains inside them for all_reduce; a binomial tree for rooted collectives and
    /// barriers.
    Tree,
    /// Direct exchange of whole inputs, or flags, between all pairs of ranks.
    OneShot,
    /// reduce_scatter followed by all_gather, each in one step between all pairs.
    TwoShot,
    /// Direct exchange between all pairs of ranks in one step.
    Direct,
    /// Exchanges within each host; rings, chains or exchanges between hosts for each GPU position.
    Hierarchical,
    /// Exchange of all available data with partners at distances 1, 2, 4, ….
    RecursiveDoubling,
    /// reduce_scatter by recursive halving; all_reduce adds an all_gather by recursive doubling.
    RecursiveHalvingDoubling,
    /// ⌈log2 n⌉ messages over distances 1, 2, 4, … for any number of ranks.
    Bruck,
    /// Parallel aggregated trees: one binomial tree per block, with messages aggregated up to the chunk size.
    Pat,
    /// Rings along the dimensions of a grid of ranks, one dimension after the other.
    GridRing,
    /// Scatter from the root followed by all_gather.
    ScatterAllGather,
    /// Exchange between all pairs of ranks, one partner at a time.
    Pairwise,
    /// Reduction and multicast in the NVSwitches of one NVLink domain; between domains, in the switches of the network.
    Nvls,
    /// NVLS within each NVLink domain, trees between domains.
    NvlsTree,
    /// Rounds of signals over distances 1, 2, 4, ….
    Dissemination,
    /// Concurrent communication of the root with every other rank.
    Linear,
    /// Gather in which the root requests the block of one rank at a time.
    LinearSync,
    /// K-nomial tree of radix 4.
    Knomial,
    /// Binary tree, sending to both children concurrently.
    BinaryTree,
    /// Binary tree that preserves the order of ranks.
    InOrderTree,
    /// Split binary tree: one half of the buffer per side of the tree, then a swap between pairs of ranks.
    SplitTree,
    /// Up to four chains that start at the root.
    Chains,
    /// Neighbour exchange, in which each rank forwards the blocks it received last, alternating between its two
    /// neighbours.
    NeighbourExchange,
    /// reduce_scatter by recursive halving over increasing distances.
    Butterfly,
    /// Reduce followed by broadcast.
    ReduceThenBroadcast,
    /// Reduce followed by scatter.
    ReduceThenScatter,
    /// Spanning trees packed into the links of a fabric.
    TreePacking,
    /// Chains within hosts; between them, reduction in the switches of the network.
    CollnetChain,
}

use Collective::{
    AllGather, AllReduce, AllToAll, AllToAllV, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter, SendRecv,
};

/// Name and collectives of every algorithm, in the order of the documentation.
const ALGORITHMS: [(Algorithm, &str, &[Collective]); Algorithm::COUNT] = [
    (Algorithm::Ring, "ring", &[AllReduce, AllGather, ReduceScatter, Broadcast, Reduce]),
    (Algorithm::Tree, "tree", &[AllReduce, Broadcast, Reduce, Gather, Scatter, Barrier]),
    (Algorithm::OneShot, "one_shot", &[AllReduce, Barrier]),
    (Algorithm::TwoShot, "two_shot", &[AllReduce]),
    (Algorithm::Direct, "direct", &[AllGather, ReduceScatter, AllToAll, Gather, Scatter, SendRecv, AllToAllV]),
    (
        Algorithm::Hierarchical,
        "hierarchical",
        &[AllReduce, AllGather, ReduceScatter, Broadcast, Reduce, AllToAll, AllToAllV],
    ),
    (Algorithm::RecursiveDoubling, "recursive_doubling", &[AllReduce, AllGather, Barrier]),
    (Algorithm::RecursiveHalvingDoubling, "recursive_halving_doubling", &[AllReduce, ReduceScatter]),
    (Algorithm::Bruck, "bruck", &[AllGather, AllToAll]),
    (Algorithm::Pat, "pat", &[AllGather, ReduceScatter]),
    (Algorithm::GridRing, "grid_ring", &[AllReduce, AllGather, ReduceScatter]),
    (Algorithm::ScatterAllGather, "scatter_all_gather", &[Broadcast]),
    (Algorithm::Pairwise, "pairwise", &[AllToAll, AllToAllV]),
    (Algorithm::Nvls, "nvls", &[AllReduce, AllGather, ReduceScatter]),
    (Algorithm::NvlsTree, "nvls_tree", &[AllReduce]),
    (Algorithm::Dissemination, "dissemination", &[Barrier]),
    (Algorithm::Linear, "linear", &[Broadcast, Reduce, Barrier]),
    (Algorithm::LinearSync, "linear_sync", &[Gather]),
    (Algorithm::Knomial, "knomial", &[Broadcast]),
    (Algorithm::BinaryTree, "binary_tree", &[Broadcast, Reduce]),
    (Algorithm::InOrderTree, "in_order_tree", &[Reduce]),
    (Algorithm::SplitTree, "split_tree", &[Broadcast]),
    (Algorithm::Chains, "chains", &[Broadcast, Reduce]),
    (Algorithm::NeighbourExchange, "neighbour_exchange", &[AllGather]),
    (Algorithm::Butterfly, "butterfly", &[ReduceScatter]),
    (Algorithm::ReduceThenBroadcast, "reduce_then_broadcast", &[AllReduce]),
    (Algorithm::ReduceThenScatter, "reduce_then_scatter", &[ReduceScatter]),
    (
        Algorithm::TreePacking,
        "tree_packing",
        &[AllReduce, AllGather, ReduceScatter, Broadcast, Reduce, AllToAll, Gather, Scatter],
    ),
    (Algorithm::CollnetChain, "collnet_chain", &[AllReduce]),
];

impl Algorithm {
    /// All algorithms, in the order of the documentation.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Returns the algorithm's name, such as `two_shot`.
    #[must_use]
    pub fn name(self) -> &'static str {
        ALGORITHMS.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }

    /// Returns the collectives that the algorithm supports.
    #[must_use]
    pub fn collectives(self) -> &'static [Collective] {
        ALGORITHMS.iter().find(|row| row.0 == self).map_or(&[], |row| row.2)
    }

    /// Returns [`InNetwork::Allowed`] if the algorithm uses reduction and multicast in switches, so that bounds without
    /// in-network reduction do not apply.
    #[must_use]
    pub fn in_network(self) -> InNetwork {
        match self {
            Self::Nvls | Self::NvlsTree | Self::CollnetChain => InNetwork::Allowed,
            _ => InNetwork::Off,
        }
    }

    /// Returns true if the algorithm aggregates as many blocks in a message as fit in a chunk, so that programs of one
    /// loop depend on the message size.
    #[must_use]
    pub fn has_size_dependent_steps(self) -> bool {
        self == Self::Pat
    }

    /// Returns true if the algorithm selects its trees by the size of the call, so that a schedule of another size may have
    /// other edges.
    #[must_use]
    pub fn has_size_dependent_trees(self) -> bool {
        self == Self::TreePacking
    }

    /// Returns true if the operations on the first of several channels are those of a schedule with a single channel,
    /// on smaller chunks. Exceptions: a double tree runs both trees on a single channel, reduce_then_scatter sends the
    /// buffer as one message on a single channel but as many on several, and a direct exchange divides its channels
    /// among hosts.
    #[must_use]
    pub fn is_channel_independent(self, collective: Collective, hosts: Hosts) -> bool {
        match self {
            Self::Tree => collective != AllReduce,
            Self::ReduceThenScatter | Self::TreePacking => false,
            Self::Direct => hosts == Hosts::One || !collective.is_pairwise(),
            _ => true,
        }
    }

    /// Returns true if every schedule between hosts has the switches of a network reduce, which kernels cannot have them do.
    #[must_use]
    pub fn needs_network_reduction(self) -> bool {
        self == Self::CollnetChain
    }

    /// Returns the number of schedule channels per channel of a strategy. It is 2 for trees and CollNetChain, which reduce on one
    /// channel and copy on the other; the two halves of a block's threads execute them.
    #[must_use]
    pub fn channels_per_block(self) -> u16 {
        if matches!(self, Self::Tree | Self::CollnetChain) { 2 } else { 1 }
    }

    /// Returns true if the number of chunks is independent of the number of ranks, so that a large buffer is pipelined
    /// in more chunks of the same size. Other algorithms first divide the buffer into one block per rank.
    #[must_use]
    pub fn is_pipelined(self, collective: Collective) -> bool {
        match collective {
            Broadcast | Reduce => self != Self::ScatterAllGather,
            AllReduce => matches!(
                self,
                Self::Tree
                    | Self::OneShot
                    | Self::RecursiveDoubling
                    | Self::NvlsTree
                    | Self::ReduceThenBroadcast
                    | Self::CollnetChain
            ),
            _ => false,
        }
    }

    /// Returns true if the algorithm supports a collective.
    #[must_use]
    pub fn supports(self, collective: Collective) -> bool {
        self.collectives().contains(&collective)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        let lower = word.to_ascii_lowercase();
        let row = ALGORITHMS.iter().find(|row| row.1 == lower);
        row.map(|row| row.0).ok_or_else(|| UnknownName::new("algorithm", word, &ALGORITHMS.map(|row| row.1)))
    }
}

/// Creates the generator of a broadcast or reduce over a tree.
fn tree_generator<T: Tree + Send + Sync + 'static>(
    shape: &Shape,
    algorithm: Algorithm,
    tree: T,
    siblings: ChildOrder,
) -> Result<Box<dyn ScheduleGenerator + Send + Sync>, Unsupported> {
    Ok(Box::new(TreeRooted::new(shape, algorithm, tree, siblings)?))
}

/// Creates the generator that writes the programs of an algorithm.
///
/// # Errors
/// Returns [`Unsupported`] if the algorithm cannot run a call of this shape.
///
/// # Complexity
/// Creating a generator needs time at most proportional to the number of ranks; writing a program needs time
/// proportional to its number of runs.
pub fn generator(algorithm: Algorithm, shape: &Shape) -> Result<Box<dyn ScheduleGenerator + Send + Sync>, Unsupported> {
    select_generator(algorithm, shape, BlockNumbering::ByRank).and_then(check_program_size)
}

/// Creates a generator for timing only, with buffers in the given location. Its operations have the same sizes, routes
/// and dependencies as those of [`generator`], but rings may number the blocks of ranks differently in each lane. All
/// chunks have the same size, so simulated times are equal. If ring positions are not evenly spaced, programs are
/// shorter by a factor of the number of ranks. In managed memory, where pages migrate on first touch, the numbering is
/// unchanged. The schedule does not identify the correct blocks, so it must not be verified, exported or executed.
///
/// # Errors
/// See [`generator`].
pub fn timing_generator(
    algorithm: Algorithm,
    shape: &Shape,
    buffers: BufferLocation,
) -> Result<Box<dyn ScheduleGenerator + Send + Sync>, Unsupported> {
    let numbering =
        if buffers == BufferLocation::Managed { BlockNumbering::ByRank } else { BlockNumbering::ByPosition };
    select_generator(algorithm, shape, numbering).and_then(check_program_size)
}

/// Number of chunks per rank up to which program sizes are not checked, because programs are short.
const UNCHECKED_CHUNKS_PER_RANK: u32 = 1 << 16;

/// Maximum number of operations over all ranks that are lowered individually. They need several gigabytes of memory.
const MAX_UNMERGED_OPERATIONS: u64 = 1 << 25;

/// Returns the generator if its programs fit in memory, judged by the root's program. The limit affects algorithms that
/// write one run per loop.
///
/// # Errors
/// [`Unsupported`] if the programs would not fit in memory.
fn check_program_size(
    generator: Box<dyn ScheduleGenerator + Send + Sync>,
) -> Result<Box<dyn ScheduleGenerator + Send + Sync>, Unsupported> {
    let header = generator.header();
    let Call { ranks, root, .. } = header.call;
    if header.layout.chunks() / ranks.max(1) > UNCHECKED_CHUNKS_PER_RANK {
        let mut program = Program::default();
        generator.program(root, &mut program);
        // Operations on chunks of unequal size are lowered individually.
        let unmerged: u64 = match header.layout.is_even() {
            true => 0,
            false => program.runs().iter().map(|run| u64::from(run.len)).sum(),
        };
        let is_long = program.runs().len().saturating_mul(ranks as usize) > Schedule::MAX_RUNS
            || unmerged.saturating_mul(ranks.into()) > MAX_UNMERGED_OPERATIONS;
        if program.is_truncated() || is_long {
            return Err(Unsupported::TooManyRuns);
        }
    }
    Ok(generator)
}

fn select_generator(
    algorithm: Algorithm,
    shape: &Shape,
    numbering: BlockNumbering,
) -> Result<Box<dyn ScheduleGenerator + Send + Sync>, Unsupported> {
    let Call { collective, ranks, root, .. } = shape.call;
    if !algorithm.supports(collective) {
        return Err(Unsupported::Collective { algorithm, collective });
    }
    if ranks == 0 {
        return Err(Unsupported::NoRanks);
    }
    if root.0 >= ranks {
        return Err(Unsupported::NoSuchRoot { root, ranks });
    }
    if shape.channels == 0 {
        return Err(Unsupported::NoChannels);
    }
    if shape.chunk == Some(Bytes(0)) {
        return Err(Unsupported::EmptyChunk);
    }
    if ranks == 1 && collective.has_variable_size() {
        return Ok(Box::new(local::Local::new(algorithm, shape)?));
    }
    if shape.reduction_device == Processor::Host && matches!(collective, AllReduce | ReduceScatter | Reduce) {
        return Ok(Box::new(staged::HostStaging::new(algorithm, shape)?));
    }
    Ok(match (algorithm, collective) {
        (_, Barrier) | (Algorithm::Dissemination, _) => Box::new(barrier::Barrier::new(shape, algorithm)?),
        (Algorithm::Ring, Broadcast | Reduce) => Box::new(ring::RingChain::new(shape)?),
        (Algorithm::Ring, _) => Box::new(ring::Ring::new(shape, numbering)?),
        (Algorithm::Tree, AllReduce) => Box::new(tree::DoubleTree::new(shape)?),
        (Algorithm::Tree, Gather | Scatter) => Box::new(binomial_blocks::BinomialBlocks::new(shape)?),
        (Algorithm::Tree, Broadcast) => {
            tree_generator(shape, algorithm, tree::Binomial::largest_first(ranks), ChildOrder::Sequential)?
        }
        (Algorithm::Tree, _) => {
            tree_generator(shape, algorithm, tree::Binomial::smallest_first(ranks), ChildOrder::Sequential)?
        }
        (Algorithm::Linear, _) => tree_generator(shape, algorithm, linear::Star { ranks }, ChildOrder::Concurrent)?,
        (Algorithm::Knomial, _) => {
            tree_generator(shape, algorithm, knomial::Knomial { ranks }, ChildOrder::Concurrent)?
        }
        (Algorithm::BinaryTree, _) => {
            tree_generator(shape, algorithm, binary_tree::BinaryTree { ranks }, ChildOrder::Concurrent)?
        }
        (Algorithm::Chains, _) => tree_generator(shape, algorithm, chains::Chains { ranks }, ChildOrder::Concurrent)?,
        (Algorithm::InOrderTree, _) => Box::new(in_order_tree::InOrderReduce::new(shape)?),
        (Algorithm::SplitTree, _) => Box::new(split_tree::SplitTree::new(shape)?),
        (Algorithm::LinearSync, _) => Box::new(linear_sync::LinearSync::new(shape)?),
        // An odd number of ranks cannot be paired.
        (Algorithm::NeighbourExchange, _) if ranks % 2 == 1 => Box::new(ring::Ring::new(shape, numbering)?),
        (Algorithm::NeighbourExchange, _) => Box::new(neighbours::NeighbourExchange::new(shape)?),
        (Algorithm::Butterfly, _) => Box::new(butterfly::Butterfly::new(shape)?),
        (Algorithm::ReduceThenBroadcast, _) => Box::new(reduce_then_broadcast::ReduceThenBroadcast::new(shape)?),
        (Algorithm::ReduceThenScatter, _) => Box::new(reduce_then_scatter::ReduceThenScatter::new(shape)?),
        (Algorithm::TreePacking, _) => Box::new(tree_packing::TreePacking::new(shape)?),
        (Algorithm::OneShot, _) => Box::new(one_shot::OneShot::new(shape)?),
        (Algorithm::TwoShot, _) => Box::new(two_shot::TwoShot::new(shape)?),
        (Algorithm::Direct, AllToAllV) => Box::new(uneven::Uneven::new(shape, PartnerOrder::Concurrent)?),
        (Algorithm::Pairwise, AllToAllV) => Box::new(uneven::Uneven::new(shape, PartnerOrder::Sequential)?),
        (Algorithm::Direct, ReduceScatter) => Box::new(two_shot::DirectReduceScatter::new(shape)?),
        (Algorithm::Direct, _) => Box::new(direct::Direct::new(shape, PartnerOrder::Concurrent)?),
        (Algorithm::Pairwise, _) => Box::new(direct::Direct::new(shape, PartnerOrder::Sequential)?),
        (Algorithm::GridRing, _) => Box::new(grid::GridRing::new(shape)?),
        (Algorithm::ScatterAllGather, _) => Box::new(scatter_all_gather::ScatterAllGather::new(shape)?),
        (Algorithm::Hierarchical, AllGather) => Box::new(hierarchical::HierarchicalAllGather::new(shape)?),
        (Algorithm::Hierarchical, ReduceScatter) => Box::new(hierarchical::HierarchicalReduceScatter::new(shape)?),
        (Algorithm::Hierarchical, Broadcast) => Box::new(hierarchical::Broadcast::new(shape)?),
        (Algorithm::Hierarchical, Reduce) => Box::new(hierarchical::Reduce::new(shape)?),
        (Algorithm::Hierarchical, AllToAllV) => Box::new(hierarchical::AllToAllV::new(shape)?),
        (Algorithm::Hierarchical, AllToAll) => Box::new(hierarchical::HierarchicalAllToAll::new(shape)?),
        (Algorithm::Hierarchical, _) => Box::new(hierarchical::HierarchicalAllReduce::new(shape)?),
        (Algorithm::RecursiveDoubling, AllReduce) => Box::new(doubling::DoublingAllReduce::new(shape)?),
        (Algorithm::RecursiveDoubling, _) => Box::new(doubling::DoublingAllGather::new(shape)?),
        (Algorithm::Bruck, AllGather) => Box::new(bruck::BruckAllGather::new(shape)?),
        (Algorithm::Bruck, _) => Box::new(bruck::BruckAllToAll::new(shape)?),
        (Algorithm::Pat, _) => Box::new(pat::Pat::new(shape)?),
        (Algorithm::RecursiveHalvingDoubling, _) => Box::new(halving_doubling::HalvingDoubling::new(shape)?),
        (Algorithm::Nvls, AllReduce) if shape.ranks_per_team != ranks => {
            Box::new(nvls_network::NvlsNetwork::new(shape)?)
        }
        (Algorithm::Nvls, _) => Box::new(nvls::Nvls::new(shape)?),
        (Algorithm::NvlsTree, _) => Box::new(nvls_tree::NvlsTree::new(shape)?),
        (Algorithm::CollnetChain, _) => Box::new(collnet_chain::CollnetChain::new(shape)?),
    })
}
