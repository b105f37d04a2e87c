//! Goodput of a training job on a candidate: share of the time that checkpoints, failures and recoveries leave.

use fabricast_perf::goodput::{CheckpointTimes, FailureRate, TimeShares, TrainingRun};
use fabricast_topologies::{Bandwidth, Bytes, Picos};
use fabricast_workload::job::{CheckpointInterval, CheckpointWrite, Checkpointing, Job, Training, WriteSpeed};

use crate::Candidate;
use crate::prediction::Prediction;
use crate::quantities::{from_seconds, gb, seconds};
use crate::reliability::{Estimate, PublishedFigures, Reliability};

/// Bandwidth at which a GPU's state is copied to host memory, in GB/s: 16 lanes of PCI Express 4.0 at 16 GT/s, encoded as
/// 128b/130b (PCI Express Base Specification 4.0).
const COPY_GB_PER_S: f64 = 16.0 * 16.0 / 8.0 * 128.0 / 130.0;

/// Goodput of a job on a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goodput {
    /// Expected shares of the time.
    pub shares: TimeShares,
    /// Goodput if failures, detection and restarts are all at their upper ends.
    pub low: f64,
    /// Goodput if they are all at their lower ends.
    pub high: f64,
    /// Expected number of failures in 30 days.
    pub failures_per_month: f64,
    /// Time of steps between checkpoints.
    pub interval: Picos,
    /// Number of steps between checkpoints.
    pub interval_steps: u64,
    /// Size of a checkpoint.
    pub checkpoint: Bytes,
    /// Times of a checkpoint.
    pub times: CheckpointTimes,
    /// Failures and recovery.
    pub reliability: Reliability,
}

impl Goodput {
    /// Computes the goodput of a training job; `None` for other jobs, and if neither the job nor the candidate states
    /// checkpoints or failures.
    pub(crate) fn new(prediction: &Prediction, candidate: &Candidate, job: &Job) -> Option<Self> {
        let Job::Training(job) = job else { return None };
        if job.checkpoint.is_none() && candidate.reliability.is_none() {
            return None;
        }
        let reliability = candidate.reliability.unwrap_or_else(Reliability::published);
        Some(Self::of_run(job, prediction.step.time, prediction.ranks, &reliability))
    }

    /// Computes the goodput of a job with a time per step on `gpus` GPUs.
    pub(crate) fn of_run(job: &Training, step: Picos, gpus: u64, reliability: &Reliability) -> Self {
        let checkpointing = job.checkpoint.unwrap_or_default();
        let checkpoint = job.checkpoint_bytes();
        let times = checkpoint_times(&checkpointing, checkpoint, gpus);
        let run = |end: fn(Estimate) -> f64| {
            let Reliability { failures_per_1000_gpu_days, detection_s, restart_s } = *reliability;
            TrainingRun {
                step,
                checkpoint: times,
                failures: FailureRate::new(end(failures_per_1000_gpu_days), gpus),
                recovery: from_seconds(end(detection_s) + end(restart_s)),
            }
        };
        let typical = run(|estimate| estimate.typical);
        // The interval is chosen before the failures are known, and is the same at both ends.
        let interval_steps = match checkpointing.interval {
            CheckpointInterval::Optimum => typical.best_interval(),
            CheckpointInterval::Fixed(interval) => (seconds(interval) / seconds(step)).round().max(1.0) as u64,
        };
        Self {
            shares: typical.time_shares(interval_steps),
            low: run(|estimate| estimate.high).time_shares(interval_steps).steps,
            high: run(|estimate| estimate.low).time_shares(interval_steps).steps,
            failures_per_month: typical.failures.in_days(30.0),
            interval: Picos(step.0.saturating_mul(interval_steps)),
            interval_steps,
            checkpoint,
            times,
            reliability: *reliability,
        }
    }
}

/// Times of a checkpoint that `gpus` GPUs write together, each an equal part.
fn checkpoint_times(checkpointing: &Checkpointing, size: Bytes, gpus: u64) -> CheckpointTimes {
    let defaults = PublishedFigures::shipped().checkpoint_defaults();
    let transfer = |bandwidth: Bandwidth| from_seconds(gb(size) / bandwidth.gb_per_s());
    let write = match checkpointing.speed {
        Some(WriteSpeed::Time(time)) => time,
        Some(WriteSpeed::Bandwidth(bandwidth)) => transfer(bandwidth),
        None => transfer(Bandwidth::from_gb_per_s(defaults.write_gb_per_s)),
    };
    let default_copy = || from_seconds(defaults.copy_s + gb(size) / gpus.max(1) as f64 / COPY_GB_PER_S);
    match checkpointing.write {
        CheckpointWrite::Blocking => CheckpointTimes { blocking: write, background: Picos::ZERO },
        CheckpointWrite::Asynchronous => {
            CheckpointTimes { blocking: checkpointing.copy.unwrap_or_else(default_copy), background: write }
        }
    }
}
