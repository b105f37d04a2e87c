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
fn lone_transfer_takes_its_bytes_at_the_rate_of_the_nics() {
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
    assert!(hidden.exposed.0 * 15 < hidden.time.0, "{hidden:?}");
}

/// With eight hosts, the better of all divisions has the throughput of the best stated one.
#[test]
fn balanced_division_is_found() {
    let with = |gpus: &str| {
        let lines = format!(
            "{SMALL}disaggregation = {{ prefill_gpus = {gpus} }}\nparallel = {{ tp = 8 }}\nconcurrency = \"auto\"\n\
             prompt_tokens = 2000\noutput_tokens = 300\nmax_num_seqs = 64\n"
        );
        service_on(&request(4, 400), &served(&lines))
    };
    let [one, two, three] = ["8", "16", "24"].map(with);
    let best = [&one, &two, &three].into_iter().map(|service| service.tokens_per_s).fold(0.0, f64::max);
    assert!((with("\"auto\"").tokens_per_s / best - 1.0).abs() < 1e-3);
    // Capacities per GPU do not depend on the division, and both parts of the balanced one have the same.
    let ratio = |service: &Service| service.disaggregation.unwrap().balanced_ratio();
    assert!((ratio(&one) / ratio(&three) - 1.0).abs() < 0.02, "{} {}", ratio(&one), ratio(&three));
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

/// Requests that arrive slowly meet idle machines: their latencies are those of a lone request.
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

#[test]
fn overload_of_any_part_is_recognized() {
    let lines = "prompt_tokens = 4000\noutput_tokens = 101\nrequest_rate = 20000\n";
    let service = service_on(&request(2, 100), &job("first_token = \"transfer\"", lines));
    assert!(service.slo_violations[0].starts_with("serves "), "{:?}", service.slo_violations);
    let found = service.disaggregation.unwrap();
    let smallest = found.prefill.capacity.min(found.decode.capacity).min(found.transfer.capacity);
    assert!((service.tokens_per_s / 101.0 / smallest - 1.0).abs() < 0.01);
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
