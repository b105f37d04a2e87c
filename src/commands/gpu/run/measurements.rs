//! Times as `compare` and `calibrate` read them: a table for every strategy, and the manifest that describes them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use fabricast_sim::schedule::{BufferUse, Protocol};
use fabricast_topologies::{preset, write};
use fabricast_validate::kernel::Carrier;

use super::Ground;
use super::answer::{Answer, By, Row};
use crate::failure::Failure;
use crate::output::Output;

/// The fabric, where no preset is it.
const FABRIC: &str = "fabric.toml";

/// What rows of one table have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    collective: &'static str,
    by: By,
    /// Algorithm, protocol and blocks; nothing where the library chose.
    strategy: Option<(String, &'static str, u32)>,
    /// Where several were asked for.
    carrier: Option<&'static str>,
    dtype: &'static str,
}

impl Key {
    fn of(row: &Row, ground: &Ground<'_>) -> Self {
        let header = &row.job.header;
        // What copy engines run of any schedule is theirs.
        let protocol = if row.by == By::Copies { Protocol::CopyEngine } else { header.protocol };
        let several = ground.args.execution.carrier.len() > 1;
        Self {
            collective: header.call.collective.name(),
            by: row.by,
            strategy: row.by.has_strategy().then(|| (header.name.clone(), protocol.name(), row.blocks())),
            carrier: row.carrier().filter(|_| several).map(Carrier::name),
            dtype: row.job.dtype.name(),
        }
    }

    fn file(&self) -> String {
        let Self { collective, dtype, .. } = self;
        let strategy =
            self.strategy.as_ref().map(|(algorithm, protocol, blocks)| format!("-{algorithm}-{protocol}-{blocks}"));
        let carrier = self.carrier.map(|carrier| format!("-{carrier}"));
        let [strategy, carrier] = [strategy, carrier].map(Option::unwrap_or_default);
        format!("{collective}-{}{strategy}{carrier}-{dtype}.csv", self.by.name())
    }
}

/// Writes the tables of all rows that have times, and what they ran on. Manifests have no words for calls in place and for ranks that
/// share a GPU: those are left out, and that is told.
pub(super) fn write(folder: &Path, ground: &Ground<'_>, answer: &Answer, output: &Output) -> Result<(), Failure> {
    if ground.args.fabric.ranks_per_gpu > 1 {
        output.warn("no measurements are written: a manifest has no words for ranks that share a GPU");
        return Ok(());
    }
    let in_place = answer.rows.iter().filter(|row| row.times.is_some() && is_in_place(row)).count();
    if in_place > 0 {
        output.warn(&format!("{in_place} rows are in no measurement: a manifest has no words for calls in place"));
    }
    let failed = |error: &std::io::Error| Failure::Failed(format!("cannot write to {}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(|error| failed(&error))?;
    for (name, text) in texts(ground, answer)? {
        std::fs::write(folder.join(name), text).map_err(|error| failed(&error))?;
    }
    Ok(())
}

fn is_in_place(row: &Row) -> bool {
    row.job.header.call.buffers == BufferUse::InPlace
}

/// What the manifest names as the fabric: a preset as it is, or a file beside it.
fn fabric<'a>(ground: &'a Ground<'_>, files: &mut BTreeMap<String, String>) -> Result<&'a str, Failure> {
    let args = ground.args;
    let given = args.fabric.fabric.as_str();
    let is_changed = !args.what_if.fail.is_empty() || !args.what_if.slow.is_empty() || !args.fabric.size.mig.is_empty();
    if preset::text(given).is_some() && !is_changed {
        return Ok(given);
    }
    files.insert(FABRIC.to_owned(), write::spec::write(ground.fabric)?);
    Ok(FABRIC)
}

/// Files by name.
fn texts(ground: &Ground<'_>, answer: &Answer) -> Result<BTreeMap<String, String>, Failure> {
    let mut tables: BTreeMap<Key, BTreeMap<u64, f64>> = BTreeMap::new();
    for row in answer.rows.iter().filter(|row| !is_in_place(row)) {
        if let Some(times) = &row.times {
            let bytes = row.job.header.call.bytes.0;
            tables.entry(Key::of(row, ground)).or_default().insert(bytes, times.graph.us());
        }
    }
    let mut manifest = String::from(
        "# Written by `fabricast gpu run`: times of calls from CUDA graphs, a host thread for each GPU.\n",
    );
    let mut files = BTreeMap::new();
    let fabric = fabric(ground, &mut files)?;
    for (key, rows) in tables {
        let table = rows.iter().map(|(bytes, time)| format!("{bytes},{time:.4}\n"));
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
        let library = match key.by {
            By::Nvshmem(_) => answer.nvshmem.as_ref().map(|(version, _)| format!("nvshmem-{version}")),
            _ => answer.nccl.as_ref().map(|version| format!("nccl-{version}")),
        };
        match (&key.strategy, library) {
            (Some((algorithm, protocol, channels)), library) => {
                let _ =
                    writeln!(manifest, "algorithm = \"{algorithm}\"\nprotocol = \"{protocol}\"\nchannels = {channels}");
                let _ = match library {
                    Some(library) if !key.by.runs_schedule() => writeln!(manifest, "library = \"{library}\""),
                    _ => {
                        let by = key.by.name();
                        writeln!(manifest, "library = \"fabricast\"\nsoftware = \"fabricast {by}\"")
                    }
                };
            }
            (None, Some(library)) => {
                let _ = writeln!(manifest, "library = \"{library}\"");
                if key.by == By::NcclSymmetric {
                    manifest.push_str("registered = \"symmetric\"\n");
                }
            }
            (None, None) => {}
        }
    }
    files.insert("manifest.toml".to_owned(), manifest);
    Ok(files)
}
