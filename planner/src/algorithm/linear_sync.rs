//! Linear gather with handshakes: the root requests the block of one rank after the other.
//!
//! The root signals a rank, the rank sends, and the root continues with the next rank once the block has arrived. At
//! most one message is in transit, so no unexpected message needs to be buffered. n − 1 sequential messages, each with
//! a step there and a step back. Time on equal links of latency L and bandwidth B: 2(n−1)·L + (n−1)/n · bytes/B.
//! Channels are independent. Runs per lane: n − 1 at the root, one at the others.
//!
//! Source: Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_gather.c (linear_sync). It requests in rank order, while this
//! one counts ranks from the root. Without a segment size, as in its fixed decision rules, a block is one message.

use fabricast_sim::schedule::{Buffer, Dependency, Generate, Header, Program, Rank, Walk};

use super::bruck::on;
use super::cut::{Cut, channel_of};
use super::lane::Lane;
use super::ring::copy_own;
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of the linear gather with handshakes.
pub(super) struct LinearSync {
    header: Header,
    cut: Cut,
}

impl LinearSync {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Cut::by_blocks(shape)?;
        Ok(Self { header: shape.header(Algorithm::LinearSync, layout, 0), cut })
    }
}

impl Generate for LinearSync {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let (ranks, root) = (self.header.call.ranks, self.header.call.root);
        let others = ranks - 1;
        for lane in 0..self.cut.lanes {
            let at = Lane { rank: rank.0, channel: channel_of(self.header.channels, lane) };
            let loops = self.cut.loops;
            let block_of = |place: u32, shift: i32| Dependency::shifted(Rank(on(root.0, place, ranks)), lane, shift);
            if rank == root {
                for place in 1..ranks {
                    // The first rank waits for the last rank's block of the previous loop.
                    let before = if place > 1 { block_of(place - 1, 0) } else { block_of(others, -1) };
                    program.push(at.signals(loops, Walk::fixed(on(root.0, place, ranks))), &[before]);
                }
            } else {
                let place = on(rank.0, ranks - root.0, ranks);
                let asked = Dependency::shifted(root, lane * others + place - 1, 0);
                let block = self.cut.over_loops(rank.0, lane);
                let put = at.put(loops, Walk::fixed(root.0), (Buffer::Input, block), (Buffer::Output, block));
                program.push(put, &[asked]);
            }
        }
        if rank == root {
            copy_own(&self.header, &self.cut, rank.0, rank.0, program);
        }
    }
}
