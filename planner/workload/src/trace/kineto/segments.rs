//! Computation of a timeline in segments, which start where something else may delay the GPU.

use std::collections::{BTreeMap, BTreeSet};

use super::items::{Item, Streams, Waits};
use super::recording::Nanos;

/// Start of a segment at an operation: its launch, and the calls that it waits for.
#[derive(Debug, Default)]
pub(super) struct SegmentStart {
    pub launch: Option<Nanos>,
    pub calls: Vec<usize>,
}

/// Finds the operations at which segments start. `cuts`: ends of computation that calls or the host wait for.
pub(super) fn segment_starts(
    computing: &[Item],
    waits: &Waits,
    streams: &Streams,
    communicating: &[Item],
    cuts: &BTreeSet<Nanos>,
) -> BTreeMap<Nanos, SegmentStart> {
    let mut starts: BTreeMap<Nanos, SegmentStart> = BTreeMap::new();
    let (mut busy_until, mut slack, mut checked) = (Nanos::MIN, Nanos::MAX, Nanos::MIN);
    for (number, item) in computing.iter().enumerate() {
        let waiting = waits.by_operation.get(&number).map(Vec::as_slice).unwrap_or_default();
        let calls: BTreeSet<usize> =
            waiting.iter().flat_map(|wait| streams.ended(wait, item.start, communicating)).collect();
        let own_slack = item.launch.map(|launch| item.start - launch);
        let is_host_bound = item.launch.is_some_and(|launch| launch > busy_until && item.start > busy_until);
        let is_cut = checked < item.start && cuts.range(checked.saturating_add(1)..=item.start).next().is_some();
        if number == 0 || !calls.is_empty() || is_host_bound || is_cut || own_slack.is_some_and(|own| own < slack) {
            let start = starts.entry(item.start).or_default();
            start.launch = start.launch.max(item.launch);
            start.calls.extend(calls);
            start.calls.sort_unstable();
            start.calls.dedup();
            slack = own_slack.unwrap_or(Nanos::MAX);
        }
        busy_until = busy_until.max(item.end);
        checked = checked.max(item.start);
    }
    starts
}

/// Time in which the GPU computes, with short gaps of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub start: Nanos,
    pub end: Nanos,
}

/// Divides the union of the busy intervals at the cuts.
pub(super) fn segments(computing: &[Item], cuts: &BTreeSet<Nanos>) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut busy_until = Nanos::MIN;
    for item in computing {
        let mut start = item.start.max(busy_until);
        if item.start < busy_until && item.end <= busy_until {
            continue;
        }
        // Pieces of the operation that nothing before it covers, up to each cut.
        let inner: Vec<Nanos> =
            cuts.range(start.saturating_add(1)..item.end.max(start.saturating_add(1))).copied().collect();
        for end in inner.into_iter().chain([item.end.max(start)]) {
            match segments.last_mut() {
                Some(last) if cuts.range(last.end..=start).next().is_none() => last.end = end,
                _ => segments.push(Segment { start, end }),
            }
            start = end;
        }
        busy_until = busy_until.max(item.end);
    }
    segments
}
