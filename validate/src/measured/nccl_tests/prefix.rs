//! Removal of prefixes that launchers, containers, log collectors and people put in front of each line of a log.
//!
//! There is no list of such programs. Each line is searched for a part that only nccl-tests writes: a header line
//! behind its `#`, or a row's size, count and element type. The text in front of this part is the prefix. The *shape*
//! of a prefix is the prefix with its digits replaced. From lines without such a part (pieces of rows that messages
//! split), a prefix is removed if it has a shape that occurs in other lines.
//!
//! A prefix without its times is a *label*, for example of a rank, a pod or a process. If there are several labels, and
//! the lines of each label contain a whole table, each label is a separate stream. Otherwise labels only number the
//! lines or state times, and all lines form one stream.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use fabricast_sim::schedule::DataType;

use super::columns::Columns;
use super::messages::Notice;
use super::{head, messages};

/// Maximum number of prefix shapes of one log that are compared with its other lines.
const MAX_SHAPES: usize = 16;

/// Maximum number of `#` in a line that are tried as the start of a header line.
const MAX_MARKS: usize = 8;

/// Line of a log without its prefix.
#[derive(Debug)]
pub(super) struct LogLine<'a> {
    /// Line number in the log, from 1.
    pub number: u32,
    /// Text without prefix and NCCL messages.
    pub text: Cow<'a, str>,
    /// Property of the library that a message of NCCL or RCCL in the line states.
    pub notice: Option<Notice<'a>>,
    /// Index of the stream that contains the line; `None` if no stream with a table contains it.
    pub stream: Option<usize>,
}

/// Lines of a log, divided into streams.
#[derive(Debug, Default)]
pub(super) struct LogLines<'a> {
    pub lines: Vec<LogLine<'a>>,
    /// Number of streams of the log.
    pub streams: usize,
}

/// Kind of a part of a line that only nccl-tests writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Line of the header in front of a table, or a line that ends a table.
    Header,
    /// Header line of a table, which names its columns.
    Head,
    /// Row of a table: size, count and element type.
    Row,
}

/// A line with the start and kind of the part that nccl-tests wrote, if any.
struct Read<'a> {
    number: u32,
    text: Cow<'a, str>,
    notice: Option<Notice<'a>>,
    found: Option<(usize, Part)>,
}

/// Splits a log into lines without prefixes.
pub(super) fn strip(text: &str) -> LogLines<'_> {
    let read: Vec<Read<'_>> = (1..).zip(text.lines()).map(|(number, line)| read(number, line)).collect();
    let mut labels = Labels::default();
    let mut shapes: BTreeSet<String> = BTreeSet::new();
    for line in &read {
        let Some((start, part)) = line.found else { continue };
        let prefix = line.text.get(..start).unwrap_or_default();
        labels.add(prefix, part);
        // Rows define no shapes, because any text may precede a row.
        if part != Part::Row && shapes.len() < MAX_SHAPES {
            shapes.insert(shape(prefix));
        }
    }
    // Long shapes first, because a short shape may be the beginning of a long one.
    let mut shapes: Vec<String> = shapes.into_iter().collect();
    shapes.sort_by_key(|shape| std::cmp::Reverse(shape.len()));
    let streams = labels.streams();
    let lines = read.into_iter().map(|line| {
        let start = line
            .found
            .map(|(start, _)| start)
            .or_else(|| shapes.iter().find_map(|shape| match_shape(&line.text, shape)));
        let stream = match (&streams, start) {
            (None, _) => Some(0),
            (Some(known), Some(start)) => known.get(&label(line.text.get(..start).unwrap_or_default())).copied(),
            (Some(_), None) => None,
        };
        // A line without a known prefix was not written by nccl-tests if the other lines have a prefix.
        let content = match start {
            None if !shapes.is_empty() => Cow::Borrowed(""),
            start => without(line.text, start.unwrap_or(0)),
        };
        LogLine { number: line.number, text: content, notice: line.notice, stream }
    });
    LogLines { lines: lines.collect(), streams: streams.as_ref().map_or(1, BTreeMap::len) }
}

fn read(number: u32, line: &str) -> Read<'_> {
    let notice = messages::notice(line);
    let text = match without_escapes(line) {
        Cow::Borrowed(line) => Cow::Borrowed(messages::strip_messages(line)),
        Cow::Owned(line) => Cow::Owned(messages::strip_messages(&line).to_owned()),
    };
    let start = find(&text);
    Read { number, text, notice, found: start }
}

/// Returns the rest of a line from byte `start`. A quoted text, as in JSON and YAML, ends at the closing quote.
fn without(text: Cow<'_, str>, start: usize) -> Cow<'_, str> {
    let quoted = text.get(..start).unwrap_or_default().trim_end().ends_with('"');
    let cut = |text: &str| -> usize {
        let rest = text.get(start..).unwrap_or_default();
        if !quoted {
            return text.len();
        }
        let mut rest = rest.split('"').next().unwrap_or_default();
        // Escaped line breaks at the end are removed.
        while let Some(shorter) = rest.strip_suffix("\\n").or_else(|| rest.strip_suffix("\\r")) {
            rest = shorter;
        }
        start + rest.len()
    };
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.get(start..cut(text)).unwrap_or_default()),
        Cow::Owned(text) => Cow::Owned(text.get(start..cut(&text)).unwrap_or_default().to_owned()),
    }
}

/// Removes the escape sequences that colour terminal output.
fn without_escapes(line: &str) -> Cow<'_, str> {
    if !line.contains('\u{1b}') {
        return Cow::Borrowed(line);
    }
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        rest = match after.strip_prefix('[') {
            // A sequence consists of parameters and one letter.
            Some(sequence) => {
                sequence.trim_start_matches(|c: char| matches!(c, ' '..='?')).get(1..).unwrap_or_default()
            }
            None => after,
        };
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

/// Finds the part of a line that only nccl-tests writes, with its byte offset.
fn find(text: &str) -> Option<(usize, Part)> {
    let headers = text.match_indices('#').take(MAX_MARKS).find_map(|(index, _)| {
        let comment = text.get(index + 1..)?;
        match Columns::parse_header(comment) {
            Some(_) => Some((index, Part::Head)),
            None => head::is_known(comment).then_some((index, Part::Header)),
        }
    });
    headers.or_else(|| Some((row_start(text)?, Part::Row)))
}

/// Byte offset of the first size that is followed by a count and an element type, as at the start of a row.
fn row_start(text: &str) -> Option<usize> {
    let mut words = words(text);
    let (mut size, mut count) = (words.next()?, words.next()?);
    for next in words {
        if is_count(count.1)
            && next.1.starts_with(|c: char| c.is_ascii_alphabetic())
            && next.1.parse::<DataType>().is_ok()
        {
            let digits = size.1.len() - size.1.trim_end_matches(|c: char| c.is_ascii_digit()).len();
            let before = size.1.get(..size.1.len() - digits).unwrap_or_default();
            // A size that fills its column leaves no blank after a prefix.
            let ends = before.is_empty() || before.ends_with([':', '|', '>', ']', ')', '}', '"']);
            if digits > 0 && ends {
                return Some(size.0 + before.len());
            }
        }
        (size, count) = (count, next);
    }
    None
}

/// Words of a text with their byte offsets.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    // Words are slices of the text, so their addresses give their offsets.
    text.split_whitespace().map(|word| ((word.as_ptr() as usize).saturating_sub(text.as_ptr() as usize), word))
}

fn is_count(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Shape of a prefix: each run of digits is replaced by `0` and each gap by one blank. Trailing blanks are removed,
/// because rows may begin with blanks.
fn shape(prefix: &str) -> String {
    let mut shape = String::new();
    let mut last = ' ';
    for c in prefix.trim().chars() {
        let c = if c.is_ascii_digit() {
            '0'
        } else if c.is_whitespace() {
            ' '
        } else {
            c
        };
        if !(c == last && (c == '0' || c == ' ')) {
            shape.push(c);
        }
        last = c;
    }
    shape
}

/// Length in bytes of a prefix of the given shape at the start of a text; `None` if the text begins differently.
fn match_shape(text: &str, shape: &str) -> Option<usize> {
    let mut index = text.len() - text.trim_start().len();
    for c in shape.chars() {
        let rest = text.get(index..)?;
        index += match c {
            '0' => rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len(),
            ' ' => rest.len() - rest.trim_start().len(),
            c if rest.starts_with(c) => c.len_utf8(),
            _ => 0,
        }
        .checked_sub(1)?
            + 1;
    }
    Some(index)
}

/// Label of a prefix: the prefix without its times.
fn label(prefix: &str) -> String {
    const NAMES: [&str; 19] = [
        "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec", "mon", "tue", "wed", "thu",
        "fri", "sat", "sun",
    ];
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '.' | ',' | '-' | '/' | '+');
    let mut label = String::new();
    // True if the following numbers are days or years, because a month or a time of day precedes them.
    let mut dated = false;
    let mut rest = prefix.trim();
    while let Some(first) = rest.chars().next() {
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        if length == 0 {
            if !first.is_whitespace() {
                label.push(first);
            }
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
            continue;
        }
        let (word, after) = rest.split_at(length);
        rest = after;
        if NAMES.contains(&word.to_ascii_lowercase().as_str()) || is_time(word) {
            dated = true;
        } else if !(dated && word.len() <= 4 && is_count(word)) {
            label.push_str(word);
            label.push(' ');
        }
    }
    label
}

/// Returns true for dates, times of day and elapsed seconds.
fn is_time(word: &str) -> bool {
    let bytes = word.as_bytes();
    let digits = |from: usize, length: usize| {
        bytes.get(from..from + length).is_some_and(|part| part.iter().all(u8::is_ascii_digit))
    };
    let clock = |index: usize| digits(index, 2) && bytes.get(index + 2) == Some(&b':') && digits(index + 3, 2);
    let of_day = clock(0) || bytes.iter().position(|&byte| byte == b'T').is_some_and(|index| clock(index + 1));
    let is_date = bytes.len() >= 10
        && (digits(0, 4) && matches!(bytes[4], b'-' | b'/') && digits(5, 2)
            || digits(0, 2)
                && matches!(bytes[2], b'-' | b'/' | b'.')
                && digits(3, 2)
                && matches!(bytes[5], b'-' | b'/' | b'.'));
    let elapsed = word.split_once('.').is_some_and(|(seconds, part)| {
        let part = part.strip_suffix('s').unwrap_or(part);
        is_count(seconds) && is_count(part)
    });
    of_day || is_date || elapsed
}

/// Labels of the lines that hold parts of tables.
#[derive(Default)]
struct Labels {
    /// Labels of header lines, with their order of appearance.
    heads: BTreeMap<String, usize>,
    /// True if a row has a label that no header line in front of it has.
    has_unlabelled_rows: bool,
}

impl Labels {
    fn add(&mut self, prefix: &str, part: Part) {
        let index = self.heads.len();
        match part {
            Part::Head => {
                self.heads.entry(label(prefix)).or_insert(index);
            }
            Part::Row if !self.has_unlabelled_rows => {
                self.has_unlabelled_rows = !self.heads.contains_key(&label(prefix));
            }
            Part::Row | Part::Header => {}
        }
    }

    /// Streams by label; `None` if the labels do not separate streams.
    fn streams(&self) -> Option<BTreeMap<String, usize>> {
        (self.heads.len() > 1 && !self.has_unlabelled_rows).then(|| self.heads.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_begin_at_their_size() {
        for (text, start) in [
            ("  1024  256  float  sum  -1  5.8", Some(2)),
            ("[0]   1024  256  float", Some(6)),
            ("12 34  1024  256  float", Some(7)),
            ("2025-06-13T08:25:24.1Z   8  2  half", Some(25)),
            ("[1,0]<stdout>:137438953472  34359738368  float", Some(14)),
            ("x137438953472  34359738368  float", None),
            ("1024  256  quad", None),
            ("float 1 2", None),
            ("", None),
        ] {
            assert_eq!(row_start(text), start, "{text}");
        }
    }

    #[test]
    fn labels_are_prefixes_without_times() {
        for prefix in [
            "2025-06-13T08:25:00.123456789Z ",
            "2025-06-13 08:25:00,123 ",
            "08:25:00 ",
            "Jun 13 08:25:02 ",
            "Fri Jun 13 08:25:02 2025",
            "  12.345 ",
            "06/13/2025 08:25:00 ",
        ] {
            assert_eq!(label(prefix), "", "{prefix}");
        }
        assert_ne!(label("[1,0]<stdout>:"), label("[1,1]<stdout>:"));
        assert_eq!(label("Fri Jun 13 08:25:02 2025[1,0]<stdout>:"), label("Sat Jun 14 00:00:01 2025[1,0]<stdout>:"));
        assert_ne!(label(" 0: "), label(" 1: "));
    }

    #[test]
    fn shapes_match_any_digits() {
        let pattern = shape("2025-06-13T08:25:00.1Z [12] ");
        assert_eq!(match_shape("2026-11-01T18:05:59.123Z  [3]  5.78", &pattern), Some(29));
        assert_eq!(match_shape("2026-11-01T18:05:59.123Z [x]", &pattern), None);
        assert_eq!(match_shape("   5.78", &shape("  ")), Some(3));
    }
}
