//! Time of a group of calls that a library runs as one kernel, as NCCL does with calls between `ncclGroupStart` and
//! `ncclGroupEnd`.
//!
//! Calls on different channels run concurrently and share the fabric. A call whose channels all have other calls before it
//! starts when the slowest of these has ended: all ranks are assumed to begin it at that time, or later if they are late. A call that has a channel of its
//! own starts with the group: a channel that it shares with the call before has only the rest of its share of the traffic. On GPUs, the
//! latency of the steps on the shared channel is added (docs/accuracy.md, "Groups of calls"), which is not modelled.
//! The launch counts once. Calls without data have no channel and take no time: NCCL discards them.
//! A block that goes on to its next call loads its work, connections and parameters again, but is not launched: that is
//! assumed to take the start-up of a call less the time of an empty kernel.

use fabricast_libraries::nccl::ChannelRange;
use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Environment;
use fabricast_sim::{LaunchMode, ScheduleInstance, SimulateError, SimulationOptions, Timeline, simulate_concurrent};
use fabricast_topologies::Picos;

/// Time of an empty kernel, on all GPUs that of an H200 in a CUDA graph: 1.29 to 1.31 µs (`fabricast gpu bench`, `launch_graph`,
/// 2 × H200, 2026-11-27).
const EMPTY_KERNEL: Picos = Picos(1_300_000);

/// A call of a group, with its schedule and channels.
#[derive(Clone, Copy)]
pub struct GroupInstance<'a> {
    /// Schedule and placement of the call.
    pub instance: ScheduleInstance<'a>,
    /// Channels of the call.
    pub channels: ChannelRange,
}

/// Simulates a group of calls in the order in which channels run them. The times of the calls in the result
/// ([`Timeline::instance_times`]) are counted from the start of the group; that of a call without channels is 0.
///
/// # Errors
/// [`SimulateError`]: no call, ranks without devices or paths, a deadlock, an interrupt.
pub fn simulate_group(
    calls: &[GroupInstance<'_>],
    mode: LaunchMode,
    options: SimulationOptions<'_>,
    watch: Watch<'_>,
) -> Result<Timeline, SimulateError> {
    let with_data: Vec<GroupInstance<'_>> = calls.iter().copied().filter(|call| call.channels.count > 0).collect();
    if with_data.is_empty() && !calls.is_empty() {
        return Ok(Timeline::without_operations(calls.len()));
    }
    let timeline = simulate_calls(&with_data, mode, options, watch)?;
    let for_all = |times: &[Picos]| -> Vec<Picos> {
        let mut times = times.iter().copied();
        let time = |call: &GroupInstance<'_>| if call.channels.count > 0 { times.next() } else { None };
        calls.iter().map(time).map(Option::unwrap_or_default).collect()
    };
    Ok(Timeline {
        instance_times: for_all(&timeline.instance_times),
        instance_ends: for_all(&timeline.instance_ends),
        ..timeline
    })
}

/// Simulates the calls of a group that have channels.
fn simulate_calls(
    calls: &[GroupInstance<'_>],
    mode: LaunchMode,
    options: SimulationOptions<'_>,
    watch: Watch<'_>,
) -> Result<Timeline, SimulateError> {
    let mut starts = vec![Picos::ZERO; calls.len()];
    let mut timeline = simulate_at(calls, &starts, mode, options, watch)?;
    // Each further simulation fixes the start of at least one more call of every chain of calls.
    for _ in 0..calls.len() {
        let next: Vec<Picos> = (0..calls.len()).map(|number| start(calls, &timeline.instance_ends, number)).collect();
        if next == starts {
            break;
        }
        starts = next;
        timeline = simulate_at(calls, &starts, mode, options, watch)?;
    }
    Ok(timeline)
}

/// Start of a call: the time from which its start-up counts, after the calls before it on its channels.
fn start(calls: &[GroupInstance<'_>], ends: &[Picos], number: usize) -> Picos {
    let Some(call) = calls.get(number) else { return Picos::ZERO };
    let earlier = || calls.iter().zip(ends).take(number).filter(|(other, _)| other.channels.overlaps(call.channels));
    let is_used = |channel| earlier().any(|(other, _)| other.channels.contains(channel));
    if !(call.channels.first..call.channels.first + call.channels.count).all(is_used) {
        return Picos::ZERO;
    }
    let Some(end) = earlier().map(|(_, &end)| end).max() else { return Picos::ZERO };
    let header = call.instance.generator.header();
    let costs = call.instance.setting.profile.protocol(header.protocol);
    let threads = header.blocks.threads.unwrap_or(costs.threads);
    let startup = costs.startup(header.call.collective, threads, header.concurrent_peers());
    Picos(end.0.saturating_sub(EMPTY_KERNEL.min(startup).0))
}

/// Simulates all calls, each of which starts at the time in `starts`.
fn simulate_at(
    calls: &[GroupInstance<'_>],
    starts: &[Picos],
    mode: LaunchMode,
    options: SimulationOptions<'_>,
    watch: Watch<'_>,
) -> Result<Timeline, SimulateError> {
    let delays: Vec<Vec<Picos>> = calls
        .iter()
        .zip(starts)
        .map(|(call, &start)| {
            let setting = call.instance.setting;
            let own = |rank: usize| setting.delays.get(rank).copied().unwrap_or_default();
            (0..setting.placement.len()).map(|rank| own(rank).max(start)).collect()
        })
        .collect();
    let instances: Vec<ScheduleInstance<'_>> = calls
        .iter()
        .zip(&delays)
        .map(|(call, delays)| ScheduleInstance {
            setting: Environment { delays, ..call.instance.setting },
            ..call.instance
        })
        .collect();
    simulate_concurrent(&instances, mode, options, watch)
}
