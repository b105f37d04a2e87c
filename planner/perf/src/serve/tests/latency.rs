//! Tests of the time to first token: host time of the software, requests that wait for memory, and requests of equal
//! length.

use fabricast_topologies::Bytes;
use fabricast_workload::job::Lengths;

use super::*;

fn service(job: &Serving, loaded: &LoadedServing<'_>) -> Service {
    let flat = FlatCosts(300e9);
    let costs = StepCosts { speeds: &H100, curve: &Efficiency::default(), collective_costs: &flat };
    simulate_service(loaded, &specified_layout(job), &costs).unwrap().1
}

fn alone(host: HostTimes) -> Service {
    let job = Serving { host, ..served("concurrency = 1\nprompt_tokens = 100\n") };
    service(&job, &loaded(&job))
}

/// The time of a short prompt is the time that the host needs for its 80 layers, and each request adds its host time
/// outside of steps; decoding is one CUDA graph.
#[test]
fn ttft_of_a_short_prompt_is_host_time() {
    let ms = |milliseconds: u64| Picos(milliseconds * 1_000_000_000);
    let without = alone(HostTimes::default());
    let with = alone(HostTimes { request: ms(7), prefill_layer: ms(2), ..HostTimes::default() });
    let outside_layers = without.ttft.unwrap();
    assert!(with.ttft.unwrap() > ms(167) && with.ttft.unwrap() < ms(167) + outside_layers, "{with:?} {without:?}");
    // Throughput of a closed loop with one request.
    assert!((with.tokens_per_s * with.latency.0 as f64 / 1e12 / 500.0 - 1.0).abs() < 1e-6, "{with:?}");
    assert_eq!(with.tpot, without.tpot);
    // If the host is faster than the GPU, its time is hidden.
    let hidden = alone(HostTimes { prefill_layer: Picos(1), ..HostTimes::default() });
    assert_eq!(hidden.ttft, without.ttft);
    // The host time between steps is added to each step.
    let slow = alone(HostTimes { step: ms(3), ..HostTimes::default() });
    assert_eq!((slow.ttft, slow.tpot), (without.ttft.map(|time| time + ms(3)), without.tpot.map(|time| time + ms(3))));
}

/// The memory holds a part of the requests. The other requests wait for the time in which they are served at the rate
/// of the running ones (Little's law). The next one starts when another ends, so none waits for a step in addition.
#[test]
fn requests_beyond_the_memory_wait() {
    let job = served("concurrency = 400\n");
    let layout = specified_layout(&job);
    let full = job.with_concurrency(&layout, Some(Bytes(40_000_000_000).into()));
    let running = full.concurrent_requests;
    assert!((50..350).contains(&running) && full.waiting_requests() == 400 - running, "{running}");
    let unqueued = served(&format!("concurrency = {running}\n"));
    let (queued, alone) = (service(&job, &full), service(&unqueued, &loaded(&unqueued)));
    let gain = queued.tokens_per_s / alone.tokens_per_s;
    assert!((1.0 + 1e-4..1.0 + 1.0 / 500.0).contains(&gain), "{gain}");
    let requests = queued.tokens_per_s / 500.0 * queued.latency.0 as f64 / 1e12;
    assert!((requests / 400.0 - 1.0).abs() < 1e-6, "{requests}");
}

/// The host works for each request of a step. Without pipeline stages this is hidden behind the GPU; with stages, each
/// stage waits for it.
#[test]
fn host_time_of_requests_is_hidden_without_pipeline_stages() {
    let tpot = |parallel: &str, micros: u64| {
        let job = served(&format!("concurrency = 200\nprompt_tokens = 100\nparallel = {{ {parallel} }}\n"));
        let host = HostTimes { step_request: Picos(micros * 1_000_000), ..HostTimes::default() };
        let job = Serving { host, ..job };
        service(&job, &loaded(&job)).tpot.unwrap()
    };
    assert_eq!(tpot("tp = 8", 0), tpot("tp = 8", 10));
    // 200 requests of a step at 1 ms each.
    let slow = tpot("tp = 8", 1000);
    assert!(slow > Picos(199_000_000_000) && slow < Picos(202_000_000_000), "{slow:?}");
    // Two streams of 100 requests: both stages work on both streams, in turn.
    let [without, with] = [0, 10].map(|micros| tpot("tp = 4, pp = 2", micros));
    let added = (with - without).us() / (2.0 * 100.0 * 10.0);
    assert!((0.98..1.02).contains(&added), "{added}");
}

/// Requests of equal length start in groups that share a step of prefill; requests of varied length wait for a step.
#[test]
fn equal_lengths_share_the_step_of_prefill() {
    let job = |lengths: Lengths, concurrency: u32| Serving {
        lengths,
        ..served(&format!("concurrency = {concurrency}\nprompt_tokens = 500\n"))
    };
    let ttft = |lengths: Lengths, concurrency: u32| {
        let job = job(lengths, concurrency);
        service(&job, &loaded(&job)).ttft.unwrap().0 as f64
    };
    assert_eq!(ttft(Lengths::Equal, 1), ttft(Lengths::Varied, 1));
    // A request that arrives alone next to another waits for one step more.
    let alone = served("concurrency = 1\nprompt_tokens = 500\n");
    let step = service(&alone, &loaded(&alone)).tpot.unwrap().0 as f64;
    let waited = ttft(Lengths::Varied, 2) - ttft(Lengths::Varied, 1);
    assert!((0.95..1.2).contains(&(waited / step)), "{waited} {step}");
    // Sixteen prompts of 500 tokens fit in a step of 8,192 tokens.
    let (group, spread) = (ttft(Lengths::Equal, 16), ttft(Lengths::Varied, 16));
    assert!(group > 4.0 * spread, "{group} {spread}");
    assert!((ttft(Lengths::Equal, 64) / group - 1.0).abs() < 0.1);
}

/// Two requests of one output token whose prompts fill a step take turns: one runs while the other waits. Of three, one
/// is queued.
#[test]
fn two_prompts_take_turns() {
    let service = |concurrency: u32| {
        let job = Serving {
            max_batched_tokens: 4000,
            ..served(&format!("concurrency = {concurrency}\nprompt_tokens = 4000\noutput_tokens = 1\n"))
        };
        service(&job, &loaded(&job))
    };
    let (one, two, three) = (service(1), service(2), service(3));
    let ttft = |service: &Service| service.ttft.unwrap().0;
    for (requests, service) in [(2, two), (3, three)] {
        assert!((service.tokens_per_s / one.tokens_per_s - 1.0).abs() < 1e-9, "{service:?}");
        assert!(ttft(&service).abs_diff(requests * ttft(&one)) <= 1, "{service:?}");
    }
}

/// The host works on a request while it waits for a step.
#[test]
fn host_time_of_requests_overlaps_with_the_wait() {
    let ttft = |milliseconds: u64| {
        let host = HostTimes { request: Picos(milliseconds * 1_000_000_000), ..HostTimes::default() };
        let job = Serving { host, ..served("concurrency = 8\nprompt_tokens = 100\n") };
        let service = service(&job, &loaded(&job));
        (service.ttft.unwrap().us() / 1000.0, service.tpot.unwrap().us() / 1000.0)
    };
    let ((none, step), (short, _), (long, _)) = (ttft(0), ttft(1), ttft(1000));
    assert!(step > 3.0 && none == short, "{none} {short} {step}");
    assert!((long - none - 1000.0 + step / 2.0).abs() < 0.1 * step, "{none} {long} {step}");
}

proptest! {
    /// Little's law: as many requests as the job has are in the system, running, waiting for a step, or queued.
    #[test]
    fn rate_times_latency_is_the_concurrency(drawn in drawn(), equal in any::<bool>(), request in 0u64..50) {
        let host = HostTimes { request: Picos(request * 1_000_000_000), ..HostTimes::default() };
        let lengths = if equal { Lengths::Equal } else { Lengths::Varied };
        let job = Serving { lengths, host, ..drawn.job() };
        let service = service(&job, &loaded(&job));
        let requests = service.tokens_per_s / job.computed_output_tokens() as f64 * service.latency.0 as f64 / 1e12;
        prop_assert!((requests / drawn.concurrency as f64 - 1.0).abs() < 1e-6, "{requests} {service:?}");
    }

    /// With equal lengths, the time of a request is divided differently: TPOT is at least the time of a step without
    /// prefill, and more concurrent requests reduce neither latency nor TTFT by more than rounding.
    #[test]
    fn groups_decode_no_faster_than_steps_without_prefill(drawn in drawn(), more in 1u64..200) {
        let equal = |concurrency: u64| Serving { lengths: Lengths::Equal, ..Drawn { concurrency, ..drawn.clone() }.job() };
        let (fewer, many) = (equal(drawn.concurrency), equal(drawn.concurrency + more));
        let [few, many] = [&fewer, &many].map(|job| service(job, &loaded(job)));
        let (streams, ClosedLoop { load, .. }) = steady_batch(&loaded(&fewer), &specified_layout(&fewer));
        let decode = StepTokens { decode: load.requests, ..StepTokens::default() };
        let flat = FlatCosts(300e9);
        let costs = StepCosts { speeds: &H100, curve: &Efficiency::default(), collective_costs: &flat };
        let step = costs.step(&loaded(&fewer), &specified_layout(&fewer), &decode, &AttentionContext::in_steady_state(&fewer, 1.0), streams.per_replica).unwrap();
        prop_assert!(few.tpot.is_none_or(|tpot| tpot + Picos(1) >= step.time_shares().time()), "{few:?}");
        prop_assert!(many.latency.0 as f64 >= few.latency.0 as f64 * (1.0 - 1e-9), "{few:?} {many:?}");
    }

    /// Each component of the host time only increases latencies, and never increases the throughput.
    #[test]
    fn host_times_never_help(drawn in drawn(), equal in any::<bool>(), times in [0u64..20, 0..3, 0..5]) {
        let [request, prefill_layer, step] = times.map(|milliseconds| Picos(milliseconds * 1_000_000_000));
        let lengths = if equal { Lengths::Equal } else { Lengths::Varied };
        let without = Serving { lengths, ..drawn.job() };
        let with = Serving { host: HostTimes { request, prefill_layer, step, ..HostTimes::default() }, ..without.clone() };
        let [fast, slow] = [&without, &with].map(|job| service(job, &loaded(job)));
        prop_assert!(slow.ttft >= fast.ttft && slow.latency >= fast.latency, "{fast:?} {slow:?}");
        prop_assert!(slow.tokens_per_s <= fast.tokens_per_s * (1.0 + 1e-12), "{fast:?} {slow:?}");
    }
}
