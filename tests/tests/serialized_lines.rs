//! Tests of serialized operations: start and end times equal those of a tick-by-tick simulation, critical paths are
//! complete, a delay is passed on at most in full, and the order of runs and of simultaneous events has no effect.

use fabricast_sim::critical::{CriticalStep, critical_path};
use fabricast_sim::engine::{
    Edge, LinePosition, Outcome, Pace, PerOp, Recording, RouteLatency, Watch, WorkRun, Workload, run,
};
use fabricast_sim::quantity::{Rate, Work};
use fabricast_sim::sharing::{Use, WHOLE};
use fabricast_sim::spans::Spans;
use fabricast_topologies::{Bandwidth, Picos};
use proptest::collection::vec;
use proptest::prelude::*;

/// Picoseconds per tick. All times are whole ticks, and a line passes one byte per tick.
const TICK: u64 = 1000;

/// One operation; times in ticks, sizes in bytes.
#[derive(Clone, Copy, Debug)]
struct Step {
    software: u64,
    latency: u64,
    bytes: u64,
    not_before: u64,
}

/// Operations on one line, which wait for those of earlier blocks.
#[derive(Clone, Debug)]
struct Block {
    /// Index of the line, modulo the number of lines.
    line: usize,
    steps: Vec<Step>,
    /// Pairs (step, shift): step i waits for step i + shift of an earlier block, modulo the number of earlier blocks
    /// (0: the previous one).
    waits: Vec<(usize, i32)>,
}

/// Generates blocks with few distinct values, so that many events are simultaneous.
fn blocks() -> impl Strategy<Value = Vec<Block>> {
    let delay = prop_oneof![4 => Just(0u64), 1 => 1u64..12];
    let step = (0u64..3, 0u64..3, 0u64..4, delay).prop_map(|(software, latency, bytes, not_before)| Step {
        software,
        latency,
        bytes,
        not_before,
    });
    let block = (0usize..3, vec(step, 1..6), vec((0usize..6, -2i32..=1), 0..3))
        .prop_map(|(line, steps, waits)| Block { line, steps, waits });
    vec(block, 1..7)
}

/// Returns the blocks that block `number` waits for, with the shift of each.
fn dependencies(block: &Block, number: usize) -> impl Iterator<Item = (usize, i32)> + '_ {
    block
        .waits
        .iter()
        .filter(move |_| number > 0)
        .map(move |(distance, shift)| (number - 1 - distance % number, *shift))
}

/// Creates a workload in which block i is run `run_numbers[i]` and position i of its line, on `lines` lines.
fn workload(blocks: &[Block], run_numbers: &[usize], lines: usize) -> Workload {
    let mut workload = Workload::new();
    let rate = Rate::from(Bandwidth(1_000_000_000_000 / TICK));
    let ports: Vec<_> = (0..lines).map(|_| workload.system.add_resource(rate)).collect();
    let mut by_run: Vec<usize> = (0..blocks.len()).collect();
    by_run.sort_by_key(|&block| run_numbers[block]);
    for number in by_run {
        let block = &blocks[number];
        let line = block.line % lines;
        let uses = [Use { resource: ports[line], coefficient: WHOLE }];
        let route = Some(workload.system.add_route(&uses, Rate::UNLIMITED, 1));
        let (passage, work, pace) = (workload.passages.len(), workload.works.len(), workload.paces.len());
        for step in &block.steps {
            workload.passages.push(RouteLatency { route, latency: Picos(step.latency * TICK) });
            workload.works.push(Work::from_bytes(step.bytes));
            let (software, not_before) = (Picos(step.software * TICK), Picos(step.not_before * TICK));
            workload.paces.push(Pace { software, not_before, delay: not_before, spacing: Picos::ZERO });
        }
        let [passage, work, pace] = [passage, work, pace].map(|first| PerOp::Each(first as u32));
        let waits: Vec<Edge> = dependencies(block, number)
            .map(|(other, start)| Edge { run: run_numbers[other] as u32, start, step: 1 })
            .collect();
        let added = workload.add_run(WorkRun { len: block.steps.len() as u32, passage, work, pace }, &waits);
        let first = workload.lines.len() as u32;
        // All operations use one line, which is stated once or for each of them.
        let (entries, line_index) = match number % 2 {
            0 => (1, PerOp::Same(first)),
            _ => (block.steps.len(), PerOp::Each(first)),
        };
        workload.lines.extend(std::iter::repeat_n(line as u32, entries));
        workload.set_line_position(added, LinePosition { line: line_index, position: number as u32 });
    }
    workload
}

/// Returns the length of the longest dependency chain before each step.
fn levels(blocks: &[Block]) -> Vec<Vec<u32>> {
    let mut levels: Vec<Vec<u32>> = Vec::new();
    for (number, block) in blocks.iter().enumerate() {
        let level = |i: usize| {
            let before = dependencies(block, number)
                .filter_map(|(other, shift)| levels[other].get(usize::try_from(i as i32 + shift).ok()?));
            before.map(|level| level + 1).max().unwrap_or(0)
        };
        let block_levels = (0..block.steps.len()).map(level).collect();
        levels.push(block_levels);
    }
    levels
}

/// Start and end of each step's transfer, in ticks.
type Times = Vec<Vec<(u64, u64)>>;

/// Returns the times if steps pass lines in the order that they have without delays.
fn times(blocks: &[Block], lines: usize) -> Times {
    let mut undelayed = blocks.to_vec();
    undelayed.iter_mut().flat_map(|block| &mut block.steps).for_each(|step| step.not_before = 0);
    let undelayed = tick_by_tick(&undelayed, lines, None);
    tick_by_tick(blocks, lines, Some(&undelayed))
}

/// Returns the times if steps pass lines in the order of another run, or without one in order of arrival; simultaneous
/// steps are ordered by level, then block, then step.
fn tick_by_tick(blocks: &[Block], lines: usize, order: Option<&Times>) -> Times {
    let mut done: Vec<Vec<Option<(u64, u64)>>> = blocks.iter().map(|block| vec![None; block.steps.len()]).collect();
    let levels = levels(blocks);
    let all_steps: Vec<(usize, usize)> = blocks
        .iter()
        .enumerate()
        .flat_map(|(number, block)| (0..block.steps.len()).map(move |i| (number, i)))
        .collect();
    // Each value is the time until which a line is occupied.
    let mut busy_until = vec![0; lines];
    let mut tick = 0;
    while done.iter().flatten().any(Option::is_none) {
        // Returns the arrival time of a step if it has arrived by this tick.
        let arrival = |done: &[Vec<Option<(u64, u64)>>], number: usize, i: usize| {
            let block = &blocks[number];
            let mut earliest = block.steps[i].not_before;
            for (other, shift) in dependencies(block, number) {
                let predecessor = usize::try_from(i as i32 + shift).ok().and_then(|i| done[other].get(i));
                match predecessor {
                    Some(Some((_, end))) if *end <= tick => earliest = earliest.max(*end),
                    Some(_) => return None,
                    None => {}
                }
            }
            Some(earliest + block.steps[i].software + block.steps[i].latency).filter(|&time| time <= tick)
        };
        let waiting: Vec<(usize, usize)> =
            all_steps.iter().copied().filter(|&(number, i)| done[number][i].is_none()).collect();
        // Steps without bytes wait for no line; other steps may become ready immediately because of them.
        let empty = waiting.iter().filter(|&&(number, i)| blocks[number].steps[i].bytes == 0);
        if let Some(&(number, i)) = empty.into_iter().find(|&&(number, i)| arrival(&done, number, i).is_some()) {
            let time = arrival(&done, number, i).unwrap();
            done[number][i] = Some((time, time));
            continue;
        }
        for (line, busy_until) in busy_until.iter_mut().enumerate() {
            let candidates = waiting
                .iter()
                .filter(|&&(number, i)| blocks[number].line % lines == line && blocks[number].steps[i].bytes > 0);
            let next = match order {
                Some(times) => candidates.min_by_key(|&&(number, i)| times[number][i]),
                None => candidates
                    .filter_map(|step| Some((arrival(&done, step.0, step.1)?, levels[step.0][step.1], step)))
                    .min()
                    .map(|(.., step)| step),
            };
            let Some(&(number, i)) = next else { continue };
            if *busy_until <= tick && arrival(&done, number, i).is_some() {
                *busy_until = tick + blocks[number].steps[i].bytes;
                done[number][i] = Some((tick, *busy_until));
            }
        }
        tick += 1;
    }
    done.into_iter().map(|steps| steps.into_iter().flatten().collect()).collect()
}

fn run_recorded(workload: &Workload) -> Outcome {
    run(workload, Watch { recording: Recording::Spans, ..Watch::default() }).unwrap()
}

fn in_order(blocks: &[Block]) -> Vec<usize> {
    (0..blocks.len()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Lines carry one operation at a time, in the order of arrival without delays.
    #[test]
    fn lines_carry_one_operation_at_a_time(blocks in blocks(), lines in 1usize..4) {
        let workload = workload(&blocks, &in_order(&blocks), lines);
        let expected = times(&blocks, lines);
        for span in &run_recorded(&workload).spans {
            let actual = (span.flowing.0 / TICK, span.done.0 / TICK);
            prop_assert_eq!(actual, expected[span.run as usize][span.index as usize], "{:?}", span);
        }
    }

    /// A delay postpones each end by at most that delay, and advances none.
    #[test]
    fn a_delay_is_passed_on_at_most_in_full(
        blocks in blocks(),
        lines in 1usize..4,
        delayed_block in any::<prop::sample::Index>(),
        delay in 1u64..12,
    ) {
        let mut delayed = blocks.clone();
        delayed[delayed_block.index(blocks.len())].steps.iter_mut().for_each(|step| step.not_before += delay);
        let simulate = |blocks: &[Block]| run_recorded(&workload(blocks, &in_order(blocks), lines));
        let (before, after) = (simulate(&blocks), simulate(&delayed));
        for (before, after) in before.spans.iter().zip(&after.spans) {
            prop_assert_eq!((before.run, before.index), (after.run, after.index));
            prop_assert!((before.done..=before.done + Picos(delay * TICK)).contains(&after.done), "{:?} {:?}", before, after);
        }
    }

    /// Costs add up to the end, and so do the steps of the critical path, also where the path continues with the
    /// preceding operation on the line.
    #[test]
    fn critical_path_follows_lines(blocks in blocks(), lines in 1usize..4) {
        let workload = workload(&blocks, &in_order(&blocks), lines);
        let outcome = run_recorded(&workload);
        prop_assert_eq!(outcome.costs.total(), outcome.end);
        let path = critical_path(&workload, &Spans::from_workload(&workload, outcome.spans));
        let total = |part: fn(&CriticalStep) -> Picos| path.iter().map(part).sum::<Picos>();
        prop_assert_eq!(total(CriticalStep::total), outcome.end);
        prop_assert_eq!(total(|step| step.software), outcome.costs.software);
        prop_assert_eq!(total(|step| step.latency), outcome.costs.latency);
        prop_assert_eq!(total(|step| step.bandwidth), outcome.costs.bandwidth);
        // Each line has a separate port, so nothing is shared: an operation waits for the preceding one, which is on
        // the path.
        prop_assert_eq!(total(|step| step.sharing), Picos::ZERO);
    }

    /// Another order of runs changes the order of simultaneous events, but no result.
    #[test]
    fn order_of_simultaneous_events_does_not_matter_on_lines(
        blocks in blocks(),
        lines in 1usize..4,
        keys in vec(any::<u32>(), 7),
    ) {
        let mut by_key = in_order(&blocks);
        by_key.sort_by_key(|&block| keys[block]);
        let mut run_numbers = vec![0; blocks.len()];
        by_key.iter().enumerate().for_each(|(position, &block)| run_numbers[block] = position);
        let (original, reordered) =
            (run_recorded(&workload(&blocks, &in_order(&blocks), lines)), run_recorded(&workload(&blocks, &run_numbers, lines)));
        prop_assert_eq!((original.end, original.costs, original.operations), (reordered.end, reordered.costs, reordered.operations));
        let mut renumbered = reordered.spans;
        renumbered.iter_mut().for_each(|span| span.run = by_key[span.run as usize] as u32);
        renumbered.sort_unstable();
        prop_assert_eq!(original.spans, renumbered);
    }
}
