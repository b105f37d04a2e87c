//! Sharding of data-parallel states: the states that are sharded, the lifetime of gathered weights, and the size of
//! gradient buckets.
//!
//! Stages follow Rajbhandari et al. (ZeRO, arXiv 1910.02054). The lifetime of gathered weights and the time at which
//! gradients are sharded are a trade-off between memory and traffic; the computations of memory and of traffic both use
//! this module. Defaults are those of PyTorch. Without pipeline stages, every micro-batch gathers weights for each pass
//! and shards its gradients. With pipeline stages, weights are gathered once per step (torchtitan's default:
//! `reshard_after_forward = not pp_enabled`), and gradients are accumulated unsharded until the last backward pass of a
//! model chunk, after which they are reduced (`torch/distributed/pipelining/stage.py`: `backward_maybe_with_nosync`).
//! Llama 3 does the same (arXiv 2407.21783, section 3.3.2). ZeRO stages 2 and 3 then have the traffic and the memory of
//! stage 1.
//!
//! Hybrid sharding ([`Training::shard`]) shards a replica over some of the ranks only: groups of neighbouring ranks
//! have one replica each, and ranks with the same shard all-reduce their gradients in addition. PyTorch calls it
//! `ShardingStrategy.HYBRID_SHARD` (Zhao et al., arXiv 2304.11277, section 3.2.2), torchtitan
//! `data_parallel_shard_degree`. Megatron Core specifies the number of groups
//! (`--num-distributed-optimizer-instances`), as does MiCS (Zhang et al., arXiv 2205.00119).

use fabricast_topologies::Bytes;
use serde::Deserialize;

use super::layout::Degrees;
use super::{Dimension, JobError, Layout, Tier, Training};

/// Bucket size of PyTorch's DistributedDataParallel, in bytes (`bucket_cap_mb`; Li et al., arXiv 2006.15704).
const DDP_BUCKET: u64 = 25 << 20;

/// Minimum bucket size of Megatron Core, in parameters. Since the latency of a call grows with the number of
/// data-parallel ranks, buckets grow by [`MEGATRON_BUCKET_PER_RANK`] for each rank
/// (`megatron/core/distributed/distributed_data_parallel.py`, `bucket_size`).
const MEGATRON_BUCKET: u64 = 40_000_000;
const MEGATRON_BUCKET_PER_RANK: u64 = 1_000_000;

/// Number of parameter tensors outside the layers: embedding, last norm, output projection.
const END_TENSORS: u64 = 3;

/// States that data-parallel ranks shard instead of replicating them (Rajbhandari et al., ZeRO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Zero {
    /// No sharding: plain data parallelism.
    #[default]
    None,
    /// Optimizer states are sharded (ZeRO-1).
    Optimizer,
    /// Optimizer states and gradients are sharded (ZeRO-2).
    Gradients,
    /// Optimizer states, gradients and weights are sharded: ZeRO-3, or FSDP with full sharding.
    Weights,
}

/// Division of optimizer states among the ranks that shard them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatePartition {
    /// Equal shards of one buffer. Gradients are reduced and scattered, and updated weights are gathered.
    #[default]
    Shards,
    /// Whole parameter tensors (ZeRO-1 only). All gradients are reduced on all ranks, and after the optimizer each
    /// owner broadcasts its updated tensors (InternEvo, internlm/solver/optimizer/hybrid_zero_optim.py,
    /// `broadcast_params`; PyTorch, torch/distributed/optim/zero_redundancy_optimizer.py, `_sync_params`).
    Tensors,
}

/// Time at which gathered weights are released (FSDP's `reshard_after_forward`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reshard {
    /// After the forward pass. The backward pass gathers the weights again.
    AfterForward,
    /// After the backward pass. With pipeline stages, whose passes interleave, after the last backward pass of the
    /// step.
    AfterBackward,
}

/// Accumulation of gradients over several micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accumulate {
    /// Gradients are sharded: every micro-batch reduces its gradients.
    Shards,
    /// Gradients are accumulated unsharded on every rank (FSDP's `no_sync`) and reduced after the last micro-batch.
    Whole,
}

/// Streams on which hybrid sharding executes the gradient reductions within and between replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReductionStreams {
    /// One stream: the two reductions are sequential.
    One,
    /// Two streams: the all-reduce of one layer between replicas overlaps with the next layer's reduce-scatter within
    /// them.
    Separate,
}

/// Period for which a rank holds gathered weights. It determines the number of gathers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightLifetime {
    /// One pass of a layer. Weights are gathered for each pass.
    Pass,
    /// Time from a micro-batch's forward pass to its backward pass. Weights are gathered once per micro-batch.
    MicroBatch,
    /// The whole step. Weights are gathered once, after the optimizer.
    Step,
}

impl Training {
    /// Returns the number of ranks over which a replica is sharded for these degrees; `None` if it is all ranks with
    /// replicas.
    ///
    /// # Errors
    /// [`JobError`] at `shard` if it does not divide the number of ranks with replicas, of all weights or of experts.
    pub(super) fn validated_shard(&self, degrees: Degrees) -> Result<Option<u32>, JobError> {
        let Some(shard) = self.shard else { return Ok(None) };
        let reject = |message: String| Err(JobError::at(&self.spans.shard, format!("shard: {message}")));
        let (replicas, expert_replicas) = (degrees.weight_replicas(), degrees.expert_replicas());
        if !replicas.is_multiple_of(shard.max(1)) {
            let label = if degrees.context > 1 { "ranks of cp × dp" } else { "data-parallel ranks" };
            return reject(format!("{replicas} {label} cannot be divided by {shard}: expected a divisor of them"));
        }
        let groups = replicas / shard.max(1);
        if self.model.experts > 0 && !expert_replicas.is_multiple_of(groups.max(1)) {
            return reject(format!(
                "{replicas} ranks in shards of {shard} have {groups} replicas, and {expert_replicas} ranks with the same experts cannot be divided into as many"
            ));
        }
        Ok(Some(shard).filter(|&shard| shard < replicas))
    }

    /// Returns the number of streams of the job's software. FSDP has a separate stream for the all-reduce between
    /// replicas (`_all_reduce_stream`, torch/distributed/fsdp; `all_reduce_stream`,
    /// torch/distributed/fsdp/_fully_shard). Megatron Core has one stream for both (`communication_stream`,
    /// param_and_grad_buffer.py).
    #[must_use]
    pub fn streams(&self) -> ReductionStreams {
        match self.zero {
            Zero::None | Zero::Optimizer => ReductionStreams::One,
            Zero::Gradients | Zero::Weights => ReductionStreams::Separate,
        }
    }

    /// Returns the number of ranks that own optimizer states as whole tensors, which is at most the number of parameter
    /// tensors of a stage.
    #[must_use]
    pub(super) fn tensor_owners(&self, layout: &Layout, dimension: Dimension) -> u64 {
        let layers = layout.fullest_stages().into_iter().map(|stage| layout.stage_layers(&self.model, stage)).max();
        let tensors = layers.unwrap_or_default() * self.model.layer_tensors() + END_TENSORS;
        u64::from(layout.size(dimension)).clamp(1, tensors)
    }

    /// Returns the number of parameters whose states are on the rank with the most of them. `total`: number of
    /// parameters of all data-parallel ranks.
    #[must_use]
    pub fn local_state_parameters(&self, layout: &Layout, dimension: Dimension, total: u64) -> u64 {
        let ranks = u64::from(layout.size(dimension)).max(1);
        match (self.zero, self.state_partition) {
            (Zero::None, _) => total,
            (_, StatePartition::Shards) => total.div_ceil(ranks),
            (_, StatePartition::Tensors) => total.div_ceil(ranks).max(self.largest_tensor(layout)).min(total),
        }
    }

    /// Returns the number of parameters of a rank's largest tensor: the embedding or a feed-forward matrix.
    fn largest_tensor(&self, layout: &Layout) -> u64 {
        let tensor = u64::from(layout.degrees.tensor);
        (self.model.vocab.max(self.model.ffn) * self.model.hidden).div_ceil(tensor)
    }

    /// Returns the period for which ranks of a layout hold gathered weights.
    #[must_use]
    pub fn weight_lifetime(&self, layout: &Layout) -> WeightLifetime {
        let stages = layout.degrees.pipeline > 1;
        match (self.zero, self.reshard) {
            (Zero::None | Zero::Optimizer | Zero::Gradients, _) => WeightLifetime::Step,
            // Weights that are not in the GPU's memory are read for each pass.
            (Zero::Weights, _) if self.weights_tier != Tier::Hbm => WeightLifetime::Pass,
            (Zero::Weights, None) if stages => WeightLifetime::Step,
            (Zero::Weights, None | Some(Reshard::AfterForward)) => WeightLifetime::Pass,
            (Zero::Weights, Some(Reshard::AfterBackward)) if stages => WeightLifetime::Step,
            (Zero::Weights, Some(Reshard::AfterBackward)) => WeightLifetime::MicroBatch,
        }
    }

    /// Returns the accumulation of gradients (sharded or unsharded) on ranks of a layout.
    #[must_use]
    pub fn gradient_accumulation(&self, layout: &Layout) -> Accumulate {
        match (self.zero, self.accumulate) {
            (Zero::None | Zero::Optimizer, _) => Accumulate::Whole,
            (Zero::Gradients | Zero::Weights, Some(accumulate)) => accumulate,
            (Zero::Gradients | Zero::Weights, None) if layout.degrees.pipeline > 1 => Accumulate::Whole,
            (Zero::Gradients | Zero::Weights, None) => Accumulate::Shards,
        }
    }

    /// Returns the bucket size in bytes of stored gradients. The default is that of the software: PyTorch's
    /// DistributedDataParallel for pure data parallelism, one layer for FSDP, and the larger buckets of Megatron Core
    /// otherwise.
    #[must_use]
    pub fn bucket(&self, layout: &Layout) -> Bytes {
        let parameters = match (self.bucket_mb, self.zero) {
            (Some(mib), _) => return Bytes(u64::from(mib) << 20),
            (None, Zero::None) if layout.is_pure_data_parallel() => return Bytes(DDP_BUCKET),
            (None, Zero::None | Zero::Optimizer | Zero::Gradients) => megatron_bucket(layout),
            (None, Zero::Weights) => self.trained_layer_parameters(layout).total(),
        };
        Bytes(parameters.saturating_mul(self.gradient_bytes()))
    }

    /// Returns the number of bytes of a stored gradient: those of the precision, or of the communicated type if that is
    /// larger (`gradient_bits = 32`: accumulation in 32 bits, as with Megatron-LM's
    /// `--accumulate-allreduce-grads-in-fp32`).
    #[must_use]
    pub fn gradient_bytes(&self) -> u64 {
        self.precision.bytes().max(u64::from(self.gradient_bits.div_ceil(8)))
    }
}

/// Returns the bucket size of Megatron Core for a layout, in parameters.
fn megatron_bucket(layout: &Layout) -> u64 {
    let ranks = u64::from(layout.size(Dimension::Data)) * u64::from(layout.size(Dimension::Replica));
    MEGATRON_BUCKET.max(MEGATRON_BUCKET_PER_RANK.saturating_mul(ranks))
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::Collective;
    use proptest::prelude::*;

    use super::super::read::tests::{job, text};
    use super::super::{Footprint, Phase, footprint, read_job, traffic};
    use super::*;

    /// Returns the groups of a dimension in the layout that the job specifies on `ranks` ranks.
    fn groups(job: &Training, ranks: u32, dimension: Dimension) -> Vec<Vec<u32>> {
        Layout::specified_by(job, ranks).unwrap().unwrap().groups(dimension)
    }

    #[test]
    fn replicas_are_sharded_over_neighbouring_ranks() {
        let dense = job("global_batch = 64\nzero = 3\nshard = 4\nparallel = { tp = 2, cp = 2, dp = 4 }\n");
        assert_eq!(groups(&dense, 16, Dimension::Data)[..2], [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(groups(&dense, 16, Dimension::Replica)[..3], [[0, 8], [1, 9], [2, 10]]);
        // Experts have fewer replicas, in the same number of groups.
        let mixture = |ep: u32| {
            job(&format!(
                "zero = 1\nshard = 4\nparallel = {{ dp = 16, ep = {ep} }}\n\
                 model = {{ layers = 4, hidden = 1024, heads = 8, vocab = 32000, seq = 512, experts = 8, experts_per_token = 2 }}\n"
            ))
        };
        assert_eq!(groups(&mixture(2), 16, Dimension::ExpertData)[..2], [[0, 2], [1, 3]]);
        assert_eq!(groups(&mixture(2), 16, Dimension::ExpertReplica)[..2], [[0, 4, 8, 12], [1, 5, 9, 13]]);
        assert_eq!(groups(&mixture(4), 16, Dimension::ExpertData)[0], [0]);
        assert_eq!(groups(&mixture(4), 16, Dimension::ExpertReplica)[0], [0, 4, 8, 12]);
    }

    #[test]
    fn invalid_shards_are_rejected_with_location() {
        for (lines, location, expected) in [
            ("shard = 0\nzero = 3", "job.toml:1:9", "shard: 0 ranks cannot store a shard: expected 2 or more"),
            ("zero = 3\nshard = 1", "job.toml:2:9", "or zero = 0 without shard"),
            ("shard = 8", "job.toml:1:9", "expected zero = 1, 2 or 3"),
            ("zero = 3\nshard = 99999999", "job.toml:2:9", "shard: 99999999 is not a whole number"),
            ("zero = 3\nshard = \"host\"", "job.toml:2:9", "expected u64"),
        ] {
            let error = read_job(&text(&format!("{lines}\n")), "job.toml").unwrap_err().to_string();
            let message = error.strip_prefix(&format!("{location}: "));
            assert!(message.is_some_and(|message| message.contains(expected)), "{lines}: {error}");
        }
        let experts = "model = { layers = 4, hidden = 1024, heads = 8, vocab = 32000, seq = 512, experts = 4, experts_per_token = 2 }";
        for (lines, ranks, expected) in [
            ("parallel = { dp = 8 }\nshard = 3", 8, "8 data-parallel ranks cannot be divided by 3"),
            ("parallel = { dp = 4 }\nshard = 8", 4, "4 data-parallel ranks cannot be divided by 8"),
            ("parallel = { dp = 4, cp = 2 }\nshard = 3", 8, "8 ranks of cp × dp cannot be divided by 3"),
            (
                &format!("parallel = {{ dp = 16, ep = 4 }}\nshard = 2\nglobal_batch = 16\n{experts}"),
                16,
                "16 ranks in shards of 2 have 8 replicas, and 4 ranks with the same experts cannot be divided into as many",
            ),
        ] {
            let error = Layout::specified_by(&job(&format!("zero = 3\n{lines}\n")), ranks).unwrap_err();
            assert_eq!((error.location.line, error.location.column), (3, 9), "{lines}: {error}");
            assert!(error.to_string().contains(expected), "{lines}: {error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// The memory of a rank equals that of a job on the ranks of a single replica except for communicators, and so do
        /// the calls within the group of a replica. Ranks with the same shard all-reduce their shard of every reduced gradient.
        #[test]
        fn hybrid_sharding_matches_closed_form(
            part in 1u32..4, groups in 1u32..4, cp in 0u32..2, zero in 1u32..4, bits in prop::sample::select(vec![16u64, 32]),
            unsharded in any::<bool>(), experts in any::<bool>(),
        ) {
            let (shard, replicas, cp) = (1 << part, 1 << (part + groups), 1 << cp);
            let experts = if experts { ", experts = 4, experts_per_token = 2" } else { "" };
            let accumulate = if zero > 1 && unsharded { "accumulate = \"whole\"\n" } else { "" };
            let build = |lines: &str, replicas: u32| {
                let job = job(&format!(
                    "global_batch = {}\nzero = {zero}\ngradient_bits = {bits}\n{accumulate}{lines}parallel = {{ dp = {}, cp = {cp} }}\n\
                     model = {{ layers = 4, hidden = 1024, heads = 8, vocab = 32000, seq = 512{experts} }}\n",
                    2 * replicas / cp, replicas / cp
                ));
                let layout = Layout::specified_by(&job, replicas).unwrap().unwrap();
                (footprint(&job, &layout), traffic(&job, &layout), layout)
            };
            let (memory, calls, layout) = build(&format!("shard = {shard}\n"), replicas);
            let (replica_memory, replica_calls, _) = build("", shard);
            prop_assert_eq!((layout.size(Dimension::Data), layout.size(Dimension::Replica)), (shard, replicas / shard));
            // Groups of both kinds have a communicator each.
            prop_assert!(memory.runtime > replica_memory.runtime);
            prop_assert_eq!(Footprint { runtime: replica_memory.runtime, ..memory }, replica_memory);
            let (between, within): (Vec<_>, Vec<_>) = calls.into_iter().partition(|call| call.dimension.is_replica_group());
            prop_assert_eq!(&within, &replica_calls);
            let reduced: Vec<_> = within.iter().filter(|call| call.collective == Collective::ReduceScatter).collect();
            prop_assert_eq!(between.len(), reduced.len());
            for (between, reduced) in between.iter().zip(reduced) {
                prop_assert_eq!((between.phase, between.collective), (reduced.phase, Collective::AllReduce));
                prop_assert_eq!(between.bytes, Bytes(reduced.bytes.0.div_ceil(u64::from(shard))));
                prop_assert!(matches!(between.phase, Phase::Gradients | Phase::LayerGradients));
            }
            // Sharding over all ranks equals a job without `shard`.
            let (sharded_over_all, unlimited) = (build(&format!("shard = {replicas}\n"), replicas), build("", replicas));
            prop_assert_eq!(sharded_over_all, unlimited);
        }
    }

    /// Returns the gradient bucket size, in bytes, of a job with 96 layers of hidden size 4,096.
    fn bucket(lines: &str, parallel: &str, ranks: u32) -> u64 {
        let job = job(&format!(
            "global_batch = 4096\n{lines}\nparallel = {{ {parallel} }}\n\
             model = {{ layers = 96, hidden = 4096, heads = 32, ffn = 16384, vocab = 51200, seq = 2048 }}\n"
        ));
        job.bucket(&Layout::specified_by(&job, ranks).unwrap().unwrap()).0
    }

    #[test]
    fn default_buckets_match_the_software() {
        let mib = 1 << 20;
        assert_eq!(bucket("", "tp = 1, pp = 1", 64), 25 * mib);
        assert_eq!(bucket("bucket_mb = 7\nzero = 1", "tp = 2, pp = 1", 64), 7 * mib);
        for (lines, parallel) in [
            ("zero = 1", "tp = 1, pp = 1"),
            ("zero = 2", "tp = 1, pp = 1"),
            ("", "tp = 2, pp = 1"),
            ("", "tp = 1, pp = 2"),
        ] {
            assert_eq!(bucket(lines, parallel, 16), 2 * 40_000_000, "{lines} {parallel}");
        }
        assert_eq!(bucket("zero = 1", "tp = 2, pp = 4", 1024), 2 * 128_000_000);
        assert_eq!(bucket("zero = 1\nshard = 8", "tp = 2, pp = 4", 1024), 2 * 128_000_000);
        assert_eq!(bucket("zero = 1\ngradient_bits = 32", "tp = 1, pp = 1", 16), 4 * 40_000_000);
        // Weights of four projections and two feed-forward matrices. Norms and biases are negligible.
        let layer = 2 * (4 * 4096 * 4096 + 2 * 4096 * 16_384);
        assert!((layer..layer + layer / 1000).contains(&bucket("zero = 3", "tp = 1, pp = 1", 16)));
    }
}
