//! Example fabrics of common shapes. Their figures are approximate and serve only to draw pictures.

use fabricast_topologies::fabric::{Figures, GpuFigures};
use fabricast_topologies::{Bandwidth, Fabric, FabricBuilder, HostId, LinkKind, LinkSpec, NodeId, NodeKind, Picos};

/// Builder of a fabric. It creates unique ids.
struct ExampleBuilder(FabricBuilder);

impl ExampleBuilder {
    fn new(name: &str) -> Self {
        Self(FabricBuilder::new(name))
    }

    fn add(&mut self, host: HostId, prefix: &str, kind: NodeKind, name: &str, count: u32, model: &str) -> Vec<NodeId> {
        let figures = || match kind {
            NodeKind::Gpu => {
                Figures::Gpu(std::sync::Arc::new(GpuFigures { model: Some(model.to_owned()), ..GpuFigures::default() }))
            }
            _ => Figures::None,
        };
        (0..count).filter_map(|k| self.0.node(&format!("{prefix}{name}{k}"), kind, host, figures())).collect()
    }

    fn link(&mut self, a: NodeId, b: NodeId, kind: LinkKind, gb_per_s: f64, lanes: u16) {
        let spec = LinkSpec::symmetric(kind, Bandwidth::from_gb_per_s(gb_per_s), Picos(350_000)).lanes(lanes);
        self.0.link(a, b, &spec);
    }

    /// Distributes `children` evenly over `parents`, and links each child to its parent.
    fn distribute(&mut self, children: &[NodeId], parents: &[NodeId], kind: LinkKind, gb_per_s: f64, lanes: u16) {
        let per_parent = children.len().div_ceil(parents.len().max(1)).max(1);
        for (group, &parent) in children.chunks(per_parent).zip(parents) {
            group.iter().for_each(|&child| self.link(child, parent, kind, gb_per_s, lanes));
        }
    }

    fn all_to_all(&mut self, left: &[NodeId], right: &[NodeId], kind: LinkKind, gb_per_s: f64, lanes: u16) {
        for &a in left {
            right.iter().for_each(|&b| self.link(a, b, kind, gb_per_s, lanes));
        }
    }

    /// Adds a host with two sockets, four PCIe switches, eight GPUs and NICs, and four NVSwitches; returns the NICs.
    fn hgx(&mut self, host: &str, prefix: &str) -> Vec<NodeId> {
        let host = self.0.host(host);
        let cpus = self.add(host, prefix, NodeKind::Cpu, "cpu", 2, "");
        let switches = self.add(host, prefix, NodeKind::PcieSwitch, "pcie", 4, "");
        let gpus = self.add(host, prefix, NodeKind::Gpu, "gpu", 8, "H200 SXM");
        let nics = self.add(host, prefix, NodeKind::Nic, "nic", 8, "");
        let nvswitches = self.add(host, prefix, NodeKind::Nvswitch, "nvswitch", 4, "");
        self.distribute(&switches, &cpus, LinkKind::Pcie, 63.0, 16);
        self.distribute(&gpus, &switches, LinkKind::Pcie, 63.0, 16);
        self.distribute(&nics, &switches, LinkKind::Pcie, 63.0, 16);
        self.all_to_all(&gpus, &nvswitches, LinkKind::Nvlink, 112.5, 4);
        if let [first, second] = cpus[..] {
            self.link(first, second, LinkKind::Upi, 48.0, 3);
        }
        nics
    }
}

/// Returns one host whose GPUs are connected by NVSwitches.
pub fn switched() -> Fabric {
    let mut fabric = ExampleBuilder::new("hgx-h200");
    fabric.hgx("host0", "");
    fabric.0.finish()
}

/// Returns eight GPUs in a hybrid cube mesh on two sockets, as in the first DGX.
pub fn cube_mesh() -> Fabric {
    const PAIRS: [(usize, usize, u16); 16] = [
        (0, 1, 1),
        (0, 2, 1),
        (0, 3, 2),
        (0, 4, 2),
        (1, 2, 2),
        (1, 3, 1),
        (1, 5, 2),
        (2, 3, 2),
        (2, 6, 1),
        (3, 7, 1),
        (4, 5, 1),
        (4, 6, 1),
        (4, 7, 2),
        (5, 6, 2),
        (5, 7, 1),
        (6, 7, 2),
    ];
    let mut fabric = ExampleBuilder::new("cube-mesh");
    let host = fabric.0.host("host0");
    let cpus = fabric.add(host, "", NodeKind::Cpu, "cpu", 2, "");
    let switches = fabric.add(host, "", NodeKind::PcieSwitch, "pcie", 4, "");
    let gpus = fabric.add(host, "", NodeKind::Gpu, "gpu", 8, "V100");
    let nics = fabric.add(host, "", NodeKind::Nic, "nic", 4, "");
    fabric.distribute(&switches, &cpus, LinkKind::Pcie, 15.75, 16);
    fabric.distribute(&gpus, &switches, LinkKind::Pcie, 15.75, 16);
    fabric.distribute(&nics, &switches, LinkKind::Pcie, 15.75, 16);
    if let [first, second] = cpus[..] {
        fabric.link(first, second, LinkKind::Upi, 20.8, 2);
    }
    for (a, b, lanes) in PAIRS {
        if let (Some(&a), Some(&b)) = (gpus.get(a), gpus.get(b)) {
            fabric.link(a, b, LinkKind::Nvlink, 25.0 * f64::from(lanes), lanes);
        }
    }
    fabric.0.finish()
}

/// Returns sixteen hosts with one leaf switch per rail, and spine switches.
pub fn rails() -> Fabric {
    let mut fabric = ExampleBuilder::new("hgx-h200 x 16");
    let network = fabric.0.host("network");
    let leaves = fabric.add(network, "", NodeKind::Switch, "leaf", 8, "");
    let spines = fabric.add(network, "", NodeKind::Switch, "spine", 4, "");
    fabric.all_to_all(&leaves, &spines, LinkKind::Infiniband, 200.0, 4);
    for n in 0..16 {
        let nics = fabric.hgx(&format!("n{n}"), &format!("n{n}/"));
        fabric.distribute(&nics, &leaves, LinkKind::Infiniband, 50.0, 1);
    }
    fabric.0.finish()
}

/// Returns a rack of eighteen hosts with four GPUs each, all connected to the NVSwitches of the rack.
pub fn rack() -> Fabric {
    let mut fabric = ExampleBuilder::new("nvl72");
    let trays = fabric.0.host("trays");
    let nvswitches = fabric.add(trays, "", NodeKind::Nvswitch, "nvswitch", 18, "");
    for n in 0..18 {
        let (host, prefix) = (fabric.0.host(&format!("n{n}")), format!("n{n}/"));
        let cpus = fabric.add(host, &prefix, NodeKind::Cpu, "cpu", 2, "");
        let gpus = fabric.add(host, &prefix, NodeKind::Gpu, "gpu", 4, "GB200");
        let nics = fabric.add(host, &prefix, NodeKind::Nic, "nic", 4, "");
        fabric.distribute(&gpus, &cpus, LinkKind::C2c, 450.0, 1);
        fabric.distribute(&nics, &cpus, LinkKind::Pcie, 126.0, 16);
        fabric.all_to_all(&gpus, &nvswitches, LinkKind::Nvlink, 50.0, 1);
    }
    fabric.0.finish()
}

/// Returns eight GPUs on cascaded PCIe switches. One socket has two more GPUs than the other.
pub fn pcie_tree() -> Fabric {
    let mut fabric = ExampleBuilder::new("pcie-box");
    let host = fabric.0.host("a-host-with-a-long-name.example.org");
    let cpus = fabric.add(host, "", NodeKind::Cpu, "cpu", 2, "");
    let upper = fabric.add(host, "", NodeKind::PcieSwitch, "pcie-top", 2, "");
    let lower = fabric.add(host, "", NodeKind::PcieSwitch, "pcie-leaf", 4, "");
    let gpus = fabric.add(host, "", NodeKind::Gpu, "gpu", 10, "L40S");
    let nics = fabric.add(host, "", NodeKind::Nic, "nic", 2, "");
    fabric.distribute(&upper, &cpus, LinkKind::Pcie, 31.5, 16);
    fabric.distribute(&lower, &upper, LinkKind::Pcie, 31.5, 16);
    fabric.distribute(&gpus, &lower, LinkKind::Pcie, 31.5, 16);
    fabric.distribute(&nics, &cpus, LinkKind::Pcie, 31.5, 8);
    if let [first, second] = cpus[..] {
        fabric.link(first, second, LinkKind::Upi, 64.0, 4);
    }
    fabric.0.finish()
}
