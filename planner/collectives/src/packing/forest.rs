//! Trees over which a collective moves its data.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabricast_sim::certify::{Certificate, CertifiedTree, Phase};
use fabricast_sim::schedule::{Call, Rank, RotationDigit, Symmetry};
use fabricast_topologies::Picos;

use super::optimum::Ratio;
use super::requirement::Roots;
use super::routes::Routes;
use super::variant::TreeVariant;

/// Spanning tree that carries a share of its root's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedTree {
    /// Rank at which the tree begins.
    pub root: u32,
    /// Units of each of the root's blocks that the tree carries, of [`Forest::units`].
    pub units: u32,
    /// Parent of each rank; the root is its own parent.
    pub parents: Vec<u32>,
}

/// Blocks that a root exchanges with other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockKind {
    /// One block, which all ranks receive or add to: an edge carries it once.
    Common,
    /// One block for each other rank: an edge carries the blocks of all ranks below it.
    PerRank,
}

/// Trees of all roots. In a spread, data moves from parents to children; in a collection, from children to parents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forest {
    /// Roots of the trees.
    pub roots: Roots,
    /// Blocks that move over the trees.
    pub blocks: BlockKind,
    /// Rotations of ranks that map trees to trees.
    pub symmetry: Symmetry,
    /// Units into which each block is divided.
    pub units: u32,
    /// Trees, by root, of the roots that represent all others under the symmetry.
    pub trees: Vec<PackedTree>,
}

/// Forests of a collective, with the proof that they are fast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forests {
    /// Variant of the trees; `None` for trees that are not packed into the links of a fabric.
    pub variant: Option<TreeVariant>,
    /// Trees from which ranks collect sums; `None` for collectives that do not reduce.
    pub collect: Option<Arc<Forest>>,
    /// Trees over which data spreads; `None` for collectives that only reduce.
    pub spread: Option<Arc<Forest>>,
    /// Claims about the completion time, with the cut that limits it; `None` for trees that are not packed into the
    /// links of a fabric.
    pub proof: Option<Proof>,
    /// Smallest number of channels with which connections share links nearly in the ratio of their loads.
    pub channels: u16,
    /// Number of channels with which each message of a loop has a stream of its own, so that none waits for the one before
    /// it; `channels` for trees without symmetry, or if there would be too many streams.
    pub parallel_channels: u16,
    /// Connections that share links; all connections share them if `None`.
    pub sharing: Option<Arc<LinkSharing>>,
    /// Longest latency of a route that the trees use.
    pub latency: Picos,
}

/// Sender and receiver of transfers, as ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Connection {
    pub from: u32,
    pub to: u32,
}

/// Load of a connection, divided among transfers that move at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DividedLoad {
    /// Number of transfers.
    pub transfers: u32,
    /// Units that the largest transfer carries.
    pub largest: f64,
}

/// Links that connections share. Only connections of a group, whose routes share links, affect each other's rates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSharing {
    routes: Arc<Routes>,
    /// Group of each pair of ranks, by number of the pair.
    groups: Vec<u32>,
}

impl LinkSharing {
    /// Groups the connections between all pairs of ranks.
    pub(super) fn new(routes: Arc<Routes>) -> Self {
        Self { groups: routes.link_groups(), routes }
    }

    /// Group of the connection from one rank to another.
    pub(crate) fn group(&self, from: u32, to: u32) -> u32 {
        self.routes.pair(from, to).and_then(|pair| self.groups.get(pair)).copied().unwrap_or(0)
    }

    /// Upper bound on the time of loads relative to that of the busiest link, if transfers that share a link have equal
    /// rates. At least 1; infinite if two ranks have no route. `divide_load`: transfers of a connection with a load.
    pub(crate) fn slowdown(
        &self,
        loads: &BTreeMap<Connection, u32>,
        divide_load: impl Fn(Connection, u32) -> DividedLoad,
    ) -> f64 {
        // As many transfers as units share every link in the ratio of the loads.
        let ideal = self.routes.sharing_time(loads, |_, units| DividedLoad { transfers: units, largest: 1.0 });
        let time = self.routes.sharing_time(loads, divide_load);
        if time.is_infinite() {
            return f64::INFINITY;
        }
        if ideal > 0.0 { (time / ideal).max(1.0) } else { 1.0 }
    }
}

/// Claims about the bandwidth term of the completion time, per byte of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Evidence of the lower bound.
    pub evidence: Evidence,
    /// Lower bound for any schedule, in seconds per byte.
    pub lower: Ratio,
    /// Time that the busiest link needs for these trees, in seconds per byte.
    pub upper: Ratio,
}

/// Evidence of a lower bound, which is checked without a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Sets of devices, by id, whose boundaries limit any schedule.
    Cut(Vec<Vec<Box<str>>>),
    /// Price per byte of each link that is not free, by name of the link. No schedule is faster than the price of the
    /// cheapest paths of all blocks divided by the price of all bandwidth.
    Prices(Vec<(Box<str>, u64)>),
}

impl Proof {
    /// Throughput of the trees as a share of the highest possible one.
    pub(crate) fn share_of_bound(&self) -> f64 {
        self.lower.value() / self.upper.value()
    }
}

impl Forests {
    /// Returns true if all trees are equal to those of another packing.
    pub(super) fn has_equal_trees(&self, other: &Self) -> bool {
        (&self.collect, &self.spread) == (&other.collect, &other.spread)
    }

    /// Rotations of ranks that map the trees to each other.
    pub(crate) fn symmetry(&self) -> Symmetry {
        let forest = self.collect.as_ref().or(self.spread.as_ref());
        forest.map_or(Symmetry::None, |forest| forest.symmetry.clone())
    }

    /// Returns the certificate of a call over these trees; `None` without a proof.
    #[must_use]
    pub fn certificate(&self, call: &Call) -> Option<Certificate> {
        const PICOS: u128 = 1_000_000_000_000;
        let proof = self.proof.as_ref()?;
        let picos = |ratio: Ratio| ratio.numerator.checked_mul(u128::from(call.bytes.0).checked_mul(PICOS)?);
        let bound = u64::try_from(picos(proof.lower)? / proof.lower.denominator).ok()?;
        let packed = u64::try_from(picos(proof.upper)?.div_ceil(proof.upper.denominator)).ok()?;
        let phases = [(&self.collect, Phase::Collect), (&self.spread, Phase::Spread)];
        let trees = phases.into_iter().filter_map(|(forest, phase)| Some((forest.as_ref()?, phase)));
        let trees = trees.flat_map(|(forest, phase)| {
            forest.all_trees().map(move |tree| CertifiedTree {
                phase,
                root: Rank(tree.root),
                units: tree.units,
                parents: tree.parents.into_iter().map(Rank).collect(),
            })
        });
        let (mut cut, mut prices) = (Vec::new(), BTreeMap::new());
        match &proof.evidence {
            Evidence::Cut(sets) => {
                cut = sets.iter().map(|set| set.iter().map(ToString::to_string).collect()).collect();
            }
            Evidence::Prices(links) => {
                prices = links.iter().map(|(link, price)| (link.to_string(), *price)).collect();
            }
        }
        Some(Certificate { cut, prices, trees: trees.collect(), bound_ps: bound, packed_ps: packed })
    }
}

impl PackedTree {
    /// Returns the edges (parent, child) of the tree, by child.
    pub fn edges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let root = self.root;
        self.parents.iter().copied().zip(0..).filter(move |&(_, child)| child != root)
    }

    /// Image of the tree under a rotation.
    fn rotated(&self, symmetry: &Symmetry, rotation: u32) -> Self {
        let rotate = |rank: u32| symmetry.rotate(Rank(rank), rotation).0;
        let mut parents = vec![0; self.parents.len()];
        for (&parent, rank) in self.parents.iter().zip(0..) {
            parents[rotate(rank) as usize] = rotate(parent);
        }
        Self { root: rotate(self.root), units: self.units, parents }
    }

    /// Children of each rank, ascending.
    pub(crate) fn children(&self) -> Vec<Vec<u32>> {
        let mut children = vec![Vec::new(); self.parents.len()];
        for (parent, child) in self.edges() {
            children[parent as usize].push(child);
        }
        children
    }

    /// Returns the ranks, every parent before its children.
    pub(crate) fn order(&self) -> Vec<u32> {
        let mut children = self.children();
        let mut order = vec![self.root];
        let mut next = 0;
        while let Some(&rank) = order.get(next) {
            order.append(&mut children[rank as usize]);
            next += 1;
        }
        order
    }

    /// Number of ranks below each one, itself included.
    pub(crate) fn ranks_below(&self) -> Vec<u32> {
        let mut below = vec![1u32; self.parents.len()];
        for &rank in self.order().iter().skip(1).rev() {
            below[self.parents[rank as usize] as usize] += below[rank as usize];
        }
        below
    }
}

impl Forest {
    /// Trees of one edge from each root to every other rank, for ranks that are all linked to each other.
    #[must_use]
    pub fn stars(ranks: u32, roots: Roots, blocks: BlockKind) -> Self {
        let symmetry = match roots {
            Roots::All => Symmetry::Rotations(vec![RotationDigit { stride: 1, length: ranks.max(1) }]),
            Roots::One(_) => Symmetry::None,
        };
        let star = |root: u32| PackedTree { root, units: 1, parents: vec![root; ranks as usize] };
        let first_roots = roots.ranks(ranks).filter(|&root| symmetry.representative(Rank(root)).0 == root);
        Self { roots, blocks, units: 1, trees: first_roots.map(star).collect(), symmetry }
    }

    /// Number of blocks into which the buffer of a call of `ranks` ranks is divided.
    #[must_use]
    pub fn parts(&self, ranks: u32) -> u32 {
        match self.blocks {
            BlockKind::Common => self.roots.count(ranks),
            BlockKind::PerRank => ranks,
        }
    }

    /// Units that each edge of a tree carries, by parent and child.
    pub(crate) fn edge_units(&self, tree: &PackedTree) -> Vec<((u32, u32), u64)> {
        let blocks = match self.blocks {
            BlockKind::Common => vec![1; tree.parents.len()],
            BlockKind::PerRank => tree.ranks_below(),
        };
        let units = |child: u32| u64::from(tree.units) * u64::from(blocks[child as usize]);
        tree.edges().map(|(parent, child)| ((parent, child), units(child))).collect()
    }

    /// Returns the forest with blocks divided into `times` as many units.
    pub(crate) fn refined(&self, times: u32) -> Self {
        let refine = |tree: &PackedTree| PackedTree { units: tree.units * times, ..tree.clone() };
        Self { units: self.units * times, trees: self.trees.iter().map(refine).collect(), ..self.clone() }
    }

    /// Returns the trees of all roots.
    pub fn all_trees(&self) -> impl Iterator<Item = PackedTree> + '_ {
        let images = 0..self.symmetry.rotation_count();
        images.flat_map(move |rotation| self.trees.iter().map(move |tree| tree.rotated(&self.symmetry, rotation)))
    }

    /// Returns the forest with the trees of all roots.
    pub(crate) fn without_symmetry(&self) -> Self {
        Self { trees: self.all_trees().collect(), symmetry: Symmetry::None, ..self.clone() }
    }

    /// Number of trees.
    #[must_use]
    pub fn len(&self) -> usize {
        self.trees.len()
    }

    /// Returns true if there are no trees.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }
}
