//! Assignment of spans to threads, and merging of adjacent spans.

use std::collections::BTreeMap;
use std::io;

use fabricast_sim::schedule::{Channel, Rank};
use fabricast_topologies::Picos;

use super::event::{Events, MergedSpan};
use super::lines::EventSink;
use super::{Arrows, TraceNames, TraceSpan, TraceSummary};

/// Number of consecutive thread ids reserved for a channel. The first id of a channel is its number multiplied by this
/// constant.
const THREADS: u32 = 1 << 12;

/// First id of the threads that exceed their channel's [`THREADS`]. It is above the ids of all channels.
const FIRST_EXTRA_ID: u32 = (u16::MAX as u32 + 1) * THREADS;

/// Number of threads per channel while adjacent spans are merged. Spans that overlap in more threads are merged, too.
const MAX_THREADS: usize = 4;

/// Writes all spans; up to `joined` adjacent spans of a thread are merged into one.
///
/// # Errors
/// Errors of the writer.
pub(super) fn write<'a>(
    spans: impl Iterator<Item = TraceSpan<'a>>,
    joined: u32,
    names: &TraceNames<'_>,
    lines: &mut impl EventSink,
) -> io::Result<TraceSummary> {
    let mut events = Events::new(lines, names);
    let most_threads = if joined > 1 { MAX_THREADS } else { usize::MAX };
    let mut lanes =
        ChannelTracks { lanes: BTreeMap::new(), joined, max_threads: most_threads, next_extra_id: FIRST_EXTRA_ID };
    let mut summary = TraceSummary::default();
    for span in spans {
        summary.spans += 1;
        summary.ranks = summary.ranks.max(span.rank.0.saturating_add(1));
        // The other end of an arrow may be in a merged span.
        let span = if joined > 1 { TraceSpan { arrows: Arrows::default(), ..span } } else { span };
        lanes.add(span, &mut events)?;
    }
    lanes.finish(&mut events)?;
    Ok(summary)
}

/// Threads of each channel of each rank.
struct ChannelTracks<'a> {
    lanes: BTreeMap<(Rank, Channel), Vec<Thread<'a>>>,
    joined: u32,
    max_threads: usize,
    /// Id of the next thread that exceeds its channel's [`THREADS`].
    next_extra_id: u32,
}

/// Thread of a channel, with its spans that are not written yet.
struct Thread<'a> {
    id: u32,
    /// Latest end of the spans of this thread so far.
    end: Picos,
    waiting: Option<PendingSpans<'a>>,
}

struct PendingSpans<'a> {
    first: TraceSpan<'a>,
    count: u32,
    same_name: bool,
    end: Picos,
    busy: Picos,
}

impl<'a> ChannelTracks<'a> {
    fn add<L: EventSink>(&mut self, span: TraceSpan<'a>, events: &mut Events<'_, L>) -> io::Result<()> {
        let (rank, channel) = (span.rank, span.channel);
        // The channels of a rank may occur in any order, so any channel of the rank is looked up.
        let ranks_channels = (rank, Channel(0))..=(rank, Channel(u16::MAX));
        if self.lanes.range(ranks_channels).next().is_none() {
            let is_first = self.lanes.is_empty();
            events.rank(rank)?;
            if is_first {
                events.label(rank)?;
            }
        }
        let threads = self.lanes.entry((rank, channel)).or_default();
        let free = threads.iter().position(|thread| thread.end <= span.start).unwrap_or(threads.len());
        let number = free.min(self.max_threads - 1);
        if number == threads.len() {
            let id = match u32::try_from(number).ok().filter(|number| *number < THREADS) {
                Some(number) => u32::from(channel.0) * THREADS + number,
                None => {
                    self.next_extra_id += 1;
                    self.next_extra_id - 1
                }
            };
            events.thread(rank, channel, number, id)?;
            threads.push(Thread { id, end: Picos::ZERO, waiting: None });
        }
        let Some(thread) = threads.get_mut(number) else { return Ok(()) };
        let is_full = thread.waiting.as_ref().is_some_and(|waiting| waiting.count >= self.joined);
        if is_full && thread.end <= span.start {
            thread.flush(events)?;
        }
        thread.end = thread.end.max(span.end);
        match &mut thread.waiting {
            Some(waiting) => waiting.take(&span),
            None => thread.waiting = Some(PendingSpans::new(span)),
        }
        Ok(())
    }

    fn finish<L: EventSink>(&mut self, events: &mut Events<'_, L>) -> io::Result<()> {
        for thread in self.lanes.values_mut().flatten() {
            thread.flush(events)?;
        }
        Ok(())
    }
}

impl Thread<'_> {
    fn flush<L: EventSink>(&mut self, events: &mut Events<'_, L>) -> io::Result<()> {
        let Some(waiting) = self.waiting.take() else { return Ok(()) };
        if waiting.count == 1 {
            return events.span(self.id, &waiting.first);
        }
        let merged = MergedSpan {
            count: waiting.count,
            name: waiting.same_name.then_some(&*waiting.first.name),
            start: waiting.first.start,
            end: waiting.end,
            busy: waiting.busy,
        };
        events.joined(waiting.first.rank.0, self.id, &merged)
    }
}

impl<'a> PendingSpans<'a> {
    fn new(first: TraceSpan<'a>) -> Self {
        let busy = first.end - first.start;
        Self { count: 1, same_name: true, end: first.end, busy, first }
    }

    fn take(&mut self, span: &TraceSpan<'a>) {
        self.count += 1;
        self.same_name &= self.first.name == span.name;
        self.end = self.end.max(span.end);
        self.busy += span.end - span.start;
    }
}
