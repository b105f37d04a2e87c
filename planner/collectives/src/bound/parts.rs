//! Distinguished sets of ranks: each device, each host, each NVLink rack, and the hosts under each switch.
//!
//! All traffic across the boundary of such a set uses the links there. Sets of one level are disjoint and contain all
//! ranks, so that their traffic can also be added up.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{IslandTraffic, Router};
use fabricast_topologies::{Fabric, LinkId, NodeId, Picos};
use rustc_hash::{FxHashMap, FxHashSet};

use super::cut::Direction;
use super::source::BoundSource;
use crate::flow::{self, UNLIMITED};
use crate::union_find::{join, root};

/// Capacity and latency across the boundary of a set in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BoundaryCapacity {
    /// Capacity in bytes per second; [`UNLIMITED`] if nothing limits it.
    pub through: u128,
    /// Latency of the shortest route across the boundary, or a lower bound on it.
    pub nearest: Picos,
}

/// Set of ranks, with the capacity of its boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RankSet {
    pub into: BoundaryCapacity,
    pub out: BoundaryCapacity,
    /// Number of ranks in the set.
    pub ranks: u32,
    pub has_root: bool,
    /// Number of ranks in the set whose next rank is outside the set.
    pub next_outside: u32,
    /// Total read and write bandwidth of the memory in bytes per second, if the set is a single device and its
    /// bandwidth is known.
    pub memory: Option<u128>,
}

impl RankSet {
    /// Returns the boundary capacity for bytes that leave the set, or for bytes that enter it.
    pub(super) fn boundary_mut(&mut self, direction: Direction) -> &mut BoundaryCapacity {
        match direction {
            Direction::Away => &mut self.out,
            Direction::Towards => &mut self.into,
        }
    }

    /// Returns the boundary capacity for a search in this direction that starts inside or outside the set.
    pub(super) fn boundary(&self, direction: Direction, start: Start) -> BoundaryCapacity {
        match (direction, start) {
            (Direction::Away, Start::Inside) | (Direction::Towards, Start::Outside) => self.out,
            (Direction::Away, Start::Outside) | (Direction::Towards, Start::Inside) => self.into,
        }
    }
}

/// Location of a search's start relative to a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Inside,
    Outside,
}

/// Disjoint sets that contain all ranks.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub source: BoundSource,
    pub parts: Vec<RankSet>,
    /// Index of each rank's set in `parts`, by rank.
    pub part_of_rank: Vec<u32>,
    /// Presence of switches that reduce or multicast between the sets.
    pub switches_between: SwitchesBetween,
    /// Maximum total rate into all sets in bytes per second, which is less than the sum of their capacities if sets
    /// share links to the network; [`UNLIMITED`] if there is no limit.
    pub into: u128,
    /// Maximum total rate out of all sets in bytes per second.
    pub out: u128,
}

/// Presence of switches that reduce or multicast between the sets of a level, as opposed to inside a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SwitchesBetween {
    /// No such switch exists: only ranks, and switches inside the sets, reduce.
    None,
    /// At least one such switch exists.
    Some,
}

/// Input from which all levels are derived.
pub(super) struct PartsInput<'a> {
    pub fabric: &'a Fabric,
    pub router: &'a Router<'a>,
    /// Device of each rank, indexed by rank.
    pub placement: &'a [NodeId],
    pub transits: &'a [IslandTraffic],
    /// Directions of links that traffic may use.
    pub links: &'a [LinkId],
    pub root: u32,
}

/// Placeholder for a missing set number.
const NONE: u32 = u32::MAX;

impl PartsInput<'_> {
    /// Returns the levels of devices, hosts, islands and switch groups. A level that is not coarser than the previous
    /// one is omitted.
    pub(super) fn levels(&self) -> Vec<Level> {
        let nodes = || (0..self.fabric.node_count() as u32).map(NodeId);
        let shortest = |latency: fn(&IslandTraffic) -> Option<Picos>| self.transits.iter().filter_map(latency).min();
        let within = shortest(|transit| transit.host_latency);
        let hosts = shortest(|transit| transit.inter_host_latency);
        let islands = shortest(|transit| transit.network_latency);
        let nearest = |latencies: &[Option<Picos>]| latencies.iter().copied().flatten().min().unwrap_or(Picos::ZERO);

        let mut levels = Vec::new();
        let device: Vec<u32> = nodes().map(|node| node.0).collect();
        self.add_level(&mut levels, BoundSource::RankPorts, &device, nearest(&[within, hosts, islands]));
        let host: Vec<u32> = nodes().map(|node| self.fabric.node(node).host.0).collect();
        self.add_level(&mut levels, BoundSource::HostPorts, &host, nearest(&[hosts, islands]));
        let island: Vec<u32> = nodes().map(|node| self.router.island_of(node)).collect();
        self.add_level(&mut levels, BoundSource::RackPorts, &island, nearest(&[islands]));
        for groups in self.switch_groups() {
            self.add_level(&mut levels, BoundSource::SwitchPorts, &groups, nearest(&[islands]));
        }
        levels
    }

    /// Adds a level with one set per vertex label that has ranks, unless the level equals the previous one or has a
    /// single set.
    fn add_level(&self, levels: &mut Vec<Level>, source: BoundSource, label: &[u32], nearest: Picos) {
        let mut number = vec![NONE; label.len().max(1 + label.iter().map(|&l| l as usize).max().unwrap_or(0))];
        let mut parts: Vec<RankSet> = Vec::new();
        let boundary = BoundaryCapacity { through: 0, nearest };
        let part_of_rank: Vec<u32> = self
            .placement
            .iter()
            .map(|device| {
                let slot = &mut number[label[device.0 as usize] as usize];
                if *slot == NONE {
                    *slot = parts.len() as u32;
                    parts.push(RankSet { into: boundary, out: boundary, ..RankSet::default() });
                }
                *slot
            })
            .collect();
        if parts.len() < 2 || levels.last().is_some_and(|finer| finer.parts.len() == parts.len()) {
            return;
        }
        for (rank, &part) in part_of_rank.iter().enumerate() {
            let next = part_of_rank[(rank + 1) % part_of_rank.len()];
            let set = &mut parts[part as usize];
            set.ranks += 1;
            set.has_root |= rank as u32 == self.root;
            set.next_outside += u32::from(next != part);
            if source == BoundSource::RankPorts {
                set.memory = memory(self.fabric, self.placement[rank]);
            }
        }
        let part = |node: NodeId| number[label[node.0 as usize] as usize];
        for &id in self.links {
            let link = self.fabric.link(id);
            let (from, to) = (part(link.from), part(link.to));
            if from == to {
                continue;
            }
            let capacity = self.capacity([id]);
            if let Some(set) = parts.get_mut(from as usize) {
                set.out.through = flow::sum(set.out.through, capacity);
            }
            if let Some(set) = parts.get_mut(to as usize) {
                set.into.through = flow::sum(set.into.through, capacity);
            }
        }
        let (into, out) = match source {
            BoundSource::RankPorts => self.limit_to_ports(&mut parts, part),
            _ => (UNLIMITED, UNLIMITED),
        };
        let reduces = self.fabric.nodes().filter(|(_, node)| node.figures.supports_multicast());
        let between = reduces.map(|(id, _)| part(id)).any(|part| part == NONE);
        let switches_between = if between { SwitchesBetween::Some } else { SwitchesBetween::None };
        levels.push(Level { source, parts, part_of_rank, switches_between, into, out });
    }

    /// Limits each device's links that carry only network traffic, island by island ([`Self::limit_island`]). Returns
    /// the total rates into and out of all devices, in bytes per second.
    fn limit_to_ports(&self, parts: &mut [RankSet], part: impl Fn(NodeId) -> u32) -> (u128, u128) {
        let mut total = |direction| {
            let islands =
                self.transits.iter().flat_map(|transit| transit.islands.iter().map(move |&island| (transit, island)));
            let through = islands.map(|(transit, island)| self.limit_island(parts, &part, transit, island, direction));
            through.fold(0, flow::sum)
        };
        (total(Direction::Towards), total(Direction::Away))
    }

    /// Limits those links of an island's devices that carry only network traffic to the capacity of each device's links
    /// into the network. Routes of a device use only its own links into the network, whereas a link near the device may
    /// also lead to those of other devices. Returns the total rate of all devices in bytes per second; after a failure,
    /// several devices may share a link into the network.
    fn limit_island(
        &self,
        parts: &mut [RankSet],
        part: impl Fn(NodeId) -> u32,
        transit: &IslandTraffic,
        island: u32,
        direction: Direction,
    ) -> u128 {
        let near = self.network_only(transit, island, direction);
        let (mut inside, mut network) = (0, 0);
        let mut shared = FxHashSet::default();
        for ports in &transit.ports {
            let device = self.router.island_device(island, ports.device);
            let Some(set) = parts.get_mut(part(device) as usize) else { continue };
            let boundary = set.boundary_mut(direction);
            let near = near.get(&device).copied().unwrap_or(0);
            inside = flow::sum(inside, boundary.through.saturating_sub(near));
            if near == 0 {
                continue;
            }
            let links = if direction == Direction::Away { &ports.out } else { &ports.into };
            let links = || links.iter().map(|&link| self.router.island_link(island, link));
            let through = near.min(self.capacity(links()));
            network = flow::sum(network, through);
            shared.extend(links());
            if boundary.through < UNLIMITED {
                boundary.through = boundary.through - near + through;
            }
        }
        flow::sum(inside, network.min(self.capacity(shared)))
    }

    /// Returns the total capacity of the links of each device that carry only network traffic, in bytes per second.
    fn network_only(&self, transit: &IslandTraffic, island: u32, direction: Direction) -> FxHashMap<NodeId, u128> {
        let mut near: FxHashMap<NodeId, u128> = FxHashMap::default();
        for &number in &transit.network_only {
            let link = self.router.island_link(island, number);
            let (from, to) = self.fabric.ends(link);
            let through = near.entry(if direction == Direction::Away { from } else { to }).or_default();
            *through = flow::sum(*through, self.capacity([link]));
        }
        near
    }

    /// Returns the total capacity of `links` in bytes per second.
    fn capacity(&self, links: impl IntoIterator<Item = LinkId>) -> u128 {
        let each = |link: LinkId| self.fabric.link(link).bandwidth.map_or(UNLIMITED, |bandwidth| bandwidth.0.into());
        links.into_iter().map(each).fold(0, flow::sum)
    }

    /// Returns vertex labels by connected component below each tier of network switches, finest first.
    fn switch_groups(&self) -> Vec<Vec<u32>> {
        let count = self.fabric.node_count();
        let tier = self.tiers();
        let top = tier.iter().copied().filter(|&tier| tier != NONE).max().unwrap_or(0);
        let mut groups = Vec::new();
        let mut parent: Vec<u32> = (0..count as u32).collect();
        for highest in 1..top {
            for &id in self.links {
                let (from, to) = self.fabric.ends(id);
                let (a, b) = (tier[from.0 as usize], tier[to.0 as usize]);
                // Switches of the same tier are not below each other, so a torus has no groups.
                if a.max(b) <= highest && (a != b || a == 0) {
                    join(&mut parent, from.0, to.0);
                }
            }
            groups.push((0..count as u32).map(|node| root(&mut parent, node)).collect());
        }
        groups
    }

    /// Returns the number of network links from the islands of ranks up to each vertex; 0 for the islands themselves.
    fn tiers(&self) -> Vec<u32> {
        let mut has_ranks = vec![false; self.fabric.node_count()];
        for transit in self.transits {
            for &island in &transit.islands {
                if let Some(flag) = has_ranks.get_mut(island as usize) {
                    *flag = true;
                }
            }
        }
        let in_island = |node: NodeId| has_ranks.get(self.router.island_of(node) as usize).copied().unwrap_or(false);
        let mut tier: Vec<u32> =
            (0..self.fabric.node_count() as u32).map(|node| if in_island(NodeId(node)) { 0 } else { NONE }).collect();
        for height in 0.. {
            let mut higher = Vec::new();
            for &id in self.links {
                let (from, to) = self.fabric.ends(id);
                if tier[from.0 as usize] == height && tier[to.0 as usize] == NONE {
                    higher.push(to.0);
                }
            }
            if higher.is_empty() {
                break;
            }
            for node in higher {
                tier[node as usize] = height + 1;
            }
        }
        tier
    }
}

fn memory(fabric: &Fabric, device: NodeId) -> Option<u128> {
    match &fabric.node(device).figures {
        Figures::Gpu(figures) => figures.memory_bandwidth.map(|bandwidth| bandwidth.0.into()),
        _ => None,
    }
}
