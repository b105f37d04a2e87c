//! Output of a scene as SVG.

use fabricast_topologies::{Bandwidth, Fabric, Node, NodeKind, fabric::Figures};

use super::legend::FabricLegend;
use super::scene::{DEVICE_HEIGHT, DEVICE_WIDTH, Device, HostFrame, MARGIN, Scene};
use super::style;
use super::wire::{Wire, WireColours};
use crate::format;
use crate::markup::{Markup, number, shortened};

/// Maximum number of characters of a device's label.
const LETTERS: usize = 10;
/// Number of wires above which they are drawn semi-transparent, so that dense bundles are readable.
const MAX_DISTINCT_WIRES: usize = 160;
/// Upper bound on the average character width of the title and of the counts, in pixels.
const TITLE_LETTER: f64 = 14.0;
const COUNTS_LETTER: f64 = 7.5;

/// Destination of a picture, which determines the style sheet of its colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// A separate file with its own style sheet.
    Alone,
    /// A page whose style sheet contains the class `fabric`.
    Page,
}

pub(super) fn draw(
    fabric: &Fabric,
    scene: &Scene,
    wires: &[Wire],
    colours: WireColours,
    setting: Destination,
) -> String {
    let legend = FabricLegend::new(fabric, colours, scene.width);
    let (width, height) = (number(scene.width), number(scene.bottom + legend.height() + MARGIN * 0.6));
    let view = format!("0 0 {width} {height}");
    let fit = |text: &str, letter: f64| shortened(text, ((scene.width - 2.0 * MARGIN) / letter) as usize);
    let mut svg = Markup::default();
    let mut attributes = vec![
        ("xmlns", "http://www.w3.org/2000/svg"),
        ("width", width.as_str()),
        ("height", &height),
        ("viewBox", &view),
        ("role", "img"),
    ];
    if setting == Destination::Page {
        attributes.push(("class", "fabric"));
    }
    svg.open("svg", &attributes);
    svg.text("title", &[], fabric.name());
    if setting == Destination::Alone {
        svg.text("style", &[], &style::sheet());
    }
    svg.empty("rect", &[("class", "sheet"), ("width", &width), ("height", &height)]);
    svg.text("text", &[("class", "title"), ("x", &number(MARGIN)), ("y", "42")], &fit(fabric.name(), TITLE_LETTER));
    svg.text("text", &[("class", "faint"), ("x", &number(MARGIN)), ("y", "63")], &fit(&counts(fabric), COUNTS_LETTER));
    scene.frames.iter().for_each(|frame| draw_frame(&mut svg, frame));
    svg.open("g", if wires.len() > MAX_DISTINCT_WIRES { &[("stroke-opacity", "0.4")] } else { &[] });
    wires.iter().for_each(|wire| draw_wire(&mut svg, wire, colours));
    svg.close();
    scene.frames.iter().for_each(|frame| draw_title(&mut svg, frame));
    scene.devices.iter().for_each(|device| draw_device(&mut svg, fabric, device));
    for remark in &scene.remarks {
        svg.text("text", &[("class", "faint"), ("x", &number(remark.x)), ("y", &number(remark.y))], &remark.text);
    }
    legend.draw(&mut svg, scene.bottom);
    svg.finish()
}

/// Returns the numbers of devices of the whole fabric by kind, as text.
pub fn counts(fabric: &Fabric) -> String {
    const KINDS: [(NodeKind, &str, &str); 8] = [
        (NodeKind::Gpu, "GPU", "GPUs"),
        (NodeKind::Mig, "MIG instance", "MIG instances"),
        (NodeKind::Accelerator, "accelerator", "accelerators"),
        (NodeKind::Nvswitch, "NVSwitch", "NVSwitches"),
        (NodeKind::PcieSwitch, "PCIe switch", "PCIe switches"),
        (NodeKind::Cpu, "CPU", "CPUs"),
        (NodeKind::Nic, "NIC", "NICs"),
        (NodeKind::Switch, "network switch", "network switches"),
    ];
    let counted = KINDS.iter().filter_map(|&(kind, singular, plural)| {
        let count = fabric.nodes().filter(|(_, node)| node.kind == kind).count();
        (count > 0).then(|| format!("{} {}", format::grouped(count as u64), if count == 1 { singular } else { plural }))
    });
    counted.collect::<Vec<_>>().join(" · ")
}

fn draw_frame(svg: &mut Markup, frame: &HostFrame) {
    let class = if frame.is_ghost { "more" } else { "host" };
    svg.empty(
        "rect",
        &[
            ("class", class),
            ("x", &number(frame.x)),
            ("y", &number(frame.y)),
            ("width", &number(frame.width)),
            ("height", &number(frame.height)),
            ("rx", "10"),
        ],
    );
}

/// Draws the title of a box. It is drawn after the wires, so that they do not cover it.
fn draw_title(svg: &mut Markup, frame: &HostFrame) {
    if frame.is_ghost {
        let (x, y) = (number(frame.x + frame.width / 2.0), number(frame.y + frame.height / 2.0));
        svg.text("text", &[("class", "faint"), ("text-anchor", "middle"), ("x", &x), ("y", &y)], &frame.title);
    } else {
        let (x, y) = (number(frame.x + 16.0), number(frame.y + 24.0));
        svg.text("text", &[("class", "host-title"), ("x", &x), ("y", &y)], &frame.title);
    }
}

fn draw_wire(svg: &mut Markup, wire: &Wire, colours: WireColours) {
    let class = if wire.is_failed { "failed" } else { style::link_class(wire.kind) };
    let class = format!("link {class}");
    let width = number(style::link_width(wire.bandwidth.map(Bandwidth::gb_per_s)));
    // A style sheet rule would override a plain `stroke` attribute.
    let paint = format!("stroke:{}", style::heat(wire.load));
    let mut attributes = vec![("class", class.as_str()), ("d", &wire.path), ("stroke-width", &width)];
    if colours == WireColours::Load && !wire.is_failed {
        attributes.push(("style", &paint));
    }
    svg.open("path", &attributes);
    svg.text("title", &[], &wire.title);
    svg.close();
}

fn draw_device(svg: &mut Markup, fabric: &Fabric, device: &Device) {
    let node = fabric.node(device.id);
    svg.open("g", &[]);
    svg.text("title", &[], &describe(node));
    let class = format!("node {}", style::node_class(node.kind));
    svg.empty(
        "rect",
        &[
            ("class", &class),
            ("x", &number(device.x - DEVICE_WIDTH / 2.0)),
            ("y", &number(device.y - DEVICE_HEIGHT / 2.0)),
            ("width", &number(DEVICE_WIDTH)),
            ("height", &number(DEVICE_HEIGHT)),
            ("rx", "6"),
        ],
    );
    let (x, y) = (number(device.x), number(device.y + 4.0));
    svg.text("text", &[("class", "id"), ("x", &x), ("y", &y)], &short_id(node));
    svg.close();
}

/// Returns the id of a device without its host (`n3/gpu0` is `gpu0` in the box of n3), truncated in the middle if it is
/// too long.
fn short_id(node: &Node) -> String {
    let id = node.id.rsplit('/').next().unwrap_or(&node.id).replace("pcie_switch", "pcie_sw");
    let letters: Vec<char> = id.chars().collect();
    if letters.len() <= LETTERS {
        return id;
    }
    // Ids end with numbers, so the end is preserved.
    let (head, tail) = (LETTERS - 4, 3);
    let start: String = letters.iter().take(head).collect();
    let end: String = letters.iter().skip(letters.len() - tail).collect();
    format!("{start}…{end}")
}

/// Returns the tooltip of a device: its id, and its model if it is known.
fn describe(node: &Node) -> String {
    let model = match &node.figures {
        Figures::Gpu(figures) => figures.model.as_deref(),
        Figures::Cpu(figures) => figures.model.as_deref(),
        Figures::Nic(figures) => figures.model.as_deref(),
        Figures::Switch(figures) => figures.model.as_deref(),
        Figures::None => None,
    };
    model.map_or_else(|| node.id.to_string(), |model| format!("{}: {model}", node.id))
}
