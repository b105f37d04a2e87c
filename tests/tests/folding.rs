//! A folded run equals the unfolded run to the picosecond, on any fabric, for any schedule and any declared symmetry;
//! and runs with symmetric ranks are folded.

use std::sync::atomic::{AtomicUsize, Ordering};

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_collectives::capabilities::Hosts;
use fabricast_sim::critical::CriticalStep;
use fabricast_sim::engine::{EngineError, Span};
use fabricast_sim::lower::Resource;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{
    BufferUse, Call, Channel, Collective, Header, Program, Protocol, Rank, RotationDigit, Run, ScheduleGenerator,
    Symmetry,
};
use fabricast_sim::template::Outline;
use fabricast_sim::{Folding, SimulateError, Timeline};
use fabricast_topologies::{Bandwidth, Bytes, Fabric, Picos};
use proptest::prelude::*;
use proptest::sample::select;

use crate::generators::Case;
use crate::random_schedules::random_schedules;
use crate::testbed::{
    FabricSpec, Testbed, buffer_locations, call_templates, fabric_specs, scenes, single_channel_case, switch,
};

/// Runs a schedule folded and unfolded, and with one block representing equal ones; asserts that all results agree.
/// Returns the fold factor.
fn fold_factor_of_equal_runs(
    testbed: &Testbed,
    generator: &dyn ScheduleGenerator,
) -> Result<Option<f64>, TestCaseError> {
    let Some((unfolded, factor)) = equal_runs(testbed, generator)? else { return Ok(None) };
    check_first_blocks(testbed, generator, &unfolded)?;
    Ok(factor)
}

/// Returns the unfolded run and the fold factor of the folded one; `None` if both fail with the same error.
fn equal_runs(
    testbed: &Testbed,
    generator: &dyn ScheduleGenerator,
) -> Result<Option<(Timeline, Option<f64>)>, TestCaseError> {
    let unfolded = testbed.run(generator, Folding::Off);
    let folded = testbed.run(generator, Folding::WhereProved);
    match (unfolded, folded) {
        (Ok(unfolded), Ok(folded)) => {
            are_equal(&unfolded, &folded)?;
            Ok(Some((unfolded, folded.fold_factor)))
        }
        (Err(SimulateError::Engine(unfolded)), Err(SimulateError::Engine(folded))) => {
            prop_assert_eq!(error_location(&unfolded), error_location(&folded));
            prop_assert_eq!(unfolded, folded);
            Ok(None)
        }
        (Err(unfolded), Err(folded)) => {
            prop_assert_eq!(unfolded.to_string(), folded.to_string());
            Ok(None)
        }
        (unfolded, folded) => Err(TestCaseError::fail(format!(
            "unfolded: {:?}, folded: {:?}",
            unfolded.map(|timeline| timeline.time),
            folded.map(|timeline| timeline.time)
        ))),
    }
}

/// Checks that one of several equal thread blocks can represent the others, and that a run stops when it exceeds its
/// time limit.
fn check_first_blocks(
    testbed: &Testbed,
    generator: &dyn ScheduleGenerator,
    unfolded: &Timeline,
) -> Result<(), TestCaseError> {
    let end = unfolded.time - unfolded.launch;
    let first_blocks = testbed.run_without_recording(generator, Folding::GroupsFirst, Some(end)).unwrap();
    prop_assert_eq!(
        (first_blocks.time, first_blocks.costs, first_blocks.operations),
        (unfolded.time, unfolded.costs, unfolded.operations)
    );
    for one in &first_blocks.utilization {
        prop_assert!(unfolded.utilization.contains(one), "{one:?}");
    }
    let listed_count = |timeline: &Timeline| {
        timeline.utilization.iter().filter(|one| !matches!(one.resource, Resource::Channel(..))).count()
    };
    prop_assert_eq!(listed_count(&first_blocks), listed_count(unfolded));
    if let Some(too_early) = end.0.checked_sub(1).map(Picos).filter(|_| unfolded.operations > 0) {
        let abandoned = testbed.run_without_recording(generator, Folding::GroupsFirst, Some(too_early));
        let is_abandoned = matches!(abandoned, Err(SimulateError::Engine(EngineError::Abandoned { .. })));
        // Operations that end at their start finish before the time limit is checked.
        let startup = testbed.profile.protocol(generator.header().protocol).startup;
        prop_assert!(is_abandoned || too_early < startup, "{:?}", abandoned.map(|timeline| timeline.time));
    }
    Ok(())
}

/// Returns the operations of a rank on its first channel, without their chunks: each run with the runs that it waits
/// for, by their index on that channel (`None`: on another channel).
fn first_channel(generator: &dyn ScheduleGenerator, rank: Rank) -> Vec<(String, Vec<String>)> {
    let indices = |rank: Rank| {
        let mut program = Program::default();
        generator.program(rank, &mut program);
        let mut count = 0;
        let index = |run: &Run| {
            let is_first = run.channel == Channel(0);
            count += u32::from(is_first);
            is_first.then(|| count - 1)
        };
        let indices: Vec<Option<u32>> = program.runs().iter().map(index).collect();
        (program, indices)
    };
    let (program, _) = indices(rank);
    let runs = program.runs().iter().enumerate().filter(|(_, run)| run.channel == Channel(0));
    runs.map(|(number, run)| {
        let Run { len, kind, peer, src_buffer, dst_buffer, span, .. } = *run;
        let awaited = program.dependencies(number).iter().map(|dependency| {
            let index = indices(dependency.rank).1.get(dependency.run as usize).copied().flatten();
            format!("{:?} {index:?} {} {}", dependency.rank, dependency.start, dependency.step)
        });
        (format!("{len} {kind:?} {peer:?} {src_buffer:?} {dst_buffer:?} {span}"), awaited.collect())
    })
    .collect()
}

fn error_location(error: &EngineError) -> Option<(u32, u32)> {
    match *error {
        EngineError::Deadlock { run, index, .. } | EngineError::TooLong { run, index } => Some((run, index)),
        EngineError::TooManyOperations { .. } | EngineError::Interrupted | EngineError::Abandoned { .. } => None,
    }
}

fn are_equal(unfolded: &Timeline, folded: &Timeline) -> Result<(), TestCaseError> {
    prop_assert_eq!(unfolded.fold_factor, None);
    prop_assert_eq!(unfolded.time, folded.time);
    prop_assert_eq!(unfolded.costs, folded.costs);
    prop_assert_eq!(unfolded.operations, folded.operations);
    prop_assert_eq!(&unfolded.utilization, &folded.utilization);
    prop_assert_eq!(&unfolded.rank_starts, &folded.rank_starts);
    prop_assert_eq!(unfolded.spans.iter().count() as u64, unfolded.operations);
    prop_assert_eq!(&unfolded.spans, &folded.spans);
    let (all, odd) = (|_| true, |run| run % 3 == 1);
    let mut by_start: Vec<Span> = unfolded.spans.iter().filter(|span| odd(span.run)).collect();
    by_start.sort_by_key(|span| (span.ready, span.run, span.index));
    prop_assert!(folded.spans.by_start(odd).iter().eq(by_start));
    prop_assert!(unfolded.spans.by_start(all).iter().eq(folded.spans.by_start(all).iter()));
    prop_assert_eq!(&unfolded.critical_path, &folded.critical_path);
    let (unfolded_load, folded_load) = (unfolded.load.as_ref().unwrap(), folded.load.as_ref().unwrap());
    prop_assert_eq!(unfolded_load.iter().count(), unfolded.utilization.len());
    prop_assert!(unfolded_load.iter().eq(folded_load.iter()));
    prop_assert_eq!(unfolded.costs.total(), unfolded.time);
    let path: Picos = unfolded.critical_path.iter().map(CriticalStep::total).sum();
    let done = unfolded.critical_path.last().map_or(unfolded.time - unfolded.launch, |last| last.span.done);
    prop_assert_eq!(unfolded.critical_path.is_empty(), unfolded.operations == 0);
    prop_assert!(unfolded.operations == 0 || path == done);
    prop_assert_eq!(done + unfolded.launch, unfolded.time);
    Ok(())
}

/// Algorithms that run in loops or pipeline chunks, each with a collective.
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

    /// The schedules of the generators give equal results folded and unfolded, on healthy and broken fabrics.
    #[test]
    fn folded_runs_equal_whole_runs(scene in scenes(24), template in call_templates(), buffers in buffer_locations()) {
        let testbed = scene.testbed().with_buffers(buffers);
        let case = template.case_for_ranks(testbed.ranks(), testbed.per_host());
        fold_factor_of_equal_runs(&testbed, &*case.generator())?;
    }

    /// Checks an assumption of the planner: if four channels do the same, further ones do too, and the first channel
    /// does the same as a single one.
    #[test]
    fn four_equal_channels_imply_that_all_are_equal(scene in scenes(24), template in call_templates(), channels in 2u16..=33) {
        let testbed = Testbed { delays: Vec::new(), ..scene.testbed() };
        let (router, placement) = (testbed.router(), testbed.placement());
        let setting = testbed.environment(&router, &placement);
        let template = template.in_one_loop(1 << 30);
        let generator = |channels: u16| {
            let mut case = template.case_for_ranks(testbed.ranks(), testbed.per_host());
            case.shape.channels = channels;
            case.shape.orders.clear();
            case.generator()
        };
        let print = |channels: u16| Outline::new(&*generator(channels), setting).map(|outline| outline.print());
        if let Some(four) = print(4).filter(|four| four.groups() == 4 && channels >= 4) {
            prop_assert_eq!(print(channels), Some(four.with_groups(channels)));
        }
        let hosts = Hosts::from_counts(testbed.ranks(), testbed.per_host());
        if template.algorithm.is_channel_independent(template.collective, hosts) {
            let (single, several) = (generator(1), generator(channels));
            for rank in (0..testbed.ranks()).map(Rank) {
                prop_assert_eq!(first_channel(&*single, rank), first_channel(&*several, rank));
            }
        }
    }

    /// Loops of rings, and pipelined messages along chains and trees, give equal results on blocks that work in passes.
    #[test]
    fn folded_loops_and_pipelines_equal_whole_runs(
        fabric_spec in fabric_specs(16),
        (algorithm, collective) in select(IN_LOOPS.to_vec()),
        protocol in select(vec![Protocol::Ll, Protocol::Ll128, Protocol::Simple]),
        (channels, warps, per_host) in (1u16..=4, 1u16..=20, any::<bool>()),
        (chunk, loops, remainder) in (prop_oneof![1u64..2000, 1u64..1_000_000], 2u64..=7, 0u64..100),
        buffers in select(vec![BufferUse::InPlace, BufferUse::OutOfPlace]),
        delay in prop_oneof![3 => Just(0u64), 1 => 1u64..20_000_000],
    ) {
        let mut testbed = Testbed { profile: Profile::named("nccl-2.28-h200").unwrap(), ..Testbed::ideal(fabric_spec.build()) };
        let ranks = testbed.ranks();
        if delay > 0 {
            testbed.delays = vec![Picos::ZERO; ranks as usize];
            testbed.delays[ranks as usize / 2] = Picos(delay);
        }
        let bytes = chunk * u64::from(channels) * u64::from(ranks) * loops + remainder;
        let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers };
        let shape = Shape {
            channels,
            threads: Some(32 * warps),
            chunk: Some(Bytes(chunk)),
            ranks_per_node: if per_host { testbed.per_host() } else { 0 },
            ..Shape::new(call, protocol)
        };
        fold_factor_of_equal_runs(&testbed, &*Case { algorithm, shape }.generator())?;
    }

    /// Random schedules, which are equal on all ranks except for a few, give equal results.
    #[test]
    fn folded_runs_of_random_schedules_equal_whole_runs(scene in scenes(12), random_schedule in random_schedules()) {
        let testbed = scene.testbed();
        fold_factor_of_equal_runs(&testbed, &random_schedule.materialize(testbed.ranks()))?;
    }

    /// A declared symmetry of a schedule, true or false, has no effect if folding is proved.
    #[test]
    fn a_false_claim_of_symmetry_changes_nothing(scene in scenes(12), random_schedule in random_schedules(), stride in 1u32..4) {
        let testbed = scene.testbed();
        let schedule = random_schedule.materialize(testbed.ranks());
        let length = testbed.ranks().div_ceil(stride);
        let claimed = Claimed { schedule: &schedule, symmetry: Symmetry::Rotations(vec![RotationDigit { stride, length }]) };
        equal_runs(&testbed, &claimed)?;
        if let (Ok(claimed), Ok(unfolded)) = (testbed.run(&claimed, Folding::WhereProved), testbed.run(&schedule, Folding::Off)) {
            prop_assert_eq!(claimed.time, unfolded.time);
        }
    }
}

/// A schedule with a declared symmetry.
struct Claimed<'a> {
    schedule: &'a dyn ScheduleGenerator,
    symmetry: Symmetry,
}

impl ScheduleGenerator for Claimed<'_> {
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

const LINK: (Bandwidth, Picos) = (Bandwidth(450_000_000_000), Picos(350_000));

fn case(algorithm: Algorithm, collective: Collective, ranks: u32, channels: u16) -> Case {
    let Case { algorithm, shape } = single_channel_case(algorithm, collective, ranks, 1 << 20);
    Case { algorithm, shape: Shape { channels, ..shape } }
}

fn factor_on(fabric: Fabric, case: &Case) -> Option<f64> {
    fold_factor_of_equal_runs(&Testbed::ideal(fabric), &*case.generator()).unwrap()
}

#[test]
fn equal_ranks_on_a_switch_fold_to_one() {
    for ranks in [2u32, 3, 8, 16, 37] {
        let fabric = || switch(ranks, LINK.0, LINK.1);
        for channels in [1u16, 4] {
            let expected = f64::from(ranks) * f64::from(channels);
            for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
                let factor = factor_on(fabric(), &case(Algorithm::Ring, collective, ranks, channels)).unwrap_or(1.0);
                assert!(factor >= expected, "ring {collective} of {ranks}, {channels} channels: {factor}");
            }
            for (algorithm, collective) in [
                (Algorithm::OneShot, Collective::AllReduce),
                (Algorithm::TwoShot, Collective::AllReduce),
                (Algorithm::Direct, Collective::AllToAll),
            ] {
                let factor = factor_on(fabric(), &case(algorithm, collective, ranks, channels)).unwrap_or(1.0);
                assert!(factor >= expected, "{algorithm} {collective} of {ranks}, {channels} channels: {factor}");
            }
        }
    }
}

#[test]
fn symmetric_hosts_and_rails_fold_to_one() {
    let fabric_spec = FabricSpec::Hosts { preset: "hgx-h200", nodes: 4, gpus: 8, network: "rail" };
    let mut case = case(Algorithm::Hierarchical, Collective::AllReduce, 32, 2);
    case.shape.ranks_per_node = 8;
    let factor = factor_on(fabric_spec.build(), &case).unwrap();
    assert!(factor >= 64.0, "{factor}");
}

#[test]
fn one_slow_link_unfolds_a_ring() {
    for ranks in [3, 8, 17, 130] {
        let slowed = switch(ranks, LINK.0, LINK.1).with_slowed("gpu1->sw", 0.5).unwrap();
        let ring = case(Algorithm::Ring, Collective::AllReduce, ranks, 1);
        let time = |fabric: &Fabric, folding| Testbed::ideal(fabric.clone()).run(&*ring.generator(), folding).unwrap();
        let (healthy, folded) = (switch(ranks, LINK.0, LINK.1), time(&slowed, Folding::WhereProved));
        assert_eq!(folded.fold_factor, None, "{ranks} ranks");
        assert_eq!(folded.time, time(&slowed, Folding::Off).time);
        assert!(folded.time > time(&healthy, Folding::Off).time);
    }
}

#[test]
fn one_late_rank_unfolds_a_ring() {
    let ring = case(Algorithm::Ring, Collective::AllReduce, 16, 1);
    let mut testbed = Testbed::ideal(switch(16, LINK.0, LINK.1));
    testbed.delays = vec![Picos::ZERO; 16];
    testbed.delays[5] = Picos(1);
    assert_eq!(fold_factor_of_equal_runs(&testbed, &*ring.generator()).unwrap(), None);
}

#[test]
fn a_slow_link_partly_unfolds_an_all_pairs_exchange() {
    // In an all-pairs exchange every rank communicates with the slow one in the same way, so the others remain
    // symmetric.
    let slowed = switch(16, LINK.0, LINK.1).with_slowed("gpu1->sw", 0.5).unwrap();
    let exchange = case(Algorithm::OneShot, Collective::AllReduce, 16, 1);
    let factor = factor_on(slowed, &exchange);
    assert!(factor.is_none_or(|factor| factor < 16.0), "{factor:?}");
}

#[test]
fn falsely_claimed_ring_symmetry_is_not_used() {
    /// A ring whose rank 3 sends everything twice, but which declares to be symmetric over all ranks.
    struct Stutter(Box<dyn ScheduleGenerator + Send + Sync>);
    impl ScheduleGenerator for Stutter {
        fn header(&self) -> &Header {
            self.0.header()
        }
        fn program(&self, rank: Rank, program: &mut Program) {
            self.0.program(rank, program);
            if rank == Rank(3) {
                for (number, run) in program.clone().runs().iter().enumerate() {
                    let dependencies = program.dependencies(number).to_vec();
                    program.push(*run, &dependencies);
                }
            }
        }
        fn symmetry(&self) -> Symmetry {
            Symmetry::Rotations(vec![RotationDigit { stride: 1, length: 8 }])
        }
    }
    let honest = case(Algorithm::Ring, Collective::AllReduce, 8, 1);
    let testbed = Testbed::ideal(switch(8, LINK.0, LINK.1));
    let stutter = Stutter(honest.generator());
    equal_runs(&testbed, &stutter).unwrap();
    let (once, twice) = (
        testbed.run(&*honest.generator(), Folding::WhereProved).unwrap(),
        testbed.run(&stutter, Folding::WhereProved).unwrap(),
    );
    assert!(twice.time > once.time, "{:?} against {:?}", twice.time, once.time);
}

/// Without late ranks, only representatives of symmetric ranks are lowered, whether their delays are omitted or zero.
#[test]
fn delays_of_zero_leave_equal_ranks_alike() {
    /// Schedule that counts how many programs of ranks are read.
    struct Counted {
        schedule: Box<dyn ScheduleGenerator + Send + Sync>,
        read: AtomicUsize,
    }
    impl ScheduleGenerator for Counted {
        fn header(&self) -> &Header {
            self.schedule.header()
        }
        fn program(&self, rank: Rank, program: &mut Program) {
            self.read.fetch_add(1, Ordering::Relaxed);
            self.schedule.program(rank, program);
        }
        fn symmetry(&self) -> Symmetry {
            self.schedule.symmetry()
        }
    }
    let fabric_spec = FabricSpec::Hosts { preset: "hgx-h200", nodes: 8, gpus: 8, network: "rail" };
    let exchange = case(Algorithm::NeighbourExchange, Collective::AllGather, 64, 1);
    let programs_read = |delays: Vec<Picos>| {
        let counted = Counted { schedule: exchange.generator(), read: AtomicUsize::new(0) };
        let testbed = Testbed { delays, ..Testbed::ideal(fabric_spec.build()) };
        testbed.run_without_recording(&counted, Folding::GroupsFirst, None).unwrap();
        counted.read.into_inner()
    };
    let without = programs_read(vec![]);
    assert_eq!(programs_read(vec![Picos::ZERO; 64]), without);
    let one_late = [vec![Picos(1)], vec![Picos::ZERO; 63]].concat();
    assert!(programs_read(one_late) >= without + 64, "{without}");
}
