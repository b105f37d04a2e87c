//! Tests of ranks that start late: if no two transfers share a capacity, a delayed rank delays the end by at most its
//! own delay, with any profile.

use std::collections::BTreeMap;

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_sim::lower::{Environment, ScheduleInstance, lower};
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Program, Protocol, Rank, ScheduleGenerator};
use fabricast_sim::{Folding, Timeline};
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::{Bandwidth, Bytes, Fabric, FabricBuilder, LinkKind, LinkSpec, NodeKind, Picos};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::generators::{Case, is_rooted};
use crate::matrices::with_matrix;
use crate::testbed::{Testbed, single_channel_case, switch};

/// Returns a fabric of GPUs with a separate link between every two of them.
fn mesh(gpus: u32, bandwidth: Bandwidth, latency: Picos) -> Fabric {
    let mut builder = FabricBuilder::new("mesh");
    let host = builder.host("a");
    let gpus: Vec<_> =
        (0..gpus).map(|gpu| builder.node(&format!("gpu{gpu}"), NodeKind::Gpu, host, Figures::None).unwrap()).collect();
    for (i, &a) in gpus.iter().enumerate() {
        for &b in &gpus[..i] {
            builder.link(a, b, &LinkSpec::symmetric(LinkKind::Nvlink, bandwidth, latency));
        }
    }
    builder.finish()
}

/// Sender, receiver and channel of a connection.
type Connection = (Rank, u32, u16);

/// Returns true if every capacity carries the messages of a single connection.
fn has_exclusive_capacity_per_connection(testbed: &Testbed, generator: &dyn ScheduleGenerator) -> bool {
    let (router, placement) = (testbed.router(), testbed.placement());
    let setting = Environment { delays: &[], ..testbed.environment(&router, &placement) };
    let lowered = lower(&[ScheduleInstance::new(generator, setting)]).unwrap();
    let mut holders: BTreeMap<u32, Connection> = BTreeMap::new();
    let mut scratch = Program::default();
    let mut number = 0;
    for rank in (0..generator.header().call.ranks).map(Rank) {
        for run in generator.read(rank, &mut scratch).runs() {
            for index in 0..run.len {
                let peer = run.peer.at(index);
                let (from, to) = if run.kind.reads_peer() { (Rank(peer), rank.0) } else { (rank, peer) };
                let route = lowered.workload.passage(number, index).route;
                let uses = route.into_iter().flat_map(|route| lowered.workload.system.uses(route));
                for usage in uses {
                    let holder = holders.entry(usage.resource.0).or_insert((from, to, run.channel.0));
                    if *holder != (from, to, run.channel.0) {
                        return false;
                    }
                }
            }
            number += 1;
        }
    }
    true
}

/// Generates any algorithm and collective except those that need in-network reduction.
fn calls() -> impl Strategy<Value = (Algorithm, Collective)> {
    // The fabrics of this test have no switches that reduce.
    let algorithms =
        Algorithm::ALL.iter().filter(|a| !matches!(a, Algorithm::Nvls | Algorithm::NvlsTree | Algorithm::CollnetChain));
    select(algorithms.flat_map(|&a| a.collectives().iter().map(move |&c| (a, c))).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig { max_global_rejects: 100_000, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn a_late_rank_delays_the_end_by_at_most_its_delay(
        (algorithm, collective) in calls(),
        (gpus, is_mesh) in (2u32..=8, prop::bool::weighted(0.7)),
        (gb_per_s, ns) in (select(vec![25u64, 100, 450]), select(vec![0u64, 350, 3000])),
        profile in select(vec!["ideal", "ideal", "nccl-2.28-h200", "kernels-h100"]),
        protocol in select(Protocol::ALL.to_vec()),
        (bytes, loops) in (1u64..3_000_000, 1u64..5),
        (in_place, seed) in (any::<bool>(), any::<u64>()),
        starts in vec(prop_oneof![2 => Just(0u64), 1 => 0u64..50_000], 8),
        (delayed_rank, delay_ns) in (any::<Index>(), 1u64..50_000),
    ) {
        let (bandwidth, latency) = (Bandwidth(gb_per_s * 1_000_000_000), Picos(ns * 1000));
        let fabric = if is_mesh { mesh(gpus, bandwidth, latency) } else { switch(gpus, bandwidth, latency) };
        let mut testbed = Testbed { profile: Profile::named(profile).unwrap(), ..Testbed::ideal(fabric) };
        let root = if is_rooted(collective) { delayed_rank.index(gpus as usize) as u32 } else { 0 };
        let buffers = if in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace };
        let call = Call { collective, bytes: Bytes(bytes), ranks: gpus, root: Rank(root), buffers };
        let chunk = bytes.div_ceil(loops * u64::from(gpus)).max(1);
        let shape = Shape { chunk: (loops > 1).then_some(Bytes(chunk)), ..Shape::new(call, protocol) };
        let case = Case { algorithm, shape: with_matrix(shape, seed) };
        let Ok(generator) = fabricast_collectives::algorithm::generator(case.algorithm, &case.shape) else { return Ok(()) };
        prop_assume!(has_exclusive_capacity_per_connection(&testbed, &*generator));
        testbed.delays = starts[..gpus as usize].iter().map(|&ns| Picos(ns * 1000)).collect();
        let Timeline { time: before, operations, .. } = testbed.run_without_recording(&*generator, Folding::Off, None).unwrap();
        testbed.delays[delayed_rank.index(gpus as usize)] += Picos(delay_ns * 1000);
        let after = testbed.run_without_recording(&*generator, Folding::WhereProved, None).unwrap().time;
        // The end of each transfer is rounded up to a picosecond.
        let latest_end = before + Picos(delay_ns * 1000 + operations);
        prop_assert!((before - Picos(operations)..=latest_end).contains(&after), "{before:?} {after:?}");
    }
}

/// The ring ends later by at most the largest delay, because its messages are serialized. Otherwise the messages that a
/// late rank has for its neighbour would share the wire, and each would arrive with the last.
#[test]
fn ring_ends_later_by_at_most_the_largest_delay() {
    const RANKS: u32 = 128;
    let mut testbed = Testbed::ideal(switch(RANKS, Bandwidth::from_gb_per_s(450.0), Picos::from_ns(700.0)));
    let case = single_channel_case(Algorithm::Ring, Collective::AllReduce, RANKS, 64 << 20);
    let undelayed = testbed.run_without_recording(&*case.generator(), Folding::Off, None).unwrap().time;
    testbed.delays = (0..u64::from(RANKS)).map(|rank| Picos::from_ns((rank * 7919 % 300_001) as f64)).collect();
    let max_delay = testbed.delays.iter().copied().max().unwrap();
    let time = testbed.run_without_recording(&*case.generator(), Folding::Off, None).unwrap().time;
    assert!(time <= undelayed + max_delay, "{time:?} {undelayed:?} {max_delay:?}");
}
