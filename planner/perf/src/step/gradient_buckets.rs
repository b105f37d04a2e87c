//! Number and size of gradient buckets.

use fabricast_topologies::Bytes;

use fabricast_workload::job::{Accumulate, Dimension, GroupCall, Layout, Training, Zero};

/// Returns the number and the size of the gradient buckets of a call. Buckets are equal, so that one simulation applies
/// to all, and their size is a multiple of sixteen bytes per rank. In calls among sharding groups, a bucket contains
/// the shard of one rank.
pub(super) fn buckets(job: &Training, layout: &Layout, call: &GroupCall) -> (u64, Bytes) {
    // Bucket sizes refer to gradients before compression.
    let bucket = job.bucket(layout).0.saturating_mul(job.gradient_bits.into());
    let bucket = bucket / (8 * job.gradient_bytes() * shards(layout, call.dimension));
    let bucket = bucket.max(1);
    // FSDP has one bucket per layer, and one for all other parameters (the root unit: embedding and last norm).
    let is_root =
        job.zero == Zero::Weights && job.bucket_mb.is_none() && job.gradient_accumulation(layout) == Accumulate::Shards;
    let count = if is_root { 1 } else { call.bytes.0.div_ceil(bucket).max(1) };
    let ranks = u64::from(layout.size(call.dimension)).max(1);
    (count, Bytes(call.bytes.0.div_ceil(count).next_multiple_of(16 * ranks)))
}

/// Returns the number of shards into which a bucket is divided. A call among replicas reduces one shard.
fn shards(layout: &Layout, dimension: Dimension) -> u64 {
    let count = match dimension {
        Dimension::Replica => layout.size(Dimension::Data),
        Dimension::ExpertReplica => layout.size(Dimension::ExpertData),
        _ => 1,
    };
    u64::from(count.max(1))
}
