//! Hierarchical broadcast and reduce: the root's host divides the data over its positions, each position passes its
//! part along the hosts on its own rail, and every host reassembles the parts.
//!
//! With h hosts of g ranks: **broadcast** scatters g parts within the root's host, passes them from host to host along
//! chains, pipelined by chunks, and gathers them within each host. **reduce** runs backwards: every position sums its
//! part within its host, the chains accumulate towards the root's host, and the ranks there send their parts to the
//! root. A link between hosts carries bytes/g. With one loop, latency L and bandwidth B within, L' and B' between, S =
//! L + (g−1)/g · bytes/B and T = L' + bytes/(g·B'): 2S + (h−1)·T each, if g > 1. Runs per rank and lane: 2g − 1 for
//! broadcast, 2g for reduce, for any number of loops.
//!
//! Source: the scatter and all_gather of van de Geijn's broadcast within hosts, NCCL 2.28's chains
//! (src/device/broadcast.h, reduce.h) between them.
//!
//! # Example
//!
//! A broadcast to two hosts of four ranks. The root divides the buffer over its host, passes its own quarter to rank 4
//! on the other host, and sends that quarter to its peers.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::Broadcast, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape { ranks_per_node: 4, ..Shape::new(call, Protocol::Simple) };
//! let schedule = Schedule::build(&*generator(Algorithm::Hierarchical, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 4);
//! assert_eq!(receivers, [1, 2, 3, 4, 1, 2, 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, BufferUse, Collective, Dependency, Header, OpKind, Program, Rank, ScheduleGenerator, Walk,
};

use super::sum::Sum;
use super::{Levels, RankLocation};
use crate::algorithm::cut::{Chunking, lane_channel};
use crate::algorithm::lane::Lane;
use crate::algorithm::ring::copy_parts;
use crate::algorithm::{Algorithm, Shape, Unsupported};

/// Common state of the hierarchical broadcast and reduce.
struct HierarchicalRooted {
    header: Header,
    cut: Chunking,
    levels: Levels,
    root: RankLocation,
}

impl HierarchicalRooted {
    fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let levels = Levels::new(shape)?;
        let (cut, layout) = Chunking::by_loops(shape, u32::from(shape.channels), levels.per_host)?;
        let slots = if shape.call.collective == Collective::Reduce { layout.chunks() } else { 0 };
        let root = levels.location(shape.call.root.0);
        Ok(Self { header: shape.header(Algorithm::Hierarchical, layout, slots), cut, levels, root })
    }

    /// Returns the number of hosts from the root's host to `host`, cyclically.
    fn hosts_after_root(&self, host: u32) -> u32 {
        (host + self.levels.hosts - self.root.host) % self.levels.hosts
    }

    fn is_root(&self, rank: u32) -> bool {
        self.header.call.root.0 == rank
    }

    fn lanes(&self, rank: Rank) -> impl Iterator<Item = (u32, Lane)> {
        let channels = self.header.channels;
        (0..self.cut.lanes).map(move |lane| (lane, Lane { rank: rank.0, channel: lane_channel(channels, lane) }))
    }
}

/// Schedule generator of the hierarchical broadcast.
pub(in crate::algorithm) struct Broadcast(HierarchicalRooted);

impl Broadcast {
    pub(in crate::algorithm) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        HierarchicalRooted::new(shape).map(Self)
    }

    /// Writes the runs of a lane: the root's parts to the other ranks of its host, the chain over the hosts, and the
    /// rank's own part to each other rank of its host.
    fn write_lane(&self, at: Lane, lane: u32, program: &mut Program) {
        let HierarchicalRooted { levels, root, ref cut, .. } = self.0;
        let first = program.runs().len() as u32;
        let (chain, share) = (first + levels.peer_count(), first + levels.peer_count() + 1);
        let (rank, loops) = (at.rank(), cut.loops);
        let location = levels.location(rank.0);
        let RankLocation { host, position } = location;
        let part = |position: u32| cut.over_loops(position, lane);
        let is_root = self.0.is_root(rank.0);
        let src = if is_root { Buffer::Input } else { Buffer::Output };
        let len_if = |condition: bool| if condition { loops } else { 0 };
        let chunk_before = |run: u32| Dependency::shifted(rank, run, -1);
        for offset in 1..=levels.peer_count() {
            let mate = levels.peer_on_host(location, offset);
            let chunks = part(levels.location(mate).position);
            let run = at.put(len_if(is_root), Walk::fixed(mate), (src, chunks), (Buffer::Output, chunks));
            program.push(run, &[chunk_before(first + offset - 1)]);
        }
        // Arrival of the rank's own part: from the root within the root's host, along the chain on other hosts.
        let from_root = (position + levels.per_host - root.position) % levels.per_host;
        let arrival = match (host == root.host, from_root.checked_sub(1)) {
            (true, None) => None,
            (true, Some(run)) => Some(Dependency::shifted(self.0.header.call.root, first + run, 0)),
            (false, _) => Some(Dependency::shifted(Rank(levels.on_rail(location, levels.hosts - 1)), chain, 0)),
        };
        let own_part = part(position);
        let is_last = self.0.hosts_after_root(host) + 1 == levels.hosts;
        let next = Walk::fixed(levels.on_rail(location, 1));
        let awaited: Vec<Dependency> = arrival.into_iter().chain([chunk_before(chain)]).collect();
        program.push(at.put(len_if(!is_last), next, (src, own_part), (Buffer::Output, own_part)), &awaited);
        for offset in 1..=levels.peer_count() {
            let mate = levels.peer_on_host(location, offset);
            let run =
                at.put(len_if(!self.0.is_root(mate)), Walk::fixed(mate), (src, own_part), (Buffer::Output, own_part));
            // The root's own part follows the receiver's part on the same connection.
            let scattered = is_root.then(|| Dependency::shifted(rank, first + offset - 1, 0));
            let awaited: Vec<Dependency> =
                arrival.into_iter().chain(scattered).chain([chunk_before(share + offset - 1)]).collect();
            program.push(run, &awaited);
        }
    }
}

impl ScheduleGenerator for Broadcast {
    fn header(&self) -> &Header {
        &self.0.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        for (lane, at) in self.0.lanes(rank) {
            self.write_lane(at, lane, program);
        }
        if self.0.is_root(rank.0) {
            copy_parts(&self.0.header, &self.0.cut, rank.0, 0..self.0.levels.per_host, program);
        }
    }
}

/// Schedule generator of the hierarchical reduce.
pub(in crate::algorithm) struct Reduce(HierarchicalRooted);

impl Reduce {
    pub(in crate::algorithm) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        HierarchicalRooted::new(shape).map(Self)
    }

    /// Writes the runs of a lane: the sums within the host, the chain over the hosts, and the rank's own part to the
    /// root.
    fn write_lane(&self, at: Lane, lane: u32, program: &mut Program) {
        let HierarchicalRooted { levels, root, ref cut, .. } = self.0;
        let first = program.runs().len() as u32;
        let (chain, root_put) = (first + Sum::runs(levels), first + Sum::runs(levels) + 1);
        let (rank, loops) = (at.rank(), cut.loops);
        let location = levels.location(rank.0);
        let RankLocation { host, position } = location;
        let part = |position: u32| cut.over_loops(position, lane);
        let sum_buffer = |location: RankLocation| if location == root { Buffer::Output } else { Buffer::Scratch };
        Sum {
            at,
            levels,
            first_run: first,
            items: loops,
            part: &part,
            sum_buffer: &|position| sum_buffer(RankLocation { host, position }),
            in_place: self.0.header.call.buffers == BufferUse::InPlace,
            extra_dependency: &|_| None,
        }
        .write(program);
        let summed = |rank: u32| {
            let (rank, run) = Sum::completing_run(levels, first, rank);
            Dependency::shifted(rank, run, 0)
        };
        let own_part = part(position);
        let hosts_after_root = self.0.hosts_after_root(host);
        let next = levels.on_rail(location, 1);
        let previous = levels.on_rail(location, levels.hosts - 1);
        // The chain starts at the host that follows the root's host.
        let arrival =
            (hosts_after_root != 1 && levels.hosts > 1).then(|| Dependency::shifted(Rank(previous), chain, 0));
        let dst = (sum_buffer(RankLocation { host: (host + 1) % levels.hosts, position }), own_part);
        let len = if hosts_after_root > 0 { loops } else { 0 };
        let pass = at.transfer(OpKind::PutReduce, len, Walk::fixed(next), (Buffer::Scratch, own_part), dst);
        let mut awaited = vec![summed(rank.0), summed(next), Dependency::shifted(rank, chain, -1)];
        awaited.extend(arrival);
        program.push(pass, &awaited);
        let len = if hosts_after_root == 0 && position != root.position { loops } else { 0 };
        let to = Walk::fixed(self.0.header.call.root.0);
        let mut awaited = vec![summed(rank.0), Dependency::shifted(rank, root_put, -1)];
        awaited.extend(arrival);
        program.push(at.put(len, to, (Buffer::Scratch, own_part), (Buffer::Output, own_part)), &awaited);
    }
}

impl ScheduleGenerator for Reduce {
    fn header(&self) -> &Header {
        &self.0.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        for (lane, at) in self.0.lanes(rank) {
            self.write_lane(at, lane, program);
        }
    }
}
