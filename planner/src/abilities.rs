//! What a fabric lets strategies do: its hosts, and whether its switches combine and copy.

use fabricast_topologies::route::{BufferPlace, PeerAccess, Router};
use fabricast_topologies::{Fabric, NodeId, fabric::NodeKind};

use crate::bound::InNetwork;

/// How many hosts the ranks are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// One.
    One,
    /// Several.
    Several,
}

impl Hosts {
    /// Of so many ranks, so many a host.
    #[must_use]
    pub fn of(ranks: u32, ranks_per_node: u32) -> Self {
        if ranks_per_node == 0 || ranks <= ranks_per_node { Self::One } else { Self::Several }
    }
}

/// Why there is no multicast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoMulticast {
    /// It was switched off.
    #[error("needs reduction and multicast in the switches, which is switched off")]
    SwitchedOff,
    /// Peer access is off, and multicast objects are peers' memory.
    #[error("needs peer access, which is switched off")]
    NoPeerAccess,
    /// Some rank has no NVSwitch.
    #[error("needs an NVSwitch at every rank")]
    NoSwitch,
    /// The switches only forward.
    #[error("needs NVSwitches that reduce and multicast, which these do not")]
    OnlyForwards,
    /// Ranks share a device, or domains are not equal stretches of ranks.
    #[error("needs NVLink domains of equally many ranks, numbered one after the other, a GPU each")]
    Uneven,
}

/// Why some ranks do not reach the memory of others on their host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPeerAccess {
    /// It was switched off.
    #[error("needs peer access, which is switched off")]
    SwitchedOff,
    /// MIG instances reach nobody's memory, and nobody reaches theirs.
    #[error("needs peer access, which MIG instances do not have")]
    Mig,
}

/// Buffers lie in other memory than that of the ranks' own devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("needs buffers in the memory of each rank's own GPU")]
pub struct BuffersElsewhere;

/// What strategies may use of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Hosts of the ranks.
    pub hosts: Hosts,
    /// Whether ranks of a host read and write each other's memory.
    pub peers: Result<(), NoPeerAccess>,
    /// Whether buffers lie in the memory of the ranks' own devices.
    pub buffers: Result<(), BuffersElsewhere>,
    /// Ranks in each NVLink domain whose switches combine and copy, which are numbered one after the other.
    pub multicast: Result<u32, NoMulticast>,
    /// Ranks in all.
    pub ranks: u32,
    /// NICs of a host; 0 where hosts are not joined by NICs.
    pub nics_per_host: u32,
}

impl Abilities {
    /// Of the ranks placed on these devices.
    #[must_use]
    pub fn of(
        fabric: &Fabric,
        router: &Router<'_>,
        placement: &[NodeId],
        ranks_per_node: u32,
        in_network: InNetwork,
    ) -> Self {
        let ranks = placement.len() as u32;
        let multicast = match in_network {
            InNetwork::Off => Err(NoMulticast::SwitchedOff),
            InNetwork::Allowed if router.options().p2p == PeerAccess::Off => Err(NoMulticast::NoPeerAccess),
            InNetwork::Allowed => domains(fabric, placement),
        };
        let is_mig = |device: &NodeId| fabric.node(*device).kind == NodeKind::Mig;
        let peers = if router.options().p2p == PeerAccess::Off {
            Err(NoPeerAccess::SwitchedOff)
        } else if placement.iter().any(is_mig) {
            Err(NoPeerAccess::Mig)
        } else {
            Ok(())
        };
        let buffers = match router.options().buffers {
            BufferPlace::Device => Ok(()),
            _ => Err(BuffersElsewhere),
        };
        Self {
            hosts: Hosts::of(ranks, ranks_per_node),
            peers,
            buffers,
            multicast,
            ranks,
            nics_per_host: nics_per_host(fabric, router, placement),
        }
    }

    /// Ranks of a multicast team; 0 where there is none.
    #[must_use]
    pub fn ranks_per_team(&self) -> u32 {
        self.multicast.unwrap_or(0)
    }
}

/// NICs of the first rank's host, where the network joins ranks to others.
fn nics_per_host(fabric: &Fabric, router: &Router<'_>, placement: &[NodeId]) -> u32 {
    let Some(&first) = placement.first() else { return 0 };
    let (island, host) = (router.island_of(first), fabric.node(first).host);
    if placement.iter().all(|&device| router.island_of(device) == island) {
        return 0;
    }
    let nics = fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Nic && node.host == host);
    nics.count() as u32
}

/// Ranks of each domain: stretches of ranks that hang on the same NVSwitches.
fn domains(fabric: &Fabric, placement: &[NodeId]) -> Result<u32, NoMulticast> {
    let mut sizes: Vec<u32> = Vec::new();
    let mut before: Vec<NodeId> = Vec::new();
    let mut seen = vec![false; fabric.node_count()];
    for &device in placement {
        let ends = fabric.leaving(device).into_iter().map(|link| fabric.ends(link).1);
        let mut switches: Vec<NodeId> = ends.filter(|&end| fabric.node(end).kind == NodeKind::Nvswitch).collect();
        switches.sort_unstable();
        switches.dedup();
        if switches.is_empty() {
            return Err(NoMulticast::NoSwitch);
        }
        if !switches.iter().all(|&switch| fabric.node(switch).figures.multicasts()) {
            return Err(NoMulticast::OnlyForwards);
        }
        if std::mem::replace(&mut seen[device.0 as usize], true) {
            return Err(NoMulticast::Uneven);
        }
        match sizes.last_mut() {
            Some(size) if switches == before => *size += 1,
            _ => {
                if switches.iter().any(|switch| std::mem::replace(&mut seen[switch.0 as usize], true)) {
                    return Err(NoMulticast::Uneven);
                }
                sizes.push(1);
            }
        }
        before = switches;
    }
    match sizes.first() {
        Some(&first) if first > 1 && sizes.iter().all(|&size| size == first) => Ok(first),
        _ => Err(NoMulticast::Uneven),
    }
}
