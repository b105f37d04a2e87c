//! Tests of schedules for timing only, which number blocks differently and take the same time.

use fabricast_collectives::algorithm::Shape;
use fabricast_collectives::algorithm::{Algorithm, timing_generator};
use fabricast_sim::Folding;
use fabricast_sim::lower::rank_traffic;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule, ScheduleGenerator};
use fabricast_topologies::Bytes;
use fabricast_topologies::route::BufferLocation;
use proptest::prelude::*;
use proptest::sample::select;

use crate::generators::Case;
use crate::testbed::{buffer_locations, scenes};

/// Returns a ring of blocks in the given orders, or a neighbour exchange, which is a ring for odd numbers of ranks.
fn ring(collective: Collective, ranks: u32, (bytes, loops): (u64, u64), channels: u16, keys: &[u32]) -> Case {
    let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
    let orders = keys.chunks(8).map(|keys| {
        let mut order: Vec<Rank> = (0..ranks).map(Rank).collect();
        order.sort_by_key(|rank| (keys[rank.0 as usize % keys.len()], rank.0));
        order
    });
    let chunk = bytes.div_ceil(loops * u64::from(channels) * u64::from(ranks)).max(1);
    let shape =
        Shape { channels, chunk: Some(Bytes(chunk)), orders: orders.collect(), ..Shape::new(call, Protocol::Simple) };
    Case { algorithm: Algorithm::Ring, shape }
}

fn operations(generator: &dyn ScheduleGenerator) -> (u32, u32) {
    let schedule = Schedule::build(generator).unwrap();
    (schedule.run_count(), schedule.operation_count())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Timing-only schedules take the same time to the picosecond, on any fabric, with late ranks and any placement of
    /// buffers.
    #[test]
    fn timing_only_schedules_take_the_same_time(
        scene in scenes(16),
        buffers in buffer_locations(),
        collective in select(vec![Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce]),
        protocol in select(Protocol::ALL.to_vec()),
        size in (0u64..3_000_000, 1u64..4),
        channels in 1u16..5,
        in_place in any::<bool>(),
        keys in proptest::collection::vec(any::<u32>(), 8..32),
    ) {
        let testbed = scene.testbed().with_buffers(buffers);
        let mut case = ring(collective, testbed.ranks(), size, channels, &keys);
        case.shape.protocol = protocol;
        if in_place {
            case.shape.call.buffers = BufferUse::InPlace;
        }
        let full = case.generator();
        let timing_only = timing_generator(case.algorithm, &case.shape, buffers).unwrap();
        prop_assert_eq!(rank_traffic(&*full, &testbed.profile), rank_traffic(&*timing_only, &testbed.profile));
        let expected = testbed.run_without_recording(&*full, Folding::Off, None);
        for folding in [Folding::Off, Folding::WhereProved, Folding::GroupsFirst] {
            match (&expected, testbed.run_without_recording(&*timing_only, folding, None)) {
                (Ok(expected), Ok(actual)) => {
                    prop_assert_eq!((actual.time, actual.costs, actual.operations), (expected.time, expected.costs, expected.operations));
                    // Traffic is rounded down once per run.
                    for one in &actual.utilization {
                        let usage = expected.utilization.iter().find(|other| other.resource == one.resource);
                        let expected_bytes = usage.map_or(f64::NAN, |usage| usage.bytes);
                        prop_assert!((one.bytes - expected_bytes).abs() <= 1e-3, "{one:?} {expected_bytes}");
                    }
                }
                (Err(expected), Err(actual)) => prop_assert_eq!(expected.to_string(), actual.to_string()),
                (expected, actual) => {
                    let time = |timeline: &fabricast_sim::Timeline| timeline.time;
                    prop_assert!(false, "{:?} {:?}", expected.as_ref().map(time), actual.as_ref().map(time));
                }
            }
        }
    }
}

#[test]
fn timing_only_schedules_have_fewer_runs_for_irregular_block_orders() {
    let keys: Vec<u32> = (0..64).map(|i| i * 37 % 64).collect();
    for collective in [Collective::AllGather, Collective::ReduceScatter] {
        let case = ring(collective, 64, (1 << 20, 1), 2, &keys);
        let (full, timing_only) = (
            operations(&*case.generator()),
            operations(&*timing_generator(case.algorithm, &case.shape, BufferLocation::Device).unwrap()),
        );
        assert_eq!(full.1, timing_only.1);
        assert!(timing_only.0 <= 64 * 2 * 3 && 10 * timing_only.0 < full.0, "{timing_only:?} {full:?}");
    }
}
