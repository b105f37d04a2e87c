//! Rows of `gpu run` by what they have in common: a table for each way to run a collective.

use std::collections::{BTreeMap, BTreeSet};

use fabricast_sim::schedule::{Collective, DataType, Protocol};
use fabricast_topologies::{Bytes, Picos};

use super::By;
use crate::kernel::Carrier;

/// A row that was timed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed {
    /// The collective.
    pub collective: Collective,
    /// What ran it.
    pub by: By,
    /// The schedule's name, its protocol and the blocks of a rank; what a library chose by itself has none.
    pub strategy: Option<(String, Protocol, u32)>,
    /// What carried messages in its kernel, if it was one.
    pub carrier: Option<Carrier>,
    /// The element type.
    pub dtype: DataType,
    /// The size.
    pub bytes: Bytes,
    /// From a CUDA graph.
    pub time: Picos,
    /// Where it stands in a file, from 1.
    pub line: u32,
}

/// What rows of one table have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The collective.
    pub collective: &'static str,
    /// What ran them.
    pub by: By,
    /// The schedule's name, its protocol and the blocks of a rank; nothing where the library chose.
    pub strategy: Option<(String, &'static str, u32)>,
    /// Where a run has the same with several.
    pub carrier: Option<&'static str>,
    /// The element type.
    pub dtype: &'static str,
}

/// A run's libraries, as it names them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Versions<'a> {
    /// NCCL's version.
    pub nccl: Option<&'a str>,
    /// NVSHMEM's.
    pub nvshmem: Option<&'a str>,
}

/// Tables by key, each with its rows by size; of rows of the same key and size the last counts.
#[must_use]
pub fn tables(rows: &[Timed]) -> BTreeMap<Key, BTreeMap<Bytes, &Timed>> {
    let with = |row: &Timed, carrier: Option<Carrier>| Key {
        collective: row.collective.name(),
        by: row.by,
        // What copy engines run of any schedule is theirs.
        strategy: row.strategy.as_ref().map(|(name, protocol, blocks)| {
            let protocol = if row.by == By::Copies { Protocol::CopyEngine } else { *protocol };
            (name.clone(), protocol.name(), *blocks)
        }),
        carrier: carrier.map(Carrier::name),
        dtype: row.dtype.name(),
    };
    let mut carriers: BTreeMap<(String, Bytes), BTreeSet<&'static str>> = BTreeMap::new();
    for row in rows {
        if let (Some((name, protocol, _)), Some(carrier)) = (&row.strategy, row.carrier) {
            let of = format!("{} {} {name} {protocol} {}", row.collective, row.by.name(), row.dtype);
            carriers.entry((of, row.bytes)).or_default().insert(carrier.name());
        }
    }
    let several = carriers.values().any(|carriers| carriers.len() > 1);
    let mut tables: BTreeMap<Key, BTreeMap<Bytes, &Timed>> = BTreeMap::new();
    for row in rows {
        let key = with(row, row.carrier.filter(|_| several));
        tables.entry(key).or_default().insert(row.bytes, row);
    }
    tables
}

impl Key {
    /// The name of its table's file.
    #[must_use]
    pub fn file(&self) -> String {
        let Self { collective, dtype, .. } = self;
        let strategy =
            self.strategy.as_ref().map(|(algorithm, protocol, blocks)| format!("-{algorithm}-{protocol}-{blocks}"));
        let carrier = self.carrier.map(|carrier| format!("-{carrier}"));
        let [strategy, carrier] = [strategy, carrier].map(Option::unwrap_or_default);
        format!("{collective}-{}{strategy}{carrier}-{dtype}.csv", self.by.name())
    }

    /// The library that ran it, as manifests name it: this program where it runs a schedule; `None` where the run names none.
    #[must_use]
    pub fn library(&self, versions: Versions<'_>) -> Option<String> {
        let named = match self.by {
            By::Nvshmem(_) => versions.nvshmem.map(|version| format!("nvshmem-{version}")),
            _ => versions.nccl.map(|version| format!("nccl-{version}")),
        };
        match (&self.strategy, named) {
            (Some(_), Some(library)) if !self.by.runs_schedule() => Some(library),
            (Some(_), _) => Some("fabricast".to_owned()),
            (None, named) => named,
        }
    }

    /// The software, where it is this program's.
    #[must_use]
    pub fn software(&self, versions: Versions<'_>) -> Option<String> {
        let is_own = self.strategy.is_some() && self.library(versions).is_some_and(|library| library == "fabricast");
        is_own.then(|| format!("fabricast {}", self.by.name()))
    }
}
