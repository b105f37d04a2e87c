//! Dependencies between operations, stored per run. Edges are arithmetic, so their number does not grow with the
//! operations.

use fabricast_topologies::Picos;

use super::costs::ChainCosts;
use super::distance::Distance;
use super::{Edge, Workload};

/// Effect of the completion of an awaited operation on the operation that waits for it.
pub(super) enum Arrival {
    /// Other operations are still awaited.
    Partial,
    /// No further operation is awaited. Holds the costs of the dependency chain that completed last.
    Last(ChainCosts),
}

/// Progress of an operation that waits for several others.
#[derive(Clone, Copy, Debug)]
struct PendingOperation {
    /// Run of the waiting operation; [`NONE`] if the entry is free.
    run: u32,
    index: u32,
    missing: u32,
    latest: Picos,
    chain_costs: ChainCosts,
}

/// Operation for which some, but not all, of several awaited operations are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PartialWait {
    pub run: u32,
    pub index: u32,
    /// Number of operations that are still awaited.
    pub missing: u32,
}

const NONE: u32 = u32::MAX;
const DONE: u32 = u32::MAX - 1;

/// State of a run's dependencies, in one struct because an arrival needs all of it.
#[derive(Clone, Copy, Debug, Default)]
struct RunState {
    /// Index in `dependents` of the first edge of the operations that wait for this run. The next run's index marks the
    /// end.
    first_dependent: u32,
    /// Index in `ranges` of the run's first wait range. The next run's index marks the end.
    first_range: u32,
    /// Number of awaited operations done so far, summed over the run's operations.
    arrived: u32,
}

/// Consecutive operations of a run that each wait for several others. Operations outside all ranges wait for at most
/// one other operation, even if the run has several edges: an edge need not affect every operation of the run.
#[derive(Clone, Copy, Debug)]
struct WaitRange {
    start: u32,
    end: u32,
    /// Number of operations that each operation of the range waits for.
    awaited: u32,
    /// Index in `gathering_slots` of the first operation of the range.
    first: u32,
}

/// State of all dependencies of a workload during a run.
#[derive(Clone, Debug)]
pub(super) struct DependencyStates {
    /// Edges, grouped by the awaited run; each names the dependent run.
    dependents: Vec<Edge>,
    /// States by run, followed by a sentinel that ends the last run's ranges.
    runs: Vec<RunState>,
    /// Wait ranges of all runs, by run, then by start.
    ranges: Vec<WaitRange>,
    /// Slot in `gatherings` of each operation that waits for several others; [`NONE`] before the first of those is
    /// done, [`DONE`] after the last.
    gathering_slots: Vec<u32>,
    gatherings: Vec<PendingOperation>,
    free: Vec<u32>,
}

impl DependencyStates {
    pub(super) fn new(workload: &Workload) -> Self {
        let count = workload.runs.len();
        let mut runs = vec![RunState::default(); count + 1];
        for edge in &workload.waits {
            runs[edge.run as usize + 1].first_dependent += 1;
        }
        for i in 0..count {
            runs[i + 1].first_dependent += runs[i].first_dependent;
        }
        let mut next: Vec<u32> = runs.iter().map(|run| run.first_dependent).collect();
        let mut dependents = vec![Edge { run: 0, start: 0, step: 0 }; workload.waits.len()];
        let (mut ranges, mut gathering_count) = (Vec::new(), 0);
        for run in 0..count as u32 {
            runs[run as usize].first_range = ranges.len() as u32;
            let waits = workload.run_waits(run);
            for edge in waits {
                dependents[next[edge.run as usize] as usize] = Edge { run, ..*edge };
                next[edge.run as usize] += 1;
            }
            if waits.len() > 1 {
                add_wait_ranges(workload, run, &mut ranges, &mut gathering_count);
            }
        }
        runs[count].first_range = ranges.len() as u32;
        Self {
            dependents,
            runs,
            ranges,
            gathering_slots: vec![NONE; gathering_count as usize],
            gatherings: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn run_dependents(&self, run: u32) -> std::ops::Range<u32> {
        self.runs[run as usize].first_dependent..self.runs[run as usize + 1].first_dependent
    }

    pub(super) fn dependent(&self, i: u32) -> Edge {
        self.dependents[i as usize]
    }

    /// Returns the wait ranges of a run.
    fn run_ranges(&self, run: u32) -> &[WaitRange] {
        &self.ranges[self.runs[run as usize].first_range as usize..self.runs[run as usize + 1].first_range as usize]
    }

    /// Records that one of the operations that operation `index` of `run` waits for is done.
    pub(super) fn arrive(&mut self, run: u32, index: u32, now: Picos, chain_costs: ChainCosts) -> Arrival {
        self.runs[run as usize].arrived += 1;
        let ranges = self.run_ranges(run);
        let at = ranges.partition_point(|range| range.end <= index);
        let Some(&range) = ranges.get(at).filter(|range| range.start <= index) else {
            return Arrival::Last(chain_costs);
        };
        let entry = (range.first + (index - range.start)) as usize;
        if self.gathering_slots[entry] == NONE {
            let (latest, chain_costs) = Default::default();
            let new = PendingOperation { run, index, missing: range.awaited, latest, chain_costs };
            self.gathering_slots[entry] = match self.free.pop() {
                Some(slot) => {
                    self.gatherings[slot as usize] = new;
                    slot
                }
                None => {
                    self.gatherings.push(new);
                    self.gatherings.len() as u32 - 1
                }
            };
        }
        let slot = self.gathering_slots[entry];
        let gathering = &mut self.gatherings[slot as usize];
        // Of arrivals at one instant the largest costs count, regardless of their order.
        (gathering.latest, gathering.chain_costs) = (gathering.latest, gathering.chain_costs).max((now, chain_costs));
        gathering.missing -= 1;
        if gathering.missing > 0 {
            return Arrival::Partial;
        }
        let chain_costs = gathering.chain_costs;
        gathering.run = NONE;
        self.gathering_slots[entry] = DONE;
        self.free.push(slot);
        Arrival::Last(chain_costs)
    }

    /// Returns the operations for which some of several awaited operations are done.
    pub(super) fn partial(&self) -> impl Iterator<Item = PartialWait> + '_ {
        let gatherings = self.gatherings.iter().filter(|one| one.run != NONE);
        gatherings.map(|&PendingOperation { run, index, missing, .. }| PartialWait { run, index, missing })
    }

    /// Returns the number of awaited operations done so far, by dependent run.
    pub(super) fn arrivals(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs.iter().map(|run| run.arrived)
    }

    /// Advances by whole periods. `indexes`: number of operations by which each run advances; `earlier`: result of
    /// [`Self::arrivals`] one period ago.
    pub(super) fn jump(&mut self, distance: Distance, indexes: impl Fn(u32) -> u32, earlier: &[u32]) {
        for (run, &before) in self.runs.iter_mut().zip(earlier) {
            run.arrived += (run.arrived - before) * distance.periods;
        }
        for slot in 0..self.gatherings.len() {
            if let Some(entry) = self.gathering_entry(slot) {
                self.gathering_slots[entry] = DONE;
            }
        }
        for slot in 0..self.gatherings.len() {
            let gathering = &mut self.gatherings[slot];
            if gathering.run != NONE {
                gathering.index += indexes(gathering.run);
                gathering.latest += distance.time;
                gathering.chain_costs = gathering.chain_costs + distance.costs;
            }
            if let Some(entry) = self.gathering_entry(slot) {
                self.gathering_slots[entry] = slot as u32;
            }
        }
    }

    /// Returns the index in `gathering_slots` of an operation; `None` if it waits for at most one other.
    fn entry(&self, run: u32, index: u32) -> Option<usize> {
        let ranges = self.run_ranges(run);
        let range = ranges.get(ranges.partition_point(|range| range.end <= index))?;
        (range.start <= index).then(|| (range.first + (index - range.start)) as usize)
    }

    fn gathering_entry(&self, slot: usize) -> Option<usize> {
        let gathering = &self.gatherings[slot];
        (gathering.run != NONE).then(|| self.entry(gathering.run, gathering.index)).flatten()
    }

    /// Returns the first operation that still waits after a deadlock, as run and index. Operations that wait for one
    /// other are assumed to have received it in order.
    pub(super) fn first_not_done(&self, workload: &Workload) -> (u32, u32) {
        for (run, work_run) in (0u32..).zip(&workload.runs) {
            let ranges = self.run_ranges(run);
            let not_done = |s: &WaitRange| {
                (s.start..s.end).find(|i| self.gathering_slots[(s.first + i - s.start) as usize] != DONE)
            };
            if let Some(index) = ranges.iter().find_map(not_done) {
                return (run, index);
            }
            let operations = |s: &WaitRange| u64::from(s.end - s.start);
            let extra: u64 = ranges.iter().map(|s| operations(s) * u64::from(s.awaited - 1)).sum();
            let ready = initially_ready(workload, run).into_iter().map(|range| u64::from(range.end - range.start));
            let begun = ready.sum::<u64>() + u64::from(self.runs[run as usize].arrived) - extra;
            if begun < u64::from(work_run.len) {
                return (run, begun as u32);
            }
        }
        (0, 0)
    }
}

/// Range of indexes of the operations of a run that wait, or are awaited, by an edge.
pub(super) type EdgeRange = std::ops::Range<u32>;

/// Returns the smallest range that contains all operations that the operations `waiting` (a non-empty range) wait for
/// by an edge.
pub(super) fn awaited_range(edge: Edge, waiting: &EdgeRange) -> EdgeRange {
    let target = |index: u32| (i64::from(edge.start) + i64::from(edge.index_step()) * i64::from(index)) as u32;
    target(waiting.start)..target(waiting.end - 1) + 1
}

/// Appends the wait ranges of a run; `gathering_count` counts the operations in them.
fn add_wait_ranges(workload: &Workload, run: u32, ranges: &mut Vec<WaitRange>, gathering_count: &mut u32) {
    let len = workload.runs[run as usize].len;
    // Each edge makes one interval of operations wait: +1 at its start, −1 at its end.
    let mut steps: Vec<(u32, i32)> = Vec::new();
    for edge in workload.run_waits(run) {
        let range = edge.waiting(len, workload);
        if !range.is_empty() {
            steps.extend([(range.start, 1), (range.end, -1)]);
        }
    }
    steps.sort_unstable();
    let mut awaited = 0;
    for pair in steps.windows(2) {
        let [(start, change), (end, _)] = [pair[0], pair[1]];
        awaited += change;
        if awaited > 1 && start < end {
            ranges.push(WaitRange { start, end, awaited: awaited as u32, first: *gathering_count });
            *gathering_count += end - start;
        }
    }
}

/// Returns the operations of a run that wait for nothing, as ranges of indexes.
pub(super) fn initially_ready(workload: &Workload, run: u32) -> Vec<std::ops::Range<u32>> {
    let len = workload.runs[run as usize].len;
    let waits = workload.run_waits(run);
    let (mut ready, mut from) = (Vec::new(), 0);
    // Each edge makes one interval of operations wait; operations outside all intervals are ready.
    let mut covered: Vec<std::ops::Range<u32>> = waits.iter().map(|edge| edge.waiting(len, workload)).collect();
    covered.retain(|range| !range.is_empty());
    covered.sort_unstable_by_key(|range| range.start);
    for range in covered {
        if range.start > from {
            ready.push(from..range.start);
        }
        from = from.max(range.end);
    }
    if from < len {
        ready.push(from..len);
    }
    ready
}

impl Edge {
    /// Returns the operations, in a run of `len` operations, that wait because of this edge: those whose awaited
    /// operation exists.
    pub(super) fn waiting(self, len: u32, workload: &Workload) -> EdgeRange {
        let (start, step) = (i64::from(self.start), i64::from(self.index_step()));
        let target_len = i64::from(workload.runs[self.run as usize].len);
        if step == 0 {
            return if (0..target_len).contains(&start) { 0..len } else { 0..0 };
        }
        // start + step·i ≥ 0 and < target_len
        let first = (-start).max(0).div_euclid(step) + i64::from((-start).max(0) % step != 0);
        let end = if start >= target_len { 0 } else { (target_len - 1 - start).div_euclid(step) + 1 };
        let (first, end) = (first.min(i64::from(len)), end.clamp(0, i64::from(len)));
        first as u32..end.max(first) as u32
    }
}
