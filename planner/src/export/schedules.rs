//! Exports the schedules of a plan as MSCCL++ or MSCCL files, one per range of sizes that shares a strategy.

use std::sync::{Mutex, PoisonError};

use fabricast_sim::schedule::format::{Format, write_for};
use fabricast_sim::schedule::{Collective, Schedule};
use fabricast_topologies::Bytes;
use rayon::prelude::*;

use super::choices::{self, Choices, Unsaid, Wanted};
use super::{Dropped, SavedPick, SavedPlan, SavedRow, header};
use crate::plan::Stretch;
use crate::strategy::Strategy;

/// Largest size that readers of these formats accept as a limit.
const LARGEST: Bytes = Bytes(i64::MAX as u64 - 1);

/// Writes the schedule files of a plan.
///
/// `make` returns the schedule of a strategy for a call of a given size, or the reason why there is none. Each file
/// holds the schedule for a size near the middle of its range on a logarithmic scale, which serves the whole range.
/// `keep` receives the name of each file, without a folder, and its text. It is called from several threads as soon as
/// a text is complete.
///
/// Returns the results of `keep` in plan order, and the strategies that were not exported.
///
/// # Errors
/// An error of `make`, before any call of `keep`; or the first error of `keep` in plan order.
pub fn write<K: Send, E: Send>(
    plan: &SavedPlan,
    format: Format,
    make: impl Fn(Collective, Bytes, Strategy) -> Result<Result<Schedule, String>, E> + Sync,
    keep: impl Fn(&str, &str) -> Result<K, E> + Sync,
) -> Result<(Vec<K>, Vec<Dropped>), E> {
    let say = |_: &SavedRow, pick: &SavedPick| {
        let own = format.protocol(pick.protocol);
        let (algorithm, protocol, channels, threads) = (pick.algorithm, pick.protocol, pick.channels, pick.threads);
        let strategy = Strategy { algorithm, protocol, channels, threads, chunk: pick.chunk.map(Bytes) };
        if own == protocol { Ok(strategy) } else { Err(format!("{} runs no {protocol}", format.name())) }
    };
    let Choices { stretches, mut dropped } = choices::choices(plan, (Wanted::Pick, Unsaid::LeftOut), say, |_| None);
    let opening = if format == Format::MscclXml { comments(plan) } else { String::new() };
    let schedules = stretches.par_iter().with_max_len(1).map(|stretch| {
        let &Stretch { collective, min_bytes, max_bytes, key: strategy } = stretch;
        make(collective, middle(plan, collective, (min_bytes, max_bytes)), strategy)
    });
    let schedules: Vec<Result<Result<Schedule, String>, E>> = schedules.collect();
    let schedules = schedules.into_iter().collect::<Result<Vec<Result<Schedule, String>>, E>>()?;
    // Largest first, so that no thread starts a large schedule when the others are done.
    let mut order: Vec<usize> = (0..schedules.len()).collect();
    order.sort_by_key(|&at| {
        let operations = schedules.get(at).and_then(|made| made.as_ref().ok()).map_or(0, Schedule::operation_count);
        std::cmp::Reverse(operations)
    });
    // Buffers of written texts, for reuse.
    let texts: Mutex<Vec<String>> = Mutex::default();
    let texts = || texts.lock().unwrap_or_else(PoisonError::into_inner);
    let written = order.into_par_iter().with_max_len(1).filter_map(|at| {
        let (stretch, made) = (stretches.get(at)?, schedules.get(at)?);
        let mut text = texts().pop().unwrap_or_default();
        text.clear();
        text.push_str(&opening);
        let sizes = (stretch.min_bytes, stretch.max_bytes.min(LARGEST));
        let written = match made {
            Ok(schedule) => write_for(schedule, format, sizes, &mut text).map_err(|error| error.to_string()),
            Err(reason) => Err(reason.clone()),
        };
        let file = match written {
            Ok(()) => File::Kept(keep(&name(stretch, format), &text)),
            Err(reason) => File::Unwritten(reason),
        };
        texts().push(text);
        Some((at, file))
    });
    let mut written: Vec<(usize, File<K, E>)> = written.collect();
    written.sort_by_key(|(at, _)| *at);
    let mut files = Vec::with_capacity(written.len());
    for (stretch, (_, file)) in stretches.into_iter().zip(written) {
        match file {
            File::Kept(kept) => files.push(kept?),
            File::Unwritten(reason) => dropped.push(Dropped {
                collective: stretch.collective,
                bytes: (stretch.min_bytes, stretch.max_bytes),
                pick: stretch.key.to_string(),
                instead: None,
                reason,
            }),
        }
    }
    Ok((files, dropped))
}

/// Outcome of a file.
enum File<K, E> {
    /// Passed to `keep`.
    Kept(Result<K, E>),
    /// Not written: the format cannot express the schedule, or there is none.
    Unwritten(String),
}

/// Returns the name of a file.
fn name(&Stretch { collective, min_bytes, max_bytes, .. }: &Stretch<Strategy>, format: Format) -> String {
    let ending = if format == Format::MscclXml { "xml" } else { "json" };
    match max_bytes {
        choices::LAST_BYTES => format!("{collective}-{}-up.{ending}", min_bytes.0),
        _ => format!("{collective}-{}-{}.{ending}", min_bytes.0, max_bytes.0),
    }
}

/// Returns true if a file name has the form that [`write()`] uses.
#[must_use]
pub fn is_name(name: &str, format: Format) -> bool {
    let ending = if format == Format::MscclXml { ".xml" } else { ".json" };
    let parts = name.strip_suffix(ending).and_then(|stem| stem.rsplit_once('-'));
    let Some((stem, last)) = parts else { return false };
    let Some((collective, first)) = stem.rsplit_once('-') else { return false };
    let is_size = |text: &str| text.parse::<u64>().is_ok();
    collective.parse::<Collective>().is_ok() && is_size(first) && (last == "up" || is_size(last))
}

/// Returns the origin of the files as XML comments, which MSCCL's reader skips. XML forbids two hyphens in a comment.
fn comments(plan: &SavedPlan) -> String {
    let lines = header::lines(plan, "Algorithm of MSCCL", &[]);
    // Replace twice: the first pass leaves two of three hyphens adjacent.
    let apart = |line: &String| line.replace("--", "- -").replace("--", "- -");
    lines.iter().map(|line| format!("<!-- {} -->\n", apart(line))).collect()
}

/// Returns the planned size nearest to the middle of a range. If none was planned, returns the geometric mean of the
/// part of the range inside `USUAL`.
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::algorithm::Algorithm;

    const PLAN: &str = r#"{
        "fabric": "hgx-h200", "profile": "ideal", "ranks": 2, "nodes": 1,
        "rows": [
            {"collective": "all_gather", "bytes": 1024, "algorithm": "ring", "protocol": "symmetric", "channels": 1, "time_us": 1.0},
            {"collective": "all_gather", "bytes": 2048, "algorithm": "direct", "protocol": "symmetric", "channels": 1, "time_us": 1.0}
        ],
        "ranges": [
            {"collective": "all_gather", "min_bytes": 0, "max_bytes": 1500, "algorithm": "ring", "protocol": "symmetric", "channels": 1},
            {"collective": "all_gather", "min_bytes": 1501, "max_bytes": 4096, "algorithm": "direct", "protocol": "symmetric", "channels": 1}
        ]
    }"#;

    #[test]
    fn wrong_schedule_aborts_export_before_any_file_is_written() {
        let plan = SavedPlan::read(PLAN, "plan").unwrap();
        let kept = AtomicUsize::new(0);
        let keep = |_: &str, _: &str| -> Result<(), String> {
            kept.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let made = |wrong: Algorithm| {
            write(
                &plan,
                Format::Mscclpp,
                |_, bytes, strategy| match strategy.algorithm == wrong {
                    true => Err(format!("wrong at {}", bytes.0)),
                    false => Ok(Err("not made".to_owned())),
                },
                keep,
            )
        };
        assert_eq!(made(Algorithm::Direct).unwrap_err(), "wrong at 2048");
        assert_eq!(made(Algorithm::Tree).unwrap().1.len(), 2);
        assert_eq!(kept.into_inner(), 0);
    }
}
