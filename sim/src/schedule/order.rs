//! Dependency graph of single operations, and its topological order: each operation after its dependencies, otherwise
//! by id.

use super::{OpId, Rank, RunId, Schedule};

/// Resolved dependency of a run. Operation i waits for operation `first + start + step·i`, provided that
/// `start + step·i` lies within the run of `len` operations.
#[derive(Clone, Copy, Debug)]
struct ResolvedDependency {
    first: u32,
    len: u32,
    start: i32,
    step: u32,
    /// True if the awaited operation is executed by another rank.
    remote: bool,
}

/// Dependency cycle: each operation waits for the next one, and the last for the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cycle(pub(crate) Vec<OpId>);

/// Dependency graph of the operations of a schedule.
pub(crate) struct Graph<'a> {
    schedule: &'a Schedule,
    edges: Vec<ResolvedDependency>,
    run_by_operation: Vec<u32>,
}

/// Total order of operations, given by their ids, in which each operation follows its dependencies.
pub(crate) struct TotalOrder {
    /// Id of the operation at each position.
    pub(crate) operations: Vec<u32>,
    /// Position of each operation, by id.
    pub(crate) positions: Vec<u32>,
}

impl<'a> Graph<'a> {
    pub(crate) fn new(schedule: &'a Schedule) -> Self {
        let mut edges = Vec::with_capacity(schedule.dependencies.len());
        let mut run_by_operation = Vec::with_capacity(schedule.operation_count() as usize);
        for rank in 0..schedule.header().call.ranks {
            for run in schedule.rank_runs(Rank(rank)) {
                edges.extend(schedule.dependencies(run).iter().map(|dependency| {
                    let on = schedule.run_id(dependency.rank, dependency.run);
                    ResolvedDependency {
                        first: schedule.first_ops[on.0 as usize],
                        len: schedule.run(on).len,
                        start: dependency.start,
                        step: dependency.step,
                        remote: dependency.rank.0 != rank,
                    }
                }));
                run_by_operation.extend(std::iter::repeat_n(run.0, schedule.run(run).len as usize));
            }
        }
        Self { schedule, edges, run_by_operation }
    }

    /// Returns the run of an operation and its index in the run.
    pub(crate) fn locate(&self, op: u32) -> (RunId, u32) {
        let run = self.run_by_operation[op as usize];
        (RunId(run), op - self.schedule.first_ops[run as usize])
    }

    fn edges(&self, op: u32) -> (&[ResolvedDependency], u32) {
        let (run, index) = self.locate(op);
        let starts = &self.schedule.dependency_starts;
        (&self.edges[starts[run.0 as usize] as usize..starts[run.0 as usize + 1] as usize], index)
    }

    /// Returns the operations that an operation waits for.
    pub(crate) fn dependencies(&self, op: u32) -> impl Iterator<Item = u32> + '_ {
        let (edges, index) = self.edges(op);
        edges.iter().filter_map(move |edge| edge.target(index))
    }

    /// Returns the first dependency on another rank, which most likely delivers the data, and the first dependency on
    /// the operation's own rank.
    pub(crate) fn main_dependencies(&self, op: u32) -> [Option<u32>; 2] {
        let (edges, index) = self.edges(op);
        let (mut remote, mut local) = (None, None);
        for edge in edges {
            if let Some(target) = edge.target(index) {
                let first = if edge.remote { &mut remote } else { &mut local };
                *first = first.or(Some(target));
            }
        }
        [remote, local]
    }

    /// Returns, for every operation, the length of the longest dependency chain before it, in operations.
    pub(crate) fn levels(&self, order: &TotalOrder) -> Vec<u32> {
        let mut levels = vec![0; order.operations.len()];
        for &op in &order.operations {
            levels[op as usize] = self.dependencies(op).map(|on| levels[on as usize] + 1).max().unwrap_or(0);
        }
        levels
    }

    /// Orders the operations topologically.
    ///
    /// # Errors
    /// A dependency cycle.
    pub(crate) fn order(&self) -> Result<TotalOrder, Cycle> {
        const NEW: u32 = u32::MAX;
        const OPEN: u32 = u32::MAX - 1;
        let count = self.run_by_operation.len();
        let mut positions = vec![NEW; count];
        let mut operations = Vec::with_capacity(count);
        // Stack of the depth-first search: operations, each with its next edge to visit.
        let mut stack: Vec<(u32, u32)> = Vec::new();
        for root in 0..count as u32 {
            if positions[root as usize] != NEW {
                continue;
            }
            positions[root as usize] = OPEN;
            stack.push((root, 0));
            while let Some(top) = stack.last_mut() {
                let (edges, index) = self.edges(top.0);
                match edges.get(top.1 as usize) {
                    None => {
                        positions[top.0 as usize] = operations.len() as u32;
                        operations.push(top.0);
                        stack.pop();
                    }
                    Some(edge) => {
                        top.1 += 1;
                        if let Some(target) = edge.target(index) {
                            match positions[target as usize] {
                                NEW => {
                                    positions[target as usize] = OPEN;
                                    stack.push((target, 0));
                                }
                                OPEN => return Err(cycle(&stack, target)),
                                _ => {}
                            }
                        }
                    }
                }
            }
        }
        Ok(TotalOrder { operations, positions })
    }
}

impl ResolvedDependency {
    #[inline]
    fn target(&self, index: u32) -> Option<u32> {
        let target = i64::from(self.start) + i64::from(self.step) * i64::from(index);
        u32::try_from(target).ok().filter(|&target| target < self.len).map(|target| self.first + target)
    }
}

impl Schedule {
    /// Returns the step of every operation, by id: the number of data-moving operations before it on its longest
    /// dependency chain.
    ///
    /// # Errors
    /// The id of an operation that waits for itself.
    ///
    /// # Complexity
    /// Linear in operations and dependencies; about 16 bytes per operation.
    pub fn steps(&self) -> Result<Vec<u32>, OpId> {
        let graph = Graph::new(self);
        let order = graph.order().map_err(|cycle| cycle.0.first().copied().unwrap_or_default())?;
        let mut steps = vec![0; order.operations.len()];
        for &op in &order.operations {
            let after = |on: u32| steps[on as usize] + u32::from(self.run(graph.locate(on).0).kind.moves_data());
            steps[op as usize] = graph.dependencies(op).map(after).max().unwrap_or(0);
        }
        Ok(steps)
    }
}

/// Returns the cycle on the stack, from operation `repeated` on, rotated so that it begins with the smallest id.
fn cycle(stack: &[(u32, u32)], repeated: u32) -> Cycle {
    let mut operations: Vec<OpId> =
        stack.iter().skip_while(|frame| frame.0 != repeated).map(|frame| OpId(frame.0)).collect();
    if let Some(smallest) = operations.iter().enumerate().min_by_key(|(_, op)| **op).map(|(i, _)| i) {
        operations.rotate_left(smallest);
    }
    Cycle(operations)
}
