//! Concurrent schedules: independent ones do not affect each other, sharing ones are slower, and neither folding nor
//! their order changes a time.

use fabricast_planner::algorithm::Algorithm;
use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Setting;
use fabricast_sim::schedule::Collective;
use fabricast_sim::{Folding, LaunchMode, Party, Surroundings, simulate_together};
use fabricast_topologies::{Bandwidth, Fabric, FabricRequest, NodeId, Picos, load};
use proptest::prelude::*;

use crate::generators::Case;
use crate::worlds::{Order, World, orders, plain, switch};

fn hosts(nodes: u32) -> Fabric {
    let network = Some("rail,nics_per_node=8".parse().unwrap());
    load(&FabricRequest { nodes: Some(nodes), network, ..FabricRequest::of("hgx-h200") }).unwrap()
}

/// Times of concurrent calls on groups of devices.
fn together(world: &World, calls: &[(Case, Vec<NodeId>)], folding: Folding) -> Vec<Picos> {
    let router = world.router();
    let generators: Vec<_> = calls.iter().map(|(case, _)| case.generator()).collect();
    let parties: Vec<Party<'_>> = generators
        .iter()
        .zip(calls)
        .map(|(generator, (_, placement))| Party {
            generator: generator.as_ref(),
            setting: Setting {
                fabric: &world.fabric,
                router: &router,
                placement,
                profile: &world.profile,
                delays: &[],
            },
        })
        .collect();
    let surroundings = Surroundings { folding, ..Surroundings::default() };
    let timeline = simulate_together(&parties, LaunchMode::default(), surroundings, Watch::default()).unwrap();
    assert_eq!(timeline.party_times.iter().max(), Some(&timeline.time));
    timeline.party_times
}

/// A call on the GPUs `numbers` of a world.
fn call(world: &World, order: &Order, numbers: &[usize]) -> (Case, Vec<NodeId>) {
    let placement: Vec<NodeId> = numbers.iter().map(|&number| world.fabric.gpus()[number]).collect();
    (order.over(placement.len() as u32, placement.len() as u32), placement)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn groups_on_different_hosts_do_not_interfere(first in orders(), second in orders(), gpus in 2usize..=8) {
        let world = World::ideal(hosts(2));
        let own: Vec<usize> = (0..gpus).collect();
        let other: Vec<usize> = (8..16).collect();
        let calls = [call(&world, &first, &own), call(&world, &second, &other)];
        let both = together(&world, &calls, Folding::Off);
        for (time, call) in both.iter().zip(calls) {
            prop_assert_eq!(*time, together(&world, &[call], Folding::Off)[0]);
        }
    }

    #[test]
    fn neither_folding_nor_order_changes_a_time(first in orders(), second in orders(), split in 1usize..8) {
        let world = World::ideal(hosts(2));
        // Interleaved over both hosts, so that the groups share NICs and switches.
        let numbers: Vec<usize> = (0..16).map(|i| i % 2 * 8 + i / 2).collect();
        let (own, other) = numbers.split_at(2 * split);
        let calls = [call(&world, &first, own), call(&world, &second, other)];
        let times = together(&world, &calls, Folding::Off);
        for folding in [Folding::WhereProved, Folding::BlocksFirst] {
            prop_assert_eq!(&times, &together(&world, &calls, folding));
        }
        let [a, b] = calls;
        let turned = together(&world, &[b, a], Folding::WhereProved);
        prop_assert_eq!(times, turned.into_iter().rev().collect::<Vec<_>>());
    }

    /// Groups that run one schedule on shared routes: one block of each represents all of its blocks.
    #[test]
    fn first_blocks_represent_all_blocks_of_a_group(order in orders(), channels in 1u16..=6) {
        let world = World::ideal(hosts(2));
        let groups = [0, 1, 2].map(|i| [i, i + 8, (i + 1) % 3 + 8, i + 4].map(|number| world.fabric.gpus()[number]));
        let mut case = order.over(4, 4);
        case.shape.channels = channels;
        let generator = case.generator();
        let router = world.router();
        let setting = |placement| Setting { fabric: &world.fabric, router: &router, placement, profile: &world.profile, delays: &[] };
        let parties = groups.each_ref().map(|group| Party { generator: generator.as_ref(), setting: setting(group) });
        let [whole, one] = [Folding::Off, Folding::BlocksFirst].map(|folding| {
            let surroundings = Surroundings { folding, ..Surroundings::default() };
            simulate_together(&parties, LaunchMode::default(), surroundings, Watch::default()).unwrap()
        });
        prop_assert_eq!((whole.party_times, whole.operations), (one.party_times, one.operations));
    }

    #[test]
    fn equal_groups_take_equal_time(order in orders(), count in 2usize..=4) {
        let world = World::ideal(hosts(4));
        let calls: Vec<_> = (0..count).map(|host| call(&world, &order, &(8 * host..8 * host + 8).collect::<Vec<_>>())).collect();
        let times = together(&world, &calls, Folding::WhereProved);
        prop_assert!(times.iter().all(|&time| time == times[0]), "{times:?}");
    }
}

#[test]
fn groups_that_share_a_rail_are_slower() {
    use fabricast_planner::algorithm::{Algorithm, Shape};
    use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
    use fabricast_topologies::Bytes;
    let world = World::ideal(hosts(2));
    let collective = Collective::SendRecv;
    let call = Call { collective, bytes: Bytes(1 << 30), ranks: 2, root: Rank(0), buffers: BufferUse::OutOfPlace };
    let case = Case { algorithm: Algorithm::Direct, shape: Shape::new(call, Protocol::Simple) };
    let gpu = |number: usize| world.fabric.gpus()[number];
    // GPU 0 and GPU 1 of the first host both send to GPU 0 of the second, whose NIC receives both.
    let pairs = [(case.clone(), vec![gpu(0), gpu(8)]), (case.clone(), vec![gpu(1), gpu(8)])];
    let alone = together(&world, &pairs[..1], Folding::Off)[0];
    let both = together(&world, &pairs, Folding::Off);
    assert!(both.iter().all(|time| time.0 as f64 > 1.9 * alone.0 as f64), "{both:?} against {alone:?}");
}

/// Two calls on the same ranks, as grouped calls of several communicators: each gets half of every port.
#[test]
fn calls_on_the_same_ranks_share_their_ports() {
    let world = World::ideal(switch(8, Bandwidth::from_gbps(80.0), Picos::from_ns(250.0)));
    let placement = world.placement();
    let case = plain(Algorithm::Direct, Collective::AllGather, 8, 64_000_000);
    let alone = together(&world, &[(case.clone(), placement.clone())], Folding::WhereProved);
    // To a picosecond per end.
    let is = |times: &[Picos], expected: &[f64]| {
        let near = |(time, &us): (&Picos, &f64)| time.0.abs_diff(Picos::from_us(us).0) <= 2 * 56;
        assert!(times.len() == expected.len() && times.iter().zip(expected).all(near), "{times:?}, not {expected:?}");
    };
    // 7/8 of 64 MB at 80 GB/s.
    is(&alone, &[700.5]);
    let both = [(case.clone(), placement.clone()), (case.clone(), placement.clone())];
    for folding in [Folding::Off, Folding::WhereProved] {
        is(&together(&world, &both, folding), &[1400.5; 2]);
    }
    // The shorter call runs at half the rate, and the rest of the longer one at the full rate.
    let short = plain(Algorithm::Direct, Collective::AllGather, 8, 16_000_000);
    let times = together(&world, &[(case, placement.clone()), (short, placement)], Folding::WhereProved);
    is(&times, &[875.5, 350.5]);
}
