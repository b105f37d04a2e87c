//! What all networks have in common: their figures, and how NICs and switches are joined.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::fabric::{FabricBuilder, Figures, LinkKind, LinkSpec, NodeKind};
use crate::network_spec::NetworkSpec;
use crate::read::spec::NETWORK_HOST;
use crate::{Bandwidth, NodeId, Picos};

/// NICs of a host where neither preset nor network says.
pub const DEFAULT_NICS: u32 = 8;
/// Line rate of a NIC where neither preset nor network says: 400 Gb/s.
pub const DEFAULT_NIC: Bandwidth = Bandwidth(50_000_000_000);
/// Latency of the NICs at both ends of a path and their cables, where the network does not say.
pub const DEFAULT_NIC_LATENCY: Picos = Picos(1_300_000);
/// Latency of one switch and the cable behind it, where the network does not say.
pub const DEFAULT_SWITCH_LATENCY: Picos = Picos(300_000);

/// The figures of a network, defaults filled in.
///
/// Links have one latency for both directions, so that a NIC's link carries half of `nic_latency` and half of a
/// switch, and a link between switches one switch: a path over *k* switches takes `nic_latency + k × switch_latency`.
#[derive(Clone, Debug)]
pub(super) struct Network {
    pub spec: NetworkSpec,
    pub nic_latency: Picos,
    pub switch_latency: Picos,
    pub oversubscription: f64,
    pub link: LinkKind,
    /// NICs of a host; all hosts have as many.
    pub nics: usize,
    /// Line rate of each NIC of a host.
    pub rates: Vec<Bandwidth>,
}

impl Network {
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
        if rates.is_empty() && !matches!(spec.kind, crate::NetworkKind::Mnnvl) {
            return Err(Error::Request("the hosts have no place for a NIC; give the file NICs or CPUs".to_owned()));
        }
        let network = Self {
            spec: spec.clone(),
            nic_latency: spec.nic_latency.unwrap_or(DEFAULT_NIC_LATENCY),
            switch_latency: spec.switch_latency.unwrap_or(DEFAULT_SWITCH_LATENCY),
            oversubscription: spec.oversubscription.unwrap_or(1.0),
            link: spec.link.unwrap_or(LinkKind::Infiniband),
            nics: first.len(),
            rates,
        };
        if spec.nic_latency.is_none() || spec.switch_latency.is_none() {
            builder.source(format!(
                "Network latencies not given: {} for the NICs at both ends, {} for a switch",
                network.nic_latency, network.switch_latency
            ));
        }
        Ok(network)
    }

    /// All NICs of a host together.
    pub fn host_rate(&self) -> u64 {
        self.rates.iter().map(|rate| rate.0).sum()
    }

    /// Adds a switch.
    pub fn switch(&self, builder: &mut FabricBuilder, id: &str) -> Result<NodeId> {
        let host = builder.host(NETWORK_HOST);
        let figures = Figures::Switch(Arc::default());
        let added = builder.node(id, NodeKind::Switch, host, figures);
        added.ok_or_else(|| Error::Request(format!("two switches would be called `{id}`")))
    }

    /// Plugs NIC number `number` of a host into a switch.
    pub fn plug(&self, builder: &mut FabricBuilder, nic: NodeId, number: usize, switch: NodeId) {
        let rate = self.rates.get(number).copied().unwrap_or(DEFAULT_NIC);
        let latency = Picos((self.nic_latency.0 + self.switch_latency.0) / 2);
        builder.link(nic, switch, &LinkSpec::symmetric(self.link, rate, latency));
    }

    /// Joins two switches; `rate` in bytes per second is cut to at least 1.
    pub fn trunk(&self, builder: &mut FabricBuilder, a: NodeId, b: NodeId, rate: u64) {
        let rate = Bandwidth(rate.clamp(1, Bandwidth::MAX.0));
        let port = self.rates.iter().map(|rate| rate.0).max().unwrap_or(1).max(1);
        let lanes = u16::try_from(rate.0.div_ceil(port)).unwrap_or(u16::MAX);
        builder.link(a, b, &LinkSpec::symmetric(self.link, rate, self.switch_latency).lanes(lanes));
    }

    /// Bandwidth above a switch with this bandwidth below it.
    pub fn above(&self, below: u64) -> u64 {
        (below as f64 / self.oversubscription).round() as u64
    }
}
