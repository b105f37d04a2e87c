//! Comparison of predicted memory with measured steps.

use fabricast_workload::job::{Job, Layout, footprint};

/// Predicted tensors of compiled steps differ by −4 to 22 % from the peak tensor memory that PyTorch reported
/// (planner/data/h200-steps/fsdp.py). The jobs are those of steps.toml in the same folder.
#[test]
fn tensors_match_measured_fsdp_steps() {
    let study = crate::read_study(include_str!("../../../data/h200-steps/steps.toml"), "steps.toml").unwrap();
    let lines = include_str!("../../../data/h200-steps/memory.jsonl").lines().skip(1);
    let mut errors = Vec::new();
    for line in lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()) {
        let [model, recompute, software] = ["model", "recompute", "how"].map(|key| line[key].as_str().unwrap());
        let [requests, tokens, micro_batches] =
            ["requests", "tokens", "accumulate"].map(|key| line[key].as_u64().unwrap());
        let accumulation = if micro_batches > 1 { format!(", {micro_batches} turns") } else { String::new() };
        let recomputed = if recompute == "full" { ", recomputed" } else { "" };
        let name = format!("{model}, tp 1, dp 2, {requests} x {tokens}{accumulation}, sharded{recomputed}");
        let Some(Job::Training(job)) = study.jobs.iter().find(|job| software == "compiled" && job.name() == name)
        else {
            continue;
        };
        let memory = footprint(job, &Layout::specified_by(job, 2).unwrap().unwrap());
        let predicted = (memory.total().0 - memory.runtime.0) as f64 / 1e9;
        errors.push(predicted / line["tensors_gb"].as_f64().unwrap() - 1.0);
    }
    assert_eq!(errors.len(), 11);
    assert!(errors.iter().all(|error| (-0.04..0.22).contains(error)), "{errors:?}");
    errors.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    assert!(errors[5].abs() < 0.05, "{errors:?}");
}
