//! Mapping of any number of ranks to a power of two of positions. Ranks beyond the power of two have no position: among
//! the first ranks, every even one is the *guest* of the next one, its *stand-in*, which communicates for both. Blocks
//! of adjacent positions are contiguous.
//!
//! Source: Thakur, Rabenseifner, Gropp, *Optimization of Collective Communication Operations in MPICH*, 2005, §4.5.

use fabricast_sim::schedule::{RotationDigit, Symmetry};

/// Mapping of ranks to positions, whose number is a power of two.
#[derive(Clone, Copy, Debug)]
pub(super) struct PowerOfTwoMapping {
    /// log2 of the number of positions.
    bits: u32,
    /// Number of ranks beyond the power of two.
    guests: u32,
}

impl PowerOfTwoMapping {
    /// Creates the mapping for `ranks` ranks, at least one.
    pub(super) fn new(ranks: u32) -> Self {
        let bits = ranks.ilog2();
        Self { bits, guests: ranks - (1 << bits) }
    }

    /// Returns log2 of the number of positions, which is the number of exchange steps.
    pub(super) fn bits(self) -> u32 {
        self.bits
    }

    /// Returns the number of positions.
    pub(super) fn count(self) -> u32 {
        1 << self.bits
    }

    /// Returns the symmetry of exchanges between all positions at each distance of a power of two: a change of any bit of
    /// the rank, which exchanges blocks in the same way. None with guests, whose stand-ins do more than other ranks.
    pub(super) fn symmetry(self) -> Symmetry {
        if self.has_guests() {
            return Symmetry::None;
        }
        Symmetry::Rotations((0..self.bits).map(|bit| RotationDigit { stride: 1 << bit, length: 2 }).collect())
    }

    /// Returns true if there are guests.
    pub(super) fn has_guests(self) -> bool {
        self.guests > 0
    }

    /// Returns the position of a rank; `None` for a guest.
    pub(super) fn position(self, rank: u32) -> Option<u32> {
        match rank {
            _ if rank >= 2 * self.guests => Some(rank - self.guests),
            _ if rank.is_multiple_of(2) => None,
            _ => Some(rank / 2),
        }
    }

    /// Returns the rank at a position.
    pub(super) fn rank(self, position: u32) -> u32 {
        if position < self.guests { 2 * position + 1 } else { position + self.guests }
    }

    /// Returns the guest of a rank, if the rank is a stand-in.
    pub(super) fn guest(self, rank: u32) -> Option<u32> {
        (rank < 2 * self.guests && !rank.is_multiple_of(2)).then(|| rank - 1)
    }

    /// Returns the stand-in of a rank, if the rank is a guest.
    pub(super) fn stand_in(self, rank: u32) -> Option<u32> {
        self.position(rank).is_none().then(|| rank + 1)
    }

    /// Returns the partner of a rank over a distance of positions; `None` for a guest.
    pub(super) fn partner(self, rank: u32, distance: u32) -> Option<u32> {
        self.position(rank).map(|position| self.rank(position ^ distance))
    }

    /// Returns the first position of the aligned group of `size` positions (a power of two) that contains a position.
    pub(super) fn group(position: u32, size: u32) -> u32 {
        position & !(size - 1)
    }

    /// Returns the blocks of the ranks at `count` positions from `first`, guests included: the first block and the
    /// number of blocks.
    pub(super) fn blocks(self, first: u32, count: u32) -> (u32, u32) {
        let start = |position: u32| position + position.min(self.guests);
        (start(first), start(first + count) - start(first))
    }

    /// Returns the maximum number of blocks in an aligned group of `size` positions.
    pub(super) fn max_blocks(self, size: u32) -> u32 {
        self.blocks(0, size).1
    }
}

/// Phase of an algorithm over positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Guests send their data to their stand-ins.
    FoldIn,
    /// Exchange among the positions, numbered from 0.
    Exchange(u32),
    /// Guests receive their results.
    FoldOut,
}

impl Phase {
    /// Returns the phase of a step. If there are guests, the exchanges are between the guests' two steps.
    pub(super) fn from_step(step: u32, exchanges: u32, mapping: PowerOfTwoMapping) -> Self {
        match step.checked_sub(u32::from(mapping.has_guests())) {
            None => Self::FoldIn,
            Some(k) if k < exchanges => Self::Exchange(k),
            Some(_) => Self::FoldOut,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_a_place_or_is_a_guest() {
        for ranks in 1..200 {
            let mapping = PowerOfTwoMapping::new(ranks);
            let positions: Vec<u32> = (0..ranks).filter_map(|rank| mapping.position(rank)).collect();
            assert_eq!(positions, (0..mapping.count()).collect::<Vec<_>>());
            for rank in 0..ranks {
                match (mapping.position(rank), mapping.stand_in(rank)) {
                    (Some(position), None) => assert_eq!(mapping.rank(position), rank),
                    (None, Some(stand_in)) => assert_eq!(mapping.guest(stand_in), Some(rank)),
                    both => panic!("rank {rank} of {ranks}: {both:?}"),
                }
            }
            assert_eq!(mapping.blocks(0, mapping.count()), (0, ranks));
            for position in 0..mapping.count() {
                let (first, count) = mapping.blocks(position, 1);
                assert!((first..first + count).contains(&mapping.rank(position)));
            }
        }
    }
}
