//! Time of a group of calls that a library runs as one kernel, as NCCL does with calls between `ncclGroupStart` and
//! `ncclGroupEnd`.
//!
//! Calls on different channels run concurrently and share the fabric. The thread block of a channel runs the calls that
//! use it one after the other (`src/device/common.h`): where two successive calls share a channel, as NCCL lets them where
//! channels do not divide evenly, the second call's part on it begins when the first call's part on it has ended. All ranks
//! are assumed to begin it at the time of the slowest, or later if they are late. The first and the last channel of a call
//! may carry less than the others ([`GroupPart`]).
//! The launch counts once. Calls without data have no channel and take no time: NCCL discards them.
//! A block that goes on to its next call loads its work, connections and parameters again, but is not launched: that is
//! assumed to take the start-up of a call less the time of an empty kernel.

use fabricast_libraries::nccl::ChannelRange;
use fabricast_sim::engine::Watch;
use fabricast_sim::{
    Folding, LaunchMode, ScheduleInstance, SimulateError, SimulationOptions, Timeline, simulate_concurrent,
};
use fabricast_topologies::Picos;

/// Time of an empty kernel, on all GPUs that of an H200 in a CUDA graph: 1.29 to 1.31 µs (`fabricast gpu bench`, `launch_graph`,
/// 2 × H200, 2026-11-27).
const EMPTY_KERNEL: Picos = Picos(1_300_000);

/// A call of a group: its parts on channels, each with a schedule; none for a call without data.
#[derive(Clone, Default)]
pub struct GroupInstance<'a> {
    /// Parts of the call.
    pub parts: Vec<GroupPart<'a>>,
}

/// Part of a call on consecutive channels with equal shares.
#[derive(Clone, Copy)]
pub struct GroupPart<'a> {
    /// Schedule and placement of the part.
    pub instance: ScheduleInstance<'a>,
    /// Channels of the part.
    pub channels: ChannelRange,
}

/// Simulates a group of calls in the order in which channels run them. The times of the calls in the result
/// ([`Timeline::instance_times`]) are counted from the start of the group; that of a call without data is 0.
///
/// # Errors
/// [`SimulateError`]: no call, ranks without devices or paths, a deadlock, an interrupt.
pub fn simulate_group(
    calls: &[GroupInstance<'_>],
    mode: LaunchMode,
    options: SimulationOptions<'_>,
    watch: Watch<'_>,
) -> Result<Timeline, SimulateError> {
    let parts: Vec<GroupPart<'_>> = calls.iter().flat_map(|call| call.parts.iter().copied()).collect();
    if parts.is_empty() && !calls.is_empty() {
        return Ok(Timeline::without_operations(calls.len()));
    }
    let timeline = simulate_parts(&parts, mode, options, watch)?;
    let of_calls = |times: &[Picos]| -> Vec<Picos> {
        let mut times = times.iter().copied();
        calls.iter().map(|call| times.by_ref().take(call.parts.len()).max().unwrap_or_default()).collect()
    };
    Ok(Timeline {
        instance_times: of_calls(&timeline.instance_times),
        instance_ends: of_calls(&timeline.instance_ends),
        channel_ends: Vec::new(),
        ..timeline
    })
}

/// Largest number of simulations of a group, for each of its parts. A part that starts later leaves more bandwidth to those
/// before it, so that their ends move slightly from one simulation to the next.
const MAX_PASSES: usize = 2;

/// Simulates the parts of all calls of a group.
fn simulate_parts(
    parts: &[GroupPart<'_>],
    mode: LaunchMode,
    options: SimulationOptions<'_>,
    watch: Watch<'_>,
) -> Result<Timeline, SimulateError> {
    // Groups of channels that are equal within a call differ if some of them have a call before it.
    let folding = if options.folding == Folding::GroupsFirst { Folding::WhereProved } else { options.folding };
    let options = SimulationOptions { folding, ..options };
    let mut starts: Vec<Vec<Picos>> = vec![Vec::new(); parts.len()];
    let mut timeline = simulate_at(parts, &starts, mode, options, watch)?;
    // Each further simulation fixes the start of at least one more part of every chain of parts.
    for _ in 0..MAX_PASSES * parts.len() {
        let next: Vec<Vec<Picos>> =
            (0..parts.len()).map(|number| channel_starts(parts, &timeline.channel_ends, number)).collect();
        if next == starts {
            break;
        }
        starts = next;
        timeline = simulate_at(parts, &starts, mode, options, watch)?;
    }
    Ok(timeline)
}

/// Starts of the channels of a part: the times from which its start-up counts, after the calls before it. Empty if none of
/// its channels has a call before it.
fn channel_starts(parts: &[GroupPart<'_>], ends: &[Vec<Picos>], number: usize) -> Vec<Picos> {
    let Some(part) = parts.get(number) else { return Vec::new() };
    let header = part.instance.generator.header();
    let costs = part.instance.setting.profile.protocol(header.protocol);
    let threads = header.blocks.threads.unwrap_or(costs.threads);
    let startup = costs.startup(header.call.collective, threads, header.concurrent_peers());
    let launched = EMPTY_KERNEL.min(startup);
    let start = |channel: u16| {
        let earlier = parts.iter().zip(ends).take(number).filter(|(other, _)| other.channels.contains(channel));
        let end = earlier.filter_map(|(other, ends)| ends.get(usize::from(channel - other.channels.first)).copied());
        Picos(end.max().unwrap_or_default().0.saturating_sub(launched.0))
    };
    let starts: Vec<Picos> = (part.channels.first..part.channels.first + part.channels.count).map(start).collect();
    if starts.iter().all(|&start| start == Picos::ZERO) { Vec::new() } else { starts }
}

/// Simulates all parts, the channels of each of which start no earlier than at the times in `starts`.
fn simulate_at(
    parts: &[GroupPart<'_>],
    starts: &[Vec<Picos>],
    mode: LaunchMode,
    options: SimulationOptions<'_>,
    watch: Watch<'_>,
) -> Result<Timeline, SimulateError> {
    let instances: Vec<ScheduleInstance<'_>> = parts
        .iter()
        .zip(starts)
        .map(|(part, channel_starts)| ScheduleInstance { channel_starts, ..part.instance })
        .collect();
    simulate_concurrent(&instances, mode, options, watch)
}
