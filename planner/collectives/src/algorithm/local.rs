//! Call of a single rank: a copy out of place, no operation in place. The schedule is the same for all algorithms and
//! collectives: the buffer is one block, divided as for collectives with blocks.
//!
//! # Example
//! An all_reduce of one rank is one copy for any algorithm.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, OpKind, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 1, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::Ring, &shape)?)?;
//! let kinds: Vec<OpKind> = schedule.operations().map(|op| op.kind).collect();
//! assert_eq!(kinds, [OpKind::Copy]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, BufferUse, Header, OpKind, Program, Rank, RotationDigit, ScheduleGenerator, Symmetry,
};

use super::cut::{Chunking, lane_channel};
use super::lane::Lane;
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of a single rank.
pub(super) struct Local {
    header: Header,
    cut: Chunking,
}

impl Local {
    pub(super) fn new(algorithm: Algorithm, shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_blocks(shape)?;
        Ok(Self { header: shape.header(algorithm, layout, 0), cut })
    }
}

impl ScheduleGenerator for Local {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        if self.header.call.buffers == BufferUse::InPlace {
            return;
        }
        for lane in 0..self.cut.lanes {
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            let chunks = self.cut.over_loops(0, lane);
            let copy = at.local(OpKind::Copy, self.cut.loops, (Buffer::Input, chunks), (Buffer::Output, chunks));
            program.push(copy, &[]);
        }
    }

    fn symmetry(&self) -> Symmetry {
        Symmetry::Rotations(vec![RotationDigit { stride: 1, length: 1 }])
    }
}
