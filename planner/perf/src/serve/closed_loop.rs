//! Requests of a closed loop: each client sends its next request when the previous one has ended.
//!
//! The next step has then just begun, so a request waits for its end if other requests run. While it waits it is in no
//! step: if a request takes part in `S` steps and waits for `w`, then `c S / (S + w)` of the requests of `c` clients
//! run, and at most as many as the memory holds. The rate is that of these requests, or that at which clients send
//! requests if they are delayed for longer, by the host. The latency is the number of clients ÷ the rate (Little's
//! law): what exceeds the time in steps is waiting and queueing.
//!
//! The host works on a request while it waits for a step. If the host time of requests is spread evenly between 0 and
//! twice its mean `h`, and a step takes `W`, the next step that the request can join begins after `W`, or after
//! `h + W / 2` in the mean if `h` is long. The longer one is used. Steps are those of the requests that wait for steps
//! alone, as if `h` was 0.

use fabricast_topologies::Picos;

use super::steady_state::{Load, SteadyBatch};
use crate::time::share;

/// Steady state of the requests of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ClosedLoop {
    /// Number of clients; those of a batch of requests are its concurrent requests.
    pub clients: f64,
    /// Requests that run, or are queued for room in steps.
    pub load: Load,
    /// Steady state of their steps.
    pub batch: SteadyBatch,
    /// Steps that a request waits before the first one in which it takes part, 0 to 1.
    pub wait: f64,
}

impl ClosedLoop {
    /// Steady state without waiting: every request of the load runs or is queued for room in steps.
    pub fn without_wait(load: &Load, clients: f64, batch: SteadyBatch) -> Self {
        Self { clients, load: *load, batch, wait: 0.0 }
    }

    /// Computes the steady state of `clients`, whose requests wait for `wait` steps. `limit`: load with as many requests
    /// as the memory holds.
    pub fn new(limit: &Load, clients: f64, wait: f64) -> Self {
        let mut running = Self { wait, ..Self::without_wait(limit, clients, SteadyBatch::new(limit)) };
        // The number decreases from iteration to iteration, as fewer requests need no more chunks.
        for _ in 0..MAX_ITERATIONS {
            let steps = running.batch.chunks.ceil() + limit.output - 1.0;
            let requests = (clients * steps / (steps + wait)).min(running.load.requests).max(1.0);
            let change = running.load.requests - requests;
            running.load.requests = requests;
            running.batch = SteadyBatch::new(&running.load);
            if change <= clients * RELATIVE_CHANGE {
                break;
            }
        }
        running
    }

    /// Requests per second. `service`: time of a request in steps, with its queueing for room in them; `step`: mean step,
    /// and `prefill_step`: mean step with prefill; `host`: host time of a request outside of steps.
    pub fn rate(&self, service: Picos, step: Picos, prefill_step: Picos, host: Picos) -> f64 {
        let seconds = |time: Picos| time.0.max(1) as f64 / 1e12;
        let [wait, half] = [self.wait, self.wait / 2.0].map(|steps| share(step, steps));
        let delay = wait.max(host + half);
        // (A negative difference of times is 0.)
        let unqueued = service - share(prefill_step, self.batch.queued_steps());
        (self.load.requests / seconds(service)).min(self.clients / seconds(unqueued + delay))
    }
}

const MAX_ITERATIONS: u32 = 100;

/// Relative change below which a number of requests is final.
const RELATIVE_CHANGE: f64 = 1e-12;

#[cfg(test)]
mod tests {
    use super::super::steady_state::StartTimes;
    use super::*;
    use fabricast_workload::job::Batching;
    use proptest::prelude::*;

    /// Requests per step of `clients` whose requests take `steps` steps each, by stepping through a scheduler. A request
    /// that ends is replaced by one that misses the next step, unless no other request keeps the scheduler busy.
    fn simulated_rate(clients: usize, steps: u32) -> f64 {
        const TOTAL: u32 = 20_000;
        // Steps left, and whether the request waits. At the start the requests are spread over these states.
        let state = |client: usize| client as u32 * (steps + 1) / clients as u32;
        let mut requests: Vec<(u32, bool)> =
            (0..clients).map(state).map(|state| if state == 0 { (steps, true) } else { (state, false) }).collect();
        let mut ended = 0;
        for _ in 0..TOTAL {
            let is_idle = requests.iter().all(|&(_, waits)| waits);
            for (left, waits) in &mut requests {
                if *waits && !is_idle {
                    *waits = false;
                    continue;
                }
                *waits = false;
                *left -= 1;
                if *left == 0 {
                    (*left, *waits, ended) = (steps, true, ended + 1);
                }
            }
        }
        f64::from(ended) / f64::from(TOTAL)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn rates_are_those_of_a_scheduler(clients in 1usize..40, output in 1u32..60) {
            let load = Load {
                prompt: 1.0,
                output: f64::from(output),
                requests: clients as f64,
                budget: 1e6,
                start_times: StartTimes::Spread,
                batching: Batching::Mixed,
            };
            let wait = (load.requests - 1.0).min(1.0);
            let running = ClosedLoop::new(&load, load.requests, wait);
            let rate = running.load.requests / running.batch.steps();
            let expected = simulated_rate(clients, output);
            prop_assert!((rate / expected - 1.0).abs() < 0.02, "{rate} {expected} {running:?}");
        }

        /// Requests run, wait for a step, or are queued, and all of them together are those of the clients. Memory for one
        /// request more, or a client more, never lowers the rate.
        #[test]
        fn rates_follow_littles_law_and_increase(
            prompt in 1.0..20_000.0f64, output in 1u32..1000, clients in 1u32..500, fitting in 1u32..500, budget in 1.0..10_000.0f64,
            step in 1u64..1_000, host in 0u64..10_000,
        ) {
            let stream = |clients: u32, fitting: u32| {
                let requests = f64::from(fitting.min(clients));
                let load = Load { prompt, output: f64::from(output), requests, budget, start_times: StartTimes::Spread, batching: Batching::Mixed };
                ClosedLoop::new(&load, f64::from(clients), f64::from(clients - 1).min(1.0))
            };
            // Steps of equal time.
            let [step, host] = [step, host].map(|micros| Picos(micros * 1_000_000));
            let service = |stream: &ClosedLoop| share(step, stream.batch.steps() + stream.batch.wait_for_last_step);
            let rate = |stream: &ClosedLoop, host: Picos| stream.rate(service(stream), step, step, host);
            let one = stream(clients, fitting);
            let waiting = rate(&one, Picos::ZERO) * share(step, one.wait).0 as f64 / 1e12;
            let is_limited = one.load.requests >= f64::from(fitting.min(clients)) || one.batch.queued_steps() > 0.0;
            prop_assert!(is_limited || ((one.load.requests + waiting) / one.clients - 1.0).abs() < 1e-6, "{one:?} {waiting}");
            prop_assert!(one.load.requests + waiting <= one.clients * (1.0 + 1e-6) || one.batch.queued_steps() > 0.0);
            for host in [Picos::ZERO, host] {
                prop_assert!(rate(&stream(clients, fitting + 1), host) >= rate(&one, host) * (1.0 - 1e-6));
                prop_assert!(rate(&stream(clients + 1, fitting), host) >= rate(&one, host) * (1.0 - 1e-6));
            }
        }
    }
}
