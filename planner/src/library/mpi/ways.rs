//! The algorithms that Open MPI's base offers, and which of ours they are.

use fabricast_sim::schedule::Collective;

use crate::algorithm::Algorithm;

/// An algorithm of `ompi/mca/coll/base` (Open MPI 4.1, 5.0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// The root talks to every rank in turn; all_to_all: everything at once.
    Linear,
    /// As linear, with a handshake (gather) or a limit of messages under way (all_to_all), which nobody sets by default.
    LinearSync,
    /// As linear, nothing waited for in between.
    LinearNonblocking,
    /// Partners at distances 1, 2, 4, ….
    RecursiveDoubling,
    /// Halving, for reduce_scatter.
    RecursiveHalving,
    /// reduce_scatter by halving, then all_gather by doubling.
    Rabenseifner,
    /// A ring.
    Ring,
    /// A ring in segments.
    SegmentedRing,
    /// Reduce, then broadcast.
    ReduceThenBroadcast,
    /// Reduce, then scatter.
    ReduceThenScatter,
    /// ⌈log2 n⌉ messages for any number of ranks.
    Bruck,
    /// One partner at a time.
    Pairwise,
    /// Both exchange.
    TwoProcesses,
    /// Neighbours exchange what they have, to one side, then to the other.
    NeighbourExchange,
    /// Butterfly of reduce_scatter.
    Butterfly,
    /// A chain of all ranks.
    Pipeline,
    /// Chains, as many as its fan-out says.
    Chain,
    /// A binary tree.
    BinaryTree,
    /// A binary tree that keeps the order of ranks.
    InOrderBinaryTree,
    /// Two halves over two binary trees.
    SplitBinaryTree,
    /// A binomial tree.
    Binomial,
    /// A tree of radix 4.
    Knomial,
    /// Scatter over a binomial tree, then all_gather.
    ScatterAllGather,
}

impl Way {
    /// Open MPI's name.
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

    /// The same algorithm of ours, for a collective that Open MPI takes it for. There is none of recursive doubling for
    /// reduce_scatter, in which ranks are sent sums that they do not need: schedules move nothing that nobody reads.
    pub(super) fn ours(self, collective: Collective) -> Option<Algorithm> {
        let ours = match (self, collective) {
            // Bruck's barrier is what others call dissemination.
            (Self::Bruck, Collective::Barrier) => Algorithm::Dissemination,
            (Self::Linear, Collective::Broadcast | Collective::Reduce | Collective::Barrier) => Algorithm::Linear,
            (Self::LinearSync, Collective::Gather) => Algorithm::LinearSync,
            (Self::LinearSync | Self::LinearNonblocking | Self::Linear | Self::TwoProcesses, _) => Algorithm::Direct,
            (Self::RecursiveDoubling, _) => Algorithm::RecursiveDoubling,
            (Self::RecursiveHalving | Self::Rabenseifner, _) => Algorithm::RecursiveHalvingDoubling,
            // Its fixed decisions give chains no fan-out, which makes them one.
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
        ours.supports(collective).then_some(ours)
    }
}
