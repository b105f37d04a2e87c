//! Times as `compare` and `calibrate` read them: a table for every strategy, and the manifest that describes them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use fabricast_sim::schedule::BufferUse;

use super::answer::{Answer, By, Row};
use crate::failure::Failure;

/// What rows of one table have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    collective: &'static str,
    by: By,
    /// Algorithm, protocol and blocks; nothing where the library chose.
    strategy: Option<(String, &'static str, u32)>,
    dtype: &'static str,
}

impl Key {
    fn of(row: &Row) -> Self {
        let header = &row.job.header;
        Self {
            collective: header.call.collective.name(),
            by: row.by,
            strategy: row.by.has_strategy().then(|| (header.name.clone(), header.protocol.name(), row.blocks())),
            dtype: row.job.dtype.name(),
        }
    }

    fn file(&self) -> String {
        match &self.strategy {
            Some((algorithm, protocol, blocks)) => {
                format!("{}-{}-{algorithm}-{protocol}-{blocks}-{}.csv", self.collective, self.by.name(), self.dtype)
            }
            None => format!("{}-{}-{}.csv", self.collective, self.by.name(), self.dtype),
        }
    }
}

/// Writes the tables of all rows that have times, of calls out of place.
pub(super) fn write(folder: &Path, answer: &Answer) -> Result<(), Failure> {
    let failed = |error: &std::io::Error| Failure::Failed(format!("cannot write to {}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(|error| failed(&error))?;
    for (name, text) in texts(answer) {
        std::fs::write(folder.join(name), text).map_err(|error| failed(&error))?;
    }
    Ok(())
}

/// Files by name.
fn texts(answer: &Answer) -> BTreeMap<String, String> {
    let mut tables: BTreeMap<Key, BTreeMap<u64, f64>> = BTreeMap::new();
    for row in &answer.rows {
        let out_of_place = row.job.header.call.buffers == BufferUse::OutOfPlace;
        if let (Some(times), true) = (&row.times, out_of_place) {
            let bytes = row.job.header.call.bytes.0;
            tables.entry(Key::of(row)).or_default().insert(bytes, times.graph.us());
        }
    }
    let mut manifest = String::from(
        "# Written by `fabricast gpu run`: times of calls from CUDA graphs, a host thread for each GPU.\n",
    );
    let mut files = BTreeMap::new();
    for (key, rows) in tables {
        let table = rows.iter().map(|(bytes, time)| format!("{bytes},{time:.4}\n"));
        files.insert(key.file(), format!("bytes,time_us\n{}", table.collect::<String>()));
        let _ = write!(
            manifest,
            "\n[[measurement]]\nfile = \"{}\"\nfabric = \"{}\"\nnodes = 1\ngpus = {}\ncollective = \"{}\"\ndtype = \"{}\"\n\
             launch = \"graph\"\nprocesses = \"per_gpu\"\nnvls = false\n",
            key.file(),
            answer.fabric,
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
    files
}
