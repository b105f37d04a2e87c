//! Ranks that share devices: several ranks on a GPU (MPS), MIG instances, copy engines, and routes through host
//! memory. Closed forms, under the `ideal` profile unless software costs are under test.

use fabricast_planner::abilities::{Abilities, BuffersElsewhere, NoMulticast, NoPeerAccess};
use fabricast_planner::algorithm::{Algorithm, Shape};
use fabricast_planner::bound::InNetwork;
use fabricast_planner::strategy::{Mismatch, combination};
use fabricast_sim::lower::Resource;
use fabricast_sim::profile::{LaneSpeed, Profile};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_sim::{Folding, Timeline};
use fabricast_topologies::route::{BufferPlace, GpuDirect, PeerAccess};
use fabricast_topologies::{Bytes, Fabric, FabricRequest, NodeId, Picos, load, partition, read_text};
use proptest::prelude::*;

use crate::generators::Case;
use crate::worlds::World;

fn case(algorithm: Algorithm, collective: Collective, protocol: Protocol, world: &World, bytes: u64) -> Case {
    let call =
        Call { collective, bytes: Bytes(bytes), ranks: world.ranks(), root: Rank(0), buffers: BufferUse::InPlace };
    Case { algorithm, shape: Shape::new(call, protocol) }
}

/// Runs a case folded and unfolded, which must agree.
fn run(world: &World, case: &Case) -> Timeline {
    let timeline = world.run(&*case.generator(), Folding::Off).unwrap();
    assert_eq!(timeline.time, world.run(&*case.generator(), Folding::WhereProved).unwrap().time);
    timeline
}

fn used(timeline: &Timeline, resource: Resource) -> f64 {
    timeline.utilization.iter().find(|used| used.resource == resource).map_or(0.0, |used| used.bytes)
}

fn node(world: &World, id: &str) -> NodeId {
    world.fabric.device(id).unwrap()
}

/// GPUs with 1,000 GB/s of memory, 8 SMs and one copy engine, each connected by 50 GB/s of PCIe to a CPU with 200
/// GB/s.
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
fn close(found: Picos, exact: f64) -> Result<(), TestCaseError> {
    let off = found.0 as f64 - exact;
    prop_assert!((-1.0..=exact * 1e-9 + 16.0).contains(&off), "{found:?} against {exact} ps");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// All ranks on one GPU: everything they send is read and written in one memory.
    #[test]
    fn ranks_on_one_gpu_share_its_memory(ranks in 2u32..=12, kib in 1u64..4000) {
        let world = World { per_gpu: ranks, ..World::ideal(workstation(1)) };
        let bytes = kib * 1024 * u64::from(ranks);
        let case = case(Algorithm::Direct, Collective::AllGather, Protocol::Simple, &world, bytes);
        let timeline = run(&world, &case);
        // A byte takes a picosecond in a memory of 1,000 GB/s.
        let moved = bytes * u64::from(ranks - 1);
        prop_assert!((used(&timeline, Resource::Memory(NodeId(0))) - 2.0 * moved as f64).abs() < 1.0);
        close(timeline.time, 2.0 * moved as f64)?;
    }

    /// Ranks on two GPUs: traffic between the GPUs shares the single link of each, whichever rank sends it.
    #[test]
    fn ranks_on_one_gpu_share_its_links(per_gpu in 1u32..=6, kib in 64u64..4000) {
        let world = World { per_gpu, ..World::ideal(workstation(2)) };
        let ranks = u64::from(world.ranks());
        let bytes = kib * 1024 * ranks;
        let case = case(Algorithm::Direct, Collective::AllGather, Protocol::Simple, &world, bytes);
        let timeline = run(&world, &case);
        let crossing = u64::from(per_gpu) * u64::from(per_gpu) * (bytes / ranks);
        let up = world.fabric.find_link("gpu0->cpu").unwrap()[0];
        prop_assert!((used(&timeline, Resource::Link(up)) - crossing as f64).abs() < 1.0);
        close(timeline.time, crossing as f64 * 20.0 + 2_000_000.0)?;
    }

    /// Channels in excess of the SMs share them: n ranks × c channels on 8 SMs move what 8 channels would.
    #[test]
    fn channels_share_the_sms(per_gpu in 1u32..=4, channels in 1u16..=16, kib in 64u64..4000) {
        let mut profile = Profile::ideal();
        // 8 channels of 0.1 GB/s are the bottleneck.
        profile.protocols[Protocol::Simple as usize].lane =
            LaneSpeed::Rate("0.1 GB/s".parse().unwrap());
        let world = World { per_gpu, profile, ..World::ideal(workstation(2)) };
        let parts = u64::from(world.ranks()) * u64::from(channels);
        let bytes = kib * 1024 * parts;
        let mut case = case(Algorithm::Ring, Collective::AllGather, Protocol::Simple, &world, bytes);
        case.shape.channels = channels;
        let time = run(&world, &case).time;
        let steps = f64::from(world.ranks() - 1);
        let step = (bytes / parts) as f64 * 1e4;
        let crowd = f64::from(per_gpu * u32::from(channels)) / 8.0;
        let exact = steps * step * crowd.max(1.0);
        // Steps between ranks on the same GPU have no latency, others 2 µs.
        let off = time.0 as f64 - exact;
        prop_assert!(off >= -1.0 && off <= steps * 2_000_000.0 + exact * 1e-6 + 1e5, "{time:?} against {exact}");
    }

    /// Two GPUs send to each other concurrently over full-duplex links; with a single copy engine each, the
    /// directions are serialized.
    #[test]
    fn one_copy_engine_serializes_both_directions_through_host_memory(engines in 1u32..=3, kib in 64u64..4000) {
        let text = spec_of(&workstation(2), engines);
        let mut world = World::ideal(read_text(&text, "t.toml").unwrap());
        let bytes = 2 * kib * 1024;
        let case = case(Algorithm::Direct, Collective::AllGather, Protocol::CopyEngine, &world, bytes);
        let transfer = (bytes / 2) as f64 * 20.0;
        // Peer access: only the writer's engine is used.
        close(run(&world, &case).time, transfer + 2_000_000.0)?;
        // Staged: an engine at each end, each for half of the route.
        world.routes.p2p = PeerAccess::Off;
        let slower = if engines == 1 { 2.0 } else { 1.0 };
        close(run(&world, &case).time, slower * transfer + 2_000_000.0)?;
    }

    /// Through host memory, n GPUs share its bandwidth, and each byte uses it twice.
    #[test]
    fn staged_traffic_writes_and_reads_host_memory(gpus in 2u32..=12, kib in 64u64..4000, peers in any::<bool>()) {
        let mut world = World::ideal(workstation(gpus));
        world.routes.p2p = if peers { PeerAccess::Allowed } else { PeerAccess::Off };
        let bytes = kib * 1024 * u64::from(gpus);
        let case = case(Algorithm::Ring, Collective::AllGather, Protocol::Simple, &world, bytes);
        let timeline = run(&world, &case);
        let chunk = bytes / u64::from(gpus);
        let host = used(&timeline, Resource::Memory(node(&world, "cpu")));
        let steps = u64::from(gpus - 1);
        let (staged, per_step) = if peers {
            (0, chunk as f64 * 20.0)
        } else {
            (2 * bytes * steps, (chunk as f64 * 20.0).max((2 * bytes) as f64 * 5.0))
        };
        prop_assert!((host - staged as f64).abs() < 1.0, "{host} of {staged}");
        close(timeline.time, steps as f64 * (per_step + 2_000_000.0))?;
    }

    /// Instances of one GPU share its PCIe link in both directions, and do not use NVLink.
    #[test]
    fn instances_share_the_link_of_their_gpu(kib in 64u64..4000, instances in 2usize..=7) {
        let host = load(&FabricRequest { gpus: Some(1), ..FabricRequest::of("hgx-h200") }).unwrap();
        let cut = format!("gpu0={}", vec!["1g.18gb"; instances].join(","));
        let world = World::ideal(partition::apply(host, &[cut.parse().unwrap()]).unwrap());
        let bytes = kib * 1024 * instances as u64;
        let case = case(Algorithm::Direct, Collective::AllGather, Protocol::Simple, &world, bytes);
        let timeline = run(&world, &case);
        let moved = (bytes * (instances as u64 - 1)) as f64;
        for name in ["gpu0->pcie_switch0", "pcie_switch0->cpu0", "cpu0->pcie_switch0", "pcie_switch0->gpu0"] {
            let link = world.fabric.find_link(name).unwrap()[0];
            prop_assert!((used(&timeline, Resource::Link(link)) - moved).abs() < 1.0, "{name}");
        }
        let latency = world.router().path(world.fabric.gpus()[0], world.fabric.gpus()[1]).unwrap().latency;
        close(timeline.time, moved * 1e12 / 63e9 + latency.0 as f64)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// A ring all_reduce reads every contribution once over PCIe, in place as well, and writes what other ranks
    /// finished; NVLink carries as much as before.
    #[test]
    fn host_buffers_are_read_and_written_once(gpus in 2u32..=8, kib in 1u64..4000, in_place in any::<bool>()) {
        let host = load(&FabricRequest { gpus: Some(gpus), ..FabricRequest::of("hgx-h200") }).unwrap();
        let mut world = World::ideal(host);
        let bytes = kib * 1024 * u64::from(gpus);
        let mut case = case(Algorithm::Ring, Collective::AllReduce, Protocol::Ll, &world, bytes);
        case.shape.call.buffers = if in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace };
        let at_home = run(&world, &case);
        world.routes.buffers = BufferPlace::Pinned;
        let timeline = run(&world, &case);
        let link = |name: &str| Resource::Link(world.fabric.find_link(name).unwrap()[0]);
        let others = (bytes - bytes / u64::from(gpus)) as f64;
        prop_assert!((used(&timeline, link("pcie_switch0->gpu0")) - bytes as f64).abs() < 1.0);
        prop_assert!((used(&timeline, link("gpu0->pcie_switch0")) - others).abs() < 1.0);
        prop_assert_eq!(used(&timeline, link("gpu0->nvswitch0")), used(&at_home, link("gpu0->nvswitch0")));
        prop_assert!(timeline.time > at_home.time);
        // Pageable memory is copied by the CPU first, which adds two uses of its memory per byte.
        let memory = |timeline: &Timeline| used(timeline, Resource::Memory(node(&world, "cpu0")));
        let pinned = memory(&timeline);
        let mut world = world.with_buffers(BufferPlace::Pageable);
        let pageable = used(&run(&world, &case), Resource::Memory(node(&world, "cpu0")));
        prop_assert!((pageable - 3.0 * pinned).abs() < 1.0, "{pageable} and {pinned}");
        // In the memory of another GPU, over NVLink: only that GPU's own rank has local buffers.
        world.routes.buffers = BufferPlace::Peer(node(&world, "gpu0"));
        let peer = run(&world, &case);
        prop_assert_eq!(used(&peer, Resource::Link(world.fabric.find_link("gpu0->pcie_switch0").unwrap()[0])), 0.0);
        prop_assert!(peer.time > at_home.time);
    }

    /// Direct exchange of host buffers: every block is read once per receiver and written once.
    #[test]
    fn host_blocks_are_read_once_per_receiver(gpus in 2u32..=8, kib in 1u64..400) {
        let host = load(&FabricRequest { gpus: Some(gpus), ..FabricRequest::of("hgx-h200") }).unwrap();
        let world = World::ideal(host).with_buffers(BufferPlace::Pinned);
        let bytes = kib * 1024 * u64::from(gpus);
        let case = case(Algorithm::Direct, Collective::AllGather, Protocol::Simple, &world, bytes);
        let timeline = run(&world, &case);
        let others = (bytes - bytes / u64::from(gpus)) as f64;
        for name in ["pcie_switch0->gpu0", "gpu0->pcie_switch0", "gpu0->nvswitch0"] {
            let link = Resource::Link(world.fabric.find_link(name).unwrap()[0]);
            prop_assert!((used(&timeline, link) - others).abs() < 1.0, "{name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// Pages of managed memory move to the GPU once, for any number of receiving ranks, and none moves back.
    #[test]
    fn managed_pages_move_once(gpus in 2u32..=8, kib in 1u64..400, in_place in any::<bool>(), channels in 1u16..3) {
        let host = load(&FabricRequest { gpus: Some(gpus), ..FabricRequest::of("hgx-h200") }).unwrap();
        let at_home = World::ideal(host.clone());
        let world = World::ideal(host).with_buffers(BufferPlace::Managed);
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
            let mut case = case(algorithm, collective, Protocol::Simple, &world, bytes);
            case.shape.channels = channels;
            case.shape.call.buffers = if in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace };
            let timeline = run(&world, &case);
            let link = |name: &str| used(&timeline, Resource::Link(world.fabric.find_link(name).unwrap()[0]));
            prop_assert_eq!(link("gpu0->pcie_switch0"), 0.0);
            let (found, most) = (link("pcie_switch0->gpu0"), moved + 1.0);
            // In place a rank does not read what it keeps.
            let least = if in_place { moved - block } else { moved };
            prop_assert!(least - 1.0 < found && found < most, "{algorithm} {collective}: {found}, not {least} to {most}");
            prop_assert!(timeline.time >= run(&at_home, &case).time, "{algorithm} {collective}");
        }
    }
}

#[test]
fn host_buffers_are_on_the_nearest_cpu_or_rejected() {
    let place = |preset: &str, buffers: BufferPlace, gpu: &str| {
        let world = World::ideal(load(&FabricRequest::of(preset)).unwrap()).with_buffers(buffers);
        let place = world.router().place_of_buffers(node(&world, gpu));
        place.map(|place| world.fabric.node(place).id.to_string()).map_err(|error| error.to_string())
    };
    assert_eq!(place("hgx-h200", BufferPlace::Pinned, "gpu2"), Ok("cpu0".to_owned()));
    assert_eq!(place("hgx-h200", BufferPlace::Pageable, "gpu5"), Ok("cpu1".to_owned()));
    assert_eq!(place("gh200", BufferPlace::Grace, "gpu3"), Ok("cpu3".to_owned()));
    assert!(place("hgx-h200", BufferPlace::Grace, "gpu0").unwrap_err().contains("no CPU by C2C"));
    let world = World::ideal(load(&FabricRequest::of("hgx-h200")).unwrap()).with_buffers(BufferPlace::Pinned);
    let placement = world.placement();
    let abilities = Abilities::of(&world.fabric, &world.router(), &placement, 8, InNetwork::Allowed);
    for (algorithm, protocol) in [(Algorithm::OneShot, Protocol::Symmetric), (Algorithm::Nvls, Protocol::Simple)] {
        let why = combination(algorithm, protocol, Collective::AllReduce, &abilities).unwrap_err();
        assert_eq!(why, Mismatch::BuffersElsewhere(BuffersElsewhere));
    }
    assert!(combination(Algorithm::Ring, Protocol::Simple, Collective::AllReduce, &abilities).is_ok());
}

/// Spec of a workstation with another number of copy engines.
fn spec_of(fabric: &Fabric, engines: u32) -> String {
    let spec = fabricast_topologies::write::spec::write(fabric).unwrap();
    spec.replace("copy_engines = 1", &format!("copy_engines = {engines}"))
}

#[test]
fn ranks_that_share_a_gpu_have_no_multicast() {
    let abilities = |world: &World| {
        let placement = world.placement();
        Abilities::of(&world.fabric, &world.router(), &placement, world.per_host(), InNetwork::Allowed).multicast
    };
    let host = load(&FabricRequest::of("hgx-h200")).unwrap();
    assert_eq!(abilities(&World::ideal(host.clone())), Ok(8));
    assert_eq!(abilities(&World { per_gpu: 2, ..World::ideal(host.clone()) }), Err(NoMulticast::Uneven));
    let cut = partition::apply(host, &["gpu3=7g.141gb".parse().unwrap()]).unwrap();
    assert_eq!(abilities(&World::ideal(cut)), Err(NoMulticast::NoSwitch));
}

#[test]
fn stores_into_peers_need_peer_access() {
    let host = load(&FabricRequest::of("hgx-h200")).unwrap();
    let why = |world: &World, protocol: Protocol| {
        let placement = world.placement();
        let abilities = Abilities::of(&world.fabric, &world.router(), &placement, world.per_host(), InNetwork::Allowed);
        combination(Algorithm::Direct, protocol, Collective::AllGather, &abilities).err()
    };
    let mut world = World { per_gpu: 2, ..World::ideal(host.clone()) };
    assert_eq!(why(&world, Protocol::Symmetric), None);
    world.routes.p2p = PeerAccess::Off;
    assert_eq!(why(&world, Protocol::Symmetric), Some(Mismatch::NoPeerAccess(NoPeerAccess::SwitchedOff)));
    // The driver copies through host memory; a kernel cannot store there for a peer.
    assert_eq!(why(&world, Protocol::CopyEngine), None);
    assert_eq!(why(&world, Protocol::Simple), None);
    let cut = World::ideal(partition::apply(host, &["gpu3=7g.141gb".parse().unwrap()]).unwrap());
    for protocol in [Protocol::Symmetric, Protocol::CopyEngine] {
        assert_eq!(why(&cut, protocol), Some(Mismatch::NoPeerAccess(NoPeerAccess::Mig)));
    }
    assert_eq!(why(&cut, Protocol::Ll), None);
}

/// Host memory used for staging: the receiver's CPU within a host; both ends' own CPUs if NICs cannot access GPU
/// memory.
#[test]
fn routes_are_staged_where_nccl_places_its_buffers() {
    let mut world = World::ideal(load(&FabricRequest { nodes: Some(2), ..FabricRequest::of("hgx-h200") }).unwrap());
    world.routes.p2p = PeerAccess::Off;
    world.routes.gdr = GpuDirect::Off;
    let stops = |from: &str, to: &str| {
        let path = world.router().path(node(&world, from), node(&world, to)).unwrap();
        let names: Vec<String> = path.staging.cpus().map(|cpu| world.fabric.node(cpu).id.to_string()).collect();
        (path.class.name(), names.join(" "))
    };
    assert_eq!(stops("n0/gpu0", "n0/gpu1"), ("PHB", "n0/cpu0".to_owned()));
    assert_eq!(stops("n0/gpu0", "n0/gpu7"), ("SYS", "n0/cpu1".to_owned()));
    assert_eq!(stops("n0/gpu7", "n0/gpu0"), ("SYS", "n0/cpu0".to_owned()));
    assert_eq!(stops("n0/gpu0", "n1/gpu7"), ("NET", "n0/cpu0 n1/cpu1".to_owned()));
    world.routes.gdr = GpuDirect::Allowed;
    let path = world.router().path(node(&world, "n0/gpu0"), node(&world, "n1/gpu0")).unwrap();
    assert_eq!(path.staging.cpus().count(), 0);
}
