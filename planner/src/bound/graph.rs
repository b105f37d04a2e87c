//! Lower bounds from the graph as a whole: minimum cuts and longest paths, by collective.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Fabric, NodeId, Picos};
use rustc_hash::{FxHashMap, FxHashSet};

use super::colour::representatives;
use super::cut::{Cut, Direction, Search};
use super::demand::Demand;
use super::distance::Distances;
use super::flow::UNLIMITED;
use super::lengths;
use super::line::{Line, Share};
use super::parts::{Level, Part, Start, Survey, Way};
use super::source::BoundSource;
use super::twins::Twins;
use super::uneven::DeviceDemand;
use super::wiring::Wiring;

/// Searches start at every device (one per set of twins) if their number × wires is at most this, otherwise at one per
/// colour.
const MOST_STARTS: usize = 1 << 20;

/// Longest paths are searched from every device (one per set of twins) if their number × wires is at most this.
const MOST_WAYS: usize = 1 << 22;

/// Graph with the placement of ranks on it.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    wiring: Wiring,
    twins: Twins,
    /// Ranks of each device.
    ranks: Vec<u32>,
    device_of_rank: Vec<u32>,
    root: u32,
    labels: Vec<Label>,
}

/// Source, or destination, of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Any,
    Root,
}

/// Display names of a device.
#[derive(Clone, Debug)]
struct Label {
    device: Box<str>,
    host: Box<str>,
}

impl Graph {
    pub(super) fn new(survey: &Survey<'_>, devices: &[NodeId]) -> Self {
        let Survey { fabric, router, placement, transits, links, root } = *survey;
        let number: FxHashMap<NodeId, u32> = devices.iter().copied().zip(0..).collect();
        let device_of_rank: Vec<u32> =
            placement.iter().map(|device| number.get(device).copied().unwrap_or(0)).collect();
        let mut ranks = vec![0; devices.len()];
        for &device in &device_of_rank {
            ranks[device as usize] += 1;
        }
        let root = device_of_rank.get(root as usize).copied().unwrap_or(0);
        let wiring = Wiring::new(fabric, router, devices, transits, links);
        let twins = Twins::new(&wiring, &ranks);
        let labels = devices.iter().map(|&device| Label::new(fabric, device)).collect();
        Self { wiring, twins, ranks, device_of_rank, root, labels }
    }

    /// Tightens the bounds of parts with those of the graph: the flow into and out of each device, and the latency of
    /// the shortest path across each boundary.
    pub(super) fn sharpen(&self, levels: &mut [Level]) {
        for direction in [Direction::Away, Direction::Towards] {
            let mut search = self.search(direction);
            // Distances out of a part are searched against the links.
            let distances = self.distances(direction.reversed());
            for level in &mut *levels {
                let part_of = level.parts_of(&self.device_of_rank, self.ranks.len());
                let nearest = distances.nearest_of_others(&part_of, level.parts.len());
                let is_port = level.source == BoundSource::RankPorts;
                // Flow of each part, reused for its twins with higher numbers.
                let mut ports: Vec<u128> = Vec::with_capacity(level.parts.len());
                for ((number, part), nearest) in (0..).zip(&mut level.parts).zip(nearest) {
                    let twin = Some(self.twins.first(number)).filter(|_| is_port);
                    let known = twin.and_then(|twin| ports.get(twin as usize)).copied();
                    let port = known.unwrap_or_else(|| if is_port { search.port(number) } else { UNLIMITED });
                    let way = part.way_mut(direction);
                    way.nearest = nearest.unwrap_or(way.nearest);
                    way.through = way.through.min(port);
                    ports.push(port);
                }
            }
        }
    }

    /// Lower bounds from cuts and paths of the whole graph.
    pub(super) fn lines(&self, collective: Collective, levels: &[Level], first_byte: Picos) -> Vec<Line> {
        use Collective::*;
        use Direction::{Away, Towards};
        let mut lines = match collective {
            AllGather => self.blocks(Towards, From::Any, collective, levels),
            ReduceScatter => self.blocks(Away, From::Any, collective, levels),
            Gather => self.blocks(Towards, From::Root, collective, levels),
            Scatter => self.blocks(Away, From::Root, collective, levels),
            Broadcast => self.whole(Away, self.root, collective, levels),
            Reduce => self.whole(Towards, self.root, collective, levels),
            AllReduce => {
                let mut lines = self.whole(Away, 0, collective, levels);
                lines.extend(self.whole(Towards, 0, collective, levels));
                lines
            }
            AllToAll => {
                let mut lines = self.blocks(Towards, From::Any, collective, levels);
                let pairs = |from: u32, to: u32| self.ranks_on(from) * self.ranks_on(to);
                let total = self.ranks.iter().map(|&ranks| u128::from(ranks)).sum();
                lines.extend(lengths::all_pairs(&self.wiring, self.twins.sets(), (&pairs, total), first_byte));
                lines
            }
            SendRecv | AllToAllV | Barrier => Vec::new(),
        };
        lines.extend(self.ways(collective, levels));
        lines
    }

    /// Lower bounds from the blocks between devices, by link lengths and by the longest path.
    pub(super) fn lines_of_demand(&self, demand: &DeviceDemand, first_byte: Picos) -> Vec<Line> {
        let devices = self.ranks.len();
        let pairs = |from: u32, to: u32| demand.between(from, to);
        // Ranks with different demands are not interchangeable, so every device represents itself only.
        let each: Vec<(u32, u32)> = (0..devices as u32).map(|device| (device, 1)).collect();
        let mut lines = lengths::all_pairs(&self.wiring, &each, (&pairs, demand.total), first_byte);
        if devices * self.wiring.wires.len() <= MOST_WAYS {
            let mut distances = self.distances(Direction::Away);
            let mut longest = 0;
            for from in 0..devices as u32 {
                let ways = (0..).zip(distances.from([from]));
                let taken = ways.filter(|&(to, &latency)| latency != u64::MAX && demand.between(from, to) > 0);
                longest = taken.map(|(_, &latency)| latency).fold(longest, u64::max);
            }
            lines.push(Line::latency(Picos(longest)));
        }
        lines
    }

    /// Number of devices with ranks.
    pub(super) fn devices(&self) -> usize {
        self.ranks.len()
    }

    /// The device of a rank.
    pub(super) fn device_of(&self, rank: u32) -> Option<u32> {
        self.device_of_rank.get(rank as usize).copied()
    }

    fn ranks_on(&self, device: u32) -> u128 {
        self.ranks.get(device as usize).copied().unwrap_or(0).into()
    }

    fn search(&self, direction: Direction) -> Search<'_> {
        Search::new(&self.wiring, &self.ranks, direction)
    }

    fn distances(&self, direction: Direction) -> Distances {
        Distances::new(&self.wiring, self.ranks.len(), direction)
    }

    /// Start devices of searches that may start at any device.
    fn starts(&self) -> Vec<u32> {
        if self.twins.count() * self.wiring.wires.len() <= MOST_STARTS {
            return self.twins.sets().iter().map(|&(first, _)| first).collect();
        }
        representatives(&self.wiring, &self.ranks, None)
    }

    /// End devices of searches from one device to any other.
    fn ends(&self, start: u32) -> Vec<u32> {
        if self.twins.count() * self.wiring.wires.len() <= MOST_STARTS {
            return self.twins.others(start);
        }
        representatives(&self.wiring, &self.ranks, Some(start)).into_iter().filter(|&other| other != start).collect()
    }

    /// The slowest cut for equal blocks between each other rank and the root, or any device.
    fn blocks(&self, direction: Direction, from: From, collective: Collective, levels: &[Level]) -> Vec<Line> {
        let mut search = self.search(direction);
        let mut slowest = self.slowest_part(direction, from, levels);
        let starts = match from {
            From::Root => vec![self.root],
            From::Any => self.starts(),
        };
        let mut found = None;
        for start in starts {
            found = search.slowest_blocks(start, &mut slowest).or(found);
        }
        found.into_iter().flat_map(|cut| self.lines_of(&cut, direction, collective)).collect()
    }

    /// The minimum cut between `start` and any other rank.
    fn whole(&self, direction: Direction, start: u32, collective: Collective, levels: &[Level]) -> Vec<Line> {
        let mut search = self.search(direction);
        let mut least = self.finite() + 1;
        for level in levels {
            let own = self.device_of_rank.iter().position(|&device| device == start);
            let own = own.and_then(|rank| level.part_of_rank.get(rank)).copied();
            for (number, part) in (0..).zip(&level.parts) {
                least = least
                    .min(part.way(direction, if Some(number) == own { Start::Inside } else { Start::Outside }).through);
            }
        }
        let mut found = None;
        for other in self.ends(start) {
            if let Some(cut) = search.least_cut(start, other, least) {
                least = cut.through;
                found = Some(cut);
            }
        }
        found.into_iter().flat_map(|cut| self.lines_of(&cut, direction, collective)).collect()
    }

    /// Sum of all finite capacities, an upper bound on the capacity of any finite cut.
    fn finite(&self) -> u128 {
        self.wiring.wires.iter().map(|wire| wire.capacity).filter(|&capacity| capacity < UNLIMITED).sum()
    }

    /// The slowest of the cuts around parts as an initial value: ranks cut off, and bandwidth across.
    fn slowest_part(&self, direction: Direction, from: From, levels: &[Level]) -> (u128, u128) {
        let total: u128 = self.ranks.iter().map(|&ranks| u128::from(ranks)).sum();
        let any = from == From::Any;
        let mut slowest = (1, self.finite() + 1);
        for part in levels.iter().flat_map(|level| &level.parts) {
            let inside = u128::from(part.ranks);
            let around_start =
                (any || part.has_root).then(|| (total - inside, part.way(direction, Start::Inside).through));
            let apart = (any || !part.has_root).then(|| (inside, part.way(direction, Start::Outside).through));
            for cut in [around_start, apart].into_iter().flatten() {
                if cut.1 < UNLIMITED && cut.0 * slowest.1 > slowest.0 * cut.1 {
                    slowest = cut;
                }
            }
        }
        slowest
    }

    /// Lower bounds from a cut for a collective, in the direction in which the cut was found.
    fn lines_of(&self, cut: &Cut, direction: Direction, collective: Collective) -> Vec<Line> {
        let nearest = self.distances(direction).nearest_outside(&not(&cut.beyond)).unwrap_or(Picos::ZERO);
        let way = Way { through: cut.through, nearest };
        let total: u32 = self.ranks.iter().sum();
        // The side from which the search started.
        let beyond = u32::try_from(cut.ranks).unwrap_or(total);
        let has_root = !cut.beyond.get(self.root as usize).copied().unwrap_or(false);
        let part = Part { ranks: total - beyond.min(total), has_root, ..Part::default() };
        let demand = Demand::of(collective, &part, total);
        let share = match direction {
            Direction::Away => demand.out,
            Direction::Towards => demand.into,
        };
        share.into_iter().map(|share| Line::crossing(share, way, self.named(&cut.beyond))).collect()
    }

    /// Names the smaller side of a cut (the first of equals), by hosts if it consists of whole hosts.
    fn named(&self, beyond: &[bool]) -> BoundSource {
        const MOST_NAMES: usize = 4;
        let counted = |side: bool| -> u32 {
            beyond.iter().zip(&self.ranks).filter(|(beyond, _)| **beyond == side).map(|(_, &ranks)| ranks).sum()
        };
        let first = beyond.first().copied().unwrap_or_default();
        let side = if counted(first) <= counted(!first) { first } else { !first };
        let inside = || self.labels.iter().zip(beyond).filter(|(_, beyond)| **beyond == side).map(|(label, _)| label);
        let mut hosts: FxHashSet<&str> = FxHashSet::default();
        let whole: Vec<&str> = inside().map(|label| &*label.host).filter(|&host| hosts.insert(host)).collect();
        let mut others = self.labels.iter().zip(beyond).filter(|(_, beyond)| **beyond != side);
        let split = others.any(|(label, _)| hosts.contains(&*label.host));
        let names = if split { inside().map(|label| &*label.device).collect() } else { whole };
        let more = if names.len() > MOST_NAMES { ", …" } else { "" };
        let count = counted(side);
        let ranks = if count == 1 { "rank" } else { "ranks" };
        let shown = names[..names.len().min(MOST_NAMES)].join(", ");
        BoundSource::Cut(format!("cut of {count} {ranks}: {shown}{more}").into())
    }

    /// Latency of the longest of the shortest paths between ranks that depend on each other.
    fn ways(&self, collective: Collective, levels: &[Level]) -> Vec<Line> {
        let devices = levels.iter().find(|level| level.source == BoundSource::RankPorts);
        let parts = devices.map_or(&[][..], |level| &level.parts);
        match collective {
            Collective::Broadcast | Collective::Scatter => self.ways_from_root(collective, parts),
            Collective::Reduce | Collective::Gather => {
                vec![Line::latency(longest(self.distances(Direction::Towards).from([self.root])))]
            }
            Collective::SendRecv => self.ways_to_next(parts),
            Collective::AllReduce
            | Collective::AllGather
            | Collective::ReduceScatter
            | Collective::AllToAll
            | Collective::Barrier => vec![Line::latency(self.diameter())],
            Collective::AllToAllV => Vec::new(),
        }
    }

    /// Bounds of each device: the path from the root, followed by its bytes through its own ports. The reverse does not
    /// hold: a reduction's first bytes may leave for a near rank while others wait to travel far.
    fn ways_from_root(&self, collective: Collective, parts: &[Part]) -> Vec<Line> {
        let total = self.device_of_rank.len() as u32;
        let mut distances = self.distances(Direction::Away);
        let reached = parts.iter().zip(distances.from([self.root])).filter(|(_, latency)| **latency != u64::MAX);
        let line = |(part, &latency): (&Part, &u64)| {
            let share = Demand::of(collective, part, total).into?;
            Some(Line::crossing(share, Way { nearest: Picos(latency), ..part.into }, BoundSource::RankPorts))
        };
        reached.filter_map(line).collect()
    }

    /// Bounds of each rank: the path to the next rank, followed by a buffer through the ports there.
    fn ways_to_next(&self, parts: &[Part]) -> Vec<Line> {
        let next = self.device_of_rank.iter().cycle().skip(1);
        let mut pairs: Vec<(u32, u32)> = self.device_of_rank.iter().copied().zip(next.copied()).collect();
        pairs.retain(|&(from, to)| from != to);
        // Pairs of twins have equal distances and ports.
        let mut seen = FxHashSet::default();
        pairs.retain(|&(from, to)| seen.insert((self.twins.first(from), self.twins.first(to))));
        let mut distances = self.distances(Direction::Away);
        let line = |&(from, to): &(u32, u32)| {
            let way = Way { nearest: distances.between(from, to)?, ..parts.get(to as usize)?.into };
            Some(Line::crossing(Share::WHOLE, way, BoundSource::RankPorts))
        };
        pairs.iter().filter_map(line).collect()
    }

    /// Latency of the longest shortest path between two ranks; in a large graph, a lower bound from two searches.
    fn diameter(&self) -> Picos {
        let mut distances = self.distances(Direction::Away);
        if self.twins.count() * self.wiring.wires.len() <= MOST_WAYS {
            let starts = self.twins.sets().iter().map(|&(from, _)| from);
            return starts.map(|from| longest(distances.from([from]))).max().unwrap_or(Picos::ZERO);
        }
        let first = distances.from([0]);
        let latency = longest(first);
        let farthest = first.iter().position(|&reached| reached == latency.0).unwrap_or(0);
        latency.max(longest(distances.from([farthest as u32])))
    }
}

impl Label {
    fn new(fabric: &Fabric, device: NodeId) -> Self {
        let node = fabric.node(device);
        let host = fabric.hosts().get(node.host.0 as usize).cloned().unwrap_or_default();
        Self { device: node.id.clone(), host }
    }
}

impl Level {
    /// Part of each device.
    fn parts_of(&self, device_of_rank: &[u32], devices: usize) -> Vec<u32> {
        let mut part_of = vec![u32::MAX; devices];
        for (&device, &part) in device_of_rank.iter().zip(&self.part_of_rank) {
            part_of[device as usize] = part;
        }
        part_of
    }
}

fn not(side: &[bool]) -> Vec<bool> {
    side.iter().map(|&inside| !inside).collect()
}

/// Maximum of some latencies, ignoring devices that are not reached.
fn longest(latencies: &[u64]) -> Picos {
    Picos(latencies.iter().copied().filter(|&latency| latency != u64::MAX).max().unwrap_or(0))
}
