//! Accuracy statements of a study match the predictions of the published figures.

use super::published::{median, predicted};
use super::*;
use crate::study::trust::{HELD, Work};

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
    for held in &HELD {
        let files: &[&str] = match held.work {
            Work::Training => &DENSE,
            Work::TrainingExperts => &EXPERTS,
            Work::Serving => &SERVING,
            Work::ServingExperts => &SERVING_EXPERTS,
        };
        let is_meant = |fabric: &str| {
            let (capability, domain) = match fabric {
                "dgx-a100" | "hgx-a100" => (80, 8),
                "hgx-h100" | "dgx-h100" | "hgx-h200" => (90, 8),
                "hgx-b200" => (100, 8),
                "gb200-nvl72" => (100, 72),
                "gb300-nvl72" => (103, 72),
                other => panic!("{other}"),
            };
            held.capability.contains(&capability) && held.domain.contains(&domain)
        };
        let errors = files.iter().flat_map(|text| {
            let predicted = predicted(text);
            predicted.iter().filter(|one| is_meant(&one.fabric)).map(|one| 100.0 * one.error).collect::<Vec<f64>>()
        });
        let signed: Vec<f64> = errors.collect();
        let mut off: Vec<f64> = signed.iter().map(|error| error.abs()).collect();
        off.sort_by(f64::total_cmp);
        let found = (signed.len(), [median(off.clone()), off[off.len() * 9 / 10]], median(signed));
        let near = |one: f64, other: f64| (one - other).abs() < 0.35;
        assert!(
            found.0 == held.count as usize
                && near(found.1[0], held.off[0])
                && near(found.1[1], held.off[1])
                && near(found.2, held.bias),
            "{held:?}: {found:?}"
        );
    }
}

/// Each candidate gets the known accuracy for its jobs and GPUs, or a statement that there is none; candidates with
/// their own efficiency get none.
#[test]
fn accuracy_is_reported_per_candidate() {
    let machine = |name: &str, fabric: &str, own: &str| {
        format!("[[candidate]]\nname = \"{name}\"\nfabric = \"{fabric}\"\ngpus = 4\n{own}\n")
    };
    let study = format!(
        "{}{}{}{}[[job]]\nname = \"j\"\nglobal_batch = 8\nparallel = {{ tp = 2 }}\n\
         model = {{ layers = 2, hidden = 2048, heads = 8, vocab = 512, seq = 512 }}\n",
        machine("h100", "hgx-h100", ""),
        machine("l40s", "l40s-pcie", ""),
        machine("own", "hgx-h100", "efficiency = { matrix = 0.5 }"),
        machine("h200", "hgx-h200", ""),
    );
    let answer = Made::of(&study).answer();
    let [h100, l40s, h200] = answer.trust.as_slice() else { panic!("{:?}", answer.trust) };
    let of_h100 = "109 published figures of LLM Foundry, NeMo and Megatron Bridge on H100";
    assert!(h100.contains(&format!("on H100 SXM: {of_h100}")) && h100.ends_with(": h100"), "{h100}");
    assert!(l40s.contains("on L40S: no published figure, with any software") && l40s.ends_with(": l40s"), "{l40s}");
    // Another GPU of the same generation.
    let other = format!("on H200 SXM: no published figure; of the same generation {of_h100}");
    assert!(h200.contains(&other) && h200.ends_with(": h200"), "{h200}");
    // The efficiency of a candidate does not affect the others.
    let time = |name: &str| answer.results.iter().find(|row| row.candidate == name).unwrap().step_time_s;
    assert!(time("own") > time("h100"));
    let own: Vec<bool> = answer.candidates.iter().map(|one| one.kernels.matrix == 0.5).collect();
    assert_eq!(own, [false, false, true, false]);
}
