//! Rank symmetry of schedules, as declared by their generators.
//!
//! Symmetry is declared and not proven; tests check it against the programs of every generator. Traffic analysis, and
//! simulations that fold groups of blocks or ranks before lowering, use it to read only the programs of representative
//! ranks. Colour refinement does not rely on it.

use super::{Dependency, Program, Rank, Run, ScheduleGenerator, Walk};

/// Rotation symmetry of ranks. Rank `r` has the digit `(r / stride) mod length`; adding 1 to that digit (modulo
/// `length`) in all ranks leaves the schedule unchanged, except perhaps for the order in which a run moves chunks of
/// equal size to one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationDigit {
    /// Distance between ranks that differ by 1 in this digit.
    pub stride: u32,
    /// Number of values of the digit.
    pub length: u32,
}

impl RotationDigit {
    /// Returns the value of the digit for a rank.
    pub(crate) fn digit(self, rank: u32) -> u32 {
        rank / self.stride.max(1) % self.length.max(1)
    }

    /// Returns the rank whose digit is larger by `amount`, modulo the length.
    pub(crate) fn rotate(self, rank: u32, amount: u32) -> u32 {
        let (digit, length) = (self.digit(rank), self.length.max(1));
        let amount = if amount < length { amount } else { amount % length };
        let rest = length - digit;
        let rotated = if amount < rest { digit + amount } else { amount - rest };
        rank - digit * self.stride + rotated * self.stride
    }
}

/// Symmetry of a schedule, as declared by its generator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Symmetry {
    /// No declared symmetry: every rank represents only itself.
    #[default]
    None,
    /// Independent rotations (one digit for a ring; two for nodes and the GPUs within them).
    Rotations(Vec<RotationDigit>),
}

impl Symmetry {
    /// Returns the declared symmetry if all chunks have the same size, so that symmetric ranks move equal amounts;
    /// otherwise no symmetry.
    pub(crate) fn for_equal_chunks(generator: &dyn ScheduleGenerator) -> Self {
        if generator.header().layout.is_even() { generator.symmetry() } else { Self::None }
    }

    fn digits(&self) -> &[RotationDigit] {
        match self {
            Self::None => &[],
            Self::Rotations(digits) => digits,
        }
    }

    /// Returns the representative ranks among `ranks` ranks. Rotations map them to all other ranks.
    pub fn representatives(&self, ranks: u32) -> impl Iterator<Item = Rank> {
        (0..ranks).filter(|&rank| self.digits().iter().all(|digit| digit.digit(rank) == 0)).map(Rank)
    }

    /// Returns the program of the rank to which rotation number `rotation` maps the owner of `program`. The numbers of
    /// chunks are correct, but chunk indices are not translated. `None` if peers are teams or vary within a run.
    pub(crate) fn rotate_program(&self, program: &Program, rotation: u32) -> Option<Program> {
        let mut rotated = program.clone();
        for run in &mut rotated.runs {
            if run.kind.is_multicast() || !run.peer.is_fixed() {
                return None;
            }
            *run = Run { peer: Walk::fixed(self.rotate(Rank(run.peer.at(0)), rotation).0), ..*run };
        }
        for on in &mut rotated.dependencies {
            *on = Dependency { rank: self.rotate(on.rank, rotation), ..*on };
        }
        Some(rotated)
    }

    /// Returns the lowest rank to which rotations map a rank.
    #[must_use]
    pub fn representative(&self, rank: Rank) -> Rank {
        self.carry(rank, Rank(0), rank)
    }

    /// Returns the image of `rank` under the rotation that maps `from` to the rank with the digits of `to`. Rotations
    /// change no other digits, so `from` and `to` need not be images of each other.
    #[must_use]
    pub fn carry(&self, from: Rank, to: Rank, rank: Rank) -> Rank {
        Rank(self.digits().iter().fold(rank.0, |rank, digit| {
            let (from, to) = (digit.digit(from.0), digit.digit(to.0));
            digit.rotate(rank, if from <= to { to - from } else { digit.length.max(1) - (from - to) })
        }))
    }

    /// Returns the number of rotations; rotation 0 is the identity.
    #[must_use]
    pub fn rotation_count(&self) -> u32 {
        self.digits().iter().map(|digit| digit.length.max(1)).product()
    }

    /// Returns the rank to which rotation number `rotation` maps `rank`.
    #[must_use]
    pub fn rotate(&self, rank: Rank, rotation: u32) -> Rank {
        let (rotated, _) = self.digits().iter().fold((rank.0, rotation), |(rank, remaining), digit| {
            (digit.rotate(rank, remaining % digit.length.max(1)), remaining / digit.length.max(1))
        });
        Rank(rotated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With two hosts of three ranks, the rotations map the representatives to every rank exactly once.
    #[test]
    fn representatives_reach_every_rank_once() {
        let all: Vec<Rank> = (0..6).map(Rank).collect();
        let digit = |stride, length| RotationDigit { stride, length };
        for (digits, count) in
            [(vec![], 6), (vec![digit(1, 6)], 1), (vec![digit(3, 2), digit(1, 3)], 1), (vec![digit(3, 2)], 3)]
        {
            let symmetry = Symmetry::Rotations(digits);
            let representatives: Vec<Rank> = symmetry.representatives(6).collect();
            assert_eq!(representatives.len(), count);
            let rotations = |rank| (0..symmetry.rotation_count()).map(move |rotation| (rank, rotation));
            let mut ranks: Vec<Rank> = representatives
                .into_iter()
                .flat_map(rotations)
                .map(|(rank, rotation)| symmetry.rotate(rank, rotation))
                .collect();
            ranks.sort_unstable();
            assert_eq!(ranks, all);
        }
        let ring = Symmetry::Rotations(vec![digit(1, 6)]);
        assert_eq!((ring.rotate(Rank(4), 3), ring.rotate(Rank(4), 0)), (Rank(1), Rank(4)));
        assert_eq!((Symmetry::None.representatives(6).count(), Symmetry::None.rotation_count()), (6, 1));
    }

    /// With three hosts of four ranks, of which pairs are alike, a rotation carries ranks within their digits.
    #[test]
    fn rotations_carry_ranks_to_the_digits_of_others() {
        let symmetry =
            Symmetry::Rotations(vec![RotationDigit { stride: 4, length: 3 }, RotationDigit { stride: 2, length: 2 }]);
        for from in 0..12 {
            let first = symmetry.representative(Rank(from));
            assert_eq!(first, Rank(from % 2));
            assert_eq!(symmetry.carry(first, Rank(from), first), Rank(from));
            for rank in 0..12 {
                let there = symmetry.carry(Rank(from), Rank(0), Rank(rank));
                assert_eq!(symmetry.carry(Rank(0), Rank(from), there), Rank(rank));
            }
        }
        // Host 2 to host 0, and the second pair to the first.
        assert_eq!(symmetry.carry(Rank(10), Rank(0), Rank(3)), Rank(5));
        assert_eq!(Symmetry::None.carry(Rank(2), Rank(5), Rank(1)), Rank(1));
    }
}
