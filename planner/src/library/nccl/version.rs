//! Versions of NCCL, and what of the cost model differs between them, as data.
//!
//! A version that is not listed is answered by one that decides alike: 2.28.x by 2.28.9, 2.29.x and 2.30.x by 2.30.7. Where a
//! measurement names one before or after those, the nearest stands for it ([`Version::nearest`]).

use std::fmt;
use std::str::FromStr;

use fabricast_topologies::Bytes;

/// A version of NCCL whose selection is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
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

/// The latency between nodes where each has one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoneRanks {
    /// That of trees, whatever the algorithm.
    PayTrees,
    /// The algorithm's own.
    PayTheirs,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    pub speed: ChannelSpeed,
    pub lone_ranks: LoneRanks,
    pub ll128: Ll128Test,
    pub ties: Ties,
    pub chain_hop: ChainHop,
    pub ring_threads: RingThreads,
    /// Least traffic of a channel (`MinTrafficPerChannel`).
    pub channel_traffic: Bytes,
    pub send_parts: SendParts,
}

/// 2.28: as 2.30.7, but for the traffic of a channel, and for sends. The traffic is what NCCL 2.28.3 logged on 2 and 4 GPUs (22 of
/// 24 channels of ll at 512 KiB of all_gather, 24 at 1 MiB); 2.29.7 logs counts of the later one. How sends are cut stands in the
/// sources of 2.27 (`src/enqueue.cc`, `addP2pToPlan`: `thresholdLL`), and 2.28.3 does so by its times
/// (validate/runs/2026-11-23-2xh200-sends).
const ENQUEUE_2_28: Rules = Rules { channel_traffic: Bytes(16 << 10), send_parts: SendParts::AfterProtocol, ..ENQUEUE };

/// 2.29 and 2.30: `src/graph/tuning.cc`, `src/enqueue.cc`.
const ENQUEUE: Rules = Rules {
    speed: ChannelSpeed::InsideUpToTwoNodes,
    lone_ranks: LoneRanks::PayTrees,
    ll128: Ll128Test::UnlessForced,
    ties: Ties::First,
    chain_hop: ChainHop::Slowest,
    ring_threads: RingThreads::BySpeed,
    channel_traffic: Bytes(32 << 10),
    send_parts: SendParts::BeforeProtocol,
};

/// 2.31.0: `src/tuning/{cost_model,ring,tree,nvls,pat,tuning}.cc`.
const TUNING: Rules = Rules {
    speed: ChannelSpeed::BetweenBeyondOne,
    lone_ranks: LoneRanks::PayTheirs,
    ll128: Ll128Test::WhenForced,
    ties: Ties::Last,
    chain_hop: ChainHop::Inside,
    ring_threads: RingThreads::Whole,
    channel_traffic: Bytes(32 << 10),
    send_parts: SendParts::BeforeProtocol,
};

/// The release of the first known version.
const OLDEST: (u32, u32) = (2, 28);

impl Version {
    /// All that are known, oldest first.
    pub const ALL: [Self; 3] = [Self::V2_28_9, Self::V2_30_7, Self::V2_31_0];

    /// What a bare `nccl` means: the newest release, not a development branch.
    pub const NEWEST: Self = Self::V2_30_7;

    /// Its number: `2.28.9`.
    #[must_use]
    pub fn number(self) -> &'static str {
        match self {
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

    pub(super) fn rules(self) -> &'static Rules {
        match self {
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
#[error("NCCL {0} is not known: expected 2.28 to 2.31, as in nccl-2.28.9")]
pub struct UnknownVersion(pub String);

impl FromStr for Version {
    type Err = UnknownVersion;

    /// `2.28`, `2.28.9`, `2.28.9-1`.
    fn from_str(text: &str) -> Result<Self, UnknownVersion> {
        let unknown = || UnknownVersion(text.to_owned());
        let number = text.split(['-', '+']).next().unwrap_or(text);
        let parts = number.split('.').map(str::parse::<u32>).collect::<Result<Vec<u32>, _>>();
        match parts.map_err(|_| unknown())?.as_slice() {
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
        for wrong in ["", "2", "2.27", "3.0", "2.28.9.1", "2.x"] {
            assert!(wrong.parse::<Version>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn releases_before_and_after_are_taken_for_the_nearest() {
        for (number, nearest) in [
            ("2.18.5", Version::V2_28_9),
            ("2.27.3-1", Version::V2_28_9),
            ("2.29.2", Version::V2_30_7),
            ("2.32", Version::V2_31_0),
            ("3.0.1", Version::V2_31_0),
        ] {
            assert_eq!(Version::nearest(number), Some(nearest), "{number}");
        }
        assert_eq!(Version::nearest("newest"), None);
    }
}
