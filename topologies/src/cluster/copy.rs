//! Copying of a template (a host, or a rack of hosts) into the fabric of a cluster.

use super::nics::NicPlan;
use super::template::Template;
use crate::error::{Error, Result};
use crate::fabric::{FabricBuilder, Node, NodeKind};
use crate::{LinkId, NodeId};

/// Sharing of NVSwitches between the copies of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NvlinkDomains {
    /// Each copy has its own NVSwitches and is an NVLink domain.
    PerCopy,
    /// All copies share one set of NVSwitches.
    Shared,
}

impl Template<'_> {
    /// Adds `nodes` hosts as copies of the template, in order, and returns the NICs of each host.
    ///
    /// # Errors
    /// Two devices of the cluster would have the same id.
    pub fn fill(
        &self,
        builder: &mut FabricBuilder,
        nodes: u32,
        plan: &NicPlan,
        nvlink_domains: NvlinkDomains,
    ) -> Result<Vec<Vec<NodeId>>> {
        let units = (nodes as usize).div_ceil(self.hosts.len());
        builder.reserve(self.fabric.node_count() * units, self.fabric.link_count() * units);
        let mut common: Vec<Option<NodeId>> = vec![None; self.fabric.node_count()];
        if nvlink_domains == NvlinkDomains::Shared {
            self.add_common(builder, &mut common)?;
        }
        let duplicate_error = |id: &str| Error::Request(format!("two devices of the cluster would be called `{id}`"));
        let links: Vec<LinkId> = (0..self.fabric.link_count() as u32).step_by(2).map(LinkId).collect();
        let idle: rustc_hash::FxHashSet<NodeId> = self.fabric.idle_gpus().into_iter().collect();
        let mut all_nics = Vec::with_capacity(nodes as usize);
        let mut id = String::new();
        for unit in 0..units {
            let mut map = common.clone();
            let first = unit * self.hosts.len();
            for (local, members) in self.members.iter().enumerate().take(nodes as usize - first) {
                let number = first + local;
                let prefix = if nodes == 1 { String::new() } else { format!("n{number}/") };
                let host = builder.host(&format!("n{number}"));
                let mut nics = Vec::new();
                for &member in members {
                    let Some(slot @ None) = map.get_mut(member.0 as usize) else { continue };
                    let node = self.fabric.node(member);
                    if node.kind == NodeKind::Nic && plan.replaces_nics() {
                        continue;
                    }
                    id.clear();
                    id.push_str(&prefix);
                    id.push_str(self.short_id(member));
                    let copy = plan.apply_port_settings(Node { id: id.as_str().into(), host, ..node.clone() });
                    let added = builder.add_node(copy).ok_or_else(|| duplicate_error(&id))?;
                    if idle.contains(&member) {
                        builder.set_idle(added);
                    }
                    *slot = Some(added);
                    if node.kind == NodeKind::Nic {
                        nics.push(added);
                    }
                }
                plan.add(builder, local, &prefix, host, &map, &mut nics).map_err(|id| duplicate_error(&id))?;
                all_nics.push(nics);
            }
            self.add_shared(builder, unit, units, &mut map)?;
            for &link in &links {
                let (from, to) = self.fabric.ends(link);
                let end = |node: NodeId| map.get(node.0 as usize).copied().flatten();
                let already = |node: NodeId| common.get(node.0 as usize).copied().flatten().is_some();
                if let (Some(a), Some(b)) = (end(from), end(to))
                    && !(already(from) && already(to))
                {
                    builder.copy_link(self.fabric, link, a, b);
                }
            }
        }
        Ok(all_nics)
    }

    /// Adds the NVSwitches that all hosts share and the links between them. `common` receives the copy of each of these
    /// switches, by its id in the template.
    fn add_common(&self, builder: &mut FabricBuilder, common: &mut [Option<NodeId>]) -> Result<()> {
        let switches: Vec<NodeId> =
            self.fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Nvswitch).map(|(id, _)| id).collect();
        if switches.is_empty() {
            let message = format!("network mnnvl: {} has no NVSwitch that could join hosts", self.fabric.name());
            return Err(Error::Request(message));
        }
        let host = builder.host("rack0");
        for switch in switches {
            let copy = Node { id: self.short_id(switch).into(), host, ..self.fabric.node(switch).clone() };
            if let Some(slot) = common.get_mut(switch.0 as usize) {
                *slot = builder.add_node(copy);
            }
        }
        for link in (0..self.fabric.link_count() as u32).step_by(2).map(LinkId) {
            let (from, to) = self.fabric.ends(link);
            let end = |node: NodeId| common.get(node.0 as usize).copied().flatten();
            if let (Some(a), Some(b)) = (end(from), end(to)) {
                builder.copy_link(self.fabric, link, a, b);
            }
        }
        Ok(())
    }

    fn add_shared(
        &self,
        builder: &mut FabricBuilder,
        unit: usize,
        units: usize,
        map: &mut [Option<NodeId>],
    ) -> Result<()> {
        for &shared in &self.shared {
            let Some(slot @ None) = map.get_mut(shared.0 as usize) else { continue };
            let node = self.fabric.node(shared);
            let name = self.fabric.hosts().get(node.host.0 as usize).map_or("", |host| &**host);
            let (id, host) = if units == 1 {
                (node.id.to_string(), builder.host(name))
            } else {
                (format!("rack{unit}/{}", self.short_id(shared)), builder.host(&format!("rack{unit}")))
            };
            let added = builder.add_node(Node { id: id.as_str().into(), host, ..node.clone() });
            *slot = Some(added.ok_or_else(|| Error::Request(format!("two devices would be called `{id}`")))?);
        }
        Ok(())
    }
}
