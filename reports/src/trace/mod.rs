//! Spans as Chrome trace JSON, which Perfetto (ui.perfetto.dev) and `chrome://tracing` open.
//!
//! A rank is a process, and a channel, or a track of a job, is a thread of that process. Overlapping spans of a channel
//! (for example a transfer that is in transit while the next is prepared) are assigned to additional threads, since
//! viewers show only nested spans. Arrows connect a span with those that wait for it, unless spans are merged. Facts about
//! the run, such as its fabric, are the metadata of the file (`otherData`) and the label of its first process. Times are picoseconds, written as exact
//! decimals of a microsecond, which is the unit of the format.
//!
//! Viewers fail on files of hundreds of megabytes, so a trace has a size budget. If it is exceeded, adjacent spans of a
//! thread are merged, as many at a time as needed, and labelled as merged; spans that overlap in more than a few
//! threads are then merged as well.
//!
//! Source of the format: "Trace Event Format", the JSON object form with complete (`X`), counter (`C`), flow (`s`, `f`)
//! and metadata (`M`) events.

mod event;
mod join;
mod lines;

use std::borrow::Cow;
use std::io::{self, Write};

use fabricast_sim::schedule::{Channel, Rank};
use fabricast_topologies::visible::visible_in_strings;
use fabricast_topologies::{Bytes, Picos};

use lines::{LineSorter, SizeCounter};

/// Activity of a channel of a rank.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSpan<'a> {
    /// Rank of the activity, which is a process of the trace.
    pub rank: Rank,
    /// Channel of the activity, which is a thread of the process.
    pub channel: Channel,
    /// Name of the activity, such as `put 3 → 4`.
    pub name: Cow<'a, str>,
    /// Start of the activity.
    pub start: Picos,
    /// End of the activity; not before the start.
    pub end: Picos,
    /// Named details, which a viewer shows when the span is selected.
    pub arguments: Vec<(&'a str, Argument<'a>)>,
    /// Arrows to and from other activities.
    pub arrows: Arrows,
}

/// Arrows that end and begin at a span, by their numbers. Each number belongs to one pair of spans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrows {
    /// Arrows from spans that this span waits for.
    pub incoming: Vec<u32>,
    /// Arrows to spans that wait for this span.
    pub outgoing: Vec<u32>,
}

/// Names of the parts of a trace.
pub struct TraceNames<'a> {
    /// Name of the process of a rank.
    pub process: &'a dyn Fn(Rank) -> String,
    /// Name of the thread of a channel of a rank.
    pub thread: &'a dyn Fn(Rank, Channel) -> String,
    /// Category and name of arrows.
    pub arrow: &'a str,
    /// Facts about the run: name and value.
    pub metadata: Vec<(&'a str, String)>,
}

impl<'a> TraceNames<'a> {
    /// Names of the trace of a schedule, whose arrows are the critical path.
    #[must_use]
    pub fn schedule(metadata: Vec<(&'a str, String)>) -> Self {
        Self {
            process: &|rank| format!("rank {}", rank.0),
            thread: &|_, channel| format!("channel {}", channel.0),
            arrow: "critical path",
            metadata,
        }
    }

    /// Returns the beginning of the file.
    fn head(&self) -> io::Result<Vec<u8>> {
        let mut head = br#"{"displayTimeUnit":"ns","#.to_vec();
        if !self.metadata.is_empty() {
            let facts: serde_json::Map<String, serde_json::Value> =
                self.metadata.iter().map(|(name, value)| ((*name).to_owned(), value.as_str().into())).collect();
            head.extend_from_slice(br#""otherData":"#);
            head.extend_from_slice(visible_in_strings(&serde_json::to_string(&facts)?).as_bytes());
            head.push(b',');
        }
        head.extend_from_slice(br#""traceEvents":["#);
        Ok(head)
    }

    /// Returns the label of the first process: the values of the facts.
    fn label(&self) -> String {
        self.metadata.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// Detail of a span.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument<'a> {
    /// Number, such as an operation, a chunk, a peer or bytes.
    Number(u64),
    /// Time, written in microseconds.
    Time(Picos),
    /// Text, such as a list of chunks.
    Text(Cow<'a, str>),
}

/// Statistics of a written trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceStats {
    /// Size of the written trace.
    pub bytes: Bytes,
    /// Number of spans before merging.
    pub spans: u64,
    /// Maximum number of adjacent spans of a thread that are merged into one; 1 if none are merged.
    pub joined: u32,
}

/// Default size budget of a trace. Perfetto opens such a file within seconds.
pub const BUDGET: Bytes = Bytes(50_000_000);

/// Utilization over time, shown as a graph above the ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter<'a> {
    /// Name of the graph, such as `gpu0->nvswitch0`.
    pub name: Cow<'a, str>,
    /// Duration of one time slice.
    pub slice: Picos,
    /// Used fraction in each slice from time 0, 0 to 1.
    pub values: &'a [f64],
}

/// Writes a trace of at most `budget` bytes, and merges adjacent spans if needed. A trace that cannot meet the budget
/// has one span per thread, and its counters. Events are in order of time, after the names of ranks and channels.
///
/// The spans are read once for each number of merged spans that is examined (usually two or three times), so cloning
/// `spans` must be cheap: the iterator of a slice, or one that computes the spans. Spans of a channel must be in
/// ascending order of start. The output is deterministic.
///
/// # Errors
/// Errors of the writer.
pub fn write<'a, S>(
    spans: S,
    counters: &[Counter<'_>],
    names: &TraceNames<'_>,
    budget: Bytes,
    output: impl Write,
) -> io::Result<TraceStats>
where
    S: Iterator<Item = TraceSpan<'a>> + Clone,
{
    let head = names.head()?;
    let measure = |joined| -> io::Result<(u64, TraceSummary)> {
        let mut scale = SizeCounter::default();
        let summary = join::write(spans.clone(), joined, names, &mut scale)?;
        event::counters(counters, names, summary.ranks, &mut scale)?;
        Ok((scale.bytes(&head), summary))
    };
    let mut joined = 1;
    let (mut size, summary) = measure(joined)?;
    while size > budget.0 && u64::from(joined) < summary.spans {
        let factor = u32::try_from(size.div_ceil(budget.0.max(1))).unwrap_or(u32::MAX).max(2);
        joined = joined.saturating_mul(factor);
        (size, _) = measure(joined)?;
    }
    let mut lines = LineSorter::default();
    join::write(spans, joined, names, &mut lines)?;
    event::counters(counters, names, summary.ranks, &mut lines)?;
    lines.write(&head, io::BufWriter::new(output))?;
    Ok(TraceStats { bytes: Bytes(size), spans: summary.spans, joined })
}

/// Statistics gathered while writing spans.
#[derive(Clone, Copy, Debug, Default)]
struct TraceSummary {
    spans: u64,
    /// One plus the highest rank of any span.
    ranks: u32,
}

#[cfg(test)]
mod tests;
