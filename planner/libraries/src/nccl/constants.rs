//! Constants of NCCL's cost model: latencies in µs, bandwidths in GB/s (10⁹ bytes per second).
//!
//! The source of each version's constants is its `src/graph/tuning.cc`; 2.31.0 has the constants of 2.30.7 (in
//! `src/tuning/cost_model.cc`). The constants of 2.28.3 reproduce the table that NCCL 2.28.9 logged on 8 × H200 in all
//! digits (tests/tests/nccl).

use super::index::{Algo, Proto};

/// Kind of link that a hop crosses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hardware {
    /// NVLink, direct or through switches.
    Nvlink,
    /// Any other link inside a node.
    Pci,
    /// Network between nodes.
    Net,
}

/// GPU generation by compute capability; the rows of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Generation {
    Volta,
    Ampere,
    Hopper,
    Blackwell,
}

impl Generation {
    /// Generation of the minimum compute capability × 10 of a communicator.
    pub(super) fn from_capability(compute_capability: u32) -> Self {
        match compute_capability {
            100.. => Self::Blackwell,
            90.. => Self::Hopper,
            80.. => Self::Ampere,
            _ => Self::Volta,
        }
    }
}

/// Number of nodes; the columns of the tables are one node, two nodes, and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    One,
    Two,
    More,
}

impl Scale {
    pub(super) fn from_nodes(nodes: u32) -> Self {
        match nodes {
            0 | 1 => Self::One,
            2 => Self::Two,
            _ => Self::More,
        }
    }
}

/// Values by protocol: LL, LL128, Simple.
type ByProto = [f64; 3];
/// One row per generation, one column per scale.
type ByScale = [[f64; 3]; 4];

/// Constants of a version's cost model.
#[derive(Debug)]
pub(super) struct Constants {
    /// Base latency of a call, µs: Tree, Ring, CollNetDirect, CollNetChain, NVLS, NVLSTree, PAT.
    base: [ByProto; 7],
    /// Latency of a hop, µs, over NVLink, PCIe and the network, each for the algorithms in the order of `base`.
    hop: [[ByProto; 7]; 3],
    /// Maximum total bandwidth of LL over all channels, GB/s. For several nodes, the row is selected by the CPU and not
    /// by the GPU: the second row for AMD CPUs (or a mixture of vendors), the first for others.
    ll: ByScale,
    /// Maximum bandwidth of a channel, GB/s: rings with LL128.
    ring_ll128: ByScale,
    /// Maximum bandwidth of a channel, GB/s: trees with LL128.
    tree_ll128: ByScale,
    /// Maximum bandwidth of a channel, GB/s: trees with other protocols.
    tree: ByScale,
    /// Maximum bandwidth of a channel, GB/s: NVLSTree (from 2.28 on).
    nvls_tree: ByScale,
}

/// Constants of NCCL 2.29.2 to 2.31.0.
pub(super) static V2_30: Constants = Constants {
    hop: [NVLINK, PCI, net([5.0, 8.5, 14.0], 20.9)],
    ring_ll128: [[20.0; 3], [20.0; 3], [36.7; 3], [40.0; 3]],
    nvls_tree: [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [0.0, 57.7, 45.5], [0.0, 96.0, 80.0]],
    ..BLACKWELL
};

/// Constants of NCCL 2.28.3.
pub(super) static V2_28: Constants = BLACKWELL;

/// Constants of NCCL 2.25.1, 2.26.2 and 2.27.3. The values of Blackwell are twice those of Hopper.
pub(super) static V2_25: Constants = Constants {
    tree_ll128: [[20.0; 3], [20.0; 3], [36.7, 36.7, 29.0], [73.4, 73.4, 58.0]],
    tree: [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [38.7, 41.4, 36.0], [77.4, 82.8, 72.0]],
    nvls_tree: UNLIMITED,
    ..BLACKWELL
};

/// Constants of NCCL 2.22.3.
pub(super) static V2_22: Constants = HOPPER;

/// Constants of NCCL 2.20.3. LL on Hopper has the bandwidth of Ampere, and NVLS hops have a lower latency.
pub(super) static V2_20: Constants = Constants {
    hop: [with_nvls(HOPPER.hop[0], 23.0), HOPPER.hop[1], HOPPER.hop[2]],
    ll: [[39.0, 39.0, 20.4], [87.7, 22.5, 19.0], [87.7, 22.5, 19.0], [87.7, 22.5, 19.0]],
    ..HOPPER
};

/// Constants of versions that support Blackwell.
const BLACKWELL: Constants = Constants {
    base: [[6.8, 14.0, 8.4], [6.6, 14.0, 8.4], [0.0; 3], [0.0; 3], [0.0; 3], [0.0; 3], [8.0; 3]],
    hop: [NVLINK, PCI, net([5.0, 8.5, 14.0], 14.0)],
    ll: [[39.0, 39.0, 20.4], [87.7, 22.5, 19.0], [141.0, 45.0, 35.0], [282.0, 90.0, 70.0]],
    ring_ll128: [[20.0; 3], [20.0; 3], [36.7; 3], [73.4; 3]],
    tree_ll128: [[20.0; 3], [20.0; 3], [36.7, 36.7, 29.0], [55.6, 31.67, 20.0]],
    tree: [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [38.7, 41.4, 36.0], [70.0, 42.8, 24.0]],
    nvls_tree: [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [0.0, 57.7, 45.5], [0.0, 96.0, 43.1]],
};

/// Constants of versions that treat GPUs later than Hopper as Hopper. Trees with Simple have a latency of one chunk per
/// hop and no base latency.
const HOPPER: Constants = Constants {
    base: [[6.8, 14.0, 0.0], [6.6, 14.0, 8.4], [0.0; 3], [0.0; 3], [0.0; 3], [0.0; 3], [0.0; 3]],
    hop: [with_tree(NVLINK, [0.6, 1.25, 28.0]), with_tree(PCI, [1.0, 1.9, 28.0]), net([5.0, 8.5, 28.0], 14.0)],
    ll: [[39.0, 39.0, 20.4], [87.7, 22.5, 19.0], [141.0, 45.0, 35.0], [141.0, 45.0, 35.0]],
    ring_ll128: [[20.0; 3], [20.0; 3], [36.7; 3], [36.7; 3]],
    tree_ll128: [[20.0; 3], [20.0; 3], [36.7, 36.7, 29.0], [36.7, 36.7, 29.0]],
    tree: [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [38.7, 41.4, 36.0], [38.7, 41.4, 36.0]],
    nvls_tree: UNLIMITED,
};

const NVLINK: [ByProto; 7] = [
    [0.6, 1.25, 4.0],
    [0.6, 1.9, 3.4],
    [0.0, 0.0, 3.7],
    [0.0, 0.0, 2.8],
    [0.0, 0.0, 25.0],
    [0.0, 0.0, 25.0],
    [0.0, 0.0, 4.0],
];

const PCI: [ByProto; 7] =
    [[1.0, 1.9, 4.0], [1.0, 2.5, 5.7], [0.0, 0.0, 3.7], [0.0, 0.0, 2.8], [0.0; 3], [0.0; 3], [0.0, 0.0, 4.0]];

/// Latencies of network hops, µs. `tree` and `nvls_tree` are the values of Tree and NVLSTree.
const fn net(tree: ByProto, nvls_tree: f64) -> [ByProto; 7] {
    [
        tree,
        [2.7, 4.0, 14.0],
        [0.0, 0.0, 31.0],
        [0.0, 0.0, 30.0],
        [0.0, 0.0, 18.0],
        [0.0, 0.0, nvls_tree],
        [0.0, 0.0, 14.0],
    ]
}

const fn with_tree(hop: [ByProto; 7], tree: ByProto) -> [ByProto; 7] {
    [tree, hop[1], hop[2], hop[3], hop[4], hop[5], hop[6]]
}

const fn with_nvls(hop: [ByProto; 7], us: f64) -> [ByProto; 7] {
    [hop[0], hop[1], hop[2], hop[3], [0.0, 0.0, us], [0.0, 0.0, us], hop[6]]
}

const UNLIMITED: ByScale = [[f64::INFINITY; 3]; 4];

/// Fraction of the link bandwidth that in-switch reduction and multicast achieve (from 2.28 on), by generation.
const NVLS_EFFICIENCY: [f64; 4] = [0.0, 0.0, 0.85, 0.74];

/// Bandwidth correction factors of AllReduce trees, by protocol and ⌊log2(message bytes ÷ 64)⌋.
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

impl Constants {
    /// Base latency of a call with an algorithm and protocol, µs.
    pub(super) fn base(&self, algo: Algo, proto: Proto) -> f64 {
        self.base[algo as usize][proto as usize]
    }

    /// Latency of a hop of an algorithm and protocol over a kind of link, µs.
    pub(super) fn hop(&self, hardware: Hardware, algo: Algo, proto: Proto) -> f64 {
        self.hop[hardware as usize][algo as usize][proto as usize]
    }

    /// Maximum bandwidth of LL over all channels, GB/s.
    pub(super) fn ll(&self, row: Generation, scale: Scale) -> f64 {
        lookup(&self.ll, row, scale)
    }

    /// Maximum bandwidth of a channel, GB/s; infinite if there is no limit.
    pub(super) fn channel(&self, algo: Algo, proto: Proto, generation: Generation, scale: Scale) -> f64 {
        let table = match (algo, proto) {
            (Algo::Ring, Proto::Ll128) => &self.ring_ll128,
            (Algo::Tree, Proto::Ll128) => &self.tree_ll128,
            (Algo::Tree, _) => &self.tree,
            (Algo::NvlsTree, _) => &self.nvls_tree,
            _ => &UNLIMITED,
        };
        lookup(table, generation, scale)
    }
}

fn lookup(table: &ByScale, generation: Generation, scale: Scale) -> f64 {
    table[generation as usize][scale as usize]
}

/// Returns the fraction of the link bandwidth that in-switch reduction and multicast achieve on a generation.
pub(super) fn nvls_efficiency(generation: Generation) -> f64 {
    NVLS_EFFICIENCY[generation as usize]
}

/// Returns the bandwidth correction factor of AllReduce trees; `log` is ⌊log2(message bytes ÷ 64)⌋. The factor is 1
/// beyond the last entry of the protocol.
pub(super) fn correction(proto: Proto, log: u32) -> f64 {
    CORRECTION[proto as usize].get(log as usize).copied().unwrap_or(1.0)
}
