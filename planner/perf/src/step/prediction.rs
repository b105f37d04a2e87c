//! Prediction of a training step with given degrees.

use super::data_parallel_single_process::SequentialStep;
use super::efficiency::Efficiency;
use super::peak_rates::PeakRates;
use super::step_result::{Step, TimeError};
use super::step_timing::StepTiming;
use super::timeline::Timeline;
use crate::communication::CommunicationCostModel;
use fabricast_workload::job::{Layout, Processes, Training};

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
    StepTiming::new(job, layout, speeds, curve, collective_costs)?.timeline()
}
