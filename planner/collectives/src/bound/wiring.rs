//! Flow graph: devices of ranks, forwarding devices between them, and the links that routes use.
//!
//! A device with ranks forwards all traffic, since a rank may relay. A switch forwards only the turns that routes make
//! there: traffic from the network through a PCIe switch goes to a GPU, never to another NIC. If all incoming links
//! reach all outgoing links, the switch is one vertex; otherwise each group of incoming links with equal continuations
//! is one. A turn back to a rank's device counts as allowed: it does not change any bound, and a switch with *n* GPUs
//! stays one vertex. In the network every usable link counts, even if no route uses it. Parallel links with the same
//! nominal rate are merged.

use std::collections::BTreeMap;

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{IslandTraffic, Router};
use fabricast_topologies::{Fabric, LinkId, NodeId, NodeKind, Picos};
use rustc_hash::FxHashMap;

use super::crossing::{Crossing, Crossings};
use crate::flow::{self, Arc, UNLIMITED};

/// One or several links between the same vertices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wire {
    pub from: u32,
    pub to: u32,
    /// Kinds of the devices at the two ends.
    pub ends: (NodeKind, NodeKind),
    /// Nominal rate of each link in bytes per second; [`UNLIMITED`] if there is no limit.
    pub nominal: u128,
    /// Total capacity in bytes per second; [`UNLIMITED`] if there is no limit.
    pub capacity: u128,
    pub latency: Picos,
}

/// Flow graph. Its first vertices are the devices of ranks, in the order of their first ranks.
#[derive(Clone, Debug)]
pub(crate) struct Wiring {
    pub vertices: u32,
    /// Device of each vertex.
    pub devices: Vec<NodeId>,
    /// Wires sorted by ends; one per pair of vertices, except for links of different kinds or different nominal rates.
    pub wires: Vec<Wire>,
}

/// Builder of the graph: ends of links as vertices, and the vertices created so far.
struct Builder<'a> {
    fabric: &'a Fabric,
    vertices: u32,
    /// Device of each vertex.
    devices: Vec<NodeId>,
    tail: FxHashMap<LinkId, u32>,
    head: FxHashMap<LinkId, u32>,
    /// Input and output vertex of each device that forwards all traffic. They differ if the total forwarding rate of
    /// the device is limited.
    forwarding_vertices: BTreeMap<NodeId, (u32, u32)>,
    wires: Vec<Wire>,
}

impl Wiring {
    /// Builds the graph of the routes between `devices`. `links`: the result of [`used_links`].
    pub(crate) fn new(
        fabric: &Fabric,
        router: &Router<'_>,
        devices: &[NodeId],
        transits: &[IslandTraffic],
        links: &[LinkId],
    ) -> Self {
        let mut builder = Builder {
            fabric,
            vertices: devices.len() as u32,
            devices: devices.to_vec(),
            tail: FxHashMap::default(),
            head: FxHashMap::default(),
            forwarding_vertices: devices.iter().zip(0..).map(|(&device, vertex)| (device, (vertex, vertex))).collect(),
            wires: Vec::new(),
        };
        for transit in transits {
            builder.add_islands(router, transit);
        }
        for &link in links {
            builder.add_link(link);
        }
        builder.wires.sort_unstable();
        let mut wires: Vec<Wire> = Vec::with_capacity(builder.wires.len());
        for wire in builder.wires {
            match wires.last_mut() {
                Some(last)
                    if (last.from, last.to, last.ends, last.nominal)
                        == (wire.from, wire.to, wire.ends, wire.nominal) =>
                {
                    last.capacity = flow::sum(last.capacity, wire.capacity);
                    last.latency = last.latency.min(wire.latency);
                }
                _ => wires.push(wire),
            }
        }
        Self { vertices: builder.vertices, devices: builder.devices, wires }
    }

    /// Returns the wires as arcs of a flow network.
    pub(super) fn arcs(&self) -> Vec<Arc> {
        self.wires.iter().map(|wire| (wire.from, wire.to, wire.capacity)).collect()
    }
}

/// Returns the directions of links that traffic may use, in ascending order: within islands those of routes, in the
/// network all usable ones.
pub(crate) fn used_links(fabric: &Fabric, router: &Router<'_>, transits: &[IslandTraffic]) -> Vec<LinkId> {
    let mut links = Vec::new();
    for transit in transits {
        for &island in &transit.islands {
            links.extend(transit.links.iter().map(|&number| router.island_link(island, number)));
        }
    }
    let trunks =
        fabric.links().filter(|(_, link)| !link.failed && router.forwards(link.from) && router.forwards(link.to));
    links.extend(trunks.map(|(id, _)| id));
    links.sort_unstable();
    links.dedup();
    links
}

impl Builder<'_> {
    fn vertex(&mut self, device: NodeId) -> u32 {
        self.vertices += 1;
        self.devices.push(device);
        self.vertices - 1
    }

    /// Returns the input and output vertex of a device that forwards all traffic; creates them on first use.
    fn forwarding_vertices(&mut self, device: NodeId) -> (u32, u32) {
        if let Some(&known) = self.forwarding_vertices.get(&device) {
            return known;
        }
        let into = self.vertex(device);
        let limit = capacity(self.fabric, device);
        let pair = match limit {
            None => (into, into),
            Some(capacity) => {
                let out = self.vertex(device);
                let kind = self.fabric.node(device).kind;
                self.wires.push(Wire {
                    from: into,
                    to: out,
                    ends: (kind, kind),
                    nominal: capacity,
                    capacity,
                    latency: Picos::ZERO,
                });
                (into, out)
            }
        };
        self.forwarding_vertices.insert(device, pair);
        pair
    }

    /// Adds the vertices of devices that forward only some turns, for all islands of one kind.
    fn add_islands(&mut self, router: &Router<'_>, transit: &IslandTraffic) {
        let Some(&first) = transit.islands.first() else { return };
        let ends = |number: u32| self.fabric.ends(router.island_link(first, number));
        let forwards_all = |device: NodeId| {
            self.forwarding_vertices.contains_key(&device)
                || router.forwards(device)
                || capacity(self.fabric, device).is_some()
        };
        let crossings = Crossings { transit, ends, forwards_all }.build();
        for &island in &transit.islands {
            for crossing in &crossings {
                self.add_crossing(crossing, |number| router.island_link(island, number));
            }
        }
    }

    fn add_crossing(&mut self, crossing: &Crossing, link: impl Fn(u32) -> LinkId) {
        let first = self.vertices;
        // All links of a crossing enter or leave one device.
        let entered = crossing.into.first().map(|&(number, _)| self.fabric.ends(link(number)).1);
        let device = entered.or_else(|| crossing.out.first().map(|(number, _)| self.fabric.ends(link(*number)).0));
        let Some(device) = device else { return };
        for _ in 0..crossing.groups {
            self.vertex(device);
        }
        for &(number, group) in &crossing.into {
            self.head.insert(link(number), first + group);
        }
        for (number, groups) in &crossing.out {
            let tail = match groups.as_slice() {
                [only] => first + only,
                several => {
                    let tail = self.vertex(device);
                    let ends = (NodeKind::Switch, NodeKind::Switch);
                    let unlimited = |&group: &u32| Wire {
                        from: first + group,
                        to: tail,
                        ends,
                        nominal: UNLIMITED,
                        capacity: UNLIMITED,
                        latency: Picos::ZERO,
                    };
                    self.wires.extend(several.iter().map(unlimited));
                    tail
                }
            };
            self.tail.insert(link(*number), tail);
        }
    }

    fn add_link(&mut self, id: LinkId) {
        let link = self.fabric.link(id);
        let from = match self.tail.get(&id) {
            Some(&tail) => tail,
            None => self.forwarding_vertices(link.from).1,
        };
        let to = match self.head.get(&id) {
            Some(&head) => head,
            None => self.forwarding_vertices(link.to).0,
        };
        let ends = (self.fabric.node(link.from).kind, self.fabric.node(link.to).kind);
        let [capacity, nominal] =
            [link.bandwidth, link.nominal_bandwidth].map(|rate| rate.map_or(UNLIMITED, |bandwidth| bandwidth.0.into()));
        self.wires.push(Wire { from, to, ends, nominal, capacity, latency: link.latency });
    }
}

/// Returns the total forwarding rate of a switch in bytes per second; `None` for other devices, and for switches
/// without a limit.
fn capacity(fabric: &Fabric, device: NodeId) -> Option<u128> {
    match &fabric.node(device).figures {
        Figures::Switch(figures) => figures.capacity.map(|capacity| capacity.0.into()),
        _ => None,
    }
}
