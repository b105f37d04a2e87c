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
        let runs: Vec<Result<ServiceRun, TimeError>> = divisions(job, pool, machine).into_iter().map(divided).collect();
        let mut best: Option<ServiceRun> = None;
        let mut first_error = None;
        for run in runs {
            match run {
                Ok(run) if best.as_ref().is_none_or(|known| run.service.rank(job) < known.service.rank(job)) => {
                    best = Some(run);
                }
                Ok(_) => {}
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        return match (best, first_error) {
            (Some(best), _) => Ok(best),
            (None, Some(error)) => Err(error),
            (None, None) => Err(invalid_prefill_gpus(job, machine.ranks.len()).into()),
        };
    };
    divided(gpus as usize)
}

/// Checks that the degrees of a job with a pool for prefill fit the GPUs of both pools.
///
/// # Errors
/// [`JobError`] at `prefill_gpus`, `prefill_parallel` or `parallel` otherwise.
pub fn check_pools(job: &Serving, pool: &PrefillPool, ranks: u32) -> Result<(), JobError> {
    let Some(gpus) = pool.gpus else { return Ok(()) };
    if gpus == 0 || gpus >= ranks {
        return Err(invalid_prefill_gpus(job, ranks as usize));
    }
    Layout::specified_by_serving(&job.prefill_part(pool), gpus)?;
    Layout::specified_by_serving(&job.decode_part(pool), ranks - gpus)?;
    Ok(())
}

/// Returns the error that a number of GPUs for prefill leaves none for prefill or none for decode.
fn invalid_prefill_gpus(job: &Serving, ranks: usize) -> JobError {
    let message = match ranks {
        0 | 1 => {
            "prefill_gpus: prefill and decode on separate GPUs need 2 GPUs or more, and this machine has 1".to_owned()
        }
        _ => format!("prefill_gpus: expected 1 to {}, less than the {ranks} GPUs of the machine", ranks - 1),
    };
    JobError::at(&job.spans.prefill_gpus, message)
}

/// Numbers of GPUs for prefill that are examined: those that the degrees of both parts divide, of whole hosts if there are
/// several, otherwise of single GPUs. If the degrees divide none, all are examined, and their errors reported.
fn divisions(job: &Serving, pool: &PrefillPool, machine: &Machine<'_>) -> Vec<usize> {
    let ranks = machine.ranks.len();
    let [prefill, decode] = [job.prefill_part(pool), job.decode_part(pool)];
    let is_divisible = |job: &Serving, gpus: usize| Layout::specified_by_serving(job, gpus as u32).is_ok();
    let hosts = machine.router.fabric().group_by_host(machine.ranks);
    let host_unit = if hosts.len() > 1 { hosts.iter().map(Vec::len).max().unwrap_or(1) } else { 1 };
    let multiples = |unit: usize| (1..ranks.div_ceil(unit)).map(move |count| count * unit);
    let divisible = |unit: usize| -> Vec<usize> {
        multiples(unit).filter(|&gpus| is_divisible(&prefill, gpus) && is_divisible(&decode, ranks - gpus)).collect()
    };
    let found = [host_unit, 1].into_iter().map(divisible).find(|found| !found.is_empty());
    thinned(&found.unwrap_or_else(|| multiples(host_unit).collect()), MAX_DIVISIONS)
}

/// Returns at most `count` of sorted numbers at equal distances, with the first and the last.
fn thinned(numbers: &[usize], count: usize) -> Vec<usize> {
    if numbers.len() <= count {
        return numbers.to_vec();
    }
    let gaps = count.saturating_sub(1).max(1);
    (0..count).filter_map(|index| numbers.get(index * (numbers.len() - 1) / gaps).copied()).collect()
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
    let parts = machine.ranks.split_at_checked(gpus);
    let Some((prefill_ranks, decode_ranks)) =
        parts.filter(|(prefill, decode)| !prefill.is_empty() && !decode.is_empty())
    else {
        return Err(invalid_prefill_gpus(job, machine.ranks.len()).into());
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinned_numbers_are_equidistant_with_both_ends() {
        assert_eq!(thinned(&[4, 8, 12], 16), [4, 8, 12]);
        let found = thinned(&(1..=100).collect::<Vec<_>>(), 16);
        assert_eq!((found.len(), found[0], found[15]), (16, 1, 100));
        assert!(found.windows(2).all(|pair| (6..=7).contains(&(pair[1] - pair[0]))), "{found:?}");
        // A step of two would leave nine of seventeen.
        assert_eq!(thinned(&(1..=17).collect::<Vec<_>>(), 16).len(), 16);
    }
}
