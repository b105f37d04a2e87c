//! Synthetic studies of any size, for tests.

use fabricast_search::export::SavedPlan;
use fabricast_sim::schedule::{Collective, Schedule, json};
use fabricast_study::answer::Answer;
use fabricast_study::library_comparison::{Curve, LibraryComparison, LibraryDefault, ShownSchedule, StepTimes};
use fabricast_topologies::{Bytes, Picos};
use fabricast_workload::job::Dimension;
use serde_json::{Value, json};

/// Creates a study with these numbers of candidates and jobs. Candidates with higher numbers are slower and cheaper per
/// hour, and all except the first cost more per token. The third candidate does not fit.
pub fn study(candidates: usize, jobs: usize) -> Answer {
    study_with_names(candidates, jobs, |kind, number| format!("{kind} {number}"))
}

/// Returns an answer with the decisions of its ranking, which are derived when an answer is read.
pub fn decided(answer: &Answer) -> Answer {
    let text = serde_json::to_string(answer).expect("a study");
    Answer::read(&text, "results.json").expect("a study as it is written")
}

/// Returns the timeline of a step of `step` seconds with the maximum number of intervals, on eight stages with
/// overlapped communication.
fn timeline(step: f64) -> Value {
    let lanes = (0..16_u64).map(|lane| {
        let count = if lane % 2 == 0 { 32 } else { 8 };
        let intervals = (0..count).map(|k| {
            let operation = ["forward", "backward", "gradients"][(k % 2 + lane % 2) as usize];
            let ns = |k: u64| (step * 1e9) as u64 * k / count;
            format!("{operation} {k}.0 {}..{}", ns(k), ns(k + 1))
        });
        json!({ "stage": lane / 2, "kind": if lane % 2 == 0 { "compute" } else { "communication" }, "intervals": intervals.collect::<Vec<_>>() })
    });
    json!({ "step": "step", "omitted_stages": 8, "tracks": lanes.collect::<Vec<_>>() })
}

/// Returns ten calls of a step, of different sizes.
fn calls() -> Vec<Value> {
    let pick = json!({ "algorithm": "ring", "protocol": "simple", "channels": 16, "threads": null, "chunk": null });
    let call = |k: u32| {
        json!({ "phase": "layer_forward", "dimension": "tensor", "collective": "all_gather", "bytes": 1_u64 << (20 + k),
                "ranks": 8, "groups": 4, "times": 80.0, "time_us": 100.0, "pick": pick })
    };
    (0..10).map(call).collect()
}

/// Returns link loads, which increase with the number of the candidate.
fn load(candidate: usize) -> Vec<Value> {
    let link_class = |links: &str| {
        json!({ "links": links, "count": 32, "gb_per_s": 50.0, "mean": 0.2, "max": 0.3 + candidate as f64 / 100.0,
                "busiest": "n0/nic0->leaf0" })
    };
    ["NVLink, GPU to NVSwitch", "InfiniBand, NIC to leaf"].map(link_class).to_vec()
}

/// Creates a study as [`study`] does, with names of machines, jobs and sources from the function `name`.
pub fn study_with_names(candidates: usize, jobs: usize, name: impl Fn(&str, usize) -> String) -> Answer {
    let machine = |number| name("machine", number);
    let result = |c: usize, j: usize| -> Value {
        let step = (1.0 + c as f64) * (2.0 + j as f64);
        let hour = 100.0 / (1.0 + 0.8 * c as f64);
        let million = 1.0 + c as f64 / 10.0;
        json!({
            "candidate": machine(c), "job": name("job", j), "kind": "training", "ranks": 8 << c.min(9),
            "parallel": { "tp": 8, "pp": 2, "dp": 4, "ep": 1, "cp": 1, "interleave": 1, "sequence": true, "zero": 1 },
            "micro_batches": 8, "step_time_s": step, "tokens_per_s": 1e5 / step, "samples_per_s": 64.0 / step,
            "exposed_comm_share": 0.1 + j as f64 / 100.0, "total_comm_share": 0.3, "efficiency": 0.8,
            "step_s": { "compute": step * 0.7, "tensor": step * 0.1, "data": step * 0.05, "bubble": step * 0.1,
                        "optimizer": step * 0.02, "hand_off": step * 0.03, "expert": 0.0, "context": 0.0 },
            "memory_gb": 60.0 + c as f64,
            "memory": { "weights_gb": 20.0, "gradients_gb": 20.0, "optimizer_gb": 15.0, "activations_gb": 5.0 + c as f64 },
            "fits": c != 2, "memory_excess_gb": if c == 2 { json!(3.5) } else { Value::Null },
            "cost_per_hour": hour, "cost_per_hour_low": hour * 0.8, "cost_per_hour_high": hour * 1.3,
            "cost_per_step": hour * step / 3600.0, "cost_per_million_tokens": million,
            "cost_per_million_tokens_low": million * 0.8, "cost_per_million_tokens_high": million * 1.3,
            "kwh_per_million_tokens": 2.0, "time_to_train_h": 30.0, "cost_to_train": 3000.0, "bottleneck": "compute",
            "timelines": [timeline(step)],
            "calls": calls(), "load": load(c)
        })
    };
    let score = |c: usize| 1.0 + c as f64 / 10.0;
    let ranking = |c: usize| {
        let violations = if c == 2 { vec![format!("{} lacks 3.5 GB of memory", name("job", 0))] } else { Vec::new() };
        json!({ "rank": c + 1, "candidate": machine(c), "score": score(c), "by": "cost_per_million_tokens", "pareto": c != 1,
                "meets_constraints": c != 2, "violations": violations, "probability_best": if c == 0 { 0.8 } else { 0.2 / candidates as f64 } })
    };
    let sensitivity = |parameter: &str, setting: &str, changed: bool| {
        let order: Vec<Value> = (0..candidates)
            .map(|c| json!({ "candidate": machine(c), "score": score(c) * 1.1, "meets_constraints": true }))
            .collect();
        json!({ "name": parameter, "setting": setting, "ranking": order, "changed": changed, "unchanged": [] })
    };
    let text = json!({
        "format": 7, "currency": "USD",
        "candidates": (0..candidates).map(|c| json!({
            "name": machine(c), "fabric": "hgx-h200", "fabric_name": "hgx-h200 x4", "nodes": 4, "gpus": 32, "network": "kind=rail",
            "price": { "payment": "once", "low": 1e6, "high": 2e6, "item": name("item", c) }, "power_kw": 40.0, "racks": 1.0,
            "location": "study.toml:3:1", "profile": "nccl-2.28-h200",
            "kernels": { "matrix": 0.7, "attention": 0.6, "memory": 0.8, "stream": 0.8, "launch_us": 5.0 }, "sources": [name("source", c % 3)]
        })).collect::<Vec<_>>(),
        "jobs": (0..jobs).map(|j| json!({
            "name": name("job", j), "kind": "training", "weight": 1.0, "precision": "bf16", "global_batch": 64, "micro_batch": 1,
            "recompute": "full", "auto": true, "train_tokens": 1e10 as u64, "location": "study.toml:40:1",
            "model": { "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 32000, "seq": 4096,
                       "experts": 0, "experts_per_token": 0, "parameters": 68_710_000_000_u64 }
        })).collect::<Vec<_>>(),
        "constraints": { "budget_usd": 3e6 },
        "assumptions": { "years": 4.0, "utilization": 0.8, "usd_per_kwh": 0.1 },
        "sources": [{ "item": name("item", 0), "low": 1.0, "high": 2.0, "currency": "USD", "date": "2026-01",
                      "source": name("list of prices", 0) }],
        "results": (0..candidates).flat_map(|c| (0..jobs).map(move |j| (c, j))).map(|(c, j)| result(c, j)).collect::<Vec<_>>(),
        "measured": [{ "candidate": machine(0), "job": name("job", 0), "figure": "step_s", "measured": 9.0, "predicted": 9.5 }],
        "ranking": (0..candidates).map(ranking).collect::<Vec<_>>(),
        "sensitivities": [sensitivity("link_rate", "0.5", true), sensitivity("gpu_price", "1.2", false)]
    });
    Answer::read(&text.to_string(), "synthetic").expect("a study as it is written")
}

/// Returns a schedule in which two ranks exchange half of their data.
fn schedule() -> Schedule {
    let program = |peer: u32| {
        format!(
            r#"[{{"kind":"put","len":1,"channel":0,"peer":{peer},"src":["input",0],"dst":["output",0],"span":1,"after":[]}}]"#
        )
    };
    let text = format!(
        r#"{{"fabricast_schedule":1,"name":"<swap>","call":{{"collective":"send_recv","bytes":64,"ranks":2,
        "root":0,"buffers":"out_of_place"}},"protocol":"simple","channels":1,"layout":[{{"bytes":64,"parts":1}}],
        "scratch_chunks":0,"programs":[{},{}]}}"#,
        program(1),
        program(0)
    );
    json::from_json(&text, "swap").expect("a schedule")
}

/// Creates the times of a step from seconds.
pub fn step_times(picked: f64, library_default: f64) -> StepTimes {
    let time = |seconds: f64| Picos::from_us(seconds * 1e6);
    StepTimes { picked: time(picked), library_default: time(library_default) }
}

/// Returns a library's strategies by job: every other call is slower, one is unknown, and there are three curves of a
/// saved plan.
pub fn library_defaults(answer: &Answer) -> Vec<(String, LibraryComparison)> {
    let mut plan = SavedPlan::read(include_str!("data/plan.json"), "plan.json").expect("a plan");
    plan.rows.retain(|row| row.collective == Collective::AllReduce);
    let job_comparison = |job: &str| {
        let calls = answer.results.first().map(|row| row.calls.as_slice()).unwrap_or_default();
        let pick = calls.first().expect("calls").pick;
        let library_default = |(number, call): (usize, &fabricast_study::answer::CallRow)| {
            let time = Picos::from_us(call.time_us * if number % 2 == 1 { 1.5 } else { 1.0 });
            (number > 0).then(|| LibraryDefault { name: "Ring LL".to_owned(), strategy: call.pick, time })
        };
        let curve = Curve {
            dimension: Dimension::Tensor,
            collective: Collective::AllReduce,
            sizes: vec![Bytes(1 << 20)],
            plan: plan.clone(),
        };
        let comparison = LibraryComparison {
            library: "nccl-2.28.9".parse().expect("a library"),
            calls: calls.iter().enumerate().map(library_default).collect(),
            step: step_times(2.0, 2.2),
            curves: vec![curve; 3],
            shown: Some(ShownSchedule {
                dimension: Dimension::Tensor,
                bytes: Bytes(8 << 20),
                pick,
                schedule: schedule(),
            }),
        };
        (job.to_owned(), comparison)
    };
    answer.jobs.iter().map(|job| job_comparison(&job.name)).collect()
}
