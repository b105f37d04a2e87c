//! `study`: its answer does not depend on threads or on where it is written, and what is wrong in a study is shown there.

use std::path::Path;

use serde_json::Value;

use crate::run::{refused, run_in};

fn example() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

#[test]
fn the_example_runs_and_its_results_do_not_depend_on_threads() {
    let one = run_in(&example(), "study training-70b.toml --format json --threads 1");
    let two = run_in(&example(), "study training-70b.toml --format json --threads 2");
    assert_eq!((one.code, one.stderr.as_str()), (0, ""));
    assert_eq!(one.stdout, two.stdout);
    let found: Value = serde_json::from_str(&one.stdout).unwrap();
    let results = found["results"].as_array().unwrap();
    assert_eq!((results.len(), found["ranking"].as_array().unwrap().len()), (3, 3));
    for result in results {
        let number = |key: &str| result[key].as_f64().unwrap_or_else(|| panic!("{key}: {result}"));
        let shares: f64 = result["step_s"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
        assert!((shares / number("step_time_s") - 1.0).abs() < 1e-9, "{result}");
        let tokens = number("tokens_per_s") * number("step_time_s");
        assert!((tokens / (64.0 * 4096.0) - 1.0).abs() < 1e-9);
        let cost = number("cost_per_hour") / (number("tokens_per_s") * 3600.0) * 1e6;
        assert!((cost / number("cost_per_million_tokens") - 1.0).abs() < 1e-9);
        assert!(number("exposed_comm_share") <= number("total_comm_share") + 1e-9);
        assert!(result["fits"].is_boolean() && result["binds"].is_string() && number("memory_gb") > 0.0);
    }
}

#[test]
fn inference_is_studied_beside_training() {
    let one = run_in(&example(), "study moe-inference.toml --format json --threads 1");
    let two = run_in(&example(), "study moe-inference.toml --format json --threads 2");
    assert_eq!((one.code, one.stderr.as_str()), (0, ""));
    assert_eq!(one.stdout, two.stdout);
    let found: Value = serde_json::from_str(&one.stdout).unwrap();
    assert_eq!(found["ranking"][0]["candidate"], "GB200 NVL72");
    let results = found["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    for result in results {
        let number = |key: &str| result[key].as_f64().unwrap_or_else(|| panic!("{key}: {result}"));
        assert_eq!(result["kind"], "inference");
        let shares: f64 = result["step_s"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
        assert!((shares / number("step_time_s") - 1.0).abs() < 1e-9, "{result}");
        // Requests in flight are those that come in a second times the seconds that one takes.
        let (requests, after) = if result["job"] == "chat" { (4608.0, 999.0) } else { (288.0, 499.0) };
        let whole = number("ttft_s") + after * number("tpot_s");
        assert!((number("samples_per_s") * whole / requests - 1.0).abs() < 1e-6, "{result}");
        let cost = number("cost_per_hour") / (number("tokens_per_s") * 3600.0) * 1e6;
        assert!((cost / number("cost_per_million_tokens") - 1.0).abs() < 1e-9);
        assert!(result["memory"]["kv_cache_gb"].as_f64().unwrap() > 0.0 && number("requests_that_fit") >= requests);
    }
}

#[test]
fn what_does_not_fit_or_comes_too_late_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[[candidate]]\nname = \"one\"\nfabric = \"hgx-h100\"\ngpus = 4\n\
        [[job]]\nname = \"chat\"\nkind = \"inference\"\nprompt_tokens = 4000\noutput_tokens = 500\nconcurrency = 800\n\
        tpot_s = 0.001\nparallel = { tp = 4 }\n\
        model = { layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, gated = true, vocab = 32000 }\n";
    std::fs::write(folder.path().join("s.toml"), text).unwrap();
    let run = run_in(folder.path(), "study s.toml --format json");
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let found: Value = serde_json::from_str(&run.stdout).unwrap();
    let (result, ranked) = (&found["results"][0], &found["ranking"][0]);
    assert_eq!((&result["fits"], &ranked["within"]), (&Value::Bool(false), &Value::Bool(false)));
    assert!(
        result["late"][0].as_str().unwrap().starts_with("tpot_s 0.") && result["memory_beyond_gb"].as_f64() > Some(0.0)
    );
    let fewer = result["would_fit"][0].as_str().unwrap().strip_prefix("concurrency = ").unwrap();
    assert_eq!(result["requests_that_fit"].as_u64().unwrap().to_string(), fewer);
    let beyond: Vec<&str> = ranked["beyond"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(beyond[0].contains("GB of memory (concurrency = ") && beyond[1].starts_with("chat: tpot_s "), "{beyond:?}");
    // What it says would fit does.
    std::fs::write(folder.path().join("s.toml"), text.replace("= 800", &format!("= {fewer}"))).unwrap();
    let again: Value = serde_json::from_str(&run_in(folder.path(), "study s.toml --format json").stdout).unwrap();
    assert_eq!(again["results"][0]["memory_beyond_gb"], Value::Null);
    // A key of training is none of its own.
    std::fs::write(folder.path().join("s.toml"), format!("{text}micro_batch = 1\n")).unwrap();
    refused(folder.path(), "study s.toml", "s.toml:14:15: micro_batch: is of jobs of kind training");
}

#[test]
fn a_folder_gets_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let study = example().join("training-70b.toml").display().to_string();
    let printed = run_in(folder.path(), &format!("study {study} --format json"));
    for format in ["text", "csv"] {
        let run = run_in(folder.path(), &format!("study {study} --format {format} -o out"));
        assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (0, "", ""));
    }
    let read = |name: &str| std::fs::read_to_string(folder.path().join("out").join(name)).unwrap();
    assert_eq!(read("results.json"), printed.stdout);
    assert!(read("ranking.txt").contains("4 x HGX H200"));
    assert!(read("ranking.csv").starts_with("candidate,job,ranks,"));
}

#[test]
fn a_template_is_a_study() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run_in(folder.path(), "study --template -o new").code, 0);
    let run = run_in(&folder.path().join("new"), "study study.toml --format csv");
    assert_eq!((run.code, run.stdout.lines().count()), (0, 10));
}

#[test]
fn what_is_wrong_is_shown_where_it_stands() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(example().join("training-70b.toml")).unwrap();
    for (right, wrong, expected) in [
        ("fabric = \"hgx-h200\"", "fabric = \"hgx-h20\"", "s.toml:8:10: unknown fabric `hgx-h20`"),
        (
            "parallel = \"auto\"",
            "parallel = { tp = 8, pp = 8 }",
            "s.toml:35:12: tp 8 × pp 8 × dp 1 is 64, and there are 32",
        ),
        ("precision = \"bf16\"", "precision = \"bf17\"", "s.toml:31:13: unknown variant"),
        ("zero = 1", "zero = 1\nseed = 3", "s.toml:35:1: unknown field `seed`"),
        ("nodes = 4", "nodes = 0", "not 0"),
    ] {
        std::fs::write(folder.path().join("s.toml"), text.replacen(right, wrong, 1)).unwrap();
        refused(folder.path(), "study s.toml -o out", expected);
        assert!(!folder.path().join("out").exists());
    }
    for (file, contents) in [("empty", ""), ("binary", "\u{0}\u{1}")] {
        std::fs::write(folder.path().join(file), contents).unwrap();
        refused(folder.path(), &format!("study {file}"), file);
    }
    refused(folder.path(), "study missing.toml", "missing.toml");
    refused(folder.path(), "study s.toml --template", "cannot be used with");
    std::fs::write(folder.path().join("file"), "").unwrap();
    refused(folder.path(), "study --template -o file", "expected a folder");
}
