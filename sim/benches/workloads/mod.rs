//! Workloads for the benchmarks, written by hand. They equal those that lowering creates from the generators'
//! schedules.
#![allow(dead_code, reason = "each bench uses some of them")]

use fabricast_sim::engine::{Edge, Pace, PerOp, RouteLatency, WorkRun, Workload};
use fabricast_sim::quantity::{Rate, Work};
use fabricast_sim::sharing::{ResourceId, RouteId, System, Use, WHOLE};
use fabricast_topologies::{Bandwidth, Picos};

/// Latency of every path.
const LATENCY: Picos = Picos(700_000);

/// SplitMix64 (Steele, Lea & Flood, OOPSLA 2014) at position `i` of its sequence.
pub fn random(i: u64) -> u64 {
    let mut z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Adds `count` capacities of 450 GB/s each.
pub fn ports(system: &mut System, count: u32) -> Vec<ResourceId> {
    (0..count).map(|_| system.add_resource(Rate::from(Bandwidth::from_gb_per_s(450.0)))).collect()
}

/// Adds a route that uses the full width of each capacity once.
pub fn route(system: &mut System, resources: &[ResourceId]) -> RouteId {
    let uses: Vec<Use> = resources.iter().map(|&resource| Use { resource, coefficient: WHOLE }).collect();
    system.add_route(&uses, Rate::UNLIMITED, 1)
}

/// Start times of the ranks of a benchmark workload.
#[derive(Clone, Copy)]
pub enum Start {
    Simultaneous,
    /// Each rank starts at a random time within a millisecond.
    Skewed,
}

impl Start {
    fn pace(self, rank: u32) -> Pace {
        let not_before = match self {
            Self::Simultaneous => Picos::ZERO,
            Self::Skewed => Picos(random(rank.into()) % 1_000_000_000),
        };
        Pace { not_before, ..Pace::default() }
    }
}

/// Ring all_reduce of `bytes` over `ranks` ranks on a switch: a separate run for the first step, which reads the input,
/// then the reductions, then the copies.
pub fn ring(ranks: u32, bytes: u64, start: Start) -> Workload {
    let mut workload = Workload::new();
    let ports = ports(&mut workload.system, 2 * ranks);
    let stages = [1, ranks - 2, ranks - 1];
    for rank in 0..ranks {
        let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let route = route(&mut workload.system, &[ports[rank as usize], ports[(ranks + next) as usize]]);
        let passage = RouteLatency { route: Some(route), latency: LATENCY };
        for (stage, &len) in (0..3).zip(&stages) {
            let run = 3 * previous + stage;
            let previous_step = Edge { run, start: -1, step: 1 };
            let last_of_previous_stage = stage.checked_sub(1).map(|earlier| stages[earlier as usize] as i32 - 1);
            let dependencies: Vec<Edge> =
                [Some(previous_step), last_of_previous_stage.map(|start| Edge { run: run - 1, start, step: 1 })]
                    .into_iter()
                    .flatten()
                    .collect();
            let work = Work::from_bytes(bytes / u64::from(ranks));
            workload.add_uniform_run(len, passage, work, start.pace(rank), &dependencies);
        }
    }
    workload
}

/// All-to-all on a switch: every rank sends to every other concurrently.
pub fn all_to_all(ranks: u32, bytes: u64) -> Workload {
    let mut workload = Workload::new();
    let ports = ports(&mut workload.system, 2 * ranks);
    workload.works.push(Work::from_bytes(bytes / u64::from(ranks)));
    workload.paces.push(Pace::default());
    for rank in 0..ranks {
        let first = workload.passages.len() as u32;
        for offset in 1..ranks {
            let to = ranks + (rank + offset) % ranks;
            let route = route(&mut workload.system, &[ports[rank as usize], ports[to as usize]]);
            workload.passages.push(RouteLatency { route: Some(route), latency: LATENCY });
        }
        let run = WorkRun { len: ranks - 1, passage: PerOp::Each(first), work: PerOp::Same(0), pace: PerOp::Same(0) };
        workload.add_run(run, &[]);
    }
    workload
}

/// Hierarchical all_reduce: pairwise exchange within a host, then a ring over the hosts for each local rank, then a
/// pairwise exchange again.
pub fn hierarchical(hosts: u32, per_host: u32, bytes: u64) -> Workload {
    let mut workload = Workload::new();
    let ranks = hosts * per_host;
    let local_ports = ports(&mut workload.system, 2 * ranks);
    let nics = ports(&mut workload.system, 2 * ranks);
    workload.works.push(Work::from_bytes(bytes / u64::from(per_host)));
    workload.works.push(Work::from_bytes(bytes / u64::from(ranks)));
    workload.paces.push(Pace::default());
    // Runs of each rank: reduce within the host, ring over hosts, share within the host.
    for rank in 0..ranks {
        let (host, position) = (rank / per_host, rank % per_host);
        let local_peer = |offset: u32| host * per_host + (position + offset) % per_host;
        let first = workload.passages.len() as u32;
        for offset in 1..per_host {
            let to = (ranks + local_peer(offset)) as usize;
            let route = route(&mut workload.system, &[local_ports[rank as usize], local_ports[to]]);
            workload.passages.push(RouteLatency { route: Some(route), latency: LATENCY });
        }
        let next = (rank + per_host) % ranks;
        let route = route(&mut workload.system, &[nics[rank as usize], nics[(ranks + next) as usize]]);
        workload.passages.push(RouteLatency { route: Some(route), latency: LATENCY });
        let inside_run =
            WorkRun { len: per_host - 1, passage: PerOp::Each(first), work: PerOp::Same(0), pace: PerOp::Same(0) };
        let ring_run = WorkRun {
            len: 2 * (hosts - 1),
            passage: PerOp::Same(first + per_host - 1),
            work: PerOp::Same(1),
            pace: PerOp::Same(0),
        };
        let from_peers = (1..per_host).map(|offset| Edge {
            run: 3 * local_peer(offset),
            start: (per_host - offset) as i32 - 1,
            step: 0,
        });
        let from_previous_host = Edge { run: 3 * ((rank + ranks - per_host) % ranks) + 1, start: -1, step: 1 };
        let complete = Edge { run: 3 * rank + 1, start: 2 * hosts as i32 - 3, step: 0 };
        workload.add_run(inside_run, &[]);
        workload.add_run(ring_run, &from_peers.chain([from_previous_host]).collect::<Vec<_>>());
        workload.add_run(inside_run, &[complete]);
    }
    workload
}
