//! Benchmark of max–min sharing alone: a full solution when all flows start concurrently, and a solution after one flow
//! ends and starts again.
#![allow(missing_docs)] // made by criterion's macros

mod workloads;

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use fabricast_sim::sharing::{RateRevision, RouteId, Sharing, System};
use workloads::{ports, random, route};

/// Flows between all ordered pairs of the GPUs of one host. Each uses the sender's egress port and the receiver's
/// ingress port.
fn all_pairs(gpus: u32) -> System {
    let mut system = System::new();
    let ports = ports(&mut system, 2 * gpus);
    for from in 0..gpus {
        for to in (0..gpus).filter(|&to| to != from) {
            route(&mut system, &[ports[from as usize], ports[(gpus + to) as usize]]);
        }
    }
    system
}

/// Flows that each cross `hops` random capacities out of `capacities`.
fn random_flows(flows: u64, hops: u64, capacities: u32) -> System {
    let mut system = System::new();
    let ports = ports(&mut system, capacities);
    for flow in 0..flows {
        let mut route_ports: Vec<_> =
            (0..hops).map(|hop| ports[(random(flow * hops + hop) % u64::from(capacities)) as usize]).collect();
        route_ports.sort_unstable();
        route_ports.dedup();
        route(&mut system, &route_ports);
    }
    system
}

/// Random permutation over a three-tier fat tree: hosts of one port, `radix`/2 of them on a leaf, `radix`/2 leaves in a
/// pod; every flow uses one spine of its pod and one core by hash.
fn fat_tree(hosts: u32, radix: u32) -> System {
    let mut system = System::new();
    let (half, leaves) = (radix / 2, hosts / (radix / 2));
    let inputs = ports(&mut system, hosts);
    let outputs = ports(&mut system, hosts);
    let ups = ports(&mut system, leaves * half);
    let downs = ports(&mut system, leaves * half);
    let core_ups = ports(&mut system, leaves * half);
    let core_downs = ports(&mut system, leaves * half);
    let mut targets: Vec<u32> = (0..hosts).collect();
    for i in (1..targets.len()).rev() {
        targets.swap(i, (random(i as u64) % (i as u64 + 1)) as usize);
    }
    for (from, to) in (0..hosts).zip(targets) {
        let (leaf, other_leaf) = (from / half, to / half);
        let mut route_ports = vec![outputs[from as usize], inputs[to as usize]];
        let spine = random(u64::from(from) << 32 | u64::from(to)) as u32 % half;
        if leaf != other_leaf {
            route_ports.extend([ups[(leaf * half + spine) as usize], downs[(other_leaf * half + spine) as usize]]);
        }
        if leaf / half != other_leaf / half {
            let core = random(u64::from(to) << 32 | u64::from(from)) as u32 % half;
            let (pod, other_pod) = (leaf / half, other_leaf / half);
            route_ports.push(core_ups[((pod * half + spine) * half + core) as usize]);
            route_ports.push(core_downs[((other_pod * half + spine) * half + core) as usize]);
        }
        route(&mut system, &route_ports);
    }
    system
}

fn started(system: &System) -> Sharing {
    let mut sharing = Sharing::new(system);
    for route in 0..system.route_count() as u32 {
        sharing.start(system, RouteId(route));
    }
    sharing
}

fn sharing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sharing");
    group.sample_size(20).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    let systems = [
        ("56 flows of 8 GPUs", all_pairs(8)),
        ("1024 flows of 4 hops", random_flows(1024, 4, 2048)),
        ("4096 flows, a permutation on a fat tree", fat_tree(4096, 32)),
    ];
    for (name, system) in &systems {
        group.bench_function(format!("all at once: {name}"), |bencher| {
            let settle = |mut sharing: Sharing| {
                sharing.settle(system, |RateRevision { route, rate, .. }| {
                    black_box((route, rate));
                });
                sharing
            };
            bencher.iter_batched(|| started(system), settle, BatchSize::LargeInput);
        });
        group.bench_function(format!("one leaves and returns: {name}"), |bencher| {
            let mut sharing = started(system);
            sharing.settle(system, |_| {});
            let mut next = 0;
            bencher.iter(|| {
                let route = RouteId(next);
                next = (next + 1) % system.route_count() as u32;
                sharing.stop(system, route);
                sharing.settle(system, |_| {});
                sharing.start(system, route);
                sharing.settle(system, |_| {});
            });
        });
    }
    group.finish();
}

criterion_group!(benches, sharing);
criterion_main!(benches);
