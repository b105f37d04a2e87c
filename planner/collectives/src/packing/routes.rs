//! Routes between ranks, with the load that trees place on links.

use std::collections::BTreeMap;

use fabricast_topologies::route::{Hop, Participants, Router};
use fabricast_topologies::{Fabric, LinkId, NodeId, Picos};
use rustc_hash::{FxHashMap, FxHashSet};

use super::forest::{Connection, DividedLoad, Forest, PackedTree};
use super::optimum::Ratio;
use crate::union_find::{join, root};

/// Routes between all pairs of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Routes {
    ranks: u32,
    /// Route of each pair, by sender, then receiver; `None` if there is none.
    pairs: Vec<Option<Route>>,
    /// Links that some route uses.
    links: FxHashMap<LinkId, UsedLink>,
}

/// Link that some route uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UsedLink {
    from: NodeId,
    to: NodeId,
    /// Bytes per second; `None` if unlimited.
    rate: Option<u64>,
}

/// Route of a pair of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Route {
    hops: Vec<Hop>,
    /// Devices between the two ranks.
    devices: FxHashSet<NodeId>,
    /// True if another rank forwards the data.
    is_relayed: bool,
    latency: Picos,
}

/// Direction in which data moves through trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// From parents to children.
    Spread,
    /// From children to parents.
    Collect,
}

impl Flow {
    /// Sender and receiver of a tree's edge.
    pub(crate) fn ends(self, parent: u32, child: u32) -> (u32, u32) {
        match self {
            Self::Spread => (parent, child),
            Self::Collect => (child, parent),
        }
    }
}

impl Routes {
    /// Finds the routes between all pairs of ranks.
    pub(crate) fn new(fabric: &Fabric, router: &Router<'_>, placement: &[NodeId]) -> Self {
        let participants = Participants::new(placement);
        let ranks: FxHashSet<NodeId> = placement.iter().copied().collect();
        let mut pairs = Vec::with_capacity(placement.len() * placement.len());
        let mut links = FxHashMap::default();
        for &from in placement {
            for &to in placement {
                let path = router.path_for_participants(&participants, from, to).ok().filter(|_| from != to);
                pairs.push(path.map(|path| {
                    let ends = path.hops.iter().map(|hop| fabric.ends(hop.link).1);
                    let devices: FxHashSet<NodeId> = ends.filter(|&device| device != to).collect();
                    for hop in &path.hops {
                        let link = fabric.link(hop.link);
                        let rate = link.bandwidth.map(|rate| rate.0);
                        links.insert(hop.link, UsedLink { from: link.from, to: link.to, rate });
                    }
                    let is_relayed = devices.iter().any(|device| ranks.contains(device));
                    Route { hops: path.hops, devices, is_relayed, latency: path.latency }
                }));
            }
        }
        Self { ranks: placement.len() as u32, pairs, links }
    }

    fn route(&self, from: u32, to: u32) -> Option<&Route> {
        self.pairs.get((from * self.ranks + to) as usize)?.as_ref()
    }

    /// Returns true if data can move between two ranks.
    pub(crate) fn is_reachable(&self, from: u32, to: u32) -> bool {
        self.route(from, to).is_some()
    }

    /// Returns true if data between two ranks passes no other rank.
    pub(crate) fn is_direct(&self, from: u32, to: u32) -> bool {
        self.route(from, to).is_some_and(|route| !route.is_relayed)
    }

    /// Returns true if data between two ranks passes a device, and no other rank.
    pub(crate) fn is_direct_through(&self, from: u32, to: u32, device: NodeId) -> bool {
        self.route(from, to).is_some_and(|route| !route.is_relayed && route.devices.contains(&device))
    }

    /// Bytes per second of the used links that leave a set of devices; `None` if one is unlimited.
    pub(crate) fn leaving(&self, set: &FxHashSet<NodeId>) -> Option<u128> {
        self.total_rate(|link| set.contains(&link.from) && !set.contains(&link.to))
    }

    /// Bytes per second of the used links that enter a set of devices; `None` if one is unlimited.
    pub(crate) fn entering(&self, set: &FxHashSet<NodeId>) -> Option<u128> {
        self.total_rate(|link| !set.contains(&link.from) && set.contains(&link.to))
    }

    /// Total rate of some links in bytes per second; `None` if one has no stated rate.
    fn total_rate(&self, is_counted: impl Fn(&UsedLink) -> bool) -> Option<u128> {
        self.links.values().filter(|link| is_counted(link)).map(|link| link.rate.map(u128::from)).sum()
    }

    /// Time that the busiest link needs for the data of a forest, in seconds per byte of the call, whose buffer is
    /// divided into equal blocks; `None` if an edge has no route or the numbers exceed 128 bits. Several forests share links.
    pub(crate) fn time_per_byte(&self, forests: &[(&Forest, Flow)]) -> Option<Ratio> {
        let mut loads: FxHashMap<LinkId, Ratio> = FxHashMap::default();
        for &(forest, flow) in forests {
            let parts = u128::from(forest.units) * u128::from(forest.parts(self.ranks));
            let mut units: FxHashMap<(u32, u32), u128> = FxHashMap::default();
            for tree in &forest.trees {
                for ((parent, child), carried) in forest.edge_units(tree) {
                    *units.entry(flow.ends(parent, child)).or_default() += u128::from(carried);
                }
            }
            for ((from, to), units) in units {
                for hop in &self.route(from, to)?.hops {
                    let share =
                        Ratio::new(units * u128::from(hop.share.numerator), parts * u128::from(hop.share.denominator));
                    let load = loads.entry(hop.link).or_insert(Ratio::new(0, 1));
                    *load = load.checked_add(share)?;
                }
            }
        }
        let mut slowest = Ratio::new(0, 1);
        for (link, load) in loads {
            let Some(rate) = self.links.get(&link).and_then(|link| link.rate) else { continue };
            let time = Ratio::new(load.numerator, load.denominator.checked_mul(u128::from(rate.max(1)))?);
            if time.is_above(slowest)? {
                slowest = time;
            }
        }
        Some(slowest)
    }

    /// Longest latency of the routes of a forest's edges.
    pub(crate) fn longest_latency(&self, forest: &Forest, flow: Flow) -> Picos {
        let ends = forest.trees.iter().flat_map(PackedTree::edges).map(|(parent, child)| flow.ends(parent, child));
        ends.filter_map(|(from, to)| Some(self.route(from, to)?.latency)).max().unwrap_or_default()
    }

    /// Hops of the route between two ranks; none if there is no route.
    pub(super) fn hops(&self, from: u32, to: u32) -> &[Hop] {
        self.route(from, to).map_or(&[], |route| &route.hops)
    }

    /// Links with a rate that some route uses, with their bytes per second.
    pub(super) fn limited_links(&self) -> impl Iterator<Item = (LinkId, u64)> + '_ {
        self.links.iter().filter_map(|(&id, link)| Some((id, link.rate?)))
    }

    /// Number of ranks.
    pub(super) fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Groups pairs of ranks whose routes share links with a rate, directly or through other pairs of the group, by
    /// sender, then receiver. Pairs without a route form a separate group.
    pub(super) fn link_groups(&self) -> Vec<u32> {
        let mut groups: Vec<u32> = (0..self.pairs.len() as u32).collect();
        let mut first_on_link: FxHashMap<LinkId, u32> = FxHashMap::default();
        for (pair, route) in (0..).zip(&self.pairs) {
            let hops = route.iter().flat_map(|route| &route.hops);
            for link in
                hops.map(|hop| hop.link).filter(|link| self.links.get(link).is_some_and(|link| link.rate.is_some()))
            {
                let other = *first_on_link.entry(link).or_insert(pair);
                join(&mut groups, pair, other);
            }
        }
        (0..groups.len() as u32).map(|pair| root(&mut groups, pair)).collect()
    }

    /// Upper bound on the time in which connections between ranks carry their loads, if transfers that share a link have
    /// equal rates; infinite if two ranks have no route. Links without a rate need no time. `divide_load`: transfers of a
    /// connection with a load.
    pub(crate) fn sharing_time(
        &self,
        loads: &BTreeMap<Connection, u32>,
        divide_load: impl Fn(Connection, u32) -> DividedLoad,
    ) -> f64 {
        let share = |hop: &Hop| f64::from(hop.share.numerator) / f64::from(hop.share.denominator);
        let mut transfers: FxHashMap<LinkId, f64> = FxHashMap::default();
        for (&connection, &load) in loads {
            let Some(route) = self.route(connection.from, connection.to) else { return f64::INFINITY };
            for hop in &route.hops {
                *transfers.entry(hop.link).or_default() +=
                    f64::from(divide_load(connection, load).transfers) * share(hop);
            }
        }
        let unit_time = |link: LinkId| match self.links.get(&link).and_then(|link| link.rate) {
            Some(rate) => transfers.get(&link).map_or(0.0, |transfers| transfers / rate as f64),
            None => 0.0,
        };
        let time = |(&connection, &load): (&Connection, &u32)| {
            let hops = self.route(connection.from, connection.to).map_or(&[][..], |route| &route.hops);
            let slowest = hops.iter().map(|hop| unit_time(hop.link)).fold(0.0, f64::max);
            slowest * divide_load(connection, load).largest
        };
        loads.iter().map(time).fold(0.0, f64::max)
    }
}
