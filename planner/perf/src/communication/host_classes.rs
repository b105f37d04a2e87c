//! Classification of hosts by wiring, so that ranks of one host can represent those of another. Hosts of a class have
//! the same links between the same devices, with the same bandwidth and service state. Destinations outside the host
//! are ignored.

use std::collections::BTreeMap;

use fabricast_topologies::fabric::{HostId, Link, LinkKind};
use fabricast_topologies::{Bandwidth, Fabric, NodeId, Picos};
use rustc_hash::FxHashMap;

/// Direction of a link as seen from a host. Its ends are device indices within the host; `None` for devices outside.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct HostLink {
    ends: [Option<u32>; 2],
    kind: LinkKind,
    lanes: u16,
    bandwidth: Option<Bandwidth>,
    latency: Picos,
    failed: bool,
}

/// Wiring class of each host. Hosts of the same class have equal links between equal devices.
#[derive(Debug, Default)]
pub(crate) struct HostClasses {
    classes: FxHashMap<HostId, u32>,
}

impl HostClasses {
    /// Classifies the hosts of a fabric by their wiring.
    pub(crate) fn new(fabric: &Fabric) -> Self {
        let mut devices: FxHashMap<HostId, u32> = FxHashMap::default();
        let device_indices: Vec<(HostId, u32)> = fabric
            .nodes()
            .map(|(_, node)| {
                let next = devices.entry(node.host).or_default();
                *next += 1;
                (node.host, *next - 1)
            })
            .collect();
        let device_index = |node: NodeId| device_indices.get(node.0 as usize).copied();
        let mut wires: BTreeMap<HostId, Vec<HostLink>> = BTreeMap::new();
        for (_, link) in fabric.links() {
            let ends: [Option<(HostId, u32)>; 2] = [device_index(link.from), device_index(link.to)];
            let [from, to] = ends.map(|end| end.map(|end| end.0));
            // A link inside the host is counted once.
            for host in from.into_iter().chain(to.filter(|_| to != from)) {
                let host_ends = ends.map(|end| end.filter(|end| end.0 == host).map(|end| end.1));
                wires.entry(host).or_default().push(HostLink::new(link, host_ends));
            }
        }
        let mut known: FxHashMap<Vec<HostLink>, u32> = FxHashMap::default();
        let mut class_number = |wires: Vec<HostLink>| {
            let next = known.len() as u32;
            *known.entry(wires).or_insert(next)
        };
        Self { classes: wires.into_iter().map(|(host, wires)| (host, class_number(wires))).collect() }
    }

    /// Returns the number of a host's wiring class; `None` for a host without links.
    pub(crate) fn class(&self, host: HostId) -> Option<u32> {
        self.classes.get(&host).copied()
    }
}

impl HostLink {
    fn new(link: &Link, ends: [Option<u32>; 2]) -> Self {
        let (kind, lanes, bandwidth) = (link.kind, link.lanes, link.bandwidth);
        Self { ends, kind, lanes, bandwidth, latency: link.latency, failed: link.failed }
    }
}
