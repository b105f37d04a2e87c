//! K-nomial tree of radix 4: broadcast in fewer steps than over a binomial tree, with more bytes sent by each rank.
//!
//! Positions are numbered from the root. The parent of a position is the position with its lowest nonzero base-4 digit
//! cleared. A rank sends to all its children concurrently, those with the largest subtrees first. The number of steps
//! is the maximum number of nonzero digits of a position below n, at most ⌈log₄ n⌉; the root has as many children as
//! there are numbers r·4ᵏ below n (r = 1, 2, 3). Time on equal links of latency L and bandwidth B with one chunk and n
//! = 4ᵐ: a rank of height k shares its port among 3k children, so m·L + 3·m(m+1)/2 · bytes/B. Each rank has one run per
//! lane and child.
//!
//! Source: Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_topo.c (build_kmtree), coll_base_bcast.c; the default radix
//! is 4 (coll_tuned_bcast_algorithm_knomial_radix).
//!
//! # Example
//!
//! A broadcast to sixteen ranks in two steps. The root sends to six children, those with the largest subtrees first; a
//! binomial tree has four children and four steps.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::Broadcast, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 16, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::Knomial, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 1);
//! assert_eq!(receivers, [4, 8, 12, 1, 2, 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::rooted::{ParentEdge, Tree};

/// Radix of the tree.
const RADIX: u32 = 4;

/// K-nomial tree of radix 4.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knomial {
    pub(super) ranks: u32,
}

impl Knomial {
    /// Returns the weight, a power of 4, of the lowest nonzero base-4 digit of a position.
    fn lowest(position: u32) -> u64 {
        1 << (position.trailing_zeros() / 2 * 2)
    }

    /// Returns the weights of the digits in which the children of a position differ from it, lowest first.
    fn weights(self, position: u32) -> impl Iterator<Item = u64> {
        let below = if position == 0 { u64::from(self.ranks) } else { Self::lowest(position) };
        std::iter::successors(Some(1u64), |weight| Some(weight * u64::from(RADIX))).take_while(move |&w| w < below)
    }
}

impl Tree for Knomial {
    fn children(&self, position: u32) -> Vec<u32> {
        let mut weights: Vec<u64> = self.weights(position).collect();
        weights.reverse();
        let child = |weight: u64, digit: u32| u64::from(position) + u64::from(digit) * weight;
        let all = weights.into_iter().flat_map(|weight| (1..RADIX).map(move |digit| child(weight, digit)));
        all.filter(|&child| child < u64::from(self.ranks)).map(|child| child as u32).collect()
    }

    fn parent(&self, position: u32) -> Option<ParentEdge> {
        if position == 0 {
            return None;
        }
        let weight = Self::lowest(position);
        let digit = position as u64 / weight % u64::from(RADIX);
        let parent = (u64::from(position) - digit * weight) as u32;
        let index = self.children(parent).iter().position(|&child| child == position)?;
        Some(ParentEdge { parent, index: index as u32 })
    }
}
