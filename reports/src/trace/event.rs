//! Events of a Chrome trace as lines of JSON.

use std::io::{self, Write};

use fabricast_topologies::Picos;

use super::{Argument, TraceSpan};
use crate::format::exact_micros;

/// Writes the events of a trace, one a line, with the commas where they belong.
pub(super) struct Events<W: Write> {
    out: W,
    first: bool,
}

impl<W: Write> Events<W> {
    pub(super) fn begin(mut out: W) -> io::Result<Self> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        Ok(Self { out, first: true })
    }

    pub(super) fn end(mut self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")
    }

    fn line(&mut self) -> io::Result<()> {
        let separator: &[u8] = if self.first { b"\n" } else { b",\n" };
        self.first = false;
        self.out.write_all(separator)
    }

    /// Names a process and gives it its place.
    pub(super) fn process(&mut self, pid: u32) -> io::Result<()> {
        self.line()?;
        write!(self.out, r#"{{"ph":"M","name":"process_name","pid":{pid},"args":{{"name":"rank {pid}"}}}}"#)?;
        self.line()?;
        write!(self.out, r#"{{"ph":"M","name":"process_sort_index","pid":{pid},"args":{{"sort_index":{pid}}}}}"#)
    }

    /// Names a thread and gives it its place.
    pub(super) fn thread(&mut self, pid: u32, tid: u32, name: &str) -> io::Result<()> {
        self.line()?;
        write!(self.out, r#"{{"ph":"M","name":"thread_name","pid":{pid},"tid":{tid},"args":{{"name":"{name}"}}}}"#)?;
        self.line()?;
        let sort = r#""name":"thread_sort_index""#;
        write!(self.out, r#"{{"ph":"M",{sort},"pid":{pid},"tid":{tid},"args":{{"sort_index":{tid}}}}}"#)
    }

    /// Writes a span that stands for itself.
    pub(super) fn span(&mut self, tid: u32, span: &TraceSpan<'_>) -> io::Result<()> {
        self.complete(span.rank.0, tid, &span.name, span.start, span.end)?;
        if !span.arguments.is_empty() {
            self.out.write_all(b",\"args\":{")?;
            for (number, (key, argument)) in span.arguments.iter().enumerate() {
                if number > 0 {
                    self.out.write_all(b",")?;
                }
                serde_json::to_writer(&mut self.out, key)?;
                self.out.write_all(b":")?;
                match argument {
                    Argument::Number(number) => write!(self.out, "{number}")?,
                    Argument::Time(time) => write!(self.out, "{}", exact_micros(*time))?,
                    Argument::Text(text) => serde_json::to_writer(&mut self.out, text.as_ref())?,
                }
            }
            self.out.write_all(b"}")?;
        }
        self.out.write_all(b"}")
    }

    /// Writes a span that stands for `count` others, which were busy for `busy` of its time.
    pub(super) fn joined(&mut self, pid: u32, tid: u32, joined: &Joined<'_>) -> io::Result<()> {
        let name = match joined.name {
            Some(name) => format!("{} × {name}", joined.count),
            None => format!("{} spans", joined.count),
        };
        self.complete(pid, tid, &name, joined.start, joined.end)?;
        let (count, busy) = (joined.count, exact_micros(joined.busy));
        write!(self.out, r#","args":{{"spans":{count},"busy_us":{busy}}}}}"#)
    }

    fn complete(&mut self, pid: u32, tid: u32, name: &str, start: Picos, end: Picos) -> io::Result<()> {
        self.line()?;
        write!(self.out, r#"{{"ph":"X","pid":{pid},"tid":{tid},"name":"#)?;
        serde_json::to_writer(&mut self.out, name)?;
        write!(self.out, r#","ts":{},"dur":{}"#, exact_micros(start), exact_micros(end - start))
    }
}

/// Several spans as one.
pub(super) struct Joined<'a> {
    pub count: u32,
    /// The name that all of them share, if they do.
    pub name: Option<&'a str>,
    pub start: Picos,
    pub end: Picos,
    /// Sum of their own times.
    pub busy: Picos,
}
