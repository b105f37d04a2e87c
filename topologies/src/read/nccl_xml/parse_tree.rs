//! First pass over a topology file: the tree of CPUs, PCIe switches, GPUs and NICs, and the elements that describe
//! other links.

use std::ops::Range;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::element::Element;
use crate::Bandwidth;
use crate::error::Result;
use crate::fabric::{CpuArch, CpuFigures, Figures, GpuFigures, NicFigures, NodeKind};
use crate::gpus::{self, GpuModel};
use crate::read::hardware;
use crate::read::warnings::Warnings;

/// Maximum nesting depth of elements; real machines have fewer than ten levels.
const MAX_DEPTH: usize = 64;

/// Maximum number of sockets of one host, since each pair of them gets a link.
const MAX_SOCKETS: usize = 256;

/// A device of the tree. Parents precede their children.
pub(super) struct TreeDevice {
    pub kind: NodeKind,
    /// Index of its host in [`ParsedTopology::hosts`].
    pub host: usize,
    /// Index of its parent device and the link to it; `None` for CPUs.
    pub parent: Option<(usize, Uplink)>,
    /// Attributes of its elements (`<pci>` and the element inside), stored as they are.
    pub attributes: Vec<(Box<str>, Box<str>)>,
    pub figures: Figures,
    /// Its number in the file: `dev` of a GPU or NIC, `numaid` of a CPU.
    pub number: Option<u32>,
    pub rank: Option<u32>,
    /// Vendor, device, subsystem vendor and subsystem device joined to 64 bits; 0 for unknown parts.
    pub pci_id: u64,
    pub bytes: Range<usize>,
}

/// Bandwidth and lanes of the PCIe link from a device to its parent.
#[derive(Clone, Copy)]
pub(super) struct Uplink {
    pub bandwidth: Option<Bandwidth>,
    pub lanes: u16,
}

/// Device at the other end of a GPU's NVLink or xGMI.
pub(super) enum Target {
    Switch,
    Cpu,
    /// The GPU with this bus id.
    Gpu(String),
}

/// An `<nvlink>` or `<xgmi>` element: bonded links from one GPU to one target.
pub(super) struct LinkBundle {
    pub gpu: usize,
    pub target: Target,
    pub count: u16,
    pub per_link: Bandwidth,
}

/// Contents of a topology file, as the first pass collects them.
#[derive(Default)]
pub(super) struct ParsedTopology {
    /// Attribute `host_hash` of each host; empty if the file states none.
    pub hosts: Vec<String>,
    pub devices: Vec<TreeDevice>,
    pub ports: Vec<LinkBundle>,
    /// GPUs with NVLink-C2C to their CPU: device, total bandwidth, number of links.
    pub c2c: Vec<(usize, Bandwidth, u16)>,
    /// Peer links of PCIe switches: the switch and the bus id of the other one.
    pub pci_links: Vec<(usize, String)>,
    /// Index of each PCI device in `devices`, by host index and bus id in lower case.
    pub by_bus: FxHashMap<(usize, String), usize>,
    /// Number of GPUs that are identified only by their PCI class.
    pub bare_gpus: usize,
    pub warnings: Warnings,
    /// The GPU model that the user names; `None` if the user names none.
    pub user_model: Option<&'static GpuModel>,
    known_hosts: FxHashMap<String, usize>,
    sockets: Vec<usize>,
}

impl ParsedTopology {
    /// Reads all elements below `<system>`.
    ///
    /// # Errors
    /// An element has a missing or invalid attribute.
    pub fn walk(system: Element<'_>, named: Option<&'static GpuModel>) -> Result<Self> {
        let mut found = Self { user_model: named, ..Self::default() };
        for child in system.children() {
            match child.name() {
                "cpu" => found.cpu(child)?,
                other => found.ignored(child, other, "system"),
            }
        }
        Ok(found)
    }

    fn ignored(&mut self, element: Element<'_>, tag: &str, parent: &str) {
        let message = format!("<{tag}> in <{parent}> is ignored: it has no meaning there");
        self.warnings.add_at(message, || element.line());
    }

    fn add(&mut self, device: TreeDevice) -> usize {
        self.devices.push(device);
        self.devices.len() - 1
    }

    fn cpu(&mut self, element: Element<'_>) -> Result<()> {
        let hash = element.text("host_hash").unwrap_or_default().to_owned();
        let host = *self.known_hosts.entry(hash.clone()).or_insert_with(|| {
            self.hosts.push(hash);
            self.sockets.push(0);
            self.hosts.len() - 1
        });
        if let Some(sockets) = self.sockets.get_mut(host) {
            *sockets += 1;
            if *sockets > MAX_SOCKETS {
                let message = format!("more than {MAX_SOCKETS} CPUs in one host");
                return Err(element.origin.invalid(element.bytes(), message));
            }
        }
        let numa = element.integer("numaid")?.and_then(|n| i32::try_from(n).ok());
        let figures = CpuFigures {
            arch: match element.text("arch") {
                Some("x86_64") => Some(CpuArch::X86),
                Some("arm64") => Some(CpuArch::Arm),
                Some("ppc64") => Some(CpuArch::Power),
                _ => None,
            },
            vendor: element.text("vendor").map(str::to_owned),
            family: element.index("familyid")?,
            model_id: element.index("modelid")?,
            numa,
            ..CpuFigures::default()
        };
        let cpu = self.add(TreeDevice {
            kind: NodeKind::Cpu,
            host,
            parent: None,
            attributes: element.attributes().collect(),
            figures: Figures::Cpu(Arc::new(figures)),
            number: numa.and_then(|n| u32::try_from(n).ok()),
            rank: None,
            pci_id: 0,
            bytes: element.bytes(),
        });
        for child in element.children() {
            match child.name() {
                "pci" => self.pci(child, cpu, 1)?,
                // The file states no PCIe device for this NIC, so its link to the CPU is unlimited.
                "nic" => self.nic(child, cpu, Uplink { bandwidth: None, lanes: 1 }, &[], 0)?,
                other => self.ignored(child, other, "cpu"),
            }
        }
        Ok(())
    }

    fn pci(&mut self, element: Element<'_>, parent: usize, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            let message = format!("<pci> is nested more than {MAX_DEPTH} deep");
            return Err(element.origin.invalid(element.bytes(), message));
        }
        let host = self.devices.get(parent).map_or(0, |device| device.host);
        let bus = element.required("busid")?.to_lowercase();
        if let Some(&first) = self.by_bus.get(&(host, bus.clone())) {
            let line = self.devices.get(first).map_or(0, |device| element.origin.locate(device.bytes.clone()).line);
            let message = format!("the bus id `{bus}` is taken by line {line}");
            return Err(element.origin.invalid(element.value_bytes("busid"), message));
        }
        let up = self.uplink(element)?;
        let facts: Vec<_> = element.attributes().collect();
        let pci_id = pci_id(element)?;
        let class = element.text("class").unwrap_or_default();
        let first = self.devices.len();
        if element.has_child("gpu") {
            for child in element.children() {
                match child.name() {
                    "gpu" => self.gpu(child, parent, up, &facts, pci_id)?,
                    other => self.ignored(child, other, "pci"),
                }
            }
            if self.devices.len() > first + 1 {
                let message = "several GPUs share a PCI device; each is given its whole link";
                self.warnings.add_at(message, || element.line());
            }
        } else if element.has_child("nic") {
            for child in element.children() {
                match child.name() {
                    "nic" => self.nic(child, parent, up, &facts, pci_id)?,
                    other => self.ignored(child, other, "pci"),
                }
            }
        } else {
            let kind = node_kind(element, class, pci_id)?;
            let Some(kind) = kind else {
                let message = format!("a <pci> of class {class} is ignored: it is not part of a fabric");
                self.warnings.add_at(message, || element.line());
                return Ok(());
            };
            let figures = match kind {
                NodeKind::Gpu | NodeKind::Accelerator => {
                    self.bare_gpus += 1;
                    Figures::Gpu(Arc::new(gpu_figures(pci_id, None, None)))
                }
                _ => Figures::None,
            };
            let up = Some((parent, up));
            let bytes = element.bytes();
            let device = self.add(TreeDevice {
                kind,
                host,
                parent: up,
                attributes: facts,
                figures,
                number: None,
                rank: None,
                pci_id,
                bytes,
            });
            for child in element.children() {
                match child.name() {
                    "pci" if kind == NodeKind::PcieSwitch => self.pci(child, device, depth + 1)?,
                    "pcilink" if kind == NodeKind::PcieSwitch => {
                        self.pci_links.push((device, child.required("target")?.to_lowercase()));
                    }
                    other => self.ignored(child, other, "pci"),
                }
            }
        }
        if first < self.devices.len() {
            self.by_bus.insert((host, bus), first);
        }
        Ok(())
    }

    /// The link of a `<pci>` to its parent: its own width and speed, as NCCL reads them.
    fn uplink(&mut self, element: Element<'_>) -> Result<Uplink> {
        let width = match element.integer("link_width")? {
            None | Some(0) => 16,
            Some(width) => u16::try_from(width).ok().filter(|&width| width > 0 && width <= 1024).ok_or_else(|| {
                let message = format!("link_width: {width} is not a number of lanes");
                element.origin.invalid(element.value_bytes("link_width"), message)
            })?,
        };
        let speed = element.text("link_speed").unwrap_or_default();
        let lane = hardware::pcie_lane(speed).unwrap_or_else(|| {
            let message = if speed.trim().is_empty() {
                "no link_speed; PCIe generation 3 is assumed, as in NCCL"
            } else {
                "a link_speed that NCCL does not know; PCIe generation 3 is assumed, as in NCCL"
            };
            self.warnings.add_at(message, || element.line());
            hardware::PCIE_3_LANE
        });
        Ok(Uplink { bandwidth: Some(hardware::pcie(width, lane)), lanes: width })
    }

    fn gpu(
        &mut self,
        element: Element<'_>,
        parent: usize,
        up: Uplink,
        pci: &[(Box<str>, Box<str>)],
        pci_id: u64,
    ) -> Result<()> {
        let gcn = element.text("gcn").and_then(hardware::gfx_number);
        let figures = gpu_figures(pci_id, element.index("sm")?, gcn);
        let capability = figures.compute_capability.or(self.user_model.map(|model| model.compute_capability));
        let gpu = self.add(TreeDevice {
            kind: NodeKind::Gpu,
            host: self.devices.get(parent).map_or(0, |device| device.host),
            parent: Some((parent, up)),
            attributes: pci.iter().cloned().chain(element.attributes()).collect(),
            figures: Figures::Gpu(Arc::new(figures)),
            number: element.index("dev")?,
            rank: element.index("rank")?,
            pci_id,
            bytes: element.bytes(),
        });
        for child in element.children() {
            match child.name() {
                "nvlink" => self.port(child, gpu, hardware::nvlink_per_link(capability))?,
                "xgmi" => self.port(child, gpu, hardware::xgmi_per_link(capability))?,
                "c2c" => {
                    let count = child.count("count")?;
                    self.c2c.push((gpu, c2c_bandwidth(child, count)?, count));
                }
                other => self.ignored(child, other, "gpu"),
            }
        }
        Ok(())
    }

    fn port(&mut self, element: Element<'_>, gpu: usize, per_link: Bandwidth) -> Result<()> {
        let bus = element.text("target").unwrap_or_default().to_lowercase();
        let target = match element.text("tclass") {
            Some(class) if class.starts_with("0x068001") => Target::Cpu,
            Some(class) if class.starts_with("0x03") || class.starts_with("0x12") => Target::Gpu(bus),
            Some(_) => Target::Switch,
            None => {
                let message = format!("<{}> needs `tclass`, the PCI class of its target", element.name());
                return Err(element.origin.invalid(element.bytes(), message));
            }
        };
        self.ports.push(LinkBundle { gpu, target, count: element.count("count")?, per_link });
        Ok(())
    }

    fn nic(
        &mut self,
        element: Element<'_>,
        parent: usize,
        up: Uplink,
        pci: &[(Box<str>, Box<str>)],
        pci_id: u64,
    ) -> Result<()> {
        let host = self.devices.get(parent).map_or(0, |device| device.host);
        for net in element.children() {
            match net.name() {
                // A part of a fused NIC whose device is listed elsewhere.
                "net" if net.integer("net")? == Some(0) => {}
                "net" => {
                    if net.text("dev").is_none() {
                        let message =
                            "a <net> without `dev` is read as a NIC; NCCL itself omits it from a topology file";
                        self.warnings.add_at(message, || net.line());
                    }
                    let mbps = match net.integer("speed")? {
                        Some(mbps) if mbps > 0 => mbps.unsigned_abs(),
                        _ => {
                            let message = "no line rate of a NIC; 10 Gb/s is assumed, as in NCCL";
                            self.warnings.add_at(message, || net.line());
                            hardware::NET_DEFAULT_MBPS
                        }
                    };
                    let speed = Bandwidth(mbps.saturating_mul(125_000)).min(Bandwidth::MAX);
                    let figures = NicFigures {
                        model: net.text("name").map(str::to_owned),
                        speed: Some(speed),
                        gdr: net.integer("gdr")?.map(|gdr| gdr != 0),
                        ..NicFigures::default()
                    };
                    self.add(TreeDevice {
                        kind: NodeKind::Nic,
                        host,
                        parent: Some((parent, up)),
                        attributes: pci.iter().cloned().chain(net.attributes()).collect(),
                        figures: Figures::Nic(Arc::new(figures)),
                        number: net.index("dev")?,
                        rank: None,
                        pci_id,
                        bytes: net.bytes(),
                    });
                }
                // Elements of later NCCL versions that describe other interfaces to the same NIC.
                "gin" | "rma" => {}
                other => self.ignored(net, other, "nic"),
            }
        }
        Ok(())
    }

    /// Merges two-level Broadcom switches into one, as NCCL does. Returns the indices of the lower switches, which get
    /// no device in the fabric.
    pub fn merge_broadcom_switches(&mut self) -> FxHashSet<usize> {
        let mut merged = FxHashSet::default();
        for i in 0..self.devices.len() {
            let Some((mut parent, up)) = self.devices.get(i).and_then(|device| device.parent) else { continue };
            // Parents precede children, so at most one merged switch has to be skipped.
            if let (true, Some((above, _))) =
                (merged.contains(&parent), self.devices.get(parent).and_then(|p| p.parent))
            {
                parent = above;
            }
            let generation = |index: usize, level| {
                let device = self.devices.get(index).filter(|device| device.kind == NodeKind::PcieSwitch)?;
                hardware::broadcom_generation(device.pci_id, level)
            };
            if generation(i, 1).is_some_and(|below| generation(parent, 0) == Some(below)) {
                merged.insert(i);
            }
            if let Some(device) = self.devices.get_mut(i) {
                device.parent = Some((parent, up));
            }
        }
        merged
    }
}

/// The bandwidth of a `<c2c>`: `bw` in MB/s per link times the number of links.
fn c2c_bandwidth(element: Element<'_>, count: u16) -> Result<Bandwidth> {
    element.required("bw")?;
    let each = element.integer("bw")?.and_then(|mbps| u64::try_from(mbps).ok()).unwrap_or_default();
    let bandwidth = Bandwidth(each.saturating_mul(u64::from(count)).saturating_mul(1_000_000));
    if bandwidth.0 == 0 || bandwidth > Bandwidth::MAX {
        let message = "bw: not a positive bandwidth in MB/s of a link";
        return Err(element.origin.invalid(element.value_bytes("bw"), message));
    }
    Ok(bandwidth)
}

/// Joins vendor, device, subsystem vendor and subsystem device of a PCI device to 64 bits, vendor first.
fn pci_id(element: Element<'_>) -> Result<u64> {
    let mut id = 0;
    for attribute in ["vendor", "device", "subsystem_vendor", "subsystem_device"] {
        id = (id << 16) | (u64::from(element.index(attribute)?.unwrap_or_default()) & 0xffff);
    }
    Ok(id)
}

/// The kind of a `<pci>` without `<gpu>` or `<nic>`; `None` for devices that do not belong to a fabric.
fn node_kind(element: Element<'_>, class: &str, pci_id: u64) -> Result<Option<NodeKind>> {
    const AMD: u64 = 0x1002;
    let vendor = pci_id >> 48;
    Ok(match class.get(..4).unwrap_or(class) {
        "0x03" => Some(NodeKind::Gpu),
        "0x12" if vendor == AMD || vendor == 0 => Some(NodeKind::Gpu),
        "0x12" => Some(NodeKind::Accelerator),
        "0x02" => Some(NodeKind::Nic),
        _ if class.starts_with("0x0604") || element.has_child("pci") => Some(NodeKind::PcieSwitch),
        "" => {
            let message = "<pci> needs the attribute `class`, or a <gpu>, <nic> or <pci> in it";
            return Err(element.origin.invalid(element.bytes(), message));
        }
        _ => None,
    })
}

/// Figures from the PCI ids and the attributes of a `<gpu>`.
fn gpu_figures(pci_id: u64, sm: Option<u32>, gcn: Option<u32>) -> GpuFigures {
    let known = gpus::model_by_pci_id(pci_id);
    GpuFigures {
        model: known.map(|gpu| gpu.name.clone()),
        // In RCCL, `sm` is the number of compute units and `gcn` the architecture.
        compute_capability: gcn.or(sm).or_else(|| known.map(|gpu| gpu.compute_capability)),
        sm_count: gcn.and(sm),
        ..GpuFigures::default()
    }
}
