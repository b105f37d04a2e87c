//! Tests of conservation: the bytes on every capacity equal a count along the routes, rates stay below capacities, busy
//! time matches bytes, and times respect lower bounds.

mod capacities;
mod ledger;

use std::collections::HashMap;

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_collectives::bound::{Bounds, RateEfficiency};
use fabricast_sim::lower::Resource;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{Call, Collective, Protocol, Schedule};
use fabricast_sim::sharing::WHOLE;
use fabricast_sim::{Folding, Timeline};
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{GpuDirect, PeerAccess, Pxn};
use fabricast_topologies::{Bandwidth, Bytes, FabricBuilder, FabricRequest, LinkKind, LinkSpec, NodeKind, Picos, load};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::generators::Case;
use crate::testbed::{Testbed, buffer_locations, call_templates, scenes, single_channel_case, switch};
use capacities::capacity;
use ledger::{Ledger, TotalLoad};

fn is_close(a: f64, b: f64) -> bool {
    // The tolerance covers efficiencies, which are counted in millionths and in parts of WHOLE.
    (a - b).abs() <= 1e-3 + 2e-5 * b.abs()
}

/// Simulates the schedule; returns `None` if the broken fabric does not connect its ranks.
fn run(testbed: &Testbed, case: &Case) -> Option<(Schedule, Timeline)> {
    let schedule = case.schedule();
    testbed.run(&schedule, Folding::WhereProved).ok().map(|timeline| (schedule, timeline))
}

/// Asserts that every capacity carries the load that the schedule puts on its routes, and no more than its limit.
fn check_loads(testbed: &Testbed, case: &Case) -> Result<(), TestCaseError> {
    let Some((schedule, timeline)) = run(testbed, case) else { return Ok(()) };
    let ledger = Ledger::new(testbed, &schedule);
    let mut expected = ledger.totals();
    let wire_efficiency = testbed.profile.protocol(schedule.header().protocol).wire_efficiency;
    let total_bytes = schedule.operations().map(|op| ledger.payload(&op)).sum::<f64>() / wire_efficiency;
    for used in &timeline.utilization {
        let TotalLoad { bytes, rounded_down } = expected.remove(&used.resource).unwrap_or_default();
        // The load of each operation on a block is rounded to a whole number of parts of its bytes.
        let rounded = match used.resource {
            Resource::Channel(..) | Resource::Processors(_) => total_bytes / WHOLE as f64,
            // The flags of a payload are read in whole bytes.
            Resource::Proxy(_) => {
                total_bytes / WHOLE as f64 + schedule.operation_count() as f64 * ledger.flag_read_load(1.0)
            }
            _ => 0.0,
        };
        let bytes = bytes + (used.bytes - bytes).clamp(-rounded_down, rounded);
        prop_assert!(is_close(used.bytes, bytes), "{:?}: {} and {bytes} bytes", used.resource, used.bytes);
        prop_assert!((0.0..=1.0 + 1e-9).contains(&used.fraction), "{used:?}");
    }
    // Omitted capacities are no limit: they are unlimited, or they are memories that their own links cannot saturate.
    for (resource, TotalLoad { bytes, rounded_down }) in expected {
        let is_memory = matches!(resource, Resource::Memory(_));
        let limit = capacity(testbed, &schedule, resource);
        prop_assert!(is_memory || bytes <= rounded_down || limit.is_none(), "{resource:?}: {bytes} bytes of {limit:?}");
    }
    Ok(())
}

/// Returns an all_reduce over hosts with `gpus` GPUs each.
fn all_reduce_over_hosts(
    algorithm: Algorithm,
    (hosts, gpus): (u32, u32),
    protocol: Protocol,
    channels: u16,
    (bytes, chunk): (u64, u64),
) -> (Testbed, Case) {
    let network = (hosts > 1).then(|| "rail,nics_per_node=8,nic=400Gb/s".parse().unwrap());
    let request = FabricRequest { nodes: Some(hosts), gpus: Some(gpus), network, ..FabricRequest::new("hgx-h200") };
    let fabric = load(&request).unwrap();
    let profile = Profile::for_fabric(&fabric).unwrap();
    let testbed = Testbed { profile, ..Testbed::ideal(fabric) };
    let case = single_channel_case(algorithm, Collective::AllReduce, hosts * gpus, bytes);
    let shape = Shape { protocol, channels, ranks_per_node: gpus, chunk: Some(Bytes(chunk)), ..case.shape };
    (testbed, Case { shape, ..case })
}

/// The tree of this call includes ranks with several children.
#[test]
fn tree_blocks_over_hosts_carry_the_load_of_their_primitives() {
    for hosts in [(2, 1), (2, 2), (5, 1), (6, 2), (8, 3)] {
        for protocol in [Protocol::Ll, Protocol::Ll128, Protocol::Simple] {
            let (testbed, case) = all_reduce_over_hosts(Algorithm::Tree, hosts, protocol, 2, (3_000_000, 400_000));
            check_loads(&testbed, &case).unwrap();
        }
    }
}

/// Peers on the own host divide the warps of a block in calls over several hosts as those on other hosts do, and on one
/// host if there are fewer channels than peers.
#[test]
fn blocks_of_exchanges_carry_the_load_of_their_warps() {
    for (hosts, channels) in [((2, 8), 2), ((3, 2), 3), ((2, 3), 1), ((1, 8), 8), ((1, 8), 3), ((1, 4), 1)] {
        let (testbed, case) = all_reduce_over_hosts(Algorithm::Direct, hosts, Protocol::Simple, channels, (0, 100_000));
        let call = Call { collective: Collective::AllToAll, bytes: Bytes(20_000_000), ..case.shape.call };
        let nics_per_node = if hosts.0 > 1 { 8 } else { 0 };
        let shape = Shape { call, nics_per_node, ..case.shape };
        check_loads(&testbed, &Case { shape, ..case }).unwrap();
    }
}

/// Chunks are serialized over hosts: the additions of a tree block do not precede the sends of earlier chunks, and a
/// ring block sends one chunk after the other. Therefore large calls take no more time per byte than smaller ones.
#[test]
fn time_per_byte_over_hosts_does_not_grow_with_size() {
    let tree = (Algorithm::Tree, (8, 8), Protocol::Ll128, 512 << 10, 256 << 20);
    let ring = (Algorithm::Ring, (4, 8), Protocol::Simple, 2 << 20, 1 << 30);
    for (algorithm, hosts, protocol, chunk, min_bytes) in [tree, ring] {
        let time = |bytes: u64| {
            let (testbed, case) = all_reduce_over_hosts(algorithm, hosts, protocol, 16, (bytes, chunk));
            testbed.run(&case.schedule(), Folding::WhereProved).unwrap().time.0 as f64
        };
        let (small, large) = (time(min_bytes), time(4 * min_bytes));
        assert!(large < 4.0 * small, "{algorithm:?}: {large} after {small}");
    }
}

/// A block with one peer sends a chunk completely before the next; a block with several peers sends to all of them.
#[test]
fn ring_blocks_send_one_chunk_at_a_time() {
    for (hosts, protocol) in [((3, 4), Protocol::Simple), ((2, 3), Protocol::Ll128), ((2, 8), Protocol::Ll)] {
        let overlaps = |algorithm| {
            let (testbed, case) = all_reduce_over_hosts(algorithm, hosts, protocol, 2, (40_000_000, 300_000));
            let schedule = case.schedule();
            let timeline = testbed.run(&schedule, Folding::Off).unwrap();
            let mut sent: HashMap<_, Vec<(Picos, Picos)>> = HashMap::new();
            for (op, span) in schedule.operations().zip(timeline.spans.iter()).filter(|(op, _)| op.kind.writes_peer()) {
                sent.entry((op.rank, op.channel)).or_default().push((span.flowing, span.done));
            }
            sent.values_mut().for_each(|flows| flows.sort_unstable());
            sent.values().flat_map(|flows| flows.windows(2)).filter(|pair| pair[1].0 < pair[0].1).count()
        };
        assert_eq!(overlaps(Algorithm::Ring), 0, "{hosts:?} {protocol}");
        assert!(overlaps(Algorithm::Tree) > 0, "{hosts:?} {protocol}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// Every capacity carries the load that the schedule puts on its routes, and no more than its limit.
    #[test]
    fn capacities_carry_the_load_of_the_schedule(scene in scenes(16), template in call_templates()) {
        let testbed = scene.testbed();
        check_loads(&testbed, &template.case_for_ranks(testbed.ranks(), testbed.per_host()))?;
    }

    /// Over any interval, the bytes of transfers that begin and end within it do not exceed the capacity's rate times
    /// the interval.
    #[test]
    fn no_interval_exceeds_a_capacity(scene in scenes(8), template in call_templates()) {
        let testbed = scene.testbed();
        let case = template.case_for_ranks(testbed.ranks(), testbed.per_host());
        let Some((schedule, timeline)) = run(&testbed, &case) else { return Ok(()) };
        prop_assume!(schedule.operation_count() < 1500);
        let ledger = Ledger::new(&testbed, &schedule);
        let mut flows: HashMap<Resource, Vec<(Picos, Picos, f64)>> = HashMap::new();
        for (op, span) in schedule.operations().zip(timeline.spans.iter()) {
            prop_assert!(span.ready <= span.flowing && span.flowing <= span.done && span.done <= timeline.time);
            for (resource, bytes) in ledger.operation_loads(&op) {
                flows.entry(resource).or_default().push((span.flowing, span.done, bytes));
            }
        }
        for used in &timeline.utilization {
            let rate = capacity(&testbed, &schedule, used.resource).unwrap();
            let mut flows = flows.remove(&used.resource).unwrap_or_default();
            flows.sort_unstable_by_key(|flow| flow.1);
            for &(begin, _, _) in &flows {
                let mut inside = 0.0;
                for &(_, end, bytes) in flows.iter().filter(|flow| flow.0 >= begin) {
                    inside += bytes;
                    // The tolerance covers a picosecond of rounding, and the efficiencies, which are in millionths.
                    let max_bytes = rate * ((end - begin).0 + 1) as f64;
                    prop_assert!(inside <= max_bytes * (1.0 + 1e-5) + 1e-3, "{:?} from {begin:?} to {end:?}", used.resource);
                }
            }
        }
    }

    /// On equal links where every transfer has a link of its own, busy time × rate equals bytes, to a picosecond per
    /// transfer.
    #[test]
    fn busy_time_is_bytes_over_rate(gpus in 2u32..10, gb_per_s in 1u64..2000, bytes in 1u64..1 << 24, index in 0usize..3) {
        let testbed = Testbed::ideal(switch(gpus, Bandwidth(gb_per_s * 1_000_000_000), Picos(350_000)));
        let (algorithm, collective) = [
            (Algorithm::Ring, Collective::AllReduce),
            (Algorithm::Ring, Collective::Broadcast),
            (Algorithm::TwoShot, Collective::AllReduce),
        ][index];
        let case = single_channel_case(algorithm, collective, gpus, bytes);
        let Some((schedule, timeline)) = run(&testbed, &case) else { return Ok(()) };
        let ledger = Ledger::new(&testbed, &schedule);
        let mut busy: HashMap<Resource, Vec<(Picos, Picos)>> = HashMap::new();
        for (op, span) in schedule.operations().zip(timeline.spans.iter()) {
            for (resource, _) in ledger.operation_loads(&op) {
                busy.entry(resource).or_default().push((span.flowing, span.done));
            }
        }
        for used in &timeline.utilization {
            let spans = busy.remove(&used.resource).expect("only capacities in use are listed");
            let transfers = spans.len() as f64;
            let busy = union(spans);
            let rate = capacity(&testbed, &schedule, used.resource).unwrap();
            let excess = busy.0 as f64 - used.bytes / rate;
            prop_assert!(-1e-3 <= excess && excess <= transfers + 1e-6 * transfers, "{used:?}: busy {busy:?}, {excess} more");
            let fraction = busy.0 as f64 / timeline.time.0 as f64;
            let rounding = transfers / timeline.time.0 as f64;
            prop_assert!((used.fraction - fraction).abs() <= rounding, "{used:?} against {fraction}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// No schedule is faster than the lower bound, with or without software costs, for any routing options and
    /// placement (including several ranks per device), nor than the bound at achievable instead of nominal rates.
    #[test]
    fn no_time_is_below_the_lower_bound(
        scene in scenes(24),
        template in call_templates(),
        device_indices in prop_oneof![2 => Just(vec![]), 1 => vec(any::<Index>(), 1..12)],
        (p2p, gdr, pxn) in prop_oneof![2 => Just((true, true, true)), 1 => any::<(bool, bool, bool)>()],
        buffers in buffer_locations(),
    ) {
        let mut testbed = scene.testbed().with_buffers(buffers);
        testbed.routes.p2p = if p2p { PeerAccess::Allowed } else { PeerAccess::Off };
        testbed.routes.gdr = if gdr { GpuDirect::Allowed } else { GpuDirect::Off };
        testbed.routes.pxn = if pxn { Pxn::Allowed } else { Pxn::Off };
        let (placement, per_host) = match &device_indices[..] {
            [] => (testbed.placement(), testbed.per_host()),
            device_indices => (device_indices.iter().map(|index| *index.get(testbed.fabric.gpus())).collect(), 1),
        };
        testbed.delays.resize(placement.len(), Picos::ZERO);
        let case = template.case_for_ranks(placement.len() as u32, per_host);
        let call = case.shape.call;
        let router = testbed.router();
        let in_network = case.algorithm.in_network();
        let bounds = Bounds::new(&testbed.fabric, &router, &placement, call.root.0)
            .with_in_network(in_network)
            .with_matrix(case.shape.matrix.as_ref());
        let bound = bounds.bound(&call);
        let costs = testbed.profile.protocol(case.shape.protocol);
        let links = testbed.profile.links;
        let best = [links.nvlink, links.c2c, links.pcie, links.upi, links.network].into_iter().fold(0.0, f64::max);
        let achievable = bounds.time_at_efficiency(&call, in_network, RateEfficiency { wire: costs.wire_efficiency, links: best });
        prop_assert!(achievable.0 as f64 >= bound.time.0 as f64 * (1.0 - 1e-12), "{achievable:?} below {bound:?}");
        if let Ok(timeline) = testbed.run_with_placement(&placement, &*case.generator(), Folding::WhereProved) {
            prop_assert!(timeline.time >= bound.time, "{:?} below {bound:?}", timeline.time);
            prop_assert!(timeline.time >= achievable, "{:?} below {achievable:?}", timeline.time);
        }
    }
}

#[test]
fn silent_pairs_need_no_route() {
    // The GPUs form a line, whose ends need not be connected for a chain.
    let mut builder = FabricBuilder::new("line");
    let host = builder.host("a");
    let gpus = [0, 1, 2, 3].map(|i| builder.node(&format!("gpu{i}"), NodeKind::Gpu, host, Figures::None).unwrap());
    for pair in gpus.windows(2) {
        builder.link(pair[0], pair[1], &LinkSpec::symmetric(LinkKind::Nvlink, Bandwidth(1_000_000_000), Picos(0)));
    }
    let testbed = Testbed::ideal(builder.finish());
    assert!(testbed.router().path(gpus[3], gpus[0]).is_err());
    let case = single_channel_case(Algorithm::Ring, Collective::Broadcast, 4, 1000);
    assert_eq!(testbed.run(&*case.generator(), Folding::Off).unwrap().time, Picos(3_000_000));
}

/// Returns the total time covered by at least one interval.
fn union(mut spans: Vec<(Picos, Picos)>) -> Picos {
    spans.sort_unstable();
    let (mut covered, mut until) = (Picos::ZERO, Picos::ZERO);
    for (begin, end) in spans {
        covered += end - begin.max(until);
        until = until.max(end);
    }
    covered
}
