//! Exports the schedules of a plan as MSCCL++ or MSCCL files, one per range of sizes that shares a strategy.

use std::sync::{Mutex, PoisonError};

use fabricast_sim::schedule::format::{CallSizes, Format, write_for_sizes};
use fabricast_sim::schedule::{Collective, Schedule};
use fabricast_topologies::Bytes;
use rayon::prelude::*;

use super::expressible::{self, Choices, ExportedStrategy, MissingEntry};
use super::{DroppedStrategy, SavedPick, SavedPlan, SavedRow, header};
use crate::plan::SizeRange;
use fabricast_collectives::strategy::Strategy;

/// Largest upper limit of message sizes, in bytes, that readers of these formats accept.
const LARGEST: Bytes = Bytes(i64::MAX as u64 - 1);

/// Writes the schedule files of a plan.
///
/// `build` returns the schedule of a strategy for a call of a given size, or the reason why there is none. Each file
/// contains one schedule for its whole range, built for a size near the middle of the range on a logarithmic scale.
/// `save` receives the name of each file, without a folder, and its text. `save` is called from several threads, for
/// each text as soon as it is complete.
///
/// Returns the results of `save` in plan order, and the strategies that were not exported.
///
/// # Errors
/// An error of `build`, before any call of `save`; or the first error of `save` in plan order.
pub fn write<K: Send, E: Send>(
    plan: &SavedPlan,
    format: Format,
    build: impl Fn(Collective, Bytes, Strategy) -> Result<Result<Schedule, String>, E> + Sync,
    save: impl Fn(&str, &str) -> Result<K, E> + Sync,
) -> Result<(Vec<K>, Vec<DroppedStrategy>), E> {
    let translate = |_: &SavedRow, pick: &SavedPick| {
        let supported = format.protocol(pick.protocol);
        match supported == pick.protocol {
            true => Ok(pick.strategy()),
            false => Err(format!("{} runs no {}", format.name(), pick.protocol)),
        }
    };
    let Choices { ranges, mut dropped } =
        expressible::choose_entries(plan, ExportedStrategy::Selected, MissingEntry::Omit, translate, |_| None);
    let prefix = if format == Format::MscclXml { comments(plan) } else { String::new() };
    let schedules = ranges.par_iter().with_max_len(1).map(|range| {
        let &SizeRange { collective, min_bytes, max_bytes, key: strategy } = range;
        build(collective, middle(plan, collective, CallSizes { min: min_bytes, max: max_bytes }), strategy)
    });
    let schedules: Vec<Result<Result<Schedule, String>, E>> = schedules.collect();
    let schedules = schedules.into_iter().collect::<Result<Vec<Result<Schedule, String>>, E>>()?;
    // Largest schedules first, so that no thread is still busy with a large schedule when all others are done.
    let mut order: Vec<usize> = (0..schedules.len()).collect();
    order.sort_by_key(|&index| {
        let operations =
            schedules.get(index).and_then(|schedule| schedule.as_ref().ok()).map_or(0, Schedule::operation_count);
        std::cmp::Reverse(operations)
    });
    // Buffers of texts that were written, for reuse.
    let texts: Mutex<Vec<String>> = Mutex::default();
    let texts = || texts.lock().unwrap_or_else(PoisonError::into_inner);
    let written = order.into_par_iter().with_max_len(1).filter_map(|index| {
        let (range, schedule) = (ranges.get(index)?, schedules.get(index)?);
        let mut text = texts().pop().unwrap_or_default();
        text.clear();
        text.push_str(&prefix);
        let sizes = CallSizes { min: range.min_bytes, max: range.max_bytes.min(LARGEST) };
        let written = match schedule {
            Ok(schedule) => write_for_sizes(schedule, format, sizes, &mut text).map_err(|error| error.to_string()),
            Err(reason) => Err(reason.clone()),
        };
        let file = match written {
            Ok(()) => WriteOutcome::Saved(save(&name(range, format), &text)),
            Err(reason) => WriteOutcome::Unwritten(reason),
        };
        texts().push(text);
        Some((index, file))
    });
    let mut written: Vec<(usize, WriteOutcome<K, E>)> = written.collect();
    written.sort_by_key(|(index, _)| *index);
    let mut files = Vec::with_capacity(written.len());
    for (range, (_, file)) in ranges.into_iter().zip(written) {
        match file {
            WriteOutcome::Saved(result) => files.push(result?),
            WriteOutcome::Unwritten(reason) => dropped.push(DroppedStrategy {
                collective: range.collective,
                bytes: (range.min_bytes, range.max_bytes),
                pick: range.key.to_string(),
                substitute: None,
                reason,
            }),
        }
    }
    Ok((files, dropped))
}

/// Result of exporting one size range.
enum WriteOutcome<K, E> {
    /// The file was written and passed to `save`, which returned this result.
    Saved(Result<K, E>),
    /// Reason why no file was written: the format cannot express the schedule, or there is none.
    Unwritten(String),
}

/// Returns the file name for a size range, without a folder.
fn name(&SizeRange { collective, min_bytes, max_bytes, .. }: &SizeRange<Strategy>, format: Format) -> String {
    let ending = if format == Format::MscclXml { "xml" } else { "json" };
    match max_bytes {
        expressible::LAST_BYTES => format!("{collective}-{}-up.{ending}", min_bytes.0),
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
    // The replacement runs twice, because the first pass leaves two of three hyphens adjacent.
    let separate_hyphens = |line: &String| line.replace("--", "- -").replace("--", "- -");
    lines.iter().map(|line| format!("<!-- {} -->\n", separate_hyphens(line))).collect()
}

/// Returns the planned size nearest to the middle of a range. If none was planned, returns the geometric mean of the
/// part of the range inside `TYPICAL`.
fn middle(plan: &SavedPlan, collective: Collective, sizes: CallSizes) -> Bytes {
    let CallSizes { min: first, max: last } = sizes;
    const TYPICAL: (Bytes, Bytes) = (Bytes(1 << 10), Bytes(1 << 30));
    let rows = plan.rows.iter().filter(|row| row.collective == collective);
    let inside: Vec<Bytes> = rows.map(|row| row.bytes).filter(|bytes| (first..=last).contains(bytes)).collect();
    let geometric_mean = |from: Bytes, to: Bytes| Bytes((u128::from(from.0) * u128::from(to.0)).isqrt() as u64);
    let fallback = || match (first.max(TYPICAL.0), last.min(TYPICAL.1)) {
        (from, to) if from <= to => geometric_mean(from, to),
        _ if last < TYPICAL.0 => last,
        _ => first,
    };
    inside.get(inside.len() / 2).copied().unwrap_or_else(fallback)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use fabricast_collectives::algorithm::Algorithm;

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
        let saved = AtomicUsize::new(0);
        let save = |_: &str, _: &str| -> Result<(), String> {
            saved.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let export = |wrong: Algorithm| {
            write(
                &plan,
                Format::Mscclpp,
                |_, bytes, strategy| match strategy.algorithm == wrong {
                    true => Err(format!("wrong at {}", bytes.0)),
                    false => Ok(Err("not made".to_owned())),
                },
                save,
            )
        };
        assert_eq!(export(Algorithm::Direct).unwrap_err(), "wrong at 2048");
        assert_eq!(export(Algorithm::Tree).unwrap().1.len(), 2);
        assert_eq!(saved.into_inner(), 0);
    }
}
