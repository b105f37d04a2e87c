//! Open MPI on GPU memory: choice of the algorithm by its `tuned` component.
//!
//! The decisions are fixed tables by ranks and bytes ([`switch_points`](self)), independent of the fabric. A message
//! between GPUs is a single stream, so a strategy has one channel, and the whole message is one chunk: the fixed
//! decision rules do not segment messages. The message transport (eager or rendezvous, staged through host memory or by
//! GPUDirect) and reductions in host memory are part of the profile and the route: profile `open_mpi-5.0`, whose
//! figures are taken from sources, not measured. Protocol `simple` represents messages; the profile's other protocols
//! are not those of MPI.

mod switch_points;
mod ways;

use std::fmt;
use std::str::FromStr;

use fabricast_sim::schedule::{Call, Collective, Protocol, Rank};

use super::{Choice, Library, Unknown};
use crate::algorithm::Algorithm;
use crate::strategy::Strategy;
pub use ways::Way;

/// Version of Open MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 4.1, the first with these tables.
    V4_1,
    /// 5.0, with the same tables.
    V5_0,
}

impl Version {
    /// Version of the bare name `open_mpi`.
    pub const NEWEST: Self = Self::V5_0;
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V4_1 => "4.1",
            Self::V5_0 => "5.0",
        })
    }
}

/// Error for an unknown version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Open MPI {0} is not known: expected 4.1 or 5.0, as in open_mpi-5.0")]
pub struct UnknownVersion(pub String);

impl FromStr for Version {
    type Err = UnknownVersion;

    /// Parses `5.0`, `5.0.6`.
    fn from_str(text: &str) -> Result<Self, UnknownVersion> {
        let mut parts = text.split('.');
        let known = match (parts.next(), parts.next()) {
            (Some("4"), Some("1")) => Some(Self::V4_1),
            (Some("5"), Some("0")) => Some(Self::V5_0),
            _ => None,
        };
        known.ok_or_else(|| UnknownVersion(text.to_owned()))
    }
}

/// Protocol whose costs represent MPI messages.
pub(crate) const PROTOCOL: Protocol = Protocol::Simple;

/// Reason why a choice has no equivalent in this crate.
pub(super) enum Missing {
    /// No decision table for the collective.
    Collective(Collective),
    /// No schedule for the algorithm.
    Way(Way),
}

impl Missing {
    pub(super) fn of(&self, library: Library) -> Unknown {
        match *self {
            Self::Collective(collective) => Unknown::NotModelled { library, collective },
            Self::Way(way) => Unknown::NoSchedule { library, name: way.name().to_owned() },
        }
    }
}

fn table(collective: Collective) -> Option<switch_points::Table> {
    match collective {
        Collective::AllReduce => Some(switch_points::ALL_REDUCE),
        Collective::AllToAll => Some(switch_points::ALL_TO_ALL),
        Collective::Broadcast => Some(switch_points::BROADCAST),
        Collective::Reduce => Some(switch_points::REDUCE),
        Collective::ReduceScatter => Some(switch_points::REDUCE_SCATTER),
        Collective::AllGather => Some(switch_points::ALL_GATHER),
        Collective::Gather => Some(switch_points::GATHER),
        Collective::Scatter => Some(switch_points::SCATTER),
        Collective::AllToAllV => Some(switch_points::ALL_TO_ALL_V),
        Collective::Barrier => Some(switch_points::BARRIER),
        Collective::SendRecv => None,
    }
}

/// Returns the algorithm that a version chooses; `None` for collectives without a decision table.
#[must_use]
pub fn way(_version: Version, call: &Call) -> Option<Way> {
    let table = table(call.collective)?;
    let blocks = match call.collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 1,
        _ => u64::from(call.ranks.max(1)),
    };
    let bytes = call.bytes.0 / blocks;
    let row = table.iter().find(|(below, _)| call.ranks < *below).or(table.last())?;
    let way = row.1.iter().find(|(below, _)| bytes < *below).or(row.1.last())?.1;
    // Fallbacks of algorithms that do not support a call. For all_gather (coll_base_allgather.c), recursive doubling
    // needs a power of two, and neighbour exchange needs pairs.
    Some(match (call.collective, way) {
        (Collective::AllGather, Way::RecursiveDoubling) if !call.ranks.is_power_of_two() => Way::Bruck,
        (Collective::AllGather, Way::NeighbourExchange) if call.ranks % 2 == 1 => Way::Ring,
        // Halving needs at least as many elements as ranks (coll_base_reduce.c); so few bytes are one element of 4
        // bytes.
        (Collective::Reduce, Way::Rabenseifner) => Way::Linear,
        (_, way) => way,
    })
}

/// Returns the algorithm of this crate that is equivalent to Open MPI's for this collective.
#[must_use]
pub fn schedule_of(way: Way, collective: Collective) -> Option<Algorithm> {
    way.ours(collective)
}

/// Algorithms that the library chooses, or can be forced to choose, for a collective at any size.
pub(super) fn algorithms(collective: Collective) -> Vec<Algorithm> {
    let rows = table(collective).into_iter().flatten();
    let ways = rows.flat_map(|(_, ways)| ways.iter().map(|&(_, way)| way));
    let mut ours: Vec<Algorithm> = ways.filter_map(|way| schedule_of(way, collective)).collect();
    match collective {
        Collective::SendRecv => ours.push(Algorithm::Direct),
        // Not part of the fixed decision rules, which leave the fan-out of chains at one.
        Collective::Broadcast | Collective::Reduce => ours.push(Algorithm::Chains),
        _ => {}
    }
    ours.sort_unstable();
    ours.dedup();
    ours
}

/// Algorithm of this crate that is equivalent to Open MPI's for a call. `None` if Open MPI composes it of two
/// collectives with other algorithms than our schedule.
fn same(version: Version, call: &Call, taken: Way) -> Option<Algorithm> {
    let part = |collective: Collective| {
        way(version, &Call { collective, root: Rank(0), ..*call }).and_then(|way| schedule_of(way, collective))
    };
    let parts = match taken {
        Way::ReduceThenBroadcast => Some((Collective::Broadcast, Algorithm::Knomial)),
        Way::ReduceThenScatter => Some((Collective::Scatter, Algorithm::Direct)),
        _ => None,
    };
    if let Some((second, ours)) = parts
        && (part(Collective::Reduce) != Some(Algorithm::Tree) || part(second) != Some(ours))
    {
        return None;
    }
    schedule_of(taken, call.collective)
}

pub(super) fn choose(version: Version, call: &Call) -> Result<Choice, Missing> {
    let way = match call.collective {
        // Every message is sent directly.
        Collective::SendRecv => Way::Linear,
        collective => way(version, call).ok_or(Missing::Collective(collective))?,
    };
    let algorithm = same(version, call, way).ok_or(Missing::Way(way))?;
    let strategy = Strategy { algorithm, protocol: PROTOCOL, channels: 1, threads: None, chunk: None };
    Ok(Choice { strategy, name: way.name().to_owned(), most_channels: strategy.channels, expected: None })
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::BufferUse;
    use fabricast_topologies::Bytes;

    use super::*;

    fn taken(collective: Collective, ranks: u32, bytes: u64) -> Option<Way> {
        let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
        way(Version::NEWEST, &call)
    }

    #[test]
    fn tables_are_ascending_and_complete() {
        for collective in Collective::ALL {
            let Some(table) = table(collective) else { continue };
            assert!(table.is_sorted_by(|a, b| a.0 < b.0) && table.last().unwrap().0 == u32::MAX, "{collective}");
            for (ranks, ways) in table {
                let rises = ways.is_sorted_by(|a, b| a.0 < b.0) && ways.last().unwrap().0 == u64::MAX;
                assert!(rises, "{collective} below {ranks}");
            }
        }
    }

    #[test]
    fn switch_points_match_open_mpi() {
        assert_eq!(taken(Collective::AllReduce, 8, 8191), Some(Way::RecursiveDoubling));
        assert_eq!(taken(Collective::AllReduce, 8, 8192), Some(Way::Rabenseifner));
        assert_eq!(taken(Collective::AllReduce, 3, 100_000), Some(Way::SegmentedRing));
        // 32 ranks, blocks of 511 and 512 bytes.
        assert_eq!(taken(Collective::AllToAll, 32, 32 * 511), Some(Way::Bruck));
        assert_eq!(taken(Collective::AllToAll, 32, 32 * 512), Some(Way::Linear));
        assert_eq!(taken(Collective::AllGather, 12, 1 << 20), Some(Way::Bruck));
        assert_eq!(taken(Collective::AllGather, 16, 1 << 20), Some(Way::RecursiveDoubling));
        assert_eq!(taken(Collective::AllGather, 65, 65 * 4096), Some(Way::Ring));
        assert_eq!(taken(Collective::AllGather, 66, 66 * 4096), Some(Way::NeighbourExchange));
        assert_eq!(taken(Collective::AllToAllV, 8, 1 << 20), Some(Way::Linear));
        assert_eq!(taken(Collective::AllToAllV, 100, 1 << 20), Some(Way::Pairwise));
        assert_eq!(taken(Collective::Barrier, 8, 0), Some(Way::RecursiveDoubling));
        assert_eq!(taken(Collective::Barrier, 300, 0), Some(Way::Binomial));
        assert_eq!(taken(Collective::SendRecv, 2, 8), None);
    }

    /// Every choice has a schedule, except for some composed collectives with other algorithms, and recursive doubling
    /// of reduce_scatter, which sends data that no rank needs.
    #[test]
    fn every_choice_has_a_schedule() {
        for collective in Collective::ALL {
            for ranks in (2..70).chain([100, 128, 200, 256, 300, 512, 1000, 1024, 2048, 5000]) {
                for bytes in (0..34).flat_map(|k| [1u64 << k, (1 << k) - 1, 3 << k]) {
                    let call =
                        Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
                    let without = match way(Version::NEWEST, &call) {
                        Some(Way::ReduceThenBroadcast | Way::ReduceThenScatter) => true,
                        Some(Way::RecursiveDoubling) => collective == Collective::ReduceScatter,
                        _ => false,
                    };
                    assert!(without || choose(Version::NEWEST, &call).is_ok(), "{call:?}");
                }
            }
        }
        let all_reduce = |ranks, bytes| {
            let collective = Collective::AllReduce;
            let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
            choose(Version::NEWEST, &call).ok().map(|choice| choice.strategy.algorithm)
        };
        assert_eq!(all_reduce(256, 1024), Some(Algorithm::ReduceThenBroadcast));
        // Between 128 and 255 ranks, Open MPI broadcasts 1 KiB over a binary tree.
        assert_eq!(all_reduce(128, 1024), None);
    }
}
