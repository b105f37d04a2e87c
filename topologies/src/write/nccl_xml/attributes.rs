//! Attributes of the elements: those that a device has from its file, otherwise those derived from its figures.

use rustc_hash::{FxHashMap, FxHashSet};

use super::gpu_figures;
use crate::Bandwidth;
use crate::fabric::{Fabric, Figures, LinkId, Node, NodeId, NodeKind};
use crate::read::hardware;

/// Attributes in the order in which they are written.
pub(super) type List = [(String, String)];

/// Attributes of a `<pci>` element, in NCCL's order. All other attributes of a device belong to the element inside
/// `<pci>`.
const PCI_ATTRIBUTES: [&str; 8] =
    ["busid", "class", "vendor", "device", "subsystem_vendor", "subsystem_device", "link_speed", "link_width"];

/// NCCL's order of the attributes of other elements.
const ORDER: [&str; 20] = [
    "host_hash",
    "numaid",
    "affinity",
    "name",
    "dev",
    "sm",
    "gcn",
    "arch",
    "vendor",
    "familyid",
    "modelid",
    "rank",
    "speed",
    "port",
    "latency",
    "guid",
    "maxconn",
    "mlopart",
    "coll",
    "gdr",
];

/// Value of a device's attribute with this name; `None` if there is none.
pub(super) fn attribute<'a>(node: &'a Node, name: &str) -> Option<&'a str> {
    node.attributes.iter().find(|(key, _)| &**key == name).map(|(_, value)| &**value)
}

/// Returns true if the source file identified the device (a GPU or NIC) only by its PCI class, as files of cloud
/// vendors do. Such a device has no inner element in the source file, and none is written.
pub(super) fn is_bare(node: &Node) -> bool {
    attribute(node, "class").is_some()
        && ["dev", "rank", "sm", "name"].iter().all(|name| attribute(node, name).is_none())
}

/// The PCI class to write for a GPU whose attributes state none.
pub(super) fn gpu_pci_class(node: &Node) -> &'static str {
    if node.is_amd() { "0x120000" } else { "0x030200" }
}

/// Bus ids and numbers of all devices; generated where a device has none.
pub(super) struct Identity {
    buses: FxHashMap<NodeId, String>,
    numbers: FxHashMap<NodeId, usize>,
    ranks: FxHashMap<NodeId, usize>,
}

impl Identity {
    pub fn new(fabric: &Fabric) -> Self {
        let carried = |node: &Node| attribute(node, "busid").map(str::to_owned);
        let mut used: FxHashSet<String> = fabric.nodes().filter_map(|(_, node)| carried(node)).collect();
        let mut counter = 0u32;
        let mut fresh = || loop {
            // Generated bus ids use PCI domains from 00f0, above those of real machines.
            let bus = format!("{:04x}:{:02x}:00.0", 0xf0 + (counter >> 8), counter & 0xff);
            counter += 1;
            if used.insert(bus.clone()) {
                return bus;
            }
        };
        let buses = fabric
            .nodes()
            .filter(|(_, node)| matches!(node.kind, NodeKind::Gpu | NodeKind::Nic | NodeKind::PcieSwitch))
            .map(|(id, node)| (id, carried(node).unwrap_or_else(&mut fresh)))
            .collect();
        let mut numbers = FxHashMap::default();
        let mut next: FxHashMap<(u32, NodeKind), usize> = FxHashMap::default();
        for (id, node) in fabric.nodes() {
            let counter = next.entry((node.host.0, node.kind)).or_default();
            numbers.insert(id, *counter);
            *counter += 1;
        }
        let ranks = fabric.gpus().iter().enumerate().map(|(rank, &gpu)| (gpu, rank)).collect();
        Self { buses, numbers, ranks }
    }

    /// The bus id of a GPU, NIC or PCIe switch.
    pub fn bus<'a>(&'a self, fabric: &'a Fabric, device: NodeId) -> &'a str {
        self.buses.get(&device).map_or(&fabric.node(device).id, String::as_str)
    }

    /// Returns true if two NICs are ports of one PCI device.
    pub fn same_device(&self, fabric: &Fabric, a: NodeId, b: NodeId) -> bool {
        fabric.node(b).kind == NodeKind::Nic && self.buses.get(&a) == self.buses.get(&b)
    }

    /// The index of a device among those of its kind on its host.
    fn number(&self, device: NodeId) -> usize {
        self.numbers.get(&device).copied().unwrap_or_default()
    }
}

/// Names and order of the device attributes that an element has.
struct ElementAttributes {
    selects: fn(&str) -> bool,
    order: &'static [&'static str],
    /// Attributes whose presence shows that the device was read from a file. In that case no derived attributes are
    /// added.
    from_file: &'static [&'static str],
}

const PCI: ElementAttributes =
    ElementAttributes { selects: |name| PCI_ATTRIBUTES.contains(&name), order: &PCI_ATTRIBUTES, from_file: &["class"] };
const CPU: ElementAttributes =
    ElementAttributes { selects: |_| true, order: &ORDER, from_file: &["numaid", "arch", "affinity", "host_hash"] };
const INNER: ElementAttributes = ElementAttributes {
    selects: |name| !PCI_ATTRIBUTES.contains(&name),
    order: &ORDER,
    from_file: &["dev", "rank", "sm", "name"],
};

impl ElementAttributes {
    /// The attributes of a device in order, followed by the `known` ones if it was not read from a file.
    fn list(&self, node: &Node, known: &[(&str, Option<String>)]) -> Vec<(String, String)> {
        let mut list: Vec<(String, String)> = node
            .attributes
            .iter()
            .filter(|(name, value)| (self.selects)(name) && is_name(name) && !value.chars().any(char::is_control))
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        if !self.from_file.iter().any(|name| attribute(node, name).is_some()) {
            for (name, value) in known {
                if let (Some(value), false) = (value, list.iter().any(|(key, _)| key == name)) {
                    list.push(((*name).to_owned(), value.clone()));
                }
            }
        }
        let rank = |name: &str| self.order.iter().position(|known| *known == name).unwrap_or(self.order.len());
        list.sort_by(|a, b| (rank(&a.0), &a.0).cmp(&(rank(&b.0), &b.0)));
        list
    }
}

/// Returns true if a text is a valid name of an XML attribute.
fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
        && !text.starts_with("xml")
}

pub(super) fn cpu_attributes(fabric: &Fabric, identity: &Identity, id: NodeId) -> Vec<(String, String)> {
    let node = fabric.node(id);
    let figures = match &node.figures {
        Figures::Cpu(figures) => Some(figures),
        _ => None,
    };
    let number = |number: Option<u32>| number.map(|number| number.to_string());
    let known = [
        // The hash distinguishes the hosts of one file; a single host needs none.
        ("host_hash", (fabric_hosts(fabric) > 1).then(|| format!("{:#x}", node.host.0 + 1))),
        (
            "numaid",
            figures
                .and_then(|cpu| cpu.numa)
                .map(|numa| numa.to_string())
                .or_else(|| Some(identity.number(id).to_string())),
        ),
        (
            "arch",
            figures.and_then(|cpu| cpu.arch).map(|arch| arch.name().to_owned()).or_else(|| Some("x86_64".to_owned())),
        ),
        ("vendor", figures.and_then(|cpu| cpu.vendor.clone())),
        ("familyid", figures.and_then(|cpu| number(cpu.family))),
        ("modelid", figures.and_then(|cpu| number(cpu.model_id))),
    ];
    CPU.list(node, &known)
}

/// Number of hosts of a fabric that have a CPU.
fn fabric_hosts(fabric: &Fabric) -> usize {
    let hosts: FxHashSet<_> =
        fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Cpu).map(|(_, node)| node.host).collect();
    hosts.len()
}

pub(super) fn pci_attributes(
    fabric: &Fabric,
    identity: &Identity,
    id: NodeId,
    link: Option<LinkId>,
) -> Vec<(String, String)> {
    let node = fabric.node(id);
    let class = match node.kind {
        NodeKind::Gpu => gpu_pci_class(node),
        NodeKind::Nic => "0x020000",
        _ => "0x060400",
    };
    let link = link.map(|link| fabric.link(link));
    let (width, speed) = nearest_pcie(link.and_then(|link| link.bandwidth), link.map_or(1, |link| link.lanes));
    let known = [
        ("busid", Some(identity.bus(fabric, id).to_owned())),
        ("class", Some(class.to_owned())),
        ("link_speed", Some(speed.to_owned())),
        ("link_width", Some(width.to_string())),
    ];
    PCI.list(node, &known)
}

pub(super) fn gpu_attributes(fabric: &Fabric, identity: &Identity, id: NodeId) -> Vec<(String, String)> {
    let node = fabric.node(id);
    let figures = gpu_figures(node);
    let capability = figures.and_then(|gpu| gpu.compute_capability);
    let amd = node.is_amd();
    // In RCCL, `sm` is the number of compute units and `gcn` the architecture.
    let sm = if amd { figures.and_then(|gpu| gpu.sm_count) } else { capability };
    let known = [
        ("dev", Some(identity.number(id).to_string())),
        ("sm", sm.map(|sm| sm.to_string())),
        ("gcn", capability.filter(|_| amd).map(|gfx| format!("gfx{gfx}"))),
        ("rank", identity.ranks.get(&id).map(ToString::to_string)),
        ("gdr", Some("1".to_owned())),
    ];
    INNER.list(node, &known)
}

pub(super) fn net_attributes(fabric: &Fabric, identity: &Identity, id: NodeId) -> Vec<(String, String)> {
    let node = fabric.node(id);
    let figures = match &node.figures {
        Figures::Nic(figures) => Some(figures),
        _ => None,
    };
    let known = [
        ("name", figures.and_then(|nic| nic.model.clone()).or_else(|| Some(node.id.to_string()))),
        ("dev", Some(identity.number(id).to_string())),
        ("speed", figures.and_then(|nic| nic.speed).map(|speed| (speed.0 / 125_000).to_string())),
        ("gdr", figures.and_then(|nic| nic.gdr).map(|gdr| u8::from(gdr).to_string())),
    ];
    INNER.list(node, &known)
}

/// Width and rate of the PCIe link with the bandwidth nearest to this one (as a ratio). The bandwidth may be nominal
/// or, about a quarter less, the one that NCCL assumes.
fn nearest_pcie(bandwidth: Option<Bandwidth>, lanes: u16) -> (u16, &'static str) {
    const SPEEDS: [&str; 6] =
        ["2.5 GT/s PCIe", "5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe"];
    let width = if lanes > 1 { lanes } else { 16 };
    let Some(bandwidth) = bandwidth else { return (width, "64.0 GT/s PCIe") };
    let difference = |speed: &&str| {
        let lane = hardware::pcie_lane(speed).unwrap_or(hardware::PCIE_3_LANE);
        (bandwidth.gb_per_s() / (hardware::pcie(width, lane).gb_per_s() * 0.87)).ln().abs()
    };
    let nearest = SPEEDS.iter().min_by(|a, b| difference(a).total_cmp(&difference(b)));
    (width, nearest.copied().unwrap_or("16.0 GT/s PCIe"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nominal_and_nccl_pcie_rates_map_to_the_link_speed() {
        for (gb_per_s, lanes, expected) in [
            (12.0, 16, (16, "8.0 GT/s PCIe")),
            (15.75, 16, (16, "8.0 GT/s PCIe")),
            (24.0, 16, (16, "16.0 GT/s PCIe")),
            (31.5, 1, (16, "16.0 GT/s PCIe")),
            (48.0, 16, (16, "32.0 GT/s PCIe")),
            (63.0, 16, (16, "32.0 GT/s PCIe")),
            (31.5, 8, (8, "32.0 GT/s PCIe")),
            (121.0, 16, (16, "64.0 GT/s PCIe")),
        ] {
            assert_eq!(nearest_pcie(Some(Bandwidth::from_gb_per_s(gb_per_s)), lanes), expected, "{gb_per_s}");
        }
    }
}
