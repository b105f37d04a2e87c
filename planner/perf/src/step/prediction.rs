//! Prediction of a training step with given degrees.

use std::borrow::Cow;

use super::data_parallel_single_process::SequentialStep;
use super::efficiency::Efficiency;
use super::peak_rates::PeakRates;
use super::step_result::{Step, TimeError};
use super::step_timing::StepTiming;
use super::timeline::Timeline;
use crate::communication::{CommunicationCostModel, replaced_dispatch};
use fabricast_workload::job::{Layout, Processes, Training, expert_calls};

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
    let job = &*with_running_dispatcher(job, layout, collective_costs);
    StepTiming::new(job, layout, speeds, curve, collective_costs)?.step()
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
    let job = &*with_running_dispatcher(job, layout, collective_costs);
    StepTiming::new(job, layout, speeds, curve, collective_costs)?.timeline()
}

/// Returns the job, with an all_to_all in place of a dispatcher whose kernels do not run on the machine.
fn with_running_dispatcher<'j>(
    job: &'j Training,
    layout: &Layout,
    costs: &dyn CommunicationCostModel,
) -> Cow<'j, Training> {
    match replaced_dispatch(job.dispatch, &expert_calls(job, layout), layout, costs) {
        None => Cow::Borrowed(job),
        Some(dispatch) => Cow::Owned(Training { dispatch, ..job.clone() }),
    }
}
