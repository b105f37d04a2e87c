//! Barriers: no rank goes on before every rank has come. Nothing but signals; what a signal costs is the protocol's step and
//! the latency of the way.
//!
//! - **Dissemination**: in round k a rank signals the one 2ᵏ on, and goes on to the next round when it has been signalled
//!   by the one 2ᵏ before: ⌈log2 n⌉ rounds for any number of ranks, each of n signals.
//! - **One-shot**: every rank sets a flag at every other, and waits for n − 1: one step of n(n − 1) signals.
//! - **Tree**: signals up a binomial tree to rank 0, and down again: twice its depth, the most bits of a number below n;
//!   2(n − 1) signals.
//!
//! A step takes latency L on links of equal latency. Channels beyond the first have nothing to do. Per rank ⌈log2 n⌉ + 1
//! runs, one-shot a run for each host and one more, tree one for each neighbour and one more.
//!
//! Sources: Hensgen, Finkel, Manber, *Two algorithms for barrier synchronization*, Int. J. Parallel Programming 17(1), 1988
//! (dissemination); Mellor-Crummey, Scott, *Algorithms for scalable synchronization on shared-memory multiprocessors*,
//! ACM TOCS 9(1), 1991, §3 (flags, trees); NCCL 2.28 src/include/nccl_device/impl/lsa_barrier__funcs.h (flags at every peer).

use fabricast_sim::schedule::{Dependency, Generate, Header, Layout, Program, Rank, Symmetry};

use super::lane::Lane;
use super::peers::Peers;
use super::tree::{children_of, parent_of};
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
    Tree,
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
            Algorithm::Tree => (Pattern::Tree, Symmetry::None),
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
    fn tree(&self, at: Lane, program: &mut Program) {
        let ranks = self.header.call.ranks;
        let children = children_of(at.rank, ranks);
        let come = (0..children).map(|i| Dependency::on(Rank(at.rank + (1 << i)), 1, 0));
        program.push(at.wait(1), &come.collect::<Vec<_>>());
        let joined = Dependency::on(at.rank(), 0, 0);
        let (parent, told) = match at.rank {
            0 => (at.wait(0), joined),
            rank => {
                let (parent, child) = parent_of(rank);
                (at.signal(parent), Dependency::on(Rank(parent), 2 + child, 0))
            }
        };
        program.push(parent, &[joined]);
        for i in 0..children {
            program.push(at.signal(at.rank + (1 << i)), &[told]);
        }
        program.push(at.wait(1), &[told]);
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
            Pattern::Tree => self.tree(at, program),
        }
    }

    fn symmetry(&self) -> Symmetry {
        self.symmetry.clone()
    }
}
