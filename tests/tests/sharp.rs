//! Tests of reduction in the switches of networks (SHARP): closed forms, bounds, folding, and rejected cases.

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_collectives::bound::{Bounds, InNetwork};
use fabricast_collectives::capabilities::{FabricCapabilities, NoNetworkReduction};
use fabricast_collectives::strategy::{Mismatch, check_combination};
use fabricast_libraries::nccl::Settings;
use fabricast_libraries::{Chooser, Conditions, Library, Unknown};
use fabricast_sim::lower::{LowerError, Resource};
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{
    Blocks, Buffer, BufferUse, Call, Channel, Collective, Dependency, Header, Layout, OpKind, Program, Protocol, Rank,
    Run, Schedule, ScheduleGenerator, Walk,
    format::{Format, write},
};
use fabricast_sim::verify::{VerifyOptions, verify};
use fabricast_sim::{Folding, SimulateError};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, Fabric, FabricRequest, Picos, load, read};
use proptest::prelude::*;
use proptest::sample::select;

use crate::generators::Case;
use crate::testbed::Testbed;

/// Returns GPUs, one on each host, with InfiniBand links of one byte per picosecond and 300 ns to one switch.
fn single_gpus(ranks: u32) -> Fabric {
    let mut text = "name = \"combining\"\n[[node]]\nid = \"sw\"\nkind = \"switch\"\nmulticast = true\n".to_owned();
    for rank in 0..ranks {
        text +=
            &format!("[[node]]\nid = \"gpu{rank}\"\nkind = \"gpu\"\nhost = \"h{rank}\"\n[[link]]\na = \"gpu{rank}\"\n");
        text += "b = \"sw\"\nkind = \"infiniband\"\nbandwidth = \"1000 GB/s\"\nlatency = \"300 ns\"\n";
    }
    read::spec::parse(&text, "combining.toml").unwrap().build_nodes().unwrap()
}

/// One all_reduce of `chunks` chunks in the switches between all ranks, executed by rank 0.
struct SwitchAllReduce {
    header: Header,
}

impl SwitchAllReduce {
    fn new(ranks: u32, bytes: u64, chunks: u32, buffers: BufferUse) -> Self {
        let call = Call { collective: Collective::AllReduce, bytes: Bytes(bytes), ranks, root: Rank(0), buffers };
        let header = Header {
            name: "switch".to_owned(),
            call,
            protocol: Protocol::Simple,
            channels: 1,
            blocks: Blocks::default(),
            layout: Layout::equal(call.bytes, chunks),
            scratch_chunks: 0,
            teams: vec![(0..ranks).map(Rank).collect()],
            certificate: None,
        };
        Self { header }
    }
}

impl ScheduleGenerator for SwitchAllReduce {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        if rank != Rank(0) {
            return;
        }
        let chunks = Walk::linear(0, 1);
        let run = Run {
            len: self.header.layout.chunks(),
            kind: OpKind::SwitchAllReduce,
            channel: Channel(0),
            peer: Walk::fixed(0),
            src_buffer: Buffer::Input,
            src: chunks,
            dst_buffer: Buffer::Output,
            dst: chunks,
            span: 1,
        };
        program.push(run, &[Dependency::shifted(rank, 0, -1)]);
    }
}

fn cluster(preset: &str, nodes: u32, gpus: u32, network: &str) -> Fabric {
    let network = Some(network.parse().unwrap());
    load(&FabricRequest { nodes: Some(nodes), gpus: Some(gpus), network, ..FabricRequest::new(preset) }).unwrap()
}

fn nvls(nodes: u32, gpus: u32, bytes: u64, channels: u16, buffers: BufferUse) -> Case {
    let call =
        Call { collective: Collective::AllReduce, bytes: Bytes(bytes), ranks: nodes * gpus, root: Rank(0), buffers };
    let shape = Shape {
        channels,
        ranks_per_node: gpus,
        ranks_per_team: gpus,
        nics_per_node: 8,
        ..Shape::new(call, Protocol::Simple)
    };
    Case { algorithm: Algorithm::Nvls, shape }
}

/// Returns an all_reduce by chains in hosts, whose ends are connected by the switches of the network.
fn chain(nodes: u32, gpus: u32, bytes: u64, channels: u16) -> Case {
    let case = nvls(nodes, gpus, bytes, channels, BufferUse::OutOfPlace);
    Case { algorithm: Algorithm::CollnetChain, shape: Shape { ranks_per_team: 0, ..case.shape } }
}

fn capabilities(testbed: &Testbed, in_network: InNetwork) -> FabricCapabilities {
    let fabric = &testbed.fabric;
    FabricCapabilities::new(fabric, &testbed.router(), fabric.gpus(), testbed.per_host(), in_network)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Every rank sends and receives the bytes once, for any number of hosts: latency of the path, plus bytes/B.
    #[test]
    fn all_reduce_in_one_switch_matches_closed_form(ranks in 2u32..40, kib in 1u64..2000, chunks in 1u32..9, in_place: bool) {
        let bytes = kib * 1024 * u64::from(chunks);
        let testbed = Testbed::ideal(single_gpus(ranks));
        let buffers = if in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace };
        let generator = SwitchAllReduce::new(ranks, bytes, chunks, buffers);
        let schedule = Schedule::build(&generator).unwrap();
        prop_assert!(verify(&schedule, &VerifyOptions::default()).is_ok());
        let timeline = testbed.run(&generator, Folding::Off).unwrap();
        prop_assert_eq!(timeline.time, testbed.run(&generator, Folding::WhereProved).unwrap().time);
        prop_assert_eq!(timeline.time, Picos(600_000 + bytes));
        for &gpu in testbed.fabric.gpus() {
            let link = testbed.fabric.outgoing_links(gpu)[0];
            for link in [link, link.reverse()] {
                let used = timeline.utilization.iter().find(|used| used.resource == Resource::Link(link)).unwrap();
                prop_assert!((used.bytes - bytes as f64).abs() < 1.0, "{link:?}: {}", used.bytes);
            }
        }
        // This is also the lower bound.
        let bounds = Bounds::new(&testbed.fabric, &testbed.router(), testbed.fabric.gpus(), 0);
        prop_assert_eq!(bounds.bound(&generator.header.call).time, timeline.time);
    }

    /// No time is below the lower bound, whatever the network, and folding does not change it. Times without reduction in
    /// the network are bounded by the same bounds.
    #[test]
    fn nvls_over_hosts_is_never_below_its_bound(
        nodes in 2u32..6,
        gpus in 2u32..=8,
        bytes in prop_oneof![1u64..100_000, 1u64 << 20..1 << 26],
        channels in 1u16..5,
        network in select(vec![
            "rail", "rail,oversubscription=2,radix=4", "rail,nics_per_node=2", "rail,nics_per_node=4,radix=4,ecmp=2",
            "fat_tree,nics_per_node=4", "fat_tree,nics_per_node=2,radix=4,oversubscription=3", "torus,nics_per_node=2",
            "dragonfly,nics_per_node=4",
        ]),
        profile in select(vec!["ideal", "nccl-2.28-h200"]),
        slowed in prop::option::of(any::<prop::sample::Index>()),
        in_place: bool,
    ) {
        let mut fabric = cluster("hgx-h200", nodes, gpus, &format!("{network},sharp=true"));
        if let Some(index) = slowed {
            fabric = fabric.with_slowed(index.get::<String>(&fabric.link_names()), 0.5).unwrap();
        }
        let testbed = Testbed { profile: Profile::named(profile).unwrap(), ..Testbed::ideal(fabric) };
        let buffers = if in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace };
        let mut case = nvls(nodes, gpus, bytes, channels, buffers);
        case.shape.chunk = Some(Bytes(128 << 10));
        let abilities = capabilities(&testbed, InNetwork::Allowed);
        prop_assert_eq!(check_combination(case.algorithm, Protocol::Simple, Collective::AllReduce, &abilities), Ok(()));
        let timeline = testbed.run(&*case.generator(), Folding::Off).unwrap();
        prop_assert_eq!(timeline.time, testbed.run(&*case.generator(), Folding::WhereProved).unwrap().time);
        let bounds = Bounds::new(&testbed.fabric, &testbed.router(), testbed.fabric.gpus(), 0);
        let bound = bounds.bound(&case.shape.call);
        prop_assert!(timeline.time >= bound.time, "{:?} < {bound:?}", timeline.time);
        for algorithm in [Algorithm::CollnetChain, Algorithm::NvlsTree, Algorithm::Ring] {
            let other = Case { algorithm, ..case.clone() };
            let time = testbed.run(&*other.generator(), Folding::WhereProved).unwrap().time;
            prop_assert!(time >= bound.time, "{algorithm}: {time:?} < {bound:?}");
            if algorithm == Algorithm::CollnetChain {
                prop_assert_eq!(time, testbed.run(&*other.generator(), Folding::Off).unwrap().time);
            }
        }
    }
}

/// With one loop: 2(L + bytes/B) inside, and L' + bytes/(g·B') between the hosts.
#[test]
fn nvls_over_hosts_matches_closed_form() {
    let bytes = 9 << 23;
    for nodes in [2, 4, 9] {
        let testbed = Testbed::ideal(cluster("hgx-h200", nodes, 8, "rail,sharp=true"));
        let one_host = Testbed::ideal(load(&FabricRequest::new("hgx-h200")).unwrap());
        let inside =
            one_host.run(&*nvls(1, 8, bytes, 1, BufferUse::OutOfPlace).generator(), Folding::Off).unwrap().time;
        let router = testbed.router();
        let [a, b] = [0, 8].map(|rank| testbed.fabric.gpus()[rank]);
        let path = router.path(a, b).unwrap();
        let between = path.latency + path.bandwidth.unwrap().transfer_time(Bytes(bytes / 8));
        let time =
            testbed.run(&*nvls(nodes, 8, bytes, 1, BufferUse::OutOfPlace).generator(), Folding::Off).unwrap().time;
        assert!(time.0.abs_diff((inside + between).0) <= 4, "{nodes}: {time:?}, {inside:?} + {between:?}");
    }
}

/// With one loop and one lane: 2(g−1)(L + bytes/B) in the chain, and L' + bytes/B' between the heads; with one GPU per
/// host only the latter.
#[test]
fn collnet_chain_matches_closed_form() {
    let bytes = 1 << 23;
    for (nodes, gpus) in [(2, 1), (5, 1), (3, 4), (2, 8)] {
        let testbed = Testbed::ideal(cluster("hgx-h200", nodes, gpus, "rail,sharp=true"));
        let router = testbed.router();
        let time_between = |a: u32, b: u32| {
            let path = router.path(testbed.fabric.gpus()[a as usize], testbed.fabric.gpus()[b as usize]).unwrap();
            (path.latency + path.bandwidth.unwrap().transfer_time(Bytes(bytes))).0
        };
        let hop = if gpus > 1 { time_between(0, 1) } else { 0 };
        let expected = 2 * u64::from(gpus - 1) * hop + time_between(0, gpus);
        let time = testbed.run(&*chain(nodes, gpus, bytes, 1).generator(), Folding::WhereProved).unwrap().time;
        assert!(time.0.abs_diff(expected) <= 20, "{nodes} × {gpus}: {time:?}, not {expected}");
    }
}

/// A link of twice the latency or half the bandwidth anywhere delays all ranks, and a failed switch leaves no route or a
/// longer time.
#[test]
fn slower_or_failed_switches_do_not_reduce_the_time() {
    let healthy = cluster("hgx-h200", 3, 4, "rail,sharp=true");
    let case = nvls(3, 4, 1 << 24, 2, BufferUse::OutOfPlace);
    let time = |fabric: &Fabric| Testbed::ideal(fabric.clone()).run(&*case.generator(), Folding::WhereProved);
    let usual = time(&healthy).unwrap().time;
    for link in ["n1/nic2->leaf2", "leaf2->n1/nic2"] {
        assert!(time(&healthy.with_slowed(link, 0.5).unwrap()).unwrap().time > usual, "{link}");
    }
    for failed in ["leaf2", "n1/nic2", "spine0"] {
        match time(&healthy.with_failed(failed).unwrap()) {
            Ok(timeline) => assert!(timeline.time >= usual, "{failed}"),
            Err(SimulateError::Lower(LowerError::Unreachable(_))) => {}
            Err(error) => panic!("{failed}: {error}"),
        }
    }
}

#[test]
fn reduction_between_hosts_needs_switches_that_support_it() {
    let (sharp, plain) = ("rail,sharp=true", "rail");
    let abilities = |network, in_network| capabilities(&Testbed::ideal(cluster("hgx-h200", 2, 8, network)), in_network);
    let reduction = |network, in_network| abilities(network, in_network).network_reduction;
    assert_eq!(reduction(sharp, InNetwork::Allowed), Ok(()));
    assert_eq!(reduction(sharp, InNetwork::Off), Err(NoNetworkReduction::SwitchedOff));
    assert_eq!(reduction(plain, InNetwork::Allowed), Err(NoNetworkReduction::NoInNetworkOperations));
    let refused = |collective, network| {
        check_combination(Algorithm::Nvls, Protocol::Simple, collective, &abilities(network, InNetwork::Allowed))
    };
    assert_eq!(refused(Collective::AllReduce, sharp), Ok(()));
    assert_eq!(refused(Collective::AllReduce, plain), Err(Mismatch::NeedsOneDomain));
    assert_eq!(refused(Collective::AllGather, sharp), Err(Mismatch::NeedsOneDomain));

    let testbed = Testbed::ideal(cluster("hgx-h200", 2, 8, plain));
    let result = testbed.run(&*nvls(2, 8, 1 << 20, 1, BufferUse::OutOfPlace).generator(), Folding::Off);
    assert!(matches!(result, Err(SimulateError::Lower(LowerError::NoMulticast { .. }))), "{result:?}");
}

/// NCCL uses the network only if a variable permits it and the switches reduce; several permitted algorithms are not
/// distinguished.
#[test]
fn nccl_uses_a_network_that_reduces_if_enabled() {
    let call = |nodes: u32| {
        let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
        Call { collective, bytes: Bytes(1 << 30), ranks: 8 * nodes, root: Rank(0), buffers }
    };
    let choose = |nodes: u32, network: &str, env: &str| {
        let fabric = cluster("hgx-h100", nodes, 8, network);
        let router = Router::new(&fabric, RouteOptions::default());
        let (settings, unknown) = Settings::parse(env).unwrap();
        assert_eq!(unknown, [] as [String; 0]);
        let conditions = Conditions { settings, ..Conditions::default() };
        let library: Library = "nccl-2.28.9".parse().unwrap();
        let choice = Chooser::new(library, &fabric, &router, fabric.gpus(), conditions).choose(&call(nodes));
        choice.map(|choice| choice.strategy)
    };
    let usual = choose(8, "rail", "").unwrap();
    assert_eq!(usual.algorithm, Algorithm::NvlsTree);
    for (network, env) in [
        ("rail,sharp=true", ""),
        ("rail,sharp=true", "NCCL_COLLNET_ENABLE=0"),
        ("rail,sharp=true", "NCCL_COLLNET_ENABLE=1 NCCL_COLLNET_NODE_THRESHOLD=9"),
        ("rail", "NCCL_COLLNET_ENABLE=1"),
    ] {
        assert_eq!(choose(8, network, env), Ok(usual), "{network} {env}");
    }
    for (algo, expected) in [("NVLS", Algorithm::Nvls), ("CollNetChain", Algorithm::CollnetChain)] {
        let strategy = choose(8, "rail,sharp=true", &format!("NCCL_COLLNET_ENABLE=1 NCCL_ALGO={algo}")).unwrap();
        assert_eq!((strategy.algorithm, strategy.protocol), (expected, Protocol::Simple));
    }
    let ring = choose(8, "rail,sharp=true", "NCCL_COLLNET_ENABLE=1 NCCL_ALGO=Ring").unwrap();
    assert_eq!(ring.algorithm, Algorithm::Ring);
    let several = choose(8, "rail,sharp=true", "NCCL_COLLNET_ENABLE=1");
    assert!(matches!(several, Err(Unknown::CollNet { .. })), "{several:?}");
    let direct = choose(8, "rail,sharp=true", "NCCL_COLLNET_ENABLE=1 NCCL_ALGO=CollNetDirect");
    assert!(matches!(direct, Err(Unknown::NoSchedule { .. })), "{direct:?}");
}

#[test]
fn formats_without_network_switches_refuse_their_operations() {
    let schedule = chain(2, 4, 1 << 20, 1).schedule();
    for format in [Format::MscclXml, Format::Mscclpp] {
        let error = write(&schedule, format).unwrap_err().to_string();
        assert!(error.contains("switch_all_reduce"), "{format:?}: {error}");
    }
    assert!(write(&schedule, Format::Json).is_ok());
}
