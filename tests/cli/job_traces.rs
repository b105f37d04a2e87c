//! Tests of `simulate --job --trace` and `study --trace`. The files are read as Perfetto reads them, by the rules of the
//! "Trace Event Format": names before use, slices of a thread that nest, and flows that begin and end inside slices.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::run::{json, run_in};

/// Slice of a thread, with times in ps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Slice {
    begin: u64,
    end: u64,
    name: String,
}

/// Trace as a viewer shows it.
#[derive(Debug, Default)]
struct OpenedTrace {
    metadata: BTreeMap<String, String>,
    /// Slices by the names of process and thread. Additional threads of a track (`name +1`) belong to it.
    tracks: BTreeMap<(String, String), Vec<Slice>>,
    /// Slices that a flow connects: process, thread and name of each.
    flows: Vec<[(String, String, String); 2]>,
}

/// Process and thread of an event.
type Thread = (u64, u64);

fn text<'a>(event: &'a Value, key: &str) -> &'a str {
    event[key].as_str().unwrap_or_else(|| panic!("no {key}: {event}"))
}

/// Time in ps, read from the digits of the number.
fn picos(value: &Value) -> u64 {
    let digits = value.to_string();
    let (micros, rest) = digits.split_once('.').unwrap_or((&digits, ""));
    format!("{micros}{rest:0<6}").parse().unwrap_or_else(|_| panic!("`{digits}` is not a time"))
}

/// Opens a trace. Panics if a viewer would drop or misplace an event.
fn open(bytes: &[u8]) -> OpenedTrace {
    let trace: Value = serde_json::from_slice(bytes).unwrap();
    let thread = |event: &Value| -> Thread { (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap()) };
    let mut opened = OpenedTrace::default();
    for (name, value) in trace["otherData"].as_object().into_iter().flatten() {
        opened.metadata.insert(name.clone(), value.as_str().unwrap().to_owned());
    }
    let (mut processes, mut threads) = (BTreeMap::new(), BTreeMap::new());
    let mut slices: BTreeMap<Thread, Vec<Slice>> = BTreeMap::new();
    let mut ends: BTreeMap<u64, [Vec<(Thread, u64)>; 2]> = BTreeMap::new();
    let mut now = 0;
    for event in trace["traceEvents"].as_array().unwrap() {
        let phase = text(event, "ph");
        if phase != "M" {
            assert!(now <= picos(&event["ts"]), "not in order of time: {event}");
            now = picos(&event["ts"]);
        }
        match phase {
            "M" => match text(event, "name") {
                "process_name" => {
                    let name = text(&event["args"], "name").to_owned();
                    assert!(processes.insert(event["pid"].as_u64().unwrap(), name).is_none(), "named twice: {event}");
                }
                "thread_name" => {
                    let name = text(&event["args"], "name").to_owned();
                    assert!(threads.insert(thread(event), name).is_none(), "named twice: {event}");
                }
                "process_sort_index" | "thread_sort_index" => assert!(event["args"]["sort_index"].is_i64()),
                "process_labels" => assert!(event["args"]["labels"].is_string()),
                other => panic!("unknown metadata {other}"),
            },
            "X" => {
                let begin = picos(&event["ts"]);
                let end = begin + picos(&event["dur"]);
                let name = text(event, "name").to_owned();
                slices.entry(thread(event)).or_default().push(Slice { begin, end, name });
            }
            "s" | "f" => {
                assert_eq!(text(event, "cat"), text(event, "name"));
                assert!(phase == "s" || text(event, "bp") == "e", "the end binds to the next slice: {event}");
                let side = usize::from(phase == "f");
                let id = event["id"].as_u64().unwrap();
                ends.entry(id).or_default()[side].push((thread(event), picos(&event["ts"])));
            }
            other => panic!("unknown phase {other}"),
        }
    }
    for (thread, slices) in &slices {
        let (process, name) = (&processes[&thread.0], &threads[thread]);
        for pair in slices.windows(2) {
            assert!(pair[0].end <= pair[1].begin, "{process}, {name}: {pair:?} overlap");
        }
        let track = name.split(" +").next().unwrap().to_owned();
        opened.tracks.entry((process.clone(), track)).or_default().extend(slices.iter().cloned());
    }
    opened.tracks.values_mut().for_each(|slices| slices.sort());
    for (id, [begin, end]) in &ends {
        let ([begin], [end]) = (begin.as_slice(), end.as_slice()) else { panic!("flow {id} has not two ends") };
        assert!(begin.1 <= end.1, "flow {id} ends before it begins");
        let slice = |&(thread, time): &(Thread, u64)| {
            let inside = |slice: &&Slice| (slice.begin..=slice.end).contains(&time);
            let slice = slices[&thread].iter().rev().find(inside);
            let slice = slice.unwrap_or_else(|| panic!("flow {id} is in no slice at {time}"));
            (processes[&thread.0].clone(), threads[&thread].clone(), slice.name.clone())
        };
        opened.flows.push([slice(begin), slice(end)]);
    }
    opened
}

/// Runs a command that writes a trace, and returns the bytes of the trace.
fn written(arguments: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let run = run_in(folder.path(), &format!("{arguments} --trace trace.json -q"));
    assert_eq!(run.code, 0, "{}", run.stderr);
    std::fs::read(folder.path().join("trace.json")).unwrap()
}

fn job(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/transcripts/jobs.in").join(name).display().to_string()
}

#[test]
fn trace_of_a_job_has_its_tracks_times_and_dependencies() {
    let flags = format!("simulate --fabric hgx-h100 --job {}", job("step.csv"));
    let bytes = written(&flags);
    assert_eq!(bytes, written(&format!("{flags} --threads 1")));
    let trace = open(&bytes);
    assert_eq!((trace.metadata["fabric"].as_str(), trace.metadata["job"].as_str()), ("hgx-h100", &*job("step.csv")));
    assert!(trace.metadata["profile"].starts_with("nccl-"));
    let threads: Vec<&str> =
        trace.tracks.keys().filter(|(process, _)| process == "rank 5").map(|(_, thread)| thread.as_str()).collect();
    assert_eq!(threads, ["computation", "group 1,5", "group 4-7", "waiting"]);
    // The spans of each rank are those of the answer.
    let answer = json(&flags);
    let mut expected: BTreeMap<u64, BTreeSet<(u64, u64)>> = BTreeMap::new();
    for event in answer["events"].as_array().unwrap() {
        for rank in event["ranks"].as_array().unwrap() {
            let times = (picos(&event["begin_us"]), picos(&event["end_us"]));
            expected.entry(rank.as_u64().unwrap()).or_default().insert(times);
        }
    }
    for (rank, expected) in expected {
        let tracks = trace
            .tracks
            .iter()
            .filter(|((process, thread), _)| *process == format!("rank {rank}") && thread != "waiting");
        let shown: BTreeSet<(u64, u64)> =
            tracks.flat_map(|(_, slices)| slices).map(|slice| (slice.begin, slice.end)).collect();
        assert_eq!(shown, expected, "rank {rank}");
    }
    let key = |process: &str, thread: &str| (process.to_owned(), thread.to_owned());
    // Computation and waiting cover the time of a rank without gaps and overlaps.
    let mut covered: Vec<Slice> = trace.tracks[&key("rank 5", "computation")].clone();
    covered.extend(trace.tracks[&key("rank 5", "waiting")].iter().cloned());
    covered.sort();
    assert_eq!(covered[0].begin, 0);
    assert!(covered.windows(2).all(|pair| pair[0].end == pair[1].begin), "{covered:?}");
    assert_eq!(covered.last().unwrap().end, picos(&answer["time_us"]));
    assert_eq!(trace.tracks[&key("rank 5", "waiting")][0].name, "waits for all_reduce 8 MiB");
    // On each rank: forward → sums → backward → gradients.
    let flows: Vec<String> = trace
        .flows
        .iter()
        .filter(|[(process, ..), _]| process == "rank 5")
        .map(|[(_, from, name), (process, to, after)]| format!("{from}: {name} → {process}, {to}: {after}"))
        .collect();
    assert_eq!(
        flows,
        [
            "computation: forward → rank 5, group 4-7: all_reduce 8 MiB",
            "group 4-7: all_reduce 8 MiB → rank 5, computation: backward",
            "computation: backward → rank 5, group 1,5: all_reduce 32 MiB",
        ]
    );
}

#[test]
fn trace_of_a_chakra_job_is_valid() {
    let trace = open(&written(&format!("simulate --fabric hgx-h100 --job {}", job("mlp-hybrid.0.et"))));
    let processes: BTreeSet<&String> = trace.tracks.keys().map(|(process, _)| process).collect();
    assert_eq!(processes.len(), 4);
    assert!(!trace.flows.is_empty());
}

/// Passes of a micro-batch wait for the previous stage forward and for the next stage backward.
#[test]
fn trace_of_a_study_connects_the_passes_of_stages() {
    let folder = tempfile::tempdir().unwrap();
    let study = r#"
[[candidate]]
name = "h100"
fabric = "hgx-h100"
nodes = 2

[[job]]
name = "13b"
model = { layers = 40, hidden = 5120, heads = 40, ffn = 13824, vocab = 32000, seq = 2048 }
precision = "bf16"
global_batch = 16
micro_batch = 1
parallel = { tp = 4, pp = 4, dp = 1 }
"#;
    std::fs::write(folder.path().join("study.toml"), study).unwrap();
    let path = folder.path().join("study.toml").display().to_string();
    let bytes = written(&format!("study {path}"));
    assert_eq!(bytes, written(&format!("study {path} --threads 1 -o results")));
    let trace = open(&bytes);
    let stage = |number: u64| format!("13b on h100, a step, stage {number}");
    let has_flow = |from: (u64, &str), to: (u64, &str)| {
        trace.flows.iter().any(|[before, after]| {
            (before.0 == stage(from.0), before.2 == from.1, after.0 == stage(to.0), after.2 == to.1)
                == (true, true, true, true)
        })
    };
    assert!(has_flow((0, "forward, micro-batch 3"), (1, "forward, micro-batch 3")), "{:?}", trace.flows);
    assert!(has_flow((3, "backward, micro-batch 0"), (2, "backward, micro-batch 0")));
    assert!(!has_flow((1, "forward, micro-batch 3"), (0, "forward, micro-batch 3")));
    // The last stage waits for the first micro-batch; computation and waiting cover the step.
    for number in 0..4 {
        let slices = |thread: &str| trace.tracks.get(&(stage(number), thread.to_owned())).into_iter().flatten();
        let mut covered: Vec<&Slice> = slices("computation").chain(slices("waiting")).collect();
        covered.sort();
        assert_eq!(covered[0].begin, 0);
        assert!(covered.windows(2).all(|pair| pair[0].end == pair[1].begin), "stage {number}");
    }
    let first = &trace.tracks[&(stage(3), "waiting".to_owned())][0];
    assert_eq!((first.begin, first.name.as_str()), (0, "waits for forward, micro-batch 0"));
}
