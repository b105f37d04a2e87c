//! The PCIe tree of a fabric, as a topology file nests it.

use rustc_hash::FxHashMap;

use super::no_words;
use crate::error::Result;
use crate::fabric::{Fabric, LinkId, LinkKind, NodeId, NodeKind};

/// Maximum nesting depth, equal to that of the reader.
const DEEPEST: usize = 64;

/// Children of CPUs and PCIe switches, in the order of the fabric.
pub(super) struct Tree {
    /// The CPUs.
    pub roots: Vec<NodeId>,
    /// Children of each parent with the PCIe link of each upwards; `None` for a GPU that is only joined to its CPU by
    /// C2C.
    below: FxHashMap<NodeId, Vec<(NodeId, Option<LinkId>)>>,
    /// Peer links between PCIe switches (`pcilink`), by the switch at which the link starts.
    beside: FxHashMap<NodeId, Vec<NodeId>>,
    root_of: FxHashMap<NodeId, NodeId>,
}

impl Tree {
    /// Builds the tree; the error names a device or link that has no place in it.
    pub fn of(fabric: &Fabric) -> Result<Self> {
        for (_, node) in fabric.nodes() {
            match node.kind {
                NodeKind::Cpu | NodeKind::PcieSwitch | NodeKind::Gpu | NodeKind::Nic | NodeKind::Nvswitch => {}
                kind => return Err(no_words(&format!("`{}`, of kind {}", node.id, kind.name()))),
            }
        }
        let roots = fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Cpu).map(|(id, _)| id).collect();
        let mut tree =
            Self { roots, below: FxHashMap::default(), beside: FxHashMap::default(), root_of: FxHashMap::default() };
        tree.grow(fabric)?;
        tree.adopt(fabric);
        tree.check(fabric)?;
        Ok(tree)
    }

    /// Adds devices from the CPUs down over PCIe, level by level.
    fn grow(&mut self, fabric: &Fabric) -> Result<()> {
        let mut level = self.roots.clone();
        self.root_of.extend(level.iter().map(|&cpu| (cpu, cpu)));
        for depth in 0.. {
            if level.is_empty() {
                return Ok(());
            }
            if depth > DEEPEST {
                return Err(no_words(&format!("PCIe switches nested more than {DEEPEST} deep")));
            }
            let mut next = Vec::new();
            for parent in level {
                let Some(&root) = self.root_of.get(&parent) else { continue };
                let mut children = Vec::new();
                for link in fabric.leaving(parent) {
                    let child = fabric.ends(link).1;
                    let kind = fabric.node(child).kind;
                    let holds = matches!(kind, NodeKind::PcieSwitch | NodeKind::Gpu | NodeKind::Nic);
                    if fabric.link(link).kind == LinkKind::Pcie && holds && !self.root_of.contains_key(&child) {
                        self.root_of.insert(child, root);
                        children.push((child, Some(link.reverse())));
                        next.extend((kind == NodeKind::PcieSwitch).then_some(child));
                    }
                }
                children.sort_unstable();
                self.below.insert(parent, children);
            }
            level = next;
        }
        Ok(())
    }

    /// Adds GPUs that are only joined to a CPU by C2C (Grace) below that CPU: NCCL requires each GPU in the tree.
    fn adopt(&mut self, fabric: &Fabric) {
        for &gpu in fabric.gpus().iter().filter(|gpu| !self.root_of.contains_key(gpu)).collect::<Vec<_>>() {
            let c2c = fabric.leaving(gpu).into_iter().find(|&link| {
                fabric.link(link).kind == LinkKind::C2c && fabric.node(fabric.ends(link).1).kind == NodeKind::Cpu
            });
            if let Some(cpu) = c2c.map(|link| fabric.ends(link).1) {
                self.root_of.insert(gpu, cpu);
                self.below.entry(cpu).or_default().push((gpu, None));
            }
        }
    }

    /// Checks that every device is in the tree, and that every link is in the tree or has an element of its own.
    fn check(&mut self, fabric: &Fabric) -> Result<()> {
        for (id, node) in fabric.nodes() {
            if node.kind != NodeKind::Nvswitch && !self.root_of.contains_key(&id) {
                return Err(no_words(&format!("`{}`, which hangs on no CPU by PCIe", node.id)));
            }
        }
        let up: FxHashMap<NodeId, Option<LinkId>> = self.below.values().flatten().copied().collect();
        for (id, link) in fabric.links().filter(|(id, link)| id.0 % 2 == 0 && !link.failed) {
            let kinds = [fabric.node(link.from).kind, fabric.node(link.to).kind];
            let in_tree = [link.from, link.to]
                .iter()
                .any(|end| up.get(end).copied().flatten().is_some_and(|up| up == id || up == id.reverse()));
            let said = match link.kind {
                LinkKind::Pcie if in_tree => true,
                LinkKind::Pcie if kinds == [NodeKind::PcieSwitch; 2] && link.bandwidth.is_none() => {
                    self.beside.entry(link.from).or_default().push(link.to);
                    true
                }
                LinkKind::Upi => kinds == [NodeKind::Cpu; 2],
                // The writer of GPUs checks the other end.
                LinkKind::Nvlink | LinkKind::C2c => kinds.contains(&NodeKind::Gpu),
                LinkKind::Pcie | LinkKind::Infiniband | LinkKind::Ethernet => false,
            };
            if !said {
                return Err(no_words(&format!("the {} link {}", link.kind.name(), fabric.link_name(id))));
            }
        }
        Ok(())
    }

    /// The children of a device, with the link of each upwards.
    pub fn children(&self, of: NodeId) -> &[(NodeId, Option<LinkId>)] {
        self.below.get(&of).map_or(&[], Vec::as_slice)
    }

    /// The PCIe switches to which a switch has a peer link.
    pub fn sideways(&self, of: NodeId) -> &[NodeId] {
        self.beside.get(&of).map_or(&[], Vec::as_slice)
    }

    /// The CPU at the root of a device's tree.
    pub fn root_of(&self, device: NodeId) -> Option<NodeId> {
        self.root_of.get(&device).copied()
    }
}
