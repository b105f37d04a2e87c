//! Reader and writer of Open MPI's classic rule format: whole numbers and `#` comments.

use std::fmt::Write as _;

use fabricast_topologies::Bytes;

use super::{Communicator, Distribution, Routine, Rule, Rules};
use crate::export::TableError;

/// Returns the rules as text. The format has no upper limit for ranks, so only the smallest number of ranks of each
/// communicator is written.
#[must_use]
pub fn write(rules: &Rules) -> String {
    let mut text: String = rules.comments.iter().map(|line| format!("# {line}\n")).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{} # collectives", rules.routines.len());
    for (routine, communicators) in &rules.routines {
        let _ = writeln!(text, "{} # {}", routine.id(), routine.name());
        let _ = writeln!(text, "{} # communicator sizes", communicators.len());
        for communicator in communicators {
            let _ = writeln!(text, "{} # ranks", communicator.min_ranks);
            let _ = writeln!(text, "{} # bytes from, algorithm, fan-out, segment", communicator.rules.len());
            for rule in &communicator.rules {
                let name = routine.algorithm(rule.algorithm).unwrap_or_default();
                let Rule { min_bytes, algorithm, fanout, segment, .. } = *rule;
                let _ = writeln!(text, "{} {algorithm} {fanout} {segment} # {name}", min_bytes.0);
            }
        }
    }
    text
}

/// Largest count or id that the reader accepts.
const MAX_COUNT: u64 = 1_000_000;

/// Reads rules; `source` is the file name used in errors.
///
/// # Errors
/// [`TableError`] with line and column: a word that is not a number, an invalid number, a premature end, or numbers
/// after the end.
pub fn read(text: &str, source: &str) -> Result<Rules, TableError> {
    let mut numbers = Numbers { text, source, offset: 0, comments: Vec::new() };
    let version = numbers.version()?;
    let mut routines: Vec<(Routine, Vec<Communicator>)> = Vec::new();
    for _ in 0..numbers.next("the number of collectives", MAX_COUNT)?.value {
        let id = numbers.next("a collective's id", MAX_COUNT)?;
        let routine = Routine::from_id(id.value);
        let routine = routine.ok_or_else(|| numbers.number_error(&id, "expected the id of a collective, 0 to 21"))?;
        if routines.iter().any(|(known, _)| *known == routine) {
            return Err(numbers.number_error(&id, format!("{} is given twice: expected each once", routine.name())));
        }
        let mut communicators: Vec<Communicator> = Vec::new();
        for _ in 0..numbers.next("the number of communicator sizes", MAX_COUNT)?.value {
            let ranks = numbers.next("a communicator's size", i32::MAX as u64)?;
            let min_ranks = ranks.value as u32;
            if let Some(last) = communicators.last_mut() {
                if min_ranks <= last.min_ranks {
                    return Err(numbers.number_error(&ranks, "expected communicator sizes in ascending order"));
                }
                last.max_ranks = min_ranks - 1;
            }
            let mut rules: Vec<Rule> = Vec::new();
            for _ in 0..numbers.next("the number of message sizes", MAX_COUNT)?.value {
                let bytes = numbers.next("a message size", i64::MAX as u64)?;
                match rules.last_mut() {
                    None if bytes.value != 0 => {
                        return Err(numbers.number_error(&bytes, "the first message size: expected 0"));
                    }
                    Some(last) if bytes.value <= last.min_bytes.0 => {
                        return Err(numbers.number_error(&bytes, "expected message sizes in ascending order"));
                    }
                    Some(last) => last.max_bytes = Bytes(bytes.value - 1),
                    None => {}
                }
                let algorithm = numbers.next("an algorithm", i32::MAX as u64)?;
                if routine.algorithm(algorithm.value as u32).is_none() {
                    let message =
                        format!("{} has no algorithm {}: {}", routine.name(), algorithm.value, routine.expected());
                    return Err(numbers.number_error(&algorithm, message));
                }
                let fanout = numbers.next("a fan-out", i32::MAX as u64)?.value as u32;
                let segment = numbers.next("a segment size", i32::MAX as u64)?.value;
                if version > 1 {
                    numbers.skip_outstanding_requests()?;
                }
                rules.push(Rule {
                    min_bytes: Bytes(bytes.value),
                    max_bytes: Bytes(u64::MAX),
                    algorithm: algorithm.value as u32,
                    fanout,
                    segment,
                });
            }
            communicators.push(Communicator { min_ranks, max_ranks: u32::MAX, distribution: Distribution::Any, rules });
        }
        routines.push((routine, communicators));
    }
    numbers.end()?;
    Ok(Rules { comments: numbers.comments, routines })
}

struct Numbers<'a> {
    text: &'a str,
    source: &'a str,
    offset: usize,
    comments: Vec<String>,
}

struct Number {
    value: u64,
    start: usize,
    end: usize,
}

impl<'a> Numbers<'a> {
    fn remaining(&self) -> &'a str {
        self.text.get(self.offset..).unwrap_or_default()
    }

    fn number_error(&self, number: &Number, message: impl Into<String>) -> TableError {
        TableError::new(self.source, self.text, number.start..number.end, message)
    }

    /// Skips blanks and comments before the next number.
    fn skip(&mut self) {
        loop {
            let rest = self.remaining();
            let blank = rest.len() - rest.trim_start().len();
            self.offset += blank;
            let Some(comment) = rest.get(blank..).and_then(|rest| rest.strip_prefix('#')) else { return };
            let line = comment.lines().next().unwrap_or_default();
            // Comments on separate lines are stored in the rules; comments behind numbers are not.
            let before = self.text.get(..self.offset).unwrap_or_default();
            if before.is_empty() || before.ends_with('\n') {
                self.comments.push(line.trim().to_owned());
            }
            self.offset += 1 + line.len();
        }
    }

    /// Reads the optional version word of newer files, whose rules may have a fifth number. Returns 1 if the file has
    /// no version word.
    fn version(&mut self) -> Result<u64, TableError> {
        match self.remaining().strip_prefix("rule-file-version-") {
            None => Ok(1),
            Some(_) => {
                self.offset += "rule-file-version-".len();
                Ok(self.next("a version", MAX_COUNT)?.value)
            }
        }
    }

    fn next(&mut self, description: &str, max: u64) -> Result<Number, TableError> {
        self.skip();
        let rest = self.remaining();
        let word = rest.split(|c: char| c.is_whitespace() || c == '#').next().unwrap_or_default();
        let (from, to) = (self.offset, self.offset + word.len());
        if word.is_empty() {
            return Err(TableError::new(
                self.source,
                self.text,
                from..to,
                format!("the file ends before {description}"),
            ));
        }
        self.offset = to;
        let value = word.parse::<u64>().ok().filter(|&value| value <= max && word.bytes().all(|b| b.is_ascii_digit()));
        let message = || format!("`{word}`: expected {description}, a whole number from 0 to {max}");
        let value = value.ok_or_else(|| TableError::new(self.source, self.text, from..to, message()))?;
        Ok(Number { value, start: from, end: to })
    }

    /// Skips a fifth number on the line (outstanding requests), if there is one.
    fn skip_outstanding_requests(&mut self) -> Result<(), TableError> {
        let rest = self.remaining();
        let line = rest.split(['\n', '#']).next().unwrap_or_default();
        if !line.trim().is_empty() {
            self.next("requests", MAX_COUNT)?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), TableError> {
        self.skip();
        if self.remaining().is_empty() {
            return Ok(());
        }
        let at = self.offset..self.text.len();
        Err(TableError::new(self.source, self.text, at, "more numbers than the counts before them state"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_rules_are_rejected_with_location() {
        for (text, line, column, expected) in [
            ("", 1, 1, "ends before the number of collectives"),
            ("1\n2\n1\n4\n1\n0 9 0 0", 6, 3, "has no algorithm 9: expected 0 or one of 1 basic_linear"),
            ("1\r\n2\r\n1\r\n4\r\n1\r\n8 3 0 0", 6, 1, "expected 0"),
            ("1\n2\n1\n4\n2\n0 3 0 0\n0 4 0 0", 7, 1, "ascending order"),
            ("1\n2\n2\n4\n1\n0 3 0 0\n4\n1\n0 3 0 0", 7, 1, "ascending order"),
            ("1\n2\n1\n4\n1\n0 3 0", 6, 6, "ends before a segment size"),
            ("1\n2\n1\n4\n1\n-1 3 0 0", 6, 1, "a message size"),
            ("1\n2\n1\n4\n1\n9223372036854775808 3 0 0", 6, 1, "0 to 9223372036854775807"),
            ("1\n22\n", 2, 1, "0 to 21"),
            ("1\n2\n0\n7\n", 4, 1, "more numbers"),
            ("2\n2\n0\n2\n0\n", 4, 1, "allreduce is given twice"),
            ("1\n2\n1\n4\n1\n0 three 0 0", 6, 3, "`three`"),
            ("rule-file-version-x\n", 1, 19, "a version"),
        ] {
            let error = read(text, "rules.txt").unwrap_err();
            assert_eq!((error.location.line, error.location.column), (line, column), "{text}: {error}");
            assert!(error.message.contains(expected), "{text}: {error}");
        }
    }
}
