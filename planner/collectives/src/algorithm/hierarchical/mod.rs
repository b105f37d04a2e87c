//! Two-level algorithms. Traffic between hosts travels on rails, between ranks at the same position of their hosts;
//! traffic within a host goes directly to its destination.

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
pub(super) use all_reduce::AllReduce;
pub(super) use blocks::{AllGather, ReduceScatter};
pub(super) use exchange::AllToAll;
pub(super) use rooted::{Broadcast, Reduce};
pub(super) use uneven::AllToAllV;

/// Iterates over the loops of a rank's program in writing order: the rank on its channel, the lane, the round.
fn rounds(header: &Header, cut: &Chunking, rank: Rank) -> impl Iterator<Item = (Lane, u32, u32)> + use<> {
    let (channels, loops) = (header.channels, cut.loops);
    (0..cut.lanes).flat_map(move |lane| {
        let at = Lane { rank: rank.0, channel: lane_channel(channels, lane) };
        (0..loops).map(move |round| (at, lane, round))
    })
}

/// Location of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RankLocation {
    host: u32,
    /// Position within the host.
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

    /// Host and position of a rank.
    fn location(self, rank: u32) -> RankLocation {
        RankLocation { host: rank / self.per_host, position: rank % self.per_host }
    }

    /// The rank at the same position, `offset` hosts after this one.
    fn on_rail(self, location: RankLocation, offset: u32) -> u32 {
        (location.host + offset) % self.hosts * self.per_host + location.position
    }

    /// The rank of the same host, `offset` positions after this one.
    fn peer_on_host(self, location: RankLocation, offset: u32) -> u32 {
        location.host * self.per_host + (location.position + offset) % self.per_host
    }

    /// Number of other ranks in a host.
    fn peer_count(self) -> u32 {
        self.per_host - 1
    }

    /// The other ranks of a rank's host, starting with the next one.
    fn host_peers(self, location: RankLocation) -> Walk {
        Walk::cyclic(location.host * self.per_host, location.position + 1, 1, self.per_host)
    }

    /// Blocks of a position, host by host backwards from `host`.
    fn blocks_by_descending_host(self, host: u32, position: u32) -> Walk {
        Walk::cyclic(position, host % self.hosts, self.hosts - 1, self.hosts).strided(self.per_host)
    }

    /// Rotations of positions and of hosts.
    fn symmetry(self) -> Symmetry {
        let digits = [
            RotationDigit { stride: 1, length: self.per_host },
            RotationDigit { stride: self.per_host, length: self.hosts },
        ];
        Symmetry::Rotations(digits.into_iter().filter(|digit| digit.length > 1).collect())
    }
}
