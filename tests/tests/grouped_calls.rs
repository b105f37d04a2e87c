//! Groups of calls that NCCL runs as one kernel: channels, strategies and times.

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_collectives::strategy::Strategy;
use fabricast_libraries::nccl::{CallChoice, ChannelKind, ChannelRange, Function, GroupCall, place};
use fabricast_libraries::{Chooser, Conditions, Library, Unknown};
use fabricast_search::group_launch::{GroupInstance, GroupPart, simulate_group};
use fabricast_sim::engine::Watch;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_sim::{LaunchMode, ScheduleInstance, SimulationOptions};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bandwidth, Bytes, FabricRequest, Picos, load};
use proptest::prelude::*;

use crate::generators::Case;
use crate::testbed::{Testbed, switch};

fn all_reduce(bytes: u64, ranks: u32) -> Call {
    Call {
        collective: Collective::AllReduce,
        bytes: Bytes(bytes),
        ranks,
        root: Rank(0),
        buffers: BufferUse::OutOfPlace,
    }
}

/// Returns the times of the calls of a group of rings, and the time of the group.
fn group_times(testbed: &Testbed, calls: &[(u64, ChannelRange)]) -> (Vec<Picos>, Picos) {
    let (router, placement) = (testbed.router(), testbed.placement());
    let case = |&(bytes, range): &(u64, ChannelRange)| {
        let call = all_reduce(bytes, testbed.ranks());
        let shape = Shape { channels: range.count.max(1), ..Shape::new(call, Protocol::Ll) };
        Case { algorithm: Algorithm::Ring, shape }.generator()
    };
    let generators: Vec<_> = calls.iter().map(case).collect();
    let setting = testbed.environment(&router, &placement);
    let grouped: Vec<GroupInstance<'_>> = generators
        .iter()
        .zip(calls)
        .map(|(generator, &(bytes, channels))| {
            let part = GroupPart { instance: ScheduleInstance::new(generator.as_ref(), setting), channels };
            GroupInstance { parts: if bytes > 0 { vec![part] } else { Vec::new() } }
        })
        .collect();
    let timeline =
        simulate_group(&grouped, LaunchMode::default(), SimulationOptions::default(), Watch::default()).unwrap();
    (timeline.instance_times, timeline.time)
}

fn range(first: u16, count: u16) -> ChannelRange {
    ChannelRange { first, count }
}

/// A ring of eight ranks needs 14 steps of a latency and an eighth of the bytes. Calls on one channel follow each other,
/// and calls on different channels share the links.
#[test]
fn calls_of_a_group_match_closed_form() {
    let (bandwidth, latency) = (Bandwidth(100_000_000_000), Picos(500_000));
    let testbed = Testbed::ideal(switch(8, bandwidth, latency));
    // A link has two ends at the switch.
    let ring = |bytes: u64, sharing: u64| Picos(14 * (2 * latency.0 + bytes / 8 * 10 * sharing));
    let one = ring(1 << 20, 1);
    assert_eq!(group_times(&testbed, &[(1 << 20, range(0, 1))]).1, one);
    let (times, all) = group_times(&testbed, &[(1 << 20, range(0, 1)), (1 << 20, range(1, 1))]);
    assert_eq!((times, all), (vec![ring(1 << 20, 2); 2], ring(1 << 20, 2)));
    // The second half of a call waits for the call before it on its channel, the other half shares the links with that one.
    let half = ring(1 << 19, 1);
    let (times, all) = group_times(&testbed, &[(1 << 19, range(0, 1)), (1 << 20, range(0, 2))]);
    assert_eq!((times, all), (vec![ring(1 << 19, 2), all], Picos(ring(1 << 19, 2).0 + half.0)));
    let (times, all) = group_times(&testbed, &[(1 << 20, range(0, 1)), (1 << 20, range(0, 1)), (1 << 20, range(0, 1))]);
    assert_eq!((times, all), (vec![one, Picos(2 * one.0), Picos(3 * one.0)], Picos(3 * one.0)));
}

/// A late rank delays every call by at most its delay, and chains of calls have any length.
#[test]
fn a_late_rank_delays_a_chain_of_calls_once() {
    let on_time = Testbed::ideal(switch(4, Bandwidth(100_000_000_000), Picos(500_000)));
    let chain = [(1 << 10, range(0, 1)); 70];
    let one = group_times(&on_time, &chain[..1]).1;
    assert_eq!(group_times(&on_time, &chain).1, Picos(70 * one.0));
    let delay = Picos(3_000_000_000);
    let late = Testbed { delays: vec![Picos::ZERO, delay], ..on_time };
    let (times, all) = group_times(&late, &chain[..3]);
    assert!(times[0] <= delay + one && all <= delay + Picos(3 * one.0), "{times:?}");
}

/// A group starts its kernel once. A call that follows another one on its channels needs its start-up less an empty kernel.
#[test]
fn calls_of_a_group_are_launched_once() {
    let profile = Profile::named("nccl-2.28-h200").unwrap();
    let testbed = Testbed { profile, ..Testbed::ideal(switch(8, Bandwidth(450_000_000_000), Picos(300_000))) };
    let one = group_times(&testbed, &[(1 << 10, range(0, 1))]).1;
    let (times, all) = group_times(&testbed, &[(1 << 10, range(0, 1)), (1 << 10, range(0, 1))]);
    assert_eq!(times[0], one);
    assert_eq!(all, one + one - Picos(1_300_000));
    let (times, all) = group_times(&testbed, &[(1 << 10, range(0, 1)), (1 << 10, range(1, 1))]);
    assert!(all < one + Picos(200_000) && times[0] == times[1], "{all:?} and {one:?}");
}

/// NCCL discards calls without data: they take no time and change nothing for the others.
#[test]
fn empty_calls_of_a_group_take_no_time() {
    let profile = Profile::named("nccl-2.28-h200").unwrap();
    let testbed = Testbed { profile, ..Testbed::ideal(switch(8, Bandwidth(450_000_000_000), Picos(300_000))) };
    let one = group_times(&testbed, &[(1 << 10, range(0, 1))]).1;
    let (empty, data) = ((0, ChannelRange::EMPTY), (1 << 10, range(0, 1)));
    assert_eq!(group_times(&testbed, &[data, empty]), (vec![one, Picos::ZERO], one));
    assert_eq!(group_times(&testbed, &[empty, data, empty]), (vec![Picos::ZERO, one, Picos::ZERO], one));
    assert_eq!(group_times(&testbed, &[empty; 2]), (vec![Picos::ZERO; 2], Picos::ZERO));
}

#[test]
fn nccl_divides_its_channels_among_the_calls_of_a_group() {
    let fabric = load(&FabricRequest::new("hgx-h200")).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let nccl: Library = "nccl-2.28.9".parse().unwrap();
    let chooser = Chooser::new(nccl, &fabric, &router, fabric.gpus(), Conditions::default());
    let gather = |bytes| Call { collective: Collective::AllGather, ..all_reduce(bytes, 8) };
    let choose = |calls: &[Call]| {
        let choices = chooser.choose_group(calls).unwrap();
        choices.into_iter().map(|choice| (choice.call, choice.strategy, choice.placement.channels)).collect::<Vec<_>>()
    };
    // A single call is chosen as without a group.
    for bytes in [1 << 10, 1 << 20, 64 << 20] {
        let [(_, strategy, channels)] = choose(&[gather(bytes)])[..] else { panic!("one call") };
        assert_eq!((strategy, channels.first), (chooser.choose(&gather(bytes)).unwrap().strategy, 0), "{bytes}");
    }
    let four = choose(&[gather(64 << 20); 4]);
    // Parts are multiples of 2 KiB of a rank, so each call leaves the rest of its last channel's share to the next one.
    let ranges: Vec<(u16, u16)> = four.iter().map(|(_, _, channels)| (channels.first, channels.count)).collect();
    assert_eq!(ranges, [(0, 6), (5, 7), (11, 7), (17, 7)]);
    // Four calls of 2 MiB are chosen as one of 8 MiB would be.
    let joint = choose(&[gather(2 << 20); 4]);
    let alone = |bytes| chooser.choose(&gather(bytes)).unwrap().strategy.protocol;
    assert!(joint.iter().all(|(_, strategy, _)| strategy.protocol == alone(8 << 20)));
    assert_ne!(alone(2 << 20), alone(8 << 20));
    let send = Call { collective: Collective::SendRecv, ..all_reduce(1 << 20, 8) };
    assert!(matches!(chooser.choose_group(&[send]), Err(Unknown::GroupNotModelled { .. })));
    assert_eq!(chooser.choose_group(&[]), Ok(Vec::new()));
    // A call without data changes nothing for the others.
    let with_empty = choose(&[gather(64 << 20), gather(0), gather(64 << 20), gather(64 << 20), gather(64 << 20)]);
    let shape = |choices: &[(usize, Strategy, ChannelRange)]| {
        choices.iter().map(|&(_, strategy, channels)| (strategy, channels)).collect::<Vec<_>>()
    };
    assert_eq!(shape(&with_empty[..4]), shape(&four));
    assert_eq!((with_empty[4].0, with_empty[4].2.count), (1, 0));
}

proptest! {
    /// Calls are placed on existing channels, each where the one before ends or on the next channel, and every channel
    /// before the last used one has work.
    #[test]
    fn groups_fill_channels_in_order(
        sizes in proptest::collection::vec(prop_oneof![1u64..100_000, 1u64..1_000_000_000], 1..40),
        max_channels in 1u16..33,
        available in 1u16..65,
    ) {
        let chosen = |&bytes: &u64| CallChoice {
            call: GroupCall { function: Function::AllReduce, bytes: Bytes(bytes) },
            kind: ChannelKind::Usual,
            traffic_per_byte: 2,
            max_channels,
        };
        let calls: Vec<CallChoice> = sizes.iter().map(chosen).collect();
        let mut next = 0;
        for (placement, bytes) in place(&calls, 8, Bytes(32 << 10), |_| available).into_iter().zip(&sizes) {
            let ChannelRange { first, count } = placement.channels;
            prop_assert_eq!(placement.parts.iter().map(|part| part.bytes.0).sum::<u64>(), *bytes);
            let mut covered = first;
            for part in &placement.parts {
                prop_assert_eq!(part.channels.first, covered);
                covered += part.channels.count;
            }
            prop_assert_eq!(covered, first + count);
            prop_assert!(count >= 1 && first + count <= available, "{first} {count}");
            prop_assert!(first == next || first + 1 == next, "{first} after {next}");
            next = first + count;
        }
    }
}
