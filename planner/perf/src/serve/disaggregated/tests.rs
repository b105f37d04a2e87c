//! Service of separate pools against closed forms, and against properties of networks and queues.

use fabricast_sim::profile::Profile;
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bandwidth, FabricRequest, NetworkKind, NetworkSpec, load};
use fabricast_workload::job::{LatencyStatistic, Serving};
use proptest::prelude::*;

use super::super::tests::served;
use super::super::{Service, best_service};
use super::*;
use crate::communication::SimulatedCosts;
use crate::step::{Efficiency, Machine};

/// Fabric of hosts with a NIC of this rate for each GPU.
fn request(nodes: u32, gbit: u32) -> FabricRequest {
    let nic = Bandwidth(u64::from(gbit) * 125_000_000);
    let network =
        NetworkSpec { kind: NetworkKind::Rail, nics_per_node: Some(8), nic: Some(nic), ..NetworkSpec::default() };
    FabricRequest { nodes: Some(nodes), network: Some(network), ..FabricRequest::new("hgx-h100") }
}

fn service_on(request: &FabricRequest, job: &Serving) -> Service {
    let fabric = load(request).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let (profile, ranks) = (Profile::for_fabric(&fabric).unwrap(), fabric.gpus());
    let simulated = SimulatedCosts::new(&router, &profile, ranks);
    let machine = Machine { router: &router, ranks, simulated: &simulated, curve: Efficiency::new(&fabric) };
    best_service(job, &machine).unwrap().service
}

const SMALL: &str =
    "model = { layers = 16, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, gated = true, vocab = 32000 }\n";

fn job(pools: &str, lines: &str) -> Serving {
    served(&format!("{SMALL}disaggregation = {{ prefill_gpus = 8, {pools} }}\nparallel = {{ tp = 8 }}\n{lines}"))
}

fn seconds(time: Picos) -> f64 {
    time.0 as f64 / 1e12
}

/// 4,000 tokens of 64 KiB on eight ranks, each over a NIC of 400 Gb/s, of which links reach the profile's share and transfers
/// 0.806 of that; and the posts of 32 tensors.
#[test]
fn time_of_a_lone_transfer_is_its_bytes_at_the_rate_of_the_nics() {
    let job = job("first_token = \"transfer\"", "concurrency = 1\nprompt_tokens = 4000\noutput_tokens = 101\n");
    let service = service_on(&request(2, 400), &job);
    let DisaggregatedService { prefill, decode, transfer } = service.disaggregation.unwrap();
    assert_eq!(transfer.bytes, Bytes(4000 * 16 * 2 * 8 * 128 * 2));
    let reached = Profile::for_fabric(&load(&request(2, 400)).unwrap()).unwrap().links.network;
    let wire = transfer.bytes.0 as f64 / 8.0 / (50e9 * reached * 0.806);
    let expected = wire + 32.0 * 7.21e-6;
    assert!((seconds(transfer.time) / expected - 1.0).abs() < 0.01, "{} {expected}", seconds(transfer.time));
    assert_eq!((transfer.exposed, prefill.ranks, decode.ranks), (transfer.time, 8, 8));
    assert!((transfer.capacity * wire - 1.0).abs() < 0.01, "{}", transfer.capacity);
    // The request is in one part at a time.
    let alone = service_on(
        &request(1, 400),
        &served(&format!(
            "{SMALL}concurrency = 1\nprompt_tokens = 4000\noutput_tokens = 101\nparallel = {{ tp = 8 }}\n"
        )),
    );
    let ttft = alone.ttft.unwrap() + transfer.time;
    assert!((seconds(service.ttft.unwrap()) / seconds(ttft) - 1.0).abs() < 0.01, "{service:?}");
    assert!((seconds(service.tpot.unwrap()) / seconds(alone.tpot.unwrap()) - 1.0).abs() < 0.01, "{service:?}");
    assert!((service.tokens_per_s * seconds(service.latency) / 101.0 - 1.0).abs() < 1e-3, "{service:?}");
    assert!((transfer.link_share * transfer.capacity / (service.tokens_per_s / 101.0) - 1.0).abs() < 1e-6);
}

/// The first token comes before the transfer, after it, or a step later; the last token waits for the transfer in any case.
#[test]
fn first_token_waits_for_what_its_source_needs() {
    let [prefill, transfer, decode] = ["prefill", "transfer", "decode"].map(|source| {
        let job = job(&format!("first_token = \"{source}\""), "concurrency = 1\nprompt_tokens = 4000\n");
        service_on(&request(2, 100), &job)
    });
    let exposed = transfer.disaggregation.unwrap().transfer.exposed;
    let difference = |later: &Service, earlier: &Service| (later.ttft.unwrap() - earlier.ttft.unwrap()).0 as f64;
    assert!((difference(&transfer, &prefill) / exposed.0 as f64 - 1.0).abs() < 0.01);
    assert!((difference(&decode, &transfer) / decode.tpot.unwrap().0 as f64 - 1.0).abs() < 0.01);
    assert!(prefill.latency.0.abs_diff(transfer.latency.0) < transfer.latency.0 / 1000);
    assert!(prefill.tpot > transfer.tpot);
    // Layers are hidden behind prefill but for the last.
    let layers = job("first_token = \"transfer\", transfer = \"layer\"", "concurrency = 1\nprompt_tokens = 4000\n");
    let hidden = service_on(&request(2, 400), &layers).disaggregation.unwrap().transfer;
    assert!(hidden.exposed.0 * 14 < hidden.time.0, "{hidden:?}");
}

/// 18 hosts of four GPUs, of which replicas need two each: the best division is that whose smallest capacity is the
/// largest, with capacities in proportion to the GPUs of a part.
#[test]
fn balanced_division_is_found() {
    let hosts = FabricRequest { nodes: Some(18), ..FabricRequest::new("gb200-nvl72") };
    let with = |gpus: &str| {
        let lines = format!(
            "{SMALL}disaggregation = {{ prefill_gpus = {gpus} }}\nparallel = {{ tp = 8 }}\nconcurrency = \"auto\"\n\
             prompt_tokens = 2000\noutput_tokens = 300\nmax_num_seqs = 64\n"
        );
        service_on(&hosts, &served(&lines))
    };
    let found = with("\"auto\"");
    let pools = found.disaggregation.unwrap();
    let stated = with("32").disaggregation.unwrap();
    let per_gpu = |pool: &PoolService| pool.capacity / f64::from(pool.ranks);
    let [prefill, decode] = [per_gpu(&stated.prefill), per_gpu(&stated.decode)];
    let rate = |gpus: u32| (f64::from(gpus) * prefill).min(f64::from(72 - gpus) * decode);
    let best = (8..72).step_by(8).max_by(|&one, &other| rate(one).total_cmp(&rate(other))).unwrap();
    assert_eq!((pools.prefill.ranks, pools.decode.ranks), (best, 72 - best), "{prefill} {decode}");
    assert!((found.tokens_per_s / 300.0 / rate(best) - 1.0).abs() < 0.02, "{} {}", found.tokens_per_s, rate(best));
}

/// Replicas with eight GPUs on one host each: links of the side with fewer replicas carry one transfer each at a time.
#[test]
fn network_capacity_is_that_of_the_side_with_fewer_replicas() {
    let capacity = |prefill: u32, decode: u32| {
        let lines = format!(
            "{SMALL}disaggregation = {{ prefill_gpus = {} }}\nparallel = {{ tp = 8 }}\nconcurrency = 1\n\
             prompt_tokens = 4000\noutput_tokens = 101\n",
            8 * prefill
        );
        service_on(&request(prefill + decode, 400), &served(&lines)).disaggregation.unwrap().transfer.capacity
    };
    let alone = capacity(1, 1);
    // The last has more transfers than are simulated.
    for (prefill, decode) in [(2, 3), (7, 8), (17, 19)] {
        let expected = alone * f64::from(prefill.min(decode));
        let found = capacity(prefill, decode);
        assert!((found / expected - 1.0).abs() < 0.01, "{prefill} {decode}: {found} {expected}");
    }
    let by_prefill: Vec<f64> = (1..=8).map(|prefill| capacity(prefill, 5)).collect();
    assert!(by_prefill.windows(2).all(|pair| pair[1] >= pair[0] * (1.0 - 1e-3)), "{by_prefill:?}");
}

/// Benchmarks of a number of requests end at any rate, so that their latency decides; memory and limits precede it.
#[test]
fn services_are_ranked_by_limits_and_then_by_latency_or_throughput() {
    let lines = "prompt_tokens = 4000\noutput_tokens = 101\n";
    let closed = job("first_token = \"transfer\"", &format!("concurrency = 1\n{lines}"));
    let benchmark = job("first_token = \"transfer\"", &format!("request_rate = 10\nrequests = 20\n{lines}"));
    let base = service_on(&request(2, 400), &closed);
    let quick = Service { latency: Picos(1), tokens_per_s: 1.0, ..base.clone() };
    let productive = Service { latency: Picos(2), tokens_per_s: 2.0, ..base };
    assert!(quick.rank(&benchmark) < productive.rank(&benchmark));
    assert!(productive.rank(&closed) < quick.rank(&closed));
    let violating = Service { slo_violations: vec!["TTFT".into()], ..quick };
    assert!(productive.rank(&benchmark) < violating.rank(&benchmark));
}

/// Latencies with as many requests as limits allow are within the limits, whichever parts they include.
#[test]
fn automatic_concurrency_meets_its_own_limits() {
    let lengths = ["prompt_tokens = 4000\noutput_tokens = 11\n", "prompt_tokens = 400\noutput_tokens = 21\n"];
    let cases = ["prefill", "transfer", "decode"].map(|first_token| lengths.map(|lengths| (first_token, lengths)));
    for (first_token, lengths) in cases.into_iter().flatten() {
        let with = |lines: &str| {
            let pools = format!("first_token = \"{first_token}\"");
            service_on(&request(2, 25), &job(&pools, &format!("{lines}{lengths}")))
        };
        let lone = with("concurrency = 1\n");
        let [ttft, tpot] = [lone.ttft, lone.tpot].map(|time| seconds(time.unwrap()));
        for factor in [1.02, 1.2, 1.6, 2.5, 4.0] {
            for limits in [format!("ttft_s = {}\n", ttft * factor), format!("tpot_s = {}\n", tpot * factor)] {
                let found = with(&format!("concurrency = \"auto\"\n{limits}"));
                assert!(found.slo_violations.is_empty(), "{first_token} {limits} {:?}", found.slo_violations);
                assert!(found.tokens_per_s >= lone.tokens_per_s * 0.99, "{first_token} {limits} {found:?}");
            }
        }
    }
}

/// A prefill with two tensor-parallel ranks per replica serves a decode with eight.
#[test]
fn pools_have_degrees_of_their_own() {
    let job = job("prefill_parallel = { tp = 2 }", "concurrency = 64\n");
    let service = service_on(&request(2, 400), &job);
    let found = service.disaggregation.unwrap();
    assert_eq!((found.prefill.layout.degrees.tensor, found.prefill.layout.degrees.data), (2, 4));
    assert_eq!((found.decode.layout.degrees.tensor, found.decode.layout.degrees.data), (8, 1));
    // Two GPUs send what eight receive, by NVLink and the NICs of the receivers' rails.
    let same = service_on(&request(2, 400), &self::job("prefill_parallel = { tp = 8 }", "concurrency = 64\n"));
    let ratio = seconds(found.transfer.time) / seconds(same.disaggregation.unwrap().transfer.time);
    assert!((1.5..4.5).contains(&ratio), "{ratio}");
}

/// Requests that arrive slowly arrive at idle machines: their latencies are those of a lone request.
#[test]
fn slow_arrivals_have_the_latencies_of_a_lone_request() {
    let lines = "prompt_tokens = 4000\noutput_tokens = 101\n";
    let alone = service_on(&request(2, 400), &job("first_token = \"decode\"", &format!("concurrency = 1\n{lines}")));
    let slow = job("first_token = \"decode\"", &format!("request_rate = 0.01\nrequests = 20\n{lines}"));
    let slow = service_on(&request(2, 400), &slow);
    let latencies = slow.latencies.unwrap();
    let p50 = latencies.ttft.unwrap().statistic(LatencyStatistic::P50);
    assert!((seconds(p50) / seconds(alone.ttft.unwrap()) - 1.0).abs() < 0.01, "{latencies:?} {alone:?}");
    assert!((seconds(latencies.latency.p50) / seconds(alone.latency) - 1.0).abs() < 0.01, "{latencies:?} {alone:?}");
}

/// Overload of prefill by long prompts, of decode by long outputs, and of the network by slow NICs.
#[test]
fn overload_of_each_part_is_recognized() {
    let overloaded = |gbit: u32, lengths: [u64; 2]| {
        let [prompt, output] = lengths;
        let lines =
            format!("prompt_tokens = {prompt}\noutput_tokens = {output}\nmax_num_seqs = 64\nrequest_rate = 20000\n");
        let service = service_on(&request(2, gbit), &job("first_token = \"transfer\"", &lines));
        assert!(service.slo_violations[0].starts_with("serves "), "{:?}", service.slo_violations);
        let DisaggregatedService { prefill, decode, transfer } = service.disaggregation.unwrap();
        let served = service.tokens_per_s / output as f64;
        [prefill.capacity, transfer.capacity, decode.capacity].map(|capacity| (served / capacity - 1.0).abs() < 0.01)
    };
    assert_eq!(overloaded(400, [8000, 2]), [true, false, false]);
    assert_eq!(overloaded(10, [4000, 2]), [false, true, false]);
    assert_eq!(overloaded(400, [100, 1000]), [false, false, true]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Faster NICs never make a request slower or the throughput smaller, and no part serves more than it can.
    #[test]
    fn more_bandwidth_never_hurts(
        concurrency in 1u32..400,
        prompt in 100u32..8000,
        output in 2u32..400,
        unit in prop::sample::select(vec!["request", "chunk", "layer"]),
        tensor in prop::sample::select(vec![1u32, 2, 4, 8]),
    ) {
        let job = job(
            &format!("transfer = \"{unit}\", prefill_parallel = {{ tp = {tensor} }}"),
            &format!("concurrency = {concurrency}\nprompt_tokens = {prompt}\noutput_tokens = {output}\n"),
        );
        let [slow, fast] = [50, 400].map(|gbit| service_on(&request(2, gbit), &job));
        prop_assert!(fast.tokens_per_s >= slow.tokens_per_s * (1.0 - 1e-4), "{slow:?} {fast:?}");
        prop_assert!(fast.latency.0 as f64 <= slow.latency.0 as f64 * (1.0 + 1e-4), "{slow:?} {fast:?}");
        let [slow, fast] = [slow, fast].map(|service| (service.disaggregation.unwrap(), service));
        prop_assert!(fast.0.transfer.exposed <= slow.0.transfer.exposed);
        for (found, service) in [slow, fast] {
            let rate = service.tokens_per_s / f64::from(output);
            let smallest = found.prefill.capacity.min(found.decode.capacity).min(found.transfer.capacity);
            prop_assert!(rate <= smallest * 1.01, "{rate} {found:?}");
            // Little's law.
            prop_assert!((rate * seconds(service.latency) / f64::from(concurrency) - 1.0).abs() < 0.01);
        }
    }
}
