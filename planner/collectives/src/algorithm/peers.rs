//! Enumeration of all other ranks in an order that is equal from every rank: by host distance, then by position
//! distance within the host. Exchanges between all pairs are thus invariant under rotations of hosts, or of positions
//! in all hosts.

use fabricast_sim::schedule::{RotationDigit, Symmetry, Walk};

use super::Shape;

/// Ranks arranged as hosts × positions. The rank at offset `j` from a rank is `j / per_host` hosts and `j mod per_host`
/// positions away; offset 0 is the rank itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peers {
    hosts: u32,
    per_host: u32,
}

impl Peers {
    pub(super) fn new(shape: &Shape) -> Self {
        let per_host = shape.ranks_per_host();
        Self { hosts: shape.call.ranks / per_host, per_host }
    }

    /// Returns the offsets of all other ranks.
    pub(super) fn offsets(self) -> std::ops::Range<u32> {
        1..self.hosts * self.per_host
    }

    /// Returns the number of hosts from the host of `rank` to that of `other`, cyclically.
    pub(super) fn host_distance(self, rank: u32, other: u32) -> u32 {
        (other / self.per_host + self.hosts - rank / self.per_host) % self.hosts
    }

    /// Returns the number of hosts to the rank at an offset, cyclically.
    pub(super) fn offset_host_distance(self, offset: u32) -> u32 {
        offset / self.per_host
    }

    /// Returns the rank at an offset from `rank`.
    pub(super) fn target(self, rank: u32, offset: u32) -> u32 {
        let host = (rank / self.per_host + offset / self.per_host) % self.hosts;
        host * self.per_host + (rank % self.per_host + offset % self.per_host) % self.per_host
    }

    /// Returns the rank from which `rank` is at an offset.
    pub(super) fn source(self, rank: u32, offset: u32) -> u32 {
        self.target(rank, self.opposite(offset))
    }

    /// Returns the offset that leads back from the rank at `offset`.
    pub(super) fn opposite(self, offset: u32) -> u32 {
        let host = (self.hosts - offset / self.per_host) % self.hosts;
        host * self.per_host + (self.per_host - offset % self.per_host) % self.per_host
    }

    /// Returns the position of the rank at an offset in [`Self::walks`]: index of the walk, and step within it.
    pub(super) fn locate(self, offset: u32) -> (u32, u32) {
        let (host, position) = (offset / self.per_host, offset % self.per_host);
        (host, if host == 0 { position - 1 } else { position })
    }

    /// Returns all other ranks as one walk per host, with the length of each walk.
    pub(super) fn walks(self, rank: u32) -> impl Iterator<Item = (Walk, u32)> {
        let (host, position) = (rank / self.per_host, rank % self.per_host);
        (0..self.hosts).map(move |host_offset| {
            // A rank is not a peer of itself on its own host.
            let skipped = u32::from(host_offset == 0);
            let base = (host + host_offset) % self.hosts * self.per_host;
            (Walk::cyclic(base, position + skipped, 1, self.per_host), self.per_host - skipped)
        })
    }

    /// Returns the symmetry of exchanges between all pairs: rotations of positions and of hosts.
    pub(super) fn symmetry(self) -> Symmetry {
        let digits = [
            RotationDigit { stride: 1, length: self.per_host },
            RotationDigit { stride: self.per_host, length: self.hosts },
        ];
        Symmetry::Rotations(digits.into_iter().filter(|digit| digit.length > 1).collect())
    }
}
