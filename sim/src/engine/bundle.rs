//! Bundles: the transfers under way on one route. They have the same rate at all times, so one running total of what
//! each has received serves all of them: a transfer that joins when the total is S and moves w ends when it reaches
//! S + w. A change of rate costs one step per bundle, however many transfers it holds, and the total is a sum of exact
//! products, so it does not depend on how often rates changed in between.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fabricast_topologies::Picos;

use crate::quantity::{Rate, Work};
use crate::sharing::RouteId;

const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Bundle {
    /// Received by each transfer since the bundle was first used, as of `since`.
    total: Work,
    since: Picos,
    /// Total at which the next transfer ends.
    next_total: Work,
    next_slot: u32,
    /// When that is; finish events of other times are out of date.
    end: Picos,
    /// Index into the heaps of further transfers.
    others: u32,
}

/// All bundles of a system, by route.
#[derive(Clone, Debug)]
pub(super) struct Bundles {
    bundles: Vec<Bundle>,
    others: Vec<BinaryHeap<Reverse<(Work, u32)>>>,
    last_division: (Work, Rate, Picos),
}

impl Bundles {
    pub(super) fn new(routes: usize) -> Self {
        let empty = Bundle {
            total: Work(0),
            since: Picos::ZERO,
            next_total: Work(0),
            next_slot: NOBODY,
            end: Picos::ZERO,
            others: NOBODY,
        };
        Self { bundles: vec![empty; routes], others: Vec::new(), last_division: (Work(0), Rate(1), Picos::ZERO) }
    }

    /// A transfer of `work` joins; `rate` is that of the bundle until now.
    pub(super) fn join(&mut self, route: RouteId, rate: Rate, now: Picos, slot: u32, work: Work) {
        let bundle = &mut self.bundles[route.0 as usize];
        if bundle.next_slot == NOBODY {
            bundle.since = now;
            bundle.next_total = Work(bundle.total.0 + work.0);
            bundle.next_slot = slot;
            return;
        }
        bundle.advance(rate, now);
        let mut entry = (Work(bundle.total.0 + work.0), slot);
        if entry.0 < bundle.next_total {
            std::mem::swap(&mut entry.0, &mut bundle.next_total);
            std::mem::swap(&mut entry.1, &mut bundle.next_slot);
        }
        if bundle.others == NOBODY {
            bundle.others = self.others.len() as u32;
            self.others.push(BinaryHeap::new());
        }
        self.others[bundle.others as usize].push(Reverse(entry));
    }

    /// Moves the transfers that are done to `ended`, unless the event is out of date.
    pub(super) fn leave(&mut self, route: RouteId, rate: Rate, now: Picos, ended: &mut Vec<u32>) {
        let bundle = &mut self.bundles[route.0 as usize];
        if bundle.end != now || bundle.next_slot == NOBODY {
            return;
        }
        bundle.advance(rate, now);
        while bundle.next_slot != NOBODY && bundle.next_total <= bundle.total {
            ended.push(bundle.next_slot);
            let next = self.others.get_mut(bundle.others as usize).and_then(BinaryHeap::pop);
            (bundle.next_total, bundle.next_slot) = next.map_or((Work(0), NOBODY), |Reverse(entry)| entry);
        }
    }

    /// The rate changed from `before` to `rate`, or transfers joined or left: when the next one ends. `Err` is the slot of
    /// a transfer that would take over 213 days.
    pub(super) fn reschedule(&mut self, route: RouteId, before: Rate, rate: Rate, now: Picos) -> Result<Picos, u32> {
        let bundle = &mut self.bundles[route.0 as usize];
        bundle.advance(before, now);
        let left = Work(bundle.next_total.0.saturating_sub(bundle.total.0));
        if (self.last_division.0, self.last_division.1) != (left, rate) {
            self.last_division = (left, rate, left.duration(rate).ok_or(bundle.next_slot)?);
        }
        bundle.end = now.0.checked_add(self.last_division.2.0).map(Picos).ok_or(bundle.next_slot)?;
        Ok(bundle.end)
    }
}

impl Bundle {
    fn advance(&mut self, rate: Rate, now: Picos) {
        if self.since != now {
            self.total = Work(self.total.0 + Work::passed(rate, now - self.since).0);
            self.since = now;
        }
    }
}
