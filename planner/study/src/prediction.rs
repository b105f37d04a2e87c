//! Prediction of a job on a machine: result of a run. It contains no prices and no rows; `answer` makes the rows of
//! `results.json` from it.

use std::collections::BTreeMap;

use fabricast_collectives::strategy::Strategy;
use fabricast_experts::{ExchangeKernel, Operation, TokenType};
use fabricast_perf::communication::Exchange;
use fabricast_perf::serve::{DisaggregatedService, RequestLatencies};
use fabricast_perf::step::{Share, Timeline};
use fabricast_topologies::variants::variants;
use fabricast_topologies::{Bandwidth, Bytes, Picos};
use fabricast_workload::job::{Footprint, Layout, Phase, Zero};
use strum::{EnumCount, VariantArray};

use super::quantities::{seconds, seconds_per_unit};
use super::step_interval::StepInterval;

/// Prediction of a job on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Name of the candidate for which the run was executed. Candidates with equal machines share runs.
    pub candidate: String,
    /// Name of the job for which the run was executed.
    pub job: String,
    /// Number of ranks, which is the number of GPUs in use.
    pub ranks: u64,
    /// Figures that only one kind of work has.
    pub work: PredictedWork,
    /// Parallel layout; `None` for traces.
    pub layout: Option<ShardedLayout>,
    /// Number of forward passes per rank and step.
    pub micro_batches: u64,
    /// Time of a step and its parts.
    pub step: PredictedStep,
    /// Number of training or output tokens per second over all GPUs; `None` for traces.
    pub tokens_per_s: Option<f64>,
    /// Number of sequences or requests per second; `None` for traces.
    pub samples_per_s: Option<f64>,
    /// Memory of the most loaded rank; `None` for traces.
    pub memory: Option<PredictedMemory>,
    /// Assumptions behind the figures on this machine. Each is a sentence without the final period.
    pub notes: Vec<String>,
    /// Timelines of steps.
    pub timelines: Vec<StepTimeline>,
    /// Calls of a step; for inference, of the mean step.
    pub calls: Vec<PredictedCall>,
    /// Exchanges of tokens with experts by kernels of dispatch libraries; for inference, of the mean step.
    pub exchanges: Vec<PredictedExchange>,
    /// Link utilization in the step, busiest class first.
    pub load: Vec<LinkClassLoad>,
}

/// Kind of work, with the figures that only it has.
#[derive(Clone, Debug, PartialEq)]
pub enum PredictedWork {
    /// Training of a model, in steps.
    Training,
    /// Inference, in requests.
    Inference(PredictedService),
    /// Replay of a recorded trace.
    Trace,
}

/// Service that the requests of an inference job get.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PredictedService {
    /// Time to first token; `None` for a batch.
    pub ttft: Option<Picos>,
    /// Time per output token.
    pub tpot: Option<Picos>,
    /// Time of a step with prefill.
    pub prefill_step: Option<Picos>,
    /// Time of a decode-only step; `None` if all steps carry prefill.
    pub decode_step: Option<Picos>,
    /// Time to swap a resident adapter; `None` without adapters.
    pub adapter_swap: Option<Picos>,
    /// SLO violations, each with the limit, the predicted value and the requested value.
    pub slo_violations: Vec<String>,
    /// Number of concurrent requests over all replicas.
    pub concurrent_requests: Option<u64>,
    /// Number of concurrent requests that fit in memory, over all replicas; `None` if the memory is unknown.
    pub requests_that_fit: Option<u64>,
    /// Changes of the job that make it fit in memory, each sufficient by itself.
    pub would_fit: Vec<String>,
    /// Distributions of the latencies of an open loop.
    pub latencies: Option<Box<RequestLatencies>>,
    /// Separate GPUs for prefill and decode; `None` if all process the same part of requests.
    pub disaggregation: Option<Box<DisaggregatedService>>,
}

/// Parallel layout, with the states that its data-parallel ranks shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardedLayout {
    /// Degrees of parallelism.
    pub layout: Layout,
    /// ZeRO stage.
    pub zero: Zero,
}

/// Time of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictedStep {
    /// Completion time. For inference the mean over steps, for a trace that of its last event.
    pub time: Picos,
    /// Interval of the time; `None` for traces.
    pub interval: Option<StepInterval>,
    /// Parts of the time, which add up to it.
    pub parts: BTreeMap<StepPart, Picos>,
    /// Part with the longest time.
    pub bottleneck: StepPart,
    /// Exposed communication as a fraction of the step.
    pub exposed_communication: f64,
    /// Sum of the times of all calls ÷ time of the step. Concurrent calls count separately, so that the ratio can exceed 1.
    pub total_communication: f64,
    /// Speed-up over one GPU with unlimited memory, divided by the number of GPUs; `None` for traces.
    pub efficiency: Option<f64>,
    /// Speed-up over one host, divided by the number of hosts; `None` if the job cannot run on one host.
    pub host_efficiency: Option<f64>,
}

impl PredictedStep {
    /// Returns the part of the calls' time that is hidden behind computation and other calls, from 0 to 1; `None` without
    /// calls.
    #[must_use]
    pub fn hidden_communication(&self) -> Option<f64> {
        // The exposed communication of a trace includes time in which a rank waits for another one.
        let hidden = (1.0 - self.exposed_communication / self.total_communication).max(0.0);
        (self.total_communication > 0.0).then_some(hidden)
    }
}

/// Part of the time of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepPart {
    /// Share of a step of training or inference. The computation of a trace is [`Share::Compute`].
    Share(Share),
    /// Exposed communication of a trace.
    Communication,
    /// Time of a trace in which its busiest rank neither computes nor communicates.
    Waiting,
}

impl StepPart {
    /// Returns the name of the part in JSON output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Share(share) => share.name(),
            Self::Communication => "communication",
            Self::Waiting => "waiting",
        }
    }

    /// Returns the part with a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let shares = Share::ALL.map(Self::Share);
        shares.into_iter().chain([Self::Communication, Self::Waiting]).find(|part| part.name() == name)
    }
}

/// Memory of the most loaded rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictedMemory {
    /// Memory by use.
    pub footprint: Footprint,
    /// Memory needed in excess of the available memory.
    pub missing: MissingMemory,
}

/// Additional memory that a rank would need; both fields are `None` if the job fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissingMemory {
    /// Memory needed in excess of the memory of the rank's GPU.
    pub gpu: Option<Bytes>,
    /// Memory needed in excess of the rank's share of the memory of its CPU.
    pub host: Option<Bytes>,
}

/// Timeline of a kind of step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTimeline {
    /// Kind of step.
    pub step: StepVariant,
    /// Timeline, shortened for display and in whole nanoseconds.
    pub timeline: Timeline,
}

impl StepTimeline {
    /// Shortens a timeline for display and rounds its times down to whole nanoseconds.
    #[must_use]
    pub fn new(step: StepVariant, timeline: Timeline) -> Self {
        let mut timeline = timeline.shortened();
        let whole_nanoseconds = |time: Picos| Picos(time.0 / 1000 * 1000);
        for interval in timeline.tracks.iter_mut().flat_map(|(_, intervals)| intervals) {
            interval.begin = whole_nanoseconds(interval.begin);
            interval.end = whole_nanoseconds(interval.end);
        }
        Self { step, timeline }
    }
}

/// Kind of step that a timeline shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, VariantArray)]
pub enum StepVariant {
    /// Step of training.
    Training,
    /// Step of inference with prefill.
    WithPrefill,
    /// Step of inference without prefill.
    DecodeOnly,
}

impl StepVariant {
    /// All kinds of steps.
    const ALL: [Self; Self::COUNT] = variants();

    /// Returns the name of the kind in JSON output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Training => "step",
            Self::WithPrefill => "with prompts",
            Self::DecodeOnly => "without prompts",
        }
    }

    /// Returns the kind with a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.name() == name)
    }
}

/// Call of a step with its completion time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictedCall {
    /// Phase of the step in which the call is made.
    pub phase: Phase,
    /// Dimension of the groups, collective and message size. For gradients, the size of a bucket.
    pub exchange: Exchange,
    /// Number of ranks per group.
    pub ranks: u64,
    /// Number of concurrent groups.
    pub groups: u64,
    /// Mean number of calls per rank and step.
    pub times: f64,
    /// Strategy of the call.
    pub strategy: Strategy,
    /// Completion time of one call with all groups concurrent.
    pub time: Picos,
}

/// Exchange of experts' tokens by the kernel of a library.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictedExchange {
    /// Phase of the step in which tokens are exchanged.
    pub phase: Phase,
    /// Dispatch or combine.
    pub operation: Operation,
    /// Kernel; `None` if it does not run on the machine and an all_to_all replaces it.
    pub kernel: Option<ExchangeKernel>,
    /// Type in which tokens travel.
    pub token_type: TokenType,
    /// Tokens of each rank.
    pub tokens: u64,
    /// Ranks per group.
    pub ranks: u64,
    /// Mean number of exchanges per rank and step.
    pub times: f64,
    /// Completion time of one exchange with all groups concurrent.
    pub time: Picos,
}

/// Utilization of a class of links in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkClassLoad {
    /// Kind of link and of the devices at its ends, such as `NVLink, GPU to NVSwitch`.
    pub class: String,
    /// Number of links of the class.
    pub count: u64,
    /// Bandwidth per direction; 0 if it is unlimited.
    pub bandwidth: Bandwidth,
    /// Mean utilization over the step and both directions, 0 to 1.
    pub mean: f64,
    /// Utilization of the busiest direction, 0 to 1.
    pub max: f64,
    /// Name of the busiest direction of a link.
    pub busiest: String,
}

impl Prediction {
    /// Returns the service of an inference job; `None` for other work.
    #[must_use]
    pub fn service(&self) -> Option<&PredictedService> {
        match &self.work {
            PredictedWork::Inference(service) => Some(service),
            PredictedWork::Training | PredictedWork::Trace => None,
        }
    }

    /// Returns the memory that the job lacks.
    #[must_use]
    pub fn missing_memory(&self) -> MissingMemory {
        self.memory.map(|memory| memory.missing).unwrap_or_default()
    }

    /// Returns true if the job fits in memory, as far as the memory is known, and meets its limits.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.missing_memory() == MissingMemory::default()
            && self.service().is_none_or(|service| service.slo_violations.is_empty())
    }

    /// Returns the number of seconds per million tokens; for a trace, its completion time in seconds.
    #[must_use]
    pub fn seconds_per_unit(&self) -> f64 {
        seconds_per_unit(self.tokens_per_s, seconds(self.step.time))
    }
}
