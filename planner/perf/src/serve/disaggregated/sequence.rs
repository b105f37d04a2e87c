//! Service of both pools in sequence, by the kind of load.

use fabricast_search::plan::PlanError;
use fabricast_topologies::{Bytes, Picos};
use fabricast_workload::job::{Arrivals, FirstToken, Footprint, Limits, MemoryCheck, OpenLoop, Serving};

use super::super::open_loop::{
    RequestLatencies, TandemTransfers, TransferTime, open_loop_violations, overload_violation, simulate_tandem,
};
use super::super::search::ServiceRun;
use super::super::service::{Service, slo_violations};
use super::kv_transfer::KvTransfers;
use super::load_curve::{LoadCurve, SequentialLimits, SequentialLoad, sequential_load};
use super::pools::Pool;
use super::{DisaggregatedService, PoolService, TransferService};
use crate::time::share;

/// Number of halvings of the interval in which the largest rate within limits is.
const RATE_HALVINGS: u32 = 24;

/// Both pools of a job, and the transfers between them.
pub(super) struct Pools<'a> {
    pub job: &'a Serving,
    pub prefill: &'a Pool<'a>,
    pub decode: &'a Pool<'a>,
    pub transfers: &'a KvTransfers,
    pub first_token: FirstToken,
}

/// Requests per second of each part at full load.
#[derive(Clone, Copy, Debug)]
struct Capacities {
    prefill: f64,
    network: f64,
    decode: f64,
}

impl Capacities {
    fn smallest(&self) -> f64 {
        self.prefill.min(self.network).min(self.decode)
    }
}

/// Requests in each part, and their latencies.
#[derive(Clone, Debug, Default)]
struct SequentialService {
    load: SequentialLoad,
    ttft: Option<Picos>,
    tpot: Option<Picos>,
    latency: Picos,
    latencies: Option<RequestLatencies>,
    /// Requests served per second where more arrive.
    overload: Option<String>,
}

impl Pools<'_> {
    /// Returns the service of the job. `bytes`: keys and values of a prompt of mean length.
    ///
    /// # Errors
    /// [`PlanError`] if a collective has no strategy.
    pub(super) fn service(&self, bytes: Bytes) -> Result<ServiceRun, PlanError> {
        let [prefill, decode] = [self.prefill, self.decode];
        let (prefill_curve, decode_curve) = (prefill.load_curve(), decode.load_curve());
        let capacities = Capacities {
            prefill: prefill_curve.rate(prefill.max_requests() as f64)?,
            network: self.transfers.capacity,
            decode: decode_curve.rate(decode.max_requests() as f64)?,
        };
        let served = match self.job.arrivals {
            Arrivals::FixedConcurrency { concurrency: requests, .. } | Arrivals::Batch { requests, .. } => {
                let limits = SequentialLimits {
                    requests: requests as f64,
                    network: capacities.network,
                    transfer: self.exposed_transfer(),
                };
                self.closed_loop(sequential_load(&prefill_curve, &decode_curve, limits)?)
            }
            Arrivals::AutoConcurrency { .. } => self.closed_loop(self.full_load(&prefill_curve, &decode_curve)?),
            Arrivals::OpenLoop(open_loop) => self.open_loop(&open_loop, capacities, &prefill_curve, &decode_curve)?,
        };
        self.summary(&served, capacities, bytes)
    }

    fn exposed_transfer(&self) -> Picos {
        self.transfers.exposed_time(self.job.prompt_tokens)
    }

    /// Most requests within the limits of both parts.
    fn full_load<P, D>(&self, prefill: &LoadCurve<P>, decode: &LoadCurve<D>) -> Result<SequentialLoad, PlanError>
    where
        P: Fn(u64) -> Result<f64, PlanError>,
        D: Fn(u64) -> Result<f64, PlanError>,
    {
        let Limits { ttft, tpot, statistic } = self.job.limits;
        let after_prefill = match self.first_token {
            FirstToken::Prefill => Picos::ZERO,
            FirstToken::Transfer | FirstToken::Decode => self.exposed_transfer(),
        };
        let ttft = ttft.map(|limit| (limit - after_prefill).max(Picos(1)));
        let prefill_requests = self.prefill.allowed_requests(Limits { ttft, tpot: None, statistic })? as f64;
        let decode_requests = self.decode.allowed_requests(Limits { ttft: None, tpot, statistic })? as f64;
        let at_rate = |rate: f64| self.load_at_rate(rate, (prefill, prefill_requests), (decode, decode_requests));
        let meets_limits = |load: SequentialLoad| {
            let SequentialService { ttft, tpot, .. } = self.closed_loop(load);
            slo_violations(self.job, ttft, tpot).is_empty()
        };
        let largest = prefill.rate(prefill_requests)?.min(decode.rate(decode_requests)?).min(self.transfers.capacity);
        let full = at_rate(largest)?;
        if meets_limits(full) {
            return Ok(full);
        }
        // Latencies of a request include the time of more than one part, so that fewer requests may be necessary.
        let (mut accepted, mut violating) = (None, largest);
        for _ in 0..RATE_HALVINGS {
            let load = at_rate(f64::midpoint(accepted.map_or(0.0, |load: SequentialLoad| load.rate), violating))?;
            if meets_limits(load) { accepted = Some(load) } else { violating = load.rate }
        }
        Ok(accepted.unwrap_or(full))
    }

    /// Requests in each part at a rate. Each of `prefill` and `decode` is the curve of a part, and its most requests.
    fn load_at_rate<P, D>(
        &self,
        rate: f64,
        prefill: (&LoadCurve<P>, f64),
        decode: (&LoadCurve<D>, f64),
    ) -> Result<SequentialLoad, PlanError>
    where
        P: Fn(u64) -> Result<f64, PlanError>,
        D: Fn(u64) -> Result<f64, PlanError>,
    {
        Ok(SequentialLoad {
            rate,
            prefill: prefill.0.requests(rate, prefill.1)?.unwrap_or(prefill.1),
            transfer: rate * self.exposed_transfer().0 as f64 / 1e12,
            decode: decode.0.requests(rate, decode.1)?.unwrap_or(decode.1),
        })
    }

    /// Mean latencies of a closed loop, by Little's law.
    fn closed_loop(&self, load: SequentialLoad) -> SequentialService {
        let time = |requests: f64| Picos((requests / load.rate.max(f64::MIN_POSITIVE) * 1e12).round() as u64);
        let [prefill, transfer, decode] = [load.prefill, load.transfer, load.decode].map(time);
        let output = self.job.output_tokens.max(2);
        let each = |time: Picos, tokens: u64| share(time, 1.0 / tokens as f64);
        let (ttft, tpot) = match self.first_token {
            FirstToken::Prefill => (prefill, each(transfer + decode, output - 1)),
            FirstToken::Transfer => (prefill + transfer, each(decode, output - 1)),
            FirstToken::Decode => (prefill + transfer + each(decode, output), each(decode, output)),
        };
        let latency = prefill + transfer + decode;
        SequentialService { load, ttft: Some(ttft), tpot: Some(tpot), latency, ..SequentialService::default() }
    }

    /// Simulates requests that arrive at a rate.
    fn open_loop<P, D>(
        &self,
        open_loop: &OpenLoop,
        capacities: Capacities,
        prefill: &LoadCurve<P>,
        decode: &LoadCurve<D>,
    ) -> Result<SequentialService, PlanError>
    where
        P: Fn(u64) -> Result<f64, PlanError>,
        D: Fn(u64) -> Result<f64, PlanError>,
    {
        let rate = open_loop.rate().min(capacities.smallest());
        let [most_prefill, most_decode] = [self.prefill, self.decode].map(|pool| pool.max_requests() as f64);
        let load = self.load_at_rate(rate, (prefill, most_prefill), (decode, most_decode))?;
        let overloaded = |served: f64| SequentialService {
            load: SequentialLoad { rate: served, ..load },
            overload: Some(overload_violation(served, open_loop)),
            ..self.closed_loop(load)
        };
        if rate < open_loop.rate() && open_loop.requests.is_none() {
            return Ok(overloaded(rate));
        }
        let [prefill_job, decode_job] = [self.prefill.loaded(), self.decode.loaded()];
        let parts = [self.prefill.part(&prefill_job), self.decode.part(&decode_job)];
        let transfers =
            TandemTransfers { paths: self.transfers.paths, time: self.transfers, first_token: self.first_token };
        let running = (load.prefill + load.transfer + load.decode).ceil() as u64;
        let simulated = simulate_tandem(parts, transfers, &self.job.variation, open_loop, running)?;
        if simulated.is_overloaded {
            return Ok(overloaded(simulated.requests_per_s));
        }
        let Some(latencies) = simulated.latencies else { return Ok(self.closed_loop(load)) };
        let mean = |summary: Option<super::super::LatencySummary>| Some(summary?.mean);
        Ok(SequentialService {
            load: SequentialLoad { rate: simulated.requests_per_s, ..load },
            ttft: mean(latencies.ttft),
            tpot: mean(latencies.tpot),
            latency: latencies.latency.mean,
            latencies: Some(latencies),
            overload: None,
        })
    }

    fn summary(
        &self,
        served: &SequentialService,
        capacities: Capacities,
        bytes: Bytes,
    ) -> Result<ServiceRun, PlanError> {
        let load = served.load;
        let whole = |requests: f64| (requests.round() as u64).max(1);
        let [prefill_requests, decode_requests] = [load.prefill, load.decode].map(whole);
        let with_prefill = self.prefill.with_requests(prefill_requests)?.1.with_prefill;
        let (step, decoded) = self.decode.with_requests(decode_requests)?;
        let [(prefill_memory, prefill_check), (decode_memory, decode_check)] =
            [self.prefill.memory(prefill_requests), self.decode.memory(decode_requests)];
        let pool = |pool: &Pool<'_>, capacity: f64, requests: u64| PoolService {
            ranks: pool.ranks,
            layout: pool.layout,
            capacity,
            requests,
        };
        let is_overloaded = served.overload.is_some();
        let service = Service {
            ttft: served.ttft.filter(|_| !is_overloaded),
            tpot: served.tpot,
            latency: served.latency,
            tokens_per_s: load.rate * self.job.output_tokens as f64,
            with_prefill,
            without_prefill: decoded.without_prefill,
            slo_violations: Vec::new(),
            concurrent_requests: whole(load.prefill + load.transfer + load.decode),
            latencies: served.latencies,
            adapter_swap: decoded.adapter_swap,
            memory_check: combined_check(prefill_check, decode_check),
            disaggregation: Some(DisaggregatedService {
                prefill: pool(self.prefill, capacities.prefill, prefill_requests),
                decode: pool(self.decode, capacities.decode, decode_requests),
                transfer: TransferService {
                    bytes,
                    time: self.transfers.time(self.job.prompt_tokens),
                    exposed: self.exposed_transfer(),
                    capacity: capacities.network,
                    link_share: (load.rate / capacities.network.max(f64::MIN_POSITIVE)).min(1.0),
                },
            }),
        };
        let violations = match self.job.arrivals {
            Arrivals::OpenLoop(_) => open_loop_violations(self.job, &service),
            Arrivals::FixedConcurrency { .. } | Arrivals::AutoConcurrency { .. } | Arrivals::Batch { .. } => {
                slo_violations(self.job, service.ttft, service.tpot)
            }
        };
        let slo_violations = served.overload.clone().into_iter().chain(violations).collect();
        let footprint = larger(prefill_memory, decode_memory);
        Ok(ServiceRun { step, footprint, service: Service { slo_violations, ..service } })
    }
}

/// Memory of the more loaded of two ranks.
fn larger(one: Footprint, other: Footprint) -> Footprint {
    if one.total() > other.total() { one } else { other }
}

/// Memory check of both pools: that of decode, unless prefill lacks more.
fn combined_check(prefill: Option<MemoryCheck>, decode: Option<MemoryCheck>) -> Option<MemoryCheck> {
    let (prefill, decode) = (prefill?, decode?);
    let missing = |check: &MemoryCheck| (check.missing, check.missing_host);
    Some(if missing(&prefill) > missing(&decode) { prefill } else { decode })
}
