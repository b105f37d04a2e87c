//! One-shot all_reduce: every rank writes its whole input into its own slot at every other rank, and then reduces the
//! received data.
//!
//! There is one step; every rank sends (n−1) times the bytes and needs n times the bytes of scratch. Time on equal
//! links of latency L and bandwidth B: L + (n−1)·bytes/B, plus the cost of local reductions. Each rank has 2(n−1) runs
//! per lane, for any number of loops.
//!
//! Source: the custom all-reduce of TensorRT-LLM and vLLM (csrc/custom_all_reduce.cuh, `cross_device_reduce_1stage`,
//! which reads remote data instead of writing it); NCCL 2.28 src/sym_kernels.cc AllReduce_AGxLL_R.
//!
//! # Example
//!
//! An all_reduce of eight ranks in one step, for small calls. Rank 0 sends its whole input to every other rank: seven
//! buffers; over a ring it would send 1¾ buffers in 14 steps.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Symmetric);
//! let schedule = Schedule::build(&*generator(Algorithm::OneShot, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 1);
//! assert_eq!(receivers, [1, 2, 3, 4, 5, 6, 7]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, BufferUse, Dependency, Header, OpKind, Program, Rank, ScheduleGenerator, Symmetry, Walk,
};

use super::cut::{Chunking, check_chunks, lane_channel};
use super::lane::Lane;
use super::peers::Peers;
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of the one-shot all_reduce.
pub(super) struct OneShot {
    header: Header,
    cut: Chunking,
    peers: Peers,
}

impl OneShot {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_loops(shape, u32::from(shape.channels), 1)?;
        let scratch = check_chunks(u64::from(layout.chunks()) * u64::from(shape.call.ranks))?;
        Ok(Self { header: shape.header(Algorithm::OneShot, layout, scratch), cut, peers: Peers::new(shape) })
    }
}

impl ScheduleGenerator for OneShot {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let loops = self.cut.loops;
        let out_of_place = self.header.call.buffers == BufferUse::OutOfPlace;
        let per_lane = 2 * self.peers.offsets().len() as u32 + u32::from(out_of_place);
        for lane in 0..self.cut.lanes {
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            let first_run = lane * per_lane;
            let chunks = self.cut.over_loops(0, lane);
            let slots = |source: u32| {
                let base = source * self.header.layout.chunks() + chunks.base;
                (Buffer::Scratch, Walk { base, ..chunks })
            };
            for offset in self.peers.offsets() {
                let peer = Walk::fixed(self.peers.target(rank.0, offset));
                let put = at.put(loops, peer, (Buffer::Input, chunks), slots(rank.0));
                program.push(put, &[Dependency::shifted(rank, first_run + offset - 1, -1)]);
            }
            let mut last = None;
            if out_of_place {
                let copy = at.local(OpKind::Copy, loops, (Buffer::Input, chunks), (Buffer::Output, chunks));
                last = Some(program.push(copy, &[]));
            }
            for offset in self.peers.offsets() {
                let source = self.peers.source(rank.0, offset);
                let mut awaited = vec![Dependency::shifted(Rank(source), first_run + offset - 1, 0)];
                match last {
                    Some(last) => awaited.push(Dependency::shifted(rank, last, 0)),
                    // In place, the sum overwrites the input, which must have been sent first.
                    None => {
                        awaited.extend(self.peers.offsets().map(|o| Dependency::shifted(rank, first_run + o - 1, 0)));
                    }
                }
                let reduce = at.local(OpKind::Reduce, loops, slots(source), (Buffer::Output, chunks));
                last = Some(program.push(reduce, &awaited));
            }
        }
    }

    fn symmetry(&self) -> Symmetry {
        self.peers.symmetry()
    }
}
