//! Prediction of a training step with given degrees.

use std::borrow::Cow;

use super::data_parallel_single_process::SequentialStep;
use super::efficiency::Efficiency;
use super::peak_rates::PeakRates;
use super::step_result::{Step, TimeError};
use super::step_timing::StepTiming;
use super::timeline::Timeline;
use crate::communication::{CommunicationCostModel, replaced_dispatch};
use fabricast_workload::job::{Dispatch, ExpertOverlap, Layout, Processes, Training, expert_calls};

/// Predicts the completion time of a step.
///
/// # Errors
/// [`TimeError`]: too many micro-batches to schedule pass by pass, or a call without a predicted time.
pub fn step(
    job: &Training,
    layout: &Layout,
    speeds: &PeakRates,
    curve: &Efficiency,
    collective_costs: &dyn CommunicationCostModel,
) -> Result<Step, TimeError> {
    if job.processes == Processes::Single {
        return Ok(SequentialStep::new(job, layout, speeds, curve, collective_costs)?.step());
    }
    let jobs = running_jobs(job, layout, collective_costs);
    fastest_timing(&jobs, |job| StepTiming::new(job, layout, speeds, curve, collective_costs))?.step()
}

/// Returns the timeline of a step. Its last end is the time that [`step`] returns.
///
/// # Errors
/// See [`step`].
pub fn step_timeline(
    job: &Training,
    layout: &Layout,
    speeds: &PeakRates,
    curve: &Efficiency,
    collective_costs: &dyn CommunicationCostModel,
) -> Result<Timeline, TimeError> {
    if job.processes == Processes::Single {
        return Ok(SequentialStep::new(job, layout, speeds, curve, collective_costs)?.timeline());
    }
    let jobs = running_jobs(job, layout, collective_costs);
    fastest_timing(&jobs, |job| StepTiming::new(job, layout, speeds, curve, collective_costs))?.timeline()
}

/// Jobs whose steps are compared: the job itself with a dispatcher that runs on the machine, and if exchanges of experts
/// overlap, the job without that overlap.
struct RunningJobs<'j> {
    job: Cow<'j, Training>,
    sequential: Option<Training>,
}

/// Returns the job, with an all_to_all in place of a dispatcher whose kernels do not run on the machine, and its variant
/// without overlap of exchanges.
fn running_jobs<'j>(job: &'j Training, layout: &Layout, costs: &dyn CommunicationCostModel) -> RunningJobs<'j> {
    let job = match replaced_dispatch(job.dispatch, &expert_calls(job, layout), layout, costs) {
        None => Cow::Borrowed(job),
        Some(dispatch) => Cow::Owned(Training { dispatch, ..job.clone() }),
    };
    let sequential = job
        .overlaps_experts(layout)
        .then(|| Training { dispatch: Dispatch { overlap: ExpertOverlap::Off, ..job.dispatch }, ..(*job).clone() });
    RunningJobs { job, sequential }
}

/// Returns the timing of the faster of both jobs. Exchanges that hide behind computation take its time from gradients,
/// on some stages of a pipeline more than they save: users measure both settings.
fn fastest_timing<'j>(
    jobs: &'j RunningJobs<'_>,
    timing: impl Fn(&'j Training) -> Result<StepTiming<'j>, TimeError>,
) -> Result<StepTiming<'j>, TimeError> {
    let overlapped = timing(&jobs.job)?;
    let Some(sequential) = &jobs.sequential else { return Ok(overlapped) };
    let sequential = timing(sequential)?;
    Ok(if sequential.time()? < overlapped.time()? { sequential } else { overlapped })
}
