//! Traces of PyTorch's profiler (Kineto, Chrome trace JSON) of one or of all ranks.
//!
//! | part | from |
//! |---|---|
//! | rank, number of ranks | `distributedInfo`; otherwise the number in the file's name (`rank-3`, `rank3`) |
//! | step | `ProfilerStep#N`: the common step of median time; without steps the whole trace |
//! | computation | kernels, copies and fills, joined over streams ([`timeline`]) |
//! | calls | NCCL kernels, with the arguments of their `record_param_comms` ([`calls`], [`communication`]) |
//! | dependencies | stream order, launches, stream waits, synchronizations ([`timeline`]) |
//! | ranks of a call | the n-th call of a group is the same call on all of its ranks ([`join`]) |
//!
//! Clocks of ranks are not compared: the timeline of each rank starts at 0.

mod arguments;
mod calls;
mod communication;
mod host;
mod items;
mod join;
mod node;
mod recording;
mod segments;
#[cfg(test)]
mod tests;
mod timeline;
mod window;

use std::collections::{BTreeMap, BTreeSet};

use fabricast_topologies::read::Limit;
use fabricast_topologies::{Picos, SourceLocation};

use self::calls::{CallIndex, KernelCalls};
use self::join::{Coverage, RankTimeline};
use self::recording::{Nanos, Recording};
use self::timeline::Timeline;
use self::window::Window;
use super::contents::Contents;
use super::gzip::decompress;
use super::ranks::MAX_RANKS;
use super::{MAX_EVENTS, Trace};
use crate::job::JobError;

/// Maximum number of streams with NCCL kernels.
const MAX_STREAMS: usize = 256;

/// Maximum number of groups with unknown ranks that remarks name.
const MAX_NAMED_GROUPS: usize = 16;

/// Recording of a rank, with the calls of its kernels.
struct RankRecording<'a> {
    rank: u32,
    source: &'a str,
    recording: Recording,
    calls: KernelCalls,
}

/// Reads the traces of one or more ranks, one file per rank, plain or in gzip.
///
/// # Errors
/// [`JobError`] with the file and, for invalid JSON, line and column: a damaged file, a trace without GPU operations,
/// two traces of one rank, or ranks whose calls do not match.
pub fn read_kineto(files: &[Contents]) -> Result<Trace, JobError> {
    let mut recordings: BTreeMap<u32, RankRecording<'_>> = BTreeMap::new();
    let mut remarks = Vec::new();
    let mut size = 0;
    for (source, bytes) in files {
        let recording = recording::read(&decompress(source, bytes, Limit::JSON_TRACE)?, source)?;
        let fail = |message: String| JobError::at(&SourceLocation::from_source(source), message);
        if recording.operations.is_empty() {
            let message =
                "no GPU operations: expected kernels, which torch.profiler records with ProfilerActivity.CUDA";
            return Err(fail(message.to_owned()));
        }
        let rank = match recording.distributed.rank.or_else(|| rank_in_name(source)) {
            Some(rank) => rank,
            None if files.len() == 1 => 0,
            None => return Err(fail("no rank: expected distributedInfo, or a file name as rank-3.json".to_owned())),
        };
        size = size.max(recording.distributed.world_size.unwrap_or(0)).max(rank.saturating_add(1));
        if size > MAX_RANKS {
            return Err(fail(format!("rank {rank} of {size}: expected at most {MAX_RANKS} ranks")));
        }
        let calls = calls::kernel_calls(&recording, &CallIndex::new(&recording.communication));
        let streams: BTreeSet<i64> =
            calls.by_operation.keys().filter_map(|number| stream(&recording, *number)).collect();
        if streams.len() > MAX_STREAMS {
            return Err(fail(format!("NCCL kernels on {} streams are more than {MAX_STREAMS}", streams.len())));
        }
        if let Some(other) = recordings.get(&rank) {
            return Err(fail(format!("a second trace of rank {rank}: {} is the first", other.source)));
        }
        recordings.insert(rank, RankRecording { rank, source, recording, calls });
    }
    let recordings: Vec<RankRecording<'_>> = recordings.into_values().collect();
    let greatest = recordings.iter().filter_map(RankRecording::greatest_member).max().unwrap_or(0);
    let size = size.max(greatest + 1);
    let windows = choose_windows(&recordings, &mut remarks);
    let timelines: Vec<RankTimeline<'_>> = recordings
        .iter()
        .zip(&windows)
        .map(|(one, window)| {
            let index = CallIndex::new(&one.recording.communication);
            let timeline = timeline::build(&one.recording, &one.calls, &index, *window);
            RankTimeline { rank: one.rank, source: one.source, timeline }
        })
        .collect();
    let source = files.first().map_or("", |file| file.0.as_str());
    let count: usize = timelines.iter().map(|one| one.timeline.nodes.len()).sum();
    if count > MAX_EVENTS {
        let message = format!("{count} events of the traced ranks are more than {MAX_EVENTS}");
        return Err(JobError::at(&SourceLocation::from_source(source), message));
    }
    let coverage = match timelines.as_slice() {
        [_] if size > 1 => Coverage::Representative(size),
        _ => Coverage::Recorded,
    };
    let joined = join::join(&timelines, coverage)?;
    remarks.extend(missing_ranks(&timelines, size, coverage));
    remarks.extend(gaps(&recordings, &timelines));
    remarks.extend(joined.remarks);
    let time = timelines.iter().map(|one| one.timeline.time).max().unwrap_or_default();
    let trace = Trace::new(joined.events, remarks, source)?;
    Ok(trace.with_recorded_time(Picos(u64::try_from(time).unwrap_or_default().saturating_mul(1000))))
}

fn stream(recording: &Recording, operation: usize) -> Option<i64> {
    recording.operations.get(operation).map(|operation| operation.stream)
}

impl RankRecording<'_> {
    /// Returns the greatest rank of the groups of calls.
    fn greatest_member(&self) -> Option<u32> {
        let members = self.calls.by_operation.values().flatten().filter_map(|call| match &call.kind {
            calls::CallKind::Collective(_, group) => group.iter().copied().max(),
            calls::CallKind::Send(peer) | calls::CallKind::Receive(peer) => Some(*peer),
        });
        members.max()
    }

    /// Returns what the trace of the rank lacks, with the number of times.
    fn gaps(&self, timeline: &Timeline) -> Vec<(String, usize)> {
        let keep = "they keep their recorded time as computation";
        let mut gaps = vec![
            (format!("NCCL kernels have no record_param_comms, as in CUDA graphs; {keep}"), self.calls.unrecorded),
            (
                format!("NCCL kernels have no message size (PyTorch before 2.2, or an unknown type); {keep}"),
                self.calls.unsized_calls,
            ),
            (
                "GPU operations have no launch in the trace; the host does not delay them".to_owned(),
                timeline.unlaunched,
            ),
        ];
        gaps.extend(self.calls.unknown_groups.iter().take(MAX_NAMED_GROUPS).map(|(name, count)| {
            (format!("NCCL kernels are of group `{name}`, whose ranks the trace does not list; {keep}"), *count)
        }));
        let devices = self.recording.devices.len();
        gaps.push((
            "devices have operations; they are read as one GPU".to_owned(),
            if devices > 1 { devices } else { 0 },
        ));
        gaps.retain(|(_, count)| *count > 0);
        gaps
    }
}

/// Returns what the traces lack, as one sentence for each kind of gap.
fn gaps(recordings: &[RankRecording<'_>], timelines: &[RankTimeline<'_>]) -> Vec<String> {
    let mut by_kind: BTreeMap<String, (usize, Vec<u32>)> = BTreeMap::new();
    for (one, timeline) in recordings.iter().zip(timelines) {
        for (kind, count) in one.gaps(&timeline.timeline) {
            let (total, ranks) = by_kind.entry(kind).or_default();
            *total += count;
            ranks.push(one.rank);
        }
    }
    let sentence = |(kind, (count, ranks)): (String, (usize, Vec<u32>))| {
        let word = if ranks.len() == 1 { "rank" } else { "ranks" };
        format!("{word} {}: {count} {kind}", super::ranks::format(&ranks))
    };
    by_kind.into_iter().map(sentence).collect()
}

/// Returns the ranks without a trace, as a sentence.
fn missing_ranks(timelines: &[RankTimeline<'_>], size: u32, coverage: Coverage) -> Option<String> {
    if let (Coverage::Representative(_), [one]) = (coverage, timelines) {
        let calls = one.timeline.communication as f64 / 1000.0;
        return Some(format!(
            "rank {} of {size} has a trace: the other ranks are assumed to equal it; its calls took {calls:.0} us, waits \
             for the other ranks included",
            one.rank
        ));
    }
    let recorded: BTreeSet<u32> = timelines.iter().map(|one| one.rank).collect();
    let missing: Vec<u32> = (0..size).filter(|rank| !recorded.contains(rank)).collect();
    (!missing.is_empty()).then(|| {
        let list = super::ranks::format(&missing);
        format!("ranks {list} of {size} have no trace: they are assumed to be never late")
    })
}

/// Selects the common step of median time on all ranks; the whole traces if there is no common step.
fn choose_windows(recordings: &[RankRecording<'_>], remarks: &mut Vec<String>) -> Vec<Window> {
    let mut times: BTreeMap<i64, (usize, Nanos)> = BTreeMap::new();
    for one in recordings {
        for step in &one.recording.steps {
            let (count, time) = times.entry(step.number).or_default();
            *count += 1;
            *time = (*time).max(step.end - step.start);
        }
    }
    let mut common: Vec<(Nanos, i64)> = times
        .iter()
        .filter(|(_, (count, _))| *count == recordings.len())
        .map(|(number, (_, time))| (*time, *number))
        .collect();
    common.sort_unstable();
    let Some(&(_, number)) = common.get(common.len().saturating_sub(1) / 2) else {
        if recordings.iter().any(|one| !one.recording.steps.is_empty()) {
            remarks.push("the traces have no ProfilerStep in common: they are replayed whole".to_owned());
        }
        return recordings.iter().map(|one| Window::whole(&one.recording)).collect();
    };
    if let (Some(first), Some(last)) = (times.keys().next(), times.keys().next_back())
        && first < last
    {
        remarks.push(format!(
            "ProfilerStep#{number}, of median time, is replayed; the others of #{first} to #{last} are not"
        ));
    }
    let window = |one: &RankRecording<'_>| {
        let step = one.recording.steps.iter().find(|step| step.number == number);
        step.map_or_else(
            || Window::whole(&one.recording),
            |step| Window { start: step.start, end: step.end, host_end: Some(step.end) },
        )
    };
    recordings.iter().map(window).collect()
}

/// Returns the number behind `rank` in the name of a file: `rank-3.json`, `trace_rank12.json.gz`.
fn rank_in_name(source: &str) -> Option<u32> {
    let name = source.rsplit(['/', '\\']).next().unwrap_or(source);
    let (_, tail) = name.rsplit_once("rank")?;
    let digits: String =
        tail.trim_start_matches(['-', '_', '.', '=']).chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|rank| *rank < MAX_RANKS)
}
