//! Two-level all_to_all: blocks are gathered within each host at the rank whose position equals that of their
//! destination, and all blocks for a remote host then travel on that rank's rail.
//!
//! With h hosts of g ranks: a rank first sends each other rank of its host (a *peer*) the h − 1 blocks for the peer's
//! position in the other hosts, and the block for the peer itself. Once all peers' blocks for a host have arrived, they
//! are sent to it, g blocks at a time. Links between hosts carry (h−1)/h · bytes per rank as in a direct exchange, but
//! messages are g times larger and g times fewer; links within hosts carry (g−1)/g · bytes. With one loop, latency L
//! and bandwidth B within, L' and B' between: at most L + (g−1)/g · bytes/B + L' + (h−1)/h · bytes/B', as a rank's own
//! blocks need not wait for its peers' blocks. In place, arriving data waits in scratch until the data at its
//! destination has been sent. Runs per rank, lane and loop: 2g + 3, in place 3g + 3.
//!
//! Source: NCCL 2.12's PXN (src/graph/paths.cc, and Jeaugey, *Doubling all2all Performance with NVIDIA Collective
//! Communication Library 2.12*, 2022); MSCCL's two-step all-to-all (msccl-tools,
//! examples/mscclang/alltoall_a100_two_step.py).
//!
//! # Example
//!
//! An all_to_all on two hosts of four ranks. Rank 0 sends its peers their blocks and those for their positions on the
//! other host, then the four blocks gathered for rank 4. In a direct exchange it would send to four ranks there.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllToAll, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape { ranks_per_node: 4, ..Shape::new(call, Protocol::Simple) };
//! let schedule = Schedule::build(&*generator(Algorithm::Hierarchical, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 8);
//! assert_eq!(receivers, [1, 2, 3, 1, 2, 3, 4, 4, 4, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, BufferUse, Dependency, Header, OpKind, Program, Rank, ScheduleGenerator, Symmetry, Walk,
};

use super::{LaneLoop, Levels, RankLocation, rounds};
use crate::algorithm::cut::{Chunking, check_chunks};
use crate::algorithm::lane::{Chunks, Lane};
use crate::algorithm::ring::copy_part;
use crate::algorithm::{Algorithm, Shape, Unsupported};

/// Schedule generator of the two-level all_to_all.
pub(in crate::algorithm) struct HierarchicalAllToAll {
    header: Header,
    cut: Chunking,
    levels: Levels,
    in_place: bool,
}

/// Numbers of the runs of one loop of a lane, equal on all ranks.
#[derive(Clone, Copy)]
struct ExchangeRuns {
    /// First run of puts of blocks for other hosts to the peers on the host; one run per peer.
    gather: u32,
    /// Run of puts of the blocks whose destinations are the peers themselves.
    inside: u32,
    /// Run of waits until all blocks for a host have arrived.
    ready: u32,
    /// First run of puts of blocks to the other hosts: one run per rank of the host, starting with the rank's own
    /// blocks.
    across: u32,
    /// Run that waits until all data has been sent; used in place.
    all_sent: u32,
    count: u32,
}

impl HierarchicalAllToAll {
    pub(in crate::algorithm) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let levels = Levels::new(shape)?;
        let (cut, layout) = Chunking::by_blocks(shape)?;
        let in_place = shape.call.buffers == BufferUse::InPlace;
        // Slots for forwarded blocks and, in place, for arrived blocks.
        let slots = check_chunks(u64::from(layout.chunks()) * (1 + u64::from(in_place)))?;
        Ok(Self { header: shape.header(Algorithm::Hierarchical, layout, slots), cut, levels, in_place })
    }

    fn runs(&self, first: u32) -> ExchangeRuns {
        let (mates, per_host) = (self.levels.peer_count(), self.levels.per_host);
        let inside = first + mates;
        let across = inside + 2;
        let all_sent = across + per_host;
        let count = all_sent - first + if self.in_place { 2 + per_host } else { 0 };
        ExchangeRuns { gather: first, inside, ready: inside + 1, across, all_sent, count }
    }

    /// Returns the buffer and the chunks at which blocks arrive.
    fn arrival(&self, walk: Walk) -> Chunks {
        if self.in_place {
            (Buffer::Scratch, Walk { base: walk.base + self.header.layout.chunks(), ..walk })
        } else {
            (Buffer::Output, walk)
        }
    }

    fn write_loop(&self, at: Lane, lane: u32, round: u32, program: &mut Program) {
        let Self { levels, ref cut, .. } = *self;
        let location = levels.location(at.rank);
        let RankLocation { host, position } = location;
        let runs = self.runs(program.runs().len() as u32);
        let hosts = levels.hosts - 1;
        // Blocks of a position, starting with the next host.
        let remote_blocks = |position: u32| {
            let walk = Walk::cyclic(position, host + 1, 1, levels.hosts).strided(levels.per_host);
            cut.over_parts(walk, round, lane)
        };
        let block = |rank: u32| Walk::fixed(cut.chunk(rank, round, lane));
        let loop_before =
            |run: u32| (round > 0).then(|| Dependency::shifted(at.rank(), run.wrapping_sub(runs.count), 0));
        for offset in 1..=levels.peer_count() {
            let mate = levels.peer_on_host(location, offset);
            let (src, dst) = (
                (Buffer::Input, remote_blocks(levels.location(mate).position)),
                (Buffer::Scratch, remote_blocks(position)),
            );
            program.push(at.put(hosts, Walk::fixed(mate), src, dst), loop_before(runs.gather + offset - 1).as_slice());
        }
        let mates = levels.host_peers(location);
        let inside = at.put(
            levels.peer_count(),
            mates,
            (Buffer::Input, cut.over_parts(mates, round, lane)),
            self.arrival(block(at.rank)),
        );
        program.push(inside, loop_before(runs.inside).as_slice());
        let gathered = |offset: u32| {
            let mate = levels.peer_on_host(location, levels.per_host - offset);
            Dependency::shifted(Rank(mate), runs.gather + offset - 1, 0)
        };
        program.push(at.wait(hosts), &(1..=levels.peer_count()).map(gathered).collect::<Vec<_>>());
        let rail = Walk::cyclic(position, host + 1, 1, levels.hosts).strided(levels.per_host);
        for offset in 0..levels.per_host {
            let mate = levels.peer_on_host(location, offset);
            let buffer = if offset == 0 { Buffer::Input } else { Buffer::Scratch };
            let mut awaited: Vec<Dependency> = loop_before(runs.across + offset).into_iter().collect();
            if offset > 0 {
                awaited.push(Dependency::shifted(at.rank(), runs.ready, 0));
            }
            let src = (buffer, remote_blocks(levels.location(mate).position));
            program.push(at.put(hosts, rail, src, self.arrival(block(mate))), &awaited);
        }
        if self.in_place {
            self.write_copies_to_output(at, lane, round, runs, program);
        }
    }

    /// Copies blocks that have arrived to their destination after the data stored there has been sent. Used in place.
    fn write_copies_to_output(&self, at: Lane, lane: u32, round: u32, runs: ExchangeRuns, program: &mut Program) {
        let Self { levels, ref cut, .. } = *self;
        let location = levels.location(at.rank);
        let (rank, hosts) = (at.rank(), levels.hosts - 1);
        let waits = hosts.max(levels.peer_count());
        let own_sends = (0..levels.peer_count()).map(|run| runs.gather + run).chain([runs.inside, runs.across]);
        let mut awaited: Vec<Dependency> = own_sends.map(|run| Dependency::shifted(rank, run, 0)).collect();
        awaited.push(Dependency::shifted(rank, runs.all_sent, -1));
        program.push(at.wait(waits), &awaited);
        let all_sent = Dependency::on_operation(rank, runs.all_sent, waits - 1);
        let copy_to_output =
            |walk: Walk, len: u32| at.local(OpKind::Copy, len, self.arrival(walk), (Buffer::Output, walk));
        for offset in 0..levels.per_host {
            let position = levels.location(levels.peer_on_host(location, offset)).position;
            let blocks = cut.over_parts(levels.blocks_by_descending_host(location.host + hosts, position), round, lane);
            let arrived = (1..=hosts).map(|back| {
                Dependency::on_operation(
                    Rank(levels.on_rail(location, levels.hosts - back)),
                    runs.across + offset,
                    back - 1,
                )
            });
            program.push(copy_to_output(blocks, hosts), &arrived.chain([all_sent]).collect::<Vec<_>>());
        }
        let blocks = cut.over_parts(levels.host_peers(location), round, lane);
        let arrived = (1..=levels.peer_count()).map(|offset| {
            Dependency::on_operation(
                Rank(levels.peer_on_host(location, offset)),
                runs.inside,
                levels.per_host - offset - 1,
            )
        });
        program.push(copy_to_output(blocks, levels.peer_count()), &arrived.chain([all_sent]).collect::<Vec<_>>());
    }
}

impl ScheduleGenerator for HierarchicalAllToAll {
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
