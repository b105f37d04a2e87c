//! Where the buffers of a call lie, seen from the device of their rank.

use super::{PathClass, Router};
use crate::fabric::NodeKind;
use crate::{Error, HostId, NodeId, Result};

/// Where the caller's buffers lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BufferPlace {
    /// In the memory of the rank's own device.
    #[default]
    Device,
    /// In page-locked memory of the CPU nearest to the device, which the device reads and writes itself.
    Pinned,
    /// In ordinary memory of that CPU: what a device reads or writes there is copied through page-locked memory.
    Pageable,
    /// In managed memory whose pages lie with that CPU: each moves to the device when it is first read, over the way
    /// between them, and stays; what is written first is written on the device. What handling page faults takes besides is
    /// not known here, so moving takes what a prefetch does.
    Managed,
    /// In the memory of the CPU that the device is joined to by C2C.
    Grace,
    /// In the memory of this device.
    Peer(NodeId),
}

impl Router<'_> {
    /// The device in whose memory the buffers of a rank on `device` lie.
    ///
    /// # Errors
    /// [`Error::Request`] where its host has no CPU that it reaches, or none by C2C where that is asked for.
    pub fn place_of_buffers(&self, device: NodeId) -> Result<NodeId> {
        let place = self.options.buffers;
        match place {
            BufferPlace::Device => Ok(device),
            BufferPlace::Peer(peer) => Ok(peer),
            BufferPlace::Pinned | BufferPlace::Pageable | BufferPlace::Managed => self.nearest_cpu(device),
            BufferPlace::Grace => self.nearest(device, "CPU by C2C", PathClass::C2c),
        }
    }

    /// The CPU that a device is nearest to, among those of its host.
    ///
    /// # Errors
    /// [`Error::Request`] where it reaches none.
    pub fn nearest_cpu(&self, device: NodeId) -> Result<NodeId> {
        self.nearest(device, "CPU", PathClass::Sys)
    }

    fn nearest(&self, device: NodeId, wanted: &str, most: PathClass) -> Result<NodeId> {
        let near = self.cpus_of(self.fabric.node(device).host);
        let reached = near.filter_map(|cpu| {
            let mut hops = Vec::new();
            let class = self.route_into(device, cpu, 0, &mut hops).ok()?.class;
            (class <= most).then_some((class, hops.len(), cpu))
        });
        let nearest = reached.min().map(|(.., cpu)| cpu);
        nearest.ok_or_else(|| {
            let id = &self.fabric.node(device).id;
            Error::Request(format!("{id} is joined to no {wanted} whose memory could hold its buffers"))
        })
    }

    fn cpus_of(&self, host: HostId) -> impl Iterator<Item = NodeId> {
        let is_near = move |node: &crate::Node| node.kind == NodeKind::Cpu && node.host == host;
        self.fabric.nodes().filter(move |(_, node)| is_near(node)).map(|(id, _)| id)
    }
}
