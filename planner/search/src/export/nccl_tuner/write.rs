//! Writer of the CSV table.

use std::fmt::Write as _;

use super::{Buffers, Table, TunerRow, names};

/// Returns the CSV text of a table: comments, then one row per line. The last two columns are written only for rows
/// with a condition in one of them.
#[must_use]
pub fn write(table: &Table) -> String {
    let mut text = String::with_capacity(64 * (table.rows.len() + table.comments.len()));
    for comment in &table.comments {
        for line in comment.lines() {
            let line = format!("# {line}");
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    for row in &table.rows {
        push(&mut text, row);
    }
    text
}

fn push(text: &mut String, row: &TunerRow) {
    let format_optional = |value: Option<u32>| value.map_or_else(|| "-1".to_owned(), |n| n.to_string());
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "{},{},{},{},{},{},{},{}",
        names::function_name(row.function),
        row.min_bytes.0,
        row.max_bytes.0,
        names::algo_name(row.algo),
        names::proto_name(row.proto),
        format_optional(row.channels.map(|count| count.get().into())),
        format_optional(row.nodes),
        format_optional(row.ranks),
    );
    if row.pipe_ops.is_some() || row.buffers != Buffers::Any {
        let _ = write!(text, ",{}", format_optional(row.pipe_ops));
    }
    match row.buffers {
        Buffers::Any => {}
        Buffers::Plain => text.push_str(",0"),
        Buffers::Registered => text.push_str(",1"),
    }
    text.push('\n');
}
