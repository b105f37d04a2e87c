//! Separate runs in one log, which result from nccl-tests built without MPI=1 and started by a launcher.
//!
//! Every process is then rank 0 of a separate communicator, and all processes print header and rows into one log. Such
//! a log lists rank 0 several times, or has a whole table under each label of its lines. Rows of equal size are
//! assigned to the runs in their order.

use std::collections::BTreeMap;

use super::super::table::{Header, Table};

/// Returns the tables of all streams of a log, in order. Tables of separate runs are marked; if their rows are
/// interleaved, they are separated.
pub(super) fn separate(streams: Vec<Vec<Table>>) -> Vec<Table> {
    let with_tables = streams.iter().filter(|tables| !tables.is_empty()).count() as u32;
    let mut tables: Vec<Table> = Vec::new();
    for stream in streams {
        for mixed in mixed(stream) {
            match copies_of_rank_0(&mixed.header) {
                Some(runs) => tables.extend(share_out(mixed, runs)),
                None => tables.push(mixed),
            }
        }
    }
    if with_tables > 1 {
        for table in &mut tables {
            table.header.separate_runs.get_or_insert(with_tables);
        }
    }
    tables.sort_by_key(|table| table.line);
    tables
}

/// Tables of one stream without empty tables, which consecutive header lines of several processes cause.
fn mixed(tables: Vec<Table>) -> Vec<Table> {
    let is_left_over =
        |table: &Table| table.rows.is_empty() && table.rejected.is_empty() && copies_of_rank_0(&table.header).is_some();
    let all_empty = tables.iter().all(|table| table.rows.is_empty() && table.rejected.is_empty());
    tables.into_iter().filter(|table| all_empty || !is_left_over(table)).collect()
}

/// Number of processes that are rank 0; `None` unless there are several.
fn copies_of_rank_0(header: &Header) -> Option<u32> {
    let first = header.devices.iter().map(|device| device.group).min()?;
    let zeros = header.devices.iter().filter(|device| device.group == first && device.rank == 0).count() as u32;
    (zeros > 1).then_some(zeros)
}

/// Distributes the rows of a table over its runs; runs without rows are omitted.
fn share_out(table: Table, runs: u32) -> Vec<Table> {
    let header = Header { separate_runs: Some(runs), ..table.header };
    let mut shares: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
    for row in table.rows {
        let of_size = counts.entry(row.bytes.0).or_default();
        shares.entry(*of_size).or_default().push(row);
        *of_size += 1;
    }
    let mut rejected = Some(table.rejected);
    let mut tables: Vec<Table> = Vec::new();
    for rows in shares.into_values() {
        let rejected = rejected.take().unwrap_or_default();
        tables.push(Table { header: header.clone(), rows, rejected, line: table.line });
    }
    if tables.is_empty() {
        tables.push(Table { header, rows: Vec::new(), rejected: rejected.unwrap_or_default(), line: table.line });
    }
    tables
}
