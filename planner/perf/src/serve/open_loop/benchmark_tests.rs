//! Benchmarks of a number of clients, and steps that are planned while others run.

use proptest::prelude::*;

use super::client_benchmark::{ClientLoad, run_benchmark};
use super::queue::StepDuration;
use super::request_source::{Request, shuffled_lengths};
use super::tests::{LinearTime, fixed, one_stream};
use super::*;
use fabricast_workload::job::{Batching, LengthDistribution, StepScheduling};

const MICROSECOND: u64 = 1_000_000;

/// Steps of 1 µs on the GPUs, whose prefill the host launches in `launch`.
struct LaunchedTime {
    launch: Picos,
}

impl StepTime for LaunchedTime {
    type Error = std::convert::Infallible;

    fn step_time(&self, step: &PlannedStep) -> Result<StepDuration, Self::Error> {
        let launch = if step.tokens.prefill > 0.0 { self.launch } else { Picos::ZERO };
        Ok(StepDuration { idle: launch.max(Picos(MICROSECOND)), device: Picos(MICROSECOND), launch })
    }
}

/// Times of the first token and of the end of the second request, in nanoseconds. The first request decodes alone after
/// its launch, in steps of 1 µs; the second one arrives at 10.5 µs.
fn second_request(scheduling: StepScheduling, launch: Picos) -> (u64, u64) {
    let times = LaunchedTime { launch };
    let setup = StreamSetup { batching: Batching::PrefillFirst, scheduling, ..one_stream(1000) };
    let mut queue = RequestQueue::new(&times, setup);
    queue.arrive(Request { number: 0, arrival: Picos::ZERO, prompt: 100, output: 1000, cached: 0 }).unwrap();
    queue
        .arrive(Request { number: 1, arrival: Picos(21 * MICROSECOND / 2), prompt: 100, output: 3, cached: 0 })
        .unwrap();
    queue.drain().unwrap();
    let found = queue.finished.iter().find(|times| times.request.number == 1).unwrap();
    (found.first_token.unwrap().0 / 1000, found.end.0 / 1000)
}

/// The prompt of a request that arrives at 10.5 µs is computed from 11 µs on, or from 12 µs on if the step up to then is
/// planned already.
#[test]
fn overlapped_scheduling_delays_a_prompt_by_a_step() {
    assert_eq!(second_request(StepScheduling::Sequential, Picos(MICROSECOND)), (12_000, 14_000));
    assert_eq!(second_request(StepScheduling::Overlapped, Picos(MICROSECOND)), (13_000, 15_000));
}

/// A launch of 4 µs begins at 11 µs, and ends at 15 µs, or begins when the step up to 12 µs has ended.
#[test]
fn launches_overlap_with_the_step_before() {
    let launch = Picos(4 * MICROSECOND);
    assert_eq!(second_request(StepScheduling::Sequential, launch), (15_000, 17_000));
    assert_eq!(second_request(StepScheduling::Overlapped, launch), (15_000, 17_000));
    assert_eq!(second_request(StepScheduling::OverlappedDecode, launch), (16_000, 18_000));
}

/// The host processes the first token of a prompt when it has launched the next prompt: at 4 µs, in 4 µs.
#[test]
fn first_tokens_wait_for_the_launch_of_the_next_prompt() {
    let times = LaunchedTime { launch: Picos(4 * MICROSECOND) };
    let first_tokens = |scheduling| {
        let setup = StreamSetup { batching: Batching::PrefillFirst, scheduling, ..one_stream(100) };
        let mut queue = RequestQueue::new(&times, setup);
        for number in 0..2 {
            queue.arrive(Request { number, arrival: Picos::ZERO, prompt: 100, output: 1, cached: 0 }).unwrap();
        }
        queue.drain().unwrap();
        queue.finished.iter().map(|times| times.first_token.unwrap().0 / MICROSECOND).collect::<Vec<u64>>()
    };
    assert_eq!(first_tokens(StepScheduling::Sequential), [4, 8]);
    assert_eq!(first_tokens(StepScheduling::Overlapped), [8, 8]);
}

fn lengths(quantiles: Vec<u64>) -> LengthDistribution {
    LengthDistribution::new(quantiles).unwrap()
}

/// One client has one request after the other: each needs a step of 1 µs for its prompt and one for each later token.
#[test]
fn requests_of_one_client_are_in_sequence() {
    let times = LinearTime { step: MICROSECOND, token: 0, context: 0 };
    let load = ClientLoad { clients: 1, requests: 10, cached: 0 };
    let delay = Picos(500_000);
    for scheduling in [StepScheduling::Sequential, StepScheduling::Overlapped] {
        let setup = StreamSetup { delay, scheduling, ..one_stream(1000) };
        let finished = run_benchmark(RequestQueue::new(&times, setup), &fixed(100, 7, 1.0), load, 0).unwrap();
        let ends: Vec<Picos> = finished.iter().map(|times| times.end).collect();
        let expected: Vec<Picos> = (1..=10).map(|number| Picos(number * 7_500_000)).collect();
        assert_eq!(ends, expected);
        assert!(finished.iter().all(|times| times.first_token == Some(times.request.arrival + Picos(1_500_000))));
    }
}

/// Of four clients with equal requests, the first prompt is computed alone, and those of the others in the next step. A
/// request ends after ten steps of its own and the prompts of the other group in one step; its successor arrives then.
#[test]
fn equal_requests_stay_in_groups() {
    let times = LinearTime { step: MICROSECOND, token: 0, context: 0 };
    let setup = StreamSetup { batching: Batching::PrefillFirst, ..one_stream(1000) };
    let load = ClientLoad { clients: 4, requests: 8, cached: 0 };
    let finished = run_benchmark(RequestQueue::new(&times, setup), &fixed(100, 10, 1.0), load, 0).unwrap();
    let first_tokens: Vec<u64> = finished.iter().map(|times| times.first_token.unwrap().0 / MICROSECOND).collect();
    assert_eq!(first_tokens, [1, 2, 2, 2, 12, 13, 13, 13]);
    let ends: Vec<u64> = finished.iter().map(|times| times.end.0 / MICROSECOND).collect();
    assert_eq!(ends, [11, 11, 11, 11, 22, 22, 22, 22]);
}

/// Of a prompt in the prefix cache only the last token is computed: with 1 ns a token, the first two of four prompts need
/// 1 µs and 1 ns, the others 1.1 µs, and the decode step after each 1.001 µs.
#[test]
fn cached_requests_compute_one_token() {
    let times = LinearTime { step: MICROSECOND, token: 1_000, context: 0 };
    let load = ClientLoad { clients: 1, requests: 4, cached: 2 };
    let finished = run_benchmark(RequestQueue::new(&times, one_stream(1000)), &fixed(100, 2, 1.0), load, 0).unwrap();
    let first_tokens: Vec<u64> =
        finished.iter().map(|times| (times.first_token.unwrap() - times.request.arrival).0).collect();
    assert_eq!(first_tokens, [1_001_000, 1_001_000, 1_100_000, 1_100_000]);
}

/// Lengths of a benchmark are equally spaced quantiles, in an order of their own for each seed.
#[test]
fn lengths_are_quantiles_in_random_order() {
    let variation =
        RequestVariation { burstiness: 1.0, prompt: lengths(vec![1, 1001]), output: lengths(vec![10, 20, 100]) };
    let drawn = shuffled_lengths(&variation, 100, 3);
    assert_ne!(drawn, shuffled_lengths(&variation, 100, 4));
    assert_eq!(drawn, shuffled_lengths(&variation, 100, 3));
    let mut prompts: Vec<u64> = drawn.iter().map(|lengths| lengths.prompt).collect();
    assert!(!prompts.is_sorted());
    prompts.sort_unstable();
    assert_eq!(prompts, (0..100).map(|index| 6 + 10 * index).collect::<Vec<u64>>());
}

proptest! {
    /// Every request ends once, each client has one request at a time, and a request after the first ones is sent when
    /// another ends.
    #[test]
    fn each_client_has_one_request_at_a_time(
        (clients, requests) in (1u64..20, 1u64..80),
        prompts in (1u64..200, 0u64..300),
        outputs in (1u64..30, 0u64..60),
        (step, token, delay) in (1u64..50_000, 0u64..1_000, 0u64..100_000),
        batching in prop_oneof![Just(Batching::Mixed), Just(Batching::PrefillFirst)],
        scheduling in prop_oneof![Just(StepScheduling::Sequential), Just(StepScheduling::Overlapped)],
        streams in 1usize..3,
    ) {
        let times = LinearTime { step, token, context: 0 };
        let setup = StreamSetup { streams, batching, scheduling, delay: Picos(delay), ..one_stream(128) };
        let distribution = |(min, more): (u64, u64)| lengths(vec![min, min + more]);
        let variation = RequestVariation { burstiness: 1.0, prompt: distribution(prompts), output: distribution(outputs) };
        let load = ClientLoad { clients, requests, cached: 0 };
        let finished = run_benchmark(RequestQueue::new(&times, setup), &variation, load, 7).unwrap();
        let mut numbers: Vec<u64> = finished.iter().map(|times| times.request.number).collect();
        numbers.sort_unstable();
        prop_assert_eq!(numbers, (0..requests).collect::<Vec<u64>>());
        let mut arrivals: Vec<Picos> = finished.iter().map(|times| times.request.arrival).collect();
        arrivals.sort_unstable();
        let mut ends: Vec<Picos> = finished.iter().map(|times| times.end).collect();
        ends.sort_unstable();
        let first = clients.min(requests) as usize;
        prop_assert!(arrivals.iter().take(first).all(|arrival| *arrival == Picos::ZERO));
        prop_assert_eq!(&arrivals[first..], &ends[..arrivals.len() - first]);
        for RequestTimes { request, first_token, end } in &finished {
            prop_assert!(first_token.unwrap() >= request.arrival + Picos(delay + step));
            prop_assert!(*end >= first_token.unwrap() + Picos(step * (request.output - 1)));
        }
    }
}
