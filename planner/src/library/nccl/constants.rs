//! The constants of NCCL's cost model, as data: latencies in µs, bandwidths in GB/s (10⁹ bytes a second).
//!
//! Values are those of NCCL 2.30.7 `src/graph/tuning.cc`, which 2.31.0 keeps (`src/tuning/cost_model.cc`). 2.28.9 has the
//! same ones: the table that it printed on 8 × H200 comes out of them to the last digit (tests/tests/nccl.rs).

use super::index::{Algo, Proto};

/// What a hop crosses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hardware {
    /// NVLink, straight or through switches.
    Nvlink,
    /// Anything else inside a node.
    Pci,
    /// The network.
    Net,
}

/// Compute capability, as rows of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Generation {
    Volta,
    Ampere,
    Hopper,
    Blackwell,
}

impl Generation {
    /// By the least compute capability × 10 of a communicator.
    pub(super) fn of(compute_capability: u32) -> Self {
        match compute_capability {
            100.. => Self::Blackwell,
            90.. => Self::Hopper,
            80.. => Self::Ampere,
            _ => Self::Volta,
        }
    }
}

/// Number of nodes, as columns of the tables: one, two, more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    One,
    Two,
    More,
}

impl Scale {
    pub(super) fn of(nodes: u32) -> Self {
        match nodes {
            0 | 1 => Self::One,
            2 => Self::Two,
            _ => Self::More,
        }
    }
}

/// LL, LL128, Simple.
type ByProto = [f64; 3];
/// A row a generation, a column a scale.
pub(super) type ByScale = [[f64; 3]; 4];

/// Tree, Ring, CollNetDirect, CollNetChain, NVLS, NVLSTree, PAT.
const BASE: [ByProto; 7] = [
    [6.8, 14.0, 8.4],
    [6.6, 14.0, 8.4],
    [0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0],
    [8.0, 8.0, 8.0],
];

const HOP: [[ByProto; 7]; 3] = [
    [
        [0.6, 1.25, 4.0],
        [0.6, 1.9, 3.4],
        [0.0, 0.0, 3.7],
        [0.0, 0.0, 2.8],
        [0.0, 0.0, 25.0],
        [0.0, 0.0, 25.0],
        [0.0, 0.0, 4.0],
    ],
    [
        [1.0, 1.9, 4.0],
        [1.0, 2.5, 5.7],
        [0.0, 0.0, 3.7],
        [0.0, 0.0, 2.8],
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 4.0],
    ],
    [
        [5.0, 8.5, 14.0],
        [2.7, 4.0, 14.0],
        [0.0, 0.0, 31.0],
        [0.0, 0.0, 30.0],
        [0.0, 0.0, 18.0],
        [0.0, 0.0, 20.9],
        [0.0, 0.0, 14.0],
    ],
];

/// Most bandwidth of LL, of all channels together. Beyond one node the row is not the GPU's but the CPU's: AMD (or a
/// mixture) has the second, others the first.
pub(super) const LL: ByScale = [[39.0, 39.0, 20.4], [87.7, 22.5, 19.0], [141.0, 45.0, 35.0], [282.0, 90.0, 70.0]];

/// Most bandwidth of a channel: rings in LL128.
pub(super) const RING_LL128: ByScale = [[20.0, 20.0, 20.0], [20.0, 20.0, 20.0], [36.7, 36.7, 36.7], [40.0, 40.0, 40.0]];

/// Most bandwidth of a channel: trees in LL128.
pub(super) const TREE_LL128: ByScale =
    [[20.0, 20.0, 20.0], [20.0, 20.0, 20.0], [36.7, 36.7, 29.0], [55.6, 31.67, 20.0]];

/// Most bandwidth of a channel: trees.
pub(super) const TREE: ByScale = [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [38.7, 41.4, 36.0], [70.0, 42.8, 24.0]];

/// Most bandwidth of a channel: NVLSTree.
pub(super) const NVLS_TREE: ByScale = [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [0.0, 57.7, 45.5], [0.0, 96.0, 80.0]];

/// Part of the link's bandwidth that reduction and multicast in the switch reach.
const NVLS_EFFICIENCY: [f64; 4] = [0.0, 0.0, 0.85, 0.74];

/// What the model multiplies a bandwidth with, by protocol and ⌊log2(bytes ÷ 64)⌋: trees of AllReduce.
const CORRECTION: [&[f64]; 3] = [
    &[
        1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0,
        1.0, 1.0,
    ],
    &[
        1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0,
        1.0,
    ],
    &[
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9,
        0.9, 0.9,
    ],
];

/// Latency of a call that moves nothing, µs.
pub(super) fn base(algo: Algo, proto: Proto) -> f64 {
    BASE[algo as usize][proto as usize]
}

/// Latency of a hop, µs.
pub(super) fn hop(hardware: Hardware, algo: Algo, proto: Proto) -> f64 {
    HOP[hardware as usize][algo as usize][proto as usize]
}

/// A figure by generation and scale, GB/s.
pub(super) fn by_scale(table: &ByScale, generation: Generation, scale: Scale) -> f64 {
    table[generation as usize][scale as usize]
}

/// See [`NVLS_EFFICIENCY`].
pub(super) fn nvls_efficiency(generation: Generation) -> f64 {
    NVLS_EFFICIENCY[generation as usize]
}

/// See [`CORRECTION`]; 1 beyond its end.
pub(super) fn correction(proto: Proto, log: u32) -> f64 {
    CORRECTION[proto as usize].get(log as usize).copied().unwrap_or(1.0)
}
