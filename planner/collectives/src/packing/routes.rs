//! Routes between ranks, with the load that trees place on links.
//!
//! Under a symmetry of the ranks, only the routes of representative ranks are stored, and one link represents its orbit:
//! the routes of other ranks are their images, and all links of an orbit carry the same load.

use std::collections::BTreeMap;

use fabricast_sim::schedule::{Rank, RotationDigit, Symmetry};
use fabricast_topologies::route::{Hop, Orbits, Participants, Router};
use fabricast_topologies::{Fabric, LinkId, NodeId, Picos};
use rustc_hash::{FxHashMap, FxHashSet};

use super::forest::{Connection, DividedLoad, Forest, PackedTree};
use super::optimum::Ratio;
use crate::union_find::{join, root};

/// Routes between all pairs of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Routes {
    ranks: u32,
    /// Rotations of ranks that map routes to routes.
    symmetry: Symmetry,
    /// Row of each representative rank in `pairs`; `None` for other ranks.
    rows: Vec<Option<u32>>,
    /// Route of each pair, by sender, a representative, then receiver; `None` if there is none. The links of hops
    /// represent their orbits.
    pairs: Vec<Option<Route>>,
    /// Links that some route uses.
    links: FxHashMap<LinkId, UsedLink>,
    /// Orbits of links, by representative.
    orbits: FxHashMap<LinkId, LinkOrbit>,
}

/// Link that some route uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UsedLink {
    from: NodeId,
    to: NodeId,
    /// Bytes per second; `None` if unlimited.
    rate: Option<u64>,
    /// Link that represents the orbit.
    orbit: LinkId,
}

/// Links that rotations map to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkOrbit {
    /// Bytes per second of each link; `None` if unlimited.
    pub rate: Option<u64>,
    /// Number of links.
    pub size: u32,
}

/// Orbit of links with a limited rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitedOrbit {
    /// Link that represents the orbit.
    pub link: LinkId,
    /// Bytes per second of each link.
    pub rate: u64,
    /// Number of links.
    pub size: u32,
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
        Self::of_classes(fabric, router, placement, Symmetry::None, None)
    }

    /// Finds the routes of the representatives under a symmetry of the fabric, whose orbits are `orbits`.
    pub(super) fn of_classes(
        fabric: &Fabric,
        router: &Router<'_>,
        placement: &[NodeId],
        symmetry: Symmetry,
        orbits: Option<&Orbits>,
    ) -> Self {
        let participants = Participants::new(placement);
        let ranks: FxHashSet<NodeId> = placement.iter().copied().collect();
        let count = placement.len() as u32;
        let mut routes = Self {
            ranks: count,
            rows: rows(&symmetry, count),
            symmetry,
            pairs: Vec::new(),
            links: FxHashMap::default(),
            orbits: FxHashMap::default(),
        };
        for (&from, _) in placement.iter().zip(&routes.rows).filter(|(_, row)| row.is_some()) {
            for &to in placement {
                let path = router.path_for_participants(&participants, from, to).ok().filter(|_| from != to);
                routes.pairs.push(path.map(|path| {
                    let ends = path.hops.iter().map(|hop| fabric.ends(hop.link).1);
                    let devices: FxHashSet<NodeId> = ends.filter(|&device| device != to).collect();
                    let hops = path.hops.iter().map(|hop| {
                        let rate = fabric.link(hop.link).bandwidth.map(|rate| rate.0);
                        let orbit = orbits.map(|orbits| orbits.link_orbit(hop.link));
                        let (link, size) = orbit.map_or((hop.link, 1), |orbit| (orbit.representative, orbit.size));
                        routes.orbits.insert(link, LinkOrbit { rate, size });
                        Hop { link, ..*hop }
                    });
                    let hops = hops.collect();
                    let is_relayed = devices.iter().any(|device| ranks.contains(device));
                    Route { hops, devices, is_relayed, latency: path.latency }
                }));
            }
        }
        for &orbit in routes.orbits.keys() {
            let mut add = |id: LinkId| {
                let link = fabric.link(id);
                let rate = link.bandwidth.map(|rate| rate.0);
                routes.links.insert(id, UsedLink { from: link.from, to: link.to, rate, orbit });
            };
            match orbits {
                Some(orbits) => orbits.link_members(orbit).for_each(add),
                None => add(orbit),
            }
        }
        routes
    }

    /// Returns the routes under one more rotation of the ranks; `None` if the rotation does not map routes to routes and
    /// links to links of the same rate.
    pub(super) fn under_rotation(&self, digit: RotationDigit) -> Option<Self> {
        let rotation = Symmetry::Rotations(vec![digit]);
        let rotated = |rank: u32| rotation.rotate(Rank(rank), 1).0;
        let mut images: FxHashMap<LinkId, LinkId> = FxHashMap::default();
        for from in self.representatives() {
            for to in (0..self.ranks).filter(|&to| to != from) {
                let (route, image) = (self.route(from, to), self.route(rotated(from), rotated(to)));
                let (Some(route), Some(image)) = (route, image) else {
                    if route.is_none() && image.is_none() {
                        continue;
                    }
                    return None;
                };
                let is_alike = (route.hops.len(), route.latency, route.is_relayed)
                    == (image.hops.len(), image.latency, image.is_relayed);
                if !is_alike {
                    return None;
                }
                for (hop, other) in route.hops.iter().zip(&image.hops) {
                    let is_alike =
                        hop.share == other.share && self.orbits.get(&hop.link) == self.orbits.get(&other.link);
                    if !is_alike || *images.entry(hop.link).or_insert(other.link) != other.link {
                        return None;
                    }
                }
            }
        }
        let representatives = representatives(&images)?;
        let mut orbits: FxHashMap<LinkId, LinkOrbit> = FxHashMap::default();
        for (link, orbit) in &self.orbits {
            let merged = orbits.entry(*representatives.get(link)?).or_insert(LinkOrbit { size: 0, ..*orbit });
            merged.size += orbit.size;
        }
        let Symmetry::Rotations(mut digits) = rotation else { return None };
        if let Symmetry::Rotations(known) = &self.symmetry {
            digits.extend(known);
        }
        let symmetry = Symmetry::Rotations(digits);
        let rows = rows(&symmetry, self.ranks);
        let mut pairs = Vec::new();
        for (rank, _) in (0..self.ranks).zip(&rows).filter(|(_, row)| row.is_some()) {
            for to in 0..self.ranks {
                let hop = |hop: &Hop| Hop { link: representatives.get(&hop.link).copied().unwrap_or(hop.link), ..*hop };
                let merged = |route: &Route| Route { hops: route.hops.iter().map(hop).collect(), ..route.clone() };
                pairs.push(self.route(rank, to).map(merged));
            }
        }
        let mut links = self.links.clone();
        for link in links.values_mut() {
            link.orbit = *representatives.get(&link.orbit)?;
        }
        Some(Self { ranks: self.ranks, symmetry, rows, pairs, links, orbits })
    }

    /// Rotations of ranks that map routes to routes.
    pub(crate) fn symmetry(&self) -> &Symmetry {
        &self.symmetry
    }

    /// Ranks whose routes are stored.
    pub(super) fn representatives(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.ranks).zip(&self.rows).filter(|(_, row)| row.is_some()).map(|(rank, _)| rank)
    }

    /// Returns the number of a pair of ranks, which is that of its images.
    pub(super) fn pair(&self, from: u32, to: u32) -> Option<usize> {
        let first = self.symmetry.representative(Rank(from));
        let to = self.symmetry.carry(Rank(from), first, Rank(to)).0;
        let row = (*self.rows.get(first.0 as usize)?)?;
        Some((row * self.ranks + to) as usize)
    }

    fn route(&self, from: u32, to: u32) -> Option<&Route> {
        self.pairs.get(self.pair(from, to)?)?.as_ref()
    }

    /// Returns true if data can move between two ranks.
    pub(crate) fn is_reachable(&self, from: u32, to: u32) -> bool {
        self.route(from, to).is_some()
    }

    /// Returns true if data between two ranks passes no other rank.
    pub(crate) fn is_direct(&self, from: u32, to: u32) -> bool {
        self.route(from, to).is_some_and(|route| !route.is_relayed)
    }

    /// Returns true if data between two ranks passes a device, and no other rank. Only for routes of all ranks.
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
    /// divided into equal blocks; `None` if an edge has no route or the numbers exceed 128 bits. Several forests share
    /// links. They have the symmetry of the routes.
    pub(crate) fn time_per_byte(&self, forests: &[(&Forest, Flow)]) -> Option<Ratio> {
        let images = u128::from(self.symmetry.rotation_count());
        let mut loads: FxHashMap<LinkId, Ratio> = FxHashMap::default();
        for &(forest, flow) in forests {
            let parts = u128::from(forest.units) * u128::from(forest.parts(self.ranks));
            let mut units: FxHashMap<usize, u128> = FxHashMap::default();
            for tree in &forest.trees {
                for ((parent, child), carried) in forest.edge_units(tree) {
                    let (from, to) = flow.ends(parent, child);
                    *units.entry(self.pair(from, to)?).or_default() += u128::from(carried);
                }
            }
            for (pair, units) in units {
                for hop in &self.pairs.get(pair)?.as_ref()?.hops {
                    let numerator = (units * images).checked_mul(hop.share.numerator.into())?;
                    let share = Ratio::new(numerator, parts * u128::from(hop.share.denominator));
                    let load = loads.entry(hop.link).or_insert(Ratio::new(0, 1));
                    *load = load.checked_add(share)?;
                }
            }
        }
        let mut slowest = Ratio::new(0, 1);
        for (link, load) in loads {
            let Some(LinkOrbit { rate: Some(rate), size }) = self.orbits.get(&link).copied() else { continue };
            let total = u128::from(rate.max(1)) * u128::from(size);
            let time = Ratio::new(load.numerator, load.denominator.checked_mul(total)?);
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

    /// Links with a rate that some route uses, each with the link that represents its orbit.
    pub(super) fn limited_links(&self) -> impl Iterator<Item = (LinkId, LinkId)> + '_ {
        self.links.iter().filter(|(_, link)| link.rate.is_some()).map(|(&id, link)| (id, link.orbit))
    }

    /// Orbits of links with a rate that some route uses.
    pub(super) fn limited_orbits(&self) -> impl Iterator<Item = LimitedOrbit> + '_ {
        let orbits = self.orbits.iter();
        orbits.filter_map(|(&link, orbit)| Some(LimitedOrbit { link, rate: orbit.rate?, size: orbit.size }))
    }

    /// Number of ranks.
    pub(super) fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Groups pairs of ranks whose routes share links with a rate, directly or through other pairs of the group, by
    /// number of the pair. Pairs without a route form a separate group.
    pub(super) fn link_groups(&self) -> Vec<u32> {
        let mut groups: Vec<u32> = (0..self.pairs.len() as u32).collect();
        let mut first_on_link: FxHashMap<LinkId, u32> = FxHashMap::default();
        for (pair, route) in (0..).zip(&self.pairs) {
            let hops = route.iter().flat_map(|route| &route.hops);
            for link in
                hops.map(|hop| hop.link).filter(|link| self.orbits.get(link).is_some_and(|orbit| orbit.rate.is_some()))
            {
                let other = *first_on_link.entry(link).or_insert(pair);
                join(&mut groups, pair, other);
            }
        }
        (0..groups.len() as u32).map(|pair| root(&mut groups, pair)).collect()
    }

    /// Upper bound on the time in which connections between ranks carry their loads, if transfers that share a link have
    /// equal rates; infinite if two ranks have no route. Links without a rate need no time. `loads`: those of
    /// representative senders. `divide_load`: transfers of a connection with a load.
    pub(crate) fn sharing_time(
        &self,
        loads: &BTreeMap<Connection, u32>,
        divide_load: impl Fn(Connection, u32) -> DividedLoad,
    ) -> f64 {
        let images = f64::from(self.symmetry.rotation_count());
        let share = |hop: &Hop| f64::from(hop.share.numerator) / f64::from(hop.share.denominator);
        let mut transfers: FxHashMap<LinkId, f64> = FxHashMap::default();
        for (&connection, &load) in loads {
            let Some(route) = self.route(connection.from, connection.to) else { return f64::INFINITY };
            for hop in &route.hops {
                *transfers.entry(hop.link).or_default() +=
                    f64::from(divide_load(connection, load).transfers) * share(hop) * images;
            }
        }
        let unit_time = |link: LinkId| match self.orbits.get(&link).copied() {
            Some(LinkOrbit { rate: Some(rate), size }) => {
                transfers.get(&link).map_or(0.0, |transfers| transfers / (rate as f64 * f64::from(size)))
            }
            _ => 0.0,
        };
        let time = |(&connection, &load): (&Connection, &u32)| {
            let hops = self.route(connection.from, connection.to).map_or(&[][..], |route| &route.hops);
            let slowest = hops.iter().map(|hop| unit_time(hop.link)).fold(0.0, f64::max);
            slowest * divide_load(connection, load).largest
        };
        loads.iter().map(time).fold(0.0, f64::max)
    }
}

/// Numbers the representatives of a symmetry.
fn rows(symmetry: &Symmetry, ranks: u32) -> Vec<Option<u32>> {
    let mut rows = vec![None; ranks as usize];
    for (row, rank) in (0..).zip(symmetry.representatives(ranks)) {
        rows[rank.0 as usize] = Some(row);
    }
    rows
}

/// Returns the smallest link of each cycle of a permutation of links; `None` if it is no permutation.
fn representatives(images: &FxHashMap<LinkId, LinkId>) -> Option<FxHashMap<LinkId, LinkId>> {
    let distinct: FxHashSet<LinkId> = images.values().copied().collect();
    if distinct.len() != images.len() {
        return None;
    }
    let mut links: Vec<LinkId> = images.keys().copied().collect();
    links.sort_unstable();
    let mut found: FxHashMap<LinkId, LinkId> = FxHashMap::default();
    for first in links {
        let mut link = first;
        while !found.contains_key(&link) {
            found.insert(link, first);
            link = *images.get(&link)?;
        }
    }
    Some(found)
}
