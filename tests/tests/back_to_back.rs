//! Back-to-back calls: ranks that finish early begin the next call before the others have finished.

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_sim::Folding;
use fabricast_sim::back_to_back_time;
use fabricast_sim::lower::Environment;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_topologies::{Bandwidth, Bytes, Picos};
use proptest::prelude::*;

use crate::generators::Case;
use crate::testbed::{Testbed, switch};

/// Returns the time per call in a sequence of calls, and the time of a single call.
fn times(testbed: &Testbed, case: &Case) -> (Picos, Picos) {
    let (router, placement) = (testbed.router(), testbed.placement());
    let setting = Environment {
        fabric: &testbed.fabric,
        router: &router,
        placement: &placement,
        profile: &testbed.profile,
        delays: &[],
    };
    let generator = case.generator();
    let single = testbed.run(&*generator, Folding::Off).unwrap().time;
    (back_to_back_time(&*generator, setting, testbed.mode).unwrap(), single)
}

fn chain(collective: Collective, ranks: u32, bytes: u64, root: u32) -> Case {
    let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(root), buffers: BufferUse::OutOfPlace };
    Case { algorithm: Algorithm::Ring, shape: Shape { channels: 1, ..Shape::new(call, Protocol::Simple) } }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// A single call along a chain needs the time of all hops in series; back-to-back calls need the time of one hop
    /// each, for any length of the chain.
    #[test]
    fn back_to_back_calls_on_a_chain_take_one_hop_each(
        ranks in 2u32..12,
        root in 0u32..12,
        bytes in 1u64..50_000_000,
        latency in 0u64..2_000_000,
        collective in prop_oneof![Just(Collective::Broadcast), Just(Collective::Reduce)],
    ) {
        let bandwidth = Bandwidth(50_000_000_000);
        let testbed = Testbed::ideal(switch(ranks, bandwidth, Picos(latency)));
        let (back_to_back, single) = times(&testbed, &chain(collective, ranks, bytes, root % ranks));
        let hop = bytes * (1_000_000_000_000 / bandwidth.0);
        prop_assert!(back_to_back.0.abs_diff(hop) <= 8, "{back_to_back:?}, a hop {hop} ps");
        prop_assert!(single.0.abs_diff(u64::from(ranks - 1) * (hop + 2 * latency)) <= 2 * u64::from(ranks));
    }

    /// With NCCL's costs as well, back-to-back calls on one switch take no longer with more ranks, and no longer than a
    /// single call.
    #[test]
    fn back_to_back_calls_take_no_longer_than_a_single_call(
        ranks in 2u32..9,
        bytes in 1u64..50_000_000,
        algorithm in prop_oneof![Just(Algorithm::Ring), Just(Algorithm::Tree), Just(Algorithm::Direct)],
        collective in prop_oneof![
            Just(Collective::Broadcast), Just(Collective::Reduce), Just(Collective::Gather), Just(Collective::Scatter)
        ],
        protocol in prop_oneof![Just(Protocol::Ll), Just(Protocol::Ll128), Just(Protocol::Simple)],
    ) {
        let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
        let shape = Shape { channels: 2, ..Shape::new(call, protocol) };
        let case = Case { algorithm, shape };
        prop_assume!(algorithm.collectives().contains(&collective));
        let profile = Profile::named("nccl-2.28-h200").unwrap();
        let testbed = Testbed { profile, ..Testbed::ideal(switch(ranks, Bandwidth(450_000_000_000), Picos(300_000))) };
        let (back_to_back, single) = times(&testbed, &case);
        prop_assert!(back_to_back <= single, "{back_to_back:?}, alone {single:?}");
        prop_assert!(back_to_back > Picos::ZERO);
    }
}
