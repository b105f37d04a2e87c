//! Reader of job files (TOML). Errors have the line and column of the invalid value.
//!
//! The keys of all kinds of jobs are parsed together; keys of another kind are then rejected at their location.
//! `read/training` and `read/serving` interpret the keys of their kind, `read/model` those of models.

mod catalogue;
mod checkpoint;
mod disaggregation;
mod experts;
mod hugging_face;
mod kv_tier;
mod lora;
mod model;
mod open_loop;
mod placement;
mod served_adapters;
mod serving;
mod speculation;
mod traced;
mod training;

#[cfg(test)]
pub(crate) use serving::tests as serving_tests;

use std::fmt;
use std::ops::{Range, RangeInclusive};

use fabricast_topologies::fabric::suggest_names;
use fabricast_topologies::{Origin, SourceLocation};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use toml::Spanned;

pub use catalogue::{NamedModel, named_models};
pub use hugging_face::configuration_notes;
use model::{ModelText, overflow_bound};
use placement::PlacementText;
use training::FlashText;

use super::groups::Order;
use super::layout::{Degrees, EndAccounting, ExpertSharding, SequenceParallelism};
use super::{
    Accumulate, Batching, CollectiveCandidates, DispatchPrecision, Dispatcher, GradientAddition, Job, JobError,
    JobSpans, KernelFusion, KvPrecision, LatencyStatistic, LaunchMode, Lengths, OptimizerDevice, Parallel, Precision,
    Processes, Recompute, StatePartition, StepScheduling, Tier,
};

use crate::trace::Contents;

/// Converts an error of the TOML reader to a job error with its source location.
pub fn toml_error(origin: Origin<'_>, error: &toml::de::Error) -> JobError {
    let location =
        error.span().map_or_else(|| SourceLocation::from_source(origin.source), |bytes| origin.locate(bytes));
    let message = error.message().trim().replace('\n', "; ");
    JobError { help: suggestion(&message), ..JobError::at(&location, message) }
}

/// Returns a suggestion from a serde message such as "unknown field `a`, expected `b` or `c`": the expected name most
/// similar to the unknown one.
fn suggestion(message: &str) -> Option<String> {
    let mut quoted = message.strip_prefix("unknown ")?.split('`').skip(1).step_by(2);
    let unknown = quoted.next()?;
    nearest(unknown, quoted.filter(|known| !known.is_empty()))
}

/// Returns the known name most similar to an unknown one, as a question.
pub fn nearest<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    suggest_names(unknown, known).first().map(|name| format!("did you mean `{name}`?"))
}

/// Returns the reason why a name cannot be shown in terminals, pages and pictures; `None` if the name is valid.
pub fn name_problem(name: &str) -> Option<&'static str> {
    match name {
        blank if blank.trim().is_empty() => Some("name: must not be empty"),
        hidden if hidden.chars().any(char::is_control) => Some("name: must have no control characters"),
        _ => None,
    }
}

/// Formats a number; very large and very small ones in scientific notation.
pub fn format_number(number: f64) -> String {
    let size = number.abs();
    if size >= 1e15 || (size > 0.0 && size < 1e-6) { format!("{number:e}") } else { number.to_string() }
}

/// Reads the keys of one job, without the enclosing `[[job]]`; `source` is the name used in errors.
///
/// # Errors
/// [`JobError`] with line and column: invalid TOML, unknown keys, invalid values.
pub fn read_job(text: &str, source: &str) -> Result<Job, JobError> {
    let origin = Origin::new(source, text);
    let keys: JobText = toml::from_str(text).map_err(|error| toml_error(origin, &error))?;
    keys.job(origin, origin.locate(0..0), FileResolver::NONE)
}

/// Keys of a job file as parsed, before validation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of keys")]
pub struct JobText {
    /// Name of the job.
    pub name: Spanned<String>,
    /// In a study: names of the candidates that the job runs on.
    pub candidates: Option<Spanned<Vec<Spanned<String>>>>,
    kind: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "catalogue::model")]
    model: Option<Spanned<ModelText>>,
    seq: Option<Spanned<u64>>,
    precision: Option<Spanned<Precision>>,
    framework: Option<Spanned<String>>,
    parallel: Option<Spanned<ParallelText>>,
    placement: Option<Spanned<PlacementText>>,
    #[serde(default)]
    collectives: CollectiveCandidates,
    expert_skew: Option<Spanned<f64>>,
    dispatcher: Option<Spanned<Dispatcher>>,
    dispatch_precision: Option<Spanned<DispatchPrecision>>,
    expert_overlap: Option<Spanned<bool>>,
    weight: Option<Spanned<f64>>,
    // Keys of training.
    global_batch: Option<Spanned<u64>>,
    micro_batch: Option<Spanned<u64>>,
    zero: Option<Spanned<u8>>,
    shard: Option<Spanned<u64>>,
    zero_partition: Option<Spanned<StatePartition>>,
    optimizer_tier: Option<Spanned<Tier>>,
    weights_tier: Option<Spanned<Tier>>,
    optimizer_device: Option<Spanned<OptimizerDevice>>,
    moment_bits: Option<Spanned<u32>>,
    master_weights: Option<Spanned<bool>>,
    buffers_mb: Option<Spanned<u64>>,
    gradient_addition: Option<Spanned<GradientAddition>>,
    optimizer_temporaries: Option<Spanned<u64>>,
    loss_chunks: Option<Spanned<u64>>,
    launch: Option<Spanned<LaunchMode>>,
    reshard_after_forward: Option<Spanned<bool>>,
    accumulate: Option<Spanned<Accumulate>>,
    bucket_mb: Option<Spanned<u64>>,
    gradient_bits: Option<Spanned<u32>>,
    lora: Option<Spanned<lora::LoraText>>,
    recompute: Option<Spanned<Recompute>>,
    recompute_layers: Option<Spanned<u64>>,
    flash_attention: Option<Spanned<FlashText>>,
    kernels: Option<Spanned<KernelFusion>>,
    dropout: Option<Spanned<bool>>,
    overlap: Option<Spanned<bool>>,
    tensor_overlap: Option<Spanned<bool>>,
    train_tokens: Option<Spanned<f64>>,
    processes: Option<Spanned<Processes>>,
    checkpoint: Option<Spanned<checkpoint::CheckpointText>>,
    // Keys of inference.
    prompt_tokens: Option<Spanned<open_loop::LengthText>>,
    output_tokens: Option<Spanned<open_loop::LengthText>>,
    concurrency: Option<Spanned<serving::ConcurrencyText>>,
    request_rate: Option<Spanned<f64>>,
    burstiness: Option<Spanned<f64>>,
    lengths: Option<Spanned<Lengths>>,
    disaggregation: Option<Spanned<disaggregation::DisaggregationText>>,
    batching: Option<Spanned<Batching>>,
    scheduling: Option<Spanned<StepScheduling>>,
    scheduler_steps: Option<Spanned<u64>>,
    speculation: Option<Spanned<speculation::SpeculationText>>,
    adapters: Option<Spanned<served_adapters::ServedAdaptersText>>,
    host_time: Option<Spanned<serving::HostText>>,
    requests: Option<Spanned<u64>>,
    max_num_seqs: Option<Spanned<u64>>,
    max_batched_tokens: Option<Spanned<u64>>,
    prefix_hit: Option<Spanned<f64>>,
    cached_requests: Option<Spanned<u64>>,
    kv_precision: Option<Spanned<KvPrecision>>,
    kv_tier: Option<Spanned<kv_tier::KvTier>>,
    kv_bytes_per_token: Option<Spanned<u64>>,
    redundant_experts: Option<Spanned<u64>>,
    gpu_memory_utilization: Option<Spanned<f64>>,
    ttft_s: Option<Spanned<f64>>,
    tpot_s: Option<Spanned<f64>>,
    slo_statistic: Option<Spanned<LatencyStatistic>>,
    // Keys of traces.
    file: Option<Spanned<String>>,
    ranks: Option<Spanned<u64>>,
}

/// Function that reads a text file by the name in the job; returns its path for errors and its text.
pub type Texts<'a> = &'a dyn Fn(&str) -> Result<(String, String), String>;

/// Access to files that jobs refer to.
#[derive(Clone, Copy)]
pub struct FileResolver<'a> {
    /// Reads the files of a trace, given the name of the first.
    pub traces: &'a dyn Fn(&str) -> Result<Vec<Contents>, String>,
    /// Reads the configuration of a model; returns its path for errors and its text.
    pub texts: Texts<'a>,
}

impl FileResolver<'_> {
    /// Resolver for jobs outside a study: every file is an error.
    pub const NONE: Self = Self {
        traces: &|name| Err(format!("`{name}` cannot be searched for here")),
        texts: &|name| Err(format!("`{name}` cannot be searched for here")),
    };
}

/// Key that only some kinds of jobs have, and its byte range in the file; `None` if the key is absent.
type KindKey = (&'static str, Option<Range<usize>>);

fn kind_key<T>(name: &'static str, value: &Option<Spanned<T>>) -> KindKey {
    (name, value.as_ref().map(Spanned::span))
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DegreesText {
    tp: Spanned<u32>,
    pp: Spanned<u32>,
    dp: Option<Spanned<u32>>,
    ep: Spanned<u32>,
    etp: Option<Spanned<u32>>,
    cp: Option<Spanned<u32>>,
    interleave: Option<Spanned<u32>>,
    sequence: bool,
    ends_as_layers: Option<Spanned<bool>>,
    order: Option<Spanned<Vec<String>>>,
}

impl Default for DegreesText {
    fn default() -> Self {
        let one = || Spanned::new(0..0, 1);
        Self {
            tp: one(),
            pp: one(),
            dp: None,
            ep: one(),
            etp: None,
            cp: None,
            interleave: None,
            sequence: false,
            ends_as_layers: None,
            order: None,
        }
    }
}

#[derive(Clone, Debug)]
enum ParallelText {
    Auto,
    Given(Box<DegreesText>),
}

impl<'de> Deserialize<'de> for ParallelText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AutoOrTable;
        impl<'de> Visitor<'de> for AutoOrTable {
            type Value = ParallelText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\" or a table as `{ tp = 8, pp = 1 }`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ParallelText, E> {
                match text {
                    "auto" => Ok(ParallelText::Auto),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<ParallelText, M::Error> {
                DegreesText::deserialize(MapAccessDeserializer::new(map))
                    .map(|degrees| ParallelText::Given(Box::new(degrees)))
            }
        }
        deserializer.deserialize_any(AutoOrTable)
    }
}

/// Largest valid count, so that products of a few counts fit 64 bits.
const MAX_COUNT: u64 = 1 << 24;

impl JobText {
    /// Converts the keys to a job and validates it without a fabric. `location` is the location of the job, used for
    /// absent keys.
    ///
    /// # Errors
    /// [`JobError`] with the location: invalid values, missing keys, or keys of another kind of job.
    pub fn job(&self, origin: Origin<'_>, location: SourceLocation, files: FileResolver<'_>) -> Result<Job, JobError> {
        let check = Validator { origin };
        if let Some(completed) = self.with_configuration(check, files)? {
            return completed.job(origin, location, files);
        }
        let locate = |bytes: Option<Range<usize>>| bytes.map_or_else(|| location.clone(), |bytes| origin.locate(bytes));
        let [prefill_gpus, prefill_parallel] = self.pool_spans();
        let spans = JobSpans {
            model: locate(self.model.as_ref().map(Spanned::span)),
            parallel: locate(self.parallel.as_ref().map(Spanned::span)),
            prefill_gpus: locate(prefill_gpus),
            prefill_parallel: locate(prefill_parallel.or(self.parallel.as_ref().map(Spanned::span))),
            batch: origin.locate(self.batch()),
            precision: locate(self.precision.as_ref().map(Spanned::span)),
            shard: locate(self.shard.as_ref().map(Spanned::span)),
            tier: locate(
                (self.optimizer_tier.as_ref().map(Spanned::span)).or(self.kv_tier.as_ref().map(Spanned::span)),
            ),
            weights_tier: locate(self.weights_tier.as_ref().map(Spanned::span)),
            dispatcher: locate(self.dispatcher.as_ref().map(Spanned::span)),
            placement: locate(self.placement.as_ref().map(Spanned::span)),
            largest_gpu: locate(self.largest_gpu_span()),
            job: location,
        };
        let kind = self.kind.as_ref().map_or("training", |kind| kind.get_ref().as_str());
        let job = match kind {
            "training" => {
                check.reject_keys("training", "inference", &self.inference_keys())?;
                check.reject_keys("training", "trace", &self.trace_keys())?;
                Job::Training(self.training(check, spans)?)
            }
            "inference" => {
                check.reject_keys("inference", "training", &self.training_keys())?;
                check.reject_keys("inference", "trace", &self.trace_keys())?;
                Job::Inference(self.serving(check, spans)?)
            }
            "trace" => {
                check.reject_keys("trace", "training or inference", &self.model_keys())?;
                check.reject_keys("trace", "training", &self.training_keys())?;
                check.reject_keys("trace", "inference", &self.inference_keys())?;
                Job::Trace(self.trace(check, spans, files)?)
            }
            unknown => {
                let message = format!("kind: `{unknown}` is not known; expected training, inference or trace");
                let error = check.error(self.kind.as_ref().map_or(0..0, Spanned::span), message);
                return Err(JobError { help: nearest(unknown, ["training", "inference", "trace"]), ..error });
            }
        };
        if let Some(problem) = name_problem(job.name()) {
            return Err(JobError::at(&job.spans().job, problem));
        }
        Ok(job)
    }

    /// Returns the job with the keys of its model's configuration; `None` if its model refers to none.
    fn with_configuration(&self, check: Validator<'_>, files: FileResolver<'_>) -> Result<Option<Self>, JobError> {
        let Some(model) = &self.model else { return Ok(None) };
        let Some(hf) = &model.get_ref().hf else { return Ok(None) };
        if let Some(key) = model.get_ref().first_key() {
            return Err(
                check.error(model.span(), format!("{key}: the configuration has it; expected no key next to hf"))
            );
        }
        let failure = |reason: String| check.error(hf.span(), format!("hf: {reason}"));
        let (path, text) = (files.texts)(hf.get_ref()).map_err(failure)?;
        let keys =
            hugging_face::model_text(&text, &hf.span()).map_err(|reason| failure(format!("{path}: {reason}")))?;
        let completed = model.get_ref().completed_from(keys);
        Ok(Some(Self { model: Some(Spanned::new(model.span(), completed)), ..self.clone() }))
    }

    /// Returns the byte range of the batch size or concurrency.
    fn batch(&self) -> Range<usize> {
        let concurrency = self.concurrency.as_ref().map(Spanned::span);
        let total = self.global_batch.as_ref().or(self.requests.as_ref()).map(Spanned::span);
        concurrency.or(total).unwrap_or_default()
    }

    fn precision(&self) -> Precision {
        self.precision.as_ref().map_or(Precision::Bf16, |precision| *precision.get_ref())
    }

    fn parallel(&self, check: Validator<'_>) -> Result<Parallel, JobError> {
        self.degrees(check, self.required_model_key("parallel", &self.parallel, check)?)
    }

    /// Returns the degrees of a table, or `Auto`.
    fn degrees(&self, check: Validator<'_>, parallel: &Spanned<ParallelText>) -> Result<Parallel, JobError> {
        let ParallelText::Given(text) = parallel.get_ref() else { return Ok(Parallel::Auto) };
        let degree = |name: &str, value: &Spanned<u32>| {
            let bytes = if value.span().is_empty() { parallel.span() } else { value.span() };
            check.count(name, &Spanned::new(bytes, u64::from(*value.get_ref()))).map(|degree| degree as u32)
        };
        let single = Spanned::new(0..0, 1);
        let degrees = Degrees {
            tensor: degree("tp", &text.tp)?,
            pipeline: degree("pp", &text.pp)?,
            data: 1,
            expert: degree("ep", &text.ep)?,
            experts: match &text.etp {
                Some(etp) if *etp.get_ref() == 1 && *text.tp.get_ref() > 1 => ExpertSharding::Whole,
                Some(etp) if etp.get_ref() != text.tp.get_ref() => {
                    let message = format!("etp: {} is neither 1 nor tp {}", etp.get_ref(), text.tp.get_ref());
                    return Err(check.error(etp.span(), message));
                }
                Some(_) | None => ExpertSharding::Divided,
            },
            context: degree("cp", text.cp.as_ref().unwrap_or(&single))?,
            interleave: degree("interleave", text.interleave.as_ref().unwrap_or(&single))?,
            sequence: if text.sequence { SequenceParallelism::TensorSharded } else { SequenceParallelism::Undivided },
            ends: match text.ends_as_layers.as_ref().map(|flag| *flag.get_ref()) {
                Some(true) => EndAccounting::AsLayers,
                Some(false) | None => EndAccounting::Extra,
            },
            order: match &text.order {
                None => Order::default(),
                Some(names) => Order::parse(names.get_ref())
                    .map_err(|message| check.error(names.span(), format!("order: {message}")))?,
            },
            shard: None,
        };
        let data = text.dp.as_ref().map(|data| degree("dp", data)).transpose()?;
        Ok(Parallel::Given { degrees, data })
    }
}

/// Largest valid value of large counts such as training tokens.
const MAX_TOTAL: f64 = (1u64 << 62) as f64;

/// Validator of the values of a job file.
#[derive(Clone, Copy)]
struct Validator<'a> {
    origin: Origin<'a>,
}

impl Validator<'_> {
    fn error(self, bytes: Range<usize>, message: String) -> JobError {
        JobError::at(&self.origin.locate(bytes), message)
    }

    /// Rejects keys of another kind of job, each at its location.
    fn reject_keys(self, kind: &str, other_kind: &str, keys: &[KindKey]) -> Result<(), JobError> {
        match keys.iter().find_map(|(name, bytes)| Some((name, bytes.clone()?))) {
            None => Ok(()),
            Some((name, bytes)) => {
                let message = format!("{name}: only valid for jobs of kind {other_kind}, and this one is {kind}");
                Err(self.error(bytes, message))
            }
        }
    }

    /// Returns a number that must be within `range`, or `default` if the key is absent.
    fn number_in_range(
        self,
        name: &str,
        value: &Option<Spanned<f64>>,
        range: RangeInclusive<f64>,
        default: f64,
    ) -> Result<f64, JobError> {
        match value {
            None => Ok(default),
            Some(value) if range.contains(value.get_ref()) => Ok(*value.get_ref()),
            Some(value) => {
                let (min, max) = range.into_inner();
                let [number, min, max] = [*value.get_ref(), min, max].map(format_number);
                Err(self.error(value.span(), format!("{name}: {number} is not from {min} to {max}")))
            }
        }
    }

    /// Returns the value of a required key; `location` is used if the key is absent.
    fn required<'v, T>(
        self,
        name: &str,
        value: &'v Option<Spanned<T>>,
        location: &SourceLocation,
    ) -> Result<&'v Spanned<T>, JobError> {
        value.as_ref().ok_or_else(|| JobError::at(location, format!("missing field `{name}`")))
    }

    fn count(self, name: &str, value: &Spanned<u64>) -> Result<u64, JobError> {
        self.count_up_to(name, value, MAX_COUNT)
    }

    fn count_up_to(self, name: &str, value: &Spanned<u64>, max: u64) -> Result<u64, JobError> {
        match *value.get_ref() {
            count if (1..=max).contains(&count) => Ok(count),
            number => Err(self.error(value.span(), format!("{name}: {number} is not a whole number from 1 to {max}"))),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
