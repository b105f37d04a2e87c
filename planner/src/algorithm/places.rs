//! Mapping of any number of ranks to a power of two of places. Among the first ranks, every even one is the *guest* of
//! the next, its stand-in, which acts for both. Blocks of adjacent places are contiguous.
//!
//! Source: Thakur, Rabenseifner, Gropp, *Optimization of Collective Communication Operations in MPICH*, 2005, §4.5.

/// Mapping of ranks to places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// log2 of the number of places.
    bits: u32,
    /// Number of ranks beyond the power of two.
    guests: u32,
}

impl Places {
    /// Creates the mapping for `ranks` ranks, at least one.
    pub(super) fn new(ranks: u32) -> Self {
        let bits = ranks.ilog2();
        Self { bits, guests: ranks - (1 << bits) }
    }

    /// log2 of the number of places, which is the number of exchange steps.
    pub(super) fn bits(self) -> u32 {
        self.bits
    }

    /// Number of places.
    pub(super) fn count(self) -> u32 {
        1 << self.bits
    }

    /// Returns true if there are guests.
    pub(super) fn has_guests(self) -> bool {
        self.guests > 0
    }

    /// Place of a rank; `None` for a guest.
    pub(super) fn place(self, rank: u32) -> Option<u32> {
        match rank {
            _ if rank >= 2 * self.guests => Some(rank - self.guests),
            _ if rank.is_multiple_of(2) => None,
            _ => Some(rank / 2),
        }
    }

    /// The rank at a place.
    pub(super) fn rank(self, place: u32) -> u32 {
        if place < self.guests { 2 * place + 1 } else { place + self.guests }
    }

    /// The guest of a rank, if it is a stand-in.
    pub(super) fn guest(self, rank: u32) -> Option<u32> {
        (rank < 2 * self.guests && !rank.is_multiple_of(2)).then(|| rank - 1)
    }

    /// The stand-in of a rank, if it is a guest.
    pub(super) fn stand_in(self, rank: u32) -> Option<u32> {
        self.place(rank).is_none().then(|| rank + 1)
    }

    /// The partner of a rank over a distance of places; `None` for a guest.
    pub(super) fn partner(self, rank: u32, distance: u32) -> Option<u32> {
        self.place(rank).map(|place| self.rank(place ^ distance))
    }

    /// First place of the aligned group of `size` places (a power of two) that contains a place.
    pub(super) fn group(place: u32, size: u32) -> u32 {
        place & !(size - 1)
    }

    /// Blocks of the ranks at `count` places from `first`, including guests: the first block and the number of blocks.
    pub(super) fn blocks(self, first: u32, count: u32) -> (u32, u32) {
        let start = |place: u32| place + place.min(self.guests);
        (start(first), start(first + count) - start(first))
    }

    /// Maximum number of blocks in an aligned group of `size` places.
    pub(super) fn most_blocks(self, size: u32) -> u32 {
        self.blocks(0, size).1
    }
}

/// Phase of an algorithm over places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Guests send their data to their stand-ins.
    Come,
    /// Exchange among the places, numbered from 0.
    Exchange(u32),
    /// Guests receive their results.
    Leave,
}

impl Phase {
    /// Phase of a step. The exchanges are between the guests' two steps, if there are guests.
    pub(super) fn of(step: u32, exchanges: u32, places: Places) -> Self {
        match step.checked_sub(u32::from(places.has_guests())) {
            None => Self::Come,
            Some(k) if k < exchanges => Self::Exchange(k),
            Some(_) => Self::Leave,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_a_place_or_is_a_guest() {
        for ranks in 1..200 {
            let places = Places::new(ranks);
            let seated: Vec<u32> = (0..ranks).filter_map(|rank| places.place(rank)).collect();
            assert_eq!(seated, (0..places.count()).collect::<Vec<_>>());
            for rank in 0..ranks {
                match (places.place(rank), places.stand_in(rank)) {
                    (Some(place), None) => assert_eq!(places.rank(place), rank),
                    (None, Some(other)) => assert_eq!(places.guest(other), Some(rank)),
                    both => panic!("rank {rank} of {ranks}: {both:?}"),
                }
            }
            assert_eq!(places.blocks(0, places.count()), (0, ranks));
            for place in 0..places.count() {
                let (first, count) = places.blocks(place, 1);
                assert!((first..first + count).contains(&places.rank(place)));
            }
        }
    }
}
