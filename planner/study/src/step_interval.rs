//! Intervals of predicted step times, which contain four of five measured ones.
//!
//! If the job does not state its software, the interval extends from the fastest to the slowest software. It is widened by
//! the error of the class of jobs ([`class_error`]). Host times also differ between equal machines ([`HOST_ERROR_PERCENT`]).

use fabricast_topologies::Picos;

use super::error_figures::class_error;
use super::job_class::JobClass;
use super::model_error::ModelError;
use fabricast_perf::step::{Efficiency, HOST_ERROR_PERCENT, Machine, Share, Step, best_step, host_time};
use fabricast_workload::job::{KernelFusion, Parallel, Training};

/// Interval of a step time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepInterval {
    /// Lower end of the interval.
    pub low: Picos,
    /// Upper end of the interval.
    pub high: Picos,
}

impl StepInterval {
    /// Returns the interval of measured times of a predicted time with this error.
    pub(super) fn with_error(time: Picos, error: ModelError) -> Self {
        let [low, high] = error.measured_to_predicted();
        Self { low: scale(time, low), high: scale(time, high) }
    }

    fn union(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

fn scale(time: Picos, factor: f64) -> Picos {
    Picos((time.0 as f64 * factor.max(0.0)).round() as u64)
}

/// Returns the error of predictions of a class of jobs on a machine.
pub(super) fn prediction_error(class: JobClass, machine: &Machine<'_>) -> ModelError {
    class_error(class, Efficiency::evidence(machine.router.fabric()))
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
fn around_host(job: &Training, step: &Step, error: ModelError) -> StepInterval {
    let launch = step.share_time(Share::Launch);
    let device = StepInterval::with_error(step.time - launch, error);
    // Stages wait for passes that wait for the host.
    let host = if launch > Picos::ZERO { step.time } else { host_time(job, &step.layout) };
    let host = StepInterval::with_error(host, ModelError::from_percent(HOST_ERROR_PERCENT));
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
            let StepInterval { low, high } = StepInterval::with_error(predicted, ModelError::from_fraction(stated));
            let rounding = 100;
            prop_assert!(low.0 <= measured + rounding && measured <= high.0 + rounding, "{measured} of {low:?} to {high:?}");
        }
    }
}
