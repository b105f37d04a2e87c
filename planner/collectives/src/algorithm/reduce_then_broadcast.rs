//! all_reduce as a reduce to rank 0 followed by a broadcast, for small calls of many ranks.
//!
//! The reduce uses a binomial tree, the broadcast a k-nomial tree of radix 4 ([`super::knomial`]); a chunk is broadcast
//! once its sum is complete. The depth is the maximum number of one bits in a number below n, plus the maximum number
//! of nonzero base-4 digits. Rank 0 sends most of the bytes. Time on equal links of latency L and bandwidth B with one
//! chunk and n = 4ᵐ: 3m·L + (2m + 3·m(m+1)/2)·bytes/B. Runs are those of the two parts.
//!
//! Source: Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_allreduce.c (nonoverlapping). Open MPI uses the trees that
//! the decision rules of MPI_Reduce and MPI_Bcast select; at most sizes, these are the two trees here.
//!
//! # Example
//!
//! An all_reduce of four ranks: ranks 1, 2 and 3 reduce to rank 0 over a binomial tree, and rank 0 sends the sum to its
//! three children in a tree of radix 4.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 4, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::ReduceThenBroadcast, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.kind.is_transfer());
//! let edges: Vec<_> = sent.map(|op| (op.rank.0, op.peer.0)).collect();
//! assert_eq!(edges, [(0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 2)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{Buffer, Header, Program, Rank, ScheduleGenerator};

use super::cut::{Chunking, check_chunks, lane_channel};
use super::knomial::Knomial;
use super::lane::Lane;
use super::rooted::{ChildOrder, RootChunks, Stream, TreePlacement};
use super::tree::Binomial;
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of reduce followed by broadcast.
pub(super) struct ReduceThenBroadcast {
    header: Header,
    cut: Chunking,
    up: TreePlacement<Binomial>,
    down: TreePlacement<Knomial>,
}

impl ReduceThenBroadcast {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_loops(shape, u32::from(shape.channels), 1)?;
        let (ranks, first) = (shape.call.ranks, Rank(0));
        let up = TreePlacement { tree: Binomial::smallest_first(ranks), ranks, first };
        let down = TreePlacement { tree: Knomial { ranks }, ranks, first };
        let slots = check_chunks(u64::from(layout.chunks()) * u64::from(up.slots()))?;
        Ok(Self { header: shape.header(Algorithm::ReduceThenBroadcast, layout, slots), cut, up, down })
    }
}

impl ScheduleGenerator for ReduceThenBroadcast {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let lanes = (0..self.cut.lanes).map(|lane| {
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            (at, Stream { lane, walk: self.cut.over_loops(0, lane), len: self.cut.loops, span: 1 })
        });
        for (at, stream) in lanes.clone() {
            self.up.reduce(at, stream, Buffer::Output, &self.header.layout, program);
        }
        let first_run = |position: u32| self.cut.lanes * self.up.reduce_runs(position);
        for (at, stream) in lanes {
            let sum = RootChunks { buffer: Buffer::Output, ready: self.up.sum_dependency(0, stream.lane) };
            self.down.broadcast(at, stream, ChildOrder::Concurrent, sum, first_run, program);
        }
    }
}
