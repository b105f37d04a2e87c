//! Gradients on their way while the backward pass still runs: buckets, as PyTorch's DistributedDataParallel fills them (Li
//! et al., arXiv 2006.15704, section 3.2); how large they are [`Training::bucket`] says.
//!
//! Kernels beside them are slowed (`slowing`), and what is slowed fills the next bucket later. Buckets that are reduced in groups and
//! added up among these do both in rows of their own, where the job's software has two (`rows`).

use fabricast_topologies::{Bytes, Picos};

use super::passes::Prices;
use super::rows::Rows;
use super::slowing::{Beside, Claim};
use crate::job::{Accumulate, Dimension, GroupCall, Layout, Phase, Training, Zero};
use crate::plan::PlanError;

/// Gradients once a step, in equal buckets, of which one travels at a time. Different calls take turns: each waits for the others'
/// share; but those that are made in rows of their own, of which the longer one tells what a bucket takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Buckets {
    /// How many; as many of each stretch of layers, as far as they divide.
    pub count: u64,
    /// Of all of them, beside the kernels of the backward pass.
    pub all: Beside,
    /// What the last one takes besides, in the shorter row.
    pub last: Picos,
    /// All calls, whether at once or not.
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

    /// From when the first leaves to when the last has arrived, with nothing to wait for between.
    pub(super) fn in_a_row(&self) -> Picos {
        self.all.call + self.last
    }

    /// What one takes; together they take all.
    fn time(&self, number: u64) -> Picos {
        let until = |number: u64| u128::from(self.all.call.0) * u128::from(number) / u128::from(self.count.max(1));
        Picos((until(number + 1) - until(number)) as u64)
    }
}

/// The buckets of a stage on their way, while its passes run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Underway {
    /// Stretches whose gradients are complete.
    stretches: u64,
    /// When the last that left has arrived.
    pub arrived: Picos,
    /// When each left and arrived.
    pub told: Vec<(Picos, Picos)>,
}

impl Underway {
    /// When work ends that begins at this time, beside the buckets that have left or wait for those.
    pub(super) fn work(&self, buckets: &Buckets, begin: Picos, work: Picos) -> Picos {
        let left = self.arrived - begin;
        let Beside { call, lost } = buckets.all;
        if left == Picos::ZERO || lost == Picos::ZERO {
            return begin + work;
        }
        // What is done until they have arrived; at least as much as what they do not take of it.
        let done = (u128::from(left.0) * u128::from((call - lost).0)).div_ceil(u128::from(call.0.max(1)));
        if u128::from(work.0) >= done {
            return begin + left + Picos(work.0 - done as u64);
        }
        let took = u128::from(work.0) * u128::from(call.0) / u128::from((call - lost).0.max(1));
        begin + Picos(took as u64).min(left)
    }

    /// When the last backward pass of one of so many stretches ends, in which gradients become ready evenly: a bucket leaves when
    /// the pass has come past all of its weights, and when the one before it has arrived.
    pub(super) fn fill(&mut self, buckets: &Buckets, stretches: u64, begin: Picos, work: Picos) -> Picos {
        // As many as end in this stretch.
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

/// Number and size of the buckets of gradients of a call: equal ones, so that one price does for all; a multiple of
/// what sixteen bytes of each rank take. What is added up among groups is a rank's part of a bucket.
pub(super) fn buckets(job: &Training, layout: &Layout, call: &GroupCall) -> (u64, Bytes) {
    // A bucket holds gradients before they are compressed.
    let bucket = job.bucket(layout).0.saturating_mul(job.gradient_bits.into());
    let bucket = bucket / (8 * job.gradient_bytes() * parts(layout, call.dimension));
    let bucket = bucket.max(1);
    // Beside a bucket for each layer FSDP has one of all else (the root's unit: words and the last norm).
    let is_root = job.zero == Zero::Weights && job.bucket_mb.is_none() && job.accumulated(layout) == Accumulate::Shards;
    let count = if is_root { 1 } else { call.bytes.0.div_ceil(bucket).max(1) };
    let ranks = u64::from(layout.size(call.dimension)).max(1);
    (count, Bytes(call.bytes.0.div_ceil(count).next_multiple_of(16 * ranks)))
}

/// Parts of a bucket of which a call is about one.
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

    /// When the last bucket has arrived and when the last pass has ended, of passes that begin and take so much.
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
    fn the_last_bucket_is_never_hidden() {
        // Fast: each is done before the next is filled. Slow: they queue. One: nothing overlaps.
        assert_eq!(run(&[(1000, 1000)], 10, 50, 0), (2050, 2000));
        assert_eq!(run(&[(1000, 1000)], 10, 300, 0), (1100 + 3000, 2000));
        assert_eq!(run(&[(1000, 1000)], 1, 700, 700), (2700, 2000));
        assert_eq!(run(&[(0, 10), (50, 10)], 2, 20, 0), (80, 60));
    }

    /// All but the last slow the pass by what kernels lose, where each is done before the next is filled; where they queue the pass
    /// goes on at what they leave of it; where they leave nothing it waits, as if they were not beside it.
    #[test]
    fn buckets_slow_the_pass_that_fills_them() {
        assert_eq!(run(&[(1000, 1000)], 10, 50, 20), (2050 + 9 * 20, 2000 + 9 * 20));
        assert_eq!(run(&[(1000, 1000)], 10, 300, 150), (1100 + 3000, 1100 + 2 * 900));
        assert_eq!(run(&[(1000, 1000)], 10, 300, 300), (2000 + 3000, 2000 + 2700));
        // A pass that fills none runs beside what is on its way.
        let buckets = Buckets { count: 1, all: Beside { call: Picos(100), lost: Picos(50) }, ..Buckets::default() };
        let underway = Underway { arrived: Picos(40), ..Underway::default() };
        assert_eq!(underway.work(&buckets, Picos(0), Picos(100)), Picos(120));
        assert_eq!(underway.work(&buckets, Picos(0), Picos(10)), Picos(20));
        assert_eq!(underway.work(&buckets, Picos(50), Picos(10)), Picos(60));
    }
}
