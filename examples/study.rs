//! Compares machines for two jobs and prints the ranking. The machines are built in Rust, the jobs are read from TOML.
//!
//! ```text
//! cargo run --release --example study
//! ```
//!
//! Each machine runs each job at its best parallel layout. The score is the geometric mean of the cost of a million
//! tokens over the jobs:
//!
//! ```text
//! rank  machine        USD/M tokens  violates
//!    1  2 × hgx-h100          0.432
//!    2  2 × hgx-h200          0.524
//!    3  4 × l40s-pcie         0.760
//! ```
#![allow(clippy::print_stdout, missing_docs)] // a program for people

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use fabricast_study::answer::build_answer;
use fabricast_study::cases::Cases;
use fabricast_study::{
    Assumptions, Band, Candidate, Constraints, EfficiencyOverrides, JobAssignment, Payment, Price, Run, Study, Watch,
    check, check_outcomes, run,
};
use fabricast_topologies::{FabricRequest, SourceLocation, load};
use fabricast_workload::job::read_job;
use rustc_hash::FxHashMap;

/// Preset, hosts, and price of the whole machine in USD per hour: placeholders, not offers.
const MACHINES: [(&str, u32, f64); 3] = [("hgx-h100", 2, 40.0), ("hgx-h200", 2, 52.0), ("l40s-pcie", 4, 32.0)];

const JOBS: [&str; 2] = [
    r#"
name = "7B pre-training"
model = { layers = 32, hidden = 4096, heads = 32, vocab = 51200, seq = 2048 }
flash_attention = true
global_batch = 256
parallel = "auto"
"#,
    r#"
name = "70B chat"
kind = "inference"
model = { layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, gated = true, vocab = 32000 }
prompt_tokens = 1500
output_tokens = 300
concurrency = 64
parallel = "auto"
"#,
];

fn candidate(preset: &str, nodes: u32, usd_per_hour: f64) -> Candidate {
    Candidate {
        name: format!("{nodes} × {preset}"),
        machine: None,
        fabric: FabricRequest { nodes: Some(nodes), ..FabricRequest::new(preset) },
        network: None,
        efficiency: EfficiencyOverrides::default(),
        reliability: None,
        price: Some(Price::lump_sum(Payment::PerHour, Band { low: usd_per_hour, high: usd_per_hour })),
        price_entry: None,
        price_location: SourceLocation::default(),
        power_kw: None,
        racks: None,
        location: SourceLocation::default(),
        fabric_location: SourceLocation::default(),
        gpus_location: SourceLocation::default(),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let study = Study {
        candidates: MACHINES.iter().map(|&(preset, nodes, price)| candidate(preset, nodes, price)).collect(),
        jobs: JOBS.iter().map(|text| read_job(text, "job")).collect::<Result<_, _>>()?,
        job_keys: vec![BTreeMap::new(); JOBS.len()],
        assignment: JobAssignment::default(),
        measured: Vec::new(),
        constraints: Constraints::default(),
        assumptions: Assumptions::default(),
        efficiency: EfficiencyOverrides::default(),
        sensitivities: Vec::new(),
    };
    let fabrics = study.candidates.iter().map(|one| load(&one.fabric)).collect::<Result<Vec<_>, _>>()?;
    check(&study, &fabrics)?;
    let cases = Cases::new(&study, &fabrics, &load)?;
    let (ended, done, stop) = (|_: &Run| (), AtomicUsize::new(0), AtomicBool::new(false));
    let watch = Watch { ended: &ended, done: &done, stop: &stop };
    let runs = run(&study, &fabrics, &cases, &cases.runs, &load, &watch)?;
    let outcomes: FxHashMap<_, _> = runs.into_iter().map(|run| (run.key, run.outcome)).collect();
    check_outcomes(&study, &cases, &outcomes)?;
    let answer = build_answer(&study, &fabrics, &cases, &outcomes).ok_or("a run is missing")?;

    println!("rank  machine        USD/M tokens  violates");
    for row in &answer.ranking {
        let score = row.score.map_or("–".to_owned(), |score| format!("{score:.3}"));
        println!("{:>4}  {:<13} {score:>13}  {}", row.rank, row.candidate, row.violations.join("; "));
    }
    Ok(())
}
