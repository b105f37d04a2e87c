//! Links: what kind, how wide, how fast, how far.

use serde::{Deserialize, Serialize};

use super::NodeId;
use crate::{Bandwidth, Picos};

/// The technology of a link, which decides its path class and which protocols may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// NVLink, and what plays its part elsewhere (xGMI between AMD GPUs, NVLink Fusion).
    Nvlink,
    /// NVLink-C2C between a Grace CPU and its GPU.
    C2c,
    /// PCI Express.
    Pcie,
    /// Between CPU sockets: UPI, xGMI between EPYCs.
    Upi,
    /// InfiniBand.
    Infiniband,
    /// Ethernet, RoCE, EFA, Slingshot.
    Ethernet,
}

impl LinkKind {
    /// Those between hosts and switches of a network.
    pub const NETWORK: [Self; 2] = [Self::Infiniband, Self::Ethernet];

    /// What people call it.
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
    /// Where it starts.
    pub from: NodeId,
    /// Where it ends.
    pub to: NodeId,
    /// Its technology.
    pub kind: LinkKind,
    /// Number of lanes or bonded links; 1 where the source does not say. Bandwidth is that of all of them together.
    pub lanes: u16,
    /// Bandwidth of this direction; `None` is unlimited.
    pub bandwidth: Option<Bandwidth>,
    /// The same before it was slowed (`--slow`): software inside a host chooses its ways by how the host was built.
    pub built: Option<Bandwidth>,
    /// Time for a first byte to pass.
    pub latency: Picos,
    /// Taken out of service (`--fail`): kept so that ids stay dense, never routed over.
    pub failed: bool,
}
