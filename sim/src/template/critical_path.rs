//! Critical path of a folded workload, with each operation as fast as if only equivalent operations were active.
//!
//! The computation follows the rules of the engine, without contention. An operation is ready when its dependencies are
//! done. Its transfer starts after its software time and the latency of its path and, if operations are in sequence,
//! after the preceding operation and its spacing. Contention only delays a transfer and everything after it, so the
//! result is a lower bound.

use fabricast_topologies::Picos;
use rustc_hash::FxHashMap;

use super::{Amounts, Template};
use crate::engine::{Edge, Pace, Workload};
use crate::lower::{Crossing, Latency};
use crate::quantity::{Rate, Work};
use crate::sharing::{RouteId, System};

/// Placeholder for a missing operation or transfer number.
const NONE: u32 = u32::MAX;

/// Operations of a workload in topological order, to compute its critical path.
#[derive(Debug)]
pub(super) struct Chain {
    ops: Vec<PathOp>,
    /// `awaited[starts[i]..starts[i + 1]]`: positions of the operations that operation i waits for.
    awaited: Vec<u32>,
    starts: Vec<u32>,
    /// Distinct transfers: a route, and the size of one operation as an index into the workload's works.
    transfers: Vec<(RouteId, u32)>,
    /// Runs whose operations are executed in sequence: position of the first operation, and length.
    sequential_runs: Vec<(u32, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct PathOp {
    task: u32,
    latency: Latency,
    /// Index in `transfers`; [`NONE`] if no data is moved.
    transfer: u32,
    /// Position of the preceding operation if operations are executed in sequence; [`NONE`] otherwise.
    before: u32,
}

/// Times along the critical path.
pub(super) struct Times {
    /// Lower bound on the end of the last operation.
    pub end: Picos,
    /// Lower bound on the start of each capacity's first transfer; the maximum time if there is no transfer.
    pub first_flows: Vec<Picos>,
}

/// Costs of a template's tasks and transfers.
pub(super) struct ChainCosts {
    /// Lower bound on the duration of each transfer, in picoseconds.
    moved: Vec<u64>,
    /// Pace and network costs of each task.
    tasks: Vec<(Pace, Crossing)>,
}

impl ChainCosts {
    fn task(&self, task: u32) -> (Pace, Crossing) {
        self.tasks.get(task as usize).copied().unwrap_or_default()
    }
}

impl Chain {
    /// Orders the operations of a workload; `None` if there is a dependency cycle.
    pub(super) fn new(workload: &Workload) -> Option<Self> {
        let mut first = vec![0u32];
        for run in &workload.runs {
            first.push(first.last()?.checked_add(run.len)?);
        }
        let count = *first.last()? as usize;
        let order = topological_order(workload, &first, count)?;
        let mut positions = vec![NONE; count];
        for (position, &(run, index)) in (0..).zip(&order) {
            positions[(first[run as usize] + index) as usize] = position;
        }
        let mut chain = Self {
            ops: Vec::with_capacity(count),
            awaited: Vec::new(),
            starts: vec![0],
            transfers: Vec::new(),
            sequential_runs: Vec::new(),
        };
        let mut known: FxHashMap<(RouteId, u32), u32> = FxHashMap::default();
        for &(run, index) in &order {
            let work_run = workload.runs[run as usize];
            let mut before = NONE;
            for edge in workload.run_waits(run) {
                let Some(awaited) = target(workload, *edge, index) else { continue };
                let position = positions[(first[edge.run as usize] + awaited) as usize];
                if edge.is_turn() {
                    before = position;
                } else {
                    chain.awaited.push(position);
                }
            }
            chain.starts.push(chain.awaited.len() as u32);
            let passage = workload.passage(run, index);
            let work = work_run.work.entry(index) as u32;
            let transfer = passage.route.map_or(NONE, |route| {
                *known.entry((route, work)).or_insert_with(|| {
                    chain.transfers.push((route, work));
                    chain.transfers.len() as u32 - 1
                })
            });
            if index == 0 && workload.run_waits(run).iter().any(|edge| edge.is_turn()) {
                chain.sequential_runs.push((chain.ops.len() as u32, work_run.len));
            }
            let task = workload.pace(run, index).software.0 as u32;
            chain.ops.push(PathOp { task, latency: Latency::decode(passage.latency), transfer, before });
        }
        Some(chain)
    }

    /// Returns the costs of a template's tasks and transfers; with `other`, the lower of the costs in `amounts` and
    /// `other`.
    pub(super) fn costs(&self, template: &Template, amounts: &Amounts, other: Option<&Amounts>) -> ChainCosts {
        let mut moved = self.durations(&template.system([amounts]), &amounts.works);
        let tasks = 0..template.tasks.all.len() as u32;
        let mut tasks: Vec<(Pace, Crossing)> = tasks.map(|task| (amounts.pace(task), amounts.crossing(task))).collect();
        if let Some(amounts) = other {
            let lesser = self.durations(&template.system([amounts]), &amounts.works);
            for (duration, other) in moved.iter_mut().zip(lesser) {
                *duration = (*duration).min(other);
            }
            for (task, (pace, crossing)) in (0..).zip(&mut tasks) {
                let (other, left) = (amounts.pace(task), amounts.crossing(task));
                pace.software = pace.software.min(other.software);
                pace.spacing = pace.spacing.min(other.spacing);
                crossing.latency = crossing.latency.min(left.latency);
                crossing.flush = crossing.flush.min(left.flush);
            }
        }
        ChainCosts { moved, tasks }
    }

    /// Computes times with given costs. A call has `loops` loops.
    pub(super) fn times(&self, template: &Template, costs: &ChainCosts, startup: Picos, loops: u32) -> Times {
        let count = self.ops.len();
        let (mut ready, mut flows, mut done) = (vec![startup.0; count], vec![0u64; count], vec![0u64; count]);
        let mut end = startup.0;
        let mut first_flow = vec![u64::MAX; self.transfers.len()];
        for (i, op) in self.ops.iter().enumerate() {
            let (pace, crossing) = costs.task(op.task);
            let awaited = &self.awaited[self.starts[i] as usize..self.starts[i + 1] as usize];
            let mut from = awaited.iter().fold(startup.0, |latest, &position| latest.max(done[position as usize]));
            let mut flow = 0;
            if op.before != NONE {
                let before = op.before as usize;
                let (previous_pace, _) = costs.task(self.ops[before].task);
                from = from.max(ready[before].saturating_add(previous_pace.software.0));
                flow = done[before].max(flows[before].saturating_add(previous_pace.spacing.0));
            }
            ready[i] = from;
            flow = flow
                .max(from.saturating_add(pace.software.0).saturating_add(op.latency.with_crossing_costs(crossing).0));
            flows[i] = flow;
            done[i] = match first_flow.get_mut(op.transfer as usize) {
                Some(first) => {
                    *first = flow.min(*first);
                    flow.saturating_add(costs.moved[op.transfer as usize])
                }
                None => flow,
            };
            end = end.max(done[i]);
        }
        for &(first, len) in &self.sequential_runs {
            let op = self.ops[first as usize];
            let spacing = costs.task(op.task).0.spacing.0;
            let all = u64::from(len) * u64::from(loops) / u64::from(template.rounds);
            let last = flows[first as usize].saturating_add(spacing.saturating_mul(all.saturating_sub(1)));
            end = end.max(last);
        }
        let first_flows = self.shortest_by_capacity(template, &first_flow);
        Times { end: Picos(end), first_flows: first_flows.into_iter().map(Picos).collect() }
    }

    /// Returns, for each capacity, the shortest of the times of the transfers that pass it; [`u64::MAX`] without a transfer.
    fn shortest_by_capacity(&self, template: &Template, by_transfer: &[u64]) -> Vec<u64> {
        let mut shortest = vec![u64::MAX; template.capacities.len()];
        for (&(route, _), &time) in self.transfers.iter().zip(by_transfer) {
            for &(resource, ..) in &template.routes[route.0 as usize].uses {
                let known = &mut shortest[resource.0 as usize];
                *known = time.min(*known);
            }
        }
        shortest
    }

    /// Returns, for each capacity, a lower bound on the time from the end of any transfer that passes it to the end of the
    /// last operation, with given costs. In calls of more loops than the template's, an operation is followed by at least
    /// the operations that follow it in the template's last loop.
    pub(super) fn tails(&self, template: &Template, costs: &ChainCosts) -> Vec<Picos> {
        let count = self.ops.len();
        // Longest paths from the end of an operation, and from its readiness and its transfer if operations of its run
        // follow it.
        let (mut after_end, mut after_start, mut after_ready) =
            (vec![0u64; count], vec![0u64; count], vec![0u64; count]);
        let mut shortest = vec![u64::MAX; self.transfers.len()];
        for (i, op) in self.ops.iter().enumerate().rev() {
            let (pace, crossing) = costs.task(op.task);
            let transfer = costs.moved.get(op.transfer as usize).copied().unwrap_or_default();
            let from_start = transfer.saturating_add(after_end[i]).max(after_start[i]);
            let until_start = pace.software.0.saturating_add(op.latency.with_crossing_costs(crossing).0);
            let from_ready = from_start.saturating_add(until_start).max(after_ready[i]);
            for &awaited in &self.awaited[self.starts[i] as usize..self.starts[i + 1] as usize] {
                let after = &mut after_end[awaited as usize];
                *after = from_ready.max(*after);
            }
            if op.before != NONE {
                let before = op.before as usize;
                let (pace, _) = costs.task(self.ops[before].task);
                after_end[before] = after_end[before].max(from_start);
                after_start[before] = after_start[before].max(pace.spacing.0.saturating_add(from_start));
                after_ready[before] = after_ready[before].max(pace.software.0.saturating_add(from_ready));
            }
            if let Some(shortest) = shortest.get_mut(op.transfer as usize) {
                *shortest = after_end[i].min(*shortest);
            }
        }
        let tails = self.shortest_by_capacity(template, &shortest);
        tails.into_iter().map(|tail| if tail == u64::MAX { Picos::ZERO } else { Picos(tail) }).collect()
    }

    /// Returns a lower bound on the duration of each entry of `transfers`, in picoseconds.
    fn durations(&self, system: &System, works: &[Work]) -> Vec<u64> {
        let duration = |&(route, work): &(RouteId, u32)| {
            let (work, rate) = (works.get(work as usize).copied().unwrap_or_default(), system.unshared(route));
            if rate == Rate::UNLIMITED {
                0
            } else {
                match u64::try_from(work.0) {
                    Ok(work) => work / rate.0.max(1),
                    Err(_) => u64::try_from(work.0 / u128::from(rate.0.max(1))).unwrap_or(u64::MAX),
                }
            }
        };
        self.transfers.iter().map(duration).collect()
    }
}

/// Returns the index of the operation that operation `index` waits for by an edge, if there is one.
fn target(workload: &Workload, edge: Edge, index: u32) -> Option<u32> {
    edge.target(index, workload.runs[edge.run as usize].len)
}

/// Returns all operations (run, index) in topological order; `None` if there is a dependency cycle.
fn topological_order(workload: &Workload, first: &[u32], count: usize) -> Option<Vec<(u32, u32)>> {
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum State {
        New,
        Begun,
        Done,
    }
    let mut state = vec![State::New; count];
    let mut order = Vec::with_capacity(count);
    let mut stack: Vec<(u32, u32)> = Vec::new();
    for run in 0..workload.runs.len() as u32 {
        for index in 0..workload.runs[run as usize].len {
            stack.push((run, index));
            while let Some(&(run, index)) = stack.last() {
                let node = (first[run as usize] + index) as usize;
                match state[node] {
                    State::New => {
                        state[node] = State::Begun;
                        for edge in workload.run_waits(run) {
                            let Some(awaited) = target(workload, *edge, index) else { continue };
                            match state[(first[edge.run as usize] + awaited) as usize] {
                                State::New => stack.push((edge.run, awaited)),
                                State::Begun => return None,
                                State::Done => {}
                            }
                        }
                    }
                    State::Begun => {
                        state[node] = State::Done;
                        order.push((run, index));
                        stack.pop();
                    }
                    State::Done => {
                        stack.pop();
                    }
                }
            }
        }
    }
    Some(order)
}
