//! Edges of packed trees, with the slots in which they send.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use fabricast_sim::schedule::{Buffer, Collective, OpKind};

use crate::packing::{CollectionSlots, Forest, PackedTree, Roots};

/// Place of a block: a buffer, and the part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub buffer: Buffer,
    pub part: Part,
}

/// Part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Block of a rank.
    OfRank(u32),
    /// Part whose number has nothing to do with ranks: the whole buffer, or a block in scratch.
    Numbered(u32),
}

impl Part {
    /// Number of the part.
    pub fn number(self) -> u32 {
        match self {
            Self::OfRank(number) | Self::Numbered(number) => number,
        }
    }
}

/// Edge of a tree, over which some units of a block move in each loop.
#[derive(Clone, Debug)]
pub(super) struct TreeEdge {
    pub from: u32,
    pub to: u32,
    pub kind: OpKind,
    pub src: Place,
    pub dst: Place,
    /// First of the units within the block.
    pub first_unit: u32,
    pub units: u32,
    /// Slot of the first loop.
    pub lag: u32,
    /// Edges whose chunks of the same units and loop must have arrived.
    pub waits: Vec<usize>,
}

/// Returns the edges of both phases of a collective over trees of common blocks. `sums`: buffer in which ranks other than the root accumulate sums.
pub(super) fn tree_edges(
    collective: Collective,
    ranks: u32,
    sums: Buffer,
    collect: Option<&Forest>,
    spread: Option<&Forest>,
) -> Vec<TreeEdge> {
    let is_rooted = [collect, spread].into_iter().flatten().any(|forest| matches!(forest.roots, Roots::One(_)));
    let mut builder = EdgeBuilder { edges: Vec::new(), ranks, sums, is_rooted };
    let mut completions = Vec::new();
    if let Some(forest) = collect {
        for_each_tree(forest, |tree, first_unit| builder.collect(tree, first_unit, &mut completions));
    }
    let start = builder.edges.iter().map(|edge| edge.lag + 1).max().unwrap_or(0);
    if spread.is_some() {
        // All sums are complete when the roots send them on, so that none waits for others.
        for done in &completions {
            for edge in &mut builder.edges[done.edges.clone()] {
                edge.lag += start - done.slots;
            }
        }
    }
    if let Some(forest) = spread {
        for_each_tree(forest, |tree, first_unit| builder.spread(collective, tree, first_unit, start, &completions));
    }
    builder.edges
}

/// Edges under construction.
struct EdgeBuilder {
    edges: Vec<TreeEdge>,
    ranks: u32,
    sums: Buffer,
    /// True if the buffer is the block of the only root.
    is_rooted: bool,
}

/// Edge that completes the sum of some units at their root.
struct Completion {
    root: u32,
    first_unit: u32,
    units: u32,
    edge: usize,
    /// Edges of the tree, and the slots that they need.
    edges: Range<usize>,
    slots: u32,
}

impl EdgeBuilder {
    /// Block of a root in a buffer.
    fn block(&self, buffer: Buffer, root: u32) -> Place {
        Place { buffer, part: if self.is_rooted { Part::Numbered(0) } else { Part::OfRank(root) } }
    }

    /// Adds the edges over which the parts of a tree reach its leaves. `start`: lag of the root's edges.
    fn spread(
        &mut self,
        collective: Collective,
        tree: &PackedTree,
        first_unit: u32,
        start: u32,
        completions: &[Completion],
    ) {
        let mut arrival: Vec<Option<usize>> = vec![None; self.ranks as usize];
        let children = tree.children();
        let mut open = VecDeque::from([(tree.root, start)]);
        let overlaps = |done: &&Completion| {
            done.root == tree.root
                && done.first_unit < first_unit + tree.units
                && first_unit < done.first_unit + done.units
        };
        let sums: Vec<usize> = completions.iter().filter(overlaps).map(|done| done.edge).collect();
        while let Some((from, lag)) = open.pop_front() {
            let is_root = from == tree.root;
            for &to in &children[from as usize] {
                let waits = if is_root { sums.clone() } else { arrival[from as usize].into_iter().collect() };
                let src = if is_root && collective != Collective::AllReduce { Buffer::Input } else { Buffer::Output };
                arrival[to as usize] = Some(self.edges.len());
                self.edges.push(TreeEdge {
                    from,
                    to,
                    kind: OpKind::Put,
                    src: self.block(src, tree.root),
                    dst: self.block(Buffer::Output, tree.root),
                    first_unit,
                    units: tree.units,
                    lag,
                    waits,
                });
                open.push_back((to, lag + 1));
            }
        }
    }

    /// Adds the edges over which the sums of a tree reach its root. They send as late as the slots of the tree permit, so
    /// that few messages wait at a rank for the sums of its other children.
    fn collect(&mut self, tree: &PackedTree, first_unit: u32, completions: &mut Vec<Completion>) {
        let slots = CollectionSlots::new(tree);
        let first_edge = self.edges.len();
        // Edge that completes the sum of each rank.
        let mut sums: Vec<Option<usize>> = vec![None; self.ranks as usize];
        // Children come before parents.
        for parent in tree.order().into_iter().rev() {
            let mut previous: Option<usize> = None;
            for &child in &slots.children[parent as usize] {
                let sum = sums[child as usize];
                let edge = TreeEdge {
                    from: child,
                    to: parent,
                    kind: if previous.is_none() { OpKind::PutReduceInput } else { OpKind::PutReduce },
                    src: self.block(if sum.is_none() { Buffer::Input } else { self.sums }, tree.root),
                    dst: self.block(if parent == tree.root { Buffer::Output } else { self.sums }, tree.root),
                    first_unit,
                    units: tree.units,
                    lag: slots.sends[child as usize],
                    waits: sum.into_iter().chain(previous).collect(),
                };
                previous = Some(self.edges.len());
                self.edges.push(edge);
            }
            sums[parent as usize] = previous;
        }
        if let Some(edge) = sums[tree.root as usize] {
            let edges = first_edge..self.edges.len();
            completions.push(Completion {
                root: tree.root,
                first_unit,
                units: tree.units,
                edge,
                edges,
                slots: slots.count,
            });
        }
    }
}

/// Calls a function for each tree, with the first of the units of its root's block that it carries.
pub(super) fn for_each_tree(forest: &Forest, mut action: impl FnMut(&PackedTree, u32)) {
    let mut used: BTreeMap<u32, u32> = BTreeMap::new();
    for tree in &forest.trees {
        let first = used.entry(tree.root).or_default();
        action(tree, *first);
        *first += tree.units;
    }
}
