//! Spanning arborescences that a graph must contain, and a test by maximum flow that the graph contains them.

use super::dense_flow::DenseFlow;
use super::digraph::Digraph;

/// Ranks at which trees begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Roots {
    /// Every rank: all_gather, all_to_all and, with reversed trees, reduce_scatter.
    All,
    /// One rank: broadcast, scatter and, with reversed trees, reduce and gather.
    One(u32),
}

impl Roots {
    /// Number of roots among `ranks` ranks.
    #[must_use]
    pub fn count(self, ranks: u32) -> u32 {
        match self {
            Self::All => ranks,
            Self::One(_) => 1,
        }
    }

    /// Returns the roots among `ranks` ranks.
    pub(crate) fn ranks(self, ranks: u32) -> std::ops::Range<u32> {
        match self {
            Self::All => 0..ranks,
            Self::One(root) => root..root + 1,
        }
    }
}

/// Number of arc-disjoint spanning trees, in units of capacity, that begin at each root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Requirement {
    pub roots: Roots,
    /// Trees per root.
    pub units: u64,
}

impl Requirement {
    /// Largest number of units by which a cut falls short of the requirement; 0 if the trees exist.
    ///
    /// The trees exist if and only if every set of terminals without some of the roots can receive the units of these
    /// roots (Edmonds, *Edge-disjoint branchings*, 1973; with switches Bang-Jensen, Frank & Jackson, *Preserving and
    /// increasing local edge-connectivity in mixed graphs*, 1995). One maximum flow per terminal, from all roots.
    pub(crate) fn deficit(&self, graph: &Digraph) -> u64 {
        self.deficit_below(graph, u64::MAX)
    }

    /// Variant of [`Self::deficit`] that ends as soon as the deficit reaches `limit`.
    pub(crate) fn deficit_below(&self, graph: &Digraph, limit: u64) -> u64 {
        let mut network = DenseFlow::reversed(graph);
        let mut deficit = 0;
        for terminal in 0..graph.terminals() {
            let roots = self.roots.ranks(graph.terminals()).filter(|&root| root != terminal);
            let drains = roots.map(|root| (root, self.units));
            let needed = self.units.saturating_mul(drains.clone().count() as u64);
            deficit = deficit.max(needed.saturating_sub(network.run(terminal, drains)));
            if deficit >= limit {
                return deficit;
            }
        }
        deficit
    }
}
