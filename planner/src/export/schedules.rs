//! Schedules of a plan as files of MSCCL++ and MSCCL, each for the sizes whose pick it is.

use fabricast_sim::schedule::format::{Format, write_for};
use fabricast_sim::schedule::{Collective, Schedule};
use fabricast_topologies::Bytes;

use super::{Dropped, SavedPlan, choices};
use crate::plan::Stretch;
use crate::strategy::Strategy;

/// The largest size that readers of these formats take for a limit.
const LARGEST: Bytes = Bytes(i64::MAX as u64 - 1);

/// A file: its name, without a folder, and its text.
pub type Named = (String, String);

/// The files of a plan, and what they do not say. `make` gives the schedule of a strategy for a call of a size; a file's is
/// that of a size in the middle of its range, in logarithms, and serves all of them.
pub fn write(
    plan: &SavedPlan,
    format: Format,
    mut make: impl FnMut(Collective, Bytes, Strategy) -> Result<Schedule, String>,
) -> (Vec<Named>, Vec<Dropped>) {
    let choices = choices::choices(plan, |_, pick| {
        let own = format.protocol(pick.protocol);
        let (algorithm, protocol, channels, threads) = (pick.algorithm, pick.protocol, pick.channels, pick.threads);
        let strategy = Strategy { algorithm, protocol, channels, threads, chunk: pick.chunk.map(Bytes) };
        if own == protocol { Ok(strategy) } else { Err(format!("{} runs no {protocol}", format.name())) }
    });
    let (mut files, mut dropped) = (Vec::new(), choices.dropped);
    for Stretch { collective, min_bytes, max_bytes, key: strategy } in choices.stretches {
        let written =
            make(collective, middle(plan, collective, (min_bytes, max_bytes)), strategy).and_then(|schedule| {
                write_for(&schedule, format, (min_bytes, max_bytes.min(LARGEST))).map_err(|error| error.to_string())
            });
        match written {
            Ok(text) => {
                let ending = if format == Format::MscclXml { "xml" } else { "json" };
                let sizes = match max_bytes {
                    choices::LAST_BYTES => format!("{}-up", min_bytes.0),
                    _ => format!("{}-{}", min_bytes.0, max_bytes.0),
                };
                files.push((format!("{collective}-{sizes}.{ending}"), text));
            }
            Err(reason) => dropped.push(Dropped {
                collective,
                bytes: (min_bytes, max_bytes),
                pick: strategy.to_string(),
                instead: None,
                reason,
            }),
        }
    }
    (files, dropped)
}

/// The planned size of a range that is nearest to its middle.
fn middle(plan: &SavedPlan, collective: Collective, (first, last): (Bytes, Bytes)) -> Bytes {
    let rows = plan.rows.iter().filter(|row| row.collective == collective);
    let inside: Vec<Bytes> = rows.map(|row| row.bytes).filter(|bytes| (first..=last).contains(bytes)).collect();
    inside.get(inside.len() / 2).copied().unwrap_or(first)
}
