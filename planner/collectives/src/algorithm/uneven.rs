//! All_to_allv: every rank writes each block straight into the receiver's output, with block sizes from the matrix.
//!
//! **Direct** has all puts concurrent, as in [`super::direct`]; **pairwise** has one partner at a time, in the same
//! order, with each loop passing through all partners. Empty blocks are skipped without even a flag, as NCCL skips
//! empty sends and receives. With equal blocks, operations and time equal those of the all_to_all. Time of direct on
//! equal links of latency L and bandwidth B: L + m/B, where m is the maximum that a rank sends to, or receives from,
//! other ranks.
//!
//! A block of the input and the block of the output that it becomes have the same chunks; in place, only the block that
//! a rank sends to itself is the same memory, and it is not moved. Runs per rank and lane: one per partner, for
//! pairwise one per partner and loop; if all blocks of a rank have equally many loops (direct: one), per host instead
//! of per partner.
//!
//! Sources: NCCL 2.28 src/enqueue.cc (sends and receives of every pair); nccl-tests src/alltoall.cu; MPI-4.0 §6.8
//! (`MPI_Alltoallv`); Thakur, Rabenseifner, Gropp, *Optimization of Collective Communication Operations in MPICH*,
//! 2005, §4.2 (pairwise exchange).
//!
//! # Example
//!
//! An all_to_allv of three ranks. Rank 0 has 3 KiB for rank 1, which has 1 KiB for rank 2; empty blocks cause no
//! messages.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule, TrafficMatrix};
//! use fabricast_topologies::Bytes;
//!
//! let matrix = TrafficMatrix::new(3, vec![0, 3072, 0, 0, 0, 1024, 0, 0, 0])?;
//! let (collective, buffers) = (Collective::AllToAllV, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(4096), ranks: 3, root: Rank(0), buffers };
//! let shape = Shape { matrix: Some(matrix), ..Shape::new(call, Protocol::Simple) };
//! let schedule = Schedule::build(&*generator(Algorithm::Direct, &shape)?)?;
//! let bytes = |chunk: u32| schedule.header().layout.size(chunk).numerator;
//! let sent = schedule.operations().filter(|op| op.kind.is_transfer());
//! let messages: Vec<_> = sent.map(|op| (op.rank.0, op.peer.0, bytes(op.src.index))).collect();
//! assert_eq!(messages, [(0, 1, 3072), (1, 2, 1024)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{Buffer, Dependency, Header, Program, Rank, ScheduleGenerator, Symmetry, Walk};

use super::direct::PartnerOrder;
use super::host_channels::HostChannels;
use super::lane::Lane;
use super::matrix_cut::MatrixCut;
use super::peers::Peers;
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of direct and pairwise exchanges of blocks of any size.
pub(super) struct Uneven {
    header: Header,
    partners: PartnerOrder,
    cut: MatrixCut,
    peers: Peers,
}

impl Uneven {
    pub(super) fn new(shape: &Shape, partners: PartnerOrder) -> Result<Self, Unsupported> {
        let algorithm = match partners {
            PartnerOrder::Concurrent => Algorithm::Direct,
            PartnerOrder::Sequential => Algorithm::Pairwise,
        };
        let channels = match partners {
            PartnerOrder::Concurrent => HostChannels::divided_among_hosts(shape),
            PartnerOrder::Sequential => HostChannels::shared_by_hosts(shape),
        };
        let (cut, header) = MatrixCut::new(shape, algorithm, channels, 0)?;
        Ok(Self { header, partners, cut, peers: Peers::new(shape) })
    }

    /// Returns the other ranks in the order in which data is sent to them.
    fn others(&self, rank: u32) -> impl Iterator<Item = u32> + use<> {
        self.peers.walks(rank).flat_map(|(walk, len)| (0..len).map(move |i| walk.at(i)))
    }

    /// Writes puts to all peers if every block has the same number of loops: one run per host and loop, as in an
    /// all_to_all.
    fn write_by_host(&self, rank: Rank, lane: u32, loops: u32, program: &mut Program) {
        // Last non-empty run so far and its length.
        let mut before: Option<(u32, u32)> = None;
        for round in 0..loops {
            for (distance, (peers, len)) in (0..).zip(self.peers.walks(rank.0)) {
                let at = self.lane(rank, distance, lane);
                let chunks = self.cut.over_peers(rank.0, peers, round, lane);
                let put = at.put(len, peers, (Buffer::Input, chunks), (Buffer::Output, chunks));
                let number = program.runs().len() as u32;
                let turn = before.map(|(run, len)| Dependency { rank, run, start: len as i32 - 1, step: 1 });
                let awaited = match self.partners {
                    PartnerOrder::Concurrent => [None, None],
                    PartnerOrder::Sequential => [Some(Dependency::shifted(rank, number, -1)), turn],
                };
                program.push(put, &awaited.into_iter().flatten().collect::<Vec<_>>());
                before = if len > 0 { Some((number, len)) } else { before };
            }
        }
    }

    fn lane(&self, rank: Rank, distance: u32, lane: u32) -> Lane {
        Lane { rank: rank.0, channel: self.cut.channels.channel(distance, lane) }
    }

    fn write_concurrent(&self, rank: Rank, lane: u32, program: &mut Program) {
        if let Some(1) = self.cut.even_loops(rank.0) {
            return self.write_by_host(rank, lane, 1, program);
        }
        for to in self.others(rank.0) {
            let loops = self.cut.loops(rank.0, to);
            if loops > 0 {
                let at = self.lane(rank, self.peers.host_distance(rank.0, to), lane);
                let chunks = self.cut.over_loops(rank.0, to, lane);
                let put = at.put(loops, Walk::fixed(to), (Buffer::Input, chunks), (Buffer::Output, chunks));
                let number = program.runs().len() as u32;
                program.push(put, &[Dependency::shifted(rank, number, -1)]);
            }
        }
    }

    fn write_sequential(&self, rank: Rank, lane: u32, program: &mut Program) {
        if let Some(loops) = self.cut.even_loops(rank.0) {
            return self.write_by_host(rank, lane, loops, program);
        }
        let at = self.lane(rank, 0, lane);
        let others: Vec<(u32, u32)> = self.others(rank.0).map(|to| (to, self.cut.loops(rank.0, to))).collect();
        let max_loops = others.iter().map(|&(_, loops)| loops).max().unwrap_or(0);
        let mut before: Option<Dependency> = None;
        for round in 0..max_loops {
            for &(to, _) in others.iter().filter(|&&(_, loops)| round < loops) {
                let chunk = Walk::fixed(self.cut.chunk(rank.0, to, round, lane));
                let put = at.put(1, Walk::fixed(to), (Buffer::Input, chunk), (Buffer::Output, chunk));
                let run = program.push(put, before.as_slice());
                before = Some(Dependency::on_operation(rank, run, 0));
            }
        }
    }
}

impl ScheduleGenerator for Uneven {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        for lane in 0..self.cut.lanes {
            match self.partners {
                PartnerOrder::Concurrent => self.write_concurrent(rank, lane, program),
                PartnerOrder::Sequential => self.write_sequential(rank, lane, program),
            }
        }
        self.cut.copy_own_block(&self.header, rank.0, program);
    }

    fn symmetry(&self) -> Symmetry {
        if self.header.layout.is_even() { self.peers.symmetry() } else { Symmetry::None }
    }
}
