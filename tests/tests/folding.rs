//! Folding changes nothing: a folded run equals the whole run to the picosecond, on any fabric, for any schedule and
//! any claimed symmetry; and runs with symmetric ranks are folded.

use fabricast_planner::algorithm::{Algorithm, Shape};
use fabricast_sim::critical::CriticalStep;
use fabricast_sim::engine::{EngineError, Span};
use fabricast_sim::lower::{Resource, Setting};
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{
    Blocks, Buffer, BufferUse, Call, Channel, Collective, Dependency, Generate, Header, Layout, OpKind, Program,
    Protocol, Rank, RotationDigit, Run, Segment, Symmetry, Walk,
};
use fabricast_sim::template::Outline;
use fabricast_sim::{Folding, SimulateError, Timeline};
use fabricast_topologies::{Bandwidth, Bytes, Fabric, Picos};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::generators::Case;
use crate::worlds::{Plant, World, orders, places, plain, plants, scenes, switch};

/// Runs a schedule folded and whole, and with one block representing equal ones; all results must agree. Returns the
/// fold factor.
fn fold_factor_of_equal_runs(world: &World, generator: &dyn Generate) -> Result<Option<f64>, TestCaseError> {
    let Some((whole, factor)) = equal_runs(world, generator)? else { return Ok(None) };
    blocks_may_go_first(world, generator, &whole)?;
    Ok(factor)
}

/// Returns the whole run and the fold factor of the other; `None` if both fail in the same way.
fn equal_runs(world: &World, generator: &dyn Generate) -> Result<Option<(Timeline, Option<f64>)>, TestCaseError> {
    let whole = world.run(generator, Folding::Off);
    let folded = world.run(generator, Folding::WhereProved);
    match (whole, folded) {
        (Ok(whole), Ok(folded)) => {
            are_equal(&whole, &folded)?;
            Ok(Some((whole, folded.fold_factor)))
        }
        (Err(SimulateError::Engine(whole)), Err(SimulateError::Engine(folded))) => {
            prop_assert_eq!(place(&whole), place(&folded));
            prop_assert_eq!(whole, folded);
            Ok(None)
        }
        (Err(whole), Err(folded)) => {
            prop_assert_eq!(whole.to_string(), folded.to_string());
            Ok(None)
        }
        (whole, folded) => Err(TestCaseError::fail(format!(
            "whole: {:?}, folded: {:?}",
            whole.map(|timeline| timeline.time),
            folded.map(|timeline| timeline.time)
        ))),
    }
}

/// Checks that simulating one of several equal thread blocks suffices, and that a run stops when it exceeds its time
/// limit.
fn blocks_may_go_first(world: &World, generator: &dyn Generate, whole: &Timeline) -> Result<(), TestCaseError> {
    let end = whole.time - whole.launch;
    let found = world.timed(generator, Folding::BlocksFirst, Some(end)).unwrap();
    prop_assert_eq!((found.time, found.costs, found.operations), (whole.time, whole.costs, whole.operations));
    for one in &found.utilization {
        prop_assert!(whole.utilization.contains(one), "{one:?}");
    }
    let listed = |timeline: &Timeline| {
        timeline.utilization.iter().filter(|one| !matches!(one.resource, Resource::Lane(..))).count()
    };
    prop_assert_eq!(listed(&found), listed(whole));
    if let Some(too_early) = end.0.checked_sub(1).map(Picos).filter(|_| whole.operations > 0) {
        let abandoned = world.timed(generator, Folding::BlocksFirst, Some(too_early));
        let is_abandoned = matches!(abandoned, Err(SimulateError::Engine(EngineError::Abandoned { .. })));
        // Operations that end at their start finish before the time limit is checked.
        let startup = world.profile.protocol(generator.header().protocol).startup;
        prop_assert!(is_abandoned || too_early < startup, "{:?}", abandoned.map(|timeline| timeline.time));
    }
    Ok(())
}

/// Operations of a rank on its first channel without chunks: each run with the runs it waits for, by their index
/// there (`None`: on another channel).
fn first_channel(generator: &dyn Generate, rank: Rank) -> Vec<(String, Vec<String>)> {
    let places = |rank: Rank| {
        let mut program = Program::default();
        generator.program(rank, &mut program);
        let mut count = 0;
        let place = |run: &Run| {
            let is_first = run.channel == Channel(0);
            count += u32::from(is_first);
            is_first.then(|| count - 1)
        };
        let places: Vec<Option<u32>> = program.runs().iter().map(place).collect();
        (program, places)
    };
    let (program, _) = places(rank);
    let runs = program.runs().iter().enumerate().filter(|(_, run)| run.channel == Channel(0));
    runs.map(|(number, run)| {
        let Run { len, kind, peer, src_buffer, dst_buffer, span, .. } = *run;
        let awaited = program.dependencies(number).iter().map(|one| {
            let place = places(one.rank).1.get(one.run as usize).copied().flatten();
            format!("{:?} {place:?} {} {}", one.rank, one.start, one.step)
        });
        (format!("{len} {kind:?} {peer:?} {src_buffer:?} {dst_buffer:?} {span}"), awaited.collect())
    })
    .collect()
}

fn place(error: &EngineError) -> Option<(u32, u32)> {
    match *error {
        EngineError::Deadlock { run, index, .. } | EngineError::TooLong { run, index } => Some((run, index)),
        EngineError::TooManyOperations { .. } | EngineError::Interrupted | EngineError::Abandoned { .. } => None,
    }
}

fn are_equal(whole: &Timeline, folded: &Timeline) -> Result<(), TestCaseError> {
    prop_assert_eq!(whole.fold_factor, None);
    prop_assert_eq!(whole.time, folded.time);
    prop_assert_eq!(whole.costs, folded.costs);
    prop_assert_eq!(whole.operations, folded.operations);
    prop_assert_eq!(&whole.utilization, &folded.utilization);
    prop_assert_eq!(&whole.rank_starts, &folded.rank_starts);
    prop_assert_eq!(whole.spans.iter().count() as u64, whole.operations);
    prop_assert_eq!(&whole.spans, &folded.spans);
    let (all, odd) = (|_| true, |run| run % 3 == 1);
    let mut by_start: Vec<Span> = whole.spans.iter().filter(|span| odd(span.run)).collect();
    by_start.sort_by_key(|span| (span.ready, span.run, span.index));
    prop_assert!(folded.spans.by_start(odd).iter().eq(by_start));
    prop_assert!(whole.spans.by_start(all).iter().eq(folded.spans.by_start(all).iter()));
    prop_assert_eq!(&whole.critical_path, &folded.critical_path);
    let (of_whole, of_folded) = (whole.load.as_ref().unwrap(), folded.load.as_ref().unwrap());
    prop_assert_eq!(of_whole.iter().count(), whole.utilization.len());
    prop_assert!(of_whole.iter().eq(of_folded.iter()));
    prop_assert_eq!(whole.costs.total(), whole.time);
    let path: Picos = whole.critical_path.iter().map(CriticalStep::total).sum();
    let done = whole.critical_path.last().map_or(whole.time - whole.launch, |last| last.span.done);
    prop_assert_eq!(whole.critical_path.is_empty(), whole.operations == 0);
    prop_assert!(whole.operations == 0 || path == done);
    prop_assert_eq!(done + whole.launch, whole.time);
    Ok(())
}

/// Algorithms that work in loops or pipeline chunks.
const IN_LOOPS: [(Algorithm, Collective); 12] = [
    (Algorithm::Ring, Collective::AllReduce),
    (Algorithm::Ring, Collective::AllGather),
    (Algorithm::Ring, Collective::ReduceScatter),
    (Algorithm::Ring, Collective::Broadcast),
    (Algorithm::Ring, Collective::Reduce),
    (Algorithm::Tree, Collective::AllReduce),
    (Algorithm::Tree, Collective::Broadcast),
    (Algorithm::Tree, Collective::Reduce),
    (Algorithm::Knomial, Collective::Broadcast),
    (Algorithm::BinaryTree, Collective::Reduce),
    (Algorithm::SplitTree, Collective::Broadcast),
    (Algorithm::ReduceThenBroadcast, Collective::AllReduce),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    /// Schedules of the generators, on healthy and broken fabrics.
    #[test]
    fn folded_runs_equal_whole_runs(scene in scenes(24), order in orders(), buffers in places()) {
        let world = scene.world().with_buffers(buffers);
        let case = order.over(world.ranks(), world.per_host());
        fold_factor_of_equal_runs(&world, &*case.generator())?;
    }

    /// Assumption of the planner: if four channels do the same, further ones do too, and the first channel does what
    /// a single one does.
    #[test]
    fn four_equal_channels_imply_that_all_are_equal(scene in scenes(24), order in orders(), channels in 2u16..=33) {
        let world = World { delays: Vec::new(), ..scene.world() };
        let (router, placement) = (world.router(), world.placement());
        let setting = Setting {
            fabric: &world.fabric,
            router: &router,
            placement: &placement,
            profile: &world.profile,
            delays: &[],
        };
        let order = order.in_one_loop(1 << 30);
        let generator = |channels: u16| {
            let mut case = order.over(world.ranks(), world.per_host());
            case.shape.channels = channels;
            case.shape.orders.clear();
            case.generator()
        };
        let print = |channels: u16| Outline::of(&*generator(channels), setting).map(|outline| outline.print());
        if let Some(four) = print(4).filter(|four| four.blocks() == 4 && channels >= 4) {
            prop_assert_eq!(print(channels), Some(four.on_blocks(channels)));
        }
        if order.algorithm.divides_by_channels(order.collective) {
            let (one, several) = (generator(1), generator(channels));
            for rank in (0..world.ranks()).map(Rank) {
                prop_assert_eq!(first_channel(&*one, rank), first_channel(&*several, rank));
            }
        }
    }

    /// Loops of rings and pipelined messages along chains and trees, on blocks that work in passes.
    #[test]
    fn folded_loops_and_pipelines_equal_whole_runs(
        plant in plants(16),
        (algorithm, collective) in select(IN_LOOPS.to_vec()),
        protocol in select(vec![Protocol::Ll, Protocol::Ll128, Protocol::Simple]),
        (channels, warps, per_host) in (1u16..=4, 1u16..=20, any::<bool>()),
        (chunk, loops, rest) in (prop_oneof![1u64..2000, 1u64..1_000_000], 2u64..=7, 0u64..100),
        buffers in select(vec![BufferUse::InPlace, BufferUse::OutOfPlace]),
        late in prop_oneof![3 => Just(0u64), 1 => 1u64..20_000_000],
    ) {
        let mut world = World { profile: Profile::named("nccl-2.28-h200").unwrap(), ..World::ideal(plant.build()) };
        let ranks = world.ranks();
        if late > 0 {
            world.delays = vec![Picos::ZERO; ranks as usize];
            world.delays[ranks as usize / 2] = Picos(late);
        }
        let bytes = chunk * u64::from(channels) * u64::from(ranks) * loops + rest;
        let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers };
        let shape = Shape {
            channels,
            threads: Some(32 * warps),
            chunk: Some(Bytes(chunk)),
            ranks_per_node: if per_host { world.per_host() } else { 0 },
            ..Shape::new(call, protocol)
        };
        fold_factor_of_equal_runs(&world, &*Case { algorithm, shape }.generator())?;
    }

    /// Random schedules: equal on all ranks but for a few that differ.
    #[test]
    fn folded_runs_of_random_schedules_equal_whole_runs(scene in scenes(12), sketch in sketches()) {
        let world = scene.world();
        fold_factor_of_equal_runs(&world, &sketch.drawn(world.ranks()))?;
    }

    /// A claimed symmetry of a schedule, true or false, does not matter if folding is proved.
    #[test]
    fn a_false_claim_of_symmetry_changes_nothing(scene in scenes(12), sketch in sketches(), stride in 1u32..4) {
        let world = scene.world();
        let drawn = sketch.drawn(world.ranks());
        let length = world.ranks().div_ceil(stride);
        let claimed = Claimed { schedule: &drawn, symmetry: Symmetry::Rotations(vec![RotationDigit { stride, length }]) };
        equal_runs(&world, &claimed)?;
        if let (Ok(claimed), Ok(plain)) = (world.run(&claimed, Folding::WhereProved), world.run(&drawn, Folding::Off)) {
            prop_assert_eq!(claimed.time, plain.time);
        }
    }
}

/// A schedule with a claimed symmetry.
struct Claimed<'a> {
    schedule: &'a dyn Generate,
    symmetry: Symmetry,
}

impl Generate for Claimed<'_> {
    fn header(&self) -> &Header {
        self.schedule.header()
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        self.schedule.program(rank, program);
    }

    fn symmetry(&self) -> Symmetry {
        self.symmetry.clone()
    }
}

/// An operation of every rank, relative to the rank.
#[derive(Clone, Debug)]
struct Stroke {
    kind: OpKind,
    len: u32,
    /// Distance of the peer, and its increment per operation.
    peer: (u32, u32),
    channel: u16,
    chunk: (u32, u32),
    span: u32,
    awaits: Vec<Await>,
}

/// Dependency of a stroke: the stroke `earlier` positions before it (0: itself) on the rank `further` ranks on.
#[derive(Clone, Debug)]
struct Await {
    earlier: usize,
    further: u32,
    shift: i32,
    step: u32,
}

/// Difference of a rank from the others.
#[derive(Clone, Debug)]
enum Slip {
    Longer,
    OtherPeer,
    OtherChunk,
    WaitsForOneMore(Await),
    WaitsForNothing,
    Silent,
}

#[derive(Clone, Debug)]
struct Sketch {
    strokes: Vec<Stroke>,
    slips: Vec<(prop::sample::Index, prop::sample::Index, Slip)>,
    segments: Vec<(u32, u32)>,
    protocol: Protocol,
    /// Strokes may wait for later ones, which can deadlock.
    may_deadlock: bool,
}

fn awaits() -> impl Strategy<Value = Await> {
    (0usize..3, 0u32..4, -3i32..3, 0u32..3).prop_map(|(earlier, further, shift, step)| Await {
        earlier,
        further,
        shift,
        step,
    })
}

fn sketches() -> impl Strategy<Value = Sketch> {
    const KINDS: [OpKind; 9] = [
        OpKind::Put,
        OpKind::PutReduce,
        OpKind::PutReduceInput,
        OpKind::Get,
        OpKind::GetReduce,
        OpKind::Copy,
        OpKind::Reduce,
        OpKind::Signal,
        OpKind::Wait,
    ];
    let stroke = (
        select(KINDS.to_vec()),
        0u32..6,
        (0u32..4, 0u32..3),
        0u16..3,
        (0u32..6, 0u32..3),
        1u32..3,
        vec(awaits(), 0..3),
    )
        .prop_map(|(kind, len, peer, channel, chunk, span, awaits)| Stroke {
            kind,
            len,
            peer,
            channel,
            chunk,
            span,
            awaits,
        });
    let slip = prop_oneof![
        Just(Slip::Longer),
        Just(Slip::OtherPeer),
        Just(Slip::OtherChunk),
        awaits().prop_map(Slip::WaitsForOneMore),
        Just(Slip::WaitsForNothing),
        Just(Slip::Silent),
    ];
    let slip = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), slip);
    let slips = prop_oneof![1 => Just(0usize), 1 => 1usize..=2].prop_flat_map(move |n| vec(slip.clone(), n));
    let segments = vec((1u32..2_000_000, 1u32..4), 1..=2);
    let protocol = select(vec![Protocol::Ll, Protocol::Simple, Protocol::Symmetric]);
    (vec(stroke, 1..5), slips, segments, protocol, prop::bool::weighted(0.1)).prop_map(
        |(strokes, slips, segments, protocol, may_deadlock)| Sketch {
            strokes,
            slips,
            segments,
            protocol,
            may_deadlock,
        },
    )
}

/// A materialized schedule.
#[derive(Debug)]
struct Drawn {
    header: Header,
    programs: Vec<Program>,
}

impl Sketch {
    fn drawn(&self, ranks: u32) -> Drawn {
        let segments = self.segments.iter().map(|&(bytes, parts)| Segment { bytes: Bytes(bytes.into()), parts });
        let layout = Layout::new(segments.collect());
        let call = Call {
            collective: Collective::AllReduce,
            bytes: layout.bytes(),
            ranks,
            root: Rank(0),
            buffers: BufferUse::OutOfPlace,
        };
        let mut strokes = vec![self.strokes.clone(); ranks as usize];
        for (rank, which, slip) in &self.slips {
            let strokes = &mut strokes[rank.index(ranks as usize)];
            let stroke = which.index(strokes.len());
            slip.apply(&mut strokes[stroke]);
        }
        let chunks = layout.chunks();
        let program = |rank: u32| {
            let mut program = Program::default();
            for (number, stroke) in strokes[rank as usize].iter().enumerate() {
                let chunk = Walk::cyclic(0, stroke.chunk.0, stroke.chunk.1, chunks - (stroke.span - 1).min(chunks - 1));
                let local = matches!(stroke.kind, OpKind::Copy | OpKind::Reduce | OpKind::Wait);
                let peer =
                    if local { Walk::fixed(rank) } else { Walk::cyclic(0, rank + stroke.peer.0, stroke.peer.1, ranks) };
                let run = Run {
                    len: stroke.len,
                    kind: stroke.kind,
                    channel: Channel(stroke.channel),
                    peer,
                    src_buffer: Buffer::Input,
                    src: chunk,
                    dst_buffer: Buffer::Output,
                    dst: chunk,
                    span: stroke.span.min(chunks),
                };
                let awaited: Vec<Dependency> =
                    stroke.awaits.iter().map(|wait| wait.dependency(rank, ranks, number, self.may_deadlock)).collect();
                program.push(run, &awaited);
            }
            program
        };
        let programs = (0..ranks).map(program).collect();
        let name = "drawn".to_owned();
        Drawn {
            header: Header {
                name,
                call,
                protocol: self.protocol,
                channels: 3,
                blocks: Blocks::default(),
                layout,
                scratch_chunks: 0,
                teams: Vec::new(),
            },
            programs,
        }
    }
}

impl Await {
    fn dependency(&self, rank: u32, ranks: u32, number: usize, may_deadlock: bool) -> Dependency {
        let run = number.saturating_sub(self.earlier);
        // Among strokes of one index, only those with a smaller operation index are safe to wait for.
        let (shift, step) =
            if run == number && !may_deadlock { (-1 - self.shift.abs(), 1) } else { (self.shift, self.step) };
        Dependency { rank: Rank((rank + self.further) % ranks), run: run as u32, start: shift, step }
    }
}

impl Slip {
    fn apply(&self, stroke: &mut Stroke) {
        match self {
            Self::Longer => stroke.len += 1,
            Self::OtherPeer => stroke.peer.0 += 1,
            Self::OtherChunk => stroke.chunk.0 += 1,
            Self::WaitsForOneMore(wait) => stroke.awaits.push(wait.clone()),
            Self::WaitsForNothing => stroke.awaits.clear(),
            Self::Silent => stroke.len = 0,
        }
    }
}

impl Generate for Drawn {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let own = &self.programs[rank.0 as usize];
        for (number, run) in own.runs().iter().enumerate() {
            program.push(*run, own.dependencies(number));
        }
    }
}

const LINK: (Bandwidth, Picos) = (Bandwidth(450_000_000_000), Picos(350_000));

fn case(algorithm: Algorithm, collective: Collective, ranks: u32, channels: u16) -> Case {
    let Case { algorithm, shape } = plain(algorithm, collective, ranks, 1 << 20);
    Case { algorithm, shape: Shape { channels, ..shape } }
}

fn factor_on(fabric: Fabric, case: &Case) -> Option<f64> {
    fold_factor_of_equal_runs(&World::ideal(fabric), &*case.generator()).unwrap()
}

#[test]
fn equal_ranks_on_a_switch_fold_to_one() {
    for ranks in [2u32, 3, 8, 16, 37] {
        let fabric = || switch(ranks, LINK.0, LINK.1);
        for channels in [1u16, 4] {
            let whole = f64::from(ranks) * f64::from(channels);
            for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
                let factor = factor_on(fabric(), &case(Algorithm::Ring, collective, ranks, channels)).unwrap_or(1.0);
                assert!(factor >= whole, "ring {collective} of {ranks}, {channels} channels: {factor}");
            }
            for (algorithm, collective) in [
                (Algorithm::OneShot, Collective::AllReduce),
                (Algorithm::TwoShot, Collective::AllReduce),
                (Algorithm::Direct, Collective::AllToAll),
            ] {
                let factor = factor_on(fabric(), &case(algorithm, collective, ranks, channels)).unwrap_or(1.0);
                assert!(factor >= whole, "{algorithm} {collective} of {ranks}, {channels} channels: {factor}");
            }
        }
    }
}

#[test]
fn symmetric_hosts_and_rails_fold_to_one() {
    let plant = Plant::Hosts { preset: "hgx-h200", nodes: 4, gpus: 8, network: "rail" };
    let mut case = case(Algorithm::Hierarchical, Collective::AllReduce, 32, 2);
    case.shape.ranks_per_node = 8;
    let factor = factor_on(plant.build(), &case).unwrap();
    assert!(factor >= 64.0, "{factor}");
}

#[test]
fn one_slow_link_unfolds_a_ring() {
    for ranks in [3, 8, 17, 130] {
        let slow = switch(ranks, LINK.0, LINK.1).slowed("gpu1->sw", 0.5).unwrap();
        let ring = case(Algorithm::Ring, Collective::AllReduce, ranks, 1);
        let time = |fabric: &Fabric, folding| World::ideal(fabric.clone()).run(&*ring.generator(), folding).unwrap();
        let (healthy, folded) = (switch(ranks, LINK.0, LINK.1), time(&slow, Folding::WhereProved));
        assert_eq!(folded.fold_factor, None, "{ranks} ranks");
        assert_eq!(folded.time, time(&slow, Folding::Off).time);
        assert!(folded.time > time(&healthy, Folding::Off).time);
    }
}

#[test]
fn one_late_rank_unfolds_a_ring() {
    let ring = case(Algorithm::Ring, Collective::AllReduce, 16, 1);
    let mut world = World::ideal(switch(16, LINK.0, LINK.1));
    world.delays = vec![Picos::ZERO; 16];
    world.delays[5] = Picos(1);
    assert_eq!(fold_factor_of_equal_runs(&world, &*ring.generator()).unwrap(), None);
}

#[test]
fn a_slow_link_partly_unfolds_an_all_pairs_exchange() {
    // In an all-pairs exchange every rank communicates with the slow one in the same way, so the others remain
    // symmetric.
    let slow = switch(16, LINK.0, LINK.1).slowed("gpu1->sw", 0.5).unwrap();
    let exchange = case(Algorithm::OneShot, Collective::AllReduce, 16, 1);
    let factor = factor_on(slow, &exchange);
    assert!(factor.is_none_or(|factor| factor < 16.0), "{factor:?}");
}

#[test]
fn falsely_claimed_ring_symmetry_is_not_used() {
    /// A ring whose rank 3 sends everything twice, but which claims to be symmetric over all ranks.
    struct Stutter(Box<dyn Generate + Send + Sync>);
    impl Generate for Stutter {
        fn header(&self) -> &Header {
            self.0.header()
        }
        fn program(&self, rank: Rank, program: &mut Program) {
            self.0.program(rank, program);
            if rank == Rank(3) {
                for (number, run) in program.clone().runs().iter().enumerate() {
                    let awaited = program.dependencies(number).to_vec();
                    program.push(*run, &awaited);
                }
            }
        }
        fn symmetry(&self) -> Symmetry {
            Symmetry::Rotations(vec![RotationDigit { stride: 1, length: 8 }])
        }
    }
    let honest = case(Algorithm::Ring, Collective::AllReduce, 8, 1);
    let world = World::ideal(switch(8, LINK.0, LINK.1));
    let stutter = Stutter(honest.generator());
    equal_runs(&world, &stutter).unwrap();
    let (once, twice) = (
        world.run(&*honest.generator(), Folding::WhereProved).unwrap(),
        world.run(&stutter, Folding::WhereProved).unwrap(),
    );
    assert!(twice.time > once.time, "{:?} against {:?}", twice.time, once.time);
}
