//! Queues against closed forms, and against a simulation of every single step.

use proptest::prelude::*;

use super::request_source::Request;
use super::tandem::TandemQueue;
use super::*;
use fabricast_workload::job::{Batching, FirstToken, LengthDistribution, StepScheduling};

/// Step time that is linear in the tokens and in the tokens that they attend to, in picoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinearTime {
    pub step: u64,
    pub token: u64,
    pub context: u64,
}

impl StepTime for LinearTime {
    type Error = std::convert::Infallible;

    fn step_time(&self, step: &PlannedStep) -> Result<StepDuration, Self::Error> {
        let PlannedStep { tokens, context, .. } = step;
        let attended = tokens.decode * context.decode + tokens.prefill * context.prefill;
        let time = self.step + self.token * tokens.tokens() as u64 + (self.context as f64 * attended).round() as u64;
        Ok(StepDuration { idle: Picos(time), device: Picos(time), launch: Picos::ZERO })
    }
}

pub(super) fn one_stream(step_tokens: u64) -> StreamSetup {
    StreamSetup {
        streams: 1,
        group: 1,
        limits: StreamLimits { step_tokens, requests: 1000, cached_tokens: 1 << 40 },
        cached_prompt: CachedPrompt::Prefix(0.0),
        batching: Batching::Mixed,
        scheduler_steps: 1,
        scheduling: StepScheduling::Sequential,
        decode: DecodeStep { drafted: 0, yielded: 1.0 },
        delay: Picos::ZERO,
    }
}

pub(super) fn fixed(prompt: u64, output: u64, burstiness: f64) -> RequestVariation {
    let [prompt, output] = [prompt, output].map(LengthDistribution::fixed);
    RequestVariation { burstiness, prompt, output }
}

/// With one request per step, waiting is that of the queue M/D/1: ρ S / (2 (1 - ρ)) for a step of time S
/// (Pollaczek–Khinchine).
#[test]
fn one_request_per_step_waits_as_in_a_queue_of_equal_services() {
    let times = LinearTime { step: 1_000_000, token: 0, context: 0 };
    for load in [0.3, 0.6, 0.8] {
        let open_loop = OpenLoop { mean_gap: Picos((1e6 / load) as u64), requests: None, max_num_seqs: 1000 };
        let variation = fixed(100, 1, 1.0);
        let means = (0..20u64).map(|number| {
            let mut queue = RequestQueue::new(&times, one_stream(100));
            let source = RequestSource::new(&variation, open_loop.mean_gap, number);
            source.take(20_000).try_for_each(|request| queue.arrive(request)).unwrap();
            queue.drain().unwrap();
            RequestLatencies::new(&queue.finished).unwrap().ttft.unwrap().mean.0 as f64 / 20.0
        });
        let (mean, expected) = (means.sum::<f64>(), 1e6 * (1.0 + load / (2.0 * (1.0 - load))));
        assert!((mean / expected - 1.0).abs() < 0.03, "{load}: {mean} {expected}");
    }
}

/// Latencies of an endless stream are those of a long benchmark, whose start and end do not matter.
#[test]
fn steady_state_is_that_of_a_long_benchmark() {
    let times = LinearTime { step: 10_000_000, token: 20_000, context: 10 };
    let open_loop = OpenLoop { mean_gap: Picos(25_000_000), requests: None, max_num_seqs: 1000 };
    let lengths = LengthDistribution::new(vec![10, 60, 400]).unwrap();
    let variation = RequestVariation { burstiness: 1.0, prompt: lengths.clone(), output: lengths };
    let steady = simulate_steady_state(RequestQueue::new(&times, one_stream(256)), &variation, &open_loop, 40).unwrap();
    let long =
        simulate_benchmark(|| RequestQueue::new(&times, one_stream(256)), &variation, &open_loop, 50_000).unwrap();
    assert!((long.requests_per_s * 25e-6 - 1.0).abs() < 0.02, "{}", long.requests_per_s);
    let [steady, long] = [&steady.times, &long.times].map(|times| RequestLatencies::new(times).unwrap());
    assert!(steady.latency.mean.0.abs_diff(long.latency.mean.0) < long.latency.mean.0 / 10, "{steady:?} {long:?}");
}

/// A burst of requests at one instant ends, and a machine that serves fewer requests than arrive is recognized.
#[test]
fn overload_is_recognized() {
    let times = LinearTime { step: 1_000_000, token: 0, context: 0 };
    let simulated = |load: f64, burstiness: f64| {
        let open_loop = OpenLoop { mean_gap: Picos((1e6 / load) as u64), requests: None, max_num_seqs: 1000 };
        let variation = fixed(100, 1, burstiness);
        simulate_steady_state(RequestQueue::new(&times, one_stream(100)), &variation, &open_loop, 40).unwrap()
    };
    assert!(!simulated(0.9, 1.0).is_overloaded && !simulated(0.5, 0.01).is_overloaded);
    let over = simulated(1.2, 1.0);
    assert!(over.is_overloaded && (over.requests_per_s * 1e-6 - 1.0).abs() < 0.02, "{}", over.requests_per_s);
}

/// Replicas with concurrent steps wait for the one with most tokens.
#[test]
fn replicas_of_a_group_wait_for_the_most_loaded() {
    let times = LinearTime { step: 0, token: 1_000, context: 0 };
    let latencies = |group: usize| {
        let setup = StreamSetup { streams: 2, group, ..one_stream(1000) };
        let mut queue = RequestQueue::new(&times, setup);
        queue.arrive(Request { number: 0, arrival: Picos(0), prompt: 10, output: 1, cached: 0 }).unwrap();
        queue.arrive(Request { number: 1, arrival: Picos(0), prompt: 500, output: 1, cached: 0 }).unwrap();
        queue.arrive(Request { number: 2, arrival: Picos(5), prompt: 20, output: 1, cached: 0 }).unwrap();
        queue.drain().unwrap();
        let mut ends: Vec<(u64, u64)> =
            queue.finished.iter().map(|times| (times.request.prompt, times.end.0)).collect();
        ends.sort_unstable();
        ends
    };
    assert_eq!(latencies(1), [(10, 10_000), (20, 30_000), (500, 500_000)]);
    // The second request arrives while the step of the first runs, and the third goes to the first replica.
    assert_eq!(latencies(2), [(10, 10_000), (20, 510_000), (500, 510_000)]);
}

/// Transfers of a fixed time per token.
struct LinearTransfer(u64);

impl TransferTime for LinearTransfer {
    fn exposed_time(&self, prompt: u64) -> Picos {
        Picos(self.0 * prompt)
    }
}

/// First tokens and ends of requests that pass through prefill and decode on streams of their own.
fn tandem(requests: &[Request], times: &LinearTime, transfer: u64, first_token: FirstToken) -> Vec<RequestTimes> {
    let transfer = LinearTransfer(transfer);
    let paths = TransferPaths { sources: 1, destinations: 1, network: 1.0 };
    let links = TandemTransfers { paths, time: &transfer, first_token };
    let cached_prompt = if first_token == FirstToken::Decode { CachedPrompt::AllButLast } else { CachedPrompt::Whole };
    let decode = StreamSetup { cached_prompt, ..one_stream(64) };
    let mut queue = TandemQueue::new(RequestQueue::new(times, one_stream(64)), links, RequestQueue::new(times, decode));
    requests.iter().try_for_each(|&request| queue.arrive(request)).unwrap();
    queue.drain().unwrap();
    queue.finished().to_vec()
}

/// A prompt of 10 tokens needs a step of 1 ns, its transfer 2 ns, and each of the four decode steps 1 ns.
#[test]
fn time_of_a_lone_request_is_that_of_prefill_transfer_and_decode() {
    let times = LinearTime { step: 1000, token: 0, context: 0 };
    let request = Request { number: 0, arrival: Picos(500), prompt: 10, output: 5, cached: 0 };
    let found = |first_token| {
        let [times] = tandem(&[request], &times, 200, first_token)[..] else { panic!() };
        assert_eq!(times.request, request);
        (times.first_token.unwrap().0, times.end.0)
    };
    assert_eq!(found(FirstToken::Prefill), (1500, 7500));
    assert_eq!(found(FirstToken::Transfer), (3500, 7500));
    assert_eq!(found(FirstToken::Decode), (4500, 8500));
    let one_token = Request { output: 1, ..request };
    assert_eq!(tandem(&[one_token], &times, 200, FirstToken::Transfer)[0].end, Picos(3500));
}

/// Requests from the gaps between their arrivals and their numbers of prompt and output tokens.
fn with_arrivals(drawn: Vec<(u64, u64, u64)>) -> Vec<Request> {
    let mut now = 0;
    let request = |((gap, prompt, output), number)| {
        now += gap;
        Request { number, arrival: Picos(now), prompt, output, cached: 0 }
    };
    drawn.into_iter().zip(0..).map(request).collect()
}

proptest! {
    /// Each request ends once, after its prefill, its transfer and its decode steps; a slower network makes no first token
    /// earlier.
    #[test]
    fn requests_pass_through_both_pools(
        drawn in proptest::collection::vec((0u64..200_000, 1u64..200, 1u64..40), 1..30),
        (step, token) in (1u64..20_000, 0u64..500),
        transfer in 0u64..2_000,
        first_token in prop_oneof![Just(FirstToken::Prefill), Just(FirstToken::Transfer), Just(FirstToken::Decode)],
    ) {
        let requests = with_arrivals(drawn);
        let times = LinearTime { step, token, context: 0 };
        let mut found = tandem(&requests, &times, transfer, first_token);
        prop_assert!(found.is_sorted_by_key(|times| times.end) || first_token != FirstToken::Decode);
        found.sort_by_key(|times| times.request.number);
        prop_assert_eq!(found.iter().map(|times| times.request).collect::<Vec<_>>(), requests.clone());
        for RequestTimes { request, first_token: first, end } in &found {
            let prefill = step * request.prompt.div_ceil(64) + token * request.prompt;
            let (prefilled, delivered) = (request.arrival.0 + prefill, request.arrival.0 + prefill + transfer * request.prompt);
            let steps = request.output - u64::from(first_token != FirstToken::Decode);
            let bound = if first_token == FirstToken::Prefill { prefilled } else { delivered };
            prop_assert!(first.unwrap().0 + 2 >= bound);
            let has_decode = steps > 0;
            prop_assert!(!has_decode || end.0 + 2 >= delivered + steps * step);
        }
        let mut slower = tandem(&requests, &times, transfer + 500, first_token);
        slower.sort_by_key(|times| times.request.number);
        for (fast, slow) in found.iter().zip(&slower) {
            prop_assert!(slow.first_token >= fast.first_token || first_token == FirstToken::Decode, "{fast:?} {slow:?}");
        }
    }
}

/// Request of the oracle: prompt tokens left, output tokens, tokens that exist.
struct OracleRequest {
    number: usize,
    prompt: u64,
    left: u64,
    output: u64,
    generated: u64,
}

/// Times of the first and last token of each request, by simulating every step of one stream.
fn every_step(requests: &[Request], setup: StreamSetup, times: LinearTime) -> Vec<(u64, u64)> {
    let StreamLimits { step_tokens: room, requests: seats, .. } = setup.limits;
    let mut result = vec![(0, 0); requests.len()];
    let (mut now, mut next, mut running) = (0u64, 0usize, Vec::<OracleRequest>::new());
    // Requests that arrive up to then are known when the next step is planned.
    let mut known = 0;
    loop {
        if running.is_empty() {
            match requests.get(next) {
                None => return result,
                Some(request) if request.arrival.0 > known => {
                    now = now.max(request.arrival.0);
                    known = now;
                }
                Some(_) => {}
            }
        }
        let start = now;
        let mut tokens = room;
        let mut shares: Vec<u64> = Vec::new();
        // Prompts alone, if there are any.
        let arrived =
            requests.get(next).is_some_and(|request| request.arrival.0 <= known) && running.len() < seats as usize;
        let alone =
            setup.batching == Batching::PrefillFirst && (arrived || running.iter().any(|request| request.left > 0));
        for request in &running {
            let decode = if alone { 0 } else { 1.min(tokens) };
            let share = if request.left > 0 { request.left.min(tokens) } else { decode };
            tokens -= share;
            shares.push(share);
        }
        while tokens > 0 && running.len() < seats as usize && next < requests.len() && requests[next].arrival.0 <= known
        {
            let Request { prompt, output, .. } = requests[next];
            let share = prompt.min(tokens);
            tokens -= share;
            shares.push(share);
            running.push(OracleRequest { number: next, prompt, left: prompt, output, generated: 0 });
            next += 1;
        }
        let attended = running.iter().zip(&shares).map(|(request, &share)| match request.left {
            0 => share * (request.prompt + request.generated),
            left => (1..=share).map(|index| request.prompt - left + index).sum(),
        });
        now += times.step + times.token * (room - tokens) + times.context * attended.sum::<u64>();
        for (request, &share) in running.iter_mut().zip(&shares) {
            if request.left > 0 {
                request.left -= share;
                if request.left == 0 {
                    request.generated = 1;
                    result[request.number].0 = now;
                }
            } else {
                request.generated += share;
            }
            if request.left == 0 && request.generated >= request.output {
                result[request.number].1 = now;
            }
        }
        running.retain(|request| request.left > 0 || request.generated < request.output);
        known = if setup.scheduling == StepScheduling::Overlapped { start } else { now };
    }
}

/// Two prompts take the steps to 2 µs, and groups of ten steps follow. A request that has its tokens in two steps ends with
/// the first group, and one that arrives at 14.5 µs has its first token in the step after the second.
#[test]
fn requests_start_and_end_between_groups_of_steps() {
    let times = LinearTime { step: 1_000_000, token: 0, context: 0 };
    let mut queue = RequestQueue::new(&times, StreamSetup { scheduler_steps: 10, ..one_stream(1000) });
    for (number, arrival, output) in [(0, 0, 4), (1, 0, 1000), (2, 14_500_000, 1)] {
        queue.arrive(Request { number, arrival: Picos(arrival), prompt: 100, output, cached: 0 }).unwrap();
    }
    queue.drain().unwrap();
    let end = |number: u64| queue.finished.iter().find(|times| times.request.number == number).unwrap().end;
    assert_eq!([end(0), end(2)], [Picos(12_000_000), Picos(23_000_000)]);
}

proptest! {
    /// Runs of equal steps end as if each step was simulated.
    #[test]
    fn runs_of_steps_equal_single_steps(
        drawn in proptest::collection::vec((0u64..2_000_000, 1u64..200, 1u64..60), 1..40),
        room in 1u64..120,
        seats in 1u64..12,
        (step, token, context) in (1u64..50_000, 0u64..1_000, 0u64..10),
        batching in prop_oneof![Just(Batching::Mixed), Just(Batching::PrefillFirst)],
        scheduling in prop_oneof![Just(StepScheduling::Sequential), Just(StepScheduling::Overlapped)],
    ) {
        let requests = with_arrivals(drawn);
        let times = LinearTime { step, token, context };
        let limits = StreamLimits { step_tokens: room, requests: seats, cached_tokens: 1 << 40 };
        let setup = StreamSetup { limits, batching, scheduling, ..one_stream(room) };
        let mut queue = RequestQueue::new(&times, setup);
        requests.iter().try_for_each(|&request| queue.arrive(request)).unwrap();
        queue.drain().unwrap();
        let expected = every_step(&requests, setup, times);
        let mut found: Vec<(u64, (u64, u64))> = queue
            .finished
            .iter()
            .map(|times| (times.request.arrival.0, (times.first_token.unwrap().0, times.end.0)))
            .collect();
        let mut expected: Vec<(u64, (u64, u64))> =
            requests.iter().map(|request| request.arrival.0).zip(expected).collect();
        found.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
    }
}
