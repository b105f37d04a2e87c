//! Network of ranks between which blocks move in one transfer.

use std::collections::BTreeMap;

use fabricast_topologies::LinkId;

use super::shortest_trees::shortest_tree;
use crate::bound::line::gcd;
use crate::packing::forest::PackedTree;
use crate::packing::optimum::Ratio;
use crate::packing::requirement::Roots;
use crate::packing::routes::{Flow, Routes};

/// Edges between ranks that a route connects, with the links of each. Trees grow from roots along edges; in
/// a collection, data moves against them.
#[derive(Clone, Debug)]
pub(in crate::packing) struct Network {
    ranks: u32,
    roots: Roots,
    /// Edges by parent, then child.
    edges: Vec<Edge>,
    /// First edge of each parent, and the number of all edges.
    first_edges: Vec<usize>,
    /// Links with a rate, by id, with their bytes per second.
    links: Vec<(LinkId, u64)>,
}

/// Edge over which a parent reaches a child.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    pub child: u32,
    /// Links with a rate that the blocks of the edge use.
    pub uses: Vec<LinkUse>,
}

/// Part of each block of an edge that one link carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkUse {
    pub link: usize,
    numerator: u32,
    denominator: u32,
    /// Time for a block, in units of the time of the slowest link for a whole one.
    pub time: f64,
}

impl Network {
    /// Collects the edges between ranks.
    pub(in crate::packing) fn new(routes: &Routes, roots: Roots, flow: Flow) -> Self {
        let ranks = routes.ranks();
        let numbers: BTreeMap<LinkId, u64> = routes.limited_links().collect();
        let links: Vec<(LinkId, u64)> = numbers.into_iter().collect();
        let slowest = links.iter().map(|&(_, rate)| rate).min().unwrap_or(1);
        let mut edges = Vec::new();
        let mut first_edges = Vec::with_capacity(ranks as usize + 1);
        for parent in 0..ranks {
            first_edges.push(edges.len());
            for child in (0..ranks).filter(|&child| child != parent) {
                let (from, to) = flow.ends(parent, child);
                if !routes.is_reachable(from, to) {
                    continue;
                }
                let uses = routes.hops(from, to).iter().filter_map(|hop| {
                    let link = links.binary_search_by_key(&hop.link, |&(id, _)| id).ok()?;
                    let (numerator, denominator) = (hop.share.numerator, hop.share.denominator);
                    let share = f64::from(numerator) / f64::from(denominator);
                    Some(LinkUse { link, numerator, denominator, time: share * slowest as f64 / links[link].1 as f64 })
                });
                edges.push(Edge { child, uses: uses.collect() });
            }
        }
        first_edges.push(edges.len());
        Self { ranks, roots, edges, first_edges, links }
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

    /// Id of a link.
    pub(in crate::packing) fn link(&self, number: usize) -> Option<LinkId> {
        self.links.get(number).map(|&(id, _)| id)
    }

    /// Time of the slowest link for a block, the unit of other times, in seconds per byte of the call.
    pub(super) fn block_time(&self) -> f64 {
        let slowest = self.links.iter().map(|&(_, rate)| rate).min().unwrap_or(1);
        1.0 / (slowest as f64 * f64::from(self.ranks))
    }

    /// Numbers of the edges of a parent.
    pub(super) fn edges_of(&self, parent: u32) -> std::ops::Range<usize> {
        self.first_edges[parent as usize]..self.first_edges[parent as usize + 1]
    }

    pub(super) fn edge(&self, number: usize) -> &Edge {
        &self.edges[number]
    }

    /// Returns a rank that some root cannot reach.
    pub(super) fn unreachable(&self) -> Option<u32> {
        self.roots.ranks(self.ranks).find_map(|root| {
            let tree = shortest_tree(self, root, |_| 1u32);
            (0..self.ranks).find(|&rank| rank != root && !tree.reaches(rank))
        })
    }

    /// Edge from a parent to a child.
    fn edge_between(&self, parent: u32, child: u32) -> Option<&Edge> {
        self.edges[self.edges_of(parent)].iter().find(|edge| edge.child == child)
    }

    /// Time that each link needs for a block of every rank below the root of a tree, whatever units the tree has.
    pub(super) fn times(&self, tree: &PackedTree) -> Vec<f64> {
        let mut times = vec![0.0; self.links.len()];
        let blocks = tree.ranks_below();
        for (parent, child) in tree.edges() {
            let Some(edge) = self.edge_between(parent, child) else { continue };
            for used in &edge.uses {
                times[used.link] += used.time * f64::from(blocks[child as usize]);
            }
        }
        times
    }

    /// Rounds prices of links for a block's time to whole prices per byte. All whole prices prove some bound.
    pub(super) fn integer_prices(&self, prices: &[f64]) -> Vec<u64> {
        /// Price of the most expensive link: fine enough for a bound within a ten-thousandth.
        const LARGEST: f64 = 1e6;
        let per_byte: Vec<f64> =
            prices.iter().zip(&self.links).map(|(price, &(_, rate))| price / rate as f64).collect();
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
        let denominators = self.edges.iter().flat_map(|edge| edge.uses.iter().map(|used| used.denominator));
        let mut denominators = denominators.map(u128::from);
        let common = denominators.try_fold(1u128, |common, part| (common / gcd(common, part)).checked_mul(part))?;
        let price = |edge: &Edge| {
            edge.uses.iter().try_fold(0u128, |sum, used| {
                let part = (common / u128::from(used.denominator)).checked_mul(used.numerator.into())?;
                let price = part.checked_mul(prices.get(used.link).copied().unwrap_or(0).into())?;
                sum.checked_add(price)
            })
        };
        // A path has fewer edges than there are ranks, and a root as many paths.
        let most = self.edges.iter().map(price).try_fold(0u128, |most, price| Some(most.max(price?)))?;
        most.checked_mul(u128::from(self.ranks).pow(2))?;
        let price = |edge: &Edge| price(edge).unwrap_or(most);
        let mut paid = 0u128;
        for root in self.roots.ranks(self.ranks) {
            paid = paid.checked_add(shortest_tree(self, root, |edge| price(self.edge(edge))).total())?;
        }
        let bandwidth = self.links.iter().zip(prices).map(|(&(_, rate), &price)| u128::from(rate) * u128::from(price));
        let mut bandwidth = bandwidth;
        let bandwidth = bandwidth.try_fold(0u128, u128::checked_add)?;
        let denominator = bandwidth.checked_mul(common)?.checked_mul(self.ranks.into())?;
        (denominator > 0).then(|| Ratio::new(paid, denominator))
    }
}
