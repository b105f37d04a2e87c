//! Tests of serialized operations of a run: start and end times equal the recurrence of their definition, critical
//! paths are complete, and the order of runs and of simultaneous events has no effect.

use fabricast_sim::critical::{CriticalStep, critical_path};
use fabricast_sim::engine::{
    Edge, Outcome, Pace, PerOp, Recording, RouteLatency, RunOrder, Watch, WorkRun, Workload, run, run_to_end,
};
use fabricast_sim::quantity::{Rate, Work};
use fabricast_sim::sharing::{Use, WHOLE};
use fabricast_sim::spans::Spans;
use fabricast_topologies::{Bandwidth, Picos};
use proptest::collection::vec;
use proptest::prelude::*;

/// Picoseconds that a port needs per byte. All other times are multiples of it, so that many events are simultaneous.
const PER_BYTE: u64 = 1000;

/// One operation; times in picoseconds.
#[derive(Clone, Copy, Debug)]
struct Message {
    software: u64,
    latency: u64,
    bytes: u64,
    spacing: u64,
    not_before: u64,
}

/// A run whose messages leave through one port and wait for those of earlier lines.
#[derive(Clone, Debug)]
struct Line {
    order: RunOrder,
    /// Index of the port, modulo the number of ports.
    port: usize,
    messages: Vec<Message>,
    /// Pairs (line, shift): message i waits for message i + shift of an earlier line, modulo the number of earlier
    /// lines (0: the previous one).
    waits: Vec<(usize, i32)>,
}

/// Generates a message with few distinct values, so that many events are simultaneous.
fn messages() -> impl Strategy<Value = Message> {
    let delay = prop_oneof![8 => Just(0u64), 1 => 1u64..12];
    (0u64..4, 0u64..4, 0u64..4, prop_oneof![1 => Just(0u64), 1 => 0u64..6], delay).prop_map(
        |(software, latency, bytes, spacing, delay)| Message {
            software: software * PER_BYTE,
            latency: latency * PER_BYTE,
            bytes,
            spacing: spacing * PER_BYTE,
            not_before: delay * PER_BYTE,
        },
    )
}

fn lines(orders: impl Strategy<Value = RunOrder> + Clone + 'static) -> impl Strategy<Value = Vec<Line>> {
    let line = (orders, 0usize..6, vec(messages(), 1..7), vec((0usize..6, -2i32..=1), 0..3)).prop_map(
        |(order, port, messages, waits)| {
            // Operations that are not serialized have no spacing.
            let is_serialized = order == RunOrder::InTurn;
            let messages = messages
                .into_iter()
                .map(|message| Message { spacing: if is_serialized { message.spacing } else { 0 }, ..message })
                .collect();
            Line { order, port, messages, waits }
        },
    );
    vec(line, 1..7)
}

/// Creates a workload in which line i is run `run_numbers[i]`, on `ports` ports.
fn workload(lines: &[Line], run_numbers: &[usize], ports: usize) -> Workload {
    let mut workload = Workload::new();
    let rate = Rate::from(Bandwidth(1_000_000_000_000 / PER_BYTE));
    let ports: Vec<_> = (0..ports).map(|_| workload.system.add_resource(rate)).collect();
    let mut by_run: Vec<usize> = (0..lines.len()).collect();
    by_run.sort_by_key(|&line| run_numbers[line]);
    for number in by_run {
        let line = &lines[number];
        let uses = [Use { resource: ports[line.port % ports.len()], coefficient: WHOLE }];
        let route = Some(workload.system.add_route(&uses, Rate::UNLIMITED, 1));
        let (passage, work, pace) = (workload.passages.len(), workload.works.len(), workload.paces.len());
        for message in &line.messages {
            workload.passages.push(RouteLatency { route, latency: Picos(message.latency) });
            workload.works.push(Work::from_bytes(message.bytes));
            workload.paces.push(Pace {
                software: Picos(message.software),
                not_before: Picos(message.not_before),
                delay: Picos::ZERO,
                spacing: Picos(message.spacing),
            });
        }
        let [passage, work, pace] = [passage, work, pace].map(|first| PerOp::Each(first as u32));
        let mut waits: Vec<Edge> = dependencies(line, number)
            .map(|(other, shift)| Edge { run: run_numbers[other] as u32, start: shift, step: 1 })
            .collect();
        if line.order == RunOrder::InTurn {
            waits.push(Edge::turn(run_numbers[number] as u32));
        }
        workload.add_run(WorkRun { len: line.messages.len() as u32, passage, work, pace }, &waits);
    }
    workload
}

/// Returns the lines that line `number` waits for, with the shift of each.
fn dependencies(line: &Line, number: usize) -> impl Iterator<Item = (usize, i32)> + '_ {
    line.waits.iter().filter(move |_| number > 0).map(move |(distance, shift)| (number - 1 - distance % number, *shift))
}

/// Returns start and end of each message's transfer if every line has a separate port. A message begins when its
/// dependencies are done and the software time of the previous message is over. Its transfer starts when its own
/// software time and latency are over, the previous transfer is done, and the spacing from the previous transfer's
/// first byte is over.
fn recurrence(lines: &[Line]) -> Vec<Vec<(u64, u64)>> {
    let mut all_times: Vec<Vec<(u64, u64)>> = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let mut times: Vec<(u64, u64)> = Vec::new();
        let (mut prepared, mut may_flow) = (0, 0);
        for (i, message) in line.messages.iter().enumerate() {
            let arrivals = dependencies(line, number)
                .filter_map(|(other, shift)| all_times[other].get(usize::try_from(i as i32 + shift).ok()?))
                .map(|&(_, done)| done);
            let start = arrivals.max().unwrap_or(0).max(prepared).max(message.not_before);
            prepared = start + message.software;
            let flowing = (prepared + message.latency).max(may_flow);
            let done = flowing + message.bytes * PER_BYTE;
            may_flow = done.max(flowing + message.spacing);
            times.push((flowing, done));
        }
        all_times.push(times);
    }
    all_times
}

fn run_recorded(workload: &Workload) -> Outcome {
    run(workload, Watch { recording: Recording::Spans, ..Watch::default() }).unwrap()
}

fn in_order(lines: &[Line]) -> Vec<usize> {
    (0..lines.len()).collect()
}

fn any_order() -> impl Strategy<Value = RunOrder> + Clone {
    prop_oneof![2 => Just(RunOrder::InTurn), 1 => Just(RunOrder::Free)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// On separate ports, messages start and end as the recurrence predicts.
    #[test]
    fn serialized_messages_match_the_recurrence(mut lines in lines(Just(RunOrder::InTurn))) {
        lines.iter_mut().enumerate().for_each(|(number, line)| line.port = number);
        let workload = workload(&lines, &in_order(&lines), lines.len());
        let expected = recurrence(&lines);
        let outcome = run_recorded(&workload);
        prop_assert_eq!(outcome.operations, workload.operation_count());
        for span in &outcome.spans {
            let actual = (span.flowing.0, span.done.0);
            prop_assert_eq!(actual, expected[span.run as usize][span.index as usize], "{:?}", span);
        }
    }

    /// Costs add up to the end, and so do the steps of the critical path, whatever a message waited for: an arrival,
    /// a completion, a spacing, or a preparation.
    #[test]
    fn critical_path_adds_up_to_the_end(lines in lines(any_order()), ports in 1usize..4) {
        let workload = workload(&lines, &in_order(&lines), ports);
        let outcome = run_recorded(&workload);
        prop_assert_eq!(outcome.costs.total(), outcome.end);
        let path = critical_path(&workload, &Spans::from_workload(&workload, outcome.spans));
        prop_assert_eq!(path.iter().map(CriticalStep::total).sum::<Picos>(), outcome.end);
        let total = |part: fn(&CriticalStep) -> Picos| path.iter().map(part).sum::<Picos>();
        prop_assert_eq!(total(|step| step.software), outcome.costs.software);
        prop_assert_eq!(total(|step| step.latency), outcome.costs.latency);
        prop_assert_eq!(total(|step| step.bandwidth), outcome.costs.bandwidth);
        prop_assert_eq!(total(|step| step.held_back + step.sharing), outcome.costs.waiting);
        prop_assert!(path.windows(2).all(|pair| pair[0].span.ready <= pair[1].span.ready));
    }

    /// Another order of runs changes the order of simultaneous events, but no result.
    #[test]
    fn order_of_simultaneous_events_does_not_matter(
        lines in lines(any_order()),
        ports in 1usize..4,
        keys in vec(any::<u32>(), 7),
    ) {
        let mut by_key = in_order(&lines);
        by_key.sort_by_key(|&line| keys[line]);
        let mut run_numbers = vec![0; lines.len()];
        by_key.iter().enumerate().for_each(|(position, &line)| run_numbers[line] = position);
        let (original, reordered) = (run_recorded(&workload(&lines, &in_order(&lines), ports)), run_recorded(&workload(&lines, &run_numbers, ports)));
        prop_assert_eq!((original.end, original.costs, original.operations), (reordered.end, reordered.costs, reordered.operations));
        let mut renumbered = reordered.spans;
        renumbered.iter_mut().for_each(|span| span.run = by_key[span.run as usize] as u32);
        renumbered.sort_unstable();
        prop_assert_eq!(original.spans, renumbered);
    }

    /// A chain of n ranks with k equal messages takes (n−1)(software + latency + transfer) for the first message, and
    /// for each further one the longest of transfer, software and spacing.
    #[test]
    fn chains_of_equal_messages_match_closed_form(ranks in 2usize..9, k in 1usize..20, message in messages()) {
        let message = Message { not_before: 0, ..message };
        let line = |port| Line { order: RunOrder::InTurn, port, messages: vec![message; k], waits: vec![(0, 0)] };
        let lines: Vec<Line> = (0..ranks - 1).map(line).collect();
        let chain = workload(&lines, &in_order(&lines), lines.len());
        let Message { software, latency, bytes, spacing, .. } = message;
        let transfer = bytes * PER_BYTE;
        let first = (ranks as u64 - 1) * (software + latency + transfer);
        let more = (k as u64 - 1) * transfer.max(software).max(spacing);
        prop_assert_eq!(run_to_end(&chain).unwrap().end, Picos(first + more));
    }
}
