//! Common parts of all network topologies: network figures, and links between NICs and switches.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::fabric::{FabricBuilder, Figures, LinkKind, LinkSpec, NodeKind, SwitchFigures};
use crate::network_spec::NetworkSpec;
use crate::read::spec::NETWORK_HOST;
use crate::{Bandwidth, NodeId, Picos};

/// Number of NICs per host if neither preset nor network states it.
pub const DEFAULT_NICS: u32 = 8;
/// Line rate of a NIC in each direction if neither preset nor network states it: 400 Gb/s.
pub const DEFAULT_NIC: Bandwidth = Bandwidth(50_000_000_000);
/// Latency of the NICs at both ends of a path and their cables, if the network does not state it: 1.3 µs (an estimate).
pub const DEFAULT_NIC_LATENCY: Picos = Picos(1_300_000);
/// Latency of one switch and the cable behind it, if the network does not state it: 300 ns (an estimate).
pub const DEFAULT_SWITCH_LATENCY: Picos = Picos(300_000);

/// Figures of a network with the defaults filled in.
///
/// A link has one latency for both directions. The link of a NIC therefore has half of `nic_latency` plus half of
/// `switch_latency`, and a link between switches has `switch_latency`: the latency of a path over *k* switches is
/// `nic_latency + k × switch_latency`.
#[derive(Clone, Debug)]
pub(super) struct NetworkFigures {
    pub spec: NetworkSpec,
    pub nic_latency: Picos,
    pub switch_latency: Picos,
    pub oversubscription: f64,
    pub link: LinkKind,
    /// Number of NICs per host, equal for all hosts.
    pub nics: usize,
    /// Line rates of a host's NICs in each direction, by the index of the NIC on its host.
    pub rates: Vec<Bandwidth>,
}

impl NetworkFigures {
    pub fn new(spec: &NetworkSpec, builder: &mut FabricBuilder, hosts: &[Vec<NodeId>]) -> Result<Self> {
        let first = hosts.first().map_or(&[][..], Vec::as_slice);
        if hosts.iter().any(|nics| nics.len() != first.len()) {
            return Err(Error::Request("the hosts have different numbers of NICs; give nics_per_node".to_owned()));
        }
        let rate = |&nic: &NodeId| match &builder.get(nic).figures {
            Figures::Nic(figures) => figures.speed.unwrap_or(DEFAULT_NIC),
            _ => DEFAULT_NIC,
        };
        let rates: Vec<Bandwidth> = first.iter().map(rate).collect();
        let has_ethernet_port = |&nic: &NodeId| match &builder.get(nic).figures {
            Figures::Nic(figures) => figures.link == Some(LinkKind::Ethernet),
            _ => false,
        };
        let cable = if first.iter().any(has_ethernet_port) { LinkKind::Ethernet } else { LinkKind::Infiniband };
        if rates.is_empty() && !matches!(spec.kind, crate::NetworkKind::Mnnvl) {
            return Err(Error::Request(
                "the hosts have no device to attach a NIC to; give the file NICs or CPUs".to_owned(),
            ));
        }
        let link = spec.link.unwrap_or(cable);
        if spec.sharp == Some(true) && link != LinkKind::Infiniband {
            return Err(Error::Request(
                "sharp: only InfiniBand switches reduce and multicast; the network is Ethernet".to_owned(),
            ));
        }
        let network = Self {
            spec: spec.clone(),
            nic_latency: spec.nic_latency.unwrap_or(DEFAULT_NIC_LATENCY),
            switch_latency: spec.switch_latency.unwrap_or(DEFAULT_SWITCH_LATENCY),
            oversubscription: spec.oversubscription.unwrap_or(1.0),
            link,
            nics: first.len(),
            rates,
        };
        if spec.nic_latency.is_none() || spec.switch_latency.is_none() {
            builder.add_source(format!(
                "Network latencies not given: {} for the NICs at both ends, {} for a switch",
                network.nic_latency, network.switch_latency
            ));
        }
        Ok(network)
    }

    /// Sum of the line rates of a host's NICs, in bytes per second.
    pub fn host_rate(&self) -> u64 {
        self.rates.iter().map(|rate| rate.0).sum()
    }

    /// Adds a network switch with the id `id`.
    ///
    /// # Errors
    /// The id is already in use.
    pub fn switch(&self, builder: &mut FabricBuilder, id: &str) -> Result<NodeId> {
        let host = builder.host(NETWORK_HOST);
        let multicast = self.spec.sharp.filter(|&sharp| sharp);
        let figures = Figures::Switch(Arc::new(SwitchFigures { multicast, ..SwitchFigures::default() }));
        let added = builder.node(id, NodeKind::Switch, host, figures);
        added.ok_or_else(|| Error::Request(format!("two switches would be called `{id}`")))
    }

    /// Links a NIC to a leaf or router; `number` is the index of the NIC on its host.
    pub fn plug(&self, builder: &mut FabricBuilder, nic: NodeId, number: usize, switch: NodeId) {
        let rate = self.rates.get(number).copied().unwrap_or(DEFAULT_NIC);
        let latency = Picos((self.nic_latency.0 + self.switch_latency.0) / 2);
        builder.link(nic, switch, &LinkSpec::symmetric(self.link, rate, latency));
    }

    /// Links two switches at `rate` bytes per second in each direction, clamped to at least 1. The link has as many
    /// lanes as cables of NIC rate are needed.
    pub fn trunk(&self, builder: &mut FabricBuilder, a: NodeId, b: NodeId, rate: u64) {
        let rate = Bandwidth(rate.clamp(1, Bandwidth::MAX.0));
        let port = self.rates.iter().map(|rate| rate.0).max().unwrap_or(1).max(1);
        let lanes = u16::try_from(rate.0.div_ceil(port)).unwrap_or(u16::MAX);
        builder.link(a, b, &LinkSpec::symmetric(self.link, rate, self.switch_latency).lanes(lanes));
    }

    /// Total uplink bandwidth of a switch, in bytes per second: `below`, the sum of its downlinks, divided by the
    /// oversubscription.
    pub fn uplink_bandwidth(&self, below: u64) -> u64 {
        (below as f64 / self.oversubscription).round() as u64
    }
}
