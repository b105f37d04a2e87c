//! Lower bounds on the completion time of any schedule.
//!
//! ```text
//! routes ─► transits ─► parts: devices, hosts, racks, groups under switches ──► demand ──────┐
//!                  └──► wiring ─► cut: minimum cuts by maximum flow (flow), one start per    ├─► lines ─► max
//!                            │         set of twins (twins) or per colour (colour)           │
//!                            └──► distance, lengths: shortest paths ─────────────────────────┘
//! ```
//!
//! **Cuts.** A collective moves a minimum of bytes out of any set of ranks, for any schedule. The bandwidth of the
//! links across the boundary of the set determines the time; the latency of the shortest route across, for the first
//! byte, is added. Distinguished sets are examined one by one (`parts`). The slowest of all sets for all_gather,
//! reduce_scatter, broadcast, reduce, gather and scatter is found by maximum flow (`cut`): for these, the throughput
//! bound is exact, that is, some schedule of unlimited granularity reaches it on this graph.
//!
//! **All_reduce** crosses every cut once in each direction. If only ranks reduce, *k* disjoint sets receive 2(*k* − 1)
//! times the buffer in total: before the first of the sets holds the sum, each other set has sent a buffer, and after
//! that each other set must still receive one (Patarasuk & Yuan, *Bandwidth optimal all-reduce algorithms*, JPDC 2009,
//! §3, for single ranks). If switches reduce and multicast ([`InNetwork::Allowed`]), this holds only for sets without
//! such switches between them. The slowest partition of the devices is found exactly (`partition`). Twice the bound of
//! all_gather is not a lower bound for all_reduce, because a slow rank among fast ones need not reduce a part of the
//! buffer.
//!
//! **All_to_all** crosses each cut in both directions. Its slowest cut is NP-hard to find, so minimum cuts around fixed
//! sets are taken: all sets of up to 8 devices, hosts and racks of more. The sum over all pairs of bytes × shortest
//! path, for any lengths of links, must also fit into the capacity of the links: the dual of the multicommodity flow
//! (`lengths`). With the best lengths (`best_lengths`), which are sought unless the graph is large, this is nearly exact.
//!
//! **All_to_allv** is bounded by the bytes that its matrix moves out of distinguished sets, and by lengths (`uneven`).
//!
//! **Latency**: every rank that depends on another receives its data over the shortest path, which may pass through
//! other ranks (`distance`).
//!
//! Capacity counts only links that routes may use (`wiring`): links that routing leaves idle (PCIe next to an NVSwitch)
//! add nothing. A bound therefore holds for a fabric under its routing. Transfers whose routes replace others after
//! failures are charged with both ([`Substitution`](fabricast_topologies::route::Substitution)), so that the bounds for
//! the fabric as built hold as well, and the larger one counts. Devices that share NICs, as after a NIC failure, have at
//! most the bandwidth of these in total (`parts`). Above [`MAX_SEARCHED_DEVICES`] devices, only the distinguished sets
//! (parts) are examined, which is also exact for hosts with equal GPUs.

mod best_lengths;
mod colour;
mod crossing;
pub(crate) mod cut;
mod demand;
mod device_demand;
mod distance;

mod graph;
mod lengths;
pub(crate) mod line;
pub(crate) mod partition;
mod parts;
mod source;
#[cfg(test)]
mod tests;
mod twins;
mod uneven;
pub(crate) mod wiring;

use std::sync::OnceLock;

use fabricast_sim::schedule::{Call, Collective, TrafficMatrix};
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::Router;
use fabricast_topologies::{Fabric, NodeId, Picos};
use rustc_hash::FxHashSet;

use crate::flow;
use demand::Demand;
pub use demand::minimum_traffic;
use graph::Graph;
use line::{LinearBound, Share, upper_envelope};
use parts::{BoundaryCapacity, Level, PartsInput, SwitchesBetween};
pub use source::BoundSource;

/// Maximum number of devices for which cuts and paths are searched. Above it, only the sets of [`Bounds::from_parts`]
/// are used.
pub const MAX_SEARCHED_DEVICES: usize = 2048;

/// Use of reduction and multicast in switches. The flag `--no-nvls` disables it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InNetwork {
    /// Every switch with this capability reduces and multicasts.
    #[default]
    Allowed,
    /// Only ranks reduce, and they send a separate copy to each receiver.
    Off,
}

/// Lower bound and its limiting resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Lower bound on the completion time.
    pub time: Picos,
    /// Part of `time` that moving the bytes needs at nominal rates; the rest is latency.
    pub transfer: Picos,
    /// Resource that sets the bound.
    pub limited_by: BoundSource,
}

/// Sharing of devices among ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Every rank has a separate device.
    None,
    /// Some ranks share a device.
    Some,
}

/// Fraction of nominal rates that transfers achieve, 0 to 1, for which a bound is requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateEfficiency {
    /// Payload ÷ bytes on the wire.
    pub wire: f64,
    /// Achieved ÷ nominal rate of any link.
    pub links: f64,
}

/// Lower bounds of all calls over a set of ranks with one root.
#[derive(Clone, Debug)]
pub struct Bounds {
    ranks: u32,
    in_network: InNetwork,
    levels: Vec<Level>,
    graph: Option<Graph>,
    /// Treatment of the limits of switches on their total forwarding rate.
    crossbars: Crossbars,
    /// Matrix of an all_to_allv; `None` if it is not known, so that an all_to_allv has no bound.
    matrix: Option<TrafficMatrix>,
    /// Bounds by collective and by in-network reduction, computed on first use.
    lines: Vec<OnceLock<Vec<LinearBound>>>,
    /// Bounds for the fabric as built, which also hold; `None` if no link is out of service.
    as_built: Option<Box<Bounds>>,
}

/// Limit on the total forwarding rate of switches, which the efficiency of links does not affect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crossbars {
    Unlimited,
    Limited,
}

impl Bounds {
    /// Computes the bounds for ranks from the routes between them. `placement`: device of each rank, in order of rank.
    #[must_use]
    pub fn new(fabric: &Fabric, router: &Router<'_>, placement: &[NodeId], root: u32) -> Self {
        Self::with_search_limit(fabric, router, placement, root, MAX_SEARCHED_DEVICES)
    }

    /// Computes bounds only from the distinguished sets of ranks (parts). This is much faster than [`Self::new`], and
    /// the bounds never exceed those of [`Self::new`].
    #[must_use]
    pub fn from_parts(fabric: &Fabric, router: &Router<'_>, placement: &[NodeId], root: u32) -> Self {
        Self::with_search_limit(fabric, router, placement, root, 0)
    }

    /// Computes the bounds. Cuts and paths are searched if there are at most `max_devices` devices.
    fn with_search_limit(
        fabric: &Fabric,
        router: &Router<'_>,
        placement: &[NodeId],
        root: u32,
        max_devices: usize,
    ) -> Self {
        let mut seen = FxHashSet::default();
        let devices: Vec<NodeId> = placement.iter().copied().filter(|&device| seen.insert(device)).collect();
        let transits = router.island_traffic(&devices);
        let links = wiring::used_links(fabric, router, &transits);
        let survey = PartsInput { fabric, router, placement, transits: &transits, links: &links, root };
        let mut levels = survey.levels();
        let searched = (2..=max_devices).contains(&devices.len());
        let graph = searched.then(|| Graph::new(&survey, &devices));
        if let Some(graph) = &graph {
            graph.tighten_bounds(&mut levels);
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
            as_built: router
                .as_built()
                .map(|built| Box::new(Self::with_search_limit(built.fabric(), built, placement, root, max_devices))),
        }
    }

    /// Returns these bounds for an all_to_allv with this matrix. Without a matrix, an all_to_allv has no bound.
    #[must_use]
    pub fn with_matrix(mut self, matrix: Option<&TrafficMatrix>) -> Self {
        self.matrix = matrix.cloned();
        for lines in self.lines.iter_mut().skip(2 * Collective::AllToAllV as usize).take(2) {
            *lines = OnceLock::new();
        }
        self.as_built = self.as_built.map(|built| Box::new(built.with_matrix(matrix)));
        self
    }

    /// Returns these bounds with or without reduction and multicast in switches. The default is [`InNetwork::Allowed`].
    #[must_use]
    pub fn with_in_network(self, in_network: InNetwork) -> Self {
        Self { in_network, ..self }
    }

    /// Returns the lower bound of a call over all ranks.
    #[must_use]
    pub fn bound(&self, call: &Call) -> Bound {
        let none = Bound { time: Picos::ZERO, transfer: Picos::ZERO, limited_by: BoundSource::Latency };
        let lines = self.lines(call.collective, self.in_network);
        lines.iter().map(|line| line.at(call.bytes)).fold(none, |a, b| if b.time > a.time { b } else { a })
    }

    /// Returns a lower bound on the completion time of a call if transfers reach only a fraction of nominal rates.
    #[must_use]
    pub fn time_at_efficiency(&self, call: &Call, in_network: InNetwork, efficiency: RateEfficiency) -> Picos {
        let time = |line: &LinearBound| {
            let bound = line.at(call.bytes);
            let fraction =
                if bound.limited_by == BoundSource::RankMemory { 1.0 } else { self.rate_fraction(efficiency) };
            line.latency + Picos((bound.transfer.0 as f64 / fraction) as u64)
        };
        self.lines(call.collective, in_network).iter().map(time).max().unwrap_or(Picos::ZERO)
    }

    /// Returns [`Sharing::Some`] if several ranks are on one device.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        let devices = self.levels.first().map_or(0, |level| level.parts.len());
        // There is no level of devices if the ranks occupy fewer than two devices.
        if devices == self.ranks as usize || self.ranks < 2 { Sharing::None } else { Sharing::Some }
    }

    /// Returns a lower bound on the time in which a rank sends `bytes` bytes, if transfers reach only a fraction of
    /// nominal rates.
    #[must_use]
    pub fn send_time_at_efficiency(&self, bytes: f64, efficiency: RateEfficiency) -> Picos {
        let built = self.as_built.as_ref().map(|built| built.send_time_at_efficiency(bytes, efficiency));
        self.own_send_time(bytes, efficiency).max(built.unwrap_or(Picos::ZERO))
    }

    fn own_send_time(&self, bytes: f64, efficiency: RateEfficiency) -> Picos {
        let ports = self.levels.first().map_or(&[][..], |level| &level.parts);
        let widest = ports.iter().map(|part| part.out.through / u128::from(part.ranks.max(1))).max();
        let Some(widest) = widest.filter(|&widest| widest > 0) else { return Picos::ZERO };
        if ports.iter().any(|part| part.out.through == flow::UNLIMITED || part.ranks > 1) {
            return Picos::ZERO;
        }
        Picos((bytes * 1e12 / (widest as f64 * self.rate_fraction(efficiency))) as u64)
    }

    /// Returns an upper bound on the fraction of nominal rates that transfers reach.
    fn rate_fraction(&self, efficiency: RateEfficiency) -> f64 {
        let fraction = match self.crossbars {
            Crossbars::Limited => efficiency.wire,
            Crossbars::Unlimited => efficiency.wire * efficiency.links,
        };
        fraction.clamp(1e-6, 1.0)
    }

    /// Returns the time before which no byte arrives at any rank.
    #[must_use]
    pub fn first_byte(&self) -> Picos {
        let parts = self.levels.iter().flat_map(|level| &level.parts);
        let own = parts.map(|part| part.into.nearest.min(part.out.nearest)).min().unwrap_or(Picos::ZERO);
        self.as_built.as_ref().map_or(own, |built| own.max(built.first_byte()))
    }

    fn lines(&self, collective: Collective, in_network: InNetwork) -> &[LinearBound] {
        let slot = self.lines.get(2 * (collective as usize) + in_network as usize);
        slot.map_or(&[], |slot| slot.get_or_init(|| self.all_bounds(collective, in_network)))
    }

    fn all_bounds(&self, collective: Collective, in_network: InNetwork) -> Vec<LinearBound> {
        let mut lines = self.compute_bounds(collective, in_network);
        lines.extend(self.as_built.iter().flat_map(|built| built.lines(collective, in_network).iter().cloned()));
        upper_envelope(lines)
    }

    fn compute_bounds(&self, collective: Collective, in_network: InNetwork) -> Vec<LinearBound> {
        if collective == Collective::AllToAllV {
            return self.compute_matrix_bounds();
        }
        let mut lines = Vec::new();
        for level in &self.levels {
            for part in &level.parts {
                let demand = Demand::new(collective, part, self.ranks);
                let crossings = [(demand.into, part.into), (demand.out, part.out)];
                for (share, boundary) in crossings.into_iter().filter_map(|(share, boundary)| Some((share?, boundary)))
                {
                    lines.push(LinearBound::crossing(share, boundary, level.source.clone()));
                }
                if let Some(line) = memory(&demand, part) {
                    lines.push(line);
                }
            }
            lines = upper_envelope(lines);
        }
        if collective == Collective::AllReduce {
            for level in &self.levels {
                if in_network == InNetwork::Off || level.switches_between == SwitchesBetween::None {
                    lines.extend(total_traffic_bounds(level));
                }
            }
        }
        if let Some(graph) = &self.graph {
            // Every switch is between single devices.
            let devices = self.levels.first().map(|level| level.switches_between);
            let only_ranks_reduce = in_network == InNetwork::Off || devices == Some(SwitchesBetween::None);
            if collective == Collective::AllReduce && only_ranks_reduce {
                lines.extend(graph.partition_bounds(self.first_byte()));
            }
            lines.extend(graph.bounds(collective, &self.levels, self.first_byte()));
        }
        upper_envelope(lines)
    }

    fn compute_matrix_bounds(&self) -> Vec<LinearBound> {
        let Some(matrix) = self.matrix.as_ref().filter(|matrix| matrix.ranks() == self.ranks) else {
            return Vec::new();
        };
        let mut lines: Vec<LinearBound> =
            self.levels.iter().flat_map(|level| uneven::level_bounds(level, matrix)).collect();
        if let Some(graph) = &self.graph {
            lines.extend(uneven::graph_bounds(graph, matrix, self.first_byte()));
        }
        upper_envelope(lines)
    }
}

/// Returns the lower bound due to device memory, which reads outgoing data and writes incoming data.
fn memory(demand: &Demand, part: &parts::RankSet) -> Option<LinearBound> {
    let through = part.memory?;
    let zero = Share::new(0, 1);
    let (into, out) = (demand.into.unwrap_or(zero), demand.out.unwrap_or(zero));
    let sum = into.numerator * out.denominator + out.numerator * into.denominator;
    let nearest = part.into.nearest.min(part.out.nearest);
    let share = Share::new(sum, into.denominator * out.denominator);
    Some(LinearBound::crossing(share, BoundaryCapacity { through, nearest }, BoundSource::RankMemory))
}

/// Returns the lower bounds due to the total traffic into and out of all sets of a level, for an all_reduce in which
/// only ranks reduce.
fn total_traffic_bounds(level: &Level) -> [LinearBound; 2] {
    let moved = 2 * (level.parts.len() as u128).saturating_sub(1);
    let into: fn(&parts::RankSet) -> BoundaryCapacity = |part| part.into;
    let out: fn(&parts::RankSet) -> BoundaryCapacity = |part| part.out;
    [(into, level.into), (out, level.out)].map(|(boundary, limit)| {
        let boundaries = || level.parts.iter().map(boundary);
        let through = boundaries().map(|boundary| boundary.through).fold(0, flow::sum).min(limit);
        let nearest = boundaries().map(|boundary| boundary.nearest).min().unwrap_or(Picos::ZERO);
        LinearBound::crossing(Share::new(moved, 1), BoundaryCapacity { through, nearest }, level.source.clone())
    })
}
