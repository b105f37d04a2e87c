//! Closed-form properties of every algorithm: steps, bytes and, on equal links, time. The table of docs/algorithms.md
//! is printed from this data, and tests compare it with schedules and simulations.
//!
//! # Example
//!
//! A ring all_reduce of eight ranks on one host, in formulas and in numbers.
//!
//! ```
//! use fabricast_collectives::algorithm::Algorithm;
//! use fabricast_collectives::algorithm::facts::{Count, facts};
//! use fabricast_sim::schedule::Collective;
//!
//! let pair = (Algorithm::Ring, Collective::AllReduce);
//! let ring = facts().find(|row| (row.algorithm, row.collective) == pair).ok_or("no such pair")?;
//! assert_eq!((ring.steps.text, ring.sent.text), ("2(n−1)", "2(n−1)/n"));
//! let eight = Count::on_hosts(8, 8);
//! assert_eq!(((ring.steps.evaluate)(eight), (ring.sent.evaluate)(eight)), (14.0, 1.75));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::Collective;

use super::Algorithm;

/// Number of ranks and their distribution over hosts, the argument of a [`Figure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Number of ranks.
    pub ranks: u32,
    /// Number of ranks on each host.
    pub per_host: u32,
}

impl Count {
    /// Creates the count for `ranks` ranks on hosts of `ranks_per_node` each, or on one host if that does not divide
    /// the number of ranks.
    #[must_use]
    pub fn on_hosts(ranks: u32, ranks_per_node: u32) -> Self {
        let divides_evenly = ranks_per_node > 0 && ranks.is_multiple_of(ranks_per_node);
        Self { ranks, per_host: if divides_evenly { ranks_per_node } else { ranks } }
    }

    fn n(self) -> f64 {
        f64::from(self.ranks)
    }

    /// Returns (n−1)/n, the share of a buffer that belongs to other ranks.
    fn others(self) -> f64 {
        (self.n() - 1.0) / self.n()
    }

    /// Returns ⌈log2 n⌉ for n ranks.
    fn log(self) -> f64 {
        f64::from(self.ranks.next_power_of_two().ilog2())
    }

    /// Returns g, the number of ranks on each host.
    fn g(self) -> f64 {
        f64::from(self.per_host)
    }

    /// Returns h, the number of hosts.
    fn h(self) -> f64 {
        f64::from(self.ranks / self.per_host)
    }

    /// Returns the number of steps: `between_hosts` if hosts have a single rank, otherwise `between_hosts` +
    /// `within_hosts`.
    fn steps(self, between_hosts: f64, within_hosts: f64) -> f64 {
        if self.per_host > 1 { between_hosts + within_hosts } else { between_hosts }
    }

    /// Returns the number of steps of rings along a grid: Σ(aᵢ−1) over the two sides a₁ and a₂ of the grid that is
    /// closest to a square.
    fn along_sides(self) -> f64 {
        let side = (1..=self.ranks.isqrt()).rev().find(|&side| self.ranks.is_multiple_of(side)).unwrap_or(1);
        f64::from(side - 1 + self.ranks / side - 1)
    }

    /// Returns the depth of a binomial tree: the maximum number of one bits in a number below n.
    fn binomial_depth(self) -> f64 {
        f64::from((0..self.ranks).map(u32::count_ones).max().unwrap_or(0))
    }

    /// Returns the depth of a binary tree: ⌊log2 n⌋.
    fn levels(self) -> f64 {
        f64::from(self.ranks.ilog2())
    }

    /// Returns the number of buffers sent in sequence down a binary tree: two per level, except for one in the last
    /// level if each of its parents has a single child.
    fn binary(self) -> f64 {
        let (first, depth) = (1u32 << self.ranks.ilog2(), self.levels());
        let last = if 2 * (self.ranks + 1 - first) > first { 2.0 } else { 1.0 };
        2.0 * (depth - 1.0) + last
    }

    /// Returns the number of children of the root of a k-nomial tree of radix 4: the number of values r·4ᵏ below n, for
    /// r = 1, 2, 3.
    fn knomial_children(self) -> f64 {
        let weights = (0..u32::BITS / 2).map(|k| 1u64 << (2 * k));
        weights.map(|w| (1..4).filter(|r| r * w < u64::from(self.ranks)).count() as f64).sum()
    }

    /// Returns the depth of a k-nomial tree of radix 4: the maximum number of nonzero base-4 digits in a number below
    /// n.
    fn knomial_depth(self) -> f64 {
        let digits = |position: u32| (0..u32::BITS / 2).filter(|k| position >> (2 * k) & 3 != 0).count();
        (0..self.ranks).map(digits).max().unwrap_or(0) as f64
    }

    /// Returns the number of ranks in the longest of four chains.
    fn longest_chain(self) -> f64 {
        f64::from((self.ranks - 1).div_ceil(4))
    }

    /// Returns the number of non-empty chains, at most four.
    fn chains(self) -> f64 {
        f64::from((self.ranks - 1).min(4))
    }

    /// Returns the number of steps of a neighbour exchange; for an odd number of ranks, of a ring.
    fn neighbour_exchange_steps(self) -> f64 {
        if self.ranks.is_multiple_of(2) { self.n() / 2.0 } else { self.n() - 1.0 }
    }

    /// Returns the total number of hops of one block to each rank over distances of powers of two: the number of one
    /// bits in all numbers below n.
    fn hops(self) -> f64 {
        (0..self.ranks).map(|offset| f64::from(offset.count_ones())).sum()
    }
}

/// Quantity as text and as a function. In the text, n is the number of ranks, h the number of hosts, and g the number
/// of ranks per host.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Formula as text.
    pub text: &'static str,
    /// Function that evaluates the formula.
    pub evaluate: fn(Count) -> f64,
}

/// Rank counts for which the figures are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exact {
    /// Any number of ranks.
    Always,
    /// Powers of two. Other counts need up to two more steps, and up to twice the bytes on some ranks.
    PowersOfTwo,
}

/// Completion time with one loop, one channel and no software overhead.
#[derive(Clone, Copy, Debug)]
pub enum Time {
    /// Time on equal links of latency L and bandwidth B: L per step, plus this multiple of bytes/B.
    Flat(Figure),
    /// Time as a formula in text, with latency L and bandwidth B within hosts, L′ and B′ between hosts.
    Levels(&'static str),
}

/// Total bytes sent, compared with the minimum for the collective without in-network reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// The minimum: no schedule sends less.
    Minimum,
    /// More than the minimum, in exchange for fewer steps or a simpler pattern.
    More,
    /// The traffic is not comparable with the minimum, because switches reduce and multicast.
    Switched,
}

/// Closed-form properties of an algorithm for a collective.
#[derive(Clone, Copy, Debug)]
pub struct AlgorithmProperties {
    /// Algorithm that has these properties.
    pub algorithm: Algorithm,
    /// Collective that the algorithm runs.
    pub collective: Collective,
    /// Rank counts for which the figures are exact.
    pub exact: Exact,
    /// Number of sequential transfers.
    pub steps: Figure,
    /// Bytes sent by the busiest rank, in multiples of the buffer.
    pub sent: Figure,
    /// Total bytes sent by all ranks, compared with the minimum.
    pub traffic: Traffic,
    /// Completion time with one loop, one channel and no software overhead.
    pub time: Time,
}

const fn figure(text: &'static str, evaluate: fn(Count) -> f64) -> Figure {
    Figure { text, evaluate }
}

const ONE: Figure = figure("1", |_| 1.0);
const TWO: Figure = figure("2", |_| 2.0);
const OTHERS: Figure = figure("(n−1)/n", Count::others);
const TWICE_OTHERS: Figure = figure("2(n−1)/n", |c| 2.0 * c.others());
const RING: Figure = figure("n−1", |c| c.n() - 1.0);
const TWICE_RING: Figure = figure("2(n−1)", |c| 2.0 * (c.n() - 1.0));
const LOG: Figure = figure("⌈log₂ n⌉", Count::log);
const TWICE_LOG: Figure = figure("2·log₂ n", |c| 2.0 * c.log());
const SIDES: Figure = figure("Σ(aᵢ−1)", Count::along_sides);
const TWICE_SIDES: Figure = figure("2·Σ(aᵢ−1)", |c| 2.0 * c.along_sides());

use Algorithm::{
    BinaryTree, Bruck, Butterfly, Chains, CollnetChain, Direct, Dissemination, GridRing, Hierarchical, InOrderTree,
    Knomial, Linear, LinearSync, NeighbourExchange, Nvls, NvlsTree, OneShot, Pairwise, Pat, RecursiveDoubling,
    RecursiveHalvingDoubling, ReduceThenBroadcast, ReduceThenScatter, Ring, ScatterAllGather, SplitTree, Tree,
    TreePacking, TwoShot,
};
use Collective::{
    AllGather, AllReduce, AllToAll, AllToAllV, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter, SendRecv,
};
use Exact::{Always, PowersOfTwo};
use Traffic::{Minimum, More, Switched};

/// Row of [`FACTS`]: the fields of [`AlgorithmProperties`], beginning with the collective.
type Row = (Collective, Algorithm, Exact, Figure, Figure, Traffic, Time);

/// Depth of a binary tree, the number of its steps.
const LEVELS: Figure = figure("⌊log₂ n⌋", Count::levels);

/// Returns the number of buffers sent by the busiest rank of a split binary tree: half a buffer to each child and to
/// its neighbour.
fn split_sent(count: Count) -> f64 {
    let n = count.ranks;
    // The children of positions 1 and 2 are 2 and 4 positions further on. These positions also have a neighbour unless
    // n is 2.
    let root_sent = if n.is_multiple_of(2) && n > 2 { 1.5 } else { 1.0 };
    let first_child_sent = [n > 3, n > 5, n > 2].iter().filter(|&&exists| exists).count() as f64 / 2.0;
    first_child_sent.max(root_sent)
}

/// Number of children of the root of a k-nomial tree of radix 4.
const KNOMIAL: Figure = figure("numbers r·4ᵏ below n", Count::knomial_children);

/// Buffers sent by the busiest rank of a binary tree.
const CHILDREN: Figure = figure("2", |c| if c.ranks == 2 { 1.0 } else { 2.0 });

/// Steps up and down the chain of a host, and one between hosts.
const CHAIN: Figure = figure("2(g−1) + 1", |c| 2.0 * (c.g() - 1.0) + 1.0);

/// Buffers sent in a barrier, which moves no data.
const NOTHING: Figure = figure("0", |_| 0.0);

/// Buffers sent by the busiest rank of a direct all_to_allv.
const ROW: Figure =
    figure("the largest row without its own block ((n−1)/n² of equal blocks)", |c| c.others() / c.n());

/// Steps of packed trees that are stars.
const LINKED_ONE: Figure = figure("1 in a host whose ranks are all linked", |_| 1.0);

/// Steps of packed trees that are stars, in which the root receives from one rank after the other.
const LINKED_RING: Figure = figure("n−1 in a host whose ranks are all linked", |c| c.n() - 1.0);

/// Properties of every supported pair of collective and algorithm, by collective. Tree all_reduce is for a single host;
/// chains and trees have one chunk. The figures of all_to_allv assume equal blocks, with the whole matrix as the
/// buffer.
const FACTS: [Row; 72] = [
    (AllReduce, Ring, Always, TWICE_RING, TWICE_OTHERS, Minimum, Time::Flat(TWICE_OTHERS)),
    (
        AllReduce,
        Tree,
        Always,
        figure("2(n−1) in a host, 2(g−1) + 4·log₂ h at most", |c| 2.0 * (c.n() - 1.0)),
        figure("2", |c| if c.ranks == 2 { 1.0 } else { 2.0 }),
        Minimum,
        Time::Flat(TWICE_RING),
    ),
    (AllReduce, OneShot, Always, ONE, RING, More, Time::Flat(RING)),
    (AllReduce, TwoShot, Always, TWO, TWICE_OTHERS, Minimum, Time::Flat(TWICE_OTHERS)),
    (
        AllReduce,
        Hierarchical,
        Always,
        figure("2h", |c| c.steps(2.0 * (c.h() - 1.0), 2.0)),
        TWICE_OTHERS,
        Minimum,
        Time::Levels("2(L + (g−1)/g·bytes/B) + 2(h−1)(L′ + bytes/(n·B′))"),
    ),
    (AllReduce, RecursiveDoubling, PowersOfTwo, LOG, LOG, More, Time::Flat(LOG)),
    (AllReduce, RecursiveHalvingDoubling, PowersOfTwo, TWICE_LOG, TWICE_OTHERS, Minimum, Time::Flat(TWICE_OTHERS)),
    (AllReduce, GridRing, Always, TWICE_SIDES, TWICE_OTHERS, Minimum, Time::Flat(TWICE_OTHERS)),
    (
        AllReduce,
        Nvls,
        Always,
        TWO,
        figure("(n+1)/n", |c| (c.n() + 1.0) / c.n()),
        Switched,
        Time::Levels("2(L + bytes/B); over several hosts L′ + bytes/(g·B′) more"),
    ),
    (
        AllReduce,
        NvlsTree,
        Always,
        figure("2 + 2·log₂ h", |c| 2.0 + 2.0 * c.h().log2()),
        figure("(g+1)/g + up to 3/g", |c| (c.g() + 4.0) / c.g()),
        Switched,
        Time::Levels("2(L + bytes/B) + 2·log₂ h·(L′ + bytes/(g·B′)) at most"),
    ),
    (AllReduce, CollnetChain, Always, CHAIN, TWO, Switched, Time::Levels("2(g−1)(L + bytes/B) + L′ + bytes/B′")),
    (
        AllReduce,
        ReduceThenBroadcast,
        Always,
        figure("most bits of a number below n, and most digits in base 4 that are not 0", |c| {
            c.binomial_depth() + c.knomial_depth()
        }),
        KNOMIAL,
        Minimum,
        Time::Levels("3m·L + (2m + 3m(m+1)/2)·bytes/B, n = 4ᵐ"),
    ),
    (
        AllReduce,
        TreePacking,
        Always,
        figure("n in a host whose ranks are all linked", Count::n),
        TWICE_OTHERS,
        Minimum,
        Time::Flat(TWICE_OTHERS),
    ),
    (AllGather, Nvls, Always, ONE, figure("1/n", |c| 1.0 / c.n()), Switched, Time::Levels("L + bytes/B")),
    (ReduceScatter, Nvls, Always, ONE, ONE, Switched, Time::Levels("L + bytes/B")),
    (AllGather, Ring, Always, RING, OTHERS, Minimum, Time::Flat(OTHERS)),
    (AllGather, Direct, Always, ONE, OTHERS, Minimum, Time::Flat(OTHERS)),
    (AllGather, TreePacking, Always, LINKED_ONE, OTHERS, Minimum, Time::Flat(OTHERS)),
    (
        AllGather,
        Hierarchical,
        Always,
        figure("h", |c| c.steps(c.h() - 1.0, 1.0)),
        OTHERS,
        Minimum,
        Time::Levels("(h−1)·T + S, T = L′ + bytes/(n·B′), S = L + (g−1)·bytes/(n·B) ≤ T"),
    ),
    (AllGather, RecursiveDoubling, PowersOfTwo, LOG, OTHERS, Minimum, Time::Flat(OTHERS)),
    (AllGather, Bruck, Always, LOG, OTHERS, Minimum, Time::Flat(OTHERS)),
    (AllGather, Pat, Always, LOG, OTHERS, Minimum, Time::Flat(OTHERS)),
    (AllGather, GridRing, Always, SIDES, OTHERS, Minimum, Time::Flat(OTHERS)),
    (
        AllGather,
        NeighbourExchange,
        Always,
        figure("n/2 (n odd: n−1)", Count::neighbour_exchange_steps),
        OTHERS,
        Minimum,
        Time::Flat(OTHERS),
    ),
    (ReduceScatter, Ring, Always, RING, OTHERS, Minimum, Time::Flat(OTHERS)),
    (ReduceScatter, Direct, Always, ONE, OTHERS, Minimum, Time::Flat(OTHERS)),
    (ReduceScatter, TreePacking, Always, LINKED_RING, OTHERS, Minimum, Time::Flat(OTHERS)),
    (
        ReduceScatter,
        Hierarchical,
        Always,
        figure("h+1", |c| c.steps(c.h() - 1.0, if c.ranks > c.per_host { 2.0 } else { 1.0 })),
        OTHERS,
        Minimum,
        Time::Levels("(h−1)·T + 2S, T and S as for all_gather"),
    ),
    (ReduceScatter, RecursiveHalvingDoubling, PowersOfTwo, LOG, OTHERS, Minimum, Time::Flat(OTHERS)),
    (ReduceScatter, Pat, Always, LOG, OTHERS, Minimum, Time::Flat(OTHERS)),
    (ReduceScatter, GridRing, Always, SIDES, OTHERS, Minimum, Time::Flat(OTHERS)),
    (ReduceScatter, Butterfly, PowersOfTwo, LOG, OTHERS, Minimum, Time::Flat(OTHERS)),
    (
        ReduceScatter,
        ReduceThenScatter,
        PowersOfTwo,
        figure("⌈log₂ n⌉ + 1", |c| c.log() + 1.0),
        ONE,
        More,
        Time::Flat(figure("⌈log₂ n⌉ + (n−1)/n", |c| c.log() + c.others())),
    ),
    (Broadcast, Ring, Always, RING, ONE, Minimum, Time::Flat(RING)),
    (Broadcast, Tree, Always, LOG, LOG, Minimum, Time::Flat(LOG)),
    (
        Broadcast,
        Hierarchical,
        Always,
        figure("h+1", |c| c.steps(c.h() - 1.0, 2.0)),
        figure("2(g−1)/g + 1/g", |c| (2.0 * (c.g() - 1.0) + if c.ranks > c.per_host { 1.0 } else { 0.0 }) / c.g()),
        Minimum,
        Time::Levels("2(L + (g−1)/g·bytes/B) + (h−1)(L′ + bytes/(g·B′))"),
    ),
    (
        Broadcast,
        ScatterAllGather,
        Always,
        figure("1 + ⌈log₂ n⌉", |c| 1.0 + c.log()),
        TWICE_OTHERS,
        Minimum,
        Time::Flat(TWICE_OTHERS),
    ),
    (Broadcast, Linear, Always, ONE, RING, Minimum, Time::Flat(RING)),
    (Broadcast, TreePacking, Always, LINKED_ONE, RING, Minimum, Time::Flat(RING)),
    (
        Broadcast,
        Knomial,
        Always,
        figure("most digits that are not 0 of a number below n in base 4", Count::knomial_depth),
        KNOMIAL,
        Minimum,
        Time::Levels("m·L + 3m(m+1)/2·bytes/B, n = 4ᵐ"),
    ),
    (
        Broadcast,
        BinaryTree,
        Always,
        LEVELS,
        CHILDREN,
        Minimum,
        Time::Flat(figure("(2⌊log₂ n⌋ − 2 + the most children of the last parents)", Count::binary)),
    ),
    (
        Broadcast,
        SplitTree,
        Always,
        figure("⌊log₂ n⌋ + 1", |c| c.levels() + 1.0),
        figure("1 to 1½", split_sent),
        Minimum,
        Time::Levels("k·L + (k − ½)·bytes/B, n = 2ᵏ − 1, k > 1"),
    ),
    (
        Broadcast,
        Chains,
        Always,
        figure("⌈(n−1)/4⌉", Count::longest_chain),
        figure("min(4, n−1)", Count::chains),
        Minimum,
        Time::Flat(figure("(⌈(n−1)/4⌉ − 1 + min(4, n−1))", |c| c.longest_chain() - 1.0 + c.chains())),
    ),
    (Reduce, Ring, Always, RING, ONE, Minimum, Time::Flat(RING)),
    (Reduce, Tree, PowersOfTwo, LOG, ONE, Minimum, Time::Flat(LOG)),
    (
        Reduce,
        Hierarchical,
        Always,
        figure("h+1", |c| c.steps(c.h() - 1.0, 2.0)),
        ONE,
        More,
        Time::Levels("2(L + (g−1)/g·bytes/B) + (h−1)(L′ + bytes/(g·B′))"),
    ),
    (Reduce, Linear, Always, ONE, ONE, Minimum, Time::Flat(RING)),
    (Reduce, TreePacking, Always, LINKED_RING, ONE, Minimum, Time::Flat(RING)),
    (Reduce, BinaryTree, Always, LEVELS, ONE, Minimum, Time::Levels("(k−1)(L + 2·bytes/B), n = 2ᵏ − 1")),
    (
        Reduce,
        InOrderTree,
        Always,
        figure("⌊log₂ n⌋ + 1 (root n−1: ⌊log₂ n⌋)", |c| c.levels() + 1.0),
        ONE,
        More,
        Time::Levels("(k−1)(L + 2·bytes/B) + L + bytes/B, n = 2ᵏ − 1"),
    ),
    (
        Reduce,
        Chains,
        Always,
        figure("⌈(n−1)/4⌉", Count::longest_chain),
        ONE,
        Minimum,
        Time::Levels("l·L + (l + 3)·bytes/B, n = 4l + 1"),
    ),
    (AllToAll, Direct, Always, ONE, OTHERS, Minimum, Time::Flat(OTHERS)),
    (AllToAll, TreePacking, Always, LINKED_ONE, OTHERS, Minimum, Time::Flat(OTHERS)),
    (
        AllToAll,
        Hierarchical,
        Always,
        figure("2", |c| if c.ranks > c.per_host && c.per_host > 1 { 2.0 } else { 1.0 }),
        figure("(2n−g−h)/n", |c| (2.0 * c.n() - c.g() - c.h()) / c.n()),
        More,
        Time::Levels("L + (g−1)/g·bytes/B + L′ + (h−1)/h·bytes/B′ at most"),
    ),
    (
        AllToAll,
        Bruck,
        Always,
        LOG,
        figure("Σ bits of 1…n−1, ÷ n (½·log₂ n)", |c| c.hops() / c.n()),
        More,
        Time::Flat(figure("(Σ bits of 1…n−1)/n", |c| c.hops() / c.n())),
    ),
    (AllToAll, Pairwise, Always, RING, OTHERS, Minimum, Time::Flat(OTHERS)),
    (Gather, Tree, PowersOfTwo, LOG, figure("½", |_| 0.5), More, Time::Flat(OTHERS)),
    (Gather, Direct, Always, ONE, figure("1/n", |c| 1.0 / c.n()), Minimum, Time::Flat(OTHERS)),
    (
        Gather,
        LinearSync,
        Always,
        RING,
        figure("1/n", |c| 1.0 / c.n()),
        Minimum,
        Time::Levels("2(n−1)·L + (n−1)/n·bytes/B"),
    ),
    (Gather, TreePacking, Always, LINKED_ONE, figure("1/n", |c| 1.0 / c.n()), Minimum, Time::Flat(OTHERS)),
    (Scatter, Tree, Always, LOG, OTHERS, More, Time::Flat(OTHERS)),
    (Scatter, TreePacking, Always, LINKED_ONE, OTHERS, Minimum, Time::Flat(OTHERS)),
    (Scatter, Direct, Always, ONE, OTHERS, Minimum, Time::Flat(OTHERS)),
    (SendRecv, Direct, Always, ONE, ONE, Minimum, Time::Flat(ONE)),
    (AllToAllV, Direct, Always, ONE, ROW, Minimum, Time::Levels("L + m/B, m the most to or from other ranks")),
    (
        AllToAllV,
        Hierarchical,
        Always,
        figure("2", |c| if c.ranks > c.per_host && c.per_host > 1 { 2.0 } else { 1.0 }),
        figure("forwarded data ((2n−g−h)/n² of equal blocks)", |c| {
            (2.0 * c.n() - c.g() - c.h()) / (c.n() * c.n())
        }),
        More,
        Time::Levels("as all_to_all, with the bytes that cross each link"),
    ),
    (
        AllToAllV,
        Pairwise,
        Always,
        figure("n−1, empty blocks skipped", |c| c.n() - 1.0),
        ROW,
        Minimum,
        Time::Levels("(n−1)·(L + m/B) at most, m the largest block"),
    ),
    (Barrier, Dissemination, Always, LOG, NOTHING, Minimum, Time::Flat(NOTHING)),
    (Barrier, Linear, Always, TWO, NOTHING, Minimum, Time::Flat(NOTHING)),
    (Barrier, RecursiveDoubling, PowersOfTwo, LOG, NOTHING, Minimum, Time::Flat(NOTHING)),
    (Barrier, OneShot, Always, ONE, NOTHING, Minimum, Time::Flat(NOTHING)),
    (
        Barrier,
        Tree,
        Always,
        figure("2·(most bits of a number below n)", |c| 2.0 * c.binomial_depth()),
        NOTHING,
        Minimum,
        Time::Flat(NOTHING),
    ),
];

/// Returns the properties of every supported pair of algorithm and collective, by collective and then by algorithm.
/// Each pair occurs once.
pub fn facts() -> impl Iterator<Item = AlgorithmProperties> {
    FACTS.into_iter().map(|(collective, algorithm, exact, steps, sent, traffic, time)| AlgorithmProperties {
        algorithm,
        collective,
        exact,
        steps,
        sent,
        traffic,
        time,
    })
}

/// Lower bounds of an algorithm on any fabric: sequential transfers, and buffers sent by the busiest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LowerBoundCounts {
    /// Number of transfers that each start after the previous one has arrived.
    pub steps: f64,
    /// Bytes sent by the busiest rank, in multiples of the buffer.
    pub sent: f64,
}

/// Returns the lower bounds of an algorithm for a collective. They are zero if its properties are not exact for this
/// number of ranks or cannot be used as lower bounds.
#[must_use]
pub fn lower_bound_counts(algorithm: Algorithm, collective: Collective, count: Count) -> LowerBoundCounts {
    let entry = facts().find(|facts| facts.algorithm == algorithm && facts.collective == collective);
    let Some(facts) = entry.filter(|facts| facts.is_exact_for(count.ranks) && facts.traffic != Switched) else {
        return LowerBoundCounts::default();
    };
    match (algorithm, collective) {
        // Chains and trees depend on the host layout, and each lane starts at a different rank.
        (Tree, AllReduce) => LowerBoundCounts::default(),
        // There is one step less if the last rank is the root.
        (InOrderTree, _) => {
            LowerBoundCounts { steps: (facts.steps.evaluate)(count) - 1.0, sent: (facts.sent.evaluate)(count) }
        }
        // Sums for other hosts are pipelined on their connections: a sum is sent while the previous one is in transit.
        // Only the first sum, or the last one with the host's own sum after it, is on the critical path.
        (Hierarchical, ReduceScatter) if count.h() > 1.0 && count.g() > 1.0 => {
            LowerBoundCounts { steps: count.h().max(3.0), sent: (facts.sent.evaluate)(count) }
        }
        // There is no bound, because the matrix is not known here.
        (_, AllToAllV) => LowerBoundCounts::default(),
        // There is no bound, because trees depend on the links of the fabric.
        (TreePacking, _) => LowerBoundCounts::default(),
        // There is no bound on steps, because they depend on the grid of the fabric.
        (GridRing, _) => LowerBoundCounts { steps: 0.0, sent: (facts.sent.evaluate)(count) },
        _ => LowerBoundCounts { steps: (facts.steps.evaluate)(count), sent: (facts.sent.evaluate)(count) },
    }
}

impl AlgorithmProperties {
    /// Returns true if the figures are exact for `ranks` ranks.
    #[must_use]
    pub fn is_exact_for(&self, ranks: u32) -> bool {
        self.exact == Always || ranks.is_power_of_two()
    }
}
