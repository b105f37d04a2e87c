//! Groups the rows of `gpu run` into tables, one per executor and strategy of a collective.

use std::collections::{BTreeMap, BTreeSet};

use fabricast_sim::schedule::{Collective, DataType, Protocol};
use fabricast_topologies::{Bytes, Picos};

use super::ExecutorKind;
use crate::kernel::Carrier;

/// Row of `gpu run` with a usable time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedRow {
    /// Collective that was run.
    pub collective: Collective,
    /// Executor of the call.
    pub executor: ExecutorKind,
    /// Name of the schedule, its protocol and the number of blocks per rank; `None` for a library's own choice.
    pub strategy: Option<(String, Protocol, u32)>,
    /// Message format of the kernel; `None` if no kernel ran.
    pub carrier: Option<Carrier>,
    /// Element type of the buffers.
    pub dtype: DataType,
    /// Message size in bytes.
    pub bytes: Bytes,
    /// Time of a call, measured from a CUDA graph.
    pub time: Picos,
    /// Line of the row in the source file, from 1; 0 without a file.
    pub line: u32,
}

/// Properties shared by all rows of one table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableKey {
    /// Name of the collective.
    pub collective: &'static str,
    /// Executor of the calls.
    pub executor: ExecutorKind,
    /// Name of the schedule, name of its protocol and number of blocks per rank; `None` for a library's own choice.
    pub strategy: Option<(String, &'static str, u32)>,
    /// Name of the message format; `None` unless the run has the same strategy with several formats.
    pub carrier: Option<&'static str>,
    /// Name of the element type.
    pub dtype: &'static str,
}

/// Versions of the libraries of a run, as the libraries report them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Versions<'a> {
    /// Version of NCCL; `None` if the run names none.
    pub nccl: Option<&'a str>,
    /// Version of NVSHMEM; `None` if the run names none.
    pub nvshmem: Option<&'a str>,
}

/// Groups rows into tables by key, sorted by message size. Of several rows with the same key and size, the last one is
/// used.
#[must_use]
pub fn tables(rows: &[TimedRow]) -> BTreeMap<TableKey, BTreeMap<Bytes, &TimedRow>> {
    let key_of = |row: &TimedRow, carrier: Option<Carrier>| TableKey {
        collective: row.collective.name(),
        executor: row.executor,
        // Copy engines use the protocol `copy_engine`, regardless of the schedule's protocol.
        strategy: row.strategy.as_ref().map(|(name, protocol, blocks)| {
            let protocol = if row.executor == ExecutorKind::Copies { Protocol::CopyEngine } else { *protocol };
            (name.clone(), protocol.name(), *blocks)
        }),
        carrier: carrier.map(Carrier::name),
        dtype: row.dtype.name(),
    };
    let mut carriers: BTreeMap<(String, Bytes), BTreeSet<&'static str>> = BTreeMap::new();
    for row in rows {
        if let (Some((name, protocol, _)), Some(carrier)) = (&row.strategy, row.carrier) {
            let title = format!("{} {} {name} {protocol} {}", row.collective, row.executor.name(), row.dtype);
            carriers.entry((title, row.bytes)).or_default().insert(carrier.name());
        }
    }
    let several = carriers.values().any(|carriers| carriers.len() > 1);
    let mut tables: BTreeMap<TableKey, BTreeMap<Bytes, &TimedRow>> = BTreeMap::new();
    for row in rows {
        let key = key_of(row, row.carrier.filter(|_| several));
        tables.entry(key).or_default().insert(row.bytes, row);
    }
    tables
}

impl TableKey {
    /// File name of the table's CSV, such as `all_reduce-nccl-f32.csv`.
    #[must_use]
    pub fn file(&self) -> String {
        let Self { collective, dtype, .. } = self;
        let strategy =
            self.strategy.as_ref().map(|(algorithm, protocol, blocks)| format!("-{algorithm}-{protocol}-{blocks}"));
        let carrier = self.carrier.map(|carrier| format!("-{carrier}"));
        let [strategy, carrier] = [strategy, carrier].map(Option::unwrap_or_default);
        format!("{collective}-{}{strategy}{carrier}-{dtype}.csv", self.executor.name())
    }

    /// Name of the library for a manifest: `fabricast` if fabricast ran the schedule itself. `None` if the run names no
    /// library.
    #[must_use]
    pub fn library(&self, versions: Versions<'_>) -> Option<String> {
        let named = match self.executor {
            ExecutorKind::Nvshmem(_) => versions.nvshmem.map(|version| format!("nvshmem-{version}")),
            _ => versions.nccl.map(|version| format!("nccl-{version}")),
        };
        match (&self.strategy, named) {
            (Some(_), Some(library)) if !self.executor.runs_schedule() => Some(library),
            (Some(_), _) => Some("fabricast".to_owned()),
            (None, named) => named,
        }
    }

    /// Name of the software for a manifest; `None` unless fabricast ran the schedule itself.
    #[must_use]
    pub fn software(&self, versions: Versions<'_>) -> Option<String> {
        let is_fabricast =
            self.strategy.is_some() && self.library(versions).is_some_and(|library| library == "fabricast");
        is_fabricast.then(|| format!("fabricast {}", self.executor.name()))
    }
}
