//! Columns of a table, as named by its header line, and the parsing of rows.
//!
//! The position of a column in a line is not fixed: figures have fewer decimals as they grow, and columns vary with
//! version and flags. A row is therefore split at blanks, and its optional columns (reduction, root) are determined
//! from the header line and from the number of remaining fields.

use fabricast_topologies::Picos;

use super::super::evidence::{Evidence, Factor, PrintedFigure};
use super::super::table::{Clock, Row, Spread, Timing};
use super::super::{Reason, number};

/// Columns of one side of a table: out of place or in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SideColumns {
    columns: Vec<ColumnKind>,
}

/// Kind of a measured column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnKind {
    Time,
    CpuTime,
    Bandwidth,
    Wrong,
    Shortest,
    Longest,
    P99,
    Variation,
}

/// Columns of a table, in the order of its header line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    /// True if the header line names a reduction.
    reduction: bool,
    /// True if the header line names a root.
    root: bool,
    sides: Vec<SideColumns>,
    /// Number of words of the timestamp at the end of a row (`-S`).
    stamp: usize,
}

/// Result of parsing the text of a row.
pub(super) enum ParsedRow {
    /// A usable row.
    Row(Row),
    /// A complete row that cannot be used.
    Rejected(Reason),
    /// An incomplete row, which may continue on the next line.
    Short,
}

impl Columns {
    /// Parses a header line without its `#`; `None` if the line is not a header line.
    pub fn parse_header(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        // The names of nccl-tests 2 and of nccl-tests 1, which used other ones.
        if !matches!((words.next()?, words.next()?, words.next()?), ("size" | "bytes", "count" | "N", "type")) {
            return None;
        }
        let mut columns = Self { reduction: false, root: false, sides: Vec::new(), stamp: 0 };
        for word in words {
            let column = match word {
                "redop" | "op" => {
                    columns.reduction = true;
                    continue;
                }
                "root" => {
                    columns.root = true;
                    continue;
                }
                "timestamp" => {
                    columns.stamp = 2;
                    continue;
                }
                "time" => ColumnKind::Time,
                "cputime" => ColumnKind::CpuTime,
                "algbw" | "busbw" => ColumnKind::Bandwidth,
                "#wrong" | "error" | "res" => ColumnKind::Wrong,
                "i_min" | "min" => ColumnKind::Shortest,
                "i_max" | "max" => ColumnKind::Longest,
                "i_p99" | "p99" => ColumnKind::P99,
                "i_cv%" | "cv%" => ColumnKind::Variation,
                _ => return None,
            };
            if matches!(column, ColumnKind::Time | ColumnKind::CpuTime) {
                columns.sides.push(SideColumns::default());
            }
            columns.sides.last_mut()?.columns.push(column);
        }
        let is_symmetric = columns.sides.windows(2).all(|pair| pair[0] == pair[1]);
        (is_symmetric && matches!(columns.sides.len(), 1 | 2)).then_some(columns)
    }

    /// Number of columns of a row in which no column is omitted.
    fn all(&self) -> usize {
        let measured: usize = self.sides.iter().map(|side| side.columns.len()).sum();
        3 + usize::from(self.reduction) + usize::from(self.root) + measured + self.stamp
    }

    /// Parses the text of a row; `line` is its line number in the log.
    pub fn row(&self, text: &str, line: u32) -> ParsedRow {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [size, count, dtype, rest @ ..] = words.as_slice() else { return ParsedRow::Short };
        // Old versions name a reduction in the header line and leave its field blank if there is no reduction, or omit
        // the name and fill the field.
        let (op, rest) = match rest {
            [word, rest @ ..] if word.starts_with(|c: char| c.is_ascii_alphabetic()) && *word != "N/A" => {
                (Some(*word), rest)
            }
            rest => (None, rest),
        };
        let Some(side) = self.sides.first().map(|side| side.columns.len()) else { return ParsedRow::Short };
        let all_sides = side * self.sides.len();
        // Replayed traces have blanks instead of values that were not measured; a row that is split by another message
        // ends there as well.
        let min_fields = if self.sides.len() == 2 && is_padded(text) { side } else { all_sides };
        // The root is blank if the reduction is blank.
        let rootless = !(self.root && op.is_some());
        let (root, rest) = match rest.len().checked_sub(self.stamp) {
            Some(left) if left == min_fields && rootless => (None, rest),
            Some(left) if left == min_fields + 1 => (rest.first().copied(), rest.get(1..).unwrap_or_default()),
            Some(left) if left > min_fields => {
                return ParsedRow::Rejected(Reason::Columns { found: words.len(), expected: self.all() });
            }
            _ => return ParsedRow::Short,
        };
        let measured = rest.get(..rest.len() - self.stamp).unwrap_or_default();
        match self.read([size, count, dtype], op, root, measured, line) {
            Ok(row) => ParsedRow::Row(row),
            Err(reason) => ParsedRow::Rejected(reason),
        }
    }

    fn read(
        &self,
        [size, count, dtype]: [&str; 3],
        op: Option<&str>,
        root: Option<&str>,
        measured: &[&str],
        line: u32,
    ) -> Result<Row, Reason> {
        let dtype = dtype.parse().map_err(|_| Reason::UnknownType(dtype.to_owned()))?;
        let evidence = Evidence {
            factor: None,
            reduces: self.reduction.then(|| op.is_some_and(|op| op != "none")),
            // The field of the root is blank if that of the reduction is blank.
            rooted: self.root.then(|| root.is_some_and(|root| root.starts_with(|c: char| c.is_ascii_digit()))),
        };
        let root = root.map(|text| {
            text.parse::<i64>().map_err(|_| Reason::NotANumber {
                column: "root",
                text: text.to_owned(),
                expected: "a rank, or -1",
            })
        });
        let mut row = Row {
            bytes: number::bytes(size)?,
            count: Some(number::count(count)?),
            dtype: Some(dtype),
            op: op.and_then(|op| op.parse().ok()),
            root: root.transpose()?.and_then(|root| u32::try_from(root).ok()),
            out_of_place: None,
            in_place: None,
            evidence,
            line,
        };
        let columns = self.sides.first().map(|side| side.columns.as_slice()).unwrap_or_default();
        let mut sides = measured.chunks_exact(columns.len().max(1)).map(|fields| timing(columns, fields));
        match (sides.next(), sides.next()) {
            (Some(out_of_place), Some(in_place)) => (row.out_of_place, row.in_place) = (out_of_place?, in_place?),
            // Of the two sides, only in-place calls were measured.
            (Some(in_place), None) if self.sides.len() == 2 => row.in_place = in_place?,
            (Some(out_of_place), None) => row.out_of_place = out_of_place?,
            (None, _) => {}
        }
        let factors = measured.chunks_exact(columns.len().max(1)).filter_map(|fields| factor(columns, fields));
        row.evidence.factor = factors.reduce(|left, right| left.intersection(right).unwrap_or(left));
        if row.out_of_place.is_none() && row.in_place.is_none() { Err(Reason::NoTime) } else { Ok(row) }
    }
}

/// Returns true if a text has a gap that is wider than any gap between columns; the widest column has 12 characters.
fn is_padded(text: &str) -> bool {
    const GAP: &str = "                        ";
    text.trim().contains(GAP)
}

/// Parses the time of one side; `None` if it was not measured.
fn timing(columns: &[ColumnKind], fields: &[&str]) -> Result<Option<Timing>, Reason> {
    const UNMEASURED: &str = "N/A";
    let mut timing = Timing { time: Picos::ZERO, spread: None, clock: Clock::Collective };
    let (mut shortest, mut longest, mut p99) = (None, None, None);
    for (column, &field) in columns.iter().zip(fields) {
        match column {
            ColumnKind::Time | ColumnKind::CpuTime => {
                if field == UNMEASURED {
                    return Ok(None);
                }
                timing.time = number::time("time", field)?;
                timing.clock = if *column == ColumnKind::CpuTime { Clock::Cpu } else { Clock::Collective };
            }
            ColumnKind::Bandwidth => {
                number::figure("bandwidth", field)?;
            }
            ColumnKind::Variation => {
                number::figure("cv%", field)?;
            }
            ColumnKind::Wrong if field == UNMEASURED => {}
            ColumnKind::Wrong => wrong(field)?,
            ColumnKind::Shortest => shortest = Some(number::time("min", field)?),
            ColumnKind::Longest => longest = Some(number::time("max", field)?),
            ColumnKind::P99 => p99 = Some(number::time("p99", field)?),
        }
    }
    if let (Some(min), Some(max), Some(p99)) = (shortest, longest, p99) {
        timing.spread = Some(Spread { min, max, p99 });
    }
    Ok(Some(timing))
}

/// busbw ÷ algbw of one side, within the precision of its digits.
fn factor(columns: &[ColumnKind], fields: &[&str]) -> Option<Factor> {
    let mut bandwidths =
        columns.iter().zip(fields).filter(|(column, _)| **column == ColumnKind::Bandwidth).map(|(_, field)| field);
    Factor::from_printed(PrintedFigure::read(bandwidths.next()?)?, PrintedFigure::read(bandwidths.next()?)?)
}

/// Checks the correctness column. `#wrong` counts wrong elements. The older `error` is the largest difference, which is
/// acceptable if rounding explains it.
fn wrong(field: &str) -> Result<(), Reason> {
    /// Limit of the largest difference that nccl-tests accepts for 16-bit floats, for which its limit is widest
    /// (`deltaMaxValue` before 2.12).
    const ROUNDING: f64 = 1e-2;
    let count = number::figure("#wrong", field)?;
    if count.abs() <= ROUNDING { Ok(()) } else { Err(Reason::WrongResults(count.abs().ceil() as u64)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(head: &str, row: &str) -> Result<Row, String> {
        let columns = Columns::parse_header(head).ok_or("no head")?;
        match columns.row(row, 7) {
            ParsedRow::Row(row) => Ok(row),
            ParsedRow::Rejected(reason) => Err(reason.to_string()),
            ParsedRow::Short => Err("short".to_owned()),
        }
    }

    fn us(timing: Option<Timing>) -> Option<f64> {
        timing.map(|timing| timing.time.us())
    }

    #[test]
    fn rows_of_all_versions_and_flags_are_parsed() {
        let new = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong";
        let old = "size count type redop time algbw busbw error time algbw busbw error";
        let older = "size count type time algbw busbw error time algbw busbw error";
        let first = "bytes N type op time algbw busbw res time algbw busbw res";
        let single = "size count type redop root time algbw busbw #wrong";
        let spread = "size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv% time algbw busbw #wrong i_min i_max i_p99 i_cv% timestamp";
        for (head, line, expected) in [
            (new, "8 2 float sum -1 5.83 0.00 0.00 N/A 5.78 0.00 0.00 0", (Some(5.83), Some(5.78))),
            (new, "8 2 float sum -1 1.2e+07 0.00 0.00 0 13456789 0.00 0.00 0", (Some(1.2e7), Some(13_456_789.0))),
            (new, "8 2 float sum -1                                    5.78 0.00 0.00 0", (None, Some(5.78))),
            (new, "8 2 float sum -1 5.78 0.00 0.00 0 N/A N/A N/A N/A", (Some(5.78), None)),
            (new, "8 2 float 5.83 0.00 0.00 N/A 5.78 0.00 0.00 0", (Some(5.83), Some(5.78))),
            (old, "8 2 float sum 5.83 0.00 0.00 0e+00 5.78 0.00 0.00 4e-07", (Some(5.83), Some(5.78))),
            (old, "8 2 float 5.83 0.00 0.00 0e+00 5.78 0.00 0.00 4e-07", (Some(5.83), Some(5.78))),
            (older, "8 2 float 5.83 0.00 0.00 0e+00 5.78 0.00 0.00 4e-07", (Some(5.83), Some(5.78))),
            (first, "8 2 float sum 5.83 0.00 0.00 0e+00 5.78 0.00 0.00 4e-07", (Some(5.83), Some(5.78))),
            (single, "8 2 float sum 0 5.83 0.00 0.00 N/A", (Some(5.83), None)),
            (spread, "8 2 half sum -1 5 0 0 0 1 3 2 9.5 6 0 0 0 1 3 2 9.5 2026-01-02 10:11:12", (Some(5.0), Some(6.0))),
        ] {
            let row = row(head, line).unwrap();
            assert_eq!((us(row.out_of_place), us(row.in_place)), expected, "{line}");
        }
        let row = row(spread, "8 2 half sum 3 5 0 0 0 1 4 2 9.5 6 0 0 0 1 3 2 9.5 2026-01-02 10:11:12").unwrap();
        assert_eq!(row.root, Some(3));
        assert_eq!(row.out_of_place.and_then(|timing| timing.spread).map(|spread| spread.max), Some(Picos(4_000_000)));
    }

    #[test]
    fn unusable_rows_are_rejected_with_a_reason() {
        let new = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong";
        for (line, expected) in [
            ("8 2 float sum -1 5.83 0.00 0.00 N/A 5.78 0.00 0.00", "short"),
            ("8 2 float sum -1 5.83 0.00 0.00 N/A", "short"),
            ("8 2 float sum -1 5.83 0.00 0.00 N/A 5.78 0.00 0.00 0 0", "14 columns; the header line has 13"),
            ("8 2 float sum -1 nan 0.00 0.00 N/A 5.78 0.00 0.00 0", "`nan` is not a time"),
            ("8 2 float sum -1 0.00 0.00 0.00 N/A 5.78 0.00 0.00 0", "`0.00` is not a time"),
            ("8 2 float sum -1 -3 0.00 0.00 N/A 5.78 0.00 0.00 0", "`-3` is not a time"),
            ("8 2 float sum -1 5.83 0.00 0.00 2 5.78 0.00 0.00 0", "2 wrong results"),
            ("0 0 float sum -1 5.83 0.00 0.00 0 5.78 0.00 0.00 0", "moves no bytes"),
            ("8 2 quad sum -1 5.83 0.00 0.00 0 5.78 0.00 0.00 0", "unknown element type `quad`"),
            ("8 2 float sum x 5.83 0.00 0.00 0 5.78 0.00 0.00 0", "root: `x`"),
            ("8 2 float sum -1 5.83 x 0.00 0 5.78 0.00 0.00 0", "bandwidth: `x` is not a number"),
            ("8 2 float sum -1 N/A 0 0.00 0 N/A 0.00 0.00 0", "has no time"),
        ] {
            let error = row(new, line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
        assert_eq!(Columns::parse_header(" (B) (elements) (us) (GB/s)"), None);
        assert_eq!(Columns::parse_header(" size count type redop root"), None);
        assert_eq!(Columns::parse_header(" size count type algbw time"), None);
        assert_eq!(Columns::parse_header(" size count type time algbw time"), None);
    }
}
