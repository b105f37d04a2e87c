//! Search over parallel degrees: all layouts that fit in memory are estimated, and the best ones are simulated.
//!
//! Candidates are tensor-parallel degrees up to the size of an NVLink domain that divide the heads, pipeline stages
//! that divide the layers, and all divisions of experts and redundant experts among replicas. The best layout has the
//! highest throughput within the job's SLO limits, or the highest throughput if none meets them. Layouts that do not
//! fit in memory are excluded; if none fits, the one that exceeds the memory least is used.

use super::disaggregated::best_disaggregated_service;
use super::open_loop::estimate_open_loop;
use super::service::{Service, simulate_service, timelines};
use super::step_costs::StepCosts;
use crate::communication::{CommunicationCostModel, EstimatedCosts, JobDispatch};
use crate::step::{Machine, Step, TimeError, Timeline, indivisible_error, shortlist};
use fabricast_search::plan::PlanError;
use fabricast_topologies::Picos;
use fabricast_workload::job::{
    Arrivals, Degrees, Footprint, JobError, Layout, Limits, LoadedServing, MemoryCheck, MemoryLimits, OpenLoop,
    SequenceParallelism, Serving, check_memory, serving_footprint,
};

/// Maximum number of layouts that are simulated: those with the best estimates, each with and without sequence
/// parallelism.
const SIMULATED: usize = 6;

/// Simulated run of an inference job on a machine.
#[derive(Clone, Debug)]
pub struct ServiceRun {
    /// Mean step of the job.
    pub step: Step,
    /// Memory footprint of the rank that uses most memory.
    pub footprint: Footprint,
    /// Latency and throughput that requests see.
    pub service: Service,
}

/// Returns the mean step, memory footprint and performance of a job, with the degrees that it states or the best ones
/// found.
///
/// # Errors
/// [`TimeError`] if the job cannot run on these ranks, or a collective has no strategy.
pub fn best_service(job: &Serving, machine: &Machine<'_>) -> Result<ServiceRun, TimeError> {
    if let Some(pool) = &job.prefill_pool {
        return best_disaggregated_service(job, pool, machine);
    }
    search_within_memory(job, machine, machine.memories(&job.placement))
}

/// Returns the best service of a job without a memory limit. For jobs whose concurrency is derived from memory, the
/// actual memory applies.
///
/// # Errors
/// Errors of [`best_service`], and an error if no request fits in the memory from which the concurrency is derived.
pub fn service_without_memory_limit(job: &Serving, machine: &Machine<'_>) -> Result<Service, TimeError> {
    if job.prefill_pool.is_some() {
        // The reference has all parts of requests on all GPUs.
        let parallel = job.parallel.clone().with_open_data_degree();
        return service_without_memory_limit(&Serving { prefill_pool: None, parallel, ..job.clone() }, machine);
    }
    if !matches!(job.arrivals, Arrivals::AutoConcurrency { .. }) {
        return Ok(search_within_memory(job, machine, None)?.service);
    }
    let service = best_service(job, machine)?.service;
    let lacks = |check: &MemoryCheck| check.missing.is_some() || check.missing_host.is_some();
    match service.memory_check.as_ref().is_some_and(lacks) {
        true => Err(JobError::at(&job.spans.job, "the memory does not fit one request").into()),
        false => Ok(service),
    }
}

fn search_within_memory(
    job: &Serving,
    machine: &Machine<'_>,
    memory: Option<MemoryLimits>,
) -> Result<ServiceRun, TimeError> {
    let speeds = machine.serving_rates(job)?;
    let allowed = machine.simulated.restricted_to(job.collectives);
    let costs = StepCosts { speeds: &speeds, curve: &machine.curve, collective_costs: &allowed };
    let evaluate = |layout: &Layout| {
        let job = with_limited_concurrency(job, layout, memory, &costs)?;
        let (step, service) = simulate_service(&job, layout, &costs)?;
        let service = Service { memory_check: memory.map(|memory| check_memory(&job, layout, memory)), ..service };
        Ok::<_, TimeError>(ServiceRun { step, footprint: serving_footprint(&job, layout), service })
    };
    if let Some(layout) = Layout::specified_by_serving(job, machine.ranks.len() as u32)? {
        JobDispatch::from_serving(job).check(machine, &layout)?;
        return evaluate(&layout);
    }
    let estimated = EstimatedCosts::new(machine.simulated);
    let mut best: Option<ServiceRun> = None;
    let shortlisted = shortlisted_layouts(job, machine, &StepCosts { collective_costs: &estimated, ..costs }, memory)?;
    for layout in shortlisted.iter().flat_map(|&layout| [Some(layout), with_sequence_parallelism(layout)]).flatten() {
        let candidate = evaluate(&layout)?;
        if best.as_ref().is_none_or(|known| candidate.service.rank(job) < known.service.rank(job)) {
            best = Some(candidate);
        }
    }
    best.ok_or_else(|| indivisible_error(&job.spans.parallel, machine.ranks.len(), "heads or layers").into())
}

/// Returns a job with the number of concurrent requests that it states, or with as many per replica as memory and SLO
/// limits allow. If a number violates a limit, larger numbers are not examined.
pub(super) fn with_limited_concurrency<'j>(
    job: &'j Serving,
    layout: &Layout,
    memory: Option<MemoryLimits>,
    costs: &StepCosts<'_>,
) -> Result<LoadedServing<'j>, PlanError> {
    let filled = job.with_concurrency(layout, memory);
    if !matches!(job.arrivals, Arrivals::AutoConcurrency { .. }) || job.limits == Limits::default() {
        return Ok(filled);
    }
    let replicas = u64::from(layout.degrees.data).max(1);
    let with_per_replica = |per_replica: u64| LoadedServing { concurrent_requests: per_replica * replicas, ..filled };
    let meets_limits = |per_replica: u64| {
        Ok::<_, PlanError>(simulate_service(&with_per_replica(per_replica), layout, costs)?.1.slo_violations.is_empty())
    };
    // The number is doubled until a limit is violated or the memory is full, then found by bisection.
    let max_per_replica = (filled.concurrent_requests / replicas).max(1);
    let (mut accepted, mut violating) = (1, max_per_replica + 1);
    let mut per_replica = 1;
    while per_replica < violating {
        match meets_limits(per_replica)? {
            true => {
                (accepted, per_replica) = (
                    per_replica,
                    if per_replica == max_per_replica { violating } else { (2 * per_replica).min(max_per_replica) },
                );
            }
            false => violating = per_replica,
        }
    }
    while violating - accepted > 1 {
        let per_replica = u64::midpoint(accepted, violating);
        if meets_limits(per_replica)? { accepted = per_replica } else { violating = per_replica }
    }
    Ok(with_per_replica(accepted))
}

/// Returns the timelines of a step with prefill and of one without (see [`timelines`]), for the layout of a mean step
/// that [`best_service`] returned.
///
/// # Errors
/// Errors of [`best_service`].
pub fn step_timelines(
    job: &LoadedServing<'_>,
    machine: &Machine<'_>,
    step: &Step,
) -> Result<[Option<Timeline>; 2], TimeError> {
    let speeds = machine.serving_rates(job)?;
    let allowed = machine.simulated.restricted_to(job.collectives);
    let costs = StepCosts { speeds: &speeds, curve: &machine.curve, collective_costs: &allowed };
    Ok(timelines(job, &step.layout, &costs)?)
}

/// Returns the mean step of a job with a given layout, with collective times from `collective_costs`.
///
/// # Errors
/// Errors of [`best_service`].
pub fn mean_step(
    job: &LoadedServing<'_>,
    layout: &Layout,
    machine: &Machine<'_>,
    collective_costs: &dyn CommunicationCostModel,
) -> Result<Step, TimeError> {
    let speeds = machine.serving_rates(job)?;
    let costs = StepCosts { speeds: &speeds, curve: &machine.curve, collective_costs };
    Ok(mean_service(job, layout, &costs)?.0)
}

/// Returns the mean step and the service of a job, for an open loop without its queueing, and for a benchmark as if it
/// never ended.
fn mean_service(job: &LoadedServing<'_>, layout: &Layout, costs: &StepCosts<'_>) -> Result<(Step, Service), PlanError> {
    match &job.arrivals {
        Arrivals::OpenLoop(open_loop) => estimate_open_loop(job, open_loop, layout, costs),
        Arrivals::FixedConcurrency { requests: Some(_), .. } => {
            simulate_service(&LoadedServing { job: &job.without_end(), ..*job }, layout, costs)
        }
        _ => simulate_service(job, layout, costs),
    }
}

/// Order of services of a job; smaller is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ServiceRank {
    lacks_memory: bool,
    violates_limits: bool,
    cost: ServiceCost,
}

/// Cost of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ServiceCost {
    /// Latency of an open loop that is served, whose throughput is that of the arrivals.
    Latency(Picos),
    /// Inverse throughput, in units small enough to avoid ties from rounding.
    InverseThroughput(u128),
}

impl Service {
    /// Returns the rank of the service among those of the same job.
    pub(super) fn rank(&self, job: &Serving) -> ServiceRank {
        let lacks = |check: &MemoryCheck| check.missing.is_some() || check.missing_host.is_some();
        let cost = match job.arrivals {
            Arrivals::OpenLoop(open_loop) if is_served(job, &open_loop, self) => ServiceCost::Latency(self.latency),
            _ => ServiceCost::InverseThroughput((1e24 / self.tokens_per_s.max(f64::MIN_POSITIVE)) as u128),
        };
        ServiceRank {
            lacks_memory: self.memory_check.as_ref().is_some_and(lacks),
            violates_limits: !self.slo_violations.is_empty(),
            cost,
        }
    }
}

/// Returns true if as many requests are served as arrive; a benchmark ends at any rate.
fn is_served(job: &Serving, open_loop: &OpenLoop, service: &Service) -> bool {
    let arriving_tokens = open_loop.rate() * job.computed_output_tokens() as f64;
    open_loop.requests.is_some() || service.tokens_per_s >= arriving_tokens * (1.0 - f64::EPSILON.sqrt())
}

/// Returns the [`SIMULATED`] layouts with the best estimates among those that fit the memory.
fn shortlisted_layouts(
    job: &Serving,
    machine: &Machine<'_>,
    costs: &StepCosts<'_>,
    memory: Option<MemoryLimits>,
) -> Result<Vec<Layout>, TimeError> {
    // SLO limits can only reduce the number of requests, so a layout that fits at full load fits in any case.
    let filled = |layout: &Layout| job.with_concurrency(layout, memory);
    let shortlisted = shortlist(
        SIMULATED,
        JobDispatch::from_serving(job).supported_layouts(machine, candidate_layouts(job, machine))?,
        |layout| {
            let check = check_memory(&filled(layout), layout, memory.unwrap_or(MemoryLimits::UNLIMITED));
            check.missing.is_none() && check.missing_host.is_none()
        },
        |layout| serving_footprint(&filled(layout), layout).total(),
        |layout| {
            let job = with_limited_concurrency(job, layout, memory, costs)?;
            Ok(mean_service(&job, layout, costs)?.1.rank(&job))
        },
    )?;
    Ok(shortlisted.into_iter().map(|(_, layout)| layout).collect())
}

/// Returns the layout with sequence parallelism (as in vLLM); `None` if the tensor-parallel degree is 1.
fn with_sequence_parallelism(Layout { degrees }: Layout) -> Option<Layout> {
    (degrees.tensor > 1)
        .then_some(Layout { degrees: Degrees { sequence: SequenceParallelism::TensorSharded, ..degrees } })
}

/// Returns all layouts whose degrees divide the ranks, the layers and the heads, with tensor-parallel groups inside an
/// NVLink domain.
fn candidate_layouts(job: &Serving, machine: &Machine<'_>) -> Vec<Layout> {
    let ranks = machine.ranks.len() as u32;
    let max_tensor = machine.ranks_per_domain();
    let divisors = |number: u32, max: u32| (1..=max.min(number)).filter(move |divisor| number.is_multiple_of(*divisor));
    let stages = u32::try_from(job.model.layers).unwrap_or(u32::MAX);
    let mut layouts = Vec::new();
    for tensor in divisors(ranks, max_tensor) {
        for pipeline in divisors(ranks / tensor, stages) {
            let data = ranks / tensor / pipeline;
            let max_expert = u32::try_from(job.expert_slots()).unwrap_or(u32::MAX).max(1);
            for expert in divisors(data, max_expert) {
                let degrees = Degrees { tensor, pipeline, data, expert, ..Degrees::default() };
                layouts.extend(Layout::serving(job, ranks, degrees).ok());
            }
        }
    }
    layouts
}
