//! Tests of reading answers: round trip, acceptance of files of later versions, and rejection of other formats.

use super::*;
use crate::tests::CompletedStudy;

const STUDY: &str = "[[candidate]]\nname = \"listed\"\nfabric = \"hgx-h100\"\nprice = \"H100 SXM specialty\"\n\
    [[candidate]]\nname = \"own\"\nfabric = \"hgx-h100\"\ngpus = 1\nprice_usd = { low = 1, high = 3 }\npower_kw = 2\n\
    [[job]]\nname = \"j\"\nglobal_batch = 8\nparallel = \"auto\"\n\
    model = { layers = 2, hidden = 1024, heads = 8, vocab = 512, seq = 512 }\n";

fn sample_answer() -> Answer {
    CompletedStudy::new(STUDY).answer()
}

#[test]
fn answers_round_trip_through_json() {
    let answer = sample_answer();
    let text = serde_json::to_string_pretty(&answer).unwrap();
    assert_eq!(Answer::read(&text, "results.json").unwrap(), answer);
    assert_eq!((answer.candidates[0].gpus, answer.candidates[0].nodes, answer.candidates[1].gpus), (8, 1, 1));
    assert_eq!(
        (answer.candidates[1].location.as_str(), answer.jobs[0].location.as_str()),
        ("s.toml:5:1", "s.toml:11:1")
    );
    let price = answer.candidates[0].price.as_ref().unwrap();
    assert_eq!((price.payment, price.item.as_deref()), (PaymentMode::HourlyByGpu, Some("H100 SXM specialty")));
    assert_eq!((answer.sources.len(), answer.sources[0].source.as_str()), (1, "Mercatus"));
    for result in &answer.results {
        let memory = result.memory.unwrap();
        let parts = memory.weights_gb + memory.gradients_gb + memory.optimizer_gb;
        assert!(
            (parts + memory.activations_gb + memory.kv_cache_gb + memory.runtime_gb - result.memory_gb.unwrap()).abs()
                < 1e-9
        );
        assert!((result.step_s.values().sum::<f64>() / result.step_time_s - 1.0).abs() < 1e-9);
        // Timelines end at the end of the step, in ns; a single GPU has no calls.
        let ends =
            result.timelines[0].tracks.iter().flat_map(|track| track.intervals.last()).map(|interval| interval.end_ns);
        assert!((ends.max().unwrap() as f64 / 1e9 - result.step_time_s).abs() < 2e-9);
        assert_eq!((result.calls.is_empty(), result.load.is_empty()), (result.ranks == 1, result.ranks == 1));
        assert!(result.load.iter().all(|row| row.mean <= row.max * 1.000001 && row.max < 1.0));
    }
    assert_eq!(answer.scored_by(), ScoredBy::CostPerMillionTokens);
}

#[test]
fn later_versions_are_accepted_and_other_formats_rejected() {
    let text = serde_json::to_string(&sample_answer()).unwrap();
    // A field of a later version is unknown, and a field is missing as in an earlier version.
    let format = format!("\"format\":\"{FORMAT}\"");
    let later = text.replacen(&format, &format!("{format},\"colour\":\"blue\""), 1);
    assert_eq!(Answer::read(&later, "r").unwrap(), sample_answer());
    let earlier = text.replace(",\"sensitivities\":[]", "").replace(",\"kv_cache_gb\":0.0", "");
    assert!(earlier.len() + 40 < text.len());
    assert_eq!(Answer::read(&earlier, "r").unwrap(), sample_answer());
    // Key names of the previous format.
    let numbered = text
        .replacen(&format, "\"format\":7", 1)
        .replace("\"bottleneck\"", "\"binds\"")
        .replace("\"tracks\"", "\"lanes\"");
    assert_ne!(numbered.replacen("\"format\":7", &format, 1), text);
    assert_eq!(Answer::read(&numbered, "r").unwrap(), sample_answer());
    let old_format = text.replacen(&format, "\"format\":1", 1);
    let error = Answer::read(&old_format, "r").unwrap_err().to_string();
    assert!(error.contains(&format!("r: format 1, but this version of fabricast reads format {FORMAT}")), "{error}");
    let time = sample_answer().results[0].step_time_s;
    let negative = text.replacen(&format!("\"step_time_s\":{time}"), "\"step_time_s\":-5", 1);
    let error = Answer::read(&negative, "r").unwrap_err().to_string();
    let column = negative.find("-5").unwrap() + 1;
    assert_eq!(error, format!("r:1:{column}: step_time_s: -5 is negative; all figures of a study are at least 0"));
    for broken in ["", "{", "[]", &format!("{{{format}}}"), &text[..text.len() / 2]] {
        let error = Answer::read(broken, "r").unwrap_err();
        assert!(matches!(error, AnswerError::Syntax { .. }), "{broken}: {error}");
    }
    assert!(
        Answer::read(&format!("{{{format},\n\"currency\":3}}"), "r").unwrap_err().to_string().starts_with("r:2:12: ")
    );
}

/// Training and inference are decided separately if they have different best candidates.
#[test]
fn decisions_name_the_best_candidates_of_training_and_inference() {
    let mut answer = sample_answer();
    answer.jobs.push(JobRow { name: "chat".into(), kind: JobKind::Inference, ..answer.jobs[0].clone() });
    let training = answer.results.clone();
    let decide = |answer: &Answer, costs: [f64; 2]| {
        let served = training.iter().zip(costs).map(|(row, cost)| ResultRow {
            job: "chat".into(),
            kind: JobKind::Inference,
            cost_per_million_tokens: Some(cost),
            ..row.clone()
        });
        let results: Vec<ResultRow> = training.iter().cloned().chain(served).collect();
        DecisionRow::new(&answer.ranking, &answer.jobs, &results).unwrap().by_kind
    };
    let cost = |number: usize| training[number].cost_per_million_tokens.unwrap();
    let (first, second) = if cost(0) < cost(1) { (0, 1) } else { (1, 0) };
    assert_eq!(decide(&answer, [cost(0), cost(1)]), Vec::new());
    let differing = decide(&answer, [cost(1), cost(0)]);
    let found: Vec<_> = differing.iter().map(|one| (one.kind, one.candidate.as_str())).collect();
    let name = |number: usize| training[number].candidate.as_str();
    assert_eq!(found, [(JobKind::Training, name(first)), (JobKind::Inference, name(second))]);
    assert!((differing[1].score / cost(first) - 1.0).abs() < 1e-9);
    // Candidates that violate a constraint are not named.
    for row in answer.ranking.iter_mut().filter(|row| row.candidate == name(second)) {
        row.meets_constraints = false;
    }
    assert_eq!(decide(&answer, [cost(1), cost(0)]), Vec::new());
}
