//! Lines of a trace, which are counted, or collected and written in order of time.

use std::io::{self, Write};

use fabricast_topologies::Picos;

const TAIL: &[u8] = b"\n]}\n";

/// Receiver of the events of a trace, in any order.
pub(super) trait EventSink {
    /// Adds an event, whose text has no line break. `time`: time of the event; `None` for metadata.
    fn line(&mut self, time: Option<Picos>, text: &[u8]);
}

/// Receiver that only counts the bytes of a trace.
#[derive(Default)]
pub(super) struct SizeCounter {
    lines: u64,
    text: u64,
}

impl EventSink for SizeCounter {
    fn line(&mut self, _: Option<Picos>, text: &[u8]) {
        self.lines += 1;
        self.text += text.len() as u64;
    }
}

impl SizeCounter {
    /// Size of the trace with this beginning.
    pub(super) fn bytes(&self, head: &[u8]) -> u64 {
        let separators = 2 * self.lines - self.lines.min(1);
        (head.len() + TAIL.len()) as u64 + separators + self.text
    }
}

/// Receiver that collects the lines of a trace and writes them in order of time.
#[derive(Default)]
pub(super) struct LineSorter {
    text: Vec<u8>,
    /// Time of each event, and the end of its line in `text`.
    ends: Vec<(Option<Picos>, usize)>,
}

impl EventSink for LineSorter {
    fn line(&mut self, time: Option<Picos>, text: &[u8]) {
        self.text.extend_from_slice(text);
        self.ends.push((time, self.text.len()));
    }
}

impl LineSorter {
    /// Writes all lines after `head`: metadata first, then events by time. Events of one instant are written in the order in which
    /// they were added.
    ///
    /// # Errors
    /// Errors of the writer.
    pub(super) fn write(self, head: &[u8], mut output: impl Write) -> io::Result<()> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|&(_, end)| end));
        let mut lines: Vec<_> = starts.zip(&self.ends).map(|(start, &(at, end))| (at, start..end)).collect();
        lines.sort_by_key(|&(at, _)| at);
        output.write_all(head)?;
        let mut separator: &[u8] = b"\n";
        for (_, line) in lines {
            output.write_all(separator)?;
            output.write_all(self.text.get(line).unwrap_or_default())?;
            separator = b",\n";
        }
        output.write_all(TAIL)?;
        output.flush()
    }
}
