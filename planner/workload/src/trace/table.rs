//! Traces as tables: CSV with a header and one line per call or computation.
//!
//! | column | meaning |
//! |---|---|
//! | `collective` | name of the collective, in any known spelling; `compute` for computation |
//! | `bytes` | message size, with or without unit: the larger buffer, as in nccl-tests |
//! | `time_us` | duration of a computation |
//! | `ranks` | ranks: `0-7`, `0 2 4`; absent or empty: all |
//! | `count` | number of repetitions in sequence; absent or empty: 1 |
//! | `name` | name for references in `after` |
//! | `after` | names of predecessors, one or more |
//! | `start_us` | earliest start time |
//!
//! `collective` is required; columns may be in any order. A line with neither `after` nor `start_us` follows the last
//! line before it of each of its ranks, as in a stream. Empty lines and lines that begin with `#` are ignored.

use std::sync::Arc;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, LineIndex, Origin, Picos, SourceLocation, UnitError};
use rustc_hash::FxHashMap;

use super::{Call, Event, EventKind, MAX_EVENTS, Processor, Trace, ranks};
use crate::job::JobError;

const COLUMNS: [&str; 8] = ["collective", "bytes", "time_us", "ranks", "count", "name", "after", "start_us"];

/// Reads a trace from a table. `all` is the number of ranks for lines without `ranks`; without it every line must name
/// them.
///
/// # Errors
/// [`JobError`] with line and column: an unknown column, an invalid or missing field, or an unknown predecessor.
pub fn read_table(text: &str, source: &str, all: impl Into<Option<u32>>) -> Result<Trace, JobError> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .comment(Some(b'#'))
        .from_reader(text.as_bytes());
    let mut columns: Option<Vec<&'static str>> = None;
    let mut record = csv::StringRecord::new();
    let everyone: Option<Arc<[u32]>> = all.into().map(|all| (0..all).collect());
    let mut builder =
        TableTraceBuilder { everyone, events: Vec::new(), names: FxHashMap::default(), last: FxHashMap::default() };
    let lines = LineIndex::new(text);
    let origin = Origin::new(source, text).with_line_index(&lines);
    loop {
        let start = reader.position().byte() as usize;
        let read = reader.read_record(&mut record);
        let line = TableLine { origin, start, record: &record };
        match read {
            Ok(false) => break,
            Ok(true) => {}
            Err(error) => return Err(line.error("", error.to_string())),
        }
        match &columns {
            None => columns = Some(header(&record, line)?),
            Some(columns) => builder.add(columns, &record, line)?,
        }
    }
    if columns.is_none() {
        return Err(JobError::at(&origin.locate(0..0), format!("no header: expected some of `{}`", COLUMNS.join(","))));
    }
    Trace::new(builder.events, Vec::new(), source)
}

fn header(record: &csv::StringRecord, line: TableLine<'_>) -> Result<Vec<&'static str>, JobError> {
    let mut columns = Vec::new();
    for name in record {
        let Some(&column) = COLUMNS.iter().find(|column| **column == name) else {
            return Err(line.error(name, format!("unknown column `{name}`; expected some of `{}`", COLUMNS.join(","))));
        };
        if columns.contains(&column) {
            return Err(line.error(name, format!("column `{name}` is given twice")));
        }
        columns.push(column);
    }
    if !columns.contains(&"collective") {
        return Err(line.error("", "no column `collective`"));
    }
    Ok(columns)
}

/// Events and references of the lines read so far.
struct TableTraceBuilder {
    /// Ranks of lines without `ranks`, which are all ranks; `None` if the number of ranks is unknown.
    everyone: Option<Arc<[u32]>>,
    events: Vec<Event>,
    names: FxHashMap<String, u32>,
    /// Index of the last event of each rank.
    last: FxHashMap<u32, u32>,
}

impl TableTraceBuilder {
    fn add(&mut self, columns: &[&str], record: &csv::StringRecord, line: TableLine<'_>) -> Result<(), JobError> {
        if record.len() > columns.len() {
            let message = format!("{} fields on this line, and {} columns", record.len(), columns.len());
            return Err(line.error("", message));
        }
        let field = |name: &str| {
            let index = columns.iter().position(|column| *column == name);
            index.and_then(|index| record.get(index)).filter(|field| !field.is_empty())
        };
        let number = |name: &str, max: f64| match field(name) {
            None => Ok(None),
            Some(text) => match text.parse::<f64>() {
                Ok(value) if (0.0..=max).contains(&value) => Ok(Some(value)),
                _ => Err(line.error(text, format!("{name}: `{text}` is not a number from 0 to {max:e}"))),
            },
        };
        let group: Arc<[u32]> = match field("ranks") {
            None => self
                .everyone
                .clone()
                .ok_or_else(|| line.error("", "no ranks on this line, and the job has no `ranks`"))?,
            Some(text) => ranks::parse(text).map_err(|message| line.error(text, format!("ranks: {message}")))?.into(),
        };
        let word = field("collective").ok_or_else(|| line.error("", "no collective on this line"))?;
        let kind = if word == "compute" {
            let time = number("time_us", 1e12)?;
            let time = time.ok_or_else(|| line.error(word, "compute needs a time_us"))?;
            EventKind::Compute { ranks: Arc::clone(&group), on: Processor::Gpu, time: Picos::from_us(time) }
        } else {
            let collective: Collective =
                word.parse().map_err(|error| line.error(word, format!("{error}; or `compute`")))?;
            if collective == Collective::AllToAllV {
                return Err(
                    line.error(word, "all_to_allv needs a matrix, which the table cannot give: expected all_to_all")
                );
            }
            let text = field("bytes").ok_or_else(|| line.error(word, "a call needs bytes"))?;
            let bytes: Bytes = text.parse().map_err(|error: UnitError| line.error(text, error.to_string()))?;
            if group.len() < 2 {
                return Err(line.error(field("ranks").unwrap_or(word), "a call needs two ranks or more"));
            }
            // A barrier moves no bytes, regardless of the column.
            let bytes = if collective == Collective::Barrier { Bytes(0) } else { bytes };
            EventKind::Call(Call { group: Arc::clone(&group), collective, bytes })
        };
        let start = number("start_us", 1e9)?;
        let after = match field("after") {
            None if start.is_some() => Vec::new(),
            None => {
                let mut before: Vec<u32> = group.iter().filter_map(|rank| self.last.get(rank).copied()).collect();
                before.sort_unstable();
                before.dedup();
                before
            }
            Some(names) => names
                .split_whitespace()
                .map(|name| {
                    let known = self.names.get(name).copied();
                    known.ok_or_else(|| line.error(name, format!("after: no line before this one is named `{name}`")))
                })
                .collect::<Result<_, _>>()?,
        };
        let count = number("count", MAX_EVENTS as f64)?.unwrap_or(1.0);
        if count.fract() != 0.0 || count < 1.0 {
            return Err(line.error(field("count").unwrap_or(""), "count: expected a whole number, 1 or more"));
        }
        if self.events.len() + count as usize > MAX_EVENTS {
            return Err(line.error("", format!("more than {MAX_EVENTS} events")));
        }
        let name = field("name").unwrap_or("").to_owned();
        let start = start.map_or(Picos::ZERO, Picos::from_us);
        for round in 0..count as u64 {
            let number = self.events.len() as u32;
            let after = if round == 0 { after.clone() } else { vec![number - 1] };
            let location = line.location("");
            self.events.push(Event { name: name.clone(), kind: kind.clone(), after, start, location });
        }
        let number = self.events.len() as u32 - 1;
        if !name.is_empty() && self.names.insert(name.clone(), number).is_some() {
            return Err(line.error(&name, format!("name: `{name}` is used on an earlier line")));
        }
        self.last.extend(group.iter().map(|&rank| (rank, number)));
        Ok(())
    }
}

/// Line of the table, for errors in its fields.
#[derive(Clone, Copy)]
struct TableLine<'a> {
    origin: Origin<'a>,
    start: usize,
    record: &'a csv::StringRecord,
}

impl TableLine<'_> {
    /// Returns the source location of a field of this line; that of the line if the field is empty.
    fn location(&self, field: &str) -> SourceLocation {
        let before = self.record.iter().take_while(|other| !std::ptr::eq(other.as_ptr(), field.as_ptr()));
        let number = before.clone().count();
        // A slice that lies inside a field is not found among the fields.
        let known = if number < self.record.len() { number } else { 0 };
        self.origin.locate_field(self.start, before.take(known), field)
    }

    fn error(&self, field: &str, message: impl Into<String>) -> JobError {
        JobError::at(&self.location(field), message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_follow_their_ranks_or_named_predecessors() {
        let text = "# a step\n\
            name,collective,ranks,bytes,time_us,count,after,start_us\n\
            f,compute,,,100,,,\n\
            t,allreduce,0-1,1MiB,,3,,\n\
            u,all_reduce,2-3,1048576,,,,\n\n\
            g,reduce_scatter,0 2,64KiB,,,t u,\n\
            late,broadcast,,4,,,,250\n";
        let trace = read_table(text, "t.csv", 4).unwrap();
        let after: Vec<&[u32]> = trace.events.iter().map(|event| event.after.as_slice()).collect();
        assert_eq!(after, [&[][..], &[0], &[1], &[2], &[0], &[3, 4], &[]]);
        assert_eq!((trace.ranks, trace.events[6].start), (4, Picos::from_us(250.0)));
        let EventKind::Call(call) = &trace.events[5].kind else { panic!() };
        assert_eq!(
            (&call.group[..], call.bytes, call.collective),
            (&[0, 2][..], Bytes(65_536), Collective::ReduceScatter)
        );
    }

    #[test]
    fn invalid_tables_are_rejected_with_location() {
        let head = "collective,bytes,ranks,count,name,after,start_us,time_us\n";
        for (line, location, expected) in [
            ("alreduce,1,0-1", "t.csv:2:1", "all_reduce"),
            ("all_reduce,1x,0-1", "t.csv:2:12", "1x"),
            ("all_reduce,,0-1", "t.csv:2:1", "needs bytes"),
            ("all_reduce,1,0", "t.csv:2:14", "two ranks"),
            ("all_reduce,1,0-1,0", "t.csv:2:18", "1 or more"),
            ("all_reduce,10,0-1,0", "t.csv:2:19", "1 or more"),
            ("compute,,0-7,40,,,,1e12", "t.csv:2:1", "more than 9223372 s of computing"),
            ("compute,,0-7,,,,,0", "t.csv", "no call, and no computation time"),
            ("all_reduce,1,0-1,,a,b", "t.csv:2:21", "no line before this one is named `b`"),
            ("all_reduce,1,0-1,,a\nall_reduce,1,0-1,,a", "t.csv:3:1", "is used on an earlier line"),
            ("all_reduce,1,0-1,,,,-5", "t.csv:2:21", "from 0"),
            ("compute,,0-1", "t.csv:2:1", "time_us"),
            ("all_to_allv,1,0-1", "t.csv:2:1", "matrix"),
            ("a,b,c,d,e,f,g,h,i", "t.csv:2:1", "9 fields"),
        ] {
            let error = read_table(&format!("{head}{line}\n"), "t.csv", 8).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{location}: ")) && error.contains(expected), "{line}: {error}");
        }
        for (text, expected) in [
            ("", "no header"),
            ("collective,size\n", "unknown column `size`"),
            ("bytes\n", "no column"),
            ("collective\n", "no computation"),
        ] {
            let error = read_table(text, "t.csv", 8).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
