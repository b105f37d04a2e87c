//! What a tuner takes: its own table, or a saved plan, whose table is made on the spot.

use super::{FromPlan, Table, read};
use crate::export::json_text::without_mark;
use crate::export::{SavedPlan, TableError};

/// Reads a table, or the table of a plan that `plan --format json` wrote; `source` is the file's name, for errors. A plan begins with
/// a brace, which no table does.
///
/// # Errors
/// [`TableError`] of the one that it looks like.
pub fn read_either(text: &str, source: &str) -> Result<Table, TableError> {
    let text = without_mark(text);
    if text.trim_start().starts_with('{') {
        let table = FromPlan::new(&SavedPlan::read(text, source)?).table;
        if table.rows.is_empty() {
            return Err(TableError::of(source, "nothing of the plan is decided by NCCL's tuners"));
        }
        return Ok(table);
    }
    read(text, source)
}
