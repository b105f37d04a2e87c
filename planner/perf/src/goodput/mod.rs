//! Goodput of a training run: share of the time in which it computes steps that are not lost to a failure.
//!
//! A run computes an interval τ of steps, stops for `blocking` time c while the state is copied or written, and goes on
//! while a write of w ends in the background. Failures are a Poisson process of rate 1 / M. A failure loses the work
//! since the last checkpoint that was written in full, and the recovery R follows, in which a further failure begins
//! the recovery again.
//!
//! # Expected time
//! From one checkpoint that is written in full to the next, a run without a failure needs L = τ + c. After a failure it
//! needs R without a failure, then L + w without a failure, because the write of the checkpoint is repeated as well. The
//! expected time until a period of length x passes without a failure is M (e^(x/M) − 1), if each failure begins it
//! again. Hence the expected time per interval
//!
//! ```text
//! T = (1 − e^(−L/M)) (M + M (e^((R + L + w)/M) − 1)) = M e^((R + w)/M) (e^(L/M) − 1)
//! ```
//!
//! With w = 0 this is the complete model of Daly (Future Generation Computer Systems 22, 2006, 303–312), in which each
//! write blocks; a write in the background acts as a longer recovery. Each interval has n = e^(w/M) (e^(L/M) − 1)
//! failures during work on average, of which each costs a recovery of M (e^(R/M) − 1), and n M of work, copies and
//! waits for them. The test `expected_shares_match_simulated_timelines` compares all parts with a simulation of events.
//!
//! If the write takes longer than the interval, the next copy waits for it: c grows by w − τ, and w becomes τ. After a
//! failure no write is pending, so that on average e^(−L/M) of the wait belongs to an interval.

use fabricast_topologies::Picos;

/// Longest interval between checkpoints: 30 days.
pub const MAX_INTERVAL: Picos = Picos(30 * 86_400 * PICOS_PER_SECOND);

const PICOS_PER_SECOND: u64 = 1_000_000_000_000;

const SECONDS_PER_DAY: f64 = 86_400.0;

/// Rate of failures that stop a job, at least 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct FailureRate {
    per_second: f64,
}

impl FailureRate {
    /// Creates the rate of a job on `gpus` GPUs, of which any stops the job, from the failures per 1,000 GPUs and day.
    #[must_use]
    pub fn new(failures_per_1000_gpu_days: f64, gpus: u64) -> Self {
        Self { per_second: failures_per_1000_gpu_days / 1000.0 * gpus as f64 / SECONDS_PER_DAY }
    }

    /// Expected number of failures in a number of days.
    #[must_use]
    pub fn in_days(self, days: f64) -> f64 {
        self.per_second * SECONDS_PER_DAY * days
    }
}

/// Times of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointTimes {
    /// Time in which no step runs.
    pub blocking: Picos,
    /// Time after that until the checkpoint can be read after a failure, in which steps run.
    pub background: Picos,
}

/// Inputs of the goodput of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingRun {
    /// Time of a step.
    pub step: Picos,
    /// Times of a checkpoint.
    pub checkpoint: CheckpointTimes,
    /// Rate of failures.
    pub failures: FailureRate,
    /// Time from a failure to the next step: detection, replacement, start of the processes, and reading the
    /// checkpoint.
    pub recovery: Picos,
}

/// Expected shares of the time of a run, which add up to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeShares {
    /// Steps that no failure loses: the goodput, also called effective training time ratio.
    pub steps: f64,
    /// Stops for the checkpoints of these steps.
    pub checkpoints: f64,
    /// Steps and checkpoints since the last complete checkpoint before a failure.
    pub lost_work: f64,
    /// Recovery from failures.
    pub recovery: f64,
}

impl TrainingRun {
    /// Returns the expected shares of the time with a checkpoint after each `interval` steps, at least 1.
    #[must_use]
    pub fn time_shares(&self, interval: u64) -> TimeShares {
        let rate = self.failures.per_second;
        let work = seconds(self.step) * interval.max(1) as f64;
        let write = seconds(self.checkpoint.background);
        let (copy, wait) = (seconds(self.checkpoint.blocking), (write - work).max(0.0));
        let period = work + copy + wait;
        let stops = copy + wait * (-period * rate).exp();
        if rate <= 0.0 {
            let [steps, checkpoints] = if period > 0.0 { [work, stops].map(|time| time / period) } else { [1.0, 0.0] };
            return TimeShares { steps, checkpoints, lost_work: 0.0, recovery: 0.0 };
        }
        let failures = (write.min(work) * rate).exp() * (period * rate).exp_m1();
        let running = failures / rate;
        let recovery = running * (seconds(self.recovery) * rate).exp_m1();
        let total = running + recovery;
        if !total.is_finite() || total <= 0.0 {
            // The run does not reach a checkpoint in any time that can be represented.
            let none = TimeShares { steps: 0.0, checkpoints: 0.0, lost_work: 1.0, recovery: 0.0 };
            return if running.is_finite() { TimeShares { lost_work: 0.0, recovery: 1.0, ..none } } else { none };
        }
        TimeShares {
            steps: work / total,
            checkpoints: stops / total,
            lost_work: (running - work - stops).max(0.0) / total,
            recovery: recovery / total,
        }
    }

    /// Returns the number of steps between checkpoints with the highest goodput, at most [`MAX_INTERVAL`] of time.
    #[must_use]
    pub fn best_interval(&self) -> u64 {
        let rate = self.failures.per_second;
        let step = seconds(self.step);
        let max = (seconds(MAX_INTERVAL) / step).max(1.0);
        // Above the time of the write, the goodput has one maximum; below, it grows up to 1 / rate.
        let optimum = optimal_share(seconds(self.checkpoint.blocking) * rate) / rate;
        let bounds = [optimum, seconds(self.checkpoint.background), 1.0 / rate].map(|time| time / step);
        let whole = bounds.into_iter().flat_map(|steps| [steps.floor(), steps.ceil()]);
        let mut candidates: Vec<u64> =
            whole.map(|steps| if steps.is_nan() { max } else { steps.clamp(1.0, max) } as u64).collect();
        candidates.sort_unstable();
        let mut best = (1, self.time_shares(1).steps);
        for interval in candidates {
            let goodput = self.time_shares(interval).steps;
            if goodput > best.1 {
                best = (interval, goodput);
            }
        }
        best.0
    }
}

/// Optimal time of work between checkpoints as a share of the mean time between failures M, for a checkpoint of `cost` × M:
/// the positive solution of 1 − x = e^(−x − cost) (Daly 2006), where the derivative of (e^(x + cost) − 1) / x is 0.
fn optimal_share(cost: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..100 {
        let middle: f64 = f64::midpoint(low, high);
        // 1 − x − e^(−x − cost) is concave, positive at 0 and negative at 1.
        match -(-middle - cost).exp_m1() > middle {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

fn seconds(time: Picos) -> f64 {
    time.0 as f64 / PICOS_PER_SECOND as f64
}

#[cfg(test)]
mod tests;
