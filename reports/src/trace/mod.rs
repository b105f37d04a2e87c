//! Spans as Chrome trace JSON, which Perfetto (ui.perfetto.dev) and `chrome://tracing` open.
//!
//! A rank is a process, a channel a thread of it. Spans of a channel that overlap (a transfer still on its way while the
//! next is prepared) get further threads, since viewers show nested spans only. Times are picoseconds written as exact
//! decimals of a microsecond, the unit of the format.
//!
//! Viewers give up on files of hundreds of megabytes, so a trace has a budget: above it, neighbouring spans of a thread
//! are joined, as many at a time as the budget asks for, and say so; what overlaps in more than a few threads is then
//! joined as well.
//!
//! Source of the format: "Trace Event Format", the JSON object form with complete (`X`), counter (`C`) and metadata (`M`)
//! events.

mod event;
mod join;
mod lines;

use std::borrow::Cow;
use std::io::{self, Write};

use fabricast_sim::schedule::{Channel, Rank};
use fabricast_topologies::{Bytes, Picos};

use lines::{Scale, Sorted};

/// Something that a channel of a rank was busy with.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSpan<'a> {
    /// The rank: a process of the trace.
    pub rank: Rank,
    /// The channel: a thread of it.
    pub channel: Channel,
    /// What happened: `put 3 → 4`.
    pub name: Cow<'a, str>,
    /// When it began.
    pub start: Picos,
    /// When it ended; not before it began.
    pub end: Picos,
    /// What a click on it tells.
    pub arguments: Vec<(&'a str, Argument<'a>)>,
}

/// A fact about a span.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument<'a> {
    /// A number: an operation, a chunk, a peer, bytes.
    Number(u64),
    /// A time; written in microseconds.
    Time(Picos),
    /// Words.
    Text(Cow<'a, str>),
}

/// What became of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Size of the file.
    pub bytes: Bytes,
    /// Spans given.
    pub spans: u64,
    /// Spans joined into one at a time; 1 where each stands for itself.
    pub joined: u32,
}

/// What a trace may weigh if nobody says otherwise: opens in Perfetto within seconds.
pub const BUDGET: Bytes = Bytes(50_000_000);

/// How much of something was used over time: a graph above the ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter<'a> {
    /// What it is: `gpu0->nvswitch0`.
    pub name: Cow<'a, str>,
    /// Length of a slice of time.
    pub slice: Picos,
    /// The part that was used in each slice from 0 on, 0 to 1.
    pub values: &'a [f64],
}

/// Writes a trace of at most `budget` bytes, joining neighbours where needed; even a trace beyond the budget keeps one
/// span a thread, and its counters. Events come in order of time, with the names of ranks and channels before them.
///
/// The spans are read once more for each size that is tried (two or three times as a rule), so `spans` is to be cheap
/// to clone: a slice's iterator, or one that computes them. Those of a channel come by rising start; the same spans
/// give the same bytes.
///
/// # Errors
/// What the writer returns.
pub fn write<'a, S>(spans: S, counters: &[Counter<'_>], budget: Bytes, out: impl Write) -> io::Result<Written>
where
    S: Iterator<Item = TraceSpan<'a>> + Clone,
{
    let measure = |joined| -> io::Result<(u64, Summary)> {
        let mut scale = Scale::default();
        let summary = join::write(spans.clone(), joined, &mut scale)?;
        event::counters(counters, summary.ranks, &mut scale)?;
        Ok((scale.bytes(), summary))
    };
    let mut joined = 1;
    let (mut size, summary) = measure(joined)?;
    while size > budget.0 && u64::from(joined) < summary.spans {
        let factor = u32::try_from(size.div_ceil(budget.0.max(1))).unwrap_or(u32::MAX).max(2);
        joined = joined.saturating_mul(factor);
        (size, _) = measure(joined)?;
    }
    let mut lines = Sorted::default();
    join::write(spans, joined, &mut lines)?;
    event::counters(counters, summary.ranks, &mut lines)?;
    lines.write(io::BufWriter::new(out))?;
    Ok(Written { bytes: Bytes(size), spans: summary.spans, joined })
}

/// What was seen while spans were written.
#[derive(Clone, Copy, Debug, Default)]
struct Summary {
    spans: u64,
    /// One more than the highest rank.
    ranks: u32,
}

#[cfg(test)]
mod tests;
