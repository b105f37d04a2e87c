//! A fabric as a picture: hosts as boxes with their devices in rows, network switches above, links coloured by kind.
//!
//! Positions follow from what the devices are, not from a general graph layout: NICs stand on top of a host, under them
//! CPUs, PCIe switches, GPUs and NVSwitches, each over the middle of what it is linked to; the tiers of the network
//! stand above the hosts, NVSwitches that several hosts share below. Of a large cluster the first hosts are drawn with
//! the switches that they reach, and the picture says how many more there are.
//!
//! The picture is for light and dark pages (`prefers-color-scheme`) and says what a device or link is when pointed at.

mod draw;
mod legend;
mod neighbours;
mod place;
mod rows;
mod scene;
mod select;
mod style;
mod wire;

pub use draw::counts;
pub(crate) use style::{DARK, LIGHT};

use fabricast_topologies::Fabric;

/// What a picture is to show.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options<'a> {
    /// How busy each link direction is (0 to 1), by [`LinkId`](fabricast_topologies::LinkId); links are coloured by the
    /// busier direction. Links beyond its end count as idle.
    pub utilization: Option<&'a [f64]>,
    /// Hosts to draw at most; `None` for as many as stay readable.
    pub hosts: Option<usize>,
}

/// Draws a fabric as SVG.
#[must_use]
pub fn svg(fabric: &Fabric, options: &Options<'_>) -> String {
    drawn(fabric, options, draw::Setting::Alone)
}

/// Draws a fabric as SVG for a page that has [`LIGHT`] and [`DARK`] for what is of class `fabric`.
#[must_use]
pub(crate) fn inline(fabric: &Fabric, options: &Options<'_>) -> String {
    drawn(fabric, options, draw::Setting::Page)
}

fn drawn(fabric: &Fabric, options: &Options<'_>, setting: draw::Setting) -> String {
    let neighbours = neighbours::Neighbours::of_all(fabric);
    let selection = select::Selection::of(fabric, &neighbours, options.hosts);
    let scene = scene::Scene::of(fabric, &neighbours, &selection);
    let wires = wire::wires(fabric, &scene, options.utilization);
    draw::draw(fabric, &scene, &wires, options.utilization.is_some(), setting)
}

#[cfg(test)]
mod tests;
