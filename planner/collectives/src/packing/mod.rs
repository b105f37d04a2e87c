//! Trees packed into the links of a fabric, over which collectives reach the bandwidth bound of any fabric.
//!
//! ```text
//! digraph: terminals, switches, integer capacities          (pure graph algorithms)
//!   └► optimum: rate of the roots, limiting cut ─► scaling: capacities count trees
//!        └► balance: unneeded capacity of switches
//!        └► splitting: graph without switches ─► arborescences: trees with multiplicities
//! Fabric, Router ─► packer: graph of the links that routes use ─► forest: trees over ranks, with claims (proof)
//!                     └► rank_symmetry ─► routes: load of the trees on links ─► mixture: trees by linear programs
//! ```
//!
//! The method is that of Zhao et al., *ForestColl* (arXiv 2402.06787). The optimal throughput of all_gather is the
//! minimum over all cuts of bandwidth ÷ ranks on the sending side; trees of that rate are packed so that no link carries
//! more of them than its bandwidth allows. For reduce_scatter all arcs are reversed. A broadcast needs trees from one
//! root only. In all_to_all, scatter and gather, each edge carries the blocks of the ranks below it, and the trees are
//! those of a multicommodity flow (`mixture`), and so are the trees of fabrics whose ranks are alike: those of one root per class. Transfers follow the router's paths between the two ranks of an edge; where these differ from those that
//! the removal of a switch assumed, the load of the routes, not of the graph, determines the claimed time.

mod arborescences;
mod balance;
mod collection;
mod dense_flow;
mod digraph;
mod error;
mod forest;
mod growth;
mod mixture;
mod optimum;
mod packer;
mod rank_symmetry;
mod requirement;
mod routes;
mod series;
mod splitting;
#[cfg(test)]
mod tests;
mod tree_use;
mod variant;

pub(crate) use collection::CollectionSlots;
pub use error::PackingError;
pub use forest::{BlockKind, Evidence, Forest, Forests, LinkSharing, PackedTree, Proof};
pub(crate) use forest::{Connection, DividedLoad};
pub use optimum::Ratio;
pub use packer::{MAX_PACKED_RANKS, TreePacker};
pub use requirement::Roots;
pub(crate) use tree_use::TreeUse;
pub use variant::{MAX_TREES, TreeVariant, UnknownVariant};
