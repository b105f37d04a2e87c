//! Tests of generators on random calls: every schedule computes its collective, programs do not depend on the order of
//! requests, and declared symmetries hold. Depth and traffic are tested in `facts.rs`.

use std::collections::HashMap;

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_collectives::capabilities::HostLinks;
use fabricast_sim::lower::rank_traffic;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{
    Buffer, BufferUse, Call, ChunkRef, Collective, Header, OpId, OpKind, Operation, Program, Protocol, Rank,
    RotationDigit, Run, RunId, Schedule, ScheduleGenerator, Symmetry, fifo, json,
};
use fabricast_sim::verify::{FaultKind, VerifyOptions, verify};
use fabricast_topologies::Bytes;
use proptest::prelude::*;

use crate::matrices::with_matrix;

/// An algorithm and its shape.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) algorithm: Algorithm,
    pub(crate) shape: Shape,
}

impl Case {
    pub(crate) fn generator(&self) -> Box<dyn ScheduleGenerator + Send + Sync> {
        generator(self.algorithm, &self.shape).unwrap()
    }

    pub(crate) fn schedule(&self) -> Schedule {
        Schedule::build(&*self.generator()).unwrap()
    }
}

/// Number of FIFO slots that suffices for every schedule here; NCCL has eight. A double tree with many loops needs
/// three, and an all_reduce over stars of packed trees four: while a rank consumes the partial sums of loop l to send
/// the complete ones, its connection already carries the complete sums of loop l − 1 and the partial ones of loop l + 1,
/// so that the message three places after the partial sums of loop l must fit in the FIFO with them.
const FEWEST_SLOTS: u32 = 4;

/// Returns all supported pairs of algorithm and collective.
pub(crate) fn supported_pairs() -> Vec<(Algorithm, Collective)> {
    Algorithm::ALL.iter().flat_map(|&a| a.collectives().iter().map(move |&c| (a, c))).collect()
}

/// Returns the number of ranks in a multicast team, for algorithms that need one.
pub(crate) fn team_size(algorithm: Algorithm, collective: Collective, ranks: u32, ranks_per_node: u32) -> u32 {
    let is_divided = ranks_per_node > 1 && ranks.is_multiple_of(ranks_per_node);
    match (algorithm, collective) {
        // An all_reduce over several NVLink domains, with reduction in the network.
        (Algorithm::Nvls | Algorithm::NvlsTree, Collective::AllReduce) if is_divided => ranks_per_node,
        (Algorithm::Nvls | Algorithm::NvlsTree, _) => ranks,
        _ => 0,
    }
}

pub(crate) fn is_rooted(collective: Collective) -> bool {
    matches!(collective, Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter)
}

/// Returns the permutation of `0..ranks` that sorts the keys.
fn permuted(ranks: u32, keys: &[u32]) -> Vec<Rank> {
    let mut order: Vec<u32> = (0..ranks).collect();
    order.sort_by_key(|&rank| (keys[rank as usize % keys.len()], rank));
    order.into_iter().map(Rank).collect()
}

/// Returns the sides of a grid with one dimension per prime factor of the number of hosts.
pub(crate) fn host_grid(mut hosts: u32) -> Vec<u32> {
    let mut sides = Vec::new();
    for prime in [2, 3, 5, 7, 11, 13] {
        while hosts.is_multiple_of(prime) {
            sides.push(prime);
            hosts /= prime;
        }
    }
    sides.extend((hosts > 1).then_some(hosts));
    sides
}

/// Streaming algorithms divide a loop into the same number of chunks for any number of hosts; others divide buffers
/// into one block per rank.
#[test]
fn streaming_algorithms_use_the_same_chunks_for_any_rank_count() {
    for (algorithm, collective) in supported_pairs() {
        let chunks = |ranks: u32| {
            let root = Rank(0);
            let call = Call { collective, bytes: Bytes(1 << 40), ranks, root, buffers: BufferUse::OutOfPlace };
            // NVLS over several domains is not part of the claim.
            let ranks_per_node = if algorithm == Algorithm::Nvls { 0 } else { 8 };
            let ranks_per_team = team_size(algorithm, collective, ranks, ranks_per_node);
            let shape = Shape { channels: 8, ranks_per_node: 8, ranks_per_team, ..Shape::new(call, Protocol::Simple) };
            generator(algorithm, &shape).unwrap().header().layout.chunks()
        };
        if collective.has_variable_size() && collective != Collective::SendRecv {
            assert_eq!(algorithm.is_pipelined(collective), chunks(32) == chunks(128), "{algorithm} {collective}");
        }
    }
}

/// Generates random calls of up to `max_ranks` ranks.
pub(crate) fn cases(max_ranks: u32) -> impl Strategy<Value = Case> {
    let orders = prop_oneof![
        3 => Just(0u32),
        1 => Just(1),
        1 => Just(2),
        2 => Just(3),
    ];
    let seed = prop_oneof![1 => Just(0u64), 4 => any::<u64>()];
    let call =
        (prop::sample::select(supported_pairs()), 1..=max_ranks, any::<prop::sample::Index>(), any::<bool>(), seed);
    let shape = (
        prop_oneof![Just(0u64), Just(1), 2u64..5000],
        1u16..7,
        prop::option::of(prop_oneof![Just(40u64), 64u64..1000]),
        any::<prop::sample::Index>(),
        prop::sample::select(Protocol::ALL.to_vec()),
        any::<bool>(),
    );
    (call, shape, orders, prop::collection::vec(any::<u32>(), 64)).prop_map(
        |(
            ((algorithm, collective), ranks, root, in_place, seed),
            (bytes, channels, chunk, hosts, protocol, grid),
            orders,
            keys,
        )| {
            let buffers = if in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace };
            let root = if is_rooted(collective) { root.index(ranks as usize) as u32 } else { 0 };
            let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(root), buffers };
            let divisors: Vec<u32> = (1..=ranks).filter(|d| ranks.is_multiple_of(*d)).chain([0]).collect();
            let per_host = *hosts.get(&divisors);
            let shape = Shape {
                channels,
                chunk: chunk.map(Bytes),
                ranks_per_node: per_host,
                ranks_per_team: team_size(algorithm, collective, ranks, per_host),
                grid: if grid { host_grid(ranks / per_host.max(1)) } else { Vec::new() },
                orders: match orders {
                    0 | 3 => Vec::new(),
                    1 => vec![permuted(ranks, &keys)],
                    _ => vec![(0..ranks).map(Rank).collect(), (0..ranks).rev().map(Rank).collect()],
                },
                ..Shape::new(call, protocol)
            };
            // Ring orders and channels are those of hosts with NICs, or of links between all pairs of GPUs.
            let shape = match orders {
                3 if seed % 2 == 0 => shape.with_ring_orders(algorithm, per_host.clamp(1, 4), HostLinks::Other),
                3 => shape.with_ring_orders(algorithm, per_host, HostLinks::Pairs),
                _ => shape,
            };
            Case { algorithm, shape: with_matrix(shape, seed) }
        },
    )
}

#[test]
fn all_reduce_over_stars_needs_four_fifo_slots() {
    // On one channel, which both phases share.
    for ranks in [2, 3, 5, 8, 13] {
        let bytes = Bytes(u64::from(ranks) * 40 * 30);
        let call =
            Call { collective: Collective::AllReduce, bytes, ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
        let shape = Shape { channels: 1, chunk: Some(Bytes(40)), ..Shape::new(call, Protocol::Simple) };
        let schedule = Case { algorithm: Algorithm::TreePacking, shape }.schedule();
        let proved = |slots| verify(&schedule, &VerifyOptions { fifo_depth: Some(slots) }).is_ok();
        assert_eq!([3, 4].map(proved), [false, true], "{ranks} ranks");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_schedule_computes_its_collective(case in cases(24), depth in prop::option::of(FEWEST_SLOTS..10)) {
        let schedule = case.schedule();
        let verified = verify(&schedule, &VerifyOptions { fifo_depth: depth });
        prop_assert!(verified.is_ok(), "{}", verified.unwrap_err());
    }

    #[test]
    fn programs_do_not_depend_on_the_order_of_requests(case in cases(16), keys in prop::collection::vec(any::<u32>(), 16)) {
        let generator = case.generator();
        let program = |rank: Rank| {
            let mut program = Program::default();
            generator.program(rank, &mut program);
            program
        };
        let ranks = case.shape.call.ranks;
        let in_order: Vec<Program> = (0..ranks).map(|rank| program(Rank(rank))).collect();
        let other_generator = case.generator();
        let mut reused = Program::default();
        for rank in permuted(ranks, &keys) {
            reused.clear();
            other_generator.program(rank, &mut reused);
            prop_assert_eq!(&reused, &in_order[rank.0 as usize]);
        }
    }

    #[test]
    fn declared_symmetries_hold(case in cases(24)) {
        let schedule = case.schedule();
        if let Symmetry::Rotations(digits) = case.generator().symmetry() {
            for digit in digits {
                prop_assert!(digit.length > 0 && case.shape.call.ranks.is_multiple_of(digit.stride * digit.length));
                if let Err(difference) = is_symmetric(&schedule, digit, chunk_order(case.algorithm)) {
                    prop_assert!(false, "{digit:?}: {difference}");
                }
            }
        }
    }

    /// The traffic between ranks is the same if it is computed for each rank or for one representative of symmetric
    /// ranks.
    #[test]
    fn traffic_by_symmetry_equals_traffic_of_all_ranks(case in cases(24)) {
        let generator = case.generator();
        let profile = Profile::ideal();
        prop_assert_eq!(rank_traffic(&*generator, &profile), rank_traffic(&WithoutSymmetry(&*generator), &profile));
    }

    #[test]
    fn schedules_round_trip_through_json(case in cases(12)) {
        let schedule = case.schedule();
        let text = json::to_json(&schedule);
        let back = json::from_json(&text, "test").unwrap();
        prop_assert_eq!(&back, &schedule);
        prop_assert_eq!(json::to_json(&back), text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn credits_match_their_definition(case in cases(12), depth in 0u32..6) {
        let schedule = case.schedule();
        let credited = fifo::add_fifo_credits(&schedule, depth).unwrap();
        prop_assert_eq!(credited.operation_count(), schedule.operation_count());
        let expected = credits_by_definition(&schedule, depth as usize);
        for (op, credited_op) in schedule.operations().zip(credited.operations()) {
            let without_ids = |op: Operation| Operation { run: RunId(0), index: 0, ..op };
            prop_assert_eq!(without_ids(op), without_ids(credited_op));
            let mut expected_waits: Vec<OpId> = schedule.awaited_operations(op.run, op.index).collect();
            expected_waits.extend(&expected[op.id.0 as usize]);
            let mut actual_waits: Vec<OpId> = credited.awaited_operations(credited_op.run, credited_op.index).collect();
            expected_waits.sort_unstable();
            actual_waits.sort_unstable();
            prop_assert_eq!(actual_waits, expected_waits);
        }
    }
}

/// Returns the FIFO dependencies of every operation, computed directly from the definition.
fn credits_by_definition(schedule: &Schedule, depth: usize) -> Vec<Vec<OpId>> {
    let operations: Vec<Operation> = schedule.operations().collect();
    let waits: Vec<Vec<OpId>> =
        operations.iter().map(|op| schedule.awaited_operations(op.run, op.index).collect()).collect();
    let mut levels = vec![0; operations.len()];
    for _ in 0..operations.len() {
        let next: Vec<usize> = waits
            .iter()
            .map(|dependencies| dependencies.iter().map(|op| levels[op.0 as usize] + 1).max().unwrap_or(0))
            .collect();
        if next == levels {
            break;
        }
        levels = next;
    }
    let mut credits = vec![Vec::new(); operations.len()];
    for put in operations.iter().filter(|op| op.kind.writes_peer()) {
        let mut connection: Vec<&Operation> = operations
            .iter()
            .filter(|op| op.kind.writes_peer() && (op.rank, op.peer, op.channel) == (put.rank, put.peer, put.channel))
            .collect();
        connection.sort_by_key(|op| (levels[op.id.0 as usize], op.id));
        let number = connection.iter().position(|op| op.id == put.id).unwrap();
        if let Some(previous) = number.checked_sub(depth).map(|k| connection[k].id) {
            let receives = |op: &&Operation| op.rank == put.peer && waits[op.id.0 as usize].contains(&previous);
            let receivers: Vec<OpId> = operations.iter().filter(receives).map(|op| op.id).collect();
            credits[put.id.0 as usize] = if receivers.is_empty() { vec![previous] } else { receivers };
        }
    }
    credits
}

#[test]
fn credits_of_regular_schedules_need_few_runs() {
    let call = Call {
        collective: Collective::AllReduce,
        bytes: Bytes(1 << 20),
        ranks: 64,
        root: Rank(0),
        buffers: BufferUse::InPlace,
    };
    let schedule = Case { algorithm: Algorithm::Ring, shape: Shape::new(call, Protocol::Simple) }.schedule();
    let credited = fifo::add_fifo_credits(&schedule, fifo::NCCL_DEPTH).unwrap();
    assert_eq!(schedule.run_count(), 64 * 3);
    assert!(credited.run_count() <= 64 * 6, "{}", credited.run_count());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn larger_schedules_compute_their_collective(case in cases(64), depth in prop::option::of(FEWEST_SLOTS..10)) {
        let verified = verify(&case.schedule(), &VerifyOptions { fifo_depth: depth });
        prop_assert!(verified.is_ok(), "{}", verified.unwrap_err());
    }
}

/// Returns the numbers of ranks per host to test: one host, and all equal divisions.
fn host_sizes(ranks: u32) -> Vec<u32> {
    std::iter::once(0).chain((1..ranks).filter(|size| ranks.is_multiple_of(*size))).collect()
}

#[test]
fn all_calls_of_up_to_17_ranks_compute_their_collective() {
    for (algorithm, collective) in supported_pairs() {
        for ranks in 2..=17 {
            let roots = if is_rooted(collective) { vec![0, ranks / 2, ranks - 1] } else { vec![0] };
            for root in roots {
                for ranks_per_node in host_sizes(ranks) {
                    for (channels, loops, buffers) in [(1, 1, BufferUse::OutOfPlace), (3, 2, BufferUse::InPlace)] {
                        let bytes = u64::from(ranks) * u64::from(channels) * 8 * loops;
                        let bytes = if collective == Collective::Barrier { 0 } else { bytes };
                        let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(root), buffers };
                        let shape = Shape {
                            channels,
                            chunk: (loops > 1).then_some(Bytes(8)),
                            ranks_per_node,
                            ranks_per_team: team_size(algorithm, collective, ranks, ranks_per_node),
                            ..Shape::new(call, Protocol::Simple)
                        };
                        let case = Case { algorithm, shape };
                        let verified = verify(&case.schedule(), &VerifyOptions { fifo_depth: Some(fifo::NCCL_DEPTH) });
                        assert!(verified.is_ok(), "{case:?}: {}", verified.unwrap_err());
                    }
                }
            }
        }
    }
}

/// Generator that declares no symmetry.
struct WithoutSymmetry<'a>(&'a dyn ScheduleGenerator);

impl ScheduleGenerator for WithoutSymmetry<'_> {
    fn header(&self) -> &Header {
        self.0.header()
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        self.0.program(rank, program);
    }
}

/// Order in which symmetric ranks move the chunks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkOrder {
    /// Corresponding operations move corresponding chunks.
    Same,
    /// Corresponding runs move the same sets of chunks.
    AnyInRun,
}

/// Blocks between positions whose bits change are sent in ascending order, and not in that of the other rank's blocks.
fn chunk_order(algorithm: Algorithm) -> ChunkOrder {
    match algorithm {
        Algorithm::RecursiveDoubling | Algorithm::RecursiveHalvingDoubling | Algorithm::Butterfly => {
            ChunkOrder::AnyInRun
        }
        _ => ChunkOrder::Same,
    }
}

/// A chunk and the rank whose buffer holds it.
type OwnedChunk = (Rank, ChunkRef);

/// Chunks that corresponding operations or runs of two ranks move.
struct MovedChunks {
    from: Vec<OwnedChunk>,
    to: Vec<OwnedChunk>,
    location: String,
}

/// Checks that rotating one digit of every rank by one maps the schedule to itself. Chunks of equal size may be
/// exchanged if that is done consistently.
pub(crate) fn is_symmetric(schedule: &Schedule, digit: RotationDigit, order: ChunkOrder) -> Result<(), String> {
    let rotated = |rank: Rank| {
        let value = rank.0 / digit.stride % digit.length;
        Rank(rank.0 - value * digit.stride + (value + 1) % digit.length * digit.stride)
    };
    let mut chunks = Bijection::default();
    let mut moves: Vec<MovedChunks> = Vec::new();
    for rank in (0..schedule.header().call.ranks).map(Rank) {
        let (runs, images) = (schedule.rank_runs(rank), schedule.rank_runs(rotated(rank)));
        if runs.len() != images.len() {
            return Err(format!("ranks {} and {} have different numbers of runs", rank.0, rotated(rank).0));
        }
        for (number, (a, b)) in runs.zip(images).enumerate() {
            let location = format!("run {number} of rank {}", rank.0);
            let (x, y) = (schedule.run(a), schedule.run(b));
            let shape = |run: &Run| (run.len, run.kind, run.channel, run.src_buffer, run.dst_buffer, run.span);
            if shape(x) != shape(y) {
                return Err(format!("{location} looks different"));
            }
            let mut actual: Vec<_> =
                schedule.dependencies(a).iter().map(|d| (rotated(d.rank), d.run, d.start, d.step)).collect();
            let mut expected: Vec<_> =
                schedule.dependencies(b).iter().map(|d| (d.rank, d.run, d.start, d.step)).collect();
            actual.sort_unstable();
            expected.sort_unstable();
            if actual != expected {
                return Err(format!("{location} waits for something else"));
            }
            // By source and target: the chunks of the run so far.
            let mut run_moves: [MovedChunks; 2] =
                [(); 2].map(|()| MovedChunks { from: vec![], to: vec![], location: location.clone() });
            for index in 0..x.len {
                let (op, image) =
                    (schedule.operation(schedule.op_id(a, index)), schedule.operation(schedule.op_id(b, index)));
                if rotated(op.peer) != image.peer {
                    return Err(format!("{location} has another peer"));
                }
                if !op.kind.moves_data() {
                    continue;
                }
                for ((moved, from), to) in run_moves.iter_mut().zip(moved_chunks(&op)).zip(moved_chunks(&image)) {
                    if order == ChunkOrder::Same {
                        moves.push(MovedChunks { from, to, location: location.clone() });
                    } else {
                        moved.from.extend(from);
                        moved.to.extend(to);
                    }
                }
            }
            moves.extend(run_moves);
        }
    }
    // Single chunks determine the mapping; sets must then map to sets, in any internal order.
    moves.sort_by_key(|moved| moved.from.len());
    for MovedChunks { from, to, location } in moves {
        for (&a, &b) in from.iter().zip(&to) {
            let size = |(_, chunk): OwnedChunk| schedule.header().layout.size(chunk.index);
            let fits = if from.len() == 1 {
                chunks.join(a, b)
            } else {
                chunks.forward.get(&a).is_none_or(|image| to.contains(image))
                    && chunks.backward.get(&b).is_none_or(|origin| from.contains(origin))
            };
            if size(a) != size(b) || !fits {
                return Err(format!("{location} moves another chunk: {a:?} becomes {b:?}"));
            }
        }
    }
    Ok(())
}

/// Returns the chunks that an operation reads and those that it writes.
fn moved_chunks(op: &Operation) -> [Vec<OwnedChunk>; 2] {
    let source = if op.kind.reads_peer() { op.peer } else { op.rank };
    let target = if op.kind.writes_peer() { op.peer } else { op.rank };
    [(source, op.src), (target, op.dst)]
        .map(|(owner, first)| (0..op.span).map(|i| (owner, ChunkRef { index: first.index + i, ..first })).collect())
}

/// Bijection under construction.
#[derive(Default)]
struct Bijection {
    forward: HashMap<(Rank, ChunkRef), (Rank, ChunkRef)>,
    backward: HashMap<(Rank, ChunkRef), (Rank, ChunkRef)>,
}

impl Bijection {
    fn join(&mut self, from: (Rank, ChunkRef), to: (Rank, ChunkRef)) -> bool {
        *self.forward.entry(from).or_insert(to) == to && *self.backward.entry(to).or_insert(from) == from
    }
}

#[test]
fn a_ring_needs_two_slots() {
    // With one slot, every rank's slot is full and waits for the next rank's to be emptied.
    for collective in [Collective::AllReduce, Collective::AllGather] {
        let call = Call { collective, bytes: Bytes(64), ranks: 4, root: Rank(0), buffers: BufferUse::OutOfPlace };
        let schedule = Case { algorithm: Algorithm::Ring, shape: Shape::new(call, Protocol::Ll) }.schedule();
        let with_slots = |slots| verify(&schedule, &VerifyOptions { fifo_depth: Some(slots) });
        assert_eq!(with_slots(1).unwrap_err().kind, FaultKind::FifoDeadlock { depth: 1 });
        assert!(with_slots(2).is_ok());
    }
}

#[test]
fn slots_are_used_in_send_order_if_runs_hold_one_step_of_all_loops() {
    let call = Call {
        collective: Collective::ReduceScatter,
        bytes: Bytes(840),
        ranks: 3,
        root: Rank(0),
        buffers: BufferUse::OutOfPlace,
    };
    let shape = Shape { chunk: Some(Bytes(40)), ..Shape::new(call, Protocol::Ll) };
    let schedule = Case { algorithm: Algorithm::Ring, shape }.schedule();
    assert_eq!((schedule.run_count(), schedule.operation_count()), (3 * 2, 3 * 2 * 7));
    for slots in 2..10 {
        let verified = verify(&schedule, &VerifyOptions { fifo_depth: Some(slots) });
        assert!(verified.is_ok(), "{slots} slots: {}", verified.unwrap_err());
    }
}

#[test]
fn number_of_runs_does_not_grow_with_symmetric_ranks() {
    let runs = |algorithm, collective, ranks, chunk: Option<u64>| {
        let call = Call { collective, bytes: Bytes(1 << 20), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
        let shape = Shape { channels: 2, chunk: chunk.map(Bytes), ..Shape::new(call, Protocol::Simple) };
        let mut program = Program::default();
        generator(algorithm, &shape).unwrap().program(Rank(ranks / 2), &mut program);
        program.runs().len()
    };
    for ranks in [16, 4096] {
        assert_eq!(runs(Algorithm::Ring, Collective::AllReduce, ranks, None), 2 * 3);
        assert_eq!(runs(Algorithm::Ring, Collective::AllGather, ranks, None), 2 * (2 + 1));
        assert_eq!(runs(Algorithm::Direct, Collective::AllToAll, ranks, None), 2 * (1 + 1));
        assert_eq!(runs(Algorithm::Tree, Collective::AllReduce, ranks, None), 2 * 4);
        assert_eq!(runs(Algorithm::Ring, Collective::Broadcast, ranks, None), 2);
    }
    // A channel has two pieces and a wait for each of log2 n steps, and a copy.
    for (ranks, steps) in [(16, 4), (4096, 12)] {
        for (algorithm, collective, max_runs) in [
            (Algorithm::RecursiveDoubling, Collective::AllReduce, 2 * steps + 2),
            (Algorithm::RecursiveDoubling, Collective::AllGather, 3 * steps + 1),
            (Algorithm::RecursiveHalvingDoubling, Collective::AllReduce, 4 * steps),
            (Algorithm::RecursiveHalvingDoubling, Collective::ReduceScatter, 3 * steps),
            (Algorithm::Bruck, Collective::AllGather, 3 * steps + 1),
            (Algorithm::Pat, Collective::AllGather, 3 * steps + 1),
            (Algorithm::Pat, Collective::ReduceScatter, 4 * steps),
            (Algorithm::ScatterAllGather, Collective::Broadcast, 3 * steps + 2),
            (Algorithm::Tree, Collective::Scatter, 3 * steps),
            (Algorithm::Tree, Collective::Gather, 3 * steps),
            (Algorithm::Pairwise, Collective::AllToAll, 2),
        ] {
            assert!(runs(algorithm, collective, ranks, None) <= 2 * max_runs, "{algorithm} {collective} of {ranks}");
        }
    }
    // Blocks are sent in rows or columns, of which there are about √n.
    assert!(runs(Algorithm::Bruck, Collective::AllToAll, 4096, None) <= 2 * 16 * 64);
    // Many loops of a small ring need one run per step.
    assert_eq!(runs(Algorithm::Ring, Collective::AllReduce, 8, Some(64)), 2 * 14);
}

#[test]
fn impossible_calls_are_rejected_with_a_reason() {
    let call = |collective, ranks| Call {
        collective,
        bytes: Bytes(1 << 20),
        ranks,
        root: Rank(0),
        buffers: BufferUse::OutOfPlace,
    };
    let base = Shape::new(call(Collective::AllReduce, 6), Protocol::Simple);
    let reason = |algorithm, shape: &Shape| generator(algorithm, shape).err().map(|e| e.to_string());
    assert_eq!(
        reason(Algorithm::OneShot, &Shape { call: call(Collective::Gather, 6), ..base.clone() }).as_deref(),
        Some("one_shot does not offer gather; it offers all_reduce, barrier")
    );
    assert_eq!(
        reason(Algorithm::Hierarchical, &Shape { ranks_per_node: 4, ..base.clone() }).as_deref(),
        Some("hierarchical needs hosts with equally many ranks; 6 ranks are not a multiple of 4")
    );
    for shape in [
        Shape { channels: 0, ..base.clone() },
        Shape { chunk: Some(Bytes(0)), ..base.clone() },
        Shape { call: call(Collective::AllReduce, 0), ..base.clone() },
        Shape { call: Call { root: Rank(6), ..base.call }, ..base.clone() },
        Shape { orders: vec![vec![Rank(0); 6]], ..base.clone() },
        Shape { orders: vec![vec![Rank(9)]], ..base.clone() },
        Shape { call: Call { bytes: Bytes::MAX, ..base.call }, chunk: Some(Bytes(1)), ..base.clone() },
    ] {
        assert!(reason(Algorithm::Ring, &shape).is_some(), "{shape:?}");
    }
    assert_eq!(reason(Algorithm::Ring, &base), None);
}

#[test]
fn one_rank_copies_or_does_nothing() {
    for (algorithm, collective) in supported_pairs() {
        for (buffers, operations) in [(BufferUse::OutOfPlace, 1), (BufferUse::InPlace, 0)] {
            let (bytes, operations) = if collective == Collective::Barrier { (0, 0) } else { (8, operations) };
            let call = Call { collective, bytes: Bytes(bytes), ranks: 1, root: Rank(0), buffers };
            let schedule = Case { algorithm, shape: Shape::new(call, Protocol::Ll) }.schedule();
            assert_eq!(verify(&schedule, &VerifyOptions::default()).unwrap().operations, operations);
            assert!(schedule.operations().all(|op| op.kind == OpKind::Copy && op.dst.buffer == Buffer::Output));
        }
    }
}
