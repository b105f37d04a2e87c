//! Lower bounds from one rank's program (`lower::OneRank`): closed forms, and never above the whole schedule's time.

use fabricast_planner::algorithm::{Algorithm, Shape, generator};
use fabricast_sim::Folding;
use fabricast_sim::lower::{OneRank, Setting};
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_topologies::{Bytes, Picos};
use proptest::prelude::*;
use proptest::sample::select;

use crate::generators::Case;
use crate::worlds::{Plant, World};

/// H200 hosts on rails of 400 Gb/s, one NIC per GPU.
fn rails(nodes: u32, gpus: u32) -> World {
    let fabric = Plant::Hosts { preset: "hgx-h200", nodes, gpus, network: "rail" }.build();
    World { profile: Profile::named("nccl-2.28-h200").unwrap(), ..World::ideal(fabric) }
}

fn case(
    world: &World,
    (algorithm, collective): (Algorithm, Collective),
    protocol: Protocol,
    (bytes, channels): (u64, u16),
) -> Case {
    let buffers = BufferUse::OutOfPlace;
    let call = Call { collective, bytes: Bytes(bytes), ranks: world.ranks(), root: Rank(0), buffers };
    Case { algorithm, shape: Shape { channels, ranks_per_node: world.per_host(), ..Shape::new(call, protocol) } }
}

/// Lower bound from one rank, without start-up; `None` if one rank gives no bound.
fn told(world: &World, case: &Case, rank: u32) -> Option<Picos> {
    let (router, placement) = (world.router(), world.placement());
    let (fabric, profile) = (&world.fabric, &world.profile);
    let setting = Setting { fabric, router: &router, placement: &placement, profile, delays: &[] };
    let generator = case.generator();
    let least = OneRank::new(setting)?.least(&*generator, Rank(rank));
    let threads = profile.protocol(case.shape.protocol).threads;
    let startup = profile.protocol(case.shape.protocol).startup(
        case.shape.call.collective,
        threads,
        generator.header().peers_at_once(),
    );
    Some(Picos(least.0 - startup.0))
}

/// Every rank receives a message of its own from each rank of other hosts, on each channel, at the proxy's cost per
/// message.
#[test]
fn messages_to_ranks_of_other_hosts_bound_the_time() {
    let world = rails(4, 8);
    let message = world.profile.network.message;
    assert!(message > Picos::ZERO);
    for (what, times) in [
        ((Algorithm::Direct, Collective::AllToAll), 1),
        ((Algorithm::OneShot, Collective::AllReduce), 1),
        ((Algorithm::TwoShot, Collective::AllReduce), 2),
    ] {
        for channels in [1u16, 3] {
            let case = case(&world, what, Protocol::Symmetric, (3 * 32 * 32, channels));
            let expected = 24 * times * u64::from(channels) * message.0;
            assert_eq!(told(&world, &case, 5), Some(Picos(expected)), "{what:?} on {channels} channels");
        }
    }
}

/// The last rank of a host sends all ring traffic through its NIC, the others none.
#[test]
fn ring_is_bound_by_the_last_ranks_nic() {
    let world = rails(2, 8);
    let bytes = 1u64 << 30;
    let ring = case(&world, (Algorithm::Ring, Collective::AllReduce), Protocol::Simple, (bytes, 1));
    let sent = bytes as f64 * 2.0 * 15.0 / 16.0;
    let rate = 50e9 * world.profile.links.network;
    let expected = sent / rate * 1e12;
    let found = told(&world, &ring, 7).unwrap().0 as f64;
    assert!((found / expected - 1.0).abs() < 1e-5, "{found} against {expected}");
    let inside = sent / (450e9 * world.profile.links.nvlink) * 1e12;
    let found = told(&world, &ring, 6).unwrap().0 as f64;
    assert!((found / inside - 1.0).abs() < 1e-5, "{found} against {inside}");
}

#[test]
fn single_hosts_give_no_bound() {
    let world = rails(1, 8);
    let ring = case(&world, (Algorithm::Ring, Collective::AllReduce), Protocol::Simple, (1 << 20, 1));
    assert_eq!(told(&world, &ring, 0), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// No rank's lower bound exceeds the time of its schedule.
    #[test]
    fn no_ranks_bound_exceeds_the_schedules_time(
        (nodes, gpus) in (2u32..=4, 1u32..=8),
        what in select(vec![
            (Algorithm::Direct, Collective::AllToAll),
            (Algorithm::Direct, Collective::AllGather),
            (Algorithm::Direct, Collective::ReduceScatter),
            (Algorithm::TwoShot, Collective::AllReduce),
            (Algorithm::Ring, Collective::AllReduce),
            (Algorithm::Tree, Collective::AllReduce),
            (Algorithm::GridRing, Collective::AllReduce),
            (Algorithm::GridRing, Collective::AllGather),
            (Algorithm::RecursiveHalvingDoubling, Collective::AllReduce),
            (Algorithm::Hierarchical, Collective::AllReduce),
            (Algorithm::Bruck, Collective::AllGather),
            (Algorithm::Tree, Collective::Broadcast),
        ]),
        protocol in select(vec![Protocol::Ll, Protocol::Ll128, Protocol::Simple, Protocol::Symmetric]),
        bytes in prop_oneof![1u64..1000, 1u64..20_000_000],
        channels in 1u16..9,
    ) {
        let world = rails(nodes, gpus);
        let case = case(&world, what, protocol, (bytes, channels));
        let Ok(generator) = generator(case.algorithm, &case.shape) else { return Ok(()) };
        let timeline = world.run(&*generator, Folding::WhereProved).unwrap();
        let whole = (timeline.time - timeline.launch).0;
        let threads = world.profile.protocol(protocol).threads;
        let startup = world.profile.protocol(protocol).startup(what.1, threads, generator.header().peers_at_once());
        for rank in 0..world.ranks() {
            if let Some(found) = told(&world, &case, rank) {
                prop_assert!(found.0 + startup.0 <= whole, "rank {rank}: {found:?} of {whole}");
            }
        }
    }
}
