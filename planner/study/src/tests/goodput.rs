//! Goodput of studies: what it changes, published goodputs predicted from the figures of other authors, and the keys.

use serde::Deserialize;

use super::*;
use crate::quantities::from_seconds;
use crate::reliability::{PUBLISHED, PublishedFigures};
use fabricast_workload::job::{CheckpointInterval, Checkpointing, WriteSpeed, read_job};

/// Published goodput of a run.
#[derive(Deserialize)]
struct PublishedGoodput {
    name: String,
    author: String,
    gpus: u64,
    parameters: f64,
    interval_s: Option<f64>,
    blocking_s: Option<f64>,
    write_s: Option<f64>,
    failures_per_1000_gpu_days: Option<f64>,
    share: f64,
    #[serde(default)]
    at_least: bool,
}

#[derive(Deserialize)]
struct PublishedGoodputs {
    goodput: Vec<PublishedGoodput>,
}

fn published_goodputs() -> Vec<PublishedGoodput> {
    toml::from_str::<PublishedGoodputs>(PUBLISHED).unwrap().goodput
}

/// Job with about `parameters` parameters: layers of 12 × 4096² each.
fn job_of_size(parameters: f64) -> fabricast_workload::job::Training {
    let layers = (parameters / (12.0 * 4096.0 * 4096.0)).round();
    let text = format!(
        "name = \"j\"\nglobal_batch = 8\nparallel = \"auto\"\nmodel = {{ layers = {layers}, hidden = 4096, heads = 32, vocab = 512, seq = 8 }}\n"
    );
    let Job::Training(job) = read_job(&text, "job.toml").unwrap() else { panic!("{text}") };
    assert!((job.model.parameters() as f64 / parameters - 1.0).abs() < 0.01);
    job
}

/// Time of a step of the runs, which states the granularity of intervals only.
const STEP_S: f64 = 10.0;

fn predict(run: &PublishedGoodput, reliability: &Reliability) -> Goodput {
    let mut job = job_of_size(run.parameters);
    job.checkpoint = Some(Checkpointing {
        interval: run.interval_s.map_or(CheckpointInterval::Optimum, |s| CheckpointInterval::Fixed(from_seconds(s))),
        speed: run.write_s.map(|s| WriteSpeed::Time(from_seconds(s))),
        copy: run.blocking_s.map(from_seconds),
        ..Checkpointing::default()
    });
    Goodput::of_run(&job, from_seconds(STEP_S), run.gpus, reliability)
}

/// Rows of the table of docs/accuracy.md: each goodput from the failures, detections and restarts of other authors, and
/// with the failures of the run itself.
fn held_out_rows() -> Vec<String> {
    let figures = PublishedFigures::shipped();
    let row = |run: PublishedGoodput| {
        let others = figures.reliability(|author| author != run.author);
        let goodput = predict(&run, &others);
        let own = run.failures_per_1000_gpu_days.map(|rate| {
            let failures_per_1000_gpu_days = Estimate { low: rate, typical: rate, high: rate };
            predict(&run, &Reliability { failures_per_1000_gpu_days, ..others }).shares.steps
        });
        let percent = |share: f64| format!("{:.1}", share * 100.0);
        let error = match run.at_least {
            true => String::new(),
            false => format!("{:+.1}", (goodput.shares.steps - run.share) * 100.0).replace('-', "−"),
        };
        format!(
            "| {} | {} | {}{:.0} % | {} % | {} to {} % | {error} | {} |",
            run.name,
            run.gpus,
            if run.at_least { "over " } else { "" },
            run.share * 100.0,
            percent(goodput.shares.steps),
            percent(goodput.low),
            percent(goodput.high),
            own.map_or_else(String::new, |own| format!("{} %", percent(own))),
        )
    };
    published_goodputs().into_iter().map(row).collect()
}

/// The table of docs/accuracy.md has the predictions of this version.
#[test]
fn held_out_goodputs_are_documented() {
    let page = include_str!("../../../../docs/accuracy.md");
    let rows = held_out_rows();
    assert!(rows.iter().all(|row| page.contains(row.as_str())), "\n{}", rows.join("\n"));
}

/// Every published figure has an author, a source and positive numbers.
#[test]
fn published_reliability_is_valid() {
    let table: toml::Table = PUBLISHED.parse().unwrap();
    let mut count = 0;
    for (kind, rows) in &table {
        for row in rows.as_array().unwrap().iter().map(|row| row.as_table().unwrap()) {
            count += 1;
            let text =
                |key: &str| row.get(key).and_then(toml::Value::as_str).is_some_and(|text| !text.trim().is_empty());
            assert!(text("source") && (text("author") || ["write", "copy"].contains(&kind.as_str())), "{row}");
            let number = |value: &toml::Value| value.as_float().or(value.as_integer().map(|whole| whole as f64));
            let numbers: Vec<f64> = row.values().filter_map(number).collect();
            assert!(!numbers.is_empty() && numbers.iter().all(|&number| number >= 0.0), "{row}");
        }
    }
    assert_eq!(count, PUBLISHED.matches("\n[[").count());
    let Reliability { failures_per_1000_gpu_days, detection_s, restart_s } = Reliability::published();
    for Estimate { low, typical, high } in [failures_per_1000_gpu_days, detection_s, restart_s] {
        assert!(0.0 < low && low < typical && typical < high);
    }
}

#[test]
fn estimates_interpolate_between_figures() {
    let estimate = Estimate::from_figures([4.0, 1.0, 3.0, 2.0]);
    let expected = Estimate { low: 1.3, typical: 2.5, high: 3.7 };
    for (found, expected) in [(estimate.low, 1.3), (estimate.typical, 2.5), (estimate.high, 3.7)] {
        assert!((found - expected).abs() < 1e-12, "{estimate:?}");
    }
    assert_eq!(Estimate::from_figures([7.0]), Estimate { low: 7.0, typical: 7.0, high: 7.0 });
    assert_eq!((Estimate::from_figures([]), expected.typical), (Estimate::default(), 2.5));
}

const TRAINING: &str = "[[job]]\nname = \"j\"\nglobal_batch = 8\nparallel = { tp = 2 }\ntrain_tokens = 1e12\n\
    model = { layers = 2, hidden = 2048, heads = 8, vocab = 512, seq = 512 }\n";
const CANDIDATES: &str = "[[candidate]]\nname = \"a\"\nfabric = \"hgx-h100\"\ngpus = 2\nprice_usd = 90000\npower_kw = 2\n\
    [[candidate]]\nname = \"b\"\nfabric = \"hgx-h100\"\ngpus = 2\nprice_usd = 90000\npower_kw = 2\n";

/// Time, cost and energy of tokens are those without losses divided by the goodput; step times are unchanged. A study
/// that states neither failures nor checkpoints has no goodput.
#[test]
fn goodput_divides_time_and_costs_of_tokens() {
    let plain = CompletedStudy::new(&format!("{CANDIDATES}{TRAINING}"));
    let free = plain.answer().results;
    assert!(free.iter().all(|row| row.goodput.is_none()));
    for keys in [
        "checkpoint = {}\n",
        "checkpoint = { interval_s = 600, write = \"blocking\", write_s = 60 }\n[reliability]\nfailures_per_1000_gpu_days = 500\n",
        "[reliability]\n",
    ] {
        let completed = CompletedStudy::new(&format!("{CANDIDATES}{TRAINING}{keys}"));
        // Failures and checkpoints need no other run.
        assert_eq!(completed.cases.runs[0].key, plain.cases.runs[0].key);
        for (row, free) in completed.answer().results.iter().zip(&free) {
            let goodput = row.goodput.unwrap();
            let month = goodput.month_h;
            assert!((month.steps + month.checkpoints + month.lost_work + month.recovery - 720.0).abs() < 1e-6);
            assert!(goodput.low <= goodput.share && goodput.share <= goodput.high && goodput.share < 1.0);
            assert_eq!(
                (row.step_time_s, row.tokens_per_s, row.cost_per_step),
                (free.step_time_s, free.tokens_per_s, free.cost_per_step)
            );
            for (figure, free) in [
                (row.time_to_train_h, free.time_to_train_h),
                (row.cost_to_train, free.cost_to_train),
                (row.cost_per_million_tokens, free.cost_per_million_tokens),
                (row.kwh_per_million_tokens, free.kwh_per_million_tokens),
            ] {
                assert!((figure.unwrap() * goodput.share / free.unwrap() - 1.0).abs() < 1e-9, "{keys}");
            }
        }
    }
}

/// A candidate states its own failures, and takes the other figures from the study. The limit on days of training counts
/// the time that failures take.
#[test]
fn candidates_override_reliability_of_the_study() {
    let candidates =
        CANDIDATES.replacen("power_kw = 2\n", "power_kw = 2\nreliability = { failures_per_1000_gpu_days = 9000 }\n", 1);
    let study = |limits: &str| {
        let keys = "[reliability]\nfailures_per_1000_gpu_days = { low = 0, high = 1 }\nrestart_s = 300\n";
        CompletedStudy::new(&format!("{candidates}{TRAINING}{keys}{limits}")).answer()
    };
    let answer = study("");
    let goodputs: Vec<_> = answer.results.iter().map(|row| row.goodput.unwrap()).collect();
    assert_eq!(
        goodputs.iter().map(|goodput| goodput.failures_per_1000_gpu_days.typical).collect::<Vec<_>>(),
        [9000.0, 0.5]
    );
    assert!(goodputs.iter().all(|goodput| goodput.restart_s.high <= 300.0));
    assert!(
        goodputs[0].share < 0.95 && goodputs[1].share > 0.99 && goodputs[1].high >= goodputs[1].share,
        "{goodputs:?}"
    );
    assert_eq!(answer.ranking[0].candidate, "b");
    let days = answer.results.iter().map(|row| row.time_to_train_h.unwrap() / 24.0).collect::<Vec<_>>();
    let between = f64::midpoint(days[0], days[1]);
    let ranking = study(&format!("[constraints]\nmax_train_days = {between}\n")).ranking;
    let violations: Vec<_> = ranking.iter().map(|row| (row.candidate.as_str(), row.violations.len())).collect();
    assert_eq!(violations, [("b", 0), ("a", 1)]);
}

#[test]
fn invalid_reliability_is_rejected_with_location() {
    for (keys, location, expected) in [
        ("wrong = 1", "s.toml:2:1", "unknown field"),
        ("failures_per_1000_gpu_days = -1", "s.toml:2:30", "failures_per_1000_gpu_days: -1 is not from 0 to 10000"),
        ("restart_s = { low = 20, high = 10 }", "s.toml:2:13", "restart_s: expected low ≤ high, not 20 and 10"),
        ("detection_s = 1e9", "s.toml:2:15", "detection_s: 1000000000 is not from 0 to 86400"),
        ("detection_s = nan", "s.toml:2:15", "detection_s: NaN is not from"),
        ("detection_s = \"soon\"", "s.toml:2:15", "a number or"),
    ] {
        let error =
            read_study(&format!("[reliability]\n{keys}\n{CANDIDATES}{TRAINING}"), "s.toml").unwrap_err().to_string();
        assert!(error.starts_with(&format!("{location}: ")) && error.contains(expected), "{keys}: {error}");
    }
    let text = format!("{}{TRAINING}", CANDIDATES.replacen("power_kw = 2\n", "reliability = { restart_s = -5 }\n", 1));
    let error = read_study(&text, "s.toml").unwrap_err().to_string();
    assert!(error.starts_with("s.toml:6:29: restart_s: -5 is not from 0 to 86400"), "{error}");
}
