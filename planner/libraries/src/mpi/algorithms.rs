//! Algorithms of Open MPI's `base` component, and the equivalent algorithms of fabricast.

use fabricast_sim::schedule::Collective;

use fabricast_collectives::algorithm::Algorithm;

/// Algorithm of `ompi/mca/coll/base` (Open MPI 4.1, 5.0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpenMpiAlgorithm {
    /// The root communicates with every rank, one after another; in all_to_all, all messages are sent concurrently.
    Linear,
    /// Linear with a handshake (gather) or a limit of outstanding messages (all_to_all), which is not set by default.
    LinearSync,
    /// Linear, without waiting for a message before the next one is sent.
    LinearNonblocking,
    /// Recursive doubling: partners at distances 1, 2, 4, ….
    RecursiveDoubling,
    /// Recursive halving for reduce_scatter.
    RecursiveHalving,
    /// reduce_scatter by recursive halving, then all_gather by recursive doubling.
    Rabenseifner,
    /// Ring, in which each rank sends to its successor only.
    Ring,
    /// Ring that moves each block in segments.
    SegmentedRing,
    /// Reduce followed by broadcast.
    ReduceThenBroadcast,
    /// Reduce followed by scatter.
    ReduceThenScatter,
    /// Bruck's algorithm: ⌈log2 n⌉ messages for any number of ranks.
    Bruck,
    /// Pairwise exchange, one partner at a time.
    Pairwise,
    /// Exchange between two ranks.
    TwoProcesses,
    /// Neighbour exchange, alternating between the two neighbours.
    NeighbourExchange,
    /// reduce_scatter by recursive halving over increasing distances.
    Butterfly,
    /// A single chain through all ranks.
    Pipeline,
    /// Several chains that start at the root; the fan-out gives their number.
    Chain,
    /// Binary tree filled level by level.
    BinaryTree,
    /// Binary tree that preserves the order of ranks.
    InOrderBinaryTree,
    /// Split binary tree: one half of the buffer per side of the tree.
    SplitBinaryTree,
    /// Binomial tree, of ⌈log2 n⌉ levels.
    Binomial,
    /// K-nomial tree of radix 4.
    Knomial,
    /// Scatter over a binomial tree followed by all_gather.
    ScatterAllGather,
}

impl OpenMpiAlgorithm {
    /// Returns Open MPI's name of the algorithm.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::LinearSync => "linear_sync",
            Self::LinearNonblocking => "linear_nb",
            Self::RecursiveDoubling => "recursive_doubling",
            Self::RecursiveHalving => "recursive_halving",
            Self::Rabenseifner => "rabenseifner",
            Self::Ring => "ring",
            Self::SegmentedRing => "segmented_ring",
            Self::ReduceThenBroadcast => "nonoverlapping",
            Self::ReduceThenScatter => "basic_linear",
            Self::Bruck => "bruck",
            Self::Pairwise => "pairwise",
            Self::TwoProcesses => "two_proc",
            Self::NeighbourExchange => "neighbor",
            Self::Butterfly => "butterfly",
            Self::Pipeline => "pipeline",
            Self::Chain => "chain",
            Self::BinaryTree => "binary_tree",
            Self::InOrderBinaryTree => "in-order_binary",
            Self::SplitBinaryTree => "split_binary_tree",
            Self::Binomial => "binomial",
            Self::Knomial => "knomial",
            Self::ScatterAllGather => "scatter_allgather",
        }
    }

    /// Returns fabricast's algorithm that is equivalent to this algorithm for a collective; `None` if there is none.
    /// Recursive doubling for reduce_scatter has no equivalent, because it sends sums that the receiving ranks do not
    /// need, and fabricast's schedules move no unused data.
    pub(super) fn equivalent(self, collective: Collective) -> Option<Algorithm> {
        let algorithm = match (self, collective) {
            // Bruck's barrier is the dissemination barrier.
            (Self::Bruck, Collective::Barrier) => Algorithm::Dissemination,
            (Self::Linear, Collective::Broadcast | Collective::Reduce | Collective::Barrier) => Algorithm::Linear,
            (Self::LinearSync, Collective::Gather) => Algorithm::LinearSync,
            (Self::LinearSync | Self::LinearNonblocking | Self::Linear | Self::TwoProcesses, _) => Algorithm::Direct,
            (Self::RecursiveDoubling, _) => Algorithm::RecursiveDoubling,
            (Self::RecursiveHalving | Self::Rabenseifner, _) => Algorithm::RecursiveHalvingDoubling,
            // The fixed decision rules set no fan-out, so there is one chain.
            (Self::Ring | Self::SegmentedRing | Self::Pipeline | Self::Chain, _) => Algorithm::Ring,
            (Self::Bruck, _) => Algorithm::Bruck,
            (Self::Pairwise, _) => Algorithm::Pairwise,
            (Self::Binomial, _) => Algorithm::Tree,
            (Self::ScatterAllGather, _) => Algorithm::ScatterAllGather,
            (Self::ReduceThenBroadcast, _) => Algorithm::ReduceThenBroadcast,
            (Self::ReduceThenScatter, _) => Algorithm::ReduceThenScatter,
            (Self::NeighbourExchange, _) => Algorithm::NeighbourExchange,
            (Self::Butterfly, _) => Algorithm::Butterfly,
            (Self::BinaryTree, _) => Algorithm::BinaryTree,
            (Self::InOrderBinaryTree, _) => Algorithm::InOrderTree,
            (Self::SplitBinaryTree, _) => Algorithm::SplitTree,
            (Self::Knomial, _) => Algorithm::Knomial,
        };
        algorithm.supports(collective).then_some(algorithm)
    }
}
