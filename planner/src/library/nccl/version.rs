//! Versions of NCCL, and what of the cost model differs between them, as data.
//!
//! A version that is not listed is answered by one that decides alike: 2.20 and 2.21 by 2.20.5, 2.23 to 2.26 by 2.26.2, others
//! by the one of their minor number, 2.29 by 2.30.7 (of 2.21, 2.23 and 2.24 the sources were not read). Where a measurement names
//! one before or after those, the nearest stands for it ([`Version::nearest`]).

use std::fmt;
use std::str::FromStr;

use fabricast_topologies::Bytes;

use super::constants::{self, Constants};

/// A version of NCCL whose selection is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 2.20.5: channels share a call evenly, and trees of simple seem slow.
    V2_20_5,
    /// 2.22.3: channels share it by cells of 16 bytes.
    V2_22_3,
    /// 2.26.2: by traffic, 16 KiB at least.
    V2_26_2,
    /// 2.27.3: kernels on symmetric windows; NVLS gathers by what leaves a GPU.
    V2_27_3,
    /// 2.28.9, checked against its own tables on 8 × H200.
    V2_28_9,
    /// 2.30.7; 2.29 decides alike (its log on two nodes is reproduced).
    V2_30_7,
    /// 2.31.0, the development branch in which the cost model moved to `src/tuning`. Its rules are less settled.
    V2_31_0,
}

/// What multiplies into the bandwidth of rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelSpeed {
    /// That inside a node for up to two nodes, that between nodes beyond.
    InsideUpToTwoNodes,
    /// Rings: that between nodes as soon as there are two; trees: the lesser of both.
    BetweenBeyondOne,
}

/// How rings over nodes with one rank each differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoneRanks {
    /// They pay the latency of trees, whatever the algorithm.
    PayTrees,
    /// They pay the algorithm's own.
    PayTheirs,
    /// They pay the algorithm's own, and LL128 reaches 70 % of the wire in place of 92.
    ReachLess,
}

/// Hops between nodes of a ring that reduces and gathers, of so many nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crossings {
    /// Twice the nodes less one.
    BetweenNodes,
    /// Twice the nodes.
    Around,
}

/// What rings of LL reach of their channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingLl {
    /// Half.
    Half,
    /// A third of a gather inside a node, a quarter otherwise.
    ThirdOrQuarter,
}

/// The bandwidth of NVLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NvlsSpeed {
    /// Five sixths of the slower of links and network.
    FiveSixths,
    /// So of AllReduce; gathers and scatters have the whole.
    FiveSixthsOfAllReduce,
    /// So of AllReduce; gathers and scatters have what leaves a GPU, and nine tenths of the network.
    FiveSixthsOrOthersPart,
    /// What a generation's switches reach, in both directions at once for AllReduce.
    ByGeneration,
}

/// How many channels NVLS has on Blackwell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlackwellNvls {
    /// As many as on Hopper: it is not known yet.
    AsHopper,
    /// 32.
    Always32,
    /// 24 on one node, 32 on several.
    ByNodes,
    /// By nodes and NICs.
    ByNics,
}

/// GPUs that LL128 is on for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ll128Gpus {
    /// Alike, up to Hopper.
    AlikeToHopper,
    /// Alike.
    Alike,
    /// Alike, or all from Hopper on.
    AlikeOrNew,
}

/// Whether the model corrects trees over NVLS, on Blackwell under x86.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NvlsTreeTime {
    /// As plain trees.
    AsTrees,
    /// Not at all.
    Plain,
}

/// How a call's bytes come to channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deal {
    /// To all that the thresholds allow, evenly.
    Evenly,
    /// In cells of 16 bytes; a channel gets 512 bytes of traffic at least.
    Cells,
    /// In cells of so much traffic, of which LL makes four times as much.
    Traffic(Bytes),
}

/// Threads of trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeThreads {
    /// By the thresholds, as rings.
    ByThresholds,
    /// All that a block can have.
    All,
}

/// What one rank a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pat {
    /// No PAT: it came with 2.23.
    Missing,
    /// PAT.
    Known,
}

/// Whether LL128 has to qualify by the paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ll128Test {
    /// Unless NCCL_PROTO names protocols, and so forces it.
    UnlessForced,
    /// Only where NCCL_PROTO names protocols (so in 2.31.0; it looks like an oversight).
    WhenForced,
}

/// Which of equal times wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ties {
    /// The first in order of algorithm, then protocol.
    First,
    /// The last.
    Last,
}

/// Hops of Broadcast and Reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChainHop {
    /// Of the network as soon as there are two nodes.
    Slowest,
    /// Of the node.
    Inside,
}

/// Threads of rings in Simple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingThreads {
    /// 256 where the ring is no faster than a PCIe 3 link, 512 otherwise.
    BySpeed,
    /// 512.
    Whole,
}

/// What decides between LL and Simple for a send, and into how many parts it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendParts {
    /// LL up to its threshold × the most channels of a peer, whatever their number then; parts of an eighth of the
    /// protocol's own step (8 KiB, 64 KiB) or more.
    AfterProtocol,
    /// Parts of an eighth of Simple's step or more; LL up to its threshold × as many as there are.
    BeforeProtocol,
}

/// What differs between versions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub constants: &'static Constants,
    pub speed: ChannelSpeed,
    pub nvls_speed: NvlsSpeed,
    pub nvls_channels: BlackwellNvls,
    pub nvls_tree_time: NvlsTreeTime,
    pub ring_ll: RingLl,
    pub crossings: Crossings,
    pub lone_ranks: LoneRanks,
    pub ll128: Ll128Test,
    pub ll128_gpus: Ll128Gpus,
    pub ties: Ties,
    pub chain_hop: ChainHop,
    pub ring_threads: RingThreads,
    pub tree_threads: TreeThreads,
    pub deal: Deal,
    pub send_parts: SendParts,
    pub pat: Pat,
}

/// 2.20 and 2.21: `src/graph/tuning.cc` of 2.20.3, `src/enqueue.cc` of 2.20.5.
const EVENLY: Rules = Rules {
    constants: &constants::V2_20,
    ring_ll: RingLl::ThirdOrQuarter,
    tree_threads: TreeThreads::ByThresholds,
    deal: Deal::Evenly,
    ..BY_CELLS
};

/// 2.22: the same files of 2.22.3.
const BY_CELLS: Rules = Rules {
    constants: &constants::V2_22,
    nvls_speed: NvlsSpeed::FiveSixths,
    nvls_channels: BlackwellNvls::AsHopper,
    crossings: Crossings::Around,
    lone_ranks: LoneRanks::ReachLess,
    ll128_gpus: Ll128Gpus::AlikeToHopper,
    deal: Deal::Cells,
    pat: Pat::Missing,
    ..BEFORE_WINDOWS
};

/// 2.23 to 2.26: those of 2.26.2 (and of 2.25.1, whose `tuning.cc` decides alike), `src/transport/nvls.cc`.
const BEFORE_WINDOWS: Rules =
    Rules { nvls_speed: NvlsSpeed::FiveSixthsOfAllReduce, nvls_channels: BlackwellNvls::Always32, ..ENQUEUE_2_27 };

/// 2.27: `src/graph/tuning.cc` of 2.27.3; its channels of NVLS on Blackwell, of which the source was not read, are thought to be 2.28's.
const ENQUEUE_2_27: Rules =
    Rules { constants: &constants::V2_25, nvls_speed: NvlsSpeed::FiveSixthsOrOthersPart, ..ENQUEUE_2_28 };

/// 2.28: `src/graph/tuning.cc` and `src/transport/nvls.cc` of 2.28.3, and otherwise as 2.30.7 but for the traffic of a channel, and for sends. The traffic is
/// what NCCL 2.28.3 logged on 2 and 4 GPUs (22 of 24 channels of ll at 512 KiB of all_gather, 24 at 1 MiB), and stands in the
/// sources of 2.26.2; 2.29.7 logs counts of the later one. How sends are cut stands in the sources of 2.27 (`src/enqueue.cc`,
/// `addP2pToPlan`: `thresholdLL`), and 2.28.3 does so by its times (validate/runs/2026-11-23-2xh200-sends).
const ENQUEUE_2_28: Rules = Rules {
    constants: &constants::V2_28,
    nvls_channels: BlackwellNvls::ByNodes,
    nvls_tree_time: NvlsTreeTime::Plain,
    ll128_gpus: Ll128Gpus::Alike,
    deal: Deal::Traffic(Bytes(16 << 10)),
    send_parts: SendParts::AfterProtocol,
    ..ENQUEUE
};

/// 2.29 and 2.30: `src/graph/tuning.cc`, `src/enqueue.cc`.
const ENQUEUE: Rules = Rules {
    constants: &constants::V2_30,
    speed: ChannelSpeed::InsideUpToTwoNodes,
    nvls_speed: NvlsSpeed::ByGeneration,
    nvls_channels: BlackwellNvls::ByNics,
    nvls_tree_time: NvlsTreeTime::AsTrees,
    ring_ll: RingLl::Half,
    crossings: Crossings::BetweenNodes,
    lone_ranks: LoneRanks::PayTrees,
    ll128: Ll128Test::UnlessForced,
    ll128_gpus: Ll128Gpus::AlikeOrNew,
    ties: Ties::First,
    chain_hop: ChainHop::Slowest,
    ring_threads: RingThreads::BySpeed,
    tree_threads: TreeThreads::All,
    deal: Deal::Traffic(Bytes(32 << 10)),
    send_parts: SendParts::BeforeProtocol,
    pat: Pat::Known,
};

/// 2.31.0: `src/tuning/{cost_model,ring,tree,nvls,pat,tuning}.cc`.
const TUNING: Rules = Rules {
    speed: ChannelSpeed::BetweenBeyondOne,
    lone_ranks: LoneRanks::PayTheirs,
    ll128: Ll128Test::WhenForced,
    ties: Ties::Last,
    chain_hop: ChainHop::Inside,
    ring_threads: RingThreads::Whole,
    ..ENQUEUE
};

/// The release of the first known version.
const OLDEST: (u32, u32) = (2, 20);

impl Version {
    /// All that are known, oldest first.
    pub const ALL: [Self; 7] =
        [Self::V2_20_5, Self::V2_22_3, Self::V2_26_2, Self::V2_27_3, Self::V2_28_9, Self::V2_30_7, Self::V2_31_0];

    /// What a bare `nccl` means: the newest release, not a development branch.
    pub const NEWEST: Self = Self::V2_30_7;

    /// Whether NCCL_ALGO and NCCL_PROTO take lists by function: from 2.24 on (`src/graph/tuning.cc`, `parseList`).
    #[must_use]
    pub fn lists_by_function(self) -> bool {
        !matches!(self, Self::V2_20_5 | Self::V2_22_3)
    }

    /// Its number: `2.28.9`.
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

    /// The one that decides most like a release of this number: the first for what came before it, the last for what came
    /// after. `None` where that is no number.
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

    /// Whether it has kernels of their own for buffers in symmetric windows: from 2.27 on.
    #[must_use]
    pub fn has_window_kernels(self) -> bool {
        self >= Self::V2_27_3
    }

    /// Whether copy engines can do its collectives on windows: from 2.28 on.
    #[must_use]
    pub fn has_copy_engines(self) -> bool {
        self >= Self::V2_28_9
    }

    pub(super) fn rules(self) -> &'static Rules {
        match self {
            Self::V2_20_5 => &EVENLY,
            Self::V2_22_3 => &BY_CELLS,
            Self::V2_26_2 => &BEFORE_WINDOWS,
            Self::V2_27_3 => &ENQUEUE_2_27,
            Self::V2_28_9 => &ENQUEUE_2_28,
            Self::V2_30_7 => &ENQUEUE,
            Self::V2_31_0 => &TUNING,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.number())
    }
}

/// A version whose selection is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("NCCL {0} is not known: expected 2.20 to 2.31, as in nccl-2.28.9")]
pub struct UnknownVersion(pub String);

impl FromStr for Version {
    type Err = UnknownVersion;

    /// `2.28`, `2.28.9`, `2.28.9-1`.
    fn from_str(text: &str) -> Result<Self, UnknownVersion> {
        let unknown = || UnknownVersion(text.to_owned());
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
    fn versions_read_back_and_releases_between_take_the_one_that_they_are_like() {
        for version in Version::ALL {
            assert_eq!(version.number().parse(), Ok(version));
        }
        assert_eq!("2.29.7".parse(), Ok(Version::V2_30_7));
        assert_eq!("2.28.3".parse(), Ok(Version::V2_28_9));
        assert_eq!("2.30".parse(), Ok(Version::V2_30_7));
        assert_eq!("2.28.9-1".parse(), Ok(Version::V2_28_9));
        assert_eq!("2.21.5".parse(), Ok(Version::V2_20_5));
        assert_eq!("2.22".parse(), Ok(Version::V2_22_3));
        assert_eq!("2.23.4".parse(), Ok(Version::V2_26_2));
        assert_eq!("2.27.7".parse(), Ok(Version::V2_27_3));
        for wrong in ["", "2", "2.19", "3.0", "2.28.9.1", "2.x"] {
            assert!(wrong.parse::<Version>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn releases_before_and_after_are_taken_for_the_nearest() {
        for (number, nearest) in [
            ("2.18.5", Version::V2_20_5),
            ("2.27.3-1", Version::V2_27_3),
            ("2.29.2", Version::V2_30_7),
            ("2.32", Version::V2_31_0),
            ("3.0.1", Version::V2_31_0),
        ] {
            assert_eq!(Version::nearest(number), Some(nearest), "{number}");
        }
        assert_eq!(Version::nearest("newest"), None);
    }
}
