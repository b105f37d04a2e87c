//! Requests of an open loop on GPUs for prefill, over the network, and on GPUs for decode.
//!
//! Prefill does not wait for room in decode: keys and values that are not transferred yet stay with it.

use fabricast_search::plan::PlanError;
use fabricast_topologies::Picos;
use fabricast_workload::job::{FirstToken, Layout, LoadedServing, OpenLoop, RequestVariation};
use rustc_hash::FxHashMap;

use super::super::step_costs::StepCosts;
use super::latencies::{RequestLatencies, RequestTimes};
use super::queue::{RequestQueue, RequestServer, StepTime, StreamSetup};
use super::request_source::Request;
use super::scheduler::CachedPrompt;
use super::transfer_queue::{DeliveredRequest, TransferPaths, TransferQueue, TransferTime};
use super::{SampledCosts, StreamTimes, simulate_benchmark, simulate_steady_state, stream_setup};

/// Part of a job on its GPUs.
#[derive(Clone, Copy)]
pub(in crate::serve) struct ServingPart<'a> {
    pub job: &'a LoadedServing<'a>,
    pub layout: &'a Layout,
    pub costs: StepCosts<'a>,
}

impl<'a> ServingPart<'a> {
    /// Times of steps, with those of collectives from `sampled`.
    fn times(self, sampled: &'a SampledCosts<'a>) -> StreamTimes<'a> {
        let costs = StepCosts { collective_costs: sampled, ..self.costs };
        StreamTimes { job: self.job, layout: self.layout, costs }
    }
}

/// Transfers between prefill and decode.
#[derive(Clone, Copy)]
pub(in crate::serve) struct TandemTransfers<'a> {
    pub paths: TransferPaths,
    pub time: &'a dyn TransferTime,
    pub first_token: FirstToken,
}

/// Simulated service of an open loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::serve) struct TandemService {
    /// Latencies of the requests.
    pub latencies: Option<RequestLatencies>,
    /// Requests served per second.
    pub requests_per_s: f64,
    /// True if more requests arrive than are served.
    pub is_overloaded: bool,
}

/// Simulates an open loop whose requests are prefilled, transferred and decoded. `running`: expected number of requests in
/// the system.
///
/// # Errors
/// [`PlanError`] if a collective has no strategy.
pub(in crate::serve) fn simulate_tandem(
    [prefill, decode]: [ServingPart<'_>; 2],
    transfers: TandemTransfers<'_>,
    variation: &RequestVariation,
    open_loop: &OpenLoop,
    running: u64,
) -> Result<TandemService, PlanError> {
    let [prefill_costs, decode_costs] = [prefill, decode].map(|part| SampledCosts::new(part.costs.collective_costs));
    let [prefill_times, decode_times] = [prefill.times(&prefill_costs), decode.times(&decode_costs)];
    let [prefill_setup, decode_setup] =
        [prefill, decode].map(|part| stream_setup(part.job, open_loop.max_num_seqs, part.layout));
    let cached_prompt = match transfers.first_token {
        FirstToken::Prefill | FirstToken::Transfer => CachedPrompt::Whole,
        FirstToken::Decode => CachedPrompt::AllButLast,
    };
    let decode_setup = StreamSetup { cached_prompt, ..decode_setup };
    let server = || {
        let [prefill, decode] = [(&prefill_times, prefill_setup), (&decode_times, decode_setup)]
            .map(|(times, setup)| RequestQueue::new(times, setup));
        TandemQueue::new(prefill, transfers, decode)
    };
    let simulated = match open_loop.requests {
        None => simulate_steady_state(server(), variation, open_loop, running)?,
        Some(requests) => simulate_benchmark(server, variation, open_loop, requests)?,
    };
    Ok(TandemService {
        latencies: RequestLatencies::new(&simulated.times),
        requests_per_s: simulated.requests_per_s,
        is_overloaded: simulated.is_overloaded,
    })
}

/// Request in one of the queues, with its first token if that exists.
#[derive(Clone, Copy, Debug)]
struct TandemRequest {
    request: Request,
    first_token: Option<Picos>,
}

/// Queue of prefill, transfers, and queue of decode.
pub(super) struct TandemQueue<'a, T> {
    prefill: RequestQueue<'a, T>,
    transfers: TransferQueue,
    decode: RequestQueue<'a, T>,
    links: TandemTransfers<'a>,
    /// Requests that have not ended, by number.
    requests: FxHashMap<u64, TandemRequest>,
    finished: Vec<RequestTimes>,
}

impl<'a, T: StepTime> TandemQueue<'a, T> {
    /// Creates an idle queue.
    pub(super) fn new(prefill: RequestQueue<'a, T>, links: TandemTransfers<'a>, decode: RequestQueue<'a, T>) -> Self {
        let transfers = TransferQueue::new(links.paths);
        Self { prefill, transfers, decode, links, requests: FxHashMap::default(), finished: Vec::new() }
    }

    /// Passes on the requests whose prefill or transfer ends up to `now`.
    fn run_until(&mut self, now: Picos) -> Result<(), T::Error> {
        self.prefill.run_until(now)?;
        let mut delivered = Vec::new();
        for RequestTimes { request, end, .. } in std::mem::take(&mut self.prefill.finished) {
            if self.links.first_token == FirstToken::Prefill {
                self.set_first_token(request.number, end);
            }
            let time = self.links.time.exposed_time(request.prompt);
            self.transfers.begin(request, end, time, &mut delivered);
        }
        self.transfers.run_until(now, &mut delivered);
        for DeliveredRequest { request, delivery } in delivered {
            if self.links.first_token == FirstToken::Transfer {
                self.set_first_token(request.number, delivery);
            }
            self.start_decode(request.number, delivery)?;
        }
        self.decode.run_until(now)?;
        for RequestTimes { request, first_token, end } in std::mem::take(&mut self.decode.finished) {
            self.finish(request.number, first_token, end);
        }
        Ok(())
    }

    fn set_first_token(&mut self, number: u64, time: Picos) {
        if let Some(known) = self.requests.get_mut(&number) {
            known.first_token.get_or_insert(time);
        }
    }

    /// Adds a request to the queue of decode; one whose only token exists has ended.
    fn start_decode(&mut self, number: u64, delivery: Picos) -> Result<(), T::Error> {
        match self.requests.get(&number).copied() {
            Some(TandemRequest { request, first_token: Some(first) }) if request.output <= 1 => {
                self.finish(number, None, first);
                Ok(())
            }
            Some(TandemRequest { request, .. }) => self.decode.arrive(Request { arrival: delivery, ..request }),
            None => Ok(()),
        }
    }

    fn finish(&mut self, number: u64, decoded_first: Option<Picos>, end: Picos) {
        if let Some(TandemRequest { request, first_token }) = self.requests.remove(&number) {
            self.finished.push(RequestTimes { request, first_token: first_token.or(decoded_first), end });
        }
    }
}

impl<T: StepTime> RequestServer for TandemQueue<'_, T> {
    type Error = T::Error;

    fn arrive(&mut self, request: Request) -> Result<(), T::Error> {
        self.run_until(request.arrival)?;
        self.requests.insert(request.number, TandemRequest { request, first_token: None });
        // Prefill ends with the first token.
        self.prefill.arrive(Request { output: 1, ..request })
    }

    fn drain(&mut self) -> Result<(), T::Error> {
        self.run_until(Picos(u64::MAX))
    }

    fn finished(&self) -> &[RequestTimes] {
        &self.finished
    }
}
