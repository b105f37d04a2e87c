//! Memory of a training rank: weights, gradients, optimizer states, activations.
//!
//! States follow Rajbhandari et al. (ZeRO, arXiv 1910.02054, section 3.1 and figure 1), activations Korthikanti et al.
//! (arXiv 2205.05198, equations 1 to 6), term by term, so that feed-forward layers of any width, gates and experts are
//! included. Predicted tensors of eleven measured FSDP steps differ by −4 to 21 %, in the median by 4 % (test
//! `tensors_match_measured_fsdp_steps`).
//!
//! The memory of a job is the largest of three stages: the first, which holds the most micro-batches and the embedding;
//! the second, which may have more layers; and the last, which has a copy of the embedding and the logits.

use fabricast_topologies::Bytes;

use super::activations::activations;
use super::temporary_memory::{added_gradient, communicators, update_footprint};
use super::{
    Accumulate, AdapterTarget, BaseWeights, Dimension, Layout, Model, OptimizerDevice, Tier, Training, WeightLifetime,
    Zero,
};

/// Memory use of a rank, by content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Weights of the rank, including gathered ones.
    pub weights: Bytes,
    /// Gradients that the rank stores.
    pub gradients: Bytes,
    /// Optimizer states in GPU memory.
    pub optimizer: Bytes,
    /// Activations retained for the backward pass, and activations of the layer being computed.
    pub activations: Bytes,
    /// KV cache of concurrent requests.
    pub kv_cache: Bytes,
    /// CUDA context, libraries and communication buffers.
    pub runtime: Bytes,
    /// Data in the memory of the attached CPU, which uses no GPU memory.
    pub host: Bytes,
}

/// Memory available to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Memory of the GPU.
    pub gpu: Bytes,
    /// Share of a rank in the memory of the attached CPU.
    pub host: Bytes,
}

impl MemoryLimits {
    /// No limit on GPU and CPU memory.
    pub const UNLIMITED: Self = Self { gpu: Bytes::MAX, host: Bytes::MAX };
}

impl From<Bytes> for MemoryLimits {
    /// Creates limits for the GPU memory only.
    fn from(gpu: Bytes) -> Self {
        Self { gpu, ..Self::UNLIMITED }
    }
}

/// Memory of a process in addition to its tensors: CUDA and cuBLAS contexts, NCCL buffers. Measured with PyTorch 2.11
/// and NCCL 2.28.9 on two H200 as memory used according to the driver minus memory reserved by PyTorch
/// (`planner/data/h200-steps/memory.jsonl`, 1.69 to 1.70 GB in fifteen steps), with one communicator
/// ([`communicators`] has the others). The growth with the number of ranks is neglected.
pub(super) const RUNTIME: Bytes = Bytes(1_700_000_000);

impl Footprint {
    /// Returns the total use of GPU memory.
    #[must_use]
    pub fn total(&self) -> Bytes {
        let parts = [self.weights, self.gradients, self.optimizer, self.activations, self.kv_cache, self.runtime];
        Bytes(parts.iter().map(|part| part.0).sum())
    }

    /// Returns the excess of the total over a GPU's memory; `None` if it fits.
    #[must_use]
    pub fn excess(&self, memory: Bytes) -> Option<Bytes> {
        self.total().0.checked_sub(memory.0).filter(|&excess| excess > 0).map(Bytes)
    }

    /// Returns the excess of the host data over a rank's share of its CPU's memory; `None` if it fits.
    #[must_use]
    pub fn host_excess(&self, share: Bytes) -> Option<Bytes> {
        self.host.0.checked_sub(share.0).filter(|&excess| excess > 0).map(Bytes)
    }

    /// Returns true if the GPU data and the host data both fit.
    #[must_use]
    pub fn fits(&self, memories: MemoryLimits) -> bool {
        self.excess(memories.gpu).is_none() && self.host_excess(memories.host).is_none()
    }
}

/// Numbers of parameters of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParameterCounts {
    /// Number of parameters that all tokens use.
    pub shared: u64,
    /// Number of parameters of the rank's experts.
    pub experts: u64,
}

impl ParameterCounts {
    /// Returns the total number of parameters.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.shared + self.experts
    }
}

/// Number of buffers in host memory through which optimizer states pass on their way between drives and the CPU
/// (DeepSpeed, deepspeed/runtime/zero/offload_config.py, `buffer_count` of `offload_optimizer`).
const STATE_BUFFERS: u64 = 4;

/// Largest number of 32-bit elements of such a buffer: those of a group of parameters that is updated together
/// (DeepSpeed, deepspeed/runtime/zero/config.py, `sub_group_size`).
const SWAPPED_ELEMENTS: u64 = 1_000_000_000;

/// Size in bytes of the buffers in host memory through which weights pass: five of 100 million 16-bit elements
/// (DeepSpeed, deepspeed/runtime/zero/offload_config.py, `buffer_count` and `buffer_size` of `offload_param`).
const WEIGHT_BUFFERS: u64 = 5 * 100_000_000 * 2;

/// Returns the size of the shard of the weights that a rank stores, in any memory tier, largest over all stages.
#[must_use]
pub fn weight_shard(job: &Training, layout: &Layout) -> Bytes {
    let ranks =
        |dimension: Dimension| if job.zero == Zero::Weights { u64::from(layout.size(dimension)).max(1) } else { 1 };
    let shard = |stage: u32| {
        let ParameterCounts { shared, experts } = stage_weight_bytes(job, layout, stage);
        shared.div_ceil(ranks(Dimension::Data)) + experts.div_ceil(ranks(Dimension::ExpertData))
    };
    Bytes(layout.fullest_stages().into_iter().map(shard).max().unwrap_or_default())
}

/// Returns the numbers of parameters of a rank on the stage with the most parameters.
pub fn parameters(job: &Training, layout: &Layout) -> ParameterCounts {
    let stages = layout.fullest_stages().map(|stage| stage_parameters(job, layout, stage));
    stages.into_iter().max_by_key(ParameterCounts::total).unwrap_or_default()
}

/// Returns the numbers of trained parameters of a rank on the stage with the most of them.
pub fn trained_parameters(job: &Training, layout: &Layout) -> ParameterCounts {
    let stages = layout.fullest_stages().map(|stage| trained_stage_parameters(job, layout, stage));
    stages.into_iter().max_by_key(ParameterCounts::total).unwrap_or_default()
}

fn trained_stage_parameters(job: &Training, layout: &Layout, stage: u32) -> ParameterCounts {
    if job.lora.is_none() {
        return stage_parameters(job, layout, stage);
    }
    let layers = layout.stage_layers(&job.model, stage);
    let ParameterCounts { shared, experts } = job.trained_layer_parameters(layout);
    ParameterCounts { shared: layers * shared, experts: layers * experts }
}

/// Returns the number of bytes of a stage's weights on a rank without sharding, of those that all tokens use and of the
/// rank's experts.
fn stage_weight_bytes(job: &Training, layout: &Layout, stage: u32) -> ParameterCounts {
    if job.lora.is_none() {
        let ParameterCounts { shared, experts } = stage_parameters(job, layout, stage);
        return ParameterCounts { shared: shared * job.precision.bytes(), experts: experts * job.precision.bytes() };
    }
    let ends = rank_parameters(&job.model, layout, 0, stage_embedding_parameters(&job.model, layout, stage)).shared;
    let layers = job.layer_weight_bytes(layout, layout.stage_layers(&job.model, stage));
    ParameterCounts { shared: layers.shared + ends * job.precision.bytes(), ..layers }
}

fn stage_parameters(job: &Training, layout: &Layout, stage: u32) -> ParameterCounts {
    rank_parameters(
        &job.model,
        layout,
        layout.stage_layers(&job.model, stage),
        stage_embedding_parameters(&job.model, layout, stage),
    )
}

/// Returns the number of parameters of a stage outside its layers. On the first stage it is the embedding; on the last
/// stage the output projection, which is a copy of the embedding or a separate matrix.
pub(super) fn stage_embedding_parameters(model: &Model, layout: &Layout, stage: u32) -> u64 {
    match (stage, layout.is_last(stage)) {
        (0, true) => model.embedding_parameters() + model.untied_embeddings * model.output_projection_parameters(),
        (0, false) => model.embedding_parameters(),
        (_, true) => model.output_projection_parameters(),
        (_, false) => 0,
    }
}

/// Returns the numbers of parameters of a rank for `layers` layers and `others` parameters outside them.
#[must_use]
pub fn rank_parameters(model: &Model, layout: &Layout, layers: u64, others: u64) -> ParameterCounts {
    let degrees = layout.degrees;
    let model = model.sharded_over(degrees.tensor);
    let replicated = layers * model.replicated_layer_parameters();
    let sharded = layers * model.shared_layer_parameters() - replicated + others;
    let experts = layers * model.expert_layer_parameters() / u64::from(degrees.expert);
    ParameterCounts {
        shared: sharded.div_ceil(u64::from(degrees.tensor)) + replicated,
        experts: experts.div_ceil(degrees.expert_tensor().into()),
    }
}

/// Returns the footprint of the rank with the most GPU memory use, with the largest host memory use of any stage.
#[must_use]
pub fn footprint(job: &Training, layout: &Layout) -> Footprint {
    let stages = layout.fullest_stages().map(|stage| stage_footprint(job, layout, stage));
    let host = stages.iter().map(|stage| stage.host).max().unwrap_or_default();
    let fullest = stages.into_iter().max_by_key(Footprint::total).unwrap_or_default();
    Footprint { host, ..fullest }
}

fn stage_footprint(job: &Training, layout: &Layout, stage: u32) -> Footprint {
    let ParameterCounts { shared, experts } = trained_stage_parameters(job, layout, stage);
    let [replicas, expert_replicas] =
        [Dimension::Data, Dimension::ExpertData].map(|dimension| u64::from(layout.size(dimension)));
    let shard = |whole: ParameterCounts, is_sharded: bool| {
        let part = |bytes: u64, ranks: u64| bytes.div_ceil(if is_sharded { ranks.max(1) } else { 1 });
        Bytes(part(whole.shared, replicas) + part(whole.experts, expert_replicas))
    };
    let shard_bytes = |bytes: u64, is_sharded: bool| {
        shard(ParameterCounts { shared: shared * bytes, experts: experts * bytes }, is_sharded)
    };
    let gathers_per_pass = job.weight_lifetime(layout) == WeightLifetime::Pass;
    let state = Bytes(
        job.state_bytes()
            * (job.local_state_parameters(layout, Dimension::Data, shared)
                + job.local_state_parameters(layout, Dimension::ExpertData, experts)),
    );
    let (optimizer, host) = match job.optimizer_tier {
        Tier::Hbm | Tier::Peer => (state, Bytes(0)),
        Tier::Host => (Bytes(0), state),
        Tier::Nvme => (Bytes(0), Bytes(STATE_BUFFERS * SWAPPED_ELEMENTS.min(state.0 / job.state_bytes().max(1)) * 4)),
    };
    // For an update on the CPU, the gradients are read there; those of states on drives are there, too.
    let host = match (job.optimizer_device, job.optimizer_tier) {
        (OptimizerDevice::Cpu, Tier::Hbm | Tier::Peer | Tier::Host) => {
            Bytes(host.0 + shard_bytes(job.gradient_bytes(), job.zero > Zero::None).0)
        }
        (OptimizerDevice::Cpu, Tier::Nvme) | (OptimizerDevice::Gpu, _) => host,
    };
    let Bytes(stored_weights) = shard(stage_weight_bytes(job, layout, stage), gathers_per_pass);
    let (weights, host) = match job.weights_tier {
        Tier::Hbm | Tier::Peer => (stored_weights, host),
        Tier::Host => (0, Bytes(host.0 + stored_weights)),
        Tier::Nvme => (0, Bytes(host.0 + WEIGHT_BUFFERS.min(stored_weights))),
    };
    // Sharded gradients for an update on the CPU are sent there during the backward pass (Ren et al., ZeRO-Offload, arXiv
    // 2101.06840, section 4.1).
    let sends_gradients = job.optimizer_device == OptimizerDevice::Cpu
        && job.zero >= Zero::Gradients
        && job.gradient_accumulation(layout) == Accumulate::Shards;
    let gradient_bytes = match sends_gradients {
        true => 0,
        false => job.gradient_addition.stored_bytes(job.precision.bytes(), job.gradient_bytes()),
    };
    let passes = Footprint {
        weights: Bytes(
            weights
                + if gathers_per_pass { gathered_weight_bytes(job, layout, stage) } else { 0 }
                + converted_weight_bytes(job, layout),
        ),
        gradients: Bytes(
            shard_bytes(gradient_bytes, job.gradient_accumulation(layout) == Accumulate::Shards).0
                + added_gradient(job, layout, stage).0,
        ),
        optimizer,
        activations: activations(job, layout, stage),
        kv_cache: Bytes(0),
        runtime: Bytes(RUNTIME.0 + job.buffers.0 + communicators(job, layout).0),
        host,
    };
    let update = update_footprint(job, &passes, Bytes(weights), state.0 / job.state_bytes().max(1));
    if update.total() > passes.total() { update } else { passes }
}

/// Returns the size in bytes of weights that a sharded rank holds unsharded: those of the current layer and of the next
/// one, which is prefetched (as in PyTorch's FSDP2).
fn gathered_weight_bytes(job: &Training, layout: &Layout, stage: u32) -> u64 {
    let ParameterCounts { shared, experts } = job.layer_weight_bytes(layout, 1);
    let sharded = |bytes: u64, dimension: Dimension| if layout.size(dimension) > 1 { bytes } else { 0 };
    let (shared, experts) = (sharded(shared, Dimension::Data), sharded(experts, Dimension::ExpertData));
    layout.stage_layers(&job.model, stage).min(2) * (shared + experts)
}

/// Returns the size in bytes of the largest matrix of a layer after its conversion to the precision of the job; 0 if
/// weights are not quantized.
fn converted_weight_bytes(job: &Training, layout: &Layout) -> u64 {
    match job.lora.as_ref().map(|lora| lora.base) {
        None | Some(BaseWeights::Unquantized) => 0,
        Some(BaseWeights::Nf4) => {
            let matrices = AdapterTarget::ALL.map(|target| target.matrix(&job.model, layout.degrees.tensor));
            matrices
                .iter()
                .map(|matrix| job.precision.bytes() * matrix.inner * matrix.columns)
                .max()
                .unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Recompute;
    use super::super::activations::{layer_activation_bytes, layer_input};
    use super::super::read::tests::job;
    use super::*;

    fn gib(bytes: Bytes) -> f64 {
        bytes.0 as f64 / f64::from(1 << 30)
    }

    /// A layer retains sbh (10 + 24/t + 5as/(ht)), sbh/t (34 + 5as/h), 34 sbh/t and 2 sbh bytes (arXiv 2205.05198,
    /// table 2).
    #[test]
    fn layer_activations_match_closed_forms() {
        let (s, b, h, a, t) = (2048u64, 1u64, 12_288u64, 96u64, 8u64);
        let layer_bytes = |parallel: &str, recompute: &str| {
            let job = job(&format!("parallel = {{ tp = 8, pp = 8, dp = 1{parallel} }}\nrecompute = \"{recompute}\"\n"));
            let layout = Layout::specified_by(&job, 64).unwrap().unwrap();
            match job.recompute {
                Recompute::Full | Recompute::EarlyStop => layer_input(&job, &layout),
                recompute => layer_activation_bytes(&job, &layout, recompute),
            }
        };
        assert_eq!(layer_bytes("", "none"), s * b * h * 10 + s * b * h * 24 / t + 5 * a * s * s * b / t);
        assert_eq!(layer_bytes(", sequence = true", "none"), s * b * h * 34 / t + 5 * a * s * s * b / t);
        assert_eq!(layer_bytes(", sequence = true", "selective"), s * b * h * 34 / t);
        assert_eq!(layer_bytes("", "full"), 2 * s * b * h);
    }

    /// Without dropout, a layer retains sbh (8 + …) bytes: two bytes less per element of the hidden state.
    #[test]
    fn dropout_masks_are_absent_without_dropout() {
        let layer_bytes = |dropout: bool| {
            let job = job(&format!("parallel = {{ tp = 8, pp = 8, dp = 1 }}\ndropout = {dropout}\n"));
            layer_activation_bytes(&job, &Layout::specified_by(&job, 64).unwrap().unwrap(), Recompute::None)
        };
        assert_eq!(layer_bytes(true) - layer_bytes(false), 2 * 2048 * 12_288);
    }

    /// In eager mode, each of two RMS norms retains its input in 32 bits and its output in 16 bits, and the output of
    /// the activation function is retained.
    #[test]
    fn eager_kernels_retain_more_activations() {
        let layer_bytes = |kernels: &str, gated: bool| {
            let job = job(&format!(
                "model = {{ layers = 4, hidden = 1024, heads = 8, ffn = 3072, gated = {gated}, vocab = 512, seq = 512 }}\n\
                 kernels = \"{kernels}\"\nparallel = {{ tp = 2 }}\n"
            ));
            layer_activation_bytes(&job, &Layout::specified_by(&job, 2).unwrap().unwrap(), Recompute::None)
        };
        assert_eq!(layer_bytes("eager", true) - layer_bytes("compiled", true), 512 * (2 * 6 * 1024 + 2 * 3072 / 2));
        assert_eq!(layer_bytes("fused", true), layer_bytes("compiled", true));
        assert_eq!(layer_bytes("eager", false), layer_bytes("fused", false));
    }

    fn job_footprint(lines: &str, ranks: u32) -> Footprint {
        let job = job(lines);
        footprint(&job, &Layout::specified_by(&job, ranks).unwrap().unwrap())
    }

    /// Model chunks alternate, and no stage holds more activations of a micro-batch than those of all its layers.
    #[test]
    fn interleaving_does_not_exceed_all_layers_of_a_stage() {
        let stage_activations = |options: &str| {
            let lines =
                format!("global_batch = 8\nparallel = {{ tp = 1, pp = 8, dp = 1{options} }}\ndropout = false\n");
            job_footprint(
                &format!("{lines}model = {{ layers = 16, hidden = 1024, heads = 8, vocab = 512, seq = 512 }}\n"),
                8,
            )
            .activations
        };
        assert_eq!(stage_activations(", interleave = 2"), stage_activations(""));
    }

    /// The embedding retains a dropout mask only with dropout.
    #[test]
    fn embedding_mask_is_absent_without_dropout() {
        let memory = |dropout: bool| {
            let model = "{ layers = 8, hidden = 1024, heads = 8, vocab = 512, seq = 512 }";
            job_footprint(
                &format!(
                    "parallel = {{ pp = 4, dp = 1, tp = 1 }}\ndropout = {dropout}\nrecompute = \"full\"\nmodel = {model}\n"
                ),
                4,
            )
        };
        // Masks of four micro-batches, and two masks for each of two layers in the one that is recomputed.
        assert_eq!(memory(true).activations.0 - memory(false).activations.0, 4 * 512 * 1024 + 2 * 512 * 1024);
    }

    /// Overlapped exchanges of experts retain the activations of a second micro-batch, or of a second model chunk if
    /// chunks alternate; a single micro-batch, or one without exchanges, has nothing to overlap with.
    #[test]
    fn overlapped_exchanges_retain_another_chunk() {
        let memory = |parallel: &str, micro_batches: u32, overlap: bool| {
            let lines = format!(
                "global_batch = {}\nmicro_batch = 1\nflash_attention = true\ndropout = false\nloss_chunks = 512\nexpert_overlap = {overlap}\nparallel = {{ {parallel} }}\n\
                 model = {{ layers = 16, hidden = 1024, heads = 8, ffn = 512, vocab = 512, seq = 512, experts = 16, experts_per_token = 2 }}\n",
                8 * micro_batches
            );
            job_footprint(&lines, 64).activations.0
        };
        for (parallel, micro_batches, added_micro_batches) in [
            ("dp = 8, ep = 8, tp = 8", 4, Some(1.0)),
            ("dp = 8, ep = 8, pp = 8", 16, Some(1.0)),
            ("dp = 8, ep = 8, pp = 8, interleave = 2", 16, Some(0.5)),
            ("dp = 8, ep = 8, tp = 8", 1, None),
            ("dp = 8, ep = 1, tp = 8", 4, None),
        ] {
            let [sequential, overlapped] = [false, true].map(|overlap| memory(parallel, micro_batches, overlap) as f64);
            let one = memory("dp = 8, ep = 8, tp = 8", 1, false) as f64;
            match added_micro_batches {
                None => assert_eq!(sequential, overlapped, "{parallel}"),
                Some(_) if parallel.contains("tp") => {
                    // Two micro-batches instead of one; logits and their gradient exist once.
                    assert!((1.5..=2.0).contains(&(overlapped / one)), "{parallel}: {}", overlapped / one);
                }
                Some(chunks) => {
                    let stages = 8.0;
                    let held = |chunks: f64| {
                        if parallel.contains("interleave") { stages + 3.5 + chunks } else { stages + chunks }
                    };
                    let ratio = overlapped / sequential;
                    assert!((ratio - held(chunks) / held(0.0)).abs() < 0.02, "{parallel}: {ratio}");
                }
            }
        }
    }

    /// Each token is copied for each of its experts, weighted by the skew. Tensor-parallel ranks among which experts
    /// are divided have all copies.
    #[test]
    fn expert_activations_scale_with_routed_tokens() {
        let layer_bytes = |lines: &str, experts_per_token: u64| {
            let job = job(&format!(
                "{lines}\nmodel = {{ layers = 4, hidden = 1024, heads = 8, ffn = 256, vocab = 512, seq = 512, experts = 8, \
                 experts_per_token = {experts_per_token} }}\n"
            ));
            layer_activation_bytes(&job, &Layout::specified_by(&job, 8).unwrap().unwrap(), Recompute::None)
        };
        let expert_bytes = 512 * 2 * (1024 + 2 * 256);
        assert_eq!(
            layer_bytes("parallel = { dp = 8, ep = 8 }", 3) - layer_bytes("parallel = { dp = 8, ep = 8 }", 1),
            2 * expert_bytes
        );
        let skewed = layer_bytes("parallel = { dp = 8, ep = 8 }\nexpert_skew = 1.5", 2);
        assert_eq!(skewed - layer_bytes("parallel = { dp = 8, ep = 8 }", 2), expert_bytes);
        let sharded = |experts_per_token| {
            layer_bytes("parallel = { tp = 2, dp = 4, ep = 4, sequence = true }", experts_per_token)
        };
        assert_eq!(sharded(3) - sharded(1), 2 * 512 * 2 * (1024 + 256));
        let undivided = |experts_per_token| {
            layer_bytes("parallel = { tp = 2, dp = 4, ep = 4, etp = 1, sequence = true }", experts_per_token)
        };
        assert_eq!(undivided(3) - undivided(1), expert_bytes);
    }

    /// The stage with the highest host memory use need not be the one with the highest GPU memory use.
    #[test]
    fn host_memory_is_that_of_the_fullest_host_stage() {
        let job = job(
            "global_batch = 64\noptimizer_tier = \"host\"\nparallel = { tp = 1, pp = 4, dp = 1, ends_as_layers = true }\n\
             model = { layers = 18, hidden = 4096, heads = 32, vocab = 512, seq = 512 }\n",
        );
        let layout = Layout::specified_by(&job, 4).unwrap().unwrap();
        let max_host = stage_footprint(&job, &layout, 1).host;
        assert!(max_host > stage_footprint(&job, &layout, 0).host);
        assert_eq!(footprint(&job, &layout).host, max_host);
    }

    /// The last stage holds the logits, regardless of the number of stages before it.
    #[test]
    fn logits_are_held_on_the_last_stage() {
        let activations = |stages: u32| {
            let job = job(&format!(
                "model = {{ layers = 8, hidden = 1024, heads = 8, vocab = 256000, seq = 8192 }}\nmicro_batch = 8\nrecompute = \"full\"\n\
                 parallel = {{ tp = 1, pp = {stages}, dp = 1 }}\n"
            ));
            footprint(&job, &Layout::specified_by(&job, stages).unwrap().unwrap()).activations.0
        };
        let logits = 4 * 8 * 8192 * (1024 + 256_000);
        for stages in [1, 2, 4, 8] {
            assert!(activations(stages) >= logits, "{stages}: {}", activations(stages));
        }
    }

    /// Memory equals that of ZeRO, figure 1: 7.5e9 parameters on 64 ranks need 120, 31.4, 16.6 and 1.9 GB.
    #[test]
    fn zero_stages_match_published_state_bytes() {
        let bytes_per_parameter = |zero: u32| {
            let text = format!(
                "model = {{ layers = 36, hidden = 4096, heads = 32, ffn = 16384, vocab = 51200, seq = 1024 }}\n\
                 parallel = {{ dp = 64 }}\nzero = {zero}\n"
            );
            let job = job(&text);
            let layout = Layout::specified_by(&job, 64).unwrap().unwrap();
            let memory = footprint(&job, &layout);
            let gathered_bytes = if zero == 3 { gathered_weight_bytes(&job, &layout, 0) } else { 0 };
            let states = memory.weights.0 - gathered_bytes + memory.gradients.0 + memory.optimizer.0;
            states as f64 / job.model.parameters() as f64
        };
        for (zero, bytes) in [(0, 16.0), (1, 4.0 + 12.0 / 64.0), (2, 2.0 + 14.0 / 64.0), (3, 16.0 / 64.0)] {
            assert!((bytes_per_parameter(zero) - bytes).abs() < 1e-6, "{zero}: {}", bytes_per_parameter(zero));
        }
    }

    /// A rank with sharded weights holds two gathered layers of 12 h² + 13 h parameters of 2 bytes, halved by tensor
    /// parallelism. It holds one layer if the stage has only one, and no gathered layer without replicas.
    #[test]
    fn sharded_weights_hold_two_gathered_layers() {
        let gathered = |copies: u32, stages: u32| {
            let job = job(&format!(
                "model = {{ layers = 4, hidden = 1024, heads = 8, vocab = 512, seq = 512 }}\nzero = 3\nreshard_after_forward = true\n\
                 parallel = {{ tp = 2, pp = {stages}, dp = {copies} }}\n"
            ));
            gathered_weight_bytes(&job, &Layout::specified_by(&job, 2 * copies * stages).unwrap().unwrap(), 0)
        };
        let layer = 2 * (12 * 1024 * 1024 + 13 * 1024) / 2;
        assert_eq!([gathered(1, 1), gathered(4, 1), gathered(4, 2), gathered(4, 4)], [0, 2 * layer, 2 * layer, layer]);
    }

    /// Each tensor-parallel rank has full down-projections to latent vectors, with their norms. All other matrices are
    /// divided.
    #[test]
    fn latent_down_projections_are_replicated() {
        let tensor_parameters = |tp: u32| {
            let job = job(&format!(
                "parallel = {{ tp = {tp} }}\nmodel = {{ layers = 4, hidden = 1024, heads = 8, vocab = 512, seq = 512, latent = {{ q_lora_rank = 96, \
                 kv_lora_rank = 64, qk_nope_head_dim = 32, qk_rope_head_dim = 16, v_head_dim = 24 }} }}\n"
            ));
            parameters(&job, &Layout::specified_by(&job, tp).unwrap().unwrap()).shared
        };
        let replicated = 4 * (1024 * (96 + 64 + 16) + 96 + 64);
        assert_eq!(tensor_parameters(8), (tensor_parameters(1) - replicated) / 8 + replicated);
    }

    /// The 175B job of arXiv 2205.05198 fits in 80 GB with selective recomputation and sequence parallelism, but not on
    /// one GPU.
    #[test]
    fn excess_over_gpu_memory_is_reported() {
        let job =
            job("parallel = { tp = 8, pp = 8, dp = 1, interleave = 3, sequence = true }\nrecompute = \"selective\"\n");
        let memory = footprint(&job, &Layout::specified_by(&job, 64).unwrap().unwrap());
        assert_eq!(memory.excess(Bytes(80_000_000_000)), None, "{:?}", gib(memory.total()));
        let single_gpu = Layout { degrees: super::super::Degrees::default() };
        let excess = footprint(&job, &single_gpu).excess(Bytes(80_000_000_000)).unwrap();
        assert!(gib(excess) > 2000.0);
    }
}
