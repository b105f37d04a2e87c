//! Queue of transfers of keys and values from prefill to decode. Concurrent transfers share the links of a replica.
//!
//! A transfer alone takes the time of its flows on the fabric. With `k` transfers at its source and `l` at its destination
//! it has a share of 1 / max(k, l), and all transfers have no more than the rate at which the network carries those of all
//! replicas (processor sharing). It never exceeds the max–min fair rate.

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

/// Transfer that has begun.
#[derive(Clone, Copy, Debug)]
struct ActiveTransfer {
    request: Request,
    source: u64,
    destination: u64,
    /// Remaining time at the full rate, in picoseconds.
    remaining: f64,
}

/// Request whose keys and values have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeliveredRequest {
    pub request: Request,
    /// Time of the arrival of the last byte.
    pub delivery: Picos,
}

/// Transfers that have begun, and those that have ended.
#[derive(Clone, Debug)]
pub(super) struct TransferQueue {
    paths: TransferPaths,
    active: Vec<ActiveTransfer>,
    now: f64,
}

impl TransferQueue {
    pub(super) fn new(paths: TransferPaths) -> Self {
        Self { paths, active: Vec::new(), now: 0.0 }
    }

    /// Begins a transfer at `start`, which is not before the start of another. Replicas take requests in turn.
    pub(super) fn begin(&mut self, request: Request, start: Picos, time: Picos, delivered: &mut Vec<DeliveredRequest>) {
        self.run_until(start, delivered);
        let [source, destination] =
            [self.paths.sources, self.paths.destinations].map(|replicas| request.number % replicas.max(1));
        self.active.push(ActiveTransfer { request, source, destination, remaining: time.0 as f64 });
    }

    /// Simulates up to `now`, and adds the requests whose transfers end, in the order of their ends.
    pub(super) fn run_until(&mut self, now: Picos, delivered: &mut Vec<DeliveredRequest>) {
        let now = now.0 as f64;
        while self.now < now || self.active.iter().any(|transfer| transfer.remaining <= 0.0) {
            let rates = self.rates();
            let ends = self.active.iter().zip(&rates).map(|(transfer, rate)| transfer.remaining / rate);
            let next = ends.fold(f64::INFINITY, f64::min).max(0.0);
            let elapsed = next.min((now - self.now).max(0.0));
            let has_end = next <= elapsed;
            for (transfer, rate) in self.active.iter_mut().zip(&rates) {
                let left = transfer.remaining - elapsed * rate;
                // Rounding leaves no remainder of a transfer that ends.
                transfer.remaining = if has_end && transfer.remaining / rate <= next { 0.0 } else { left.max(0.0) };
            }
            self.now = if has_end { self.now + elapsed } else { now.max(self.now) };
            let delivery = Picos(self.now.round() as u64);
            self.active.retain(|&ActiveTransfer { request, remaining, .. }| {
                if remaining <= 0.0 {
                    delivered.push(DeliveredRequest { request, delivery });
                }
                remaining > 0.0
            });
        }
    }

    /// Rate of each transfer, relative to that of one alone.
    fn rates(&self) -> Vec<f64> {
        let count = |shares: &dyn Fn(&ActiveTransfer) -> bool| self.active.iter().filter(|one| shares(one)).count();
        let network = self.paths.network / self.active.len().max(1) as f64;
        let rate = |one: &ActiveTransfer| {
            let at_source = count(&|other| other.source == one.source);
            let at_destination = count(&|other| other.destination == one.destination);
            (1.0 / at_source.max(at_destination) as f64).min(network)
        };
        self.active.iter().map(rate).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(number: u64) -> Request {
        Request { number, arrival: Picos(0), prompt: 1, output: 2 }
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

    proptest! {
        /// All transfers end, none faster than alone; a source is busy as long as it has transfers.
        #[test]
        fn transfers_are_conserved(
            drawn in proptest::collection::vec((0u64..5_000_000, 1u64..3_000_000), 1..40),
            sources in 1u64..4,
            destinations in 1u64..4,
            network in 1.0..4.0f64,
        ) {
            let mut now = 0;
            let transfers: Vec<(u64, u64)> = drawn
                .into_iter()
                .map(|(gap, time)| {
                    now += gap;
                    (now, time)
                })
                .collect();
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
