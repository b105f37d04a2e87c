//! Rows of `results.json` and `runs.jsonl` from predictions and their costs.

use fabricast_perf::step::Track;
use fabricast_sim::schedule::Collective;
use fabricast_workload::job::{EndAccounting, ExpertSharding, Footprint, Zero};

use super::{
    CallRow, DisaggregationRow, ExchangeRow, GoodputRow, IntervalRow, JobKind, LatenciesRow, LoadRow, MemoryRow,
    ParallelRow, ResultRow, TimelineRow, TrackKind, TrackRow,
};
use crate::Band;
use crate::cost::RunCosts;
use crate::prediction::{
    LinkClassLoad, PredictedCall, PredictedExchange, PredictedMemory, PredictedService, PredictedStep, PredictedWork,
    Prediction, ShardedLayout, StepTimeline,
};
use crate::quantities::{gb, seconds};

impl ResultRow {
    /// Creates the row of a prediction with its costs, under the names for which the run was executed.
    #[must_use]
    pub fn new(prediction: &Prediction, costs: &RunCosts) -> Self {
        let PredictedStep { time, interval, ref parts, bottleneck, .. } = prediction.step;
        let no_service = PredictedService::default();
        let service = prediction.service().unwrap_or(&no_service);
        let memory = prediction.memory.map(|PredictedMemory { footprint, .. }| footprint);
        let missing = prediction.missing_memory();
        let energy = costs.kwh_per_million_tokens;
        let energy_band = energy.filter(|band| band.is_wide());
        Self {
            candidate: prediction.candidate.clone(),
            job: prediction.job.clone(),
            kind: match prediction.work {
                PredictedWork::Training => JobKind::Training,
                PredictedWork::Inference(_) => JobKind::Inference,
                PredictedWork::Trace => JobKind::Trace,
            },
            ranks: prediction.ranks,
            parallel: prediction.layout.as_ref().map(ParallelRow::new),
            micro_batches: prediction.micro_batches,
            step_time_s: seconds(time),
            step_time_low_s: interval.map(|interval| seconds(interval.low)),
            step_time_high_s: interval.map(|interval| seconds(interval.high)),
            tokens_per_s: prediction.tokens_per_s,
            samples_per_s: prediction.samples_per_s,
            ttft_s: service.ttft.map(seconds),
            tpot_s: service.tpot.map(seconds),
            latencies: service.latencies.as_deref().map(LatenciesRow::new),
            disaggregation: service.disaggregation.as_deref().map(DisaggregationRow::new),
            prefill_step_s: service.prefill_step.map(seconds),
            decode_step_s: service.decode_step.map(seconds),
            adapter_swap_s: service.adapter_swap.map(seconds),
            slo_violations: service.slo_violations.clone(),
            concurrent_requests: service.concurrent_requests,
            requests_that_fit: service.requests_that_fit,
            would_fit: service.would_fit.clone(),
            exposed_comm_share: prediction.step.exposed_communication,
            total_comm_share: prediction.step.total_communication,
            hidden_comm_share: prediction.step.hidden_communication(),
            efficiency: prediction.step.efficiency,
            efficiency_node: prediction.step.host_efficiency,
            step_s: parts.iter().map(|(part, &time)| (part.name().to_owned(), seconds(time))).collect(),
            memory_gb: memory.map(|footprint| gb(footprint.total())),
            memory: memory.as_ref().map(MemoryRow::new),
            fits: prediction.fits(),
            memory_excess_gb: missing.gpu.map(gb),
            host_memory_gb: memory.map(|footprint| footprint.host).filter(|host| host.0 > 0).map(gb),
            host_memory_excess_gb: missing.host.map(gb),
            cost_per_hour: costs.per_hour.map(Band::middle),
            cost_per_hour_low: costs.per_hour.map(|band| band.low),
            cost_per_hour_high: costs.per_hour.map(|band| band.high),
            cost_per_step: costs.per_step,
            cost_per_million_tokens: costs.per_million_tokens.map(Band::middle),
            cost_per_million_tokens_low: costs.per_million_tokens.map(|band| band.low),
            cost_per_million_tokens_high: costs.per_million_tokens.map(|band| band.high),
            kwh_per_million_tokens: energy.map(Band::middle),
            kwh_per_million_tokens_low: energy_band.map(|band| band.low),
            kwh_per_million_tokens_high: energy_band.map(|band| band.high),
            time_to_train_h: costs.training_hours,
            cost_to_train: costs.training_cost,
            goodput: costs.goodput.as_ref().map(GoodputRow::new),
            bottleneck: bottleneck.name().to_owned(),
            notes: prediction.notes.clone(),
            timelines: prediction.timelines.iter().map(TimelineRow::new).collect(),
            calls: prediction.calls.iter().map(CallRow::new).collect(),
            exchanges: prediction.exchanges.iter().map(ExchangeRow::new).collect(),
            load: prediction.load.iter().map(LoadRow::new).collect(),
        }
    }
}

impl ParallelRow {
    pub(super) fn new(sharded: &ShardedLayout) -> Self {
        let degrees = sharded.layout.degrees;
        Self {
            tp: degrees.tensor,
            pp: degrees.pipeline,
            dp: degrees.data,
            ep: degrees.expert,
            etp: (degrees.experts == ExpertSharding::Whole).then_some(1),
            cp: degrees.context,
            interleave: degrees.interleave,
            sequence: degrees.token_shares() > 1,
            ends_as_layers: degrees.ends == EndAccounting::AsLayers,
            zero: match sharded.zero {
                Zero::None => 0,
                Zero::Optimizer => 1,
                Zero::Gradients => 2,
                Zero::Weights => 3,
            },
            shard: degrees.shard,
        }
    }
}

impl MemoryRow {
    fn new(footprint: &Footprint) -> Self {
        Self {
            weights_gb: gb(footprint.weights),
            gradients_gb: gb(footprint.gradients),
            optimizer_gb: gb(footprint.optimizer),
            activations_gb: gb(footprint.activations),
            kv_cache_gb: gb(footprint.kv_cache),
            runtime_gb: gb(footprint.runtime),
        }
    }
}

impl TimelineRow {
    fn new(timeline: &StepTimeline) -> Self {
        let StepTimeline { step, timeline } = timeline;
        let tracks = timeline.tracks.iter().map(|(track, intervals)| {
            let (stage, kind) = match *track {
                Track::Stage(stage) => (stage, TrackKind::Compute),
                Track::Communication(stage) => (stage, TrackKind::Communication),
            };
            let rows = intervals.iter().map(|interval| IntervalRow {
                activity: interval.activity,
                number: interval.index,
                chunk: interval.chunk,
                begin_ns: interval.begin.0 / 1000,
                end_ns: interval.end.0 / 1000,
            });
            TrackRow { stage, kind, intervals: rows.collect() }
        });
        Self { step: step.name().to_owned(), omitted_stages: timeline.omitted_stages, tracks: tracks.collect() }
    }
}

impl CallRow {
    fn new(call: &PredictedCall) -> Self {
        Self {
            phase: call.phase.name().to_owned(),
            dimension: call.exchange.dimension.name().to_owned(),
            collective: call.exchange.collective.to_string(),
            bytes: call.exchange.bytes.0,
            ranks: call.ranks,
            groups: call.groups,
            times: call.times,
            pick: call.strategy,
            time_us: call.time.us(),
        }
    }
}

impl ExchangeRow {
    fn new(exchange: &PredictedExchange) -> Self {
        let collective = || Collective::AllToAll.to_string();
        Self {
            phase: exchange.phase.name().to_owned(),
            operation: exchange.operation.name().to_owned(),
            kernel: exchange.kernel.map_or_else(collective, |kernel| kernel.name().to_owned()),
            token_type: exchange.token_type.name().to_owned(),
            tokens: exchange.tokens,
            ranks: exchange.ranks,
            times: exchange.times,
            time_us: exchange.time.us(),
        }
    }
}

impl LoadRow {
    fn new(load: &LinkClassLoad) -> Self {
        Self {
            links: load.class.clone(),
            count: load.count,
            gb_per_s: load.bandwidth.gb_per_s(),
            mean: load.mean,
            max: load.max,
            busiest: load.busiest.clone(),
        }
    }
}
