//! Memory of a training rank that the software needs for a part of a step: gradients of single tensors, copies of the
//! optimizer, and the buffers of NCCL's communicators.

use fabricast_topologies::Bytes;

use super::memory::{Footprint, RUNTIME};
use super::{
    Accumulate, AlgorithmConnection, Dimension, GradientAddition, Layout, OptimizerDevice, Tier, Training,
    UpdatedGradients, Zero,
};

/// Memory of a communicator in addition to the first one, if only the algorithms in use are connected: 486 MiB for a
/// ring of 24 channels, measured with NCCL 2.28.9 on two H200, the same for all_reduce, all_gather and reduce_scatter
/// (`planner/data/h200-steps/communicators.jsonl`).
const RING_COMMUNICATOR: u64 = 486 << 20;

/// Memory of such a communicator with ring and tree: 742 MiB (`NCCL_RUNTIME_CONNECT=0` there).
const FULL_COMMUNICATOR: u64 = 742 << 20;

/// Largest number of parameters of a rank that DeepSpeed's ZeRO-3 updates at a time
/// (deepspeed/runtime/zero/config.py, `sub_group_size`).
const UPDATED_PARAMETERS: u64 = 1_000_000_000;

/// Returns the memory of the communicators of a rank in addition to the first one, which connects all ranks: one for
/// each dimension of the layout that does not have all ranks, and one for the ranks of a replica, which sum the norm of
/// the gradients (Megatron Core, megatron/core/parallel_state.py, `initialize_model_parallel`; the same in
/// Megatron-DeepSpeed, megatron/mpu/initialize.py).
pub(super) fn communicators(job: &Training, layout: &Layout) -> Bytes {
    let degrees = layout.degrees;
    let ranks = u64::from(layout.size(Dimension::Tensor))
        * u64::from(layout.size(Dimension::Pipeline))
        * u64::from(degrees.weight_replicas());
    let mut dimensions = vec![
        Dimension::Tensor,
        Dimension::Context,
        Dimension::Data,
        Dimension::Replica,
        Dimension::Pipeline,
        Dimension::FirstAndLastStage,
    ];
    if job.model.experts > 0 {
        dimensions.extend([Dimension::Expert, Dimension::ExpertData]);
    }
    let replica = u64::from(degrees.tensor) * u64::from(degrees.pipeline);
    let has_replica_group = degrees.tensor > 1 && degrees.pipeline > 1 && replica < ranks;
    let is_part = |dimension: &Dimension| layout.size(*dimension) > 1 && u64::from(layout.size(*dimension)) < ranks;
    let groups = dimensions.iter().filter(|dimension| is_part(dimension)).count() as u64 + u64::from(has_replica_group);
    let size = match job.connection {
        AlgorithmConnection::Used => RING_COMMUNICATOR,
        AlgorithmConnection::All => FULL_COMMUNICATOR,
    };
    Bytes(groups * size)
}

/// Returns the memory of the gradient of a stage's largest weight tensor while it is added to the stored gradients.
pub(super) fn added_gradient(job: &Training, layout: &Layout, stage: u32) -> Bytes {
    let is_added = match job.gradient_addition {
        GradientAddition::Gemm => false,
        // The first micro-batch's gradient becomes the stored one.
        GradientAddition::Kernel => layout.micro_batches(job) > 1,
        GradientAddition::Copies => true,
    };
    if !is_added || job.lora.is_some() || job.gradient_accumulation(layout) == Accumulate::Shards {
        return Bytes(0);
    }
    let has_embedding = stage == 0 || layout.is_last(stage);
    let columns = if has_embedding { job.model.ffn.max(job.model.vocab) } else { job.model.ffn };
    let elements = (columns * job.model.hidden).div_ceil(layout.degrees.tensor.into());
    Bytes(elements * job.gradient_addition.temporary_bytes(job.precision.bytes()))
}

/// Returns the footprint of a rank during the update. `passes`: footprint during the passes; `weights`: weights that
/// the rank stores; `parameters`: parameters that the rank updates. Activations, gathered weights and communication
/// buffers are free then.
pub(super) fn update_footprint(job: &Training, passes: &Footprint, weights: Bytes, parameters: u64) -> Footprint {
    if job.optimizer_device == OptimizerDevice::Cpu || job.optimizer_tier != Tier::Hbm {
        return *passes;
    }
    let e = job.precision.bytes();
    let is_converted = job.updated_gradients == UpdatedGradients::Converted
        && job.zero > Zero::None
        && job.gradient_bytes() < 4
        && job.gradient_addition.temporary_bytes(e) <= e;
    let temporaries = 4 * job.optimizer_temporaries;
    let (gradients, copies) = match (is_converted, job.zero) {
        (false, _) => (passes.gradients, temporaries * parameters),
        // The stored gradients are released once they are flattened and converted.
        (true, Zero::None | Zero::Optimizer | Zero::Gradients) => {
            (Bytes(0), (2 * e + 4).max(4 + temporaries) * parameters)
        }
        (true, Zero::Weights) => (passes.gradients, (e + 4).max(4 + temporaries) * parameters.min(UPDATED_PARAMETERS)),
    };
    Footprint {
        weights,
        gradients,
        optimizer: Bytes(passes.optimizer.0 + copies),
        activations: Bytes(0),
        runtime: Bytes(passes.runtime.0 - job.buffers.0.min(passes.runtime.0 - RUNTIME.0)),
        ..*passes
    }
}

#[cfg(test)]
mod tests {
    use super::super::footprint;
    use super::super::read::tests::job;
    use super::*;

    const MODEL: &str = "model = { layers = 8, hidden = 1024, heads = 8, ffn = 4096, vocab = 50000, seq = 512 }\n";

    fn training(lines: &str, ranks: u32) -> (Training, Layout) {
        let job = job(&format!("global_batch = 256\n{MODEL}{lines}\n"));
        let layout = Layout::specified_by(&job, ranks).unwrap().unwrap();
        (job, layout)
    }

    /// Data parallelism alone uses the communicator of all ranks; tp, pp, dp, the ends and the replica have one each.
    #[test]
    fn communicators_match_groups_of_the_layout() {
        let groups = |lines: &str, ranks: u32| {
            let (job, layout) = training(lines, ranks);
            communicators(&job, &layout).0 / RING_COMMUNICATOR
        };
        assert_eq!(groups("parallel = { tp = 1, dp = 16 }", 16), 0);
        assert_eq!(groups("parallel = { tp = 8, dp = 2 }", 16), 2);
        assert_eq!(groups("parallel = { tp = 2, pp = 4, dp = 2 }", 16), 5);
        assert_eq!(groups("parallel = { tp = 4, pp = 4, dp = 1 }", 16), 3);
        assert_eq!(groups("parallel = { tp = 1, dp = 16 }\nzero = 3\nshard = 8", 16), 2);
    }

    /// The embedding's gradient of 16 bits exists once more while it is added, and once in 32 bits where it is added
    /// through copies; with one micro-batch nothing is added.
    #[test]
    fn added_gradients_have_the_size_of_the_embedding() {
        let bytes = |lines: &str, stage: u32| {
            let (job, layout) = training(lines, 8);
            added_gradient(&job, &layout, stage).0
        };
        let embedding = 50_000 * 1024 / 2;
        let layer = 4096 * 1024 / 2;
        let parallel = "parallel = { tp = 2, pp = 4, dp = 1 }";
        assert_eq!(bytes(&format!("gradient_addition = \"kernel\"\n{parallel}"), 0), 2 * embedding);
        assert_eq!(bytes(&format!("gradient_addition = \"kernel\"\n{parallel}"), 1), 2 * layer);
        assert_eq!(bytes(&format!("gradient_addition = \"copies\"\n{parallel}"), 3), 4 * embedding);
        assert_eq!(bytes(parallel, 0), 0);
        assert_eq!(bytes("gradient_addition = \"kernel\"\nparallel = { tp = 1, dp = 8 }\nmicro_batch = 32", 0), 0);
        assert_eq!(bytes("gradient_addition = \"kernel\"\nparallel = { tp = 1, dp = 8 }\nzero = 2", 0), 0);
    }

    /// DeepSpeed's ZeRO-2 with PyTorch's Adam has, of each parameter, 2 bytes of weights, 12 N⁻¹ of states, 4 N⁻¹ of
    /// the converted gradient and 4 N⁻¹ of each copy.
    #[test]
    fn updates_match_closed_form() {
        let total = |lines: &str| {
            let (job, layout) = training(&format!("{lines}\nparallel = {{ tp = 1, dp = 8 }}\nmicro_batch = 1"), 8);
            let memory = footprint(&job, &layout);
            (memory.total().0 - memory.runtime.0) as f64 / job.model.parameters() as f64
        };
        // Activations are negligible without vocabulary in the passes: chunked logits.
        let chunked = "loss_chunks = 512\nrecompute = \"full\"\nflash_attention = true";
        let zero2 = total(&format!(
            "framework = \"deepspeed\"\nzero = 2\nbuffers_mb = 0\noptimizer_temporaries = 2\n{chunked}"
        ));
        assert!((zero2 - (2.0 + (12.0 + 4.0 + 8.0) / 8.0)).abs() < 1e-3, "{zero2}");
        let sharded = total(&format!(
            "framework = \"deepspeed\"\nzero = 3\nbuffers_mb = 0\noptimizer_temporaries = 1\n{chunked}"
        ));
        assert!((sharded - (2.0 + 2.0 + 12.0 + 4.0 + 4.0) / 8.0).abs() < 0.3, "{sharded}");
    }
}
