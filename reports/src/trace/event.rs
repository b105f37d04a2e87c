//! Events of a Chrome trace, as lines of JSON.

use std::io::{self, Write};

use fabricast_sim::schedule::{Channel, Rank};
use fabricast_topologies::Picos;
use fabricast_topologies::visible::{is_hidden, visible_in_strings};

use super::lines::EventSink;
use super::{Argument, Counter, TraceNames, TraceSpan};
use crate::format::exact_micros;

/// Formatter of the events of a trace.
pub(super) struct Events<'a, L> {
    lines: &'a mut L,
    names: &'a TraceNames<'a>,
    /// Text of the event that is being formatted.
    text: Vec<u8>,
}

impl<'a, L: EventSink> Events<'a, L> {
    pub(super) fn new(lines: &'a mut L, names: &'a TraceNames<'a>) -> Self {
        Self { lines, names, text: Vec::new() }
    }

    fn end_line(&mut self, time: Option<Picos>) {
        self.lines.line(time, &self.text);
        self.text.clear();
    }

    /// Writes a text as a JSON string without hidden characters.
    fn string(&mut self, text: &str) -> io::Result<()> {
        if !text.contains(is_hidden) {
            return Ok(serde_json::to_writer(&mut self.text, text)?);
        }
        self.text.write_all(visible_in_strings(&serde_json::to_string(text)?).as_bytes())
    }

    /// Writes the name and sort index of the process of a rank.
    pub(super) fn rank(&mut self, rank: Rank) -> io::Result<()> {
        let name = (self.names.process)(rank);
        self.process(rank.0, &name, rank.0.into())
    }

    /// Writes the facts about the run as a label of the process of a rank.
    pub(super) fn label(&mut self, rank: Rank) -> io::Result<()> {
        let label = self.names.label();
        if label.is_empty() {
            return Ok(());
        }
        write!(self.text, r#"{{"ph":"M","name":"process_labels","pid":{},"args":{{"labels":"#, rank.0)?;
        self.string(&label)?;
        self.text.write_all(b"}}")?;
        self.end_line(None);
        Ok(())
    }

    fn process(&mut self, pid: u32, name: &str, sort_index: i64) -> io::Result<()> {
        write!(self.text, r#"{{"ph":"M","name":"process_name","pid":{pid},"args":{{"name":"#)?;
        self.string(name)?;
        self.text.write_all(b"}}")?;
        self.end_line(None);
        write!(
            self.text,
            r#"{{"ph":"M","name":"process_sort_index","pid":{pid},"args":{{"sort_index":{sort_index}}}}}"#
        )?;
        self.end_line(None);
        Ok(())
    }

    /// Writes the name and sort index of a thread. `number`: its index among the threads of the channel.
    pub(super) fn thread(&mut self, rank: Rank, channel: Channel, number: usize, tid: u32) -> io::Result<()> {
        let mut name = (self.names.thread)(rank, channel);
        if number > 0 {
            name.push_str(&format!(" +{number}"));
        }
        let pid = rank.0;
        write!(self.text, r#"{{"ph":"M","name":"thread_name","pid":{pid},"tid":{tid},"args":{{"name":"#)?;
        self.string(&name)?;
        self.text.write_all(b"}}")?;
        self.end_line(None);
        let sort = r#""name":"thread_sort_index""#;
        write!(self.text, r#"{{"ph":"M",{sort},"pid":{pid},"tid":{tid},"args":{{"sort_index":{tid}}}}}"#)?;
        self.end_line(None);
        Ok(())
    }

    /// Writes a single span.
    pub(super) fn span(&mut self, tid: u32, span: &TraceSpan<'_>) -> io::Result<()> {
        self.complete(span.rank.0, tid, &span.name, span.start, span.end)?;
        if !span.arguments.is_empty() {
            self.text.write_all(b",\"args\":{")?;
            for (number, (key, argument)) in span.arguments.iter().enumerate() {
                if number > 0 {
                    self.text.write_all(b",")?;
                }
                self.string(key)?;
                self.text.write_all(b":")?;
                match argument {
                    Argument::Number(number) => write!(self.text, "{number}")?,
                    Argument::Time(time) => write!(self.text, "{}", exact_micros(*time))?,
                    Argument::Text(text) => self.string(text)?,
                }
            }
            self.text.write_all(b"}")?;
        }
        self.text.write_all(b"}")?;
        self.end_line(Some(span.start));
        for &arrow in &span.arrows.incoming {
            self.arrow(r#""f","bp":"e""#, arrow, tid, span)?;
        }
        for &arrow in &span.arrows.outgoing {
            self.arrow(r#""s""#, arrow, tid, span)?;
        }
        Ok(())
    }

    /// Writes an end of an arrow. Viewers draw it from the end of the first span to the start of the
    /// second; the time only has to be inside each span.
    fn arrow(&mut self, phase: &str, number: u32, tid: u32, span: &TraceSpan<'_>) -> io::Result<()> {
        let (pid, time) = (span.rank.0, exact_micros(span.start));
        let name = self.names.arrow;
        write!(
            self.text,
            r#"{{"ph":{phase},"cat":"{name}","name":"{name}","id":{number},"pid":{pid},"tid":{tid},"ts":{time}}}"#
        )?;
        self.end_line(Some(span.start));
        Ok(())
    }

    /// Writes a span that represents several merged ones.
    pub(super) fn joined(&mut self, pid: u32, tid: u32, joined: &MergedSpan<'_>) -> io::Result<()> {
        let name = match joined.name {
            Some(name) => format!("{} × {name}", joined.count),
            None => format!("{} spans", joined.count),
        };
        self.complete(pid, tid, &name, joined.start, joined.end)?;
        let (count, busy) = (joined.count, exact_micros(joined.busy));
        write!(self.text, r#","args":{{"spans":{count},"busy_us":{busy}}}}}"#)?;
        self.end_line(Some(joined.start));
        Ok(())
    }

    fn complete(&mut self, pid: u32, tid: u32, name: &str, start: Picos, end: Picos) -> io::Result<()> {
        write!(self.text, r#"{{"ph":"X","pid":{pid},"tid":{tid},"name":"#)?;
        self.string(name)?;
        write!(self.text, r#","ts":{},"dur":{}"#, exact_micros(start), exact_micros(end - start))
    }

    fn counter(&mut self, pid: u32, name: &str, time: Picos, percent: f64) -> io::Result<()> {
        write!(self.text, r#"{{"ph":"C","pid":{pid},"name":"#)?;
        self.string(name)?;
        write!(self.text, r#","ts":{},"args":{{"percent":{percent}}}}}"#, exact_micros(time))?;
        self.end_line(Some(time));
        Ok(())
    }
}

/// Writes counters as graphs of a separate process, which is shown above the ranks: a value at each change, in percent
/// rounded to a tenth, and 0 at the end.
pub(super) fn counters(
    counters: &[Counter<'_>],
    names: &TraceNames<'_>,
    ranks: u32,
    lines: &mut impl EventSink,
) -> io::Result<()> {
    if counters.is_empty() {
        return Ok(());
    }
    let mut events = Events::new(lines, names);
    events.process(ranks, "fabric", -1)?;
    for counter in counters {
        let mut last = None;
        let percents = counter.values.iter().map(|value| (value * 1e3).round() / 10.0);
        for (number, percent) in (0..).zip(percents.chain([0.0])) {
            if last.replace(percent) != Some(percent) {
                events.counter(ranks, &counter.name, Picos(counter.slice.0.saturating_mul(number)), percent)?;
            }
        }
    }
    Ok(())
}

/// Several spans of a thread that are written as one.
pub(super) struct MergedSpan<'a> {
    pub count: u32,
    /// Name that all the spans have; `None` if their names differ.
    pub name: Option<&'a str>,
    pub start: Picos,
    pub end: Picos,
    /// Sum of the durations of the spans.
    pub busy: Picos,
}
