//! Dispatchers of jobs on a machine: those that a job states are checked before its layouts are compared, those of a
//! software's default are replaced where they do not run.

use fabricast_experts::UnsupportedExchange;
use fabricast_topologies::SourceLocation;
use fabricast_workload::job::{
    Dimension, Dispatch, DispatcherOrigin, ExpertCall, GroupShape, Job, JobError, Layout, Serving, StepKind,
    TokenExchange, Training, expert_calls,
};

use super::cost_model::CommunicationCostModel;
use crate::step::Machine;

/// Function that returns an exchange of each kind of step of a layout.
type Exchanges<'a> = Box<dyn Fn(&Layout) -> Vec<TokenExchange> + 'a>;

/// Dispatches of a job whose support depends on machine and layout.
pub(crate) struct JobDispatch<'a> {
    dispatch: Dispatch,
    location: &'a SourceLocation,
    exchanges: Exchanges<'a>,
}

impl<'a> JobDispatch<'a> {
    pub(crate) fn from_training(job: &'a Training) -> Self {
        let exchanges = |layout: &Layout| expert_calls(job, layout).iter().map(|call| call.exchange).take(1).collect();
        Self { dispatch: job.dispatch, location: &job.spans.dispatcher, exchanges: Box::new(exchanges) }
    }

    pub(crate) fn from_serving(job: &'a Serving) -> Self {
        let exchanges = |layout: &Layout| {
            let skew = layout.expert_imbalance(job.skew);
            let kernels = [StepKind::Prefill, StepKind::Decode].map(|step| job.dispatch.dispatcher.kernel(step));
            let exchange = |kernel| TokenExchange::new(kernel, 1.0, &job.model, job.expert_slots(), skew);
            kernels.into_iter().flatten().map(exchange).collect()
        };
        Self { dispatch: job.dispatch, location: &job.spans.dispatcher, exchanges: Box::new(exchanges) }
    }

    fn from_job(job: &'a Job) -> Option<Self> {
        match job {
            Job::Training(job) => Some(Self::from_training(job)),
            Job::Inference(job) => Some(Self::from_serving(job)),
            Job::Trace(_) => None,
        }
    }

    /// Returns the reason that a kernel of the dispatcher does not run with a layout; `None` if all run, or if ranks do
    /// not exchange tokens.
    fn unsupported(&self, machine: &Machine<'_>, layout: &Layout) -> Option<UnsupportedExchange> {
        if layout.size(Dimension::Expert) <= 1 {
            return None;
        }
        let timer = machine.simulated.token_exchanges();
        (self.exchanges)(layout).iter().find_map(|exchange| timer.check_support(layout, exchange).err())
    }

    /// Refuses a dispatcher that the job states and whose kernels do not run on a machine.
    ///
    /// # Errors
    /// [`JobError`] at `dispatcher`.
    pub(crate) fn check(&self, machine: &Machine<'_>, layout: &Layout) -> Result<(), JobError> {
        if self.dispatch.origin == DispatcherOrigin::Software {
            return Ok(());
        }
        match self.unsupported(machine, layout) {
            None => Ok(()),
            Some(reason) => {
                let help = Some("all_to_all runs on all GPUs".to_owned());
                Err(JobError { help, ..JobError::at(self.location, format!("dispatcher: {reason}")) })
            }
        }
    }

    /// Returns the layouts with which the dispatcher runs, if the job states one.
    ///
    /// # Errors
    /// [`JobError`] at `dispatcher` if ranks exchange tokens in some layouts, and it runs with none of these.
    pub(crate) fn supported_layouts(
        &self,
        machine: &Machine<'_>,
        layouts: Vec<Layout>,
    ) -> Result<Vec<Layout>, JobError> {
        let mut known: Vec<(GroupShape, Result<(), JobError>)> = Vec::new();
        let mut supported = Vec::with_capacity(layouts.len());
        for layout in layouts {
            let shape = layout.shape(Dimension::Expert);
            let is_supported = match known.iter().find(|(one, _)| *one == shape) {
                Some((_, result)) => result.is_ok(),
                None => {
                    let result = self.check(machine, &layout);
                    let is_supported = result.is_ok();
                    known.push((shape, result));
                    is_supported
                }
            };
            if is_supported {
                supported.push(layout);
            }
        }
        let exchanging = known.into_iter().filter(|(shape, _)| shape.size > 1);
        let mut results: Vec<Result<(), JobError>> = exchanging.map(|(_, result)| result).collect();
        match results.iter().all(Result::is_err) && !results.is_empty() {
            true => results.swap_remove(0).map(|()| supported),
            false => Ok(supported),
        }
    }
}

/// Returns the reason that the kernels of a job's dispatcher do not run on a machine with a layout; `None` if they run or
/// the job has none.
#[must_use]
pub fn unsupported_dispatcher(job: &Job, machine: &Machine<'_>, layout: &Layout) -> Option<UnsupportedExchange> {
    JobDispatch::from_job(job)?.unsupported(machine, layout)
}

/// Returns the dispatch with an all_to_all in place of a kernel that does not exchange the tokens of a step's calls;
/// `None` if it does or there are no calls.
pub(crate) fn replaced_dispatch(
    dispatch: Dispatch,
    calls: &[ExpertCall],
    layout: &Layout,
    costs: &dyn CommunicationCostModel,
) -> Option<Dispatch> {
    let is_supported = |call: &ExpertCall| costs.supports_exchange(layout, &call.exchange);
    (!calls.iter().all(is_supported)).then(|| dispatch.with_collectives())
}
