//! NVLS with trees between NVLink domains: all_reduce on several hosts.
//!
//! In each domain of g ranks the switch reduces part i for the rank at position i ([`super::nvls`]). The ranks at
//! position i of all domains reduce it up and broadcast it down a binary tree, half of the lanes on each of the two
//! trees ([`super::host_trees`]). The switch then multicasts the sums. Links between h domains carry 2·bytes/g per rank
//! for each child, those inside carry the bytes once per direction. There are 2 + 2·log2 h steps. Time with one loop,
//! latency L and bandwidth B inside, L' and B' between, and h a power of two: 2(L + bytes/B) + 2·log2 h·(L' +
//! bytes/(g·B')).
//!
//! Source: NCCL 2.28 src/device/all_reduce.h (RunWorkColl for NCCL_ALGO_NVLS_TREE), src/graph/connect.cc
//! (`connectNvlsTrees`).
//!
//! # Example
//!
//! An all_reduce on two hosts of four ranks. Each host is a team, whose switches reduce and multicast. Ranks
//! exchange data between hosts only with those at their own position.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, OpKind, Operation, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape { ranks_per_node: 4, ranks_per_team: 4, ..Shape::new(call, Protocol::Simple) };
//! let schedule = Schedule::build(&*generator(Algorithm::NvlsTree, &shape)?)?;
//! assert_eq!(schedule.header().teams, [[0, 1, 2, 3].map(Rank), [4, 5, 6, 7].map(Rank)]);
//! let between = |op: &Operation| matches!(op.kind, OpKind::Put | OpKind::PutReduce);
//! assert!(schedule.operations().filter(between).all(|op| op.rank.0.abs_diff(op.peer.0) == 4));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, Dependency, Header, OpKind, Program, Rank, RotationDigit, ScheduleGenerator, Symmetry, Walk,
};

use super::cut::{Chunking, lane_channel};
use super::host_trees::host_tree;
use super::lane::Lane;
use super::shape::successive_teams;
use super::{Algorithm, Shape, Unsupported};

/// First run of a lane: reduction in the domain. The runs of a lane have this order on every rank: reduction in the
/// domain, sum to the parent, local reduction of the second child's data, results to the children, multicast in the
/// domain.
const GATHER: u32 = 0;
const UP: u32 = 1;
const REDUCE: u32 = 2;
const DOWN: [u32; 2] = [3, 4];
const SPREAD: u32 = 5;
const RUNS_PER_LANE: u32 = 6;

/// Schedule generator of all_reduce through NVSwitches and trees.
pub(super) struct NvlsTree {
    header: Header,
    cut: Chunking,
    per_team: u32,
}

impl NvlsTree {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let per_team = shape.checked_ranks_per_team(Algorithm::NvlsTree)?;
        // With a single channel, both trees run on it.
        let (cut, layout) = Chunking::by_loops(shape, u32::from(shape.channels).max(2), per_team)?;
        let slots = layout.chunks();
        let teams = successive_teams(shape.call.ranks, per_team).collect();
        let header = Header { teams, ..shape.header(Algorithm::NvlsTree, layout, slots) };
        Ok(Self { header, cut, per_team })
    }
}

impl ScheduleGenerator for NvlsTree {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let (team, position) = (rank.0 / self.per_team, rank.0 % self.per_team);
        let (teams, loops) = (self.header.call.ranks / self.per_team, self.cut.loops);
        for lane in 0..self.cut.lanes {
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            let neighbours = host_tree(team, teams, lane);
            let across = |team: u32| Rank(team * self.per_team + position);
            let run = |index: u32| lane * RUNS_PER_LANE + index;
            let own_run = |index: u32| Dependency::shifted(rank, run(index), 0);
            let chunk_before = |index: u32| Dependency::shifted(rank, run(index), -1);
            let chunks = self.cut.over_loops(position, lane);
            let (input, output, slot) = ((Buffer::Input, chunks), (Buffer::Output, chunks), (Buffer::Scratch, chunks));
            let domain = Walk::fixed(team);
            let [first, second] =
                neighbours.children.map(|child| child.map(|child| Dependency::shifted(across(child), run(UP), 0)));
            // Operation that completes the sum of this domain's subtree. The first child's data is reduced on arrival,
            // after the domain's own sum; the second child's data is reduced locally.
            let from_first = first.unwrap_or(own_run(GATHER));
            let complete = if second.is_some() { own_run(REDUCE) } else { from_first };

            let gather = at.transfer(OpKind::MulticastReduce, loops, domain, input, output);
            program.push(gather, &[chunk_before(GATHER)]);

            let (parent, is_second) = neighbours.parent.map_or((rank, 0), |(parent, index)| (across(parent), index));
            let (kind, dst) = if is_second == 0 { (OpKind::PutReduce, output) } else { (OpKind::Put, slot) };
            let len = if neighbours.parent.is_some() { loops } else { 0 };
            let parents_sum = Dependency::shifted(parent, run(GATHER), 0);
            let up = at.transfer(kind, len, Walk::fixed(parent.0), output, dst);
            program.push(up, &[complete, chunk_before(UP), parents_sum][..if is_second == 0 { 3 } else { 2 }]);

            let len = if second.is_some() { loops } else { 0 };
            let awaited: Vec<Dependency> = second.into_iter().chain([from_first]).collect();
            program.push(at.local(OpKind::Reduce, len, slot, output), &awaited);

            let result = match neighbours.parent {
                Some((_, index)) => Dependency::shifted(parent, run(DOWN[index]), 0),
                None => complete,
            };
            for (child, index) in neighbours.children.into_iter().zip(DOWN) {
                let len = if child.is_some() { loops } else { 0 };
                let to = Walk::fixed(child.map_or(rank, across).0);
                program.push(at.put(len, to, output, output), &[result, chunk_before(index)]);
            }

            let spread = at.transfer(OpKind::MulticastPut, loops, domain, output, output);
            program.push(spread, &[result, chunk_before(SPREAD)]);
        }
    }

    fn symmetry(&self) -> Symmetry {
        Symmetry::Rotations(vec![RotationDigit { stride: 1, length: self.per_team }])
    }
}
