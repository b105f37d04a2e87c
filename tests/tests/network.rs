//! Messages between hosts in closed form: what the proxies cost, once each, and inside a host nothing.
//!
//! Hosts have one GPU each, so that a broadcast over two of them is one connection. Under `ideal` with costs of the network
//! only, L is the latency of the path, B the bandwidth of a link, t the proxy's time for a message.

use fabricast_planner::algorithm::{Algorithm, Shape};
use fabricast_sim::Folding;
use fabricast_sim::profile::{NetworkCosts, Profile, largest_message};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_sim::sharing::WHOLE;
use fabricast_topologies::{Bandwidth, Bytes, FabricRequest, Picos, load};
use proptest::prelude::*;
use proptest::sample::select;

use crate::generators::Case;
use crate::worlds::World;

pub(crate) fn costs() -> impl Strategy<Value = NetworkCosts> {
    let time = || (0u64..20_000_000).prop_map(Picos);
    let scan = prop_oneof![Just(None), (1_000_000_000u64..20_000_000_000).prop_map(|rate| Some(Bandwidth(rate)))];
    (time(), time(), time(), time(), time(), scan).prop_map(|(post, fence, arrive, flush, message, scan)| {
        NetworkCosts { post, fence, arrive, flush, message, scan }
    })
}

fn world(preset: &str, gpus: u32, nodes: u32, network: NetworkCosts) -> World {
    let spec = (nodes > 1).then(|| "rail,nics_per_node=8,nic=400Gb/s".parse().unwrap());
    let request = FabricRequest { nodes: Some(nodes), gpus: Some(gpus), network: spec, ..FabricRequest::of(preset) };
    let fabric = load(&request).unwrap();
    World { profile: Profile { network, ..Profile::ideal() }, ..World::ideal(fabric) }
}

/// A broadcast in so many chunks of a size, on so many channels.
fn broadcast(world: &World, protocol: Protocol, chunk: u64, (loops, channels): (u64, u16)) -> f64 {
    let bytes = Bytes(chunk * loops * u64::from(channels));
    let call = Call {
        collective: Collective::Broadcast,
        bytes,
        ranks: world.ranks(),
        root: Rank(0),
        buffers: BufferUse::InPlace,
    };
    let shape = Shape { channels, chunk: Some(Bytes(chunk)), ..Shape::new(call, protocol) };
    let case = Case { algorithm: Algorithm::Ring, shape };
    world.run(&*case.generator(), Folding::WhereProved).unwrap().time.0 as f64
}

fn path(world: &World) -> f64 {
    let gpus = world.fabric.gpus();
    world.router().path(gpus[0], gpus[1]).unwrap().latency.0 as f64
}

/// Bytes a picosecond of the slowest link of the way.
fn rate(world: &World) -> f64 {
    let gpus = world.fabric.gpus();
    let path = world.router().path(gpus[0], gpus[1]).unwrap();
    let rates = path.hops.iter().filter_map(|hop| {
        let bandwidth = world.fabric.link(hop.link).bandwidth?;
        Some(bandwidth.0 as f64 * 1e-12 / hop.share.fraction())
    });
    rates.fold(f64::INFINITY, f64::min)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// k messages of c bytes on each of n channels: L + what a message waits for + n·k times the longer of t and c/B; the
    /// proxy of a GPU is one for all of its channels. GPUs before Hopper wait for a flush where a counter tells of data.
    #[test]
    fn messages_wait_once_and_take_the_proxy_each(
        network in costs(),
        protocol in select(vec![Protocol::Ll, Protocol::Ll128, Protocol::Simple]),
        (bytes, loops, channels) in (1u64..30_000, 1u64..6, 1u16..4),
        (preset, before_hopper) in select(vec![("hgx-h100", 0.0), ("dgx-a100", 1.0)]),
    ) {
        let world = world(preset, 1, 2, network);
        let time = broadcast(&world, protocol, bytes, (loops, channels));
        let scan = match network.scan {
            Some(rate) if protocol == Protocol::Ll => bytes as f64 * 1e12 / rate.0 as f64,
            _ => 0.0,
        };
        let waits = |costs: &[Picos]| costs.iter().map(|cost| cost.0 as f64).sum::<f64>();
        let waits = match protocol {
            Protocol::Ll => waits(&[network.post]),
            Protocol::Ll128 => waits(&[network.fence, network.post]),
            _ => waits(&[network.fence, network.post, network.arrive]) + before_hopper * network.flush.0 as f64,
        };
        let on_wire = bytes as f64 / rate(&world);
        let each = (network.message.0 as f64 + scan.floor()).max(on_wire);
        let expected = path(&world) + waits + each * loops as f64 * f64::from(channels);
        // What a byte takes of the proxy, in nanoseconds, is counted in parts of WHOLE and rounded up; so are shares of it.
        let rounded = 2.0 * bytes as f64 * 1e3 / WHOLE as f64 + 2.0;
        let rounded = rounded * f64::from(channels) * loops as f64 * f64::from(channels) + 1e-6 * expected;
        prop_assert!(time >= expected - 2.0 && time - expected <= rounded, "{time} and {expected} + {rounded}");
    }

    /// The same inside a host costs what it costs without a network.
    #[test]
    fn inside_a_host_there_are_no_messages(network in costs(), bytes in 1u64..10_000_000, loops in 1u64..4) {
        let (with, without) = (world("hgx-h100", 2, 1, network), world("hgx-h100", 2, 1, NetworkCosts::FREE));
        let time = |world: &World| broadcast(world, Protocol::Simple, bytes, (loops, 1));
        prop_assert_eq!(time(&with), time(&without));
    }

    /// More bytes never take less.
    #[test]
    fn more_bytes_take_no_less(
        network in costs(),
        protocol in select(vec![Protocol::Ll, Protocol::Ll128, Protocol::Simple]),
        (less, more) in (1u64..4_000_000, 0u64..4_000_000),
    ) {
        let world = World {
            profile: Profile { network, ..Profile::named("nccl-2.28-h200").unwrap() },
            ..world("hgx-h200", 1, 2, network)
        };
        let time = |bytes| broadcast(&world, protocol, bytes, (1, 1));
        // What a byte takes of block and proxy, in nanoseconds, is counted in parts of WHOLE and rounded up.
        let rounded = 2.0 * (less + more) as f64 * 1e3 / WHOLE as f64 + 1.0;
        prop_assert!(time(less) <= time(less + more) + rounded);
    }
}

/// A message leaves when it is whole: the passes of its block come first, over at most a slot of the connection's buffer.
#[test]
fn a_message_leaves_when_it_is_whole() {
    let profile = Profile {
        network: NetworkCosts { post: Picos(1), ..NetworkCosts::FREE },
        ..Profile::named("nccl-2.28-h200").unwrap()
    };
    let free = Profile { network: NetworkCosts::FREE, ..profile.clone() };
    let time = |profile: &Profile, bytes| {
        let world = World { profile: profile.clone(), ..world("hgx-h200", 1, 2, NetworkCosts::FREE) };
        broadcast(&world, Protocol::Ll128, bytes, (1, 1))
    };
    let fill = |bytes| time(&profile, bytes) - time(&free, bytes) - 1.0;
    // Within the first pass nothing more is waited for.
    assert_eq!(fill(30_000), 0.0);
    let (half, whole, twice) = (fill(288_000), fill(576_000), fill(1_152_000));
    assert!(half > 0.0 && (whole / half - 2.0).abs() < 0.2, "{half} {whole}");
    assert_eq!((whole, largest_message(Protocol::Ll128)), (twice, Bytes(576_000)));
}
