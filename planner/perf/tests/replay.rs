//! Tests of the replay of traces: events in order, on a shared fabric.
#![allow(missing_docs, clippy::unwrap_used)] // a test binary: it states expectations

use fabricast_perf::communication::SimulatedCosts;
use fabricast_perf::replay::{Outcome, replay};
use fabricast_sim::profile::Profile;
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{FabricRequest, Picos, load};
use fabricast_workload::job::{CollectiveCandidates, JobError};
use fabricast_workload::trace::{RankFile, Trace, read_chakra, read_kineto, read_table};

/// Asserts that no event starts before its predecessors end or before its start time, and that no call is faster than
/// without concurrent calls.
fn assert_invariants(trace: &Trace, outcome: &Outcome) {
    assert_eq!(trace.events.len(), outcome.spans.len());
    for (event, span) in trace.events.iter().zip(&outcome.spans) {
        assert!(span.begin >= event.start && span.end - span.begin >= span.alone, "{event:?} {span:?}");
        for &before in &event.after {
            assert!(outcome.spans[before as usize].end <= span.begin, "{event:?} {span:?}");
        }
    }
    let last = outcome.spans.iter().map(|span| span.end).max().unwrap_or(Picos::ZERO);
    assert_eq!(outcome.time, last);
}

fn run(text: &str, fabric: &str, nodes: u32) -> Outcome {
    run_by(CollectiveCandidates::Library, text, fabric, nodes)
}

fn run_by(collectives: CollectiveCandidates, text: &str, fabric: &str, nodes: u32) -> Outcome {
    let fabric = load(&FabricRequest { nodes: Some(nodes), ..FabricRequest::new(fabric) }).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let profile = Profile::for_fabric(&fabric).unwrap();
    let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
    let trace = read_table(text, "t.csv", fabric.gpus().len() as u32).unwrap();
    let outcome = replay(&trace, &simulated, fabric.gpus().len(), collectives, "t.csv").unwrap();
    assert_invariants(&trace, &outcome);
    outcome
}

#[test]
fn streams_are_ordered_and_independent_events_overlap() {
    let head = "collective,ranks,bytes,time_us,name,after,start_us\n";
    let sequential = run(&format!("{head}compute,,,100,a\nall_reduce,,1MiB\ncompute,,,100\n"), "hgx-h100", 1);
    let call = sequential.spans[1];
    assert_eq!(sequential.time, Picos::from_us(200.0) + call.alone);
    assert_eq!((call.end - call.begin, sequential.communication), (call.alone, call.alone));
    assert_eq!(sequential.exposed(), call.alone);
    let hidden = run(&format!("{head}compute,,,100,a\nall_reduce,,1MiB,,,a\ncompute,,,100,,a\n"), "hgx-h100", 1);
    assert_eq!((hidden.time, hidden.exposed()), (Picos::from_us(200.0), Picos::ZERO));
    let delayed = run(&format!("{head}all_reduce,,1MiB,,,,50\n"), "hgx-h100", 1);
    assert_eq!(delayed.time, Picos::from_us(50.0) + call.alone);
}

/// Overlapping calls on GPUs of one host share its links; calls inside different hosts share none.
#[test]
fn concurrent_calls_share_the_fabric() {
    let head = "collective,ranks,bytes,name,after,start_us\n";
    let apart = run(&format!("{head}all_reduce,0-7,64MiB\nall_reduce,8-15,64MiB\n"), "hgx-h100", 2);
    assert!(apart.spans.iter().all(|span| span.end == span.alone), "{apart:?}");
    let shared = run(&format!("{head}all_reduce,0-3,64MiB,,,0\nall_reduce,2-5,64MiB,,,10\n"), "hgx-h100", 1);
    assert!(shared.spans.iter().all(|span| span.end - span.begin > span.alone), "{shared:?}");
    // With shared links, concurrent calls need about as long as sequential ones, within a tenth.
    let alone: Picos = shared.spans.iter().map(|span| span.alone).sum();
    assert!(shared.time < Picos(alone.0 / 10 * 11), "{shared:?}");
    // Calls of one group run in order even without a dependency.
    let same = run(&format!("{head}all_reduce,0-3,64MiB,,,0\nall_reduce,0-3,64MiB,,,0\n"), "hgx-h100", 1);
    assert_eq!(same.spans[1].begin, same.spans[0].end);
}

/// A barrier moves no bytes, regardless of its `bytes` column, and does not change the times of concurrent calls.
#[test]
fn barriers_concurrent_with_calls_move_no_bytes() {
    let run_with_bytes = |bytes: &str| {
        let lines = format!("barrier,0-1,{bytes},,,0\nall_reduce,2-5,1MiB,,,0\nall_reduce,2-7,256MiB,,,0\n");
        run_by(
            CollectiveCandidates::Any,
            &format!("collective,ranks,bytes,name,after,start_us\n{lines}"),
            "hgx-h100",
            1,
        )
    };
    let none = run_with_bytes("0");
    assert_eq!(run_with_bytes("4"), none);
    assert!(none.spans[0].end < none.spans[1].end && none.spans[1].end.0 * 10 < none.spans[2].end.0, "{none:?}");
}

#[test]
fn more_ranks_than_gpus_are_refused() {
    let fabric = load(&FabricRequest::new("hgx-h100")).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let profile = Profile::ideal();
    let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
    let trace = read_table("collective,bytes,ranks\nall_reduce,4,0-15\n", "t.csv", 8).unwrap();
    let error = replay(&trace, &simulated, 8, CollectiveCandidates::Library, "t.csv").unwrap_err();
    assert_eq!(error.to_string(), "t.csv: ranks 0 to 15, and the fabric has 8 GPUs in use");
}

/// Ring all_reduce on eight ranks as one Chakra trace file per rank, from ASTRA-sim; see planner/data/traces/README.md.
const RING: [&[u8]; 8] = [
    include_bytes!("../../data/traces/astra-ring.0.et"),
    include_bytes!("../../data/traces/astra-ring.1.et"),
    include_bytes!("../../data/traces/astra-ring.2.et"),
    include_bytes!("../../data/traces/astra-ring.3.et"),
    include_bytes!("../../data/traces/astra-ring.4.et"),
    include_bytes!("../../data/traces/astra-ring.5.et"),
    include_bytes!("../../data/traces/astra-ring.6.et"),
    include_bytes!("../../data/traces/astra-ring.7.et"),
];

fn read_chakra_files(files: &[&[u8]]) -> Result<Trace, JobError> {
    let names: Vec<String> = (0..files.len()).map(|rank| format!("t.{rank}.et")).collect();
    let files: Vec<RankFile<'_>> = names.iter().zip(files).map(|(source, bytes)| RankFile { source, bytes }).collect();
    read_chakra(&files)
}

/// Each rank sends to the next rank and then receives from the previous one, fourteen times, and reduces seven of the
/// messages. If a send waited for its receiver, no rank could start. All ranks proceed in lockstep.
#[test]
fn astra_sim_ring_completes_in_lockstep() {
    let trace = read_chakra_files(&RING).unwrap();
    let fabric = load(&FabricRequest::new("hgx-h100")).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let profile = Profile::ideal();
    let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
    let outcome = replay(&trace, &simulated, 8, CollectiveCandidates::Library, "t.0.et").unwrap();
    assert_invariants(&trace, &outcome);
    let message = trace.events.iter().zip(&outcome.spans).find(|(event, _)| event.kind.call().is_some());
    let alone = message.unwrap().1.alone;
    assert_eq!(outcome.compute, Picos::from_us(7.0 * 7.0));
    assert_eq!(outcome.time, Picos(alone.0 * 14) + outcome.compute);
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

/// Encodes a Chakra node of a computation of `micros` µs, with `more` (fields 10 and 5) appended.
fn computes(id: u8, micros: u8, more: &[u8]) -> Vec<u8> {
    let node = [&[1 << 3, id, 3 << 3, 4, 7 << 3, micros], more].concat();
    [&[node.len() as u8], node.as_slice()].concat()
}

/// The host thread continues while the GPU computes.
#[test]
fn host_operations_do_not_occupy_the_gpu() {
    let attribute = field(10, &[field(1, b"is_cpu_op"), vec![0xd8, 0x01, 1]].concat());
    let on_cpu = |id| computes(id, 20, &attribute);
    // The kernel that the first operation launched runs concurrently with the second operation.
    let trace = [vec![0], on_cpu(1), on_cpu(2), computes(3, 30, &[5 << 3, 1])].concat();
    let read = |trace: &[u8]| read_chakra_files(&[trace]).unwrap();
    let fabric = load(&FabricRequest::new("hgx-h100")).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let profile = Profile::ideal();
    let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
    let run = |trace: &Trace| replay(trace, &simulated, 8, CollectiveCandidates::Library, "t.0.et").unwrap();
    let outcome = run(&read(&trace));
    assert_eq!((outcome.time, outcome.compute), (Picos::from_us(50.0), Picos::from_us(30.0)));
    let all_on_gpu = [vec![0], computes(1, 20, &[]), computes(2, 20, &[]), computes(3, 30, &[5 << 3, 1])].concat();
    assert_eq!(run(&read(&all_on_gpu)).time, Picos::from_us(70.0));
}

/// Event of Kineto, with times in ns.
fn kineto_event(category: &str, name: &str, start: u64, time: u64, arguments: &str) -> String {
    let us = |nanos: u64| format!("{}.{:03}", nanos / 1000, nanos % 1000);
    format!(
        "{{\"ph\":\"X\",\"cat\":\"{category}\",\"name\":\"{name}\",\"pid\":1,\"tid\":1,\"ts\":{},\"dur\":{},\"args\":{{{arguments}}}}}",
        us(start),
        us(time)
    )
}

/// Trace of a rank of data-parallel training: eight layers backward, an all_reduce after every second one, and an
/// optimizer that waits for all of them. `call`: duration of an all_reduce. Returns the trace and the time of the step.
fn data_parallel_step(rank: u32, bytes: u64, call: u64) -> ((String, Vec<u8>), u64) {
    let mut events = Vec::new();
    let (mut host, mut computing, mut calling) = (0, 0, 0);
    let mut number = 0;
    let mut launch = |events: &mut Vec<String>, host: u64, start: u64, time: u64, name: &str, arguments: &str| {
        number += 1;
        let id = format!("\"correlation\":{number}");
        events.push(kineto_event("cuda_runtime", "cudaLaunchKernel", host, 0, &id));
        events.push(kineto_event("kernel", name, start, time, &format!("{id}{arguments}")));
    };
    for layer in 0..8 {
        let start = computing.max(host);
        launch(&mut events, host, start, 400_000, "gemm", ",\"stream\":7");
        (computing, host) = (start + 400_000, host + 5_000);
        if layer % 2 == 1 {
            let arguments = format!(
                ",\"stream\":20,\"Collective name\":\"allreduce\",\"In msg nelems\":{0},\"Out msg nelems\":{0},\
                 \"dtype\":\"BFloat16\",\"Group size\":8,\"Process Group Name\":\"0\",\
                 \"Process Group Ranks\":\"[0, 1, 2, 3, 4, 5, 6, 7]\"",
                bytes / 2
            );
            let start = computing.max(calling).max(host);
            launch(&mut events, host, start, call, "ncclDevKernel_AllReduce", &arguments);
            (calling, host) = (start + call, host + 5_000);
        }
    }
    events.push(kineto_event("cuda_runtime", "cudaStreamWaitEvent", host, 0, ""));
    host += 1_000;
    let start = computing.max(calling);
    launch(&mut events, host, start, 300_000, "sgd", ",\"stream\":7");
    let text =
        format!("{{\"distributedInfo\":{{\"rank\":{rank},\"world_size\":8}},\"traceEvents\":[{}]}}", events.join(","));
    ((format!("rank-{rank}.json"), text.into_bytes()), start + 300_000)
}

/// A trace in which calls take as long as they are predicted to is replayed in its recorded time, from one rank and
/// from all. On another fabric only the calls change.
#[test]
fn profiler_traces_replay_in_recorded_time() {
    let outcome_on = |preset: &str, trace: &Trace| {
        let fabric = load(&FabricRequest::new(preset)).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let profile = Profile::for_fabric(&fabric).unwrap();
        let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
        let outcome = replay(trace, &simulated, 8, CollectiveCandidates::Library, "t.json").unwrap();
        assert_invariants(trace, &outcome);
        outcome
    };
    let calls = |trace: &Trace, outcome: &Outcome| -> Vec<Picos> {
        let calls = trace.events.iter().zip(&outcome.spans).filter(|(event, _)| event.kind.call().is_some());
        calls.map(|(_, span)| span.alone).collect()
    };
    for (bytes, ranks) in [(64 << 20, 1), (256 << 20, 1), (256 << 20, 8)] {
        let read_step = |call: u64| {
            let steps: Vec<((String, Vec<u8>), u64)> =
                (0..ranks).map(|rank| data_parallel_step(rank, bytes, call)).collect();
            let files: Vec<(String, Vec<u8>)> = steps.iter().map(|(file, _)| file.clone()).collect();
            (read_kineto(&files).unwrap(), steps[0].1)
        };
        let (trace, _) = read_step(1_000);
        let alone = calls(&trace, &outcome_on("hgx-h100", &trace))[0];
        let (trace, time) = read_step(alone.0.div_ceil(1000));
        let outcome = outcome_on("hgx-h100", &trace);
        assert_eq!(trace.recorded, Some(Picos(time * 1000)));
        let error = outcome.time.us() / (time as f64 / 1000.0) - 1.0;
        assert!(error.abs() < 1e-5, "{bytes} {ranks}: {:?} {time}", outcome.time);

        let other = outcome_on("dgx-a100", &trace);
        assert_eq!(other.compute, outcome.compute);
        assert!(other.time > outcome.time, "{bytes}: {:?} {:?}", other.time, outcome.time);
        let slower = calls(&trace, &other)[0];
        let (_, expected) = read_step(slower.0.div_ceil(1000));
        let error = other.time.us() / (expected as f64 / 1000.0) - 1.0;
        assert!(error.abs() < 1e-5, "{bytes} {ranks}: {:?} {expected}", other.time);
    }
}
