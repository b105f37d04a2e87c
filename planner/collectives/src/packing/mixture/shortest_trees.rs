//! Trees of the cheapest paths from a root.

use std::cmp::Reverse;
use std::ops::Add;

use super::network::{EdgeTo, Network};

/// Cheapest paths from a root to all ranks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tree<C> {
    pub root: u32,
    /// Parent of each rank; the root, and ranks without a path, are their own parents.
    pub parents: Vec<u32>,
    /// Cost of the path to each rank; `None` without a path.
    costs: Vec<Option<C>>,
}

/// Cost of an edge or path.
pub(super) trait Cost: Copy + PartialOrd + Add<Output = Self> + Default {}

impl<C: Copy + PartialOrd + Add<Output = C> + Default> Cost for C {}

impl<C: Cost> Tree<C> {
    /// Returns true if there is a path to a rank.
    pub(super) fn reaches(&self, rank: u32) -> bool {
        self.costs[rank as usize].is_some()
    }

    /// Sum of the costs of all paths.
    pub(super) fn total(&self) -> C {
        self.costs.iter().flatten().fold(C::default(), |sum, &cost| sum + cost)
    }
}

/// Finds the cheapest paths from a root (Dijkstra). Of equally cheap paths, the one of the fewest edges is taken, then the
/// one whose ranks follow the root most closely, so that different roots use different paths.
pub(super) fn shortest_tree<C: Cost>(network: &Network, root: u32, cost: impl Fn(usize) -> C) -> Tree<C> {
    let ranks = network.ranks();
    let mut tree = Tree { root, parents: (0..ranks).collect(), costs: vec![None; ranks as usize] };
    let mut hops = vec![u32::MAX; ranks as usize];
    let mut is_done = vec![false; ranks as usize];
    tree.costs[root as usize] = Some(C::default());
    hops[root as usize] = 0;
    loop {
        let open = (0..ranks).filter(|&rank| !is_done[rank as usize]);
        let reached = open.filter_map(|rank| Some((tree.costs[rank as usize]?, hops[rank as usize], rank)));
        let distance = |rank: u32| (rank + ranks - root) % ranks;
        let next = reached.min_by(|a, b| {
            let costs = a.0.partial_cmp(&b.0).unwrap_or(std::cmp::Ordering::Equal);
            costs.then_with(|| (a.1, distance(a.2)).cmp(&(b.1, distance(b.2))))
        });
        let Some((at, depth, parent)) = next else { return tree };
        is_done[parent as usize] = true;
        for EdgeTo { child, edge } in network.edges_of(parent) {
            let child = child as usize;
            if is_done[child] {
                continue;
            }
            let through = at + cost(edge);
            let is_better = match tree.costs[child] {
                None => true,
                Some(known) if through < known => true,
                Some(known) if known < through => false,
                Some(_) => {
                    (depth + 1, Reverse(distance(parent))) < (hops[child], Reverse(distance(tree.parents[child])))
                }
            };
            if is_better {
                (tree.costs[child], tree.parents[child], hops[child]) = (Some(through), parent, depth + 1);
            }
        }
    }
}
