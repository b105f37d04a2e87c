//! Goodput of a training job in `results.json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::goodput::Goodput;
use crate::quantities::{gb, seconds};
use crate::reliability::Estimate;

/// Hours of 30 days.
const HOURS_PER_MONTH: f64 = 30.0 * 24.0;

/// Goodput of a training job: share of the time that checkpoints, failures and recoveries leave for steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GoodputRow {
    /// Expected share of the time in steps that no failure loses, 0 to 1 (effective training time ratio).
    pub share: f64,
    /// Share if failures, detection and restarts are at the upper ends of their intervals.
    pub low: f64,
    /// Share if they are at the lower ends of their intervals.
    pub high: f64,
    /// Expected number of failures in 30 days.
    pub failures_per_month: f64,
    /// Time of steps between checkpoints, in seconds.
    pub checkpoint_interval_s: f64,
    /// Number of steps between checkpoints.
    pub checkpoint_interval_steps: u64,
    /// Size of a checkpoint in GB (1e9 bytes).
    pub checkpoint_gb: f64,
    /// Time in which no step runs for a checkpoint, in seconds.
    pub checkpoint_blocking_s: f64,
    /// Time of the write after that, during which steps run, in seconds.
    pub checkpoint_background_s: f64,
    /// Expected hours of a month of 30 days, by use.
    pub month_h: MonthRow,
    /// Failures that stop a job, per 1,000 GPUs of the job and day.
    pub failures_per_1000_gpu_days: EstimateRow,
    /// Time from a failure to the start of the recovery, in seconds.
    pub detection_s: EstimateRow,
    /// Time from then to the next step, in seconds.
    pub restart_s: EstimateRow,
}

/// Figure with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EstimateRow {
    /// Lower end.
    pub low: f64,
    /// Figure that the expected share is computed with.
    pub typical: f64,
    /// Upper end.
    pub high: f64,
}

/// Expected hours of a month of 30 days, which add up to 720.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MonthRow {
    /// Steps that no failure loses.
    pub steps: f64,
    /// Stops for the checkpoints of these steps.
    pub checkpoints: f64,
    /// Work since the last complete checkpoint before a failure.
    pub lost_work: f64,
    /// Detection of failures, and restarts.
    pub recovery: f64,
}

impl GoodputRow {
    pub(super) fn new(goodput: &Goodput) -> Self {
        let Goodput { shares, times, .. } = *goodput;
        Self {
            share: shares.steps,
            low: goodput.low,
            high: goodput.high,
            failures_per_month: goodput.failures_per_month,
            checkpoint_interval_s: seconds(goodput.interval),
            checkpoint_interval_steps: goodput.interval_steps,
            checkpoint_gb: gb(goodput.checkpoint),
            checkpoint_blocking_s: seconds(times.blocking),
            checkpoint_background_s: seconds(times.background),
            month_h: MonthRow {
                steps: shares.steps * HOURS_PER_MONTH,
                checkpoints: shares.checkpoints * HOURS_PER_MONTH,
                lost_work: shares.lost_work * HOURS_PER_MONTH,
                recovery: shares.recovery * HOURS_PER_MONTH,
            },
            failures_per_1000_gpu_days: EstimateRow::new(goodput.reliability.failures_per_1000_gpu_days),
            detection_s: EstimateRow::new(goodput.reliability.detection_s),
            restart_s: EstimateRow::new(goodput.reliability.restart_s),
        }
    }
}

impl EstimateRow {
    fn new(estimate: Estimate) -> Self {
        let Estimate { low, typical, high } = estimate;
        Self { low, typical, high }
    }
}
