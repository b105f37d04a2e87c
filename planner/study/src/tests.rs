//! End-to-end tests of studies: ranking, sensitivity, and candidates that cannot run a job.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use fabricast_topologies::{Fabric, FabricRequest, load};
use fabricast_workload::job::{KernelFusion, LaunchMode};
use rustc_hash::FxHashMap;

use super::answer::{Answer, build_answer};
use super::cases::Cases;
use super::key::Key;
use super::*;

mod accuracy;
mod assumptions;
mod costs;
mod documentation;
mod goodput;
mod job_assignment;
mod journals;
mod library_defaults;
mod memory;
mod placements;
mod published;
mod sharded;
mod sizes;
mod traces;
mod violations;

/// Study whose runs have all been executed.
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
        let mut study = read_study_with(text, "folder/s.toml", &|name| Err(format!("no {name}")), traces).unwrap();
        state_software(&mut study.jobs);
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

/// Sets fused kernels launched as a CUDA graph for jobs that do not state their software, since software is not the
/// subject of these tests.
fn state_software(jobs: &mut [Job]) {
    for job in jobs {
        if let Job::Training(job) = job
            && job.fusion.is_none()
        {
            (job.fusion, job.launch) = (Some(KernelFusion::Fused), LaunchMode::Graph);
        }
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
/// Study of two candidates (two hosts of two GPUs each, and one host of four GPUs) with a job that needs little
/// simulation time.
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
    // One GPU does not have enough memory, regardless of its cost.
    assert_eq!(ranking(""), expected([("cheap", true), ("dear", true), ("small", false)]));
    assert!(ranking("[constraints]\nbudget_usd = 200000\n").iter().all(|(_, is_valid)| !is_valid));
}

/// A limit on a job's result excludes a candidate exactly if its result is beyond the limit.
#[test]
fn job_limits_exclude_candidates_by_their_results() {
    let answer = |limits: &str| CompletedStudy::new(&format!("{MACHINES}{JOB}{limits}")).answer();
    let free = answer("");
    let cheap = free.results.iter().find(|row| row.candidate == "cheap").unwrap();
    let (rate, days) = (cheap.tokens_per_s.unwrap(), cheap.time_to_train_h.unwrap() / 24.0);
    for (key, value, harder) in [("min_tokens_per_s", rate, 1.001), ("max_train_days", days, 0.999)] {
        let violations = |factor: f64| {
            let ranking = answer(&format!("[constraints]\n{key} = {:.9}\n", value * factor)).ranking;
            ranking.into_iter().find(|row| row.candidate == "cheap").unwrap().violations
        };
        assert_eq!(violations(1.0 / harder), Vec::<String>::new(), "{key}");
        let [violation] = violations(harder).try_into().unwrap();
        assert!(violation.contains("limit"), "{violation}");
    }
}

/// A limit on a result that no run of a job has is an error of the study, not a violation by each candidate.
#[test]
fn limits_on_undefined_results_are_refused() {
    let refusal = |jobs: &str, limits: &str| {
        read_study(&format!("{MACHINES}{jobs}[constraints]\n{limits}"), "s.toml").unwrap_err().to_string()
    };
    let endless = JOB.lines().filter(|line| !line.starts_with("train_tokens")).collect::<Vec<_>>().join("\n") + "\n";
    let days = refusal(&endless, "max_train_days = 30\n");
    assert!(days.contains("train_tokens") && days.contains("s.toml:"), "{days}");
    let batch = "[[job]]\nname = \"batch\"\nkind = \"inference\"\nprecision = \"bf16\"\nrequests = 8\nmax_num_seqs = 8\nprompt_tokens = 10\n\
                 output_tokens = 10\nparallel = { tp = 1 }\nmodel = \"llama-3-8b\"\n";
    let ttft = refusal(batch, "max_ttft_s = 1\n");
    assert!(ttft.contains("is a batch"), "{ttft}");
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
    // Each limit is met by one candidate, and both limits by none. 300,000 compared with 39,000 is a larger violation
    // than 2 kW compared with 1 kW.
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
        // With half the price, all costs except energy (4 kW at 0.1) are halved.
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
    // A slower network makes the pair more expensive, a faster one makes it cheaper; the single host has no network.
    assert!(score("link_rate", "0.5", "two") > base_score("two") && score("link_rate", "2", "two") < base_score("two"));
    assert_eq!(score("link_rate", "1", "two"), base_score("two"));
    assert!(score("nvlink_rate", "0.5", "two") > base_score("two"));
    for (name, setting) in [("link_rate", "0.5"), ("oversubscription", "4"), ("nics_per_node", "1")] {
        assert_eq!(score(name, setting, "one"), base_score("one"));
        assert_eq!(row(name, setting).unchanged, ["one: no network between its hosts"]);
    }
    assert!(score("oversubscription", "4", "two") >= score("oversubscription", "1", "two"));
    // A failed host leaves two GPUs, but four are paid for. The job adapts its data parallelism.
    assert!(score("fail", "n1", "two") > base_score("two"));
    assert_eq!(row("fail", "n1").unchanged.len(), 1);
    // Three GPUs cannot be divided by tp 2. The candidate is reported as failed and ranked last.
    let last = row("fail", "gpu3").ranking.last().unwrap();
    assert!(last.candidate == "one" && last.score.is_none() && !last.meets_constraints, "{last:?}");
    assert!(last.violations[0].contains("tp 2"), "{last:?}");
    let text = format!("{PAIR}[sensitivity]\nfail = [[\"gpu99\"]]\n");
    let study = read_study(&text, "s.toml").unwrap();
    let fabrics: Vec<_> = study.candidates.iter().map(|candidate| load(&candidate.fabric).unwrap()).collect();
    let error = Cases::new(&study, &fabrics, &load_fabric).unwrap_err().to_string();
    assert!(error.starts_with("s.toml:25:9: fail: no candidate has all of `gpu99`"), "{error}");
}

/// A pair of candidate and job that cannot run is reported as failed, and the other pairs run. With three GPUs and
/// cyclic placement, heads, layers and batch cannot be divided, and the search leaves no GPU idle. If no pair can run,
/// it is an error.
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

/// A candidate whose GPUs do not support a precision is ranked after the others. If no candidate supports it, it is an
/// error before any run starts.
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

/// If no candidate has a route to offloaded data, the error is located at the job's key for the memory tier.
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

/// States on drives need a candidate that states its drives, which are inputs of its runs.
#[test]
fn drives_belong_to_candidates() {
    let machine = |drives: &str| format!("[[candidate]]\nname = \"{drives}\"\nfabric = \"hgx-h100\"\n{drives}");
    let job = format!("{}zero = 3\noptimizer_tier = \"nvme\"\n", JOB.replace("layers = 32", "layers = 2"));
    let check_text = |study: &str| {
        let study = read_study(study, "s.toml").unwrap();
        let fabrics: Vec<_> = study.candidates.iter().map(|candidate| load(&candidate.fabric).unwrap()).collect();
        check(&study, &fabrics).map_err(|error| error.to_string())
    };
    let study = format!("{}{job}", machine("").replace("name = \"\"", "name = \"none\""));
    let line = 1 + study.lines().position(|line| line.starts_with("optimizer_tier")).unwrap();
    let error = check_text(&study).unwrap_err();
    assert!(error.starts_with(&format!("s.toml:{line}:18: ")) && error.contains("nvme = { read_gb_per_s"), "{error}");
    let drives = "nvme = { read_gb_per_s = 14, write_gb_per_s = 7 }\n";
    let named = machine(drives).replace(&format!("name = \"{drives}\""), "name = \"drives\"");
    assert_eq!(check_text(&format!("{named}{job}")), Ok(()));
    let run_key = |text: &str| {
        let study = read_study(&format!("{text}{job}"), "s.toml").unwrap();
        key::fabric_key(&load(&study.candidates[0].fabric).unwrap())
    };
    let slower = named.replace("= 14", "= 12");
    assert!(
        run_key(&named) != run_key(&slower) && run_key(&named) == run_key(&named.replace("\"drives\"", "\"others\""))
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
