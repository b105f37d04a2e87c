//! What data-parallel ranks divide among them, for how long they have the whole of it, and how much of it goes into a call.
//!
//! Stages after Rajbhandari et al. (ZeRO, arXiv 1910.02054). How long weights stay gathered and when gradients are divided is a
//! choice that memory pays and bytes gain, or the other way round, so both read it here. Left to itself a job does what PyTorch does:
//! without stages of layers every micro-batch gathers weights for each pass and divides its gradients; with stages weights are
//! gathered once a step (torchtitan's default: `reshard_after_forward = not pp_enabled`) and gradients are added up whole until the
//! last backward pass of a stretch, behind which they are reduced (`torch/distributed/pipelining/stage.py`:
//! `backward_maybe_with_nosync`). So does Llama 3 (arXiv 2407.21783, section 3.3.2). What is left of ZeRO's stages 2 and 3 then are the
//! bytes and the memory of stage 1.
//!
//! Copies may be spread over some of the ranks only ([`Training::shard`]): groups of so many neighbours have one in parts, and those
//! that have the same part add up their gradients besides. PyTorch calls it hybrid sharding (`ShardingStrategy.HYBRID_SHARD`; Zhao et
//! al., arXiv 2304.11277, section 3.2.2), torchtitan `data_parallel_shard_degree`, Megatron Core counts the groups
//! (`--num-distributed-optimizer-instances`), and so does MiCS (Zhang et al., arXiv 2205.00119).

use fabricast_topologies::Bytes;
use serde::Deserialize;

use super::layout::Degrees;
use super::memory::of_rank;
use super::{Dimension, JobError, Layout, Training};

/// Bytes of gradients that PyTorch's DistributedDataParallel reduces together (`bucket_cap_mb`; Li et al., arXiv 2006.15704).
const DDP_BUCKET: u64 = 25 << 20;

/// Parameters whose gradients Megatron Core reduces together, at least, and so many for each data-parallel rank, since buckets that
/// many ranks divide take the longer to begin (`megatron/core/distributed/distributed_data_parallel.py`, `bucket_size`).
const MEGATRON_BUCKET: u64 = 40_000_000;
const MEGATRON_BUCKET_OF_RANK: u64 = 1_000_000;

/// What data-parallel ranks divide among them instead of each keeping a copy (Rajbhandari et al., ZeRO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Zero {
    /// Nothing: plain data parallelism.
    #[default]
    None,
    /// The optimizer's state.
    Optimizer,
    /// Gradients too.
    Gradients,
    /// Weights too: ZeRO-3, or FSDP with full sharding.
    Weights,
}

/// Whether weights that were gathered for a forward pass are given away after it (FSDP's `reshard_after_forward`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reshard {
    /// They are, and gathered again for the backward pass.
    AfterForward,
    /// They stay for the backward pass; with stages of layers, between whose passes others come, until the last of the step.
    AfterBackward,
}

/// What gradients of several micro-batches are added up in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accumulate {
    /// In each rank's part: every micro-batch reduces its gradients.
    Shards,
    /// In whole gradients on every rank (FSDP's `no_sync`), reduced behind the last micro-batch.
    Whole,
}

/// How what is reduced within groups that have a copy in parts, and what is added up among these groups, follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Streams {
    /// One after the other.
    One,
    /// Each in its own row: what one layer adds up among groups travels beside what the next reduces within them.
    OneEach,
}

/// For how long a rank has whole weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gathered {
    /// For a pass of a layer: gathered for each.
    Pass,
    /// From a micro-batch's forward pass to its backward pass: gathered once for each micro-batch.
    MicroBatch,
    /// For the step, or always: gathered once, after the optimizer.
    Step,
}

impl Training {
    /// Ranks that a copy of the states is spread over, with such degrees; `None`: all that hold copies.
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

    /// FSDP has a stream of its own for what it adds up among groups (`_all_reduce_stream`, torch/distributed/fsdp; `all_reduce_stream`,
    /// torch/distributed/fsdp/_fully_shard); Megatron Core has one for both (`communication_stream`, param_and_grad_buffer.py).
    #[must_use]
    pub fn streams(&self) -> Streams {
        match self.zero {
            Zero::None | Zero::Optimizer => Streams::One,
            Zero::Gradients | Zero::Weights => Streams::OneEach,
        }
    }

    /// For how long ranks of a layout have whole weights.
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

    /// What ranks of a layout add gradients up in.
    #[must_use]
    pub fn accumulated(&self, layout: &Layout) -> Accumulate {
        match (self.zero, self.accumulate) {
            (Zero::None | Zero::Optimizer, _) => Accumulate::Whole,
            (Zero::Gradients | Zero::Weights, Some(given)) => given,
            (Zero::Gradients | Zero::Weights, None) if layout.degrees.pipeline > 1 => Accumulate::Whole,
            (Zero::Gradients | Zero::Weights, None) => Accumulate::Shards,
        }
    }

    /// Bytes of gradients, as they are kept, that go into a call. Left to itself a job does what its software does: plain copies
    /// are PyTorch's DistributedDataParallel; FSDP reduces a layer's together; what else is divided is Megatron Core's, which fills
    /// larger buckets.
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

    /// Bytes of a gradient that is kept: those of the precision, or of what it travels in where that is more
    /// (`gradient_bits = 32`: added up in 32 bits, as Megatron-LM's `--accumulate-allreduce-grads-in-fp32`).
    #[must_use]
    pub fn gradient_bytes(&self) -> u64 {
        self.precision.bytes().max(u64::from(self.gradient_bits.div_ceil(8)))
    }
}

/// Parameters of a bucket of Megatron Core's.
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

    /// Some of the groups of a dimension.
    fn groups(job: &Training, ranks: u32, dimension: Dimension) -> Vec<Vec<u32>> {
        Layout::given(job, ranks).unwrap().unwrap().groups(dimension)
    }

    #[test]
    fn a_copy_is_spread_over_neighbours() {
        let dense = job("global_batch = 64\nzero = 3\nshard = 4\nparallel = { tp = 2, cp = 2, dp = 4 }\n");
        assert_eq!(groups(&dense, 16, Dimension::Data)[..2], [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(groups(&dense, 16, Dimension::Replica)[..3], [[0, 8], [1, 9], [2, 10]]);
        // Experts have fewer copies, in as many groups.
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
    fn shards_that_cannot_be_are_named_where_they_stand() {
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

        /// States are those of the ranks of one copy. Within its group a rank says what it would of so many ranks alone; with those
        /// that have the same part it adds up its part of all gradients that it reduced.
        #[test]
        fn shards_hold_and_move_the_closed_form(
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
            // Spread over all, it is what it is without a shard.
            let (all, every) = (of(&format!("shard = {copies}\n"), copies), of("", copies));
            prop_assert_eq!(all, every);
        }
    }

    /// What a job of 96 layers of 4,096 on so many GPUs, divided so, puts into a call.
    fn bucket(lines: &str, parallel: &str, ranks: u32) -> u64 {
        let job = job(&format!(
            "global_batch = 4096\n{lines}\nparallel = {{ {parallel} }}\n\
             model = {{ layers = 96, hidden = 4096, heads = 32, ffn = 16384, vocab = 51200, seq = 2048 }}\n"
        ));
        job.bucket(&Layout::given(&job, ranks).unwrap().unwrap()).0
    }

    #[test]
    fn buckets_are_those_of_the_software_that_divides_so() {
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
        // Weights of four projections and of two products, with what norms and biases have beside them.
        let layer = 2 * (4 * 4096 * 4096 + 2 * 4096 * 16_384);
        assert!((layer..layer + layer / 1000).contains(&bucket("zero = 3", "tp = 1, pp = 1", 16)));
    }
}
