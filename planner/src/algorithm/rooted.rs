//! Broadcast and reduce over any tree of the ranks: what the algorithms with a root have in common, their trees aside.
//!
//! **broadcast.** A rank passes a chunk on to its children as soon as it has it: to all at once, or to one after the other
//! ([`Siblings`]). **reduce.** A rank adds what its first child sends to its input as it arrives, and what the others send
//! by way of scratch; when all have come it sends the sum to its parent. Chunks follow one another on every connection.
//! Per rank and lane a run for each child; of a reduce at least one.

use fabricast_sim::schedule::{
    Buffer, Collective, Dependency, Generate, Header, Layout, OpKind, Program, Rank, Run, Walk,
};

use super::cut::{Cut, channel_of, checked};
use super::lane::{Chunks, Lane};
use super::ring::copy_own;
use super::{Algorithm, Shape, Unsupported};

/// A tree of places, of which 0 is the root.
pub(super) trait Tree {
    /// The children of a place, in the order in which they are served; their number is [`Self::count`].
    fn children(&self, place: u32) -> Vec<u32>;

    /// How many children a place has.
    fn count(&self, place: u32) -> u32 {
        self.children(place).len() as u32
    }

    /// The parent of a place, and which of its children this one is; none of place 0.
    fn parent(&self, place: u32) -> Option<(u32, u32)>;
}

/// How a rank sends a chunk to its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Siblings {
    /// To one after the other.
    InTurn,
    /// To all at once.
    Together,
}

/// What goes through a tree on one lane: as many messages as `len`, each of `span` chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) walk: Walk,
    pub(super) len: u32,
    pub(super) span: u32,
}

/// A tree, and who stands where in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seats<T> {
    pub(super) tree: T,
    pub(super) ranks: u32,
    /// The rank at place 0; the others follow it.
    pub(super) first: Rank,
}

impl<T: Tree> Seats<T> {
    pub(super) fn place(&self, rank: u32) -> u32 {
        (rank + self.ranks - self.first.0) % self.ranks
    }

    pub(super) fn rank(&self, place: u32) -> Rank {
        Rank(((u64::from(place) + u64::from(self.first.0)) % u64::from(self.ranks)) as u32)
    }

    /// The runs of a lane of a reduce.
    pub(super) fn runs_up(&self, place: u32) -> u32 {
        self.tree.count(place).max(1)
    }

    /// Slots of scratch for each chunk of a reduce.
    pub(super) fn slots(&self) -> u32 {
        (0..self.ranks).map(|place| self.runs_up(place)).max().unwrap_or(1)
    }

    /// The broadcast of a lane. A rank's runs begin with that which `first_run` says of its place; the root has its
    /// chunks in `from` when what `begun` says is done.
    pub(super) fn broadcast(
        &self,
        (at, lane): (Lane, u32),
        stream: Stream,
        siblings: Siblings,
        (from, begun): (Buffer, Option<Dependency>),
        first_run: impl Fn(u32) -> u32,
        program: &mut Program,
    ) {
        let place = self.place(at.rank);
        let children = self.tree.children(place);
        let own_run = first_run(place) + lane * children.len() as u32;
        let src = (if place == 0 { from } else { Buffer::Output }, stream.walk);
        let had = match self.tree.parent(place) {
            Some((parent, which)) => {
                let run = first_run(parent) + lane * self.tree.count(parent) + which;
                Some(Dependency::shifted(self.rank(parent), run, 0))
            }
            None => begun,
        };
        let count = children.len() as u32;
        for (i, child) in (0..).zip(children) {
            let before = match siblings {
                Siblings::Together => Dependency::shifted(at.rank(), own_run + i, -1),
                Siblings::InTurn if i > 0 => Dependency::shifted(at.rank(), own_run + i - 1, 0),
                Siblings::InTurn => Dependency::shifted(at.rank(), own_run + count - 1, -1),
            };
            let awaited: Vec<Dependency> = had.into_iter().chain([before]).collect();
            let put = at.put(stream.len, Walk::fixed(self.rank(child).0), src, (Buffer::Output, stream.walk));
            program.push(Run { span: stream.span, ..put }, &awaited);
        }
    }

    /// The reduce of a lane, whose runs are the first of the rank; slots of scratch are `layout` apart, and the root has
    /// the sum in `sum`: [`Buffer::Output`], or the first slot.
    pub(super) fn reduce(
        &self,
        (at, lane): (Lane, u32),
        stream: Stream,
        (sum, layout): (Buffer, &Layout),
        program: &mut Program,
    ) {
        let place = self.place(at.rank);
        let children = self.tree.children(place);
        let count = children.len() as u32;
        let slot = |i: u32| -> Chunks {
            (Buffer::Scratch, Walk { base: stream.walk.base + i * layout.chunks(), ..stream.walk })
        };
        let sum_of = |place: u32| if place == 0 { (sum, stream.walk) } else { slot(0) };
        let own_run = lane * self.runs_up(place);
        let arrived = |child: u32| Dependency::shifted(self.rank(child), lane * self.runs_up(child), 0);
        let mut push = |run: Run, awaited: &[Dependency]| {
            program.push(Run { span: stream.span, ..run }, awaited);
        };
        match self.tree.parent(place) {
            Some((parent, which)) => {
                let (kind, dst) =
                    if which == 0 { (OpKind::PutReduceInput, sum_of(parent)) } else { (OpKind::Put, slot(which)) };
                let src = if count == 0 { (Buffer::Input, stream.walk) } else { sum_of(place) };
                let chunk_before = Dependency::shifted(at.rank(), own_run, -1);
                let awaited: Vec<Dependency> = self.summed(place, lane).into_iter().chain([chunk_before]).collect();
                let to = Walk::fixed(self.rank(parent).0);
                push(at.transfer(kind, stream.len, to, src, dst), &awaited);
            }
            // An empty run, so that the others have the same numbers.
            None => push(at.wait(0), &[]),
        }
        for (i, &child) in (0..).zip(&children).skip(1) {
            let before = if i == 1 { arrived(children[0]) } else { Dependency::shifted(at.rank(), own_run + i - 1, 0) };
            push(at.local(OpKind::Reduce, stream.len, slot(i), sum_of(place)), &[arrived(child), before]);
        }
    }

    /// What completes the sums of a place in a reduce; nothing where it has no children.
    pub(super) fn summed(&self, place: u32, lane: u32) -> Option<Dependency> {
        match self.tree.children(place).as_slice() {
            [] => None,
            &[child] => Some(Dependency::shifted(self.rank(child), lane * self.runs_up(child), 0)),
            more => {
                let last = lane * self.runs_up(place) + more.len() as u32 - 1;
                Some(Dependency::shifted(self.rank(place), last, 0))
            }
        }
    }
}

/// Broadcast and reduce over a tree that hangs on the root.
pub(super) struct Rooted<T> {
    header: Header,
    cut: Cut,
    seats: Seats<T>,
    siblings: Siblings,
}

impl<T: Tree> Rooted<T> {
    pub(super) fn new(shape: &Shape, algorithm: Algorithm, tree: T, siblings: Siblings) -> Result<Self, Unsupported> {
        let (cut, layout) = Cut::by_loops(shape, u32::from(shape.channels), 1)?;
        let seats = Seats { tree, ranks: shape.call.ranks, first: shape.call.root };
        // A reducing rank keeps its sum in the first slots, and what later children send in further ones.
        let slots = match shape.call.collective {
            Collective::Reduce => checked(u64::from(layout.chunks()) * u64::from(seats.slots()))?,
            _ => 0,
        };
        Ok(Self { header: shape.header(algorithm, layout, slots), cut, seats, siblings })
    }
}

impl<T: Tree> Generate for Rooted<T> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let call = &self.header.call;
        for lane in 0..self.cut.lanes {
            let at = Lane { rank: rank.0, channel: channel_of(self.header.channels, lane) };
            let stream = Stream { walk: self.cut.over_loops(0, lane), len: self.cut.loops, span: 1 };
            match call.collective {
                Collective::Broadcast => {
                    let input = (Buffer::Input, None);
                    self.seats.broadcast((at, lane), stream, self.siblings, input, |_| 0, program);
                }
                _ => self.seats.reduce((at, lane), stream, (Buffer::Output, &self.header.layout), program),
            }
        }
        if call.collective == Collective::Broadcast && rank == call.root {
            copy_own(&self.header, &self.cut, rank.0, 0, program);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{binary_tree::BinaryTree, chains::Chains, in_order_tree::InOrder, knomial::Knomial};
    use super::super::{linear::Star, tree::Binomial};
    use super::*;

    /// Every place but the root is the child of its parent that it says it is, and the root is above all.
    fn is_tree(tree: &dyn Tree, ranks: u32) {
        assert_eq!(tree.parent(0), None);
        let mut children = 0;
        for place in 0..ranks {
            children += tree.count(place);
            assert_eq!(tree.children(place).len() as u32, tree.count(place));
            let (mut above, mut steps) = (place, 0);
            while let Some((parent, which)) = tree.parent(above) {
                assert_eq!(tree.children(parent)[which as usize], above, "{place} of {ranks}");
                (above, steps) = (parent, steps + 1);
                assert!(steps < ranks, "{place} of {ranks} is in a circle");
            }
            assert_eq!(above, 0);
        }
        assert_eq!(children, ranks - 1);
    }

    #[test]
    fn all_are_trees() {
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
                is_tree(tree, ranks);
            }
        }
    }
}
