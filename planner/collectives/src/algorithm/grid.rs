//! Rings along the dimensions of a grid of ranks, one dimension after the other.
//!
//! With sides a₁, a₂, … and n ranks in total: **reduce_scatter** traverses the rings of the first dimension with all
//! bytes, those of the second with the remaining 1/a₁, and so on; **all_gather** has the opposite order, from the last
//! dimension to the first; **all_reduce** is both. There are Σ(aᵢ−1) steps, twice that for all_reduce, compared with n
//! − 1 for a single ring. As in a ring, every rank sends (n−1)/n of the bytes, twice that for all_reduce. Time on equal
//! links of latency L and bandwidth B: Σᵢ(aᵢ−1)(L + bytes/(a₁…aᵢ·B)), twice that for all_reduce. Channels start with
//! different dimensions, and the next group of as many channels traverses the rings backwards, so that links of all
//! dimensions and directions are busy concurrently.
//!
//! The sides are those of the grid of hosts ([`Shape::grid`]), preceded by the ranks of a host if it has several.
//! Without a known grid, there are two sides as equal as possible. Runs per rank and lane: two per step for all_reduce;
//! a few per step and loop for the others.
//!
//! Source: Barnett, Littlefield, Payne, van de Geijn, *Global Combine on Mesh Architectures with Wormhole Routing*,
//! IPPS 1993; Sack & Gropp, *Collective Algorithms for Multiported Torus Networks*, ACM TOPC 2015 (all dimensions
//! concurrently).
//!
//! # Example
//!
//! An all_gather on a grid of 3 × 3 ranks in Σ(aᵢ−1) = 4 steps. Rank 0 passes two blocks along the second dimension, to
//! rank 3, then two times three blocks along the first, to rank 1.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllGather, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 9, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::GridRing, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 9);
//! assert_eq!(receivers, [3, 3, 1, 1, 1, 1, 1, 1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, Collective, Header, OpKind, Program, Rank, RotationDigit, ScheduleGenerator, Symmetry, Walk,
};

use super::cut::Chunking;
use super::ring::copy_part;
use super::steps::{self, MessagePattern, MessagePiece, Parts};
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of rings along the dimensions of a grid.
pub(super) struct GridRing {
    header: Header,
    cut: Chunking,
    /// Dimensions of the grid; rank numbers vary fastest along the first.
    sides: Vec<Side>,
}

/// Dimension of the grid: number of ranks, and stride of their rank numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Side {
    length: u32,
    stride: u32,
}

/// Returns the sides of the grid of ranks, each at least 2.
fn grid_sides(shape: &Shape) -> Vec<Side> {
    let (ranks, per_host) = (shape.call.ranks, shape.ranks_per_host());
    let hosts = ranks / per_host;
    // The ranks of a single host, or hosts of one rank each, form the grid themselves.
    let (inside, outside) = if hosts == 1 { (1, ranks) } else { (per_host, hosts) };
    let product = shape.grid.iter().try_fold(1u32, |product, &side| product.checked_mul(side));
    let outside: Vec<u32> = if product == Some(outside) { shape.grid.clone() } else { square(outside) };
    let lengths = std::iter::once(inside).chain(outside).filter(|&length| length > 1);
    let sides = lengths.scan(1, |stride, length| {
        let side = Side { length, stride: *stride };
        *stride *= length;
        Some(side)
    });
    sides.collect()
}

/// Returns two sides with product `ranks` that are as equal as possible.
fn square(ranks: u32) -> Vec<u32> {
    let side = (1..=ranks.isqrt()).rev().find(|&side| ranks.is_multiple_of(side)).unwrap_or(1);
    vec![ranks / side, side]
}

impl GridRing {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let ((cut, layout), slots) = match shape.call.collective {
            Collective::AllReduce => (Chunking::by_loops(shape, u32::from(shape.channels), shape.call.ranks)?, 0),
            collective => {
                let cut = Chunking::by_blocks(shape)?;
                let slots = if collective == Collective::ReduceScatter { cut.1.chunks() } else { 0 };
                (cut, slots)
            }
        };
        Ok(Self { header: shape.header(Algorithm::GridRing, layout, slots), cut, sides: grid_sides(shape) })
    }

    /// Returns the order of dimensions, the direction and the steps of a lane.
    fn lane_schedule(&self, lane: u32) -> LaneSchedule {
        let dimensions = self.sides.len();
        let mut sides = self.sides.clone();
        sides.rotate_left(lane as usize % dimensions);
        let backwards = !(lane as usize / dimensions).is_multiple_of(2);
        let collective = self.header.call.collective;
        let mut steps = Vec::new();
        for (dimension, side) in sides.iter().enumerate().filter(|_| collective != Collective::AllGather) {
            steps.extend((0..side.length - 1).map(|time| LaneStep { dimension, time, reduces: true }));
        }
        for (dimension, side) in sides.iter().enumerate().rev().filter(|_| collective != Collective::ReduceScatter) {
            steps.extend((0..side.length - 1).map(|time| LaneStep { dimension, time, reduces: false }));
        }
        LaneSchedule { sides, backwards, steps }
    }
}

/// Step of a lane: step number `time` along a dimension, given as an index into the sides of the lane schedule.
#[derive(Clone, Copy, Debug)]
struct LaneStep {
    dimension: usize,
    time: u32,
    reduces: bool,
}

/// Dimensions of a lane in the order in which it reduces along them, its direction, and its steps.
struct LaneSchedule {
    sides: Vec<Side>,
    backwards: bool,
    steps: Vec<LaneStep>,
}

impl LaneSchedule {
    fn step(&self, step: u32) -> LaneStep {
        self.steps[step as usize]
    }

    /// Returns the rank `distance` positions further along a dimension, in the lane's direction.
    fn along(&self, rank: u32, dimension: usize, distance: u32) -> u32 {
        let Side { length, stride } = self.sides[dimension];
        let distance = if self.backwards { length - distance % length } else { distance };
        let position = rank / stride % length;
        rank - position * stride + (position + distance) % length * stride
    }

    /// Returns the rank that identifies the data moved in a step: it has the sender's coordinates in all dimensions
    /// except that of the step.
    fn data_representative(&self, rank: u32, step: LaneStep) -> u32 {
        let length = self.sides[step.dimension].length;
        // The last sum to move along a dimension is the receiver's; the first data to move is the sender's own.
        let back = step.time + u32::from(step.reduces);
        self.along(rank, step.dimension, length - back % length)
    }

    /// Returns the number of a rank's part within a loop. The more leading dimensions two ranks agree in, the closer
    /// their parts are.
    fn part(&self, rank: u32) -> u32 {
        self.sides.iter().fold(0, |part, side| part * side.length + rank / side.stride % side.length)
    }

    /// Returns the rank to which `rank` sends in a step.
    fn receiver(&self, rank: u32, step: LaneStep) -> u32 {
        self.along(rank, step.dimension, 1)
    }

    fn sender(&self, rank: u32, step: LaneStep) -> u32 {
        self.along(rank, step.dimension, self.sides[step.dimension].length - 1)
    }

    /// Returns the type of the operation in a step. Along the first dimension, a sum starts from the receiver's input.
    fn kind(step: LaneStep) -> OpKind {
        match step {
            LaneStep { reduces: false, .. } => OpKind::Put,
            LaneStep { dimension: 0, .. } => OpKind::PutReduceInput,
            LaneStep { .. } => OpKind::PutReduce,
        }
    }

    fn is_input(step: LaneStep) -> bool {
        step.reduces && step.dimension == 0 && step.time == 0
    }

    /// Returns the dimensions after `dimension` in the lane schedule, merged into at most two, the longer one last. The
    /// remaining dimensions are consecutive and merge into one, unless the rotated order wraps around between them.
    fn rows(&self, dimension: usize) -> [Side; 2] {
        let mut remaining: Vec<Side> = self.sides[dimension + 1..].to_vec();
        remaining.sort_by_key(|side| side.stride);
        let mut merged = [Side { length: 1, stride: 1 }; 2];
        for side in remaining {
            let last = &mut merged[1];
            if last.length == 1 {
                *last = side;
            } else if last.stride * last.length == side.stride {
                last.length *= side.length;
            } else {
                merged = [*last, side];
            }
        }
        merged.sort_by_key(|side| side.length);
        merged
    }
}

/// Returns the ranks along a side, starting at `rank`, cyclically.
fn ranks_along_side(rank: u32, side: Side) -> Walk {
    let position = rank / side.stride % side.length;
    Walk::cyclic(rank - position * side.stride, position, 1, side.length).strided(side.stride)
}

/// Pattern of all_reduce, which moves contiguous ranges of parts.
struct GridAllReducePattern(LaneSchedule);

impl MessagePattern for GridAllReducePattern {
    const SINGLE: bool = true;

    fn steps(&self) -> u32 {
        self.0.steps.len() as u32
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<MessagePiece> {
        let step = self.0.step(step);
        let span = self.0.sides[step.dimension + 1..].iter().map(|side| side.length).product();
        let first = Walk::fixed(self.0.part(self.0.data_representative(rank, step)) / span * span);
        let src = if LaneSchedule::is_input(step) { Buffer::Input } else { Buffer::Output };
        let to = self.0.receiver(rank, step);
        let piece = MessagePiece::put(to, Parts::new(src, first), Parts::new(Buffer::Output, first), 1);
        vec![MessagePiece { span, ..piece.reducing(LaneSchedule::kind(step)) }]
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        Some(self.0.sender(rank, self.0.step(step)))
    }
}

/// Pattern of all_gather and reduce_scatter, which move the blocks of ranks.
struct BlockPattern(LaneSchedule);

impl MessagePattern for BlockPattern {
    fn steps(&self) -> u32 {
        self.0.steps.len() as u32
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<MessagePiece> {
        let step = self.0.step(step);
        let (representative, to) = (self.0.data_representative(rank, step), self.0.receiver(rank, step));
        let [rows, row] = self.0.rows(step.dimension);
        // Sums come from scratch and end in the receiver's output; gathered data starts in the sender's input.
        let (src, dst) = match step.reduces {
            true if LaneSchedule::is_input(step) => (Buffer::Input, Buffer::Scratch),
            true => (Buffer::Scratch, Buffer::Scratch),
            false => (Buffer::Output, Buffer::Output),
        };
        let (separate_owner, separate_src) = if step.reduces { (to, src) } else { (rank, Buffer::Input) };
        let separate_len = u32::from(representative == separate_owner);
        let piece = |src: Buffer, dst: Buffer, blocks: Walk, len: u32| {
            MessagePiece::put(to, Parts::new(src, blocks), Parts::new(dst, blocks), len)
                .reducing(LaneSchedule::kind(step))
        };
        let mut pieces = vec![piece(separate_src, Buffer::Output, Walk::fixed(representative), separate_len)];
        let firsts = ranks_along_side(representative, rows);
        for number in 0..rows.length {
            let skipped = if number == 0 { separate_len } else { 0 };
            let blocks = ranks_along_side(firsts.at(number), row).advanced(skipped);
            pieces.push(piece(src, dst, blocks, row.length - skipped));
        }
        pieces
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        Some(self.0.sender(rank, self.0.step(step)))
    }
}

impl ScheduleGenerator for GridRing {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let (header, cut) = (&self.header, &self.cut);
        for lane in 0..cut.lanes {
            let schedule = self.lane_schedule(lane);
            match header.call.collective {
                Collective::AllReduce => {
                    steps::write_lane(&GridAllReducePattern(schedule), header, cut, rank, lane, program);
                }
                _ => steps::write_lane(&BlockPattern(schedule), header, cut, rank, lane, program),
            }
        }
        if header.call.collective == Collective::AllGather {
            copy_part(header, cut, rank.0, rank.0, program);
        }
    }

    fn symmetry(&self) -> Symmetry {
        let digit = |side: &Side| RotationDigit { stride: side.stride, length: side.length };
        // Blocks of three or more dimensions move in rows of merged dimensions, of which only the last can be rotated.
        let merges_dimensions = self.header.call.collective != Collective::AllReduce && self.sides.len() > 2;
        let rotated = if merges_dimensions { &self.sides[self.sides.len() - 1..] } else { &self.sides[..] };
        Symmetry::Rotations(rotated.iter().map(digit).collect())
    }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::{BufferUse, Call, Protocol};
    use fabricast_topologies::Bytes;

    use super::*;

    #[test]
    fn sides_follow_the_host_grid_or_are_near_square() {
        let call = |ranks| Call {
            collective: Collective::AllReduce,
            bytes: Bytes(0),
            ranks,
            root: Rank(0),
            buffers: BufferUse::InPlace,
        };
        let lengths = |ranks, ranks_per_node, grid: &[u32]| {
            let shape = Shape { ranks_per_node, grid: grid.to_vec(), ..Shape::new(call(ranks), Protocol::Simple) };
            let sides = grid_sides(&shape);
            let strides: Vec<u32> = sides.iter().map(|side| side.stride).collect();
            let expected = sides.iter().scan(1, |stride, side| Some(std::mem::replace(stride, *stride * side.length)));
            assert_eq!(strides, expected.collect::<Vec<_>>());
            sides.iter().map(|side| side.length).collect::<Vec<_>>()
        };
        assert_eq!(lengths(64, 8, &[2, 4]), [8, 2, 4]);
        assert_eq!(lengths(64, 1, &[4, 4, 4]), [4, 4, 4]);
        assert_eq!(lengths(64, 8, &[]), [8, 4, 2]);
        assert_eq!(lengths(64, 8, &[3, 3]), [8, 4, 2]);
        assert_eq!(lengths(24, 0, &[]), [6, 4]);
        assert_eq!(lengths(7, 0, &[]), [7]);
    }
}
