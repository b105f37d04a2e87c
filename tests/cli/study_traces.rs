//! Tests of jobs that are given as traces, in studies and simulations.

use std::path::Path;

use serde_json::Value;

use crate::run::{refused, run_in};

/// If a Chakra trace lacks the file of a rank, that file is reported, because the remaining files would describe a
/// smaller job.
#[test]
fn missing_ranks_of_a_trace_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("planner/data/traces");
    for rank in [0, 1, 3] {
        let name = format!("mlp-hybrid.{rank}.et");
        std::fs::copy(traces.join(&name), folder.path().join(&name)).unwrap();
    }
    refused(
        folder.path(),
        "simulate --fabric hgx-h100 --job mlp-hybrid.0.et",
        "mlp-hybrid.2.et: there is no such file, and there is one of rank 3",
    );
}

/// A job given as a trace runs as any other: its shards are merged, cached runs are not repeated, and another trace
/// under the same name is a separate run.
#[test]
fn trace_runs_are_cached_by_content() {
    let folder = tempfile::tempdir().unwrap();
    let study = "[[candidate]]\nname = \"one\"\nfabric = \"hgx-h100\"\ngpus = 4\n\
                 [[candidate]]\nname = \"two\"\nfabric = \"hgx-h100\"\nnodes = 2\ngpus = 2\n\
                 [[candidate]]\nname = \"few\"\nfabric = \"hgx-h100\"\ngpus = 2\n\
                 [[job]]\nname = \"log\"\nkind = \"trace\"\nfile = \"step.csv\"\n";
    let trace = "collective,ranks,bytes,time_us\ncompute,0-3,,100\nall_reduce,0-3,1MiB,\n";
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("s.toml", study);
    write("step.csv", trace);
    let run = |arguments: &str| {
        let run = run_in(folder.path(), arguments);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{arguments}");
    };
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    run("study s.toml -o whole");
    run("study s.toml --shard 1/2 -o p1");
    run("study s.toml --shard 2/2 -o p2");
    run("study s.toml --merge p1 p2 -o merged");
    for name in ["results.json", "runs.jsonl", "index.html", "ranking.txt"] {
        assert_eq!(read(&format!("merged/{name}")), read(&format!("whole/{name}")), "{name}");
    }
    assert_eq!(read("whole/runs.jsonl").lines().count(), 3);
    run("report whole/results.json -o page.html --charts charts");
    let output: Value = serde_json::from_str(&read("whole/results.json")).unwrap();
    let two_gpus = &output["ranking"][2];
    assert!(
        two_gpus["candidate"] == "few" && two_gpus["meets_constraints"] == false && two_gpus["score"].is_null(),
        "{output}"
    );
    assert_eq!(output["results"].as_array().unwrap().len(), 2);
    assert!(output["results"][0]["tokens_per_s"].is_null() && output["results"][0]["step_time_s"].is_f64(), "{output}");

    write("step.csv", &format!("# the same\n{trace}"));
    run("study s.toml -o whole");
    assert_eq!(read("whole/runs.jsonl").lines().count(), 3);
    write("step.csv", &trace.replace("1MiB", "2MiB"));
    run("study s.toml -o whole");
    assert_eq!(read("whole/runs.jsonl").lines().count(), 6);
    let larger: Value = serde_json::from_str(&read("whole/results.json")).unwrap();
    let time = |output: &Value| output["results"][0]["step_time_s"].as_f64().unwrap();
    assert!(time(&larger) > time(&output));
}
