//! Tests of lower bounds from one rank's program (`lower::RankBound`): they match closed forms, and never exceed the
//! whole schedule's time.

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_sim::Folding;
use fabricast_sim::lower::{Environment, RankBound};
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_topologies::{Bytes, Picos};
use proptest::prelude::*;
use proptest::sample::select;

use crate::generators::Case;
use crate::testbed::{FabricSpec, Testbed};

/// Returns H200 hosts on rails of 400 Gb/s, with one NIC per GPU.
fn rails(nodes: u32, gpus: u32) -> Testbed {
    let fabric = FabricSpec::Hosts { preset: "hgx-h200", nodes, gpus, network: "rail" }.build();
    Testbed { profile: Profile::named("nccl-2.28-h200").unwrap(), ..Testbed::ideal(fabric) }
}

fn case(
    testbed: &Testbed,
    (algorithm, collective): (Algorithm, Collective),
    protocol: Protocol,
    (bytes, channels): (u64, u16),
) -> Case {
    let buffers = BufferUse::OutOfPlace;
    let call = Call { collective, bytes: Bytes(bytes), ranks: testbed.ranks(), root: Rank(0), buffers };
    let shape = Shape { channels, ranks_per_node: testbed.per_host(), nics_per_node: 8, ..Shape::new(call, protocol) };
    Case { algorithm, shape }
}

/// Returns the lower bound from one rank, without start-up; `None` if one rank gives no bound.
fn bound_from_rank(testbed: &Testbed, case: &Case, rank: u32) -> Option<Picos> {
    let (router, placement) = (testbed.router(), testbed.placement());
    let (fabric, profile) = (&testbed.fabric, &testbed.profile);
    let setting = Environment { fabric, router: &router, placement: &placement, profile, delays: &[] };
    let generator = case.generator();
    let bound = RankBound::new(setting)?.lower_bound(&*generator, Rank(rank));
    let threads = profile.protocol(case.shape.protocol).threads;
    let startup = profile.protocol(case.shape.protocol).startup(
        case.shape.call.collective,
        threads,
        generator.header().concurrent_peers(),
    );
    Some(Picos(bound.0 - startup.0))
}

/// Every rank receives a separate message from each rank of other hosts, at the proxy's cost per message: on each
/// channel, and in a direct exchange on one of few channels, which the hosts share.
#[test]
fn messages_to_ranks_of_other_hosts_bound_the_time() {
    let mut testbed = rails(4, 8);
    // The costs are chosen to be divisible by the bytes.
    let message = Picos(500_000);
    testbed.profile.network.message = message;
    for (combination, times) in [
        ((Algorithm::Direct, Collective::AllToAll), 1),
        ((Algorithm::OneShot, Collective::AllReduce), 1),
        ((Algorithm::TwoShot, Collective::AllReduce), 2),
    ] {
        for channels in [1u16, 3] {
            let case = case(&testbed, combination, Protocol::Symmetric, (3 * 32 * 32, channels));
            let lanes = if combination.0 == Algorithm::Direct { 1 } else { channels };
            let expected = 24 * times * u64::from(lanes) * message.0;
            assert_eq!(
                bound_from_rank(&testbed, &case, 5),
                Some(Picos(expected)),
                "{combination:?} on {channels} channels"
            );
        }
    }
}

/// The last rank of a host sends all ring traffic through its NIC, the others none.
#[test]
fn ring_is_bound_by_the_last_ranks_nic() {
    let testbed = rails(2, 8);
    let bytes = 1u64 << 30;
    let ring = case(&testbed, (Algorithm::Ring, Collective::AllReduce), Protocol::Simple, (bytes, 1));
    let sent = bytes as f64 * 2.0 * 15.0 / 16.0;
    let rate = 50e9 * testbed.profile.links.network;
    let expected = sent / rate * 1e12;
    let bound = bound_from_rank(&testbed, &ring, 7).unwrap().0 as f64;
    assert!((bound / expected - 1.0).abs() < 1e-5, "{bound} against {expected}");
    let nvlink_time = sent / (450e9 * testbed.profile.links.nvlink) * 1e12;
    let bound = bound_from_rank(&testbed, &ring, 6).unwrap().0 as f64;
    assert!((bound / nvlink_time - 1.0).abs() < 1e-5, "{bound} against {nvlink_time}");
}

#[test]
fn single_hosts_give_no_bound() {
    let testbed = rails(1, 8);
    let ring = case(&testbed, (Algorithm::Ring, Collective::AllReduce), Protocol::Simple, (1 << 20, 1));
    assert_eq!(bound_from_rank(&testbed, &ring, 0), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// No rank's lower bound exceeds the time of its schedule.
    #[test]
    fn no_ranks_bound_exceeds_the_schedules_time(
        (nodes, gpus) in (2u32..=4, 1u32..=8),
        combination in select(vec![
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
        let testbed = rails(nodes, gpus);
        let case = case(&testbed, combination, protocol, (bytes, channels));
        let Ok(generator) = generator(case.algorithm, &case.shape) else { return Ok(()) };
        let timeline = testbed.run(&*generator, Folding::WhereProved).unwrap();
        let time = (timeline.time - timeline.launch).0;
        let threads = testbed.profile.protocol(protocol).threads;
        let startup = testbed.profile.protocol(protocol).startup(combination.1, threads, generator.header().concurrent_peers());
        for rank in 0..testbed.ranks() {
            if let Some(bound) = bound_from_rank(&testbed, &case, rank) {
                prop_assert!(bound.0 + startup.0 <= time, "rank {rank}: {bound:?} of {time}");
            }
        }
    }
}
