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
        // Passes state how long their calls use the links ([`PassWork::links_busy`]).
        let combined = streams.overlap(job, call_costs, |_| Picos::ZERO);
        Ok(Self {
            count: max_count,
            all: combined.call,
            last: Picos(combined.last.0 / max_count.max(1)),
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

/// Work that overlaps with gradient reduction: a pass or a part of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PassWork {
    /// Duration without gradient reduction.
    pub time: Picos,
    /// Part of the duration during which calls of the pass use the links of the gradients, spread over it evenly.
    pub links_busy: Picos,
}

impl PassWork {
    /// Returns the part with an index from 0 of `parts` equal parts. The parts add up to the whole exactly.
    fn part(self, index: u64, parts: u64) -> Self {
        let part = |time: Picos| {
            let until = |index: u64| u128::from(time.0) * u128::from(index) / u128::from(parts.max(1));
            Picos((until(index + 1) - until(index)) as u64)
        };
        Self { time: part(self.time), links_busy: part(self.links_busy) }
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
    /// Returns the end time of work that starts at `begin` and overlaps with the buckets in progress or queued. Buckets
    /// wait while calls of the work use their links.
    pub(super) fn work_end(&mut self, buckets: &Buckets, begin: Picos, work: PassWork) -> Picos {
        let remaining = self.end - begin;
        let OverlappedCall { call, slowdown } = buckets.all;
        if remaining == Picos::ZERO {
            return begin + work.time;
        }
        let links_busy = work.links_busy.min(work.time);
        let links_free = work.time - links_busy;
        let scale = |time: Picos, factor: Picos, divisor: Picos| {
            Picos((u128::from(time.0) * u128::from(factor.0)).div_ceil(u128::from(divisor.0.max(1))) as u64)
        };
        // Work with free links that is done when the buckets end: at least their time minus the slowdown.
        let done = scale(remaining, call - slowdown, call);
        if links_free >= done {
            let waiting = scale(links_busy, done, links_free).min(links_busy);
            self.delay(begin, remaining, waiting);
            return begin + work.time + (remaining - done);
        }
        let elapsed = u128::from(links_free.0) * u128::from(call.0) / u128::from((call - slowdown).0.max(1));
        let elapsed = Picos(elapsed as u64).min(remaining);
        self.delay(begin, elapsed, links_busy);
        begin + elapsed + links_busy
    }

    /// Delays buckets by `waiting`, spread over their first `duration` from `begin`.
    fn delay(&mut self, begin: Picos, duration: Picos, waiting: Picos) {
        if waiting == Picos::ZERO {
            return;
        }
        let delayed = |time: Picos| {
            let elapsed = (time - begin).min(duration);
            let share = u128::from(waiting.0) * u128::from(elapsed.0) / u128::from(duration.0.max(1));
            time + if elapsed == duration { waiting } else { Picos(share as u64) }
        };
        let pending = self.intervals.iter_mut().rev().take_while(|(_, end)| *end > begin);
        for (start, end) in pending {
            *start = if *start > begin { delayed(*start) } else { *start };
            *end = delayed(*end);
        }
        self.end = delayed(self.end);
    }

    /// Returns the end time of the last backward pass of one of `model_chunks` model chunks. Its gradients become ready
    /// at an even rate. A bucket starts when the pass has computed all gradients of the bucket and the previous bucket
    /// has ended.
    pub(super) fn last_backward_pass_end(
        &mut self,
        buckets: &Buckets,
        model_chunks: u64,
        begin: Picos,
        work: PassWork,
    ) -> Picos {
        // Buckets that become complete in this model chunk.
        let completed = |number: u64| number * buckets.count / model_chunks.max(1);
        let (from, to) = (completed(self.model_chunks), completed(self.model_chunks + 1));
        self.model_chunks += 1;
        let count = to - from;
        let mut now = begin;
        for i in 0..count {
            now = self.work_end(buckets, now, work.part(i, count));
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

    fn build_work(time: u64) -> PassWork {
        PassWork { time: Picos(time), links_busy: Picos::ZERO }
    }

    /// Returns the end of the last bucket and the end of the last pass, for passes given by start and duration.
    fn run(passes: &[(u64, u64)], count: u64, bucket: u64, slowdown: u64) -> (u64, u64) {
        let all = OverlappedCall { call: Picos(count * bucket), slowdown: Picos(count * slowdown) };
        let (buckets, mut progress, mut end) =
            (Buckets { count, all, ..Buckets::default() }, ReductionProgress::default(), Picos::ZERO);
        for &(begin, work) in passes {
            end =
                progress.last_backward_pass_end(&buckets, passes.len() as u64, end.max(Picos(begin)), build_work(work));
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
        let work_end = |begin: u64, work: u64| progress.clone().work_end(&buckets, Picos(begin), build_work(work));
        assert_eq!([work_end(0, 100), work_end(0, 10), work_end(50, 10)], [120, 20, 60].map(Picos));
    }

    /// Links busy with other calls delay the buckets by that time, until the pass ends.
    #[test]
    fn buckets_wait_for_busy_links() {
        let all = |slowdown: u64| OverlappedCall { call: Picos(100), slowdown: Picos(slowdown) };
        let ends = |slowdown: u64, end: u64, (time, busy): (u64, u64)| {
            let buckets = Buckets { count: 1, all: all(slowdown), ..Buckets::default() };
            let intervals = vec![(Picos(0), Picos(end / 2)), (Picos(end / 2), Picos(end))];
            let mut progress = ReductionProgress { end: Picos(end), intervals, ..ReductionProgress::default() };
            let work = PassWork { time: Picos(time), links_busy: Picos(busy) };
            let work_end = progress.work_end(&buckets, Picos(0), work);
            assert_eq!(progress.intervals.last().unwrap().1, progress.end);
            (work_end.0, progress.end.0, progress.intervals[0].1.0)
        };
        // Half of the time: buckets of 40 end after 80. A pass that ends before delays them by its calls.
        assert_eq!(ends(0, 40, (100, 50)), (100, 80, 40));
        assert_eq!(ends(0, 100, (100, 50)), (100, 150, 100));
        assert_eq!(ends(0, 40, (100, 100)), (100, 140, 120));
        assert_eq!(ends(0, 40, (100, 0)), (100, 40, 20));
        // Kernels at half of their speed while gradients are reduced.
        assert_eq!(ends(50, 40, (100, 50)), (120, 60, 30));
    }
}
