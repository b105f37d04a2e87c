//! Conversion of the keys of an inference job.

use std::fmt;
use std::ops::RangeInclusive;

use fabricast_topologies::Picos;
use serde::Deserialize;
use serde::de::Visitor;
use toml::Spanned;

use super::super::{
    Arrivals, Disaggregation, Framework, FrameworkKind, HostTimes, JobError, JobSpans, LengthDistribution, Lengths,
    Limits, Model, OpenLoop, PiecewiseGraphs, Precision, RequestVariation, Serving, Tier, find_framework,
};
use super::speculation::SpeculationText;
use super::{JobText, KindKey, MAX_TOTAL, ParallelText, Validator, kind_key, overflow_bound};

/// Largest data-parallel degree of a job with a batch of requests: more than any machine has.
const MAX_REPLICAS: u64 = 1 << 20;

/// Largest data-parallel degree of a job whose concurrency is derived from memory.
const MAX_AUTO_REPLICAS: u64 = 1 << 14;

/// Software whose host times apply to jobs that name none.
const DEFAULT_SOFTWARE: &str = "vllm";

/// Valid range of host times, in the units of their keys.
const HOST_MS: RangeInclusive<f64> = 0.0..=10_000.0;

/// Largest number of decode steps per decision of the scheduler.
const MAX_SCHEDULER_STEPS: u64 = 1000;

/// Valid range of SLO limits, in seconds.
const LIMITS: RangeInclusive<f64> = 1e-6..=1e6;

impl JobText {
    /// Returns the keys that only inference jobs have.
    pub(super) fn inference_keys(&self) -> Vec<KindKey> {
        vec![
            kind_key("prompt_tokens", &self.prompt_tokens),
            kind_key("output_tokens", &self.output_tokens),
            kind_key("concurrency", &self.concurrency),
            kind_key("request_rate", &self.request_rate),
            kind_key("burstiness", &self.burstiness),
            kind_key("lengths", &self.lengths),
            kind_key("disaggregation", &self.disaggregation),
            kind_key("batching", &self.batching),
            kind_key("scheduling", &self.scheduling),
            kind_key("scheduler_steps", &self.scheduler_steps),
            kind_key("speculation", &self.speculation),
            kind_key("adapters", &self.adapters),
            kind_key("host_time", &self.host_time),
            kind_key("requests", &self.requests),
            kind_key("max_num_seqs", &self.max_num_seqs),
            kind_key("max_batched_tokens", &self.max_batched_tokens),
            kind_key("prefix_hit", &self.prefix_hit),
            kind_key("cached_requests", &self.cached_requests),
            kind_key("kv_precision", &self.kv_precision),
            kind_key("kv_tier", &self.kv_tier),
            kind_key("kv_bytes_per_token", &self.kv_bytes_per_token),
            kind_key("redundant_experts", &self.redundant_experts),
            kind_key("gpu_memory_utilization", &self.gpu_memory_utilization),
            kind_key("ttft_s", &self.ttft_s),
            kind_key("tpot_s", &self.tpot_s),
            kind_key("slo_statistic", &self.slo_statistic),
        ]
    }

    /// Returns the number of decode steps per decision of the scheduler, which only an open loop simulates.
    fn scheduler_steps(&self, check: Validator<'_>) -> Result<u64, JobError> {
        let Some(steps) = &self.scheduler_steps else { return Ok(1) };
        if self.request_rate.is_none() {
            return Err(check.error(steps.span(), "scheduler_steps: needs request_rate".to_owned()));
        }
        check.count_up_to("scheduler_steps", steps, MAX_SCHEDULER_STEPS)
    }

    pub(super) fn serving(&self, check: Validator<'_>, spans: JobSpans) -> Result<Serving, JobError> {
        if let Some(parallel) = &self.parallel {
            reject_training_degrees(check, parallel.get_ref())?;
        }
        let required_counts =
            |name: &str, value| self.token_counts(check, name, check.required(name, value, &spans.job)?);
        let prompt = required_counts("prompt_tokens", &self.prompt_tokens)?;
        let disaggregation = self.disaggregation(check)?;
        let output = match (disaggregation, &self.output_tokens) {
            // The machine ends with the first token.
            (Disaggregation::Prefill, None) => LengthDistribution::fixed(1),
            (_, stated) => required_counts("output_tokens", stated)?,
        };
        let (prompt_tokens, output_tokens) = (prompt.mean(), output.mean());
        let max_tokens = prompt.max() + output.max();
        let arrivals = self.arrivals(check, &spans)?;
        let model = self.model(check, Some(max_tokens))?;
        if max_tokens > model.seq {
            let bytes = self.prompt_tokens.as_ref().map_or(0..0, Spanned::span);
            let message = format!(
                "prompt_tokens: {} and output_tokens {} are more than seq {} of the model",
                prompt.max(),
                output.max(),
                model.seq
            );
            return Err(check.error(bytes, message));
        }
        let redundant_experts = self.redundant_experts.as_ref().map_or(0, |count| *count.get_ref());
        if redundant_experts > model.experts {
            let bytes = self.redundant_experts.as_ref().map_or(0..0, Spanned::span);
            let message = format!("redundant_experts: {redundant_experts} is more than {} experts", model.experts);
            return Err(check.error(bytes, message));
        }
        let limit = |name: &str, value: &Option<Spanned<f64>>| {
            let seconds = check.number_in_range(name, value, LIMITS, 0.0)?;
            Ok::<_, JobError>((seconds > 0.0).then(|| Picos((seconds * 1e12).round() as u64)))
        };
        let parallel = self.parallel(check)?;
        let placement = self.placement(check)?;
        let software = self.software(check, FrameworkKind::Inference)?;
        let prefill_pool = self.prefill_pool(check, software)?;
        // The GPUs of a list belong to both pools, whose degrees are checked when the machine is known.
        if prefill_pool.is_none() {
            self.check_degrees(check, &parallel, &placement)?;
        }
        let job = Serving {
            name: self.name.get_ref().clone(),
            precision: self.precision(),
            prompt_tokens,
            output_tokens,
            arrivals,
            variation: RequestVariation { burstiness: self.burstiness(check)?, prompt, output },
            lengths: self.lengths(check)?,
            batching: self
                .batching
                .as_ref()
                .map(|batching| *batching.get_ref())
                .or(software.batching)
                .unwrap_or_default(),
            scheduling: self
                .scheduling
                .as_ref()
                .map(|scheduling| *scheduling.get_ref())
                .or(software.scheduling)
                .unwrap_or_default(),
            scheduler_steps: self.scheduler_steps(check)?,
            speculation: match &self.speculation {
                None => None,
                Some(text) => Some(SpeculationText::speculation(text, check)?),
            },
            adapters: self
                .adapters
                .as_ref()
                .map(|text| text.get_ref().adapters(check, &model).map(Box::new))
                .transpose()?,
            disaggregation,
            prefill_pool,
            host: self.host_times(check, software, &model)?,
            amd_expert_overhead: self.amd_expert_overhead(software, &model),
            all_reduce: software.all_reduce.unwrap_or_default(),
            max_batched_tokens: match &self.max_batched_tokens {
                None => software.max_batched_tokens.unwrap_or(Serving::MAX_BATCHED_TOKENS),
                Some(tokens) => check.count("max_batched_tokens", tokens)?,
            },
            prefix_hit: check.number_in_range("prefix_hit", &self.prefix_hit, 0.0..=1.0, 0.0)?,
            cached_requests: self.cached_requests(check, arrivals)?,
            kv_precision: self.kv_precision.as_ref().map(|precision| *precision.get_ref()).unwrap_or_default(),
            kv_tier: self.kv_tier.as_ref().map(|tier| Tier::from(*tier.get_ref())).unwrap_or_default(),
            kv_bytes_per_token: match &self.kv_bytes_per_token {
                None => None,
                Some(bytes) => Some(check.count("kv_bytes_per_token", bytes)?),
            },
            redundant_experts,
            memory_share: check.number_in_range(
                "gpu_memory_utilization",
                &self.gpu_memory_utilization,
                0.01..=1.0,
                software.gpu_memory_utilization.unwrap_or(Serving::MEMORY_SHARE),
            )?,
            parallel,
            placement,
            collectives: self.collectives,
            skew: check.number_in_range("expert_skew", &self.expert_skew, 1.0..=1000.0, 1.0)?,
            dispatch: self.dispatch(check, software, &model, model.experts + redundant_experts)?,
            limits: Limits {
                ttft: limit("ttft_s", &self.ttft_s)?,
                tpot: limit("tpot_s", &self.tpot_s)?,
                statistic: self.slo_statistic.as_ref().map(|statistic| *statistic.get_ref()).unwrap_or_default(),
            },
            weight: check.number_in_range("weight", &self.weight, 1e-9..=1e9, 1.0)?,
            model,
            spans,
        };
        let max_requests = match arrivals {
            Arrivals::FixedConcurrency { concurrency, .. } => concurrency,
            // With a very large number of replicas, each replica would have enough memory for its requests.
            Arrivals::AutoConcurrency { max_num_seqs } | Arrivals::OpenLoop(OpenLoop { max_num_seqs, .. }) => {
                max_num_seqs.saturating_mul(MAX_AUTO_REPLICAS)
            }
            Arrivals::Batch { requests, max_num_seqs } => requests.min(max_num_seqs.saturating_mul(MAX_REPLICAS)),
        };
        let tokens = job.max_batched_tokens.max(max_requests) as f64;
        let kv_bytes = max_requests as f64 * job.tokens() as f64 * job.kv_bytes() as f64;
        if overflow_bound(&job.model, tokens, job.tokens(), job.skew).max(kv_bytes) > MAX_TOTAL {
            let message =
                "a model, max_batched_tokens and concurrent requests too large to count: expected fewer or smaller";
            return Err(JobError::at(&job.spans.model, message));
        }
        Ok(job)
    }

    fn lengths(&self, check: Validator<'_>) -> Result<Lengths, JobError> {
        let Some(lengths) = &self.lengths else { return Ok(Lengths::default()) };
        match (*lengths.get_ref(), &self.requests) {
            (_, Some(_)) if self.concurrency.is_some() => {
                let message = "lengths: not valid with `concurrency` and `requests`, whose lengths are prompt_tokens and output_tokens: omit it";
                Err(check.error(lengths.span(), message.to_owned()))
            }
            (Lengths::Varied, Some(_)) => {
                let message = "lengths: requests of a batch have equal lengths: omit it, or give `concurrency`";
                Err(check.error(lengths.span(), message.to_owned()))
            }
            (lengths, _) => Ok(lengths),
        }
    }

    /// Returns the host times of the job; those that it does not state are those of its software, or of vLLM.
    fn host_times(&self, check: Validator<'_>, software: &Framework, model: &Model) -> Result<HostTimes, JobError> {
        let fallback = match self.framework {
            None => find_framework(DEFAULT_SOFTWARE),
            Some(_) => None,
        };
        let software = fallback.unwrap_or(software);
        let stated = self.host_time.as_ref().map(Spanned::get_ref);
        let time = |name: &str, stated: Option<&Option<Spanned<f64>>>, software: Option<f64>| {
            let default = software.unwrap_or_default();
            let milliseconds = check.number_in_range(name, stated.unwrap_or(&None), HOST_MS, default)?;
            Ok::<_, JobError>(Picos((milliseconds * 1e9).round() as u64))
        };
        let step_request_us = check.number_in_range(
            "step_request_us",
            stated.map_or(&None, |host| &host.step_request_us),
            HOST_MS,
            software.step_request_us.unwrap_or_default(),
        )?;
        let expert_layer = software.prefill_quantized_expert_layer_ms.filter(|_| self.is_quantized());
        let layer = match model.experts {
            0 => software.prefill_layer_ms,
            _ => expert_layer.or(software.prefill_expert_layer_ms),
        };
        let graph_layer = match model.experts {
            0 => software.graph_layer_ms,
            _ => software.graph_expert_layer_ms,
        };
        // A stated time holds for all steps.
        let states_layer = stated.is_some_and(|host| host.prefill_layer_ms.is_some());
        let piecewise_graphs =
            software.graph_tokens.zip(graph_layer).filter(|_| !states_layer).map(|(max_tokens, milliseconds)| {
                PiecewiseGraphs { max_tokens, layer: Picos((milliseconds * 1e9).round() as u64) }
            });
        let latent = software.prefill_latent_layer_ms.filter(|_| model.latent.is_some());
        let layer = layer.map(|layer| layer + latent.unwrap_or_default());
        let is_quantized = model.experts > 0 && self.is_quantized() && !states_layer;
        let amd_layer = software.amd_quantized_prefill_factor.filter(|_| is_quantized).zip(layer);
        Ok(HostTimes {
            request: time("request_ms", stated.map(|host| &host.request_ms), software.request_ms)?,
            prefill_layer: time("prefill_layer_ms", stated.map(|host| &host.prefill_layer_ms), layer)?,
            amd_prefill_layer: amd_layer
                .map_or(Picos::ZERO, |(factor, layer)| Picos((factor * layer * 1e9).round() as u64)),
            piecewise_graphs,
            step: time("step_ms", stated.map(|host| &host.step_ms), software.step_ms)?,
            step_request: Picos((step_request_us * 1e6).round() as u64),
        })
    }

    /// Returns the additional time of a layer on AMD's GPUs.
    fn amd_expert_overhead(&self, software: &Framework, model: &Model) -> Picos {
        let has_quantized_experts = model.experts > 0 && self.is_quantized();
        let added = software.amd_quantized_expert_layer_us.filter(|_| has_quantized_experts);
        Picos((added.unwrap_or_default() * 1e6).round() as u64)
    }

    /// Returns true if weights have fewer than 16 bits.
    fn is_quantized(&self) -> bool {
        self.precision().served_bytes() < Precision::Bf16.served_bytes()
    }

    fn arrivals(&self, check: Validator<'_>, spans: &JobSpans) -> Result<Arrivals, JobError> {
        let max_num_seqs = match &self.max_num_seqs {
            None => self.software(check, FrameworkKind::Inference)?.max_num_seqs.unwrap_or(Serving::MAX_NUM_SEQS),
            Some(limit) => check.count("max_num_seqs", limit)?,
        };
        if let Some(open_loop) = self.open_loop(check, max_num_seqs)? {
            return match &self.concurrency {
                None => Ok(Arrivals::OpenLoop(open_loop)),
                Some(concurrency) => {
                    let message = "concurrency: `request_rate` is given as well: expected one of them";
                    Err(check.error(concurrency.span(), message.to_owned()))
                }
            };
        }
        match (&self.concurrency, &self.requests) {
            (None, None) => {
                let message = "missing field `concurrency`, or `request_rate` of arrivals, or `requests` of a batch";
                Err(JobError::at(&spans.job, message))
            }
            (Some(concurrency), requests) => match *concurrency.get_ref() {
                _ if requests.is_some() && self.disaggregation.is_some() => {
                    let message = "disaggregation: a benchmark of `concurrency` and `requests` is not simulated with it: omit `requests`";
                    Err(check.error(concurrency.span(), message.to_owned()))
                }
                ConcurrencyText::Auto if requests.is_some() => {
                    let message = "concurrency: `requests` of a benchmark need a number, \"auto\" has none";
                    Err(check.error(concurrency.span(), message.to_owned()))
                }
                ConcurrencyText::Auto => Ok(Arrivals::AutoConcurrency { max_num_seqs }),
                ConcurrencyText::Given(count) => {
                    let count = Spanned::new(concurrency.span(), count);
                    let is_stated = self.max_num_seqs.is_some() || self.framework.is_some();
                    Ok(Arrivals::FixedConcurrency {
                        concurrency: check.count("concurrency", &count)?,
                        max_num_seqs: is_stated.then_some(max_num_seqs),
                        requests: self.benchmark_requests(check)?,
                    })
                }
            },
            (None, Some(requests)) => {
                if let Some(limit) = &self.ttft_s {
                    let message = "ttft_s: not valid for a batch, whose requests are queued: omit it, or give `concurrency` instead of `requests`";
                    return Err(check.error(limit.span(), message.to_owned()));
                }
                Ok(Arrivals::Batch { requests: check.count("requests", requests)?, max_num_seqs })
            }
        }
    }
}

/// Host times as written in the job file, in the units of their names.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostText {
    request_ms: Option<Spanned<f64>>,
    prefill_layer_ms: Option<Spanned<f64>>,
    step_ms: Option<Spanned<f64>>,
    step_request_us: Option<Spanned<f64>>,
}

/// Concurrent requests as written in the job file.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConcurrencyText {
    /// `"auto"`: the largest number that memory and SLO limits allow.
    Auto,
    /// Fixed number of requests.
    Given(u64),
}

impl<'de> Deserialize<'de> for ConcurrencyText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AutoOrCount;
        impl Visitor<'_> for AutoOrCount {
            type Value = ConcurrencyText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\" or a whole number of requests")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ConcurrencyText, E> {
                match text {
                    "auto" => Ok(ConcurrencyText::Auto),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<ConcurrencyText, E> {
                let count = u64::try_from(number);
                count
                    .map(ConcurrencyText::Given)
                    .map_err(|_| E::invalid_value(serde::de::Unexpected::Signed(number), &self))
            }
        }
        deserializer.deserialize_any(AutoOrCount)
    }
}

/// Rejects degrees that only training has.
///
/// # Errors
/// [`JobError`] at the first such key.
pub(super) fn reject_training_degrees(check: Validator<'_>, parallel: &ParallelText) -> Result<(), JobError> {
    let ParallelText::Given(degrees) = parallel else { return Ok(()) };
    let keys = [
        kind_key("cp", &degrees.cp),
        kind_key("etp", &degrees.etp),
        kind_key("interleave", &degrees.interleave),
        kind_key("ends_as_layers", &degrees.ends_as_layers),
    ];
    check.reject_keys("inference", "training", &keys)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::super::{Job, KvPrecision, Layout, Precision, StepScheduling, TensorAllReduce, Tier};
    use super::super::read_job;
    use super::*;

    /// Job file of Llama 2 70B (arXiv 2307.09288); `lines` replaces its values of the same keys.
    pub(crate) fn text(lines: &str) -> String {
        let mut text = format!("kind = \"inference\"\n{lines}");
        for (key, line) in [
            ("name", "name = \"llama\""),
            (
                "model",
                "model = { layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, gated = true, vocab = 32000 }",
            ),
            ("prompt_tokens", "prompt_tokens = 2000"),
            ("output_tokens", "output_tokens = 500"),
            ("concurrency", "concurrency = 32"),
            ("parallel", "parallel = { tp = 8 }"),
        ] {
            let is_batch = key == "concurrency" && lines.lines().any(|line| line.starts_with("request"));
            if !is_batch && !lines.lines().any(|line| line.starts_with(key)) {
                text.push_str(line);
                text.push('\n');
            }
        }
        text
    }

    pub(crate) fn served(lines: &str) -> Serving {
        match read_job(&text(lines), "job.toml").unwrap() {
            Job::Inference(job) => job,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_inference_key_is_read() {
        let job = served(
            "precision = \"fp8\"\nmax_batched_tokens = 2048\nprefix_hit = 0.25\nkv_precision = \"fp8\"\n\
             kv_tier = \"host\"\nkv_bytes_per_token = 1000\nredundant_experts = 2\ngpu_memory_utilization = 0.8\n\
             ttft_s = 2\ntpot_s = 0.05\nexpert_skew = 1.5\nweight = 2\ncollectives = \"any\"\n\
             model = { layers = 8, hidden = 64, heads = 8, kv_heads = 2, ffn = 96, gated = true, vocab = 100, seq = 9000, \
             experts = 4, experts_per_token = 2, shared_experts = 1, head_dim = 16 }\n\
             parallel = { tp = 2, pp = 2, dp = 6, ep = 3, sequence = true }\n",
        );
        assert_eq!((job.precision, job.max_batched_tokens, job.prefix_hit), (Precision::Fp8, 2048, 0.25));
        assert_eq!((job.kv_precision, job.kv_tier, job.kv_bytes_per_token), (KvPrecision::Fp8, Tier::Host, Some(1000)));
        assert_eq!((job.redundant_experts, job.expert_slots(), job.memory_share), (2, 6, 0.8));
        assert_eq!((job.limits.ttft, job.limits.tpot), (Some(Picos(2_000_000_000_000)), Some(Picos(50_000_000_000))));
        assert_eq!((job.model.query_width(), job.model.key_width(), job.model.ffns_per_token()), (128, 32, 3));
        assert_eq!((job.new_tokens(), job.tokens(), job.model.seq), (1500, 2500, 9000));
        assert!(Layout::specified_by_serving(&job, 24).unwrap().is_some());
        // Defaults.
        let job = served("");
        assert_eq!((job.max_batched_tokens, job.memory_share, job.model.seq), (8192, 0.9, 2500));
        assert_eq!((job.kv_precision, job.kv_tier, job.limits), (KvPrecision::Bf16, Tier::Hbm, Limits::default()));
        // The last token of a prompt is always computed.
        assert_eq!(served("prefix_hit = 1.0\n").new_tokens(), 1);
    }

    #[test]
    fn batch_keys_are_read() {
        assert_eq!(
            served("").arrivals,
            Arrivals::FixedConcurrency { concurrency: 32, max_num_seqs: None, requests: None }
        );
        assert_eq!(served("requests = 3000\n").arrivals, Arrivals::Batch { requests: 3000, max_num_seqs: 1024 });
        let benchmark =
            served("requests = 80\nconcurrency = 16\nprompt_tokens = [1, 1000]\nframework = \"sglang@0.4\"\n");
        let expected = Arrivals::FixedConcurrency { concurrency: 16, max_num_seqs: Some(2048), requests: Some(80) };
        assert_eq!((benchmark.arrivals, benchmark.prompt_tokens), (expected, 501));
        assert_eq!(benchmark.scheduling, StepScheduling::OverlappedDecode);
        assert_eq!(served("scheduling = \"overlapped\"\n").scheduling, StepScheduling::Overlapped);
        let fixed = served("max_num_seqs = 5\n").arrivals;
        assert_eq!(fixed, Arrivals::FixedConcurrency { concurrency: 32, max_num_seqs: Some(5), requests: None });
        let limited = served("requests = 3000\nmax_num_seqs = 64\n");
        assert_eq!(limited.arrivals, Arrivals::Batch { requests: 3000, max_num_seqs: 64 });
    }

    #[test]
    fn invalid_inference_jobs_are_rejected_with_location() {
        for (line, location, expected) in [
            (
                "global_batch = 8",
                "job.toml:2:16",
                "global_batch: only valid for jobs of kind training, and this one is inference",
            ),
            ("recompute = \"none\"", "job.toml:2:13", "recompute: only valid for jobs of kind training"),
            ("overlap = true", "job.toml:2:11", "overlap: only valid for jobs of kind training"),
            ("parallel = { tp = 2, cp = 1 }", "job.toml:2:27", "cp: only valid for jobs of kind training"),
            ("parallel = { tp = 2, etp = 1 }", "job.toml:2:28", "etp: only valid for jobs of kind training"),
            ("parallel = { interleave = 2 }", "job.toml:2:27", "interleave: only valid for jobs of kind training"),
            ("prompt_tokens = 0", "job.toml:2:17", "from 1 to"),
            ("requests = 10\nconcurrency = 5\ncached_requests = 11", "job.toml:4:19", "11 of 10 requests"),
            ("concurrency = 5\ncached_requests = 1", "job.toml:3:19", "only valid with `concurrency` and `requests`"),
            ("prefix_hit = 1.5", "job.toml:2:14", "from 0 to 1"),
            ("scheduler_steps = 10", "job.toml:2:19", "needs request_rate"),
            ("kv_tier = \"disk\"", "job.toml:2:11", "unknown variant `disk`, expected one of `hbm`, `peer`, `host`"),
            ("kv_tier = \"nvme\"", "job.toml:2:11", "expected one of `hbm`, `peer`, `host`"),
            ("requests = 0", "job.toml:2:12", "from 1 to"),
            ("requests = 10\nconcurrency = \"auto\"", "job.toml:3:15", "need a number"),
            ("requests = 200000\nconcurrency = 5", "job.toml:2:12", "from 1 to 100000"),
            ("requests = 10\nconcurrency = 5\nlengths = \"equal\"", "job.toml:4:11", "lengths: not valid with"),
            (
                "requests = 10\nconcurrency = 5\ndisaggregation = { prefill_gpus = 8 }",
                "job.toml:3:15",
                "is not simulated with it",
            ),
            ("concurrency = 5\nprompt_tokens = [1, 9]", "job.toml:3:17", "quantiles need"),
            ("requests = 10\nttft_s = 1", "job.toml:3:10", "requests are queued"),
            ("kv_precision = \"fp4\"", "job.toml:2:16", "fp8"),
            ("tpot_s = 0", "job.toml:2:10", "tpot_s: 0 is not from"),
            ("redundant_experts = 3", "job.toml:2:21", "more than 0 experts"),
            ("gpu_memory_utilization = 2", "job.toml:2:26", "to 1"),
            (
                "model = { layers = 2, hidden = 96, heads = 3, vocab = 10, seq = 64 }",
                "job.toml:4:17",
                "more than seq 64 of the model",
            ),
            (
                "concurrency = 9999999\nkv_bytes_per_token = 16000000\noutput_tokens = 16000000",
                "job.toml:6:9",
                "too large",
            ),
        ] {
            let error = read_job(&text(&format!("{line}\n")), "job.toml").unwrap_err().to_string();
            assert!(error.starts_with(&format!("{location}: ")) && error.contains(expected), "{line}: {error}");
        }
        for key in ["prompt_tokens", "output_tokens", "concurrency"] {
            let remaining: Vec<String> =
                text("").lines().filter(|line| !line.starts_with(key)).map(String::from).collect();
            let error = read_job(&remaining.join("\n"), "job.toml").unwrap_err().to_string();
            assert!(error.contains(&format!("missing field `{key}`")), "{error}");
        }
    }

    /// Host times by software, version and layer.
    #[test]
    fn host_times_follow_software_and_layers() {
        let experts = "model = { layers = 8, hidden = 64, heads = 8, vocab = 100, experts = 4, experts_per_token = 2 }";
        let latent = "model = { layers = 8, hidden = 64, heads = 8, vocab = 100, experts = 4, experts_per_token = 2, \
                      latent = { kv_lora_rank = 64, qk_nope_head_dim = 32, qk_rope_head_dim = 16, v_head_dim = 24 } }";
        let host = |lines: &str| served(&format!("{lines}\n")).host;
        let layer = |lines: &str| host(&format!("framework = \"sglang\"\n{lines}")).prefill_layer.us() / 1e3;
        let jobs = ["", experts, &format!("precision = \"fp8\"\n{experts}"), latent];
        assert_eq!(jobs.map(layer), [0.63, 1.0, 1.47, 1.59]);
        let amd = |lines: &str| host(&format!("framework = \"sglang\"\n{lines}")).on_amd().prefill_layer.us() / 1e3;
        assert_eq!(jobs.map(amd), [0.63, 1.0, 2.0874, 1.59]);
        // vLLM has graphs of pieces of layers from 0.8 on, for steps of up to 512 tokens.
        let launch = |lines: &str, tokens: f64| host(lines).prefill_layer(tokens).us() / 1e3;
        let vllm = |version: &str| {
            [256.0, 512.0, 513.0].map(|tokens| launch(&format!("framework = \"vllm@{version}\""), tokens))
        };
        assert_eq!([vllm("0.7"), vllm("0.8"), vllm("0.20")], [[0.95; 3], [0.3, 0.3, 0.95], [0.3, 0.3, 0.95]]);
        assert_eq!(launch("framework = \"vllm\"\nhost_time = { prefill_layer_ms = 2 }", 256.0), 2.0);
        let step_requests = ["trtllm@0.21", "trtllm@1.0", "trtllm", "sglang"]
            .map(|name| host(&format!("framework = \"{name}\"")).step_request.us());
        assert_eq!(step_requests, [0.0, 25.0, 25.0, 0.0]);
        let stated = host("framework = \"trtllm\"\nhost_time = { step_request_us = 3, prefill_layer_ms = 2 }");
        assert_eq!((stated.step_request.us(), stated.prefill_layer.us()), (3.0, 2000.0));
        let amd = |lines: &str| served(&format!("framework = \"sglang\"\n{lines}\n")).amd_expert_overhead.us();
        assert_eq!([amd(""), amd(experts), amd(&format!("precision = \"fp8\"\n{experts}"))], [0.0, 0.0, 180.0]);
        assert_eq!(served("").all_reduce, TensorAllReduce::Library);
        assert_eq!(served("framework = \"vllm\"\n").all_reduce, TensorAllReduce::Custom);
    }

    #[test]
    fn invalid_degrees_are_rejected() {
        let mixture =
            "model = { layers = 8, hidden = 64, heads = 8, vocab = 128, experts = 256, experts_per_token = 8 }\n";
        for (lines, ranks, expected) in [
            ("parallel = { tp = 8, dp = 2 }", 8, "tp 8 × pp 1 × dp 2 is 16, and there are 8 ranks"),
            ("parallel = { tp = 3 }", 3, "64 heads cannot be divided by tp 3"),
            ("parallel = { dp = 72, ep = 72 }", 72, "256 experts cannot be divided by ep 72"),
            ("parallel = { pp = 3 }", 3, "layers cannot be divided by pp 3"),
        ] {
            let model = if lines.contains("ep") { mixture } else { "" };
            let job = served(&format!("{lines}\n{model}"));
            let error = Layout::specified_by_serving(&job, ranks).unwrap_err();
            assert!(error.to_string().contains(expected) && error.location.line > 0, "{lines}: {error}");
        }
        let redundant = served(&format!("{mixture}redundant_experts = 32\nparallel = {{ ep = 72 }}\n"));
        let layout = Layout::specified_by_serving(&redundant, 72).unwrap().unwrap();
        assert_eq!((layout.degrees.data, layout.degrees.expert), (72, 72));
    }
}
