//! CSV logs: columns `bytes`, `time_us` and, if measured, `in_place_us`. Lines that begin with `#` are ignored.

use fabricast_topologies::fabric::suggest_names;
use fabricast_topologies::{Bytes, SourceLocation, UnitError};

use super::table::{Clock, Counting, Header, Row, Table, Timing};
use super::{MeasuredError, Reason, RejectedRow, number};

/// Names of the columns that a CSV log may have.
const COLUMNS: [&str; 3] = ["bytes", "time_us", "in_place_us"];

/// Returns true if a line is the header line of a CSV log, which contains the name of a known column.
pub(super) fn is_head(line: &str) -> bool {
    line.split(',').any(|field| COLUMNS.contains(&field.trim()))
}

/// Reads the only table of a CSV log. `source` names the log in errors.
pub(super) fn read(text: &str, source: &str) -> Result<Vec<Table>, MeasuredError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut table: Option<(Table, Head)> = None;
    // Each line is one record, because no column can contain a line break.
    let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    for (line, text) in lines {
        let record: Vec<&str> = text.split(',').map(|field| field.trim().trim_matches('"')).collect();
        match &mut table {
            None => {
                let header = Header { counting: Counting::BlocksOrWhole, ..Header::default() };
                let location = || SourceLocation { source: source.to_owned(), line, ..SourceLocation::default() };
                let head = Head::read(&record).map_err(|message| MeasuredError::invalid(location(), message))?;
                table = Some((Table { header, rows: Vec::new(), rejected: Vec::new(), line }, head));
            }
            Some((table, head)) => match head.row(&record, line) {
                Ok(row) => table.rows.push(row),
                Err(reason) => table.rejected.push(RejectedRow { line, reason }),
            },
        }
    }
    let missing =
        || MeasuredError::invalid(SourceLocation::from_source(source), "no table: expected the header `bytes,time_us`");
    table.map(|(table, _)| vec![table]).ok_or_else(missing)
}

/// Column indices of a CSV log, and its number of columns.
struct Head {
    columns: usize,
    bytes: usize,
    time: usize,
    in_place: Option<usize>,
}

impl Head {
    fn read(record: &[&str]) -> Result<Self, String> {
        let expected = "expected `bytes,time_us`, and `in_place_us` where it was measured";
        for (index, &name) in record.iter().enumerate() {
            if !COLUMNS.contains(&name) {
                let suggestions = suggest_names(name, COLUMNS);
                let hint = if suggestions.is_empty() {
                    String::new()
                } else {
                    format!("; did you mean {}?", suggestions.join(" or "))
                };
                return Err(format!("unknown column `{name}`; {expected}{hint}"));
            }
            if record.iter().take(index).any(|&before| before == name) {
                return Err(format!("column `{name}` is given twice"));
            }
        }
        let find = |name: &str| record.iter().position(|&column| column == name);
        let needed = |name: &str| find(name).ok_or_else(|| format!("no column `{name}`; {expected}"));
        let (bytes, time) = (needed("bytes")?, needed("time_us")?);
        Ok(Self { columns: record.len(), bytes, time, in_place: find("in_place_us") })
    }

    fn row(&self, record: &[&str], line: u32) -> Result<Row, Reason> {
        let field = |index: usize| record.get(index).copied().unwrap_or_default();
        if record.len() != self.columns {
            return Err(Reason::Columns { found: record.len(), expected: self.columns });
        }
        let bytes: Bytes = field(self.bytes).parse().map_err(|error: UnitError| Reason::NotANumber {
            column: "bytes",
            text: error.text,
            expected: error.expected,
        })?;
        if bytes.0 == 0 {
            return Err(Reason::NoBytes);
        }
        let mut row = Row::new(bytes, number::time("time_us", field(self.time))?, line);
        if let Some(text) = self.in_place.map(field).filter(|text| !text.is_empty()) {
            let time = number::time("in_place_us", text)?;
            row.in_place = Some(Timing { time, spread: None, clock: Clock::Collective });
        }
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use crate::measured::read_log;
    use fabricast_topologies::Picos;

    #[test]
    fn rows_comments_and_units() {
        let text = "\u{feff}# made by hand\nbytes,time_us\n256,38.748\n\n64KiB, 1e2\r\n";
        let tables = read_log(text, "f.csv").unwrap();
        let rows: Vec<_> = tables[0].rows.iter().map(|row| (row.bytes.0, row.measured(), row.line)).collect();
        assert_eq!(rows, [(256, Picos(38_748_000), 3), (65536, Picos(100_000_000), 5)]);
        assert_eq!((tables.len(), tables[0].line), (1, 2));
        let tables = read_log("time_us,in_place_us,bytes\n3,2.5,8\n4,,16\n", "f.csv").unwrap();
        assert_eq!(tables[0].rows[0].in_place.map(|timing| timing.time), Some(Picos(2_500_000)));
        assert_eq!((tables[0].rows[1].in_place, tables[0].rows[1].measured()), (None, Picos(4_000_000)));
    }

    #[test]
    fn unusable_rows_are_rejected_with_a_reason() {
        let text = "bytes,time_us\n8,1\n8\n8,NaN\n8,0\n8,-1\n0,1\n8,inf\nx,1\n8,1,2\n8,1e-9\n1.5,2\n8,2\n";
        let table = read_log(text, "f.csv").unwrap().remove(0);
        assert_eq!(table.rows.len(), 2);
        let lines: Vec<u32> = table.rejected.iter().map(|rejected| rejected.line).collect();
        assert_eq!(lines, (3..=12).collect::<Vec<u32>>());
        assert_eq!(table.rejected[1].reason.to_string(), "time_us: `NaN` is not a time in microseconds, over 0");
    }

    #[test]
    fn invalid_header_lines_are_errors() {
        for (text, expected) in [
            ("bytes,time\n8,1\n", "f.csv:1: unknown column `time`"),
            ("\n# c\nbytes,in_place_us\n", "f.csv:3: no column `time_us`"),
            ("bytes,time_us,bytes\n", "column `bytes` is given twice"),
        ] {
            let error = read_log(text, "f.csv").unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(read_log("bytes,time_us\n", "f.csv").unwrap()[0].rows.is_empty());
    }
}
