//! Two-level all_to_allv: the two-level all_to_all (`exchange`) with block sizes from the matrix.
//!
//! Ranks at the same position of every host form a rail. A block for another host first goes to the rank of its
//! source's host that has the position of its destination. This rank sends it on the rail once the blocks of all ranks
//! of the host for that destination host have arrived. Empty blocks are skipped; their runs have length 0 so that run
//! numbers do not depend on sizes. With equal blocks, the out-of-place operations equal those of the all_to_all. Each
//! rank has 2gh runs per lane and loop.
//!
//! Source: see `exchange`.
//!
//! # Example
//!
//! An all_to_allv on two hosts of two ranks with data from rank 0 to rank 3 only. It travels through rank 1, which has
//! the position of rank 3.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule, TrafficMatrix};
//! use fabricast_topologies::Bytes;
//!
//! let mut bytes = vec![0; 16];
//! bytes[3] = 4096;
//! let matrix = TrafficMatrix::new(4, bytes)?;
//! let (collective, buffers) = (Collective::AllToAllV, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(4096), ranks: 4, root: Rank(0), buffers };
//! let shape = Shape { matrix: Some(matrix), ranks_per_node: 2, ..Shape::new(call, Protocol::Simple) };
//! let schedule = Schedule::build(&*generator(Algorithm::Hierarchical, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.kind.is_transfer());
//! let edges: Vec<_> = sent.map(|op| (op.rank.0, op.peer.0)).collect();
//! assert_eq!(edges, [(0, 1), (1, 3)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{Buffer, Dependency, Header, Program, Rank, Run, ScheduleGenerator, Symmetry, Walk};

use super::Levels;
use crate::algorithm::cut::lane_channel;
use crate::algorithm::host_channels::HostChannels;
use crate::algorithm::lane::Lane;
use crate::algorithm::matrix_cut::MatrixCut;
use crate::algorithm::{Algorithm, Shape, Unsupported};

/// Schedule generator of the two-level all_to_allv.
pub(in crate::algorithm) struct AllToAllV {
    header: Header,
    cut: MatrixCut,
    levels: Levels,
}

/// Numbers of the runs of one loop of a lane, equal on all ranks.
#[derive(Clone, Copy)]
struct UnevenRuns {
    /// First run of puts of blocks for other hosts to the peers (other ranks of the host); one run per peer and host.
    gather: u32,
    /// First run of waits until all peers' blocks for a host have arrived; one run per host.
    ready: u32,
    /// Number of runs in a loop.
    count: u32,
}

/// Put of a chunk of a block, in a loop of a lane.
#[derive(Clone, Copy)]
struct BlockPut {
    /// Rank that sends the block; `to` is the rank that receives it.
    from: u32,
    to: u32,
    lane: u32,
    round: u32,
    src: Buffer,
    dst: Buffer,
}

impl AllToAllV {
    pub(in crate::algorithm) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let levels = Levels::new(shape)?;
        let (cut, header) = MatrixCut::new(shape, Algorithm::Hierarchical, HostChannels::shared_by_hosts(shape), 1)?;
        Ok(Self { header, cut, levels })
    }

    fn runs(&self, first: u32) -> UnevenRuns {
        let (mates, hosts) = (self.levels.peer_count(), self.levels.hosts - 1);
        let ready = first + mates * hosts + mates;
        UnevenRuns { gather: first, ready, count: ready - first + hosts + hosts * self.levels.per_host }
    }

    /// Returns the run of a put to `peer`; empty if the block has fewer loops.
    fn put(&self, at: Lane, peer: u32, put: BlockPut) -> Run {
        let BlockPut { from, to, lane, round, src, dst } = put;
        let chunk = Walk::fixed(self.cut.chunk(from, to, round, lane));
        let len = u32::from(round < self.cut.loops(from, to));
        at.put(len, Walk::fixed(peer), (src, chunk), (dst, chunk))
    }

    fn write_loop(&self, at: Lane, lane: u32, round: u32, program: &mut Program) {
        let levels = self.levels;
        let location = levels.location(at.rank);
        let runs = self.runs(program.runs().len() as u32);
        let others = levels.hosts - 1;
        // A chunk follows the chunk of the previous loop on the same connection.
        let push = |program: &mut Program, run, extra: Option<Dependency>| {
            let number = program.runs().len() as u32;
            let before = (round > 0).then(|| Dependency::on_operation(at.rank(), number.wrapping_sub(runs.count), 0));
            program.push(run, &before.into_iter().chain(extra).collect::<Vec<_>>());
        };
        for offset in 1..=levels.peer_count() {
            let mate = levels.peer_on_host(location, offset);
            for host_offset in 1..=others {
                let to = levels.on_rail(levels.location(mate), host_offset);
                let put = BlockPut { from: at.rank, to, lane, round, src: Buffer::Input, dst: Buffer::Scratch };
                push(program, self.put(at, mate, put), None);
            }
        }
        for offset in 1..=levels.peer_count() {
            let mate = levels.peer_on_host(location, offset);
            let put = BlockPut { from: at.rank, to: mate, lane, round, src: Buffer::Input, dst: Buffer::Output };
            push(program, self.put(at, mate, put), None);
        }
        for host_offset in 1..=others {
            let gathered = (1..=levels.peer_count()).map(|offset| {
                let mate = levels.peer_on_host(location, levels.per_host - offset);
                Dependency::on_operation(Rank(mate), runs.gather + (offset - 1) * others + host_offset - 1, 0)
            });
            program.push(at.wait(1), &gathered.collect::<Vec<_>>());
        }
        for offset in 0..levels.per_host {
            let mate = levels.peer_on_host(location, offset);
            for host_offset in 1..=others {
                let to = levels.on_rail(location, host_offset);
                let src = if offset == 0 { Buffer::Input } else { Buffer::Scratch };
                let ready = (offset > 0).then(|| Dependency::on_operation(at.rank(), runs.ready + host_offset - 1, 0));
                let put = BlockPut { from: mate, to, lane, round, src, dst: Buffer::Output };
                push(program, self.put(at, to, put), ready);
            }
        }
    }
}

impl ScheduleGenerator for AllToAllV {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        for lane in 0..self.cut.lanes {
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            for round in 0..self.cut.max_loops() {
                self.write_loop(at, lane, round, program);
            }
        }
        self.cut.copy_own_block(&self.header, rank.0, program);
    }

    fn symmetry(&self) -> Symmetry {
        if self.header.layout.is_even() { self.levels.symmetry() } else { Symmetry::None }
    }
}
