//! Checks a table against a fabric: combinations that NCCL does not support on it, unreachable rows, sizes without a
//! row, and excessive channel counts.

use super::{Buffers, Lookup, Table, TunerRow};
use crate::export::Finding;
use fabricast_libraries::nccl::{Algo, Communicator, CostTable as Cells, Function, NcclVersion, Settings};

/// Environment that a table is checked against.
#[derive(Clone, Copy, Debug)]
pub struct CheckContext<'a> {
    /// The communicator from the point of view of NCCL's cost model.
    pub communicator: &'a Communicator,
    /// NCCL version that loads the table.
    pub version: NcclVersion,
    /// NCCL's table of algorithm and protocol combinations.
    pub cells: &'a Cells,
    /// NCCL settings (`NCCL_*` variables) in effect.
    pub settings: &'a Settings,
}

/// Largest message size that is checked, in bytes.
const LARGEST: u64 = 1 << 40;

/// Returns the problems of the rows that match a communicator, by line; missing rows come last.
#[must_use]
pub fn findings(table: &Table, context: CheckContext<'_>) -> Vec<Finding> {
    let CheckContext { communicator, .. } = context;
    let (nodes, ranks) = (communicator.nodes, communicator.ranks);
    let lookup = Lookup::new(table, nodes, ranks);
    let mut findings = Vec::new();
    if lookup.is_empty() {
        findings.push(Finding::warning(None, format!("no row is for {ranks} ranks on {nodes} nodes")));
        return findings;
    }
    findings.extend(row_findings(table, context, |row| {
        let is_missing = row.channels.is_none();
        is_missing.then(|| "channels -1: the example plugin uses one channel, not NCCL's own number".to_owned())
    }));
    for function in Function::ALL {
        if !table.rows.iter().any(|row| row.function == function && row.matches(nodes, ranks)) {
            findings.push(Finding::warning(
                None,
                format!("{function} has no row: the example plugin gives it one channel"),
            ));
            continue;
        }
        let [plain, registered] =
            [Buffers::Plain, Buffers::Registered].map(|kind| lookup.gaps(function, kind, LARGEST));
        let is_same = plain == registered;
        let mut report_gaps = |gaps: Vec<(u64, u64)>, calls: &str| {
            findings.extend(gaps.into_iter().map(|(first, last)| {
                let message =
                    format!("{function} of {first} to {last} bytes has no row for {calls}: the example plugin gives it one channel");
                Finding::warning(None, message)
            }));
        };
        if is_same {
            report_gaps(plain, "any call");
        } else {
            report_gaps(plain, "calls with plain buffers");
            report_gaps(registered, "calls with registered buffers, as those from CUDA graphs have");
        }
    }
    findings
}

/// Returns the problems of the rows that match a communicator, by line: combinations that NCCL does not support,
/// unreachable rows, excessive channel counts, and the further problem of a row that `other` returns.
pub(in crate::export) fn row_findings(
    table: &Table,
    context: CheckContext<'_>,
    other: impl Fn(&TunerRow) -> Option<String>,
) -> Vec<Finding> {
    let (nodes, ranks) = (context.communicator.nodes, context.communicator.ranks);
    let reachable = Lookup::new(table, nodes, ranks).reachable_rows(table.rows.len());
    let mut findings = Vec::new();
    for (index, row) in table.rows.iter().enumerate().filter(|(_, row)| row.matches(nodes, ranks)) {
        let line = table.lines.get(index).copied();
        let cell = context.cells.cell(row.function, row.algo, row.proto);
        if let Err(reason) = cell.availability {
            let message = format!("{} {} for {}: {reason}", row.algo, row.proto, row.function);
            findings.push(Finding::error(line, message));
        }
        if !reachable.get(index).copied().unwrap_or_default() {
            findings.push(Finding::warning(
                line,
                "no call matches this row: earlier rows match all of its sizes".to_owned(),
            ));
        }
        findings.extend(other(row).or(channels(row, context)).map(|message| Finding::warning(line, message)));
    }
    findings
}

/// Returns the problem of a row's channel count; `None` if there is none.
fn channels(row: &TunerRow, context: CheckContext<'_>) -> Option<String> {
    let CheckContext { communicator, version, settings, .. } = context;
    let channels = row.channels?;
    let max = match row.algo {
        Algo::Nvls | Algo::NvlsTree => {
            communicator.nvls_shape(version, settings).channels.max(communicator.channels(settings))
        }
        _ => communicator.channels(settings),
    };
    let unreachable = channels.get() > max;
    unreachable.then(|| format!("{channels} channels: NCCL has {max} on this fabric"))
}

impl Lookup {
    /// Returns, by row, true if the row is used for some call, for any number of pipeline operations and for plain or
    /// registered buffers.
    fn reachable_rows(&self, rows: usize) -> Vec<bool> {
        let mut reachable = vec![false; rows];
        for function in Function::ALL {
            if let Some(used_rows) = self.rows_of_single_layer(function) {
                for row in used_rows {
                    if let Some(flag) = reachable.get_mut(row as usize) {
                        *flag = true;
                    }
                }
                continue;
            }
            let mut boundaries: Vec<u64> = self.segment_starts(function).collect();
            boundaries.sort_unstable();
            boundaries.dedup();
            for pipe_ops in self.pipe_op_counts(function) {
                for buffers in [Buffers::Plain, Buffers::Registered] {
                    for &first in &boundaries {
                        let row = self.find(function, first, pipe_ops, buffers).map(|entry| entry.row as usize);
                        if let Some(flag) = row.and_then(|row| reachable.get_mut(row)) {
                            *flag = true;
                        }
                    }
                }
            }
        }
        reachable
    }

    /// Returns the message sizes from 0 to `last` bytes that no row matches, for calls with `buffers` and one pipeline
    /// operation. Each gap is given by its first and last size in bytes, both inclusive.
    fn gaps(&self, function: Function, buffers: Buffers, last: u64) -> Vec<(u64, u64)> {
        let mut gaps: Vec<(u64, u64)> = Vec::new();
        let mut boundaries: Vec<u64> =
            self.segment_starts(function).filter(|&boundary| boundary <= last).chain([0]).collect();
        boundaries.sort_unstable();
        boundaries.dedup();
        for (index, &first) in boundaries.iter().enumerate() {
            let gap_end = boundaries.get(index + 1).map_or(last, |next| next - 1);
            if self.find(function, first, 1, buffers).is_some() {
                continue;
            }
            match gaps.last_mut() {
                Some(gap) if gap.1 + 1 == first => gap.1 = gap_end,
                _ => gaps.push((first, gap_end)),
            }
        }
        gaps
    }
}
