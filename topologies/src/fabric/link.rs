//! Links: technology, lanes, bandwidth and latency.

use serde::{Deserialize, Serialize};

use super::NodeId;
use crate::{Bandwidth, Picos};

/// Technology of a link. It determines the class of a path and the protocols that can use the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// NVLink, or its equivalent of other vendors (xGMI between AMD GPUs, NVLink Fusion).
    Nvlink,
    /// NVLink-C2C between a Grace CPU and its GPU.
    C2c,
    /// PCI Express.
    Pcie,
    /// Interconnect between CPU sockets: UPI, xGMI between EPYCs.
    Upi,
    /// InfiniBand.
    Infiniband,
    /// Ethernet, RoCE, EFA, Slingshot.
    Ethernet,
}

impl LinkKind {
    /// Technologies of links between hosts and network switches.
    pub const NETWORK: [Self; 2] = [Self::Infiniband, Self::Ethernet];

    /// Display name of the technology.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Nvlink => "NVLink",
            Self::C2c => "C2C",
            Self::Pcie => "PCIe",
            Self::Upi => "UPI",
            Self::Infiniband => "InfiniBand",
            Self::Ethernet => "Ethernet",
        }
    }
}

/// One direction of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Device that sends in this direction.
    pub from: NodeId,
    /// Device that receives in this direction.
    pub to: NodeId,
    /// Technology of the link.
    pub kind: LinkKind,
    /// Number of lanes or bonded links; 1 if the source does not state it. `bandwidth` is the sum over all lanes.
    pub lanes: u16,
    /// Bandwidth of this direction; `None` is unlimited.
    pub bandwidth: Option<Bandwidth>,
    /// Bandwidth before the link was slowed (`--slow`). Route selection inside a host uses this value.
    pub nominal_bandwidth: Option<Bandwidth>,
    /// Latency of the first byte from `from` to `to`.
    pub latency: Picos,
    /// True if the link is out of service (`--fail`). Such a link remains in the fabric, so that ids are dense, but no
    /// route uses it.
    pub failed: bool,
}
