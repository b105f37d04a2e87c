//! Packing of spanning arborescences into a graph of terminals, with multiplicities.
//!
//! Edmonds' theorem made constructive (Schrijver, *Combinatorial Optimization*, 2003, §53.3; Bérczi & Frank, *Packing
//! arborescences*, 2010): a tree may take an arc if every set of terminals can afterwards still receive the trees that
//! have not reached it, which one maximum flow decides for all copies of the tree at once. Trees are completed one after
//! the other, so that the only other trees of a flow are those that have not left their roots. If fewer copies can take
//! an arc than a tree has, the tree continues with these, and the rest begins again at its root.
//!
//! A flow that rules out an arc yields a set of terminals without spare capacity (a tight set). Such sets are cached,
//! because they rule out further arcs without a flow.

use super::dense_flow::DenseFlow;
use super::digraph::Digraph;
use super::requirement::Requirement;

/// Spanning arborescence, taken `units` times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arborescence {
    pub root: u32,
    /// Number of copies, each with one unit of capacity on every arc.
    pub units: u64,
    /// Parent of each terminal; the root is its own parent.
    pub parents: Vec<u32>,
}

/// Packs the required trees into a graph without switches; `None` if they do not exist.
pub(crate) fn pack(graph: &Digraph, requirement: Requirement) -> Option<Vec<Arborescence>> {
    let terminals = graph.terminals();
    let mut packer = Packer::new(graph, requirement);
    let mut trees = Vec::new();
    for root in requirement.roots.ranks(terminals) {
        while packer.waiting[root as usize] > 0 {
            trees.push(packer.grow(root)?);
        }
    }
    Some(trees)
}

/// Capacities that no tree uses yet, and trees that contain only their root.
struct Packer {
    terminals: u32,
    arcs: Vec<PackedArc>,
    /// Arcs that leave each terminal.
    leaving: Vec<Vec<usize>>,
    network: DenseFlow,
    /// Copies of trees that have not left their root, by root.
    waiting: Vec<u64>,
    tight_sets: Vec<TightSet>,
}

/// Set of terminals that had little spare capacity when a flow found it.
#[derive(Clone, Copy, Debug)]
struct TightSet {
    /// Terminal t is in the set if bit t is set.
    inside: u128,
    /// Capacity into the set, less the copies that wait outside.
    spare: i128,
}

/// Maximum number of tight sets that are cached. Later ones replace the oldest.
const MAX_TIGHT_SETS: usize = 512;

impl TightSet {
    fn contains(&self, terminal: u32) -> bool {
        self.inside >> terminal & 1 == 1
    }
}

/// Arc with the capacity that no tree has taken.
struct PackedArc {
    from: u32,
    to: u32,
    left: u64,
}

/// Arc that could extend a tree, and how many copies can take it.
#[derive(Clone, Copy)]
struct Extension {
    arc: usize,
    copies: u64,
}

impl Packer {
    fn new(graph: &Digraph, requirement: Requirement) -> Self {
        let terminals = graph.terminals();
        let arcs: Vec<PackedArc> =
            graph.arcs().map(|(from, to, capacity)| PackedArc { from, to, left: capacity }).collect();
        let mut leaving = vec![Vec::new(); terminals as usize];
        for (number, arc) in arcs.iter().enumerate() {
            if let Some(leaving) = leaving.get_mut(arc.from as usize) {
                leaving.push(number);
            }
        }
        let mut waiting = vec![0; terminals as usize];
        for root in requirement.roots.ranks(terminals) {
            if let Some(waiting) = waiting.get_mut(root as usize) {
                *waiting = requirement.units;
            }
        }
        let network = DenseFlow::reversed(graph);
        Self { terminals, arcs, leaving, network, waiting, tight_sets: Vec::new() }
    }

    /// Grows a tree from its root over all terminals, with as many copies as take every arc.
    fn grow(&mut self, root: u32) -> Option<Arborescence> {
        let mut units = self.waiting[root as usize];
        self.set_waiting(root, 0);
        let mut parents: Vec<Option<u32>> = vec![None; self.terminals as usize];
        parents[root as usize] = Some(root);
        // Terminals of the tree, nearest to the root first, then in the order in which they joined.
        let mut joined = vec![root];
        let mut depths = vec![0u32; self.terminals as usize];
        let mut taken: Vec<usize> = Vec::new();
        while joined.len() < self.terminals as usize {
            let Extension { arc, copies } = self.best_extension(&joined, &parents, units)?;
            if copies < units {
                // The other copies give their arcs back and begin again.
                for &arc in &taken {
                    self.set_left(arc, self.arcs[arc].left + units - copies);
                }
                self.set_waiting(root, self.waiting[root as usize] + units - copies);
                units = copies;
            }
            self.set_left(arc, self.arcs[arc].left - units);
            let PackedArc { from, to, .. } = self.arcs[arc];
            parents[to as usize] = Some(from);
            let depth = depths[from as usize] + 1;
            depths[to as usize] = depth;
            let place = joined.partition_point(|&other| depths[other as usize] <= depth);
            joined.insert(place, to);
            taken.push(arc);
        }
        Some(Arborescence { root, units, parents: parents.into_iter().flatten().collect() })
    }

    fn set_left(&mut self, arc: usize, left: u64) {
        let PackedArc { from, to, left: before } = self.arcs[arc];
        for set in self.tight_sets.iter_mut().filter(|set| set.contains(to) && !set.contains(from)) {
            set.spare += i128::from(left) - i128::from(before);
        }
        self.arcs[arc].left = left;
        self.network.set_capacity(from, to, left);
    }

    fn set_waiting(&mut self, root: u32, copies: u64) {
        let before = std::mem::replace(&mut self.waiting[root as usize], copies);
        for set in self.tight_sets.iter_mut().filter(|set| !set.contains(root)) {
            set.spare += i128::from(before) - i128::from(copies);
        }
    }

    /// Stores the set of terminals that limited the last flow.
    fn remember_tight_set(&mut self) {
        if self.terminals > u128::BITS {
            return;
        }
        let members = (0..self.terminals).filter(|&terminal| self.network.is_on_source_side(terminal));
        let mut set = TightSet { inside: members.fold(0, |inside, terminal| inside | 1 << terminal), spare: 0 };
        if self.tight_sets.iter().any(|other| other.inside == set.inside) {
            return;
        }
        let entering = self.arcs.iter().filter(|arc| set.contains(arc.to) && !set.contains(arc.from));
        let entering: i128 = entering.map(|arc| i128::from(arc.left)).sum();
        let outside = (0..self.terminals).zip(&self.waiting).filter(|&(root, _)| !set.contains(root));
        set.spare = entering - outside.map(|(_, &copies)| i128::from(copies)).sum::<i128>();
        if self.tight_sets.len() >= MAX_TIGHT_SETS {
            self.tight_sets.remove(0);
        }
        self.tight_sets.push(set);
    }

    /// Returns true if a tight set permits at most `copies` copies to use an arc.
    fn is_refused(&self, arc: usize, copies: u64) -> bool {
        let PackedArc { from, to, .. } = self.arcs[arc];
        let refuses = |set: &TightSet| set.spare <= i128::from(copies) && set.contains(to) && !set.contains(from);
        self.tight_sets.iter().rev().any(refuses)
    }

    /// Returns the arc nearest to the root that all copies can take, otherwise one that the most copies can take.
    fn best_extension(&mut self, joined: &[u32], parents: &[Option<u32>], units: u64) -> Option<Extension> {
        let mut best: Option<Extension> = None;
        for &from in joined {
            let mut arcs: Vec<usize> = self.leaving[from as usize].clone();
            arcs.retain(|&arc| parents[self.arcs[arc].to as usize].is_none() && self.arcs[arc].left > 0);
            arcs.sort_by_key(|&arc| std::cmp::Reverse(self.arcs[arc].left));
            for arc in arcs {
                let limit = units.min(self.arcs[arc].left);
                let found = best.map_or(0, |best| best.copies);
                if found >= limit || self.is_refused(arc, found) {
                    continue;
                }
                let copies = self.copies(arc, limit);
                if copies == units {
                    return Some(Extension { arc, copies });
                }
                if copies > best.map_or(0, |best| best.copies) {
                    best = Some(Extension { arc, copies });
                }
            }
        }
        best
    }

    /// Number of copies, up to `limit`, of the growing tree that can take an arc.
    fn copies(&mut self, arc: usize, limit: u64) -> u64 {
        let PackedArc { from, to, .. } = self.arcs[arc];
        // Backwards from the end of the arc. A set that contains the end but not the start must keep the capacity of
        // all waiting trees whose roots are outside; the drains add that of the trees whose roots are inside.
        let waiting = self.waiting.iter().fold(0u64, |sum, &waiting| sum.saturating_add(waiting));
        let roots = (0..self.terminals).zip(self.waiting.iter().copied());
        let at_start = self.waiting[from as usize].saturating_add(limit);
        let drains = roots.filter(|&(root, _)| root != from && root != to).chain([(from, at_start)]);
        let at_end = self.waiting[to as usize];
        let flow = self.network.run(to, drains) + at_end;
        let room = flow.saturating_sub(waiting);
        if room < limit {
            self.remember_tight_set();
        }
        room.min(limit)
    }
}
