//! Bundles: the active transfers of one route. They always have the same rate, so one running total of the work
//! received per transfer serves all of them: a transfer of w that joins at total S ends at total S + w. A change of
//! rate costs one step per bundle, regardless of the number of transfers, and the total is a sum of exact products, so
//! it does not depend on how often rates changed.
//!
//! Most bundles hold one transfer, and there may be millions of bundles, so the state for further transfers is stored
//! separately.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fabricast_topologies::Picos;

use crate::quantity::{Rate, Work};
use crate::sharing::RouteId;

const NO_SLOT: u32 = u32::MAX;

/// Remaining work of a transfer, in units of [`Work`]. Negative if more work passed than needed, because ends are
/// rounded up to a picosecond; the next transfer is credited with the excess. Stored in two halves, so that a bundle
/// need not be aligned to 16 bytes.
#[derive(Clone, Copy, Debug)]
struct RemainingWork {
    high: u64,
    low: u64,
}

impl RemainingWork {
    const NOTHING: Self = Self { high: 0, low: 0 };

    fn new(units: i128) -> Self {
        Self { high: (units >> 64) as u64, low: units as u64 }
    }

    fn units(self) -> i128 {
        (u128::from(self.high) << 64 | u128::from(self.low)) as i128
    }
}

#[derive(Clone, Copy, Debug)]
struct Bundle {
    /// Remaining work, at time `since`, of the transfer that ends next.
    left: RemainingWork,
    since: Picos,
    /// End of the transfer that ends next; finish events at other times are stale.
    end: Picos,
    next_slot: u32,
    /// Index into `crowds` of the other transfers; [`NO_SLOT`] unless at least two transfers have shared the route.
    crowd: u32,
}

/// Transfers of a bundle other than the one that ends next.
#[derive(Clone, Debug, Default)]
struct LaterTransfers {
    /// Running total at which the next transfer of the bundle ends.
    next_total: i128,
    /// Totals at which the other transfers end, with their slots.
    others: BinaryHeap<Reverse<(i128, u32)>>,
}

/// All bundles of a system, by route.
#[derive(Clone, Debug)]
pub(super) struct Bundles {
    bundles: Vec<Bundle>,
    crowds: Vec<LaterTransfers>,
    last_division: (Work, Rate, Picos),
}

impl Bundles {
    pub(super) fn new(routes: usize) -> Self {
        let empty = Bundle {
            left: RemainingWork::NOTHING,
            since: Picos::ZERO,
            end: Picos::ZERO,
            next_slot: NO_SLOT,
            crowd: NO_SLOT,
        };
        Self { bundles: vec![empty; routes], crowds: Vec::new(), last_division: (Work(0), Rate(1), Picos::ZERO) }
    }

    /// Adds a transfer of `work` at time `now`; `rate` is the rate of the bundle until then.
    pub(super) fn join(&mut self, route: RouteId, rate: Rate, now: Picos, slot: u32, work: Work) {
        let bundle = &mut self.bundles[route.0 as usize];
        if bundle.next_slot == NO_SLOT {
            (bundle.since, bundle.left, bundle.next_slot) = (now, RemainingWork::new(work.0 as i128), slot);
            return;
        }
        bundle.advance(rate, now);
        if bundle.crowd == NO_SLOT {
            bundle.crowd = self.crowds.len() as u32;
            self.crowds.push(LaterTransfers::default());
        }
        let crowd = &mut self.crowds[bundle.crowd as usize];
        let (left, work) = (bundle.left.units(), work.0 as i128);
        if crowd.others.is_empty() {
            // No transfer refers to the total: it may restart at the remaining work.
            crowd.next_total = left.max(0);
        }
        let joining = crowd.next_total - left + work;
        if work < left {
            crowd.others.push(Reverse((crowd.next_total, bundle.next_slot)));
            (crowd.next_total, bundle.left, bundle.next_slot) = (joining, RemainingWork::new(work), slot);
        } else {
            crowd.others.push(Reverse((joining, slot)));
        }
    }

    /// Moves the slots of completed transfers to `ended`, unless the finish event is stale.
    pub(super) fn leave(&mut self, route: RouteId, rate: Rate, now: Picos, ended: &mut Vec<u32>) {
        let bundle = &mut self.bundles[route.0 as usize];
        if bundle.end != now || bundle.next_slot == NO_SLOT {
            return;
        }
        bundle.advance(rate, now);
        while bundle.left.units() <= 0 {
            ended.push(bundle.next_slot);
            let crowd = self.crowds.get_mut(bundle.crowd as usize);
            let next = crowd.and_then(|crowd| crowd.others.pop().map(|Reverse(next)| (crowd, next)));
            let Some((crowd, (next_total, slot))) = next else {
                bundle.next_slot = NO_SLOT;
                return;
            };
            bundle.left = RemainingWork::new(bundle.left.units() + next_total - crowd.next_total);
            (crowd.next_total, bundle.next_slot) = (next_total, slot);
        }
    }

    /// Returns the end of the next transfer of a bundle; `None` if the bundle has no transfer.
    pub(super) fn next_end(&self, route: RouteId) -> Option<Picos> {
        let bundle = &self.bundles[route.0 as usize];
        (bundle.next_slot != NO_SLOT).then_some(bundle.end)
    }

    /// Returns the remaining work of the next transfer of a bundle that has one, given its rate until now.
    pub(super) fn left(&self, route: RouteId, rate: Rate, now: Picos) -> i128 {
        let mut bundle = self.bundles[route.0 as usize];
        bundle.advance(rate, now);
        bundle.left.units()
    }

    /// Returns the transfers of a non-empty bundle: for each, its remaining work when the next one ends, and its slot.
    pub(super) fn transfers(&self, route: RouteId) -> impl Iterator<Item = (i128, u32)> + '_ {
        let bundle = &self.bundles[route.0 as usize];
        let others = self
            .crowds
            .get(bundle.crowd as usize)
            .into_iter()
            .flat_map(|crowd| crowd.others.iter().map(|&Reverse((total, slot))| (total - crowd.next_total, slot)));
        std::iter::once((0, bundle.next_slot)).chain(others)
    }

    /// Shifts all active transfers later by `time`.
    pub(super) fn jump(&mut self, time: Picos) {
        for bundle in self.bundles.iter_mut().filter(|bundle| bundle.next_slot != NO_SLOT) {
            bundle.since += time;
            bundle.end += time;
        }
    }

    /// Returns the end of the next transfer after the rate changed from `before` to `rate`, or transfers joined or
    /// left. `Err` is the slot of a transfer that would last over 213 days.
    pub(super) fn reschedule(&mut self, route: RouteId, before: Rate, rate: Rate, now: Picos) -> Result<Picos, u32> {
        let bundle = &mut self.bundles[route.0 as usize];
        bundle.advance(before, now);
        let left = Work(bundle.left.units().max(0) as u128);
        if (self.last_division.0, self.last_division.1) != (left, rate) {
            self.last_division = (left, rate, left.duration(rate).ok_or(bundle.next_slot)?);
        }
        bundle.end = now.0.checked_add(self.last_division.2.0).map(Picos).ok_or(bundle.next_slot)?;
        Ok(bundle.end)
    }
}

impl Bundle {
    /// Subtracts the work that passed until now from the remaining work.
    fn advance(&mut self, rate: Rate, now: Picos) {
        if self.since != now {
            let passed = Work::passed(rate, now - self.since).0 as i128;
            self.left = RemainingWork::new(self.left.units() - passed);
            self.since = now;
        }
    }
}
