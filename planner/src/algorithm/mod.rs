//! Communication algorithms: each writes the program of one rank of one collective call, one file per algorithm.
//!
//! All of them follow the same rules:
//! - An operation waits for the data it moves, for memory it would overwrite, and, where the same two ranks exchange
//!   several chunks on one channel, for the chunk before. Nothing else is serialised: what can be under way at once is.
//! - The bytes are cut into *lanes* (one per channel; trees have at least two), lanes into *loops* of at most
//!   [`Shape::chunk`] bytes per chunk. All chunks of a loop have exactly the same size.
//! - Input is read in place, the result is built in the output, and intermediates that the caller has no room for go to
//!   scratch.
//! - Ranks are numbered host by host, [`Shape::ranks_per_node`] each, where that divides them.

mod barrier;
mod binary_tree;
mod binomial_blocks;
mod bruck;
mod butterfly;
mod chains;
mod circle;
mod cut;
mod direct;
mod doubling;
pub mod facts;
mod grid;
mod halving_doubling;
mod hierarchical;
mod host_trees;
mod in_order_tree;
mod knomial;
mod lane;
mod linear;
mod linear_sync;
mod local;
mod matrix_cut;
mod neighbours;
mod nvls;
mod nvls_tree;
mod one_shot;
mod order;
mod pat;
mod peers;
mod places;
mod rails;
mod reduce_then_broadcast;
mod reduce_then_scatter;
mod ring;
mod rooted;
mod scatter_all_gather;
mod shape;
mod split_tree;
mod staged;
mod steps;
mod tree;
mod two_shot;
mod uneven;

use std::fmt;
use std::str::FromStr;

use fabricast_sim::schedule::{Call, Collective, Generate, Program, Schedule, UnknownWord, Workplace};
use fabricast_topologies::Bytes;
use fabricast_topologies::route::BufferPlace;
use serde::{Deserialize, Serialize};

use crate::bound::InNetwork;
use direct::Partners;
use ring::Numbering;
use rooted::{Rooted, Siblings, Tree};
pub use shape::{Shape, Unsupported};

/// A communication pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Chunks travel round a ring; broadcast and reduce along the ring as a chain.
    Ring,
    /// all_reduce over a double binary tree of hosts with chains inside; collectives with a root, and barriers, over a
    /// binomial tree.
    Tree,
    /// Every rank gives its whole input, or a flag, to every other.
    OneShot,
    /// reduce_scatter, then all_gather, both in one step between all pairs.
    TwoShot,
    /// Every pair exchanges what it must, in one step.
    Direct,
    /// Exchanges in each host, rings, chains or exchanges over hosts per GPU position.
    Hierarchical,
    /// Partners at distances 1, 2, 4, … exchange all that they have.
    RecursiveDoubling,
    /// reduce_scatter by halving what is left to sum from step to step; all_reduce doubles the results back.
    RecursiveHalvingDoubling,
    /// ⌈log2 n⌉ messages over distances 1, 2, 4, … for any number of ranks.
    Bruck,
    /// A binomial tree for every block, the trees in parallel as far as messages may grow.
    Pat,
    /// Rings over the dimensions of a grid of ranks, one dimension after the other.
    GridRing,
    /// The root scatters, all gather.
    ScatterAllGather,
    /// Every pair exchanges what it must, one partner at a time.
    Pairwise,
    /// The NVSwitch combines and copies, in one NVLink domain.
    Nvls,
    /// NVLS in each domain, trees between them.
    NvlsTree,
    /// Signals over distances 1, 2, 4, …, each after those of the distance before.
    Dissemination,
    /// The root deals with every other rank, all at once.
    Linear,
    /// The root asks one rank after the other.
    LinearSync,
    /// A tree of radix 4.
    Knomial,
    /// A binary tree, to both children at once.
    BinaryTree,
    /// A binary tree that keeps the order of ranks.
    InOrderTree,
    /// Two halves over the two sides of a binary tree, then swapped between neighbours.
    SplitTree,
    /// Four chains that begin at the root.
    Chains,
    /// Neighbours exchange what they got last, to one side and the other in turn.
    NeighbourExchange,
    /// reduce_scatter by halving what is left to sum, over growing distances.
    Butterfly,
    /// Reduce, then broadcast.
    ReduceThenBroadcast,
    /// Reduce, then scatter.
    ReduceThenScatter,
}

use Collective::{
    AllGather, AllReduce, AllToAll, AllToAllV, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter, SendRecv,
};

/// How many algorithms there are.
const COUNT: usize = 27;

/// Name and collectives of every algorithm, in the order of the documentation.
const ALGORITHMS: [(Algorithm, &str, &[Collective]); COUNT] = [
    (Algorithm::Ring, "ring", &[AllReduce, AllGather, ReduceScatter, Broadcast, Reduce]),
    (Algorithm::Tree, "tree", &[AllReduce, Broadcast, Reduce, Gather, Scatter, Barrier]),
    (Algorithm::OneShot, "one_shot", &[AllReduce, Barrier]),
    (Algorithm::TwoShot, "two_shot", &[AllReduce]),
    (Algorithm::Direct, "direct", &[AllGather, ReduceScatter, AllToAll, Gather, Scatter, SendRecv, AllToAllV]),
    (
        Algorithm::Hierarchical,
        "hierarchical",
        &[AllReduce, AllGather, ReduceScatter, Broadcast, Reduce, AllToAll, AllToAllV],
    ),
    (Algorithm::RecursiveDoubling, "recursive_doubling", &[AllReduce, AllGather, Barrier]),
    (Algorithm::RecursiveHalvingDoubling, "recursive_halving_doubling", &[AllReduce, ReduceScatter]),
    (Algorithm::Bruck, "bruck", &[AllGather, AllToAll]),
    (Algorithm::Pat, "pat", &[AllGather, ReduceScatter]),
    (Algorithm::GridRing, "grid_ring", &[AllReduce, AllGather, ReduceScatter]),
    (Algorithm::ScatterAllGather, "scatter_all_gather", &[Broadcast]),
    (Algorithm::Pairwise, "pairwise", &[AllToAll, AllToAllV]),
    (Algorithm::Nvls, "nvls", &[AllReduce, AllGather, ReduceScatter]),
    (Algorithm::NvlsTree, "nvls_tree", &[AllReduce]),
    (Algorithm::Dissemination, "dissemination", &[Barrier]),
    (Algorithm::Linear, "linear", &[Broadcast, Reduce, Barrier]),
    (Algorithm::LinearSync, "linear_sync", &[Gather]),
    (Algorithm::Knomial, "knomial", &[Broadcast]),
    (Algorithm::BinaryTree, "binary_tree", &[Broadcast, Reduce]),
    (Algorithm::InOrderTree, "in_order_tree", &[Reduce]),
    (Algorithm::SplitTree, "split_tree", &[Broadcast]),
    (Algorithm::Chains, "chains", &[Broadcast, Reduce]),
    (Algorithm::NeighbourExchange, "neighbour_exchange", &[AllGather]),
    (Algorithm::Butterfly, "butterfly", &[ReduceScatter]),
    (Algorithm::ReduceThenBroadcast, "reduce_then_broadcast", &[AllReduce]),
    (Algorithm::ReduceThenScatter, "reduce_then_scatter", &[ReduceScatter]),
];

impl Algorithm {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; COUNT] = {
        let mut all = [Self::Ring; COUNT];
        let mut i = 0;
        while i < COUNT {
            all[i] = ALGORITHMS[i].0;
            i += 1;
        }
        all
    };

    /// Its name: `two_shot`.
    #[must_use]
    pub fn name(self) -> &'static str {
        ALGORITHMS.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }

    /// The collectives that it offers.
    #[must_use]
    pub fn collectives(self) -> &'static [Collective] {
        ALGORITHMS.iter().find(|row| row.0 == self).map_or(&[], |row| row.2)
    }

    /// Whether switches reduce and multicast for it, which lets it pass bounds that others cannot.
    #[must_use]
    pub fn in_network(self) -> InNetwork {
        match self {
            Self::Nvls | Self::NvlsTree => InNetwork::Allowed,
            _ => InNetwork::Off,
        }
    }

    /// Whether it sends as many blocks in a message as fit into a chunk, so that programs of one loop depend on the size.
    #[must_use]
    pub fn fills_messages(self) -> bool {
        self == Self::Pat
    }

    /// Whether a schedule on several channels does on the first of them what one of a single channel does, with smaller
    /// chunks (a double tree has both of its trees on a single channel, and a buffer that is one message on a single
    /// channel is many on several).
    #[must_use]
    pub fn divides_by_channels(self, collective: Collective) -> bool {
        (self, collective) != (Self::Tree, AllReduce) && self != Self::ReduceThenScatter
    }

    /// Whether it cuts a buffer into as many chunks however many ranks there are, so that a large one streams through in more and more of
    /// the same size; others cut it into the blocks of ranks first.
    #[must_use]
    pub fn streams(self, collective: Collective) -> bool {
        match collective {
            Broadcast | Reduce => self != Self::ScatterAllGather,
            AllReduce => matches!(
                self,
                Self::Tree | Self::OneShot | Self::RecursiveDoubling | Self::NvlsTree | Self::ReduceThenBroadcast
            ),
            _ => false,
        }
    }

    /// Whether it offers a collective.
    #[must_use]
    pub fn supports(self, collective: Collective) -> bool {
        self.collectives().contains(&collective)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        let lower = word.to_ascii_lowercase();
        let row = ALGORITHMS.iter().find(|row| row.1 == lower);
        row.map(|row| row.0).ok_or_else(|| UnknownWord::new("algorithm", word, &ALGORITHMS.map(|row| row.1)))
    }
}

/// Broadcast or reduce over a tree.
fn over<T: Tree + Send + Sync + 'static>(
    shape: &Shape,
    algorithm: Algorithm,
    tree: T,
    siblings: Siblings,
) -> Result<Box<dyn Generate + Send + Sync>, Unsupported> {
    Ok(Box::new(Rooted::new(shape, algorithm, tree, siblings)?))
}

/// What writes the programs of an algorithm.
///
/// # Errors
/// [`Unsupported`] says why there is none.
///
/// # Complexity
/// Making a generator takes time proportional to the number of ranks at most; each program takes time proportional to
/// its runs.
pub fn generator(algorithm: Algorithm, shape: &Shape) -> Result<Box<dyn Generate + Send + Sync>, Unsupported> {
    written(algorithm, shape, Numbering::ByRank).and_then(held)
}

/// The same to be timed only, with buffers in some place: operation by operation it sends as much, the same way, after the
/// same as [`generator`]'s, but rings may name the blocks of ranks by other numbers, each lane its own. All chunks being as
/// large, no simulation can tell, and where the places of a ring do not follow each other evenly programs are shorter by the
/// number of ranks. (In managed memory, which moves when it is first touched, names stay.) What it says of whose bytes these
/// are is not true: it cannot be verified, exported or executed.
///
/// # Errors
/// As [`generator`].
pub fn timed(
    algorithm: Algorithm,
    shape: &Shape,
    buffers: BufferPlace,
) -> Result<Box<dyn Generate + Send + Sync>, Unsupported> {
    let numbering = if buffers == BufferPlace::Managed { Numbering::ByRank } else { Numbering::ByPlace };
    written(algorithm, shape, numbering).and_then(held)
}

/// Chunks of a rank up to which its program is surely short.
const FEW_CHUNKS: u32 = 1 << 16;

/// The most operations of all ranks that are lowered one by one: some gigabytes of them.
const MOST_APART: u64 = 1 << 25;

/// Refuses a generator whose programs would not be held, by that of the root: of algorithms that write a run for each loop.
fn held(generator: Box<dyn Generate + Send + Sync>) -> Result<Box<dyn Generate + Send + Sync>, Unsupported> {
    let header = generator.header();
    let Call { ranks, root, .. } = header.call;
    if header.layout.chunks() / ranks.max(1) > FEW_CHUNKS {
        let mut program = Program::default();
        generator.program(root, &mut program);
        // Of chunks that differ in size each operation is lowered by itself.
        let apart: u64 = match header.layout.is_even() {
            true => 0,
            false => program.runs().iter().map(|run| u64::from(run.len)).sum(),
        };
        let is_long = program.runs().len().saturating_mul(ranks as usize) > Schedule::MOST_RUNS
            || apart.saturating_mul(ranks.into()) > MOST_APART;
        if program.is_cut() || is_long {
            return Err(Unsupported::TooManyRuns);
        }
    }
    Ok(generator)
}

fn written(
    algorithm: Algorithm,
    shape: &Shape,
    numbering: Numbering,
) -> Result<Box<dyn Generate + Send + Sync>, Unsupported> {
    let Call { collective, ranks, root, .. } = shape.call;
    if !algorithm.supports(collective) {
        return Err(Unsupported::Collective { algorithm, collective });
    }
    if ranks == 0 {
        return Err(Unsupported::NoRanks);
    }
    if root.0 >= ranks {
        return Err(Unsupported::NoSuchRoot { root, ranks });
    }
    if shape.channels == 0 {
        return Err(Unsupported::NoChannels);
    }
    if shape.chunk == Some(Bytes(0)) {
        return Err(Unsupported::EmptyChunk);
    }
    if ranks == 1 && collective.has_sizes() {
        return Ok(Box::new(local::Local::new(algorithm, shape)?));
    }
    if shape.workplace == Workplace::Host && matches!(collective, AllReduce | ReduceScatter | Reduce) {
        return Ok(Box::new(staged::Staged::new(algorithm, shape)?));
    }
    Ok(match (algorithm, collective) {
        (_, Barrier) | (Algorithm::Dissemination, _) => Box::new(barrier::Barrier::new(shape, algorithm)?),
        (Algorithm::Ring, Broadcast | Reduce) => Box::new(ring::Chain::new(shape)?),
        (Algorithm::Ring, _) => Box::new(ring::Ring::new(shape, numbering)?),
        (Algorithm::Tree, AllReduce) => Box::new(tree::DoubleTree::new(shape)?),
        (Algorithm::Tree, Gather | Scatter) => Box::new(binomial_blocks::BinomialBlocks::new(shape)?),
        (Algorithm::Tree, Broadcast) => over(shape, algorithm, tree::Binomial::largest_first(ranks), Siblings::InTurn)?,
        (Algorithm::Tree, _) => over(shape, algorithm, tree::Binomial::smallest_first(ranks), Siblings::InTurn)?,
        (Algorithm::Linear, _) => over(shape, algorithm, linear::Star { ranks }, Siblings::Together)?,
        (Algorithm::Knomial, _) => over(shape, algorithm, knomial::Knomial { ranks }, Siblings::Together)?,
        (Algorithm::BinaryTree, _) => over(shape, algorithm, binary_tree::BinaryTree { ranks }, Siblings::Together)?,
        (Algorithm::Chains, _) => over(shape, algorithm, chains::Chains { ranks }, Siblings::Together)?,
        (Algorithm::InOrderTree, _) => Box::new(in_order_tree::InOrderReduce::new(shape)?),
        (Algorithm::SplitTree, _) => Box::new(split_tree::SplitTree::new(shape)?),
        (Algorithm::LinearSync, _) => Box::new(linear_sync::LinearSync::new(shape)?),
        // An odd number of ranks has no pairs.
        (Algorithm::NeighbourExchange, _) if ranks % 2 == 1 => Box::new(ring::Ring::new(shape, numbering)?),
        (Algorithm::NeighbourExchange, _) => Box::new(neighbours::NeighbourExchange::new(shape)?),
        (Algorithm::Butterfly, _) => Box::new(butterfly::Butterfly::new(shape)?),
        (Algorithm::ReduceThenBroadcast, _) => Box::new(reduce_then_broadcast::ReduceThenBroadcast::new(shape)?),
        (Algorithm::ReduceThenScatter, _) => Box::new(reduce_then_scatter::ReduceThenScatter::new(shape)?),
        (Algorithm::OneShot, _) => Box::new(one_shot::OneShot::new(shape)?),
        (Algorithm::TwoShot, _) => Box::new(two_shot::TwoShot::new(shape)?),
        (Algorithm::Direct, AllToAllV) => Box::new(uneven::Uneven::new(shape, Partners::Together)?),
        (Algorithm::Pairwise, AllToAllV) => Box::new(uneven::Uneven::new(shape, Partners::InTurn)?),
        (Algorithm::Direct, ReduceScatter) => Box::new(two_shot::ReduceScatter::new(shape)?),
        (Algorithm::Direct, _) => Box::new(direct::Direct::new(shape, Partners::Together)?),
        (Algorithm::Pairwise, _) => Box::new(direct::Direct::new(shape, Partners::InTurn)?),
        (Algorithm::GridRing, _) => Box::new(grid::GridRing::new(shape)?),
        (Algorithm::ScatterAllGather, _) => Box::new(scatter_all_gather::ScatterAllGather::new(shape)?),
        (Algorithm::Hierarchical, AllGather) => Box::new(hierarchical::AllGather::new(shape)?),
        (Algorithm::Hierarchical, ReduceScatter) => Box::new(hierarchical::ReduceScatter::new(shape)?),
        (Algorithm::Hierarchical, Broadcast) => Box::new(hierarchical::Broadcast::new(shape)?),
        (Algorithm::Hierarchical, Reduce) => Box::new(hierarchical::Reduce::new(shape)?),
        (Algorithm::Hierarchical, AllToAllV) => Box::new(hierarchical::AllToAllV::new(shape)?),
        (Algorithm::Hierarchical, AllToAll) => Box::new(hierarchical::AllToAll::new(shape)?),
        (Algorithm::Hierarchical, _) => Box::new(hierarchical::AllReduce::new(shape)?),
        (Algorithm::RecursiveDoubling, AllReduce) => Box::new(doubling::AllReduce::new(shape)?),
        (Algorithm::RecursiveDoubling, _) => Box::new(doubling::AllGather::new(shape)?),
        (Algorithm::Bruck, AllGather) => Box::new(bruck::AllGather::new(shape)?),
        (Algorithm::Bruck, _) => Box::new(bruck::AllToAll::new(shape)?),
        (Algorithm::Pat, _) => Box::new(pat::Pat::new(shape)?),
        (Algorithm::RecursiveHalvingDoubling, _) => Box::new(halving_doubling::HalvingDoubling::new(shape)?),
        (Algorithm::Nvls, _) => Box::new(nvls::Nvls::new(shape)?),
        (Algorithm::NvlsTree, _) => Box::new(nvls_tree::NvlsTree::new(shape)?),
    })
}
