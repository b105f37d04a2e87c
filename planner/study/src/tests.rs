//! End-to-end tests of studies: ranking, sensitivity, and journal of runs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use fabricast_topologies::{Fabric, FabricRequest, load};
use rustc_hash::FxHashMap;

use super::answer::{Answer, ResultRow, build_answer};
use super::cases::Cases;
use super::key::Key;
use super::*;

mod accuracy;
mod assumptions;
mod costs;
mod documentation;
mod job_assignment;
mod memory;
mod published;
mod sharded;
mod violations;

/// Study of which all runs have been executed.
pub(crate) struct CompletedStudy {
    pub study: Study,
    pub fabrics: Vec<Fabric>,
    pub cases: Cases,
    /// Runs in the order in which they ended.
    pub runs: Vec<Run>,
}

impl CompletedStudy {
    pub(crate) fn new(text: &str) -> Self {
        Self::with_traces(text, &|name| Err(format!("no {name}")))
    }

    pub(crate) fn with_traces(text: &str, traces: Traces<'_>) -> Self {
        let study = read_study_with(text, "folder/s.toml", &|name| Err(format!("no {name}")), traces).unwrap();
        let fabrics: Vec<_> = study.candidates.iter().map(|candidate| load(&candidate.fabric).unwrap()).collect();
        check(&study, &fabrics).unwrap();
        let cases = Cases::new(&study, &fabrics, &load_fabric).unwrap();
        let finished = Mutex::new(Vec::new());
        let record_run = |run: &Run| finished.lock().unwrap().push(run.clone());
        let (done, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let watch = Watch { ended: &record_run, done: &done, stop: &stop };
        let runs = run(&study, &fabrics, &cases, &cases.runs, &load_fabric, &watch).unwrap();
        let keys: Vec<Key> = cases.runs.iter().map(|case| case.key).collect();
        assert_eq!(runs.iter().map(|run| run.key).collect::<Vec<_>>(), keys);
        let runs = finished.into_inner().unwrap();
        assert_eq!((runs.len(), done.into_inner()), (keys.len(), keys.len()));
        Self { study, fabrics, cases, runs }
    }

    pub(crate) fn answer_from_runs(&self, runs: &[Run]) -> Option<Answer> {
        let outcomes: FxHashMap<_, _> = runs.iter().map(|run| (run.key, run.outcome.clone())).collect();
        build_answer(&self.study, &self.fabrics, &self.cases, &outcomes)
    }

    pub(crate) fn answer(&self) -> Answer {
        self.answer_from_runs(&self.runs).unwrap()
    }
}

fn load_fabric(request: &FabricRequest) -> fabricast_topologies::Result<Fabric> {
    load(request)
}

const MACHINES: &str = "[[candidate]]\nname = \"dear\"\nfabric = \"hgx-h100\"\nprice_usd = { low = 500000, high = 900000 }\npower_kw = 10\n\
    [[candidate]]\nname = \"cheap\"\nfabric = \"hgx-h100\"\nprice_usd = 300000\npower_kw = 10\n\
    [[candidate]]\nname = \"small\"\nfabric = \"hgx-h100\"\ngpus = 1\nprice_usd = 40000\npower_kw = 2\n";
const JOB: &str = "[[job]]\nname = \"j\"\nglobal_batch = 32\nparallel = \"auto\"\nrecompute = \"full\"\ntrain_tokens = 1e9\n\
    model = { layers = 32, hidden = 4096, heads = 32, vocab = 51200, seq = 2048 }\n";
/// Study of two candidates (two hosts of two GPUs each; one host of four) with a job that is cheap to simulate.
const PAIR: &str = "[[candidate]]\nname = \"two\"\nfabric = \"hgx-h100\"\nnodes = 2\ngpus = 2\nprice_usd = { low = 90000, high = 110000 }\npower_kw = 4\n\
    [[candidate]]\nname = \"one\"\nfabric = \"hgx-h100\"\ngpus = 4\nprice_usd = { low = 80000, high = 130000 }\npower_kw = 4\n\
    [[job]]\nname = \"j\"\nglobal_batch = 8\nparallel = { tp = 2 }\nmodel = { layers = 2, hidden = 2048, heads = 8, vocab = 512, seq = 512 }\n\
    [[job]]\nname = \"k\"\nglobal_batch = 8\nparallel = { tp = 1 }\nmodel = { layers = 2, hidden = 2048, heads = 8, vocab = 512, seq = 512 }\n";

#[test]
fn cheapest_fitting_candidate_ranks_first() {
    let ranking = |extra: &str| {
        let completed = CompletedStudy::new(&format!("{MACHINES}{JOB}{extra}"));
        // The two machines with eight GPUs differ only in price and share a run.
        assert_eq!(completed.cases.runs.len(), 2);
        let answer = completed.answer();
        for row in &answer.results {
            assert!((row.tokens_per_s.unwrap() * row.step_time_s - 65_536.0).abs() < 1e-3);
            assert!((row.time_to_train_h.unwrap() * 3600.0 * row.tokens_per_s.unwrap() / 1e9 - 1.0).abs() < 1e-9);
            let (cost, hour) = (row.cost_per_million_tokens_high.unwrap(), row.cost_per_hour_high.unwrap());
            assert!((cost * row.tokens_per_s.unwrap() * 3600.0 / 1e6 / hour - 1.0).abs() < 1e-9);
            assert_eq!(row.efficiency_node, Some(1.0));
        }
        let probability: f64 = answer.ranking.iter().map(|row| row.probability_best.unwrap()).sum();
        let is_valid = answer.ranking.iter().any(|row| row.meets_constraints);
        assert!((probability - f64::from(u8::from(is_valid))).abs() < 1e-9);
        answer.ranking.into_iter().map(|row| (row.candidate, row.meets_constraints)).collect::<Vec<_>>()
    };
    let expected = |rows: [(&str, bool); 3]| rows.map(|(name, fits)| (name.to_owned(), fits)).to_vec();
    // One GPU lacks memory, regardless of its cost.
    assert_eq!(ranking(""), expected([("cheap", true), ("dear", true), ("small", false)]));
    assert!(ranking("[constraints]\nbudget_usd = 200000\n").iter().all(|(_, is_valid)| !is_valid));
}

#[test]
fn nearest_candidate_is_named_if_none_meets_constraints() {
    let nearest = |constraints: &str| {
        let study = read_study(&format!("{MACHINES}{JOB}[constraints]\n{constraints}"), "s").unwrap();
        nearest_candidate(&study, &[8, 8, 1].map(|gpus| MachineSize { gpus, hosts: 1 }))
            .map(|number| study.candidates[number].name.clone())
    };
    assert_eq!(nearest("budget_usd = 50000"), None);
    assert_eq!(nearest("budget_usd = 30000").as_deref(), Some("small"));
    // Each limit is met by one candidate, both by none: 300,000 of 39,000 is a larger violation than 2 kW of 1.
    assert_eq!(nearest("budget_usd = 39000\npower_kw = 1").as_deref(), Some("small"));
    assert_eq!(nearest("racks = 1").as_deref(), Some("dear"));
}

#[test]
fn price_settings_need_no_runs_and_scale_scores() {
    let plain = CompletedStudy::new(PAIR);
    let completed = CompletedStudy::new(&format!(
        "{PAIR}[sensitivity]\ngpu_price = [0.5, 1]\nusd_per_kwh = [100]\nutilization = [0.4]\n"
    ));
    assert_eq!(completed.cases.runs, plain.cases.runs);
    let answer = completed.answer();
    let names: Vec<_> = answer.sensitivities.iter().map(|row| format!("{} {}", row.name, row.setting)).collect();
    assert_eq!(names, ["gpu_price 0.5", "gpu_price 1", "utilization 0.4", "usd_per_kwh 100"]);
    let score = |index: usize, name: &str| {
        answer.sensitivities[index].ranking.iter().find(|ranked| ranked.candidate == name).unwrap().score.unwrap()
    };
    for ranked in &answer.ranking {
        assert!((score(1, &ranked.candidate) / ranked.score.unwrap() - 1.0).abs() < 1e-12);
        let hour = answer.results.iter().find(|row| row.candidate == ranked.candidate).unwrap().cost_per_hour.unwrap();
        // Half the price is half of everything except energy: 4 kW at 0.1.
        let expected = (0.5 * (hour - 0.4) + 0.4) / hour;
        assert!((score(0, &ranked.candidate) / ranked.score.unwrap() - expected).abs() < 1e-9);
        assert!((score(2, &ranked.candidate) / ranked.score.unwrap() - (2.0 * (hour - 0.4) + 0.4) / hour).abs() < 1e-9);
    }
    assert_eq!(plain.answer().results, answer.results);
}

#[test]
fn settings_affect_only_applicable_candidates() {
    let completed = CompletedStudy::new(&format!(
        "{PAIR}[sensitivity]\nlink_rate = [0.5, 1, 2]\nnvlink_rate = [0.5]\noversubscription = [1, 4]\nnics_per_node = [1]\nfail = [[\"n1/nic0\"], [\"n1\"], [\"gpu3\"]]\n"
    ));
    let answer = completed.answer();
    let row = |name: &str, setting: &str| {
        answer.sensitivities.iter().find(|row| row.name == name && row.setting == setting).unwrap()
    };
    let score = |name: &str, setting: &str, candidate: &str| {
        row(name, setting).ranking.iter().find(|ranked| ranked.candidate == candidate).unwrap().score
    };
    let base_score = |candidate: &str| {
        answer.ranking.iter().find(|ranked| ranked.candidate == candidate).and_then(|ranked| ranked.score)
    };
    // A slower network makes the pair more expensive, a faster one cheaper; the single host has none.
    assert!(score("link_rate", "0.5", "two") > base_score("two") && score("link_rate", "2", "two") < base_score("two"));
    assert_eq!(score("link_rate", "1", "two"), base_score("two"));
    assert!(score("nvlink_rate", "0.5", "two") > base_score("two"));
    for (name, setting) in [("link_rate", "0.5"), ("oversubscription", "4"), ("nics_per_node", "1")] {
        assert_eq!(score(name, setting, "one"), base_score("one"));
        assert_eq!(row(name, setting).unchanged, ["one: no network between its hosts"]);
    }
    assert!(score("oversubscription", "4", "two") >= score("oversubscription", "1", "two"));
    // A failed host leaves two GPUs, but four are paid for; the job adapts its data parallelism.
    assert!(score("fail", "n1", "two") > base_score("two"));
    assert_eq!(row("fail", "n1").unchanged.len(), 1);
    // Three GPUs cannot be divided by tp 2: reported, and ranked last.
    let last = row("fail", "gpu3").ranking.last().unwrap();
    assert!(last.candidate == "one" && last.score.is_none() && !last.meets_constraints, "{last:?}");
    assert!(last.violations[0].contains("tp 2"), "{last:?}");
    let text = format!("{PAIR}[sensitivity]\nfail = [[\"gpu99\"]]\n");
    let study = read_study(&text, "s.toml").unwrap();
    let fabrics: Vec<_> = study.candidates.iter().map(|candidate| load(&candidate.fabric).unwrap()).collect();
    let error = Cases::new(&study, &fabrics, &load_fabric).unwrap_err().to_string();
    assert!(error.starts_with("s.toml:25:9: fail: no candidate has all of `gpu99`"), "{error}");
}

/// A pair of candidate and job that cannot run is reported as failed, and the others continue: three GPUs with cyclic
/// placement divide no heads, layers or batch, and the search leaves none idle. If no pair is left, it is an error.
#[test]
fn failed_pair_does_not_stop_a_study() {
    let machine = |name: &str, gpus: u32| {
        format!("[[candidate]]\nname = \"{name}\"\nfabric = \"hgx-h100\"\ngpus = {gpus}\nprice_usd = 1000\n")
    };
    let job = JOB.replace("layers = 32, hidden = 4096, heads = 32", "layers = 2, hidden = 2048, heads = 8");
    let job = format!("{job}placement = \"cyclic\"\n");
    let completed = CompletedStudy::new(&format!("{}{}{job}", machine("three", 3), machine("four", 4)));
    let answer = completed.answer();
    let rows: Vec<_> = answer.results.iter().map(|row| row.candidate.as_str()).collect();
    assert_eq!(
        (rows, answer.ranking[0].candidate.as_str(), answer.ranking[0].meets_constraints),
        (vec!["four"], "four", true)
    );
    let three = &answer.ranking[1];
    assert!(!three.meets_constraints && three.score.is_none() && three.probability_best == Some(0.0), "{three:?}");
    assert_eq!(
        three.violations,
        ["j: no parallel layout of the job over 3 ranks: its heads, layers or batch do not divide"]
    );
    let outcomes =
        |completed: &CompletedStudy| completed.runs.iter().map(|run| (run.key, run.outcome.clone())).collect();
    assert!(check_outcomes(&completed.study, &completed.cases, &outcomes(&completed)).is_ok());
    let failing = CompletedStudy::new(&format!("{}{job}", machine("three", 3)));
    let error = check_outcomes(&failing.study, &failing.cases, &outcomes(&failing)).unwrap_err().to_string();
    assert!(
        error.starts_with("folder/s.toml:9:12: no candidate can run a job; on `three` j: no parallel layout"),
        "{error}"
    );
}

/// A candidate without units for a precision is ranked behind the others; if all lack them, it is an error before
/// anything runs.
#[test]
fn unsupported_precision_does_not_stop_a_study() {
    let machine =
        |fabric: &str| format!("[[candidate]]\nname = \"{fabric}\"\nfabric = \"{fabric}\"\ngpus = 2\nprice_usd = 1\n");
    let job = format!("{}precision = \"fp8\"\n", JOB.replace("layers = 32", "layers = 2"));
    let completed = CompletedStudy::new(&format!("{}{}{job}", machine("dgx-a100"), machine("hgx-h100")));
    let last = completed.answer().ranking.remove(1);
    assert_eq!(
        (last.candidate.as_str(), last.violations.concat().contains("no units for 8-bit floating point")),
        ("dgx-a100", true)
    );
    // bf16 is the default, and V100 supports only fp16.
    let bf16 = job.replace("precision = \"fp8\"", "");
    let study = read_study(&format!("{}{bf16}", machine("dgx-v100")), "s.toml").unwrap();
    let error = check(&study, &[load(&study.candidates[0].fabric).unwrap()]).unwrap_err().to_string();
    assert!(error.starts_with("s.toml:6:1: ") && error.contains("bf16: expected precision = \"fp16\""), "{error}");
    let fp16 = job.replace("fp8", "fp16");
    let study = read_study(&format!("{}{fp16}", machine("dgx-v100")), "s.toml").unwrap();
    assert!(check(&study, &[load(&study.candidates[0].fabric).unwrap()]).is_ok());
    let study = read_study(&format!("{}{job}", machine("dgx-a100")), "s.toml").unwrap();
    let error = check(&study, &[load(&study.candidates[0].fabric).unwrap()]).unwrap_err().to_string();
    assert!(error.starts_with("s.toml:13:13: ") && error.contains("no units for 8-bit"), "{error}");
}

/// If no candidate has a route to offloaded data, the error is at the job's key for the memory tier.
#[test]
fn unreachable_tier_is_an_error_with_location() {
    let machine =
        |gpus: u32| format!("[[candidate]]\nname = \"{gpus}\"\nfabric = \"hgx-h100\"\ngpus = {gpus}\nprice_usd = 1\n");
    let check_text = |study: &str| {
        let study = read_study(study, "s.toml").unwrap();
        let fabrics: Vec<_> = study.candidates.iter().map(|candidate| load(&candidate.fabric).unwrap()).collect();
        check(&study, &fabrics).map_err(|error| error.to_string())
    };
    let job = format!("{}optimizer_tier = \"peer\"\n", JOB.replace("layers = 32", "layers = 2"));
    let study = format!("{}{job}", machine(1));
    let line = 1 + study.lines().position(|line| line.starts_with("optimizer_tier")).unwrap();
    let error = check_text(&study).unwrap_err();
    assert!(error.starts_with(&format!("s.toml:{line}:18: ")) && error.contains("gpu0 has no peer"), "{error}");
    assert_eq!(check_text(&format!("{}{}{job}", machine(1), machine(2))), Ok(()));
}

#[test]
fn truncated_journal_resumes_to_the_same_answer() {
    let completed = CompletedStudy::new(PAIR);
    let text: String = completed.runs.iter().map(|run| journal::line(run).unwrap()).collect();
    let expected = serde_json::to_string(&completed.answer()).unwrap();
    let mut last_count = None;
    for cut in 0..=text.len() {
        let restored = journal::read(&text.as_bytes()[..cut], "runs.jsonl").unwrap();
        let complete = text[..cut].matches('\n').count();
        // A line that lacks only its line break counts.
        let ends_at_newline = text.as_bytes().get(cut) == Some(&b'\n');
        assert_eq!(restored.runs.len(), complete + usize::from(ends_at_newline), "{cut}");
        assert_eq!(
            restored.incomplete_line.is_some(),
            !ends_at_newline && cut > 0 && !text[..cut].ends_with('\n'),
            "{cut}"
        );
        assert!(restored.runs == completed.runs[..restored.runs.len()] && restored.complete_bytes <= cut);
        // The same number of runs yields the same answer.
        if last_count.replace(restored.runs.len()) == Some(restored.runs.len()) {
            continue;
        }
        assert_eq!(completed.answer_from_runs(&restored.runs).is_some(), restored.runs.len() == completed.runs.len());
        let missing =
            completed.runs.iter().filter(|run| restored.runs.iter().all(|other| other.key != run.key)).cloned();
        let runs: Vec<Run> = restored.runs.iter().cloned().chain(missing).collect();
        assert_eq!(runs.len(), completed.runs.len());
        assert_eq!(serde_json::to_string(&completed.answer_from_runs(&runs).unwrap()).unwrap(), expected);
    }
}

#[test]
fn invalid_journal_lines_are_errors_with_line_number() {
    let completed = CompletedStudy::new(PAIR);
    let lines: Vec<String> = completed.runs.iter().map(|run| journal::line(run).unwrap()).collect();
    let insert_line = |line: &str| format!("{}{line}\n{}", lines[0], lines[1]);
    let later_format = lines[0].replacen("\"run\":2", "\"run\":3,\"hosts\":1", 1);
    let digit = lines[0].replacen("\"ranks\":4", "\"ranks\":5", 1);
    assert!(digit != lines[0]);
    let [key, other] = [0, 1].map(|index: usize| completed.runs[index].key.to_string());
    let moved = lines[0].replacen(&key, &other, 1);
    let retitled = lines[0].replacen(&completed.runs[0].title, "another title", 1);
    assert!(moved != lines[0] && retitled != lines[0]);
    for (line, expected) in [
        ("", "runs.jsonl:2: not a run of a study"),
        ("{\"a\":1}", "runs.jsonl:2: not a run of a study"),
        ("hello", "runs.jsonl:2: not a run of a study: expected value, column 1"),
        (&lines[0][..lines[0].len() / 2], "runs.jsonl:2: not a run of a study"),
        (later_format.trim_end(), "runs.jsonl:2: format 3, and this version reads format 2"),
        (digit.trim_end(), "runs.jsonl:2: damaged"),
        // Outcome under the key of another run.
        (moved.trim_end(), "runs.jsonl:2: damaged"),
        (retitled.trim_end(), "runs.jsonl:2: damaged"),
    ] {
        let error = journal::read(insert_line(line).as_bytes(), "runs.jsonl").unwrap_err().to_string();
        assert!(error.starts_with(expected), "{line}: {error}");
    }
    let error = journal::read(b"\xff\xfe\n", "runs.jsonl").unwrap_err().to_string();
    assert!(error.contains("no text"), "{error}");
    assert_eq!(journal::read(b"\xff\xfe", "r").unwrap().incomplete_line, Some(1));
    assert_eq!(journal::read(b"", "r").unwrap(), journal::Journal::default());
    assert_eq!(journal::read(lines.concat().as_bytes(), "r").unwrap().runs, completed.runs);
    // The checksum of the earlier format did not cover the key, so its lines are dropped and their runs execute again.
    let outdated = lines.concat().replacen("\"run\":2", "\"run\":1", 1);
    let restored = journal::read(outdated.as_bytes(), "r").unwrap();
    assert_eq!(
        (restored.runs.as_slice(), restored.outdated, restored.complete_bytes),
        (&completed.runs[1..], 1, outdated.len())
    );
}

#[test]
fn own_prices_override_shipped_prices() {
    let entry = |item: &str, currency: &str| {
        format!(
            "[[price]]\nitem = \"{item}\"\nlow = 1\nhigh = 2\ncurrency = \"{currency}\"\nunit = \"gpu_hour\"\ndate = \"2026\"\nsource = \"mine\"\n"
        )
    };
    let read = |list: String, item: &str| {
        let text = format!(
            "prices = \"mine.toml\"\n[[candidate]]\nname = \"a\"\nfabric = \"gh200\"\nprice = \"{item}\"\n{JOB}"
        );
        read_study_with(&text, "s.toml", &|name| Ok((format!("in/{name}"), list.clone())), &|name| Err(name.to_owned()))
    };
    let price = |list, item| read(list, item).unwrap().candidates[0].price;
    let band = Band { low: 1.0, high: 2.0 };
    let custom = Some(Price { payment: Payment::PerHour, band, unit_count: UnitCount::Gpus });
    assert_eq!(price(entry("mine", "USD"), "mine"), custom);
    assert_eq!(price(entry("H200 specialty", "USD"), "H200 specialty"), custom);
    assert_ne!(price(entry("mine", "USD"), "H200 specialty"), custom);
    for (list, expected) in [
        (entry("mine", "EUR"), "s.toml:5:9: price: `mine` is in EUR, and the study in USD"),
        (entry("other", "USD"), "s.toml:5:9: price: no price of `mine` is listed"),
        (String::new(), "in/mine.toml: no price"),
        (
            entry("mine", "USD").replace("low = 1", "low = 3"),
            "in/mine.toml:1:1: `mine`: expected low ≤ high, not 3 and 2",
        ),
        (entry("mine", "USD").replace("gpu_hour", "year"), "in/mine.toml:6:8: unknown variant `year`"),
        (entry("mine", "USD").replace("\"mine\"\n", "\"\"\n"), "in/mine.toml:1:1: "),
        (entry("mine", "USD").replace("low", "least"), "in/mine.toml:3:1: unknown field `least`"),
    ] {
        let error = read(list, "mine").unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let error = read_study(&format!("prices = \"mine.toml\"\n{MACHINES}{JOB}"), "s.toml").unwrap_err().to_string();
    assert!(error.starts_with("s.toml:1:10: prices: "), "{error}");
}

#[test]
fn invalid_settings_are_errors_with_location() {
    for (line, expected) in [
        ("link_rate = [0]", "s.toml:25:14: link_rate: 0 is not over 0"),
        ("utilization = [0.5, 2]", "s.toml:25:21: utilization: 2 is not over 0 and up to 1"),
        ("nics_per_node = [0]", "s.toml:25:18: nics_per_node: 0 is not from 1 to 256"),
        ("fail = [[]]", "s.toml:25:9: fail: expected names"),
        ("fail = [\"gpu0\"]", "s.toml:25:9: "),
        ("colour = [1]", "s.toml:25:1: unknown field `colour`"),
    ] {
        let error = read_study(&format!("{PAIR}[sensitivity]\n{line}\n"), "s.toml").unwrap_err().to_string();
        assert!(error.starts_with(expected), "{line}: {error}");
    }
}

/// Trace of four ranks: two compute in parallel, then all join an all-reduce.
const TRACE: &str = "collective,ranks,bytes,time_us\ncompute,0-1,,900\ncompute,,,100\nall_reduce,,64MiB\n";
const TRACED: &str = "[[candidate]]\nname = \"two\"\nfabric = \"hgx-h100\"\nnodes = 2\ngpus = 2\nprice_usd = 100000\n\
    [[candidate]]\nname = \"one\"\nfabric = \"hgx-h100\"\ngpus = 8\nprice_usd = 100000\n\
    [[candidate]]\nname = \"small\"\nfabric = \"hgx-h100\"\ngpus = 2\nprice_usd = 1000\n\
    [[job]]\nname = \"log\"\nkind = \"trace\"\nfile = \"t.csv\"\nranks = 4\nweight = 2\n";

fn trace_files(trace: &str) -> impl Fn(&str) -> Result<Vec<(String, Vec<u8>)>, String> {
    move |name| Ok(vec![(format!("in/{name}"), trace.as_bytes().to_vec())])
}

/// A trace has the completion time that it has alone on the same fabric, costs that share of an hour, and has no
/// tokens; a candidate with too few GPUs is reported.
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
    // Time without computation and without active calls is waiting, not communication.
    let idle = "collective,ranks,bytes,time_us,start_us\ncompute,0,,100,0\nall_reduce,0-3,1MiB,,400\n";
    let idle = CompletedStudy::with_traces(TRACED, &trace_files(idle)).answer().results.remove(0);
    assert!((idle.step_s["waiting"] - 3e-4).abs() < 1e-12 && idle.bottleneck == "waiting", "{idle:?}");
    assert_eq!(idle.exposed_comm_share, idle.total_comm_share);
    // With additional token jobs, candidates with too few GPUs still have results for those.
    let mixed = CompletedStudy::with_traces(
        &format!("{TRACED}{}", &PAIR[PAIR.find("[[job]]").unwrap()..]),
        &trace_files(TRACE),
    )
    .answer();
    assert_eq!((mixed.scored_by(), mixed.results.len()), (answer::ScoredBy::CostPerUnit, 8));
}

/// Keys of traces depend on their events, not on their file.
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

/// Explicit placement in order equals the default, in the answer and in keys. Another placement changes both, and the
/// link loads follow it.
#[test]
fn placement_is_part_of_key_and_answer() {
    let run_study = |placement: &str| {
        let jobs = [
            "global_batch = 8\nparallel = { tp = 2 }",
            "kind = \"inference\"\nprompt_tokens = 300\noutput_tokens = 20\nconcurrency = 8\nkv_tier = \"peer\"\nparallel = { tp = 2 }",
        ];
        let model = "model = { layers = 2, hidden = 2048, heads = 8, vocab = 512, seq = 512 }";
        let machine = "[[candidate]]\nname = \"two\"\nfabric = \"hgx-h100\"\nnodes = 2\ngpus = 2\n";
        let jobs =
            jobs.iter().enumerate().map(|(i, job)| format!("[[job]]\nname = \"j{i}\"\n{model}\n{placement}{job}\n"));
        CompletedStudy::new(&format!("{machine}{}", jobs.collect::<String>()))
    };
    let json =
        |completed: &CompletedStudy| serde_json::to_string(&Answer { jobs: Vec::new(), ..completed.answer() }).unwrap();
    let plain = run_study("");
    for placement in ["placement = [0, 1, 2, 3]\n", "placement = \"0-3\"\n", "placement = \"block\"\n"] {
        let same = run_study(placement);
        assert_eq!(same.cases.study(), plain.cases.study());
        assert_eq!(json(&same), json(&plain));
        assert!(same.answer().jobs.iter().all(|job| job.placement.is_none()));
    }
    let cyclic = run_study("placement = \"cyclic\"\n");
    assert_ne!(cyclic.cases.study(), plain.cases.study());
    let answers = [plain.answer(), cyclic.answer()];
    for (near, far) in answers[0].results.iter().zip(&answers[1].results) {
        assert!(far.step_time_s > near.step_time_s, "{far:?} {near:?}");
        for (near_call, far_call) in near.calls.iter().zip(&far.calls) {
            assert_eq!(
                (near_call.bytes, near_call.ranks, near_call.groups, near_call.times),
                (far_call.bytes, far_call.ranks, far_call.groups, far_call.times)
            );
        }
    }
    assert_eq!(answers[1].jobs[0].placement.as_deref(), Some("cyclic"));
    // Only tensor-parallel calls of the inference job cross hosts, and only with cyclic placement.
    let cable_load = |completed: &CompletedStudy| -> f64 {
        let (fabric, job) = (&completed.fabrics[0], &completed.study.jobs[1]);
        let load = link_utilization::compute_utilization(job, &completed.answer().results[1], fabric).unwrap();
        let cables = fabric.links().filter(|(_, link)| link.kind == fabricast_topologies::LinkKind::Infiniband);
        cables.map(|(id, _)| load[id.0 as usize]).sum()
    };
    assert!(cable_load(&plain) == 0.0 && cable_load(&cyclic) > 0.0, "{} {}", cable_load(&plain), cable_load(&cyclic));
}

#[test]
fn invalid_placements_are_rejected_before_runs() {
    let error_message = |placement: &str| {
        let text = PAIR.replacen("parallel = { tp = 2 }", &format!("placement = {placement}\nparallel = \"auto\""), 1);
        let study = read_study(&text, "s.toml").unwrap();
        let fabrics: Vec<_> = study.candidates.iter().map(|candidate| load(&candidate.fabric).unwrap()).collect();
        match check(&study, &fabrics) {
            Err(error @ StudyError::Job { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    assert!(
        error_message("[0, 9, 1, 2]")
            .starts_with("s.toml:17:17: placement: GPU 9 of rank 1: the candidate has 4 GPUs, 0 to 3")
    );
    assert!(error_message("\"0-4\"").starts_with("s.toml:17:13: placement: 5 ranks, and the candidate has 4 GPUs"));
    assert!(error_message("\"0-4\"").ends_with("(candidate `two`)"));
}

/// Every call of a result has a library default: equal strategies have equal times, the step with the picks is that of
/// the result, and curves contain the message sizes of the step with times above the lower bounds.
#[test]
fn library_defaults_are_compared_with_picks() {
    let completed = CompletedStudy::new(
        &PAIR.replace("parallel = { tp = 2 }", "placement = \"cyclic\"\nparallel = { tp = 2, sequence = true }"),
    );
    let answer = completed.answer();
    for (number, row) in answer.results.iter().enumerate() {
        let (job, fabric) = (&completed.study.jobs[number % 2], &completed.fabrics[number / 2]);
        let comparison = library_comparison::compare(&completed.study, job, row, fabric).unwrap();
        assert_eq!(comparison.calls.len(), row.calls.len());
        assert!(
            (comparison.step_s.0 / row.step_time_s - 1.0).abs() < 1e-6,
            "{} {}",
            comparison.step_s.0,
            row.step_time_s
        );
        let mut slower = 0.0;
        for (call, default) in row.calls.iter().zip(&comparison.calls) {
            let default = default.as_ref().unwrap();
            assert!(
                (default.strategy != call.pick || default.time_us == call.time_us) && !default.name.is_empty(),
                "{default:?} {call:?}"
            );
            slower += (default.time_us - call.time_us) * call.times / 1e6;
        }
        // Hidden calls cost nothing more; exposed ones cost at most the difference.
        assert!(
            comparison.step_s.1 - comparison.step_s.0 <= slower.max(0.0) + 1e-9,
            "{:?} {slower}",
            comparison.step_s
        );
        assert!(!comparison.curves.is_empty() && comparison.curves.len() <= 3);
        for curve in &comparison.curves {
            let sizes: Vec<_> = curve.plan.rows.iter().map(|row| row.bytes).collect();
            assert!(sizes.is_sorted() && curve.sizes.iter().all(|size| sizes.contains(size)), "{sizes:?}");
            for row in &curve.plan.rows {
                let (low, high) = (row.pick.low_us.unwrap(), row.pick.high_us.unwrap());
                assert!(
                    low <= row.pick.time_us && row.pick.time_us <= high && row.bound_us.unwrap() <= row.pick.time_us
                );
            }
        }
        // The schedule shown is that of the heaviest call of the step.
        let shown = comparison.shown.unwrap();
        let heaviest = row.calls.iter().max_by(|a, b| (a.time_us * a.times).total_cmp(&(b.time_us * b.times))).unwrap();
        assert_eq!((shown.bytes.0, shown.pick), (heaviest.bytes, heaviest.pick));
        assert_eq!(shown.schedule.header().call.collective.to_string(), heaviest.collective);
        fabricast_sim::verify::verify(&shown.schedule, &fabricast_sim::verify::VerifyOptions::default()).unwrap();
        // A result of another job yields nothing.
        let without_calls = ResultRow { calls: Vec::new(), ..row.clone() };
        assert!(library_comparison::compare(&completed.study, job, &without_calls, fabric).is_none());
    }
}
