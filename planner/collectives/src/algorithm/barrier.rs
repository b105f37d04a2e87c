//! Barriers: no rank continues before every rank has arrived. They consist of signals only; a signal costs a protocol
//! step plus the latency of its route.
//!
//! - **Dissemination**: in round k a rank signals the rank 2ᵏ after it, and starts the next round once the rank 2ᵏ
//!   before it has signalled. Any number of ranks n needs ⌈log2 n⌉ rounds of n signals each.
//! - **One-shot**: every rank sets a flag at every other rank and waits for n − 1 flags. This is one step with n(n − 1)
//!   signals.
//! - **Tree**: signals travel up a binomial tree to rank 0 and back down. The number of steps is twice the depth, which
//!   is the largest number of one bits in a rank below n; 2(n − 1) signals. **Linear** uses a tree of one level
//!   ([`super::linear`]) and needs two steps.
//! - **Recursive doubling**: in round k a rank and the rank at distance 2ᵏ signal each other. There are log2 n rounds,
//!   plus two if there are ranks beyond a power of two (guests, [`super::power_of_two`]), which signal their neighbour
//!   first and are signalled last.
//!
//! A step needs latency L on links of equal latency. Only the first channel is used. Runs per rank: ⌈log2 n⌉ + 1 for
//! dissemination, one per host plus one for one-shot, one per neighbour plus two for trees, at most log2 n + 3 for
//! doubling.
//!
//! Sources: Hensgen, Finkel, Manber, *Two algorithms for barrier synchronization*, Int. J. Parallel Programming 17(1),
//! 1988 (dissemination); Mellor-Crummey, Scott, *Algorithms for scalable synchronization on shared-memory
//! multiprocessors*, ACM TOCS 9(1), 1991, §3 (flags, trees); Open MPI 5.0 ompi/mca/coll/base/coll_base_barrier.c
//! (linear, doubling); NCCL 2.28 src/include/nccl_device/impl/lsa_barrier__funcs.h (flags at every peer).
//!
//! # Example
//!
//! A dissemination barrier of six ranks in ⌈log2 n⌉ = 3 rounds: rank 0 signals ranks 1, 2 and 4.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, OpKind, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::Barrier, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(0), ranks: 6, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::Dissemination, &shape)?)?;
//! let signals = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind == OpKind::Signal);
//! let receivers: Vec<u32> = signals.map(|op| op.peer.0).collect();
//! assert_eq!(receivers, [1, 2, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{Dependency, Header, Layout, Program, Rank, ScheduleGenerator, Symmetry};

use super::lane::Lane;
use super::linear::Star;
use super::peers::Peers;
use super::power_of_two::{Phase, PowerOfTwoMapping};
use super::rooted::{ParentEdge, Tree};
use super::tree::Binomial;
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of a barrier.
pub(super) struct Barrier {
    header: Header,
    pattern: BarrierPattern,
    symmetry: Symmetry,
}

/// Signalling pattern of a barrier.
#[derive(Clone, Copy, Debug)]
enum BarrierPattern {
    Dissemination,
    OneShot(Peers),
    Tree(Binomial),
    Linear(Star),
    Doubling(PowerOfTwoMapping),
}

impl Barrier {
    pub(super) fn new(shape: &Shape, algorithm: Algorithm) -> Result<Self, Unsupported> {
        if shape.call.bytes.0 > 0 {
            return Err(Unsupported::BarrierWithData { bytes: shape.call.bytes });
        }
        let (pattern, symmetry) = match algorithm {
            Algorithm::OneShot => {
                let peers = Peers::new(shape);
                (BarrierPattern::OneShot(peers), peers.symmetry())
            }
            Algorithm::Tree => (BarrierPattern::Tree(Binomial::smallest_first(shape.call.ranks)), Symmetry::None),
            Algorithm::Linear => (BarrierPattern::Linear(Star { ranks: shape.call.ranks }), Symmetry::None),
            Algorithm::RecursiveDoubling => {
                (BarrierPattern::Doubling(PowerOfTwoMapping::new(shape.call.ranks)), Symmetry::None)
            }
            _ => (BarrierPattern::Dissemination, Symmetry::Rotations(vec![shape.rotation()])),
        };
        Ok(Self { header: shape.header(algorithm, Layout::new(Vec::new()), 0), pattern, symmetry })
    }

    fn dissemination(&self, at: Lane, program: &mut Program) {
        let ranks = self.header.call.ranks;
        let mut awaited: Vec<Dependency> = Vec::new();
        for (round, distance) in (0..).zip(std::iter::successors(Some(1u32), |d| d.checked_mul(2))) {
            if distance >= ranks {
                break;
            }
            program.push(at.signal((at.rank + distance) % ranks), &awaited);
            let before = Rank((at.rank + ranks - distance) % ranks);
            awaited = vec![Dependency::on_operation(at.rank(), round, 0), Dependency::on_operation(before, round, 0)];
        }
        program.push(at.wait(1), &awaited);
    }

    fn one_shot(&self, peers: Peers, at: Lane, program: &mut Program) {
        for (walk, len) in peers.walks(at.rank) {
            program.push(at.signals(len, walk), &[]);
        }
        let flags = peers.offsets().map(|offset| {
            let (run, index) = peers.locate(offset);
            Dependency::on_operation(Rank(peers.source(at.rank, offset)), run, index)
        });
        program.push(at.wait(1), &flags.collect::<Vec<_>>());
    }

    /// Writes a tree barrier. On every rank, run 0 waits for the children, run 1 signals the parent (it is empty at the
    /// root), and the following runs signal the children.
    fn write_tree(tree: &dyn Tree, at: Lane, program: &mut Program) {
        let children = tree.children(at.rank);
        let arrivals = children.iter().map(|&child| Dependency::on_operation(Rank(child), 1, 0));
        program.push(at.wait(1), &arrivals.collect::<Vec<_>>());
        let joined = Dependency::on_operation(at.rank(), 0, 0);
        let (parent, release) = match tree.parent(at.rank) {
            None => (at.wait(0), joined),
            Some(ParentEdge { parent, index }) => {
                (at.signal(parent), Dependency::on_operation(Rank(parent), 2 + index, 0))
            }
        };
        program.push(parent, &[joined]);
        for child in children {
            program.push(at.signal(child), &[release]);
        }
        program.push(at.wait(1), &[release]);
    }

    /// Writes recursive doubling: one run per step, which is empty on ranks that are idle in the step. A guest signals
    /// in the first step and its stand-in in the last; the steps between are pairwise exchanges.
    fn doubling(mapping: PowerOfTwoMapping, at: Lane, program: &mut Program) {
        let steps = mapping.bits() + 2 * u32::from(mapping.has_guests());
        let mut awaited: Vec<Dependency> = Vec::new();
        for step in 0..steps {
            let (to, from) = match Phase::from_step(step, mapping.bits(), mapping) {
                Phase::FoldIn => (mapping.stand_in(at.rank), mapping.guest(at.rank)),
                Phase::Exchange(k) => {
                    let partner = mapping.partner(at.rank, 1 << k);
                    (partner, partner)
                }
                Phase::FoldOut => (mapping.guest(at.rank), mapping.stand_in(at.rank)),
            };
            program.push(to.map_or(at.wait(0), |to| at.signal(to)), if to.is_some() { &awaited } else { &[] });
            // A rank continues after it has sent its signal and received that of its partner.
            if to.is_some() {
                awaited = vec![Dependency::on_operation(at.rank(), step, 0)];
            }
            awaited.extend(from.map(|from| Dependency::on_operation(Rank(from), step, 0)));
        }
        program.push(at.wait(1), &awaited);
    }
}

impl ScheduleGenerator for Barrier {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        if self.header.call.ranks < 2 {
            return;
        }
        let at = Lane { rank: rank.0, channel: 0 };
        match self.pattern {
            BarrierPattern::Dissemination => self.dissemination(at, program),
            BarrierPattern::OneShot(peers) => self.one_shot(peers, at, program),
            BarrierPattern::Tree(tree) => Self::write_tree(&tree, at, program),
            BarrierPattern::Linear(tree) => Self::write_tree(&tree, at, program),
            BarrierPattern::Doubling(mapping) => Self::doubling(mapping, at, program),
        }
    }

    fn symmetry(&self) -> Symmetry {
        self.symmetry.clone()
    }
}
