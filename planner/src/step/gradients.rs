//! Gradient reduction that overlaps with the backward pass, in buckets as in PyTorch's DistributedDataParallel (Li et
//! al., arXiv 2006.15704, section 3.2). [`Training::bucket`] gives their size.
//!
//! Kernels that overlap with a bucket are slowed (`slowing`), which delays the next bucket. Buckets that are reduced
//! within groups and then among groups use a separate stream for each if the job's software has two (`rows`).

use fabricast_topologies::{Bytes, Picos};

use super::passes::Prices;
use super::rows::Rows;
use super::slowing::{Beside, Claim};
use crate::job::{Accumulate, Dimension, GroupCall, Layout, Phase, Training, Zero};
use crate::plan::PlanError;

/// Gradient buckets of a step, of equal size, reduced one at a time. Different calls of a bucket run one after the
/// other; if they use two streams, the longer one determines the time of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Buckets {
    /// Number of buckets, spread evenly over the model chunks as far as they divide.
    pub count: u64,
    /// All buckets, overlapped with the kernels of the backward pass.
    pub all: Beside,
    /// Additional time of the last bucket in the shorter stream.
    pub last: Picos,
    /// Total communication time, without overlap between streams.
    pub communication: Picos,
}

impl Buckets {
    pub(super) fn new(
        job: &Training,
        prices: &Prices<'_>,
        lose: impl Fn(Picos, Claim) -> Beside,
    ) -> Result<Self, PlanError> {
        let (mut most, mut rows) = (0, Rows::default());
        for call in prices.calls.iter().filter(|call| call.phase == Phase::Gradients) {
            let (count, each) = buckets(job, prices.layout, call);
            let one = lose(prices.time(call, each)?, prices.claim(call, each)?);
            most = most.max(count);
            rows.add(call.dimension, one.times(count));
        }
        let (all, shorter) = rows.together(job, prices);
        Ok(Self { count: most, all, last: Picos(shorter.0 / most.max(1)), communication: rows.communication() })
    }

    /// Time from the start of the first bucket to the end of the last, if they run back to back.
    pub(super) fn in_a_row(&self) -> Picos {
        self.all.call + self.last
    }

    /// Time of one bucket; the buckets sum up to the total.
    fn time(&self, number: u64) -> Picos {
        let until = |number: u64| u128::from(self.all.call.0) * u128::from(number) / u128::from(self.count.max(1));
        Picos((until(number + 1) - until(number)) as u64)
    }
}

/// Buckets of a stage in progress while its passes run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Underway {
    /// Number of model chunks whose gradients are complete.
    stretches: u64,
    /// End of the last bucket started so far.
    pub arrived: Picos,
    /// Start and end of each bucket.
    pub told: Vec<(Picos, Picos)>,
}

impl Underway {
    /// End time of work that starts at `begin` and overlaps with the buckets in progress or queued.
    pub(super) fn work(&self, buckets: &Buckets, begin: Picos, work: Picos) -> Picos {
        let left = self.arrived - begin;
        let Beside { call, lost } = buckets.all;
        if left == Picos::ZERO || lost == Picos::ZERO {
            return begin + work;
        }
        // Work done until the buckets have ended; at least their time less the slowdown.
        let done = (u128::from(left.0) * u128::from((call - lost).0)).div_ceil(u128::from(call.0.max(1)));
        if u128::from(work.0) >= done {
            return begin + left + Picos(work.0 - done as u64);
        }
        let took = u128::from(work.0) * u128::from(call.0) / u128::from((call - lost).0.max(1));
        begin + Picos(took as u64).min(left)
    }

    /// End time of the last backward pass of one of `stretches` model chunks. Its gradients become ready evenly: a
    /// bucket starts when the pass has computed all of its gradients and the previous bucket has ended.
    pub(super) fn fill(&mut self, buckets: &Buckets, stretches: u64, begin: Picos, work: Picos) -> Picos {
        // Buckets that become complete in this model chunk.
        let bound = |number: u64| number * buckets.count / stretches.max(1);
        let (from, to) = (bound(self.stretches), bound(self.stretches + 1));
        self.stretches += 1;
        let own = to - from;
        let until = |i: u64| u128::from(work.0) * u128::from(i) / u128::from(own.max(1));
        let mut now = begin;
        for i in 0..own {
            now = self.work(buckets, now, Picos((until(i + 1) - until(i)) as u64));
            let leaves = self.arrived.max(now);
            let last = if from + i + 1 == buckets.count { buckets.last } else { Picos::ZERO };
            self.arrived = leaves + buckets.time(from + i) + last;
            self.told.push((leaves, self.arrived));
        }
        if own == 0 { self.work(buckets, begin, work) } else { now }
    }
}

/// Number and size of the gradient buckets of a call. Buckets are equal, so that one simulation covers all, and a
/// multiple of sixteen bytes per rank. Among groups, a bucket holds one rank's shard.
pub(super) fn buckets(job: &Training, layout: &Layout, call: &GroupCall) -> (u64, Bytes) {
    // Bucket sizes count gradients before compression.
    let bucket = job.bucket(layout).0.saturating_mul(job.gradient_bits.into());
    let bucket = bucket / (8 * job.gradient_bytes() * parts(layout, call.dimension));
    let bucket = bucket.max(1);
    // FSDP has a bucket per layer and one for everything else (the root unit: embedding and last norm).
    let is_root = job.zero == Zero::Weights && job.bucket_mb.is_none() && job.accumulated(layout) == Accumulate::Shards;
    let count = if is_root { 1 } else { call.bytes.0.div_ceil(bucket).max(1) };
    let ranks = u64::from(layout.size(call.dimension)).max(1);
    (count, Bytes(call.bytes.0.div_ceil(count).next_multiple_of(16 * ranks)))
}

/// Number of shards of a bucket; a call among replicas reduces one of them.
fn parts(layout: &Layout, dimension: Dimension) -> u64 {
    let divided = match dimension {
        Dimension::Replica => layout.size(Dimension::Data),
        Dimension::ExpertReplica => layout.size(Dimension::ExpertData),
        _ => 1,
    };
    u64::from(divided.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// End of the last bucket and of the last pass, for passes given by start and duration.
    fn run(passes: &[(u64, u64)], count: u64, bucket: u64, lost: u64) -> (u64, u64) {
        let all = Beside { call: Picos(count * bucket), lost: Picos(count * lost) };
        let (buckets, mut underway, mut end) =
            (Buckets { count, all, ..Buckets::default() }, Underway::default(), Picos::ZERO);
        for &(begin, work) in passes {
            end = underway.fill(&buckets, passes.len() as u64, end.max(Picos(begin)), Picos(work));
        }
        assert_eq!(underway.told.len() as u64, count);
        (underway.arrived.0, end.0)
    }

    #[test]
    fn last_bucket_is_exposed() {
        // Fast: each bucket ends before the next is ready. Slow: they queue. One bucket: no overlap.
        assert_eq!(run(&[(1000, 1000)], 10, 50, 0), (2050, 2000));
        assert_eq!(run(&[(1000, 1000)], 10, 300, 0), (1100 + 3000, 2000));
        assert_eq!(run(&[(1000, 1000)], 1, 700, 700), (2700, 2000));
        assert_eq!(run(&[(0, 10), (50, 10)], 2, 20, 0), (80, 60));
    }

    /// All buckets but the last slow the pass if each ends before the next is ready. If they queue, the pass runs at
    /// the speed that they leave. If they leave nothing, it waits as without overlap.
    #[test]
    fn overlapping_buckets_slow_the_backward_pass() {
        assert_eq!(run(&[(1000, 1000)], 10, 50, 20), (2050 + 9 * 20, 2000 + 9 * 20));
        assert_eq!(run(&[(1000, 1000)], 10, 300, 150), (1100 + 3000, 1100 + 2 * 900));
        assert_eq!(run(&[(1000, 1000)], 10, 300, 300), (2000 + 3000, 2000 + 2700));
        // A pass that completes no bucket overlaps with those in progress.
        let buckets = Buckets { count: 1, all: Beside { call: Picos(100), lost: Picos(50) }, ..Buckets::default() };
        let underway = Underway { arrived: Picos(40), ..Underway::default() };
        assert_eq!(underway.work(&buckets, Picos(0), Picos(100)), Picos(120));
        assert_eq!(underway.work(&buckets, Picos(0), Picos(10)), Picos(20));
        assert_eq!(underway.work(&buckets, Picos(50), Picos(10)), Picos(60));
    }
}
