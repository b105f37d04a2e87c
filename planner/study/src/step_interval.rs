//! Intervals of predicted step times.
//!
//! An interval reaches from the fastest to the slowest software if the job does not state its own, and further by the
//! larger of two errors: that of published figures of the same kind of work at the 90th percentile
//! ([`Work::largest_error`]), and that of the GPU's curve ([`evidence_spread`]). Host times differ between equal machines
//! ([`HOST_SPREAD`]).

use fabricast_topologies::Picos;

use super::accuracy::Work;
use super::answer::ResultRow;
use fabricast_perf::step::{Efficiency, GemmEvidence, HOST_SPREAD, Machine, Share, Step, best_step};
use fabricast_workload::job::{KernelFusion, Parallel, Training};

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
    let with_kernels = |fusion: KernelFusion| {
        let parallel = Parallel::Given { degrees: step.layout.degrees, data: Some(step.layout.degrees.data) };
        best_step(&Training { fusion, parallel, ..job.clone() }, machine).map_or(step.time, |(step, _)| step.time)
    };
    let (fastest, slowest) = match job.fusion {
        KernelFusion::Unspecified => (with_kernels(KernelFusion::Fused), with_kernels(KernelFusion::Eager)),
        KernelFusion::Fused | KernelFusion::Compiled | KernelFusion::Eager => (step.time, step.time),
    };
    let spread = spread(Work::of_training(job), machine);
    let host = scale(step.share_time(Share::Launch), HOST_SPREAD);
    StepInterval {
        low: StepInterval::around(fastest.min(step.time), spread).low - host,
        high: StepInterval::around(slowest.max(step.time), spread).high + host,
    }
}
