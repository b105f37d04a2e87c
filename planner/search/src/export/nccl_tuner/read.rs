//! Strict reader of the CSV table; errors have line and column.

use std::num::NonZeroU16;

use fabricast_topologies::Bytes;

use super::{Buffers, COLUMNS, MAX_LINE_BYTES, Table, TunerRow, names};
use crate::export::TableError;
use fabricast_libraries::nccl::{Algo, MAX_CHANNELS, Proto};

/// Number of columns that a row must have.
const REQUIRED: usize = 8;

/// Treatment of `-1` as a row's algorithm or protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MinusOneHandling {
    /// Reject the row with an error.
    Reject,
    /// Read `-1` as ring or simple, as the example plugin does with any unknown word.
    AsExample,
}

/// Reads a table; `source` is the file name used in errors. A header line with column names is skipped.
///
/// # Errors
/// [`TableError`] with line and column: an invalid word, number or field, or a line longer than the example plugin
/// reads.
pub fn read(text: &str, source: &str) -> Result<Table, TableError> {
    read_with(text, source, MinusOneHandling::Reject)
}

/// Reads a table as the example plugin does if an algorithm or a protocol is `-1`: as ring or simple. Such lines are
/// listed in [`Table::minus_one_lines`].
///
/// # Errors
/// All other errors of [`read`].
pub fn read_as_example(text: &str, source: &str) -> Result<Table, TableError> {
    read_with(text, source, MinusOneHandling::AsExample)
}

fn read_with(text: &str, source: &str, minus_one: MinusOneHandling) -> Result<Table, TableError> {
    let mut table = Table::default();
    let (mut start, mut line_number) = (0, 0u32);
    for line in text.split_inclusive('\n') {
        let offset = start;
        start += line.len();
        line_number = line_number.saturating_add(1);
        let content = line.trim_end_matches(['\n', '\r']);
        let line = Line { source, text, offset };
        if content.len() > MAX_LINE_BYTES {
            let message = format!("a line of {} bytes: expected at most {MAX_LINE_BYTES}", content.len());
            return Err(line.error(MAX_LINE_BYTES..content.len(), message));
        }
        if let Some(comment) = content.strip_prefix('#') {
            table.comments.push(comment.strip_prefix(' ').unwrap_or(comment).to_owned());
            continue;
        }
        let is_header = table.rows.is_empty() && content.split(',').next().map(str::trim) == Some(COLUMNS[0]);
        if content.trim().is_empty() || is_header {
            continue;
        }
        let (row, named) = line.row(content, minus_one)?;
        table.rows.push(row);
        table.lines.push(line_number);
        if named == Completeness::Partly {
            table.minus_one_lines.push(line_number);
        }
    }
    Ok(table)
}

/// Completeness of a row: names for both algorithm and protocol, or `-1` for at least one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Completeness {
    Both,
    Partly,
}

/// Line of a file: the file's name and text, and the line's offset in bytes.
struct Line<'a> {
    source: &'a str,
    text: &'a str,
    offset: usize,
}

/// Field of a row without surrounding blanks, and its offset in the line, in bytes.
#[derive(Clone, Copy)]
struct Field<'a> {
    word: &'a str,
    offset: usize,
}

impl Line<'_> {
    fn error(&self, bytes: std::ops::Range<usize>, message: impl Into<String>) -> TableError {
        TableError::new(self.source, self.text, self.offset + bytes.start..self.offset + bytes.end, message)
    }

    fn field_error(&self, field: Field<'_>, message: impl Into<String>) -> TableError {
        self.error(field.offset..field.offset + field.word.len(), message)
    }

    fn row(&self, content: &str, minus_one: MinusOneHandling) -> Result<(TunerRow, Completeness), TableError> {
        let mut fields = [Field { word: "", offset: 0 }; COLUMNS.len()];
        let (mut count, mut offset) = (0, 0);
        for part in content.split(',') {
            let word = part.trim();
            let field = Field { word, offset: offset + (part.len() - part.trim_start().len()).min(part.len()) };
            match fields.get_mut(count) {
                Some(slot) => *slot = field,
                None => {
                    return Err(self.field_error(field, format!("an eleventh field: expected {}", COLUMNS.join(","))));
                }
            }
            count += 1;
            offset += part.len() + 1;
        }
        if count < REQUIRED {
            let missing = COLUMNS.get(count).copied().unwrap_or_default();
            let message = format!("the row ends before {missing}: expected {}", COLUMNS.join(","));
            return Err(self.error(content.len()..content.len(), message));
        }
        let [function, min, max, algo, proto, channels, nodes, ranks, pipe_ops, buffers] = fields;
        let is_minus_one = |field: Field<'_>| field.word == "-1";
        let completeness =
            if is_minus_one(algo) || is_minus_one(proto) { Completeness::Partly } else { Completeness::Both };
        if let (Completeness::Partly, MinusOneHandling::Reject) = (completeness, minus_one) {
            let (field, kind) = if is_minus_one(algo) { (algo, "algorithm") } else { (proto, "protocol") };
            let message = format!(
                "{kind} `-1`: some plugins leave it to NCCL; NCCL's example plugin uses ring and simple for unknown names. Expected a name"
            );
            return Err(self.field_error(field, message));
        }
        let row = TunerRow {
            function: names::function(function.word).map_err(|e| self.field_error(function, e.to_string()))?,
            min_bytes: self.bytes(min, "min_bytes")?,
            max_bytes: self.bytes(max, "max_bytes")?,
            algo: match is_minus_one(algo) {
                true => Algo::Ring,
                false => names::algo(algo.word).map_err(|e| self.field_error(algo, e.to_string()))?,
            },
            proto: match is_minus_one(proto) {
                true => Proto::Simple,
                false => names::proto(proto.word).map_err(|e| self.field_error(proto, e.to_string()))?,
            },
            channels: self.channels(channels)?,
            nodes: self.condition(nodes, "nNodes", 1)?,
            ranks: self.condition(ranks, "nRanks", 1)?,
            pipe_ops: if count > 8 { self.condition(pipe_ops, "numPipeOps", 0)? } else { None },
            buffers: if count > 9 { self.buffers(buffers)? } else { Buffers::Any },
        };
        if row.min_bytes > row.max_bytes {
            let message = format!("max_bytes {} is below min_bytes {}", row.max_bytes.0, row.min_bytes.0);
            return Err(self.field_error(max, message));
        }
        Ok((row, completeness))
    }

    fn bytes(&self, field: Field<'_>, column: &str) -> Result<Bytes, TableError> {
        let expected = || format!("{column} `{}`: expected a whole number of bytes", field.word);
        field.word.parse().map(Bytes).map_err(|_| self.field_error(field, expected()))
    }

    fn channels(&self, field: Field<'_>) -> Result<Option<NonZeroU16>, TableError> {
        if field.word == "-1" {
            return Ok(None);
        }
        let known = field.word.parse::<NonZeroU16>().ok().filter(|count| count.get() <= MAX_CHANNELS);
        let expected = || format!("channels `{}`: expected 1 to {MAX_CHANNELS}, or -1", field.word);
        known.map(Some).ok_or_else(|| self.field_error(field, expected()))
    }

    fn condition(&self, field: Field<'_>, column: &str, min: u32) -> Result<Option<u32>, TableError> {
        if field.word == "-1" {
            return Ok(None);
        }
        // The plugin compares the number with a C `int`.
        let known = field.word.parse::<u32>().ok().filter(|&n| n >= min && i32::try_from(n).is_ok());
        let expected = || format!("{column} `{}`: expected a whole number from {min}, or -1 for any", field.word);
        known.map(Some).ok_or_else(|| self.field_error(field, expected()))
    }

    fn buffers(&self, field: Field<'_>) -> Result<Buffers, TableError> {
        match field.word {
            "-1" => Ok(Buffers::Any),
            "0" => Ok(Buffers::Plain),
            "1" => Ok(Buffers::Registered),
            word => Err(self.field_error(field, format!("regBuff `{word}`: expected 0, 1 or -1 for either"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_libraries::nccl::Function;

    #[test]
    fn rows_with_eight_to_ten_fields_comments_and_blanks_are_read() {
        let text = "# made by hand\n\ncollective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks\r\n\
                    allreduce,0,65536,tree,simple,2,1,-1,-1,1\r\n  broadcast ,\t0, 32768,ring,ll,-1,1,8\nreduce,1,2,ring,ll128,4,-1,-1,3";
        let table = read(text, "t.csv").unwrap();
        assert_eq!(table.comments, ["made by hand"]);
        assert_eq!(table.lines, [4, 5, 6]);
        let first = table.rows[0];
        assert_eq!((first.function, first.algo, first.proto), (Function::AllReduce, Algo::Tree, Proto::Simple));
        assert_eq!((first.channels.map(NonZeroU16::get), first.nodes, first.ranks), (Some(2), Some(1), None));
        assert_eq!((first.pipe_ops, first.buffers), (None, Buffers::Registered));
        assert_eq!((table.rows[1].channels, table.rows[1].ranks), (None, Some(8)));
        assert_eq!((table.rows[2].pipe_ops, table.rows[2].buffers), (Some(3), Buffers::Any));
    }

    /// NCCL's plugins/tuner/example/plugin.c: `parseAlgorithm` and `parseProtocol` default to ring and simple.
    #[test]
    fn minus_one_reads_as_ring_and_simple_like_example_plugin() {
        let text =
            "allreduce,0,9,-1,-1,32,2,16,-1,-1\nallreduce,10,19,tree,-1,4,-1,-1\nallreduce,20,29,nvls,simple,4,-1,-1\n";
        let table = read_as_example(text, "t.csv").unwrap();
        let named: Vec<_> = table.rows.iter().map(|row| (row.algo, row.proto)).collect();
        assert_eq!(named, [(Algo::Ring, Proto::Simple), (Algo::Tree, Proto::Simple), (Algo::Nvls, Proto::Simple)]);
        assert_eq!(table.minus_one_lines, [1, 2]);
        let error = read(text, "t.csv").unwrap_err();
        assert_eq!((error.location.line, error.location.column), (1, 15));
        assert!(error.message.contains("uses ring and simple"), "{error}");
        assert!(read_as_example("allreduce,0,9,-2,ll,32,2,16", "t.csv").is_err());
    }

    #[test]
    fn invalid_rows_are_rejected_with_location() {
        for (text, line, column, expected) in [
            ("allreduce,0,1,ring,ll,1,1", 1, 26, "nRanks"),
            ("#\nallreduced,0,1,ring,ll,1,1,8", 2, 1, "allreduce"),
            ("allreduce,0,1,rings,ll,1,1,8", 1, 15, "ring"),
            ("allreduce,0,1,ring,LL,1,1,8", 1, 20, "protocol"),
            ("allreduce,0,-1,ring,ll,1,1,8", 1, 13, "max_bytes"),
            ("allreduce,0,1,ring,ll,0,1,8", 1, 23, "1 to 64"),
            ("allreduce,0,1,ring,ll,65,1,8", 1, 23, "1 to 64"),
            ("allreduce,0,1,ring,ll,1,0,8", 1, 25, "nNodes"),
            ("allreduce,0,1,ring,ll,1,1,", 1, 27, "nRanks"),
            ("allreduce,9, 8,ring,ll,1,1,8", 1, 14, "below"),
            ("allreduce,0,1,ring,ll,1,1,8,1,2", 1, 31, "regBuff"),
            ("allreduce,0,1,ring,ll,1,1,8,1,1,7", 1, 33, "eleventh"),
        ] {
            let error = read(text, "t.csv").unwrap_err();
            assert_eq!((error.location.line, error.location.column), (line, column), "{text}: {error}");
            assert!(error.message.contains(expected), "{text}: {error}");
        }
        let long = format!("#{}", "x".repeat(MAX_LINE_BYTES));
        assert_eq!(read(&long, "t.csv").unwrap_err().location.column, 256);
    }
}
