//! Reader of the tuner plugin's input: a CSV table, or a saved plan, which is converted to a CSV table.

use super::{ConvertedTable, Table, read};
use crate::export::json_text::strip_bom;
use crate::export::{SavedPlan, TableError};

/// Reads a table, or converts a plan written by `plan --format json`. `source` is the file name used in errors. A plan
/// begins with a brace, a table never does.
///
/// # Errors
/// [`TableError`] of the detected format, or of a plan without collectives that NCCL's tuners decide.
pub fn read_table_or_plan(text: &str, source: &str) -> Result<Table, TableError> {
    let text = strip_bom(text);
    if text.trim_start().starts_with('{') {
        let table = ConvertedTable::new(&SavedPlan::read(text, source)?).table;
        if table.rows.is_empty() {
            return Err(TableError::new_for_file(source, "NCCL's tuners control no call of the plan"));
        }
        return Ok(table);
    }
    read(text, source)
}
