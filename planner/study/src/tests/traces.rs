//! Tests of jobs that replay a trace.

use super::*;

/// Trace of four ranks: two ranks compute in parallel, then all ranks join an all-reduce.
const TRACE: &str = "collective,ranks,bytes,time_us\ncompute,0-1,,900\ncompute,,,100\nall_reduce,,64MiB\n";
const TRACED: &str = "[[candidate]]\nname = \"two\"\nfabric = \"hgx-h100\"\nnodes = 2\ngpus = 2\nprice_usd = 100000\n\
    [[candidate]]\nname = \"one\"\nfabric = \"hgx-h100\"\ngpus = 8\nprice_usd = 100000\n\
    [[candidate]]\nname = \"small\"\nfabric = \"hgx-h100\"\ngpus = 2\nprice_usd = 1000\n\
    [[job]]\nname = \"log\"\nkind = \"trace\"\nfile = \"t.csv\"\nranks = 4\nweight = 2\n";

fn trace_files(trace: &str) -> impl Fn(&str) -> Result<Vec<(String, Vec<u8>)>, String> {
    move |name| Ok(vec![(format!("in/{name}"), trace.as_bytes().to_vec())])
}

/// A trace has the same completion time as without a study on the same fabric. Its cost is that of its fraction of an
/// hour, and it has no tokens. A candidate with too few GPUs is reported.
#[test]
fn traces_run_as_jobs() {
    let completed = CompletedStudy::with_traces(TRACED, &trace_files(TRACE));
    let answer = completed.answer();
    assert_eq!(answer.scored_by(), answer::ScoredBy::CostPerStep);
    let trace = fabricast_workload::trace::read_table(TRACE, "t", 4).unwrap();
    for (name, number) in [("two", 0), ("one", 1)] {
        let fabric = &completed.fabrics[number];
        let router = fabricast_topologies::route::Router::new(fabric, Default::default());
        let profile = fabricast_sim::profile::Profile::for_fabric(fabric).unwrap();
        let simulated = fabricast_perf::communication::SimulatedCosts::new(&router, &profile, fabric.gpus());
        let outcome =
            fabricast_perf::replay::replay(&trace, &simulated, fabric.gpus().len(), Default::default(), "t").unwrap();
        let row = answer.results.iter().find(|row| row.candidate == name).unwrap();
        assert_eq!((row.step_time_s, row.ranks), (outcome.time.0 as f64 / 1e12, 4));
        assert!(
            (row.exposed_comm_share - (1.0 - 1e-3 / row.step_time_s)).abs() < 1e-9 && row.step_s["waiting"] == 0.0,
            "{row:?}"
        );
        assert!(row.total_comm_share <= row.exposed_comm_share + 1e-9 && row.fits, "{row:?}");
        assert!((row.step_s.values().sum::<f64>() / row.step_time_s - 1.0).abs() < 1e-9);
        let hour = 100_000.0 / completed.study.assumptions.hours();
        assert!((row.cost_per_step.unwrap() / (hour * row.step_time_s / 3600.0) - 1.0).abs() < 1e-9);
        assert_eq!((row.cost_per_million_tokens, row.tokens_per_s, row.memory_gb), (None, None, None));
    }
    let order: Vec<_> =
        answer.ranking.iter().map(|ranked| (ranked.candidate.as_str(), ranked.meets_constraints)).collect();
    assert_eq!(order, [("one", true), ("two", true), ("small", false)]);
    let small = &answer.ranking[2];
    assert!(
        small.score.is_none() && small.violations.concat().contains("ranks 0 to 3, and the fabric has 2 GPUs"),
        "{small:?}"
    );
    let text = serde_json::to_string(&answer).unwrap();
    assert_eq!(Answer::read(&text, "r").unwrap(), answer);
    // Time without computation and without active calls counts as waiting, not as communication.
    let idle = "collective,ranks,bytes,time_us,start_us\ncompute,0,,100,0\nall_reduce,0-3,1MiB,,400\n";
    let idle = CompletedStudy::with_traces(TRACED, &trace_files(idle)).answer().results.remove(0);
    assert!((idle.step_s["waiting"] - 3e-4).abs() < 1e-12 && idle.bottleneck == "waiting", "{idle:?}");
    assert_eq!(idle.exposed_comm_share, idle.total_comm_share);
    // With an additional job that counts tokens, candidates with too few GPUs for the trace still have results for that
    // job.
    let mixed = CompletedStudy::with_traces(
        &format!("{TRACED}{}", &PAIR[PAIR.find("[[job]]").unwrap()..]),
        &trace_files(TRACE),
    )
    .answer();
    assert_eq!((mixed.scored_by(), mixed.results.len()), (answer::ScoredBy::CostPerUnit, 8));
}

/// Keys of traces depend only on their events, not on the file name.
#[test]
fn trace_keys_depend_on_content_only() {
    let key = |text: &str, trace: &str| {
        let study = read_study_with(text, "s", &|name| Err(name.to_owned()), &trace_files(trace)).unwrap();
        key::job_key(&study.jobs[0])
    };
    let base = key(TRACED, TRACE);
    assert_eq!(
        base,
        key(&TRACED.replace("t.csv", "u.csv").replace("weight = 2", ""), &format!("# a comment\n{TRACE}"))
    );
    for other in ["64MiB", "900", "0-1"].map(|part| TRACE.replace(part, if part == "0-1" { "0-2" } else { "65" })) {
        assert_ne!(base, key(TRACED, &other), "{other}");
    }
    assert_ne!(base, key(&format!("{TRACED}collectives = \"any\"\n"), TRACE));
}

#[test]
fn invalid_traces_are_errors_with_location() {
    let error_message = |text: &str, trace: &str| {
        let no_files = |name: &str| Err(format!("no {name}"));
        let error = match trace {
            "" => read_study_with(text, "s.toml", &|name| Err(name.to_owned()), &no_files),
            contents => read_study_with(text, "s.toml", &|name| Err(name.to_owned()), &trace_files(contents)),
        };
        error.unwrap_err().to_string()
    };
    assert_eq!(error_message(TRACED, ""), "s.toml:20:8: file: no t.csv");
    assert!(error_message(TRACED, &TRACE.replace("900", "long")).starts_with("in/t.csv:2:14: time_us: `long` is not"));
    assert!(error_message(&TRACED.replace("ranks = 4", ""), TRACE).starts_with("in/t.csv:3:1: no ranks on this line"));
    for (line, expected) in [
        ("global_batch = 8", "global_batch: only valid for jobs of kind training, and this one is trace"),
        ("parallel = \"auto\"", "parallel: only valid for jobs of kind training or inference"),
        ("tpot_s = 1", "tpot_s: only valid for jobs of kind inference"),
    ] {
        let error = error_message(&format!("{TRACED}{line}\n"), TRACE);
        assert!(error.starts_with("s.toml:23:") && error.contains(expected), "{error}");
    }
    let error = error_message(&TRACED.replace("file = \"t.csv\"", ""), TRACE);
    assert!(error.contains("missing field `file`"), "{error}");
    let error = error_message(&format!("{MACHINES}{JOB}file = \"t.csv\"\n"), TRACE);
    assert!(error.contains("file: only valid for jobs of kind trace, and this one is training"), "{error}");
}
