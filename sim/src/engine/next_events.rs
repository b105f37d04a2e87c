//! Queue with one event for each run, which may be moved to another time.

use fabricast_topologies::Picos;

/// Time of a run without an event.
const NEVER: u64 = u64::MAX;

/// Times of the next event of each run, in a tree in which each node has the earlier time of its two children.
#[derive(Debug)]
pub(super) struct NextEvents {
    /// Number of leaves: a power of two. Node 1 is the root, and node `leaves + run` the leaf of a run.
    leaves: usize,
    times: Vec<u64>,
}

impl NextEvents {
    pub(super) fn new(runs: usize) -> Self {
        let leaves = runs.next_power_of_two();
        Self { leaves, times: vec![NEVER; 2 * leaves] }
    }

    /// Sets the time of a run's next event; `None` if the run has none.
    pub(super) fn set(&mut self, run: u32, time: Option<Picos>) {
        let mut node = self.leaves + run as usize;
        self.times[node] = time.map_or(NEVER, |time| time.0);
        while node > 1 {
            node /= 2;
            let earlier = self.times[2 * node].min(self.times[2 * node + 1]);
            if std::mem::replace(&mut self.times[node], earlier) == earlier {
                return;
            }
        }
    }

    /// Returns the time of the earliest event; `None` if there is none.
    pub(super) fn next_time(&self) -> Option<Picos> {
        Some(Picos(self.times[1])).filter(|time| time.0 != NEVER)
    }

    /// Returns a run whose event is at `time`, and removes its event; `None` if there is none.
    pub(super) fn pop(&mut self, time: Picos) -> Option<u32> {
        if self.times[1] != time.0 {
            return None;
        }
        let mut node = 1;
        while node < self.leaves {
            node = 2 * node + usize::from(self.times[2 * node] != time.0);
        }
        let run = (node - self.leaves) as u32;
        self.set(run, None);
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// After any changes, events leave in order of time.
        #[test]
        fn events_leave_in_order_of_time(changes in prop::collection::vec((0u32..9, prop::option::of(0u64..50)), 1..60)) {
            let mut events = NextEvents::new(9);
            let mut expected = [None; 9];
            for (run, time) in changes {
                events.set(run, time.map(Picos));
                expected[run as usize] = time;
            }
            let mut left = Vec::new();
            while let Some(time) = events.next_time() {
                let run = events.pop(time).unwrap();
                prop_assert_eq!(expected[run as usize], Some(time.0));
                left.push(time.0);
            }
            let mut expected: Vec<u64> = expected.into_iter().flatten().collect();
            expected.sort_unstable();
            prop_assert_eq!(left, expected);
        }
    }
}
