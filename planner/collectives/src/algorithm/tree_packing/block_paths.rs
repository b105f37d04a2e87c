//! Edges of collectives with a block for each rank, all_to_all, scatter and gather: every block moves along the path of
//! its tree, through scratch of the ranks between.

use std::collections::BTreeMap;

use fabricast_sim::schedule::{Buffer, Collective, OpKind, Rank};

use super::edges::{Part, Place, TreeEdge, for_each_tree};
use crate::packing::{Forest, PackedTree};

/// Returns the edges of all blocks of a forest. A block that a rank relays has the same part of its scratch for all trees,
/// which carry different units of it.
pub(super) fn block_edges(collective: Collective, forest: &Forest) -> Vec<TreeEdge> {
    let mut edges: Vec<TreeEdge> = Vec::new();
    let mut relayed: BTreeMap<Rank, BTreeMap<[Rank; 2], u32>> = BTreeMap::new();
    for_each_tree(forest, |tree, first_unit| {
        for rank in (0..tree.parents.len() as u32).filter(|&rank| rank != tree.root) {
            let path = path(collective, tree, rank);
            let (source, target) = (path[0], path[path.len() - 1]);
            let mut previous: Option<usize> = None;
            for (hop, ends) in (0..).zip(path.windows(2)) {
                let mut relay = |rank: u32| {
                    // Ranks that are alike number the images of a block alike.
                    let first = forest.symmetry.representative(Rank(rank));
                    let block = [source, target].map(|end| forest.symmetry.carry(Rank(rank), first, Rank(end)));
                    let parts = relayed.entry(first).or_default();
                    let next = parts.len() as u32;
                    Place { buffer: Buffer::Scratch, part: Part::Numbered(*parts.entry(block).or_insert(next)) }
                };
                let (from, to) = (ends[0], ends[1]);
                let src = match from == source {
                    true => Place { buffer: Buffer::Input, part: Part::OfRank(input_part(collective, source, target)) },
                    false => relay(from),
                };
                let dst = match to == target {
                    true => {
                        Place { buffer: Buffer::Output, part: Part::OfRank(output_part(collective, source, target)) }
                    }
                    false => relay(to),
                };
                let waits = previous.into_iter().collect();
                previous = Some(edges.len());
                let units = tree.units;
                edges.push(TreeEdge { from, to, kind: OpKind::Put, src, dst, first_unit, units, lag: hop, waits });
            }
        }
    });
    edges
}

/// Ranks through which the block of a rank moves, the sender first.
fn path(collective: Collective, tree: &PackedTree, rank: u32) -> Vec<u32> {
    let parent = |&rank: &u32| (rank != tree.root).then(|| tree.parents[rank as usize]);
    let mut path: Vec<u32> = std::iter::successors(Some(rank), parent).collect();
    if collective != Collective::Gather {
        path.reverse();
    }
    path
}

/// Part of the sender's input: blocks have the number of the rank that they belong to.
fn input_part(collective: Collective, source: u32, target: u32) -> u32 {
    if collective == Collective::Gather { source } else { target }
}

/// Part of the receiver's output.
fn output_part(collective: Collective, source: u32, target: u32) -> u32 {
    if collective == Collective::Scatter { target } else { source }
}
