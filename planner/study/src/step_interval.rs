//! Intervals of predicted step times.
//!
//! If the job does not state its software, the interval extends from the fastest to the slowest software. It is widened
//! by the larger of two errors: the error of published figures of the same class of jobs at the 90th percentile
//! ([`largest_error`]), and the error of the GPU's efficiency curve ([`evidence_spread`]). Host times also differ
//! between equal machines ([`HOST_SPREAD`]).

use fabricast_topologies::Picos;

use super::accuracy::largest_error;
use super::job_class::JobClass;
use fabricast_perf::step::{Efficiency, GemmEvidence, HOST_SPREAD, Machine, Share, Step, best_step, host_time};
use fabricast_workload::job::{KernelFusion, Parallel, Training};

/// Error of the predicted time to first token, as a fraction: the 90th percentile over 78 published figures, each study
/// left out that set a parameter (`planner/data/jobs/hold_out.py`).
pub(super) const TTFT_SPREAD: f64 = 0.65;

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
    pub(super) fn around(time: Picos, spread: f64) -> Self {
        Self { low: scale(time, 1.0 - spread), high: scale(time, 1.0 + spread) }
    }

    fn union(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

fn scale(time: Picos, factor: f64) -> Picos {
    Picos((time.0 as f64 * factor.max(0.0)).round() as u64)
}

/// Returns the error of a GPU's efficiency curve, as a fraction, by the data that the curve is based on. For curves
/// from GEMM benchmarks, predictions of jobs on RTX PRO 6000, RTX 4090, L40S and MI300X, each study left out that set a
/// parameter, differ from measurement by 21 % at the 90th percentile, and by 29 % on AMD GPUs. The other two values are
/// estimates.
fn evidence_spread(evidence: GemmEvidence) -> f64 {
    match evidence {
        GemmEvidence::Steps => 0.0,
        GemmEvidence::Measured => 0.25,
        GemmEvidence::PowerLimit => 0.35,
        GemmEvidence::Assumed => 0.6,
    }
}

/// Returns the error of predictions of a class of jobs on a machine, as a fraction.
pub(super) fn spread(class: JobClass, machine: &Machine<'_>) -> f64 {
    (largest_error(class) / 100.0).max(evidence_spread(Efficiency::evidence(machine.router.fabric())))
}

/// Returns the interval of the time of a training step with its layout.
pub(super) fn training_interval(job: &Training, machine: &Machine<'_>, step: &Step) -> StepInterval {
    let spread = spread(JobClass::from_training(job), machine);
    let stated = around_host(job, step, spread);
    let with_kernels = |fusion: KernelFusion| {
        let parallel = Parallel::Given { degrees: step.layout.degrees, data: Some(step.layout.degrees.data) };
        let variant = Training { fusion: Some(fusion), parallel, ..job.clone() };
        let (other, _) = best_step(&variant, machine).ok()?;
        Some(around_host(&variant, &other, spread))
    };
    let others = match job.fusion {
        None => [with_kernels(KernelFusion::Fused), with_kernels(KernelFusion::Eager)],
        Some(_) => [None, None],
    };
    others.into_iter().flatten().fold(stated, StepInterval::union)
}

/// Returns the interval of a step that results from the errors of its kernels and calls, and of the time that the host
/// needs to launch it.
fn around_host(job: &Training, step: &Step, spread: f64) -> StepInterval {
    let launch = step.share_time(Share::Launch);
    let device = StepInterval::around(step.time - launch, spread);
    // Stages wait for passes that wait for the host.
    let host = if launch > Picos::ZERO { step.time } else { host_time(job, &step.layout) };
    let host = StepInterval::around(host, HOST_SPREAD);
    StepInterval { low: device.low.max(host.low).min(step.time), high: device.high.max(host.high).max(step.time) }
}
