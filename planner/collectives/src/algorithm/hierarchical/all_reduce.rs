//! Hierarchical all_reduce: reduce_scatter within each host, a ring over the hosts for every position, all_gather
//! within each host.
//!
//! With h hosts of g ranks, a loop has g·h chunks. The rank at position i of a host reduces part i (h chunks) of its
//! host in one step, all-reduces it on the ring of all hosts' position i in 2(h−1) steps, and sends it to the other
//! ranks of its host in one step. Links between hosts carry 2(h−1)/h · bytes/g per rank, those within 2(g−1)/g · bytes.
//! With one loop, latency L and bandwidth B within, L' and B' between: 2(L + (g−1)/g·bytes/B) + 2(h−1)(L' +
//! bytes/(g·h·B')). The three phases of different loops overlap: each waits for the same phase of the previous loop.
//!
//! Source: the decomposition of NCCL's CollNet and of Jia et al., *Highly Scalable Deep Learning Training System with
//! Mixed-Precision*, 2018, §3.3 (hierarchical all-reduce), with the inner phases as in `two_shot`.
//!
//! # Example
//!
//! An all_reduce on two hosts of four ranks. Of the 14 chunks that rank 0 sends, two go to the other host: to rank 4,
//! at the same position there.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape { ranks_per_node: 4, ..Shape::new(call, Protocol::Simple) };
//! let schedule = Schedule::build(&*generator(Algorithm::Hierarchical, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 8);
//! assert_eq!(receivers, [1, 1, 2, 2, 3, 3, 4, 4, 1, 1, 2, 2, 3, 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, BufferUse, Dependency, Header, OpKind, Program, Rank, Run, ScheduleGenerator, Symmetry, Walk,
};

use super::{LaneLoop, Levels, rounds};
use crate::algorithm::cut::Chunking;
use crate::algorithm::lane::Lane;
use crate::algorithm::{Algorithm, Shape, Unsupported};

/// Schedule generator of the hierarchical all_reduce.
pub(in crate::algorithm) struct HierarchicalAllReduce {
    header: Header,
    cut: Chunking,
    levels: Levels,
    out_of_place: bool,
}

/// Numbers of the runs of one loop of a lane, equal on all ranks. The runs of a loop follow those of the previous loop.
#[derive(Clone, Copy)]
struct AllReduceRuns {
    /// Run of puts of parts to the other ranks of the host.
    scatter: u32,
    /// Run whose operations complete the host's sum.
    sum: u32,
    /// Run of the first half of the ring, which reduces.
    reduce: u32,
    /// Run of the second half of the ring, which forwards sums.
    pass: u32,
    /// Run of waits for the arrivals of the second half, in order.
    arrive: u32,
    /// Run of puts of the result to the other ranks of the host.
    share: u32,
    /// Number of runs in a loop.
    count: u32,
}

/// Loop `round` of a lane, with the numbers of its runs.
#[derive(Clone, Copy)]
struct Round {
    at: Lane,
    runs: AllReduceRuns,
    lane: u32,
    round: u32,
}

impl HierarchicalAllReduce {
    pub(in crate::algorithm) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let levels = Levels::new(shape)?;
        let (cut, layout) = Chunking::by_loops(shape, u32::from(shape.channels), shape.call.ranks)?;
        let slots = layout.chunks();
        Ok(Self {
            header: shape.header(Algorithm::Hierarchical, layout, slots),
            cut,
            levels,
            out_of_place: shape.call.buffers == BufferUse::OutOfPlace,
        })
    }

    fn runs(&self, first: u32) -> AllReduceRuns {
        let (copies, others) = (u32::from(self.out_of_place), self.levels.per_host - 1);
        let after_sum = first + 1 + copies + others;
        AllReduceRuns {
            scatter: first,
            sum: after_sum - 1,
            reduce: after_sum,
            pass: after_sum + 1,
            arrive: after_sum + 2,
            share: after_sum + 3,
            count: 4 + 1 + copies + others,
        }
    }

    /// Returns the first chunk of the part of a position.
    fn part(&self, position: u32, at: Round) -> Walk {
        Walk::fixed(self.cut.chunk(position * self.levels.hosts, at.round, at.lane))
    }

    /// Returns the parts of the other positions of the host, starting with the position after `position`.
    fn other_parts(&self, position: u32, at: Round) -> Walk {
        Walk::cyclic(self.cut.chunk(0, at.round, at.lane), position + 1, 1, self.levels.per_host)
            .strided(self.levels.hosts)
    }

    /// Returns the dependency on the same operation of the previous loop; `None` in the first loop.
    fn loop_before(at: Round, run: u32) -> Option<Dependency> {
        (at.round > 0).then(|| Dependency::shifted(at.at.rank(), run - at.runs.count, 0))
    }

    fn write_inside(&self, at: Round, program: &mut Program) {
        let (rank, others) = (at.at.rank, self.levels.per_host - 1);
        let (host, position) = (rank / self.levels.per_host, rank % self.levels.per_host);
        let mates = Walk::cyclic(host * self.levels.per_host, position + 1, 1, self.levels.per_host);
        let with_part_span = |run: Run| Run { span: self.levels.hosts, ..run };
        let own_part = self.part(position, at);
        let scatter =
            at.at.put(others, mates, (Buffer::Input, self.other_parts(position, at)), (Buffer::Scratch, own_part));
        program.push(with_part_span(scatter), Self::loop_before(at, at.runs.scatter).as_slice());
        let mut last = None;
        if self.out_of_place {
            let copy = at.at.local(OpKind::Copy, 1, (Buffer::Input, own_part), (Buffer::Output, own_part));
            last = Some(program.push(with_part_span(copy), &[]));
        }
        for back in 1..self.levels.per_host {
            let source = (position + self.levels.per_host - back) % self.levels.per_host;
            let slot = (Buffer::Scratch, self.part(source, at));
            let reduce = at.at.local(OpKind::Reduce, 1, slot, (Buffer::Output, own_part));
            let mut awaited =
                vec![Dependency::on_operation(Rank(host * self.levels.per_host + source), at.runs.scatter, back - 1)];
            awaited.extend(last.map(|last| Dependency::shifted(at.at.rank(), last, 0)));
            last = Some(program.push(with_part_span(reduce), &awaited));
        }
    }

    fn write_between(&self, at: Round, program: &mut Program) {
        let (rank, ranks) = (at.at.rank, self.header.call.ranks);
        let (host, position) = (rank / self.levels.per_host, rank % self.levels.per_host);
        let (next, previous) =
            ((rank + self.levels.per_host) % ranks, Rank((rank + ranks - self.levels.per_host) % ranks));
        let steps = self.levels.hosts - 1;
        let base = self.cut.chunk(position * self.levels.hosts, at.round, at.lane);
        // The chunk of step t is the host's own number minus t, modulo the number of hosts.
        let descending_chunks =
            |start: u32| (Buffer::Output, Walk::cyclic(base, start, self.levels.hosts - 1, self.levels.hosts));
        let last_step = steps as i32 - 1;
        let runs = at.runs;

        let chunks = descending_chunks(host);
        let reduce = at.at.transfer(OpKind::PutReduce, steps, Walk::fixed(next), chunks, chunks);
        // The part must be reduced within both hosts first.
        let mut awaited = vec![
            Dependency::shifted(previous, runs.reduce, -1),
            Dependency { rank: at.at.rank(), run: runs.sum, start: 0, step: 1 },
            Dependency::on_operation(Rank(next), runs.sum, 0),
        ];
        if at.round > 0 {
            let before = runs.pass - runs.count;
            awaited.push(Dependency { rank: at.at.rank(), run: before, start: last_step, step: 1 });
        }
        program.push(reduce, &awaited);

        let chunks = descending_chunks(host + 1);
        let pass = at.at.put(steps, Walk::fixed(next), chunks, chunks);
        let first = Dependency { rank: previous, run: runs.reduce, start: last_step, step: 1 };
        program.push(pass, &[Dependency::shifted(previous, runs.pass, -1), first]);

        let arrivals = [
            Dependency::shifted(previous, runs.pass, 0),
            Dependency::shifted(at.at.rank(), runs.arrive, -1),
            Dependency { rank: previous, run: runs.reduce, start: last_step, step: 1 },
        ];
        program.push(at.at.wait(steps), &arrivals);
    }

    fn write_share(&self, at: Round, program: &mut Program) {
        let (host, position) = (at.at.rank / self.levels.per_host, at.at.rank % self.levels.per_host);
        let mates = Walk::cyclic(host * self.levels.per_host, position + 1, 1, self.levels.per_host);
        let own_part = (Buffer::Output, self.part(position, at));
        let share = at.at.put(self.levels.per_host - 1, mates, own_part, own_part);
        let complete = if self.levels.hosts > 1 { (at.runs.arrive, self.levels.hosts - 2) } else { (at.runs.sum, 0) };
        let mut awaited = vec![Dependency::on_operation(at.at.rank(), complete.0, complete.1)];
        awaited.extend(Self::loop_before(at, at.runs.share));
        program.push(Run { span: self.levels.hosts, ..share }, &awaited);
    }
}

impl ScheduleGenerator for HierarchicalAllReduce {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let mut runs = self.runs(0);
        for LaneLoop { at, lane, round } in rounds(&self.header, &self.cut, rank) {
            let at = Round { at, runs, lane, round };
            self.write_inside(at, program);
            self.write_between(at, program);
            self.write_share(at, program);
            runs = self.runs(runs.scatter + runs.count);
        }
    }

    fn symmetry(&self) -> Symmetry {
        self.levels.symmetry()
    }
}
