//! NVLS: all_reduce, reduce_scatter and all_gather in one NVLink domain, with reduction and multicast in the
//! NVSwitches. [`super::nvls_network`] has all_reduce over several domains.
//!
//! Every rank loads its part of all ranks' inputs, reduced in the switch (`multimem.ld_reduce`), and stores the result
//! to all ranks with one multicast (`multimem.st`). A port carries the bytes once per direction, compared with 2(n−1)/n
//! times for a ring: outgoing data is what the other ranks load and what the rank stores. There are two steps. Time on
//! equal links of latency L and bandwidth B with one loop: 2(L + bytes/B) for all_reduce, L + bytes/B for
//! reduce_scatter and all_gather. With many loops, loads of one loop overlap with stores of another, and the bandwidth
//! term of all_reduce is (1 + 1/n)·bytes/B. Each rank has one run per lane for loads and one for stores.
//!
//! Source: NCCL 2.28 src/device/all_reduce.h, all_gather.h, reduce_scatter.h (RunWorkColl for NCCL_ALGO_NVLS),
//! src/transport/nvls.cc.
//!
//! # Example
//!
//! An all_reduce of eight ranks in one NVLink domain. Rank 0 loads one of eight chunks, reduced over all ranks, and
//! stores it to all of them: two operations, compared with 14 of a ring.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, OpKind, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape { ranks_per_team: 8, ..Shape::new(call, Protocol::Simple) };
//! let schedule = Schedule::build(&*generator(Algorithm::Nvls, &shape)?)?;
//! let operations = schedule.operations().filter(|op| op.rank == Rank(0));
//! let kinds: Vec<OpKind> = operations.map(|op| op.kind).collect();
//! assert_eq!(schedule.header().layout.chunks(), 8);
//! assert_eq!(kinds, [OpKind::MulticastReduce, OpKind::MulticastPut]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, Collective, Dependency, Header, OpKind, Program, Rank, RotationDigit, ScheduleGenerator, Symmetry, Walk,
};

use super::cut::{Chunking, lane_channel};
use super::lane::Lane;
use super::{Algorithm, Shape, Unsupported};

/// Team of all ranks of the call.
const ALL: Walk = Walk::fixed(0);

/// Schedule generator of collectives through the NVSwitches.
pub(super) struct Nvls {
    header: Header,
    cut: Chunking,
}

impl Nvls {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let ranks = shape.call.ranks;
        if shape.ranks_per_team != ranks {
            return Err(Unsupported::NoTeam { algorithm: Algorithm::Nvls });
        }
        let (cut, layout) = match shape.call.collective {
            Collective::AllReduce => Chunking::by_loops(shape, u32::from(shape.channels), ranks)?,
            _ => Chunking::by_blocks(shape)?,
        };
        let header = Header { teams: vec![(0..ranks).map(Rank).collect()], ..shape.header(Algorithm::Nvls, layout, 0) };
        Ok(Self { header, cut })
    }
}

impl ScheduleGenerator for Nvls {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        for lane in 0..self.cut.lanes {
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            let chunks = self.cut.over_loops(rank.0, lane);
            let (input, output) = ((Buffer::Input, chunks), (Buffer::Output, chunks));
            let chunk_before = |run: u32| Dependency::shifted(rank, run, -1);
            let loops = self.cut.loops;
            let next = program.runs().len() as u32;
            let stored = if self.header.call.collective == Collective::AllGather {
                (input, vec![chunk_before(next)])
            } else {
                program.push(at.transfer(OpKind::MulticastReduce, loops, ALL, input, output), &[chunk_before(next)]);
                (output, vec![Dependency::shifted(rank, next, 0), chunk_before(next + 1)])
            };
            if self.header.call.collective != Collective::ReduceScatter {
                program.push(at.transfer(OpKind::MulticastPut, loops, ALL, stored.0, output), &stored.1);
            }
        }
    }

    fn symmetry(&self) -> Symmetry {
        Symmetry::Rotations(vec![RotationDigit { stride: 1, length: self.header.call.ranks }])
    }
}
