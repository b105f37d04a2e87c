//! Linear gather with handshakes: the root requests the block of one rank after the other.
//!
//! The root signals a rank, the rank sends, and the root continues with the next rank once the block has arrived. At
//! most one message is in transit, so no unexpected message needs to be buffered. There are n − 1 sequential messages,
//! each with a step for the signal and a step for the block. On equal links of latency L and bandwidth B, the time is
//! 2(n−1)·L + (n−1)/n · bytes/B. Channels are independent. Runs per lane: n − 1 at the root, one at the others.
//!
//! Source: Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_gather.c (linear_sync). It requests in rank order, while this
//! one counts ranks from the root. Without a segment size, as in its fixed decision rules, a block is one message.
//!
//! # Example
//!
//! A gather from four ranks. The root signals one rank after the other, and each sends its block once.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, OpKind, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::Gather, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 4, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::LinearSync, &shape)?)?;
//! let edges = |kind: OpKind| -> Vec<(u32, u32)> {
//!     schedule.operations().filter(|op| op.kind == kind).map(|op| (op.rank.0, op.peer.0)).collect()
//! };
//! assert_eq!(edges(OpKind::Signal), [(0, 1), (0, 2), (0, 3)]);
//! assert_eq!(edges(OpKind::Put), [(1, 0), (2, 0), (3, 0)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{Buffer, Dependency, Header, Program, Rank, ScheduleGenerator, Walk};

use super::bruck::rank_after;
use super::cut::{Chunking, lane_channel};
use super::lane::Lane;
use super::ring::copy_part;
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of the linear gather with handshakes.
pub(super) struct LinearSync {
    header: Header,
    cut: Chunking,
}

impl LinearSync {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_blocks(shape)?;
        Ok(Self { header: shape.header(Algorithm::LinearSync, layout, 0), cut })
    }
}

impl ScheduleGenerator for LinearSync {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let (ranks, root) = (self.header.call.ranks, self.header.call.root);
        let others = ranks - 1;
        for lane in 0..self.cut.lanes {
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            let loops = self.cut.loops;
            let block_arrival =
                |position: u32, shift: i32| Dependency::shifted(Rank(rank_after(root.0, position, ranks)), lane, shift);
            if rank == root {
                for position in 1..ranks {
                    // The first rank waits for the block of the last rank in the previous loop.
                    let before = if position > 1 { block_arrival(position - 1, 0) } else { block_arrival(others, -1) };
                    program.push(at.signals(loops, Walk::fixed(rank_after(root.0, position, ranks))), &[before]);
                }
            } else {
                let position = rank_after(rank.0, ranks - root.0, ranks);
                let request = Dependency::shifted(root, lane * others + position - 1, 0);
                let block = self.cut.over_loops(rank.0, lane);
                let put = at.put(loops, Walk::fixed(root.0), (Buffer::Input, block), (Buffer::Output, block));
                program.push(put, &[request]);
            }
        }
        if rank == root {
            copy_part(&self.header, &self.cut, rank.0, rank.0, program);
        }
    }
}
