//! Open MPI on GPU memory: which algorithm its `tuned` component takes.
//!
//! The decisions are fixed tables by ranks and bytes ([`switch_points`](self)); nothing of the fabric enters. Messages
//! between GPUs are one stream each, so a strategy has one channel, and the whole message is one chunk: with the fixed
//! decisions nothing is cut into segments. How a message moves (eager or rendezvous, staged through host memory or by
//! GPUDirect), and that sums are made in host memory, is the profile's and the route's business: profile `open_mpi-5.0`,
//! whose figures are of sources, not measured. Protocol `simple` stands for messages; the profile's other protocols are not
//! an MPI's.

mod switch_points;
mod ways;

use std::fmt;
use std::str::FromStr;

use fabricast_sim::schedule::{Call, Collective, Protocol};

use super::{Choice, Library, Unknown};
use crate::algorithm::Algorithm;
use crate::strategy::Strategy;
pub use ways::Way;

/// A version of Open MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 4.1, the first with these tables.
    V4_1,
    /// 5.0, which keeps them.
    V5_0,
}

impl Version {
    /// What a bare `open_mpi` means.
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

/// A version that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Open MPI {0} is not known: expected 4.1 or 5.0, as in open_mpi-5.0")]
pub struct UnknownVersion(pub String);

impl FromStr for Version {
    type Err = UnknownVersion;

    /// `5.0`, `5.0.6`.
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

/// The protocol whose costs stand for MPI's messages.
pub(crate) const PROTOCOL: Protocol = Protocol::Simple;

/// Why there is no choice of ours.
pub(super) enum Missing {
    /// No table.
    Collective(Collective),
    /// No schedule.
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

/// The way that a version takes; `None` for collectives that it has no decision of.
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
    // What an algorithm of all_gather cannot do it hands on (coll_base_allgather.c): doubling needs a power of two, exchanges
    // of neighbours need pairs.
    Some(match (call.collective, way) {
        (Collective::AllGather, Way::RecursiveDoubling) if !call.ranks.is_power_of_two() => Way::Bruck,
        (Collective::AllGather, Way::NeighbourExchange) if call.ranks % 2 == 1 => Way::Ring,
        (_, way) => way,
    })
}

/// The ways of a collective, at whatever size.
pub(super) fn algorithms(collective: Collective) -> Vec<Way> {
    let rows = table(collective).into_iter().flatten();
    let mut ways: Vec<Way> = rows.flat_map(|(_, ways)| ways.iter().map(|&(_, way)| way)).collect();
    if collective == Collective::SendRecv {
        ways.push(Way::Linear);
    }
    ways.sort_unstable();
    ways.dedup();
    ways.retain(|way| schedule_of(*way, collective).is_some());
    ways
}

/// Ours, where it does what Open MPI's does for this collective.
#[must_use]
pub fn schedule_of(way: Way, collective: Collective) -> Option<Algorithm> {
    let ours = match (collective, way) {
        // Bruck's barrier is what others call dissemination; doubling exchanges with other partners.
        (Collective::Barrier, Way::Bruck) => Some(Algorithm::Dissemination),
        (Collective::Barrier, Way::RecursiveDoubling) => None,
        _ => way.ours(),
    };
    ours.filter(|ours| ours.supports(collective))
}

pub(super) fn choose(version: Version, call: &Call) -> Result<Choice, Missing> {
    let way = match call.collective {
        // A message is a message.
        Collective::SendRecv => Way::Linear,
        collective => way(version, call).ok_or(Missing::Collective(collective))?,
    };
    let algorithm = schedule_of(way, call.collective).ok_or(Missing::Way(way))?;
    let strategy = Strategy { algorithm, protocol: PROTOCOL, channels: 1, threads: None, chunk: None };
    Ok(Choice { strategy, name: way.name().to_owned(), expected: None })
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::{BufferUse, Rank};
    use fabricast_topologies::Bytes;

    use super::*;

    fn taken(collective: Collective, ranks: u32, bytes: u64) -> Option<Way> {
        let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
        way(Version::NEWEST, &call)
    }

    #[test]
    fn tables_rise_and_end() {
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
    fn switch_points_are_open_mpis() {
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
}
