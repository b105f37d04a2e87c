//! The PCIe tree of a fabric, with the nesting of a topology file.

use rustc_hash::FxHashMap;

use super::unsupported_error;
use crate::error::Result;
use crate::fabric::{Fabric, LinkId, LinkKind, NodeId, NodeKind};

/// Maximum nesting depth, equal to that of the reader.
const MAX_DEPTH: usize = 64;

/// Children of CPUs and PCIe switches, in the order of the fabric.
pub(super) struct Tree {
    /// The CPUs, in id order; each is the root of a tree.
    pub roots: Vec<NodeId>,
    /// Children of each parent, each with its PCIe link to the parent; `None` for a GPU that is joined to its CPU only
    /// by C2C.
    children: FxHashMap<NodeId, Vec<(NodeId, Option<LinkId>)>>,
    /// Peer links between PCIe switches (`pcilink`), by the switch at which the link starts.
    peer_links: FxHashMap<NodeId, Vec<NodeId>>,
    roots_by_device: FxHashMap<NodeId, NodeId>,
}

impl Tree {
    /// Builds the tree of a fabric of one host.
    ///
    /// # Errors
    /// A device or link has no element in NCCL's XML; the error names it.
    pub fn new(fabric: &Fabric) -> Result<Self> {
        for (_, node) in fabric.nodes() {
            match node.kind {
                NodeKind::Cpu | NodeKind::PcieSwitch | NodeKind::Gpu | NodeKind::Nic | NodeKind::Nvswitch => {}
                kind => return Err(unsupported_error(&format!("`{}`, of kind {}", node.id, kind.name()))),
            }
        }
        let roots = fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Cpu).map(|(id, _)| id).collect();
        let mut tree = Self {
            roots,
            children: FxHashMap::default(),
            peer_links: FxHashMap::default(),
            roots_by_device: FxHashMap::default(),
        };
        tree.grow(fabric)?;
        tree.adopt(fabric);
        tree.check(fabric)?;
        Ok(tree)
    }

    /// Adds devices from the CPUs down over PCIe, level by level.
    fn grow(&mut self, fabric: &Fabric) -> Result<()> {
        let mut level = self.roots.clone();
        self.roots_by_device.extend(level.iter().map(|&cpu| (cpu, cpu)));
        for depth in 0.. {
            if level.is_empty() {
                return Ok(());
            }
            if depth > MAX_DEPTH {
                return Err(unsupported_error(&format!("PCIe switches nested more than {MAX_DEPTH} deep")));
            }
            let mut next = Vec::new();
            for parent in level {
                let Some(&root) = self.roots_by_device.get(&parent) else { continue };
                let mut children = Vec::new();
                for link in fabric.outgoing_links(parent) {
                    let child = fabric.ends(link).1;
                    let kind = fabric.node(child).kind;
                    let holds = matches!(kind, NodeKind::PcieSwitch | NodeKind::Gpu | NodeKind::Nic);
                    if fabric.link(link).kind == LinkKind::Pcie && holds && !self.roots_by_device.contains_key(&child) {
                        self.roots_by_device.insert(child, root);
                        children.push((child, Some(link.reverse())));
                        next.extend((kind == NodeKind::PcieSwitch).then_some(child));
                    }
                }
                children.sort_unstable();
                self.children.insert(parent, children);
            }
            level = next;
        }
        Ok(())
    }

    /// Adds GPUs that are only joined to a CPU by C2C (Grace) below that CPU: NCCL requires each GPU in the tree.
    fn adopt(&mut self, fabric: &Fabric) {
        for &gpu in fabric.gpus().iter().filter(|gpu| !self.roots_by_device.contains_key(gpu)).collect::<Vec<_>>() {
            let c2c = fabric.outgoing_links(gpu).into_iter().find(|&link| {
                fabric.link(link).kind == LinkKind::C2c && fabric.node(fabric.ends(link).1).kind == NodeKind::Cpu
            });
            if let Some(cpu) = c2c.map(|link| fabric.ends(link).1) {
                self.roots_by_device.insert(gpu, cpu);
                self.children.entry(cpu).or_default().push((gpu, None));
            }
        }
    }

    /// Checks that every device is in the tree, and that every link is in the tree or is written as an element.
    fn check(&mut self, fabric: &Fabric) -> Result<()> {
        for (id, node) in fabric.nodes() {
            if node.kind != NodeKind::Nvswitch && !self.roots_by_device.contains_key(&id) {
                return Err(unsupported_error(&format!("`{}`, which is attached to no CPU by PCIe", node.id)));
            }
        }
        let up: FxHashMap<NodeId, Option<LinkId>> = self.children.values().flatten().copied().collect();
        for (id, [link, _]) in fabric.link_pairs().filter(|(_, [link, _])| !link.failed) {
            let kinds = [fabric.node(link.from).kind, fabric.node(link.to).kind];
            let in_tree = [link.from, link.to]
                .iter()
                .any(|end| up.get(end).copied().flatten().is_some_and(|up| up == id || up == id.reverse()));
            let is_expressible = match link.kind {
                LinkKind::Pcie if in_tree => true,
                LinkKind::Pcie if kinds == [NodeKind::PcieSwitch; 2] && link.bandwidth.is_none() => {
                    self.peer_links.entry(link.from).or_default().push(link.to);
                    true
                }
                LinkKind::Upi => kinds == [NodeKind::Cpu; 2],
                // The writer of GPUs checks the other end.
                LinkKind::Nvlink | LinkKind::C2c => kinds.contains(&NodeKind::Gpu),
                LinkKind::Pcie | LinkKind::Infiniband | LinkKind::Ethernet => false,
            };
            if !is_expressible {
                return Err(unsupported_error(&format!("the {} link {}", link.kind.name(), fabric.link_name(id))));
            }
        }
        Ok(())
    }

    /// The children of a device, with the link of each upwards.
    pub fn children(&self, device: NodeId) -> &[(NodeId, Option<LinkId>)] {
        self.children.get(&device).map_or(&[], Vec::as_slice)
    }

    /// The PCIe switches to which a switch has a peer link.
    pub fn peers(&self, device: NodeId) -> &[NodeId] {
        self.peer_links.get(&device).map_or(&[], Vec::as_slice)
    }

    /// The CPU at the root of a device's tree; `None` for devices outside all trees.
    pub fn root(&self, device: NodeId) -> Option<NodeId> {
        self.roots_by_device.get(&device).copied()
    }
}
