//! Whether results are right, and how long calls take: a host thread for each GPU, nccl-tests' way.
//!
//! Calls are enqueued one after the other; the time of many, between events of each GPU's own stream, over their number is the
//! time of one, and of the GPUs the slowest counts. That is taken several times, and the median told. From a CUDA graph the
//! same calls are captured once and launched together. Single calls are timed from graphs of one call each.

use std::ops::Range;

use fabricast_topologies::Picos;
use serde::{Deserialize, Serialize};

use crate::cuda::{Event, Graph, Member, Stream, Watchdog, team};

use super::contents::{Met, Noted};
use super::{Buffers, Contents, ExecuteError, Executor, Job, Stage};

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effort {
    /// Calls before any is timed.
    pub warm: u32,
    /// Calls that are timed together.
    pub calls: u32,
    /// How often.
    pub trials: u32,
    /// Single calls; 0: none.
    pub singles: u32,
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// A call on a stream: the median of the trials.
    pub stream: Picos,
    /// A call of a graph: the median of the trials.
    pub graph: Picos,
    /// The trials from graphs, in order.
    pub trials: Vec<Picos>,
    /// Of single calls from graphs the time that 99 % stay below.
    pub p99: Option<Picos>,
}

/// Fills fresh, runs, compares, as often as asked, each time after `back_to_back` calls.
///
/// # Errors
/// A wrong result, a hang, or a failing call.
pub fn check(
    stage: &Stage,
    buffers: &Buffers,
    job: &Job,
    executor: &dyn Executor,
    watchdog: &Watchdog,
    rounds: &[u32],
    seed: u64,
) -> Result<(), ExecuteError> {
    team::run(stage.contexts(), watchdog, |member: &Member<'_>| {
        check_one(member, stage.ranks_of(member.rank), buffers, job, executor, rounds, seed)
    })
    .map(|_: Vec<()>| ())
}

/// What one member does of a [`check`]: its ranks' buffers, and its calls.
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
        member.meet()?;
        // In place a second call would begin with the first one's result.
        let calls = if job.in_place() { 1 } else { calls };
        for _ in 0..calls {
            executor.enqueue(member.rank, &stream)?;
        }
        wait(member, &stream, executor)?;
        // Where another rank hangs this one's result is its consequence.
        member.meet()?;
        for rank in ranks.clone() {
            contents.check(rank, seed, &stream)?;
        }
        member.meet()?;
    }
    Ok(())
}

/// Runs so many calls one after the other, each with fresh contents that are filled in and compared on the GPU's stream: the
/// host waits at the end only, and ranks are as far ahead of each other as they like.
///
/// # Errors
/// A wrong result, a hang, or a failing call.
pub fn streak(
    stage: &Stage,
    buffers: &Buffers,
    job: &Job,
    executor: &dyn Executor,
    watchdog: &Watchdog,
    calls: u32,
    seed: u64,
) -> Result<(), ExecuteError> {
    team::run(stage.contexts(), watchdog, |member: &Member<'_>| {
        streak_one(member, stage.ranks_of(member.rank), buffers, job, executor, calls, seed)
    })
    .map(|_: Vec<()>| ())
}

/// What one member does of a [`streak`].
pub(super) fn streak_one(
    member: &Member<'_>,
    ranks: Range<usize>,
    buffers: &Buffers,
    job: &Job,
    executor: &dyn Executor,
    calls: u32,
    seed: u64,
) -> Result<(), ExecuteError> {
    /// Calls that are enqueued before the host looks whether all is well.
    const AT_ONCE: u32 = 100;
    let stream = Stream::new(member.context)?;
    let contents = Contents::new(member.context, &stream, job, buffers)?;
    contents.forget(&stream)?;
    wait(member, &stream, executor)?;
    member.meet()?;
    let seed_of = |call: u32| seed.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(call) + 1));
    for call in 0..calls {
        for rank in ranks.clone() {
            contents.prepare(rank, seed_of(call), &stream)?;
        }
        executor.enqueue(member.rank, &stream)?;
        for rank in ranks.clone() {
            contents.compare(rank, seed_of(call), &stream)?;
        }
        if (call + 1) % AT_ONCE == 0 {
            wait(member, &stream, executor)?;
        }
    }
    wait(member, &stream, executor)?;
    if let Some(Noted { count, met: Met { index, found, expected, seed }, .. }) = contents.wrong(&stream)? {
        let call = (0..calls).find(|&call| seed_of(call) == seed).unwrap_or(calls);
        return Err(ExecuteError::WrongAmong { rank: member.rank, calls, call, index, count, found, expected });
    }
    Ok(member.meet()?)
}

fn wait(member: &Member<'_>, stream: &Stream, executor: &dyn Executor) -> Result<(), ExecuteError> {
    let waited = member.watchdog.wait_for(stream, &|| executor.waiting(member.rank));
    let lost = executor.lost();
    if lost.is_empty() { Ok(waited?) } else { Err(ExecuteError::Lost(lost)) }
}

/// Takes times.
///
/// # Errors
/// A hang, or a failing call.
pub fn measure(
    stage: &Stage,
    executor: &dyn Executor,
    watchdog: &Watchdog,
    effort: Effort,
) -> Result<Times, ExecuteError> {
    team::run(stage.contexts(), watchdog, |member| measure_one(member, executor, effort)).map(|all| Times::of(&all))
}

impl Times {
    /// Of every trial the slowest member's time counts.
    pub(super) fn of(by_member: &[Raw]) -> Self {
        let slowest = |of: fn(&Raw) -> &Vec<Picos>| -> Vec<Picos> {
            let count = by_member.iter().map(|raw| of(raw).len()).min().unwrap_or(0);
            (0..count).filter_map(|i| by_member.iter().filter_map(|raw| of(raw).get(i)).max().copied()).collect()
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

/// What one member measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Raw {
    stream: Vec<Picos>,
    graph: Vec<Picos>,
    singles: Vec<Picos>,
}

fn quantile(mut values: Vec<Picos>, part: f64) -> Option<Picos> {
    values.sort_unstable();
    let last = values.len().checked_sub(1)?;
    values.get((last as f64 * part).round() as usize).copied()
}

/// What one member does of a [`measure`].
#[expect(unsafe_code, reason = "captures graphs")]
pub(super) fn measure_one(member: &Member<'_>, executor: &dyn Executor, effort: Effort) -> Result<Raw, ExecuteError> {
    let stream = Stream::new(member.context)?;
    let (start, end) = (Event::timing(member.context)?, Event::timing(member.context)?);
    let mut raw = Raw::default();
    let calls = effort.calls.max(1);
    let timed = |enqueue: &dyn Fn() -> Result<(), ExecuteError>, over: u32| -> Result<Picos, ExecuteError> {
        member.meet()?;
        stream.record(&start)?;
        enqueue()?;
        stream.record(&end)?;
        wait(member, &stream, executor)?;
        Ok(Picos(end.since(&start)?.0 / u64::from(over.max(1))))
    };
    let many = || (0..calls).try_for_each(|_| executor.enqueue(member.rank, &stream));
    let warm = || (0..effort.warm).try_for_each(|_| executor.enqueue(member.rank, &stream));
    timed(&warm, effort.warm)?;
    for _ in 0..effort.trials.div_ceil(2) {
        raw.stream.push(timed(&many, calls)?);
    }
    // SAFETY: executors own or borrow the memory of their calls as long as they live (`Executor`).
    let graph = unsafe { Graph::capture(&stream, &many) }?;
    graph.upload(&stream)?;
    let launched = || Ok(graph.launch(&stream)?);
    timed(&launched, calls)?;
    for _ in 0..effort.trials {
        raw.graph.push(timed(&launched, calls)?);
    }
    if effort.singles > 0 {
        let call = || executor.enqueue(member.rank, &stream);
        // SAFETY: as above.
        let one = unsafe { Graph::capture(&stream, &call) }?;
        one.upload(&stream)?;
        let count = effort.singles as usize + 1;
        let events = (0..count).map(|_| Event::timing(member.context)).collect::<Result<Vec<_>, _>>()?;
        member.meet()?;
        for (i, event) in events.iter().enumerate() {
            if i > 0 {
                one.launch(&stream)?;
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
    member.meet()?;
    Ok(raw)
}
