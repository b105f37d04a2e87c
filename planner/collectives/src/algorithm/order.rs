//! Ring orders: the sequence of ranks in each ring.

use std::iter;

use fabricast_sim::schedule::{Rank, RotationDigit, Symmetry};

use super::{Shape, Unsupported};

/// Order of the ranks in one ring.
#[derive(Clone, Debug)]
pub(super) struct Order {
    ranks: u32,
    /// Difference between neighbouring ranks modulo the number of ranks, if it is constant.
    step: Option<u32>,
    /// Rank at each position and position of each rank; `None` for 0, 1, 2, ….
    listed: Option<(Vec<u32>, Vec<u32>)>,
}

impl Order {
    /// Returns the ring orders of a shape, at least one.
    ///
    /// # Errors
    /// [`Unsupported::RingOrder`] for an order that is not a permutation of the ranks.
    pub(super) fn from_shape(shape: &Shape) -> Result<Vec<Self>, Unsupported> {
        let ranks = shape.call.ranks;
        if shape.orders.is_empty() {
            return Ok(vec![Self { ranks, step: Some(1), listed: None }]);
        }
        let orders = shape.orders.iter().enumerate();
        orders.map(|(i, order)| Self::listed(ranks, order).ok_or(Unsupported::RingOrder { index: i, ranks })).collect()
    }

    fn listed(ranks: u32, order: &[Rank]) -> Option<Self> {
        let mut positions = vec![u32::MAX; ranks as usize];
        for (position, rank) in order.iter().enumerate() {
            let slot = positions.get_mut(rank.0 as usize)?;
            if *slot != u32::MAX {
                return None;
            }
            *slot = position as u32;
        }
        if order.len() != ranks as usize {
            return None;
        }
        let ring: Vec<u32> = order.iter().map(|rank| rank.0).collect();
        let difference = |p: usize| {
            let (from, to) = (u64::from(ring[p]), u64::from(ring[(p + 1) % ring.len()]));
            ((to + u64::from(ranks) - from) % u64::from(ranks)) as u32
        };
        let step = (1..ring.len()).all(|p| difference(p) == difference(0)).then(|| difference(0));
        Some(Self { ranks, step, listed: Some((ring, positions)) })
    }

    pub(super) fn position(&self, rank: u32) -> u32 {
        self.listed.as_ref().map_or(rank, |(_, positions)| positions[rank as usize])
    }

    pub(super) fn rank_at(&self, position: u32) -> u32 {
        self.listed.as_ref().map_or(position, |(ring, _)| ring[position as usize])
    }

    /// Returns the rank `offset` positions after a rank. Negative offsets go against the ring's direction.
    pub(super) fn after(&self, rank: u32, offset: i64) -> u32 {
        let position = (i64::from(self.position(rank)) + offset).rem_euclid(i64::from(self.ranks));
        self.rank_at(position as u32)
    }

    /// Returns the difference between neighbouring ranks modulo the number of ranks, if it is constant.
    pub(super) fn step(&self) -> Option<u32> {
        self.step
    }

    /// Returns true if adding `shift` to every rank maps the ring to itself.
    fn is_invariant(&self, shift: u32) -> bool {
        let shifted = |rank: u32| ((u64::from(rank) + u64::from(shift)) % u64::from(self.ranks)) as u32;
        self.step.is_some() || (0..self.ranks).all(|rank| self.after(shifted(rank), 1) == shifted(self.after(rank, 1)))
    }
}

/// Returns the rotations under which all orders are invariant: by one rank on a single host, by one host on several. If
/// ring orders change direction from one host to the next, the rotation is by two hosts. No symmetry if some order is
/// not invariant under that either.
pub(super) fn rotations(shape: &Shape, orders: &[Order]) -> Symmetry {
    let one = shape.rotation();
    let two = (one.length > 2 && one.length.is_multiple_of(2))
        .then(|| RotationDigit { stride: 2 * one.stride, length: one.length / 2 });
    let found = iter::once(one).chain(two).find(|digit| orders.iter().all(|order| order.is_invariant(digit.stride)));
    found.map_or(Symmetry::None, |digit| Symmetry::Rotations(vec![digit]))
}
