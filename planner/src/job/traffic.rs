//! Collectives of each group of ranks in a training step, with their sizes and counts.
//!
//! Sizes are those of nccl-tests (the larger buffer).
//!
//! Tensor parallelism follows Shoeybi et al. (arXiv 1909.08053): two all_reduces of a layer's activations forward and
//! two backward. Sequence parallelism replaces them by as many all_gathers and reduce_scatters (Korthikanti et al.).
//! The additional gather of its backward pass is hidden behind the GEMM of the weight gradients and is omitted.
//!
//! Expert parallelism follows Lepikhin et al. (arXiv 2006.16668): dispatch and combine, forward and backward. Context
//! parallelism passes keys and values around a ring (Liu et al., arXiv 2310.01889).
//!
//! ZeRO is counted as by its authors: a reduce_scatter and an all_gather replace an all_reduce; with sharded weights
//! there is an all_gather in each direction and a reduce_scatter; all three happen once per step if gathered weights
//! and unsharded gradients are retained for it (job/sharding). With hybrid sharding these calls are within a replica's
//! ranks, and an all_reduce among ranks with the same shard follows for each shard of the gradients
//! (`torch/distributed/fsdp/_runtime_utils.py`, `_reduce_grad` of hybrid strategies).

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use super::layout::Sequence;
use super::memory::{of_rank, words};
use super::{Accumulate, Dimension, Gathered, Layout, Training, Zero};

/// Phase of a step in which a call happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Forward pass of each layer, per micro-batch.
    LayerForward,
    /// Backward pass of each layer, per micro-batch, including recomputation.
    LayerBackward,
    /// Before the first layer, per micro-batch: embedding.
    Words,
    /// Backward pass of the logits after the last layer, per micro-batch.
    Logits,
    /// Pipeline point-to-point transfer between model chunks on different stages, per micro-batch, in each direction.
    HandOff,
    /// Weights before the forward pass of each layer, per micro-batch.
    WeightsForward,
    /// Weights before the backward pass of each layer, per micro-batch.
    WeightsBackward,
    /// Gradients after each layer, per micro-batch.
    LayerGradients,
    /// Gradients once per step.
    Gradients,
    /// Gradients of the tied embedding, between the first and the last pipeline stage, once per step after all other
    /// gradients.
    WordGradients,
    /// Weights once per step, after the optimizer.
    Updated,
}

impl Phase {
    /// Name for output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LayerForward => "layer_forward",
            Self::LayerBackward => "layer_backward",
            Self::Words => "words",
            Self::Logits => "logits",
            Self::HandOff => "hand_off",
            Self::WeightsForward => "weights_forward",
            Self::WeightsBackward => "weights_backward",
            Self::LayerGradients => "layer_gradients",
            Self::Gradients => "gradients",
            Self::WordGradients => "word_gradients",
            Self::Updated => "updated",
        }
    }
}

/// Call that all groups of a dimension make concurrently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupCall {
    /// Phase.
    pub phase: Phase,
    /// Dimension whose groups call it.
    pub dimension: Dimension,
    /// Collective.
    pub collective: Collective,
    /// Message size; for gradients once per step, the total of all buckets.
    pub bytes: Bytes,
    /// Number of calls each time the phase occurs.
    pub count: u64,
}

impl GroupCall {
    /// Returns true for pipeline point-to-point transfers between stages.
    #[must_use]
    pub fn is_between_stages(&self) -> bool {
        self.phase == Phase::HandOff && self.dimension == Dimension::Pipeline
    }
}

/// Returns all calls of a step. Groups of one rank make none.
#[must_use]
pub fn traffic(job: &Training, layout: &Layout) -> Vec<GroupCall> {
    let mut calls = Vec::new();
    layers(job, layout, &mut calls);
    ends(job, layout, &mut calls);
    copies(job, layout, &mut calls);
    calls.extend(shared_words(job, layout));
    calls.retain(|call| layout.size(call.dimension) > 1 && call.bytes.0 > 0 && call.count > 0);
    calls
}

/// Bytes of a micro-batch's activations between layers, on a rank that processes all of its tokens.
pub(crate) fn activations(job: &Training, layout: &Layout) -> u64 {
    job.precision.bytes() * job.micro_batch * job.model.seq / u64::from(layout.degrees.context) * job.model.hidden
}

/// Total bytes of a micro-batch's tokens routed to the experts of the most loaded tensor group.
fn routed(job: &Training, layout: &Layout) -> u64 {
    job.precision.bytes() * job.routed(layout) * job.model.hidden
}

fn layers(job: &Training, layout: &Layout, calls: &mut Vec<GroupCall>) {
    let whole = activations(job, layout);
    // Recomputation repeats the forward pass of a layer.
    let backward = if job.recompute.is_of_layers() { 2 } else { 1 };
    for (phase, times) in [(Phase::LayerForward, 1), (Phase::LayerBackward, backward)] {
        let mut add = |dimension, collective, bytes, count| {
            calls.push(GroupCall { phase, dimension, collective, bytes: Bytes(bytes), count });
        };
        let parts = layout.tensor_parts(&job.model) * times;
        match layout.degrees.sequence {
            Sequence::Whole => add(Dimension::Tensor, Collective::AllReduce, whole, parts),
            Sequence::Divided => {
                let Short { bytes, gathered, reduced } = Short::of(job, whole, phase);
                add(Dimension::Tensor, Collective::AllGather, whole, parts - gathered);
                add(Dimension::Tensor, Collective::ReduceScatter, whole, parts - reduced);
                add(Dimension::Tensor, Collective::AllGather, bytes, gathered);
                add(Dimension::Tensor, Collective::ReduceScatter, bytes, reduced);
                // Tokens routed to experts whose matrices tensor-parallel ranks divide.
                let (came, divided) = (routed(job, layout), u64::from(layout.gathers_routed(&job.model)) * times);
                add(Dimension::Tensor, Collective::AllGather, came, divided);
                add(Dimension::Tensor, Collective::ReduceScatter, came, divided);
            }
        }
        if job.model.experts > 0 {
            let tokens = whole / layout.degrees.token_shares() * job.model.experts_per_token;
            add(
                Dimension::Expert,
                Collective::AllToAll,
                (tokens as f64 * layout.fullest(job.skew)).round() as u64,
                2 * times,
            );
        }
        // Keys and values in the forward pass; the backward pass sends them again, together with their gradients.
        let model = job.model.held_by(layout.degrees.tensor);
        let width = model.key_width() + model.value_width();
        let kv = whole / model.hidden * width / u64::from(layout.degrees.tensor);
        let rounds = u64::from(layout.degrees.context) - 1;
        let passes = if phase == Phase::LayerForward { 1 } else { times + 1 };
        add(Dimension::Context, Collective::SendRecv, kv, rounds * passes);
    }
}

/// Gathers of latent vectors. With latent attention and sequence parallelism, ranks compute latent vectors of their own
/// tokens and gather these instead of the tokens before attention (Megatron Core, `MLASelfAttention`). Queries without
/// a latent vector still need the tokens.
struct Short {
    bytes: u64,
    /// Number of gathers in a pass of a layer.
    gathered: u64,
    /// Number of reductions of their gradients.
    reduced: u64,
}

impl Short {
    fn of(job: &Training, whole: u64, phase: Phase) -> Self {
        let Some(latent) = job.model.latent else { return Self { bytes: 0, gathered: 0, reduced: 0 } };
        let width = latent.query.unwrap_or(job.model.hidden) + latent.kept();
        let bytes = whole / job.model.hidden * width;
        match phase {
            Phase::LayerForward => Self { bytes, gathered: 1, reduced: 0 },
            _ => Self { bytes, gathered: u64::from(job.recompute.is_of_layers()), reduced: 1 },
        }
    }
}

fn ends(job: &Training, layout: &Layout, calls: &mut Vec<GroupCall>) {
    let whole = activations(job, layout);
    let tensor = u64::from(layout.degrees.tensor);
    let mut add = |phase, dimension, collective, bytes| {
        calls.push(GroupCall { phase, dimension, collective, bytes: Bytes(bytes), count: 1 });
    };
    // Each rank has a part of the vocabulary.
    let word_sum = match layout.degrees.sequence {
        Sequence::Whole => Collective::AllReduce,
        Sequence::Divided => Collective::ReduceScatter,
    };
    add(Phase::Words, Dimension::Tensor, word_sum, whole);
    add(Phase::Logits, Dimension::Tensor, word_sum, whole);
    // Each tensor-parallel rank sends its part. Without sequence parallelism the receivers gather the other parts
    // immediately (Narayanan et al., section 4.1).
    add(Phase::HandOff, Dimension::Pipeline, Collective::SendRecv, whole / tensor);
    if layout.degrees.sequence == Sequence::Whole && layout.degrees.pipeline > 1 {
        add(Phase::HandOff, Dimension::Tensor, Collective::AllGather, whole);
    }
}

fn copies(job: &Training, layout: &Layout, calls: &mut Vec<GroupCall>) {
    let degrees = layout.degrees;
    let tensor = u64::from(degrees.tensor);
    let (shared, experts) = of_rank(&job.model, layout, 1, 0);
    let words = |stage| words(&job.model, layout, stage).div_ceil(tensor);
    let gradient = |parameters: u64| (parameters * u64::from(job.gradient_bits)).div_ceil(8);
    let weight = |parameters: u64| parameters * job.precision.bytes();
    for (dimension, replicas, layer, has_words) in [
        (Dimension::Data, Dimension::Replica, shared, 1),
        (Dimension::ExpertData, Dimension::ExpertReplica, experts, 0),
    ] {
        let mut among = |dimension, phase, collective, bytes| {
            calls.push(GroupCall { phase, dimension, collective, bytes: Bytes(bytes), count: 1 });
        };
        let of_stage = |stage| layer * layout.stage_layers(&job.model, stage) + has_words * words(stage);
        let all = layout.fullest_stages().into_iter().map(of_stage).max().unwrap_or_default();
        let once = has_words * layout.fullest_stages().into_iter().map(words).max().unwrap_or_default();
        if job.zero == Zero::None {
            among(dimension, Phase::Gradients, Collective::AllReduce, gradient(all));
            continue;
        }
        let mut reduce = |phase, parameters| {
            let whole = gradient(parameters);
            among(dimension, phase, Collective::ReduceScatter, whole);
            among(replicas, phase, Collective::AllReduce, whole.div_ceil(layout.size(dimension).max(1).into()));
        };
        match job.accumulated(layout) {
            Accumulate::Whole => reduce(Phase::Gradients, all),
            Accumulate::Shards => {
                reduce(Phase::LayerGradients, layer);
                reduce(Phase::Gradients, once);
            }
        }
        let (each, after) = match job.gathered(layout) {
            Gathered::Step => (&[][..], all),
            Gathered::MicroBatch => (&[Phase::WeightsForward][..], once),
            Gathered::Pass => (&[Phase::WeightsForward, Phase::WeightsBackward][..], once),
        };
        each.iter().for_each(|&phase| among(dimension, phase, Collective::AllGather, weight(layer)));
        among(dimension, Phase::Updated, Collective::AllGather, weight(after));
    }
}

/// All_reduce of the tied embedding's gradients between first and last stage: all of them, or the shard that a rank
/// stores (Megatron Core, `_allreduce_word_embedding_grads`).
fn shared_words(job: &Training, layout: &Layout) -> Option<GroupCall> {
    let of_rank = job.model.scoring_parameters().div_ceil(layout.degrees.tensor.into());
    let kept_by = match job.accumulated(layout) {
        Accumulate::Whole => 1,
        Accumulate::Shards => u64::from(layout.size(Dimension::Data)).max(1),
    };
    let bytes = Bytes((of_rank.div_ceil(kept_by) * u64::from(job.gradient_bits)).div_ceil(8));
    let (phase, dimension, collective) = (Phase::WordGradients, Dimension::Ends, Collective::AllReduce);
    (job.model.untied == 0).then_some(GroupCall { phase, dimension, collective, bytes, count: 1 })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::footprint;
    use super::super::read::tests::{job, text, trained};
    use super::*;

    /// Bytes per step that the groups of a dimension communicate on a rank, over all occurrences of each phase.
    fn bytes(job: &Training, layout: &Layout, dimension: Dimension) -> u64 {
        let layers = job.model.layers / u64::from(layout.degrees.pipeline);
        let micro = layout.micro_batches(job);
        let times = |phase| match phase {
            Phase::LayerForward | Phase::LayerBackward | Phase::LayerGradients => layers * micro,
            Phase::WeightsForward | Phase::WeightsBackward => layers * micro,
            Phase::Words | Phase::Logits | Phase::HandOff => micro,
            Phase::Gradients | Phase::WordGradients | Phase::Updated => 1,
        };
        let calls = traffic(job, layout);
        calls.iter().filter(|c| c.dimension == dimension).map(|c| c.bytes.0 * c.count * times(c.phase)).sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// 8 b s h bytes of tensor parallelism per layer and micro-batch (16-bit activations, two calls in each
        /// direction), and embedding and logits.
        #[test]
        fn tensor_traffic_matches_closed_form(tp in 1u32..4, pp in 0u32..3, micro in 1u64..3, divided in any::<bool>()) {
            let (tp, pp) = (1 << tp, 1 << pp);
            let job = job(&format!("global_batch = {}\nmicro_batch = {micro}\nparallel = {{ tp = {tp}, pp = {pp}, sequence = {divided} }}\n", micro * 8));
            let layout = Layout::given(&job, tp * pp).unwrap().unwrap();
            let each = 2 * micro * 2048 * 12_288;
            let per_layer = if divided { 8 } else { 4 };
            let gathered = if !divided && pp > 1 { 1 } else { 0 };
            let expected = 8 * each * (96 / u64::from(pp) * per_layer + 2 + gathered);
            prop_assert_eq!(bytes(&job, &layout, Dimension::Tensor), expected);
        }

        /// Gathers before attention have 2 b s (query + cached) bytes instead of 2 b s h, and the same amount of
        /// gradients is reduced; queries without a latent vector need the tokens as well. Recomputation gathers once
        /// more.
        #[test]
        fn latent_vectors_are_gathered_instead_of_tokens(rank in prop_oneof![Just(0u64), 16..900u64], kept in 8..600u64, again in any::<bool>()) {
            let query = if rank > 0 { format!("q_lora_rank = {rank}, ") } else { String::new() };
            let recompute = if again { "full" } else { "none" };
            let of = |latent: &str| {
                let job = job(&format!(
                    "recompute = \"{recompute}\"\nparallel = {{ tp = 4, sequence = true }}\n\
                     model = {{ layers = 4, hidden = 1024, heads = 8, vocab = 512, seq = 256{latent} }}\n"
                ));
                bytes(&job, &Layout::given(&job, 4).unwrap().unwrap(), Dimension::Tensor)
            };
            let latent = format!(
                ", latent = {{ {query}kv_lora_rank = {kept}, qk_nope_head_dim = 32, qk_rope_head_dim = 16, v_head_dim = 32 }}"
            );
            let width = (if rank > 0 { rank } else { 1024 }) + kept + 16;
            let times = if again { 3 } else { 2 };
            let layers_and_batches = 4 * 64;
            prop_assert_eq!(of(&latent) + layers_and_batches * times * 2 * 256 * 1024, of("") + layers_and_batches * times * 2 * 256 * width);
        }

        /// A pipeline transfer has 2 b s h / t bytes.
        #[test]
        fn pipeline_traffic_matches_closed_form(tp in 0u32..4, pp in 1u32..4) {
            let (tp, pp) = (1 << tp, 1 << pp);
            let job = job(&format!("parallel = {{ tp = {tp}, pp = {pp} }}\n"));
            let layout = Layout::given(&job, tp * pp).unwrap().unwrap();
            prop_assert_eq!(bytes(&job, &layout, Dimension::Pipeline), 64 * 2 * 2048 * 12_288 / u64::from(tp));
        }

        /// 2 Ψ bytes of 16-bit gradients. ZeRO stages 1 to 3 move up to 2, 2 and 3 times that over all micro-batches;
        /// with pipeline stages, twice that of the first stage once per step.
        #[test]
        fn data_parallel_traffic_matches_closed_form(dp in 1u32..7, pp in 0u32..4, zero in 0u32..4, accumulate in 1u64..3) {
            let (dp, pp) = (1 << dp, 1 << pp);
            let batch = u64::from(dp) * accumulate;
            let job = job(&format!("global_batch = {batch}\nzero = {zero}\nparallel = {{ dp = {dp}, pp = {pp} }}\n"));
            let layout = Layout::given(&job, dp * pp).unwrap().unwrap();
            let words = 2 * job.model.embedding_parameters();
            let layers = (2 * job.model.parameters() - words) / u64::from(pp);
            let all = layers + words;
            let expected = match zero {
                0 => all,
                1 => 2 * all,
                _ if pp > 1 => 2 * all,
                2 => accumulate * layers + words + all,
                _ => 3 * accumulate * layers + 2 * words,
            };
            prop_assert_eq!(bytes(&job, &layout, Dimension::Data), expected);
        }

        /// Released weights are gathered again, and sharded accumulation reduces every time: the layers' bytes for each
        /// micro-batch, the embedding's once per step.
        #[test]
        fn zero_3_traffic_matches_reshard_and_accumulate(dp in 1u32..5, pp in 0u32..4, rounds in 1u64..4, reshard in any::<bool>(), whole in any::<bool>(), bits in prop::sample::select(vec![16u64, 32])) {
            let (dp, pp) = (1 << dp, 1 << pp);
            let (micro, accumulate) = (rounds * u64::from(pp), if whole { "whole" } else { "shards" });
            let job = job(&format!(
                "global_batch = {}\nzero = 3\nreshard_after_forward = {reshard}\naccumulate = \"{accumulate}\"\n\
                 gradient_bits = {bits}\nparallel = {{ dp = {dp}, pp = {pp} }}\n",
                u64::from(dp) * micro
            ));
            let layout = Layout::given(&job, dp * pp).unwrap().unwrap();
            let words = job.model.embedding_parameters();
            let layers = (job.model.parameters() - words) / u64::from(pp);
            let reduced = if whole { layers } else { micro * layers } + words;
            let gathered = match (reshard, pp) {
                (true, _) => 2 * micro * layers,
                (false, 1) => micro * layers,
                (false, _) => layers,
            } + words;
            prop_assert_eq!(bytes(&job, &layout, Dimension::Data), reduced * bits / 8 + gathered * 2);
            // Memory holds what is not sharded: weights, with two gathered layers if they are sharded, and gradients in
            // the bits of their accumulation.
            let has = footprint(&job, &layout);
            let part = |held: u64, divided: bool| if divided { held.div_ceil(u64::from(dp)) } else { held };
            let layer = (job.model.parameters() - words) / job.model.layers;
            let gathered = if reshard { 2 * 2 * layer } else { 0 };
            prop_assert_eq!(has.weights, Bytes(part(2 * (layers + words), reshard) + gathered));
            prop_assert_eq!(has.gradients, Bytes(part(bits / 8 * (layers + words), !whole)));
            prop_assert_eq!(has.optimizer, Bytes(part(12 * (layers + words), true)));
        }

        /// With embedding and logits counted as layers, the stages have all layers in total and differ by at most one.
        /// Calls of the fullest stage have the size of its parameters.
        #[test]
        fn ends_as_layers_balance_the_stages(pp in 1u32..9, v in 1u32..4, each in 1u64..4) {
            prop_assume!(pp > 1 || v == 1);
            let layers = u64::from(pp * v) * each;
            prop_assume!(layers > 2);
            let job = job(&format!(
                "global_batch = {}\nzero = 3\nparallel = {{ dp = 2, pp = {pp}, interleave = {v}, ends_as_layers = true }}\n\
                 model = {{ layers = {}, hidden = 64, heads = 8, vocab = 100, seq = 32 }}\n",
                2 * pp, layers - 2
            ));
            let layout = Layout::given(&job, 2 * pp).unwrap().unwrap();
            let stages: Vec<u64> = (0..pp).map(|stage| layout.stage_layers(&job.model, stage)).collect();
            prop_assert_eq!(stages.iter().sum::<u64>(), layers - 2);
            prop_assert!(stages.iter().max().unwrap() - stages.iter().min().unwrap() <= 1);
            prop_assert_eq!(layout.stretch_layers(&job.model, 0, 0), each - if pp == 1 { 2 } else { 1 });
            let words = job.model.embedding_parameters();
            let first = stages[0] * job.model.shared_layer_parameters() + words;
            let most = stages.iter().skip(1).map(|n| n * job.model.shared_layer_parameters()).max().unwrap_or(0).max(first);
            let calls = traffic(&job, &layout);
            let gathered = |call: &&GroupCall| call.dimension == Dimension::Data && call.collective == Collective::AllGather;
            if pp > 1 {
                prop_assert_eq!(calls.iter().filter(gathered).map(|call| call.bytes.0).sum::<u64>(), 2 * most);
                prop_assert_eq!(footprint(&job, &layout).weights, Bytes(2 * most));
            }
        }

        /// Dispatch and combine send each token once per expert: 2 b s h k bytes, twice in each direction.
        #[test]
        fn expert_traffic_matches_closed_form(ep in 1u32..4, k in 1u64..3, skew in 1u64..9) {
            let ep = 1u32 << ep;
            let job = job(&format!("expert_skew = {skew}\nparallel = {{ dp = {ep}, ep = {ep} }}\n\
                model = {{ layers = 4, hidden = 1024, heads = 8, vocab = 32000, seq = 512, experts = 8, experts_per_token = {k} }}\n"));
            let layout = Layout::given(&job, ep).unwrap().unwrap();
            let micro = layout.micro_batches(&job);
            prop_assert_eq!(bytes(&job, &layout, Dimension::Expert), micro * 4 * 4 * (2 * 512 * 1024 * k) * skew.min(ep.into()));
            prop_assert_eq!(bytes(&job, &layout, Dimension::ExpertData), 0);
        }

        /// With undivided experts (etp 1), only one tensor-parallel rank sends each token, and no matrices are shared
        /// after attention. The total of expert parameters per stage is the same as for divided experts.
        #[test]
        fn undivided_expert_traffic_matches_closed_form(tp in 1u32..3, dp in 0u32..3, ep in 0u32..4, shared in 0u64..2) {
            let (tp, dp, ep) = (1 << tp, 1 << dp, 1u32 << ep);
            prop_assume!(tp * dp >= ep);
            let of = |lines: &str| {
                let job = job(&format!(
                    "zero = 1\nparallel = {{ tp = {tp}, dp = {dp}, sequence = true{lines} }}\nmodel = {{ layers = 4, hidden = 1024, heads = 8, \
                     vocab = 32000, seq = 512, experts = 8, experts_per_token = 2, shared_experts = {shared} }}\n"
                ));
                let layout = Layout::given(&job, tp * dp).unwrap().unwrap();
                (job, layout)
            };
            let (job, whole) = of(&format!(", ep = {ep}, etp = 1"));
            let micro = whole.micro_batches(&job);
            let out = if ep > 1 { micro * 4 * 4 * (2 * 512 * 1024 * 2) / u64::from(tp) } else { 0 };
            prop_assert_eq!(bytes(&job, &whole, Dimension::Expert), out);
            let (divided_job, divided) = of("");
            let of_a_layer = |job, layout| bytes(job, layout, Dimension::Tensor) - micro * 2 * (2 * 512 * 1024);
            let parts = if shared == 0 { 1 } else { 2 };
            prop_assert_eq!(2 * of_a_layer(&job, &whole), parts * of_a_layer(&divided_job, &divided));
            let experts = 2 * 4 * 8 * job.model.ffn_parameters() / u64::from(ep);
            let copies = u64::from(tp * dp / ep);
            prop_assert_eq!(bytes(&job, &whole, Dimension::ExpertData), if copies > 1 { 2 * experts } else { 0 });
            let shared = footprint(&divided_job, &divided).weights.0 - 2 * 4 * 8 * job.model.ffn_parameters() / u64::from(tp);
            prop_assert_eq!(footprint(&job, &whole).weights.0, shared + experts);
        }
    }

    /// Tied embedding on two stages: V h / t gradients, or the shard that a rank stores; none for an untied embedding
    /// or a single stage.
    #[test]
    fn tied_embedding_gradients_are_reduced_between_end_stages() {
        let bytes = |lines: &str| {
            let job = job(&format!(
                "global_batch = 8\n{lines}\nmodel = {{ layers = 8, hidden = 1024, heads = 8, vocab = 50304, seq = 512, tied = {} }}\n",
                !lines.contains("untied")
            ).replace("# untied", ""));
            bytes(&job, &Layout::given(&job, 16).unwrap().unwrap(), Dimension::Ends)
        };
        let whole = 2 * 50_304 * 1024;
        assert_eq!(bytes("parallel = { tp = 2, pp = 4, dp = 2 }"), whole / 2);
        assert_eq!(bytes("parallel = { tp = 2, pp = 2, dp = 4 }\nzero = 1"), whole / 2);
        assert_eq!(bytes("parallel = { tp = 2, pp = 2, dp = 4 }\nzero = 2\naccumulate = \"shards\""), whole / 8);
        assert_eq!(bytes("parallel = { tp = 2, pp = 4, dp = 2 } # untied"), 0);
        assert_eq!(bytes("parallel = { tp = 2, pp = 1, dp = 8 }"), 0);
    }

    /// If routed tokens of divided experts come from other ranks, their k copies are gathered and reduced, 2 b s h k
    /// bytes in each direction for the second part of a layer, and all tokens once more for shared experts.
    #[test]
    fn divided_experts_gather_routed_tokens() {
        let of = |ep: u32, k: u64, shared: u64| {
            let job = job(&format!(
                "parallel = {{ tp = 4, dp = 4, ep = {ep}, sequence = true }}\nmodel = {{ layers = 4, hidden = 1024, heads = 8, vocab = 512, \
                 seq = 256, experts = 16, experts_per_token = {k}, shared_experts = {shared} }}\n"
            ));
            bytes(&job, &Layout::given(&job, 16).unwrap().unwrap(), Dimension::Tensor)
        };
        // Forward and backward, gather and reduce, four layers, 16 micro-batches.
        let part = 4 * 4 * 16 * (2 * 256 * 1024);
        assert_eq!(of(4, 1, 0), of(1, 1, 0));
        assert_eq!(of(4, 6, 0) - of(1, 6, 0), 5 * part);
        assert_eq!(of(4, 6, 2) - of(4, 6, 0), part);
        assert_eq!(of(1, 6, 2), of(1, 1, 0));
    }

    /// With fewer KV heads than tensor-parallel ranks, each rank has a full head to send.
    #[test]
    fn kv_heads_are_replicated_not_divided() {
        let of = |kv_heads: u64| {
            let job = job(&format!(
                "parallel = {{ tp = 8, cp = 2 }}\nmodel = {{ layers = 4, hidden = 1024, heads = 8, kv_heads = {kv_heads}, vocab = 512, seq = 256 }}\n"
            ));
            let layout = Layout::given(&job, 16).unwrap().unwrap();
            (bytes(&job, &layout, Dimension::Context), of_rank(&job.model, &layout, 1, 0).0)
        };
        assert_eq!((of(8).0, of(2).0), (of(1).0, of(1).0));
        // Parameters of a layer on a rank include one KV head of width 128 with biases, however few there are.
        assert_eq!((of(8).1, of(2).1), (of(1).1, of(1).1));
    }

    #[test]
    fn single_rank_has_no_traffic() {
        let text = text("parallel = { tp = 1 }\nzero = 3\n");
        let job = trained(&text);
        let layout = Layout::given(&job, 1).unwrap().unwrap();
        assert_eq!(traffic(&job, &layout), []);
    }
}
