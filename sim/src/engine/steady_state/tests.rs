//! Tests that skipped periods change no result: random streams of chunks over random runs, dependencies and capacities
//! end at the same picosecond and with the same costs as if every operation is simulated.

use fabricast_topologies::Picos;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::{
    Edge, LinePosition, Outcome, Pace, PerOp, Recording, RouteLatency, SteadyStates, Watch, WorkRun, Workload, run,
};
use super::MIN_OPERATIONS;
use crate::quantity::{Rate, Work};
use crate::sharing::{ResourceId, Use, WHOLE};

/// Parameters of one random run of a stream of chunks.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Stream {
    /// Number of operations per chunk: 1 or 2.
    steps: u32,
    /// Dependencies on earlier runs: index of the awaited run (modulo the number of earlier runs), and number of
    /// operations by which the awaited operation is ahead.
    awaited: Vec<(usize, u32)>,
    /// Number of operations by which the run may be ahead of a later run that waits for it; `None`: no limit.
    pub window: Option<u32>,
    /// Largest number of concurrent operations.
    pub max_concurrent: u32,
    is_in_turn: bool,
    pub line: Option<u32>,
    /// Indexes of the capacities on the route, modulo their number.
    capacities: Vec<usize>,
    bytes: u64,
    latency: u64,
    software: u64,
    spacing: u64,
    start: u64,
    /// Number of chunks omitted at the end.
    shortened: u32,
}

pub(in crate::engine) fn streams() -> impl Strategy<Value = Vec<Stream>> {
    let stream = (
        (prop_oneof![4 => Just(1u32), 1 => Just(2u32)], vec((any::<prop::sample::Index>(), 0u32..3), 0..3)),
        (prop::option::of(2u32..9), 1u32..4, any::<bool>(), prop::option::weighted(0.3, 0u32..2)),
        (vec(0usize..5, 1..4), select(vec![0u64, 1000, 1024, 4096, 5000, 100_003]), 0u64..3_000_000),
        (0u64..100_000, 0u64..50_000, prop_oneof![3 => Just(0u64), 1 => 0u64..5_000_000], 0u32..3),
    );
    let stream = stream.prop_map(
        |(
            (steps, awaited),
            (window, max_concurrent, is_in_turn, line),
            (capacities, bytes, latency),
            (software, spacing, start, shortened),
        )| Stream {
            steps,
            awaited: awaited.into_iter().map(|(index, ahead)| (index.index(64), ahead)).collect(),
            window,
            max_concurrent,
            is_in_turn,
            line,
            capacities,
            bytes,
            latency,
            software,
            spacing,
            start,
            shortened,
        },
    );
    vec(stream, 1..8)
}

/// Builds a workload in which each stream transfers `chunks` chunks.
pub(in crate::engine) fn workload(streams: &[Stream], chunks: u32, capacities: &[u64]) -> Workload {
    let mut workload = Workload::new();
    let resources: Vec<ResourceId> =
        capacities.iter().map(|&rate| workload.system.add_resource(Rate(rate * 1_000_000_000))).collect();
    for (number, stream) in (0u32..).zip(streams) {
        let mut used: Vec<usize> = stream.capacities.iter().map(|&index| index % resources.len()).collect();
        used.sort_unstable();
        used.dedup();
        let uses: Vec<Use> =
            used.into_iter().map(|index| Use { resource: resources[index], coefficient: WHOLE }).collect();
        let route = workload.system.add_route(&uses, Rate::UNLIMITED, 1);
        let mut waits = vec![match stream.is_in_turn {
            true => Edge::turn(number),
            false => Edge { run: number, start: -(stream.max_concurrent as i32), step: 1 },
        }];
        for &(index, ahead) in stream.awaited.iter().filter(|_| number > 0) {
            let awaited = index as u32 % number;
            let steps = streams[awaited as usize].steps;
            // One operation per chunk waits for the whole chunk; with two operations per chunk, each waits for the
            // corresponding one.
            if steps >= stream.steps && steps.is_multiple_of(stream.steps) {
                let step = steps / stream.steps;
                waits.push(Edge { run: awaited, start: (ahead * step + step - 1) as i32, step });
            }
        }
        let passage = workload.passages.push(RouteLatency { route: Some(route), latency: Picos(stream.latency) });
        workload.works.push(Work::from_bytes(stream.bytes));
        let [software, spacing, not_before] = [stream.software, stream.spacing, stream.start].map(Picos);
        workload.paces.push(Pace { software, not_before, delay: Picos::ZERO, spacing });
        let run = WorkRun {
            len: chunks.saturating_sub(stream.shortened) * stream.steps,
            passage: PerOp::Same(passage),
            work: PerOp::Same(workload.works.len() as u32 - 1),
            pace: PerOp::Same(workload.paces.len() as u32 - 1),
        };
        workload.add_run(run, &waits);
        if let Some(line) = stream.line {
            workload.lines.push(line);
            let line = PerOp::Same(workload.lines.len() as u32 - 1);
            workload.set_line_position(number, LinePosition { line, position: number });
        }
    }
    add_windows(&mut workload, streams);
    workload
}

/// Adds dependencies on later runs: a run waits until the run that waits for it has received earlier chunks.
fn add_windows(workload: &mut Workload, streams: &[Stream]) {
    let mut waits: Vec<Vec<Edge>> = (0..streams.len() as u32).map(|run| workload.run_waits(run).to_vec()).collect();
    for (later, edges) in waits.clone().into_iter().enumerate() {
        for edge in edges.into_iter().filter(|edge| (edge.run as usize) < later && edge.step == 1) {
            let awaited = &streams[edge.run as usize];
            if let Some(window) = awaited.window {
                waits[edge.run as usize].push(Edge {
                    run: later as u32,
                    start: -(window as i32) - edge.start,
                    step: 1,
                });
            }
        }
    }
    replace_waits(workload, waits);
}

fn replace_waits(workload: &mut Workload, waits: Vec<Vec<Edge>>) {
    let runs = std::mem::take(&mut workload.runs);
    (workload.waits, workload.wait_starts) = (Vec::new(), vec![0]);
    for (run, edges) in runs.into_iter().zip(waits) {
        workload.add_run(run, &edges);
    }
}

/// Gives one byte to all operations of each run except the first part.
pub(in crate::engine) fn shorten_last_messages(workload: &mut Workload, part: f64) {
    for run in 0..workload.runs.len() as u32 {
        let (len, first) = (workload.runs[run as usize].len, workload.works.len() as u32);
        let full = (f64::from(len) * part) as u32;
        let work = workload.work(run, 0);
        workload.works.extend((0..len).map(|index| if index < full { work } else { Work::from_bytes(1) }));
        workload.runs[run as usize].work = PerOp::Each(first);
    }
}

/// Returns a workload without sources: their operations also wait for an operation that ends at once. The messages of
/// runs with other dependencies are prepared ahead, regardless of how many wait for their turn.
fn without_sources(workload: &Workload) -> Workload {
    let mut other = workload.clone();
    let gate = other.runs.len() as u32;
    let waits = (0..gate).map(|run| {
        let mut edges = workload.run_waits(run).to_vec();
        if edges == [Edge::turn(run)] {
            edges.push(Edge { run: gate, start: 0, step: 0 });
        }
        edges
    });
    let waits: Vec<Vec<Edge>> = waits.collect();
    other.add_uniform_run(1, RouteLatency { route: None, latency: Picos::ZERO }, Work(0), Pace::default(), &[]);
    replace_waits(&mut other, waits.into_iter().chain([Vec::new()]).collect());
    other
}

fn outcome(workload: &Workload, steady_states: SteadyStates) -> Result<Outcome, String> {
    let watch = Watch { recording: Recording::RunEnds, steady_states, ..Watch::default() };
    run(workload, watch).map_err(|error| error.to_string())
}

/// Returns the number of skipped operations, after comparing all results.
pub(in crate::engine) fn check(workload: &Workload) -> Result<u64, TestCaseError> {
    let whole = outcome(workload, SteadyStates::Simulate);
    let skipping = outcome(workload, SteadyStates::Skip);
    let (Ok(whole), Ok(skipping)) = (&whole, &skipping) else {
        prop_assert_eq!(whole, skipping);
        return Ok(0);
    };
    prop_assert_eq!(whole.skipped, 0);
    prop_assert_eq!(whole.end, skipping.end);
    prop_assert_eq!(whole.costs, skipping.costs);
    prop_assert_eq!(whole.operations, skipping.operations);
    prop_assert_eq!(&whole.run_ends, &skipping.run_ends);
    Ok(skipping.skipped)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn skipped_periods_change_no_result(
        streams in streams(),
        chunks in 1000u32..2000,
        capacities in vec(select(vec![1u64, 2, 3, 7, 10, 25, 400]), 1..5),
    ) {
        check(&workload(&streams, chunks, &capacities))?;
    }

    /// Runs have the same ends and costs whether or not their sources are suspended. The last messages are short, so
    /// that the software of a source determines when they end.
    #[test]
    fn suspended_sources_change_no_result(
        streams in streams(),
        chunks in 1u32..2000,
        capacities in vec(select(vec![1u64, 2, 3, 7, 10, 25, 400]), 1..5),
        full in 0.3f64..1.0,
    ) {
        let mut workload = workload(&streams, chunks, &capacities);
        shorten_last_messages(&mut workload, full);
        let ahead = outcome(&without_sources(&workload), SteadyStates::Simulate);
        for steady_states in [SteadyStates::Simulate, SteadyStates::Skip] {
            let suspended = outcome(&workload, steady_states);
            let (Ok(ahead), Ok(suspended)) = (&ahead, &suspended) else {
                prop_assert_eq!(ahead.is_ok(), suspended.is_ok());
                return Ok(());
            };
            prop_assert_eq!((ahead.end, ahead.costs), (suspended.end, suspended.costs));
            prop_assert_eq!(&ahead.run_ends[..workload.runs.len()], &suspended.run_ends[..]);
        }
    }
}

/// Most operations are skipped in a stream of messages that are prepared much faster than they are sent, and of which
/// another stream on the same capacity sends each.
#[test]
fn most_messages_of_a_source_are_skipped() {
    let stream = |awaited: Option<usize>| Stream {
        steps: 1,
        awaited: awaited.into_iter().map(|index| (index, 0)).collect(),
        window: None,
        max_concurrent: 1,
        is_in_turn: true,
        line: None,
        capacities: vec![0],
        bytes: 100_003,
        latency: 700_000,
        software: 2_000_000,
        spacing: 0,
        start: 0,
        shortened: 0,
    };
    let mut workload = workload(&[stream(None), stream(Some(0))], 10_000, &[25]);
    let skipped = check(&workload).unwrap();
    let operations = workload.operation_count();
    assert!(skipped * 10 > operations * 9, "{skipped} of {operations} operations");
    // The software of the short messages at the end is over when they start.
    shorten_last_messages(&mut workload, 0.5);
    assert!(check(&workload).unwrap() * 10 > operations * 4);
}

/// Most operations are skipped in a chain of three runs with back pressure. The second run is the slowest; the others
/// share a capacity.
#[test]
fn most_operations_of_a_stream_are_skipped() {
    let stream = |awaited: Option<usize>, capacity: usize| Stream {
        steps: 1,
        awaited: awaited.into_iter().map(|index| (index, 0)).collect(),
        window: Some(4),
        max_concurrent: 1,
        is_in_turn: false,
        line: None,
        capacities: vec![capacity],
        bytes: 100_003,
        latency: 700_000,
        software: 1_234,
        spacing: 0,
        start: 0,
        shortened: 0,
    };
    let chain = [stream(None, 0), stream(Some(0), 1), stream(Some(1), 0)];
    let chunks = 10_000;
    let workload = workload(&chain, chunks, &[25, 3]);
    let skipped = check(&workload).unwrap();
    let operations = workload.operation_count();
    assert!(operations > MIN_OPERATIONS && skipped * 10 > operations * 9, "{skipped} of {operations} operations");
}
