//! Compares the facts of the algorithms with their schedules: number of steps, bytes that the busiest rank sends, and
//! total traffic.

use std::collections::HashMap;

use fabricast_collectives::algorithm::facts::{AlgorithmProperties, Count, Time, Traffic, facts, lower_bound_counts};
use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_collectives::bound::minimum_traffic;
use fabricast_sim::schedule::{BufferUse, Call, Collective, OpId, OpKind, Operation, Protocol, Rank, Schedule};
use fabricast_topologies::Bytes;

use crate::generators::{is_rooted, supported_pairs};

/// Returns the number of transfers on the longest dependency chain, and the largest number of bytes sent by a rank.
fn depth_and_traffic(schedule: &Schedule) -> (u32, f64) {
    let mut depths: HashMap<u32, u32> = HashMap::new();
    fn depth(schedule: &Schedule, op: OpId, cache: &mut HashMap<u32, u32>) -> u32 {
        if let Some(&depth) = cache.get(&op.0) {
            return depth;
        }
        let (run, index) = schedule.locate(op);
        let before = schedule
            .awaited_operations(run, index)
            .map(|dependency| depth(schedule, dependency, cache))
            .max()
            .unwrap_or(0);
        let kind = schedule.run(run).kind;
        // The steps of a barrier are signals.
        let is_step =
            kind.is_transfer() || (kind == OpKind::Signal && schedule.header().call.collective == Collective::Barrier);
        let depth = before + u32::from(is_step);
        cache.insert(op.0, depth);
        depth
    }
    let mut sent = vec![0.0; schedule.header().call.ranks as usize];
    let mut deepest = 0;
    for op in schedule.operations() {
        deepest = deepest.max(depth(schedule, op.id, &mut depths));
        if op.kind.is_transfer() {
            for i in 0..op.span {
                let size = schedule.header().layout.size(op.src.index + i);
                sent[op.rank.0 as usize] += size.numerator as f64 / f64::from(size.denominator);
            }
        }
    }
    (deepest, sent.into_iter().fold(0.0, f64::max))
}

/// Returns the number of transfers on the longest chain in which each begins after the previous one has arrived. A
/// message that follows another on its connection is sent while that one is in transit, and arrives no earlier.
fn serial_depth(schedule: &Schedule) -> u32 {
    fn chain(schedule: &Schedule, op: OpId, cache: &mut HashMap<u32, u32>) -> u32 {
        if let Some(&chain) = cache.get(&op.0) {
            return chain;
        }
        let (number, index) = schedule.locate(op);
        let run = schedule.run(number);
        let is_message = run.kind.is_transfer() && run.peer.is_fixed();
        let before = schedule.awaited_operations(number, index).map(|dependency| {
            let is_serialized = is_message && index > 0 && schedule.locate(dependency) == (number, index - 1);
            chain(schedule, dependency, cache) - u32::from(is_serialized)
        });
        let before = before.max().unwrap_or(0);
        let is_barrier = schedule.header().call.collective == Collective::Barrier;
        let chain = before + u32::from(run.kind.is_transfer() || (run.kind == OpKind::Signal && is_barrier));
        cache.insert(op.0, chain);
        chain
    }
    let mut cache = HashMap::new();
    schedule.operations().map(|op| chain(schedule, op.id, &mut cache)).max().unwrap_or(0)
}

/// Returns the total bytes sent by all ranks.
fn total_bytes_sent(schedule: &Schedule) -> f64 {
    let size = |chunk| schedule.header().layout.size(chunk);
    let sizes = |op: Operation| (0..op.span).map(move |i| size(op.src.index + i));
    let transfers = schedule.operations().filter(|op| op.kind.is_transfer());
    transfers.flat_map(sizes).map(|size| size.numerator as f64 / f64::from(size.denominator)).sum()
}

#[test]
fn every_algorithm_and_collective_has_exactly_one_fact() {
    let mut listed: Vec<_> = facts().map(|facts| (facts.algorithm, facts.collective)).collect();
    let mut offered = supported_pairs();
    listed.sort_unstable();
    offered.sort_unstable();
    assert_eq!(listed, offered);
}

/// Schedules have the stated number of steps, bytes sent by the busiest rank, and total traffic. The file `nvls.rs`
/// covers traffic through switches.
#[test]
fn steps_and_traffic_match_the_facts() {
    for facts in facts().filter(|facts| facts.traffic != Traffic::Switched) {
        let AlgorithmProperties { algorithm, collective, .. } = facts;
        let (mut sends_more, mut counts) = (false, 0);
        for ranks in (2..=17).chain([24, 32, 37]).filter(|&ranks| facts.is_exact_for(ranks)) {
            let is_flat = matches!(facts.time, Time::Flat(_));
            for per_host in (1..=ranks).filter(|size| ranks.is_multiple_of(*size) && (!is_flat || *size == ranks)) {
                // Blocks are whole bytes.
                let bytes = match collective {
                    Collective::AllToAllV => u64::from(ranks * ranks) << 10,
                    Collective::Barrier => 0,
                    _ => 1u64 << 20,
                };
                for buffers in [BufferUse::InPlace, BufferUse::OutOfPlace] {
                    let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(ranks / 3), buffers };
                    let call = if is_rooted(collective) { call } else { Call { root: Rank(0), ..call } };
                    let shape = Shape { ranks_per_node: per_host, ..Shape::new(call, Protocol::Simple) };
                    let schedule = Schedule::build(&*generator(algorithm, &shape).unwrap()).unwrap();
                    let label = format!("{algorithm} {collective} of {ranks}, {per_host} per host");
                    let count = Count { ranks, per_host };
                    let (depth, sent) = depth_and_traffic(&schedule);
                    assert_eq!(f64::from(depth), (facts.steps.evaluate)(count), "{label}");
                    let steps = lower_bound_counts(algorithm, collective, count).steps;
                    assert!(
                        steps <= f64::from(serial_depth(&schedule)),
                        "{label}: {steps}, not {}",
                        serial_depth(&schedule)
                    );
                    let expected = (facts.sent.evaluate)(count) * bytes as f64;
                    assert!((sent - expected).abs() < 1.0, "{label}: {sent}, not {expected}");
                    let (total, minimum_received) = (total_bytes_sent(&schedule), minimum_received(&shape) as f64);
                    assert!(total > minimum_received - 1.0, "{label}: {total} is less than possible");
                    sends_more |= total > minimum_received + 1.0;
                    counts += 1;
                }
            }
        }
        assert!(counts > 0);
        assert_eq!(sends_more, facts.traffic == Traffic::More, "{algorithm} {collective}");
    }
}

/// Returns the minimum number of bytes that all ranks together must receive from others.
fn minimum_received(shape: &Shape) -> u128 {
    shape.matrix.as_ref().map_or_else(|| minimum_traffic(&shape.call), |matrix| matrix.bytes_between_ranks().0.into())
}

#[test]
fn trees_of_hosts_are_shallow() {
    for (ranks, per_host, depth) in
        [(16, 1, 2 * 4), (64, 1, 2 * 6), (64, 8, 2 * (7 + 2 * 3)), (12, 1, 2 * 4), (12, 4, 2 * (3 + 2 * 2))]
    {
        let call = Call {
            collective: Collective::AllReduce,
            bytes: Bytes(1 << 20),
            ranks,
            root: Rank(0),
            buffers: BufferUse::OutOfPlace,
        };
        let shape = Shape { ranks_per_node: per_host, ..Shape::new(call, Protocol::Simple) };
        let schedule = Schedule::build(&*generator(Algorithm::Tree, &shape).unwrap()).unwrap();
        let (steps, _) = depth_and_traffic(&schedule);
        assert!(steps <= depth, "{ranks} ranks, {per_host} per host: {steps} steps, at most {depth} expected");
    }
}
