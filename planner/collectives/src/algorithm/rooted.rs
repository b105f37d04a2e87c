//! Broadcast and reduce over any tree of ranks: the common part of the rooted algorithms, which differ in their trees.
//!
//! **broadcast.** A rank forwards a chunk to its children as soon as it has it, concurrently or one after the other
//! ([`ChildOrder`]). **reduce.** A rank reduces its first child's data with its input on arrival, and the other
//! children's data through scratch; once all have arrived, it sends the sum to its parent. Chunks are pipelined on
//! every connection. Runs per rank and lane: one per child, and at least one for a reduce.
//!
//! # Example
//!
//! A reduce of four ranks over a binomial tree. Rank 0 reduces the data of its first child on arrival and that of its
//! second child from scratch.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, OpKind, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::Reduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 4, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::Tree, &shape)?)?;
//! let edges = |kind: OpKind| -> Vec<(u32, u32)> {
//!     schedule.operations().filter(|op| op.kind == kind).map(|op| (op.rank.0, op.peer.0)).collect()
//! };
//! assert_eq!(edges(OpKind::PutReduceInput), [(1, 0), (3, 2)]);
//! assert_eq!((edges(OpKind::Put), edges(OpKind::Reduce)), (vec![(2, 0)], vec![(0, 0)]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, Collective, Dependency, Header, Layout, OpKind, Program, Rank, Run, ScheduleGenerator, Walk,
};

use super::cut::{Chunking, check_chunks, lane_channel};
use super::lane::{Chunks, Lane};
use super::ring::copy_part;
use super::{Algorithm, Shape, Unsupported};

/// Edge of a tree from a position to its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParentEdge {
    /// Parent of the position.
    pub(super) parent: u32,
    /// Index of the position among the children of its parent.
    pub(super) index: u32,
}

/// Tree of positions with root 0.
pub(super) trait Tree {
    /// Returns the children of a position in the order in which data is sent to them. Their number is [`Self::count`].
    fn children(&self, position: u32) -> Vec<u32>;

    /// Returns the number of children of a position.
    fn count(&self, position: u32) -> u32 {
        self.children(position).len() as u32
    }

    /// Returns the edge from a position to its parent; `None` for position 0.
    fn parent(&self, position: u32) -> Option<ParentEdge>;
}

/// Order in which a rank sends a chunk to its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChildOrder {
    /// One child after the other.
    Sequential,
    /// All children concurrently.
    Concurrent,
}

/// Data that moves through a tree on one lane: `len` messages of `span` chunks each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) lane: u32,
    pub(super) walk: Walk,
    pub(super) len: u32,
    pub(super) span: u32,
}

/// Chunks that the root of a broadcast sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct RootChunks {
    pub(super) buffer: Buffer,
    /// Dependency on the operation that completes the chunks; `None` if the chunks are available from the start.
    pub(super) ready: Option<Dependency>,
}

/// Tree with an assignment of ranks to its positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct TreePlacement<T> {
    pub(super) tree: T,
    pub(super) ranks: u32,
    /// Rank at position 0; the other ranks follow in rank order.
    pub(super) first: Rank,
}

impl<T: Tree> TreePlacement<T> {
    pub(super) fn position(&self, rank: u32) -> u32 {
        (rank + self.ranks - self.first.0) % self.ranks
    }

    pub(super) fn rank(&self, position: u32) -> Rank {
        Rank(((u64::from(position) + u64::from(self.first.0)) % u64::from(self.ranks)) as u32)
    }

    /// Returns the number of runs per lane of a reduce at a position.
    pub(super) fn reduce_runs(&self, position: u32) -> u32 {
        self.tree.count(position).max(1)
    }

    /// Returns the number of scratch slots per chunk that a reduce needs.
    pub(super) fn slots(&self) -> u32 {
        (0..self.ranks).map(|position| self.reduce_runs(position)).max().unwrap_or(1)
    }

    /// Writes the broadcast of a lane. The runs of each rank start at number `first_run(position)`.
    pub(super) fn broadcast(
        &self,
        at: Lane,
        stream: Stream,
        siblings: ChildOrder,
        root: RootChunks,
        first_run: impl Fn(u32) -> u32,
        program: &mut Program,
    ) {
        let lane = stream.lane;
        let position = self.position(at.rank);
        let children = self.tree.children(position);
        let lane_run = first_run(position) + lane * children.len() as u32;
        let src = (if position == 0 { root.buffer } else { Buffer::Output }, stream.walk);
        let available = match self.tree.parent(position) {
            Some(ParentEdge { parent, index }) => {
                let run = first_run(parent) + lane * self.tree.count(parent) + index;
                Some(Dependency::shifted(self.rank(parent), run, 0))
            }
            None => root.ready,
        };
        let count = children.len() as u32;
        for (i, child) in (0..).zip(children) {
            let before = match siblings {
                ChildOrder::Concurrent => Dependency::shifted(at.rank(), lane_run + i, -1),
                ChildOrder::Sequential if i > 0 => Dependency::shifted(at.rank(), lane_run + i - 1, 0),
                ChildOrder::Sequential => Dependency::shifted(at.rank(), lane_run + count - 1, -1),
            };
            let awaited: Vec<Dependency> = available.into_iter().chain([before]).collect();
            let put = at.put(stream.len, Walk::fixed(self.rank(child).0), src, (Buffer::Output, stream.walk));
            program.push(Run { span: stream.span, ..put }, &awaited);
        }
    }

    /// Writes the reduce of a lane. Its runs must be the first ones of the rank. Scratch slots are one `layout` apart.
    /// The root accumulates in `sum`, which is [`Buffer::Output`], or scratch for the first slot.
    pub(super) fn reduce(&self, at: Lane, stream: Stream, sum: Buffer, layout: &Layout, program: &mut Program) {
        let lane = stream.lane;
        let position = self.position(at.rank);
        let children = self.tree.children(position);
        let count = children.len() as u32;
        let slot = |i: u32| -> Chunks {
            (Buffer::Scratch, Walk { base: stream.walk.base + i * layout.chunks(), ..stream.walk })
        };
        let sum_chunks = |position: u32| if position == 0 { (sum, stream.walk) } else { slot(0) };
        let lane_run = lane * self.reduce_runs(position);
        let arrived = |child: u32| Dependency::shifted(self.rank(child), lane * self.reduce_runs(child), 0);
        let mut push = |run: Run, awaited: &[Dependency]| {
            program.push(Run { span: stream.span, ..run }, awaited);
        };
        match self.tree.parent(position) {
            Some(ParentEdge { parent, index }) => {
                let (kind, dst) =
                    if index == 0 { (OpKind::PutReduceInput, sum_chunks(parent)) } else { (OpKind::Put, slot(index)) };
                let src = if count == 0 { (Buffer::Input, stream.walk) } else { sum_chunks(position) };
                let chunk_before = Dependency::shifted(at.rank(), lane_run, -1);
                let awaited: Vec<Dependency> =
                    self.sum_dependency(position, lane).into_iter().chain([chunk_before]).collect();
                let to = Walk::fixed(self.rank(parent).0);
                push(at.transfer(kind, stream.len, to, src, dst), &awaited);
            }
            // The run is empty, so that the root has the same run numbers as other ranks.
            None => push(at.wait(0), &[]),
        }
        for (i, &child) in (0..).zip(&children).skip(1) {
            let before =
                if i == 1 { arrived(children[0]) } else { Dependency::shifted(at.rank(), lane_run + i - 1, 0) };
            push(at.local(OpKind::Reduce, stream.len, slot(i), sum_chunks(position)), &[arrived(child), before]);
        }
    }

    /// Returns the dependency on the operation that completes the sums of a position in a reduce; `None` if the
    /// position has no children.
    pub(super) fn sum_dependency(&self, position: u32, lane: u32) -> Option<Dependency> {
        match self.tree.children(position).as_slice() {
            [] => None,
            &[child] => Some(Dependency::shifted(self.rank(child), lane * self.reduce_runs(child), 0)),
            children => {
                let last = lane * self.reduce_runs(position) + children.len() as u32 - 1;
                Some(Dependency::shifted(self.rank(position), last, 0))
            }
        }
    }
}

/// Schedule generator of broadcast and reduce over a tree rooted at the call's root.
pub(super) struct TreeRooted<T> {
    header: Header,
    cut: Chunking,
    placement: TreePlacement<T>,
    siblings: ChildOrder,
}

impl<T: Tree> TreeRooted<T> {
    pub(super) fn new(shape: &Shape, algorithm: Algorithm, tree: T, siblings: ChildOrder) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_loops(shape, u32::from(shape.channels), 1)?;
        let placement = TreePlacement { tree, ranks: shape.call.ranks, first: shape.call.root };
        // A rank that reduces accumulates in the first slot; data of later children goes to further slots.
        let slots = match shape.call.collective {
            Collective::Reduce => check_chunks(u64::from(layout.chunks()) * u64::from(placement.slots()))?,
            _ => 0,
        };
        Ok(Self { header: shape.header(algorithm, layout, slots), cut, placement, siblings })
    }
}

impl<T: Tree> ScheduleGenerator for TreeRooted<T> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let call = &self.header.call;
        for lane in 0..self.cut.lanes {
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            let stream = Stream { lane, walk: self.cut.over_loops(0, lane), len: self.cut.loops, span: 1 };
            match call.collective {
                Collective::Broadcast => {
                    let input = RootChunks { buffer: Buffer::Input, ready: None };
                    self.placement.broadcast(at, stream, self.siblings, input, |_| 0, program);
                }
                _ => self.placement.reduce(at, stream, Buffer::Output, &self.header.layout, program),
            }
        }
        if call.collective == Collective::Broadcast && rank == call.root {
            copy_part(&self.header, &self.cut, rank.0, 0, program);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{binary_tree::BinaryTree, chains::Chains, in_order_tree::InOrder, knomial::Knomial};
    use super::super::{linear::Star, tree::Binomial};
    use super::*;

    /// Asserts that the parents and children of a tree are consistent, and that every position reaches the root.
    fn assert_tree(tree: &dyn Tree, ranks: u32) {
        assert_eq!(tree.parent(0), None);
        let mut children = 0;
        for position in 0..ranks {
            children += tree.count(position);
            assert_eq!(tree.children(position).len() as u32, tree.count(position));
            let (mut above, mut steps) = (position, 0);
            while let Some(ParentEdge { parent, index }) = tree.parent(above) {
                assert_eq!(tree.children(parent)[index as usize], above, "{position} of {ranks}");
                (above, steps) = (parent, steps + 1);
                assert!(steps < ranks, "{position} of {ranks} is in a circle");
            }
            assert_eq!(above, 0);
        }
        assert_eq!(children, ranks - 1);
    }

    #[test]
    fn parents_and_children_agree_in_all_trees() {
        for ranks in 1..200 {
            for tree in [
                &Binomial::largest_first(ranks) as &dyn Tree,
                &Binomial::smallest_first(ranks),
                &Knomial { ranks },
                &BinaryTree { ranks },
                &InOrder { ranks },
                &Chains { ranks },
                &Star { ranks },
            ] {
                assert_tree(tree, ranks);
            }
        }
    }
}
