//! Preset as the template of a cluster's hosts.

use crate::error::{Error, Result};
use crate::fabric::Fabric;
use crate::{HostId, NodeId};

/// A preset divided into the hosts that are copied and the devices that they share.
#[derive(Debug)]
pub(super) struct Template<'f> {
    pub fabric: &'f Fabric,
    /// Hosts with GPUs, in rank order.
    pub hosts: Vec<HostId>,
    /// Devices of each host in `hosts`, in id order.
    pub members: Vec<Vec<NodeId>>,
    /// Devices that belong to none of these hosts (the NVSwitch of a rack).
    pub shared: Vec<NodeId>,
}

impl<'f> Template<'f> {
    pub fn new(fabric: &'f Fabric) -> Result<Self> {
        let mut hosts: Vec<HostId> = Vec::new();
        let mut number: Vec<Option<usize>> = vec![None; fabric.hosts().len()];
        for &gpu in fabric.gpus() {
            let host = fabric.node(gpu).host;
            if let Some(slot @ None) = number.get_mut(host.0 as usize) {
                *slot = Some(hosts.len());
                hosts.push(host);
            }
        }
        if hosts.is_empty() {
            return Err(Error::Request(format!("{} has no GPU, so no host to copy", fabric.name())));
        }
        let mut members = vec![Vec::new(); hosts.len()];
        let mut shared = Vec::new();
        for (id, node) in fabric.nodes() {
            match number.get(node.host.0 as usize).copied().flatten().and_then(|host| members.get_mut(host)) {
                Some(members) => members.push(id),
                None => shared.push(id),
            }
        }
        Ok(Self { fabric, hosts, members, shared })
    }

    /// Number of hosts of the template.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Restricts each copy to its first `nodes` hosts.
    ///
    /// # Errors
    /// [`Error::Request`] if the template has fewer hosts.
    pub fn restrict_hosts(&mut self, nodes: u32) -> Result<()> {
        let hosts = self.hosts.len();
        if nodes as usize > hosts {
            let message = format!(
                "nodes_per_domain: an NVLink domain of {} has {hosts} host{}, not {nodes}",
                self.fabric.name(),
                if hosts == 1 { "" } else { "s" }
            );
            return Err(Error::Request(message));
        }
        self.hosts.truncate(nodes as usize);
        self.members.truncate(nodes as usize);
        Ok(())
    }

    pub fn vertices_per_host(&self) -> u64 {
        self.fabric.node_count().div_ceil(self.hosts.len()).max(1) as u64
    }

    /// Devices of the template's host with this index, in id order.
    pub fn members(&self, host: usize) -> &[NodeId] {
        self.members.get(host).map_or(&[], Vec::as_slice)
    }

    /// Id of a device without the name of its host as prefix.
    pub fn short_id(&self, id: NodeId) -> &'f str {
        let node = self.fabric.node(id);
        let host = self.fabric.hosts().get(node.host.0 as usize).map_or("", |host| &**host);
        node.id.strip_prefix(host).and_then(|rest| rest.strip_prefix('/')).unwrap_or(&node.id)
    }
}
