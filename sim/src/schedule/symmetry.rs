//! Rank symmetry of schedules, as declared by their generators.
//!
//! Symmetry is declared, not proven: tests check it against the programs of every generator, and folding does not rely
//! on it. Traffic analysis and the simulation of first blocks alone use it to read only the programs of representative
//! ranks.

use super::{Dependency, Generate, Program, Rank, Run, Walk};

/// Rotation symmetry of ranks. Rank `r` has the digit `(r / stride) mod length`; adding 1 to that digit (modulo
/// `length`) in all ranks leaves the schedule unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationDigit {
    /// Distance between ranks that differ by 1 in this digit.
    pub stride: u32,
    /// Number of values of the digit.
    pub length: u32,
}

impl RotationDigit {
    fn of(self, rank: u32) -> u32 {
        rank / self.stride.max(1) % self.length.max(1)
    }

    /// The rank whose digit is larger by `by` (modulo the length).
    fn turned(self, rank: u32, by: u32) -> u32 {
        let (digit, length) = (u64::from(self.of(rank)), u64::from(self.length.max(1)));
        let turned = (digit + u64::from(by)) % length;
        (u64::from(rank) - digit * u64::from(self.stride) + turned * u64::from(self.stride)) as u32
    }
}

/// Symmetry of a schedule, as declared by its generator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Symmetry {
    /// No symmetry declared.
    #[default]
    None,
    /// Independent rotations (one digit for a ring; two for nodes and the GPUs within them).
    Rotations(Vec<RotationDigit>),
}

impl Symmetry {
    /// The declared symmetry if all chunks are equally large, so that symmetric ranks move equal amounts; otherwise
    /// none.
    pub(crate) fn of_sizes(generator: &dyn Generate) -> Self {
        if generator.header().layout.is_even() { generator.symmetry() } else { Self::None }
    }

    fn digits(&self) -> &[RotationDigit] {
        match self {
            Self::None => &[],
            Self::Rotations(digits) => digits,
        }
    }

    /// Representative ranks among `ranks` ranks: rotations map them to all others.
    pub fn standing(&self, ranks: u32) -> impl Iterator<Item = Rank> {
        (0..ranks).filter(|&rank| self.digits().iter().all(|digit| digit.of(rank) == 0)).map(Rank)
    }

    /// Program of the rank that `turn` maps the owner of `program` to. Its chunk indices are not translated; only their
    /// number is right. `None` if peers are teams or vary within a run.
    pub(crate) fn turned_program(&self, program: &Program, turn: u32) -> Option<Program> {
        let mut turned = program.clone();
        for run in &mut turned.runs {
            if run.kind.is_multicast() || !run.peer.is_fixed() {
                return None;
            }
            *run = Run { peer: Walk::fixed(self.turned(Rank(run.peer.at(0)), turn).0), ..*run };
        }
        for on in &mut turned.dependencies {
            *on = Dependency { rank: self.turned(on.rank, turn), ..*on };
        }
        Some(turned)
    }

    /// Number of rotations; rotation 0 is the identity.
    #[must_use]
    pub fn turns(&self) -> u32 {
        self.digits().iter().map(|digit| digit.length.max(1)).product()
    }

    /// The rank that rotation number `turn` maps `rank` to.
    #[must_use]
    pub fn turned(&self, rank: Rank, turn: u32) -> Rank {
        let (turned, _) = self.digits().iter().fold((rank.0, turn), |(rank, left), digit| {
            (digit.turned(rank, left % digit.length.max(1)), left / digit.length.max(1))
        });
        Rank(turned)
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
        for (digits, standing) in
            [(vec![], 6), (vec![digit(1, 6)], 1), (vec![digit(3, 2), digit(1, 3)], 1), (vec![digit(3, 2)], 3)]
        {
            let symmetry = Symmetry::Rotations(digits);
            let found: Vec<Rank> = symmetry.standing(6).collect();
            assert_eq!(found.len(), standing);
            let turned = |rank| (0..symmetry.turns()).map(move |turn| (rank, turn));
            let mut ranks: Vec<Rank> =
                found.into_iter().flat_map(turned).map(|(rank, turn)| symmetry.turned(rank, turn)).collect();
            ranks.sort_unstable();
            assert_eq!(ranks, all);
        }
        let ring = Symmetry::Rotations(vec![digit(1, 6)]);
        assert_eq!((ring.turned(Rank(4), 3), ring.turned(Rank(4), 0)), (Rank(1), Rank(4)));
        assert_eq!((Symmetry::None.standing(6).count(), Symmetry::None.turns()), (6, 1));
    }
}
