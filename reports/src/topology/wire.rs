//! Links as drawn: both directions, and parallel links of a kind, are one line.

use std::collections::BTreeMap;

use fabricast_topologies::{Bandwidth, Fabric, LinkKind, NodeId, NodeKind, Picos};

use super::scene::{DEVICE_HEIGHT, DEVICE_WIDTH, Device, Scene, arc_depth};
use crate::format;
use crate::markup::number;

/// All links of a kind between two drawn devices.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wire {
    /// Shape of the line, as an SVG path.
    pub path: String,
    pub kind: LinkKind,
    pub is_failed: bool,
    /// Total bandwidth of the links in the faster direction; `None` if it is unlimited.
    pub bandwidth: Option<Bandwidth>,
    /// Utilization of the busiest direction, from 0 to 1.
    pub load: f64,
    /// Text of the tooltip.
    pub title: String,
}

/// Property of links that their colours show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireColours {
    /// Kind of link.
    Kind,
    /// Utilization.
    Load,
}

/// Common properties and sums of the links of a wire.
#[derive(Clone, Copy, Debug)]
struct Bundle {
    a: NodeId,
    b: NodeId,
    kind: LinkKind,
    is_failed: bool,
    links: u32,
    lanes: u32,
    forward: Option<u64>,
    backward: Option<u64>,
    latency: Picos,
    load: f64,
}

/// Returns the wires between drawn devices in drawing order: idle wires below busy ones, broad wires below thin ones.
pub(super) fn wires(fabric: &Fabric, scene: &Scene, utilization: Option<&[f64]>) -> Vec<Wire> {
    let mut bundles: BTreeMap<(NodeId, NodeId, LinkKind, bool), Bundle> = BTreeMap::new();
    for (id, link) in fabric.links() {
        let (a, b) = (link.from.min(link.to), link.from.max(link.to));
        if scene.device(a).is_none() || scene.device(b).is_none() {
            continue;
        }
        let bundle = bundles.entry((a, b, link.kind, link.failed)).or_insert(Bundle {
            a,
            b,
            kind: link.kind,
            is_failed: link.failed,
            links: 0,
            lanes: 0,
            forward: Some(0),
            backward: Some(0),
            latency: link.latency,
            load: 0.0,
        });
        let load = utilization.and_then(|loads| loads.get(id.0 as usize)).copied().unwrap_or(0.0);
        bundle.load = bundle.load.max(load);
        let more = link.bandwidth.map(|bandwidth| bandwidth.0);
        let sum = |sum: Option<u64>| Some(sum?.saturating_add(more?));
        if link.from == a {
            bundle.links += 1;
            bundle.lanes += u32::from(link.lanes);
            bundle.forward = sum(bundle.forward);
        } else {
            bundle.backward = sum(bundle.backward);
        }
    }
    let mut wires: Vec<Wire> = bundles
        .into_values()
        .filter_map(|bundle| {
            let Bundle { a, b, kind, is_failed, .. } = bundle;
            let (from, to) = (scene.device(a)?, scene.device(b)?);
            let bandwidth = match (bundle.forward, bundle.backward) {
                (Some(forward), Some(backward)) => Some(Bandwidth(forward.max(backward))),
                _ => None,
            };
            let mut title = describe(fabric, &bundle);
            if utilization.is_some() {
                title.push_str(&format!(", {} % busy", format::percent(bundle.load)));
            }
            Some(Wire { path: path(fabric, from, to), kind, is_failed, bandwidth, load: bundle.load, title })
        })
        .collect();
    wires.sort_by(|x, y| x.load.total_cmp(&y.load).then(y.bandwidth.cmp(&x.bandwidth)));
    wires
}

/// Returns the ends, number, bandwidth, latency and state of the links of a wire.
fn describe(fabric: &Fabric, bundle: &Bundle) -> String {
    let show = |rate: Option<u64>| rate.map_or("unlimited".to_owned(), |rate| Bandwidth(rate).to_string());
    let mut parts =
        vec![format!("{} – {}: {}", fabric.node(bundle.a).id, fabric.node(bundle.b).id, bundle.kind.title())];
    if bundle.links > 1 {
        parts.push(format!("{} links", bundle.links));
    }
    if bundle.lanes > bundle.links {
        parts.push(format!("{} lanes", bundle.lanes));
    }
    if bundle.forward == bundle.backward {
        parts.push(format!("{} each way", show(bundle.forward)));
    } else {
        parts.push(format!("{} there, {} back", show(bundle.forward), show(bundle.backward)));
    }
    if bundle.latency > Picos::ZERO {
        parts.push(format::time(bundle.latency));
    }
    if bundle.is_failed {
        parts.push("failed".to_owned());
    }
    parts.join(", ")
}

/// Returns the path from the lower edge of the upper device to the upper edge of the lower device. Within a line, it is
/// an arc or a short bar.
fn path(fabric: &Fabric, a: &Device, b: &Device) -> String {
    let half = DEVICE_HEIGHT / 2.0;
    if a.line == b.line {
        let (left, right) = if a.x <= b.x { (a, b) } else { (b, a) };
        let distance = left.index.abs_diff(right.index);
        let is_rank = fabric.node(a.id).kind.is_rank();
        if distance <= 1 && !is_rank {
            let edge = DEVICE_WIDTH / 2.0;
            return format!("M{} {}H{}", number(left.x + edge), number(left.y), number(right.x - edge));
        }
        // Arcs run below ranks, and above all other devices. The control point of a curve is twice as far away as the
        // curve.
        let (edge, depth) = match fabric.node(a.id).kind {
            _ if is_rank => (left.y + half, 2.0 * arc_depth(distance)),
            NodeKind::Cpu => (left.y - half, -(16.0 + 6.0 * distance as f64).min(60.0)),
            _ => (left.y - half, -(20.0 + 8.0 * distance as f64).min(100.0)),
        };
        // Arcs to the two sides of a device start at different points.
        let lean = 14.0;
        let (x0, x1) = (left.x + lean, right.x - lean);
        let inset = (x1 - x0) * 0.12;
        let deep = number(edge + depth * 0.66);
        return format!(
            "M{} {}C{} {deep} {} {deep} {} {}",
            number(x0),
            number(edge),
            number(x0 + inset),
            number(x1 - inset),
            number(x1),
            number(edge)
        );
    }
    let (upper, lower) = if a.y <= b.y { (a, b) } else { (b, a) };
    let (y0, y1) = (upper.y + half, lower.y - half);
    let lean = |dx: f64| (dx * 0.06).clamp(-0.4 * DEVICE_WIDTH, 0.4 * DEVICE_WIDTH);
    let (x0, x1) = (upper.x + lean(lower.x - upper.x), lower.x + lean(upper.x - lower.x));
    if (x0 - x1).abs() < 0.5 {
        return format!("M{} {}V{}", number(x0), number(y0), number(y1));
    }
    // Links into a box bend outside the box and run straight to their device, past the title.
    let bend_y = match (upper.top, lower.top) {
        (None, Some(top)) if top > y0 && top < y1 => top,
        _ => y1,
    };
    let middle = number((y0 + bend_y) / 2.0);
    let down = if bend_y < y1 { format!("V{}", number(y1)) } else { String::new() };
    format!(
        "M{} {}C{} {middle} {} {middle} {} {}{down}",
        number(x0),
        number(y0),
        number(x0),
        number(x1),
        number(x1),
        number(bend_y)
    )
}
