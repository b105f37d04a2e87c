//! A schedule spread over more thread blocks equals its strategy on as many channels, also if the schedule comes from a
//! file.

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_sim::Folding;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule, ScheduleGenerator, json};
use fabricast_sim::verify::{VerifyOptions, verify};
use fabricast_topologies::{Bandwidth, Bytes, Picos};
use proptest::prelude::*;
use proptest::sample::select;

use crate::generators::Case;
use crate::testbed::{Testbed, switch};

/// Strategies that run as kernels, with the number of ranks of each.
const STRATEGIES: [(Collective, Algorithm, u32); 9] = [
    (Collective::AllReduce, Algorithm::OneShot, 4),
    (Collective::AllReduce, Algorithm::TwoShot, 4),
    (Collective::AllReduce, Algorithm::Ring, 5),
    (Collective::AllReduce, Algorithm::RecursiveDoubling, 8),
    (Collective::AllReduce, Algorithm::RecursiveHalvingDoubling, 4),
    (Collective::AllGather, Algorithm::Ring, 3),
    (Collective::ReduceScatter, Algorithm::Direct, 4),
    (Collective::AllToAll, Algorithm::Direct, 4),
    (Collective::Broadcast, Algorithm::Ring, 3),
];

fn case((collective, algorithm, ranks): (Collective, Algorithm, u32), bytes: u64, channels: u16) -> Case {
    let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
    Case { algorithm, shape: Shape { channels, ..Shape::new(call, Protocol::Symmetric) } }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// A spread schedule takes the time of the strategy with as many channels, and computes the same collective.
    #[test]
    fn spread_schedules_take_the_time_of_their_strategy(
        strategy in select(STRATEGIES.to_vec()),
        bytes in 1_000u64..50_000_000,
        channels in 1u16..4,
        parts in 1u16..20,
        profile in select(vec!["ideal", "kernels-h100", "kernels-h200"]),
    ) {
        let fabric = switch(strategy.2, Bandwidth(450_000_000_000), Picos(350_000));
        let testbed = Testbed { profile: Profile::named(profile).unwrap(), ..Testbed::ideal(fabric) };
        let time = |generator: &dyn ScheduleGenerator| testbed.run(generator, Folding::WhereProved).unwrap().time.0;
        let schedule = Schedule::build(&*case(strategy, bytes, channels).generator()).unwrap();
        let file = json::from_json(&json::to_json(&schedule), "file").unwrap();
        let spread = file.split_channels(parts).unwrap();
        prop_assert_eq!(spread.header().channels, channels * parts);
        let is_even = (0..strategy.2).flat_map(|rank| schedule.rank_runs(Rank(rank))).all(|run| schedule.run(run).span == 1);
        if is_even {
            verify(&spread, &VerifyOptions::default()).unwrap();
        }
        let wide_case = case(strategy, bytes, channels * parts);
        let (actual, expected) = (time(&spread), time(&*wide_case.generator()));
        // Chunks that are not whole bytes are rounded up, by at most a thousandth of the traffic; times are rounded
        // by picoseconds.
        prop_assert!(actual.abs_diff(expected) <= expected / 1000 + 10, "{actual} and {expected}");
        prop_assert_eq!(file.split_channels(1).unwrap(), file);
    }
}
