//! Longest chains of dependencies that remain after each operation, for the early detection of a missed deadline.
//!
//! The length of a chain is computed as if no transfer shared a capacity. Contention only delays a transfer and
//! everything that follows it, so no run ends before the start of a transfer plus the length of the longest chain that
//! begins with it. An operation that starts too late for the deadline therefore proves that it will be missed, as soon as
//! contention has delayed one of the first chunks of a stream and long before the last one.

use super::{Edge, Workload};
use crate::quantity::{Rate, Work};

/// Largest number of operations of a workload whose chains are computed: 32 MiB for their lengths.
const MAX_OPERATIONS: u64 = 1 << 21;

/// Lengths of the longest remaining chains of dependencies of all operations, in picoseconds.
#[derive(Debug)]
pub(super) struct RemainingPaths {
    /// Number of the first operation of each run, followed by the number of all operations.
    firsts: Vec<u32>,
    /// Time from the start of an operation's transfer to the end of the longest chain that begins with it.
    from_start: Vec<u64>,
}

impl RemainingPaths {
    /// Computes the chains of a workload. `None` if lines order its operations, if background traffic does not count
    /// towards the end, if there are too many operations, or if operations wait for each other in a cycle.
    pub(super) fn new(workload: &Workload) -> Option<Self> {
        let has_background = (workload.background_from as usize) < workload.runs.len();
        if has_background || workload.line_count() > 0 || workload.operation_count() > MAX_OPERATIONS {
            return None;
        }
        let mut firsts = vec![0u32];
        for run in &workload.runs {
            firsts.push(firsts.last()? + run.len);
        }
        PathSearch::new(workload, &firsts).run().map(|from_start| Self { firsts, from_start })
    }

    /// Returns the time from the start of an operation's transfer to the end of the longest chain that begins with it.
    pub(super) fn length_from_start(&self, run: u32, index: u32) -> u64 {
        self.from_start[(self.firsts[run as usize] + index) as usize]
    }
}

/// Computation of the chains, from the last operation of each run to the first. A run whose next operation is awaited by
/// operations of another run that are not computed is suspended until that run has advanced.
struct PathSearch<'a> {
    workload: &'a Workload,
    firsts: &'a [u32],
    /// Edges to other operations, by awaited run; each names the waiting run.
    dependents: Vec<Vec<Edge>>,
    /// Number of operations of each run that are not computed.
    missing: Vec<u32>,
    /// Runs that wait until a run has advanced, by that run.
    suspended: Vec<Vec<u32>>,
    /// Time from the instant at which an operation is ready to the end of the longest chain that begins with it.
    from_ready: Vec<u64>,
    from_start: Vec<u64>,
    /// Last division of work by rate, and its result.
    last_division: (Work, Rate, u64),
}

impl<'a> PathSearch<'a> {
    fn new(workload: &'a Workload, firsts: &'a [u32]) -> Self {
        let mut dependents: Vec<Vec<Edge>> = vec![Vec::new(); workload.runs.len()];
        for run in 0..workload.runs.len() as u32 {
            for edge in workload.run_waits(run).iter().filter(|edge| !edge.is_turn()) {
                dependents[edge.run as usize].push(Edge { run, ..*edge });
            }
        }
        let operations = firsts.last().map_or(0, |&count| count as usize);
        Self {
            workload,
            firsts,
            dependents,
            missing: workload.runs.iter().map(|run| run.len).collect(),
            suspended: vec![Vec::new(); workload.runs.len()],
            from_ready: vec![0; operations],
            from_start: vec![0; operations],
            last_division: (Work(0), Rate(1), 0),
        }
    }

    /// Returns the times from the starts of all operations; `None` if operations wait for each other in a cycle.
    fn run(mut self) -> Option<Vec<u64>> {
        // Runs wait for those before them more often than for those after them.
        let mut pending: Vec<u32> = (0..self.workload.runs.len() as u32).collect();
        while let Some(run) = pending.pop() {
            let before = self.missing[run as usize];
            if let Some(blocking) = self.advance(run) {
                self.suspended[blocking as usize].push(run);
            }
            if self.missing[run as usize] < before {
                pending.append(&mut self.suspended[run as usize]);
            }
        }
        self.missing.iter().all(|&missing| missing == 0).then_some(self.from_start)
    }

    /// Computes the operations of a run from the last one on. Returns the run of an operation that has to be computed
    /// before; `None` if all are computed.
    fn advance(&mut self, run: u32) -> Option<u32> {
        let workload = self.workload;
        let is_in_turn = workload.run_waits(run).iter().any(|edge| edge.is_turn());
        let len = workload.runs[run as usize].len;
        let first = self.firsts[run as usize];
        while let Some(index) = self.missing[run as usize].checked_sub(1) {
            let mut after_end = 0;
            for edge in &self.dependents[run as usize] {
                let waiting = edge.sources(index, workload.runs[edge.run as usize].len);
                if waiting.is_empty() {
                    continue;
                }
                if waiting.start < self.missing[edge.run as usize] {
                    return Some(edge.run);
                }
                let first = self.firsts[edge.run as usize] as usize;
                let paths = &self.from_ready[first + waiting.start as usize..first + waiting.end as usize];
                after_end = paths.iter().copied().fold(after_end, u64::max);
            }
            let (pace, passage) = (workload.pace(run, index), workload.passage(run, index));
            let work = workload.work(run, index);
            let transfer = passage.route.map_or(0, |route| self.duration(work, workload.system.unshared(route)));
            let number = (first + index) as usize;
            let (mut start, mut ready) = (transfer.saturating_add(after_end), 0);
            if is_in_turn && index + 1 < len {
                let next = self.from_start[number + 1];
                start = start.max(next.saturating_add(transfer.max(pace.spacing.0)));
                ready = pace.software.0.saturating_add(self.from_ready[number + 1]);
            }
            let until_start = pace.software.0.saturating_add(passage.latency.0);
            self.from_start[number] = start;
            self.from_ready[number] = ready.max(start.saturating_add(until_start));
            self.missing[run as usize] = index;
        }
        None
    }

    fn duration(&mut self, work: Work, rate: Rate) -> u64 {
        if (self.last_division.0, self.last_division.1) != (work, rate) {
            self.last_division = (work, rate, work.duration(rate).map_or(u64::MAX, |time| time.0));
        }
        self.last_division.2
    }
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::Picos;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::super::steady_state::tests::{streams, workload};
    use super::super::{Pace, Recording, RouteLatency, Watch, run};
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// No operation starts so late that the longest chain after it ends after the workload.
        #[test]
        fn no_chain_ends_after_the_workload(
            mut streams in streams(),
            chunks in 1u32..200,
            capacities in prop::collection::vec(select(vec![1u64, 2, 3, 7, 10, 25, 400]), 1..5),
        ) {
            streams.iter_mut().for_each(|stream| stream.line = None);
            let workload = workload(&streams, chunks, &capacities);
            let Ok(outcome) = run(&workload, Watch { recording: Recording::Spans, ..Watch::default() }) else {
                prop_assert!(RemainingPaths::new(&workload).is_none());
                return Ok(());
            };
            let paths = RemainingPaths::new(&workload).unwrap();
            for span in &outcome.spans {
                let chain_end = span.flowing.0 + paths.length_from_start(span.run, span.index);
                prop_assert!(chain_end <= outcome.end.0, "{chain_end} {:?} {span:?}", outcome.end);
            }
        }
    }

    /// Messages of a stream are at least their spacing apart, and each is passed on after 7 ps.
    #[test]
    fn chains_lead_through_spacings_and_dependencies() {
        let mut workload = Workload::new();
        let pace = |software, spacing| Pace { software: Picos(software), spacing: Picos(spacing), ..Pace::default() };
        let passage = |latency| RouteLatency { route: None, latency: Picos(latency) };
        workload.add_uniform_run(3, passage(9), Work(0), pace(2, 10), &[Edge::turn(0)]);
        workload.add_uniform_run(3, passage(4), Work(0), pace(3, 0), &[Edge { run: 0, start: 0, step: 1 }]);
        let paths = RemainingPaths::new(&workload).unwrap();
        assert_eq!([0, 1, 2].map(|index| paths.length_from_start(0, index)), [27, 17, 7]);
        assert_eq!([0, 1, 2].map(|index| paths.length_from_start(1, index)), [0, 0, 0]);
    }

    /// Operations that wait for each other have no longest chain.
    #[test]
    fn cycles_have_no_longest_chain() {
        let mut cycle = Workload::new();
        for awaited in [1, 0] {
            let passage = RouteLatency { route: None, latency: Picos(7) };
            let waits = [Edge { run: awaited, start: 0, step: 1 }];
            cycle.add_uniform_run(10, passage, Work(0), Pace::default(), &waits);
        }
        assert!(RemainingPaths::new(&cycle).is_none());
    }
}
