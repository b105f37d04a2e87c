//! NVLS over several NVLink domains: all_reduce whose sums between domains are computed by the switches of the network
//! (SHARP).
//!
//! In each domain of g ranks the NVSwitches reduce part i for the rank at position i ([`super::nvls`]). The switches of
//! the network reduce the sums of the ranks at position i of all domains and send the result to all of them: each rank
//! sends and receives bytes/g once, for any number of domains. The NVSwitches then multicast the result in each domain.
//! There are three steps, of which the second passes the network up and down once. Time with one loop, latency L and
//! bandwidth B inside, L' and B' between: 2(L + bytes/B) + L' + bytes/(g·B'). With many loops the steps of different loops
//! overlap.
//!
//! A rank of the first domain executes the operation of the network's switches for the team of its position; the bytes
//! and costs are those of all members.
//!
//! Source: NCCL 2.28 src/device/all_reduce.h (RunWorkColl for NCCL_ALGO_NVLS, the branch for several nodes: the sum of the
//! switch goes to the network, and the result of the network is stored by multicast); src/transport/coll_net.cc (each
//! rank posts one all_reduce per chunk to the network plugin). SHARP's aggregation trees, in which a switch sends one sum
//! up and one result down each link: Graham et al., *Scalable Hierarchical Aggregation and Reduction Protocol (SHARP)
//! Streaming-Aggregation Hardware Design and Evaluation*, ISC 2020.
//!
//! # Example
//!
//! An all_reduce on two hosts of four ranks: each rank reduces in its domain, the four ranks of the first host have the
//! network combine both hosts' sums, and each rank multicasts its part.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, OpKind, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape { ranks_per_node: 4, ranks_per_team: 4, ..Shape::new(call, Protocol::Simple) };
//! let schedule = Schedule::build(&*generator(Algorithm::Nvls, &shape)?)?;
//! let kinds = |rank| schedule.operations().filter(move |op| op.rank == Rank(rank)).map(|op| op.kind);
//! let (gather, between, spread) = (OpKind::MulticastReduce, OpKind::SwitchAllReduce, OpKind::MulticastPut);
//! assert_eq!(kinds(1).collect::<Vec<_>>(), [gather, between, spread]);
//! assert_eq!(kinds(5).collect::<Vec<_>>(), [gather, spread]);
//! assert_eq!(schedule.header().teams[3], [1, 5].map(Rank));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, Dependency, Header, OpKind, Program, Rank, RotationDigit, ScheduleGenerator, Symmetry, Walk,
};

use super::cut::{Chunking, lane_channel};
use super::lane::Lane;
use super::shape::{position_teams, successive_teams};
use super::{Algorithm, Shape, Unsupported};

/// First run of a lane: reduction in the domain. The runs of a lane have this order on every rank: reduction in the
/// domain, all_reduce in the network (without operations outside the first domain), multicast in the domain.
const GATHER: u32 = 0;
const BETWEEN: u32 = 1;
const SPREAD: u32 = 2;
const RUNS_PER_LANE: u32 = 3;

/// Schedule generator of all_reduce through NVSwitches and the switches of a network.
pub(super) struct NvlsNetwork {
    header: Header,
    cut: Chunking,
    per_team: u32,
}

impl NvlsNetwork {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (ranks, per_team) = (shape.call.ranks, shape.checked_ranks_per_team(Algorithm::Nvls)?);
        let (cut, layout) = Chunking::by_loops(shape, u32::from(shape.channels), per_team)?;
        // One team for each domain, then one for each position.
        let teams = successive_teams(ranks, per_team).chain(position_teams(ranks, per_team)).collect();
        let header = Header { teams, ..shape.header(Algorithm::Nvls, layout, 0) };
        Ok(Self { header, cut, per_team })
    }
}

impl ScheduleGenerator for NvlsNetwork {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let (domain, position) = (rank.0 / self.per_team, rank.0 % self.per_team);
        let (domains, loops) = (self.header.call.ranks / self.per_team, self.cut.loops);
        let leader = Rank(position);
        let [inside, between] = [domain, domains + position].map(Walk::fixed);
        for lane in 0..self.cut.lanes {
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            let run = |index: u32| lane * RUNS_PER_LANE + index;
            let chunk_before = |index: u32| Dependency::shifted(rank, run(index), -1);
            let chunks = self.cut.over_loops(position, lane);
            let (input, output) = ((Buffer::Input, chunks), (Buffer::Output, chunks));

            let gather = at.transfer(OpKind::MulticastReduce, loops, inside, input, output);
            program.push(gather, &[chunk_before(GATHER)]);

            let len = if rank == leader { loops } else { 0 };
            let sums = (0..domains).map(|domain| Rank(domain * self.per_team + position));
            let mut awaited: Vec<Dependency> = match rank == leader {
                true => sums.map(|member| Dependency::shifted(member, run(GATHER), 0)).collect(),
                false => Vec::new(),
            };
            awaited.push(chunk_before(BETWEEN));
            program.push(at.transfer(OpKind::SwitchAllReduce, len, between, output, output), &awaited);

            let spread = at.transfer(OpKind::MulticastPut, loops, inside, output, output);
            program.push(spread, &[Dependency::shifted(leader, run(BETWEEN), 0), chunk_before(SPREAD)]);
        }
    }

    fn symmetry(&self) -> Symmetry {
        Symmetry::Rotations(vec![RotationDigit { stride: 1, length: self.per_team }])
    }
}
