//! Properties of a node that NCCL's search uses: paths between its GPUs, and its NICs.
//!
//! Link loads of a ring through all GPUs are computed once, for an order in which each GPU is followed by the nearest
//! GPU not yet visited. In a tree of PCIe switches and on NVSwitches, no other order has lower loads.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{Participants, PathClass, Router};
use fabricast_topologies::{Fabric, LinkId, LinkKind, NodeId, NodeKind};
use rustc_hash::FxHashMap;

use super::super::communicator::Cpu;
use super::SearchNotModelled;
use super::speeds;

/// Load of one channel of 1 GB/s on a link, and the link's capacity, both in GB/s.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub used: f64,
    pub capacity: f64,
}

/// NIC of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct NodeNic {
    /// Bandwidth of the path from the nearest GPU to the network, GB/s.
    pub bandwidth: f64,
    /// Path class between the NIC and its nearest GPU.
    pub nearest: PathClass,
    /// Path class between the NIC and its second nearest GPU, through a peer if that path is nearer. A ring leaves the
    /// node from this GPU.
    pub second: PathClass,
}

/// Properties of a node that determine the result of NCCL's search.
#[derive(Clone, Debug)]
pub(super) struct NodeProperties {
    pub gpus: u32,
    pub capability: (u32, u32),
    pub cpu: Cpu,
    /// Link loads of a ring through the GPUs, first without its last hop (a chain), then with it.
    pub chain: Vec<Load>,
    pub ring: Vec<Load>,
    /// Path class of the most distant hop of the ring.
    pub class: PathClass,
    /// Maximum bandwidth between two GPUs, GB/s.
    pub max_pair_bandwidth: f64,
    /// Maximum rate at which a GPU can send, GB/s: its PCIe link or the sum of its NVLinks.
    pub total: f64,
    /// Bandwidth of a GPU's NVLinks to switches that reduce and multicast, GB/s; 0 without such switches.
    pub switch_bandwidth: f64,
    /// Number of NVLinks of each GPU if all hops are on NVLink, otherwise 0.
    pub nvlinks: u16,
    pub nics: Vec<NodeNic>,
    pub paths: InsidePaths,
}

/// Use of equal or different links by the channels inside a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InsidePaths {
    /// All channels use the same links.
    Same,
    /// Channels may use different links, because NVLinks connect GPUs without switches.
    Differ,
}

impl NodeProperties {
    /// Determines the properties of a node from its GPUs, in rank order, and NICs.
    ///
    /// # Errors
    /// NCCL's search is not modelled for this node, for example because two GPUs have no route.
    pub fn new(
        fabric: &Fabric,
        router: &Router<'_>,
        gpus: &[NodeId],
        nics: &[NodeId],
    ) -> Result<Self, SearchNotModelled> {
        let capabilities = gpus.iter().map(|&gpu| capability(fabric, gpu)).collect::<Result<Vec<u32>, _>>()?;
        let min_capability = capabilities.iter().copied().min().unwrap_or(0);
        let max_capability = capabilities.iter().copied().max().unwrap_or(0);
        let cpu = find_cpu(fabric, router, gpus);
        let participants = Participants::new(gpus);
        let mut walk = Walk {
            fabric,
            router,
            participants: &participants,
            cpu,
            capability: min_capability,
            loads: FxHashMap::default(),
            class: PathClass::Loc,
            max_pair_bandwidth: 0.0,
        };
        let order = nearest_first(router, &participants, gpus)?;
        for pair in order.windows(2) {
            walk.hop(pair[0], pair[1])?;
        }
        let chain = walk.loads();
        if let (true, Some(&first), Some(&last)) = (order.len() > 1, order.first(), order.last()) {
            walk.hop(last, first)?;
        }
        let lane_count = |&gpu: &NodeId| {
            nvlinks(fabric, gpu).map(|link| speeds::lanes(fabric, link, min_capability)).sum::<f64>() as u16
        };
        let on_nvlink = gpus.len() > 1 && walk.class == PathClass::Nvl;
        let ports = gpus.iter().map(|&gpu| port(fabric, gpu, min_capability)).fold(f64::INFINITY, f64::min);
        let switched =
            gpus.iter().map(|&gpu| multicast_port(fabric, gpu, min_capability)).fold(f64::INFINITY, f64::min);
        Ok(Self {
            gpus: gpus.len() as u32,
            capability: (min_capability, max_capability),
            cpu,
            chain,
            ring: walk.loads(),
            class: walk.class,
            max_pair_bandwidth: walk.max_pair_bandwidth,
            // For a single GPU, NCCL uses the bandwidth of local memory (`LOC_BW`, 5000 GB/s, src/graph/topo.h).
            total: if gpus.len() > 1 { ports } else { 5000.0 },
            switch_bandwidth: if gpus.len() > 1 && min_capability >= 90 && switched.is_finite() {
                switched
            } else {
                0.0
            },
            nvlinks: if on_nvlink { gpus.iter().map(lane_count).min().unwrap_or(0) } else { 0 },
            nics: merge_nics(
                nics_per_gpu(fabric, router, nics),
                nics.iter().filter_map(|&nic| node_nic(fabric, router, gpus, nic, min_capability)),
            ),
            paths: if has_mesh(fabric, gpus) { InsidePaths::Differ } else { InsidePaths::Same },
        })
    }
}

pub(super) fn capability(fabric: &Fabric, gpu: NodeId) -> Result<u32, SearchNotModelled> {
    let node = fabric.node(gpu);
    match (node.kind, &node.figures) {
        (NodeKind::Mig, _) => Err(SearchNotModelled::Mig),
        (NodeKind::Gpu, Figures::Gpu(figures)) => match figures.compute_capability {
            // Values above 299 are gfx numbers of AMD GPUs.
            Some(capability @ 1..=299) => Ok(capability),
            Some(_) => Err(SearchNotModelled::NotNvidia),
            None => Err(SearchNotModelled::UnknownGpu),
        },
        (NodeKind::Gpu, _) => Err(SearchNotModelled::UnknownGpu),
        _ => Err(SearchNotModelled::NotNvidia),
    }
}

/// Returns true if GPUs are connected by NVLink without switches, other than in pairs. The channels of a ring then use
/// different paths.
fn has_mesh(fabric: &Fabric, gpus: &[NodeId]) -> bool {
    gpus.len() > 2
        && gpus.iter().any(|&gpu| {
            let peers =
                nvlinks(fabric, gpu).map(|link| fabric.ends(link).1).filter(|&end| fabric.node(end).kind.is_rank());
            let mut peers: Vec<NodeId> = peers.filter(|peer| gpus.contains(peer)).collect();
            peers.sort_unstable();
            peers.dedup();
            peers.len() > 1
        })
}

fn nvlinks(fabric: &Fabric, gpu: NodeId) -> impl Iterator<Item = LinkId> + use<'_> {
    fabric.outgoing_links(gpu).into_iter().filter(|&link| fabric.link(link).kind == LinkKind::Nvlink)
}

fn total_bandwidth(fabric: &Fabric, links: impl Iterator<Item = LinkId>, capability: u32) -> f64 {
    links.map(|link| speeds::link(fabric, link, capability)).sum()
}

/// Maximum rate at which a GPU can send, GB/s: the sum of its NVLinks, or PCIe.
fn port(fabric: &Fabric, gpu: NodeId, capability: u32) -> f64 {
    let nvlink = total_bandwidth(fabric, nvlinks(fabric, gpu), capability);
    let pcie = fabric.outgoing_links(gpu).into_iter().filter(|&link| fabric.link(link).kind == LinkKind::Pcie);
    nvlink.max(total_bandwidth(fabric, pcie, capability))
}

fn multicast_port(fabric: &Fabric, gpu: NodeId, capability: u32) -> f64 {
    let multicasts = |link: &LinkId| fabric.node(fabric.ends(*link).1).figures.supports_multicast();
    total_bandwidth(fabric, nvlinks(fabric, gpu).filter(multicasts), capability)
}

fn find_cpu(fabric: &Fabric, router: &Router<'_>, gpus: &[NodeId]) -> Cpu {
    use fabricast_topologies::fabric::CpuArch;
    let Some(&gpu) = gpus.first() else { return Cpu::Other };
    let island = router.island_of(gpu);
    let cpus = fabric.nodes().filter(|&(id, node)| node.kind == NodeKind::Cpu && router.island_of(id) == island);
    let mut makers = cpus.filter_map(|(id, _)| speeds::cpu(fabric, id)).map(|figures| {
        match (figures.arch, figures.vendor.as_deref()) {
            (Some(CpuArch::Power), _) => Cpu::Power,
            (Some(CpuArch::Arm), _) => Cpu::Other,
            (_, Some("GenuineIntel")) => Cpu::Intel,
            (_, Some("AuthenticAMD")) => Cpu::Amd,
            _ => Cpu::Other,
        }
    });
    let Some(first) = makers.next() else { return Cpu::Other };
    // A mixture of vendors is treated as AMD.
    if makers.all(|cpu| cpu == first) { first } else { Cpu::Amd }
}

/// Returns the GPUs in an order in which each one is followed by its nearest unvisited neighbour, beginning with the
/// first. Of equally near neighbours, the one with the lower rank comes first.
fn nearest_first(
    router: &Router<'_>,
    participants: &Participants,
    gpus: &[NodeId],
) -> Result<Vec<NodeId>, SearchNotModelled> {
    let mut remaining: Vec<NodeId> = gpus.to_vec();
    let mut order = Vec::with_capacity(gpus.len());
    let mut current = match remaining.first() {
        Some(&first) => first,
        None => return Ok(order),
    };
    remaining.remove(0);
    order.push(current);
    while !remaining.is_empty() {
        let mut best: Option<(PathClass, usize)> = None;
        for (index, &gpu) in remaining.iter().enumerate() {
            let class =
                router.path_for_participants(participants, current, gpu).map_err(|_| SearchNotModelled::NoPath)?.class;
            if best.is_none_or(|(known, _)| class < known) {
                best = Some((class, index));
            }
            // NVLink is the nearest class, so the search for a nearer GPU ends.
            if class <= PathClass::Nvl {
                break;
            }
        }
        current = remaining.remove(best.map_or(0, |(_, index)| index));
        order.push(current);
    }
    Ok(order)
}

/// Accumulator of the link loads of a sequence of GPU-to-GPU hops.
struct Walk<'a, 'f> {
    fabric: &'a Fabric,
    router: &'a Router<'f>,
    participants: &'a Participants,
    cpu: Cpu,
    capability: u32,
    loads: FxHashMap<LinkId, f64>,
    class: PathClass,
    max_pair_bandwidth: f64,
}

impl Walk<'_, '_> {
    fn hop(&mut self, from: NodeId, to: NodeId) -> Result<(), SearchNotModelled> {
        let path =
            self.router.path_for_participants(self.participants, from, to).map_err(|_| SearchNotModelled::NoPath)?;
        self.class = self.class.max(path.class);
        // Peer traffic through an Intel CPU uses 20 % more of PCIe (INTEL_P2P_OVERHEAD, src/graph/topo.h).
        let has_overhead = path.class == PathClass::Phb && self.cpu == Cpu::Intel;
        let mut narrowest = f64::INFINITY;
        for hop in &path.hops {
            let factor = if has_overhead && self.fabric.link(hop.link).kind == LinkKind::Pcie { 1.2 } else { 1.0 };
            *self.loads.entry(hop.link).or_default() += factor * hop.share.fraction();
            narrowest = narrowest.min(speeds::link(self.fabric, hop.link, self.capability) / hop.share.fraction());
        }
        self.max_pair_bandwidth = self.max_pair_bandwidth.max(narrowest);
        Ok(())
    }

    fn loads(&self) -> Vec<Load> {
        let mut links: Vec<(LinkId, f64)> = self.loads.iter().map(|(&link, &used)| (link, used)).collect();
        links.sort_unstable_by_key(|&(link, _)| link);
        let capacity = |link| speeds::link(self.fabric, link, self.capability);
        links.into_iter().map(|(link, used)| Load { used, capacity: capacity(link) }).collect()
    }
}

/// NIC with the device to which it is attached and the bandwidth of the path to that device, GB/s.
struct NicAttachment {
    nic: NodeNic,
    device: Option<NodeId>,
    path_bandwidth: f64,
}

/// Merges NICs if a host has a multiple of its GPUs' number. NCCL sees the ports of a card, or the NICs of a GPU, as one
/// NIC with the bandwidth of their common path: InfiniBand and RoCE merge the ports of a card (NCCL 2.30.7
/// src/transport/net_ib/init.cc, `NCCL_IB_MERGE_NICS`; src/graph/topo.cc, `NCCL_NET_MERGE_LEVEL`), aws-ofi-nccl the
/// NICs next to a GPU (src/nccl_ofi_topo.c, `nccl_ofi_topo_group`: four on p5). A switch with several GPUs, as on
/// HGX A100, has one merged NIC for each of them. `per_gpu` is the number of NICs of the host for each of its GPUs.
fn merge_nics(per_gpu: usize, nics: impl Iterator<Item = NicAttachment>) -> Vec<NodeNic> {
    let mut groups: Vec<(NicAttachment, usize)> = Vec::new();
    for attached in nics {
        let is_partner = |(group, size): &(NicAttachment, usize)| {
            *size < per_gpu && group.device.is_some() && group.device == attached.device
        };
        match groups.iter_mut().find(|group| is_partner(group)) {
            Some((group, size)) => {
                group.nic.bandwidth = (group.nic.bandwidth + attached.nic.bandwidth).min(group.path_bandwidth);
                *size += 1;
            }
            None => groups.push((attached, 1)),
        }
    }
    groups.into_iter().map(|(attached, _)| attached.nic).collect()
}

/// Number of NICs for each GPU of the hosts that `nics` belong to, at least 1; GPUs outside the communicator count.
fn nics_per_gpu(fabric: &Fabric, router: &Router<'_>, nics: &[NodeId]) -> usize {
    let Some(&first) = nics.first() else { return 1 };
    let island = router.island_of(first);
    let gpus = fabric.nodes().filter(|&(id, node)| node.kind == NodeKind::Gpu && router.island_of(id) == island);
    (nics.len() / gpus.count().max(1)).max(1)
}

/// Determines a NIC's properties from the paths between the GPUs and the NIC; `None` if there is no path.
fn node_nic(
    fabric: &Fabric,
    router: &Router<'_>,
    gpus: &[NodeId],
    nic: NodeId,
    capability: u32,
) -> Option<NicAttachment> {
    let mut paths: Vec<(PathClass, f64)> = Vec::new();
    for &gpu in gpus {
        let Ok(path) = router.path(gpu, nic) else { continue };
        let links = path.hops.iter().map(|hop| speeds::link(fabric, hop.link, capability));
        paths.push((path.class, links.fold(f64::INFINITY, f64::min)));
    }
    paths.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
    let &(nearest, bandwidth) = paths.first()?;
    // An NVLink neighbour relays to the NIC (PXN) if its own path to the NIC passes no CPU.
    let relays = nearest <= PathClass::P2c && gpus.iter().all(|&gpu| nvlinks(fabric, gpu).next().is_some());
    let farther = paths.get(1).map_or(nearest, |&(class, _)| class);
    let second = if relays { farther.min(PathClass::Pxn) } else { farther };
    let is_pcie = |link: &LinkId| fabric.link(*link).kind == LinkKind::Pcie;
    let to = fabric.outgoing_links(nic).into_iter().find(is_pcie).map(|link| fabric.ends(link).1);
    let nic = NodeNic { bandwidth: bandwidth.min(speeds::nic(fabric, nic)), nearest, second };
    Some(NicAttachment { nic, device: to, path_bandwidth: bandwidth })
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::route::RouteOptions;
    use fabricast_topologies::{FabricRequest, load};

    use super::*;

    /// Returns the bandwidths in GB/s of the NICs that NCCL sees on the first of two hosts.
    fn nics(preset: &str, gpus: u32, network: &str) -> Vec<f64> {
        let network = Some(network.parse().unwrap());
        let request = FabricRequest { nodes: Some(2), gpus: Some(gpus), network, ..FabricRequest::new(preset) };
        let fabric = load(&request).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let host = fabric.node(fabric.gpus()[0]).host;
        let is_nic = |node: &fabricast_topologies::Node| node.host == host && node.kind == NodeKind::Nic;
        let nics: Vec<NodeId> = fabric.nodes().filter(|(_, node)| is_nic(node)).map(|(id, _)| id).collect();
        let properties = NodeProperties::new(&fabric, &router, &fabric.gpus()[..gpus as usize], &nics).unwrap();
        properties.nics.iter().map(|nic| nic.bandwidth).collect()
    }

    #[test]
    fn ports_and_nics_of_a_gpu_count_as_one_nic() {
        assert_eq!(nics("hgx-h100", 8, "rail,nics_per_node=8,nic=400Gb/s"), [48.0; 8]);
        // Two ports of 200 Gb/s, four EFA NICs of 100 Gb/s (p5); two of 400 Gb/s share the PCIe link of 48 GB/s.
        assert_eq!(nics("hgx-h100", 8, "rail,nics_per_node=16,nic=200Gb/s"), [48.0; 8]);
        assert_eq!(nics("hgx-h100", 8, "rail,nics_per_node=32,nic=100Gb/s"), [48.0; 8]);
        assert_eq!(nics("hgx-h100", 8, "rail,nics_per_node=16,nic=400Gb/s"), [48.0; 8]);
        assert_eq!(nics("hgx-h100", 8, "rail,nics_per_node=16,nic=100Gb/s"), [25.0; 8]);
        // Four NICs on a switch of two GPUs (OCI's A100) are two merged NICs.
        assert_eq!(nics("dgx-a100", 8, "rail,nics_per_node=16,nic=100Gb/s"), [24.0; 8]);
        // Three NICs on every other switch: NICs of different switches do not merge.
        assert_eq!(nics("hgx-h100", 8, "rail,nics_per_node=20,nic=100Gb/s"), [25.0, 12.5, 25.0].repeat(4));
        // With a NIC for each GPU of the host, or fewer, none are merged.
        assert_eq!(nics("dgx-a100", 8, "rail,nics_per_node=8,nic=100Gb/s"), [12.5; 8]);
        assert_eq!(nics("hgx-h100", 8, "rail,nics_per_node=4,nic=400Gb/s"), [48.0; 4]);
        // Two GPUs in use reach half of the NICs through the other CPU.
        let half = [[48.0; 4], [22.0; 4]].concat();
        assert_eq!(nics("hgx-h100", 2, "rail,nics_per_node=8,nic=400Gb/s"), half);
    }
}
