//! Trees: all_reduce over a double binary tree, broadcast and reduce over a binomial tree. Gather and scatter over the
//! same binomial tree are in [`super::binomial_blocks`].
//!
//! **all_reduce.** Half of the lanes reduce up and broadcast down one binary tree of the hosts; the other half use a
//! second tree, in which the leaves of the first are inner nodes. Within a host, ranks form a chain; its first rank is
//! connected to the parent host and one child host, its second rank to the other child host (NCCL's balanced tree).
//! Chunks are pipelined up and down concurrently. Every rank has at most two children: the first one's data is reduced
//! with the rank's input on arrival, the second one's passes through scratch and a local reduction. The depth is at
//! most g − 1 + 2·log2 h in each direction for h hosts of g ranks (log2 h for g = 1); for one chunk of c bytes up a
//! chain of n ranks and down again, 2(n−1)(L + c/B). Sources: Sanders, Speck, Träff, *Two-tree algorithms for full
//! bandwidth broadcast, reduction and scan*, Parallel Computing 2009; NCCL 2.28 src/graph/trees.cc and connect.cc.
//!
//! **broadcast, reduce.** Ranks are counted from the root; the parent is the rank with its lowest set bit cleared. A
//! rank serves one child after the other; a broadcast starts with the child of the largest subtree. One chunk takes
//! ⌈log2 n⌉(L + bytes/B). Source: MPICH's binomial broadcast; Thakur, Rabenseifner, Gropp, *Optimization of Collective
//! Communication Operations in MPICH*, 2005.
//!
//! # Example
//!
//! An all_reduce over four hosts of one rank each. Chunk 0 of the result travels down the first tree and chunk 1 down
//! the second, in which ranks 1 and 3, leaves of the first, are inner nodes.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{Buffer, BufferUse, Call, ChunkRef, Collective, OpKind, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 4, root: Rank(0), buffers };
//! let shape = Shape { ranks_per_node: 1, ..Shape::new(call, Protocol::Simple) };
//! let schedule = Schedule::build(&*generator(Algorithm::Tree, &shape)?)?;
//! let edges_down = |tree: u32| -> Vec<(u32, u32)> {
//!     let result = ChunkRef { buffer: Buffer::Output, index: tree };
//!     let down = schedule.operations().filter(|op| op.kind == OpKind::Put && op.dst == result);
//!     down.map(|op| (op.rank.0, op.peer.0)).collect()
//! };
//! assert_eq!(edges_down(0), [(0, 2), (2, 1), (2, 3)]);
//! assert_eq!(edges_down(1), [(1, 2), (1, 0), (3, 1)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{Buffer, Dependency, Header, OpKind, Program, Rank, ScheduleGenerator, Walk};

use super::cut::{Chunking, lane_channel};
use super::host_trees::{TreeNeighbours, host_tree};
use super::lane::Lane;
use super::rails::Rails;
use super::rooted::{ParentEdge, Tree};
use super::{Algorithm, Shape, Unsupported};
use crate::capabilities::HostLinks;

/// Schedule generator of the double binary tree all_reduce.
pub(super) struct DoubleTree {
    header: Header,
    cut: Chunking,
    hosts: u32,
    per_host: u32,
    rails: Rails,
    /// By first rank, the chain of a host that starts there.
    chains: Vec<HostChain>,
}

/// Order of the ranks of a host along a chain.
struct HostChain {
    /// Ranks of the host, indexed by position on the chain.
    ranks: Vec<u32>,
    /// Positions on the chain, indexed by rank in the host.
    positions: Vec<u32>,
}

impl HostChain {
    fn new(ranks: Vec<u32>) -> Self {
        let mut positions = vec![0; ranks.len()];
        for (position, &rank) in (0..).zip(&ranks) {
            if let Some(slot) = positions.get_mut(rank as usize) {
                *slot = position;
            }
        }
        Self { ranks, positions }
    }
}

/// Run that sends sums up. The runs of a lane have this order on every rank: up, local reduction of the second child's
/// data, down to the first child, down to the second.
const UP: u32 = 0;
const REDUCE: u32 = 1;
const DOWN: [u32; 2] = [2, 3];
const RUNS_PER_LANE: u32 = 4;

impl DoubleTree {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let per_host = shape.checked_ranks_per_host(Algorithm::Tree)?;
        // With a single channel, both trees run on it.
        let (cut, layout) = Chunking::by_loops(shape, u32::from(shape.channels).max(2), 1)?;
        let slots = layout.chunks();
        let hosts = shape.call.ranks / per_host;
        let header = shape.split_header(Algorithm::Tree, layout, slots)?;
        let links = if hosts > 1 { shape.host_links } else { HostLinks::Other };
        let rails = Rails::new(per_host, shape.nics_per_node).with_host_links(links);
        let chains = (0..per_host).map(|first| HostChain::new(rails.path(first))).collect();
        Ok(Self { header, cut, hosts, per_host, rails, chains })
    }

    /// Returns the chain of a lane. With several hosts, each pair of lanes starts its chains at the next rail. On one
    /// host all chains are equal, as in NCCL (validate/data/h200-node/graph.xml). If every pair of a host's ranks has
    /// separate links, the chains use all of them, as the chains of RCCL's ring orders do (src/graph/rome_models.cc,
    /// model 81).
    fn chain(&self, lane: u32) -> Option<&HostChain> {
        let first = if self.hosts > 1 { self.rails.entry(lane / 2) } else { 0 };
        self.chains.get(first as usize)
    }

    /// Returns the rank of a host at a position of the lane's chain.
    fn rank_at(&self, host: u32, link: u32, lane: u32) -> u32 {
        let local = self.chain(lane).and_then(|chain| chain.ranks.get(link as usize)).copied();
        host * self.per_host + local.unwrap_or(link)
    }

    fn chain_position(&self, rank: u32, lane: u32) -> u32 {
        let local = rank % self.per_host;
        self.chain(lane).and_then(|chain| chain.positions.get(local as usize)).copied().unwrap_or(local)
    }

    fn children(&self, rank: u32, lane: u32) -> [Option<u32>; 2] {
        let (host, link) = (rank / self.per_host, self.chain_position(rank, lane));
        let [lower, higher] =
            host_tree(host, self.hosts, lane).children.map(|child| child.map(|c| self.rank_at(c, 0, lane)));
        let along = (link + 1 < self.per_host).then(|| self.rank_at(host, link + 1, lane));
        // The first rank is connected to the lower child host, the second to the higher one.
        let second = 1.min(self.per_host - 1);
        let mut all = along.into_iter().chain(lower.filter(|_| link == 0)).chain(higher.filter(|_| link == second));
        [all.next(), all.next()]
    }

    fn neighbours(&self, rank: u32, lane: u32) -> TreeNeighbours {
        let (host, link) = (rank / self.per_host, self.chain_position(rank, lane));
        let parent = if link > 0 {
            Some(self.rank_at(host, link - 1, lane))
        } else {
            let connected = [0, 1.min(self.per_host - 1)];
            let parent_host = host_tree(host, self.hosts, lane).parent;
            parent_host.map(|(host, index)| self.rank_at(host, connected[index], lane))
        };
        let child_index = |parent| usize::from(self.children(parent, lane)[1] == Some(rank));
        TreeNeighbours {
            parent: parent.map(|parent| (parent, child_index(parent))),
            children: self.children(rank, lane),
        }
    }
}

impl ScheduleGenerator for DoubleTree {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let loops = self.cut.loops;
        for lane in 0..self.cut.lanes {
            let block = lane_channel(self.header.channels / 2, lane);
            let [at, copying] = [0, 1].map(|half| Lane { rank: rank.0, channel: 2 * block + half });
            let neighbours = self.neighbours(rank.0, lane);
            let [first, second] = neighbours.children;
            let run = |index: u32| lane * RUNS_PER_LANE + index;
            let chunks = self.cut.over_loops(0, lane);
            let (output, slot) = ((Buffer::Output, chunks), (Buffer::Scratch, chunks));
            // Operations that complete the sum of this rank's subtree.
            let from_first = first.map(|child| Dependency::shifted(Rank(child), run(UP), 0));
            let complete = if second.is_some() { Some(Dependency::shifted(rank, run(REDUCE), 0)) } else { from_first };
            let chunk_before = |index: u32| Dependency::shifted(rank, run(index), -1);

            let src = if first.is_some() { output } else { (Buffer::Input, chunks) };
            let (parent, is_second) = neighbours.parent.unwrap_or((rank.0, 0));
            let (kind, dst) = if is_second == 0 { (OpKind::PutReduceInput, output) } else { (OpKind::Put, slot) };
            let len = if neighbours.parent.is_some() { loops } else { 0 };
            let awaited: Vec<Dependency> = complete.into_iter().chain([chunk_before(UP)]).collect();
            program.push(at.transfer(kind, len, Walk::fixed(parent), src, dst), &awaited);

            let from_second = second.map(|child| Dependency::shifted(Rank(child), run(UP), 0));
            let awaited: Vec<Dependency> =
                from_second.into_iter().chain(from_first).chain([chunk_before(REDUCE)]).collect();
            program.push(at.local(OpKind::Reduce, if second.is_some() { loops } else { 0 }, slot, output), &awaited);

            let result = match neighbours.parent {
                Some((parent, index)) => Some(Dependency::shifted(Rank(parent), run(DOWN[index]), 0)),
                None => complete,
            };
            for (child, index) in neighbours.children.into_iter().zip(DOWN) {
                let len = if child.is_some() { loops } else { 0 };
                let awaited: Vec<Dependency> = result.into_iter().chain([chunk_before(index)]).collect();
                program.push(copying.put(len, Walk::fixed(child.unwrap_or(rank.0)), output, output), &awaited);
            }
        }
    }
}

/// Binomial tree over `ranks` positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binomial {
    ranks: u32,
    first: First,
}

/// Child of a position to which data is sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Largest,
    Smallest,
}

impl Binomial {
    /// Creates the tree with the child of the largest subtree first, the order of a broadcast.
    pub(super) fn largest_first(ranks: u32) -> Self {
        Self { ranks, first: First::Largest }
    }

    /// Creates the tree with the child of the smallest subtree first, the order in which sums arrive.
    pub(super) fn smallest_first(ranks: u32) -> Self {
        Self { ranks, first: First::Smallest }
    }

    /// Returns the index of the child over distance 2^bit at a position with `count` children. The mapping is its own
    /// inverse.
    fn child_index(self, bit: u32, count: u32) -> u32 {
        match self.first {
            First::Largest => count - 1 - bit,
            First::Smallest => bit,
        }
    }
}

impl Tree for Binomial {
    fn children(&self, position: u32) -> Vec<u32> {
        let count = self.count(position);
        (0..count).map(|index| position + (1 << self.child_index(index, count))).collect()
    }

    fn count(&self, position: u32) -> u32 {
        child_count(position, self.ranks)
    }

    fn parent(&self, position: u32) -> Option<ParentEdge> {
        let (parent, bit) = parent_and_bit(position);
        (position > 0).then(|| ParentEdge { parent, index: self.child_index(bit, self.count(parent)) })
    }
}

/// Returns the number of children of a position in the binomial tree of `ranks`. Child i is `position + 2^i`.
fn child_count(position: u32, ranks: u32) -> u32 {
    let bits = if position == 0 { u32::BITS } else { position.trailing_zeros() };
    (0..bits).take_while(|&bit| u64::from(position) + (1 << bit) < u64::from(ranks)).count() as u32
}

/// Returns the parent of a position other than 0, and the bit in which they differ.
fn parent_and_bit(position: u32) -> (u32, u32) {
    (position & position.wrapping_sub(1), position.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol};
    use fabricast_topologies::Bytes;

    use super::*;

    /// Counts the uses of each link direction up the chains of two hosts, by 2 × `per_host` lanes.
    fn uses(per_host: u32, host_links: HostLinks) -> BTreeMap<(u32, u32), u32> {
        let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
        let call = Call { collective, bytes: Bytes(1 << 20), ranks: 2 * per_host, root: Rank(0), buffers };
        let channels = 2 * per_host as u16;
        let shape = Shape { ranks_per_node: per_host, channels, host_links, ..Shape::new(call, Protocol::Simple) };
        let trees = DoubleTree::new(&shape).unwrap();
        let mut uses = BTreeMap::new();
        for lane in 0..u32::from(channels) {
            for rank in 0..2 * per_host {
                let parent = trees.neighbours(rank, lane).parent.map(|(parent, _)| parent);
                if let Some(parent) = parent.filter(|parent| parent / per_host == rank / per_host) {
                    *uses.entry((rank, parent)).or_default() += 1;
                }
            }
        }
        uses
    }

    #[test]
    fn chains_of_linked_pairs_use_every_link_direction_equally() {
        for per_host in [4, 6, 8] {
            let pairs = uses(per_host, HostLinks::Pairs);
            assert_eq!(pairs.len() as u32, 2 * per_host * (per_host - 1));
            assert!(pairs.values().all(|&count| count == 2), "{pairs:?}");
            // A switch connects all ranks, so the chains form a ring.
            assert_eq!(uses(per_host, HostLinks::Other).len() as u32, 2 * per_host);
        }
    }
}
