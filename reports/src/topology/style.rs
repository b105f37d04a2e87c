//! Colours of devices and links, for light and dark pages.

use fabricast_topologies::{LinkKind, NodeKind};

/// Returns the style sheet class of a device.
pub(super) fn node_class(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Gpu | NodeKind::Mig | NodeKind::Accelerator => "gpu",
        NodeKind::Nvswitch => "nvswitch",
        NodeKind::PcieSwitch => "pcie-switch",
        NodeKind::Cpu => "cpu",
        NodeKind::Nic => "nic",
        NodeKind::Switch => "switch",
    }
}

/// Returns the style sheet class of a link.
pub(super) fn link_class(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::Nvlink => "nvlink",
        LinkKind::C2c => "c2c",
        LinkKind::Pcie => "pcie",
        LinkKind::Upi => "upi",
        LinkKind::Infiniband => "infiniband",
        LinkKind::Ethernet => "ethernet",
    }
}

/// Returns the line width of a link in pixels. It is logarithmic in the bandwidth, so that 25 and 900 GB/s are both
/// visible and distinguishable.
pub(super) fn link_width(gb_per_s: Option<f64>) -> f64 {
    gb_per_s.map_or(1.5, |gb_per_s| (0.7 + 0.5 * (1.0 + gb_per_s.max(0.0) / 12.5).log2()).min(5.0))
}

/// Colour scale of utilization for idle, half and full. Lightness decreases monotonically, so that the scale is
/// readable in greyscale.
const HEAT: [(f64, [u8; 3]); 3] = [(0.0, [208, 215, 222]), (0.5, [240, 160, 60]), (1.0, [150, 15, 60])];

/// Returns the colour for a utilization from 0 to 1. Values outside the range are clamped, and non-finite values count
/// as idle.
pub(super) fn heat(utilization: f64) -> String {
    let level = if utilization.is_finite() { utilization.clamp(0.0, 1.0) } else { 0.0 };
    let mut colour = HEAT[0].1;
    for (&(low, from), &(high, to)) in HEAT.iter().zip(HEAT.iter().skip(1)) {
        if level >= low {
            let share = (level - low) / (high - low);
            colour = std::array::from_fn(|i| mix(from.get(i).copied(), to.get(i).copied(), share));
        }
    }
    let [r, g, b] = colour;
    format!("#{r:02x}{g:02x}{b:02x}")
}

fn mix(from: Option<u8>, to: Option<u8>, share: f64) -> u8 {
    let (from, to) = (f64::from(from.unwrap_or(0)), f64::from(to.unwrap_or(0)));
    (from + (to - from) * share.clamp(0.0, 1.0)).round() as u8
}

/// Style sheet for light pages. The hues of links are those of Okabe and Ito, as in the charts.
pub(crate) const LIGHT: &str = "\
text { font-family: 'DejaVu Sans', Verdana, Arial, sans-serif; fill: #24292f; }
.sheet { fill: #ffffff; }
.title { font-size: 19px; font-weight: bold; }
.host-title { font-size: 13px; font-weight: bold; paint-order: stroke; stroke: #f6f8fa; stroke-width: 5px; }
.faint { font-size: 12px; fill: #57606a; }
.id { font-size: 10.5px; text-anchor: middle; }
.host { fill: #f6f8fa; stroke: #d0d7de; }
.more { fill: none; stroke: #afb8c1; stroke-dasharray: 5 4; }
.node { stroke-width: 1.2; }
.gpu { fill: #d9f2e6; stroke: #009e73; }
.nvswitch { fill: #b5e3cf; stroke: #00704f; }
.pcie-switch { fill: #eaeef2; stroke: #8c959f; }
.cpu { fill: #ece3f4; stroke: #8250a8; }
.nic { fill: #dcebf7; stroke: #0072b2; }
.switch { fill: #c3def2; stroke: #00507d; }
.link { fill: none; stroke-linecap: round; }
.nvlink { stroke: #009e73; }
.c2c { stroke: #cc79a7; }
.pcie { stroke: #8c959f; }
.upi { stroke: #8250a8; }
.infiniband { stroke: #0072b2; }
.ethernet { stroke: #e69f00; }
.failed { stroke: #d55e00; stroke-dasharray: 3 4; }
";

/// Rules that override [`LIGHT`] on dark pages.
pub(crate) const DARK: &str = "\
text { fill: #e6edf3; }
.sheet { fill: #0d1117; }
.faint { fill: #9198a1; }
.host-title { stroke: #151b23; }
.host { fill: #151b23; stroke: #3d444d; }
.more { stroke: #656c76; }
.gpu { fill: #0b3d2e; }
.nvswitch { fill: #0f5640; stroke: #2fc494; }
.pcie-switch { fill: #2a313c; }
.cpu { fill: #33244a; stroke: #a987cf; }
.nic { fill: #0f2f49; stroke: #4aa3dc; }
.switch { fill: #124368; stroke: #7cc0ee; }
.upi { stroke: #a987cf; }
.infiniband { stroke: #4aa3dc; }
";

/// Returns the style sheet of a standalone picture.
pub(super) fn sheet() -> String {
    format!("\n{LIGHT}@media (prefers-color-scheme: dark) {{\n{DARK}}}\n")
}
