//! Rows of a host: assignment of devices to lines, from top to bottom.

use fabricast_topologies::{Fabric, NodeId, NodeKind};

use super::neighbours::Neighbours;

/// Maximum number of devices in a line. Longer rows have several lines.
pub(super) const LINE: usize = 16;
/// Maximum number of lines of a row. Further devices are hidden.
const LINES: usize = 4;

/// Devices of one kind in a host, on one or several lines.
#[derive(Clone, Debug)]
pub(super) struct DeviceRow {
    pub level: Level,
    /// Devices of each line, from top to bottom.
    pub lines: Vec<Vec<NodeId>>,
    /// Number of devices of this row that are not drawn.
    pub more: usize,
}

/// Levels of rows from top to bottom. PCIe switches may be cascaded, so their level depends on their depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Nic,
    Cpu,
    PcieSwitch(usize),
    Gpu,
    Mig,
    Nvswitch,
}

/// Returns the rows of a host that have devices, from top to bottom.
pub(super) fn rows(fabric: &Fabric, neighbours: &Neighbours, devices: &[NodeId]) -> Vec<DeviceRow> {
    let depths = pcie_depths(fabric, neighbours, devices);
    let mut levels: Vec<(Level, NodeId)> =
        devices.iter().zip(depths).map(|(&id, depth)| (level(fabric, id, depth), id)).collect();
    levels.sort_unstable();
    levels
        .chunk_by(|a, b| a.0 == b.0)
        .map(|row| {
            let ids: Vec<NodeId> = row.iter().map(|&(_, id)| id).collect();
            let lines: Vec<Vec<NodeId>> = even_lines(&ids);
            DeviceRow {
                level: row.first().map_or(Level::Gpu, |first| first.0),
                more: ids.len().saturating_sub(LINE * LINES),
                lines,
            }
        })
        .collect()
}

/// Divides devices into as few lines as possible, of equal length.
fn even_lines(ids: &[NodeId]) -> Vec<Vec<NodeId>> {
    let ids = ids.get(..LINE * LINES).unwrap_or(ids);
    let lines = ids.len().div_ceil(LINE).max(1);
    ids.chunks(ids.len().div_ceil(lines).max(1)).map(<[NodeId]>::to_vec).collect()
}

fn level(fabric: &Fabric, id: NodeId, depth: usize) -> Level {
    match fabric.node(id).kind {
        NodeKind::Nic => Level::Nic,
        NodeKind::Cpu => Level::Cpu,
        NodeKind::PcieSwitch => Level::PcieSwitch(depth),
        NodeKind::Gpu | NodeKind::Accelerator => Level::Gpu,
        NodeKind::Mig => Level::Mig,
        NodeKind::Nvswitch | NodeKind::Switch => Level::Nvswitch,
    }
}

/// Returns the number of PCIe switches between each PCIe switch and the nearest CPU; 0 for other devices, and if there
/// is no CPU.
fn pcie_depths(fabric: &Fabric, neighbours: &Neighbours, devices: &[NodeId]) -> Vec<usize> {
    let index_of = |id: NodeId| devices.binary_search(&id).ok();
    let is = |index: usize, kind: NodeKind| devices.get(index).is_some_and(|&id| fabric.node(id).kind == kind);
    let mut depths = vec![0; devices.len()];
    let mut visited: Vec<bool> = (0..devices.len()).map(|index| is(index, NodeKind::Cpu)).collect();
    let mut front: Vec<usize> = (0..devices.len()).filter(|&index| is(index, NodeKind::Cpu)).collect();
    let mut depth = 0;
    while !front.is_empty() {
        let mut next = Vec::new();
        let linked = front.iter().filter_map(|&index| devices.get(index)).flat_map(|&id| neighbours.get(id));
        for neighbour in linked.filter_map(|&id| index_of(id)) {
            let new = is(neighbour, NodeKind::PcieSwitch) && !visited.get(neighbour).copied().unwrap_or(true);
            if let (true, Some(visited), Some(slot)) = (new, visited.get_mut(neighbour), depths.get_mut(neighbour)) {
                *visited = true;
                *slot = depth;
                next.push(neighbour);
            }
        }
        front = next;
        depth += 1;
    }
    depths
}
