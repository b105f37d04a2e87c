//! Hierarchical all_gather and reduce_scatter: rings over the hosts for every position, overlapped block by block with
//! exchanges within each host.
//!
//! With h hosts of g ranks: **all_gather** passes a rank's block around the ring of all hosts' same position in h − 1
//! steps; every arriving block is put straight into the outputs of the other g − 1 ranks of the host.
//! **reduce_scatter** runs backwards: the contributions of one host to a block are summed at the owner's position
//! there, in the order in which the ring needs them, and the ring then accumulates them. Links between hosts carry
//! (h−1)/h · bytes/g per rank, those within (g−1)/g · bytes. With one loop, latency L and bandwidth B within, L' and B'
//! between, let S = L + (g−1)·bytes/(n·B) and T = L' + bytes/(n·B'). If S ≤ T, the time is (h−1)·T + S; for
//! reduce_scatter it is (h−1)·T + 2S, or S on a single host. Runs per rank, lane and loop: g + 2 for all_gather, at
//! most 4g for reduce_scatter.
//!
//! Source: the decomposition of [`super::all_reduce`]; the overlap is that of NCCL's rings over NICs and NVLink.
//!
//! # Example
//!
//! An all_gather on two hosts of four ranks. Rank 0 sends its block to rank 4 on the other host and to its peers, which
//! also get the block that arrives from there.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllGather, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape { ranks_per_node: 4, ..Shape::new(call, Protocol::Simple) };
//! let schedule = Schedule::build(&*generator(Algorithm::Hierarchical, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 8);
//! assert_eq!(receivers, [4, 1, 2, 3, 1, 2, 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, BufferUse, Dependency, Header, OpKind, Program, Rank, ScheduleGenerator, Symmetry, Walk,
};

use super::sum::Sum;
use super::{LaneLoop, Levels, RankLocation, rounds};
use crate::algorithm::cut::Chunking;
use crate::algorithm::lane::Lane;
use crate::algorithm::ring::copy_part;
use crate::algorithm::{Algorithm, Shape, Unsupported};

/// Schedule generator of the hierarchical all_gather.
pub(in crate::algorithm) struct HierarchicalAllGather {
    header: Header,
    cut: Chunking,
    levels: Levels,
}

impl HierarchicalAllGather {
    pub(in crate::algorithm) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let levels = Levels::new(shape)?;
        let (cut, layout) = Chunking::by_blocks(shape)?;
        Ok(Self { header: shape.header(Algorithm::Hierarchical, layout, 0), cut, levels })
    }

    /// Returns the number of runs of a loop: the first ring step, the other ring steps, the puts of the rank's own
    /// block to all other ranks of the host, and forwarded blocks to each of them.
    fn runs(&self) -> u32 {
        3 + self.levels.peer_count()
    }

    fn write_loop(&self, at: Lane, lane: u32, round: u32, program: &mut Program) {
        let Self { levels, ref cut, .. } = *self;
        let location = levels.location(at.rank);
        let RankLocation { host, position } = location;
        let first = program.runs().len() as u32;
        let (start, ring, share) = (first, first + 1, first + 2);
        let own_part = Walk::fixed(cut.chunk(at.rank, round, lane));
        let arriving = cut.over_parts(levels.blocks_by_descending_host(host, position), round, lane).advanced(1);
        let (input, output) = ((Buffer::Input, own_part), (Buffer::Output, own_part));
        let others = (Buffer::Output, arriving);
        let next = Walk::fixed(levels.on_rail(location, 1));
        let previous = Rank(levels.on_rail(location, levels.hosts - 1));
        let loop_before =
            |run: u32| (round > 0).then(|| Dependency::shifted(at.rank(), run.wrapping_sub(self.runs()), 0));
        // Arrival of the block that operation i forwards: from the first ring step, then from the others.
        let arrivals =
            [Dependency { rank: previous, run: start, start: 0, step: 1 }, Dependency::shifted(previous, ring, -1)];
        let steps = levels.hosts - 1;
        // A loop starts on the ring after the previous loop has completed its ring steps; otherwise full FIFOs would
        // deadlock.
        let round_before = (round > 0).then(|| match steps {
            0 | 1 => Dependency::on_operation(at.rank(), start.wrapping_sub(self.runs()), 0),
            _ => Dependency::on_operation(at.rank(), ring.wrapping_sub(self.runs()), steps - 2),
        });
        program.push(at.put(steps.min(1), next, input, output), round_before.as_slice());
        let awaited: Vec<Dependency> = arrivals.into_iter().chain(loop_before(ring)).collect();
        program.push(at.put(steps.saturating_sub(1), next, others, others), &awaited);
        let put_to_peers = at.put(levels.peer_count(), levels.host_peers(location), input, output);
        program.push(put_to_peers, loop_before(share).as_slice());
        for offset in 1..=levels.peer_count() {
            let to = Walk::fixed(levels.peer_on_host(location, offset));
            let run = share + offset;
            // Only the first forwarded block follows the rank's own block on its connection.
            let own_block_sent =
                Dependency { rank: at.rank(), run: share, start: offset as i32 - 1, step: levels.peer_count() };
            let chunk_before = Dependency::shifted(at.rank(), run, -1);
            let awaited: Vec<Dependency> =
                arrivals.into_iter().chain([own_block_sent, chunk_before]).chain(loop_before(run)).collect();
            program.push(at.put(steps, to, others, others), &awaited);
        }
    }
}

impl ScheduleGenerator for HierarchicalAllGather {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        for LaneLoop { at, lane, round } in rounds(&self.header, &self.cut, rank) {
            self.write_loop(at, lane, round, program);
        }
        copy_part(&self.header, &self.cut, rank.0, rank.0, program);
    }

    fn symmetry(&self) -> Symmetry {
        self.levels.symmetry()
    }
}

/// Schedule generator of the hierarchical reduce_scatter.
pub(in crate::algorithm) struct HierarchicalReduceScatter {
    header: Header,
    cut: Chunking,
    levels: Levels,
}

impl HierarchicalReduceScatter {
    pub(in crate::algorithm) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let levels = Levels::new(shape)?;
        let (cut, layout) = Chunking::by_blocks(shape)?;
        let slots = layout.chunks();
        Ok(Self { header: shape.header(Algorithm::Hierarchical, layout, slots), cut, levels })
    }

    fn write_loop(&self, at: Lane, lane: u32, round: u32, program: &mut Program) {
        let Self { levels, ref cut, .. } = *self;
        let location = levels.location(at.rank);
        let RankLocation { host, position } = location;
        let steps = levels.hosts - 1;
        let in_place = self.header.call.buffers == BufferUse::InPlace;
        // The sums for other hosts come first, starting with the previous host and going backwards; the sum of the
        // rank's own host follows.
        let remote_sums = program.runs().len() as u32;
        let local_sum = remote_sums + Sum::runs(levels);
        let ring = local_sum + Sum::runs(levels);
        let runs = ring + 2 - remote_sums;
        let loop_before = |run: u32| (round > 0).then(|| Dependency::shifted(at.rank(), run.wrapping_sub(runs), 0));
        // On each connection a loop starts after the whole previous loop, as FIFO slots are reused.
        let first_after = |last: Dependency| Dependency { start: 0, step: 1, ..last };
        let part =
            |position: u32| cut.over_parts(levels.blocks_by_descending_host(host + steps, position), round, lane);
        let sum = Sum {
            at,
            levels,
            first_run: remote_sums,
            items: steps,
            part: &part,
            sum_buffer: &|_| Buffer::Scratch,
            in_place,
            extra_dependency: &|run| loop_before(local_sum + run).map(first_after),
        };
        sum.write(program);
        let own_part = |position: u32| Walk::fixed(cut.chunk(host * levels.per_host + position, round, lane));
        let last_remote_sum =
            |run: u32| (steps > 0).then(|| Dependency::on_operation(at.rank(), remote_sums + run, steps - 1));
        let sum = Sum {
            first_run: local_sum,
            items: 1,
            part: &own_part,
            sum_buffer: &|_| Buffer::Output,
            extra_dependency: &|run| last_remote_sum(run).or_else(|| loop_before(local_sum + run)),
            ..sum
        };
        sum.write(program);

        let next = levels.on_rail(location, 1);
        let previous = Rank(levels.on_rail(location, levels.hosts - 1));
        let summed = |first_run: u32, rank: u32, shift: i32| {
            let (rank, run) = Sum::completing_run(levels, first_run, rank);
            Dependency::shifted(rank, run, shift)
        };
        let sums = (Buffer::Scratch, part(position));
        let mut awaited = vec![
            Dependency::shifted(previous, ring, -1),
            summed(remote_sums, at.rank, 0),
            summed(remote_sums, next, 1),
        ];
        awaited.extend(loop_before(ring + 1).map(first_after));
        let passing = steps.saturating_sub(1);
        program.push(at.transfer(OpKind::PutReduce, passing, Walk::fixed(next), sums, sums), &awaited);
        // The last transfer carries the block of the next rank.
        let next_block = Walk::fixed(cut.chunk(next, round, lane));
        let (src, dst) = ((Buffer::Scratch, next_block), (Buffer::Output, next_block));
        let mut awaited = vec![summed(remote_sums, at.rank, passing as i32), summed(local_sum, next, 0)];
        awaited.extend(passing.checked_sub(1).map(|last| Dependency::on_operation(previous, ring, last)));
        awaited.extend(loop_before(ring + 1));
        program.push(at.transfer(OpKind::PutReduce, steps.min(1), Walk::fixed(next), src, dst), &awaited);
    }
}

impl ScheduleGenerator for HierarchicalReduceScatter {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        for LaneLoop { at, lane, round } in rounds(&self.header, &self.cut, rank) {
            self.write_loop(at, lane, round, program);
        }
    }

    fn symmetry(&self) -> Symmetry {
        self.levels.symmetry()
    }
}
