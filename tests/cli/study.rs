//! Tests of `study`: results depend neither on the number of threads nor on the output location, and faults in a study
//! are reported with their source location.

use std::path::Path;

use serde_json::Value;

use crate::chromium::works;
use crate::run::{refused, run_in};

fn example() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

/// Runs an example, checks that its page works in a browser, and returns its results as text.
fn run_and_check_page(study: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    assert_eq!(run_in(&example(), &format!("study {study} --threads 2 -o {}", out.display())).code, 0);
    let page = std::fs::read_to_string(out.join("index.html")).unwrap();
    if let Some(counts) = works(&page) {
        let min_count = counts.tables.min(counts.plots);
        assert!(min_count > 3 && counts.points > 50 && counts.switched > 10, "{study}: {counts:?}");
        // The page offers a choice of jobs if there are several.
        assert_eq!(counts.choices > 0, study != "training-70b.toml", "{study}: {counts:?}");
    }
    std::fs::read_to_string(out.join("results.json")).unwrap()
}

#[test]
fn example_runs_and_results_do_not_depend_on_threads() {
    let sequential = run_in(&example(), "study training-70b.toml --format json --threads 1");
    let parallel = run_and_check_page("training-70b.toml");
    assert_eq!((sequential.code, sequential.stderr.as_str()), (0, ""));
    assert_eq!(sequential.stdout, parallel);
    let output: Value = serde_json::from_str(&sequential.stdout).unwrap();
    let results = output["results"].as_array().unwrap();
    assert_eq!((results.len(), output["ranking"].as_array().unwrap().len()), (3, 3));
    for result in results {
        let number = |key: &str| result[key].as_f64().unwrap_or_else(|| panic!("{key}: {result}"));
        let shares: f64 = result["step_s"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
        assert!((shares / number("step_time_s") - 1.0).abs() < 1e-9, "{result}");
        let tokens = number("tokens_per_s") * number("step_time_s");
        assert!((tokens / (64.0 * 4096.0) - 1.0).abs() < 1e-9);
        let cost = number("cost_per_hour") / (number("tokens_per_s") * 3600.0) * 1e6;
        assert!((cost / number("cost_per_million_tokens") - 1.0).abs() < 1e-9);
        assert!(number("exposed_comm_share") <= number("total_comm_share") + 1e-9);
        let hidden = 1.0 - number("exposed_comm_share") / number("total_comm_share");
        assert!((number("hidden_comm_share") - hidden).abs() < 1e-9);
        assert!(result["fits"].is_boolean() && result["bottleneck"].is_string() && number("memory_gb") > 0.0);
    }
}

/// Oversubscription above the leaves slows down expert-parallel exchanges between hosts, but not data-parallel rings.
#[test]
fn oversubscribed_networks_slow_down_expert_parallelism() {
    let output: Value = serde_json::from_str(&run_and_check_page("oversubscription.toml")).unwrap();
    let step_time = |candidate: &str, job: &str| {
        let results = output["results"].as_array().unwrap();
        let result = results.iter().find(|one| one["candidate"] == candidate && one["job"] == job);
        result.and_then(|one| one["step_time_s"].as_f64()).unwrap_or_else(|| panic!("{candidate} {job}: {output}"))
    };
    let [non_blocking, two_to_one, four_to_one] =
        ["1:1", "2:1", "4:1"].map(|candidate| step_time(candidate, "8 x 22B experts"));
    assert!(
        non_blocking * 1.05 < two_to_one && two_to_one * 1.15 < four_to_one,
        "{non_blocking} {two_to_one} {four_to_one}"
    );
    let [non_blocking, four_to_one] = ["1:1", "4:1"].map(|candidate| step_time(candidate, "70B"));
    assert!((1.0..1.05).contains(&(four_to_one / non_blocking)), "{non_blocking} {four_to_one}");
}

#[test]
fn inference_and_training_jobs_share_a_study() {
    let sequential = run_in(&example(), "study moe-inference.toml --format json --threads 1");
    let parallel = run_and_check_page("moe-inference.toml");
    assert_eq!((sequential.code, sequential.stderr.as_str()), (0, ""));
    assert_eq!(sequential.stdout, parallel);
    let output: Value = serde_json::from_str(&sequential.stdout).unwrap();
    assert_eq!(output["ranking"][0]["candidate"], "GB200 NVL72");
    let results = output["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    for result in results {
        let number = |key: &str| result[key].as_f64().unwrap_or_else(|| panic!("{key}: {result}"));
        assert_eq!(result["kind"], "inference");
        let shares: f64 = result["step_s"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
        assert!((shares / number("step_time_s") - 1.0).abs() < 1e-9, "{result}");
        // Concurrent requests = request rate × time per request (Little's law).
        let (requests, later_tokens) = if result["job"] == "chat" { (4608.0, 999.0) } else { (288.0, 499.0) };
        let latency = number("ttft_s") + later_tokens * number("tpot_s");
        // The rate does not count the wait for the end of a running step, which is at most one step.
        let wait = number("prefill_step_s") / (latency - number("prefill_step_s"));
        let law = number("samples_per_s") * latency / requests - 1.0;
        assert!(law > -1e-6 && law < wait + 1e-6, "{law} {wait} {result}");
        let cost = number("cost_per_hour") / (number("tokens_per_s") * 3600.0) * 1e6;
        assert!((cost / number("cost_per_million_tokens") - 1.0).abs() < 1e-9);
        assert!(result["memory"]["kv_cache_gb"].as_f64().unwrap() > 0.0 && number("requests_that_fit") >= requests);
    }
}

/// First line of the text, heading of the page and JSON state one decision, whether or not it is clear.
#[test]
fn text_page_and_json_state_the_same_decision() {
    let text = |prices: [&str; 2]| {
        let candidate = |number: usize| {
            format!(
                "[[candidate]]\nname = \"machine {number}\"\nfabric = \"hgx-h100\"\nprice_per_hour_usd = {}\n",
                prices[number]
            )
        };
        format!(
            "{}{}[[job]]\nname = \"j\"\nglobal_batch = 8\nparallel = {{ tp = 8 }}\n\
            model = {{ layers = 2, hidden = 1024, heads = 8, vocab = 512, seq = 512 }}\n",
            candidate(0),
            candidate(1)
        )
    };
    for (prices, outcome) in
        [(["10", "30"], "best"), (["{ low = 10, high = 12 }", "{ low = 10, high = 13 }"], "too_close_to_call")]
    {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("s.toml"), text(prices)).unwrap();
        assert_eq!(run_in(folder.path(), "study s.toml -o out").code, 0);
        let read = |name: &str| std::fs::read_to_string(folder.path().join("out").join(name)).unwrap();
        let (ranking, page) = (read("ranking.txt"), read("index.html"));
        let line = ranking.lines().next().unwrap();
        let json: Value = serde_json::from_str(&read("results.json")).unwrap();
        assert_eq!(
            (json["decisions"].as_array().unwrap().len(), &json["decisions"][0]["outcome"]),
            (1, &outcome.into())
        );
        let named = json["decisions"][0]["candidates"].as_array().unwrap();
        assert_eq!(named.len(), if outcome == "best" { 1 } else { 2 });
        for name in named {
            assert!(line.contains(name["candidate"].as_str().unwrap()), "{line}");
        }
        assert_eq!(line.starts_with("too close to call"), outcome == "too_close_to_call", "{line}");
        let (_, answer) = page.split_once("<div class=\"answer\">").unwrap();
        let (_, heading) = answer.split_once("<p>").unwrap();
        let heading = heading.split_once("</p>").unwrap().0.replace("&apos;", "'");
        assert_eq!(heading, format!("{line}."));
    }
}

#[test]
fn constraint_violations_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[[candidate]]\nname = \"one\"\nfabric = \"hgx-h100\"\ngpus = 4\n\
        [[job]]\nname = \"chat\"\nkind = \"inference\"\nprompt_tokens = 4000\noutput_tokens = 500\nconcurrency = 800\n\
        tpot_s = 0.001\nparallel = { tp = 4 }\n\
        model = { layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, gated = true, vocab = 32000 }\n";
    std::fs::write(folder.path().join("s.toml"), text).unwrap();
    let run = run_in(folder.path(), "study s.toml --format json");
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let output: Value = serde_json::from_str(&run.stdout).unwrap();
    let (result, ranking) = (&output["results"][0], &output["ranking"][0]);
    assert_eq!((&result["fits"], &ranking["meets_constraints"]), (&Value::Bool(false), &Value::Bool(false)));
    // Requests that do not fit in memory wait.
    let running = result["concurrent_requests"].as_u64().unwrap();
    assert!(running < 800 && result["requests_that_fit"].as_u64() == Some(running), "{result}");
    assert_eq!(result["memory_excess_gb"], Value::Null);
    assert!(result["slo_violations"][0].as_str().unwrap().starts_with("tpot_s 0."), "{result}");
    let violations: Vec<&str> = ranking["violations"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(violations[0].starts_with("chat: tpot_s "), "{violations:?}");
    let notes: Vec<&str> = result["notes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(
        notes.iter().any(|note| note.starts_with(&format!("{running} of 800 concurrent requests run"))),
        "{notes:?}"
    );
    // A key of training jobs is rejected in an inference job.
    std::fs::write(folder.path().join("s.toml"), format!("{text}micro_batch = 1\n")).unwrap();
    refused(folder.path(), "study s.toml", "s.toml:14:15: micro_batch: only valid for jobs of kind training");
}

/// The number of concurrent requests of a batch is limited by memory, no part of the fabric exceeds its capacity, and
/// requests of a batch have no TTFT.
#[test]
fn batches_are_limited_by_memory() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[[candidate]]\nname = \"one\"\nfabric = \"hgx-h100\"\n\
        [[job]]\nname = \"all of them\"\nkind = \"inference\"\nprompt_tokens = 4000\noutput_tokens = 500\nrequests = 100000\n\
        max_num_seqs = 10000\nprecision = \"fp8\"\nparallel = { tp = 8 }\n\
        model = { layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, gated = true, vocab = 32000 }\n\
        [[measured]]\ncandidate = \"one\"\njob = \"all of them\"\ntokens_per_s = 3803\n";
    std::fs::write(folder.path().join("s.toml"), text).unwrap();
    let run = run_in(folder.path(), "study s.toml --format json");
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let output: Value = serde_json::from_str(&run.stdout).unwrap();
    let result = &output["results"][0];
    assert_eq!((&result["fits"], &result["ttft_s"]), (&Value::Bool(true), &Value::Null));
    let in_flight = result["concurrent_requests"].as_u64().unwrap();
    assert!((100..10_000).contains(&in_flight) && result["requests_that_fit"] == in_flight, "{result}");
    let max_loads: Vec<f64> =
        result["load"].as_array().unwrap().iter().filter_map(|class| class["max"].as_f64()).collect();
    assert!(!max_loads.is_empty() && max_loads.iter().all(|load| (0.0..1.0).contains(load)), "{max_loads:?}");
    assert_eq!(output["format"], "fabricast-study/8");
    // The measured value is shown as written, with the relative error of the time.
    let measured = &output["measured"][0];
    let throughput = result["tokens_per_s"].as_f64().unwrap();
    assert_eq!((measured["measured"].as_f64(), measured["predicted"].as_f64()), (Some(3803.0), Some(throughput)));
    assert_eq!(run_in(folder.path(), "study s.toml -o out").code, 0);
    let text = std::fs::read_to_string(folder.path().join("out/ranking.txt")).unwrap();
    assert!(text.contains("concurrent requests") && text.contains(&in_flight.to_string()), "{text}");
    // Measured tokens per second above the predicted ones mean that the predicted time is too long.
    let error = text.lines().find(|line| line.contains("tokens_per_s")).unwrap().split_whitespace().last().unwrap();
    assert!(throughput < 3803.0 && error.starts_with('+'), "{text}");
    let page = std::fs::read_to_string(folder.path().join("out/index.html")).unwrap();
    assert!(page.contains("500 output tokens, all queued at the start") && page.contains("error of the time"));
}

#[test]
fn output_folders_equal_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let study = example().join("training-70b.toml").display().to_string();
    let printed = run_in(folder.path(), &format!("study {study} --format json"));
    let run = run_in(folder.path(), &format!("study {study} -o out"));
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (0, "", ""));
    let read = |name: &str| std::fs::read_to_string(folder.path().join("out").join(name)).unwrap();
    assert_eq!(read("results.json"), printed.stdout);
    assert!(read("ranking.txt").contains("4 x HGX H200"));
    assert!(read("ranking.csv").starts_with("rank,candidate,job,ranks,"));
    assert!(read("index.html").contains("4 x HGX H200"));

    // The CSV has the same values as the JSON, and the same columns for any study.
    let output: Value = serde_json::from_str(&printed.stdout).unwrap();
    let csv = read("ranking.csv");
    let mut csv = csv::Reader::from_reader(csv.as_bytes());
    let header = csv.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = csv.records().map(Result::unwrap).collect();
    let results = output["results"].as_array().unwrap();
    assert_eq!(rows.len(), results.len());
    for (row, result) in rows.iter().zip(results) {
        let ranking = output["ranking"].as_array().unwrap().iter().find(|one| one["candidate"] == result["candidate"]);
        let cell = |key: &str| &row[header.iter().position(|one| one == key).unwrap_or_else(|| panic!("no {key}"))];
        let ranking_fields = ["rank", "score", "probability_best"].map(|key| (key, &ranking.unwrap()[key]));
        let result_fields = [
            "step_time_s",
            "samples_per_s",
            "tokens_per_s",
            "cost_per_hour",
            "cost_per_step",
            "cost_per_million_tokens",
            "time_to_train_h",
            "cost_to_train",
        ];
        let result_fields = result_fields.map(|key| (key, &result[key]));
        for (key, value) in ranking_fields.into_iter().chain(result_fields) {
            assert_eq!(cell(key).parse::<f64>().ok(), Some(value.as_f64().unwrap()), "{key} of {row:?}");
        }
        for key in ["ttft_s", "tpot_s", "kwh_per_million_tokens"] {
            assert_eq!((cell(key), result.get(key).and_then(Value::as_f64)), ("", None), "{key}");
        }
    }
}

/// The text output contains the time of the whole training run, and a bar for each share of a step of the best
/// candidate.
#[test]
fn text_shows_training_time_and_the_shares_of_a_step() {
    let text = run_in(&example(), "study training-70b.toml").stdout;
    let output: Value =
        serde_json::from_str(&run_in(&example(), "study training-70b.toml --format json").stdout).unwrap();
    for column in ["samples/s", "USD/step", "hours to train", "USD to train"] {
        assert!(text.contains(column), "{column}: {text}");
    }
    let first = &output["ranking"][0]["candidate"];
    let result = output["results"].as_array().unwrap().iter().find(|one| one["candidate"] == *first).unwrap();
    let heading = format!("breakdown of a step: 70B on {}", first.as_str().unwrap());
    let bars: Vec<&str> =
        text.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.is_empty()).collect();
    let shares = result["step_s"].as_object().unwrap();
    assert_eq!(bars.len(), shares.values().filter(|share| share.as_f64() > Some(0.0)).count(), "{text}");
    let mut percents = 0;
    for bar in bars {
        let words: Vec<&str> = bar.split_whitespace().collect();
        let [name, .., percent, "%", seconds, "s"] = words.as_slice() else { panic!("{bar}") };
        let percent: f64 = percent.parse().unwrap();
        let share = shares[&name.replace('-', "_")].as_f64().unwrap();
        assert!((percent / 100.0 - share / result["step_time_s"].as_f64().unwrap()).abs() < 0.01, "{bar}");
        assert!((seconds.parse::<f64>().unwrap() / share - 1.0).abs() < 5e-3, "{bar}");
        assert!(bar.chars().count() <= 100, "{bar}");
        percents += percent as u32;
    }
    assert_eq!(percents, 100, "{text}");
}

#[test]
fn templates_are_valid_studies() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run_in(folder.path(), "study --template -o new").code, 0);
    let run = run_in(&folder.path().join("new"), "study study.toml --format csv");
    assert_eq!((run.code, run.stdout.lines().count()), (0, 10));
}

#[test]
fn faults_are_shown_with_their_location() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(example().join("training-70b.toml")).unwrap();
    for (old, new, expected) in [
        ("fabric = \"hgx-h200\"", "fabric = \"hgx-h20\"", "s.toml:8:10: unknown fabric `hgx-h20`"),
        (
            "parallel = \"auto\"",
            "parallel = { tp = 8, pp = 8 }",
            "s.toml:36:12: tp 8 × pp 8 × dp 1 is 64, and there are 32",
        ),
        ("precision = \"bf16\"", "precision = \"bf17\"", "s.toml:32:13: unknown variant"),
        ("zero = 1", "zero = 1\nseed = 3", "s.toml:36:1: unknown field `seed`"),
        ("nodes = 4", "nodes = 0", "s.toml:9:9: nodes: a candidate has 1 host or more, not 0"),
        ("nodes = 4", "nodes = 4\ngpus = 9", "s.toml:10:8: "),
    ] {
        std::fs::write(folder.path().join("s.toml"), text.replacen(old, new, 1)).unwrap();
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

/// Study of two machines and two jobs that simulate quickly, each with full and with half the link rate.
const SMALL: &str = "[[candidate]]
name = \"two\"
fabric = \"hgx-h100\"
nodes = 2
gpus = 2
price_usd = { low = 90000, high = 110000 }

[[candidate]]
name = \"one\"
fabric = \"hgx-h100\"
gpus = 4
price_usd = { low = 80000, high = 130000 }

[[job]]
name = \"j\"
global_batch = 8
parallel = { tp = 2 }
model = { layers = 2, hidden = 2048, heads = 8, vocab = 512, seq = 512 }

[[job]]
name = \"k\"
global_batch = 8
parallel = { tp = 1 }
model = { layers = 2, hidden = 2048, heads = 8, vocab = 512, seq = 512 }

[sensitivity]
link_rate = [0.5]
";

#[test]
fn interrupted_studies_resume_and_damaged_files_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("s.toml"), SMALL).unwrap();
    let run = || run_in(folder.path(), "study s.toml --format json -o out");
    assert_eq!((run().code, run().stderr), (0, String::new()));
    let path = |name: &str| folder.path().join("out").join(name);
    let read = |name: &str| std::fs::read(path(name)).unwrap();
    let (results, runs) = (read("results.json"), read("runs.jsonl"));
    // Runs are cached for two jobs on two machines, and for the machine with two hosts also with a slower network.
    assert_eq!(runs.iter().filter(|&&byte| byte == b'\n').count(), 6);
    let step = runs.len() / 7;
    for length in (0..runs.len()).step_by(step) {
        std::fs::remove_file(path("results.json")).unwrap();
        std::fs::write(path("runs.jsonl"), &runs[..length]).unwrap();
        let resumed = run();
        let is_torn = length > 0 && runs[length - 1] != b'\n' && runs[length] != b'\n';
        assert_eq!(
            (resumed.code, resumed.stderr.contains("is truncated")),
            (0, is_torn),
            "{length}: {}",
            resumed.stderr
        );
        assert_eq!((read("results.json"), read("runs.jsonl")), (results.clone(), runs.clone()), "{length}");
    }
    // A study with other prices reuses the cached runs; one with other jobs adds its own.
    std::fs::write(folder.path().join("s.toml"), SMALL.replace("90000", "9000")).unwrap();
    assert_eq!(run().code, 0);
    assert!(read("runs.jsonl") == runs && read("results.json") != results);
    std::fs::write(folder.path().join("s.toml"), SMALL.replace("seq = 512", "seq = 256")).unwrap();
    assert_eq!(run().code, 0);
    assert!(read("runs.jsonl").len() > runs.len() && read("runs.jsonl").ends_with(&runs));
    std::fs::write(folder.path().join("s.toml"), SMALL).unwrap();

    let damaged = String::from_utf8(runs.clone()).unwrap().replacen("\"ranks\":4", "\"ranks\":8", 1);
    let foreign = [&b"{\"a\":1}\n"[..], &runs].concat();
    let halved = [&runs[..runs.len() / 2 - 100], b"\n", &runs].concat();
    for (bytes, expected) in [
        (damaged.into_bytes(), "runs.jsonl:1: damaged: its checksum does not match"),
        (foreign, "runs.jsonl:1: not a run of a study"),
        (halved, "not a run of a study"),
    ] {
        std::fs::write(path("runs.jsonl"), &bytes).unwrap();
        refused(folder.path(), "study s.toml -o out", expected);
        assert_eq!(read("runs.jsonl"), bytes);
    }
}

/// If a failure leaves a number of ranks over which no candidate can divide the job, the text and the page report it.
#[test]
fn failures_that_no_candidate_survives_give_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let study = SMALL.replace("link_rate = [0.5]", "fail = [[\"n0\"]]").replace("tp = 2", "tp = 2, dp = 2");
    let second_candidate = study.find("[[candidate]]\nname = \"one\"").unwrap();
    let study = format!("{}{}", &study[..second_candidate], &study[study.find("[[job]]").unwrap()..]);
    std::fs::write(folder.path().join("s.toml"), study).unwrap();
    assert_eq!(run_in(folder.path(), "study s.toml -o out").code, 0);
    for name in ["ranking.txt", "index.html"] {
        let text = std::fs::read_to_string(folder.path().join("out").join(name)).unwrap();
        assert!(text.contains("two: j: tp 2 × pp 1 × dp 2 is 4, and there are 2 ranks"), "{text}");
        assert!(!text.contains("none fits"), "{text}");
    }
}

#[test]
fn merged_shards_equal_the_whole_study() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("s.toml"), SMALL).unwrap();
    let run = |arguments: &str| {
        let run = run_in(folder.path(), arguments);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{arguments}");
        run.stdout
    };
    run("study s.toml --format csv -o whole");
    for part in 1..=3 {
        assert_eq!(run(&format!("study s.toml --shard {part}/3 -o p{part}")), "");
        assert!(!folder.path().join(format!("p{part}/results.json")).exists());
    }
    run("study s.toml --format csv -o merged --merge p3 p1 p2");
    for name in ["results.json", "runs.jsonl", "ranking.csv"] {
        let read = |output: &str| std::fs::read_to_string(folder.path().join(output).join(name)).unwrap();
        assert_eq!(read("merged"), read("whole"), "{name}");
    }
    let printed = run("study s.toml --format json --merge p1 p2 p3");
    assert_eq!(printed, std::fs::read_to_string(folder.path().join("whole/results.json")).unwrap());

    let path = folder.path();
    refused(
        path,
        "study s.toml --merge p1 p3",
        "2 of 6 runs are missing, the first of them job `k` on `two`; no folder of shard 2/3",
    );
    refused(path, "study s.toml --merge p1 p2 p3 p1", "shard 1/3 is given twice: p1 and p1");
    refused(path, "study s.toml --merge p1 whole", "shard.json");
    run("study s.toml --shard 1/2 -o half");
    refused(path, "study s.toml --merge p1 half", "half is shard 1/2 and p1 is shard 1/3");
    std::fs::write(path.join("t.toml"), SMALL.replace("seq = 512", "seq = 256")).unwrap();
    refused(path, "study t.toml --merge p1 p2 p3", "a part of another study");
    let runs = std::fs::read_to_string(path.join("p2/runs.jsonl")).unwrap();
    std::fs::write(path.join("p2/runs.jsonl"), &runs[..runs.len() - 40]).unwrap();
    let truncated = run_in(path, "study s.toml --merge p1 p2 p3");
    assert!(
        truncated.code == 2 && truncated.stderr.contains("runs.jsonl:2: the line is truncated"),
        "{}",
        truncated.stderr
    );
    assert!(truncated.stderr.contains("1 of 6 runs are missing"), "{}", truncated.stderr);
    refused(path, "study s.toml --shard 1/2", "expected a folder");
    refused(path, "study s.toml --shard 3/2 -o x", "expected I/N");
}

#[test]
fn impossible_constraints_and_lists_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("s.toml", &format!("{SMALL}[constraints]\nbudget_usd = 50000\n"));
    refused(
        folder.path(),
        "study s.toml -o out",
        "s.toml:28:1: no candidate meets the constraints; `two` is closest: budget 100000 of 50000",
    );
    write("s.toml", &format!("{SMALL}[constraints]\npower_kw = 0.001\n"));
    refused(folder.path(), "study s.toml -o out", "s.toml:1:1: `two` states no power_kw, which the constraints limit");
    let with_power = SMALL.replace("nodes = 2\n", "nodes = 2\npower_kw = 40\n");
    write("s.toml", &format!("{with_power}[constraints]\npower_kw = 0.001\n"));
    refused(folder.path(), "study s.toml -o out", "`two` is closest: power kW 40 of 0.001");
    let list = "[[price]]\nitem = \"box\"\nlow = 1\nhigh = 2\ncurrency = \"EUR\"\nunit = \"node\"\ndate = \"2026\"\nsource = \"offer\"\n";
    let with_list = format!(
        "prices = \"mine.toml\"\n{}",
        SMALL.replace("price_usd = { low = 90000, high = 110000 }", "price = \"box\"")
    );
    write("s.toml", &with_list);
    refused(folder.path(), "study s.toml", "s.toml:1:10: prices: ");
    write("mine.toml", list);
    refused(folder.path(), "study s.toml", "s.toml:7:9: price: `box` is in EUR, and the study in USD");
    write("mine.toml", &list.replace("high = 2", "high = 0.5"));
    refused(folder.path(), "study s.toml", "mine.toml:1:1: `box`: expected low ≤ high");
    write("mine.toml", &list.replace("EUR", "USD"));
    assert_eq!(run_in(folder.path(), "study s.toml").code, 0);
    write("s.toml", "candidate = []\n");
    refused(folder.path(), "study s.toml", "s.toml: no candidate");
    assert!(!folder.path().join("out").exists());
}

/// GPUs of a rank placement that a candidate does not have are rejected with their source location and advice before
/// anything runs; a valid placement is reported.
#[test]
fn ranks_are_placed_as_the_job_specifies() {
    let folder = tempfile::tempdir().unwrap();
    let study = |placement: &str| {
        let text = format!(
            "[[candidate]]\nname = \"one\"\nfabric = \"hgx-h100\"\nnodes = 2\n[[job]]\nname = \"j\"\nglobal_batch = 16\n\
             placement = {placement}\nparallel = \"auto\"\n\
             model = {{ layers = 2, hidden = 1024, heads = 8, vocab = 512, seq = 128 }}\n"
        );
        std::fs::write(folder.path().join("s.toml"), text).unwrap();
    };
    for (placement, expected) in [
        ("\"0-7,16-23\"", "s.toml:8:13: placement: GPU 23 of rank 15: the candidate has 16 GPUs, 0 to 15"),
        ("[0, 1, 2, 99]", "s.toml:8:23: placement: GPU 99 of rank 3"),
        ("[0, 1, 0]", "s.toml:8:20: placement: GPU 0 is assigned to rank 0 and rank 2"),
        ("\"round\"", "s.toml:8:13: placement: `round` is not known"),
    ] {
        study(placement);
        refused(folder.path(), "study s.toml -o out", expected);
    }
    study("\"0-31\"");
    refused(folder.path(), "study s.toml", "name GPUs that the candidate has, or use \"cyclic\" or \"block\"");
    // GPUs without a rank are idle.
    study("\"0-7\"");
    let partial = run_in(folder.path(), "study s.toml --format json");
    assert_eq!(serde_json::from_str::<Value>(&partial.stdout).unwrap()["results"][0]["ranks"], 8, "{partial:?}");
    study("\"0-15:8,1-15:8,2-15:8,3-15:8,4-15:8,5-15:8,6-15:8,7-15:8\"");
    let listed = run_in(folder.path(), "study s.toml --format json");
    study("\"cyclic\"");
    let cyclic = run_in(folder.path(), "study s.toml --format json");
    assert_eq!((listed.code, cyclic.code), (0, 0), "{listed:?} {cyclic:?}");
    let [listed, cyclic] = [listed, cyclic].map(|run| serde_json::from_str::<Value>(&run.stdout).unwrap());
    assert_eq!(listed["results"], cyclic["results"]);
    assert_eq!(
        (&listed["jobs"][0]["placement"], &cyclic["jobs"][0]["placement"]),
        (&Value::from("0,8,1,9,2,10,3,11,4,12,5,13,6,14,7,15"), &Value::from("cyclic"))
    );
}
