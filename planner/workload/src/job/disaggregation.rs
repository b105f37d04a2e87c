//! Prefill and decode on separate GPUs: part of a job that a machine processes, pool of GPUs for prefill, and transfer of
//! keys and values from prefill to decode.

use fabricast_topologies::Picos;
use serde::Deserialize;

use super::{Arrivals, HostTimes, JobSpans, LengthDistribution, Limits, OpenLoop, Parallel, RequestVariation, Serving};

/// Part of requests that a machine processes if prefill and decode run on separate machines (SGLang,
/// `--disaggregation-mode`; vLLM, `kv_role`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Disaggregation {
    /// Prefill and decode.
    #[default]
    None,
    /// Prefill up to the first token; another machine decodes.
    Prefill,
    /// Decode of all tokens after the first; keys and values of prompts arrive from another machine.
    Decode,
}

/// GPUs of a job that compute prefill only. The others decode, with the degrees of the job.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefillPool {
    /// Number of GPUs for prefill, the first ones of the job; `None` for the number with the best service.
    pub gpus: Option<u32>,
    /// Parallel degrees of prefill, fixed or to be searched.
    pub parallel: Parallel,
    /// Transfer of keys and values to the GPUs that decode.
    pub transfer: KvTransfer,
}

/// Transfer of the keys and values of a prompt from the GPUs for prefill to those for decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvTransfer {
    /// Part of a prompt that is sent as soon as it is computed.
    pub unit: TransferUnit,
    /// Source of the first output token.
    pub first_token: FirstToken,
    /// Tokens of a block that is contiguous in memory, each of which is a message per tensor; `None` if the blocks of a
    /// request are contiguous.
    pub block_tokens: Option<u64>,
}

/// Part of a prompt's keys and values that is sent as soon as it is computed, while prefill continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransferUnit {
    /// Whole prompt, after its prefill (vLLM, `NixlConnector` and `MooncakeConnector`: the machine for decode reads, or is
    /// sent, the blocks of a finished prefill).
    #[default]
    Request,
    /// Tokens of a step with prefill (SGLang, `python/sglang/srt/disaggregation/prefill.py`, `send_kv_chunk`).
    Chunk,
    /// Layer (Splitwise, arXiv 2311.18677, section IV-C; vLLM, `P2pNcclConnector`, `save_kv_layer`).
    Layer,
}

/// Source of the first output token of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FirstToken {
    /// The machine for prefill sends it before the transfer, which delays the second token (Splitwise, DistServe).
    Prefill,
    /// The machine for decode sends it when the keys and values have arrived (SGLang,
    /// `python/sglang/srt/disaggregation/decode.py`, `process_prebuilt`).
    #[default]
    Transfer,
    /// The machine for decode computes it again in its first step (vLLM's connectors load all tokens of a prompt but the
    /// last).
    Decode,
}

impl Serving {
    /// Returns the job of the GPUs for prefill.
    #[must_use]
    pub fn prefill_part(&self, pool: &PrefillPool) -> Self {
        Self {
            disaggregation: Disaggregation::Prefill,
            prefill_pool: None,
            parallel: pool.parallel.clone(),
            output_tokens: 1,
            variation: RequestVariation { output: LengthDistribution::fixed(1), ..self.variation.clone() },
            speculation: None,
            limits: Limits { tpot: None, ..self.limits },
            spans: JobSpans { parallel: self.spans.prefill_parallel.clone(), ..self.spans.clone() },
            ..self.clone()
        }
    }

    /// Returns the job of the GPUs for decode. A first token that decode computes again counts as an additional token.
    #[must_use]
    pub fn decode_part(&self, pool: &PrefillPool) -> Self {
        let added = u64::from(pool.transfer.first_token == FirstToken::Decode);
        Self {
            disaggregation: Disaggregation::Decode,
            prefill_pool: None,
            output_tokens: (self.output_tokens + added).max(2),
            // The time of a request outside of steps is counted in its prefill.
            host: HostTimes { request: Picos::ZERO, ..self.host },
            limits: Limits { ttft: None, ..self.limits },
            ..self.clone()
        }
    }

    /// Returns the job with another number of concurrent requests that never ends.
    #[must_use]
    pub fn with_fixed_concurrency(&self, concurrency: u64) -> Self {
        Self {
            arrivals: Arrivals::FixedConcurrency { concurrency, max_num_seqs: self.max_num_seqs(), requests: None },
            ..self.clone()
        }
    }

    /// Returns the job with as many concurrent requests as memory permits, without limits on latencies.
    #[must_use]
    pub fn with_full_load(&self) -> Self {
        let max_num_seqs = self.max_num_seqs().unwrap_or(Self::MAX_NUM_SEQS);
        Self { arrivals: Arrivals::AutoConcurrency { max_num_seqs }, limits: Limits::default(), ..self.clone() }
    }

    /// Largest number of running requests of a replica; `None` if neither the job nor its software states it.
    fn max_num_seqs(&self) -> Option<u64> {
        match self.arrivals {
            Arrivals::FixedConcurrency { max_num_seqs, .. } => max_num_seqs,
            Arrivals::AutoConcurrency { max_num_seqs }
            | Arrivals::Batch { max_num_seqs, .. }
            | Arrivals::OpenLoop(OpenLoop { max_num_seqs, .. }) => Some(max_num_seqs),
        }
    }
}
