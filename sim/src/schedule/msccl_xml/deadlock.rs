//! Deadlock check for thread blocks that execute their steps in sequence.

/// Placeholder for a missing thread block number.
const NONE: u32 = u32::MAX;

/// Returns true if every thread block completes. `first_steps` has the first step of each block; steps are numbered
/// block by block. Each block advances until a step waits for an unfinished step, and resumes when that step is done.
///
/// # Complexity
/// Linear in steps and dependencies.
pub(super) fn all_blocks_complete<I: Iterator<Item = u32>>(
    first_steps: &[u32],
    steps: u32,
    waits_for: impl Fn(u32) -> I,
) -> bool {
    let mut next = first_steps.to_vec();
    let ends: Vec<u32> = first_steps.iter().skip(1).copied().chain([steps]).collect();
    let mut block_of_step = Vec::with_capacity(steps as usize);
    for ((&first, &end), block) in first_steps.iter().zip(&ends).zip(0u32..) {
        block_of_step.extend(std::iter::repeat_n(block, (end - first) as usize));
    }
    // The thread block that waits for each step, and for each block the next one that waits for the same step.
    let mut waiting = vec![NONE; steps as usize];
    let mut next_waiting = vec![NONE; first_steps.len()];
    let mut ready: Vec<u32> = (0..first_steps.len() as u32).collect();
    while let Some(block) = ready.pop() {
        while next[block as usize] < ends[block as usize] {
            let step = next[block as usize];
            if let Some(on) = waits_for(step).find(|&on| next[block_of_step[on as usize] as usize] <= on) {
                next_waiting[block as usize] = std::mem::replace(&mut waiting[on as usize], block);
                break;
            }
            next[block as usize] = step + 1;
            let mut resumed = std::mem::replace(&mut waiting[step as usize], NONE);
            while resumed != NONE {
                ready.push(resumed);
                resumed = next_waiting[resumed as usize];
            }
        }
    }
    next == ends || first_steps.is_empty()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::schedule::order::Graph;
    use crate::schedule::precedence::wait_only_schedule;

    proptest! {
        /// All blocks complete if and only if the graph of the same steps has a topological order.
        #[test]
        fn blocks_complete_unless_steps_form_a_cycle(
            lengths in prop::collection::vec(0u32..5, 1..6),
            edges in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..12),
            forward in any::<bool>(),
        ) {
            let mut first_steps = Vec::new();
            let mut steps = 0;
            for length in lengths {
                first_steps.push(steps);
                steps += length;
            }
            let mut after = vec![Vec::new(); steps as usize];
            for (step, on) in edges.iter().filter(|_| steps > 0) {
                let (step, on) = (step.index(steps as usize), on.index(steps as usize));
                // Half of the cases depend only on smaller numbers, so that many of them complete.
                if !forward || on < step {
                    after[step].push(on as u32);
                }
            }
            let dependencies = |step: u32| after[step as usize].iter().copied();
            let graph = wait_only_schedule((0..steps).map(|step| {
                let before = (!first_steps.contains(&step)).then(|| step - 1);
                dependencies(step).chain(before).collect::<Vec<_>>()
            }));
            prop_assert_eq!(all_blocks_complete(&first_steps, steps, dependencies), Graph::new(&graph).order().is_ok());
        }
    }
}
