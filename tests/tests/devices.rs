//! Tests of ranks that share devices: several ranks on a GPU (MPS), MIG instances, copy engines, and routes through
//! host memory. Times are compared with closed forms, under the `ideal` profile unless software costs are under test.

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_collectives::bound::InNetwork;
use fabricast_collectives::capabilities::{BuffersNotOnDevice, FabricCapabilities, NoMulticast, NoPeerAccess};
use fabricast_collectives::strategy::{Mismatch, check_combination};
use fabricast_sim::lower::Resource;
use fabricast_sim::profile::{ChannelLimit, Profile};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_sim::{Folding, Timeline};
use fabricast_topologies::route::{BufferLocation, GpuDirect, PeerAccess};
use fabricast_topologies::{Bytes, Fabric, FabricRequest, NodeId, Picos, load, partition, read_text};
use proptest::prelude::*;

use crate::generators::Case;
use crate::testbed::Testbed;

fn case(algorithm: Algorithm, collective: Collective, protocol: Protocol, testbed: &Testbed, bytes: u64) -> Case {
    let call =
        Call { collective, bytes: Bytes(bytes), ranks: testbed.ranks(), root: Rank(0), buffers: BufferUse::InPlace };
    Case { algorithm, shape: Shape::new(call, protocol) }
}

/// Runs a case folded and unfolded, which must agree, and returns the timeline.
fn run(testbed: &Testbed, case: &Case) -> Timeline {
    let timeline = testbed.run(&*case.generator(), Folding::Off).unwrap();
    assert_eq!(timeline.time, testbed.run(&*case.generator(), Folding::WhereProved).unwrap().time);
    timeline
}

fn bytes_carried(timeline: &Timeline, resource: Resource) -> f64 {
    timeline.utilization.iter().find(|used| used.resource == resource).map_or(0.0, |used| used.bytes)
}

fn node(testbed: &Testbed, id: &str) -> NodeId {
    testbed.fabric.device(id).unwrap()
}

/// Returns a fabric of GPUs with 1,000 GB/s of memory, 8 SMs and one copy engine, each connected by 50 GB/s of PCIe to
/// a CPU with 200 GB/s.
fn workstation(gpus: u32) -> Fabric {
    let text = format!(
        "[[node]]\nid = \"gpu[0-{}]\"\nkind = \"gpu\"\nmemory_bandwidth = \"1000 GB/s\"\nsm_count = 8\ncopy_engines = 1\n\
         [[node]]\nid = \"cpu\"\nkind = \"cpu\"\nmemory_bandwidth = \"200 GB/s\"\n\
         [[link]]\na = \"gpu[0-{}]\"\nb = \"cpu\"\nkind = \"pcie\"\nbandwidth = \"50 GB/s\"\nlatency = \"1 us\"\n",
        gpus - 1,
        gpus - 1
    );
    read_text(&text, "workstation.toml").unwrap()
}

/// Asserts equality within a picosecond per end and the rounding of rates.
fn assert_close(actual: Picos, exact: f64) -> Result<(), TestCaseError> {
    let error = actual.0 as f64 - exact;
    prop_assert!((-1.0..=exact * 1e-9 + 16.0).contains(&error), "{actual:?} against {exact} ps");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// If all ranks are on one GPU, all sent data is read and written in one memory.
    #[test]
    fn ranks_on_one_gpu_share_its_memory(ranks in 2u32..=12, kib in 1u64..4000) {
        let testbed = Testbed { per_gpu: ranks, ..Testbed::ideal(workstation(1)) };
        let bytes = kib * 1024 * u64::from(ranks);
        let case = case(Algorithm::Direct, Collective::AllGather, Protocol::Simple, &testbed, bytes);
        let timeline = run(&testbed, &case);
        // A byte needs a picosecond in a memory of 1,000 GB/s.
        let moved = bytes * u64::from(ranks - 1);
        prop_assert!((bytes_carried(&timeline, Resource::Memory(NodeId(0))) - 2.0 * moved as f64).abs() < 1.0);
        assert_close(timeline.time, 2.0 * moved as f64)?;
    }

    /// If ranks are on two GPUs, traffic between the GPUs shares the single link of each, whichever rank sends it.
    #[test]
    fn ranks_on_one_gpu_share_its_links(per_gpu in 1u32..=6, kib in 64u64..4000) {
        let testbed = Testbed { per_gpu, ..Testbed::ideal(workstation(2)) };
        let ranks = u64::from(testbed.ranks());
        let bytes = kib * 1024 * ranks;
        let case = case(Algorithm::Direct, Collective::AllGather, Protocol::Simple, &testbed, bytes);
        let timeline = run(&testbed, &case);
        let crossing = u64::from(per_gpu) * u64::from(per_gpu) * (bytes / ranks);
        let up = testbed.fabric.find_link("gpu0->cpu").unwrap()[0];
        prop_assert!((bytes_carried(&timeline, Resource::Link(up)) - crossing as f64).abs() < 1.0);
        assert_close(timeline.time, crossing as f64 * 20.0 + 2_000_000.0)?;
    }

    /// Channels in excess of the SMs share them: c channels of each of n ranks on 8 SMs have the rate of 8 channels.
    #[test]
    fn channels_share_the_sms(per_gpu in 1u32..=4, channels in 1u16..=16, kib in 64u64..4000) {
        let mut profile = Profile::ideal();
        // The bottleneck are 8 channels of 0.1 GB/s.
        profile.protocols[Protocol::Simple as usize].channel_limit =
            ChannelLimit::Rate("0.1 GB/s".parse().unwrap());
        let testbed = Testbed { per_gpu, profile, ..Testbed::ideal(workstation(2)) };
        let parts = u64::from(testbed.ranks()) * u64::from(channels);
        let bytes = kib * 1024 * parts;
        let mut case = case(Algorithm::Ring, Collective::AllGather, Protocol::Simple, &testbed, bytes);
        case.shape.channels = channels;
        let time = run(&testbed, &case).time;
        let steps = f64::from(testbed.ranks() - 1);
        let step = (bytes / parts) as f64 * 1e4;
        let oversubscription = f64::from(per_gpu * u32::from(channels)) / 8.0;
        let exact = steps * step * oversubscription.max(1.0);
        // Steps between ranks on the same GPU have no latency, others 2 µs.
        let error = time.0 as f64 - exact;
        prop_assert!(error >= -1.0 && error <= steps * 2_000_000.0 + exact * 1e-6 + 1e5, "{time:?} against {exact}");
    }

    /// Two GPUs send to each other concurrently over full-duplex links; with a single copy engine each, the
    /// directions are serialized.
    #[test]
    fn one_copy_engine_serializes_both_directions_through_host_memory(engines in 1u32..=3, kib in 64u64..4000) {
        let text = write_spec(&workstation(2), engines);
        let mut testbed = Testbed::ideal(read_text(&text, "t.toml").unwrap());
        let bytes = 2 * kib * 1024;
        let case = case(Algorithm::Direct, Collective::AllGather, Protocol::CopyEngine, &testbed, bytes);
        let transfer = (bytes / 2) as f64 * 20.0;
        // With peer access, only the writer's engine is used.
        assert_close(run(&testbed, &case).time, transfer + 2_000_000.0)?;
        // Staged transfers use an engine at each end, each for half of the route.
        testbed.routes.p2p = PeerAccess::Off;
        let factor = if engines == 1 { 2.0 } else { 1.0 };
        assert_close(run(&testbed, &case).time, factor * transfer + 2_000_000.0)?;
    }

    /// Through host memory, n GPUs share its bandwidth, and each byte uses it twice.
    #[test]
    fn staged_traffic_writes_and_reads_host_memory(gpus in 2u32..=12, kib in 64u64..4000, peers in any::<bool>()) {
        let mut testbed = Testbed::ideal(workstation(gpus));
        testbed.routes.p2p = if peers { PeerAccess::Allowed } else { PeerAccess::Off };
        let bytes = kib * 1024 * u64::from(gpus);
        let case = case(Algorithm::Ring, Collective::AllGather, Protocol::Simple, &testbed, bytes);
        let timeline = run(&testbed, &case);
        let chunk = bytes / u64::from(gpus);
        let host = bytes_carried(&timeline, Resource::Memory(node(&testbed, "cpu")));
        let steps = u64::from(gpus - 1);
        let (staged, per_step) = if peers {
            (0, chunk as f64 * 20.0)
        } else {
            (2 * bytes * steps, (chunk as f64 * 20.0).max((2 * bytes) as f64 * 5.0))
        };
        prop_assert!((host - staged as f64).abs() < 1.0, "{host} of {staged}");
        assert_close(timeline.time, steps as f64 * (per_step + 2_000_000.0))?;
    }

    /// Instances of one GPU share its PCIe link in both directions, and do not use NVLink.
    #[test]
    fn instances_share_the_link_of_their_gpu(kib in 64u64..4000, instances in 2usize..=7) {
        let host = load(&FabricRequest { gpus: Some(1), ..FabricRequest::new("hgx-h200") }).unwrap();
        let partitioning = format!("gpu0={}", vec!["1g.18gb"; instances].join(","));
        let testbed = Testbed::ideal(partition::apply(host, &[partitioning.parse().unwrap()]).unwrap());
        let bytes = kib * 1024 * instances as u64;
        let case = case(Algorithm::Direct, Collective::AllGather, Protocol::Simple, &testbed, bytes);
        let timeline = run(&testbed, &case);
        let moved = (bytes * (instances as u64 - 1)) as f64;
        for name in ["gpu0->pcie_switch0", "pcie_switch0->cpu0", "cpu0->pcie_switch0", "pcie_switch0->gpu0"] {
            let link = testbed.fabric.find_link(name).unwrap()[0];
            prop_assert!((bytes_carried(&timeline, Resource::Link(link)) - moved).abs() < 1.0, "{name}");
        }
        let latency = testbed.router().path(testbed.fabric.gpus()[0], testbed.fabric.gpus()[1]).unwrap().latency;
        assert_close(timeline.time, moved * 1e12 / 63e9 + latency.0 as f64)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// A ring all_reduce reads every contribution once over PCIe, in place as well, and writes what other ranks
    /// completed; NVLink carries as much as before.
    #[test]
    fn host_buffers_are_read_and_written_once(gpus in 2u32..=8, kib in 1u64..4000, in_place in any::<bool>()) {
        let host = load(&FabricRequest { gpus: Some(gpus), ..FabricRequest::new("hgx-h200") }).unwrap();
        let mut testbed = Testbed::ideal(host);
        let bytes = kib * 1024 * u64::from(gpus);
        let mut case = case(Algorithm::Ring, Collective::AllReduce, Protocol::Ll, &testbed, bytes);
        case.shape.call.buffers = if in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace };
        let device_run = run(&testbed, &case);
        testbed.routes.buffers = BufferLocation::Pinned;
        let timeline = run(&testbed, &case);
        let link = |name: &str| Resource::Link(testbed.fabric.find_link(name).unwrap()[0]);
        let others = (bytes - bytes / u64::from(gpus)) as f64;
        prop_assert!((bytes_carried(&timeline, link("pcie_switch0->gpu0")) - bytes as f64).abs() < 1.0);
        prop_assert!((bytes_carried(&timeline, link("gpu0->pcie_switch0")) - others).abs() < 1.0);
        prop_assert_eq!(bytes_carried(&timeline, link("gpu0->nvswitch0")), bytes_carried(&device_run, link("gpu0->nvswitch0")));
        prop_assert!(timeline.time > device_run.time);
        // Pageable memory is copied by the CPU first, which adds two uses of its memory per byte.
        let memory = |timeline: &Timeline| bytes_carried(timeline, Resource::Memory(node(&testbed, "cpu0")));
        let pinned = memory(&timeline);
        let mut testbed = testbed.with_buffers(BufferLocation::Pageable);
        let pageable = bytes_carried(&run(&testbed, &case), Resource::Memory(node(&testbed, "cpu0")));
        prop_assert!((pageable - 3.0 * pinned).abs() < 1.0, "{pageable} and {pinned}");
        // If the buffers are in the memory of another GPU, over NVLink, only that GPU's own rank has local buffers.
        testbed.routes.buffers = BufferLocation::Peer(node(&testbed, "gpu0"));
        let peer = run(&testbed, &case);
        prop_assert_eq!(bytes_carried(&peer, Resource::Link(testbed.fabric.find_link("gpu0->pcie_switch0").unwrap()[0])), 0.0);
        prop_assert!(peer.time > device_run.time);
    }

    /// In a direct exchange of host buffers, every block is read once per receiver and written once.
    #[test]
    fn host_blocks_are_read_once_per_receiver(gpus in 2u32..=8, kib in 1u64..400) {
        let host = load(&FabricRequest { gpus: Some(gpus), ..FabricRequest::new("hgx-h200") }).unwrap();
        let testbed = Testbed::ideal(host).with_buffers(BufferLocation::Pinned);
        let bytes = kib * 1024 * u64::from(gpus);
        let case = case(Algorithm::Direct, Collective::AllGather, Protocol::Simple, &testbed, bytes);
        let timeline = run(&testbed, &case);
        let others = (bytes - bytes / u64::from(gpus)) as f64;
        for name in ["pcie_switch0->gpu0", "gpu0->pcie_switch0", "gpu0->nvswitch0"] {
            let link = Resource::Link(testbed.fabric.find_link(name).unwrap()[0]);
            prop_assert!((bytes_carried(&timeline, link) - others).abs() < 1.0, "{name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// Pages of managed memory move to the GPU once, for any number of receiving ranks, and none moves back.
    #[test]
    fn managed_pages_move_once(gpus in 2u32..=8, kib in 1u64..400, in_place in any::<bool>(), channels in 1u16..3) {
        let host = load(&FabricRequest { gpus: Some(gpus), ..FabricRequest::new("hgx-h200") }).unwrap();
        let device_testbed = Testbed::ideal(host.clone());
        let testbed = Testbed::ideal(host).with_buffers(BufferLocation::Managed);
        let bytes = kib * 1024 * u64::from(gpus) * u64::from(channels);
        let block = (bytes / u64::from(gpus)) as f64;
        for (algorithm, collective, moved) in [
            (Algorithm::Direct, Collective::AllGather, block),
            (Algorithm::Ring, Collective::AllGather, block),
            (Algorithm::Direct, Collective::AllToAll, bytes as f64),
            (Algorithm::Pairwise, Collective::AllToAll, bytes as f64),
            (Algorithm::Ring, Collective::AllReduce, bytes as f64),
            (Algorithm::Tree, Collective::AllReduce, bytes as f64),
            (Algorithm::RecursiveDoubling, Collective::AllGather, block),
        ] {
            let mut case = case(algorithm, collective, Protocol::Simple, &testbed, bytes);
            case.shape.channels = channels;
            case.shape.call.buffers = if in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace };
            let timeline = run(&testbed, &case);
            let link = |name: &str| bytes_carried(&timeline, Resource::Link(testbed.fabric.find_link(name).unwrap()[0]));
            prop_assert_eq!(link("gpu0->pcie_switch0"), 0.0);
            let (actual, max) = (link("pcie_switch0->gpu0"), moved + 1.0);
            // In place, a rank does not read the block that it retains.
            let min = if in_place { moved - block } else { moved };
            prop_assert!(min - 1.0 < actual && actual < max, "{algorithm} {collective}: {actual}, not {min} to {max}");
            prop_assert!(timeline.time >= run(&device_testbed, &case).time, "{algorithm} {collective}");
        }
    }
}

#[test]
fn host_buffers_are_on_the_nearest_cpu_or_rejected() {
    let buffer_device = |preset: &str, buffers: BufferLocation, gpu: &str| {
        let testbed = Testbed::ideal(load(&FabricRequest::new(preset)).unwrap()).with_buffers(buffers);
        let buffer_device = testbed.router().buffer_device(node(&testbed, gpu));
        buffer_device
            .map(|buffer_device| testbed.fabric.node(buffer_device).id.to_string())
            .map_err(|error| error.to_string())
    };
    assert_eq!(buffer_device("hgx-h200", BufferLocation::Pinned, "gpu2"), Ok("cpu0".to_owned()));
    assert_eq!(buffer_device("hgx-h200", BufferLocation::Pageable, "gpu5"), Ok("cpu1".to_owned()));
    assert_eq!(buffer_device("gh200", BufferLocation::Grace, "gpu3"), Ok("cpu3".to_owned()));
    assert!(buffer_device("hgx-h200", BufferLocation::Grace, "gpu0").unwrap_err().contains("no CPU by C2C"));
    let testbed = Testbed::ideal(load(&FabricRequest::new("hgx-h200")).unwrap()).with_buffers(BufferLocation::Pinned);
    let placement = testbed.placement();
    let capabilities = FabricCapabilities::new(&testbed.fabric, &testbed.router(), &placement, 8, InNetwork::Allowed);
    for (algorithm, protocol) in [(Algorithm::OneShot, Protocol::Symmetric), (Algorithm::Nvls, Protocol::Simple)] {
        let mismatch = check_combination(algorithm, protocol, Collective::AllReduce, &capabilities).unwrap_err();
        assert_eq!(mismatch, Mismatch::BuffersElsewhere(BuffersNotOnDevice));
    }
    assert!(check_combination(Algorithm::Ring, Protocol::Simple, Collective::AllReduce, &capabilities).is_ok());
}

/// Returns the spec of a workstation with another number of copy engines.
fn write_spec(fabric: &Fabric, engines: u32) -> String {
    let spec = fabricast_topologies::write::spec::write(fabric).unwrap();
    spec.replace("copy_engines = 1", &format!("copy_engines = {engines}"))
}

#[test]
fn ranks_that_share_a_gpu_have_no_multicast() {
    let capabilities = |testbed: &Testbed| {
        let placement = testbed.placement();
        FabricCapabilities::new(&testbed.fabric, &testbed.router(), &placement, testbed.per_host(), InNetwork::Allowed)
            .multicast
    };
    let host = load(&FabricRequest::new("hgx-h200")).unwrap();
    assert_eq!(capabilities(&Testbed::ideal(host.clone())), Ok(8));
    assert_eq!(capabilities(&Testbed { per_gpu: 2, ..Testbed::ideal(host.clone()) }), Err(NoMulticast::UnequalDomains));
    let partitioned = partition::apply(host, &["gpu3=7g.141gb".parse().unwrap()]).unwrap();
    assert_eq!(capabilities(&Testbed::ideal(partitioned)), Err(NoMulticast::NoSwitch));
}

#[test]
fn stores_into_peers_need_peer_access() {
    let host = load(&FabricRequest::new("hgx-h200")).unwrap();
    let mismatch = |testbed: &Testbed, protocol: Protocol| {
        let placement = testbed.placement();
        let capabilities = FabricCapabilities::new(
            &testbed.fabric,
            &testbed.router(),
            &placement,
            testbed.per_host(),
            InNetwork::Allowed,
        );
        check_combination(Algorithm::Direct, protocol, Collective::AllGather, &capabilities).err()
    };
    let mut testbed = Testbed { per_gpu: 2, ..Testbed::ideal(host.clone()) };
    assert_eq!(mismatch(&testbed, Protocol::Symmetric), None);
    testbed.routes.p2p = PeerAccess::Off;
    assert_eq!(mismatch(&testbed, Protocol::Symmetric), Some(Mismatch::NoPeerAccess(NoPeerAccess::SwitchedOff)));
    // The driver copies through host memory; a kernel cannot store there for a peer.
    assert_eq!(mismatch(&testbed, Protocol::CopyEngine), None);
    assert_eq!(mismatch(&testbed, Protocol::Simple), None);
    let partitioned = Testbed::ideal(partition::apply(host, &["gpu3=7g.141gb".parse().unwrap()]).unwrap());
    for protocol in [Protocol::Symmetric, Protocol::CopyEngine] {
        assert_eq!(mismatch(&partitioned, protocol), Some(Mismatch::NoPeerAccess(NoPeerAccess::Mig)));
    }
    assert_eq!(mismatch(&partitioned, Protocol::Ll), None);
}

/// Host memory used for staging is that of the receiver's CPU within a host, and of both ends' own CPUs if NICs cannot
/// access GPU memory.
#[test]
fn routes_are_staged_where_nccl_places_its_buffers() {
    let mut testbed =
        Testbed::ideal(load(&FabricRequest { nodes: Some(2), ..FabricRequest::new("hgx-h200") }).unwrap());
    testbed.routes.p2p = PeerAccess::Off;
    testbed.routes.gdr = GpuDirect::Off;
    let staging = |from: &str, to: &str| {
        let path = testbed.router().path(node(&testbed, from), node(&testbed, to)).unwrap();
        let names: Vec<String> = path.staging.cpus().map(|cpu| testbed.fabric.node(cpu).id.to_string()).collect();
        (path.class.name(), names.join(" "))
    };
    assert_eq!(staging("n0/gpu0", "n0/gpu1"), ("PHB", "n0/cpu0".to_owned()));
    assert_eq!(staging("n0/gpu0", "n0/gpu7"), ("SYS", "n0/cpu1".to_owned()));
    assert_eq!(staging("n0/gpu7", "n0/gpu0"), ("SYS", "n0/cpu0".to_owned()));
    assert_eq!(staging("n0/gpu0", "n1/gpu7"), ("NET", "n0/cpu0 n1/cpu1".to_owned()));
    testbed.routes.gdr = GpuDirect::Allowed;
    let path = testbed.router().path(node(&testbed, "n0/gpu0"), node(&testbed, "n1/gpu0")).unwrap();
    assert_eq!(path.staging.cpus().count(), 0);
}
