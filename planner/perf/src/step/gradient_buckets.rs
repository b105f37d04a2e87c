//! Number and size of gradient buckets.

use fabricast_topologies::Bytes;

use fabricast_workload::job::{Accumulate, Dimension, GroupCall, Layout, Training, Zero};

/// Number and size of the gradient buckets of a call. Buckets are equal, so that one simulation covers all, and a
/// multiple of sixteen bytes per rank. Among groups, a bucket holds one rank's shard.
pub(super) fn buckets(job: &Training, layout: &Layout, call: &GroupCall) -> (u64, Bytes) {
    // Bucket sizes count gradients before compression.
    let bucket = job.bucket(layout).0.saturating_mul(job.gradient_bits.into());
    let bucket = bucket / (8 * job.gradient_bytes() * shards(layout, call.dimension));
    let bucket = bucket.max(1);
    // FSDP has a bucket per layer and one for everything else (the root unit: embedding and last norm).
    let is_root =
        job.zero == Zero::Weights && job.bucket_mb.is_none() && job.gradient_accumulation(layout) == Accumulate::Shards;
    let count = if is_root { 1 } else { call.bytes.0.div_ceil(bucket).max(1) };
    let ranks = u64::from(layout.size(call.dimension)).max(1);
    (count, Bytes(call.bytes.0.div_ceil(count).next_multiple_of(16 * ranks)))
}

/// Number of shards into which a bucket is divided; a call among replicas reduces one of them.
fn shards(layout: &Layout, dimension: Dimension) -> u64 {
    let count = match dimension {
        Dimension::Replica => layout.size(Dimension::Data),
        Dimension::ExpertReplica => layout.size(Dimension::ExpertData),
        _ => 1,
    };
    u64::from(count.max(1))
}
