//! Network transports, and the rules to detect them. GPUs and NICs alone do not determine the transport of a machine.

use fabricast_topologies::cluster::LOOPBACK_NIC;
use fabricast_topologies::fabric::{Figures, NicFigures};
use fabricast_topologies::{Bandwidth, Fabric, LinkKind};
use serde::Deserialize;

/// Transport of messages between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// InfiniBand verbs, also used by RoCE.
    #[default]
    Infiniband,
    /// InfiniBand verbs as used by RCCL. Detected by AMD GPUs.
    RcclVerbs,
    /// AWS EFA. Detected by its number of NICs per host, which is unusual for InfiniBand. InfiniBand machines with that
    /// number of NICs must state their link type.
    Efa,
    /// HPE Slingshot. Detected by GPUs that are attached to CPUs by C2C, since its NIC rate is also that of other
    /// networks.
    Slingshot,
    /// Google's GPUDirect-TCPX: TCP with payload that is placed directly in GPU memory. Detected by two H100 per
    /// Ethernet NIC of 200 Gb/s. RoCE machines with such NICs must state their MTU.
    Tcpx,
    /// Google's GPUDirect-TCPXO (FasTrak), the successor of TCPX. Detected as TCPX, but by one H100 per NIC.
    Tcpxo,
    /// TCP sockets between parts of one host.
    Sockets,
}

impl Transport {
    /// Returns true if messages are sent in InfiniBand or RoCE packets.
    pub(super) fn uses_verbs(self) -> bool {
        matches!(self, Self::Infiniband | Self::RcclVerbs)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Infiniband => "infiniband",
            Self::RcclVerbs => "rccl_verbs",
            Self::Efa => "efa",
            Self::Slingshot => "slingshot",
            Self::Tcpx => "tcpx",
            Self::Tcpxo => "tcpxo",
            Self::Sockets => "sockets",
        }
    }
}

/// Characteristics that distinguish machines by their networks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MachineNetwork {
    pub(super) compute_capability: u32,
    pub(super) nic: Bandwidth,
    pub(super) nics_per_gpu: f64,
    /// True if the NICs are declared as InfiniBand.
    pub(super) is_infiniband: bool,
    /// True if the NICs are declared as Ethernet without an MTU. A declared MTU identifies RoCE.
    pub(super) is_ethernet: bool,
    /// True if the GPUs are AMD's.
    pub(super) is_amd: bool,
    /// True if GPUs are attached to CPUs by C2C.
    pub(super) has_c2c: bool,
    /// True if the hosts are parts of one physical machine, connected by loopback.
    pub(super) is_loopback: bool,
}

/// Returns the figures of all NICs of a fabric, failed ones too: NCCL chooses its settings when the machine is whole, and
/// a failure must not improve them.
pub(super) fn nic_figures(fabric: &Fabric) -> impl Iterator<Item = &NicFigures> {
    fabric.nodes().filter_map(|(_, node)| match &node.figures {
        Figures::Nic(figures) => Some(figures.as_ref()),
        _ => None,
    })
}

/// Protocol of the ports of NICs that state none: Ethernet if any link of the fabric is Ethernet, otherwise InfiniBand.
pub(super) fn default_port_protocol(fabric: &Fabric) -> LinkKind {
    match fabric.links().any(|(_, link)| link.kind == LinkKind::Ethernet) {
        true => LinkKind::Ethernet,
        false => LinkKind::Infiniband,
    }
}

/// Returns true for links between hosts.
fn is_network(kind: LinkKind) -> bool {
    matches!(kind, LinkKind::Infiniband | LinkKind::Ethernet)
}

impl MachineNetwork {
    /// Returns the characteristics of a fabric; `None` unless it has several hosts connected by NICs.
    pub(super) fn from_fabric(fabric: &Fabric) -> Option<Self> {
        let gpus = fabric.gpus();
        let capability = gpus.iter().find_map(|&gpu| match &fabric.node(gpu).figures {
            Figures::Gpu(figures) => figures.compute_capability,
            _ => None,
        });
        let first = gpus.first().map(|&gpu| fabric.node(gpu).host);
        if gpus.iter().all(|&gpu| Some(fabric.node(gpu).host) == first) {
            return None;
        }
        if !fabric.links().any(|(_, link)| is_network(link.kind)) {
            return None;
        }
        let nics: Vec<&NicFigures> = fabric
            .nodes()
            .filter_map(|(_, node)| match &node.figures {
                Figures::Nic(figures) => Some(figures.as_ref()),
                _ => None,
            })
            .collect();
        let nic = nics.iter().filter_map(|nic| nic.speed).min()?;
        Some(Self {
            compute_capability: capability.unwrap_or(0),
            nic,
            nics_per_gpu: nics.len() as f64 / gpus.len() as f64,
            is_infiniband: nics.iter().any(|nic| nic.link == Some(LinkKind::Infiniband)),
            is_ethernet: nics.iter().any(|nic| nic.link == Some(LinkKind::Ethernet) && nic.mtu.is_none()),
            is_amd: gpus.iter().any(|&gpu| fabric.node(gpu).is_amd()),
            has_c2c: fabric.links().any(|(_, link)| link.kind == LinkKind::C2c),
            is_loopback: nics.iter().any(|nic| nic.model.as_deref() == Some(LOOPBACK_NIC)),
        })
    }
}
