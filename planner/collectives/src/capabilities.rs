//! Capabilities of a fabric that strategies depend on: hosts, peer access, buffer placement, and in-switch reduction
//! and multicast.

use std::sync::Arc;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::route::{BufferLocation, PeerAccess, Router};
use fabricast_topologies::{Fabric, LinkKind, NodeId, fabric::NodeKind};

use crate::algorithm::mesh;
use crate::bound::InNetwork;
use crate::packing::{Forests, PackingError, TreePacker, TreeVariant};

/// Number of hosts that the ranks occupy: one or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// All ranks share one host.
    One,
    /// Ranks span several hosts.
    Several,
}

/// Links between the ranks of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostLinks {
    /// At least three ranks per host, and every pair of ranks of a host has separate links, which may have failed.
    Pairs,
    /// Switches, PCIe, or links between some pairs only.
    #[default]
    Other,
}

/// Trees packed into the links of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackedTrees {
    /// Trees are assumed to exist. Used for capabilities that do not belong to a fabric.
    Assumed,
    /// Packer of trees into the links of the fabric.
    Packer(Arc<TreePacker>),
    /// No trees are packed, for this reason.
    Unavailable(PackingError),
}

impl Hosts {
    /// Returns the number of hosts, one or several, that `ranks` ranks occupy with `ranks_per_node` ranks per host; 0
    /// ranks per host mean one host.
    #[must_use]
    pub fn from_counts(ranks: u32, ranks_per_node: u32) -> Self {
        if ranks_per_node == 0 || ranks <= ranks_per_node { Self::One } else { Self::Several }
    }
}

/// Reason why multicast is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoMulticast {
    /// Reduction and multicast in switches are disabled.
    #[error("needs reduction and multicast in the switches, which are disabled")]
    SwitchedOff,
    /// Peer access is disabled. Multicast objects are mapped peer memory, so they need peer access.
    #[error("needs peer access, which is disabled")]
    NoPeerAccess,
    /// A rank is not connected to an NVSwitch in both directions.
    #[error("needs an NVSwitch at every rank")]
    NoSwitch,
    /// An NVSwitch only forwards data and cannot reduce or multicast.
    #[error("needs NVSwitches that reduce and multicast, but these only forward data")]
    NoInNetworkOperations,
    /// Ranks share a device, or the NVLink domains are not consecutive ranges of ranks of equal size.
    #[error("needs NVLink domains of equally many ranks, with consecutive numbers and one GPU per rank")]
    UnequalDomains,
}

/// Reason why the switches of the network between hosts do not reduce and multicast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoNetworkReduction {
    /// Reduction and multicast in switches are disabled.
    #[error("needs reduction and multicast in the switches, which are disabled")]
    SwitchedOff,
    /// A switch of the network only forwards data, or no switches connect the hosts.
    #[error("needs a network whose switches reduce and multicast (sharp=true)")]
    NoInNetworkOperations,
}

/// Reason why ranks cannot access the memory of peers on their host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPeerAccess {
    /// Peer access is disabled.
    #[error("needs peer access, which is disabled")]
    SwitchedOff,
    /// A rank is a MIG instance, which has no peer access in either direction.
    #[error("needs peer access, which MIG instances do not have")]
    Mig,
}

/// Error for buffers that are not in the memory of each rank's own device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("needs buffers in the memory of each rank's own GPU")]
pub struct BuffersNotOnDevice;

/// Capabilities of a fabric for a given placement of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricCapabilities {
    /// Number of hosts that the ranks occupy.
    pub hosts: Hosts,
    /// `Ok` if the ranks of a host can access each other's memory.
    pub peer_access: Result<(), NoPeerAccess>,
    /// `Ok` if buffers are in the memory of the ranks' own devices.
    pub buffer_placement: Result<(), BuffersNotOnDevice>,
    /// Number of ranks of each NVLink domain whose switches reduce and multicast. The domains are consecutive ranges of
    /// ranks.
    pub multicast: Result<u32, NoMulticast>,
    /// `Ok` if the switches of the network between hosts reduce and multicast.
    pub network_reduction: Result<(), NoNetworkReduction>,
    /// Total number of ranks.
    pub ranks: u32,
    /// Number of NICs per host; 0 if all ranks are in one NVLink domain.
    pub nics_per_host: u32,
    /// Links between the ranks of a host.
    pub host_links: HostLinks,
    /// Trees packed into the links of the fabric; unavailable until [`Self::with_packer`] provides a packer.
    pub packing: PackedTrees,
}

impl FabricCapabilities {
    /// Determines the capabilities of the ranks on the devices of `placement`.
    #[must_use]
    pub fn new(
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
            InNetwork::Allowed => ranks_per_domain(fabric, placement),
        };
        let network_reduction = match in_network {
            InNetwork::Off => Err(NoNetworkReduction::SwitchedOff),
            InNetwork::Allowed => check_network_reduction(fabric),
        };
        let is_mig = |device: &NodeId| fabric.node(*device).kind == NodeKind::Mig;
        let peer_access = if router.options().p2p == PeerAccess::Off {
            Err(NoPeerAccess::SwitchedOff)
        } else if placement.iter().any(is_mig) {
            Err(NoPeerAccess::Mig)
        } else {
            Ok(())
        };
        let buffer_placement = match router.options().buffers {
            BufferLocation::Device => Ok(()),
            _ => Err(BuffersNotOnDevice),
        };
        Self {
            hosts: Hosts::from_counts(ranks, ranks_per_node),
            peer_access,
            buffer_placement,
            multicast,
            network_reduction,
            ranks,
            nics_per_host: nics_per_host(fabric, router, placement),
            host_links: host_links(fabric, placement, ranks_per_node),
            packing: PackedTrees::Unavailable(PackingError::NotPrepared),
        }
    }

    /// Variant of these capabilities with a packer of trees.
    #[must_use]
    pub fn with_packer(self, packer: Result<TreePacker, PackingError>) -> Self {
        let packing = packer.map_or_else(PackedTrees::Unavailable, |packer| PackedTrees::Packer(Arc::new(packer)));
        Self { packing, ..self }
    }

    /// Returns the packed trees of a collective, which are computed on first use.
    ///
    /// # Errors
    /// Returns [`PackingError`] if there are none.
    pub fn packed_trees(&self, collective: Collective) -> Result<Forests, PackingError> {
        match &self.packing {
            PackedTrees::Packer(packer) => packer.forests(collective),
            PackedTrees::Unavailable(error) => Err(*error),
            PackedTrees::Assumed => Err(PackingError::NotPrepared),
        }
    }

    /// Returns different trees of a collective, the first with the highest throughput; none if there are no trees
    /// ([`TreePacker::family`]). Each variant is packed on first use. `only`: the variant to return; all if `None`.
    pub fn packed_tree_family(
        &self,
        collective: Collective,
        only: Option<TreeVariant>,
    ) -> impl Iterator<Item = Forests> + '_ {
        let packer = match &self.packing {
            PackedTrees::Packer(packer) => Some(packer),
            PackedTrees::Unavailable(_) | PackedTrees::Assumed => None,
        };
        packer.into_iter().flat_map(move |packer| packer.family(collective, only))
    }

    /// Returns the numbers of channels with which connections share links nearly in the ratio of their loads, for the
    /// packed trees of a collective: ascending, one for each kind of trees. Empty if there are no trees.
    #[must_use]
    pub fn packed_tree_channels(&self, collective: Collective) -> Vec<u16> {
        let mut channels: Vec<u16> =
            self.packed_tree_family(collective, None).map(|forests| forests.channels).collect();
        channels.sort_unstable();
        channels.dedup();
        channels
    }

    /// Returns the largest number of channels with which each message of a loop has a stream of its own, for the packed
    /// trees of a collective; `None` if there are no trees.
    #[must_use]
    pub fn parallel_tree_channels(&self, collective: Collective) -> Option<u16> {
        self.packed_tree_family(collective, None).map(|forests| forests.parallel_channels).max()
    }

    /// Checks that there are packed trees of a collective, which are computed on first use.
    pub(crate) fn check_packed_trees(&self, collective: Collective) -> Result<(), PackingError> {
        match &self.packing {
            PackedTrees::Assumed => Ok(()),
            PackedTrees::Packer(_) | PackedTrees::Unavailable(_) => self.packed_trees(collective).map(|_| ()),
        }
    }

    /// Returns the number of rings that together use all links between the ranks of a single host equally; 0 if a
    /// single ring does.
    #[must_use]
    pub fn rings_over_all_links(&self) -> u32 {
        let has_mesh = self.hosts == Hosts::One && self.host_links == HostLinks::Pairs;
        if has_mesh { mesh::ring_count(self.ranks) } else { 0 }
    }

    /// Returns true if all ranks are in one NVLink domain whose switches reduce and multicast.
    #[must_use]
    pub fn is_one_domain(&self) -> bool {
        self.multicast == Ok(self.ranks)
    }

    /// Number of ranks of a multicast team; 0 if multicast is not available.
    #[must_use]
    pub fn ranks_per_team(&self) -> u32 {
        self.multicast.unwrap_or(0)
    }
}

/// Determines the links between the ranks of a host, if they are equal on all hosts. Failed links count as well: rings
/// and paths keep the order of the machine as it was built and take other routes around a failed link, so that a failure
/// cannot give them a faster order.
fn host_links(fabric: &Fabric, placement: &[NodeId], ranks_per_node: u32) -> HostLinks {
    let per_host = if ranks_per_node == 0 { placement.len() } else { ranks_per_node as usize };
    if per_host < 3 || !placement.len().is_multiple_of(per_host) {
        return HostLinks::Other;
    }
    let has_pairs = |host: &[NodeId]| {
        host.iter().enumerate().all(|(index, &device)| {
            let links = fabric.built_links(device);
            let nvlinks = links.filter(|&link| fabric.link(link).kind == LinkKind::Nvlink);
            let neighbours: Vec<NodeId> = nvlinks.map(|link| fabric.ends(link).1).collect();
            host.iter().enumerate().all(|(other, peer)| other == index || neighbours.contains(peer))
        })
    };
    let mut hosts = fabric.gpus().chunk_by(|&one, &other| fabric.node(one).host == fabric.node(other).host);
    let has_mesh = placement.chunks(per_host).all(has_pairs) && hosts.all(has_pairs);
    if has_mesh { HostLinks::Pairs } else { HostLinks::Other }
}

/// Returns the number of NICs of the first rank's host; 0 if all ranks are in one island and need no network.
fn nics_per_host(fabric: &Fabric, router: &Router<'_>, placement: &[NodeId]) -> u32 {
    let Some(&first) = placement.first() else { return 0 };
    let (island, host) = (router.island_of(first), fabric.node(first).host);
    if placement.iter().all(|&device| router.island_of(device) == island) {
        return 0;
    }
    let nics = fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Nic && node.host == host);
    nics.count() as u32
}

/// Checks that hosts are connected by network switches, all of which reduce and multicast.
///
/// # Errors
/// [`NoNetworkReduction::NoInNetworkOperations`].
pub fn check_network_reduction(fabric: &Fabric) -> Result<(), NoNetworkReduction> {
    let mut switches = fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Switch).peekable();
    let has_switches = switches.peek().is_some();
    match has_switches && switches.all(|(_, node)| node.figures.supports_multicast()) {
        true => Ok(()),
        false => Err(NoNetworkReduction::NoInNetworkOperations),
    }
}

/// Returns the number of ranks per NVLink domain. A domain is a maximal range of consecutive ranks attached to the same
/// NVSwitches, each by a link whose two directions both work.
///
/// # Errors
/// [`NoMulticast`] if a rank has no NVSwitch or the domains are unequal.
fn ranks_per_domain(fabric: &Fabric, placement: &[NodeId]) -> Result<u32, NoMulticast> {
    let mut sizes: Vec<u32> = Vec::new();
    let mut before: Vec<NodeId> = Vec::new();
    let mut seen = vec![false; fabric.node_count()];
    for &device in placement {
        let ends = fabric.outgoing_links(device).into_iter().map(|link| fabric.ends(link).1);
        let returns = |switch: NodeId| fabric.outgoing_links(switch).iter().any(|&link| fabric.ends(link).1 == device);
        let mut switches: Vec<NodeId> =
            ends.filter(|&end| fabric.node(end).kind == NodeKind::Nvswitch && returns(end)).collect();
        switches.sort_unstable();
        switches.dedup();
        if switches.is_empty() {
            return Err(NoMulticast::NoSwitch);
        }
        if !switches.iter().all(|&switch| fabric.node(switch).figures.supports_multicast()) {
            return Err(NoMulticast::NoInNetworkOperations);
        }
        if std::mem::replace(&mut seen[device.0 as usize], true) {
            return Err(NoMulticast::UnequalDomains);
        }
        match sizes.last_mut() {
            Some(size) if switches == before => *size += 1,
            _ => {
                if switches.iter().any(|switch| std::mem::replace(&mut seen[switch.0 as usize], true)) {
                    return Err(NoMulticast::UnequalDomains);
                }
                sizes.push(1);
            }
        }
        before = switches;
    }
    match sizes.first() {
        Some(&first) if first > 1 && sizes.iter().all(|&size| size == first) => Ok(first),
        _ => Err(NoMulticast::UnequalDomains),
    }
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::FabricRequest;
    use fabricast_topologies::route::RouteOptions;

    use super::*;

    /// Links between the ranks of a preset with `ranks_per_gpu` ranks on each GPU.
    fn links(preset: &str, gpus: u32, ranks_per_gpu: usize) -> HostLinks {
        let request = FabricRequest { gpus: Some(gpus), ..FabricRequest::new(preset) };
        let Ok(fabric) = fabricast_topologies::load(&request) else { return HostLinks::Other };
        let router = Router::new(&fabric, RouteOptions::default());
        let placement: Vec<NodeId> =
            fabric.gpus().iter().flat_map(|&gpu| std::iter::repeat_n(gpu, ranks_per_gpu)).collect();
        let per_host = placement.len() as u32;
        FabricCapabilities::new(&fabric, &router, &placement, per_host, InNetwork::Allowed).host_links
    }

    #[test]
    fn multicast_needs_both_directions_of_every_link() {
        let fabric = fabricast_topologies::load(&FabricRequest::new("hgx-h200")).unwrap();
        for (failed, expected) in [
            ("nvswitch0->gpu2", Err(NoMulticast::NoSwitch)),
            ("gpu2->nvswitch0", Err(NoMulticast::NoSwitch)),
            ("nic0", Ok(8)),
        ] {
            let fabric = fabric.with_failed(failed).unwrap();
            assert_eq!(ranks_per_domain(&fabric, fabric.gpus()), expected, "{failed}");
        }
    }

    #[test]
    fn only_separate_gpus_with_links_between_all_pairs_are_a_mesh() {
        assert_eq!(links("mi300x", 8, 1), HostLinks::Pairs);
        for (preset, gpus, ranks_per_gpu) in
            [("mi300x", 8, 2), ("mi300x", 1, 4), ("dgx-v100", 8, 1), ("hgx-h100", 8, 1)]
        {
            assert_eq!(links(preset, gpus, ranks_per_gpu), HostLinks::Other, "{preset} {gpus} {ranks_per_gpu}");
        }
    }
}
