//! Pictures of fabrics: hosts as boxes with their devices in rows, network switches above, links coloured by kind.
//!
//! Positions are determined by the kinds of devices; no general graph layout is used. From top to bottom a host has
//! NICs, CPUs, PCIe switches, GPUs and NVSwitches, each centred over the devices that it is linked to. The tiers of the
//! network are above the hosts, and NVSwitches that several hosts share are below. Of a large cluster, the first hosts
//! are drawn with the switches that they reach, and the number of hidden hosts is shown.
//!
//! The picture supports light and dark pages (`prefers-color-scheme`), and has tooltips for devices and links.

mod draw;
mod legend;
mod neighbours;
mod positions;
mod rows;
mod scene;
mod select;
mod style;
mod wire;

pub use draw::counts;
pub(crate) use style::{DARK, LIGHT};

use fabricast_topologies::Fabric;

/// Options of a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options<'a> {
    /// Utilization of each link direction (0 to 1), indexed by [`LinkId`](fabricast_topologies::LinkId). Links are
    /// coloured by their busier direction. Links beyond the end of the slice count as idle.
    pub utilization: Option<&'a [f64]>,
    /// Maximum number of hosts to draw; `None` for as many as are readable.
    pub hosts: Option<usize>,
}

/// Draws a fabric as a standalone SVG with its own style sheet.
#[must_use]
pub fn svg(fabric: &Fabric, options: &Options<'_>) -> String {
    drawn(fabric, options, draw::Destination::Alone)
}

/// Draws a fabric as SVG for a page whose style sheet contains [`LIGHT`] and [`DARK`] for the class `fabric`.
#[must_use]
pub(crate) fn inline(fabric: &Fabric, options: &Options<'_>) -> String {
    drawn(fabric, options, draw::Destination::Page)
}

fn drawn(fabric: &Fabric, options: &Options<'_>, setting: draw::Destination) -> String {
    let neighbours = neighbours::Neighbours::new(fabric);
    let selection = select::Selection::new(fabric, &neighbours, options.hosts);
    let scene = scene::Scene::new(fabric, &neighbours, &selection);
    let wires = wire::wires(fabric, &scene, options.utilization);
    let colours = if options.utilization.is_some() { wire::WireColours::Load } else { wire::WireColours::Kind };
    draw::draw(fabric, &scene, &wires, colours, setting)
}

#[cfg(test)]
mod tests;
