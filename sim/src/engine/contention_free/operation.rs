//! Times of an operation without contention, from those of the operations that it waits for.
//!
//! The formulas apply to the ends of chains ([`ChainEnd`]) and, in a steady state, to ends that grow by the same
//! difference from one operation to the next ([`GrowingEnd`]). The latter count for how many further operations each
//! comparison of two ends has the same result, so that the times of these operations follow by addition.

use fabricast_topologies::Picos;

use super::ChainEnd;
use super::end_sequence::Growth;
use crate::engine::Pace;
use crate::engine::costs::ChainCosts;

/// Largest time up to which operations are skipped, so that differences of times are within range.
const MAX_TIME: Picos = Picos(1 << 62);

/// End of a chain of operations, with or without its growth.
pub(super) trait End: Copy {
    /// Returns the greater of two ends. `steps` is lowered to the number of further operations for which it is the
    /// greater.
    fn max_end(self, other: Self, steps: &mut u32) -> Self;

    /// Returns an end that is not before `start`; time until then is a delay of the start. `steps` as in
    /// [`Self::max_end`].
    fn delayed_until(self, start: Picos, steps: &mut u32) -> Self;

    /// Returns the end after a further time with these costs; `None` if it is out of range.
    fn after(self, time: Picos, costs: ChainCosts) -> Option<Self>;
}

impl End for ChainEnd {
    fn max_end(self, other: Self, _: &mut u32) -> Self {
        self.max(other)
    }

    fn delayed_until(self, start: Picos, _: &mut u32) -> Self {
        let time = self.time.max(start);
        let start_delay = self.costs.start_delay + (time - self.time);
        Self { time, costs: ChainCosts { start_delay, ..self.costs } }
    }

    fn after(self, time: Picos, costs: ChainCosts) -> Option<Self> {
        Some(Self { time: Picos(self.time.0.checked_add(time.0)?), costs: self.costs + costs })
    }
}

/// End of a chain of an operation, and its difference from each operation to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GrowingEnd {
    pub(super) end: ChainEnd,
    pub(super) growth: Growth,
}

impl GrowingEnd {
    /// Returns a number of further operations for which this end is not less than `other`, given that it is not now. It is
    /// the largest such number unless the first values that differ become equal in between.
    fn steps_above(self, other: Self) -> u32 {
        let (ends, others) = (self.end.parts(), other.end.parts());
        let (growths, other_growths) = (self.growth.parts(), other.growth.parts());
        for part in 0..ends.len() {
            let ahead = i128::from(ends[part]) - i128::from(others[part]);
            let growth = i128::from(growths[part]) - i128::from(other_growths[part]);
            match (ahead, growth) {
                (0, 0) => {}
                (0.., 0..) => return u32::MAX,
                (1.., _) => return u32::try_from((ahead - 1) / -growth).unwrap_or(u32::MAX),
                _ => return 0,
            }
        }
        u32::MAX
    }
}

impl End for GrowingEnd {
    fn max_end(self, other: Self, steps: &mut u32) -> Self {
        // Of equal ends, the one that grows more is the greater from the next operation on.
        let is_greater = (self.end, self.growth.parts()) >= (other.end, other.growth.parts());
        let (greater, lower) = if is_greater { (self, other) } else { (other, self) };
        *steps = (*steps).min(greater.steps_above(lower));
        greater
    }

    fn delayed_until(self, start: Picos, steps: &mut u32) -> Self {
        if self.end.time < start || self.growth.parts()[0] < 0 {
            *steps = 0;
        }
        Self { end: self.end.delayed_until(start, steps), ..self }
    }

    fn after(self, time: Picos, costs: ChainCosts) -> Option<Self> {
        Some(Self { end: self.end.after(time, costs)?, ..self })
    }
}

/// Durations of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Durations {
    pub(super) pace: Pace,
    pub(super) latency: Picos,
    /// Time of the transfer.
    pub(super) transfer: Picos,
    /// Part of the time of the transfer that counts as bandwidth.
    pub(super) bandwidth: Picos,
}

/// Times of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OperationTimes<E> {
    /// End of the software time.
    pub(super) prepared: E,
    /// End of the spacing, before which the next operation in turn does not flow.
    pub(super) free: E,
    /// End of the operation.
    pub(super) end: E,
}

impl<E: End> OperationTimes<E> {
    /// Returns the times of an operation that waits for chains with the ends `awaited`. `previous`: times of the operation
    /// before it, if the operations of its run are in turn. `begun`: start of the workload, from which operations that wait
    /// for nothing are ready. `steps` is lowered as by [`End::max_end`]. `None` if a time is out of range.
    pub(super) fn new(
        durations: &Durations,
        awaited: impl Iterator<Item = E>,
        previous: Option<Self>,
        begun: E,
        steps: &mut u32,
    ) -> Option<Self> {
        let Durations { pace, latency, transfer, bandwidth } = *durations;
        let all = awaited.chain(previous.map(|previous| previous.prepared));
        let latest = all.reduce(|one, other| one.max_end(other, steps)).unwrap_or(begun);
        let none = ChainCosts::default();
        let ready = latest.delayed_until(pace.not_before, steps);
        let prepared = ready.after(pace.software, ChainCosts { software: pace.software, ..none })?;
        let mut first_byte = prepared.after(latency, ChainCosts { latency, ..none })?;
        if let Some(previous) = previous {
            // An operation that has to wait is charged with the costs of the chain that it waited for.
            first_byte = first_byte.max_end(previous.end, steps).max_end(previous.free, steps);
        }
        let free = first_byte.after(pace.spacing, ChainCosts { software: pace.spacing, ..none })?;
        let end = first_byte.after(transfer, ChainCosts { bandwidth, ..none })?;
        Some(Self { prepared, free, end })
    }
}

impl OperationTimes<ChainEnd> {
    /// Returns the differences from the times of the previous operation.
    pub(super) fn growth_since(&self, previous: &Self) -> OperationTimes<Growth> {
        OperationTimes {
            prepared: Growth::between(previous.prepared, self.prepared),
            free: Growth::between(previous.free, self.free),
            end: Growth::between(previous.end, self.end),
        }
    }

    /// Returns these times with their growth.
    pub(super) fn with_growth(&self, growth: &OperationTimes<Growth>) -> OperationTimes<GrowingEnd> {
        OperationTimes {
            prepared: GrowingEnd { end: self.prepared, growth: growth.prepared },
            free: GrowingEnd { end: self.free, growth: growth.free },
            end: GrowingEnd { end: self.end, growth: growth.end },
        }
    }

    /// Returns the times of the operation `steps` operations later; `None` if they are out of range.
    pub(super) fn advanced(&self, growth: &OperationTimes<Growth>, steps: u32) -> Option<Self> {
        let advanced = |end: ChainEnd, growth: Growth| {
            let time = i128::from(end.time.0) + i128::from(growth.parts()[0]) * i128::from(steps);
            (0..=i128::from(MAX_TIME.0)).contains(&time).then(|| growth.times(steps).after(end))
        };
        Some(Self {
            prepared: advanced(self.prepared, growth.prepared)?,
            free: advanced(self.free, growth.free)?,
            end: advanced(self.end, growth.end)?,
        })
    }
}
