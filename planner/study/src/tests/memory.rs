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

/// Measured memory of fine-tuning with adapters, which sets nothing: published by torchtune and by Qwen, the latter
/// with the memory of the process.
#[test]
fn memory_of_adapters_matches_publications() {
    let studies = [
        include_str!("../../../data/jobs/torchtune-lora.toml"),
        include_str!("../../../data/jobs/qwen-lora.toml"),
        include_str!("../../../data/jobs/lora-h200.toml"),
    ];
    let jobs: Vec<Job> = studies.iter().flat_map(|text| crate::read_study(text, "s.toml").unwrap().jobs).collect();
    let mut errors: Vec<(String, f64)> = Vec::new();
    for line in include_str!("../../../data/jobs/lora-memory.csv").lines().skip(2) {
        let [source, name, measured, unit] = line.split(',').collect::<Vec<_>>().try_into().unwrap();
        let Some(Job::Training(job)) = jobs.iter().find(|job| job.name() == name) else { panic!("{name}") };
        // The loss of the compiled layers was not compiled on H200, and norms were one kernel.
        if source == "h200" && (job.lora.is_none() || name.contains("compiled") || name.starts_with("eight")) {
            continue;
        }
        let ranks = if name.starts_with("70B") { 8 } else { 1 };
        let memory = footprint(job, &Layout::specified_by(job, ranks).unwrap().unwrap());
        let predicted = match unit {
            "allocated GiB" => (memory.total().0 - memory.runtime.0) as f64 / f64::from(1 << 30),
            _ => memory.total().0 as f64 / 1e9,
        };
        errors.push((name.to_owned(), predicted / measured.parse::<f64>().unwrap() - 1.0));
    }
    assert_eq!(errors.len(), 32);
    assert!(errors.iter().all(|(_, error)| (-0.15..0.17).contains(error)), "{errors:?}");
    let mut sizes: Vec<f64> = errors.iter().map(|(_, error)| error.abs()).collect();
    sizes.sort_by(f64::total_cmp);
    assert!(sizes[16] < 0.04, "{errors:?}");
}
