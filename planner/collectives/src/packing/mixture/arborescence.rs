//! Trees of the lowest total price from a root, for blocks that each edge carries once.
//!
//! Chu & Liu, *On the shortest arborescence of a directed graph* (1965), and Edmonds, *Optimum branchings* (1967): every
//! rank selects its cheapest incoming edge; cycles are contracted to one vertex, whose incoming edges cost the difference to
//! the edge that they replace, until there are none. Of the cheapest trees, a shallow one is returned: ranks move to the
//! highest parent of an equal price.

use super::network::Network;
use crate::packing::forest::PackedTree;

/// Relative difference up to which prices are equal. The tree may cost as much more per edge.
const EQUAL_PRICES: f64 = 1e-9;

/// Finds the tree with the lowest sum of the prices of its edges. Ranks without a path from the root are its children.
pub(super) fn cheapest_arborescence(network: &Network, root: u32, price: impl Fn(usize) -> f64) -> PackedTree {
    let ranks = network.ranks() as usize;
    let by_edge: Vec<f64> = (0..network.edges()).map(price).collect();
    let mut prices = Prices { vertices: ranks, into: vec![f64::INFINITY; ranks * ranks] };
    for parent in 0..network.ranks() {
        for edge in network.edges_of(parent) {
            prices.into[edge.child as usize * ranks + parent as usize] = by_edge[edge.edge];
        }
    }
    let mut parents = arborescence(&prices, root as usize);
    flatten(&prices, root as usize, &mut parents);
    PackedTree { root, units: 1, parents: parents.into_iter().map(|parent| parent as u32).collect() }
}

/// Prices of the edges between vertices.
struct Prices {
    vertices: usize,
    /// Price of each edge, by the vertex that it enters, then the one that it leaves; infinite without an edge.
    into: Vec<f64>,
}

impl Prices {
    fn row(&self, vertex: usize) -> &[f64] {
        &self.into[vertex * self.vertices..(vertex + 1) * self.vertices]
    }
}

/// Edge between two vertices of a graph that represents an edge between vertices of a contracted one.
#[derive(Clone, Copy)]
struct Origin {
    from: usize,
    to: usize,
}

/// Returns the parent of each vertex in a tree of the lowest price. The root is its own parent.
fn arborescence(prices: &Prices, root: usize) -> Vec<usize> {
    let vertices = prices.vertices;
    let mut parents: Vec<usize> = (0..vertices).map(|vertex| cheapest_parent(prices, root, vertex)).collect();
    let cycle_of = cycles(&parents, root);
    let Some(cycles) = cycle_of.iter().flatten().max().map(|last| last + 1) else { return parents };
    // Cycles are the first vertices of the contracted graph.
    let mut next = cycles;
    let contracted: Vec<usize> = cycle_of
        .iter()
        .map(|cycle| {
            cycle.unwrap_or_else(|| {
                next += 1;
                next - 1
            })
        })
        .collect();
    let mut inner = Prices { vertices: next, into: vec![f64::INFINITY; next * next] };
    let mut origins = vec![Origin { from: root, to: root }; next * next];
    for to in 0..vertices {
        let row = prices.row(to);
        let replaced = if cycle_of[to].is_some() { row[parents[to]] } else { 0.0 };
        for (from, &price) in row.iter().enumerate() {
            let (tail, head) = (contracted[from], contracted[to]);
            let number = head * next + tail;
            if tail != head && price - replaced < inner.into[number] {
                inner.into[number] = price - replaced;
                origins[number] = Origin { from, to };
            }
        }
    }
    let outer = contracted[root];
    for (vertex, parent) in arborescence(&inner, outer).into_iter().enumerate() {
        if vertex != outer {
            let Origin { from, to } = origins[vertex * next + parent];
            parents[to] = from;
        }
    }
    parents
}

/// Cheapest parent of a vertex: the root if it is one, otherwise the first.
fn cheapest_parent(prices: &Prices, root: usize, vertex: usize) -> usize {
    if vertex == root {
        return root;
    }
    let row = prices.row(vertex);
    (0..prices.vertices).fold(root, |best, from| if from != vertex && row[from] < row[best] { from } else { best })
}

/// Numbers the cycles that parents form; `None` for vertices outside of cycles.
fn cycles(parents: &[usize], root: usize) -> Vec<Option<usize>> {
    let mut cycle_of = vec![None; parents.len()];
    // Vertex from which each vertex was first visited.
    let mut visit = vec![usize::MAX; parents.len()];
    visit[root] = root;
    let mut count = 0;
    for start in 0..parents.len() {
        let mut vertex = start;
        while visit[vertex] == usize::MAX {
            visit[vertex] = start;
            vertex = parents[vertex];
        }
        if vertex != root && visit[vertex] == start && start != root && cycle_of[vertex].is_none() {
            while cycle_of[vertex].is_none() {
                cycle_of[vertex] = Some(count);
                vertex = parents[vertex];
            }
            count += 1;
        }
    }
    cycle_of
}

/// Moves vertices to parents nearer to the root over edges of the same price, as long as there are any.
fn flatten(prices: &Prices, root: usize, parents: &mut [usize]) {
    loop {
        let depths = depths(parents, root);
        let mut by_depth: Vec<usize> = (0..parents.len()).collect();
        by_depth.sort_by_key(|&vertex| depths[vertex]);
        let mut is_changed = false;
        for vertex in (0..parents.len()).filter(|&vertex| depths[vertex] > 1) {
            let row = prices.row(vertex);
            let limit = row[parents[vertex]] + EQUAL_PRICES * row[parents[vertex]].abs();
            let nearer = by_depth.iter().take_while(|&&other| depths[other] + 1 < depths[vertex]);
            if let Some(&parent) = nearer.into_iter().find(|&&other| row[other] <= limit) {
                parents[vertex] = parent;
                is_changed = true;
            }
        }
        if !is_changed {
            return;
        }
    }
}

/// Number of edges from the root to each vertex.
fn depths(parents: &[usize], root: usize) -> Vec<usize> {
    let mut depths: Vec<Option<usize>> = vec![None; parents.len()];
    depths[root] = Some(0);
    let mut path = Vec::new();
    for start in 0..parents.len() {
        let mut vertex = start;
        while depths[vertex].is_none() {
            path.push(vertex);
            vertex = parents[vertex];
        }
        let mut depth = depths[vertex].unwrap_or(0);
        while let Some(vertex) = path.pop() {
            depth += 1;
            depths[vertex] = Some(depth);
        }
    }
    depths.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn total(prices: &Prices, root: usize, parents: &[usize]) -> f64 {
        let edges = parents.iter().enumerate().filter(|&(vertex, _)| vertex != root);
        edges.map(|(vertex, &parent)| prices.row(vertex)[parent]).sum()
    }

    /// Returns true if all vertices descend from the root.
    fn is_tree(root: usize, parents: &[usize]) -> bool {
        (0..parents.len()).all(|start| (0..parents.len()).fold(start, |vertex, _| parents[vertex]) == root)
    }

    /// Lowest total over all choices of a parent for each vertex that form a tree.
    fn brute_force(prices: &Prices, root: usize) -> f64 {
        let vertices = prices.vertices;
        let choices = vertices.pow(vertices as u32);
        let parents = |choice: usize| -> Vec<usize> {
            (0..vertices).map(|vertex| choice / vertices.pow(vertex as u32) % vertices).collect()
        };
        let trees = (0..choices).map(parents).filter(|parents| parents[root] == root && is_tree(root, parents));
        trees.map(|parents| total(prices, root, &parents)).fold(f64::INFINITY, f64::min)
    }

    proptest! {
        #[test]
        fn trees_cost_no_more_than_any_other(
            vertices in 1usize..=5,
            root in 0usize..5,
            edges in prop::collection::vec(prop_oneof![1 => Just(f64::INFINITY), 4 => (0u32..5).prop_map(f64::from)], 25),
        ) {
            let root = root % vertices;
            let prices = Prices { vertices, into: edges[..vertices * vertices].to_vec() };
            let lowest = brute_force(&prices, root);
            if lowest.is_finite() {
                let mut parents = arborescence(&prices, root);
                prop_assert!(is_tree(root, &parents), "{:?}", parents);
                prop_assert_eq!(total(&prices, root, &parents), lowest);
                let deepest = depths(&parents, root).into_iter().max();
                flatten(&prices, root, &mut parents);
                prop_assert!(is_tree(root, &parents) && depths(&parents, root).into_iter().max() <= deepest);
                prop_assert!((total(&prices, root, &parents) - lowest).abs() <= 1e-6);
            }
        }
    }

    /// Where all edges have one price, all vertices are children of the root.
    #[test]
    fn equal_prices_give_a_star() {
        let prices = Prices { vertices: 6, into: vec![2.5; 36] };
        let mut parents = vec![0, 0, 1, 2, 3, 4];
        flatten(&prices, 0, &mut parents);
        assert_eq!(parents, [0; 6]);
    }
}
