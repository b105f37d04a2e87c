//! Time of the busiest link under given transfers.

use fabricast_sim::profile::LinkEfficiency;
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{Router, charged_hops};
use fabricast_topologies::{Bandwidth, HostId, LinkKind, NodeId, NodeKind};

use crate::error::ExchangeError;
use crate::ranks::ExchangeRanks;
use crate::traffic::Transfer;

/// Transfers to be routed, with the fractions of nominal link rates that they achieve.
#[derive(Clone, Copy)]
pub(crate) struct LoadRequest<'a> {
    pub router: &'a Router<'a>,
    pub ranks: &'a ExchangeRanks,
    pub links: &'a LinkEfficiency,
    /// Bytes of a copy of a token on the wire.
    pub bytes: f64,
}

/// Load of a network link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NetworkLoad {
    /// Time of the bytes at the achieved rate, in µs.
    pub time_us: f64,
    /// Copies of tokens that the link carries.
    pub copies: f64,
}

impl NetworkLoad {
    /// Returns true if this link is at least as slow as `other` for every cost per copy.
    fn covers(&self, other: &Self) -> bool {
        self.time_us >= other.time_us && self.copies >= other.copies
    }
}

/// Times of the busiest links at their achieved rates, in µs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LinkLoad {
    /// Time of the busiest link on paths inside domains, in µs.
    pub local_us: f64,
    /// Network links on paths between domains that are the slowest at some cost per copy: a single one if all links are
    /// equal.
    network: Vec<NetworkLoad>,
    /// Time of the busiest other link (PCIe) on paths between domains, in µs.
    pub attachment_us: f64,
}

impl LinkLoad {
    /// Load of `factor` times the copies.
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            local_us: self.local_us * factor,
            network: self
                .network
                .into_iter()
                .map(|NetworkLoad { time_us, copies }| NetworkLoad {
                    time_us: time_us * factor,
                    copies: copies * factor,
                })
                .collect(),
            attachment_us: self.attachment_us * factor,
        }
    }

    /// Time of the slowest network link if each copy occupies it for `copy_us` µs in addition to the time of its bytes.
    pub fn network_us(&self, copy_us: f64) -> f64 {
        self.network.iter().map(|load| load.time_us + load.copies * copy_us).fold(0.0, f64::max)
    }

    pub fn add_network(&mut self, load: NetworkLoad) {
        if load.copies > 0.0 && !self.network.iter().any(|other| other.covers(&load)) {
            self.network.retain(|other| !load.covers(other));
            self.network.push(load);
        }
    }
}

/// Copies of tokens that links carry, by link. Copies between ranks without a path over the network are counted by NIC
/// ports of the host.
struct CopyCounts {
    local: Vec<f64>,
    network: Vec<f64>,
    /// Copies that leave a rank without a path, with the rank's device.
    ports: Vec<(NodeId, f64)>,
}

impl LoadRequest<'_> {
    /// Routes the transfers and returns the times of the busiest links; `concurrent` are transfers of other ranks at
    /// the same time. Ranks without a path over the network, such as the GPUs of a host without peer access, use the
    /// ports of the host's NICs equally.
    pub(crate) fn busiest(
        &self,
        transfers: &[Transfer],
        concurrent: &[(&ExchangeRanks, Vec<Transfer>)],
    ) -> Result<LinkLoad, ExchangeError> {
        let fabric = self.router.fabric();
        let links = fabric.link_count();
        let mut counts = CopyCounts { local: vec![0.0; links], network: vec![0.0; links], ports: Vec::new() };
        self.count(self.ranks, transfers, &mut counts)?;
        for (ranks, transfers) in concurrent {
            self.count(ranks, transfers, &mut counts)?;
        }
        let mut busiest = LinkLoad::default();
        for (id, link) in fabric.links() {
            let Some(bandwidth) = link.bandwidth else { continue };
            let copy_us = self.bytes / (bytes_per_us(bandwidth) * self.links.for_kind(link.kind));
            let at = |loads: &[f64]| loads.get(id.0 as usize).copied().unwrap_or_default();
            busiest.local_us = busiest.local_us.max(at(&counts.local) * copy_us);
            let copies = at(&counts.network);
            match link.kind {
                LinkKind::Infiniband | LinkKind::Ethernet => {
                    busiest.add_network(NetworkLoad { time_us: copies * copy_us, copies });
                }
                _ => busiest.attachment_us = busiest.attachment_us.max(copies * copy_us),
            }
        }
        for &(device, copies) in counts.ports.iter().filter(|(_, copies)| *copies > 0.0) {
            if let Some(rate) = self.port_rate(device) {
                let time_us = copies * self.bytes / (rate * self.links.network);
                busiest.add_network(NetworkLoad { time_us, copies });
            }
        }
        Ok(busiest)
    }

    /// Adds the copies of transfers between ranks to the links of their routes.
    fn count(
        &self,
        ranks: &ExchangeRanks,
        transfers: &[Transfer],
        counts: &mut CopyCounts,
    ) -> Result<(), ExchangeError> {
        let fabric = self.router.fabric();
        let mut ports = vec![0.0f64; ranks.devices().len()];
        let (mut hops, mut replaced) = (Vec::new(), Vec::new());
        for &Transfer { from, to, copies } in transfers {
            let device = |rank: u32| ranks.devices().get(rank as usize).copied();
            let (Some(source), Some(target)) = (device(from), device(to)) else { continue };
            let is_local = ranks.domain(from) == ranks.domain(to);
            if !is_local && fabric.node(source).host == fabric.node(target).host {
                if let Some(port) = ports.get_mut(from as usize) {
                    *port += copies;
                }
                continue;
            }
            hops.clear();
            replaced.clear();
            self.router.route_and_replaced(None, source, target, 0, &mut hops, &mut replaced)?;
            let loads = if is_local { &mut counts.local } else { &mut counts.network };
            for hop in charged_hops(&hops, &replaced) {
                if let Some(load) = loads.get_mut(hop.link.0 as usize) {
                    *load += copies * hop.share.fraction();
                }
            }
        }
        counts.ports.extend(ranks.devices().iter().copied().zip(ports));
        Ok(())
    }

    /// Part of the host's NIC ports for a device, in bytes per µs; `None` if the host has no NIC with a known rate.
    fn port_rate(&self, device: NodeId) -> Option<f64> {
        let fabric = self.router.fabric();
        let host = fabric.node(device).host;
        let sharing = self.ranks.devices().iter().filter(|&&other| fabric.node(other).host == host).count();
        let rate = network_port_rate(self.router, |other| other == host);
        (rate > 0.0).then(|| rate / sharing.max(1) as f64)
    }
}

/// Rate in bytes per µs.
pub(crate) fn bytes_per_us(rate: Bandwidth) -> f64 {
    rate.0 as f64 / 1e6
}

/// Sum of the rates of all NIC ports to the network on some hosts, in bytes per µs. NICs without a link to the network,
/// such as those of a single host, count with their line rate.
pub(crate) fn network_port_rate(router: &Router<'_>, is_included: impl Fn(HostId) -> bool) -> f64 {
    let fabric = router.fabric();
    let is_network = |kind: LinkKind| matches!(kind, LinkKind::Infiniband | LinkKind::Ethernet);
    let sum = |rates: &mut dyn Iterator<Item = Bandwidth>| rates.map(bytes_per_us).sum::<f64>();
    let is_included = &is_included;
    let nics = || fabric.nodes().filter(move |(_, node)| node.kind == NodeKind::Nic && is_included(node.host));
    let cables = sum(&mut nics().flat_map(|(nic, _)| fabric.outgoing_links(nic)).filter_map(|link| {
        let link = fabric.link(link);
        if is_network(link.kind) { link.bandwidth } else { None }
    }));
    let speed = |figures: &Figures| if let Figures::Nic(nic) = figures { nic.speed } else { None };
    if cables > 0.0 { cables } else { sum(&mut nics().filter_map(|(_, node)| speed(&node.figures))) }
}
