//! Tests of traffic against closed forms.

use proptest::prelude::*;

use super::super::footprint;
use super::super::rank_parameters;
use super::super::read::tests::{job, text, trained};
use super::*;

/// Bytes per step that the groups of a dimension communicate on a rank, over all occurrences of each phase.
fn bytes(job: &Training, layout: &Layout, dimension: Dimension) -> u64 {
    let layers = job.model.layers / u64::from(layout.degrees.pipeline);
    let micro = layout.micro_batches(job);
    let times = |phase| match phase {
        Phase::LayerForward | Phase::LayerBackward | Phase::LayerGradients => layers * micro,
        Phase::WeightsForward | Phase::WeightsBackward => layers * micro,
        Phase::Embedding | Phase::Logits | Phase::PipelineTransfer => micro,
        Phase::Gradients | Phase::EmbeddingGradients | Phase::UpdatedWeights => 1,
    };
    let calls = traffic(job, layout);
    calls.iter().filter(|c| c.dimension == dimension).map(|c| c.bytes.0 * c.count * times(c.phase)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Tensor parallelism moves 8 b s h bytes per layer and micro-batch (16-bit activations, two calls in each
    /// direction), and the embedding and logits.
    #[test]
    fn tensor_traffic_matches_closed_form(tp in 1u32..4, pp in 0u32..3, micro in 1u64..3, divided in any::<bool>()) {
        let (tp, pp) = (1 << tp, 1 << pp);
        let job = job(&format!("global_batch = {}\nmicro_batch = {micro}\nparallel = {{ tp = {tp}, pp = {pp}, sequence = {divided} }}\n", micro * 8));
        let layout = Layout::specified_by(&job, tp * pp).unwrap().unwrap();
        let activation_bytes = 2 * micro * 2048 * 12_288;
        let per_layer = if divided { 8 } else { 4 };
        let gathered = if !divided && pp > 1 { 1 } else { 0 };
        let expected = 8 * activation_bytes * (96 / u64::from(pp) * per_layer + 2 + gathered);
        prop_assert_eq!(bytes(&job, &layout, Dimension::Tensor), expected);
    }

    /// Gathers before attention have 2 b s (query + cached) bytes instead of 2 b s h, and the same amount of
    /// gradients is reduced; queries without a latent vector need the tokens as well. Recomputation gathers once
    /// more.
    #[test]
    fn latent_vectors_are_gathered_instead_of_tokens(query_rank in prop_oneof![Just(0u64), 16..900u64], kv_rank in 8..600u64, recomputes in any::<bool>()) {
        let query = if query_rank > 0 { format!("q_lora_rank = {query_rank}, ") } else { String::new() };
        let recompute = if recomputes { "full" } else { "none" };
        let tensor_bytes = |latent: &str| {
            let job = job(&format!(
                "recompute = \"{recompute}\"\nparallel = {{ tp = 4, sequence = true }}\n\
                 model = {{ layers = 4, hidden = 1024, heads = 8, vocab = 512, seq = 256{latent} }}\n"
            ));
            bytes(&job, &Layout::specified_by(&job, 4).unwrap().unwrap(), Dimension::Tensor)
        };
        let latent = format!(
            ", latent = {{ {query}kv_lora_rank = {kv_rank}, qk_nope_head_dim = 32, qk_rope_head_dim = 16, v_head_dim = 32 }}"
        );
        let width = (if query_rank > 0 { query_rank } else { 1024 }) + kv_rank + 16;
        let times = if recomputes { 3 } else { 2 };
        let layers_and_batches = 4 * 64;
        prop_assert_eq!(tensor_bytes(&latent) + layers_and_batches * times * 2 * 256 * 1024, tensor_bytes("") + layers_and_batches * times * 2 * 256 * width);
    }

    /// Owners of whole tensors broadcast as many bytes as shards gather, in at most as many calls as there are ranks or
    /// tensors; all gradients are reduced on every rank.
    #[test]
    fn owners_of_whole_tensors_broadcast_all_weights(dp in 1u32..8, layers in 1u64..40, shard in any::<bool>()) {
        let dp = 4 << dp;
        let read = |partition: &str| job(&format!(
            "global_batch = {dp}\nzero = 1\n{}zero_partition = \"{partition}\"\nparallel = {{ dp = {dp} }}\n\
             model = {{ layers = {layers}, hidden = 512, heads = 8, vocab = 512, seq = 64, gated = true }}\n",
            if shard { "shard = 4\n" } else { "" },
        ));
        let (shards, tensors) = (read("shards"), read("tensors"));
        let layout = Layout::specified_by(&tensors, dp).unwrap().unwrap();
        let sent = |job: &Training| -> (u64, u64) {
            let calls = traffic(job, &layout).into_iter().filter(|call| call.phase == Phase::UpdatedWeights);
            calls.fold((0, 0), |(bytes, count), call| (bytes + call.bytes.0 * call.count, count + call.count))
        };
        let ((gathered, _), (broadcast, owners)) = (sent(&shards), sent(&tensors));
        prop_assert!(broadcast >= gathered && broadcast < gathered + owners, "{broadcast} {gathered}");
        // Seven tensors of a gated layer, and embedding, norm and output.
        let ranks = if shard { 4 } else { u64::from(dp) };
        prop_assert_eq!(owners, ranks.min(7 * layers + 3));
        let gradients = traffic(&tensors, &layout).into_iter().filter(|call| call.phase == Phase::Gradients);
        let reduced: Vec<_> = gradients.map(|call| (call.dimension, call.collective)).collect();
        prop_assert_eq!(reduced.contains(&(Dimension::Data, Collective::AllReduce)), !shard || dp == 4);
        prop_assert_eq!(reduced.contains(&(Dimension::Data, Collective::AllGather)), shard && dp > 4);
    }

    /// A pipeline transfer has 2 b s h / t bytes.
    #[test]
    fn pipeline_traffic_matches_closed_form(tp in 0u32..4, pp in 1u32..4) {
        let (tp, pp) = (1 << tp, 1 << pp);
        let job = job(&format!("parallel = {{ tp = {tp}, pp = {pp} }}\n"));
        let layout = Layout::specified_by(&job, tp * pp).unwrap().unwrap();
        prop_assert_eq!(bytes(&job, &layout, Dimension::Pipeline), 64 * 2 * 2048 * 12_288 / u64::from(tp));
    }

    /// Data parallelism reduces 2 Ψ bytes of 16-bit gradients. ZeRO stages 1 to 3 move up to 2, 2 and 3 times that
    /// over all micro-batches; with pipeline stages, twice that of the first stage once per step.
    #[test]
    fn data_parallel_traffic_matches_closed_form(dp in 1u32..7, pp in 0u32..4, zero in 0u32..4, accumulate in 1u64..3) {
        let (dp, pp) = (1 << dp, 1 << pp);
        let batch = u64::from(dp) * accumulate;
        let job = job(&format!("global_batch = {batch}\nzero = {zero}\nparallel = {{ dp = {dp}, pp = {pp} }}\n"));
        let layout = Layout::specified_by(&job, dp * pp).unwrap().unwrap();
        let embeddings = 2 * job.model.embedding_parameters();
        let layers = (2 * job.model.parameters() - embeddings) / u64::from(pp);
        let total = layers + embeddings;
        let expected = match zero {
            0 => total,
            1 => 2 * total,
            _ if pp > 1 => 2 * total,
            2 => accumulate * layers + embeddings + total,
            _ => 3 * accumulate * layers + 2 * embeddings,
        };
        prop_assert_eq!(bytes(&job, &layout, Dimension::Data), expected);
    }

    /// Released weights are gathered again, and sharded accumulation reduces every time: the layers' bytes for each
    /// micro-batch, the embedding's once per step.
    #[test]
    fn zero_3_traffic_matches_reshard_and_accumulate(dp in 1u32..5, pp in 0u32..4, rounds in 1u64..4, reshard in any::<bool>(), unsharded in any::<bool>(), bits in prop::sample::select(vec![16u64, 32])) {
        let (dp, pp) = (1 << dp, 1 << pp);
        let (micro, accumulate) = (rounds * u64::from(pp), if unsharded { "whole" } else { "shards" });
        let job = job(&format!(
            "global_batch = {}\nzero = 3\nreshard_after_forward = {reshard}\naccumulate = \"{accumulate}\"\n\
             gradient_bits = {bits}\nparallel = {{ dp = {dp}, pp = {pp} }}\n",
            u64::from(dp) * micro
        ));
        let layout = Layout::specified_by(&job, dp * pp).unwrap().unwrap();
        let embeddings = job.model.embedding_parameters();
        let layers = (job.model.parameters() - embeddings) / u64::from(pp);
        let reduced = if unsharded { layers } else { micro * layers } + embeddings;
        let gathered = match (reshard, pp) {
            (true, _) => 2 * micro * layers,
            (false, 1) => micro * layers,
            (false, _) => layers,
        } + embeddings;
        prop_assert_eq!(bytes(&job, &layout, Dimension::Data), reduced * bits / 8 + gathered * 2);
        // Memory holds what is not sharded: weights, with two gathered layers if they are sharded, and gradients in
        // the bits of their accumulation.
        let memory = footprint(&job, &layout);
        let shard = |bytes: u64, is_sharded: bool| if is_sharded { bytes.div_ceil(u64::from(dp)) } else { bytes };
        let layer = (job.model.parameters() - embeddings) / job.model.layers;
        let gathered = if reshard { 2 * 2 * layer } else { 0 };
        prop_assert_eq!(memory.weights, Bytes(shard(2 * (layers + embeddings), reshard) + gathered));
        prop_assert_eq!(memory.gradients, Bytes(shard(bits / 8 * (layers + embeddings), !unsharded)));
        prop_assert_eq!(memory.optimizer, Bytes(shard(12 * (layers + embeddings), true)));
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
        let layout = Layout::specified_by(&job, 2 * pp).unwrap().unwrap();
        let stages: Vec<u64> = (0..pp).map(|stage| layout.stage_layers(&job.model, stage)).collect();
        prop_assert_eq!(stages.iter().sum::<u64>(), layers - 2);
        prop_assert!(stages.iter().max().unwrap() - stages.iter().min().unwrap() <= 1);
        prop_assert_eq!(layout.chunk_layers(&job.model, 0, 0), each - if pp == 1 { 2 } else { 1 });
        let embeddings = job.model.embedding_parameters();
        let first = stages[0] * job.model.shared_layer_parameters() + embeddings;
        let max_parameters = stages.iter().skip(1).map(|stage_layers| stage_layers * job.model.shared_layer_parameters()).max().unwrap_or(0).max(first);
        let calls = traffic(&job, &layout);
        let gathered = |call: &&GroupCall| call.dimension == Dimension::Data && call.collective == Collective::AllGather;
        if pp > 1 {
            prop_assert_eq!(calls.iter().filter(gathered).map(|call| call.bytes.0).sum::<u64>(), 2 * max_parameters);
            prop_assert_eq!(footprint(&job, &layout).weights, Bytes(2 * max_parameters));
        }
    }

    /// Dispatch and combine send each token once per expert: 2 b s h k bytes, twice in each direction.
    #[test]
    fn expert_traffic_matches_closed_form(ep in 1u32..4, k in 1u64..3, skew in 1u64..9) {
        let ep = 1u32 << ep;
        let job = job(&format!("expert_skew = {skew}\nparallel = {{ dp = {ep}, ep = {ep} }}\n\
            model = {{ layers = 4, hidden = 1024, heads = 8, vocab = 32000, seq = 512, experts = 8, experts_per_token = {k} }}\n"));
        let layout = Layout::specified_by(&job, ep).unwrap().unwrap();
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
        let build = |lines: &str| {
            let job = job(&format!(
                "zero = 1\nparallel = {{ tp = {tp}, dp = {dp}, sequence = true{lines} }}\nmodel = {{ layers = 4, hidden = 1024, heads = 8, \
                 vocab = 32000, seq = 512, experts = 8, experts_per_token = 2, shared_experts = {shared} }}\n"
            ));
            let layout = Layout::specified_by(&job, tp * dp).unwrap().unwrap();
            (job, layout)
        };
        let (job, undivided) = build(&format!(", ep = {ep}, etp = 1"));
        let micro = undivided.micro_batches(&job);
        let expert_bytes = if ep > 1 { micro * 4 * 4 * (2 * 512 * 1024 * 2) / u64::from(tp) } else { 0 };
        prop_assert_eq!(bytes(&job, &undivided, Dimension::Expert), expert_bytes);
        let (divided_job, divided) = build("");
        let layer_bytes = |job, layout| bytes(job, layout, Dimension::Tensor) - micro * 2 * (2 * 512 * 1024);
        let parts = if shared == 0 { 1 } else { 2 };
        prop_assert_eq!(2 * layer_bytes(&job, &undivided), parts * layer_bytes(&divided_job, &divided));
        let experts = 2 * 4 * 8 * job.model.ffn_parameters() / u64::from(ep);
        let replicas = u64::from(tp * dp / ep);
        prop_assert_eq!(bytes(&job, &undivided, Dimension::ExpertData), if replicas > 1 { 2 * experts } else { 0 });
        let shared = footprint(&divided_job, &divided).weights.0 - 2 * 4 * 8 * job.model.ffn_parameters() / u64::from(tp);
        prop_assert_eq!(footprint(&job, &undivided).weights.0, shared + experts);
    }
}

/// A tied embedding on two stages has V h / t gradients, or the shard that a rank stores; an untied embedding or a
/// single stage has none to reduce.
#[test]
fn tied_embedding_gradients_are_reduced_between_end_stages() {
    let bytes = |lines: &str| {
        let job = job(&format!(
            "global_batch = 8\n{lines}\nmodel = {{ layers = 8, hidden = 1024, heads = 8, vocab = 50304, seq = 512, tied = {} }}\n",
            !lines.contains("untied")
        ).replace("# untied", ""));
        bytes(&job, &Layout::specified_by(&job, 16).unwrap().unwrap(), Dimension::FirstAndLastStage)
    };
    let gradient_bytes = 2 * 50_304 * 1024;
    assert_eq!(bytes("parallel = { tp = 2, pp = 4, dp = 2 }"), gradient_bytes / 2);
    assert_eq!(bytes("parallel = { tp = 2, pp = 2, dp = 4 }\nzero = 1"), gradient_bytes / 2);
    assert_eq!(bytes("parallel = { tp = 2, pp = 2, dp = 4 }\nzero = 2\naccumulate = \"shards\""), gradient_bytes / 8);
    assert_eq!(bytes("parallel = { tp = 2, pp = 4, dp = 2 } # untied"), 0);
    assert_eq!(bytes("parallel = { tp = 2, pp = 1, dp = 8 }"), 0);
}

/// If routed tokens of divided experts come from other ranks, their k copies are gathered and reduced, 2 b s h k
/// bytes in each direction for the second part of a layer, and all tokens once more for shared experts.
#[test]
fn divided_experts_gather_routed_tokens() {
    let tensor_bytes = |ep: u32, k: u64, shared: u64| {
        let job = job(&format!(
            "parallel = {{ tp = 4, dp = 4, ep = {ep}, sequence = true }}\nmodel = {{ layers = 4, hidden = 1024, heads = 8, vocab = 512, \
             seq = 256, experts = 16, experts_per_token = {k}, shared_experts = {shared} }}\n"
        ));
        bytes(&job, &Layout::specified_by(&job, 16).unwrap().unwrap(), Dimension::Tensor)
    };
    // Forward and backward, gather and reduce, four layers, 16 micro-batches.
    let part = 4 * 4 * 16 * (2 * 256 * 1024);
    assert_eq!(tensor_bytes(4, 1, 0), tensor_bytes(1, 1, 0));
    assert_eq!(tensor_bytes(4, 6, 0) - tensor_bytes(1, 6, 0), 5 * part);
    assert_eq!(tensor_bytes(4, 6, 2) - tensor_bytes(4, 6, 0), part);
    assert_eq!(tensor_bytes(1, 6, 2), tensor_bytes(1, 1, 0));
}

/// With fewer KV heads than tensor-parallel ranks, each rank has a full head to send.
#[test]
fn kv_heads_are_replicated_not_divided() {
    let bytes_and_parameters = |kv_heads: u64| {
        let job = job(&format!(
            "parallel = {{ tp = 8, cp = 2 }}\nmodel = {{ layers = 4, hidden = 1024, heads = 8, kv_heads = {kv_heads}, vocab = 512, seq = 256 }}\n"
        ));
        let layout = Layout::specified_by(&job, 16).unwrap().unwrap();
        (bytes(&job, &layout, Dimension::Context), rank_parameters(&job.model, &layout, 1, 0).shared)
    };
    assert_eq!(
        (bytes_and_parameters(8).0, bytes_and_parameters(2).0),
        (bytes_and_parameters(1).0, bytes_and_parameters(1).0)
    );
    // Parameters of a layer on a rank include one KV head of width 128 with biases, however few there are.
    assert_eq!(
        (bytes_and_parameters(8).1, bytes_and_parameters(2).1),
        (bytes_and_parameters(1).1, bytes_and_parameters(1).1)
    );
}

#[test]
fn single_rank_has_no_traffic() {
    let text = text("parallel = { tp = 1 }\nzero = 3\n");
    let job = trained(&text);
    let layout = Layout::specified_by(&job, 1).unwrap().unwrap();
    assert_eq!(traffic(&job, &layout), []);
}
