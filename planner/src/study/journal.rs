//! Runs as lines of a file (`runs.jsonl`), so that a study that was interrupted goes on where it was.
//!
//! A line is written when its run has ended, and is whole or the last: a line that lacks its end was being written when the
//! process died, and its run is made again. Every other line that is not as it was written is an error with its number:
//! someone else wrote it, or it was damaged, and nobody but the user knows which. A line's sum (FNV-1a of its key, its title and
//! its outcome, as they are written) detects damage that leaves JSON: an outcome under another run's key is one. Lines of an earlier
//! format, whose sum covered the outcome alone, are counted and dropped; their runs are made again.

use fabricast_topologies::visible::visible_in_strings;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::answer::ResultRow;
use super::key::Fingerprint;
use super::run::{Outcome, Run};

/// The number of this format.
const FORMAT: u32 = 2;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// [`FORMAT`].
    run: u32,
    key: String,
    title: String,
    sum: String,
    outcome: Box<RawValue>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Written {
    Done(Box<ResultRow>),
    Refused(String),
}

/// The runs of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Journal {
    /// In the order of the file.
    pub runs: Vec<Run>,
    /// Bytes of the file up to the end of its last whole line.
    pub whole: usize,
    /// The number of a last line that lacks its end, where there is one.
    pub torn: Option<usize>,
    /// Lines of an earlier format, which are dropped.
    pub outdated: usize,
}

/// A line that is no run's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {message}")]
pub struct JournalError {
    /// The file.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// What is wrong with it.
    pub message: String,
}

/// A run as a line, with its end. Hidden characters are escaped before the sum is taken, which is that of the outcome as it is written.
///
/// # Errors
/// None that a run could bring about.
pub fn line(run: &Run) -> Result<String, serde_json::Error> {
    let outcome = match &run.outcome {
        Outcome::Done(row) => Written::Done(row.clone()),
        Outcome::Refused(why) => Written::Refused(why.clone()),
    };
    let outcome = RawValue::from_string(visible_in_strings(&serde_json::to_string(&outcome)?).into_owned())?;
    let mut line =
        Line { run: FORMAT, key: run.key.to_string(), title: run.title.clone(), sum: String::new(), outcome };
    line.sum = line.checksum();
    Ok(format!("{}\n", visible_in_strings(&serde_json::to_string(&line)?)))
}

impl Line {
    /// The sum of everything that a line says of its run.
    fn checksum(&self) -> String {
        let mut print = Fingerprint::new();
        print.take(&(&self.key, &self.title, self.outcome.get()));
        print.key().to_string()
    }
}

/// Reads a file of runs; `file` names it in errors. Bytes that are no text can stand in a torn last line only.
///
/// # Errors
/// [`JournalError`]: a line that is no run's, or not as it was written.
pub fn read(bytes: &[u8], file: &str) -> Result<Journal, JournalError> {
    // An editor may have left a byte order mark.
    let (mark, bytes) = bytes.split_at(if bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 });
    let mut journal = Journal { whole: mark.len(), ..Journal::default() };
    for (number, line) in (1..).zip(bytes.split_inclusive(|&byte| byte == b'\n')) {
        match one(line) {
            // A line may lack nothing but its end.
            Ok(found) => {
                match found {
                    Found::Run(run) => journal.runs.push(*run),
                    Found::Outdated => journal.outdated += 1,
                }
                journal.whole += line.len();
            }
            Err(_) if line.last() != Some(&b'\n') => journal.torn = Some(number),
            Err(message) => return Err(JournalError { file: file.to_owned(), line: number, message }),
        }
    }
    Ok(journal)
}

/// The content of a line.
enum Found {
    Run(Box<Run>),
    /// A run of an earlier format.
    Outdated,
}

fn one(line: &[u8]) -> Result<Found, String> {
    let foreign = |why: &dyn std::fmt::Display| format!("not a run of a study: {why}");
    let text = std::str::from_utf8(line).map_err(|_| foreign(&"no text"))?;
    let line: Line = serde_json::from_str(text)
        .map_err(|error| foreign(&format!("{}, column {}", without_place(&error), error.column())))?;
    if (1..FORMAT).contains(&line.run) {
        return Ok(Found::Outdated);
    }
    if line.run != FORMAT {
        return Err(format!("format {}, and this version reads format {FORMAT}", line.run));
    }
    if line.sum != line.checksum() {
        return Err("damaged: its sum is another".to_owned());
    }
    let outcome = match serde_json::from_str(line.outcome.get()).map_err(|error| foreign(&without_place(&error)))? {
        Written::Done(row) => Outcome::Done(row),
        Written::Refused(why) => Outcome::Refused(why),
    };
    let key = line.key.parse().map_err(|_| foreign(&"its key is no number"))?;
    Ok(Found::Run(Box::new(Run { key, title: line.title, outcome })))
}

/// What the JSON reader says of a text that is one line of a file, without the number that this line has by itself.
fn without_place(error: &serde_json::Error) -> String {
    let place = format!(" at line {} column {}", error.line(), error.column());
    error.to_string().replacen(&place, "", 1)
}
