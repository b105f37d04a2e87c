//! Order in which runs can be coloured after their dependencies.

use crate::engine::{Edge, Workload};

/// Returns true if the first operation of a run waits for another run by this edge. (A loop waits for the previous
/// loop, which makes runs depend on each other, but not their first operations.)
pub(super) fn follows(run: u32, edge: Edge) -> bool {
    edge.start >= 0 && edge.run != run
}

/// Returns runs so that each comes after all runs that it waits for. Runs in a dependency cycle, and runs that wait for
/// those, are omitted. The result does not depend on the numbering of runs.
pub(super) fn topological_order(workload: &Workload) -> Vec<u32> {
    let count = workload.runs.len();
    let others =
        |run: u32| workload.run_waits(run).iter().filter(move |edge| follows(run, **edge)).map(|edge| edge.run);
    // Runs that wait for each run, in one array.
    let mut starts = vec![0u32; count + 1];
    for run in 0..count as u32 {
        for awaited in others(run) {
            starts[awaited as usize + 1] += 1;
        }
    }
    for position in 0..count {
        starts[position + 1] += starts[position];
    }
    let mut waiting = vec![0u32; starts[count] as usize];
    let mut missing = vec![0u32; count];
    for run in 0..count as u32 {
        for awaited in others(run) {
            let position = &mut starts[awaited as usize];
            waiting[*position as usize] = run;
            *position += 1;
            missing[run as usize] += 1;
        }
    }
    // After the loop, each entry is the start of the next run.
    let ends = starts;
    let mut order: Vec<u32> = (0..count as u32).filter(|&run| missing[run as usize] == 0).collect();
    let mut next = 0;
    while let Some(&run) = order.get(next) {
        next += 1;
        let start = (run as usize).checked_sub(1).map_or(0, |before| ends[before]);
        for &waits in &waiting[start as usize..ends[run as usize] as usize] {
            missing[waits as usize] -= 1;
            if missing[waits as usize] == 0 {
                order.push(waits);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Edge, Pace, RouteLatency};
    use crate::quantity::Work;
    use fabricast_topologies::Picos;

    #[test]
    fn cyclic_runs_and_their_dependents_have_no_order() {
        let mut workload = Workload::new();
        let edge = |run| Edge { run, start: 0, step: 1 };
        let last = Edge { run: 1, start: -1, step: 1 };
        // 1 waits for 2 and itself, 2 for 0; 3 and 4 for each other, 5 for 4; 0 for the operation before of 1.
        for waits in [vec![last], vec![edge(2), edge(1)], vec![edge(0)], vec![edge(4)], vec![edge(3)], vec![edge(4)]] {
            let passage = RouteLatency { route: None, latency: Picos::ZERO };
            workload.add_uniform_run(2, passage, Work(0), Pace::default(), &waits);
        }
        assert_eq!(topological_order(&workload), [0, 2, 1]);
    }
}
