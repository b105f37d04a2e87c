//! Tests of the engine on small workloads whose times are known in closed form.

use fabricast_sim::critical::{CriticalStep, critical_path};
use fabricast_sim::engine::{
    Edge, EngineError, Pace, Recording, RouteLatency, SteadyStates, Watch, Workload, run, run_to_end,
};
use fabricast_sim::load::load_over_time;
use fabricast_sim::quantity::{Rate, Work};
use fabricast_sim::sharing::{System, Use, WHOLE};
use fabricast_sim::spans::Spans;
use fabricast_topologies::{Bandwidth, Picos};
use proptest::prelude::*;

const LATENCY: Picos = Picos(700_000);

fn gb_per_s(rate: f64) -> Rate {
    Rate::from(Bandwidth::from_gb_per_s(rate))
}

/// Returns a ring over `n` ranks on a switch: rank r sends over its output port and the next rank's input port;
/// operation i waits for operation i − 1 of the previous rank.
fn ring(n: u32, steps: u32, chunk: u64) -> Workload {
    let mut workload = Workload::new();
    let ports: Vec<_> = (0..2 * n).map(|_| workload.system.add_resource(gb_per_s(450.0))).collect();
    for r in 0..n {
        let uses =
            [ports[r as usize], ports[(n + (r + 1) % n) as usize]].map(|resource| Use { resource, coefficient: WHOLE });
        let route = workload.system.add_route(&uses, Rate::UNLIMITED, 1);
        let passage = RouteLatency { route: Some(route), latency: LATENCY };
        let previous = Edge { run: (r + n - 1) % n, start: -1, step: 1 };
        workload.add_uniform_run(steps, passage, Work::from_bytes(chunk), Pace::default(), &[previous]);
    }
    workload
}

#[test]
fn ring_steps_take_latency_plus_transfer_time() {
    let workload = ring(8, 14, 131_072);
    let outcome = run_to_end(&workload).unwrap();
    let step = LATENCY.0 + (131_072u64 * 1_000).div_ceil(450);
    assert_eq!(outcome.end, Picos(14 * step));
    assert_eq!(outcome.operations, 8 * 14);
    assert_eq!(outcome.costs.total(), outcome.end);
    assert_eq!(outcome.costs.latency, Picos(14 * LATENCY.0));
}

#[test]
fn a_late_rank_delays_the_chain_by_its_delay() {
    // Chunks have no bytes, so that queued messages of the late rank do not share its port.
    let mut workload = ring(5, 8, 0);
    let undelayed = run_to_end(&workload).unwrap();
    workload.paces[3].not_before = Picos(20_000_000);
    let delayed = run_to_end(&workload).unwrap();
    assert_eq!(delayed.end, undelayed.end + Picos(20_000_000));
    assert_eq!(delayed.costs.waiting, Picos(20_000_000));
}

#[test]
fn circular_dependencies_are_a_deadlock() {
    let mut workload = ring(3, 4, 1);
    for edge in &mut workload.waits {
        edge.start = 0;
    }
    assert!(matches!(run_to_end(&workload), Err(EngineError::Deadlock { done: 0, total: 12, .. })));
}

#[test]
fn transfers_beyond_the_time_limit_are_an_error() {
    let mut workload = ring(1, 1, 1 << 50);
    workload.system = System::new();
    let resource = workload.system.add_resource(Rate(1));
    workload.system.add_route(&[Use { resource, coefficient: WHOLE }], Rate::UNLIMITED, 1);
    assert!(matches!(run_to_end(&workload), Err(EngineError::TooLong { .. })));
}

#[test]
fn an_interrupt_stops_a_long_run() {
    let flag = std::sync::atomic::AtomicBool::new(true);
    let workload = ring(64, 10_000, 1);
    let watch = Watch { interrupt: Some(&flag), steady_states: SteadyStates::Simulate, ..Watch::default() };
    assert_eq!(run(&workload, watch), Err(EngineError::Interrupted));
}

/// Creates a workload of flows given as (start, bytes, output port, input port) on a switch of `ports` ports.
fn flows(ports: usize, flows: &[(u64, u64, usize, usize)]) -> Workload {
    let mut workload = Workload::new();
    let capacity: Vec<_> = (0..2 * ports).map(|_| workload.system.add_resource(gb_per_s(1.0))).collect();
    for &(start, bytes, output, input) in flows {
        let uses = [capacity[output], capacity[ports + input]].map(|resource| Use { resource, coefficient: WHOLE });
        let route = workload.system.add_route(&uses, Rate::UNLIMITED, 1);
        let passage = RouteLatency { route: Some(route), latency: Picos::ZERO };
        let pace = Pace { not_before: Picos(start), ..Pace::default() };
        workload.add_uniform_run(1, passage, Work::from_bytes(bytes), pace, &[]);
    }
    workload
}

/// Returns the end times by progressive filling of a common rate level in floating point, with exact small steps in
/// time.
fn fluid_oracle(ports: usize, flows: &[(u64, u64, usize, usize)]) -> Vec<f64> {
    let mut remaining: Vec<f64> = flows.iter().map(|f| f.1 as f64).collect();
    let mut done: Vec<Option<f64>> = vec![None; flows.len()];
    let mut now = 0.0f64;
    loop {
        let active: Vec<usize> =
            (0..flows.len()).filter(|&i| done[i].is_none() && flows[i].0 as f64 <= now + 1e-6).collect();
        let mut rate = vec![0.0f64; flows.len()];
        let mut unfrozen = active.clone();
        let mut capacity = vec![1e-3f64; 2 * ports]; // bytes per picosecond
        while !unfrozen.is_empty() {
            let users = |p: usize, list: &[usize]| {
                list.iter().filter(|&&i| flows[i].2 == p || ports + flows[i].3 == p).count() as f64
            };
            let level = (0..2 * ports)
                .filter(|&p| users(p, &unfrozen) > 0.0)
                .map(|p| capacity[p] / users(p, &unfrozen))
                .fold(f64::INFINITY, f64::min);
            let saturated: Vec<usize> = (0..2 * ports)
                .filter(|&p| users(p, &unfrozen) > 0.0 && capacity[p] / users(p, &unfrozen) <= level * (1.0 + 1e-12))
                .collect();
            let newly_frozen: Vec<usize> = unfrozen
                .iter()
                .copied()
                .filter(|&i| saturated.contains(&flows[i].2) || saturated.contains(&(ports + flows[i].3)))
                .collect();
            for &i in &newly_frozen {
                rate[i] = level;
                capacity[flows[i].2] -= level;
                capacity[ports + flows[i].3] -= level;
            }
            unfrozen.retain(|i| !newly_frozen.contains(i));
        }
        let next_end = active.iter().map(|&i| now + remaining[i] / rate[i]).fold(f64::INFINITY, f64::min);
        let next_start = flows.iter().map(|f| f.0 as f64).filter(|&s| s > now + 1e-6).fold(f64::INFINITY, f64::min);
        let next = next_end.min(next_start);
        if next.is_infinite() {
            return done.into_iter().map(Option::unwrap).collect();
        }
        for &i in &active {
            remaining[i] -= rate[i] * (next - now);
            if remaining[i] <= 1e-6 {
                done[i] = Some(next);
            }
        }
        now = next;
    }
}

fn some_flows() -> impl Strategy<Value = Vec<(u64, u64, usize, usize)>> {
    prop::collection::vec((0u64..2_000_000, 1u64..5_000, 0usize..4, 0usize..4), 1..14)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Every flow ends at the time that a fluid model written from the definition predicts, within a few picoseconds.
    #[test]
    fn flow_ends_match_the_fluid_oracle(flow_list in some_flows()) {
        let workload = flows(4, &flow_list);
        let watch = Watch { recording: Recording::Spans, ..Watch::default() };
        let outcome = run(&workload, watch).unwrap();
        for (span, expected) in outcome.spans.iter().zip(fluid_oracle(4, &flow_list)) {
            prop_assert!((span.done.0 as f64 - expected).abs() < 64.0, "{span:?} against {expected}");
        }
    }

    /// The order in which flows are listed has no effect, to the picosecond.
    #[test]
    fn order_of_flows_does_not_matter(mut flow_list in some_flows()) {
        let outcome = run_to_end(&flows(4, &flow_list)).unwrap();
        flow_list.reverse();
        prop_assert_eq!(run_to_end(&flows(4, &flow_list)).unwrap(), outcome);
    }

    /// Costs along the critical path add up to the end.
    #[test]
    fn costs_add_up_to_the_end(flow_list in some_flows()) {
        let outcome = run_to_end(&flows(4, &flow_list)).unwrap();
        prop_assert_eq!(outcome.costs.total(), outcome.end);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The steps of the critical path are consecutive and add up to the end; loads add up to the bytes carried.
    #[test]
    fn critical_path_and_loads_add_up(n in 2u32..9, steps in 1u32..12, chunk in 0u64..100_000, delay in 0u64..5_000_000) {
        let mut workload = ring(n, steps, chunk);
        workload.paces[0].not_before = Picos(delay);
        let watch = Watch { recording: Recording::Spans, ..Watch::default() };
        let outcome = run(&workload, watch).unwrap();
        let path = critical_path(&workload, &Spans::from_workload(&workload, outcome.spans));
        let sum: Picos = path.iter().map(CriticalStep::total).sum();
        prop_assert_eq!(sum, outcome.end);
        let total = |part: fn(&CriticalStep) -> Picos| path.iter().map(part).sum::<Picos>();
        prop_assert_eq!(total(|step| step.software), outcome.costs.software);
        prop_assert_eq!(total(|step| step.latency), outcome.costs.latency);
        prop_assert_eq!(total(|step| step.bandwidth), outcome.costs.bandwidth);
        prop_assert_eq!(total(|step| step.held_back + step.sharing), outcome.costs.waiting);
        for pair in path.windows(2) {
            prop_assert!(pair[0].span.done <= pair[1].span.ready);
        }
        let load = load_over_time(&workload, &outcome.rates, outcome.end, 37);
        for row in load.iter() {
            let used: f64 = row.iter().sum::<f64>() * load.slice.0 as f64 * 450.0 * 1e-3;
            // Each transfer's end is rounded up by less than a picosecond, which is 0.45 bytes.
            prop_assert!((used - f64::from(steps) * chunk as f64).abs() <= 0.46 * f64::from(steps), "{used}");
            prop_assert!(row.iter().all(|&part| part <= 1.0 + 1e-4));
        }
    }
}
