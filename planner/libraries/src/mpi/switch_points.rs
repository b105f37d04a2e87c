//! Switch points of Open MPI's fixed decision rules as data: for each collective, by ranks and then by bytes.
//!
//! Source: `ompi/mca/coll/tuned/coll_tuned_decision_fixed.c` of Open MPI 4.1 (BSD-3-Clause-Open-MPI), unchanged in 5.0.
//! They are averages of measurements by Open MPI's developers on CPUs of several clusters, not on GPUs. Only rules for
//! commutative operations are included (those that nccl-tests measures).

use super::algorithms::OpenMpiAlgorithm::{self, *};

/// Rows of (exclusive upper limit of ranks, rules); rules of (exclusive upper limit of bytes, algorithm).
pub(super) type DecisionTable = &'static [(u32, &'static [(u64, OpenMpiAlgorithm)])];

const ANY_RANKS: u32 = u32::MAX;
const ANY_SIZE: u64 = u64::MAX;

/// Rules of all_reduce, by the bytes of the whole buffer.
pub(super) const ALL_REDUCE: DecisionTable = &[
    (
        4,
        &[
            (8, Ring),
            (4096, RecursiveDoubling),
            (8192, Ring),
            (16384, RecursiveDoubling),
            (65536, Ring),
            (262144, SegmentedRing),
            (ANY_SIZE, Rabenseifner),
        ],
    ),
    (8, &[(16, Ring), (8192, RecursiveDoubling), (ANY_SIZE, Rabenseifner)]),
    (16, &[(8192, RecursiveDoubling), (ANY_SIZE, Rabenseifner)]),
    (32, &[(64, SegmentedRing), (4096, RecursiveDoubling), (ANY_SIZE, Rabenseifner)]),
    (64, &[(128, SegmentedRing), (ANY_SIZE, Rabenseifner)]),
    (128, &[(262144, RecursiveDoubling), (ANY_SIZE, Rabenseifner)]),
    (256, &[(131072, ReduceThenBroadcast), (262144, RecursiveDoubling), (ANY_SIZE, Rabenseifner)]),
    (512, &[(4096, ReduceThenBroadcast), (ANY_SIZE, Rabenseifner)]),
    (2048, &[(2048, ReduceThenBroadcast), (16384, RecursiveDoubling), (ANY_SIZE, Rabenseifner)]),
    (4096, &[(2048, ReduceThenBroadcast), (4096, SegmentedRing), (16384, RecursiveDoubling), (ANY_SIZE, Rabenseifner)]),
    (
        ANY_RANKS,
        &[(2048, ReduceThenBroadcast), (16384, SegmentedRing), (32768, RecursiveDoubling), (ANY_SIZE, Rabenseifner)],
    ),
];

/// Rules of all_to_all, by the bytes for one peer.
pub(super) const ALL_TO_ALL: DecisionTable = &[
    (
        3,
        &[
            (2, Pairwise),
            (4, TwoProcesses),
            (16, Pairwise),
            (64, TwoProcesses),
            (256, Pairwise),
            (4096, TwoProcesses),
            (32768, Pairwise),
            (262144, LinearSync),
            (1048576, TwoProcesses),
            (ANY_SIZE, Pairwise),
        ],
    ),
    (
        8,
        &[
            (8192, LinearSync),
            (16384, Linear),
            (65536, LinearSync),
            (524288, Linear),
            (1048576, Pairwise),
            (ANY_SIZE, Linear),
        ],
    ),
    (16, &[(262144, LinearSync), (ANY_SIZE, Linear)]),
    (
        32,
        &[
            (4, LinearSync),
            (512, Bruck),
            (8192, LinearSync),
            (32768, Linear),
            (262144, LinearSync),
            (524288, Linear),
            (ANY_SIZE, LinearSync),
        ],
    ),
    (64, &[(512, Bruck), (524288, Linear), (ANY_SIZE, LinearSync)]),
    (128, &[(1024, Bruck), (2048, Linear), (4096, LinearSync), (262144, Linear), (ANY_SIZE, Pairwise)]),
    (256, &[(1024, Bruck), (2048, LinearSync), (262144, Linear), (ANY_SIZE, Pairwise)]),
    (512, &[(1024, Bruck), (8192, LinearSync), (32768, Linear), (ANY_SIZE, Pairwise)]),
    (
        1024,
        &[
            (512, Bruck),
            (8192, LinearSync),
            (16384, Linear),
            (131072, LinearSync),
            (262144, Linear),
            (ANY_SIZE, Pairwise),
        ],
    ),
    (
        2048,
        &[
            (512, Bruck),
            (1024, LinearSync),
            (2048, Linear),
            (16384, LinearSync),
            (262144, Linear),
            (ANY_SIZE, LinearSync),
        ],
    ),
    (4096, &[(1024, Bruck), (4096, LinearSync), (8192, Linear), (131072, LinearSync), (ANY_SIZE, Linear)]),
    (
        ANY_RANKS,
        &[
            (2048, Bruck),
            (8192, LinearSync),
            (16384, Linear),
            (32768, LinearSync),
            (65536, Linear),
            (ANY_SIZE, LinearSync),
        ],
    ),
];

/// Rules of broadcast, by the bytes of the whole buffer.
pub(super) const BROADCAST: DecisionTable = &[
    (
        4,
        &[
            (32, Pipeline),
            (256, BinaryTree),
            (512, Pipeline),
            (1024, Knomial),
            (32768, Linear),
            (131072, BinaryTree),
            (262144, Chain),
            (524288, Linear),
            (1048576, Binomial),
            (ANY_SIZE, BinaryTree),
        ],
    ),
    (
        8,
        &[
            (64, BinaryTree),
            (128, Binomial),
            (2048, BinaryTree),
            (8192, Binomial),
            (1048576, Linear),
            (ANY_SIZE, Chain),
        ],
    ),
    (
        16,
        &[(8, Knomial), (64, BinaryTree), (4096, Knomial), (16384, BinaryTree), (32768, Binomial), (ANY_SIZE, Linear)],
    ),
    (32, &[(4096, Knomial), (1048576, Binomial), (ANY_SIZE, ScatterAllGather)]),
    (64, &[(2048, Binomial), (ANY_SIZE, Knomial)]),
    (128, &[(ANY_SIZE, Knomial)]),
    (256, &[(2, Binomial), (16384, BinaryTree), (32768, Linear), (65536, BinaryTree), (ANY_SIZE, Knomial)]),
    (1024, &[(16384, Knomial), (32768, SplitBinaryTree), (ANY_SIZE, Knomial)]),
    (2048, &[(524288, Knomial), (ANY_SIZE, ScatterAllGather)]),
    (4096, &[(262144, Knomial), (ANY_SIZE, ScatterAllGather)]),
    (ANY_RANKS, &[(8192, Knomial), (16384, BinaryTree), (262144, Knomial), (ANY_SIZE, ScatterAllGather)]),
];

/// Rules of reduce, by the bytes of the whole buffer.
pub(super) const REDUCE: DecisionTable = &[
    (
        4,
        &[
            (8, Rabenseifner),
            (16, BinaryTree),
            (32, Pipeline),
            (262144, Linear),
            (524288, Pipeline),
            (1048576, Chain),
            (ANY_SIZE, Pipeline),
        ],
    ),
    (
        8,
        &[
            (4096, BinaryTree),
            (65536, Chain),
            (262144, Binomial),
            (524288, Linear),
            (1048576, Binomial),
            (ANY_SIZE, Linear),
        ],
    ),
    (16, &[(8192, BinaryTree), (ANY_SIZE, Binomial)]),
    (32, &[(4096, BinaryTree), (ANY_SIZE, Binomial)]),
    (256, &[(ANY_SIZE, Binomial)]),
    (512, &[(8192, Binomial), (16384, InOrderBinaryTree), (ANY_SIZE, Binomial)]),
    (2048, &[(ANY_SIZE, Binomial)]),
    (
        4096,
        &[
            (512, Binomial),
            (1024, InOrderBinaryTree),
            (8192, Binomial),
            (16384, InOrderBinaryTree),
            (ANY_SIZE, Binomial),
        ],
    ),
    (
        ANY_RANKS,
        &[
            (16, Binomial),
            (32, InOrderBinaryTree),
            (1024, Binomial),
            (2048, InOrderBinaryTree),
            (8192, Binomial),
            (16384, InOrderBinaryTree),
            (ANY_SIZE, Binomial),
        ],
    ),
];

/// Rules of reduce_scatter, by the bytes of a rank's block (MPI_Reduce_scatter_block, since blocks are equal).
pub(super) const REDUCE_SCATTER: DecisionTable = &[
    (
        4,
        &[
            (4, RecursiveDoubling),
            (8, Butterfly),
            (16, RecursiveHalving),
            (128, Butterfly),
            (256, RecursiveHalving),
            (4096, Butterfly),
            (8192, RecursiveHalving),
            (131072, Butterfly),
            (ANY_SIZE, ReduceThenScatter),
        ],
    ),
    (
        8,
        &[
            (8, RecursiveHalving),
            (32, RecursiveDoubling),
            (256, Butterfly),
            (8192, RecursiveHalving),
            (16384, Butterfly),
            (1048576, RecursiveHalving),
            (ANY_SIZE, ReduceThenScatter),
        ],
    ),
    (
        16,
        &[
            (4, ReduceThenScatter),
            (32, RecursiveHalving),
            (128, Butterfly),
            (524288, RecursiveHalving),
            (4194304, ReduceThenScatter),
            (ANY_SIZE, Butterfly),
        ],
    ),
    (
        32,
        &[
            (32, ReduceThenScatter),
            (524288, RecursiveHalving),
            (2097152, ReduceThenScatter),
            (4194304, RecursiveHalving),
            (ANY_SIZE, Butterfly),
        ],
    ),
    (
        ANY_RANKS,
        &[
            (4, RecursiveHalving),
            (16, ReduceThenScatter),
            (65536, Butterfly),
            (262144, ReduceThenScatter),
            (ANY_SIZE, Butterfly),
        ],
    ),
];

/// Rules of all_gather, by the bytes of a rank's block.
pub(super) const ALL_GATHER: DecisionTable = &[
    (3, &[(ANY_SIZE, TwoProcesses)]),
    (32, &[(ANY_SIZE, RecursiveDoubling)]),
    (64, &[(1024, RecursiveDoubling), (65536, NeighbourExchange), (ANY_SIZE, Ring)]),
    (128, &[(512, RecursiveDoubling), (65536, NeighbourExchange), (ANY_SIZE, Ring)]),
    (
        256,
        &[
            (512, RecursiveDoubling),
            (131072, NeighbourExchange),
            (524288, Ring),
            (1048576, NeighbourExchange),
            (ANY_SIZE, Ring),
        ],
    ),
    (
        512,
        &[
            (32, RecursiveDoubling),
            (128, Bruck),
            (1024, RecursiveDoubling),
            (131072, NeighbourExchange),
            (524288, Ring),
            (1048576, NeighbourExchange),
            (ANY_SIZE, Ring),
        ],
    ),
    (1024, &[(64, RecursiveDoubling), (256, Bruck), (2048, RecursiveDoubling), (ANY_SIZE, NeighbourExchange)]),
    (
        2048,
        &[
            (4, RecursiveDoubling),
            (8, Bruck),
            (16, RecursiveDoubling),
            (32, Bruck),
            (256, RecursiveDoubling),
            (512, Bruck),
            (4096, RecursiveDoubling),
            (ANY_SIZE, NeighbourExchange),
        ],
    ),
    (
        4096,
        &[
            (32, Bruck),
            (128, RecursiveDoubling),
            (512, Bruck),
            (4096, RecursiveDoubling),
            (ANY_SIZE, NeighbourExchange),
        ],
    ),
    (
        ANY_RANKS,
        &[
            (2, RecursiveDoubling),
            (8, Bruck),
            (16, RecursiveDoubling),
            (512, Bruck),
            (4096, RecursiveDoubling),
            (ANY_SIZE, NeighbourExchange),
        ],
    ),
];

/// Rules of gather, by the bytes of a rank's block.
pub(super) const GATHER: DecisionTable = &[
    (
        4,
        &[(2, LinearSync), (4, Linear), (32768, Binomial), (65536, Linear), (131072, Binomial), (ANY_SIZE, LinearSync)],
    ),
    (8, &[(1024, Binomial), (8192, Linear), (32768, Binomial), (262144, Linear), (ANY_SIZE, LinearSync)]),
    (256, &[(ANY_SIZE, Binomial)]),
    (512, &[(2048, Binomial), (8192, Linear), (ANY_SIZE, Binomial)]),
    (ANY_RANKS, &[(ANY_SIZE, Binomial)]),
];

/// Rules of all_to_allv, by ranks only, since blocks may differ.
pub(super) const ALL_TO_ALL_V: DecisionTable = &[
    (4, &[(ANY_SIZE, Pairwise)]),
    (64, &[(ANY_SIZE, Linear)]),
    (128, &[(ANY_SIZE, Pairwise)]),
    (256, &[(ANY_SIZE, Linear)]),
    (1024, &[(ANY_SIZE, Pairwise)]),
    (ANY_RANKS, &[(ANY_SIZE, Linear)]),
];

/// Rules of barrier, by ranks only, since a barrier moves no data.
pub(super) const BARRIER: DecisionTable = &[
    (4, &[(ANY_SIZE, RecursiveDoubling)]),
    (8, &[(ANY_SIZE, Linear)]),
    (64, &[(ANY_SIZE, RecursiveDoubling)]),
    (256, &[(ANY_SIZE, Bruck)]),
    (512, &[(ANY_SIZE, Binomial)]),
    (1024, &[(ANY_SIZE, Bruck)]),
    (4096, &[(ANY_SIZE, Binomial)]),
    (ANY_RANKS, &[(ANY_SIZE, Bruck)]),
];

/// Rules of scatter, by the bytes of a rank's block.
pub(super) const SCATTER: DecisionTable = &[
    (4, &[(2, LinearNonblocking), (131072, Linear), (262144, LinearNonblocking), (ANY_SIZE, Linear)]),
    (
        8,
        &[
            (2048, Binomial),
            (4096, Linear),
            (8192, Binomial),
            (32768, Linear),
            (1048576, LinearNonblocking),
            (ANY_SIZE, Linear),
        ],
    ),
    (16, &[(16384, Binomial), (1048576, LinearNonblocking), (ANY_SIZE, Linear)]),
    (32, &[(16384, Binomial), (32768, Linear), (ANY_SIZE, LinearNonblocking)]),
    (64, &[(512, Binomial), (8192, LinearNonblocking), (16384, Binomial), (ANY_SIZE, LinearNonblocking)]),
    (ANY_RANKS, &[(512, Binomial), (ANY_SIZE, LinearNonblocking)]),
];
