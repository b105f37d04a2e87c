//! Gradients on their way while the backward pass still runs: buckets, as PyTorch's DistributedDataParallel fills them (Li
//! et al., arXiv 2006.15704, section 3.2).
//!
//! A bucket leaves when the backward pass has come past all of its weights, and when the one before it has arrived.

use fabricast_topologies::{Bytes, Picos};

use super::passes::Prices;
use super::times;
use crate::job::{GroupCall, Layout, Phase, Training};
use crate::plan::PlanError;

/// When the last of equal buckets has arrived, of gradients that become ready evenly in each of these stretches of time.
/// `bucket` is what one takes. `tell` is told when each leaves and arrives.
pub(super) fn arrived(
    ready: &[(Picos, Picos)],
    buckets: u64,
    bucket: Picos,
    mut tell: impl FnMut(Picos, Picos),
) -> Picos {
    let stretches = ready.len().max(1) as u64;
    let mut free = Picos::ZERO;
    for (number, &(begin, end)) in (0u64..).zip(ready) {
        // As many as end in this stretch.
        let (from, to) = (number * buckets / stretches, (number + 1) * buckets / stretches);
        let own = to - from;
        for i in 1..=own {
            let share = u128::from((end - begin).0) * u128::from(i) / u128::from(own);
            let filled = begin + Picos(share as u64);
            let leaves = free.max(filled);
            free = leaves + bucket;
            tell(leaves, free);
        }
    }
    free
}

/// Number and size of the buckets of gradients of a call: equal ones, so that one price does for all; a multiple of
/// what sixteen bytes of each rank take.
pub(super) fn buckets(job: &Training, layout: &Layout, call: &GroupCall) -> (u64, Bytes) {
    let bucket = u64::from(job.bucket_mb) << 20;
    // A bucket holds gradients before they are compressed.
    let bucket = (bucket * u64::from(job.gradient_bits) / (8 * job.gradient_bytes())).max(1);
    let count = call.bytes.0.div_ceil(bucket).max(1);
    let ranks = u64::from(layout.size(call.dimension)).max(1);
    (count, Bytes(call.bytes.0.div_ceil(count).next_multiple_of(16 * ranks)))
}

/// Gradients once a step, in buckets: number and time of those of each call.
pub(super) struct Reduction {
    buckets: Vec<(u64, Picos)>,
}

impl Reduction {
    pub(super) fn new(job: &Training, prices: &Prices<'_>) -> Result<Self, PlanError> {
        let mut buckets = Vec::new();
        for call in prices.calls.iter().filter(|call| call.phase == Phase::Gradients) {
            let (count, each) = self::buckets(job, prices.layout, call);
            buckets.push((count, prices.time(call, each)?));
        }
        Ok(Self { buckets })
    }

    pub(super) fn total(&self) -> Picos {
        self.buckets.iter().map(|&(count, time)| times(time, count)).sum()
    }

    /// When all have arrived, telling each bucket. Different calls take turns: each waits for the others' share.
    pub(super) fn arrived(&self, ready: &[(Picos, Picos)], tell: impl FnMut(Picos, Picos)) -> Picos {
        let Some(&(most, _)) = self.buckets.iter().max_by_key(|bucket| bucket.0) else { return Picos::ZERO };
        arrived(ready, most, Picos(self.total().0.div_ceil(most.max(1))), tell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrived(ready: &[(Picos, Picos)], buckets: u64, bucket: Picos) -> Picos {
        super::arrived(ready, buckets, bucket, |_, _| ())
    }

    #[test]
    fn the_last_bucket_is_never_hidden() {
        let ready = [(Picos(1000), Picos(2000))];
        // Fast: each is done before the next is filled. Slow: they queue. One: nothing overlaps.
        assert_eq!(arrived(&ready, 10, Picos(50)), Picos(2050));
        assert_eq!(arrived(&ready, 10, Picos(300)), Picos(1100 + 3000));
        assert_eq!(arrived(&ready, 1, Picos(700)), Picos(2700));
        assert_eq!(arrived(&[(Picos(0), Picos(10)), (Picos(50), Picos(60))], 2, Picos(20)), Picos(80));
    }
}
