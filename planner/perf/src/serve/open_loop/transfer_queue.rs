//! Queue of transfers of keys and values from prefill to decode. Concurrent transfers share the links of a replica.
//!
//! A transfer alone takes the time of its flows on the fabric. With `k` transfers at its source and `l` at its destination
//! it has a share of 1 / max(k, l), and all transfers have no more than the rate at which the network carries those of all
//! replicas (processor sharing). It never exceeds the max–min fair rate.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use fabricast_topologies::Picos;

use super::request_source::Request;

/// Paths of transfers: replicas that send and receive, and the network between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::serve) struct TransferPaths {
    /// Replicas that send.
    pub sources: u64,
    /// Replicas that receive.
    pub destinations: u64,
    /// Number of transfers that the network carries at the rate of one alone.
    pub network: f64,
}

/// Time of the transfer of a request.
pub(in crate::serve) trait TransferTime {
    /// Returns the time after the prefill of so many prompt tokens until their keys and values have arrived, if no other
    /// request is transferred.
    fn exposed_time(&self, prompt: u64) -> Picos;
}

/// Transfer that has begun. Transfers are ordered by the progress of their path at which they end.
#[derive(Clone, Copy, Debug)]
struct ActiveTransfer {
    /// Progress of the path at the end of the transfer.
    end: f64,
    /// Position in the order of starts.
    position: u64,
    request: Request,
}

impl Ord for ActiveTransfer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.end.total_cmp(&other.end).then(self.position.cmp(&other.position))
    }
}

impl PartialOrd for ActiveTransfer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ActiveTransfer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ActiveTransfer {}

/// Transfers of a source to a destination, which have equal rates.
#[derive(Clone, Debug)]
struct TransferPath {
    source: u64,
    destination: u64,
    /// Time at the full rate that each transfer would have received since the path has transfers, in picoseconds.
    progress: f64,
    active: BinaryHeap<Reverse<ActiveTransfer>>,
}

impl TransferPath {
    /// Time at the full rate until a transfer ends, in picoseconds.
    fn remaining(&self) -> f64 {
        self.active.peek().map_or(f64::INFINITY, |Reverse(first)| (first.end - self.progress).max(0.0))
    }

    /// Removes the first transfer that has ended.
    fn pop_ended(&mut self) -> Option<ActiveTransfer> {
        if self.remaining() > 0.0 {
            return None;
        }
        self.active.pop().map(|Reverse(ended)| ended)
    }
}

/// Request whose keys and values have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeliveredRequest {
    pub request: Request,
    /// Time of the arrival of the last byte.
    pub delivery: Picos,
}

/// Transfers that have begun, and those that have ended.
///
/// All transfers of a path end in the order of their remaining times, whatever its rate (virtual time of processor
/// sharing). An event therefore needs time for each path with transfers, and not for each transfer.
#[derive(Clone, Debug)]
pub(super) struct TransferQueue {
    network: f64,
    /// Number of active transfers of each source.
    at_source: Vec<u64>,
    /// Number of active transfers of each destination.
    at_destination: Vec<u64>,
    /// Paths with active transfers.
    paths: Vec<TransferPath>,
    begun: u64,
    now: f64,
}

impl TransferQueue {
    pub(super) fn new(paths: TransferPaths) -> Self {
        let idle = |replicas: u64| vec![0; replicas.max(1) as usize];
        Self {
            network: paths.network,
            at_source: idle(paths.sources),
            at_destination: idle(paths.destinations),
            paths: Vec::new(),
            begun: 0,
            now: 0.0,
        }
    }

    /// Begins a transfer at `start`, which is not before the start of another. Replicas take requests in turn.
    pub(super) fn begin(&mut self, request: Request, start: Picos, time: Picos, delivered: &mut Vec<DeliveredRequest>) {
        self.run_until(start, delivered);
        let [source, destination] =
            [&self.at_source, &self.at_destination].map(|replicas| request.number % replicas.len() as u64);
        let known = self.paths.iter().position(|path| path.source == source && path.destination == destination);
        let index = known.unwrap_or_else(|| {
            self.paths.push(TransferPath { source, destination, progress: 0.0, active: BinaryHeap::new() });
            self.paths.len() - 1
        });
        if let Some(path) = self.paths.get_mut(index) {
            let end = path.progress + time.0 as f64;
            path.active.push(Reverse(ActiveTransfer { end, position: self.begun, request }));
        }
        self.begun += 1;
        self.count(source, destination, |active| active + 1);
    }

    /// Changes the numbers of active transfers of a source and a destination.
    fn count(&mut self, source: u64, destination: u64, changed: impl Fn(u64) -> u64) {
        let counts = [(&mut self.at_source, source), (&mut self.at_destination, destination)];
        for (replicas, replica) in counts {
            if let Some(active) = replicas.get_mut(replica as usize) {
                *active = changed(*active);
            }
        }
    }

    /// Simulates up to `now`, and adds the requests whose transfers end, in the order of their ends.
    pub(super) fn run_until(&mut self, now: Picos, delivered: &mut Vec<DeliveredRequest>) {
        let now = now.0 as f64;
        loop {
            self.deliver(delivered);
            if self.now >= now {
                return;
            }
            let rates = self.rates();
            let ends = self.paths.iter().zip(&rates).map(|(path, rate)| path.remaining() / rate);
            let next = ends.fold(f64::INFINITY, f64::min);
            let elapsed = next.min(now - self.now);
            let has_end = next <= elapsed;
            for (path, rate) in self.paths.iter_mut().zip(&rates) {
                let remaining = path.remaining();
                // Rounding leaves no remainder of a transfer that ends.
                let is_end = has_end && remaining / rate <= next;
                path.progress += if is_end { remaining } else { (elapsed * rate).min(remaining) };
                if let (true, Some(Reverse(first))) = (is_end, path.active.peek()) {
                    path.progress = path.progress.max(first.end);
                }
            }
            self.now = if has_end { self.now + elapsed } else { now };
        }
    }

    /// Removes the transfers that have ended, in the order in which they began.
    fn deliver(&mut self, delivered: &mut Vec<DeliveredRequest>) {
        let delivery = Picos(self.now.round() as u64);
        let mut ended = Vec::new();
        let mut paths = std::mem::take(&mut self.paths);
        for path in &mut paths {
            while let Some(transfer) = path.pop_ended() {
                self.count(path.source, path.destination, |active| active.saturating_sub(1));
                ended.push(transfer);
            }
        }
        paths.retain(|path| !path.active.is_empty());
        self.paths = paths;
        ended.sort_unstable_by_key(|transfer| transfer.position);
        delivered
            .extend(ended.into_iter().map(|ActiveTransfer { request, .. }| DeliveredRequest { request, delivery }));
    }

    /// Rate of each path's transfers, relative to that of one alone.
    fn rates(&self) -> Vec<f64> {
        let active: usize = self.paths.iter().map(|path| path.active.len()).sum();
        let network = self.network / active.max(1) as f64;
        let count = |replicas: &[u64], replica: u64| replicas.get(replica as usize).copied().unwrap_or(1).max(1);
        let rate = |path: &TransferPath| {
            let shared = count(&self.at_source, path.source).max(count(&self.at_destination, path.destination));
            (1.0 / shared as f64).min(network)
        };
        self.paths.iter().map(rate).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(number: u64) -> Request {
        Request { number, arrival: Picos(0), prompt: 1, output: 2, cached: 0 }
    }

    fn ends(paths: TransferPaths, transfers: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let (mut queue, mut delivered) = (TransferQueue::new(paths), Vec::new());
        for (number, &(start, time)) in (0..).zip(transfers) {
            queue.begin(request(number), Picos(start), Picos(time), &mut delivered);
        }
        queue.run_until(Picos(1 << 50), &mut delivered);
        delivered.iter().map(|one| (one.request.number, one.delivery.0)).collect()
    }

    /// Two transfers share a source, two a network, and two nothing.
    #[test]
    fn concurrent_transfers_share_links() {
        let paths = |sources, destinations, network| TransferPaths { sources, destinations, network };
        let transfers = [(0, 1000), (500, 1000)];
        assert_eq!(ends(paths(2, 2, 2.0), &transfers), [(0, 1000), (1, 1500)]);
        // The first half alone, the second at half the rate.
        assert_eq!(ends(paths(1, 2, 2.0), &transfers), [(0, 1500), (1, 2000)]);
        assert_eq!(ends(paths(2, 2, 1.0), &transfers), [(0, 1500), (1, 2000)]);
        assert_eq!(ends(paths(1, 1, 1.0), &[(0, 0), (0, 7)]), [(0, 0), (1, 7)]);
    }

    /// Processor sharing of one link: transfer `k` has ended when all have received its time, and shorter ones theirs.
    #[test]
    fn backlog_ends_as_in_the_closed_form() {
        let (count, paths) = (20_000, TransferPaths { sources: 1, destinations: 1, network: 1.0 });
        let transfers: Vec<(u64, u64)> = (1..=count).map(|time| (0, time)).collect();
        for (number, end) in ends(paths, &transfers) {
            let time = number + 1;
            let expected = time * (time + 1) / 2 + (count - time) * time;
            assert!(end.abs_diff(expected) <= 1, "{number}: {end} {expected}");
        }
        // Sources with 1/7 of the transfers are the bottleneck of equal ones, and a network with four at the full rate.
        let transfers = vec![(0, 1_000); 56 * 360];
        for (network, end) in [(8.0, 8 * 360 * 1_000), (4.0, 14 * 360 * 1_000)] {
            let ends = ends(TransferPaths { sources: 7, destinations: 8, network }, &transfers);
            assert_eq!(ends.len(), transfers.len());
            assert!(ends.iter().zip(0..).all(|(&found, number)| found.0 == number && found.1.abs_diff(end) <= 1));
        }
    }

    /// Ends of transfers by number, with the rate of each single one determined at every event.
    fn ends_of_single_transfers(paths: TransferPaths, transfers: &[(u64, u64)]) -> Vec<f64> {
        let mut left: Vec<f64> = transfers.iter().map(|transfer| transfer.1 as f64).collect();
        let (mut ends, mut now) = (vec![f64::NAN; transfers.len()], 0.0f64);
        while ends.iter().any(|end| end.is_nan()) {
            let is_active = |&number: &usize| transfers[number].0 as f64 <= now && ends[number].is_nan();
            let active: Vec<usize> = (0..transfers.len()).filter(is_active).collect();
            let shared = |number: usize, replicas: u64| {
                active.iter().filter(|&&other| (other as u64).abs_diff(number as u64).is_multiple_of(replicas)).count()
            };
            let rate = |&number: &usize| {
                let shared = shared(number, paths.sources).max(shared(number, paths.destinations));
                (1.0 / shared as f64).min(paths.network / active.len() as f64)
            };
            let rates: Vec<f64> = active.iter().map(rate).collect();
            let start = transfers.iter().map(|transfer| transfer.0 as f64 - now).filter(|&gap| gap > 0.0);
            let end = active.iter().zip(&rates).map(|(&number, rate)| left[number] / rate);
            let elapsed = start.chain(end).fold(f64::INFINITY, f64::min);
            now += elapsed;
            for (&number, rate) in active.iter().zip(&rates) {
                left[number] -= elapsed * rate;
                if left[number] <= 1e-6 {
                    ends[number] = now;
                }
            }
        }
        ends
    }

    /// Start and duration of transfers, from the gaps between their starts and their durations.
    fn with_starts(drawn: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
        let mut now = 0;
        let start = |(gap, time)| {
            now += gap;
            (now, time)
        };
        drawn.into_iter().map(start).collect()
    }

    proptest! {
        /// Paths share links as their single transfers do.
        #[test]
        fn ends_are_those_of_single_transfers(
            drawn in proptest::collection::vec((0u64..2_000, 1u64..3_000), 1..40),
            sources in 1u64..5,
            destinations in 1u64..5,
            network in 1.0..4.0f64,
        ) {
            let transfers = with_starts(drawn);
            let paths = TransferPaths { sources, destinations, network };
            let expected = ends_of_single_transfers(paths, &transfers);
            for (number, end) in ends(paths, &transfers) {
                prop_assert!((end as f64 - expected[number as usize]).abs() <= 1.0, "{number}: {end} {expected:?}");
            }
        }

        /// All transfers end, none faster than alone; a source is busy as long as it has transfers.
        #[test]
        fn transfers_are_conserved(
            drawn in proptest::collection::vec((0u64..5_000_000, 1u64..3_000_000), 1..40),
            sources in 1u64..4,
            destinations in 1u64..4,
            network in 1.0..4.0f64,
        ) {
            let transfers = with_starts(drawn);
            let ends = ends(TransferPaths { sources, destinations, network }, &transfers);
            prop_assert_eq!(ends.len(), transfers.len());
            prop_assert!(ends.is_sorted_by_key(|end| end.1));
            for &(number, end) in &ends {
                let (start, time) = transfers[number as usize];
                prop_assert!(end + 2 >= start + time, "{number}: {end}");
            }
            // One after the other on one link is the slowest order.
            let serial = transfers.iter().fold(0, |free, &(start, time)| start.max(free) + time);
            prop_assert!(ends.last().unwrap().1 <= serial + 2 * transfers.len() as u64);
        }
    }
}
