//! Direct: every rank writes each block straight into the receiver's output. Covers all_gather, all_to_all, gather,
//! scatter and send_recv; reduce_scatter is the first phase of [`super::two_shot`]. Pairwise is an all_to_all with one
//! partner at a time.
//!
//! **Direct** has one step. Time on equal links of latency L and bandwidth B: L + (n−1)/n·bytes/B, for send_recv L +
//! bytes/B. All puts of a loop are concurrent; the chunk of the next loop follows the previous one on its connection.
//! Each rank has one run per lane and host, or with several loops one per lane and peer. In place, all_to_all and
//! send_recv pass through scratch, because arriving data would overwrite data not yet sent; they need a run per peer.
//! In an all_to_all, a gather and a scatter over several hosts, the channels are divided among the hosts
//! (`host_channels`).
//!
//! **Pairwise** has n − 1 steps: in step k a rank sends to the rank k after it and receives from the rank k before it,
//! and starts the next step once its own message has arrived. The last partner of a loop is followed by the first
//! partner of the next. With one loop: (n−1)(L + bytes/(n·B)). No port carries more than one message at a time.
//!
//! Sources: Thakur, Rabenseifner, Gropp, *Optimization of Collective Communication Operations in MPICH*, 2005, §4.2
//! (pairwise exchange); NCCL 2.28 src/enqueue.cc (all_to_all, gather and scatter as send and receive of every pair) and
//! src/sym_kernels.cc AllGather_ST.
//!
//! # Example
//!
//! An all_to_all of eight ranks in one step. Rank 0 sends one of its eight blocks to every other rank, straight into
//! its output.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllToAll, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::Direct, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 8);
//! assert_eq!(receivers, [1, 2, 3, 4, 5, 6, 7]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, BufferUse, Collective, Dependency, Header, OpKind, Program, Rank, RotationDigit, ScheduleGenerator,
    Symmetry, Walk,
};

use super::cut::Chunking;
use super::host_channels::HostChannels;
use super::lane::Lane;
use super::peers::Peers;
use super::ring::copy_lane;
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of direct and pairwise exchanges.
pub(super) struct Direct {
    header: Header,
    partners: PartnerOrder,
    cut: Chunking,
    channels: HostChannels,
    peers: Peers,
    rotation: RotationDigit,
}

/// Order in which a rank sends to its partners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartnerOrder {
    /// The rank sends to all partners concurrently.
    Concurrent,
    /// The rank sends to one partner at a time.
    Sequential,
}

/// Part of the buffer that a put reads or writes.
#[derive(Clone, Copy)]
enum Part {
    /// Block of the sender.
    Sender,
    /// Block of the receiver.
    Receiver,
}

impl Direct {
    pub(super) fn new(shape: &Shape, partners: PartnerOrder) -> Result<Self, Unsupported> {
        let algorithm = match partners {
            PartnerOrder::Concurrent => Algorithm::Direct,
            PartnerOrder::Sequential => Algorithm::Pairwise,
        };
        let exchanges =
            matches!(shape.call.collective, Collective::AllToAll | Collective::Gather | Collective::Scatter);
        let channels = match partners {
            PartnerOrder::Concurrent if exchanges => HostChannels::divided_among_hosts(shape),
            _ => HostChannels::shared_by_hosts(shape),
        };
        let (cut, layout) = match shape.call.collective {
            Collective::SendRecv => Chunking::by_loops(shape, channels.lanes(), 1)?,
            _ => Chunking::by_blocks_in_lanes(shape, channels.lanes())?,
        };
        let crosses = matches!(shape.call.collective, Collective::AllToAll | Collective::SendRecv);
        let in_place = shape.call.buffers == BufferUse::InPlace;
        let scratch = if crosses && in_place { layout.chunks() } else { 0 };
        Ok(Self {
            header: shape.header(algorithm, layout, scratch),
            partners,
            cut,
            channels,
            peers: Peers::new(shape),
            rotation: shape.rotation(),
        })
    }

    /// Returns the rank's lane for messages to, or from, a host at this distance.
    fn lane(&self, rank: Rank, distance: u32, lane: u32) -> Lane {
        Lane { rank: rank.0, channel: self.channels.channel(distance, lane) }
    }

    /// Writes puts to all peers.
    fn scatter_out(&self, rank: Rank, src: Part, dst: Part, program: &mut Program) {
        if self.partners == PartnerOrder::Concurrent && self.cut.loops > 1 {
            return self.stream_out(rank, src, dst, program);
        }
        for lane in 0..self.cut.lanes {
            // Last non-empty run so far, and its length.
            let mut before: Option<(u32, u32)> = None;
            for round in 0..self.cut.loops {
                for (distance, (peers, len)) in (0..).zip(self.peers.walks(rank.0)) {
                    let chunks = |part| match part {
                        Part::Sender => Walk::fixed(self.cut.chunk(rank.0, round, lane)),
                        Part::Receiver => self.cut.over_parts(peers, round, lane),
                    };
                    let (src, dst) = ((Buffer::Input, chunks(src)), (Buffer::Output, chunks(dst)));
                    let run = self.lane(rank, distance, lane).put(len, peers, src, dst);
                    let number = program.runs().len() as u32;
                    match self.partners {
                        PartnerOrder::Concurrent => {
                            program.push(run, &[]);
                        }
                        PartnerOrder::Sequential => {
                            let turn =
                                before.map(|(run, len)| Dependency { rank, run, start: len as i32 - 1, step: 1 });
                            let awaited = [Some(Dependency::shifted(rank, number, -1)), turn];
                            program.push(run, &awaited.into_iter().flatten().collect::<Vec<_>>());
                            before = if len > 0 { Some((number, len)) } else { before };
                        }
                    }
                }
            }
        }
    }

    /// Writes puts to all peers, with one run over all loops per peer.
    fn stream_out(&self, rank: Rank, src: Part, dst: Part, program: &mut Program) {
        for lane in 0..self.cut.lanes {
            for offset in self.peers.offsets() {
                let target = self.peers.target(rank.0, offset);
                let chunks = |part| match part {
                    Part::Sender => self.cut.over_loops(rank.0, lane),
                    Part::Receiver => self.cut.over_loops(target, lane),
                };
                let (src, dst) = ((Buffer::Input, chunks(src)), (Buffer::Output, chunks(dst)));
                let at = self.lane(rank, self.peers.offset_host_distance(offset), lane);
                let run = at.put(self.cut.loops, Walk::fixed(target), src, dst);
                let number = program.runs().len() as u32;
                program.push(run, &[Dependency::shifted(rank, number, -1)]);
            }
        }
    }

    /// Writes puts of one part to one rank over all loops. The puts must be the first runs of the program.
    fn put_part(&self, rank: Rank, to: u32, part: u32, dst: Buffer, program: &mut Program) {
        let distance = self.peers.host_distance(rank.0, to);
        for lane in 0..self.cut.lanes {
            let (chunks, at) = (self.cut.over_loops(part, lane), self.lane(rank, distance, lane));
            let run = at.put(self.cut.loops, Walk::fixed(to), (Buffer::Input, chunks), (dst, chunks));
            program.push(run, &[Dependency::shifted(rank, lane, -1)]);
        }
    }

    /// Writes an all_to_all through scratch. A block that arrived is copied to its position after the block stored
    /// there has been sent.
    fn swap_blocks(&self, rank: Rank, program: &mut Program) {
        let loops = self.cut.loops;
        let others = self.peers.offsets().len() as u32;
        for lane in 0..self.cut.lanes {
            let first_run = lane * 2 * others;
            let run_number = |offset: u32| first_run + offset - 1;
            for offset in self.peers.offsets() {
                let target = self.peers.target(rank.0, offset);
                let src = (Buffer::Input, self.cut.over_loops(target, lane));
                let dst = (Buffer::Scratch, self.cut.over_loops(rank.0, lane));
                let order = match self.partners {
                    PartnerOrder::Concurrent => Dependency::shifted(rank, run_number(offset), -1),
                    PartnerOrder::Sequential if offset > 1 => Dependency::shifted(rank, run_number(offset - 1), 0),
                    // The first partner of a loop follows the last partner of the previous loop.
                    PartnerOrder::Sequential => Dependency::shifted(rank, run_number(others), -1),
                };
                let at = self.lane(rank, self.peers.offset_host_distance(offset), lane);
                program.push(at.put(loops, Walk::fixed(target), src, dst), &[order]);
            }
            for offset in self.peers.offsets() {
                let source = self.peers.source(rank.0, offset);
                let chunks = self.cut.over_loops(source, lane);
                let at = self.lane(rank, self.peers.offset_host_distance(offset), lane);
                let copy = at.local(OpKind::Copy, loops, (Buffer::Scratch, chunks), (Buffer::Output, chunks));
                let arrived = Dependency::shifted(Rank(source), run_number(offset), 0);
                let sent = Dependency::shifted(rank, run_number(self.peers.opposite(offset)), 0);
                program.push(copy, &[arrived, sent]);
            }
        }
    }

    /// Writes a send_recv to the next rank; in place, the data passes through scratch.
    fn shift(&self, rank: Rank, program: &mut Program) {
        let in_place = self.header.call.buffers == BufferUse::InPlace;
        let ranks = self.header.call.ranks;
        let (next, previous) = ((rank.0 + 1) % ranks, (rank.0 + ranks - 1) % ranks);
        let dst = if in_place { Buffer::Scratch } else { Buffer::Output };
        self.put_part(rank, next, 0, dst, program);
        if in_place {
            for lane in 0..self.cut.lanes {
                let chunks = self.cut.over_loops(0, lane);
                let (src, dst) = ((Buffer::Scratch, chunks), (Buffer::Output, chunks));
                let copy = self.lane(rank, 0, lane).local(OpKind::Copy, self.cut.loops, src, dst);
                program.push(copy, &[Dependency::shifted(Rank(previous), lane, 0), Dependency::shifted(rank, lane, 0)]);
            }
        }
    }
}

impl ScheduleGenerator for Direct {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let call = &self.header.call;
        let in_place = call.buffers == BufferUse::InPlace;
        let is_root = rank == call.root;
        match call.collective {
            Collective::AllGather => self.scatter_out(rank, Part::Sender, Part::Sender, program),
            Collective::AllToAll if in_place => self.swap_blocks(rank, program),
            Collective::AllToAll => self.scatter_out(rank, Part::Receiver, Part::Sender, program),
            Collective::Scatter if is_root => self.scatter_out(rank, Part::Receiver, Part::Receiver, program),
            Collective::Gather if !is_root => self.put_part(rank, call.root.0, rank.0, Buffer::Output, program),
            Collective::SendRecv => self.shift(rank, program),
            _ => {}
        }
        let copies_own_block = match call.collective {
            Collective::AllGather | Collective::AllToAll => true,
            Collective::Gather | Collective::Scatter => is_root,
            _ => false,
        };
        if copies_own_block {
            for lane in 0..self.cut.lanes {
                let at = self.lane(rank, 0, lane);
                copy_lane(&self.header, &self.cut, at, lane, rank.0..rank.0 + 1, program);
            }
        }
    }

    fn symmetry(&self) -> Symmetry {
        match self.header.call.collective {
            Collective::AllGather | Collective::AllToAll => self.peers.symmetry(),
            Collective::SendRecv => Symmetry::Rotations(vec![self.rotation]),
            _ => Symmetry::None,
        }
    }
}
