//! Network of ranks between which blocks move in one transfer.

use fabricast_sim::schedule::{Rank, Symmetry};
use fabricast_topologies::LinkId;

use super::shortest_trees::shortest_tree;
use crate::bound::line::gcd;
use crate::packing::forest::{BlockKind, PackedTree};
use crate::packing::optimum::Ratio;
use crate::packing::requirement::Roots;
use crate::packing::routes::{Flow, LimitedOrbit, Routes};

/// Edges between ranks that a route connects, with the links of each. Trees grow from roots along edges; in
/// a collection, data moves against them.
///
/// Under a symmetry of the routes, only the trees of representative roots are sought: the trees of other roots are their
/// images, and all links of an orbit carry the same load.
#[derive(Clone, Debug)]
pub(in crate::packing) struct Network {
    ranks: u32,
    symmetry: Symmetry,
    roots: Roots,
    blocks: BlockKind,
    /// Representatives of the roots.
    first_roots: Vec<u32>,
    /// First of the edges of each representative parent.
    first_edges: Vec<usize>,
    /// Edges of representative parents, by parent, then child; `None` without a route.
    edges: Vec<Option<Edge>>,
    /// Orbits of links with a rate, by id.
    links: Vec<LimitedOrbit>,
}

/// Edge over which a parent reaches a child.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    /// Links with a rate that the blocks of the edge use.
    pub uses: Vec<LinkUse>,
}

/// Part of each block of an edge that the links of an orbit carry.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkUse {
    /// Number of the orbit.
    pub link: usize,
    numerator: u32,
    denominator: u32,
    /// Time of each link for the blocks of the edge and its images, in units of the time of the slowest link for a block.
    pub time: f64,
}

/// Edge with its child.
#[derive(Clone, Copy, Debug)]
pub(super) struct EdgeTo {
    pub child: u32,
    /// Number of the edge, which is that of its images.
    pub edge: usize,
}

impl Network {
    /// Collects the edges between ranks. Rooted trees need the routes of all ranks.
    pub(in crate::packing) fn new(routes: &Routes, roots: Roots, blocks: BlockKind, flow: Flow) -> Self {
        let (ranks, symmetry) = (routes.ranks(), routes.symmetry());
        let images = f64::from(symmetry.rotation_count());
        let mut links: Vec<LimitedOrbit> = routes.limited_orbits().collect();
        links.sort_unstable_by_key(|orbit| orbit.link);
        let slowest = links.iter().map(|orbit| orbit.rate).min().unwrap_or(1);
        let mut edges = Vec::new();
        let mut first_edges = vec![0; ranks as usize];
        for parent in routes.representatives() {
            first_edges[parent as usize] = edges.len();
            for child in 0..ranks {
                let (from, to) = flow.ends(parent, child);
                if parent == child || !routes.is_reachable(from, to) {
                    edges.push(None);
                    continue;
                }
                let uses = routes.hops(from, to).iter().filter_map(|hop| {
                    let link = links.binary_search_by_key(&hop.link, |orbit| orbit.link).ok()?;
                    let (numerator, denominator) = (hop.share.numerator, hop.share.denominator);
                    let LimitedOrbit { rate, size, .. } = links[link];
                    let share = f64::from(numerator) / f64::from(denominator) * images / f64::from(size);
                    Some(LinkUse { link, numerator, denominator, time: share * slowest as f64 / rate as f64 })
                });
                edges.push(Some(Edge { uses: uses.collect() }));
            }
        }
        let first_roots = match roots {
            Roots::All => routes.representatives().collect(),
            Roots::One(root) => vec![root],
        };
        Self { ranks, symmetry: symmetry.clone(), roots, blocks, first_roots, first_edges, edges, links }
    }

    /// Rotations under which the edges are alike.
    pub(super) fn symmetry(&self) -> &Symmetry {
        &self.symmetry
    }

    /// Blocks that trees carry.
    pub(super) fn blocks(&self) -> BlockKind {
        self.blocks
    }

    /// Representatives of the roots.
    pub(super) fn first_roots(&self) -> &[u32] {
        &self.first_roots
    }

    pub(super) fn ranks(&self) -> u32 {
        self.ranks
    }

    pub(super) fn roots(&self) -> Roots {
        self.roots
    }

    pub(super) fn links(&self) -> usize {
        self.links.len()
    }

    /// Link that represents an orbit.
    pub(in crate::packing) fn link(&self, number: usize) -> Option<LinkId> {
        self.links.get(number).map(|orbit| orbit.link)
    }

    /// Time of the slowest link for a block, the unit of other times, in seconds per byte of the call.
    pub(super) fn block_time(&self) -> f64 {
        let slowest = self.links.iter().map(|orbit| orbit.rate).min().unwrap_or(1);
        let parts = match self.blocks {
            BlockKind::Common => self.roots.count(self.ranks),
            BlockKind::PerRank => self.ranks,
        };
        1.0 / (slowest as f64 * f64::from(parts))
    }

    /// Number of pairs of a representative parent and a child, which number the edges.
    pub(super) fn edges(&self) -> usize {
        self.edges.len()
    }

    /// Returns the edges of a parent, by child of its representative.
    pub(super) fn edges_of(&self, parent: u32) -> impl Iterator<Item = EdgeTo> + '_ {
        let first = self.symmetry.representative(Rank(parent));
        let from = self.first_edges[first.0 as usize];
        let numbered = (from..from + self.ranks as usize).zip(0..);
        numbered.filter(|&(edge, _)| self.edges[edge].is_some()).map(move |(edge, child)| {
            let child = self.symmetry.carry(first, Rank(parent), Rank(child)).0;
            EdgeTo { child, edge }
        })
    }

    /// Links that an edge uses.
    pub(super) fn uses(&self, edge: usize) -> &[LinkUse] {
        self.edges[edge].as_ref().map_or(&[], |edge| &edge.uses)
    }

    /// Price of the blocks of an edge and its images, at a price of each link's time.
    pub(super) fn price(&self, edge: usize, prices: &[f64]) -> f64 {
        self.uses(edge).iter().map(|used| used.time * prices[used.link]).sum()
    }

    /// Returns a rank that some root cannot reach.
    pub(super) fn unreachable(&self) -> Option<u32> {
        self.first_roots.iter().find_map(|&root| {
            let tree = shortest_tree(self, root, |_| 1u32);
            (0..self.ranks).find(|&rank| rank != root && !tree.reaches(rank))
        })
    }

    /// Returns the number of the edge from a parent to a child; `None` without a route.
    pub(super) fn edge_between(&self, parent: u32, child: u32) -> Option<usize> {
        let first = self.symmetry.representative(Rank(parent));
        let child = self.symmetry.carry(Rank(parent), first, Rank(child)).0;
        let edge = self.first_edges[first.0 as usize] + child as usize;
        self.edges[edge].is_some().then_some(edge)
    }

    /// Time that each link needs for the blocks of a tree and its images, whatever units the tree has.
    pub(super) fn times(&self, tree: &PackedTree) -> Vec<f64> {
        let mut times = vec![0.0; self.links.len()];
        let blocks = match self.blocks {
            BlockKind::Common => vec![1; tree.parents.len()],
            BlockKind::PerRank => tree.ranks_below(),
        };
        for (parent, child) in tree.edges() {
            let Some(edge) = self.edge_between(parent, child) else { continue };
            for used in self.uses(edge) {
                times[used.link] += used.time * f64::from(blocks[child as usize]);
            }
        }
        times
    }

    /// Rounds prices of links for a block's time to whole prices per byte. All whole prices prove some bound.
    pub(super) fn integer_prices(&self, prices: &[f64]) -> Vec<u64> {
        /// Price of the most expensive link: fine enough for a bound within a ten-thousandth.
        const LARGEST: f64 = 1e6;
        let per_byte: Vec<f64> = prices
            .iter()
            .zip(&self.links)
            .map(|(price, orbit)| price / (orbit.rate as f64 * f64::from(orbit.size)))
            .collect();
        let largest = per_byte.iter().copied().fold(0.0, f64::max);
        per_byte
            .iter()
            .map(|price| if largest > 0.0 { (price / largest * LARGEST).round() as u64 } else { 0 })
            .collect()
    }

    /// Time that prices of links prove, in seconds per byte of a call of which a block is one part in as many as ranks:
    /// the sum over all blocks of the price of the cheapest path, divided by the price of all bandwidth. `None` if the
    /// numbers exceed 128 bits.
    pub(super) fn proven_time(&self, prices: &[u64]) -> Option<Ratio> {
        let denominators = self.edges.iter().flatten().flat_map(|edge| edge.uses.iter().map(|used| used.denominator));
        let mut denominators = denominators.map(u128::from);
        let common = denominators.try_fold(1u128, |common, part| (common / gcd(common, part)).checked_mul(part))?;
        let price = |edge: usize| {
            self.uses(edge).iter().try_fold(0u128, |sum, used| {
                let part = (common / u128::from(used.denominator)).checked_mul(used.numerator.into())?;
                let price = part.checked_mul(prices.get(used.link).copied().unwrap_or(0).into())?;
                sum.checked_add(price)
            })
        };
        // A path has fewer edges than there are ranks, and a root as many paths.
        let most = (0..self.edges.len()).map(price).try_fold(0u128, |most, price| Some(most.max(price?)))?;
        most.checked_mul(u128::from(self.ranks).pow(2))?;
        let price = |edge: usize| price(edge).unwrap_or(most);
        let mut paid = 0u128;
        for &root in &self.first_roots {
            paid = paid.checked_add(shortest_tree(self, root, price).total())?;
        }
        let paid = paid.checked_mul(self.symmetry.rotation_count().into())?;
        let mut bandwidth = self
            .links
            .iter()
            .zip(prices)
            .map(|(orbit, &price)| (u128::from(orbit.rate) * u128::from(orbit.size)).checked_mul(price.into()));
        let bandwidth = bandwidth.try_fold(0u128, |sum, part| sum.checked_add(part?))?;
        let denominator = bandwidth.checked_mul(common)?.checked_mul(self.ranks.into())?;
        (denominator > 0).then(|| Ratio::new(paid, denominator))
    }
}
