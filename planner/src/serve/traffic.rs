//! Collectives of each group of ranks in an inference step, with their sizes and counts.
//!
//! Forward pass only, otherwise as in training (`job/traffic`, which cites the papers): two all_reduces of a layer's
//! activations among tensor-parallel ranks, which sequence parallelism replaces by reduce_scatters and all_gathers;
//! dispatch and combine of tokens, with a copy for each expert; pipeline point-to-point transfers. The embedding is
//! reduced at the start, and logits are gathered at the end. Tokens are dispatched in the precision of the weights;
//! everything else has the precision of activations.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use super::rhythm::Mix;
use crate::job::{Dimension, GroupCall, Layout, Phase, Sequence, Serving};

/// Returns all calls of a step. Groups of one rank make none.
#[must_use]
pub fn traffic(job: &Serving, layout: &Layout, mix: &Mix) -> Vec<GroupCall> {
    let (model, degrees) = (&job.model, layout.degrees);
    let tokens = mix.tokens();
    let whole = job.precision.bytes() as f64 * tokens * model.hidden as f64;
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
        Sequence::Whole => add(Phase::LayerForward, Dimension::Tensor, Collective::AllReduce, whole, 2),
        Sequence::Divided => {
            add(Phase::LayerForward, Dimension::Tensor, Collective::AllGather, whole, 2);
            add(Phase::LayerForward, Dimension::Tensor, Collective::ReduceScatter, whole, 2);
        }
    }
    if model.experts > 0 {
        let copies = tokens / degrees.token_shares() as f64 * model.experts_per_token as f64 * layout.fullest(job.skew);
        let elements = copies * model.hidden as f64;
        let there = elements * job.precision.served_bytes();
        add(Phase::LayerForward, Dimension::Expert, Collective::AllToAll, there, 1);
        let back = elements * job.precision.bytes() as f64;
        add(Phase::LayerForward, Dimension::Expert, Collective::AllToAll, back, 1);
    }
    let word_sum = match degrees.sequence {
        Sequence::Whole => Collective::AllReduce,
        Sequence::Divided => Collective::ReduceScatter,
    };
    add(Phase::Words, Dimension::Tensor, word_sum, whole, 1);
    let scores = job.precision.bytes() as f64 * (mix.decode + mix.ending) * model.vocab as f64;
    add(Phase::Logits, Dimension::Tensor, Collective::AllGather, scores, 1);
    if degrees.pipeline > 1 {
        let part = whole / f64::from(degrees.tensor);
        add(Phase::HandOff, Dimension::Pipeline, Collective::SendRecv, part, 1);
        if degrees.sequence == Sequence::Whole {
            add(Phase::HandOff, Dimension::Tensor, Collective::AllGather, whole, 1);
        }
    }
    calls
}
