//! Tests of templates: a schedule folded once for many sizes gives each size the result of its own simulation.

use fabricast_collectives::algorithm::{self, Algorithm, Shape};
use fabricast_sim::Folding;
use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Resource;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, ScheduleGenerator};
use fabricast_sim::template::{Outline, Template};
use fabricast_sim::utilization::Utilization;
use fabricast_topologies::Bytes;
use proptest::prelude::*;
use proptest::sample::select;

use crate::generators::Case;
use crate::network;
use crate::testbed::{CallTemplate, FabricSpec, Testbed, call_templates, scenes};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    /// A schedule folded for one size predicts, for every other size with the same chunking on at least as many
    /// blocks, the result of that size's own simulation; and no time is below its lower bound.
    #[test]
    fn template_predictions_equal_simulations(
        scene in scenes(16),
        call_template in call_templates(),
        keeps_loops in any::<bool>(),
        bytes in 1u64..10_000_000,
        threads in select(vec![None, Some(64u16), Some(320)]),
        network in prop_oneof![1 => Just(None), 3 => network::costs().prop_map(Some)],
    ) {
        let call_template = if keeps_loops { call_template } else { call_template.in_one_loop(call_template.bytes) };
        let testbed = Testbed { delays: Vec::new(), ..scene.testbed() };
        let base_network = testbed.profile.network;
        let testbed = Testbed {
            profile: Profile { network: network.unwrap_or(base_network), ..testbed.profile },
            ..testbed
        };
        let (router, placement) = (testbed.router(), testbed.placement());
        let setting = testbed.environment(&router, &placement);
        let case = call_template.case_for_ranks(testbed.ranks(), testbed.per_host());
        let header = case.generator().header().clone();
        let Some(outline) = Outline::new(&*case.generator(), setting) else { return Ok(()) };
        // Another protocol is simulated first, because templates of similar schedules are reused for the next.
        let _ = Template::new(&outline, Protocol::Ll, 1, setting);
        let Ok(Some(template)) = Template::new(&outline, header.protocol, 1, setting) else { return Ok(()) };
        for call_template in [call_template.clone(), call_template.in_one_loop(bytes)] {
            let mut case = call_template.case_for_ranks(testbed.ranks(), testbed.per_host());
            case.shape.threads = threads;
            let generator = case.generator();
            let print = Outline::new(&*generator, setting).map(|outline| outline.print());
            let print = print.filter(|print| print.single_group() == outline.print().single_group());
            let Some(print) = print.filter(|print| template.fits(generator.header(), print.groups())) else { continue };
            let predicted = template.run(generator.header(), print.groups(), &testbed.profile, Watch::default()).unwrap();
            let simulated = testbed.run_without_recording(&*generator, Folding::Off, None).unwrap();
            if !template.is_exact() {
                let bound = template.lower_bound(generator.header(), print.groups(), &testbed.profile);
                prop_assert!(bound.is_none_or(|bound| bound <= simulated.time - simulated.launch));
                continue;
            }
            prop_assert_eq!(predicted.end, simulated.time - simulated.launch);
            prop_assert_eq!(predicted.bytes, simulated.costs.bandwidth + simulated.costs.waiting);
            let busiest = Utilization::busiest(&simulated.utilization).map(|one| (one.resource, one.fraction));
            let fraction = |one: Option<(Resource, f64)>| one.map(|one| one.1).filter(|&fraction| fraction > 0.0);
            prop_assert_eq!(fraction(predicted.busiest), fraction(busiest));
            // Several capacities may be equally busy.
            let named = predicted.busiest.filter(|one| one.1 > 0.0);
            let is_as_busy = |(resource, fraction): (Resource, f64)| {
                simulated.utilization.iter().any(|one| (one.resource, one.fraction) == (resource, fraction))
            };
            prop_assert!(named.is_none_or(is_as_busy), "{named:?}");
            let bound = template.lower_bound(generator.header(), print.groups(), &testbed.profile);
            prop_assert!(bound.is_none_or(|bound| bound <= predicted.end), "{bound:?} and {:?}", predicted.end);
        }
    }
}

/// Returns the generator of a call of `loops` loops, of which the last moves `last` bytes less; `None` if there is no such
/// schedule.
fn in_loops(
    call_template: &CallTemplate,
    testbed: &Testbed,
    loops: u32,
    less: u64,
) -> Option<Box<dyn ScheduleGenerator + Send + Sync>> {
    const CHUNK: u64 = 10_000;
    let generate = |bytes: u64, chunk: Option<Bytes>| {
        let mut case = call_template.case_for_ranks(testbed.ranks(), testbed.per_host());
        (case.shape.call.bytes, case.shape.chunk) = (Bytes(bytes), chunk);
        algorithm::timing_generator(case.algorithm, &case.shape, testbed.router().options().buffers).ok()
    };
    let chunks = generate(1 << 40, None)?.header().layout.chunks();
    let bytes = u64::from(chunks.checked_mul(loops)?) * CHUNK;
    let generator = generate(bytes - less.min(bytes / 2), Some(Bytes(CHUNK)))?;
    (generator.header().layout.chunks() == chunks * loops).then_some(generator)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    /// A template of two loops predicts the times of calls with any number of loops, whether or not the chunks of the last
    /// loop are smaller; and no time is below its lower bound.
    #[test]
    fn templates_of_two_loops_predict_any_number_of_loops(
        scene in scenes(16),
        call_template in call_templates(),
        loops in 2u32..24,
        less in prop_oneof![Just(0u64), 1u64..100_000],
        network in prop_oneof![1 => Just(None), 3 => network::costs().prop_map(Some)],
    ) {
        let testbed = Testbed { delays: Vec::new(), ..scene.testbed() };
        let base_network = testbed.profile.network;
        let testbed = Testbed {
            profile: Profile { network: network.unwrap_or(base_network), ..testbed.profile },
            ..testbed
        };
        let (router, placement) = (testbed.router(), testbed.placement());
        let setting = testbed.environment(&router, &placement);
        let Some(two_loops) = in_loops(&call_template, &testbed, 2, 0) else { return Ok(()) };
        let Some(outline) = Outline::new(&*two_loops, setting) else { return Ok(()) };
        let protocol = two_loops.header().protocol;
        let Ok(Some(template)) = Template::new(&outline, protocol, 2, setting) else { return Ok(()) };
        let Some(generator) = in_loops(&call_template, &testbed, loops, less) else { return Ok(()) };
        let (header, groups) = (generator.header(), outline.print().groups());
        let simulated = testbed.run_without_recording(&*generator, Folding::Off, None).unwrap();
        let end = simulated.time - simulated.launch;
        let bound = template.lower_bound(header, groups, &testbed.profile);
        prop_assert!(bound.is_none_or(|bound| bound <= end), "{bound:?} and {end:?}");
        if !template.fits(header, groups) || !template.is_exact() {
            return Ok(());
        }
        let predicted = template.run(header, groups, &testbed.profile, Watch::default()).unwrap();
        prop_assert_eq!(predicted.end, end);
        prop_assert_eq!(predicted.bytes, simulated.costs.bandwidth + simulated.costs.waiting);
        let fraction = Utilization::busiest(&simulated.utilization).map_or(0.0, |one| one.fraction);
        let predicted = predicted.busiest.map_or(0.0, |one| one.1);
        prop_assert!((predicted - fraction).abs() <= 1e-12 * fraction, "{predicted} and {fraction}");
    }
}

/// Trees, and rings of broadcasts and reductions, have templates for any number of loops.
#[test]
fn trees_and_rooted_rings_have_templates_of_any_number_of_loops() {
    let fabric = FabricSpec::Hosts { preset: "hgx-h200", nodes: 3, gpus: 4, network: "rail" }.build();
    let testbed = Testbed { profile: Profile::named("nccl-2.28-h200").unwrap(), ..Testbed::ideal(fabric) };
    let (router, placement) = (testbed.router(), testbed.placement());
    let setting = testbed.environment(&router, &placement);
    let cases = [
        (Collective::AllReduce, Algorithm::Tree),
        (Collective::Broadcast, Algorithm::Ring),
        (Collective::Reduce, Algorithm::Ring),
        (Collective::Broadcast, Algorithm::SplitTree),
    ];
    for (collective, algorithm) in cases {
        let generate = |loops: u64| {
            let call = |bytes: u64| Call {
                collective,
                bytes: Bytes(bytes),
                ranks: 12,
                root: Rank(0),
                buffers: BufferUse::OutOfPlace,
            };
            let generate = |bytes: u64, chunk: Option<Bytes>| {
                let shape =
                    Shape { channels: 2, chunk, ranks_per_node: 4, ..Shape::new(call(bytes), Protocol::Simple) };
                Case { algorithm, shape }.generator()
            };
            let chunks = generate(1 << 40, None).header().layout.chunks();
            generate(u64::from(chunks) * loops * 10_000, Some(Bytes(10_000)))
        };
        let outline = Outline::new(&*generate(2), setting).unwrap();
        let template = Template::new(&outline, Protocol::Simple, 2, setting).unwrap().unwrap();
        let generator = generate(11);
        assert!(template.fits(generator.header(), outline.print().groups()), "{collective} by {algorithm}");
    }
}

/// A template of one channel predicts schedules with more channels if a rank has messages for more peers (eleven) than
/// one channel serves concurrently (eight).
#[test]
fn single_channel_templates_predict_exchanges_on_many_channels() {
    let fabric = FabricSpec::Hosts { preset: "hgx-h200", nodes: 3, gpus: 4, network: "rail" }.build();
    let testbed = Testbed { profile: Profile::named("nccl-2.28-h200").unwrap(), ..Testbed::ideal(fabric) };
    let (router, placement) = (testbed.router(), testbed.placement());
    let setting = testbed.environment(&router, &placement);
    for collective in [Collective::AllToAll, Collective::AllToAllV] {
        let exchange = |channels: u16| {
            let bytes = Bytes(if collective == Collective::AllToAllV { 12 * 12 * 100_003 } else { 12 * 100_003 });
            let call = Call { collective, bytes, ranks: 12, root: Rank(0), buffers: BufferUse::OutOfPlace };
            let shape = Shape { channels, ..Shape::new(call, Protocol::Simple) };
            Case { algorithm: Algorithm::Direct, shape }.generator()
        };
        let outline = Outline::new(&*exchange(1), setting).unwrap();
        let template = Template::new(&outline, Protocol::Simple, 1, setting).unwrap().unwrap();
        for channels in [1, 2, 4] {
            let generator = exchange(channels);
            assert!(template.is_exact() && template.fits(generator.header(), channels));
            let predicted = template.run(generator.header(), channels, &testbed.profile, Watch::default()).unwrap();
            let simulated = testbed.run_without_recording(&*generator, Folding::Off, None).unwrap();
            assert_eq!(predicted.end, simulated.time - simulated.launch, "{collective} on {channels}");
        }
    }
}
