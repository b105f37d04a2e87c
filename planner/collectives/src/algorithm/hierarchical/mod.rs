//! Two-level algorithms. Traffic between hosts travels on rails, between ranks at the same position of their hosts;
//! traffic within a host goes directly to its destination.
//!
//! # Example
//!
//! In an all_to_all of two hosts of four ranks, all traffic between the hosts is on rails.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Operation, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllToAll, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape { ranks_per_node: 4, ..Shape::new(call, Protocol::Simple) };
//! let schedule = Schedule::build(&*generator(Algorithm::Hierarchical, &shape)?)?;
//! let between = |op: &Operation| op.kind.is_transfer() && op.rank.0 / 4 != op.peer.0 / 4;
//! assert_eq!(schedule.operations().filter(between).count(), 32);
//! assert!(schedule.operations().filter(between).all(|op| op.rank.0 % 4 == op.peer.0 % 4));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod all_reduce;
mod blocks;
mod exchange;
mod rooted;
mod sum;
mod uneven;

use fabricast_sim::schedule::{Header, Rank, RotationDigit, Symmetry, Walk};

use super::cut::{Chunking, lane_channel};
use super::lane::Lane;
use super::{Algorithm, Shape, Unsupported};
pub(super) use all_reduce::HierarchicalAllReduce;
pub(super) use blocks::{HierarchicalAllGather, HierarchicalReduceScatter};
pub(super) use exchange::HierarchicalAllToAll;
pub(super) use rooted::{Broadcast, Reduce};
pub(super) use uneven::AllToAllV;

/// Loop of a rank's program on one lane.
#[derive(Clone, Copy, Debug)]
struct LaneLoop {
    /// Rank, and the channel of the lane.
    at: Lane,
    lane: u32,
    /// Index of the loop, from 0.
    round: u32,
}

/// Iterates over the loops of a rank's program in the order in which they are written.
fn rounds(header: &Header, cut: &Chunking, rank: Rank) -> impl Iterator<Item = LaneLoop> + use<> {
    let (channels, loops) = (header.channels, cut.loops);
    (0..cut.lanes).flat_map(move |lane| {
        let at = Lane { rank: rank.0, channel: lane_channel(channels, lane) };
        (0..loops).map(move |round| LaneLoop { at, lane, round })
    })
}

/// Location of a rank: its host, and its position within the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RankLocation {
    host: u32,
    /// Position within the host, from 0.
    position: u32,
}

/// Ranks arranged as hosts × positions.
#[derive(Clone, Copy, Debug)]
struct Levels {
    hosts: u32,
    per_host: u32,
}

impl Levels {
    fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let per_host = shape.checked_ranks_per_host(Algorithm::Hierarchical)?;
        Ok(Self { hosts: shape.call.ranks / per_host, per_host })
    }

    /// Returns the host and position of a rank.
    fn location(self, rank: u32) -> RankLocation {
        RankLocation { host: rank / self.per_host, position: rank % self.per_host }
    }

    /// Returns the rank at the same position, `offset` hosts after this one.
    fn on_rail(self, location: RankLocation, offset: u32) -> u32 {
        (location.host + offset) % self.hosts * self.per_host + location.position
    }

    /// Returns the rank of the same host, `offset` positions after this one.
    fn peer_on_host(self, location: RankLocation, offset: u32) -> u32 {
        location.host * self.per_host + (location.position + offset) % self.per_host
    }

    /// Returns the number of other ranks in a host.
    fn peer_count(self) -> u32 {
        self.per_host - 1
    }

    /// Returns the other ranks of a rank's host, starting with the next one.
    fn host_peers(self, location: RankLocation) -> Walk {
        Walk::cyclic(location.host * self.per_host, location.position + 1, 1, self.per_host)
    }

    /// Returns the blocks of a position, host by host in descending order from `host`.
    fn blocks_by_descending_host(self, host: u32, position: u32) -> Walk {
        Walk::cyclic(position, host % self.hosts, self.hosts - 1, self.hosts).strided(self.per_host)
    }

    /// Returns the symmetry of two-level schedules: rotations of positions and of hosts.
    fn symmetry(self) -> Symmetry {
        let digits = [
            RotationDigit { stride: 1, length: self.per_host },
            RotationDigit { stride: self.per_host, length: self.hosts },
        ];
        Symmetry::Rotations(digits.into_iter().filter(|digit| digit.length > 1).collect())
    }
}
