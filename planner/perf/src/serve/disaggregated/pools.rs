//! Pools of GPUs for prefill and for decode: their layouts, and the service of both in sequence.

use fabricast_topologies::NodeId;
use fabricast_workload::job::{
    Footprint, JobError, Layout, Limits, LoadedServing, MemoryCheck, MemoryLimits, PrefillPool, Serving, check_memory,
    serving_footprint,
};

use super::super::open_loop::ServingPart;
use super::super::search::{ServiceRun, best_service, with_limited_concurrency};
use super::super::service::{Service, simulate_service};
use super::super::step_costs::StepCosts;
use super::kv_transfer::KvRoutes;
use super::load_curve::LoadCurve;
use super::sequence::Pools;
use crate::communication::{JobDispatch, RestrictedCosts, SimulatedCosts};
use crate::step::{Machine, PeakRates, Step, TimeError};
use fabricast_search::plan::PlanError;

/// Largest number of divisions of the GPUs that are examined if the job states none.
const MAX_DIVISIONS: usize = 16;

/// Returns the service of a job with a pool for prefill: with the number of GPUs that it states, or with the best one.
///
/// # Errors
/// [`TimeError`] if a part cannot run on its GPUs, or a collective has no strategy.
pub(in crate::serve) fn best_disaggregated_service(
    job: &Serving,
    pool: &PrefillPool,
    machine: &Machine<'_>,
) -> Result<ServiceRun, TimeError> {
    let divided = |gpus: usize| divided_service(job, pool, machine, gpus);
    let Some(gpus) = pool.gpus else {
        let runs: Vec<Result<ServiceRun, TimeError>> = divisions(machine).into_iter().map(divided).collect();
        let mut best: Option<ServiceRun> = None;
        let mut first_error = None;
        for run in runs {
            match run {
                Ok(run) if best.as_ref().is_none_or(|known| rank_key(&run) > rank_key(known)) => best = Some(run),
                Ok(_) => {}
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        return match (best, first_error) {
            (Some(best), _) => Ok(best),
            (None, Some(error)) => Err(error),
            (None, None) => Err(too_few_gpus(job, machine.ranks.len()).into()),
        };
    };
    divided(gpus as usize)
}

/// Checks that the degrees of a job with a pool for prefill fit the GPUs of both pools.
///
/// # Errors
/// [`JobError`] at `parallel` otherwise.
pub fn check_pools(job: &Serving, pool: &PrefillPool, ranks: u32) -> Result<(), JobError> {
    let Some(gpus) = pool.gpus else { return Ok(()) };
    if gpus == 0 || gpus >= ranks {
        return Err(too_few_gpus(job, ranks as usize));
    }
    Layout::specified_by_serving(&job.prefill_part(pool), gpus)?;
    Layout::specified_by_serving(&job.decode_part(pool), ranks - gpus)?;
    Ok(())
}

fn too_few_gpus(job: &Serving, ranks: usize) -> JobError {
    let message =
        format!("disaggregation: expected prefill_gpus of 1 to {}, less than the {ranks} GPUs", ranks.max(1) - 1);
    JobError::at(&job.spans.parallel, message)
}

/// Numbers of GPUs for prefill that are examined: whole hosts if there are several, otherwise single GPUs.
fn divisions(machine: &Machine<'_>) -> Vec<usize> {
    let ranks = machine.ranks.len();
    let hosts = machine.router.fabric().group_by_host(machine.ranks);
    let unit = if hosts.len() > 1 { hosts.iter().map(Vec::len).max().unwrap_or(1) } else { 1 };
    let all: Vec<usize> = (1..ranks.div_ceil(unit)).map(|count| count * unit).collect();
    let step = all.len().div_ceil(MAX_DIVISIONS).max(1);
    all.into_iter().step_by(step).collect()
}

/// Returns a sort key of a run: in its memory, within its limits, then by throughput; for arrivals at a rate that are
/// served, by latency.
fn rank_key(run: &ServiceRun) -> (bool, bool, u64, u64) {
    let Service { slo_violations, tokens_per_s, latency, memory_check, .. } = &run.service;
    let lacks = |check: &MemoryCheck| check.missing.is_some() || check.missing_host.is_some();
    let fits = !memory_check.as_ref().is_some_and(lacks);
    // Rates that are equal but for rounding are ordered by latency.
    (fits, slo_violations.is_empty(), (tokens_per_s * 1e3) as u64, u64::MAX - latency.0)
}

/// Part of a job on the GPUs of its pool.
pub(super) struct Pool<'a> {
    pub job: &'a Serving,
    pub layout: Layout,
    pub ranks: u32,
    pub costs: StepCosts<'a>,
    memory: Option<MemoryLimits>,
}

impl Pool<'_> {
    /// Simulates a closed loop of so many requests.
    pub(super) fn with_requests(&self, requests: u64) -> Result<(Step, Service), PlanError> {
        let job = self.job.with_fixed_concurrency(requests.max(1));
        simulate_service(&job.with_concurrency(&self.layout, self.memory), &self.layout, &self.costs)
    }

    /// Requests per second of a service of this part.
    fn rate(&self, service: &Service) -> f64 {
        service.tokens_per_s / self.job.computed_output_tokens().max(1) as f64
    }

    /// Requests per second by the number of concurrent requests.
    pub(super) fn load_curve(&self) -> LoadCurve<impl Fn(u64) -> Result<f64, PlanError> + '_> {
        LoadCurve::new(|requests| Ok(self.rate(&self.with_requests(requests)?.1)))
    }

    /// Largest number of concurrent requests, by memory and the largest number of sequences.
    pub(super) fn max_requests(&self) -> u64 {
        self.job.with_full_load().with_concurrency(&self.layout, self.memory).concurrent_requests
    }

    /// Largest number of concurrent requests within limits.
    pub(super) fn allowed_requests(&self, limits: Limits) -> Result<u64, PlanError> {
        let full = Serving { limits, ..self.job.with_full_load() };
        Ok(with_limited_concurrency(&full, &self.layout, self.memory, &self.costs)?.concurrent_requests)
    }

    /// The part with as many requests of its own arrivals as memory permits.
    pub(super) fn loaded(&self) -> LoadedServing<'_> {
        self.job.with_concurrency(&self.layout, self.memory)
    }

    /// The part on its GPUs. `loaded`: its job.
    pub(super) fn part<'b>(&'b self, loaded: &'b LoadedServing<'b>) -> ServingPart<'b> {
        ServingPart { job: loaded, layout: &self.layout, costs: self.costs }
    }

    /// Memory of the rank that uses most, and its check, with so many requests or as many as memory permits.
    pub(super) fn memory(&self, requests: u64) -> (Footprint, Option<MemoryCheck>) {
        let job = self.job.with_fixed_concurrency(requests.max(1));
        let loaded = job.with_concurrency(&self.layout, self.memory);
        let check = self.memory.map(|memory| check_memory(&loaded, &self.layout, memory));
        (serving_footprint(&loaded, &self.layout), check)
    }
}

/// Machine of one pool, with what is needed to time its steps.
struct PoolMachine<'a> {
    machine: Machine<'a>,
    speeds: PeakRates,
}

impl<'a> PoolMachine<'a> {
    fn new(
        job: &Serving,
        whole: &Machine<'a>,
        ranks: &'a [NodeId],
        simulated: &'a SimulatedCosts<'a>,
    ) -> Result<Self, TimeError> {
        let machine = Machine { router: whole.router, ranks, simulated, curve: whole.curve };
        Ok(Self { speeds: machine.serving_rates(job)?, machine })
    }

    fn pool<'b>(&'b self, job: &'b Serving, layout: Layout, allowed: &'b RestrictedCosts<'b>) -> Pool<'b> {
        let costs = StepCosts { speeds: &self.speeds, curve: &self.machine.curve, collective_costs: allowed };
        let memory = self.machine.memories(&job.placement);
        Pool { job, layout, ranks: self.machine.ranks.len() as u32, memory, costs }
    }
}

/// Returns the service with the first `gpus` GPUs for prefill.
fn divided_service(
    job: &Serving,
    pool: &PrefillPool,
    machine: &Machine<'_>,
    gpus: usize,
) -> Result<ServiceRun, TimeError> {
    let Some((prefill_ranks, decode_ranks)) = machine.ranks.split_at_checked(gpus) else {
        return Err(too_few_gpus(job, machine.ranks.len()).into());
    };
    if prefill_ranks.is_empty() || decode_ranks.is_empty() {
        return Err(too_few_gpus(job, machine.ranks.len()).into());
    }
    let [prefill_job, decode_job] = [job.prefill_part(pool), job.decode_part(pool)];
    let [prefill_simulated, decode_simulated] =
        [prefill_ranks, decode_ranks].map(|ranks| machine.simulated.for_ranks(ranks));
    let prefill_machine = PoolMachine::new(&prefill_job, machine, prefill_ranks, &prefill_simulated)?;
    let decode_machine = PoolMachine::new(&decode_job, machine, decode_ranks, &decode_simulated)?;
    let layout = |job: &Serving, machine: &Machine<'_>| -> Result<Layout, TimeError> {
        let Some(layout) = Layout::specified_by_serving(job, machine.ranks.len() as u32)? else {
            return Ok(best_service(job, machine)?.step.layout);
        };
        JobDispatch::from_serving(job).check(machine, &layout)?;
        Ok(layout)
    };
    let layouts = [layout(&prefill_job, &prefill_machine.machine)?, layout(&decode_job, &decode_machine.machine)?];
    let allowed = [&prefill_simulated, &decode_simulated].map(|simulated| simulated.restricted_to(job.collectives));
    let [prefill_layout, decode_layout] = layouts;
    let prefill = prefill_machine.pool(&prefill_job, prefill_layout, &allowed[0]);
    let decode = decode_machine.pool(&decode_job, decode_layout, &allowed[1]);
    let alone = prefill.with_requests(1)?.1;
    let prefill_time = alone.latency - prefill.job.host.request;
    let routes = KvRoutes::new(job, machine, [prefill_ranks, decode_ranks], layouts);
    let transfers = routes.transfers(pool.transfer, prefill_time)?;
    let pools = Pools {
        job,
        prefill: &prefill,
        decode: &decode,
        transfers: &transfers,
        first_token: pool.transfer.first_token,
    };
    Ok(pools.service(routes.bytes(job.prompt_tokens))?)
}
