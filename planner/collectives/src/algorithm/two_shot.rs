//! Two-shot all_reduce, and direct reduce_scatter, which is its first phase. Every rank writes each part of its input
//! into a scratch slot of the rank that owns the part, and reduces its own part. In the second phase it writes the sum
//! into the outputs of all ranks.
//!
//! There are two steps; every rank sends 2(n−1)/n of the bytes. Time on equal links of latency L and bandwidth B: 2(L +
//! (n−1)/n·bytes/B), half of that for reduce_scatter, plus the cost of local reductions. Each rank has 3(n−1) runs per
//! lane, for any number of loops.
//!
//! Source: vLLM csrc/custom_all_reduce.cuh `cross_device_reduce_2stage`; NCCL 2.28 src/sym_kernels.cc
//! AllReduce_RSxLD_AGxST (both read remote data in the first phase instead of writing it).
//!
//! # Example
//!
//! An all_reduce of eight ranks in two steps. Rank 0 sends each rank its part of the input, then its own part of the
//! sum: as many bytes as over a ring.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Symmetric);
//! let schedule = Schedule::build(&*generator(Algorithm::TwoShot, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 8);
//! assert_eq!(receivers, [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, BufferUse, Dependency, Header, OpKind, Program, Rank, ScheduleGenerator, Symmetry, Walk,
};

use super::cut::{Chunking, lane_channel};
use super::lane::Lane;
use super::peers::Peers;
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of the two-shot all_reduce.
pub(super) struct TwoShot {
    header: Header,
    shots: Shots,
}

/// Schedule generator of the direct reduce_scatter.
pub(super) struct DirectReduceScatter {
    header: Header,
    shots: Shots,
}

/// Generator state of the first phase, and data that the second phase needs.
struct Shots {
    cut: Chunking,
    peers: Peers,
    out_of_place: bool,
}

impl TwoShot {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_loops(shape, u32::from(shape.channels), shape.call.ranks)?;
        let slots = layout.chunks();
        Ok(Self { header: shape.header(Algorithm::TwoShot, layout, slots), shots: Shots::new(shape, cut) })
    }
}

impl DirectReduceScatter {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_blocks(shape)?;
        let slots = layout.chunks();
        Ok(Self { header: shape.header(Algorithm::Direct, layout, slots), shots: Shots::new(shape, cut) })
    }
}

impl Shots {
    fn new(shape: &Shape, cut: Chunking) -> Self {
        Self { cut, peers: Peers::new(shape), out_of_place: shape.call.buffers == BufferUse::OutOfPlace }
    }

    /// Writes the first phase of a lane, starting with run `first_run`; returns the run that completes the sum.
    fn write_first(&self, at: Lane, lane: u32, first_run: u32, program: &mut Program) -> u32 {
        let loops = self.cut.loops;
        let part_chunks = |part: u32| self.cut.over_loops(part, lane);
        let own_chunks = (Buffer::Output, part_chunks(at.rank));
        for offset in self.peers.offsets() {
            let target = self.peers.target(at.rank, offset);
            // The slot has the index of the sender's part, which has the same size and is unique to the sender.
            let slot = (Buffer::Scratch, part_chunks(at.rank));
            let put = at.put(loops, Walk::fixed(target), (Buffer::Input, part_chunks(target)), slot);
            program.push(put, &[Dependency::shifted(at.rank(), first_run + offset - 1, -1)]);
        }
        let mut last = None;
        if self.out_of_place {
            last = Some(
                program.push(at.local(OpKind::Copy, loops, (Buffer::Input, part_chunks(at.rank)), own_chunks), &[]),
            );
        }
        for offset in self.peers.offsets() {
            let source = self.peers.source(at.rank, offset);
            let arrived = Dependency::shifted(Rank(source), first_run + offset - 1, 0);
            let reduce = at.local(OpKind::Reduce, loops, (Buffer::Scratch, part_chunks(source)), own_chunks);
            last = Some(match last {
                Some(last) => program.push(reduce, &[arrived, Dependency::shifted(at.rank(), last, 0)]),
                None => program.push(reduce, &[arrived]),
            });
        }
        last.unwrap_or(first_run)
    }

    fn first_phase_runs(&self) -> u32 {
        2 * self.peers.offsets().len() as u32 + u32::from(self.out_of_place)
    }
}

impl ScheduleGenerator for TwoShot {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let Shots { cut, peers, .. } = &self.shots;
        let others = peers.offsets().len() as u32;
        for lane in 0..cut.lanes {
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            let first_run = lane * (self.shots.first_phase_runs() + others);
            let sum = self.shots.write_first(at, lane, first_run, program);
            let own_chunks = (Buffer::Output, cut.over_loops(rank.0, lane));
            for offset in peers.offsets() {
                let target = Walk::fixed(peers.target(rank.0, offset));
                let number = first_run + self.shots.first_phase_runs() + offset - 1;
                let previous_chunk = Dependency::shifted(rank, number, -1);
                program.push(
                    at.put(cut.loops, target, own_chunks, own_chunks),
                    &[Dependency::shifted(rank, sum, 0), previous_chunk],
                );
            }
        }
    }

    fn symmetry(&self) -> Symmetry {
        self.shots.peers.symmetry()
    }
}

impl ScheduleGenerator for DirectReduceScatter {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        for lane in 0..self.shots.cut.lanes {
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            self.shots.write_first(at, lane, lane * self.shots.first_phase_runs(), program);
        }
    }

    fn symmetry(&self) -> Symmetry {
        self.shots.peers.symmetry()
    }
}
