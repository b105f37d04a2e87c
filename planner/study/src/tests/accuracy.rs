//! Tests that the accuracy statements of a study match the predictions of the published figures.

use super::published::{median, predicted};
use super::*;
use crate::accuracy::ACCURACIES;
use crate::error_figures::ErrorFigures;
use crate::job_class::Work;

const DENSE: [&str; 8] = [
    include_str!("../../../data/llm-foundry/a100.toml"),
    include_str!("../../../data/pytorch-a100.toml"),
    include_str!("../../../data/llm-foundry/h100.toml"),
    include_str!("../../../data/nemo.toml"),
    include_str!("../../../data/megatron-bridge/h100.toml"),
    include_str!("../../../data/megatron-bridge/dgx-cloud.toml"),
    include_str!("../../../data/megatron-bridge/blackwell.toml"),
    include_str!("../../../data/megatron-bridge/gb300.toml"),
];
const EXPERTS: [&str; 1] = [include_str!("../../../data/megatron-bridge/experts.toml")];
const SERVING: [&str; 2] =
    [include_str!("../../../data/tensorrt-llm/hopper.toml"), include_str!("../../../data/tensorrt-llm/blackwell.toml")];
const SERVING_EXPERTS: [&str; 1] = [include_str!("../../../data/tensorrt-llm/experts.toml")];

#[test]
fn accuracy_statements_match_published_figures() {
    let (mut differing, mut expert_errors) = (Vec::new(), Vec::new());
    for accuracy in &ACCURACIES {
        let files: &[&str] = match accuracy.work {
            Work::Training => &DENSE,
            Work::TrainingExperts => &EXPERTS,
            Work::Serving => &SERVING,
            Work::ServingExperts => &SERVING_EXPERTS,
        };
        let is_covered = |fabric: &str| {
            let (capability, domain) = match fabric {
                "dgx-a100" | "hgx-a100" => (80, 8),
                "hgx-h100" | "dgx-h100" | "hgx-h200" => (90, 8),
                "hgx-b200" => (100, 8),
                "hgx-b300" => (103, 8),
                "gb200-nvl72" => (100, 72),
                "gb300-nvl72" => (103, 72),
                unknown => panic!("{unknown}"),
            };
            accuracy.capability.contains(&capability) && accuracy.domain.contains(&domain)
        };
        let errors = files.iter().flat_map(|text| {
            let predicted = predicted(text);
            predicted.iter().filter(|run| is_covered(&run.fabric)).map(|run| 100.0 * run.error).collect::<Vec<f64>>()
        });
        let signed: Vec<f64> = errors.collect();
        let mut absolute: Vec<f64> = signed.iter().map(|error| error.abs()).collect();
        absolute.sort_by(f64::total_cmp);
        if accuracy.work == Work::TrainingExperts {
            expert_errors.extend(absolute.iter().copied());
        }
        let actual = (signed.len(), [median(absolute.clone()), absolute[absolute.len() * 9 / 10]], median(signed));
        let near = |actual: f64, expected: f64| (actual - expected).abs() < 0.35;
        let is_near = actual.0 == accuracy.count as usize
            && near(actual.1[0], accuracy.error_percent[0])
            && near(actual.1[1], accuracy.error_percent[1])
            && near(actual.2, accuracy.bias);
        if !is_near {
            differing.push(format!("{accuracy:?}: {actual:?}"));
        }
    }
    assert!(differing.is_empty(), "{differing:#?}");
    // Intervals of training with experts have the error of all these figures.
    expert_errors.sort_by(f64::total_cmp);
    let actual = [0.5, 0.8, 0.9].map(|share| expert_errors[(expert_errors.len() as f64 * share) as usize]);
    let ErrorFigures { count, error_percent } = ErrorFigures::of_work(Work::TrainingExperts, true);
    assert!(
        count as usize == expert_errors.len()
            && actual.iter().zip(error_percent).all(|(actual, stated)| (actual - stated).abs() < 0.35),
        "{actual:?}"
    );
}

/// Errors of dense jobs are not stated for jobs with adapters or data in other memory tiers, and their intervals are not
/// narrower than their own errors.
#[test]
fn adapters_and_memory_tiers_have_their_own_accuracy() {
    let completed = |lines: &str| {
        let study = format!(
            "[[candidate]]\nname = \"h100\"\nfabric = \"hgx-h100\"\ngpus = 2\n\
             nvme = {{ read_gb_per_s = 28, write_gb_per_s = 14 }}\n\
             [[job]]\nname = \"j\"\nparallel = {{ dp = 2 }}\n\
             model = {{ layers = 2, hidden = 2048, heads = 8, vocab = 512, seq = 512 }}\n{lines}"
        );
        CompletedStudy::new(&study).answer()
    };
    let inference = "kind = \"inference\"\nprompt_tokens = 100\noutput_tokens = 10\nconcurrency = 8\n";
    // Errors in percent: the 80th percentile of the figures of each class.
    for (lines, expected, error) in [
        ("global_batch = 8\n".to_owned(), "training of models without experts on H100 SXM: predictions of 109", 11.9),
        (
            "global_batch = 8\nlora = { rank = 8 }\n".to_owned(),
            "training of low-rank adapters on H100 SXM: predictions of 46",
            26.5,
        ),
        (
            "global_batch = 8\nzero = 3\noptimizer_tier = \"nvme\"\n".to_owned(),
            "states on drives on H100 SXM: predictions of 4",
            11.9,
        ),
        ("global_batch = 8\nzero = 3\noptimizer_tier = \"host\"\n".to_owned(), "no published figure with these", 26.5),
        (format!("{inference}adapters = {{ rank = 8, number = 2 }}\n"), "6 published figures of 2023", 47.6),
        (format!("{inference}kv_tier = \"host\"\n"), "no published figure with these", 47.6),
    ] {
        let answer = completed(&lines);
        let row = &answer.results[0];
        // The time of the host widens intervals of training.
        let high = row.step_time_high_s.unwrap() / row.step_time_s;
        let expected_high = 1.0 / (1.0 - error / 100.0);
        assert!(high > expected_high - 1e-6, "{lines}: {high}");
        // The statement has the error of the interval.
        let [accuracy] = answer.accuracy.as_slice() else { panic!("{lines}: {:?}", answer.accuracy) };
        let interval = format!("to {expected_high:.2} of the predicted ones");
        assert!(accuracy.contains(expected) && accuracy.contains(&interval), "{lines}: {accuracy}");
    }
}

/// Each candidate has the known accuracy for its jobs and GPUs, or a statement that there is none. Candidates with
/// their own efficiency have no statement.
#[test]
fn accuracy_is_reported_per_candidate() {
    let machine = |name: &str, fabric: &str, options: &str| {
        format!("[[candidate]]\nname = \"{name}\"\nfabric = \"{fabric}\"\ngpus = 4\n{options}\n")
    };
    let study = format!(
        "{}{}{}{}[[job]]\nname = \"j\"\nglobal_batch = 8\nparallel = {{ tp = 2 }}\n\
         model = {{ layers = 2, hidden = 2048, heads = 8, vocab = 512, seq = 512 }}\n",
        machine("h100", "hgx-h100", ""),
        machine("l40s", "l40s-pcie", ""),
        machine("own", "hgx-h100", "efficiency = { matrix = 0.5 }"),
        machine("h200", "hgx-h200", ""),
    );
    let answer = CompletedStudy::new(&study).answer();
    let [h100, l40s, h200] = answer.accuracy.as_slice() else { panic!("{:?}", answer.accuracy) };
    let h100_figures = "predictions of 109 published figures of LLM Foundry, NeMo and Megatron Bridge on H100";
    assert!(h100.contains(&format!("on H100 SXM: {h100_figures}")) && h100.ends_with(": h100"), "{h100}");
    assert!(l40s.contains("on L40S: no published figure here") && l40s.ends_with(": l40s"), "{l40s}");
    // Published figures exist for another GPU of the same generation.
    let expected = format!("on H200 SXM: no published figure; in the same generation, {h100_figures}");
    assert!(h200.contains(&expected) && h200.ends_with(": h200"), "{h200}");
    // The efficiency of a candidate does not affect the others.
    let time = |name: &str| answer.results.iter().find(|row| row.candidate == name).unwrap().step_time_s;
    assert!(time("own") > time("h100"));
    let overridden: Vec<bool> = answer.candidates.iter().map(|candidate| candidate.kernels.matrix == 0.5).collect();
    assert_eq!(overridden, [false, false, true, false]);
}
