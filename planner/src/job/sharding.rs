//! Sharding of data-parallel states: what is sharded, how long weights stay gathered, and the size of gradient buckets.
//!
//! Stages follow Rajbhandari et al. (ZeRO, arXiv 1910.02054). How long weights stay gathered and when gradients are
//! sharded trades memory against traffic; both computations use this module. Defaults are PyTorch's. Without pipeline
//! stages, every micro-batch gathers weights for each pass and shards its gradients. With pipeline stages, weights are
//! gathered once per step (torchtitan's default: `reshard_after_forward = not pp_enabled`), and gradients are
//! accumulated unsharded until the last backward pass of a model chunk, after which they are reduced
//! (`torch/distributed/pipelining/stage.py`: `backward_maybe_with_nosync`). Llama 3 does the same (arXiv 2407.21783,
//! section 3.3.2). ZeRO stages 2 and 3 then have the traffic and the memory of stage 1.
//!
//! Hybrid sharding ([`Training::shard`]) shards a replica over some of the ranks only: groups of neighbouring ranks
//! have one replica each, and ranks with the same shard all-reduce their gradients in addition. PyTorch calls it
//! `ShardingStrategy.HYBRID_SHARD` (Zhao et al., arXiv 2304.11277, section 3.2.2), torchtitan
//! `data_parallel_shard_degree`. Megatron Core specifies the number of groups
//! (`--num-distributed-optimizer-instances`), as does MiCS (Zhang et al., arXiv 2205.00119).

use fabricast_topologies::Bytes;
use serde::Deserialize;

use super::layout::Degrees;
use super::memory::of_rank;
use super::{Dimension, JobError, Layout, Training};

/// Bucket size of PyTorch's DistributedDataParallel, in bytes (`bucket_cap_mb`; Li et al., arXiv 2006.15704).
const DDP_BUCKET: u64 = 25 << 20;

/// Minimum bucket size of Megatron Core, and its size per data-parallel rank, in parameters. Buckets grow with the
/// ranks because their start-up latency does (`megatron/core/distributed/distributed_data_parallel.py`, `bucket_size`).
const MEGATRON_BUCKET: u64 = 40_000_000;
const MEGATRON_BUCKET_OF_RANK: u64 = 1_000_000;

/// States that data-parallel ranks shard instead of replicating them (Rajbhandari et al., ZeRO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Zero {
    /// None: plain data parallelism.
    #[default]
    None,
    /// Optimizer states.
    Optimizer,
    /// Additionally gradients.
    Gradients,
    /// Additionally weights: ZeRO-3, or FSDP with full sharding.
    Weights,
}

/// Time at which gathered weights are released (FSDP's `reshard_after_forward`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reshard {
    /// After the forward pass; the backward pass gathers them again.
    AfterForward,
    /// After the backward pass; with pipeline stages, whose passes interleave, after the last one of the step.
    AfterBackward,
}

/// Accumulation of gradients over several micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accumulate {
    /// Sharded: every micro-batch reduces its gradients.
    Shards,
    /// Unsharded on every rank (FSDP's `no_sync`), reduced after the last micro-batch.
    Whole,
}

/// Streams of the gradient reductions within and between the replicas of hybrid sharding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Streams {
    /// One stream: the two reductions are sequential.
    One,
    /// Two streams: the all-reduce of one layer between replicas overlaps with the next layer's reduce-scatter within
    /// them.
    OneEach,
}

/// Period for which a rank holds gathered weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gathered {
    /// One pass of a layer; gathered for each pass.
    Pass,
    /// From a micro-batch's forward pass to its backward pass; gathered once per micro-batch.
    MicroBatch,
    /// The whole step; gathered once, after the optimizer.
    Step,
}

impl Training {
    /// Returns the number of ranks over which a replica is sharded for these degrees; `None` for all ranks that hold
    /// replicas.
    pub(super) fn shard_of(&self, degrees: Degrees) -> Result<Option<u32>, JobError> {
        let Some(shard) = self.shard else { return Ok(None) };
        let refused = |message: String| Err(JobError::at(&self.places.shard, format!("shard: {message}")));
        let (copies, of_experts) = (degrees.copies(), degrees.expert_copies());
        if !copies.is_multiple_of(shard.max(1)) {
            let what = if degrees.context > 1 { "ranks of cp × dp" } else { "data-parallel ranks" };
            return refused(format!("{copies} {what} cannot be divided by {shard}: expected what divides them"));
        }
        let groups = copies / shard.max(1);
        if self.model.experts > 0 && !of_experts.is_multiple_of(groups.max(1)) {
            return refused(format!(
                "{copies} ranks by {shard} have {groups} copies, and {of_experts} ranks with the same experts cannot be divided into as many"
            ));
        }
        Ok(Some(shard).filter(|&shard| shard < copies))
    }

    /// Streams of the software that the job models: FSDP has a separate stream for the all-reduce between replicas
    /// (`_all_reduce_stream`, torch/distributed/fsdp; `all_reduce_stream`, torch/distributed/fsdp/_fully_shard).
    /// Megatron Core has one for both (`communication_stream`, param_and_grad_buffer.py).
    #[must_use]
    pub fn streams(&self) -> Streams {
        match self.zero {
            Zero::None | Zero::Optimizer => Streams::One,
            Zero::Gradients | Zero::Weights => Streams::OneEach,
        }
    }

    /// Period for which ranks of a layout hold gathered weights.
    #[must_use]
    pub fn gathered(&self, layout: &Layout) -> Gathered {
        let stages = layout.degrees.pipeline > 1;
        match (self.zero, self.reshard) {
            (Zero::None | Zero::Optimizer | Zero::Gradients, _) => Gathered::Step,
            (Zero::Weights, None) if stages => Gathered::Step,
            (Zero::Weights, None | Some(Reshard::AfterForward)) => Gathered::Pass,
            (Zero::Weights, Some(Reshard::AfterBackward)) if stages => Gathered::Step,
            (Zero::Weights, Some(Reshard::AfterBackward)) => Gathered::MicroBatch,
        }
    }

    /// Accumulation of gradients on ranks of a layout.
    #[must_use]
    pub fn accumulated(&self, layout: &Layout) -> Accumulate {
        match (self.zero, self.accumulate) {
            (Zero::None | Zero::Optimizer, _) => Accumulate::Whole,
            (Zero::Gradients | Zero::Weights, Some(given)) => given,
            (Zero::Gradients | Zero::Weights, None) if layout.degrees.pipeline > 1 => Accumulate::Whole,
            (Zero::Gradients | Zero::Weights, None) => Accumulate::Shards,
        }
    }

    /// Bucket size in bytes of stored gradients. The default is that of the software: PyTorch's DistributedDataParallel
    /// for pure data parallelism, one layer for FSDP, and Megatron Core's larger buckets otherwise.
    #[must_use]
    pub fn bucket(&self, layout: &Layout) -> Bytes {
        let parameters = match (self.bucket_mb, self.zero) {
            (Some(given), _) => return Bytes(u64::from(given) << 20),
            (None, Zero::None) if layout.only_copies() => return Bytes(DDP_BUCKET),
            (None, Zero::None | Zero::Optimizer | Zero::Gradients) => megatron_bucket(layout),
            (None, Zero::Weights) => {
                let (shared, experts) = of_rank(&self.model, layout, 1, 0);
                shared + experts
            }
        };
        Bytes(parameters.saturating_mul(self.gradient_bytes()))
    }

    /// Bytes of a stored gradient: those of the precision, or of the communicated type if larger (`gradient_bits = 32`:
    /// accumulation in 32 bits, as in Megatron-LM's `--accumulate-allreduce-grads-in-fp32`).
    #[must_use]
    pub fn gradient_bytes(&self) -> u64 {
        self.precision.bytes().max(u64::from(self.gradient_bits.div_ceil(8)))
    }
}

/// Bucket size of Megatron Core in parameters.
fn megatron_bucket(layout: &Layout) -> u64 {
    let ranks = u64::from(layout.size(Dimension::Data)) * u64::from(layout.size(Dimension::Replica));
    MEGATRON_BUCKET.max(MEGATRON_BUCKET_OF_RANK.saturating_mul(ranks))
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::Collective;
    use proptest::prelude::*;

    use super::super::read::tests::{job, text};
    use super::super::{Phase, footprint, read_job, traffic};
    use super::*;

    /// Groups of a dimension.
    fn groups(job: &Training, ranks: u32, dimension: Dimension) -> Vec<Vec<u32>> {
        Layout::given(job, ranks).unwrap().unwrap().groups(dimension)
    }

    #[test]
    fn replicas_are_sharded_over_neighbouring_ranks() {
        let dense = job("global_batch = 64\nzero = 3\nshard = 4\nparallel = { tp = 2, cp = 2, dp = 4 }\n");
        assert_eq!(groups(&dense, 16, Dimension::Data)[..2], [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(groups(&dense, 16, Dimension::Replica)[..3], [[0, 8], [1, 9], [2, 10]]);
        // Experts have fewer replicas, in as many groups.
        let of = |ep: u32| {
            job(&format!(
                "zero = 1\nshard = 4\nparallel = {{ dp = 16, ep = {ep} }}\n\
                 model = {{ layers = 4, hidden = 1024, heads = 8, vocab = 32000, seq = 512, experts = 8, experts_per_token = 2 }}\n"
            ))
        };
        assert_eq!(groups(&of(2), 16, Dimension::ExpertData)[..2], [[0, 2], [1, 3]]);
        assert_eq!(groups(&of(2), 16, Dimension::ExpertReplica)[..2], [[0, 4, 8, 12], [1, 5, 9, 13]]);
        assert_eq!(groups(&of(4), 16, Dimension::ExpertData)[0], [0]);
        assert_eq!(groups(&of(4), 16, Dimension::ExpertReplica)[0], [0, 4, 8, 12]);
    }

    #[test]
    fn invalid_shards_are_rejected_with_location() {
        for (lines, place, expected) in [
            ("shard = 0\nzero = 3", "job.toml:1:9", "shard: 0 ranks hold nothing: expected 2 or more"),
            ("zero = 3\nshard = 1", "job.toml:2:9", "or zero = 0 without shard"),
            ("shard = 8", "job.toml:1:9", "expected zero = 1, 2 or 3"),
            ("zero = 3\nshard = 99999999", "job.toml:2:9", "shard: 99999999 is not a whole number"),
            ("zero = 3\nshard = \"host\"", "job.toml:2:9", "expected u64"),
        ] {
            let error = read_job(&text(&format!("{lines}\n")), "job.toml").unwrap_err().to_string();
            let message = error.strip_prefix(&format!("{place}: "));
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
                "16 ranks by 2 have 8 copies, and 4 ranks with the same experts cannot be divided into as many",
            ),
        ] {
            let error = Layout::given(&job(&format!("zero = 3\n{lines}\n")), ranks).unwrap_err();
            assert_eq!((error.place.line, error.place.column), (3, 9), "{lines}: {error}");
            assert!(error.to_string().contains(expected), "{lines}: {error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// States are those of the ranks of one replica. Calls within its group are those of a job on these ranks
        /// alone. Ranks with the same shard all-reduce their shard of every reduced gradient.
        #[test]
        fn hybrid_sharding_matches_closed_form(
            part in 1u32..4, groups in 1u32..4, cp in 0u32..2, zero in 1u32..4, bits in prop::sample::select(vec![16u64, 32]),
            whole in any::<bool>(), experts in any::<bool>(),
        ) {
            let (shard, copies, cp) = (1 << part, 1 << (part + groups), 1 << cp);
            let experts = if experts { ", experts = 4, experts_per_token = 2" } else { "" };
            let accumulate = if zero > 1 && whole { "accumulate = \"whole\"\n" } else { "" };
            let of = |lines: &str, copies: u32| {
                let job = job(&format!(
                    "global_batch = {}\nzero = {zero}\ngradient_bits = {bits}\n{accumulate}{lines}parallel = {{ dp = {}, cp = {cp} }}\n\
                     model = {{ layers = 4, hidden = 1024, heads = 8, vocab = 32000, seq = 512{experts} }}\n",
                    2 * copies / cp, copies / cp
                ));
                let layout = Layout::given(&job, copies).unwrap().unwrap();
                (footprint(&job, &layout), traffic(&job, &layout), layout)
            };
            let (has, calls, layout) = of(&format!("shard = {shard}\n"), copies);
            let (alone, own, _) = of("", shard);
            prop_assert_eq!((layout.size(Dimension::Data), layout.size(Dimension::Replica)), (shard, copies / shard));
            prop_assert_eq!(has, alone);
            let (among, within): (Vec<_>, Vec<_>) = calls.into_iter().partition(|call| call.dimension.is_of_replicas());
            prop_assert_eq!(&within, &own);
            let reduced: Vec<_> = within.iter().filter(|call| call.collective == Collective::ReduceScatter).collect();
            prop_assert_eq!(among.len(), reduced.len());
            for (among, reduced) in among.iter().zip(reduced) {
                prop_assert_eq!((among.phase, among.collective), (reduced.phase, Collective::AllReduce));
                prop_assert_eq!(among.bytes, Bytes(reduced.bytes.0.div_ceil(u64::from(shard))));
                prop_assert!(matches!(among.phase, Phase::Gradients | Phase::LayerGradients));
            }
            // Sharding over all ranks equals no `shard`.
            let (all, every) = (of(&format!("shard = {copies}\n"), copies), of("", copies));
            prop_assert_eq!(all, every);
        }
    }

    /// Returns the bucket size of a job with 96 layers of hidden size 4,096.
    fn bucket(lines: &str, parallel: &str, ranks: u32) -> u64 {
        let job = job(&format!(
            "global_batch = 4096\n{lines}\nparallel = {{ {parallel} }}\n\
             model = {{ layers = 96, hidden = 4096, heads = 32, ffn = 16384, vocab = 51200, seq = 2048 }}\n"
        ));
        job.bucket(&Layout::given(&job, ranks).unwrap().unwrap()).0
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
        // Weights of four projections and two feed-forward matrices; norms and biases are small.
        let layer = 2 * (4 * 4096 * 4096 + 2 * 4096 * 16_384);
        assert!((layer..layer + layer / 1000).contains(&bucket("zero = 3", "tp = 1, pp = 1", 16)));
    }
}
