//! Jobs that name their candidates, and measurements in units other than seconds.

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
    let named = |lines: [&str; 2]| Made::of(&format!("{THREE}{}{}", job("j", lines[0]), job("k", lines[1])));
    let all = named(["", "micro_batch = 2\n"]).answer();
    let some = named(["candidates = [\"one\", \"four\"]\n", "micro_batch = 2\ncandidates = [\"two\"]\n"]);
    assert_eq!(some.cases.cases.len(), 3);
    let some = some.answer();
    let pairs = |answer: &Answer| -> Vec<(String, String)> {
        answer.results.iter().map(|row| (row.candidate.clone(), row.job.clone())).collect()
    };
    let expected = [("four", "j"), ("two", "k"), ("one", "j")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(pairs(&some), expected);
    assert_eq!(pairs(&all).len(), 6);
    assert!(some.results.iter().all(|row| all.results.contains(row)));
    assert!(some.ranking.iter().all(|one| one.within && one.score.is_some_and(f64::is_finite)));
    assert_eq!(some.jobs[0].candidates, ["one", "four"]);
    assert!(all.jobs[0].candidates.is_empty() && all.notes.is_empty());
    assert!(some.notes.iter().any(|note| note.contains("among those that have the same")), "{:?}", some.notes);
}

/// Only candidates with the same jobs are compared: they have their own ranks, Pareto fronts and probabilities. A
/// slower and more expensive group follows without being dominated.
#[test]
fn only_candidates_with_the_same_jobs_are_compared() {
    let priced = |name: &str, gpus: u32, price: &str| {
        format!(
            "[[candidate]]\nname = \"{name}\"\nfabric = \"hgx-h100\"\ngpus = {gpus}\nprice_per_hour_usd = {price}\n"
        )
    };
    let candidates = [
        priced("dear", 4, "8"),
        priced("slow", 1, "{ low = 90, high = 110 }"),
        priced("cheap", 4, "7"),
        priced("slower", 1, "{ low = 80, high = 130 }"),
    ];
    let beyond = job("huge", "candidates = [\"slow\", \"slower\"]\n").replace("hidden = 1024", "hidden = 131072");
    let text = format!(
        "{}{}{}{beyond}[sensitivity]\ngpu_price = [2]\n",
        candidates.concat(),
        job("j", "candidates = [\"dear\", \"cheap\"]\n"),
        job("k", "micro_batch = 2\ncandidates = [\"slow\", \"slower\"]\n")
    );
    let answer = Made::of(&text).answer();
    let told: Vec<_> = answer.ranking.iter().map(|one| (one.rank, one.candidate.as_str(), one.jobs.len())).collect();
    assert_eq!(told, [(1, "cheap", 1), (2, "dear", 1), (1, "slow", 2), (2, "slower", 2)]);
    assert_eq!(answer.compared().iter().map(|part| part.len()).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(answer.beyond_all().map(|job| job.name.as_str()).collect::<Vec<_>>(), ["huge"]);
    let firsts = answer.firsts(&answer.sensitivities[0]);
    assert_eq!(firsts.iter().map(|one| one.candidate.as_str()).collect::<Vec<_>>(), ["cheap", "slow"]);
    // Without the infeasible job each group has its own Pareto front, and its probabilities sum up to 1.
    let answer = Made::of(&text.replace(&beyond, "")).answer();
    for part in answer.compared() {
        assert_eq!(part.iter().filter(|one| one.pareto == Some(true)).count(), 1, "{part:?}");
        let sure: f64 = part.iter().filter_map(|one| one.probability_best).sum();
        assert!((sure - 1.0).abs() < 1e-9, "{part:?}");
    }
    assert!(answer.ranking[2].probability_best.is_some_and(|sure| (0.5..0.9).contains(&sure)), "{:?}", answer.ranking);
}

/// An answer belongs only to studies with the same jobs, except for fields without effect.
#[test]
fn answers_of_other_jobs_are_detected() {
    let text = |lines: &str| format!("{THREE}{}", job("j", lines));
    let answer = Made::of(&text("")).answer();
    let is_of = |text: &str| {
        let made = Made::of(text);
        load::is_answered(&made.study, &made.fabrics, &answer)
    };
    assert!(is_of(&text("")) && is_of(&text("weight = 2\n")));
    for lines in [
        "recompute = \"full\"\n",
        "precision = \"fp8\"\n",
        "kernels = \"fused\"\n",
        "micro_batch = 2\n",
        "candidates = [\"one\", \"two\", \"four\"]\n",
    ] {
        assert!(!is_of(&text(lines)), "{lines}");
    }
    assert!(!is_of(&format!("{}[efficiency]\nmatrix = 0.5\n", text(""))));
}

#[test]
fn invalid_candidate_names_are_errors_with_location() {
    let refused = |first: &str, more: &str| {
        let text = format!("{THREE}{}{}{more}", job("j", first), job("k", "candidates = [\"two\"]\n"));
        read_study(&text, "s").unwrap_err()
    };
    let unknown = refused("candidates = [\"one\", \"for\"]\n", "");
    assert!(unknown.to_string().starts_with("s:17:22: candidates: there is no `for`"), "{unknown}");
    assert_eq!(unknown.help.as_deref(), Some("did you mean `four`?"));
    let none = refused("candidates = []\n", "").to_string();
    assert!(none.starts_with("s:17:14: candidates: none is named"), "{none}");
    let twice = refused("candidates = [\"one\", \"one\"]\n", "").to_string();
    assert!(twice.starts_with("s:17:22: candidates: `one` stands twice"), "{twice}");
    let idle = refused("candidates = [\"one\"]\n", "").to_string();
    assert!(idle.starts_with("s:1:1: `four` has nothing to do"), "{idle}");
    let elsewhere = "[[measured]]\ncandidate = \"one\"\njob = \"k\"\nstep_s = 1\n";
    let elsewhere = refused("", elsewhere).to_string();
    assert!(elsewhere.contains("candidate: `k` names others in its `candidates`"), "{elsewhere}");
}

/// All figures of one step yield the same error, in the study's comparison and in the fit of a curve.
#[test]
fn all_figures_of_a_step_yield_the_same_error() {
    let step = 0.004;
    let model = crate::job::read_job(&job("j", "").replace("[[job]]\n", ""), "j").unwrap();
    let Job::Training(training) = &model else { panic!("{model:?}") };
    let all = training.model.step_flops(8).0 as f64;
    // Scores of two layers are 4 b s² h operations each forward and twice that backward; the causal count has half of
    // them.
    let scores = 2.0 * 3.0 * 4.0 * 8.0 * 512.0 * 512.0 * 1024.0;
    let measured = [
        ("step_s", step),
        ("tokens_per_s", 8.0 * 512.0 / step),
        ("tokens_per_s_per_gpu", 8.0 * 512.0 / step / 4.0),
        ("samples_per_s", 8.0 / step),
        ("tflops_per_gpu", all / step / 4.0 / 1e12),
        ("causal_tflops_per_gpu", (all - scores / 2.0) / step / 4.0 / 1e12),
    ];
    let lines: String = measured.iter().map(|(key, value)| format!("{key} = {value:e}\n")).collect();
    let four = THREE.split("[[candidate]]").nth(1).unwrap();
    let made = Made::of(&format!(
        "[[candidate]]{four}{}[[measured]]\ncandidate = \"four\"\njob = \"j\"\n{lines}",
        job("j", "")
    ));
    let answer = made.answer();
    let errors: Vec<f64> = answer.measured.iter().map(|one| one.error().unwrap()).collect();
    assert_eq!(errors.len(), measured.len());
    assert!(errors.iter().all(|error| (error / errors[0] - 1.0).abs() < 1e-6), "{errors:?}");
    let expected = answer.results[0].step_time_s / step - 1.0;
    assert!((errors[0] / expected - 1.0).abs() < 1e-9, "{errors:?} {expected}");
    let fabric = &made.fabrics[0];
    let fitted = crate::step::tests::on(fabric, |machine| -> Vec<f64> {
        let of = |one: &MeasuredStep| {
            let told = one.figure.of_job(&made.study.jobs[0], machine).unwrap().unwrap();
            told.0 as f64 / one.time().0 as f64 - 1.0
        };
        made.study.measured.iter().map(of).collect()
    });
    // (Times are rounded to picoseconds, which matters for the time per operation.)
    assert!(fitted.iter().all(|error| (error - expected).abs() < 1e-3), "{fitted:?} {expected}");
}
