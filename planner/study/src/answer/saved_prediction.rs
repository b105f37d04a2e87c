//! Predictions from rows of a file: of a journal (`runs.jsonl`) or of saved results (`results.json`).
//!
//! A row has the degrees of a layout but not the order of its dimensions, and no prices are read.

use std::collections::BTreeMap;
use std::str::FromStr;

use fabricast_perf::communication::Exchange;
use fabricast_perf::step::{Interval, Timeline, Track};
use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos};
use fabricast_workload::job::{Dimension, Footprint, Layout, Phase, Zero};

use super::{
    Answer, CallRow, DisaggregationRow, ExchangeRow, JobKind, LatenciesRow, LoadRow, MemoryRow, ParallelRow, ResultRow,
    TimelineRow, TrackKind,
};
use crate::prediction::{
    LinkClassLoad, MissingMemory, PredictedCall, PredictedExchange, PredictedMemory, PredictedService, PredictedStep,
    PredictedWork, Prediction, ShardedLayout, StepPart, StepTimeline, StepVariant,
};
use crate::quantities::{from_gb, from_gb_per_s, from_micros, from_seconds};
use crate::step_interval::StepInterval;

/// Name in a row that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind} `{name}`")]
pub struct UnknownRowName {
    kind: &'static str,
    name: String,
}

/// Returns the value of a name, or the error that names it.
fn known<T>(value: Option<T>, kind: &'static str, name: &str) -> Result<T, UnknownRowName> {
    value.ok_or_else(|| UnknownRowName { kind, name: name.to_owned() })
}

fn parsed<T: FromStr>(kind: &'static str, name: &str) -> Result<T, UnknownRowName> {
    known(name.parse().ok(), kind, name)
}

fn phase(name: &str) -> Result<Phase, UnknownRowName> {
    known(Phase::from_name(name), "phase", name)
}

impl Prediction {
    /// Returns the prediction of a row.
    ///
    /// # Errors
    /// [`UnknownRowName`]: a name of a phase, dimension, collective, operation, kernel, token type, part or kind of step.
    pub fn from_row(row: &ResultRow) -> Result<Self, UnknownRowName> {
        let part = |name: &str| known(StepPart::from_name(name), "part of a step", name);
        let parts: Result<BTreeMap<_, _>, _> =
            row.step_s.iter().map(|(name, &time)| Ok((part(name)?, from_seconds(time)))).collect();
        let interval = row.step_time_low_s.zip(row.step_time_high_s);
        Ok(Self {
            candidate: row.candidate.clone(),
            job: row.job.clone(),
            ranks: row.ranks,
            work: match row.kind {
                JobKind::Training => PredictedWork::Training,
                JobKind::Inference => PredictedWork::Inference(row.service()),
                JobKind::Trace => PredictedWork::Trace,
            },
            layout: row.parallel.as_ref().map(ParallelRow::sharded_layout),
            micro_batches: row.micro_batches,
            step: PredictedStep {
                time: from_seconds(row.step_time_s),
                interval: interval.map(|(low, high)| StepInterval { low: from_seconds(low), high: from_seconds(high) }),
                parts: parts?,
                bottleneck: part(&row.bottleneck)?,
                exposed_communication: row.exposed_comm_share,
                total_communication: row.total_comm_share,
                efficiency: row.efficiency,
                host_efficiency: row.efficiency_node,
            },
            tokens_per_s: row.tokens_per_s,
            samples_per_s: row.samples_per_s,
            memory: row.memory.map(|memory| PredictedMemory {
                footprint: memory.footprint(row.host_memory_gb),
                missing: MissingMemory {
                    gpu: row.memory_excess_gb.map(from_gb),
                    host: row.host_memory_excess_gb.map(from_gb),
                },
            }),
            notes: row.notes.clone(),
            timelines: row.timelines.iter().map(TimelineRow::timeline).collect::<Result<_, _>>()?,
            calls: row.calls.iter().map(CallRow::call).collect::<Result<_, _>>()?,
            exchanges: row.exchanges.iter().map(ExchangeRow::exchange).collect::<Result<_, _>>()?,
            load: row.load.iter().map(LoadRow::load).collect(),
        })
    }
}

impl Answer {
    /// Returns the prediction of a job on a candidate; `None` if the job does not run there, or the row has unknown
    /// names.
    #[must_use]
    pub fn saved_prediction(&self, candidate: &str, job: &str) -> Option<Prediction> {
        let row = self.results.iter().find(|row| row.candidate == candidate && row.job == job)?;
        Prediction::from_row(row).ok()
    }
}

impl ResultRow {
    fn service(&self) -> PredictedService {
        PredictedService {
            ttft: self.ttft_s.map(from_seconds),
            tpot: self.tpot_s.map(from_seconds),
            prefill_step: self.prefill_step_s.map(from_seconds),
            decode_step: self.decode_step_s.map(from_seconds),
            adapter_swap: self.adapter_swap_s.map(from_seconds),
            slo_violations: self.slo_violations.clone(),
            concurrent_requests: self.concurrent_requests,
            requests_that_fit: self.requests_that_fit,
            would_fit: self.would_fit.clone(),
            latencies: self.latencies.as_ref().map(LatenciesRow::latencies).map(Box::new),
            disaggregation: self.disaggregation.as_ref().map(DisaggregationRow::service).map(Box::new),
        }
    }
}

impl ParallelRow {
    pub(super) fn sharded_layout(&self) -> ShardedLayout {
        let zero = match self.zero {
            0 => Zero::None,
            1 => Zero::Optimizer,
            2 => Zero::Gradients,
            _ => Zero::Weights,
        };
        ShardedLayout { layout: Layout { degrees: self.degrees() }, zero }
    }
}

impl MemoryRow {
    fn footprint(&self, host_gb: Option<f64>) -> Footprint {
        Footprint {
            weights: from_gb(self.weights_gb),
            gradients: from_gb(self.gradients_gb),
            optimizer: from_gb(self.optimizer_gb),
            activations: from_gb(self.activations_gb),
            kv_cache: from_gb(self.kv_cache_gb),
            runtime: from_gb(self.runtime_gb),
            host: host_gb.map_or(Bytes(0), from_gb),
        }
    }
}

impl TimelineRow {
    fn timeline(&self) -> Result<StepTimeline, UnknownRowName> {
        let tracks = self.tracks.iter().map(|row| {
            let track = match row.kind {
                TrackKind::Compute => Track::Stage(row.stage),
                TrackKind::Communication => Track::Communication(row.stage),
            };
            let intervals = row.intervals.iter().map(|interval| Interval {
                activity: interval.activity,
                index: interval.number,
                chunk: interval.chunk,
                begin: Picos(interval.begin_ns.saturating_mul(1000)),
                end: Picos(interval.end_ns.saturating_mul(1000)),
            });
            (track, intervals.collect())
        });
        Ok(StepTimeline {
            step: known(StepVariant::from_name(&self.step), "step", &self.step)?,
            timeline: Timeline { tracks: tracks.collect(), omitted_stages: self.omitted_stages },
        })
    }
}

impl CallRow {
    fn call(&self) -> Result<PredictedCall, UnknownRowName> {
        Ok(PredictedCall {
            phase: phase(&self.phase)?,
            exchange: Exchange {
                dimension: known(Dimension::from_name(&self.dimension), "dimension", &self.dimension)?,
                collective: parsed::<Collective>("collective", &self.collective)?,
                bytes: Bytes(self.bytes),
            },
            ranks: self.ranks,
            groups: self.groups,
            times: self.times,
            strategy: self.pick,
            time: from_micros(self.time_us),
        })
    }
}

impl ExchangeRow {
    fn exchange(&self) -> Result<PredictedExchange, UnknownRowName> {
        Ok(PredictedExchange {
            phase: phase(&self.phase)?,
            operation: parsed("operation", &self.operation)?,
            kernel: match self.kernel == Collective::AllToAll.to_string() {
                true => None,
                false => Some(parsed("kernel", &self.kernel)?),
            },
            token_type: parsed("token type", &self.token_type)?,
            tokens: self.tokens,
            ranks: self.ranks,
            times: self.times,
            time: from_micros(self.time_us),
        })
    }
}

impl LoadRow {
    fn load(&self) -> LinkClassLoad {
        LinkClassLoad {
            class: self.links.clone(),
            count: self.count,
            bandwidth: from_gb_per_s(self.gb_per_s),
            mean: self.mean,
            max: self.max,
            busiest: self.busiest.clone(),
        }
    }
}
