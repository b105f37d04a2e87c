//! What no schedule can beat.
//!
//! ```text
//! routes ─► transits ─► parts: devices, hosts, racks, groups under switches ──► demand ──────┐
//!                  └──► wiring ─► cut: least cuts by maximum flow (flow), from ranks that    ├─► lines ─► max
//!                            │         are no twins (twins) or look unlike (colour)      │
//!                            └──► distance, lengths: shortest ways ──────────────────────────┘
//! ```
//!
//! **Cuts.** A collective forces bytes out of any set of ranks, whatever the schedule; with what the links there carry
//! that takes time, and the first byte takes the latency of the shortest route across besides. Sets that stand out
//! are looked at one by one (`parts`); of all sets, the slowest for all_gather, reduce_scatter, broadcast, reduce,
//! gather and scatter is found by maximum flow (`cut`): for these the throughput bound is exact, in that
//! some schedule of unlimited fineness reaches it on this graph.
//!
//! **All_reduce** passes every cut once each way. Where only ranks reduce, *k* disjoint sets receive 2(*k* − 1) times
//! the buffer in all: before the first of them holds the sum each other one has sent something, and after that each
//! other one must still receive something (Patarasuk & Yuan, *Bandwidth optimal all-reduce algorithms*, JPDC 2009, §3,
//! for single ranks). Where switches reduce and multicast ([`InNetwork::Allowed`]) this holds only for sets with none of
//! these switches between them. Twice the bound of all_gather is not a bound: one slow rank among fast ones need not
//! reduce a part of its own.
//!
//! **All_to_all** also needs the sum over all pairs of bytes × shortest way, by any lengths of links, to fit into what
//! the links carry: the dual of the multicommodity flow, here with equal lengths for links of one kind (`lengths`).
//!
//! **All_to_allv** is bounded by what its matrix forces out of sets that stand out, and by lengths (`uneven`).
//!
//! **Latency**: every rank that a collective makes depend on another hears from it by the shortest way, by way of other
//! ranks too (`distance`).
//!
//! What counts as capacity is what routes may take (`wiring`): links that routing leaves idle (PCIe beside an NVSwitch) add
//! nothing. So a bound is that of a fabric under its routing. A failure opens no way that did not count before it: NVLinks by
//! which ranks relay are those by which they send for themselves; where NVLinks join only some GPUs, PCIe counts beside them. (Where every
//! two GPUs have an NVLink, the PCIe that stands in for one is no wider.) Devices that share NICs, as they do after one has failed,
//! get no more together than these carry (`parts`).
//! Above [`MOST_DEVICES`] devices only parts are looked at, which on hosts of equal GPUs is exact too.

mod colour;
mod crossing;
mod cut;
mod demand;
mod distance;
mod flow;
mod graph;
mod lengths;
mod line;
mod parts;
mod source;
#[cfg(test)]
mod tests;
mod twins;
mod uneven;
mod wiring;

use std::sync::OnceLock;

use fabricast_sim::schedule::{Call, Collective, Matrix};
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::Router;
use fabricast_topologies::{Fabric, NodeId, Picos};
use rustc_hash::FxHashSet;

use demand::Demand;
pub use demand::least_traffic;
use graph::Graph;
use line::{Line, Share, keep_highest};
use parts::{Level, Survey, SwitchesBetween, Way};
pub use source::BoundSource;

/// Up to this many devices, cuts and ways are searched; above, each set of ranks stands as it is.
pub const MOST_DEVICES: usize = 2048;

/// Whether switches reduce and multicast where they can (`--no-nvls` takes it away).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InNetwork {
    /// Where a switch can.
    #[default]
    Allowed,
    /// Ranks reduce, and send one copy to each.
    Off,
}

/// A bound and what sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// No schedule takes less.
    pub time: Picos,
    /// The part of it that bytes need, at nominal rates.
    pub transfer: Picos,
    /// What sets it.
    pub set_by: BoundSource,
}

/// Whether several ranks are on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Every rank has a device of its own.
    None,
    /// Some share one.
    Some,
}

/// What transfers reach of nominal rates, 0 to 1: under which a bound is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiency {
    /// Payload ÷ bytes on the wire.
    pub wire: f64,
    /// Of the rate of any link.
    pub links: f64,
}

/// The bounds of all calls over some ranks with one root.
#[derive(Clone, Debug)]
pub struct Bounds {
    ranks: u32,
    in_network: InNetwork,
    levels: Vec<Level>,
    graph: Option<Graph>,
    /// Whether a switch limits what it forwards in all.
    crossbars: Crossbars,
    /// Of an all_to_allv.
    matrix: Option<Matrix>,
    /// By collective, and by whether switches reduce; worked out when first asked for.
    lines: Vec<OnceLock<Vec<Line>>>,
}

/// Whether switches limit what they forward in all, which no link's efficiency touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crossbars {
    Unlimited,
    Limited,
}

impl Bounds {
    /// Reads what bounds ranks on `placement` (the device of each) off the routes between them.
    #[must_use]
    pub fn new(fabric: &Fabric, router: &Router<'_>, placement: &[NodeId], root: u32) -> Self {
        Self::searched(fabric, router, placement, root, MOST_DEVICES)
    }

    /// The same of parts alone, which takes a fraction of the time: never more than [`Self::new`] says.
    #[must_use]
    pub fn of_parts(fabric: &Fabric, router: &Router<'_>, placement: &[NodeId], root: u32) -> Self {
        Self::searched(fabric, router, placement, root, 0)
    }

    /// Of up to so many devices cuts and ways are searched.
    fn searched(fabric: &Fabric, router: &Router<'_>, placement: &[NodeId], root: u32, most: usize) -> Self {
        let mut seen = FxHashSet::default();
        let devices: Vec<NodeId> = placement.iter().copied().filter(|&device| seen.insert(device)).collect();
        let transits = router.transits(&devices);
        let links = wiring::used_links(fabric, router, &transits);
        let survey = Survey { fabric, router, placement, transits: &transits, links: &links, root };
        let mut levels = survey.levels();
        let searched = (2..=most).contains(&devices.len());
        let graph = searched.then(|| Graph::new(&survey, &devices));
        if let Some(graph) = &graph {
            graph.sharpen(&mut levels);
        }
        let limited = fabric.nodes().any(|(_, node)| match &node.figures {
            Figures::Switch(figures) => figures.capacity.is_some(),
            _ => false,
        });
        Self {
            ranks: placement.len() as u32,
            in_network: InNetwork::default(),
            levels,
            graph,
            crossbars: if limited { Crossbars::Limited } else { Crossbars::Unlimited },
            matrix: None,
            lines: vec![OnceLock::new(); 2 * Collective::ALL.len()],
        }
    }

    /// The same for an all_to_allv of this matrix; without one, nothing bounds an all_to_allv.
    #[must_use]
    pub fn with_matrix(mut self, matrix: Option<&Matrix>) -> Self {
        self.matrix = matrix.cloned();
        for lines in self.lines.iter_mut().skip(2 * Collective::AllToAllV as usize).take(2) {
            *lines = OnceLock::new();
        }
        self
    }

    /// The same with or without reduction and multicast in switches; [`InNetwork::Allowed`] unless this says otherwise.
    #[must_use]
    pub fn with(self, in_network: InNetwork) -> Self {
        Self { in_network, ..self }
    }

    /// The bound of a call over all ranks.
    #[must_use]
    pub fn of(&self, call: &Call) -> Bound {
        let none = Bound { time: Picos::ZERO, transfer: Picos::ZERO, set_by: BoundSource::Latency };
        let lines = self.lines(call.collective, self.in_network);
        lines.iter().map(|line| line.at(call.bytes)).fold(none, |a, b| if b.time > a.time { b } else { a })
    }

    /// What a call takes at least where transfers reach only a part of nominal rates, and switches reduce or not.
    #[must_use]
    pub fn reached(&self, call: &Call, in_network: InNetwork, efficiency: Efficiency) -> Picos {
        let time = |line: &Line| {
            let bound = line.at(call.bytes);
            let part = if bound.set_by == BoundSource::RankMemory { 1.0 } else { self.part(efficiency) };
            line.latency + Picos((bound.transfer.0 as f64 / part) as u64)
        };
        self.lines(call.collective, in_network).iter().map(time).max().unwrap_or(Picos::ZERO)
    }

    /// Whether several ranks are on one device.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        let devices = self.levels.first().map_or(0, |level| level.parts.len());
        // One device, or none, makes no level.
        if devices == self.ranks as usize || self.ranks < 2 { Sharing::None } else { Sharing::Some }
    }

    /// What any rank needs to send this many bytes, where transfers reach only a part of nominal rates.
    #[must_use]
    pub fn sending(&self, bytes: f64, efficiency: Efficiency) -> Picos {
        let ports = self.levels.first().map_or(&[][..], |level| &level.parts);
        let widest = ports.iter().map(|part| part.out.through / u128::from(part.ranks.max(1))).max();
        let Some(widest) = widest.filter(|&widest| widest > 0) else { return Picos::ZERO };
        if ports.iter().any(|part| part.out.through == flow::UNLIMITED || part.ranks > 1) {
            return Picos::ZERO;
        }
        Picos((bytes * 1e12 / (widest as f64 * self.part(efficiency))) as u64)
    }

    /// What of nominal rates transfers reach at most.
    fn part(&self, efficiency: Efficiency) -> f64 {
        let part = match self.crossbars {
            Crossbars::Limited => efficiency.wire,
            Crossbars::Unlimited => efficiency.wire * efficiency.links,
        };
        part.clamp(1e-6, 1.0)
    }

    /// Before this no byte arrives anywhere.
    #[must_use]
    pub fn first_byte(&self) -> Picos {
        let parts = self.levels.iter().flat_map(|level| &level.parts);
        parts.map(|part| part.into.nearest.min(part.out.nearest)).min().unwrap_or(Picos::ZERO)
    }

    fn lines(&self, collective: Collective, in_network: InNetwork) -> &[Line] {
        let slot = self.lines.get(2 * (collective as usize) + in_network as usize);
        slot.map_or(&[], |slot| slot.get_or_init(|| self.work_out(collective, in_network)))
    }

    fn work_out(&self, collective: Collective, in_network: InNetwork) -> Vec<Line> {
        if collective == Collective::AllToAllV {
            return self.work_out_matrix();
        }
        let mut lines = Vec::new();
        for level in &self.levels {
            for part in &level.parts {
                let demand = Demand::of(collective, part, self.ranks);
                let crossings = [(demand.into, part.into), (demand.out, part.out)];
                for (share, way) in crossings.into_iter().filter_map(|(share, way)| Some((share?, way))) {
                    lines.push(Line::crossing(share, way, level.source.clone()));
                }
                if let Some(line) = memory((demand.into, demand.out), part) {
                    lines.push(line);
                }
            }
            lines = keep_highest(lines);
        }
        if collective == Collective::AllReduce {
            for level in &self.levels {
                if in_network == InNetwork::Off || level.switches_between == SwitchesBetween::None {
                    lines.extend(all_parts(level));
                }
            }
        }
        if let Some(graph) = &self.graph {
            lines.extend(graph.lines(collective, &self.levels, self.first_byte()));
        }
        keep_highest(lines)
    }

    fn work_out_matrix(&self) -> Vec<Line> {
        let Some(matrix) = self.matrix.as_ref().filter(|matrix| matrix.ranks() == self.ranks) else {
            return Vec::new();
        };
        let mut lines: Vec<Line> = self.levels.iter().flat_map(|level| uneven::of_level(level, matrix)).collect();
        if let Some(graph) = &self.graph {
            lines.extend(uneven::of_graph(graph, matrix, self.first_byte()));
        }
        keep_highest(lines)
    }
}

/// A memory reads what goes out, and writes what comes in.
fn memory((into, out): (Option<Share>, Option<Share>), part: &parts::Part) -> Option<Line> {
    let through = part.memory?;
    let zero = Share::new(0, 1);
    let (into, out) = (into.unwrap_or(zero), out.unwrap_or(zero));
    let sum = into.numerator * out.denominator + out.numerator * into.denominator;
    let nearest = part.into.nearest.min(part.out.nearest);
    let share = Share::new(sum, into.denominator * out.denominator);
    Some(Line::crossing(share, Way { through, nearest }, BoundSource::RankMemory))
}

/// What all sets of a level together need for an all_reduce in which only ranks reduce, into and out of them.
fn all_parts(level: &Level) -> [Line; 2] {
    let moved = 2 * (level.parts.len() as u128).saturating_sub(1);
    let into: fn(&parts::Part) -> Way = |part| part.into;
    let out: fn(&parts::Part) -> Way = |part| part.out;
    [(into, level.into), (out, level.out)].map(|(way, most)| {
        let ways = || level.parts.iter().map(way);
        let through = ways().fold(0, |sum: u128, way| (sum + way.through).min(most));
        let nearest = ways().map(|way| way.nearest).min().unwrap_or(Picos::ZERO);
        Line::crossing(Share::new(moved, 1), Way { through, nearest }, level.source.clone())
    })
}
