//! Routes inside an island: best class first, then fewest links, then highest bandwidth, then lowest latency.
//!
//! The class of a path is that of its worst link, so a shortest-path search over sums of link costs cannot rank paths
//! by class. Instead the search runs once per class, nearest class first, over the links that this class permits. The
//! first search that reaches a device yields its best class and the fewest links.

use std::sync::OnceLock;

use super::link_classes::Multiplicity;
use super::rules::{Access, Phase, step};
use super::segment::{LayeredLink, Segment, bandwidth_key, select_paths};
use super::shape_graph::ShapeGraph;
use super::{PathClass, RouteOptions};
use crate::fabric::NodeKind;

/// The route from one device of an island to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IslandRoute {
    pub class: PathClass,
    pub segment: Segment,
}

/// The routes from one device to all others of its island.
#[derive(Debug)]
pub(super) struct RouteTable {
    source: u32,
    direct: Box<[Option<IslandRoute>]>,
    /// Routes staged in host memory; computed on first use.
    staged: OnceLock<Box<[Option<IslandRoute>]>>,
}

impl RouteTable {
    pub fn new(shape: &ShapeGraph, source: u32, options: &RouteOptions) -> Self {
        Self { source, direct: search(shape, source, Access::Direct, options), staged: OnceLock::new() }
    }

    pub fn to(&self, shape: &ShapeGraph, node: u32, access: Access, options: &RouteOptions) -> Option<&IslandRoute> {
        let routes = match access {
            Access::Direct => &self.direct,
            Access::Staged => self.staged.get_or_init(|| search(shape, self.source, Access::Staged, options)),
        };
        routes.get(node as usize)?.as_ref()
    }
}

const PHASES: u32 = Phase::ALL.len() as u32;
const UNREACHED: u32 = u32::MAX;

fn search(shape: &ShapeGraph, source: u32, access: Access, options: &RouteOptions) -> Box<[Option<IslandRoute>]> {
    let count = shape.nodes().len();
    let mut found: Vec<Option<IslandRoute>> = vec![None; count];
    if let Some(local_route) = found.get_mut(source as usize).filter(|_| access == Access::Direct) {
        *local_route = Some(IslandRoute { class: PathClass::Loc, segment: Segment::empty() });
    }
    let mut search = Search {
        shape,
        source,
        access,
        options,
        limit: PathClass::Nvl,
        distance: vec![UNREACHED; count * PHASES as usize],
        queue: Vec::new(),
        crossed: Vec::new(),
        arrivals: Vec::new(),
        arrival_start: vec![0; count * PHASES as usize + 1],
        dense: vec![UNREACHED; count * PHASES as usize],
    };
    let mut reached = 0;
    for class in PathClass::ALL.into_iter().filter(|&class| PathClass::Loc < class && class < PathClass::Net) {
        search.limit = class;
        search.run();
        // No new states: the island has no links of this class, or they reach no further device.
        if search.queue.len() == reached {
            continue;
        }
        reached = search.queue.len();
        search.sort_arrivals();
        for node in 0..count as u32 {
            if found[node as usize].is_none() {
                found[node as usize] = search.route_to(node).map(|segment| IslandRoute { class, segment });
            }
        }
    }
    found.into()
}

#[derive(Clone, Copy, Default)]
struct Crossing {
    from: u32,
    to: u32,
    link: u32,
}

struct Search<'a> {
    shape: &'a ShapeGraph,
    source: u32,
    access: Access,
    options: &'a RouteOptions,
    /// Worst class of the links that the current search may use.
    limit: PathClass,
    /// Distance from the source in links, by device and phase.
    distance: Vec<u32>,
    queue: Vec<u32>,
    /// Links of shortest paths with the states at both ends, in the order of the search.
    crossed: Vec<Crossing>,
    /// Elements of `crossed`, grouped by the state at which they arrive.
    arrivals: Vec<Crossing>,
    arrival_start: Vec<u32>,
    /// Buffer of [`Search::route_to`]: the number of a state in the layered graph.
    dense: Vec<u32>,
}

impl Search<'_> {
    /// Breadth-first search over states, which are pairs of device and phase.
    fn run(&mut self) {
        self.distance.fill(UNREACHED);
        self.queue.clear();
        self.crossed.clear();
        let start = self.start();
        self.distance[start as usize] = 0;
        self.queue.push(start);
        let mut next = 0;
        while let Some(&from) = self.queue.get(next) {
            next += 1;
            let next_distance = self.distance[from as usize] + 1;
            for &link in self.shape.outgoing_links(from / PHASES) {
                let Some(to) = self.cross(from, link) else { continue };
                if self.distance[to as usize] == UNREACHED {
                    self.distance[to as usize] = next_distance;
                    self.queue.push(to);
                }
                if self.distance[to as usize] == next_distance {
                    self.crossed.push(Crossing { from, to, link });
                }
            }
        }
    }

    /// Groups elements of `crossed` by the state at which they arrive (counting sort).
    fn sort_arrivals(&mut self) {
        self.arrival_start.fill(0);
        for crossing in &self.crossed {
            self.arrival_start[crossing.to as usize + 1] += 1;
        }
        for i in 1..self.arrival_start.len() {
            self.arrival_start[i] += self.arrival_start[i - 1];
        }
        let mut next = self.arrival_start.clone();
        self.arrivals.clear();
        self.arrivals.resize(self.crossed.len(), Crossing::default());
        for &crossing in &self.crossed {
            let slot = &mut next[crossing.to as usize];
            self.arrivals[*slot as usize] = crossing;
            *slot += 1;
        }
    }

    fn start(&self) -> u32 {
        let staged = self.access == Access::Staged && self.shape.node(self.source).kind == NodeKind::Cpu;
        self.source * PHASES + if staged { Phase::Mixed } else { Phase::Nvlink } as u32
    }

    /// The state at the other end of a link; `None` if the forwarding rules do not permit the link.
    fn cross(&self, state: u32, link: u32) -> Option<u32> {
        let edge = self.shape.link(link);
        if edge.failed {
            return None;
        }
        let mut at = self.shape.device_context(edge.from, self.source, self.options);
        at.is_source = state == self.start();
        let to = self.shape.device_context(edge.to, self.source, self.options);
        let phase = Phase::ALL[(state % PHASES) as usize];
        let (phase, class) = step(self.access, phase, at, edge.kind, to)?;
        (class <= self.limit).then_some(edge.to * PHASES + phase as u32)
    }

    /// Returns true if a path may end at this device in this phase.
    fn ends(&self, node: u32, phase: Phase) -> bool {
        match self.access {
            Access::Direct => phase != Phase::Relayed || self.shape.node(node).kind == NodeKind::Nic,
            Access::Staged => phase == Phase::Mixed && node != self.source,
        }
    }

    /// All shortest paths to a device, reduced to those that a flow uses ([`select_paths`]).
    fn route_to(&mut self, node: u32) -> Option<Segment> {
        let ends = Phase::ALL.into_iter().filter(|&phase| self.ends(node, phase));
        let ends: Vec<u32> = ends.map(|phase| node * PHASES + phase as u32).collect();
        let length = ends.iter().map(|&end| self.distance[end as usize]).min().filter(|&d| d != UNREACHED)?;
        let mut layer: Vec<u32> = ends.into_iter().filter(|&end| self.distance[end as usize] == length).collect();
        let mut states: Vec<u32> = layer.clone();
        for (number, &state) in states.iter().enumerate() {
            self.dense[state as usize] = number as u32;
        }
        let targets: Vec<u32> = (0..states.len() as u32).collect();

        // Backwards from the end, layer by layer.
        let mut steps = Vec::new();
        for distance in (0..length).rev() {
            let mut before = Vec::new();
            for &state in &layer {
                let arrivals = self.arrival_start[state as usize]..self.arrival_start[state as usize + 1];
                for crossing in &self.arrivals[arrivals.start as usize..arrivals.end as usize] {
                    let from = crossing.from;
                    if self.dense[from as usize] == UNREACHED {
                        self.dense[from as usize] = states.len() as u32;
                        states.push(from);
                        before.push(from);
                    }
                    let edge = self.shape.link(crossing.link);
                    steps.push(LayeredLink {
                        from: self.dense[from as usize],
                        to: self.dense[state as usize],
                        link: crossing.link,
                        multiple: Multiplicity::ONE,
                        layer: distance,
                        bandwidth: bandwidth_key(edge.bandwidth),
                        latency: edge.latency.0,
                    });
                }
            }
            layer = before;
        }
        steps.sort_by_key(|step| (step.layer, step.link));
        let source = self.dense[self.start() as usize];
        for &state in &states {
            self.dense[state as usize] = UNREACHED;
        }
        select_paths(states.len(), source, &targets, &steps, self.options.ecmp, |link, _| u64::MAX - u64::from(link))
    }
}
