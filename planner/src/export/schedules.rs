//! Schedules of a plan as files of MSCCL++ and MSCCL, each for the sizes whose pick it is.

use fabricast_sim::schedule::format::{Format, write_for};
use fabricast_sim::schedule::{Collective, Schedule};
use fabricast_topologies::Bytes;
use rayon::prelude::*;

use super::{Dropped, SavedPlan, choices, header};
use crate::plan::Stretch;
use crate::strategy::Strategy;

/// The largest size that readers of these formats take for a limit.
const LARGEST: Bytes = Bytes(i64::MAX as u64 - 1);

/// A file: its name, without a folder, and its text.
pub type Named = (String, String);

/// The files of a plan, and what they do not say. `make` gives the schedule of a strategy for a call of a size; a file's is
/// that of a size in the middle of its range, in logarithms, and serves all of them. Files are made beside each other.
pub fn write(
    plan: &SavedPlan,
    format: Format,
    make: impl Fn(Collective, Bytes, Strategy) -> Result<Schedule, String> + Sync,
) -> (Vec<Named>, Vec<Dropped>) {
    let choices = choices::choices(plan, |_, pick| {
        let own = format.protocol(pick.protocol);
        let (algorithm, protocol, channels, threads) = (pick.algorithm, pick.protocol, pick.channels, pick.threads);
        let strategy = Strategy { algorithm, protocol, channels, threads, chunk: pick.chunk.map(Bytes) };
        if own == protocol { Ok(strategy) } else { Err(format!("{} runs no {protocol}", format.name())) }
    });
    let opening = if format == Format::MscclXml { comments(plan) } else { String::new() };
    let written = choices.stretches.par_iter().map(|stretch| {
        let &Stretch { collective, min_bytes, max_bytes, key: strategy } = stretch;
        let schedule = make(collective, middle(plan, collective, (min_bytes, max_bytes)), strategy)?;
        let sizes = (min_bytes, max_bytes.min(LARGEST));
        let text = write_for(&schedule, format, sizes).map_err(|error| error.to_string())?;
        Ok(if opening.is_empty() { text } else { opening.clone() + &text })
    });
    let written: Vec<Result<String, String>> = written.collect();
    let (mut files, mut dropped) = (Vec::new(), choices.dropped);
    for (Stretch { collective, min_bytes, max_bytes, key: strategy }, written) in
        choices.stretches.into_iter().zip(written)
    {
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

/// How the files were made, as comments of XML; MSCCL's reader passes over those. No comment holds two hyphens.
fn comments(plan: &SavedPlan) -> String {
    let lines = header::lines(plan, "Algorithm of MSCCL", &[]);
    // Twice: of three hyphens the first time leaves two.
    let apart = |line: &String| line.replace("--", "- -").replace("--", "- -");
    lines.iter().map(|line| format!("<!-- {} -->\n", apart(line))).collect()
}

/// The planned size of a range that is nearest to its middle; where none was planned, the middle, in logarithms, of what of it lies
/// between these sizes.
fn middle(plan: &SavedPlan, collective: Collective, (first, last): (Bytes, Bytes)) -> Bytes {
    const USUAL: (Bytes, Bytes) = (Bytes(1 << 10), Bytes(1 << 30));
    let rows = plan.rows.iter().filter(|row| row.collective == collective);
    let inside: Vec<Bytes> = rows.map(|row| row.bytes).filter(|bytes| (first..=last).contains(bytes)).collect();
    let between = |from: Bytes, to: Bytes| Bytes((u128::from(from.0) * u128::from(to.0)).isqrt() as u64);
    let without = || match (first.max(USUAL.0), last.min(USUAL.1)) {
        (from, to) if from <= to => between(from, to),
        _ if last < USUAL.0 => last,
        _ => first,
    };
    inside.get(inside.len() / 2).copied().unwrap_or_else(without)
}
