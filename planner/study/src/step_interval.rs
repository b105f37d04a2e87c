//! Intervals of predicted step times.
//!
//! An interval reaches from the fastest to the slowest software if the job does not state its own, and further by the
//! larger of two errors: that of published figures of the same kind of work at the 90th percentile
//! ([`Work::largest_error`]), and that of the GPU's curve ([`evidence_spread`]). Host times differ between equal machines
//! ([`HOST_SPREAD`]).

use fabricast_topologies::Picos;

use super::accuracy::Work;
use super::answer::ResultRow;
use fabricast_perf::step::{Efficiency, GemmEvidence, HOST_SPREAD, Machine, Share, Step, best_step, host_time};
use fabricast_workload::job::{KernelFusion, Parallel, Training};

/// Error of the time to first token, as a fraction: the 90th percentile of 78 figures that set nothing
/// (`planner/data/jobs/errors.py`).
pub(super) const TTFT_SPREAD: f64 = 0.6;

/// Interval of a step time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepInterval {
    low: Picos,
    high: Picos,
}

impl StepInterval {
    /// Returns the interval from `1 - spread` to `1 + spread` times a step time.
    pub(super) fn around(time: Picos, spread: f64) -> Self {
        Self { low: scale(time, 1.0 - spread), high: scale(time, 1.0 + spread) }
    }

    fn union(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    /// Adds the interval to a row.
    pub(super) fn apply(self, row: ResultRow) -> ResultRow {
        let seconds = |time: Picos| Some(time.0 as f64 / 1e12);
        ResultRow { step_time_low_s: seconds(self.low), step_time_high_s: seconds(self.high), ..row }
    }
}

fn scale(time: Picos, factor: f64) -> Picos {
    Picos((time.0 as f64 * factor.max(0.0)).round() as u64)
}

/// Error of a GPU's curve by its basis. Curves from GEMM benchmarks: jobs on RTX PRO 6000, RTX 4090, L40S and MI300X, none
/// of which set a parameter, differ from measurement by 25 % at the 90th percentile, those on AMD by 50. The other two
/// are judgements.
fn evidence_spread(evidence: GemmEvidence) -> f64 {
    match evidence {
        GemmEvidence::Steps => 0.0,
        GemmEvidence::Measured => 0.25,
        GemmEvidence::PowerLimit => 0.35,
        GemmEvidence::Assumed => 0.6,
    }
}

/// Returns the error of predictions of a kind of work on a machine, as a fraction.
pub(super) fn spread(work: Work, machine: &Machine<'_>) -> f64 {
    work.largest_error().max(evidence_spread(Efficiency::evidence(machine.router.fabric())))
}

/// Returns the interval of a training step, with its layout.
pub(super) fn training_interval(job: &Training, machine: &Machine<'_>, step: &Step) -> StepInterval {
    let spread = spread(Work::of_training(job), machine);
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

/// Interval of a step by the errors of its kernels and calls, and of the time that the host needs to launch it.
fn around_host(job: &Training, step: &Step, spread: f64) -> StepInterval {
    let device = StepInterval::around(step.time - step.share_time(Share::Launch), spread);
    let host = StepInterval::around(host_time(job, &step.layout), HOST_SPREAD);
    StepInterval { low: device.low.max(host.low).min(step.time), high: device.high.max(host.high).max(step.time) }
}
