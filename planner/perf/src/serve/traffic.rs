//! Collectives of each group of ranks in an inference step, with their sizes and counts.
//!
//! Forward pass only, otherwise as in training (`job/traffic`, which cites the papers): two all_reduces of a layer's
//! activations among tensor-parallel ranks, which sequence parallelism replaces by reduce_scatters and all_gathers;
//! dispatch and combine of tokens by collectives or by kernels of libraries ([`expert_calls`]); pipeline point-to-point
//! transfers. The embedding is reduced at the start, and logits are gathered at the end. Tokens are dispatched in the
//! precision of the weights; everything else has the precision of activations.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use super::steady_state::StepTokens;
use fabricast_workload::job::{
    CollectiveTokens, Dimension, ExpertCall, GroupCall, Layout, Phase, QueryKeyNorm, SequenceParallelism, Serving,
    StepKind, TokenExchange, dispatch_and_combine,
};

/// Returns all calls of a step on one rank's groups. Groups of one rank make no calls.
#[must_use]
pub fn traffic(job: &Serving, layout: &Layout, mix: &StepTokens) -> Vec<GroupCall> {
    let (model, degrees) = (&job.model, layout.degrees);
    let tokens = mix.tokens();
    let activation_bytes = job.precision.bytes() as f64 * tokens * model.hidden as f64;
    let mut calls = Vec::new();
    let mut add = |phase, dimension, collective, bytes: f64, count| {
        let ranks = u64::from(layout.size(dimension));
        if ranks > 1 && bytes > 0.0 {
            // Rounded up to sixteen bytes per rank, which the fastest algorithms of libraries require.
            let bytes = Bytes((bytes.ceil() as u64).next_multiple_of(16 * ranks));
            calls.push(GroupCall { phase, dimension, collective, bytes, count });
        }
    };
    match degrees.sequence {
        SequenceParallelism::Undivided => {
            add(Phase::LayerForward, Dimension::Tensor, Collective::AllReduce, activation_bytes, 2);
        }
        SequenceParallelism::TensorSharded => {
            add(Phase::LayerForward, Dimension::Tensor, Collective::AllGather, activation_bytes, 2);
            add(Phase::LayerForward, Dimension::Tensor, Collective::ReduceScatter, activation_bytes, 2);
        }
    }
    if model.query_key_norm == QueryKeyNorm::AllHeads {
        // Sums of squares of queries and keys, in 32 bits.
        add(Phase::LayerForward, Dimension::Tensor, Collective::AllReduce, 2.0 * 4.0 * tokens, 1);
    }
    if model.experts > 0 {
        let activation = job.precision.bytes() as f64;
        let exchanged = CollectiveTokens {
            tokens: tokens / degrees.token_shares() as f64,
            hidden: model.hidden as f64,
            top_k: model.experts_per_token as f64,
            skew: layout.expert_imbalance(job.skew),
            ranks: f64::from(degrees.expert),
            element_bytes: [job.dispatch.stated_element_bytes().unwrap_or(job.precision.served_bytes()), activation],
        };
        for call in exchanged.calls(job.dispatch.dispatcher).into_iter().flatten() {
            add(Phase::LayerForward, Dimension::Expert, call.collective, call.bytes, 1);
        }
    }
    let embedding_collective = match degrees.sequence {
        SequenceParallelism::Undivided => Collective::AllReduce,
        SequenceParallelism::TensorSharded => Collective::ReduceScatter,
    };
    add(Phase::Embedding, Dimension::Tensor, embedding_collective, activation_bytes, 1);
    let logit_bytes = job.precision.bytes() as f64 * (mix.decode_tokens() + mix.finished_prefills) * model.vocab as f64;
    add(Phase::Logits, Dimension::Tensor, Collective::AllGather, logit_bytes, 1);
    if degrees.pipeline > 1 {
        let part = activation_bytes / f64::from(degrees.tensor);
        add(Phase::PipelineTransfer, Dimension::Pipeline, Collective::SendRecv, part, 1);
        if degrees.sequence == SequenceParallelism::Undivided {
            add(Phase::PipelineTransfer, Dimension::Tensor, Collective::AllGather, activation_bytes, 1);
        }
    }
    calls
}

/// Kind of a step with these tokens.
pub(super) fn step_kind(mix: &StepTokens) -> StepKind {
    if mix.prefill > 0.0 { StepKind::Prefill } else { StepKind::Decode }
}

/// Returns the dispatch and combine of a layer by the kernels of a library; empty if collectives exchange the tokens, or
/// if every rank has all experts.
#[must_use]
pub fn expert_calls(job: &Serving, layout: &Layout, mix: &StepTokens) -> Vec<ExpertCall> {
    let kernel =
        job.dispatch.dispatcher.kernel(step_kind(mix)).filter(|_| job.model.experts > 0 && layout.degrees.expert > 1);
    let Some(kernel) = kernel else { return Vec::new() };
    let tokens = mix.tokens() / layout.degrees.token_shares() as f64;
    let skew = layout.expert_imbalance(job.skew);
    let exchange = TokenExchange::new(kernel, tokens, &job.model, job.expert_slots(), skew);
    let dispatch_type = job.dispatch.token_type(kernel, job.precision);
    dispatch_and_combine(Phase::LayerForward, exchange, dispatch_type, 1).to_vec()
}
