//! Checks a table against a fabric: combinations that NCCL does not support there, unreachable rows, sizes without a
//! row, too many channels.

use super::{Buffers, Lookup, Row, Table};
use crate::export::Finding;
use crate::library::nccl::{Algo, Communicator, Function, Settings, Table as Cells, Version};

/// Environment that a table is checked against.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// The communicator as NCCL sees it.
    pub communicator: &'a Communicator,
    /// NCCL version.
    pub version: Version,
    /// NCCL's table of algorithm and protocol combinations.
    pub cells: &'a Cells,
    /// NCCL settings.
    pub settings: &'a Settings,
}

/// Largest size that is checked, in bytes.
const LARGEST: u64 = 1 << 40;

/// Returns the problems of the rows that match a communicator, by line; missing rows come last.
#[must_use]
pub fn findings(table: &Table, machine: Machine<'_>) -> Vec<Finding> {
    let Machine { communicator, .. } = machine;
    let (nodes, ranks) = (communicator.nodes, communicator.ranks);
    let lookup = Lookup::new(table, nodes, ranks);
    let mut found = Vec::new();
    if lookup.is_empty() {
        found.push(Finding::warning(None, format!("no row is for {ranks} ranks on {nodes} nodes")));
        return found;
    }
    let reached = lookup.reached(table.rows.len());
    for (place, row) in table.rows.iter().enumerate().filter(|(_, row)| row.is_for(nodes, ranks)) {
        let line = table.lines.get(place).copied();
        let cell = machine.cells.cell(row.function, row.algo, row.proto);
        if let Err(why) = cell.taken {
            let message = format!("{} {} for {}: {why}", row.algo, row.proto, row.function);
            found.push(Finding::error(line, message));
        }
        if !reached.get(place).copied().unwrap_or_default() {
            found
                .push(Finding::warning(line, "no call takes this row: earlier ones match all of its sizes".to_owned()));
        }
        found.extend(channels(row, machine).map(|message| Finding::warning(line, message)));
    }
    for function in Function::ALL {
        if !table.rows.iter().any(|row| row.function == function && row.is_for(nodes, ranks)) {
            found.push(Finding::warning(
                None,
                format!("{function} has no row: the example plugin gives it one channel"),
            ));
            continue;
        }
        let [plain, registered] =
            [Buffers::Plain, Buffers::Registered].map(|kind| lookup.gaps(function, kind, LARGEST));
        let of_any = plain == registered;
        let mut tell = |gaps: Vec<(u64, u64)>, calls: &str| {
            found.extend(gaps.into_iter().map(|(first, last)| {
                let message =
                    format!("{function} of {first} to {last} bytes has no row for {calls}: the example plugin gives it one channel");
                Finding::warning(None, message)
            }));
        };
        if of_any {
            tell(plain, "any call");
        } else {
            tell(plain, "calls with plain buffers");
            tell(registered, "calls with registered buffers, as those from CUDA graphs have");
        }
    }
    found
}

/// Returns the problem of a row's channel count.
fn channels(row: &Row, machine: Machine<'_>) -> Option<String> {
    let Machine { communicator, version, settings, .. } = machine;
    let Some(channels) = row.channels else {
        return Some("channels -1: the example plugin takes one channel, not NCCL's own number".to_owned());
    };
    let most = match row.algo {
        Algo::Nvls | Algo::NvlsTree => {
            communicator.nvls(version, settings).channels.max(communicator.channels(settings))
        }
        _ => communicator.channels(settings),
    };
    let unreachable = channels.get() > most;
    unreachable.then(|| format!("{channels} channels: NCCL has {most} on this fabric"))
}

impl Lookup {
    /// Returns, by row, true if some call uses it, for any number of pipeline operations and plain or registered
    /// buffers.
    fn reached(&self, rows: usize) -> Vec<bool> {
        let mut reached = vec![false; rows];
        for function in Function::ALL {
            if let Some(taken) = self.taken_alone(function) {
                for row in taken {
                    if let Some(place) = reached.get_mut(row as usize) {
                        *place = true;
                    }
                }
                continue;
            }
            let mut borders: Vec<u64> = self.borders(function).collect();
            borders.sort_unstable();
            borders.dedup();
            for pipe_ops in self.kinds_of_pipelines(function) {
                for buffers in [Buffers::Plain, Buffers::Registered] {
                    for &first in &borders {
                        let row = self.find(function, first, pipe_ops, buffers).map(|answer| answer.row as usize);
                        if let Some(place) = row.and_then(|row| reached.get_mut(row)) {
                            *place = true;
                        }
                    }
                }
            }
        }
        reached
    }

    /// Returns the size ranges from 0 to `last` without a row for calls with such buffers and one pipeline operation.
    fn gaps(&self, function: Function, buffers: Buffers, last: u64) -> Vec<(u64, u64)> {
        let mut gaps: Vec<(u64, u64)> = Vec::new();
        let mut borders: Vec<u64> = self.borders(function).filter(|&border| border <= last).chain([0]).collect();
        borders.sort_unstable();
        borders.dedup();
        for (place, &first) in borders.iter().enumerate() {
            let until = borders.get(place + 1).map_or(last, |next| next - 1);
            if self.find(function, first, 1, buffers).is_some() {
                continue;
            }
            match gaps.last_mut() {
                Some(gap) if gap.1 + 1 == first => gap.1 = until,
                _ => gaps.push((first, until)),
            }
        }
        gaps
    }
}
