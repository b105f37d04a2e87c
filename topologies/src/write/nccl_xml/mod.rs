//! Writer of NCCL topology files (`NCCL_TOPO_FILE`).
//!
//! A fabric that was read from such a file is written back as the same graph, including attributes. For any other
//! fabric the file contains what the format can represent: the tree of CPUs, PCIe switches, GPUs and NICs, and the
//! NVLink, xGMI and C2C of GPUs. Devices without a bus id get a generated one. NCCL uses bandwidths from its own
//! tables, so those of the fabric only select the nearest PCIe rate. Links between sockets are omitted, because NCCL
//! assumes them. Failed devices, idle GPUs and failed links are omitted as well.

mod attributes;
mod figures;
mod tree;

use std::borrow::Cow;

use quick_xml::Writer;
use quick_xml::events::{BytesEnd, BytesStart, Event};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::{Error, Result};
use crate::fabric::{Fabric, Figures, Link, LinkId, LinkKind, Node, NodeId, NodeKind};
use crate::visible::visible_in_xml;
use attributes::{Identity, List};
pub use figures::replaced_figures;
use tree::Tree;

/// Writes the topology file of a fabric.
///
/// # Errors
/// [`Error::Request`] with the name of a device or link that the format cannot represent: network switches, MIG
/// instances and other accelerators, network links, devices that are attached to no CPU by PCIe, and NVLinks other than
/// between a GPU and a GPU, an NVSwitch or its own CPU.
pub fn write(fabric: &Fabric) -> Result<String> {
    let fabric = &keep_in_service(fabric);
    let tree = Tree::new(fabric)?;
    let mut file = TopologyFile {
        fabric,
        identity: Identity::new(fabric),
        tree: &tree,
        xml: Writer::new_with_indent(Vec::new(), b' ', 2),
    };
    file.open("system", &[("version".to_owned(), "1".to_owned())])?;
    for &cpu in &tree.roots {
        file.open("cpu", &attributes::cpu_attributes(fabric, &file.identity, cpu))?;
        file.children(cpu)?;
        file.close("cpu")?;
    }
    file.close("system")?;
    let text = String::from_utf8(file.xml.into_inner()).map_err(|error| Error::Request(error.to_string()))?;
    Ok(visible_in_xml(&text).into_owned() + "\n")
}

/// The fabric without idle GPUs and without devices whose links have all failed. Borrowed if there are none.
fn keep_in_service(fabric: &Fabric) -> Cow<'_, Fabric> {
    let idle: FxHashSet<NodeId> = fabric.idle_gpus().into_iter().collect();
    let mut links: FxHashMap<NodeId, bool> = FxHashMap::default();
    for (_, link) in fabric.links() {
        *links.entry(link.from).or_default() |= !link.failed;
        *links.entry(link.to).or_default() |= !link.failed;
    }
    let is_in_service = |id: &NodeId| !idle.contains(id) && links.get(id).copied().unwrap_or(true);
    let devices: FxHashSet<NodeId> = fabric.nodes().map(|(id, _)| id).filter(is_in_service).collect();
    if devices.len() == fabric.node_count() { Cow::Borrowed(fabric) } else { Cow::Owned(fabric.subfabric(&devices)) }
}

/// Descriptions of the state of a fabric that the format cannot represent.
#[must_use]
pub fn unrepresented_state(fabric: &Fabric) -> Vec<String> {
    let settings: Vec<String> =
        crate::keys::routing_settings(fabric.routing()).iter().map(|(key, value)| format!("{key} {value}")).collect();
    let failed = |id: LinkId| fabric.link(id).failed;
    let half =
        fabric.links().filter(|(id, _)| failed(*id) && !failed(id.reverse())).map(|(id, _)| fabric.link_name(id));
    let alive = |id: NodeId| !fabric.outgoing_links(id).is_empty();
    let socket = fabric
        .link_pairs()
        .filter(|(_, [link, _])| link.kind == LinkKind::Upi && link.failed && alive(link.from) && alive(link.to));
    let socket = socket.map(|(id, _)| fabric.link_name(id));
    let idle: FxHashSet<NodeId> = fabric.idle_gpus().into_iter().collect();
    let relays = fabric.link_pairs().filter(|(_, [link, _])| {
        let ends = [link.from, link.to];
        let is_gpu = |id: &NodeId| fabric.node(*id).kind == NodeKind::Gpu;
        !link.failed && ends.iter().all(is_gpu) && ends.iter().any(|end| idle.contains(end))
    });
    let relays = relays.count();
    settings
        .into_iter()
        .map(|setting| format!("the setting {setting}"))
        .chain(half.map(|name| format!("that {name} is out of service and its reverse is not")))
        .chain(socket.map(|name| format!("that {name} is out of service: NCCL assumes links between sockets")))
        .chain((relays > 0).then(|| "paths through GPUs that are not in use".to_owned()))
        .collect()
}

/// The error for an item that the format cannot represent.
fn unsupported_error(item: &str) -> Error {
    Error::Request(format!("an NCCL topology file cannot describe {item}"))
}

struct TopologyFile<'a> {
    fabric: &'a Fabric,
    identity: Identity,
    tree: &'a Tree,
    xml: Writer<Vec<u8>>,
}

impl TopologyFile<'_> {
    fn event(&mut self, event: Event<'_>) -> Result<()> {
        self.xml.write_event(event).map_err(|error| Error::Request(error.to_string()))
    }

    fn open(&mut self, tag: &str, attributes: &List) -> Result<()> {
        self.event(Event::Start(start(tag, attributes)))
    }

    fn empty(&mut self, tag: &str, attributes: &List) -> Result<()> {
        self.event(Event::Empty(start(tag, attributes)))
    }

    fn close(&mut self, tag: &str) -> Result<()> {
        self.event(Event::End(BytesEnd::new(tag)))
    }

    /// Writes the devices below a CPU or a PCIe switch. The recursion is limited by the depth of the tree.
    fn children(&mut self, parent: NodeId) -> Result<()> {
        let tree = self.tree;
        let children = tree.children(parent);
        let mut at = 0;
        while let Some(&(child, link)) = children.get(at) {
            let node = self.fabric.node(child);
            at += 1;
            if node.kind != NodeKind::Nic {
                self.device(child, link)?;
                continue;
            }
            if self.is_without_pci(parent, node, link) {
                self.open("nic", &[])?;
                self.net(child)?;
                self.close("nic")?;
                continue;
            }
            let pci = attributes::pci_attributes(self.fabric, &self.identity, child, link);
            if attributes::is_bare(node) {
                self.empty("pci", &pci)?;
                continue;
            }
            self.open("pci", &pci)?;
            self.open("nic", &[])?;
            self.net(child)?;
            // Ports of one PCI device are consecutive and share its bus id.
            while let Some(&(next, _)) = children.get(at)
                && self.identity.same_device(self.fabric, child, next)
            {
                self.net(next)?;
                at += 1;
            }
            self.close("nic")?;
            self.close("pci")?;
        }
        Ok(())
    }

    /// Returns true if a NIC is below its CPU without a PCI device: its file states no bus id and its link is
    /// unlimited.
    fn is_without_pci(&self, parent: NodeId, nic: &Node, link: Option<LinkId>) -> bool {
        let unlimited = link.is_some_and(|link| self.fabric.link(link).bandwidth.is_none());
        self.fabric.node(parent).kind == NodeKind::Cpu && unlimited && attributes::attribute(nic, "busid").is_none()
    }

    fn net(&mut self, nic: NodeId) -> Result<()> {
        self.empty("net", &attributes::net_attributes(self.fabric, &self.identity, nic))
    }

    /// Writes a GPU or a PCIe switch.
    fn device(&mut self, id: NodeId, link: Option<LinkId>) -> Result<()> {
        let node = self.fabric.node(id);
        let pci = attributes::pci_attributes(self.fabric, &self.identity, id, link);
        if node.kind == NodeKind::Gpu {
            if attributes::is_bare(node) {
                return self.empty("pci", &pci);
            }
            self.open("pci", &pci)?;
            self.gpu(id)?;
            return self.close("pci");
        }
        let sideways = self.tree.peers(id);
        if self.tree.children(id).is_empty() && sideways.is_empty() {
            return self.empty("pci", &pci);
        }
        self.open("pci", &pci)?;
        self.children(id)?;
        for &other in sideways {
            let target = self.identity.bus(self.fabric, other).to_owned();
            self.empty("pcilink", &[("target".to_owned(), target)])?;
        }
        self.close("pci")
    }

    fn gpu(&mut self, id: NodeId) -> Result<()> {
        let attributes = attributes::gpu_attributes(self.fabric, &self.identity, id);
        let links: Vec<LinkId> = self.fabric.outgoing_links(id);
        let speaks = |link: &&LinkId| matches!(self.fabric.link(**link).kind, LinkKind::Nvlink | LinkKind::C2c);
        let ports: Vec<LinkId> = links.iter().filter(speaks).copied().collect();
        if ports.is_empty() {
            return self.empty("gpu", &attributes);
        }
        self.open("gpu", &attributes)?;
        for port in ports {
            self.port(id, port)?;
        }
        self.close("gpu")
    }

    fn port(&mut self, gpu: NodeId, id: LinkId) -> Result<()> {
        let link = self.fabric.link(id);
        let (peer, node) = (link.to, self.fabric.node(link.to));
        let is_own_cpu = node.kind == NodeKind::Cpu && self.tree.root(gpu) == Some(peer);
        let pair = |name: &str, value: String| (name.to_owned(), value);
        if link.kind == LinkKind::C2c {
            if !is_own_cpu {
                return Err(unsupported_error(&format!("the C2C {}", self.fabric.link_name(id))));
            }
            // An unlimited bandwidth is written as the largest value of the attribute.
            let total = link.bandwidth.map_or(u64::from(u16::MAX) * 1_000_000, |rate| rate.0);
            let each = (total / u64::from(link.lanes.max(1)) / 1_000_000).max(1);
            return self.empty("c2c", &[pair("bw", each.to_string()), pair("count", link.lanes.to_string())]);
        }
        let (target, class) = match node.kind {
            // NCCL itself writes this value if switches are hidden.
            NodeKind::Nvswitch => ("fffffff:ff:ff.0".to_owned(), "0x068000".to_owned()),
            NodeKind::Gpu => {
                let class = attributes::attribute(node, "class").unwrap_or(attributes::gpu_pci_class(node));
                (self.identity.bus(self.fabric, peer).to_owned(), class.to_owned())
            }
            NodeKind::Cpu if is_own_cpu => ("0000:00:00.0".to_owned(), "0x068001".to_owned()),
            _ => return Err(unsupported_error(&format!("the NVLink {}", self.fabric.link_name(id)))),
        };
        let tag = if self.fabric.node(gpu).is_amd() { "xgmi" } else { "nvlink" };
        let count = link_count(link, self.fabric.link(id.reverse()));
        self.empty(tag, &[pair("target", target), pair("count", count.to_string()), pair("tclass", class)])
    }
}

/// Number of links in this direction: the lanes, reduced in proportion if this direction is the slower one.
fn link_count(link: &Link, back: &Link) -> u16 {
    match (link.bandwidth, back.bandwidth) {
        (Some(this), Some(other)) if this < other => {
            let share = u128::from(link.lanes) * u128::from(this.0) / u128::from(other.0.max(1));
            u16::try_from(share).unwrap_or(u16::MAX).max(1)
        }
        _ => link.lanes,
    }
}

fn start<'a>(tag: &'a str, attributes: &'a List) -> BytesStart<'a> {
    BytesStart::new(tag).with_attributes(attributes.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

/// The figures of a GPU, if known.
fn gpu_figures(node: &Node) -> Option<&crate::fabric::GpuFigures> {
    match &node.figures {
        Figures::Gpu(figures) => Some(figures),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
