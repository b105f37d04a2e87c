//! Reader of the text output of nccl-tests, for all versions and flags.
//!
//! Lines that begin with `#` are part of the header, the header line of a table, or its end. Other lines are rows if a
//! table is open. NCCL's messages are printed to the same output and may split rows, which are then joined again.
//! Prefixes of launchers are removed first ([`prefix`]), and tables of separate runs are separated last ([`runs`]).

use fabricast_topologies::SourceLocation;

use super::super::table::{Counting, Header, Table};
use super::super::{LibraryName, MeasuredError, MeasuredLibrary, NcclReport, Reason, RejectedRow, TopologySearch};
use super::columns::{Columns, ParsedRow};
use super::head::{self, HeaderLine};
use super::messages::Notice;
use super::{check, count_ranks, prefix, runs};

/// Reads the tables of a text log. `source` names the log in errors.
pub(in crate::measured) fn read(text: &str, source: &str) -> Result<Vec<Table>, MeasuredError> {
    let prefix::LogLines { lines, streams } = prefix::strip(text);
    let mut readers: Vec<LogReader> = (0..streams).map(|_| LogReader::default()).collect();
    for line in &lines {
        if let Some(notice) = line.notice {
            readers.iter_mut().for_each(|reader| reader.notice(notice));
        }
        if let Some(reader) = line.stream.and_then(|stream| readers.get_mut(stream)) {
            reader.line(&line.text, line.number);
        }
    }
    readers.iter_mut().for_each(LogReader::end_row);
    let headless = readers.iter().filter_map(|reader| reader.headless).min();
    let mut tables = runs::separate(readers.into_iter().map(|reader| reader.tables).collect());
    if tables.is_empty() {
        let (line, message) = match headless {
            Some(line) => {
                (line, "a row without the head line `# size count type redop root time algbw busbw #wrong …`")
            }
            None => {
                (0, "no table: expected the output of nccl-tests, its JSON, or CSV with the header `bytes,time_us`")
            }
        };
        return Err(MeasuredError::invalid(
            SourceLocation { source: source.to_owned(), line, ..SourceLocation::default() },
            message,
        ));
    }
    for table in &mut tables {
        check(table);
    }
    Ok(tables)
}

#[derive(Default)]
struct LogReader {
    header: Header,
    /// State of the current header: unused until a table begins after it.
    used: HeaderState,
    tables: Vec<Table>,
    /// Columns of the open table; `None` if no table is open.
    columns: Option<Columns>,
    /// An incomplete row, and the line on which it begins.
    pending: Option<(String, u32)>,
    /// Line number of the first row outside any table; `None` if there is none.
    headless: Option<u32>,
}

/// State of a header: not used yet, or used by a table.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum HeaderState {
    #[default]
    New,
    Used,
}

impl LogReader {
    /// Stores a property of the library from a message of any process.
    fn notice(&mut self, notice: Notice<'_>) {
        let library = |name, version: &str| Some(MeasuredLibrary { name, version: version.to_owned() });
        match notice {
            Notice::Version(name, version) if self.header.library.is_none() => {
                self.header.library = library(name, version);
            }
            Notice::Rccl if self.header.library.as_ref().is_none_or(|current| current.name != LibraryName::Rccl) => {
                self.header.library = library(LibraryName::Rccl, "");
            }
            // NCCL may connect its channels and print their numbers after the table's header line.
            Notice::Channels(channels) => {
                self.header.p2p_channels = Some(channels);
                if let Some(table) = self.tables.last_mut().filter(|_| self.columns.is_some()) {
                    table.header.p2p_channels.get_or_insert(channels);
                }
            }
            Notice::Connection(transport) => self.report(|report| report.connections.add(transport)),
            Notice::Variable(name, value) => self.report(|report| report.set(name, value)),
            Notice::SearchFellBack => self.report(|report| report.search = TopologySearch::FellBack),
            Notice::Version(..) | Notice::Rccl => {}
        }
    }

    /// Adds a fact to the report of the header and, because NCCL connects ranks during the first calls, to that of the
    /// open table.
    fn report(&mut self, add: impl Fn(&mut NcclReport)) {
        add(&mut self.header.report);
        if let Some(table) = self.tables.last_mut().filter(|_| self.columns.is_some()) {
            add(&mut table.header.report);
        }
    }

    fn line(&mut self, text: &str, number: u32) {
        let text = text.trim();
        if text.is_empty() {
            return;
        }
        match text.strip_prefix('#') {
            Some(comment) => self.comment(comment, number),
            None => self.row(text, number),
        }
    }

    fn comment(&mut self, comment: &str, number: u32) {
        if let Some(columns) = Columns::parse_header(comment) {
            self.end_row();
            self.used = HeaderState::Used;
            let mut header = self.header.clone();
            header.ranks = count_ranks(&header);
            if header.tests_version.is_none() {
                header.counting = Counting::BlocksOrWhole;
            }
            self.tables.push(Table { header, rows: Vec::new(), rejected: Vec::new(), line: number });
            self.columns = Some(columns);
            return;
        }
        let mut next = if self.used == HeaderState::Used { Header::default() } else { self.header.clone() };
        match head::parse_header_line(&mut next, comment) {
            HeaderLine::Starts | HeaderLine::Continues => {
                self.end_row();
                self.columns = None;
                self.used = HeaderState::New;
                self.header = next;
            }
            HeaderLine::Closes => {
                self.end_row();
                self.columns = None;
            }
            HeaderLine::Other => {}
        }
    }

    fn row(&mut self, text: &str, number: u32) {
        let Some(columns) = &self.columns else {
            // A row begins with a size, a count and a type, which output of launchers does not contain.
            let mut words = text.split_whitespace();
            let counts = words.next().is_some_and(is_count) && words.next().is_some_and(is_count);
            if counts && words.count() >= 5 {
                self.headless.get_or_insert(number);
            }
            return;
        };
        if let Some((partial, line)) = self.pending.take() {
            let line_text = format!("{partial} {text}");
            match columns.row(&line_text, line) {
                ParsedRow::Short if is_complete(columns, text) => self.reject(line, Reason::CutOff),
                ParsedRow::Short => {
                    self.pending = Some((line_text, line));
                    return;
                }
                // The text is a complete row, so it is not the continuation of the pending one.
                ParsedRow::Rejected(Reason::Columns { .. }) if is_complete(columns, text) => {
                    self.reject(line, Reason::CutOff);
                }
                parsed => {
                    self.add(parsed, line);
                    return;
                }
            }
        }
        let Some(columns) = &self.columns else { return };
        if !text.split_whitespace().next().is_some_and(is_count) {
            // The text is the output of another program, or the end of a row; rows begin with a size.
            if is_continuation(text) {
                self.reject(number, Reason::CutOff);
            }
            return;
        }
        match columns.row(text, number) {
            ParsedRow::Short => self.pending = Some((text.to_owned(), number)),
            parsed => self.add(parsed, number),
        }
    }

    fn add(&mut self, parsed: ParsedRow, line: u32) {
        match parsed {
            ParsedRow::Row(row) => {
                if let Some(table) = self.tables.last_mut() {
                    table.rows.push(row);
                }
            }
            ParsedRow::Rejected(reason) => self.reject(line, reason),
            ParsedRow::Short => self.reject(line, Reason::CutOff),
        }
    }

    fn reject(&mut self, line: u32, reason: Reason) {
        if let Some(table) = self.tables.last_mut() {
            table.rejected.push(RejectedRow { line, reason });
        }
    }

    /// Rejects the pending row, if any, because it is not continued.
    fn end_row(&mut self) {
        if let Some((_, line)) = self.pending.take() {
            self.reject(line, Reason::CutOff);
        }
    }
}

fn is_count(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns true if a line consists of figures only and at least two of them have decimals, as at the end of a row.
fn is_continuation(text: &str) -> bool {
    let is_figure = |word: &str| word == "N/A" || word.parse::<f64>().is_ok_and(f64::is_finite);
    let decimals = text.split_whitespace().filter(|word| word.contains('.')).count();
    decimals >= 2 && text.split_whitespace().all(is_figure)
}

/// Returns true if a line is a complete row.
fn is_complete(columns: &Columns, text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    let begins = words.iter().take(2).all(|word| is_count(word)) && words.len() > 2;
    begins && matches!(columns.row(text, 0), ParsedRow::Row(_) | ParsedRow::Rejected(_))
}
