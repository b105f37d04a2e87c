//! Event queue: events leave in order of time, and in order of arrival at equal times.
//!
//! A simulation never adds an event before the present, so a monotone radix heap suffices (Ahuja, Mehlhorn, Orlin &
//! Tarjan, *Faster algorithms for the shortest path problem*, J. ACM 1990): an event lies in the bucket of the highest
//! bit in which its time differs from the present. Buckets preserve the order of arrival, as does moving their events
//! to lower ones. Collectives run in lockstep, with thousands of events at one instant, for which the queue needs one
//! append and one read per event. With skewed ranks it moves an event a few times, where a binary heap would compare it
//! with others. `benches/queue.rs` compares the queue with two others.

use fabricast_topologies::Picos;

/// Number of buckets: one for the present, and one for each bit.
const BUCKETS: usize = 1 + u64::BITS as usize;

/// Largest capacity, in events, that an emptied bucket retains.
const RETAINED_CAPACITY: usize = 1 << 16;

/// Queue of events of type `E`, by time.
#[derive(Clone, Debug)]
pub struct EventQueue<E> {
    /// Bucket 0 holds the events of the present, bucket b those whose time first differs from it in bit b − 1.
    buckets: [Vec<(Picos, E)>; BUCKETS],
    /// Bit mask of the buckets 1.. that hold events.
    occupied: u64,
    now: Picos,
    /// Number of events read from bucket 0.
    read: usize,
}

impl<E: Copy> Default for EventQueue<E> {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| Vec::new()), occupied: 0, now: Picos::ZERO, read: 0 }
    }
}

impl<E: Copy> EventQueue<E> {
    /// Adds an event. Its time must not precede the present, which is the last result of [`Self::next_time`].
    pub fn push(&mut self, time: Picos, event: E) {
        debug_assert!(self.now <= time, "an event at {time:?} is before {:?}", self.now);
        let bucket = (u64::BITS - (time.0 ^ self.now.0).leading_zeros()) as usize;
        if let Some(bit) = bucket.checked_sub(1) {
            self.occupied |= 1 << bit;
        }
        self.buckets[bucket].push((time, event));
    }

    /// Advances to the time of the next event and returns it; `None` if the queue is empty.
    pub fn next_time(&mut self) -> Option<Picos> {
        if self.read < self.buckets[0].len() {
            return Some(self.now);
        }
        self.read = 0;
        self.buckets[0].clear();
        if self.occupied == 0 {
            return None;
        }
        let bit = self.occupied.trailing_zeros();
        self.occupied &= !(1 << bit);
        let first = bit as usize + 1;
        let mut moving = std::mem::take(&mut self.buckets[first]);
        let times = || moving.iter().map(|&(time, _)| time);
        let (earliest, latest) = (times().min()?, times().max()?);
        self.now = earliest;
        if earliest == latest {
            // All of them happen at one instant, as is usual in lockstep.
            std::mem::swap(&mut self.buckets[0], &mut moving);
        } else {
            for &(time, event) in &moving {
                self.push(time, event);
            }
            moving.clear();
        }
        // The memory is reused unless it is large, as after a simultaneous start of all operations.
        if moving.capacity() <= RETAINED_CAPACITY {
            self.buckets[first] = moving;
        }
        Some(self.now)
    }

    /// Creates an empty queue whose present is `now`.
    #[must_use]
    pub fn starting_at(now: Picos) -> Self {
        Self { now, ..Self::default() }
    }

    /// Returns all events with their times, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Picos, E)> + '_ {
        let present = self.buckets[0].get(self.read..).unwrap_or_default();
        present.iter().chain(self.buckets[1..].iter().flatten()).copied()
    }

    /// Returns true if there are events of the present.
    #[must_use]
    pub fn has_present_events(&self) -> bool {
        self.read < self.buckets[0].len()
    }

    /// Removes and returns the next event of the present.
    pub fn pop(&mut self) -> Option<E> {
        let &(_, event) = self.buckets[0].get(self.read)?;
        self.read += 1;
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Events leave the queue in the order of a stable sort by time.
        #[test]
        fn leaves_in_order_of_time_then_arrival(steps in prop::collection::vec((0u64..20, prop::bool::ANY), 1..200)) {
            let mut queue = EventQueue::default();
            let mut oracle: Vec<(u64, usize)> = Vec::new();
            let mut now = 0;
            for (i, &(gap, pop)) in steps.iter().enumerate() {
                if pop {
                    let best = oracle.iter().enumerate().min_by_key(|&(_, &key)| key).map(|(at, _)| at);
                    let time = queue.next_time();
                    prop_assert_eq!(time, best.map(|at| Picos(oracle[at].0)));
                    if let (Some(time), Some(at)) = (time, best) {
                        prop_assert_eq!(queue.pop(), Some(oracle.remove(at).1));
                        now = time.0;
                    }
                } else {
                    queue.push(Picos(now + gap), i);
                    oracle.push((now + gap, i));
                }
            }
        }
    }
}
