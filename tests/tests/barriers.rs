//! Barriers: no rank leaves before the last one has arrived, and a barrier takes one latency per step.

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_collectives::bound::Bounds;
use fabricast_sim::Folding;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
use fabricast_sim::verify::{FaultKind, VerifyOptions, verify};
use fabricast_topologies::{Bandwidth, Bytes, Picos};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::testbed::{Scene, Testbed, scenes, switch};

const ALGORITHMS: [Algorithm; 3] = [Algorithm::Dissemination, Algorithm::OneShot, Algorithm::Tree];

fn shape(ranks: u32, ranks_per_node: u32, protocol: Protocol) -> Shape {
    let buffers = BufferUse::OutOfPlace;
    let call = Call { collective: Collective::Barrier, bytes: Bytes(0), ranks, root: Rank(0), buffers };
    Shape { ranks_per_node, ..Shape::new(call, protocol) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Every rank's last operation ends after the last rank has arrived, on any fabric and with any software costs.
    #[test]
    fn no_rank_leaves_a_barrier_before_the_last_arrives(
        scene in scenes(24),
        algorithm in select(ALGORITHMS.to_vec()),
        protocol in select(vec![Protocol::Ll, Protocol::Simple, Protocol::Symmetric]),
        delayed_rank in any::<Index>(),
        nanoseconds in 0u32..1_000_000,
    ) {
        let scene = Scene { rank_delays: vec![(delayed_rank, nanoseconds)], ..scene };
        let testbed = scene.testbed();
        prop_assume!(testbed.ranks() > 1);
        let shape = shape(testbed.ranks(), testbed.per_host(), protocol);
        let generator = generator(algorithm, &shape).unwrap();
        let Ok(timeline) = testbed.run(&*generator, Folding::Off) else { return Ok(()) };
        let schedule = Schedule::build(&*generator).unwrap();
        let latest_arrival = *testbed.delays.iter().max().unwrap();
        let mut departures = vec![Picos::ZERO; testbed.ranks() as usize];
        for (op, span) in schedule.operations().zip(timeline.spans.iter()) {
            let rank = op.rank.0 as usize;
            departures[rank] = departures[rank].max(span.done);
        }
        prop_assert!(departures.iter().all(|&departure| departure >= latest_arrival), "{departures:?} before {latest_arrival:?}");
        let bounds = Bounds::new(&testbed.fabric, &testbed.router(), &testbed.placement(), 0);
        let bound = bounds.bound(&shape.call).time;
        prop_assert!(timeline.time >= bound, "{:?} below {bound:?}", timeline.time);
    }
}

/// On equal links without software costs, a step takes one latency.
#[test]
fn barrier_steps_take_one_latency() {
    for (ranks, dissemination, tree) in [(2, 1, 2), (3, 2, 2), (8, 3, 6), (12, 4, 6), (16, 4, 8)] {
        let testbed = Testbed::ideal(switch(ranks, Bandwidth::from_gb_per_s(50.0), Picos::from_ns(250.0)));
        let time = |algorithm| {
            let generator = generator(algorithm, &shape(ranks, 0, Protocol::Symmetric)).unwrap();
            testbed.run(&*generator, Folding::WhereProved).unwrap().time
        };
        let steps = |steps: u64| Picos(steps * 500_000);
        assert_eq!(time(Algorithm::Dissemination), steps(dissemination), "{ranks}");
        assert_eq!(time(Algorithm::OneShot), steps(1), "{ranks}");
        assert_eq!(time(Algorithm::Tree), steps(tree), "{ranks}");
    }
}

#[test]
fn barriers_that_omit_a_rank_are_rejected() {
    let schedule = Schedule::build(&*generator(Algorithm::Tree, &shape(4, 0, Protocol::Ll)).unwrap()).unwrap();
    // The edited schedule omits the dependency of rank 3's parent on rank 3.
    let text = fabricast_sim::schedule::json::to_json(&schedule);
    let changed = text.replace("[[3,1,0,0]]", "[]");
    assert_ne!(text, changed);
    let schedule = fabricast_sim::schedule::json::from_json(&changed, "changed").unwrap();
    let fault = verify(&schedule, &VerifyOptions::default()).unwrap_err();
    assert_eq!(fault.kind, FaultKind::BarrierNotAwaited);
    assert!(fault.to_string().contains("nothing of rank 3 before the end of rank"), "{fault}");
}

#[test]
fn barriers_move_no_bytes() {
    let mut shape = shape(4, 0, Protocol::Ll);
    shape.call.bytes = Bytes(8);
    let error = generator(Algorithm::Dissemination, &shape).err().map(|error| error.to_string());
    assert_eq!(error.as_deref(), Some("a barrier moves no data: expected a size of 0, not 8 B"));
}
