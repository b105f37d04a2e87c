//! Tests of the cost of reductions whose result remains at the rank: the cost is charged once, for the bytes of a sum
//! that is not sent on, in calls that wait for all ranks.

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_sim::Folding;
use fabricast_sim::profile::{FlowDirection, HostWork, LaunchCosts, Profile};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_topologies::{Bandwidth, Bytes, Picos};
use proptest::prelude::*;

use crate::generators::Case;
use crate::testbed::{Testbed, switch};

const LINK: Bandwidth = Bandwidth(450_000_000_000);

/// Returns the time in picoseconds of a call on a switch, with blocks that add at a given rate.
fn time(case: &Case, add: Option<Bandwidth>, folding: Folding) -> u64 {
    let mut profile = Profile::ideal();
    profile.protocols[Protocol::Symmetric as usize].add = add;
    let testbed = Testbed { profile, ..Testbed::ideal(switch(case.shape.call.ranks, LINK, Picos(350_000))) };
    testbed.run(&*case.generator(), folding).unwrap().time.0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Each block adds its part of a rank's own sums once, at the end, while the links are idle. Sums that are sent on
    /// have no additional cost, and neither have one-way calls.
    #[test]
    fn retained_sums_are_charged_once(part in 1u64..1_000_000, channels in 1u16..8, rate in 1u64..100) {
        let rate = Bandwidth(rate * 1_000_000_000);
        for (collective, algorithm, ranks, stays) in [
            (Collective::ReduceScatter, Algorithm::Ring, 2, true),
            (Collective::AllReduce, Algorithm::RecursiveDoubling, 2, true),
            (Collective::ReduceScatter, Algorithm::Direct, 4, true),
            (Collective::AllReduce, Algorithm::OneShot, 4, true),
            (Collective::AllReduce, Algorithm::RecursiveDoubling, 4, false),
            (Collective::AllReduce, Algorithm::OneShot, 2, true),
            (Collective::AllReduce, Algorithm::TwoShot, 2, false),
            (Collective::AllReduce, Algorithm::Ring, 4, false),
            (Collective::AllGather, Algorithm::Ring, 2, false),
            (Collective::Reduce, Algorithm::Ring, 2, false),
        ] {
            // A block's part of the bytes that a rank adds.
            let bytes = part * u64::from(channels) * u64::from(ranks);
            let added_bytes = bytes / u64::from(channels) / if collective == Collective::ReduceScatter { u64::from(ranks) } else { 1 };
            let call =
                Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
            let case = Case { algorithm, shape: Shape { channels, ..Shape::new(call, Protocol::Symmetric) } };
            let added_time = time(&case, Some(rate), Folding::Off) - time(&case, None, Folding::Off);
            let expected = if stays { added_bytes as f64 * 1e12 / rate.0 as f64 } else { 0.0 };
            // The time is rounded down to a picosecond; parts may differ by a byte if chunks are unequal.
            prop_assert!((added_time as f64 - expected).abs() <= 2.0, "{algorithm} {collective}: {added_time} and {expected}");
            prop_assert_eq!(time(&case, Some(rate), Folding::Off), time(&case, Some(rate), Folding::WhereProved));
        }
    }

    /// One-way calls have a separate minimum time, which does not apply to other calls.
    #[test]
    fn one_way_calls_have_a_floor(one_way in 0u64..9_000_000, floor in 0u64..9_000_000, device in 0u64..9_000_000) {
        let costs = LaunchCosts { floor: Picos(floor), floor_one_way: Picos(one_way), ..LaunchCosts::default() };
        for collective in Collective::ALL {
            let work = HostWork::for_call(2, collective, Protocol::Symmetric, 2);
            let is_one_way = matches!(
                collective,
                Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter
            );
            prop_assert_eq!(work.flow == FlowDirection::OneWay, is_one_way);
            let min_time = if is_one_way { floor.max(one_way) } else { floor };
            prop_assert_eq!(costs.call_time(Picos(device), work).0, min_time.max(device));
        }
    }
}
