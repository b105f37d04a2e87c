//! Tests of jobs that name their candidates, and of measurements in units other than seconds.

use fabricast_perf::communication::SimulatedCosts;
use fabricast_perf::step::{Efficiency, Machine};
use fabricast_sim::profile::Profile;
use fabricast_topologies::route::{RouteOptions, Router};

use super::*;

const THREE: &str = "[[candidate]]\nname = \"four\"\nfabric = \"hgx-h100\"\ngpus = 4\n\
    [[candidate]]\nname = \"two\"\nfabric = \"hgx-h100\"\ngpus = 2\n\
    [[candidate]]\nname = \"one\"\nfabric = \"hgx-h100\"\ngpus = 1\n";

fn job(name: &str, lines: &str) -> String {
    format!(
        "[[job]]\nname = \"{name}\"\nglobal_batch = 8\nparallel = {{ tp = 1 }}\n{lines}\
         model = {{ layers = 2, hidden = 1024, heads = 8, vocab = 512, seq = 512 }}\n"
    )
}

/// Each job runs only on the candidates that it names, with the same results as when it runs on all.
#[test]
fn jobs_run_only_on_named_candidates() {
    let run_study =
        |lines: [&str; 2]| CompletedStudy::new(&format!("{THREE}{}{}", job("j", lines[0]), job("k", lines[1])));
    let unrestricted = run_study(["", "micro_batch = 2\n"]).answer();
    let restricted = run_study(["candidates = [\"one\", \"four\"]\n", "micro_batch = 2\ncandidates = [\"two\"]\n"]);
    assert_eq!(restricted.cases.runs.len(), 3);
    let restricted = restricted.answer();
    let pairs = |answer: &Answer| -> Vec<(String, String)> {
        answer.results.iter().map(|row| (row.candidate.clone(), row.job.clone())).collect()
    };
    let expected = [("four", "j"), ("two", "k"), ("one", "j")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(pairs(&restricted), expected);
    assert_eq!(pairs(&unrestricted).len(), 6);
    assert!(restricted.results.iter().all(|row| unrestricted.results.contains(row)));
    assert!(restricted.ranking.iter().all(|row| row.meets_constraints && row.score.is_some_and(f64::is_finite)));
    assert_eq!(restricted.jobs[0].candidates, ["one", "four"]);
    assert!(unrestricted.jobs[0].candidates.is_empty() && unrestricted.notes.is_empty());
    assert!(restricted.notes.iter().any(|note| note.contains("among those with the same")), "{:?}", restricted.notes);
}

/// Only candidates with the same jobs are compared, with separate ranks, Pareto fronts and probabilities. A slower and
/// more expensive group is listed after the first without being dominated.
#[test]
fn only_candidates_with_the_same_jobs_are_compared() {
    let candidate = |name: &str, gpus: u32, price: &str| {
        format!(
            "[[candidate]]\nname = \"{name}\"\nfabric = \"hgx-h100\"\ngpus = {gpus}\nprice_per_hour_usd = {price}\n"
        )
    };
    let candidates = [
        candidate("dear", 4, "8"),
        candidate("slow", 1, "{ low = 90, high = 110 }"),
        candidate("cheap", 4, "7"),
        candidate("slower", 1, "{ low = 80, high = 130 }"),
    ];
    let oversized = job("huge", "candidates = [\"slow\", \"slower\"]\n").replace("hidden = 1024", "hidden = 131072");
    let text = format!(
        "{}{}{}{oversized}[sensitivity]\ngpu_price = [2]\n",
        candidates.concat(),
        job("j", "candidates = [\"dear\", \"cheap\"]\n"),
        job("k", "micro_batch = 2\ncandidates = [\"slow\", \"slower\"]\n")
    );
    let answer = CompletedStudy::new(&text).answer();
    let ranking: Vec<_> = answer.ranking.iter().map(|row| (row.rank, row.candidate.as_str(), row.jobs.len())).collect();
    assert_eq!(ranking, [(1, "cheap", 1), (2, "dear", 1), (1, "slow", 2), (2, "slower", 2)]);
    assert_eq!(answer.comparable_groups().iter().map(|group| group.len()).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(answer.infeasible_jobs().map(|job| job.name.as_str()).collect::<Vec<_>>(), ["huge"]);
    let firsts = answer.first_candidates(&answer.sensitivities[0]);
    assert_eq!(firsts.iter().map(|row| row.candidate.as_str()).collect::<Vec<_>>(), ["cheap", "slow"]);
    // Without the infeasible job, each group has a Pareto front, and its probabilities add up to 1.
    let answer = CompletedStudy::new(&text.replace(&oversized, "")).answer();
    for group in answer.comparable_groups() {
        assert_eq!(group.iter().filter(|row| row.pareto == Some(true)).count(), 1, "{group:?}");
        let probability: f64 = group.iter().filter_map(|row| row.probability_best).sum();
        assert!((probability - 1.0).abs() < 1e-9, "{group:?}");
    }
    assert!(
        answer.ranking[2].probability_best.is_some_and(|probability| (0.5..0.9).contains(&probability)),
        "{:?}",
        answer.ranking
    );
}

/// An answer belongs to a study only if their jobs are equal, except for fields without effect on runs.
#[test]
fn answers_of_other_jobs_are_detected() {
    let text = |lines: &str| format!("{THREE}{}", job("j", lines));
    let answer = CompletedStudy::new(&text("")).answer();
    let matches_answer = |text: &str| {
        let completed = CompletedStudy::new(text);
        link_utilization::matches_study(&completed.study, &completed.fabrics, &answer)
    };
    assert!(matches_answer(&text("")) && matches_answer(&text("weight = 2\n")));
    for lines in [
        "recompute = \"full\"\n",
        "precision = \"fp8\"\n",
        "kernels = \"fused\"\n",
        "micro_batch = 2\n",
        "candidates = [\"one\", \"two\", \"four\"]\n",
    ] {
        assert!(!matches_answer(&text(lines)), "{lines}");
    }
    assert!(!matches_answer(&format!("{}[efficiency]\nmatrix = 0.5\n", text(""))));
}

#[test]
fn invalid_candidate_names_are_errors_with_location() {
    let read_error = |first: &str, extra: &str| {
        let text = format!("{THREE}{}{}{extra}", job("j", first), job("k", "candidates = [\"two\"]\n"));
        read_study(&text, "s").unwrap_err()
    };
    let unknown = read_error("candidates = [\"one\", \"for\"]\n", "");
    assert!(unknown.to_string().starts_with("s:17:22: candidates: there is no `for`"), "{unknown}");
    assert_eq!(unknown.help.as_deref(), Some("did you mean `four`?"));
    let empty = read_error("candidates = []\n", "").to_string();
    assert!(empty.starts_with("s:17:14: candidates: none is named"), "{empty}");
    let duplicate = read_error("candidates = [\"one\", \"one\"]\n", "").to_string();
    assert!(duplicate.starts_with("s:17:22: candidates: `one` is given twice"), "{duplicate}");
    let idle = read_error("candidates = [\"one\"]\n", "").to_string();
    assert!(idle.starts_with("s:1:1: `four` has no job"), "{idle}");
    let unassigned = "[[measured]]\ncandidate = \"one\"\njob = \"k\"\nstep_s = 1\n";
    let unassigned = read_error("", unassigned).to_string();
    assert!(unassigned.contains("candidate: `k` names others in its `candidates`"), "{unassigned}");
}

/// All figures of one step give the same error, in the study's comparison and in the fit of an efficiency curve.
#[test]
fn all_figures_of_a_step_yield_the_same_error() {
    let step = 0.004;
    let model = fabricast_workload::job::read_job(&job("j", "").replace("[[job]]\n", ""), "j").unwrap();
    let Job::Training(training) = &model else { panic!("{model:?}") };
    let flops = training.model.step_flops(8).0 as f64;
    // Scores of two layers are 4 b s² h operations each forward and twice that backward; the causal count has half of
    // them.
    let scores = 2.0 * 3.0 * 4.0 * 8.0 * 512.0 * 512.0 * 1024.0;
    let measured = [
        ("step_s", step),
        ("tokens_per_s", 8.0 * 512.0 / step),
        ("tokens_per_s_per_gpu", 8.0 * 512.0 / step / 4.0),
        ("samples_per_s", 8.0 / step),
        ("tflops_per_gpu", flops / step / 4.0 / 1e12),
        ("causal_tflops_per_gpu", (flops - scores / 2.0) / step / 4.0 / 1e12),
    ];
    let lines: String = measured.iter().map(|(key, value)| format!("{key} = {value:e}\n")).collect();
    let four = THREE.split("[[candidate]]").nth(1).unwrap();
    let completed = CompletedStudy::new(&format!(
        "[[candidate]]{four}{}[[measured]]\ncandidate = \"four\"\njob = \"j\"\n{lines}",
        job("j", "")
    ));
    let answer = completed.answer();
    let errors: Vec<f64> = answer.measured.iter().map(|row| row.error().unwrap()).collect();
    assert_eq!(errors.len(), measured.len());
    assert!(errors.iter().all(|error| (error / errors[0] - 1.0).abs() < 1e-6), "{errors:?}");
    let expected = answer.results[0].step_time_s / step - 1.0;
    assert!((errors[0] / expected - 1.0).abs() < 1e-9, "{errors:?} {expected}");
    let fabric = &completed.fabrics[0];
    let (router, profile) = (Router::new(fabric, RouteOptions::default()), Profile::for_fabric(fabric).unwrap());
    let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
    let curve = Efficiency::new(fabric);
    let machine = Machine { router: &router, ranks: fabric.gpus(), simulated: &simulated, curve };
    let error = |measured: &MeasuredStep| {
        let predicted = measured.figure.predict(&completed.study.jobs[0], &machine).unwrap().unwrap();
        predicted.0 as f64 / measured.time().0 as f64 - 1.0
    };
    let fitted: Vec<f64> = completed.study.measured.iter().map(error).collect();
    // Times are rounded to picoseconds, which is noticeable in the time per operation.
    assert!(fitted.iter().all(|error| (error - expected).abs() < 1e-3), "{fitted:?} {expected}");
}
