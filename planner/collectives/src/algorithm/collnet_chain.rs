//! CollNetChain: all_reduce over several hosts, with chains inside hosts and reduction in the switches of the network
//! (SHARP) between them.
//!
//! In each lane, the ranks of a host form a chain that ends at a rank with a NIC, the head. The chain reduces towards the
//! head; the switches of the network reduce the sums of the heads of all hosts and send the result back to them; the chain
//! then passes the result in the opposite direction. Lanes have different heads, so that all NICs are in use. A rank sends
//! its data once up and once down the chains of which it is not the end: with g lanes, 2(g−1)/g·bytes. A head sends and
//! receives bytes/g over the network. There are 2(g−1) + 1 steps; time with one loop and one lane, latency L and bandwidth
//! B inside, L' and B' between: 2(g−1)(L + bytes/B) + L' + bytes/B'.
//!
//! Source: NCCL 2.30.7 src/device/all_reduce.h (RunWorkColl for NCCL_ALGO_COLLNET_CHAIN: half of a block's threads reduce,
//! the other half copies), src/graph/connect.cc (`collnetChain`), src/transport/coll_net.cc.
//!
//! # Example
//!
//! An all_reduce on two hosts of three ranks. Rank 0 begins the chain whose head is rank 2; this rank has the network
//! combine the sums of both hosts.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, OpKind, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 6, root: Rank(0), buffers };
//! let shape = Shape { ranks_per_node: 3, channels: 3, ..Shape::new(call, Protocol::Simple) };
//! let schedule = Schedule::build(&*generator(Algorithm::CollnetChain, &shape)?)?;
//! let in_lane = schedule.operations().filter(|op| op.dst.index == 2);
//! let first_host: Vec<_> = in_lane.filter(|op| op.rank.0 < 3).map(|op| (op.rank.0, op.kind, op.peer.0)).collect();
//! let (up, between, down) = (OpKind::PutReduceInput, OpKind::SwitchAllReduce, OpKind::Put);
//! assert_eq!(first_host, [(0, up, 1), (1, up, 2), (1, down, 0), (2, between, 2), (2, down, 1)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{Buffer, Dependency, Header, OpKind, Program, Rank, ScheduleGenerator, Walk};

use super::cut::{Chunking, lane_channel};
use super::lane::Lane;
use super::shape::position_teams;
use super::{Algorithm, Shape, Unsupported};

/// First run of a lane: sum to the next rank of the chain. The runs of a lane have this order on every rank: sum up the
/// chain, all_reduce in the network, result down the chain. Runs that a rank does not execute have no operations. On a
/// single host the network has nothing to reduce.
const UP: u32 = 0;
const BETWEEN: u32 = 1;
const DOWN: u32 = 2;
const RUNS_PER_LANE: u32 = 3;

/// Schedule generator of all_reduce through chains and the switches of a network.
pub(super) struct CollnetChain {
    header: Header,
    cut: Chunking,
    per_host: u32,
    /// Number of ranks of a host that are the head of some lane.
    heads: u32,
}

impl CollnetChain {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let per_host = shape.checked_ranks_per_host(Algorithm::CollnetChain)?;
        let (cut, layout) = Chunking::by_loops(shape, u32::from(shape.channels), 1)?;
        let teams = position_teams(shape.call.ranks, per_host).collect();
        let header = Header { teams, ..shape.split_header(Algorithm::CollnetChain, layout, 0)? };
        let heads = if shape.nics_per_node == 0 { per_host } else { shape.nics_per_node.min(per_host) };
        Ok(Self { header, cut, per_host, heads })
    }

    /// Position on its host of the head of a lane.
    fn head(&self, lane: u32) -> u32 {
        let ranks_per_head = self.per_host / self.heads;
        (lane % self.heads) * ranks_per_head + ranks_per_head - 1
    }
}

impl ScheduleGenerator for CollnetChain {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let g = self.per_host;
        let (host, position, hosts) = (rank.0 / g, rank.0 % g, self.header.call.ranks / g);
        let loops = self.cut.loops;
        for lane in 0..self.cut.lanes {
            let block = lane_channel(self.header.channels / 2, lane);
            let [reducing, copying] = [0, 1].map(|half| Lane { rank: rank.0, channel: 2 * block + half });
            let head = self.head(lane);
            let run = |index: u32| lane * RUNS_PER_LANE + index;
            let chunk_before = |index: u32| Dependency::shifted(rank, run(index), -1);
            // Number of ranks between this one and the end of its host's chain.
            let distance = (head + g - position) % g;
            let next = Rank(host * g + (position + 1) % g);
            let previous = |position: u32| (position + g - 1) % g;
            let chunks = self.cut.over_loops(0, lane);
            let (input, output) = ((Buffer::Input, chunks), (Buffer::Output, chunks));
            let is_first = distance == g - 1;
            let (own_sum, is_head, is_leader) = (if is_first { input } else { output }, distance == 0, rank.0 == head);

            let len = if is_head { 0 } else { loops };
            let mut waits = vec![chunk_before(UP)];
            if !is_first {
                let before = Rank(host * g + previous(position));
                waits.insert(0, Dependency::shifted(before, run(UP), 0));
            }
            let kind = OpKind::PutReduceInput;
            program.push(reducing.transfer(kind, len, Walk::fixed(next.0), own_sum, output), &waits);

            let complete = |host: u32| Dependency::shifted(Rank(host * g + previous(head)), run(UP), 0);
            let len = if is_leader && hosts > 1 { loops } else { 0 };
            let mut waits = vec![chunk_before(BETWEEN)];
            if is_leader && !is_first {
                waits.extend((0..hosts).map(complete));
            }
            let kind = OpKind::SwitchAllReduce;
            program.push(reducing.transfer(kind, len, Walk::fixed(head), own_sum, output), &waits);

            let len = if is_first { 0 } else { loops };
            let result = match (is_head, hosts) {
                (true, 1) => complete(host),
                (true, _) => Dependency::shifted(Rank(head), run(BETWEEN), 0),
                (false, _) => Dependency::shifted(next, run(DOWN), 0),
            };
            let to = Walk::fixed(host * g + previous(position));
            program.push(copying.put(len, to, output, output), &[result, chunk_before(DOWN)]);
        }
    }
}
