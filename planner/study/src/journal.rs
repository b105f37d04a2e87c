//! Journal of runs as lines of a file (`runs.jsonl`), so that an interrupted study resumes.
//!
//! A line is written when its run has ended. Only the last line may be incomplete, if the process was killed while
//! writing; its run is executed again. Any other damaged line is an error with its line number, because only the user
//! can determine the cause. The checksum of a line (FNV-1a of its key, title and outcome as written) detects damage
//! that leaves valid JSON, such as an outcome under another key. Lines of format 1, whose checksum covered only the
//! outcome, are counted and dropped; their runs are executed again.

use fabricast_topologies::visible::visible_in_strings;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::answer::ResultRow;
use super::cost::RunCosts;
use super::key::Fingerprint;
use super::prediction::Prediction;
use super::run::{Outcome, Run};

/// Format number of the lines that this version writes.
const FORMAT: u32 = 2;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// Format number of the line: [`FORMAT`] for lines of this version.
    run: u32,
    key: String,
    title: String,
    sum: String,
    outcome: Box<RawValue>,
}

/// Format number of a line, which lines of all formats have.
#[derive(Deserialize)]
struct FormatNumber {
    run: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OutcomeText {
    Done(Box<ResultRow>),
    Refused(String),
}

/// Runs read from a journal, with the state of its file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Journal {
    /// Runs of complete lines, in file order.
    pub runs: Vec<Run>,
    /// Length of the file in bytes up to the end of its last complete line.
    pub complete_bytes: usize,
    /// Number of an incomplete last line, from 1; `None` if the last line is complete.
    pub incomplete_line: Option<usize>,
    /// Number of dropped lines of an earlier format.
    pub outdated: usize,
}

/// Error of an invalid line of a journal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {message}")]
pub struct JournalError {
    /// Name of the journal's file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: usize,
    /// Description of the line's error.
    pub message: String,
}

/// Formats a run as a journal line that ends with a line break. Hidden characters are escaped before the checksum is
/// computed.
///
/// # Errors
/// Serialization errors, which no content of a run causes.
pub fn line(run: &Run) -> Result<String, serde_json::Error> {
    let outcome = match &run.outcome {
        Outcome::Done(prediction) => OutcomeText::Done(Box::new(ResultRow::new(prediction, &RunCosts::default()))),
        Outcome::Refused(reason) => OutcomeText::Refused(reason.clone()),
    };
    let outcome = RawValue::from_string(visible_in_strings(&serde_json::to_string(&outcome)?).into_owned())?;
    let mut line =
        Line { run: FORMAT, key: run.key.to_string(), title: run.title.clone(), sum: String::new(), outcome };
    line.sum = line.checksum();
    Ok(format!("{}\n", visible_in_strings(&serde_json::to_string(&line)?)))
}

impl Line {
    /// Returns the checksum of the key, title and outcome of a line.
    fn checksum(&self) -> String {
        let mut fingerprint = Fingerprint::new();
        fingerprint.hash(&(&self.key, &self.title, self.outcome.get()));
        fingerprint.key().to_string()
    }
}

/// Reads a journal; `file` names it in errors. Invalid UTF-8 is accepted only in an incomplete last line.
///
/// # Errors
/// [`JournalError`]: an invalid or damaged line.
pub fn read(bytes: &[u8], file: &str) -> Result<Journal, JournalError> {
    // Skip a byte order mark, which an editor may have added.
    let (bom, bytes) = bytes.split_at(if bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 });
    let mut journal = Journal { complete_bytes: bom.len(), ..Journal::default() };
    for (number, line) in (1..).zip(bytes.split_inclusive(|&byte| byte == b'\n')) {
        // The journal of a shard without runs is an empty line.
        if line == b"\n" || line == b"\r\n" {
            journal.complete_bytes += line.len();
            continue;
        }
        match read_line(line) {
            // A line that lacks only its final line break is complete.
            Ok(content) => {
                match content {
                    LineContent::Run(run) => journal.runs.push(*run),
                    LineContent::Outdated => journal.outdated += 1,
                }
                journal.complete_bytes += line.len();
            }
            Err(_) if line.last() != Some(&b'\n') => journal.incomplete_line = Some(number),
            Err(message) => return Err(JournalError { file: file.to_owned(), line: number, message }),
        }
    }
    Ok(journal)
}

/// Content of a journal line.
enum LineContent {
    Run(Box<Run>),
    /// Run in an earlier format, which is dropped.
    Outdated,
}

fn read_line(line: &[u8]) -> Result<LineContent, String> {
    let invalid_line = |reason: &dyn std::fmt::Display| format!("not a run of a study: {reason}");
    let text = std::str::from_utf8(line).map_err(|_| invalid_line(&"no text"))?;
    // Lines of other formats may have other keys.
    match serde_json::from_str(text) {
        Ok(FormatNumber { run }) if (1..FORMAT).contains(&run) => return Ok(LineContent::Outdated),
        Ok(FormatNumber { run }) if run != FORMAT => {
            return Err(format!("format {run}, but this version of fabricast reads format {FORMAT}"));
        }
        _ => {}
    }
    let line: Line = serde_json::from_str(text)
        .map_err(|error| invalid_line(&format!("{}, column {}", message_without_position(&error), error.column())))?;
    if line.sum != line.checksum() {
        return Err("damaged: its checksum does not match".to_owned());
    }
    let outcome = match serde_json::from_str(line.outcome.get())
        .map_err(|error| invalid_line(&message_without_position(&error)))?
    {
        OutcomeText::Done(row) => {
            Outcome::Done(Box::new(Prediction::from_row(&row).map_err(|error| invalid_line(&error))?))
        }
        OutcomeText::Refused(reason) => Outcome::Refused(reason),
    };
    let key = line.key.parse().map_err(|_| invalid_line(&"its key is not a number"))?;
    Ok(LineContent::Run(Box::new(Run { key, title: line.title, outcome })))
}

/// Returns the message of a JSON error without its line number, which is always 1 for a single line.
fn message_without_position(error: &serde_json::Error) -> String {
    let position = format!(" at line {} column {}", error.line(), error.column());
    error.to_string().replacen(&position, "", 1)
}
