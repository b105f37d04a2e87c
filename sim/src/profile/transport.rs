//! What carries messages between hosts, and which machines have which: their GPUs and NICs alone do not tell it.

use fabricast_topologies::cluster::LOOPBACK_NIC;
use fabricast_topologies::fabric::{Figures, NicFigures};
use fabricast_topologies::{Bandwidth, Fabric, LinkKind};
use serde::Deserialize;

use super::network_file::MeasuredNetwork;

/// What carries messages: GPUs, NICs and their number alone do not tell it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// InfiniBand's verbs, which RoCE takes, too.
    #[default]
    Infiniband,
    /// AWS's EFA. Its hosts have numbers of NICs that no others have; who has them of InfiniBand says so.
    Efa,
    /// HPE's Slingshot, which joins hosts whose GPUs hang on CPUs by C2C, at a rate that others have as well.
    Slingshot,
    /// Sockets between parts of one host.
    Sockets,
}

impl Transport {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Infiniband => "infiniband",
            Self::Efa => "efa",
            Self::Slingshot => "slingshot",
            Self::Sockets => "sockets",
        }
    }
}

/// What tells machines apart by their networks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Machine {
    pub(super) compute_capability: u32,
    pub(super) nic: Bandwidth,
    pub(super) nics_per_gpu: f64,
    /// Its ports are InfiniBand's: somebody said so.
    is_infiniband: bool,
    /// A GPU hangs on its CPU by C2C.
    has_c2c: bool,
    /// Its hosts are parts of one.
    is_loopback: bool,
}

impl Machine {
    /// `None` where several hosts are not joined by NICs.
    pub(super) fn of(fabric: &Fabric) -> Option<Self> {
        let gpus = fabric.gpus();
        let capability = gpus.iter().find_map(|&gpu| match &fabric.node(gpu).figures {
            Figures::Gpu(figures) => figures.compute_capability,
            _ => None,
        });
        let first = gpus.first().map(|&gpu| fabric.node(gpu).host);
        if gpus.iter().all(|&gpu| Some(fabric.node(gpu).host) == first) {
            return None;
        }
        let is_network = |kind| matches!(kind, LinkKind::Infiniband | LinkKind::Ethernet);
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
            has_c2c: fabric.links().any(|(_, link)| link.kind == LinkKind::C2c),
            is_loopback: nics.iter().any(|nic| nic.model.as_deref() == Some(LOOPBACK_NIC)),
        })
    }

    /// Whether the network was measured on such a machine, beyond doubt.
    pub(super) fn is_like(&self, network: &MeasuredNetwork) -> bool {
        let may_have_it = match network.transport {
            // Its rate and its number change nothing of what its verbs cost.
            Transport::Infiniband => return self.compute_capability == network.compute_capability,
            Transport::Efa => !self.is_infiniband,
            Transport::Slingshot => self.has_c2c && !self.is_infiniband,
            Transport::Sockets => self.is_loopback,
        };
        may_have_it
            && self.compute_capability == network.compute_capability
            && self.nic == network.nic
            && (self.nics_per_gpu - network.nics_per_gpu).abs() < 1e-6
    }
}
