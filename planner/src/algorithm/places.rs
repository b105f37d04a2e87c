//! Ranks of any number at the places of a power of two: of the first ranks every even one is the *guest* of the next,
//! which acts for both. Blocks of neighbouring places are neighbours.
//!
//! Source: Thakur, Rabenseifner, Gropp, *Optimization of Collective Communication Operations in MPICH*, 2005, §4.5.

/// Who is where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// log2 of the number of places.
    bits: u32,
    /// Ranks beyond the power of two.
    guests: u32,
}

impl Places {
    /// Of at least one rank.
    pub(super) fn new(ranks: u32) -> Self {
        let bits = ranks.ilog2();
        Self { bits, guests: ranks - (1 << bits) }
    }

    /// Steps over the places: log2 of their number.
    pub(super) fn bits(self) -> u32 {
        self.bits
    }

    /// Number of places.
    pub(super) fn count(self) -> u32 {
        1 << self.bits
    }

    /// Whether there are guests.
    pub(super) fn has_guests(self) -> bool {
        self.guests > 0
    }

    /// The place of a rank; none for a guest.
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

    /// The guest of a rank that acts for one.
    pub(super) fn guest(self, rank: u32) -> Option<u32> {
        (rank < 2 * self.guests && !rank.is_multiple_of(2)).then(|| rank - 1)
    }

    /// Who acts for a rank, if it is a guest.
    pub(super) fn stand_in(self, rank: u32) -> Option<u32> {
        self.place(rank).is_none().then(|| rank + 1)
    }

    /// The rank that a rank exchanges with over a distance of places; none for a guest.
    pub(super) fn partner(self, rank: u32, distance: u32) -> Option<u32> {
        self.place(rank).map(|place| self.rank(place ^ distance))
    }

    /// The first place of the group of `size` places (a power of two) that a place is in.
    pub(super) fn group(place: u32, size: u32) -> u32 {
        place & !(size - 1)
    }

    /// The blocks of the ranks at `count` places from `first`, guests' included: the first and how many.
    pub(super) fn blocks(self, first: u32, count: u32) -> (u32, u32) {
        let start = |place: u32| place + place.min(self.guests);
        (start(first), start(first + count) - start(first))
    }

    /// The most blocks of a group of `size` places.
    pub(super) fn most_blocks(self, size: u32) -> u32 {
        self.blocks(0, size).1
    }
}

/// What happens in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Guests give what they have.
    Come,
    /// An exchange among the places, from 0.
    Exchange(u32),
    /// Guests get what they must.
    Leave,
}

impl Phase {
    /// Of some exchanges, between the guests' two steps if there are guests.
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
    fn every_rank_is_at_one_place_or_a_guest() {
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
