//! Intervals of predicted step times.
//!
//! If the job does not state its software, the interval extends from the fastest to the slowest software. It is widened
//! by the larger of two errors: the error of published figures of the same class of jobs at the 90th percentile
//! ([`largest_error`]), and the error of the GPU's efficiency curve ([`evidence_error`]). Host times also differ
//! between equal machines ([`HOST_SPREAD`]).

use fabricast_topologies::Picos;

use super::accuracy::largest_error;
use super::job_class::JobClass;
use fabricast_perf::step::{Efficiency, GemmEvidence, HOST_SPREAD, Machine, Share, Step, best_step, host_time};
use fabricast_workload::job::{KernelFusion, Parallel, Training};

/// Error of the predicted time to first token, as a fraction: the 90th percentile over 78 published figures, each study
/// left out that set a parameter (`planner/data/jobs/hold_out.py`).
pub(super) const TTFT_ERROR: f64 = 0.65;

/// Interval of a step time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepInterval {
    /// Lower end of the interval.
    pub low: Picos,
    /// Upper end of the interval.
    pub high: Picos,
}

impl StepInterval {
    /// Returns the interval from `1 - spread` to `1 + spread` times a step time.
    fn around(time: Picos, spread: f64) -> Self {
        Self { low: scale(time, 1.0 - spread), high: scale(time, 1.0 + spread) }
    }

    /// Returns the interval of measured times for which the error of a predicted time, predicted ÷ measured − 1, is from
    /// `-error` to `error`.
    pub(super) fn with_error(time: Picos, error: f64) -> Self {
        let [low, high] = measured_to_predicted(error);
        Self { low: scale(time, low), high: scale(time, high) }
    }

    fn union(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

/// Returns the lowest and highest measured ÷ predicted for which predicted ÷ measured − 1 is from `-error` to `error`.
/// Errors above 90 % count as 90 %.
pub(super) fn measured_to_predicted(error: f64) -> [f64; 2] {
    let error = error.clamp(0.0, 0.9);
    [1.0 / (1.0 + error), 1.0 / (1.0 - error)]
}

fn scale(time: Picos, factor: f64) -> Picos {
    Picos((time.0 as f64 * factor.max(0.0)).round() as u64)
}

/// Returns the error of a GPU's efficiency curve, as a fraction, by the data that the curve is based on. For curves
/// from GEMM benchmarks, predictions of jobs on RTX PRO 6000, RTX 4090, L40S and MI300X, each study left out that set a
/// parameter, differ from measurement by 21 % at the 90th percentile, and by 29 % on AMD GPUs. The other two values are
/// estimates.
fn evidence_error(evidence: GemmEvidence) -> f64 {
    match evidence {
        GemmEvidence::Steps => 0.0,
        GemmEvidence::Measured => 0.25,
        GemmEvidence::PowerLimit => 0.35,
        GemmEvidence::Assumed => 0.6,
    }
}

/// Returns the error of predictions of a class of jobs on a machine, as a fraction.
pub(super) fn prediction_error(class: JobClass, machine: &Machine<'_>) -> f64 {
    (largest_error(class) / 100.0).max(evidence_error(Efficiency::evidence(machine.router.fabric())))
}

/// Returns the interval of the time of a training step with its layout.
pub(super) fn training_interval(job: &Training, machine: &Machine<'_>, step: &Step) -> StepInterval {
    let error = prediction_error(JobClass::from_training(job), machine);
    let stated = around_host(job, step, error);
    let with_kernels = |fusion: KernelFusion| {
        let parallel = Parallel::Given { degrees: step.layout.degrees, data: Some(step.layout.degrees.data) };
        let variant = Training { fusion: Some(fusion), parallel, ..job.clone() };
        let (other, _) = best_step(&variant, machine).ok()?;
        Some(around_host(&variant, &other, error))
    };
    let others = match job.fusion {
        None => [with_kernels(KernelFusion::Fused), with_kernels(KernelFusion::Eager)],
        Some(_) => [None, None],
    };
    others.into_iter().flatten().fold(stated, StepInterval::union)
}

/// Returns the interval of a step that results from the errors of its kernels and calls, and of the time that the host
/// needs to launch it.
fn around_host(job: &Training, step: &Step, error: f64) -> StepInterval {
    let launch = step.share_time(Share::Launch);
    let device = StepInterval::with_error(step.time - launch, error);
    // Stages wait for passes that wait for the host.
    let host = if launch > Picos::ZERO { step.time } else { host_time(job, &step.layout) };
    let host = StepInterval::around(host, HOST_SPREAD);
    StepInterval { low: device.low.max(host.low).min(step.time), high: device.high.max(host.high).max(step.time) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A prediction whose error is within the stated one has an interval that contains the measurement.
        #[test]
        fn intervals_contain_measurements(
            measured in 1_000_000u64..1 << 50,
            stated in 0.0f64..0.9,
            share in -1.0f64..1.0,
        ) {
            let predicted = Picos((measured as f64 * (1.0 + share * stated)).round() as u64);
            let StepInterval { low, high } = StepInterval::with_error(predicted, stated);
            let rounding = 100;
            prop_assert!(low.0 <= measured + rounding && measured <= high.0 + rounding, "{measured} of {low:?} to {high:?}");
        }
    }
}
