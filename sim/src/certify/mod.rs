//! Certificates of synthesised schedules, and a checker that trusts nothing of the synthesis.
//!
//! A certificate states two times, without latencies and software costs. No schedule is faster than `bound_ps`: the
//! bytes that must leave some set of devices need this time on the links that leave it, or the cheapest paths of all blocks
//! cost, at given prices of links, as much as all bandwidth in this time. The schedule can be pipelined
//! in `packed_ps`: its trees span all ranks, its transfers follow them, and no link is busy for longer.
//!
//! The checker counts capacities of links across the cut, edges of trees, and bytes on the routes of transfers, without
//! a search or a flow. Routes are those of the fabric's router, and only links that some route uses count: a bound
//! holds for schedules whose transfers follow these routes, in which only ranks reduce.

mod check;
mod prices;

use std::collections::BTreeMap;

pub use check::check;
use serde::{Deserialize, Serialize};

use crate::schedule::{Collective, Rank};

/// Lower bound and busiest-link time of a synthesised schedule, with the evidence for both: cut or prices, and trees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// Sets of devices, by id, whose boundaries limit any schedule: one set, from which bytes leave; for an all_reduce also
    /// several, which bytes enter and of which exactly one contains each rank. Empty if prices prove the bound.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut: Vec<Vec<String>>,
    /// Price per byte of links, by name; others are free. In an all_to_all, scatter or gather, each block pays at least
    /// for its cheapest path, and in a second the links earn at most their bandwidth times their price, so that no schedule
    /// is faster than the ratio of both (the dual of a multicommodity flow: Shahrokhi & Matula, J. ACM 1990).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prices: BTreeMap<String, u64>,
    /// Lower bound on the time of any schedule for this call, in picoseconds.
    pub bound_ps: u64,
    /// Time that the busiest link needs for this schedule, in picoseconds.
    pub packed_ps: u64,
    /// Trees over which the data moves.
    pub trees: Vec<CertifiedTree>,
}

/// Spanning tree that carries a share of the block of its root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertifiedTree {
    /// Direction in which data moves.
    pub phase: Phase,
    /// Rank at which the tree begins.
    pub root: Rank,
    /// Units of the root's block that the tree carries; all trees of a root and phase carry the whole block.
    pub units: u32,
    /// Parent of each rank; the root is its own parent.
    pub parents: Vec<Rank>,
}

impl CertifiedTree {
    /// Returns sender and receiver of each block that the tree moves: the block of a rank passes all edges of its path, a
    /// common block each edge of the tree once.
    pub fn transfers(&self, collective: Collective) -> impl Iterator<Item = (Rank, Rank)> + '_ {
        let parent = |rank: &Rank| self.parents.get(rank.0 as usize).copied().filter(|parent| parent != rank);
        let edges = if has_block_per_rank(collective) { self.parents.len() } else { 1 };
        let ranks = (0..self.parents.len() as u32).map(Rank);
        let children = ranks.flat_map(move |rank| std::iter::successors(Some(rank), parent).take(edges));
        let joined =
            children.filter(|&child| child != self.root).filter_map(move |child| Some((parent(&child)?, child)));
        joined.map(|(parent, child)| match self.phase {
            Phase::Spread => (parent, child),
            Phase::Collect => (child, parent),
        })
    }
}

/// Returns true for collectives whose trees carry a block for each rank.
fn has_block_per_rank(collective: Collective) -> bool {
    matches!(collective, Collective::AllToAll | Collective::Scatter | Collective::Gather)
}

/// Direction in which data moves through trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Sums move from children to parents.
    Collect,
    /// Data moves from parents to children.
    Spread,
}

/// Reason why a certificate is not valid.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CertificateError {
    /// The schedule has no certificate.
    #[error("the schedule has no certificate; those of algorithm tree_packing have one")]
    Missing,
    /// The fabric does not have one device for each rank.
    #[error("the schedule has {ranks} ranks, and the fabric {devices} different GPUs in use")]
    Devices {
        /// Ranks of the schedule.
        ranks: u32,
        /// Devices of the fabric.
        devices: usize,
    },
    /// The certificate has neither a cut nor prices.
    #[error("the certificate has no evidence of its bound: a cut or prices of links")]
    NoEvidence,
    /// Certificates of this collective do not exist.
    #[error("certificates of {0} do not exist")]
    Collective(Collective),
    /// The cut proves no lower bound.
    #[error("the cut is no bound: {0}")]
    Cut(String),
    /// The prices of links prove no lower bound.
    #[error("the prices are no bound: {0}")]
    Prices(String),
    /// The stated bound is above the bound that the cut or the prices prove.
    #[error("the evidence proves a bound of {proven} ps, not {claimed} ps")]
    Bound {
        /// Bound that the certificate states, in picoseconds.
        claimed: u64,
        /// Bound that the evidence proves, in picoseconds.
        proven: u64,
    },
    /// A tree does not span the ranks, or the trees of a root do not carry its block.
    #[error("the trees do not carry the data: {0}")]
    Trees(String),
    /// The bytes that the schedule moves between two ranks differ from those of its trees.
    #[error("rank {} sends other bytes to rank {} than the trees say", .from.0, .to.0)]
    Transfers {
        /// Rank that sends the bytes.
        from: Rank,
        /// Rank that receives the bytes.
        to: Rank,
    },
    /// Two ranks that exchange data have no route.
    #[error(transparent)]
    Route(#[from] fabricast_topologies::Error),
    /// A link is busy for longer than the certificate states.
    #[error("link {link} needs {needed} ps, more than the claimed {claimed} ps")]
    Load {
        /// Name of the link.
        link: String,
        /// Time for which the link is busy, in picoseconds.
        needed: u64,
        /// Time that the certificate states, in picoseconds.
        claimed: u64,
    },
    /// A number of the check exceeds 128 bits.
    #[error("the numbers of the certificate are too large to check exactly")]
    TooLarge,
}
