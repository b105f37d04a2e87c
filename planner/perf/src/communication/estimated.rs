//! First estimate of call times, from bandwidths and latencies of paths and from the software cost of each step. It
//! ranks layouts and strategies for simulation.

use std::sync::Arc;

use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::fabric::{Figures, Node};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, HostId, NodeId, Picos};
use rustc_hash::FxHashSet;

use super::cost_model::CommunicationCostModel;
use super::exchange::{Exchange, equivalent_all_to_all};
use super::nvlink_peers::NvlinkPeers;
use super::shared_links::PlacedLayout;
use super::simulated::SimulatedCosts;
use crate::time::scaled;
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{Dimension, GroupShape, Layout, TokenExchange};

/// Cost model that estimates call times, to select the layouts and strategies that are simulated. Bytes between
/// neighbours in a domain move at the bandwidth of their path. Bytes that leave an NVLink domain move at the combined
/// NIC bandwidth of the group's ranks in that domain, since rings and trees are distributed over all NICs. Each
/// sequential step adds the latency of its path and the software cost.
pub struct EstimatedCosts<'a> {
    router: &'a Router<'a>,
    profile: &'a Profile,
    ranks: &'a [NodeId],
    /// True if the ranks are in the fabric's GPU order, so that the first group of a dimension represents all groups.
    first_represents_all: bool,
    /// NIC bandwidth of the hosts divided by the number of ranks, in bytes per second; `None` if no NIC states its
    /// speed.
    nic_bandwidth_per_rank: Option<f64>,
    nvlink_peers: Arc<NvlinkPeers>,
}

/// Placement of a group and the properties of its paths.
#[derive(Clone, Copy, Debug)]
struct GroupPaths {
    /// Number of ranks of the group in the NVLink domain of its first rank.
    inside: u32,
    /// Bandwidth between neighbours inside the domain, in bytes per second, and latency of their path.
    near: (f64, Picos),
    /// Bandwidth of a rank to other domains, in bytes per second, and latency of the path.
    far: (f64, Picos),
}

impl<'a> EstimatedCosts<'a> {
    /// Creates the estimate for the ranks of a cost model based on simulation.
    #[must_use]
    pub fn new(simulated: &SimulatedCosts<'a>) -> Self {
        let placement = simulated.placement();
        let (router, ranks) = (placement.router(), placement.ranks());
        Self {
            router,
            profile: simulated.profile(),
            ranks,
            first_represents_all: placement.is_in_fabric_order(),
            nic_bandwidth_per_rank: nic_bandwidth_per_rank(router.fabric(), ranks),
            nvlink_peers: placement.nvlink_peers().clone(),
        }
    }

    /// Returns the software cost of a step inside an NVLink domain, and of a step between domains.
    fn software(&self) -> [Picos; 2] {
        let network = self.profile.network;
        let near = self.profile.protocol(Protocol::Simple).min_software();
        [near, near + network.post + network.fence + network.arrive + network.message]
    }

    /// Returns the paths of the group whose first rank is `begin`; `None` if the group has fewer than two ranks or
    /// exceeds the cluster.
    fn group_paths(&self, begin: u32, GroupShape { size, stride: step, .. }: GroupShape) -> Option<GroupPaths> {
        let device_at = |index: u32| self.ranks.get((begin + index * step) as usize).copied();
        let last = size.checked_sub(1).filter(|&last| last > 0 && device_at(last).is_some())?;
        let first = device_at(0)?;
        let first_domain = self.router.island_of(first);
        let is_near =
            |&index: &u32| device_at(index).is_some_and(|device| self.router.island_of(device) == first_domain);
        // Ranks of a domain are consecutive, unless a scheduler placed them.
        let inside = match self.first_represents_all {
            true => (0..size).take_while(is_near).count(),
            false => (0..size).filter(is_near).count(),
        } as u32;
        let near = if self.first_represents_all { (1..inside).next() } else { (1..size).find(is_near) };
        let far = (inside.min(last)..size).chain(1..size).find(|index| !is_near(index));
        let mut paths = GroupPaths { inside, near: (f64::INFINITY, Picos::ZERO), far: (f64::INFINITY, Picos::ZERO) };
        for to in [near, far, Some(last)].into_iter().flatten().filter_map(device_at) {
            let Ok(path) = self.router.path(first, to) else { continue };
            let is_inside = self.router.island_of(to) == first_domain;
            let (rate, latency) = if is_inside { &mut paths.near } else { &mut paths.far };
            *rate = rate.min(path.bandwidth.map_or(f64::INFINITY, |bandwidth| bandwidth.0 as f64));
            *latency = path.latency.max(*latency);
        }
        if inside < size
            && let Some(nics) = self.nic_bandwidth_per_rank
        {
            paths.far.0 = nics;
        }
        Some(paths)
    }

    /// Returns the estimated completion time of a call of `size` ranks over these paths.
    fn estimate_time(&self, paths: &GroupPaths, exchange: Exchange, size: u32) -> Picos {
        let Exchange { collective, bytes, .. } = exchange;
        let [near, far] = self.software();
        let (inside, total_ranks) = (f64::from(paths.inside.max(1)), f64::from(size));
        let moved = bytes.0 as f64 * collective.busbw_factor(size);
        let leaves = paths.inside < size;
        let domains = size.div_ceil(paths.inside.max(1));
        // In an all-to-all, the bytes for ranks of other domains leave the domain. In rings, traffic leaves over all
        // NICs in parallel.
        let (stay, leave) = match collective {
            Collective::AllToAll => {
                let beyond = (total_ranks - inside).max(0.0) / (total_ranks - 1.0).max(1.0);
                (moved * (1.0 - beyond), moved * beyond)
            }
            Collective::SendRecv => (moved, moved),
            _ => (moved, moved / inside),
        };
        let stay = if paths.inside > 1 { stay / paths.near.0 } else { 0.0 };
        let leave = if leaves { leave / paths.far.0 } else { 0.0 };
        let doublings = |ranks: u32| u64::from(ranks.next_power_of_two().trailing_zeros());
        let (near_steps, far_steps) = match collective {
            Collective::SendRecv => (u64::from(!leaves), u64::from(leaves)),
            // A ring that spans several domains, with several ranks in the first one.
            Collective::AllGather | Collective::ReduceScatter if leaves && paths.inside > 1 => {
                (u64::from(size.saturating_sub(domains)), u64::from(domains.saturating_sub(1)))
            }
            // Steps up and down a tree.
            Collective::AllReduce => (2 * doublings(paths.inside), 2 * doublings(domains)),
            _ => (doublings(paths.inside), doublings(domains)),
        };
        let latency = scaled(paths.near.1 + near, near_steps) + scaled(paths.far.1 + far, far_steps);
        Picos((stay.max(leave) * 1e12) as u64) + latency
    }
}

/// Returns the total NIC bandwidth of all hosts with ranks divided by the number of ranks, in bytes per second; `None`
/// if no NIC states its speed.
fn nic_bandwidth_per_rank(fabric: &Fabric, ranks: &[NodeId]) -> Option<f64> {
    let hosts: FxHashSet<HostId> = ranks.iter().map(|&device| fabric.node(device).host).collect();
    let speed = |(_, node): (NodeId, &Node)| match &node.figures {
        Figures::Nic(figures) if hosts.contains(&node.host) => figures.speed,
        _ => None,
    };
    let all: f64 = fabric.nodes().filter_map(speed).map(|speed| speed.0 as f64).sum();
    (all > 0.0).then(|| all / ranks.len().max(1) as f64)
}

impl CommunicationCostModel for EstimatedCosts<'_> {
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        let shape = layout.shape(exchange.dimension);
        let group_time = |begin: u32| Some(self.estimate_time(&self.group_paths(begin, shape)?, exchange, shape.size));
        let max_groups = if self.first_represents_all { 1 } else { usize::MAX };
        let first_ranks = shape.first_ranks(self.ranks.len() as u64).take(max_groups);
        Ok(first_ranks.filter_map(group_time).max().unwrap_or_default())
    }

    /// Completion time of an all_to_all of the copies that cross the network. Kernels that forward tokens send one copy
    /// of a token per domain.
    fn token_exchange_time(&self, layout: &Layout, exchange: &TokenExchange) -> Result<Picos, PlanError> {
        let all_to_all = equivalent_all_to_all(layout, exchange);
        let shape = layout.shape(Dimension::Expert);
        let inside = self.group_paths(0, shape).map_or(1, |paths| paths.inside).max(1);
        let routing = exchange.routing().ok().filter(|_| exchange.kernel.forwards_in_domains() && inside < shape.size);
        let Some(routing) = routing else { return self.time(layout, all_to_all) };
        let domains = f64::from(shape.size) / f64::from(inside);
        let copies = domains * routing.hit_probability(0, exchange.experts / shape.size * inside);
        let share = (copies / f64::from(exchange.top_k)).min(1.0);
        let bytes = Bytes((all_to_all.bytes.0 as f64 * share).ceil() as u64);
        self.time(layout, Exchange { bytes, ..all_to_all })
    }

    fn is_connected_by_nvlink(&self, layout: &Layout, dimension: Dimension) -> bool {
        self.nvlink_peers.connect(self.router, self.ranks, layout, dimension)
    }

    fn has_amd_gpus(&self) -> bool {
        self.ranks.first().is_some_and(|&rank| self.router.fabric().node(rank).is_amd())
    }

    fn share_links(&self, layout: &Layout, one: Dimension, other: Dimension) -> bool {
        PlacedLayout { router: self.router, ranks: self.ranks, layout }.share_links(one, other)
    }
}
