//! Requests of a closed loop: each client sends its next request when the previous one has ended.
//!
//! The next step has then just begun, so a request waits for its end if other requests run. While it waits it is in no
//! step: if a request takes part in `S` steps and waits for `w`, then `c S / (S + w)` of `c` requests run. Requests that
//! are queued because steps are full wait anyway: if `c / (S + w)` requests per step exceed what steps have room for,
//! all of them run or are queued, and none waits in addition.

use super::steady_state::{Load, SteadyBatch};

/// Steady state of the requests of a closed loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ClosedLoop {
    /// Requests that run or are queued.
    pub load: Load,
    /// Steady state of their steps.
    pub batch: SteadyBatch,
    /// Steps that a request waits before the first one in which it takes part, 0 to 1.
    pub wait: f64,
}

impl ClosedLoop {
    /// Computes the steady state of the `load` of all requests, of which `group` start together.
    pub fn new(load: &Load, group: f64) -> Self {
        let all = Self { load: *load, batch: SteadyBatch::new(load), wait: 0.0 };
        let wait = (load.requests - group).clamp(0.0, 1.0);
        let mut running = Self { wait, ..all };
        // The number decreases from step to step, as fewer requests need no more chunks.
        for _ in 0..MAX_ITERATIONS {
            let steps = running.batch.chunks + load.output - 1.0;
            let requests = (load.requests * steps / (steps + wait)).max(1.0);
            let change = running.load.requests - requests;
            running.load.requests = requests;
            running.batch = SteadyBatch::new(&running.load);
            if change <= load.requests * RELATIVE_CHANGE {
                break;
            }
        }
        let is_queued = running.batch.steps_to_first_token > running.batch.chunks * (1.0 + RELATIVE_CHANGE);
        if is_queued { all } else { running }
    }
}

const MAX_ITERATIONS: u32 = 100;

/// Relative change below which a number of requests is final.
const RELATIVE_CHANGE: f64 = 1e-12;

#[cfg(test)]
mod tests {
    use super::super::steady_state::StartTimes;
    use super::*;
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
            };
            let running = ClosedLoop::new(&load, 1.0);
            let rate = running.load.requests / running.batch.steps();
            let expected = simulated_rate(clients, output);
            prop_assert!((rate / expected - 1.0).abs() < 0.02, "{rate} {expected} {running:?}");
        }

        /// Fewer requests run than there are, and they and the waiting ones are all.
        #[test]
        fn requests_run_wait_or_are_queued(
            prompt in 1.0..20_000.0f64, output in 1.0..1000.0f64, requests in 1.0..500.0f64, budget in 1.0..10_000.0f64,
        ) {
            let load = Load { prompt, output, requests, budget, start_times: StartTimes::Spread };
            let running = ClosedLoop::new(&load, 1.0);
            let waiting = running.load.requests / running.batch.steps() * running.wait;
            let sum = running.load.requests + waiting;
            prop_assert!((sum / requests - 1.0).abs() < 1e-9 && running.load.requests >= 1.0, "{running:?} {waiting}");
        }
    }
}
