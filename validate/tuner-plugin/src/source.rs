//! The file that the table comes from: which one, what is in it, and what of it concerns a communicator.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::choices::{Choices, Row};
use crate::log::Log;

/// A larger file is not read: it is none.
const LARGEST: u64 = 64 << 20;

/// A file that is to hold a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    path: PathBuf,
}

/// Why a file is no table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    /// Counted from 1; 0 where it has no line.
    pub line: u32,
    /// Likewise.
    pub column: u32,
    /// In words.
    pub reason: String,
}

impl Unusable {
    fn whole(reason: impl Into<String>) -> Self {
        Self { line: 0, column: 0, reason: reason.into() }
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.column) {
            (0, _) => f.write_str(&self.reason),
            (line, 0) => write!(f, "line {line}: {}", self.reason),
            (line, column) => write!(f, "line {line}, column {column}: {}", self.reason),
        }
    }
}

impl Source {
    /// What may name the file; the first that is set and not empty counts. The second is that of NCCL's example plugin.
    pub const VARIABLES: [&str; 2] = ["FABRICAST_TUNER_FILE", "NCCL_TUNER_CONFIG_FILE"];

    /// The file that the environment names.
    #[must_use]
    pub fn of_environment() -> Option<Self> {
        let named = |name: &&str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
        Self::VARIABLES.iter().find_map(named).map(|path| Self { path: path.into() })
    }

    /// This file.
    #[must_use]
    pub fn file(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// What it says for so many ranks on so many nodes; nothing, and a warning, where it cannot be used.
    #[must_use]
    pub fn choices(&self, ranks: usize, nodes: usize, log: Log) -> Choices {
        let path = self.path.display();
        match self.read(ranks, nodes) {
            Ok(found) if found.choices.rows() == 0 => {
                log.start(format_args!(
                    "{path}: none of {} rows is for {ranks} ranks on {nodes} nodes: NCCL chooses",
                    found.all
                ));
                found.choices
            }
            Ok(found) => {
                log.start(format_args!(
                    "{path}: {} of {} rows are for {ranks} ranks on {nodes} nodes",
                    found.choices.rows(),
                    found.all
                ));
                found.choices
            }
            Err(unusable) => {
                log.warn(format_args!("{path}: {unusable}; the table is not used, NCCL chooses"));
                Choices::default()
            }
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`Unusable`].
    pub fn read(&self, ranks: usize, nodes: usize) -> Result<Found, Unusable> {
        let text = text_of(&self.path)?;
        let (all, rows) = rows_of(&text, ranks, nodes)?;
        let choices = Choices::new(rows)
            .map_err(|_| Unusable::whole("too many rows name numbers of operations, of groups or of registered buffers"))?;
        Ok(Found { choices, all })
    }
}

/// What a file says.
#[derive(Debug, Default)]
pub struct Found {
    /// What concerns the communicator.
    pub choices: Choices,
    /// Rows in the file.
    pub all: usize,
}

/// A file's text. Pipes and devices are refused, which may have no end or never begin.
fn text_of(path: &Path) -> Result<String, Unusable> {
    let is_file = std::fs::metadata(path).map_err(|error| Unusable::whole(error.to_string()))?.is_file();
    if !is_file {
        return Err(Unusable::whole("not a regular file"));
    }
    let file = File::open(path).map_err(|error| Unusable::whole(error.to_string()))?;
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| Unusable::whole(error.to_string()))?;
    if bytes.len() as u64 > LARGEST {
        return Err(Unusable::whole(format!("larger than {} MiB", LARGEST >> 20)));
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = before.iter().filter(|&&byte| byte == b'\n').count() as u32 + 1;
        Unusable { line, column: 0, reason: "not UTF-8".to_owned() }
    })
}

/// All rows, by number, and those that concern the communicator.
fn rows_of(text: &str, ranks: usize, nodes: usize) -> Result<(usize, Vec<Row>), Unusable> {
    use fabricast_planner::library::nccl::{Algo, Function, Proto};
    let (mut all, mut rows) = (0, Vec::new());
    for (line, content) in (1_u32..).zip(text.lines()) {
        let content = content.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let fields: Vec<&str> = content.split(',').map(str::trim).collect();
        let bad = |column: u32, reason: &str| Unusable { line, column, reason: reason.to_owned() };
        if !(8..=10).contains(&fields.len()) {
            return Err(bad(0, "8 to 10 fields are expected"));
        }
        let field = |at: usize| fields.get(at).copied();
        let number = |at: usize| -> Result<u64, Unusable> {
            field(at).unwrap_or("").parse().map_err(|_| bad(0, "a number is expected"))
        };
        let optional = |at: usize| -> Result<Option<i32>, Unusable> {
            let Some(text) = field(at) else { return Ok(None) };
            let number: i32 = text.parse().map_err(|_| bad(0, "a number is expected"))?;
            Ok(Some(number).filter(|&number| number != -1))
        };
        const FUNCTIONS: [&str; 5] = ["broadcast", "reduce", "allgather", "reducescatter", "allreduce"];
        const ALGOS: [&str; 7] = ["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"];
        const PROTOS: [&str; 3] = ["ll", "ll128", "simple"];
        let word = |at: usize, known: &[&str]| {
            known.iter().position(|one| Some(*one) == field(at)).ok_or_else(|| bad(0, "no such word"))
        };
        let row = Row {
            function: Function::ALL[word(0, &FUNCTIONS)?],
            least: number(1)?,
            most: number(2)?,
            algorithm: Algo::ALL[word(3, &ALGOS)?],
            protocol: Proto::ALL[word(4, &PROTOS)?],
            channels: optional(5)?.and_then(|n| u8::try_from(n).ok()).and_then(std::num::NonZeroU8::new),
            operations: optional(8)?,
            registered: optional(9)?,
            line,
        };
        all += 1;
        let same = |at: usize, is: usize| -> Result<bool, Unusable> {
            Ok(optional(at)?.is_none_or(|n| usize::try_from(n) == Ok(is)))
        };
        if same(6, nodes)? && same(7, ranks)? {
            rows.push(row);
        }
    }
    Ok((all, rows))
}
