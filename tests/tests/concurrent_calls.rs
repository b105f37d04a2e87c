//! Tests of concurrent schedules: independent ones do not affect each other, those that share links are slower, and
//! neither folding nor the order of the schedules changes a time.

use fabricast_collectives::algorithm::Algorithm;
use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Environment;
use fabricast_sim::schedule::Collective;
use fabricast_sim::{Folding, LaunchMode, ScheduleInstance, SimulationOptions, simulate_concurrent};
use fabricast_topologies::{Bandwidth, Fabric, FabricRequest, NodeId, Picos, load};
use proptest::prelude::*;

use crate::generators::Case;
use crate::testbed::{CallTemplate, Testbed, call_templates, single_channel_case, switch};

fn hosts(nodes: u32) -> Fabric {
    let network = Some("rail,nics_per_node=8".parse().unwrap());
    load(&FabricRequest { nodes: Some(nodes), network, ..FabricRequest::new("hgx-h200") }).unwrap()
}

/// Returns the times of concurrent calls on groups of devices.
fn concurrent_times(testbed: &Testbed, calls: &[(Case, Vec<NodeId>)], folding: Folding) -> Vec<Picos> {
    let router = testbed.router();
    let generators: Vec<_> = calls.iter().map(|(case, _)| case.generator()).collect();
    let instances: Vec<ScheduleInstance<'_>> = generators
        .iter()
        .zip(calls)
        .map(|(generator, (_, placement))| {
            let setting = Environment { delays: &[], ..testbed.environment(&router, placement) };
            ScheduleInstance::new(generator.as_ref(), setting)
        })
        .collect();
    let options = SimulationOptions { folding, ..SimulationOptions::default() };
    let timeline = simulate_concurrent(&instances, LaunchMode::default(), options, Watch::default()).unwrap();
    assert_eq!(timeline.instance_times.iter().max(), Some(&timeline.time));
    timeline.instance_times
}

/// Returns a call on the GPUs `numbers` of a testbed.
fn call(testbed: &Testbed, template: &CallTemplate, numbers: &[usize]) -> (Case, Vec<NodeId>) {
    let placement: Vec<NodeId> = numbers.iter().map(|&number| testbed.fabric.gpus()[number]).collect();
    (template.case_for_ranks(placement.len() as u32, placement.len() as u32), placement)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn groups_on_different_hosts_do_not_interfere(first in call_templates(), second in call_templates(), gpus in 2usize..=8) {
        let testbed = Testbed::ideal(hosts(2));
        let first_gpus: Vec<usize> = (0..gpus).collect();
        let second_gpus: Vec<usize> = (8..16).collect();
        let calls = [call(&testbed, &first, &first_gpus), call(&testbed, &second, &second_gpus)];
        let concurrent = concurrent_times(&testbed, &calls, Folding::Off);
        for (time, call) in concurrent.iter().zip(calls) {
            prop_assert_eq!(*time, concurrent_times(&testbed, &[call], Folding::Off)[0]);
        }
    }

    #[test]
    fn neither_folding_nor_order_changes_a_time(first in call_templates(), second in call_templates(), split in 1usize..8) {
        let testbed = Testbed::ideal(hosts(2));
        // Groups are interleaved over both hosts, so that they share NICs and switches.
        let numbers: Vec<usize> = (0..16).map(|i| i % 2 * 8 + i / 2).collect();
        let (first_gpus, second_gpus) = numbers.split_at(2 * split);
        let calls = [call(&testbed, &first, first_gpus), call(&testbed, &second, second_gpus)];
        let times = concurrent_times(&testbed, &calls, Folding::Off);
        for folding in [Folding::WhereProved, Folding::GroupsFirst] {
            prop_assert_eq!(&times, &concurrent_times(&testbed, &calls, folding));
        }
        let [a, b] = calls;
        let swapped = concurrent_times(&testbed, &[b, a], Folding::WhereProved);
        prop_assert_eq!(times, swapped.into_iter().rev().collect::<Vec<_>>());
    }

    /// In groups that run one schedule on shared routes, one block of each group represents all of its blocks.
    #[test]
    fn first_blocks_represent_all_blocks_of_a_group(template in call_templates(), channels in 1u16..=6) {
        let testbed = Testbed::ideal(hosts(2));
        let groups = [0, 1, 2].map(|i| [i, i + 8, (i + 1) % 3 + 8, i + 4].map(|number| testbed.fabric.gpus()[number]));
        let mut case = template.case_for_ranks(4, 4);
        case.shape.channels = channels;
        let generator = case.generator();
        let router = testbed.router();
        let setting = |placement| Environment { delays: &[], ..testbed.environment(&router, placement) };
        let instances = groups.each_ref().map(|group| ScheduleInstance::new(generator.as_ref(), setting(group)));
        let [unfolded, first_blocks] = [Folding::Off, Folding::GroupsFirst].map(|folding| {
            let options = SimulationOptions { folding, ..SimulationOptions::default() };
            simulate_concurrent(&instances, LaunchMode::default(), options, Watch::default()).unwrap()
        });
        prop_assert_eq!((unfolded.instance_times, unfolded.operations), (first_blocks.instance_times, first_blocks.operations));
    }

    #[test]
    fn equal_groups_take_equal_time(template in call_templates(), count in 2usize..=4) {
        let testbed = Testbed::ideal(hosts(4));
        let calls: Vec<_> = (0..count).map(|host| call(&testbed, &template, &(8 * host..8 * host + 8).collect::<Vec<_>>())).collect();
        let times = concurrent_times(&testbed, &calls, Folding::WhereProved);
        prop_assert!(times.iter().all(|&time| time == times[0]), "{times:?}");
    }
}

#[test]
fn groups_that_share_a_rail_are_slower() {
    use fabricast_collectives::algorithm::{Algorithm, Shape};
    use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
    use fabricast_topologies::Bytes;
    let testbed = Testbed::ideal(hosts(2));
    let collective = Collective::SendRecv;
    let call = Call { collective, bytes: Bytes(1 << 30), ranks: 2, root: Rank(0), buffers: BufferUse::OutOfPlace };
    let case = Case { algorithm: Algorithm::Direct, shape: Shape::new(call, Protocol::Simple) };
    let gpu = |number: usize| testbed.fabric.gpus()[number];
    // GPU 0 and GPU 1 of the first host both send to GPU 0 of the second, whose NIC receives both.
    let pairs = [(case.clone(), vec![gpu(0), gpu(8)]), (case.clone(), vec![gpu(1), gpu(8)])];
    let single = concurrent_times(&testbed, &pairs[..1], Folding::Off)[0];
    let concurrent = concurrent_times(&testbed, &pairs, Folding::Off);
    assert!(concurrent.iter().all(|time| time.0 as f64 > 1.9 * single.0 as f64), "{concurrent:?} against {single:?}");
}

/// Two calls on the same ranks, as grouped calls of several communicators, get half of every port each.
#[test]
fn calls_on_the_same_ranks_share_their_ports() {
    let testbed = Testbed::ideal(switch(8, Bandwidth::from_gb_per_s(80.0), Picos::from_ns(250.0)));
    let placement = testbed.placement();
    let case = single_channel_case(Algorithm::Direct, Collective::AllGather, 8, 64_000_000);
    let single = concurrent_times(&testbed, &[(case.clone(), placement.clone())], Folding::WhereProved);
    // Each end is rounded to a picosecond.
    let assert_times = |times: &[Picos], expected: &[f64]| {
        let is_near = |(time, &us): (&Picos, &f64)| time.0.abs_diff(Picos::from_us(us).0) <= 2 * 56;
        assert!(
            times.len() == expected.len() && times.iter().zip(expected).all(is_near),
            "{times:?}, not {expected:?}"
        );
    };
    // The expected time is that of 7/8 of 64 MB at 80 GB/s.
    assert_times(&single, &[700.5]);
    let both = [(case.clone(), placement.clone()), (case.clone(), placement.clone())];
    for folding in [Folding::Off, Folding::WhereProved] {
        assert_times(&concurrent_times(&testbed, &both, folding), &[1400.5; 2]);
    }
    // The shorter call runs at half the rate, and the rest of the longer one at the full rate.
    let short = single_channel_case(Algorithm::Direct, Collective::AllGather, 8, 16_000_000);
    let times = concurrent_times(&testbed, &[(case, placement.clone()), (short, placement)], Folding::WhereProved);
    assert_times(&times, &[875.5, 350.5]);
}
