//! reduce_scatter as a reduce to rank 0 followed by a scatter.
//!
//! The reduce of the whole buffer uses a binomial tree into scratch of rank 0, which then sends every other rank its
//! block, all concurrently. The number of steps is the maximum number of one bits in a number below n, plus one;
//! (n−1)(1 + 1/n) buffers are sent in total. Time on equal links of latency L and bandwidth B with one chunk per block
//! on one channel, n a power of two: (log₂ n + 1)·L + (log₂ n + (n−1)/n)·bytes/B. On one channel and in one loop the
//! whole buffer is one message of the reduce; otherwise every chunk is a message. Runs are those of the reduce; rank 0
//! has one more per lane, and one more per lane and loop.
//!
//! Source: Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_reduce_scatter_block.c (basic_linear). Open MPI uses the
//! algorithms that the decision rules of MPI_Reduce and MPI_Scatter select; for most large calls, these are the two
//! algorithms here.
//!
//! # Example
//!
//! A reduce_scatter of four ranks. Messages of the reduce to rank 0 have all four blocks, those of the scatter one.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::ReduceScatter, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 4, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::ReduceThenScatter, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.kind.is_transfer());
//! let messages: Vec<_> = sent.map(|op| (op.rank.0, op.peer.0, op.span)).collect();
//! assert_eq!(messages, [(0, 1, 1), (0, 2, 1), (0, 3, 1), (1, 0, 4), (2, 0, 4), (3, 2, 4)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{Buffer, Dependency, Header, OpKind, Program, Rank, Run, ScheduleGenerator, Walk};

use super::cut::{Chunking, check_chunks, lane_channel};
use super::lane::Lane;
use super::rooted::{Stream, TreePlacement};
use super::tree::Binomial;
use super::{Algorithm, Shape, Unsupported};

/// Blocks that operations of a run read.
#[derive(Clone, Copy)]
struct BlocksRead {
    /// Block that the first operation reads.
    first: u32,
    /// Number of blocks from one operation to the next.
    step: u32,
}

/// Schedule generator of reduce followed by scatter.
pub(super) struct ReduceThenScatter {
    header: Header,
    cut: Chunking,
    up: TreePlacement<Binomial>,
}

impl ReduceThenScatter {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_blocks(shape)?;
        let ranks = shape.call.ranks;
        let up = TreePlacement { tree: Binomial::smallest_first(ranks), ranks, first: Rank(0) };
        let slots = check_chunks(u64::from(layout.chunks()) * u64::from(up.slots()))?;
        Ok(Self { header: shape.header(Algorithm::ReduceThenScatter, layout, slots), cut, up })
    }

    /// Returns true if the whole buffer is sent as one message.
    fn is_single_message(&self) -> bool {
        self.cut.lanes == 1 && self.cut.loops == 1
    }

    /// Returns the chunks of a lane, block by block.
    fn stream(&self, lane: u32) -> Stream {
        let ranks = self.header.call.ranks;
        if self.is_single_message() {
            return Stream { lane, walk: Walk::fixed(0), len: 1, span: ranks };
        }
        Stream { lane, walk: Walk::linear(lane, self.cut.lanes), len: ranks * self.cut.loops, span: 1 }
    }

    /// Returns the dependency on the sums of the chunks that operations read in a loop; `None` if none is needed.
    fn summed(&self, lane: u32, blocks: BlocksRead, round: u32) -> Option<Dependency> {
        let sum = self.up.sum_dependency(0, lane)?;
        Some(match self.is_single_message() {
            true => Dependency { start: 0, step: 0, ..sum },
            false => Dependency { start: (blocks.first * self.cut.loops + round) as i32, step: blocks.step, ..sum },
        })
    }
}

impl ScheduleGenerator for ReduceThenScatter {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let lanes = (0..self.cut.lanes)
            .map(|lane| (lane, Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) }));
        for (lane, at) in lanes.clone() {
            self.up.reduce(at, self.stream(lane), Buffer::Scratch, &self.header.layout, program);
        }
        if rank.0 > 0 {
            return;
        }
        let (ranks, loops) = (self.header.call.ranks, self.cut.loops);
        for (lane, at) in lanes {
            for round in 0..loops {
                let blocks = self.cut.over_parts(Walk::linear(1, 1), round, lane);
                let before = program.runs().len() as u32;
                let put: Run =
                    at.put(ranks - 1, Walk::linear(1, 1), (Buffer::Scratch, blocks), (Buffer::Output, blocks));
                let mut awaited: Vec<Dependency> =
                    self.summed(lane, BlocksRead { first: 1, step: loops }, round).into_iter().collect();
                awaited.extend((round > 0).then(|| Dependency::shifted(rank, before - 1, 0)));
                program.push(put, &awaited);
            }
            let own_chunks = self.cut.over_loops(0, lane);
            let copy = at.local(OpKind::Copy, loops, (Buffer::Scratch, own_chunks), (Buffer::Output, own_chunks));
            program.push(copy, self.summed(lane, BlocksRead { first: 0, step: 1 }, 0).as_slice());
        }
    }
}
