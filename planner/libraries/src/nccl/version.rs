//! Versions of NCCL, and the differences between their cost models.
//!
//! A version that is not listed is represented by a listed one with the same decisions: 2.20 and 2.21 by 2.20.5, 2.23
//! to 2.26 by 2.26.2, 2.29 by 2.30.7, others by the listed version with the same minor number (the sources of 2.21,
//! 2.23 and 2.24 were not read). For measurements with earlier or later versions, see [`NcclVersion::nearest`].

use std::fmt;
use std::str::FromStr;

use fabricast_topologies::Bytes;
use fabricast_topologies::variants::variants;
use strum::{EnumCount, VariantArray};

use super::constants::{self, Constants};

/// Version of NCCL whose choices are modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount, VariantArray)]
pub enum NcclVersion {
    /// NCCL 2.20.5 divides a call evenly over channels, and its estimated latency of trees with Simple is high.
    V2_20_5,
    /// NCCL 2.22.3 divides a call over channels in cells of 16 bytes.
    V2_22_3,
    /// NCCL 2.26.2 divides a call over channels by traffic, at least 16 KiB per channel.
    V2_26_2,
    /// NCCL 2.27.3 has symmetric kernels on registered windows, and estimates NVLS AllGather by the bytes that leave a
    /// GPU.
    V2_27_3,
    /// NCCL 2.28.9, checked against the tables that it logged on 8 × H200.
    V2_28_9,
    /// NCCL 2.30.7. Version 2.29 has the same decisions (its log on two nodes is reproduced).
    V2_30_7,
    /// NCCL 2.31.0, a development branch whose cost model is in `src/tuning`. Its rules may still change.
    V2_31_0,
}

/// Channel speed from which the bandwidth of rings and trees is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelSpeed {
    /// The speed inside a node for up to two nodes, the speed between nodes for more.
    InsideUpToTwoNodes,
    /// Rings: the speed between nodes from two nodes on. Trees: the lower of the two speeds.
    BetweenNodesFromTwo,
}

/// Latency and LL128 bandwidth of rings over nodes with one rank each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SingleRankNodes {
    /// Any algorithm has the latency of trees.
    TreeLatency,
    /// Each algorithm has its own latency.
    OwnLatency,
    /// Each algorithm has its own latency, and LL128 achieves 70 % of the wire rate instead of 92 %.
    OwnLatencyAndLowerLl128,
}

/// Number of hops between nodes of an AllReduce ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingNetworkHops {
    /// 2 × (number of nodes − 1) hops.
    BetweenNodes,
    /// 2 × (number of nodes) hops.
    Around,
}

/// Fraction of the channel bandwidth that rings with LL achieve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingLl {
    /// One half of the channel bandwidth.
    Half,
    /// One third for AllGather, ReduceScatter and Broadcast inside a node, one quarter otherwise.
    ThirdOrQuarter,
}

/// Bandwidth of NVLS in the cost model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NvlsSpeed {
    /// Five sixths of the slower of links and network.
    FiveSixths,
    /// Five sixths for AllReduce; the full bandwidth for AllGather and ReduceScatter.
    FiveSixthsOfAllReduce,
    /// Five sixths for AllReduce. AllGather and ReduceScatter use the fraction of the data that leaves a GPU, and nine
    /// tenths of the network bandwidth.
    FiveSixthsOrRemoteShare,
    /// Efficiency of the GPU generation's switches; AllReduce uses both directions concurrently.
    ByGeneration,
}

/// Number of NVLS channels on Blackwell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlackwellNvls {
    /// As many channels as on Hopper, since Blackwell is not yet supported.
    AsHopper,
    /// 32 channels.
    Always32,
    /// 24 channels on one node, 32 on several.
    ByNodes,
    /// Number of channels according to the number of nodes and NICs.
    ByNics,
}

/// GPUs on which LL128 is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ll128Gpus {
    /// GPUs of one compute capability: 7.0, 8.0 or 9.0.
    EqualUpToHopper,
    /// GPUs of one compute capability, from 7.0 on.
    Equal,
    /// GPUs of one compute capability, from 7.0 on, or of several from 9.0 on.
    EqualOrHopperUp,
}

/// Bandwidth correction of NVLSTree on Blackwell with x86 CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NvlsTreeTime {
    /// NVLSTree has the correction of plain trees.
    AsTrees,
    /// NVLSTree has no correction.
    Plain,
}

/// Distribution of a call's bytes over channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelSplit {
    /// Evenly over all channels that the thresholds allow.
    Evenly,
    /// In cells of 16 bytes, with at least 512 bytes of traffic per channel.
    Cells,
    /// In cells of this traffic in bytes; with LL a byte of data counts as four bytes of traffic.
    Traffic(Bytes),
}

/// Number of threads per block of trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeThreads {
    /// Determined by the thresholds, as for rings.
    ByThresholds,
    /// The maximum number of threads of a block.
    All,
}

/// Availability of PAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pat {
    /// PAT is not available, as before 2.23.
    Missing,
    /// PAT is available.
    Known,
}

/// Condition under which NCCL checks whether the paths support LL128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ll128Test {
    /// Checked unless NCCL_PROTO lists protocols, which forces LL128.
    UnlessForced,
    /// Checked only if NCCL_PROTO lists protocols (as in 2.31.0; apparently an oversight in NCCL).
    WhenForced,
}

/// Choice between algorithms and protocols with equal expected time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ties {
    /// The first in order of algorithm, then protocol.
    First,
    /// The last in order of algorithm, then protocol.
    Last,
}

/// Hop latency of Broadcast and Reduce, which run along a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChainHop {
    /// On several nodes, the latency of the network.
    Slowest,
    /// The latency inside the node.
    Inside,
}

/// Number of threads per block of rings with Simple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingThreads {
    /// 256 threads if the ring is no faster than a PCIe 3 link, 512 otherwise.
    BySpeed,
    /// 512 threads.
    Full,
}

/// Order of the decisions on the protocol (LL or Simple) and on the number of parts of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendParts {
    /// Protocol first: LL is used up to its threshold × the maximum number of channels per peer. Parts then have at
    /// least an eighth of the protocol's own step (8 KiB for LL, 64 KiB for Simple).
    AfterProtocol,
    /// Parts first, of at least an eighth of Simple's step. LL then applies up to its threshold × the number of parts.
    BeforeProtocol,
}

/// Rule for the maximum number of channels to a peer on another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NetworkChannels {
    /// Two channels, or one if there are more than two ranks per channel.
    AtMostTwo,
    /// The number of channels that fill the NIC at 14 GB/s each.
    ByRate,
}

/// Rules that differ between versions.
#[derive(Clone, Copy, Debug)]
pub(super) struct VersionRules {
    pub constants: &'static Constants,
    pub speed: ChannelSpeed,
    pub nvls_speed: NvlsSpeed,
    pub nvls_channels: BlackwellNvls,
    pub nvls_tree_time: NvlsTreeTime,
    pub ring_ll: RingLl,
    pub ring_network_hops: RingNetworkHops,
    pub single_rank_nodes: SingleRankNodes,
    pub ll128: Ll128Test,
    pub ll128_gpus: Ll128Gpus,
    pub ties: Ties,
    pub chain_hop: ChainHop,
    pub ring_threads: RingThreads,
    pub tree_threads: TreeThreads,
    pub channel_split: ChannelSplit,
    pub send_parts: SendParts,
    pub network_channels: NetworkChannels,
    pub pat: Pat,
}

/// Rules of 2.20 and 2.21: `src/graph/tuning.cc` of 2.20.3, `src/enqueue.cc` of 2.20.5.
const EVENLY: VersionRules = VersionRules {
    constants: &constants::V2_20,
    ring_ll: RingLl::ThirdOrQuarter,
    tree_threads: TreeThreads::ByThresholds,
    channel_split: ChannelSplit::Evenly,
    ..BY_CELLS
};

/// Rules of 2.22: `src/graph/tuning.cc` and `src/enqueue.cc` of 2.22.3.
const BY_CELLS: VersionRules = VersionRules {
    constants: &constants::V2_22,
    nvls_speed: NvlsSpeed::FiveSixths,
    nvls_channels: BlackwellNvls::AsHopper,
    ring_network_hops: RingNetworkHops::Around,
    single_rank_nodes: SingleRankNodes::OwnLatencyAndLowerLl128,
    ll128_gpus: Ll128Gpus::EqualUpToHopper,
    channel_split: ChannelSplit::Cells,
    pat: Pat::Missing,
    ..BEFORE_WINDOWS
};

/// Rules of 2.23 to 2.26: `src/graph/tuning.cc` and `src/enqueue.cc` of 2.26.2 (and 2.25.1, with the same decisions in
/// `tuning.cc`), and `src/transport/nvls.cc`.
const BEFORE_WINDOWS: VersionRules =
    VersionRules { nvls_speed: NvlsSpeed::FiveSixthsOfAllReduce, nvls_channels: BlackwellNvls::Always32, ..RULES_2_27 };

/// Rules of 2.27: `src/graph/tuning.cc` of 2.27.3. Its NVLS channels on Blackwell are assumed to be those of 2.28,
/// since the source was not read.
const RULES_2_27: VersionRules =
    VersionRules { constants: &constants::V2_25, nvls_speed: NvlsSpeed::FiveSixthsOrRemoteShare, ..ENQUEUE_2_28 };

/// Rules of 2.28: `src/graph/tuning.cc` and `src/transport/nvls.cc` of 2.28.3, otherwise those of 2.30.7 except for the
/// traffic per channel and for sends. The traffic per channel matches the channel counts that NCCL 2.28.3 logged on 2
/// and 4 GPUs, and the sources of 2.26.2. The division of sends is in the sources of 2.27 (`src/enqueue.cc`,
/// `addP2pToPlan`: `thresholdLL`), and times of 2.28.3 confirm it (validate/runs/2026-11-23-2xh200-sends).
const ENQUEUE_2_28: VersionRules = VersionRules {
    constants: &constants::V2_28,
    nvls_channels: BlackwellNvls::ByNodes,
    nvls_tree_time: NvlsTreeTime::Plain,
    ll128_gpus: Ll128Gpus::Equal,
    channel_split: ChannelSplit::Traffic(Bytes(16 << 10)),
    send_parts: SendParts::AfterProtocol,
    network_channels: NetworkChannels::AtMostTwo,
    ..ENQUEUE
};

/// Rules of 2.29 and 2.30: `src/graph/tuning.cc`, `src/enqueue.cc`.
const ENQUEUE: VersionRules = VersionRules {
    constants: &constants::V2_30,
    speed: ChannelSpeed::InsideUpToTwoNodes,
    nvls_speed: NvlsSpeed::ByGeneration,
    nvls_channels: BlackwellNvls::ByNics,
    nvls_tree_time: NvlsTreeTime::AsTrees,
    ring_ll: RingLl::Half,
    ring_network_hops: RingNetworkHops::BetweenNodes,
    single_rank_nodes: SingleRankNodes::TreeLatency,
    ll128: Ll128Test::UnlessForced,
    ll128_gpus: Ll128Gpus::EqualOrHopperUp,
    ties: Ties::First,
    chain_hop: ChainHop::Slowest,
    ring_threads: RingThreads::BySpeed,
    tree_threads: TreeThreads::All,
    channel_split: ChannelSplit::Traffic(Bytes(32 << 10)),
    send_parts: SendParts::BeforeProtocol,
    network_channels: NetworkChannels::ByRate,
    pat: Pat::Known,
};

/// Rules of 2.31.0: `src/tuning/{cost_model,ring,tree,nvls,pat,tuning}.cc`.
const TUNING: VersionRules = VersionRules {
    speed: ChannelSpeed::BetweenNodesFromTwo,
    single_rank_nodes: SingleRankNodes::OwnLatency,
    ll128: Ll128Test::WhenForced,
    ties: Ties::Last,
    chain_hop: ChainHop::Inside,
    ring_threads: RingThreads::Full,
    ..ENQUEUE
};

/// Release number (major, minor) of the first known version.
const OLDEST: (u32, u32) = (2, 20);

impl NcclVersion {
    /// All known versions, oldest first.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Version meant by `nccl` without a version number: the newest release, not a development branch.
    pub const NEWEST: Self = Self::V2_30_7;

    /// Returns true if NCCL_ALGO and NCCL_PROTO accept lists by function: from 2.24 on (`src/graph/tuning.cc`,
    /// `parseList`).
    #[must_use]
    pub fn lists_by_function(self) -> bool {
        !matches!(self, Self::V2_20_5 | Self::V2_22_3)
    }

    /// Returns the version number: `2.28.9`.
    #[must_use]
    pub fn number(self) -> &'static str {
        match self {
            Self::V2_20_5 => "2.20.5",
            Self::V2_22_3 => "2.22.3",
            Self::V2_26_2 => "2.26.2",
            Self::V2_27_3 => "2.27.3",
            Self::V2_28_9 => "2.28.9",
            Self::V2_30_7 => "2.30.7",
            Self::V2_31_0 => "2.31.0",
        }
    }

    /// Returns the known version whose decisions are most similar to those of a release: the oldest known version for
    /// earlier releases, the newest for later ones. `None` if `number` is not a version number.
    #[must_use]
    pub fn nearest(number: &str) -> Option<Self> {
        let known = number.parse().ok();
        known.or_else(|| {
            let mut parts = number.split(['.', '-', '+']).map_while(|part| part.parse::<u32>().ok());
            let release = (parts.next()?, parts.next()?);
            let [first, .., last] = Self::ALL;
            Some(if release < OLDEST { first } else { last })
        })
    }

    /// Returns true if the version has symmetric kernels for buffers in symmetric windows: from 2.27 on.
    #[must_use]
    pub fn has_window_kernels(self) -> bool {
        self >= Self::V2_27_3
    }

    /// Returns true if the version can run collectives on windows by copy engines: from 2.28 on.
    #[must_use]
    pub fn has_copy_engines(self) -> bool {
        self >= Self::V2_28_9
    }

    pub(super) fn rules(self) -> &'static VersionRules {
        match self {
            Self::V2_20_5 => &EVENLY,
            Self::V2_22_3 => &BY_CELLS,
            Self::V2_26_2 => &BEFORE_WINDOWS,
            Self::V2_27_3 => &RULES_2_27,
            Self::V2_28_9 => &ENQUEUE_2_28,
            Self::V2_30_7 => &ENQUEUE,
            Self::V2_31_0 => &TUNING,
        }
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.number())
    }
}

/// Error for a version of NCCL that is not known; contains the version's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("NCCL {0} is not known: expected 2.20 to 2.31, as in nccl-2.28.9")]
pub struct UnknownNcclVersion(pub String);

impl FromStr for NcclVersion {
    type Err = UnknownNcclVersion;

    /// Parses `2.28`, `2.28.9`, `2.28.9-1`.
    fn from_str(text: &str) -> Result<Self, UnknownNcclVersion> {
        let unknown = || UnknownNcclVersion(text.to_owned());
        let number = text.split(['-', '+']).next().unwrap_or(text);
        let parts = number.split('.').map(str::parse::<u32>).collect::<Result<Vec<u32>, _>>();
        match parts.map_err(|_| unknown())?.as_slice() {
            [2, 20 | 21] | [2, 20 | 21, _] => Ok(Self::V2_20_5),
            [2, 22] | [2, 22, _] => Ok(Self::V2_22_3),
            [2, 23..=26] | [2, 23..=26, _] => Ok(Self::V2_26_2),
            [2, 27] | [2, 27, _] => Ok(Self::V2_27_3),
            [2, 28] | [2, 28, _] => Ok(Self::V2_28_9),
            [2, 29 | 30] | [2, 29 | 30, _] => Ok(Self::V2_30_7),
            [2, 31] | [2, 31, _] => Ok(Self::V2_31_0),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_round_trip_and_other_releases_map_to_known_versions() {
        for version in NcclVersion::ALL {
            assert_eq!(version.number().parse(), Ok(version));
        }
        assert_eq!("2.29.7".parse(), Ok(NcclVersion::V2_30_7));
        assert_eq!("2.28.3".parse(), Ok(NcclVersion::V2_28_9));
        assert_eq!("2.30".parse(), Ok(NcclVersion::V2_30_7));
        assert_eq!("2.28.9-1".parse(), Ok(NcclVersion::V2_28_9));
        assert_eq!("2.21.5".parse(), Ok(NcclVersion::V2_20_5));
        assert_eq!("2.22".parse(), Ok(NcclVersion::V2_22_3));
        assert_eq!("2.23.4".parse(), Ok(NcclVersion::V2_26_2));
        assert_eq!("2.27.7".parse(), Ok(NcclVersion::V2_27_3));
        for wrong in ["", "2", "2.19", "3.0", "2.28.9.1", "2.x"] {
            assert!(wrong.parse::<NcclVersion>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn earlier_and_later_releases_map_to_the_nearest_version() {
        for (number, nearest) in [
            ("2.18.5", NcclVersion::V2_20_5),
            ("2.27.3-1", NcclVersion::V2_27_3),
            ("2.29.2", NcclVersion::V2_30_7),
            ("2.32", NcclVersion::V2_31_0),
            ("3.0.1", NcclVersion::V2_31_0),
        ] {
            assert_eq!(NcclVersion::nearest(number), Some(nearest), "{number}");
        }
        assert_eq!(NcclVersion::nearest("newest"), None);
    }
}
