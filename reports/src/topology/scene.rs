//! Positions of all devices, in pixels.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::{Fabric, HostId, NodeId, NodeKind};

use super::neighbours::Neighbours;
use super::positions::spread;
use super::rows::{self, DeviceRow, Level};
use super::select::{Selection, Tier};
use crate::markup::shortened;

pub(super) const DEVICE_WIDTH: f64 = 72.0;
pub(super) const DEVICE_HEIGHT: f64 = 30.0;
pub(super) const MARGIN: f64 = 28.0;
/// Distance between the centres of neighbouring devices in a line, in pixels.
const CELL: f64 = 84.0;
/// Maximum width of a device's cell in units of [`CELL`], if there is space.
const WIDE: f64 = 2.0;
const LINE_GAP: f64 = 12.0;
const ROW_GAP: f64 = 48.0;
const TIER_GAP: f64 = 66.0;
/// Gap in pixels between the hosts and the adjacent switches, where most lines cross.
const NETWORK_GAP: f64 = 96.0;
const HOST_TITLE: f64 = 40.0;
const HOST_PADDING: f64 = 22.0;
const HOST_GAP: f64 = 28.0;
const MIN_HOST_WIDTH: f64 = 190.0;
const GHOST: f64 = 120.0;
/// Width of a text such as "+ 48 more" at the end of a row, in pixels.
const MORE: f64 = 76.0;
/// Bottom edge of the title and the counts, in pixels.
const HEAD: f64 = 84.0;
/// Maximum number of characters of a host's title.
const TITLE: usize = 60;

/// Device with the position of its centre.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Device {
    pub id: NodeId,
    pub x: f64,
    pub y: f64,
    /// Upper edge of the box of the device's host; `None` if the device is in no box.
    pub top: Option<f64>,
    /// Number of the device's line. Devices of a line are ordered by `index`.
    pub line: usize,
    pub index: usize,
}

/// Box of a host, or of the hidden hosts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HostFrame {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
    pub title: String,
    pub is_ghost: bool,
}

/// Text in a picture, positioned by its left end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Remark {
    pub x: f64,
    pub y: f64,
    pub text: String,
}

/// Left and right edge of a part of the picture.
#[derive(Clone, Copy)]
struct Edges {
    left: f64,
    right: f64,
}

/// Positions of all parts of a picture, in pixels.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Scene {
    pub width: f64,
    /// Top edge of the legend.
    pub bottom: f64,
    pub frames: Vec<HostFrame>,
    pub devices: Vec<Device>,
    pub remarks: Vec<Remark>,
    /// Index in `devices` of each device of the fabric, by [`NodeId`]; `None` if the device is not drawn.
    index: Vec<Option<usize>>,
    lines: usize,
}

impl Scene {
    pub(super) fn new(fabric: &Fabric, neighbours: &Neighbours, selection: &Selection) -> Self {
        let mut scene = Self { index: vec![None; fabric.node_count()], ..Self::default() };
        let hosts: Vec<(HostId, Vec<DeviceRow>)> =
            selection.hosts.iter().map(|(host, devices)| (*host, rows::rows(fabric, neighbours, devices))).collect();
        let titles: Vec<String> = selection.hosts.iter().map(|(host, devices)| title(fabric, *host, devices)).collect();
        let widths: Vec<f64> = hosts.iter().zip(&titles).map(|((_, rows), title)| host_width(rows, title)).collect();
        let ghost = if selection.more_hosts > 0 { GHOST + HOST_GAP } else { 0.0 };
        let of_hosts = widths.iter().map(|width| width + HOST_GAP).sum::<f64>() - HOST_GAP + ghost;
        let of_tiers = selection.tiers.iter().chain([&selection.shared]).map(tier_width).fold(0.0, f64::max);
        let inner = of_hosts.max(of_tiers).max(560.0);
        scene.width = inner + 2.0 * MARGIN;

        let above = selection.tiers.len() as f64 * (DEVICE_HEIGHT + TIER_GAP);
        let top = HEAD + if selection.tiers.is_empty() { 0.0 } else { above + NETWORK_GAP - TIER_GAP };
        let mut left = MARGIN + (inner - of_hosts) / 2.0;
        let mut bottom = top;
        for (((_, rows), title), &width) in hosts.iter().zip(&titles).zip(&widths) {
            let end = {
                let edges = Edges { left: left + HOST_PADDING, right: left + width - HOST_PADDING };
                scene.add_host(neighbours, rows, edges, top)
            };
            scene.frames.push(HostFrame {
                x: left,
                y: top,
                width,
                height: end - top,
                title: title.clone(),
                is_ghost: false,
            });
            bottom = bottom.max(end);
            left += width + HOST_GAP;
        }
        for frame in &mut scene.frames {
            frame.height = bottom - top;
        }
        if selection.more_hosts > 0 {
            let title = format!("+ {} hosts", selection.more_hosts);
            let height = bottom - top;
            scene.frames.push(HostFrame { x: left, y: top, width: GHOST, height, title, is_ghost: true });
        }
        if !selection.shared.switches.is_empty() {
            bottom += NETWORK_GAP;
            scene.add_tier(neighbours, &selection.shared, bottom + DEVICE_HEIGHT / 2.0);
            bottom += DEVICE_HEIGHT;
        }
        for (number, tier) in selection.tiers.iter().enumerate() {
            let y = top - NETWORK_GAP - DEVICE_HEIGHT / 2.0 - number as f64 * (DEVICE_HEIGHT + TIER_GAP);
            scene.add_tier(neighbours, tier, y);
        }
        scene.bottom = bottom + 18.0;
        scene
    }

    /// Returns the drawn device of a node; `None` if the node is not drawn.
    pub(super) fn device(&self, id: NodeId) -> Option<&Device> {
        let index = (*self.index.get(id.0 as usize)?)?;
        self.devices.get(index)
    }

    /// Places the rows of a host between two edges, and returns the bottom edge of its box.
    fn add_host(&mut self, neighbours: &Neighbours, rows: &[DeviceRow], edges: Edges, top: f64) -> f64 {
        let mut y = top + HOST_TITLE;
        let mut heights = Vec::with_capacity(rows.len());
        for (number, row) in rows.iter().enumerate() {
            heights.push(y + DEVICE_HEIGHT / 2.0);
            y += row.lines.len() as f64 * (DEVICE_HEIGHT + LINE_GAP) - LINE_GAP;
            if row.more > 0 {
                self.remarks.push(Remark { x: edges.left, y: y + 18.0, text: format!("+ {} more", row.more) });
                y += 24.0;
            }
            let last = number + 1 == rows.len();
            y += arc_room(neighbours, row).unwrap_or(0.0).max(if last { 0.0 } else { ROW_GAP });
        }
        // Row to which the others are aligned: the GPUs or, without GPUs, the longest row.
        let base = rows.iter().position(|row| row.level == Level::Gpu);
        let base = base.or_else(|| (0..rows.len()).max_by_key(|&i| rows.get(i).map_or(0, length))).unwrap_or(0);
        for number in (base..rows.len()).chain((0..base).rev()) {
            let (Some(row), Some(&height)) = (rows.get(number), heights.get(number)) else { continue };
            for (line, ids) in row.lines.iter().enumerate() {
                let y = height + line as f64 * (DEVICE_HEIGHT + LINE_GAP);
                self.add_line(neighbours, ids, y, edges, Some(top));
            }
        }
        y + HOST_PADDING
    }

    fn add_tier(&mut self, neighbours: &Neighbours, tier: &Tier, y: f64) {
        let (left, mut right) = (MARGIN, self.width - MARGIN);
        if tier.more > 0 {
            right -= MORE;
            let text = format!("+ {} more", tier.more);
            self.remarks.push(Remark { x: right + 10.0, y: y + 4.0, text });
        }
        self.add_line(neighbours, &tier.switches, y, Edges { left, right }, None);
    }

    /// Places devices in a line, each centred over the placed devices that it is linked to.
    fn add_line(&mut self, neighbours: &Neighbours, ids: &[NodeId], y: f64, edges: Edges, top: Option<f64>) {
        let Edges { left, right } = edges;
        let middle = (left + right) / 2.0;
        let preferred = |&id: &NodeId| {
            let positions: Vec<f64> =
                neighbours.get(id).iter().filter_map(|&id| self.device(id)).map(|d| d.x).collect();
            let x = if positions.is_empty() { middle } else { positions.iter().sum::<f64>() / positions.len() as f64 };
            (x, id)
        };
        let mut preferences: Vec<(f64, NodeId)> = ids.iter().map(preferred).collect();
        preferences.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let half = DEVICE_WIDTH / 2.0;
        let cell = match (preferences.first(), preferences.last()) {
            // All devices prefer the same position, as switches that are linked to all devices do, so the available
            // space is divided among them.
            (Some(first), Some(last)) if last.0 - first.0 < 1.0 => {
                ((right - left) / preferences.len() as f64).clamp(CELL, WIDE * CELL)
            }
            _ => CELL,
        };
        let xs = spread(
            &preferences.iter().map(|preference| preference.0).collect::<Vec<_>>(),
            cell,
            left + half,
            right - half,
        );
        for (index, (&(_, id), x)) in preferences.iter().zip(xs).enumerate() {
            if let Some(slot) = self.index.get_mut(id.0 as usize) {
                *slot = Some(self.devices.len());
            }
            self.devices.push(Device { id, x, y, top, line: self.lines, index });
        }
        self.lines += 1;
    }
}

fn length(row: &DeviceRow) -> usize {
    row.lines.iter().map(Vec::len).max().unwrap_or(0)
}

fn host_width(rows: &[DeviceRow], title: &str) -> f64 {
    let longest = rows.iter().map(length).max().unwrap_or(0);
    let devices = longest as f64 * CELL - (CELL - DEVICE_WIDTH);
    // A bold character of 13 pixels has an average width of at most 9 pixels.
    devices.max(title.chars().count() as f64 * 9.0).max(MIN_HOST_WIDTH) + 2.0 * HOST_PADDING
}

fn tier_width(tier: &Tier) -> f64 {
    tier.switches.len() as f64 * CELL + if tier.more > 0 { MORE } else { 0.0 }
}

/// Returns the depth in pixels of the arc between two devices of a line that are `distance` positions apart.
pub(super) fn arc_depth(distance: usize) -> f64 {
    14.0 + 9.0 * distance as f64
}

/// Returns the height in pixels of the arcs below a row; `None` if no devices of the row are linked with each other.
fn arc_room(neighbours: &Neighbours, row: &DeviceRow) -> Option<f64> {
    if row.level != Level::Gpu {
        return None;
    }
    let max_distance = |line: &Vec<NodeId>| {
        let index_of = |id: NodeId| line.iter().position(|&candidate| candidate == id);
        let pairs = line.iter().enumerate().flat_map(|(a, &id)| {
            neighbours
                .get(id)
                .iter()
                .filter_map(move |&candidate| index_of(candidate))
                .map(move |b| a.abs_diff(b))
                .collect::<Vec<_>>()
        });
        pairs.max()
    };
    row.lines.iter().filter_map(max_distance).max().map(|max_distance| arc_depth(max_distance) + 16.0)
}

/// Returns the title of a host: its name, and number and model of its ranks.
fn title(fabric: &Fabric, host: HostId, devices: &[NodeId]) -> String {
    let name = fabric.hosts().get(host.0 as usize).map_or("", |name| &**name);
    let ranks: Vec<NodeId> = devices.iter().copied().filter(|&id| fabric.node(id).kind.is_rank()).collect();
    let model = |&id: &NodeId| match &fabric.node(id).figures {
        Figures::Gpu(figures) => figures.model.clone(),
        _ => None,
    };
    let mut models: Vec<Option<String>> = ranks.iter().map(model).collect();
    models.dedup();
    let description = match models.as_slice() {
        [] => return shortened(name, TITLE),
        [Some(model)] => model.clone(),
        _ if ranks.iter().all(|&id| fabric.node(id).kind == NodeKind::Gpu) => "GPU".to_owned(),
        _ => "rank".to_owned(),
    };
    shortened(&format!("{name} · {} × {description}", ranks.len()), TITLE)
}
