//! Comparison of predicted steps with held-out published training runs.

use fabricast_topologies::Bytes;

use super::{fabric, read, steps};
use fabricast_workload::job::footprint;

const PUBLISHED: &str = include_str!("../../../../data/published.csv");

/// Published training run: a row of `planner/data/published.csv`. Values that the publication does not state are 0.
struct Run {
    label: String,
    full: bool,
    model: [u64; 3],
    gpus: u32,
    tensor: u64,
    stages: u64,
    batch: u64,
    micro: u64,
    interleave: u64,
    seconds: f64,
}

impl Run {
    fn read(line: &str) -> Self {
        let cells: Vec<&str> = line.split(',').collect();
        let [
            source,
            name,
            layers,
            hidden,
            heads,
            mode,
            gpus,
            tensor,
            stages,
            batch,
            micro,
            interleave,
            seconds,
            tflops,
        ] = cells[..]
        else {
            panic!("{line}")
        };
        let number = |text: &str| text.parse::<u64>().unwrap();
        let [l, h, b, n] = [layers, hidden, batch, gpus].map(|text| number(text) as f64);
        let seconds = match seconds {
            "" => {
                let operations = 96.0 * b * 2048.0 * l * h * h * (1.0 + 2048.0 / (6.0 * h) + 51_200.0 / (16.0 * l * h));
                operations / (tflops.parse::<f64>().unwrap() * 1e12 * n)
            }
            seconds => seconds.parse().unwrap(),
        };
        Self {
            label: format!("{source} {name} {mode} on {gpus}"),
            full: mode == "full",
            model: [layers, hidden, heads].map(number),
            gpus: n as u32,
            tensor: number(tensor),
            stages: number(stages),
            batch: number(batch),
            micro: number(micro),
            interleave: number(interleave),
            seconds,
        }
    }

    /// Returns one job for each combination of values that are not stated.
    fn jobs(&self) -> Vec<String> {
        let replicas = u64::from(self.gpus) / self.tensor / self.stages;
        let options = |stated: u64, all: Vec<u64>| if stated > 0 { vec![stated] } else { all };
        let mut jobs = Vec::new();
        for micro in options(self.micro, vec![1, 2, 4, 8]) {
            for interleave in options(self.interleave, (1..=if self.stages > 1 { 4 } else { 1 }).collect()) {
                let in_rounds = interleave == 1 || (self.batch / replicas / micro).is_multiple_of(self.stages);
                let is_divisible = self.batch.is_multiple_of(replicas * micro);
                if !is_divisible || !in_rounds || !self.model[0].is_multiple_of(self.stages * interleave) {
                    continue;
                }
                let [layers, hidden, heads] = self.model;
                let (recompute, sequence) = if self.full { ("full", false) } else { ("selective", true) };
                jobs.push(format!(
                    "name = \"run\"\nglobal_batch = {}\nmicro_batch = {micro}\nrecompute = \"{recompute}\"\noverlap = false\n\
                     model = {{ layers = {layers}, hidden = {hidden}, heads = {heads}, vocab = 51200, seq = 2048 }}\n\
                     parallel = {{ tp = {}, pp = {}, interleave = {interleave}, sequence = {sequence} }}\n",
                    self.batch, self.tensor, self.stages
                ));
            }
        }
        jobs
    }

    /// Returns predicted ÷ published time − 1, for the fastest job that fits in memory.
    fn error(&self) -> f64 {
        let jobs = self.jobs();
        let predicted = steps(&fabric("dgx-a100", self.gpus / 8), &jobs);
        let fits = |text: &String, step: &super::super::Step| {
            footprint(&read(text), &step.layout).excess(Bytes(80_000_000_000)).is_none()
        };
        let fitting = jobs.iter().zip(&predicted).filter(|(text, step)| fits(text, step));
        let fastest = fitting.map(|(_, step)| step.time).min().unwrap();
        fastest.0 as f64 / 1e12 / self.seconds - 1.0
    }
}

/// Predicted times of twenty runs with 1.7 to 1,008 billion parameters on 32 to 3,072 GPUs differ from the published
/// ones by at most 10 %. If one error is too large, all are printed.
#[test]
fn held_out_published_runs_are_within_ten_percent() {
    let lines = PUBLISHED.lines().filter(|line| !line.starts_with('#')).skip(1);
    let errors: Vec<(String, f64)> = lines.map(Run::read).map(|run| (run.label.clone(), run.error())).collect();
    assert_eq!(errors.len(), 20);
    let report: Vec<String> = errors.iter().map(|(label, error)| format!("{label}: {:+.1} %", error * 100.0)).collect();
    println!("{}", report.join("\n"));
    assert!(errors.iter().all(|(_, error)| error.abs() < 0.1), "{}", report.join("\n"));
}
