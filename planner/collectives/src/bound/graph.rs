//! Lower bounds from the graph as a whole: minimum cuts and longest paths, by collective.

use std::sync::OnceLock;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Fabric, NodeId, Picos};
use rustc_hash::{FxHashMap, FxHashSet};

use super::colour::{colours, representatives};
use super::cut::{self, Cut, CutRatio, Direction, Search};
use super::demand::Demand;
use super::device_demand::DeviceDemand;
use super::distance::Distances;
use super::lengths::{self, Pairs};
use super::line::{LinearBound, Share, upper_envelope};
use super::partition::{Partition, slowest_partition};
use super::parts::{BoundaryCapacity, Level, PartsInput, RankSet, Start};
use super::source::BoundSource;
use super::twins::InterchangeableDevices;
use super::wiring::Wiring;
use crate::flow::UNLIMITED;

/// Limit on (number of devices, one per set of twins) × (number of wires) up to which cut searches start at every
/// device. Above it, they start at one device per colour.
const MAX_CUT_SEARCH_WORK: usize = 1 << 20;

/// Limit on (number of devices, one per set of twins) × (number of wires) up to which longest paths are searched from
/// every device.
const MAX_PATH_SEARCH_WORK: usize = 1 << 22;

/// Maximum number of devices up to which the cuts around all sets of devices are examined (254 minimum cuts).
const MAX_ENUMERATED_DEVICES: usize = 8;

/// Limit on (number of parts of a level) × (number of devices) up to which the cuts around the parts are searched, as on
/// 64 hosts of 8 GPUs. A failure of a link changes neither number.
const MAX_SET_CUT_WORK: usize = 1 << 15;

/// Graph with the placement of ranks on it.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    wiring: Wiring,
    twins: InterchangeableDevices,
    /// Number of ranks of each device.
    ranks: Vec<u32>,
    device_of_rank: Vec<u32>,
    root: u32,
    labels: Vec<Label>,
    /// Slowest partitions of the devices, for the bytes out of and into the sets.
    partitions: OnceLock<Vec<Partition>>,
}

/// Ranks that the blocks of a collective come from or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockOrigin {
    Any,
    Root,
}

/// Display names of a device and its host.
#[derive(Clone, Debug)]
struct Label {
    device: Box<str>,
    host: Box<str>,
}

impl Graph {
    pub(super) fn new(survey: &PartsInput<'_>, devices: &[NodeId]) -> Self {
        let PartsInput { fabric, router, placement, transits, links, root } = *survey;
        let number: FxHashMap<NodeId, u32> = devices.iter().copied().zip(0..).collect();
        let device_of_rank: Vec<u32> =
            placement.iter().map(|device| number.get(device).copied().unwrap_or(0)).collect();
        let mut ranks = vec![0; devices.len()];
        for &device in &device_of_rank {
            ranks[device as usize] += 1;
        }
        let root = device_of_rank.get(root as usize).copied().unwrap_or(0);
        let wiring = Wiring::new(fabric, router, devices, transits, links);
        let twins = InterchangeableDevices::new(&wiring, &ranks);
        let labels = devices.iter().map(|&device| Label::new(fabric, device)).collect();
        Self { wiring, twins, ranks, device_of_rank, root, labels, partitions: OnceLock::new() }
    }

    /// Tightens the bounds of parts with those of the graph: the maximum flow into and out of each device, and the
    /// latency of the shortest path across each boundary.
    pub(super) fn tighten_bounds(&self, levels: &mut [Level]) {
        for direction in [Direction::Away, Direction::Towards] {
            let mut search = self.search(direction);
            // Distances out of a part are searched against the direction of the links.
            let distances = self.distances(direction.reversed());
            for level in &mut *levels {
                let part_by_device = level.part_by_device(&self.device_of_rank, self.ranks.len());
                let nearest = distances.nearest_other_parts(&part_by_device, level.parts.len());
                let is_port = level.source == BoundSource::RankPorts;
                // Maximum flow of each part, also used for its twins with higher numbers.
                let mut ports: Vec<u128> = Vec::with_capacity(level.parts.len());
                for ((number, part), nearest) in (0..).zip(&mut level.parts).zip(nearest) {
                    let twin = Some(self.twins.first(number)).filter(|_| is_port);
                    let known = twin.and_then(|twin| ports.get(twin as usize)).copied();
                    let port = known.unwrap_or_else(|| if is_port { search.port(number) } else { UNLIMITED });
                    let boundary = part.boundary_mut(direction);
                    boundary.nearest = nearest.unwrap_or(boundary.nearest);
                    boundary.through = boundary.through.min(port);
                    ports.push(port);
                }
            }
        }
    }

    /// Returns lower bounds from cuts and paths of the whole graph.
    pub(super) fn bounds(&self, collective: Collective, levels: &[Level], first_byte: Picos) -> Vec<LinearBound> {
        use Collective::*;
        use Direction::{Away, Towards};
        let mut lines = match collective {
            AllGather => self.blocks(Towards, BlockOrigin::Any, collective, levels),
            ReduceScatter => self.blocks(Away, BlockOrigin::Any, collective, levels),
            Gather => self.blocks(Towards, BlockOrigin::Root, collective, levels),
            Scatter => self.blocks(Away, BlockOrigin::Root, collective, levels),
            Broadcast => self.whole_buffer_bounds(Away, self.root, collective, levels),
            Reduce => self.whole_buffer_bounds(Towards, self.root, collective, levels),
            AllReduce => {
                let mut lines = self.whole_buffer_bounds(Away, 0, collective, levels);
                lines.extend(self.whole_buffer_bounds(Towards, 0, collective, levels));
                lines
            }
            AllToAll => {
                let mut lines = self.fixed_cut_bounds(collective, levels);
                let pairs = |from: u32, to: u32| self.ranks_on(from) * self.ranks_on(to);
                let total = self.ranks.iter().map(|&ranks| u128::from(ranks)).sum();
                lines.extend(lengths::all_pairs(
                    &self.wiring,
                    self.twins.sets(),
                    || colours(&self.wiring, &self.ranks, None),
                    Pairs { between: &pairs, denominator: total },
                    first_byte,
                ));
                lines
            }
            SendRecv | AllToAllV | Barrier => Vec::new(),
        };
        lines.extend(self.latency_bounds(collective, levels));
        lines
    }

    /// Returns lower bounds from the blocks between devices, by link lengths and by the longest path.
    pub(super) fn demand_bounds(&self, demand: &DeviceDemand, first_byte: Picos) -> Vec<LinearBound> {
        let devices = self.ranks.len();
        let pairs = |from: u32, to: u32| demand.between(from, to);
        // Ranks with different demands are not interchangeable, so every device represents only itself.
        let each: Vec<(u32, u32)> = (0..devices as u32).map(|device| (device, 1)).collect();
        let pairs = Pairs { between: &pairs, denominator: demand.total };
        let mut lines =
            lengths::all_pairs(&self.wiring, &each, || (0..self.wiring.vertices).collect(), pairs, first_byte);
        if devices * self.wiring.wires.len() <= MAX_PATH_SEARCH_WORK {
            let mut distances = self.distances(Direction::Away);
            let mut longest = 0;
            for from in 0..devices as u32 {
                let paths = (0..).zip(distances.distances_from([from]));
                let used = paths.filter(|&(to, &latency)| latency != u64::MAX && demand.between(from, to) > 0);
                longest = used.map(|(_, &latency)| latency).fold(longest, u64::max);
            }
            lines.push(LinearBound::latency(Picos(longest)));
        }
        lines
    }

    /// Returns lower bounds for an all_reduce in which only ranks reduce, from the partition of the devices whose sets are
    /// the slowest to exchange data.
    pub(super) fn partition_bounds(&self, first_byte: Picos) -> Vec<LinearBound> {
        let find = || {
            let arcs = self.wiring.arcs();
            let directions = [Direction::Away, Direction::Towards];
            let found = directions
                .map(|direction| slowest_partition(self.wiring.vertices as usize, &arcs, self.ranks.len(), direction));
            found.into_iter().flatten().collect()
        };
        let line = |partition: &Partition| {
            let boundary = BoundaryCapacity { through: partition.through, nearest: first_byte };
            let source = BoundSource::Partition(partition.sets.len() as u32);
            LinearBound::crossing(Share::new(partition.buffers(), 1), boundary, source)
        };
        self.partitions.get_or_init(find).iter().map(line).collect()
    }

    /// Returns the number of devices with ranks.
    pub(super) fn devices(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the device of a rank; `None` if there is no such rank.
    pub(super) fn device(&self, rank: u32) -> Option<u32> {
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

    /// Returns the devices at which searches start, if they may start at any device.
    fn starts(&self) -> Vec<u32> {
        if self.twins.count() * self.wiring.wires.len() <= MAX_CUT_SEARCH_WORK {
            return self.twins.sets().iter().map(|&(first, _)| first).collect();
        }
        representatives(&self.wiring, &self.ranks, None)
    }

    /// Returns the devices at which the minimum-cut searches from `start` end: one per set of interchangeable devices,
    /// or one per colour if the graph is large.
    fn ends(&self, start: u32) -> Vec<u32> {
        if self.twins.count() * self.wiring.wires.len() <= MAX_CUT_SEARCH_WORK {
            return self.twins.others(start);
        }
        representatives(&self.wiring, &self.ranks, Some(start)).into_iter().filter(|&other| other != start).collect()
    }

    /// Returns lower bounds from the slowest cut for equal blocks that each rank exchanges with the root, or with the
    /// ranks of any device.
    fn blocks(
        &self,
        direction: Direction,
        from: BlockOrigin,
        collective: Collective,
        levels: &[Level],
    ) -> Vec<LinearBound> {
        let mut search = self.search(direction);
        let mut slowest = self.slowest_part(direction, from, levels);
        let starts = match from {
            BlockOrigin::Root => vec![self.root],
            BlockOrigin::Any => self.starts(),
        };
        let mut slowest_cut = None;
        for start in starts {
            slowest_cut = search.slowest_blocks(start, &mut slowest).or(slowest_cut);
        }
        slowest_cut.into_iter().flat_map(|cut| self.cut_bounds(&cut, direction, collective)).collect()
    }

    /// Returns lower bounds from the minimum cuts around sets of devices that do not depend on capacities: all sets if
    /// there are at most [`MAX_ENUMERATED_DEVICES`] devices, otherwise the parts of each level within
    /// [`MAX_SET_CUT_WORK`]. The slowest cut of an all_to_all is NP-hard to find. The slowest cut of an all_gather also
    /// bounds an all_to_all, but a slower link may move that cut to one that an all_to_all crosses in less time.
    fn fixed_cut_bounds(&self, collective: Collective, levels: &[Level]) -> Vec<LinearBound> {
        let devices = self.ranks.len();
        let sets: Vec<Vec<bool>> = if devices <= MAX_ENUMERATED_DEVICES {
            // The last device is outside, since a cut has two sides.
            (1..1u32 << (devices - 1)).map(|set| (0..devices).map(|device| set >> device & 1 == 1).collect()).collect()
        } else {
            let is_small = |level: &&Level| level.parts.len() * devices <= MAX_SET_CUT_WORK;
            let coarse = levels.iter().filter(|level| level.source != BoundSource::RankPorts).filter(is_small);
            let members = |level: &Level| {
                let part_of = level.part_by_device(&self.device_of_rank, devices);
                (0..level.parts.len() as u32).map(move |part| part_of.iter().map(|&of| of == part).collect())
            };
            coarse.flat_map(members).collect()
        };
        let directions = |set: &Vec<bool>| {
            [Direction::Away, Direction::Towards].map(|direction| {
                let cut = cut::around(&self.wiring, &self.ranks, set, direction);
                if cut.through < UNLIMITED { self.cut_bounds(&cut, direction, collective) } else { Vec::new() }
            })
        };
        upper_envelope(sets.iter().flat_map(directions).flatten().collect())
    }

    /// Returns lower bounds from the minimum cut between `start` and any other device, which the whole buffer must
    /// pass.
    fn whole_buffer_bounds(
        &self,
        direction: Direction,
        start: u32,
        collective: Collective,
        levels: &[Level],
    ) -> Vec<LinearBound> {
        let mut search = self.search(direction);
        let mut min_capacity = self.finite() + 1;
        for level in levels {
            let start_part = self.device_of_rank.iter().position(|&device| device == start);
            let start_part = start_part.and_then(|rank| level.part_of_rank.get(rank)).copied();
            for (number, part) in (0..).zip(&level.parts) {
                min_capacity = min_capacity.min(
                    part.boundary(direction, if Some(number) == start_part { Start::Inside } else { Start::Outside })
                        .through,
                );
            }
        }
        let mut minimum_cut = None;
        for other in self.ends(start) {
            if let Some(cut) = search.minimum_cut(start, other, min_capacity) {
                min_capacity = cut.through;
                minimum_cut = Some(cut);
            }
        }
        minimum_cut.into_iter().flat_map(|cut| self.cut_bounds(&cut, direction, collective)).collect()
    }

    /// Returns the sum of all finite capacities, an upper bound on the capacity of any finite cut.
    fn finite(&self) -> u128 {
        self.wiring.wires.iter().map(|wire| wire.capacity).filter(|&capacity| capacity < UNLIMITED).sum()
    }

    /// Returns the ratio of the slowest of the cuts around parts, which is the initial value of a search.
    fn slowest_part(&self, direction: Direction, from: BlockOrigin, levels: &[Level]) -> CutRatio {
        let total: u128 = self.ranks.iter().map(|&ranks| u128::from(ranks)).sum();
        let any = from == BlockOrigin::Any;
        let mut slowest = CutRatio { ranks: 1, through: self.finite() + 1 };
        for part in levels.iter().flat_map(|level| &level.parts) {
            let inside = u128::from(part.ranks);
            let around_start = (any || part.has_root).then(|| (total - inside, Start::Inside));
            let apart = (any || !part.has_root).then_some((inside, Start::Outside));
            for (ranks, start) in [around_start, apart].into_iter().flatten() {
                let cut = CutRatio { ranks, through: part.boundary(direction, start).through };
                if cut.through < UNLIMITED && cut.ranks * slowest.through > slowest.ranks * cut.through {
                    slowest = cut;
                }
            }
        }
        slowest
    }

    /// Returns the lower bounds for a collective that follow from a cut, in the direction in which the cut was found.
    fn cut_bounds(&self, cut: &Cut, direction: Direction, collective: Collective) -> Vec<LinearBound> {
        let nearest = self.distances(direction).nearest_outside(&not(&cut.beyond)).unwrap_or(Picos::ZERO);
        let boundary = BoundaryCapacity { through: cut.through, nearest };
        let total: u32 = self.ranks.iter().sum();
        // Number of ranks on the side from which the search started.
        let beyond = u32::try_from(cut.ranks).unwrap_or(total);
        let has_root = !cut.beyond.get(self.root as usize).copied().unwrap_or(false);
        let part = RankSet { ranks: total - beyond.min(total), has_root, ..RankSet::default() };
        let demand = Demand::new(collective, &part, total);
        let share = match direction {
            Direction::Away => demand.out,
            Direction::Towards => demand.into,
        };
        share.into_iter().map(|share| LinearBound::crossing(share, boundary, self.cut_source(&cut.beyond))).collect()
    }

    /// Returns the name of the smaller side of a cut (of the first one if they are equal), by hosts if that side
    /// consists of whole hosts.
    fn cut_source(&self, beyond: &[bool]) -> BoundSource {
        const MAX_NAMES: usize = 4;
        let rank_count = |side: bool| -> u32 {
            beyond.iter().zip(&self.ranks).filter(|(beyond, _)| **beyond == side).map(|(_, &ranks)| ranks).sum()
        };
        let first = beyond.first().copied().unwrap_or_default();
        let side = if rank_count(first) <= rank_count(!first) { first } else { !first };
        let inside = || self.labels.iter().zip(beyond).filter(|(_, beyond)| **beyond == side).map(|(label, _)| label);
        let mut hosts: FxHashSet<&str> = FxHashSet::default();
        let host_names: Vec<&str> = inside().map(|label| &*label.host).filter(|&host| hosts.insert(host)).collect();
        let mut others = self.labels.iter().zip(beyond).filter(|(_, beyond)| **beyond != side);
        let split = others.any(|(label, _)| hosts.contains(&*label.host));
        let names = if split { inside().map(|label| &*label.device).collect() } else { host_names };
        let ellipsis = if names.len() > MAX_NAMES { ", …" } else { "" };
        let count = rank_count(side);
        let ranks = if count == 1 { "rank" } else { "ranks" };
        let shown = names[..names.len().min(MAX_NAMES)].join(", ");
        BoundSource::Cut(format!("cut of {count} {ranks}: {shown}{ellipsis}").into())
    }

    /// Returns the latency of the longest of the shortest paths between ranks that depend on each other.
    fn latency_bounds(&self, collective: Collective, levels: &[Level]) -> Vec<LinearBound> {
        let devices = levels.iter().find(|level| level.source == BoundSource::RankPorts);
        let parts = devices.map_or(&[][..], |level| &level.parts);
        match collective {
            Collective::Broadcast | Collective::Scatter => self.latency_bounds_from_root(collective, parts),
            Collective::Reduce | Collective::Gather => {
                vec![LinearBound::latency(longest(self.distances(Direction::Towards).distances_from([self.root])))]
            }
            Collective::SendRecv => self.latency_bounds_to_next(parts),
            Collective::AllReduce
            | Collective::AllGather
            | Collective::ReduceScatter
            | Collective::AllToAll
            | Collective::Barrier => vec![LinearBound::latency(self.diameter())],
            Collective::AllToAllV => Vec::new(),
        }
    }

    /// Returns a lower bound for each device: the latency of the path from the root, plus the time of the device's
    /// bytes through its own ports. The reverse direction has no such bound: the first bytes of a reduction may be sent
    /// to a near rank while other bytes are still on a long path.
    fn latency_bounds_from_root(&self, collective: Collective, parts: &[RankSet]) -> Vec<LinearBound> {
        let total = self.device_of_rank.len() as u32;
        let mut distances = self.distances(Direction::Away);
        let reached =
            parts.iter().zip(distances.distances_from([self.root])).filter(|(_, latency)| **latency != u64::MAX);
        let line = |(part, &latency): (&RankSet, &u64)| {
            let share = Demand::new(collective, part, total).into?;
            Some(LinearBound::crossing(
                share,
                BoundaryCapacity { nearest: Picos(latency), ..part.into },
                BoundSource::RankPorts,
            ))
        };
        reached.filter_map(line).collect()
    }

    /// Returns a lower bound for each rank: the latency of the path to the next rank, plus the time of a buffer through
    /// the ports there.
    fn latency_bounds_to_next(&self, parts: &[RankSet]) -> Vec<LinearBound> {
        let next = self.device_of_rank.iter().cycle().skip(1);
        let mut pairs: Vec<(u32, u32)> = self.device_of_rank.iter().copied().zip(next.copied()).collect();
        pairs.retain(|&(from, to)| from != to);
        // Pairs of twins have equal distances and ports.
        let mut seen = FxHashSet::default();
        pairs.retain(|&(from, to)| seen.insert((self.twins.first(from), self.twins.first(to))));
        let mut distances = self.distances(Direction::Away);
        let line = |&(from, to): &(u32, u32)| {
            let boundary = BoundaryCapacity { nearest: distances.between(from, to)?, ..parts.get(to as usize)?.into };
            Some(LinearBound::crossing(Share::WHOLE, boundary, BoundSource::RankPorts))
        };
        pairs.iter().filter_map(line).collect()
    }

    /// Returns the latency of the longest of the shortest paths between any two ranks; in a large graph, a lower bound
    /// on it from two searches.
    fn diameter(&self) -> Picos {
        let mut distances = self.distances(Direction::Away);
        if self.twins.count() * self.wiring.wires.len() <= MAX_PATH_SEARCH_WORK {
            let starts = self.twins.sets().iter().map(|&(from, _)| from);
            return starts.map(|from| longest(distances.distances_from([from]))).max().unwrap_or(Picos::ZERO);
        }
        let first = distances.distances_from([0]);
        let latency = longest(first);
        let farthest = first.iter().position(|&reached| reached == latency.0).unwrap_or(0);
        latency.max(longest(distances.distances_from([farthest as u32])))
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
    /// Returns the part of each device, indexed by device.
    fn part_by_device(&self, device_of_rank: &[u32], devices: usize) -> Vec<u32> {
        let mut part_by_device = vec![u32::MAX; devices];
        for (&device, &part) in device_of_rank.iter().zip(&self.part_of_rank) {
            part_by_device[device as usize] = part;
        }
        part_by_device
    }
}

fn not(side: &[bool]) -> Vec<bool> {
    side.iter().map(|&inside| !inside).collect()
}

/// Returns the maximum of latencies in picoseconds, ignoring devices that are not reached (`u64::MAX`).
fn longest(latencies: &[u64]) -> Picos {
    Picos(latencies.iter().copied().filter(|&latency| latency != u64::MAX).max().unwrap_or(0))
}
