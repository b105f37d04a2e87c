//! The file that the table comes from: which one, what is in it, and what of it concerns a communicator. A CSV of NCCL's example tuner,
//! or a plan that was saved, of which the table is made as `table --to nccl-tuner` makes it.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use fabricast_planner::export::TableError;
use fabricast_planner::export::nccl_tuner::{self, Table};

use crate::choices::Choices;
use crate::log::Log;

/// A larger file is not read: it is none.
const LARGEST: u64 = 64 << 20;

/// A file that is to hold a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    path: PathBuf,
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
        let table = match self.read() {
            Ok(table) => table,
            Err(error) => {
                log.warn(format_args!("{error}; the table is not used, NCCL chooses"));
                return Choices::default();
            }
        };
        let all = table.rows.len();
        // More than the format can name are none that it names.
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let choices = Choices::new(table, number(nodes), number(ranks));
        let (path, own) = (self.path.display(), choices.rows());
        let rest = if own == 0 { ": NCCL chooses" } else { "" };
        log.start(format_args!("{path}: {own} of {all} rows are for {ranks} ranks on {nodes} nodes{rest}"));
        choices
    }

    /// Reads it.
    ///
    /// # Errors
    /// It cannot be read, or is no table; with file, line and column.
    pub fn read(&self) -> Result<Table, TableError> {
        let source = self.path.display().to_string();
        let text = text_of(&self.path).map_err(|reason| TableError::of(&source, reason))?;
        nccl_tuner::read_either(&text, &source)
    }
}

/// A file's text. Pipes and devices are refused, which may have no end or never begin.
fn text_of(path: &Path) -> Result<String, String> {
    let is_file = std::fs::metadata(path).map_err(|error| error.to_string())?.is_file();
    if !is_file {
        return Err("not a regular file".to_owned());
    }
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > LARGEST {
        return Err(format!("larger than {} MiB", LARGEST >> 20));
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        format!("line {}: not UTF-8", before.iter().filter(|&&byte| byte == b'\n').count() + 1)
    })
}
