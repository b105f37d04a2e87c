//! Compares two-sided messages, and collectives that MPI runs in host memory, with closed forms.
//!
//! Under the `ideal` profile with costs of messages only, L is the latency of the path, B the bandwidth of its slowest
//! link.

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_collectives::bound::{Bounds, InNetwork};
use fabricast_collectives::capabilities::FabricCapabilities;
use fabricast_collectives::strategy::Strategy as PlanStrategy;
use fabricast_search::candidates::Restriction;
use fabricast_search::plan::{PlanRequest, lower_bound, plan};
use fabricast_sim::Folding;
use fabricast_sim::breakdown::breakdown;
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::{MessageCosts, Profile, ReductionSite};
use fabricast_sim::schedule::{BufferUse, Call, Collective, OpKind, Processor, Protocol, Rank};
use fabricast_sim::sharing::WHOLE;
use fabricast_sim::verify::{VerifyOptions, verify};
use fabricast_topologies::route::{GpuDirect, PeerAccess, RouteOptions};
use fabricast_topologies::{Bandwidth, Bytes, FabricRequest, Picos, load};
use proptest::prelude::*;
use proptest::sample::select;

use crate::generators::{Case, cases};
use crate::testbed::Testbed;

const REDUCING: [Collective; 3] = [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce];

fn costs(sums: ReductionSite) -> impl Strategy<Value = MessageCosts> {
    let time = || (0u64..20_000_000).prop_map(Picos);
    let rate = || (100_000_000u64..20_000_000_000).prop_map(Bandwidth);
    let times = (time(), 0u64..1_000_000, time(), time(), time(), time());
    (times, rate(), rate(), rate(), 0u64..100_000, 1u64..2_000_000).prop_map(
        move |((post, progress, copy_out, copy_in, control, launch), out, into, host, eager, fragment)| MessageCosts {
            post,
            progress: Picos(progress),
            eager_limit: Bytes(eager),
            copy_out,
            copy_out_rate: out,
            copy_in,
            copy_in_rate: into,
            control,
            launch,
            fragment: Bytes(fragment),
            host_rate: host,
            sums,
        },
    )
}

fn testbed(preset: &str, (nodes, gpus): (u32, u32), messages: MessageCosts, routes: RouteOptions) -> Testbed {
    let spec = (nodes > 1).then(|| "rail,nics_per_node=8,nic=400Gb/s".parse().unwrap());
    let request = FabricRequest { nodes: Some(nodes), gpus: Some(gpus), network: spec, ..FabricRequest::new(preset) };
    let profile = Profile { messages: Some(messages), ..Profile::ideal() };
    Testbed { profile, routes, ..Testbed::ideal(load(&request).unwrap()) }
}

fn case(testbed: &Testbed, collective: Collective, algorithm: Algorithm, bytes: u64) -> Case {
    let buffers = BufferUse::OutOfPlace;
    let call = Call { collective, bytes: Bytes(bytes), ranks: testbed.ranks(), root: Rank(0), buffers };
    let strategy = PlanStrategy::new(algorithm, Protocol::Simple, 1);
    let (router, placement, per_host) = (testbed.router(), testbed.placement(), testbed.per_host());
    let capabilities = FabricCapabilities::new(&testbed.fabric, &router, &placement, per_host, InNetwork::Allowed);
    Case { algorithm, shape: strategy.shape(call, &testbed.profile, per_host, &capabilities) }
}

/// Returns the time of a message of `bytes` bytes from the first GPU to the second, concurrent with one in the opposite
/// direction.
fn exchange_time(testbed: &Testbed, bytes: u64) -> f64 {
    let case = case(testbed, Collective::SendRecv, Algorithm::Direct, bytes);
    testbed.run(&*case.generator(), Folding::WhereProved).unwrap().time.0 as f64
}

/// Returns the latency in picoseconds, and the bandwidth of the slowest link in bytes per picosecond.
fn path(testbed: &Testbed) -> (f64, f64) {
    let gpus = testbed.fabric.gpus();
    let path = testbed.router().path(gpus[0], gpus[1]).unwrap();
    (path.latency.0 as f64, path.bandwidth.unwrap().0 as f64 * 1e-12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn message_time_matches_closed_form(
        messages in costs(ReductionSite::Host),
        (nodes, gpus) in select(vec![(1u32, 2u32), (2, 1)]),
        bytes in 1u64..10_000_000,
    ) {
        let testbed = testbed("hgx-h200", (nodes, gpus), messages, RouteOptions::default());
        let (latency, rate) = path(&testbed);
        let time = |time: Picos| time.0 as f64;
        let time_at = |rate: Bandwidth| bytes as f64 / (rate.0 as f64 * 1e-12);
        let (waits, copies) = if bytes <= messages.eager_limit.0 {
            let copy_out = time(messages.copy_out) + time_at(messages.copy_out_rate);
            (time(messages.copy_in) + time_at(messages.copy_in_rate), copy_out)
        } else {
            let launch = if nodes == 1 { time(messages.launch) } else { 0.0 };
            (2.0 * (time(messages.control) + latency) + launch, 0.0)
        };
        let flows = (bytes as f64 / rate).max(time(messages.progress) + copies);
        let expected = time(messages.post) + waits + latency + flows;
        let actual = exchange_time(&testbed, bytes);
        // The process's time per byte is rounded up.
        let rounding = expected * 1e-6 + bytes as f64 * 1_000.0 / WHOLE as f64 + 10.0;
        prop_assert!((actual - expected).abs() <= rounding, "{actual} instead of {expected}");
    }

    /// A process copies its messages to all others one after the other.
    #[test]
    fn small_messages_to_all_take_the_sum_of_their_copies(messages in costs(ReductionSite::Host), ranks in 2u32..=8, block in 1u64..2_000) {
        prop_assume!(block <= messages.eager_limit.0);
        let testbed = testbed("hgx-h200", (1, ranks), messages, RouteOptions::default());
        let case = case(&testbed, Collective::AllToAll, Algorithm::Direct, block * u64::from(ranks));
        let actual = testbed.run(&*case.generator(), Folding::WhereProved).unwrap().time.0 as f64;
        let copy = (messages.progress + messages.copy_out).0 as f64
            + block as f64 / (messages.copy_out_rate.0 as f64 * 1e-12);
        prop_assert!(actual >= f64::from(ranks - 1) * copy * (1.0 - 1e-6) - 10.0, "{actual} {copy}");
    }

    #[test]
    fn staged_messages_fill_a_pipeline_first(messages in costs(ReductionSite::Host), bytes in 1u64..10_000_000) {
        let staged = |routes| testbed("hgx-h200", (1, 2), messages, routes);
        let testbed = staged(RouteOptions { p2p: PeerAccess::Off, ..RouteOptions::default() });
        let (latency, rate) = path(&testbed);
        let time = |time: Picos| time.0 as f64;
        let actual = exchange_time(&testbed, bytes);
        if bytes > messages.eager_limit.0 {
            let handshake = time(messages.post) + 2.0 * (time(messages.control) + latency + time(messages.launch)) + latency;
            let fragment = bytes.min(messages.fragment.0) as f64;
            let busy = time(messages.progress) * bytes.div_ceil(messages.fragment.0) as f64;
            // Both parts of the route are PCIe, so filling the pipeline costs one fragment.
            let expected = handshake + fragment / rate + (bytes as f64 / rate).max(busy);
            prop_assert!(actual >= expected * (1.0 - 1e-6) - 10.0, "{actual} is less than {expected}");
            // Both directions are concurrent and use one path of a CPU.
            let rounding = bytes as f64 * 1_000.0 / WHOLE as f64;
            prop_assert!(actual <= handshake + fragment / rate + 4.0 * (bytes as f64 / rate).max(busy) + rounding, "{actual}");
        }
    }

    #[test]
    fn staged_schedules_compute_the_collective(
        case in cases(12).prop_filter("reduces", |case| {
            REDUCING.contains(&case.shape.call.collective) && case.algorithm.in_network() == InNetwork::Off
        }),
    ) {
        let shape = Shape { reduction_device: Processor::Host, ..case.shape };
        let schedule = Case { shape, ..case }.schedule();
        let proof = verify(&schedule, &VerifyOptions::default());
        prop_assert!(proof.is_ok(), "{}", proof.unwrap_err());
        if schedule.header().call.ranks > 1 {
            prop_assert_eq!(schedule.header().blocks.processor, Processor::Host);
            let takes = |op: &fabricast_sim::schedule::Operation| op.kind == OpKind::Copy && op.index == 0;
            prop_assert!(schedule.operations().any(|op| takes(&op)));
        }
    }

    #[test]
    fn times_respect_bounds_and_folding_is_exact(
        messages in prop_oneof![costs(ReductionSite::Host), costs(ReductionSite::Device)],
        (preset, size) in select(vec![("hgx-h200", (1u32, 4u32)), ("hgx-h200", (2, 2)), ("dgx-a100", (1, 8)), ("l40s-pcie", (1, 4))]),
        (collective, algorithm) in select(vec![
            (Collective::AllReduce, Algorithm::RecursiveHalvingDoubling),
            (Collective::AllReduce, Algorithm::RecursiveDoubling),
            (Collective::AllReduce, Algorithm::Ring),
            (Collective::ReduceScatter, Algorithm::RecursiveHalvingDoubling),
            (Collective::Reduce, Algorithm::Tree),
            (Collective::Reduce, Algorithm::Ring),
            (Collective::AllGather, Algorithm::RecursiveDoubling),
            (Collective::AllToAll, Algorithm::Direct),
            (Collective::Broadcast, Algorithm::Tree),
            (Collective::Gather, Algorithm::Tree),
            (Collective::AllReduce, Algorithm::ReduceThenBroadcast),
            (Collective::ReduceScatter, Algorithm::Butterfly),
            (Collective::ReduceScatter, Algorithm::ReduceThenScatter),
            (Collective::Reduce, Algorithm::BinaryTree),
            (Collective::Reduce, Algorithm::InOrderTree),
            (Collective::Reduce, Algorithm::Linear),
            (Collective::AllGather, Algorithm::NeighbourExchange),
            (Collective::Broadcast, Algorithm::Knomial),
            (Collective::Broadcast, Algorithm::SplitTree),
            (Collective::Gather, Algorithm::LinearSync),
        ]),
        bytes in prop_oneof![1u64..5_000, 1u64..50_000_000],
        p2p in select(vec![PeerAccess::Allowed, PeerAccess::Off]),
        gdr in select(vec![GpuDirect::Allowed, GpuDirect::Off]),
    ) {
        let testbed = testbed(preset, size, messages, RouteOptions { p2p, gdr, ..RouteOptions::default() });
        let case = case(&testbed, collective, algorithm, bytes);
        let generator = case.generator();
        let [folded, unfolded] = [Folding::WhereProved, Folding::Off].map(|folding| testbed.run(&*generator, folding).unwrap().time);
        prop_assert_eq!(folded, unfolded);
        let (router, placement) = (testbed.router(), testbed.placement());
        let call = case.shape.call;
        let bound = Bounds::new(&testbed.fabric, &router, &placement, call.root.0).bound(&call).time;
        prop_assert!(bound <= unfolded, "bound {bound:?}, time {unfolded:?}");
        let (collectives, sizes, unrestricted) = ([collective], [call.bytes], Restriction::default());
        let base = testbed.plan_request((&router, &placement), (&collectives, &sizes), &unrestricted);
        let request = PlanRequest { buffers: call.buffers, ..base };
        let strategy = PlanStrategy::new(algorithm, Protocol::Simple, 1);
        let min_time = lower_bound(&request, collective, call.bytes, strategy).unwrap().unwrap();
        prop_assert!(min_time <= unfolded, "at least {min_time:?}, simulated {unfolded:?}");
        let restriction =
            Restriction { algorithms: vec![algorithm], protocols: vec![Protocol::Simple], channels: vec![1], ..Restriction::default() };
        let planned = plan(&PlanRequest { restriction: &restriction, ..request }, Monitor::default()).unwrap();
        prop_assert_eq!(planned.rows[0].pick.time, unfolded);
    }
}

#[test]
fn costs_of_messages_have_names() {
    let shipped = Profile::named("open_mpi-5.0").unwrap();
    let request = FabricRequest { gpus: Some(4), ..FabricRequest::new("hgx-h200") };
    let testbed = Testbed { profile: shipped.clone(), ..Testbed::ideal(load(&request).unwrap()) };
    let part_names = |collective, algorithm, bytes| {
        let case = case(&testbed, collective, algorithm, bytes);
        let generator = case.generator();
        let run = |profile: &Profile| {
            let testbed = Testbed { profile: profile.clone(), ..Testbed::ideal(testbed.fabric.clone()) };
            testbed.run(&*generator, Folding::WhereProved)
        };
        let result = breakdown(&shipped, Protocol::Simple, testbed.mode, run).unwrap();
        result.parts.into_iter().map(|part| part.name).collect::<Vec<String>>()
    };
    let eager = part_names(Collective::SendRecv, Algorithm::Direct, 1_000);
    for name in ["message.post", "message.copy_out", "message.copy_in", "message.copy_out_rate", "message.copy_in_rate"]
    {
        assert!(eager.iter().any(|part| part == name), "{name} in {eager:?}");
    }
    let large = part_names(Collective::SendRecv, Algorithm::Direct, 1 << 24);
    for name in ["message.post", "message.control", "message.launch", "links.nvlink"] {
        assert!(large.iter().any(|part| part == name), "{name} in {large:?}");
    }
    assert!(large.iter().all(|part| !part.contains("copy_")), "{large:?}");
    let staged = part_names(Collective::AllReduce, Algorithm::RecursiveHalvingDoubling, 1 << 24);
    for name in ["message.host_rate", "message.launch", "message.control"] {
        assert!(staged.iter().any(|part| part == name), "{name} in {staged:?}");
    }
}
