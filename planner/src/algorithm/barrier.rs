//! Barriers: no rank goes on before every rank has come. Nothing but signals; what a signal costs is the protocol's step and
//! the latency of the way.
//!
//! - **Dissemination**: in round k a rank signals the one 2ᵏ on, and goes on to the next round when it has been signalled
//!   by the one 2ᵏ before: ⌈log2 n⌉ rounds for any number of ranks, each of n signals.
//! - **One-shot**: every rank sets a flag at every other, and waits for n − 1: one step of n(n − 1) signals.
//! - **Tree**: signals up a binomial tree to rank 0, and down again: twice its depth, the most bits of a number below n;
//!   2(n − 1) signals. **Linear**: the same over a tree of one level ([`super::linear`]): two steps.
//! - **Recursive doubling**: in round k a rank and the one 2ᵏ places away signal each other: log2 n rounds, and two more where
//!   ranks beyond a power of two are guests ([`super::places`]), who signal their neighbour first and are signalled last.
//!
//! A step takes latency L on links of equal latency. Channels beyond the first have nothing to do. Per rank ⌈log2 n⌉ + 1
//! runs, one-shot a run for each host and one more, trees one for each neighbour and two more, doubling three more.
//!
//! Sources: Hensgen, Finkel, Manber, *Two algorithms for barrier synchronization*, Int. J. Parallel Programming 17(1), 1988
//! (dissemination); Mellor-Crummey, Scott, *Algorithms for scalable synchronization on shared-memory multiprocessors*,
//! ACM TOCS 9(1), 1991, §3 (flags, trees); Open MPI 5.0 ompi/mca/coll/base/coll_base_barrier.c (linear, doubling); NCCL 2.28 src/include/nccl_device/impl/lsa_barrier__funcs.h (flags at every peer).

use fabricast_sim::schedule::{Dependency, Generate, Header, Layout, Program, Rank, Symmetry};

use super::lane::Lane;
use super::linear::Star;
use super::peers::Peers;
use super::places::{Phase, Places};
use super::rooted::Tree;
use super::tree::Binomial;
use super::{Algorithm, Shape, Unsupported};

/// A barrier.
pub(super) struct Barrier {
    header: Header,
    pattern: Pattern,
    symmetry: Symmetry,
}

/// Who signals whom.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    Dissemination,
    OneShot(Peers),
    Tree(Binomial),
    Linear(Star),
    Doubling(Places),
}

impl Barrier {
    pub(super) fn new(shape: &Shape, algorithm: Algorithm) -> Result<Self, Unsupported> {
        if shape.call.bytes.0 > 0 {
            return Err(Unsupported::BarrierOfBytes { bytes: shape.call.bytes });
        }
        let (pattern, symmetry) = match algorithm {
            Algorithm::OneShot => {
                let peers = Peers::new(shape);
                (Pattern::OneShot(peers), peers.symmetry())
            }
            Algorithm::Tree => (Pattern::Tree(Binomial::smallest_first(shape.call.ranks)), Symmetry::None),
            Algorithm::Linear => (Pattern::Linear(Star { ranks: shape.call.ranks }), Symmetry::None),
            Algorithm::RecursiveDoubling => (Pattern::Doubling(Places::new(shape.call.ranks)), Symmetry::None),
            _ => (Pattern::Dissemination, Symmetry::Rotations(vec![shape.rotation()])),
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
            awaited = vec![Dependency::on(at.rank(), round, 0), Dependency::on(before, round, 0)];
        }
        program.push(at.wait(1), &awaited);
    }

    fn one_shot(&self, peers: Peers, at: Lane, program: &mut Program) {
        for (walk, len) in peers.walks(at.rank) {
            program.push(at.signals(len, walk), &[]);
        }
        let flags = peers.offsets().map(|offset| {
            let (run, index) = peers.place_of(offset);
            Dependency::on(Rank(peers.source(at.rank, offset)), run, index)
        });
        program.push(at.wait(1), &flags.collect::<Vec<_>>());
    }

    /// Run 0 of every rank joins what came from its children, run 1 signals the parent (none at the root), and the others
    /// the children.
    fn over(tree: &dyn Tree, at: Lane, program: &mut Program) {
        let children = tree.children(at.rank);
        let come = children.iter().map(|&child| Dependency::on(Rank(child), 1, 0));
        program.push(at.wait(1), &come.collect::<Vec<_>>());
        let joined = Dependency::on(at.rank(), 0, 0);
        let (parent, told) = match tree.parent(at.rank) {
            None => (at.wait(0), joined),
            Some((parent, which)) => (at.signal(parent), Dependency::on(Rank(parent), 2 + which, 0)),
        };
        program.push(parent, &[joined]);
        for child in children {
            program.push(at.signal(child), &[told]);
        }
        program.push(at.wait(1), &[told]);
    }

    /// A run for each step, empty where the rank has none: a guest's first and a host's last, exchanges between.
    fn doubling(places: Places, at: Lane, program: &mut Program) {
        let steps = places.bits() + 2 * u32::from(places.has_guests());
        let mut awaited: Vec<Dependency> = Vec::new();
        for step in 0..steps {
            let (to, from) = match Phase::of(step, places.bits(), places) {
                Phase::Come => (places.stand_in(at.rank), places.guest(at.rank)),
                Phase::Exchange(k) => {
                    let partner = places.partner(at.rank, 1 << k);
                    (partner, partner)
                }
                Phase::Leave => (places.guest(at.rank), places.stand_in(at.rank)),
            };
            program.push(to.map_or(at.wait(0), |to| at.signal(to)), if to.is_some() { &awaited } else { &[] });
            // A rank goes on when it has sent its signal and got its partner's.
            if to.is_some() {
                awaited = vec![Dependency::on(at.rank(), step, 0)];
            }
            awaited.extend(from.map(|from| Dependency::on(Rank(from), step, 0)));
        }
        program.push(at.wait(1), &awaited);
    }
}

impl Generate for Barrier {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        if self.header.call.ranks < 2 {
            return;
        }
        let at = Lane { rank: rank.0, channel: 0 };
        match self.pattern {
            Pattern::Dissemination => self.dissemination(at, program),
            Pattern::OneShot(peers) => self.one_shot(peers, at, program),
            Pattern::Tree(tree) => Self::over(&tree, at, program),
            Pattern::Linear(tree) => Self::over(&tree, at, program),
            Pattern::Doubling(places) => Self::doubling(places, at, program),
        }
    }

    fn symmetry(&self) -> Symmetry {
        self.symmetry.clone()
    }
}
