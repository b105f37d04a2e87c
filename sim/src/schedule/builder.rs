//! Construction of schedules: a [`ScheduleGenerator`] writes the program of one rank at a time, [`Schedule::build`] collects
//! them.
//!
//! Programs are generated per rank because a folded simulation needs only the ranks that represent a class.

use super::{
    Blocks, BufferUse, Call, Channel, ChunkRef, Collective, Dependency, Layout, OpId, Operation, Protocol, Rank, Run,
    RunId, Symmetry, TeamId, TrafficMatrix,
};
use crate::certify::Certificate;
use crate::lower::RankClasses;
use fabricast_topologies::Bytes;
use serde::{Deserialize, Serialize};

/// Properties of the whole schedule, common to all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Name of the algorithm, or the name in the file that the schedule was read from.
    pub name: String,
    /// The collective call that the schedule computes.
    pub call: Call,
    /// Protocol of the schedule's transfers.
    pub protocol: Protocol,
    /// Number of channels that the schedule uses.
    pub channels: u16,
    /// Thread blocks that execute the channels.
    #[serde(default, skip_serializing_if = "Blocks::is_default")]
    pub blocks: Blocks,
    /// Division of the call's bytes into chunks.
    pub layout: Layout,
    /// Number of scratch slots of every rank.
    pub scratch_chunks: u32,
    /// Multicast teams: the ranks of each, in ascending order. Usually empty.
    pub teams: Vec<Vec<Rank>>,
    /// Proof of how near a synthesised schedule is to the optimum; `None` for other schedules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
}

impl Header {
    /// Returns the traffic matrix of an all_to_allv whose layout has one segment per block; `None` for other schedules.
    #[must_use]
    pub fn matrix(&self) -> Option<TrafficMatrix> {
        let has_blocks = self.call.collective == Collective::AllToAllV;
        has_blocks.then(|| TrafficMatrix::from_layout(self.call.ranks, &self.layout)).flatten()
    }

    /// Returns the number of peers with which a rank exchanges its own data concurrently: the number of its peers, at
    /// most the number of channels.
    #[must_use]
    pub fn concurrent_peers(&self) -> u16 {
        self.call.collective.peers(self.call.ranks).min(self.channels.into()) as u16
    }

    /// Returns the number of thread blocks of a rank: the channels of the library, half of the schedule's where a block
    /// both reduces and copies.
    #[must_use]
    pub fn blocks_per_rank(&self) -> u16 {
        self.channels / self.blocks.split.channels()
    }

    /// Returns the size that bandwidths refer to: the larger buffer of a rank, as in nccl-tests.
    #[must_use]
    pub fn size(&self) -> Bytes {
        self.matrix().map_or(self.call.bytes, |matrix| matrix.size())
    }
}

/// The runs of one rank and their dependencies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    pub(crate) runs: Vec<Run>,
    /// `dependencies[dependency_starts[i]..dependency_starts[i + 1]]` belong to run i.
    pub(crate) dependency_starts: Vec<u32>,
    pub(crate) dependencies: Vec<Dependency>,
    /// Number of runs dropped because the program had reached [`Self::MAX_RUNS`].
    dropped: u32,
}

impl Program {
    /// Maximum number of runs stored per rank (about half a gigabyte).
    pub const MAX_RUNS: usize = 1 << 22;

    /// Appends a run and its dependencies; returns its index within the rank. Runs of length 0 are stored, so that
    /// indices do not depend on sizes. Runs beyond [`Self::MAX_RUNS`] are counted and dropped; the program is then
    /// [truncated](Self::is_truncated) and cannot be executed.
    pub fn push(&mut self, run: Run, dependencies: &[Dependency]) -> u32 {
        if self.runs.len() >= Self::MAX_RUNS {
            self.dropped = self.dropped.saturating_add(1);
            return (self.runs.len() as u32 - 1).saturating_add(self.dropped);
        }
        if self.dependency_starts.is_empty() {
            self.dependency_starts.push(0);
        }
        self.runs.push(run);
        self.dependencies.extend_from_slice(dependencies);
        self.dependency_starts.push(self.dependencies.len() as u32);
        self.runs.len() as u32 - 1
    }

    /// Returns the runs, in order of their index within the rank.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns true if runs were dropped because the rank has more than [`Self::MAX_RUNS`].
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.dropped > 0
    }

    /// Returns the dependencies of the operations of run number `run`.
    #[must_use]
    pub fn dependencies(&self, run: usize) -> &[Dependency] {
        &self.dependencies[self.dependency_starts[run] as usize..self.dependency_starts[run + 1] as usize]
    }

    /// Removes all runs and retains the allocated memory.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.dependency_starts.clear();
        self.dependencies.clear();
        self.dropped = 0;
    }
}

/// Generator of a schedule, one rank at a time.
pub trait ScheduleGenerator {
    /// Returns the header, which is common to all ranks.
    fn header(&self) -> &Header;

    /// Writes the program of one rank into an empty `program`. The result depends only on the generator and the rank.
    fn program(&self, rank: Rank, program: &mut Program);

    /// Returns the program of one rank: a reference to the stored program, or one generated into `scratch`.
    fn read<'a>(&'a self, rank: Rank, scratch: &'a mut Program) -> &'a Program {
        scratch.clear();
        self.program(rank, scratch);
        scratch
    }

    /// Returns the declared symmetry of the ranks, which is not verified.
    fn symmetry(&self) -> Symmetry {
        Symmetry::None
    }
}

/// Generator that returns stored programs, indexed by rank.
#[derive(Clone, Copy)]
pub(crate) struct StoredPrograms<'a> {
    pub header: &'a Header,
    pub programs: &'a [Program],
    /// Classes of ranks if only their representatives' programs are stored; `None` if those of all ranks are.
    pub classes: Option<&'a RankClasses>,
}

impl StoredPrograms<'_> {
    fn stored(&self, rank: Rank) -> Option<&Program> {
        let index = self.classes.map_or(Some(rank.0), |classes| classes.representative_index(rank))?;
        self.programs.get(index as usize)
    }
}

impl ScheduleGenerator for StoredPrograms<'_> {
    fn header(&self) -> &Header {
        self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        if let Some(stored) = self.stored(rank) {
            program.clone_from(stored);
        }
    }

    fn read<'a>(&'a self, rank: Rank, scratch: &'a mut Program) -> &'a Program {
        scratch.clear();
        self.stored(rank).unwrap_or(scratch)
    }
}

/// Reasons why programs do not form a valid schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The schedule has more operations than an [`OpId`] can number.
    #[error("the schedule has more than {} operations", u32::MAX)]
    TooManyOperations,
    /// The schedule has more runs, in one rank or in total, than can be stored.
    #[error(
        "the schedule has too many runs (at most {} of a rank, {} in all); larger chunks or fewer channels reduce the number",
        Program::MAX_RUNS,
        Schedule::MAX_RUNS
    )]
    TooManyRuns,
    /// An operation refers to a rank that does not exist.
    #[error("operation {index} of run {run} of rank {} names rank {} of {ranks}", .rank.0, .peer.0)]
    NoSuchRank {
        /// Rank whose program is invalid.
        rank: Rank,
        /// Index of the run within the rank.
        run: u32,
        /// Index of the operation within the run.
        index: u32,
        /// Rank that does not exist.
        peer: Rank,
        /// Number of ranks of the call.
        ranks: u32,
    },
    /// The root of a rooted collective does not exist.
    #[error("the root is rank {} of {ranks}", .root.0)]
    NoSuchRoot {
        /// Root of the call.
        root: Rank,
        /// Number of ranks of the call.
        ranks: u32,
    },
    /// A run is on a channel that does not exist.
    #[error("run {run} of rank {} is on channel {} of {channels}", .rank.0, .channel.0)]
    NoSuchChannel {
        /// Rank whose program is invalid.
        rank: Rank,
        /// Index of the run within the rank.
        run: u32,
        /// Channel that does not exist.
        channel: Channel,
        /// Number of channels that the header declares.
        channels: u16,
    },
    /// A dependency refers to a run that does not exist.
    #[error("run {run} of rank {} waits for run {} of rank {}, which does not exist", .rank.0, .on.run, .on.rank.0)]
    NoSuchRun {
        /// Rank whose program is invalid.
        rank: Rank,
        /// Index of the run within the rank.
        run: u32,
        /// Dependency that refers to the run that does not exist.
        on: Dependency,
    },
    /// A team is empty, unsorted, or has ranks that do not exist.
    #[error("team {} is not a list of different ranks below {ranks} in rising order", .team.0)]
    BadTeam {
        /// Id of the team.
        team: TeamId,
        /// Number of ranks of the call.
        ranks: u32,
    },
    /// A multicast operation refers to a team that does not exist, or that does not contain its rank.
    #[error("operation {index} of run {run} of rank {} names team {}, which does not exist or does not hold the rank", .rank.0, .team.0)]
    NoSuchTeam {
        /// Rank whose program is invalid.
        rank: Rank,
        /// Index of the run within the rank.
        run: u32,
        /// Index of the operation within the run.
        index: u32,
        /// Team that does not exist or does not contain the rank.
        team: TeamId,
    },
    /// A chunk is outside its buffer.
    #[error("operation {index} of run {run} of rank {} uses {} chunk {} of {chunks}", .rank.0, .chunk.buffer, .chunk.index)]
    NoSuchChunk {
        /// Rank whose program is invalid.
        rank: Rank,
        /// Index of the run within the rank.
        run: u32,
        /// Index of the operation within the run.
        index: u32,
        /// Last chunk that the operation accesses.
        chunk: ChunkRef,
        /// Number of chunks in the buffer.
        chunks: u32,
    },
}

impl ScheduleError {
    /// Returns the invalid run as rank and index within the rank; `None` if the error does not concern a single run.
    #[must_use]
    pub fn run(&self) -> Option<(Rank, u32)> {
        match *self {
            Self::NoSuchRank { rank, run, .. }
            | Self::NoSuchRun { rank, run, .. }
            | Self::NoSuchChannel { rank, run, .. }
            | Self::NoSuchTeam { rank, run, .. }
            | Self::NoSuchChunk { rank, run, .. } => Some((rank, run)),
            Self::TooManyOperations | Self::TooManyRuns | Self::NoSuchRoot { .. } | Self::BadTeam { .. } => None,
        }
    }
}

/// Complete schedule: the programs of all ranks in flat arrays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub(crate) header: Header,
    /// `runs[rank_starts[r]..rank_starts[r + 1]]` belong to rank r.
    pub(crate) rank_starts: Vec<u32>,
    pub(crate) runs: Vec<Run>,
    /// Id of the first operation of each run, then the total number of operations.
    pub(crate) first_ops: Vec<u32>,
    pub(crate) dependency_starts: Vec<u32>,
    pub(crate) dependencies: Vec<Dependency>,
}

impl Schedule {
    /// Maximum number of runs of all ranks that a schedule or a simulation stores (several gigabytes).
    pub const MAX_RUNS: usize = 1 << 25;

    /// Collects the programs of all ranks and checks that every rank, run, channel, team and chunk they refer to
    /// exists.
    ///
    /// # Errors
    /// [`ScheduleError`] for the first invalid operation.
    pub fn build(generator: &dyn ScheduleGenerator) -> Result<Self, ScheduleError> {
        let header = generator.header().clone();
        let mut schedule = Self {
            rank_starts: vec![0],
            runs: Vec::new(),
            first_ops: vec![0],
            dependency_starts: vec![0],
            dependencies: Vec::new(),
            header,
        };
        let mut program = Program::default();
        let mut operations = 0u32;
        for rank in 0..schedule.header.call.ranks {
            program.clear();
            generator.program(Rank(rank), &mut program);
            if program.is_truncated() || schedule.runs.len() + program.runs.len() > Self::MAX_RUNS {
                return Err(ScheduleError::TooManyRuns);
            }
            for (i, run) in program.runs.iter().enumerate() {
                operations = operations.checked_add(run.len).ok_or(ScheduleError::TooManyOperations)?;
                schedule.runs.push(*run);
                schedule.first_ops.push(operations);
                schedule.dependencies.extend_from_slice(program.dependencies(i));
                schedule.dependency_starts.push(schedule.dependencies.len() as u32);
            }
            schedule.rank_starts.push(schedule.runs.len() as u32);
        }
        schedule.check()?;
        Ok(schedule)
    }

    /// Returns the header, which is common to all ranks.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the schedule for a call of `bytes`, or unchanged for `None`. Segments of the layout scale in proportion,
    /// rounded down.
    #[must_use]
    pub fn with_bytes(mut self, bytes: Option<Bytes>) -> Self {
        if let Some(bytes) = bytes {
            // The times of a certificate are those of the bytes that it was written for.
            self.header.certificate = self.header.certificate.filter(|_| bytes == self.header.call.bytes);
            self.header.layout = self.header.layout.scaled(self.header.call.bytes, bytes);
            self.header.call.bytes = bytes;
        }
        self
    }

    /// Returns the number of operations of all ranks.
    #[must_use]
    pub fn operation_count(&self) -> u32 {
        self.first_ops.last().copied().unwrap_or(0)
    }

    /// Returns the number of runs of all ranks.
    #[must_use]
    pub fn run_count(&self) -> u32 {
        self.runs.len() as u32
    }

    /// Returns the ids of the runs of a rank.
    pub fn rank_runs(&self, rank: Rank) -> impl ExactSizeIterator<Item = RunId> + use<> {
        (self.rank_starts[rank.0 as usize]..self.rank_starts[rank.0 as usize + 1]).map(RunId)
    }

    /// Returns the run with this id, which must exist.
    #[must_use]
    pub fn run(&self, id: RunId) -> &Run {
        &self.runs[id.0 as usize]
    }

    /// Returns the rank that executes a run.
    #[must_use]
    pub fn run_rank(&self, run: RunId) -> Rank {
        Rank(self.rank_starts.partition_point(|&start| start <= run.0) as u32 - 1)
    }

    /// Returns the id of run number `run` of a rank, as numbered in a [`Dependency`].
    #[must_use]
    pub fn run_id(&self, rank: Rank, run: u32) -> RunId {
        RunId(self.rank_starts[rank.0 as usize] + run)
    }

    /// Returns the dependencies of the operations of a run.
    #[must_use]
    pub fn dependencies(&self, run: RunId) -> &[Dependency] {
        let i = run.0 as usize;
        &self.dependencies[self.dependency_starts[i] as usize..self.dependency_starts[i + 1] as usize]
    }

    /// Returns the id of operation `index` of a run.
    #[must_use]
    pub fn op_id(&self, run: RunId, index: u32) -> OpId {
        OpId(self.first_ops[run.0 as usize] + index)
    }

    /// Returns the run of an operation and its index in the run. The operation must exist.
    #[must_use]
    pub fn locate(&self, op: OpId) -> (RunId, u32) {
        let run = self.first_ops.partition_point(|&first| first <= op.0) - 1;
        (RunId(run as u32), op.0 - self.first_ops[run])
    }

    /// Returns the operation with this id, which must exist.
    #[must_use]
    pub fn operation(&self, op: OpId) -> Operation {
        let (run, index) = self.locate(op);
        self.operation_at(self.run_rank(run), run, index)
    }

    /// Returns all operations, in order of id.
    pub fn operations(&self) -> impl Iterator<Item = Operation> + '_ {
        (0..self.header.call.ranks).flat_map(move |rank| {
            self.rank_runs(Rank(rank))
                .flat_map(move |run| (0..self.run(run).len).map(move |index| self.operation_at(Rank(rank), run, index)))
        })
    }

    /// Returns the ids of the operations that operation `index` of a run waits for.
    pub fn awaited_operations(&self, run: RunId, index: u32) -> impl Iterator<Item = OpId> + '_ {
        self.dependencies(run).iter().filter_map(move |dependency| {
            let on = self.run_id(dependency.rank, dependency.run);
            dependency.target(index, self.run(on).len).map(|target| self.op_id(on, target))
        })
    }

    /// Returns the ranks of a team, which must exist, in ascending order.
    #[must_use]
    pub fn team(&self, team: TeamId) -> &[Rank] {
        &self.header.teams[team.0 as usize]
    }

    /// Returns the number of chunks in a buffer.
    #[must_use]
    pub fn buffer_chunks(&self, buffer: super::Buffer) -> u32 {
        match buffer {
            super::Buffer::Scratch => self.header.scratch_chunks,
            super::Buffer::Input | super::Buffer::Output => self.header.layout.chunks(),
        }
    }

    /// Returns true if input and output are the same memory.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.header.call.buffers == BufferUse::InPlace
    }

    pub(crate) fn operation_at(&self, rank: Rank, run_id: RunId, index: u32) -> Operation {
        let run = self.run(run_id);
        let team = run.kind.is_multicast().then(|| TeamId(run.peer.at(index)));
        Operation {
            id: self.op_id(run_id, index),
            run: run_id,
            index,
            rank,
            peer: if team.is_some() { rank } else { Rank(run.peer.at(index)) },
            team,
            channel: run.channel,
            kind: run.kind,
            src: ChunkRef { buffer: run.src_buffer, index: run.src.at(index) },
            dst: ChunkRef { buffer: run.dst_buffer, index: run.dst.at(index) },
            span: run.span,
        }
    }
}

impl ScheduleGenerator for Schedule {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        for run in self.rank_runs(rank) {
            program.push(*self.run(run), self.dependencies(run));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Buffer, Channel, OpKind, Walk};
    use super::*;

    /// Programs stop growing at [`Program::MAX_RUNS`] and report that they are truncated.
    #[test]
    fn endless_programs_are_cut() {
        let run = Run {
            len: 1,
            kind: OpKind::Copy,
            channel: Channel(0),
            peer: Walk::fixed(0),
            src_buffer: Buffer::Input,
            src: Walk::fixed(0),
            dst_buffer: Buffer::Output,
            dst: Walk::fixed(0),
            span: 1,
        };
        let mut program = Program::default();
        let numbers: Vec<u32> = (0..Program::MAX_RUNS + 3).map(|_| program.push(run, &[])).collect();
        assert!(numbers.iter().copied().eq(0..numbers.len() as u32));
        assert!(program.is_truncated() && program.runs().len() == Program::MAX_RUNS);
        program.clear();
        program.push(run, &[]);
        assert!(!program.is_truncated());
    }
}
