//! reduce_scatter as a reduce to rank 0 and a scatter from there, one after the other.
//!
//! The reduce of the whole buffer goes over a binomial tree, into scratch of rank 0; that gives every other rank its block, all at
//! once. As many steps as a number below n has bits set at most, and one; (n−1)(1 + 1/n) buffers are sent in all. Equal
//! links of latency L and bandwidth B, one chunk a block on one channel, n a power of two:
//! (log₂ n + 1)·L + (log₂ n + (n−1)/n)·bytes/B. On one channel and in one loop the whole buffer is one message of the reduce;
//! otherwise every chunk is one. Runs are those of the reduce; at rank 0 two more a lane, and one for each loop.
//!
//! Source: Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_reduce_scatter_block.c (basic_linear), whose ways are those that its
//! decisions for MPI_Reduce and MPI_Scatter name, these two for most large calls.

use fabricast_sim::schedule::{Buffer, Dependency, Generate, Header, OpKind, Program, Rank, Run, Walk};

use super::cut::{Cut, channel_of, checked};
use super::lane::Lane;
use super::rooted::{Seats, Stream};
use super::tree::Binomial;
use super::{Algorithm, Shape, Unsupported};

/// Reduce, then scatter.
pub(super) struct ReduceThenScatter {
    header: Header,
    cut: Cut,
    up: Seats<Binomial>,
}

impl ReduceThenScatter {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Cut::by_blocks(shape)?;
        let ranks = shape.call.ranks;
        let up = Seats { tree: Binomial::smallest_first(ranks), ranks, first: Rank(0) };
        let slots = checked(u64::from(layout.chunks()) * u64::from(up.slots()))?;
        Ok(Self { header: shape.header(Algorithm::ReduceThenScatter, layout, slots), cut, up })
    }

    /// Whether the whole buffer is one message.
    fn is_whole(&self) -> bool {
        self.cut.lanes == 1 && self.cut.loops == 1
    }

    /// The chunks of a lane, block after block.
    fn stream(&self, lane: u32) -> Stream {
        let ranks = self.header.call.ranks;
        if self.is_whole() {
            return Stream { walk: Walk::fixed(0), len: 1, span: ranks };
        }
        Stream { walk: Walk::linear(lane, self.cut.lanes), len: ranks * self.cut.loops, span: 1 }
    }

    /// That the sums of the chunks are complete that an operation takes: those of the block `first`, `every` blocks further
    /// on for every operation, of a loop.
    fn summed(&self, lane: u32, (first, every): (u32, u32), round: u32) -> Option<Dependency> {
        let of_chunks = self.up.summed(0, lane)?;
        Some(match self.is_whole() {
            true => Dependency { start: 0, step: 0, ..of_chunks },
            false => Dependency { start: (first * self.cut.loops + round) as i32, step: every, ..of_chunks },
        })
    }
}

impl Generate for ReduceThenScatter {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let lanes = (0..self.cut.lanes)
            .map(|lane| (lane, Lane { rank: rank.0, channel: channel_of(self.header.channels, lane) }));
        for (lane, at) in lanes.clone() {
            self.up.reduce((at, lane), self.stream(lane), (Buffer::Scratch, &self.header.layout), program);
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
                let mut awaited: Vec<Dependency> = self.summed(lane, (1, loops), round).into_iter().collect();
                awaited.extend((round > 0).then(|| Dependency::shifted(rank, before - 1, 0)));
                program.push(put, &awaited);
            }
            let own = self.cut.over_loops(0, lane);
            let copy = at.local(OpKind::Copy, loops, (Buffer::Scratch, own), (Buffer::Output, own));
            program.push(copy, self.summed(lane, (0, 1), 0).as_slice());
        }
    }
}
