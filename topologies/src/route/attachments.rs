//! Routes of a device to and from the network.

use super::PathClass;
use super::substitute_ports::SubstitutePorts;

/// A route between a device and the network, inside the island.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attachment {
    /// Index of the port (a link from the island to the network) in the shape.
    pub port: u32,
    /// 0 for the device's own NICs, 1 for those of neighbours, 2 if the neighbour relays incoming traffic by NVLink.
    pub foreign: u8,
    /// Proximity to the network: 0 for classes up to [`PathClass::Pxn`] (no host bridge, or C2C, or a relay by NVLink),
    /// 1 through a host bridge ([`PathClass::Phb`]), 2 over the link between CPU sockets.
    pub tier: u8,
    pub class: PathClass,
    /// Number of links between the device and the network, including that of the port.
    pub hops: u32,
    pub path_count: u64,
    pub bandwidth: u64,
    pub latency: u64,
}

/// All routes of a device to and from the network, best first.
#[derive(Debug)]
pub(super) struct Attachments {
    pub exits: Vec<Attachment>,
    pub entries: Vec<Attachment>,
    /// Ports of other devices that are used if none of the device's own ports is usable.
    pub substitutes: SubstitutePorts,
}
