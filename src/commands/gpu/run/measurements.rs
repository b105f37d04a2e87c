//! Measurement files for `compare` and `calibrate`: a table of times per strategy, and the manifest that describes
//! them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use fabricast_sim::schedule::BufferUse;
use fabricast_topologies::{preset, write};
use fabricast_validate::measured::gpu_run::{ExecutorKind, TimedRow, Versions, tables};

use super::RunContext;
use super::answer::RunAnswer;
use super::row::RunRow;
use crate::failure::Failure;
use crate::files;
use crate::output::Output;

/// File name of the fabric spec, which is written if the fabric is not a preset.
const FABRIC: &str = "fabric.toml";

/// File name of the manifest.
const MANIFEST: &str = "manifest.toml";

/// Returns an error if the folder has a manifest that fabricast did not write. Called before the measurements.
pub(super) fn check(folder: &Path, output: &Output) -> Result<(), Failure> {
    files::check_replaceable(&folder.join(MANIFEST), output.replace)
}

/// Writes the tables of all timed rows, and the manifest. Manifests cannot describe in-place calls or ranks that share
/// a GPU, so such rows are omitted with a warning.
pub(super) fn write(
    folder: &Path,
    context: &RunContext<'_>,
    answer: &RunAnswer,
    output: &Output,
) -> Result<(), Failure> {
    if context.args.fabric.ranks_per_gpu > 1 {
        output.warn("no measurements are written: a manifest cannot describe ranks that share a GPU");
        return Ok(());
    }
    let in_place = answer.rows.iter().filter(|row| row.times.is_some() && is_in_place(row)).count();
    if in_place > 0 {
        output.warn(&format!("{in_place} rows are in no measurement: a manifest cannot describe calls in place"));
    }
    let texts: Vec<(String, String)> = texts(context, answer)?.into_iter().collect();
    files::write_folder(folder, &texts, output.replace)
}

fn is_in_place(row: &RunRow) -> bool {
    row.job.header.call.buffers == BufferUse::InPlace
}

/// Text of the fabric as a spec; `None` if the fabric is an unchanged preset.
pub(super) fn spec(context: &RunContext<'_>) -> Result<Option<String>, Failure> {
    let args = context.args;
    let is_changed = !args.what_if.fail.is_empty() || !args.what_if.slow.is_empty() || !args.fabric.size.mig.is_empty();
    let is_preset = preset::text(&args.fabric.fabric).is_some() && !is_changed;
    Ok(if is_preset { None } else { Some(write::spec::write(context.fabric)?) })
}

/// Texts of the files to write, by file name.
fn texts(context: &RunContext<'_>, answer: &RunAnswer) -> Result<BTreeMap<String, String>, Failure> {
    let rows: Vec<TimedRow> =
        answer.rows.iter().filter(|row| !is_in_place(row)).filter_map(RunRow::timed_row).collect();
    let nvshmem = answer.nvshmem.as_ref().map(|(version, _)| version.as_str());
    let versions = Versions { nccl: answer.nccl.as_deref(), nvshmem };
    let mut manifest = String::from(
        "# Written by `fabricast gpu run`: times of calls from CUDA graphs, a host thread for each GPU.\n",
    );
    let mut files = BTreeMap::new();
    let fabric = if answer.fabric_spec.is_some() { FABRIC } else { context.args.fabric.fabric.as_str() };
    files.extend(answer.fabric_spec.clone().map(|spec| (FABRIC.to_owned(), spec)));
    for (key, rows) in tables(&rows) {
        let table = rows.values().map(|row| format!("{},{:.6}\n", row.bytes.0, row.time.us()));
        files.insert(key.file(), format!("bytes,time_us\n{}", table.collect::<String>()));
        let _ = write!(
            manifest,
            "\n[[measurement]]\nfile = \"{}\"\nfabric = \"{}\"\nnodes = 1\ngpus = {}\ncollective = \"{}\"\ndtype = \"{}\"\n\
             launch = \"graph\"\nprocesses = \"per_gpu\"\nnvls = false\n",
            key.file(),
            fabric,
            answer.gpus,
            key.collective,
            key.dtype
        );
        if let Some((algorithm, protocol, channels)) = &key.strategy {
            let _ = writeln!(manifest, "algorithm = \"{algorithm}\"\nprotocol = \"{protocol}\"\nchannels = {channels}");
        }
        let fields = [("library", key.library(versions)), ("software", key.software(versions))];
        for (name, value) in fields {
            if let Some(value) = value {
                let _ = writeln!(manifest, "{name} = \"{value}\"");
            }
        }
        if key.executor == ExecutorKind::NcclSymmetric {
            manifest.push_str("registered = \"symmetric\"\n");
        }
    }
    files.insert(MANIFEST.to_owned(), manifest);
    Ok(files)
}
