//! Checks of results and measurement of call times with one host thread per GPU, as in nccl-tests.
//!
//! Calls are enqueued back to back. The time of a call is the time of many calls, measured by events on each GPU's own
//! stream, divided by their number; the slowest GPU determines it. The reported time is the median of several trials.
//! For CUDA graphs, the same calls are captured once and launched as one graph. Single calls are timed from graphs of
//! one call each.

use std::ops::Range;

use fabricast_topologies::Picos;
use serde::{Deserialize, Serialize};

use crate::cuda::{Event, Graph, Member, Stream, Watchdog, team};

use super::contents::{RecordedErrors, WrongElement};
use super::{Buffers, Contents, ExecuteError, Executor, Job, Testbed};

/// Numbers of calls and trials of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effort {
    /// Number of warm-up calls.
    pub warm: u32,
    /// Number of calls per trial.
    pub calls: u32,
    /// Number of trials.
    pub trials: u32,
    /// Number of individually timed calls; 0 for none.
    pub singles: u32,
}

/// Result of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Time of a call on a stream: the median of the trials.
    pub stream: Picos,
    /// Time of a call in a graph: the median of the trials.
    pub graph: Picos,
    /// Times per call of the graph trials, in order.
    pub trials: Vec<Picos>,
    /// 99th percentile of the times of single calls from graphs; `None` if no single calls were timed.
    pub p99: Option<Picos>,
}

/// Fills the buffers, runs calls and compares the results. Each entry of `rounds` is a number of back-to-back calls
/// before a comparison. `seed`: seed of the contents.
///
/// # Errors
/// A wrong result, a hang, or a failing driver call.
pub fn check(
    testbed: &Testbed,
    buffers: &Buffers,
    job: &Job,
    executor: &dyn Executor,
    watchdog: &Watchdog,
    rounds: &[u32],
    seed: u64,
) -> Result<(), ExecuteError> {
    team::run(testbed.contexts(), watchdog, |member: &Member<'_>| {
        check_one(member, testbed.member_ranks(member.rank), buffers, job, executor, rounds, seed)
    })
    .map(|_: Vec<()>| ())
}

/// One member's part of a [`check`]: the buffers of its ranks, and its calls.
pub(super) fn check_one(
    member: &Member<'_>,
    ranks: Range<usize>,
    buffers: &Buffers,
    job: &Job,
    executor: &dyn Executor,
    rounds: &[u32],
    seed: u64,
) -> Result<(), ExecuteError> {
    let stream = Stream::new(member.context)?;
    let contents = Contents::new(member.context, &stream, job, buffers)?;
    for (round, &calls) in rounds.iter().enumerate() {
        let seed = seed.wrapping_add(0x5851_f42d_4c95_7f2d_u64.wrapping_mul(round as u64 + 1));
        for rank in ranks.clone() {
            contents.prepare(rank, seed, &stream)?;
        }
        wait(member, &stream, executor)?;
        member.barrier()?;
        // For in-place calls, a second call would begin with the result of the first one.
        let calls = if job.in_place() { 1 } else { calls };
        for _ in 0..calls {
            executor.enqueue(member.rank, &stream)?;
        }
        wait(member, &stream, executor)?;
        // If another rank hangs, an incorrect result of this rank is only a consequence.
        member.barrier()?;
        for rank in ranks.clone() {
            contents.check(rank, seed, &stream)?;
        }
        member.barrier()?;
    }
    Ok(())
}

/// Runs `calls` calls back to back, each with new contents that are filled in and compared on the GPU's stream. The
/// host waits only every 100 calls, so one rank may be several calls ahead of another. `seed`: seed of the first
/// contents.
///
/// # Errors
/// A wrong result, a hang, or a failing driver call.
pub fn check_series(
    testbed: &Testbed,
    buffers: &Buffers,
    job: &Job,
    executor: &dyn Executor,
    watchdog: &Watchdog,
    calls: u32,
    seed: u64,
) -> Result<(), ExecuteError> {
    team::run(testbed.contexts(), watchdog, |member: &Member<'_>| {
        check_member_series(member, testbed.member_ranks(member.rank), buffers, job, executor, calls, seed)
    })
    .map(|_: Vec<()>| ())
}

/// One member's part of a [`check_series`].
pub(super) fn check_member_series(
    member: &Member<'_>,
    ranks: Range<usize>,
    buffers: &Buffers,
    job: &Job,
    executor: &dyn Executor,
    calls: u32,
    seed: u64,
) -> Result<(), ExecuteError> {
    /// Number of calls enqueued between two waits of the host.
    const MAX_ENQUEUED_CALLS: u32 = 100;
    let stream = Stream::new(member.context)?;
    let contents = Contents::new(member.context, &stream, job, buffers)?;
    contents.clear_errors(&stream)?;
    wait(member, &stream, executor)?;
    member.barrier()?;
    let seed_of = |call: u32| seed.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(call) + 1));
    for call in 0..calls {
        for rank in ranks.clone() {
            contents.prepare(rank, seed_of(call), &stream)?;
        }
        executor.enqueue(member.rank, &stream)?;
        for rank in ranks.clone() {
            contents.compare(rank, seed_of(call), &stream)?;
        }
        if (call + 1) % MAX_ENQUEUED_CALLS == 0 {
            wait(member, &stream, executor)?;
        }
    }
    wait(member, &stream, executor)?;
    for rank in ranks {
        let Some(RecordedErrors { count, example, .. }) = contents.wrong(rank, &stream)? else { continue };
        let WrongElement { index, found, expected, seed } = example;
        let call = (0..calls).find(|&call| seed_of(call) == seed).unwrap_or(calls);
        return Err(ExecuteError::WrongInSeries { rank, calls, call, index, count, found, expected });
    }
    Ok(member.barrier()?)
}

fn wait(member: &Member<'_>, stream: &Stream, executor: &dyn Executor) -> Result<(), ExecuteError> {
    let waited = member.watchdog.wait_for(stream, &|| executor.waiting(member.rank));
    let lost = executor.timed_out_waits();
    if lost.is_empty() { Ok(waited?) } else { Err(ExecuteError::WaitTimeout(lost)) }
}

/// Measures the time of a call on streams, in graphs and, if requested, of single calls in graphs.
///
/// # Errors
/// A hang, or a failing driver call.
pub fn measure(
    testbed: &Testbed,
    executor: &dyn Executor,
    watchdog: &Watchdog,
    effort: Effort,
) -> Result<Times, ExecuteError> {
    team::run(testbed.contexts(), watchdog, |member| measure_one(member, executor, effort))
        .map(|times| Times::from_members(&times))
}

impl Times {
    /// Combines the measurements of all members; the slowest member determines the time of each trial.
    pub(super) fn from_members(by_member: &[MemberTimes]) -> Self {
        let slowest = |select: fn(&MemberTimes) -> &Vec<Picos>| -> Vec<Picos> {
            let count = by_member.iter().map(|raw| select(raw).len()).min().unwrap_or(0);
            (0..count).filter_map(|i| by_member.iter().filter_map(|raw| select(raw).get(i)).max().copied()).collect()
        };
        let graphs = slowest(|raw| &raw.graph);
        Self {
            stream: quantile(slowest(|raw| &raw.stream), 0.5).unwrap_or_default(),
            graph: quantile(graphs.clone(), 0.5).unwrap_or_default(),
            trials: graphs,
            p99: quantile(slowest(|raw| &raw.singles), 0.99),
        }
    }
}

/// Times measured by one member: per call of each trial on streams and in graphs, and of each single call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemberTimes {
    stream: Vec<Picos>,
    graph: Vec<Picos>,
    singles: Vec<Picos>,
}

fn quantile(mut values: Vec<Picos>, part: f64) -> Option<Picos> {
    values.sort_unstable();
    let last = values.len().checked_sub(1)?;
    values.get((last as f64 * part).round() as usize).copied()
}

/// One member's part of a [`measure`].
#[expect(unsafe_code, reason = "captures graphs")]
pub(super) fn measure_one(
    member: &Member<'_>,
    executor: &dyn Executor,
    effort: Effort,
) -> Result<MemberTimes, ExecuteError> {
    let stream = Stream::new(member.context)?;
    let (start, end) = (Event::timing(member.context)?, Event::timing(member.context)?);
    let mut raw = MemberTimes::default();
    let calls = effort.calls.max(1);
    let timed = |enqueue: &dyn Fn() -> Result<(), ExecuteError>, over: u32| -> Result<Picos, ExecuteError> {
        member.barrier()?;
        stream.record(&start)?;
        enqueue()?;
        stream.record(&end)?;
        wait(member, &stream, executor)?;
        Ok(Picos(end.since(&start)?.0 / u64::from(over.max(1))))
    };
    let enqueue_calls = || (0..calls).try_for_each(|_| executor.enqueue(member.rank, &stream));
    let warm = || (0..effort.warm).try_for_each(|_| executor.enqueue(member.rank, &stream));
    timed(&warm, effort.warm)?;
    for _ in 0..effort.trials.div_ceil(2) {
        raw.stream.push(timed(&enqueue_calls, calls)?);
    }
    // SAFETY: executors own or borrow the memory of their calls as long as they live (`Executor`).
    let graph = unsafe { Graph::capture(&stream, &enqueue_calls) }?;
    graph.upload(&stream)?;
    let launched = || Ok(graph.launch(&stream)?);
    timed(&launched, calls)?;
    for _ in 0..effort.trials {
        raw.graph.push(timed(&launched, calls)?);
    }
    if effort.singles > 0 {
        let call = || executor.enqueue(member.rank, &stream);
        // SAFETY: as above.
        let single_call = unsafe { Graph::capture(&stream, &call) }?;
        single_call.upload(&stream)?;
        let count = effort.singles as usize + 1;
        let events = (0..count).map(|_| Event::timing(member.context)).collect::<Result<Vec<_>, _>>()?;
        member.barrier()?;
        for (i, event) in events.iter().enumerate() {
            if i > 0 {
                single_call.launch(&stream)?;
            }
            stream.record(event)?;
        }
        wait(member, &stream, executor)?;
        for pair in events.windows(2) {
            if let [before, after] = pair {
                raw.singles.push(after.since(before)?);
            }
        }
    }
    member.barrier()?;
    Ok(raw)
}
