//! Location of a call's buffers, relative to the device of the rank.

use super::{PathClass, Router};
use crate::fabric::NodeKind;
use crate::{Error, HostId, NodeId, Result};

/// Location of the caller's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BufferLocation {
    /// Memory of the rank's own device.
    #[default]
    Device,
    /// Page-locked memory of the CPU nearest to the device, which the device accesses directly.
    Pinned,
    /// Pageable memory of the CPU nearest to the device; transfers are copied through page-locked memory.
    Pageable,
    /// Managed memory whose pages reside at the CPU nearest to the device. A page migrates to the device on its first
    /// read, over the route between CPU and device, and stays there; pages that are written first are written on the
    /// device. The overhead of page faults is not modelled: a migration costs as much as a prefetch.
    Managed,
    /// Memory of the CPU that the device is joined to by C2C.
    Grace,
    /// Memory of this device, a peer of the rank's own device.
    Peer(NodeId),
}

impl Router<'_> {
    /// The device whose memory holds the buffers of a rank on `device`.
    ///
    /// # Errors
    /// [`Error::Request`] if the device reaches no CPU of its host, or none by C2C where [`BufferLocation::Grace`]
    /// requires it.
    pub fn buffer_device(&self, device: NodeId) -> Result<NodeId> {
        let location = self.options.buffers;
        match location {
            BufferLocation::Device => Ok(device),
            BufferLocation::Peer(peer) => Ok(peer),
            BufferLocation::Pinned | BufferLocation::Pageable | BufferLocation::Managed => self.nearest_cpu(device),
            BufferLocation::Grace => self.nearest(device, "CPU by C2C", PathClass::C2c),
        }
    }

    /// The CPU of the device's host that is nearest to the device.
    ///
    /// # Errors
    /// [`Error::Request`] if the device reaches no CPU.
    pub fn nearest_cpu(&self, device: NodeId) -> Result<NodeId> {
        self.nearest(device, "CPU", PathClass::Sys)
    }

    fn nearest(&self, device: NodeId, wanted: &str, max_class: PathClass) -> Result<NodeId> {
        let near = self.host_cpus(self.fabric.node(device).host);
        let reached = near.filter_map(|cpu| {
            let mut hops = Vec::new();
            let class = self.route_into(device, cpu, 0, &mut hops).ok()?.class;
            (class <= max_class).then_some((class, hops.len(), cpu))
        });
        let nearest = reached.min().map(|(.., cpu)| cpu);
        nearest.ok_or_else(|| {
            let id = &self.fabric.node(device).id;
            Error::Request(format!("{id} is joined to no {wanted} whose memory could hold its buffers"))
        })
    }

    fn host_cpus(&self, host: HostId) -> impl Iterator<Item = NodeId> {
        let is_host_cpu = move |node: &crate::Node| node.kind == NodeKind::Cpu && node.host == host;
        self.fabric.nodes().filter(move |(_, node)| is_host_cpu(node)).map(|(id, _)| id)
    }
}
