//! Back-to-back calls: ranks that finish early begin the next call before the others have finished.

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_sim::Folding;
use fabricast_sim::back_to_back_time;
use fabricast_sim::lower::Environment;
use fabricast_sim::profile::{NetworkCosts, Profile};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_topologies::{Bandwidth, Bytes, FabricRequest, Picos, load};
use proptest::prelude::*;

use crate::generators::Case;
use crate::testbed::{Testbed, switch};

/// Returns the time per call in a sequence of calls, and the time of a single call.
fn times(testbed: &Testbed, case: &Case) -> (Picos, Picos) {
    let (router, placement) = (testbed.router(), testbed.placement());
    let setting = Environment { delays: &[], ..testbed.environment(&router, &placement) };
    let generator = case.generator();
    let single = testbed.run(&*generator, Folding::Off).unwrap().time;
    (back_to_back_time(&*generator, setting, testbed.mode).unwrap(), single)
}

fn chain(collective: Collective, ranks: u32, bytes: u64, root: u32) -> Case {
    let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(root), buffers: BufferUse::OutOfPlace };
    Case { algorithm: Algorithm::Ring, shape: Shape { channels: 1, ..Shape::new(call, Protocol::Simple) } }
}

/// Returns the time per call of send_recv of eight bytes over two hosts in a sequence of calls, and that of a single
/// call.
fn send_times(gpus: u32, bytes: u64, network: NetworkCosts) -> (Picos, Picos, Testbed) {
    let spec = "rail,nics_per_node=8,nic=400Gb/s".parse().unwrap();
    let request =
        FabricRequest { nodes: Some(2), gpus: Some(gpus), network: Some(spec), ..FabricRequest::new("hgx-h200") };
    let profile = Profile { network, ..Profile::named("nccl-2.28-h200").unwrap() };
    let testbed = Testbed { profile, ..Testbed::ideal(load(&request).unwrap()) };
    let call = Call {
        collective: Collective::SendRecv,
        bytes: Bytes(bytes),
        ranks: testbed.ranks(),
        root: Rank(0),
        buffers: BufferUse::OutOfPlace,
    };
    let shape = Shape { channels: 1, ranks_per_node: gpus, ..Shape::new(call, Protocol::Simple) };
    let (back_to_back, single) = times(&testbed, &Case { algorithm: Algorithm::Direct, shape });
    (back_to_back, single, testbed)
}

/// Ranks around a ring wait only for the one before them, so two slow connections of sixteen add a sixteenth of their
/// latency each, until the messages of one connection and their acknowledgements take longer.
#[test]
fn slow_connections_of_a_ring_of_sends_count_with_their_share() {
    let with_post = |post| NetworkCosts { post: Picos(post), ..NetworkCosts::FREE };
    let time = |gpus, post| send_times(gpus, 8, with_post(post));
    let (short, single_short, testbed) = time(8, 1_000);
    let (longer, single_longer, _) = time(8, 401_000);
    assert_eq!(single_longer.0 - single_short.0, 400_000);
    assert_eq!(longer.0 - short.0, 400_000 * 2 / 16);
    // A very slow connection limits the calls: all but the start of the kernel, and the way back.
    let (slow, single_slow, _) = time(8, 90_000_000);
    let (router, placement) = (testbed.router(), testbed.placement());
    let way_back = router.path(placement[8], placement[7]).unwrap().latency;
    let startup = testbed.profile.protocol(Protocol::Simple).startup(
        Collective::SendRecv,
        testbed.profile.protocol(Protocol::Simple).threads,
        1,
    );
    assert_eq!(slow, single_slow + way_back - startup);
    // With a rank on each host, all connections are slow.
    let (pair, single_pair, _) = time(1, 401_000);
    assert_eq!(pair, single_pair);
}

/// Without proxies, or within a host, no acknowledgement is awaited, and calls on equal connections do not overlap.
#[test]
fn sends_on_equal_connections_take_the_time_of_a_single_call() {
    let (pair, single, _) = send_times(1, 1 << 20, NetworkCosts::FREE);
    assert_eq!(pair, single);
    let call = |bytes| Call {
        collective: Collective::SendRecv,
        bytes: Bytes(bytes),
        ranks: 8,
        root: Rank(0),
        buffers: BufferUse::OutOfPlace,
    };
    let profile = Profile::named("nccl-2.28-h200").unwrap();
    let testbed = Testbed { profile, ..Testbed::ideal(switch(8, Bandwidth(450_000_000_000), Picos(300_000))) };
    for bytes in [8, 1 << 20, 1 << 28] {
        let shape = Shape { channels: 4, ..Shape::new(call(bytes), Protocol::Simple) };
        let (back_to_back, single) = times(&testbed, &Case { algorithm: Algorithm::Direct, shape });
        assert!(single.0.abs_diff(back_to_back.0) <= 1, "{bytes}: {back_to_back:?} and {single:?}");
    }
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
