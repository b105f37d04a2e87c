//! Indices of NCCL's tables: functions, algorithms and protocols, and their equivalents in fabricast.

use std::fmt;

use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::variants::variants;
use strum::{EnumCount, VariantArray};

use fabricast_collectives::algorithm::Algorithm;

/// Collective in NCCL's cost model; other collectives are composed of sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount, VariantArray)]
pub enum Function {
    /// Broadcast, `ncclBroadcast`.
    Broadcast,
    /// Reduce, `ncclReduce`.
    Reduce,
    /// All-gather, `ncclAllGather`.
    AllGather,
    /// Reduce-scatter, `ncclReduceScatter`.
    ReduceScatter,
    /// All-reduce, `ncclAllReduce`.
    AllReduce,
}

/// Algorithm in NCCL's cost model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount, VariantArray)]
pub enum Algo {
    /// Double binary tree over nodes, with a chain inside each node.
    Tree,
    /// Ring of all ranks, in which each rank sends to its successor.
    Ring,
    /// In-network reduction with all GPUs of a node in parallel.
    CollNetDirect,
    /// In-network reduction with a chain in each node.
    CollNetChain,
    /// Reduction and multicast in the NVSwitches.
    Nvls,
    /// NVLS in each node, trees between nodes.
    NvlsTree,
    /// Parallel aggregated trees.
    Pat,
}

/// Protocol in NCCL's cost model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount, VariantArray)]
pub enum Proto {
    /// Lines of 8 bytes with 4 bytes of data and 4 bytes of flag.
    Ll,
    /// Lines of 128 bytes with 120 bytes of data and 8 bytes of flag.
    Ll128,
    /// Slots of the FIFO buffer, each with one flag.
    Simple,
}

impl Function {
    /// All functions, in NCCL's order.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Number of sequential steps of a ring of `ranks` ranks in the cost models of NCCL and RCCL (`nsteps` in
    /// `src/graph/tuning.cc`).
    pub(crate) fn ring_steps(self, ranks: u32) -> f64 {
        let ranks = f64::from(ranks);
        match self {
            Self::AllReduce => 2.0 * (ranks - 1.0),
            Self::AllGather | Self::ReduceScatter => ranks - 1.0,
            Self::Broadcast | Self::Reduce => ranks,
        }
    }

    /// Returns the function of a collective; `None` for collectives that NCCL composes of sends and receives.
    #[must_use]
    pub fn from_collective(collective: Collective) -> Option<Self> {
        match collective {
            Collective::Broadcast => Some(Self::Broadcast),
            Collective::Reduce => Some(Self::Reduce),
            Collective::AllGather => Some(Self::AllGather),
            Collective::ReduceScatter => Some(Self::ReduceScatter),
            Collective::AllReduce => Some(Self::AllReduce),
            _ => None,
        }
    }

    /// Returns NCCL's name of the function: `AllReduce`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Broadcast => "Broadcast",
            Self::Reduce => "Reduce",
            Self::AllGather => "AllGather",
            Self::ReduceScatter => "ReduceScatter",
            Self::AllReduce => "AllReduce",
        }
    }

    /// Returns true if each rank contributes or receives a separate block (AllGather, ReduceScatter).
    pub(super) fn is_blockwise(self) -> bool {
        matches!(self, Self::AllGather | Self::ReduceScatter)
    }
}

impl Algo {
    /// All algorithms, in NCCL's order. Of algorithms with equal estimates, the order determines the choice.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Returns NCCL's equivalent of an algorithm of fabricast; `None` if it has no cell in NCCL's tables.
    #[must_use]
    pub fn from_algorithm(algorithm: Algorithm) -> Option<Self> {
        Self::ALL.into_iter().find(|algo| algo.to_algorithm() == Some(algorithm))
    }

    /// Returns NCCL's name of the algorithm: `NVLSTree`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tree => "Tree",
            Self::Ring => "Ring",
            Self::CollNetDirect => "CollNetDirect",
            Self::CollNetChain => "CollNetChain",
            Self::Nvls => "NVLS",
            Self::NvlsTree => "NVLSTree",
            Self::Pat => "PAT",
        }
    }

    /// Returns the equivalent algorithm of fabricast; `None` for CollNetDirect.
    #[must_use]
    pub fn to_algorithm(self) -> Option<Algorithm> {
        match self {
            Self::Tree => Some(Algorithm::Tree),
            Self::Ring => Some(Algorithm::Ring),
            Self::CollNetDirect => None,
            Self::CollNetChain => Some(Algorithm::CollnetChain),
            Self::Nvls => Some(Algorithm::Nvls),
            Self::NvlsTree => Some(Algorithm::NvlsTree),
            Self::Pat => Some(Algorithm::Pat),
        }
    }

    pub(crate) fn is_collnet(self) -> bool {
        matches!(self, Self::CollNetDirect | Self::CollNetChain)
    }

    pub(crate) fn is_nvls(self) -> bool {
        matches!(self, Self::Nvls | Self::NvlsTree)
    }
}

impl Proto {
    /// All protocols, in NCCL's order.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Returns NCCL's equivalent of a protocol of fabricast; `None` for one-sided protocols, which have no cell in
    /// NCCL's tables.
    #[must_use]
    pub fn from_protocol(protocol: Protocol) -> Option<Self> {
        Self::ALL.into_iter().find(|proto| proto.to_protocol() == protocol)
    }

    /// Returns NCCL's name of the protocol: `LL128`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ll => "LL",
            Self::Ll128 => "LL128",
            Self::Simple => "Simple",
        }
    }

    /// Returns the equivalent protocol of fabricast.
    #[must_use]
    pub fn to_protocol(self) -> Protocol {
        match self {
            Self::Ll => Protocol::Ll,
            Self::Ll128 => Protocol::Ll128,
            Self::Simple => Protocol::Simple,
        }
    }
}

/// Algorithm of NCCL with one of its protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AlgoProto {
    /// Algorithm of the pair.
    pub algo: Algo,
    /// Protocol of the pair.
    pub proto: Proto,
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Algo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Proto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
