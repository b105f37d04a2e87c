//! Switch points of Open MPI's fixed decision rules as data: for each collective, by ranks and then by bytes.
//!
//! Source: `ompi/mca/coll/tuned/coll_tuned_decision_fixed.c` of Open MPI 4.1 (BSD-3-Clause-Open-MPI), unchanged in 5.0.
//! Open MPI's developers averaged them from measurements on CPUs of several clusters, not on GPUs. Only rules for
//! commutative operations are included (those that nccl-tests measures).

use super::ways::Way::{self, *};

/// Rows of (exclusive upper limit of ranks, rules); rules of (exclusive upper limit of bytes, algorithm).
pub(super) type Table = &'static [(u32, &'static [(u64, Way)])];

const ANY: u32 = u32::MAX;
const REST: u64 = u64::MAX;

/// Rules by the bytes of the whole buffer.
pub(super) const ALL_REDUCE: Table = &[
    (
        4,
        &[
            (8, Ring),
            (4096, RecursiveDoubling),
            (8192, Ring),
            (16384, RecursiveDoubling),
            (65536, Ring),
            (262144, SegmentedRing),
            (REST, Rabenseifner),
        ],
    ),
    (8, &[(16, Ring), (8192, RecursiveDoubling), (REST, Rabenseifner)]),
    (16, &[(8192, RecursiveDoubling), (REST, Rabenseifner)]),
    (32, &[(64, SegmentedRing), (4096, RecursiveDoubling), (REST, Rabenseifner)]),
    (64, &[(128, SegmentedRing), (REST, Rabenseifner)]),
    (128, &[(262144, RecursiveDoubling), (REST, Rabenseifner)]),
    (256, &[(131072, ReduceThenBroadcast), (262144, RecursiveDoubling), (REST, Rabenseifner)]),
    (512, &[(4096, ReduceThenBroadcast), (REST, Rabenseifner)]),
    (2048, &[(2048, ReduceThenBroadcast), (16384, RecursiveDoubling), (REST, Rabenseifner)]),
    (4096, &[(2048, ReduceThenBroadcast), (4096, SegmentedRing), (16384, RecursiveDoubling), (REST, Rabenseifner)]),
    (ANY, &[(2048, ReduceThenBroadcast), (16384, SegmentedRing), (32768, RecursiveDoubling), (REST, Rabenseifner)]),
];

/// Rules by the bytes for one peer.
pub(super) const ALL_TO_ALL: Table = &[
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
            (REST, Pairwise),
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
            (REST, Linear),
        ],
    ),
    (16, &[(262144, LinearSync), (REST, Linear)]),
    (
        32,
        &[
            (4, LinearSync),
            (512, Bruck),
            (8192, LinearSync),
            (32768, Linear),
            (262144, LinearSync),
            (524288, Linear),
            (REST, LinearSync),
        ],
    ),
    (64, &[(512, Bruck), (524288, Linear), (REST, LinearSync)]),
    (128, &[(1024, Bruck), (2048, Linear), (4096, LinearSync), (262144, Linear), (REST, Pairwise)]),
    (256, &[(1024, Bruck), (2048, LinearSync), (262144, Linear), (REST, Pairwise)]),
    (512, &[(1024, Bruck), (8192, LinearSync), (32768, Linear), (REST, Pairwise)]),
    (
        1024,
        &[(512, Bruck), (8192, LinearSync), (16384, Linear), (131072, LinearSync), (262144, Linear), (REST, Pairwise)],
    ),
    (
        2048,
        &[(512, Bruck), (1024, LinearSync), (2048, Linear), (16384, LinearSync), (262144, Linear), (REST, LinearSync)],
    ),
    (4096, &[(1024, Bruck), (4096, LinearSync), (8192, Linear), (131072, LinearSync), (REST, Linear)]),
    (
        ANY,
        &[(2048, Bruck), (8192, LinearSync), (16384, Linear), (32768, LinearSync), (65536, Linear), (REST, LinearSync)],
    ),
];

/// Rules by the bytes of the whole buffer.
pub(super) const BROADCAST: Table = &[
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
            (REST, BinaryTree),
        ],
    ),
    (8, &[(64, BinaryTree), (128, Binomial), (2048, BinaryTree), (8192, Binomial), (1048576, Linear), (REST, Chain)]),
    (16, &[(8, Knomial), (64, BinaryTree), (4096, Knomial), (16384, BinaryTree), (32768, Binomial), (REST, Linear)]),
    (32, &[(4096, Knomial), (1048576, Binomial), (REST, ScatterAllGather)]),
    (64, &[(2048, Binomial), (REST, Knomial)]),
    (128, &[(REST, Knomial)]),
    (256, &[(2, Binomial), (16384, BinaryTree), (32768, Linear), (65536, BinaryTree), (REST, Knomial)]),
    (1024, &[(16384, Knomial), (32768, SplitBinaryTree), (REST, Knomial)]),
    (2048, &[(524288, Knomial), (REST, ScatterAllGather)]),
    (4096, &[(262144, Knomial), (REST, ScatterAllGather)]),
    (ANY, &[(8192, Knomial), (16384, BinaryTree), (262144, Knomial), (REST, ScatterAllGather)]),
];

/// Rules by the bytes of the whole buffer.
pub(super) const REDUCE: Table = &[
    (
        4,
        &[
            (8, Rabenseifner),
            (16, BinaryTree),
            (32, Pipeline),
            (262144, Linear),
            (524288, Pipeline),
            (1048576, Chain),
            (REST, Pipeline),
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
            (REST, Linear),
        ],
    ),
    (16, &[(8192, BinaryTree), (REST, Binomial)]),
    (32, &[(4096, BinaryTree), (REST, Binomial)]),
    (256, &[(REST, Binomial)]),
    (512, &[(8192, Binomial), (16384, InOrderBinaryTree), (REST, Binomial)]),
    (2048, &[(REST, Binomial)]),
    (
        4096,
        &[(512, Binomial), (1024, InOrderBinaryTree), (8192, Binomial), (16384, InOrderBinaryTree), (REST, Binomial)],
    ),
    (
        ANY,
        &[
            (16, Binomial),
            (32, InOrderBinaryTree),
            (1024, Binomial),
            (2048, InOrderBinaryTree),
            (8192, Binomial),
            (16384, InOrderBinaryTree),
            (REST, Binomial),
        ],
    ),
];

/// Rules by the bytes of a rank's block (MPI_Reduce_scatter_block, since blocks are equal).
pub(super) const REDUCE_SCATTER: Table = &[
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
            (REST, ReduceThenScatter),
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
            (REST, ReduceThenScatter),
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
            (REST, Butterfly),
        ],
    ),
    (
        32,
        &[
            (32, ReduceThenScatter),
            (524288, RecursiveHalving),
            (2097152, ReduceThenScatter),
            (4194304, RecursiveHalving),
            (REST, Butterfly),
        ],
    ),
    (
        ANY,
        &[
            (4, RecursiveHalving),
            (16, ReduceThenScatter),
            (65536, Butterfly),
            (262144, ReduceThenScatter),
            (REST, Butterfly),
        ],
    ),
];

/// Rules by the bytes of a rank's block.
pub(super) const ALL_GATHER: Table = &[
    (3, &[(REST, TwoProcesses)]),
    (32, &[(REST, RecursiveDoubling)]),
    (64, &[(1024, RecursiveDoubling), (65536, NeighbourExchange), (REST, Ring)]),
    (128, &[(512, RecursiveDoubling), (65536, NeighbourExchange), (REST, Ring)]),
    (
        256,
        &[
            (512, RecursiveDoubling),
            (131072, NeighbourExchange),
            (524288, Ring),
            (1048576, NeighbourExchange),
            (REST, Ring),
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
            (REST, Ring),
        ],
    ),
    (1024, &[(64, RecursiveDoubling), (256, Bruck), (2048, RecursiveDoubling), (REST, NeighbourExchange)]),
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
            (REST, NeighbourExchange),
        ],
    ),
    (
        4096,
        &[(32, Bruck), (128, RecursiveDoubling), (512, Bruck), (4096, RecursiveDoubling), (REST, NeighbourExchange)],
    ),
    (
        ANY,
        &[
            (2, RecursiveDoubling),
            (8, Bruck),
            (16, RecursiveDoubling),
            (512, Bruck),
            (4096, RecursiveDoubling),
            (REST, NeighbourExchange),
        ],
    ),
];

/// Rules by the bytes of a rank's block.
pub(super) const GATHER: Table = &[
    (4, &[(2, LinearSync), (4, Linear), (32768, Binomial), (65536, Linear), (131072, Binomial), (REST, LinearSync)]),
    (8, &[(1024, Binomial), (8192, Linear), (32768, Binomial), (262144, Linear), (REST, LinearSync)]),
    (256, &[(REST, Binomial)]),
    (512, &[(2048, Binomial), (8192, Linear), (REST, Binomial)]),
    (ANY, &[(REST, Binomial)]),
];

/// Rules by ranks only, since blocks may differ.
pub(super) const ALL_TO_ALL_V: Table = &[
    (4, &[(REST, Pairwise)]),
    (64, &[(REST, Linear)]),
    (128, &[(REST, Pairwise)]),
    (256, &[(REST, Linear)]),
    (1024, &[(REST, Pairwise)]),
    (ANY, &[(REST, Linear)]),
];

/// Rules by ranks only, since a barrier moves no data.
pub(super) const BARRIER: Table = &[
    (4, &[(REST, RecursiveDoubling)]),
    (8, &[(REST, Linear)]),
    (64, &[(REST, RecursiveDoubling)]),
    (256, &[(REST, Bruck)]),
    (512, &[(REST, Binomial)]),
    (1024, &[(REST, Bruck)]),
    (4096, &[(REST, Binomial)]),
    (ANY, &[(REST, Bruck)]),
];

/// Rules by the bytes of a rank's block.
pub(super) const SCATTER: Table = &[
    (4, &[(2, LinearNonblocking), (131072, Linear), (262144, LinearNonblocking), (REST, Linear)]),
    (
        8,
        &[
            (2048, Binomial),
            (4096, Linear),
            (8192, Binomial),
            (32768, Linear),
            (1048576, LinearNonblocking),
            (REST, Linear),
        ],
    ),
    (16, &[(16384, Binomial), (1048576, LinearNonblocking), (REST, Linear)]),
    (32, &[(16384, Binomial), (32768, Linear), (REST, LinearNonblocking)]),
    (64, &[(512, Binomial), (8192, LinearNonblocking), (16384, Binomial), (REST, LinearNonblocking)]),
    (ANY, &[(512, Binomial), (REST, LinearNonblocking)]),
];
