//! Gradient reduction that overlaps with the backward pass, in buckets as in PyTorch's DistributedDataParallel (Li et
//! al., arXiv 2006.15704, section 3.2). [`Training::bucket`] gives their size.
//!
//! Kernels that overlap with the reduction of a bucket are slower (`interference`), which delays the next bucket.
//! Buckets that are reduced first within groups and then among groups use two separate streams if the job's software
//! has them (`stream_overlap`).

use fabricast_topologies::Picos;

use super::call_costs::CallCosts;
use super::gradient_buckets::buckets;
use super::interference::OverlappedCall;
use super::stream_overlap::GradientStreams;
use crate::communication::SmUsage;
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{Phase, Training};

/// Gradient buckets of a step, of equal size, reduced one at a time. The calls of a bucket run one after the other. If
/// they use two streams, the longer call determines the time of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Buckets {
    /// Number of buckets, distributed over the model chunks as evenly as possible.
    pub count: u64,
    /// Calls of all buckets, overlapped with the kernels of the backward pass.
    pub all: OverlappedCall,
    /// Additional time of the last bucket in the stream with less communication.
    pub last: Picos,
    /// Total communication time without overlap between streams.
    pub communication: Picos,
}

impl Buckets {
    pub(super) fn new(
        job: &Training,
        call_costs: &CallCosts<'_>,
        overlap_call: impl Fn(Picos, SmUsage) -> OverlappedCall,
    ) -> Result<Self, PlanError> {
        let (mut max_count, mut streams) = (0, GradientStreams::default());
        for call in call_costs.calls.iter().filter(|call| call.phase == Phase::Gradients) {
            let (count, bytes) = buckets(job, call_costs.layout, call);
            let overlapped = overlap_call(call_costs.time(call, bytes)?, call_costs.sm_usage(call, bytes)?);
            max_count = max_count.max(count);
            streams.add(call.dimension, overlapped.times(count));
        }
        let (all, shorter) = streams.overlap(job, call_costs);
        Ok(Self {
            count: max_count,
            all,
            last: Picos(shorter.0 / max_count.max(1)),
            communication: streams.communication(),
        })
    }

    /// Returns the time from the start of the first bucket to the end of the last if buckets are reduced without gaps.
    pub(super) fn sequential_time(&self) -> Picos {
        self.all.call + self.last
    }

    /// Returns the time of the bucket with an index from 0. The times of all buckets add up to the total exactly.
    fn time(&self, index: u64) -> Picos {
        let elapsed = |index: u64| u128::from(self.all.call.0) * u128::from(index) / u128::from(self.count.max(1));
        Picos((elapsed(index + 1) - elapsed(index)) as u64)
    }
}

/// State of the gradient reduction of a stage during its passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReductionProgress {
    /// Number of the stage's model chunks whose gradients are complete.
    model_chunks: u64,
    /// End of the last bucket started so far.
    pub end: Picos,
    /// Start and end of each bucket, in order.
    pub intervals: Vec<(Picos, Picos)>,
}

impl ReductionProgress {
    /// Returns the end time of work that starts at `begin` and overlaps with the buckets in progress or queued.
    pub(super) fn work_end(&self, buckets: &Buckets, begin: Picos, work: Picos) -> Picos {
        let remaining = self.end - begin;
        let OverlappedCall { call, slowdown } = buckets.all;
        if remaining == Picos::ZERO || slowdown == Picos::ZERO {
            return begin + work;
        }
        // Work that is done when the buckets end: at least their time minus the slowdown.
        let done = (u128::from(remaining.0) * u128::from((call - slowdown).0)).div_ceil(u128::from(call.0.max(1)));
        if u128::from(work.0) >= done {
            return begin + remaining + Picos(work.0 - done as u64);
        }
        let elapsed = u128::from(work.0) * u128::from(call.0) / u128::from((call - slowdown).0.max(1));
        begin + Picos(elapsed as u64).min(remaining)
    }

    /// Returns the end time of the last backward pass of one of `model_chunks` model chunks. Its gradients become ready
    /// at an even rate. A bucket starts when the pass has computed all gradients of the bucket and the previous bucket
    /// has ended.
    pub(super) fn last_backward_pass_end(
        &mut self,
        buckets: &Buckets,
        model_chunks: u64,
        begin: Picos,
        work: Picos,
    ) -> Picos {
        // Buckets that become complete in this model chunk.
        let completed = |number: u64| number * buckets.count / model_chunks.max(1);
        let (from, to) = (completed(self.model_chunks), completed(self.model_chunks + 1));
        self.model_chunks += 1;
        let count = to - from;
        let work_until = |i: u64| u128::from(work.0) * u128::from(i) / u128::from(count.max(1));
        let mut now = begin;
        for i in 0..count {
            now = self.work_end(buckets, now, Picos((work_until(i + 1) - work_until(i)) as u64));
            let bucket_start = self.end.max(now);
            let last = if from + i + 1 == buckets.count { buckets.last } else { Picos::ZERO };
            self.end = bucket_start + buckets.time(from + i) + last;
            self.intervals.push((bucket_start, self.end));
        }
        if count == 0 { self.work_end(buckets, begin, work) } else { now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the end of the last bucket and the end of the last pass, for passes given by start and duration.
    fn run(passes: &[(u64, u64)], count: u64, bucket: u64, slowdown: u64) -> (u64, u64) {
        let all = OverlappedCall { call: Picos(count * bucket), slowdown: Picos(count * slowdown) };
        let (buckets, mut progress, mut end) =
            (Buckets { count, all, ..Buckets::default() }, ReductionProgress::default(), Picos::ZERO);
        for &(begin, work) in passes {
            end = progress.last_backward_pass_end(&buckets, passes.len() as u64, end.max(Picos(begin)), Picos(work));
        }
        assert_eq!(progress.intervals.len() as u64, count);
        (progress.end.0, end.0)
    }

    #[test]
    fn last_bucket_is_exposed() {
        // Fast reduction: each bucket ends before the next is ready. Slow reduction: buckets queue. One bucket: no
        // overlap.
        assert_eq!(run(&[(1000, 1000)], 10, 50, 0), (2050, 2000));
        assert_eq!(run(&[(1000, 1000)], 10, 300, 0), (1100 + 3000, 2000));
        assert_eq!(run(&[(1000, 1000)], 1, 700, 700), (2700, 2000));
        assert_eq!(run(&[(0, 10), (50, 10)], 2, 20, 0), (80, 60));
    }

    /// All buckets except the last slow the pass if each ends before the next is ready. If they queue, the pass runs at
    /// the remaining speed. If no speed remains, the pass waits as without overlap.
    #[test]
    fn overlapping_buckets_slow_the_backward_pass() {
        assert_eq!(run(&[(1000, 1000)], 10, 50, 20), (2050 + 9 * 20, 2000 + 9 * 20));
        assert_eq!(run(&[(1000, 1000)], 10, 300, 150), (1100 + 3000, 1100 + 2 * 900));
        assert_eq!(run(&[(1000, 1000)], 10, 300, 300), (2000 + 3000, 2000 + 2700));
        // A pass that completes no bucket overlaps with the buckets in progress.
        let buckets =
            Buckets { count: 1, all: OverlappedCall { call: Picos(100), slowdown: Picos(50) }, ..Buckets::default() };
        let progress = ReductionProgress { end: Picos(40), ..ReductionProgress::default() };
        assert_eq!(progress.work_end(&buckets, Picos(0), Picos(100)), Picos(120));
        assert_eq!(progress.work_end(&buckets, Picos(0), Picos(10)), Picos(20));
        assert_eq!(progress.work_end(&buckets, Picos(50), Picos(10)), Picos(60));
    }
}
