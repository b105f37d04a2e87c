//! Figures of a device in a spec, stated on the node itself or shared in a `[device.NAME]` table.

use std::sync::Arc;

use super::table::{Table, TableEntry, scalar};
use crate::error::Result;
use crate::fabric::{Figures, NodeKind};
use crate::keys::Keys;

/// Keys of a `[[node]]` that are not figures.
pub(super) const NODE_KEYS: [&str; 5] = ["id", "kind", "host", "device", "attributes"];

/// Names of the keys of a struct.
fn names<T: Keys>() -> Vec<&'static str> {
    T::KEYS.iter().map(|key| key.name).collect()
}

/// Reads the figures of a node: those of its `[device]` table, overridden by its own.
pub(super) fn read(kind: NodeKind, node: &Table<'_>, device: Option<&Table<'_>>) -> Result<Figures> {
    let is_figure = |entry: &TableEntry<'_>| !NODE_KEYS.contains(&entry.key);
    if device.is_none() && !node.entries().any(|entry| is_figure(&entry)) {
        return Ok(Figures::None);
    }
    Ok(match kind {
        NodeKind::Gpu | NodeKind::Mig | NodeKind::Accelerator => Figures::Gpu(fill(node, device)?),
        NodeKind::Cpu => Figures::Cpu(fill(node, device)?),
        NodeKind::Nic => Figures::Nic(fill(node, device)?),
        NodeKind::Nvswitch | NodeKind::PcieSwitch | NodeKind::Switch => Figures::Switch(fill(node, device)?),
    })
}

fn fill<T: Keys>(node: &Table<'_>, device: Option<&Table<'_>>) -> Result<Arc<T>> {
    let mut figures = T::default();
    let no_figures: &[&str] = &[];
    for (table, others) in device.map(|device| (device, no_figures)).into_iter().chain([(node, &NODE_KEYS[..])]) {
        for entry in table.entries().filter(|entry| !others.contains(&entry.key)) {
            let Some(key) = T::KEYS.iter().find(|key| key.name == entry.key) else {
                return Err(table.unknown_key(&entry, &[others, &names::<T>()].concat()));
            };
            scalar(entry.value).and_then(|value| (key.set)(&mut figures, &value)).map_err(|message| {
                table.origin.invalid(entry.value_bytes.clone(), format!("{}: {message}", key.name))
            })?;
        }
    }
    Ok(figures.into())
}
