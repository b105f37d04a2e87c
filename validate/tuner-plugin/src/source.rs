//! The file that contains the table: search, reading, and selection of the rows for a communicator. The file is a CSV
//! table of NCCL's example tuner, or a saved plan, which is converted as by `table --to nccl-tuner`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use fabricast_search::export::TableError;
use fabricast_search::export::nccl_tuner::{self, Table};

use crate::choices::CommunicatorTable;
use crate::log::Log;

/// Maximum file size in bytes; larger files are rejected.
const LARGEST: u64 = 64 << 20;

/// Location of the file that holds the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    path: PathBuf,
}

impl Source {
    /// Environment variables that name the file; the first one that is set and not empty is used. The second one is
    /// that of NCCL's example plugin.
    pub const VARIABLES: [&str; 2] = ["FABRICAST_TUNER_FILE", "NCCL_TUNER_CONFIG_FILE"];

    /// Returns the file named by the environment, if any.
    #[must_use]
    pub fn from_environment() -> Option<Self> {
        let named = |name: &&str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
        Self::VARIABLES.iter().find_map(named).map(|path| Self { path: path.into() })
    }

    /// Creates a source from the path of a file.
    #[must_use]
    pub fn file(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Reads the rows for `ranks` ranks on `nodes` nodes. Logs a warning and returns no rows if the file cannot be
    /// used.
    #[must_use]
    pub fn choices(&self, ranks: usize, nodes: usize, log: Log) -> CommunicatorTable {
        let table = match self.read() {
            Ok(table) => table,
            Err(error) => {
                log.warn(format_args!("{error}; the table is not used, NCCL chooses"));
                return CommunicatorTable::default();
            }
        };
        let total = table.rows.len();
        // Numbers that exceed 32 bits match only rows that match any number.
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let choices = CommunicatorTable::new(table, number(nodes), number(ranks));
        let (path, matching) = (self.path.display(), choices.rows());
        let rest = if matching == 0 { ": NCCL chooses" } else { "" };
        log.start(format_args!("{path}: {matching} of {total} rows are for {ranks} ranks on {nodes} nodes{rest}"));
        choices
    }

    /// Reads the table from the file.
    ///
    /// # Errors
    /// The file cannot be read or is not a table; the error has file, line and column.
    pub fn read(&self) -> Result<Table, TableError> {
        let source = self.path.display().to_string();
        let text = read_text(&self.path).map_err(|reason| TableError::new_for_file(&source, reason))?;
        nccl_tuner::read_table_or_plan(&text, &source)
    }
}

/// Reads the text of a file. Pipes and devices are rejected, because reading them may block or never end.
fn read_text(path: &Path) -> Result<String, String> {
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
