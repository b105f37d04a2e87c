//! How schedules come to be: a [`Generate`] writes the program of one rank at a time, [`Schedule::build`] collects them.
//!
//! One rank at a time, because a folded simulation asks only for the ranks that represent a class.

use super::{
    Blocks, BufferUse, Call, Channel, ChunkRef, Collective, Dependency, Layout, Matrix, OpId, Operation, Protocol,
    Rank, Run, RunId, Symmetry, TeamId,
};
use fabricast_topologies::Bytes;
use serde::{Deserialize, Serialize};

/// What holds for the whole schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Who wrote it: the algorithm's name, or the name in the file it was read from.
    pub name: String,
    /// What it computes.
    pub call: Call,
    /// How its transfers move bytes.
    pub protocol: Protocol,
    /// Number of channels.
    pub channels: u16,
    /// The thread blocks that run them.
    #[serde(default, skip_serializing_if = "Blocks::is_default")]
    pub blocks: Blocks,
    /// How the call's bytes are cut into chunks.
    pub layout: Layout,
    /// Scratch slots of every rank.
    pub scratch_chunks: u32,
    /// Teams for multicast: the ranks of each, in rising order. Mostly none.
    pub teams: Vec<Vec<Rank>>,
}

impl Header {
    /// Who sends how much to whom, of an all_to_allv whose layout has a segment for each block.
    #[must_use]
    pub fn matrix(&self) -> Option<Matrix> {
        let has_blocks = self.call.collective == Collective::AllToAllV;
        has_blocks.then(|| Matrix::of_layout(self.call.ranks, &self.layout)).flatten()
    }

    /// Peers that a rank exchanges data of its own with at once: as many as it has, and blocks for.
    #[must_use]
    pub fn peers_at_once(&self) -> u16 {
        self.call.collective.peers(self.call.ranks).min(self.channels.into()) as u16
    }

    /// What bandwidths count: nccl-tests' size, the larger buffer of a rank.
    #[must_use]
    pub fn size(&self) -> Bytes {
        self.matrix().map_or(self.call.bytes, |matrix| matrix.size())
    }
}

/// The runs of one rank, with what they wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    pub(crate) runs: Vec<Run>,
    /// `dependencies[dependency_starts[i]..dependency_starts[i + 1]]` belong to run i.
    pub(crate) dependency_starts: Vec<u32>,
    pub(crate) dependencies: Vec<Dependency>,
    /// Runs that were dropped: those from [`Self::MOST_RUNS`] on.
    dropped: u32,
}

impl Program {
    /// Runs of one rank that are retained: half a gigabyte of them.
    pub const MOST_RUNS: usize = 1 << 22;

    /// Adds a run and what its operations wait for; returns its number within the rank. Runs of length 0 are kept, so
    /// that numbers do not depend on sizes. From [`Self::MOST_RUNS`] on runs are counted and dropped: the program is then
    /// [cut](Self::is_cut), and nothing runs it.
    pub fn push(&mut self, run: Run, dependencies: &[Dependency]) -> u32 {
        if self.runs.len() >= Self::MOST_RUNS {
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

    /// The runs.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// True if the rank has more runs than are retained.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.dropped > 0
    }

    /// What the operations of run `run` wait for.
    #[must_use]
    pub fn dependencies(&self, run: usize) -> &[Dependency] {
        &self.dependencies[self.dependency_starts[run] as usize..self.dependency_starts[run + 1] as usize]
    }

    /// Empties it, keeping its memory.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.dependency_starts.clear();
        self.dependencies.clear();
        self.dropped = 0;
    }
}

/// Anything that can say what each rank does.
pub trait Generate {
    /// What holds for all ranks.
    fn header(&self) -> &Header;

    /// Writes the program of one rank into an empty `program`. Depends on nothing but the generator and the rank.
    fn program(&self, rank: Rank, program: &mut Program);

    /// The program of one rank, to be read: where it stands, or written into `scratch`.
    fn read<'a>(&'a self, rank: Rank, scratch: &'a mut Program) -> &'a Program {
        scratch.clear();
        self.program(rank, scratch);
        scratch
    }

    /// Which ranks may be interchanged; a claim.
    fn symmetry(&self) -> Symmetry {
        Symmetry::None
    }
}

/// Programs that are there, by rank.
#[derive(Clone, Copy)]
pub(crate) struct Written<'a> {
    pub header: &'a Header,
    pub programs: &'a [Program],
}

impl Generate for Written<'_> {
    fn header(&self) -> &Header {
        self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        if let Some(own) = self.programs.get(rank.0 as usize) {
            program.clone_from(own);
        }
    }

    fn read<'a>(&'a self, rank: Rank, scratch: &'a mut Program) -> &'a Program {
        scratch.clear();
        self.programs.get(rank.0 as usize).unwrap_or(scratch)
    }
}

/// Why programs do not make a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// More operations than ids.
    #[error("the schedule has more than {} operations", u32::MAX)]
    TooManyOperations,
    /// More runs of a rank, or in all, than are retained.
    #[error(
        "the schedule has more runs than can be held (at most {} of a rank, {} in all); larger chunks or fewer channels make fewer",
        Program::MOST_RUNS,
        Schedule::MOST_RUNS
    )]
    TooManyRuns,
    /// An operation names a rank that does not exist.
    #[error("operation {index} of run {run} of rank {} names rank {} of {ranks}", .rank.0, .peer.0)]
    NoSuchRank {
        /// The rank whose program it is.
        rank: Rank,
        /// The run within the rank.
        run: u32,
        /// The operation within the run.
        index: u32,
        /// The rank named.
        peer: Rank,
        /// How many there are.
        ranks: u32,
    },
    /// A rooted call's root does not exist.
    #[error("the root is rank {} of {ranks}", .root.0)]
    NoSuchRoot {
        /// The root.
        root: Rank,
        /// How many ranks there are.
        ranks: u32,
    },
    /// A run is on a channel that does not exist.
    #[error("run {run} of rank {} is on channel {} of {channels}", .rank.0, .channel.0)]
    NoSuchChannel {
        /// The rank whose program it is.
        rank: Rank,
        /// The run within the rank.
        run: u32,
        /// The channel named.
        channel: Channel,
        /// How many there are.
        channels: u16,
    },
    /// A dependency names a run that does not exist.
    #[error("run {run} of rank {} waits for run {} of rank {}, which does not exist", .rank.0, .on.run, .on.rank.0)]
    NoSuchRun {
        /// The rank whose program it is.
        rank: Rank,
        /// The run within the rank.
        run: u32,
        /// What it waits for.
        on: Dependency,
    },
    /// A team is empty, out of order, or has ranks that do not exist.
    #[error("team {} is not a list of different ranks below {ranks} in rising order", .team.0)]
    BadTeam {
        /// The team.
        team: TeamId,
        /// How many ranks there are.
        ranks: u32,
    },
    /// A multicast operation names a team that does not exist, or that its rank is not in.
    #[error("operation {index} of run {run} of rank {} names team {}, which does not exist or does not hold the rank", .rank.0, .team.0)]
    NoSuchTeam {
        /// The rank whose program it is.
        rank: Rank,
        /// The run within the rank.
        run: u32,
        /// The operation within the run.
        index: u32,
        /// The team named.
        team: TeamId,
    },
    /// A chunk lies outside its buffer.
    #[error("operation {index} of run {run} of rank {} uses {} chunk {} of {chunks}", .rank.0, .chunk.buffer, .chunk.index)]
    NoSuchChunk {
        /// The rank whose program it is.
        rank: Rank,
        /// The run within the rank.
        run: u32,
        /// The operation within the run.
        index: u32,
        /// The last chunk touched.
        chunk: ChunkRef,
        /// How many the buffer has.
        chunks: u32,
    },
}

impl ScheduleError {
    /// The run to blame, by rank and number within the rank, where there is one.
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

/// A whole schedule: the programs of all ranks in flat arrays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub(crate) header: Header,
    /// `runs[rank_starts[r]..rank_starts[r + 1]]` belong to rank r.
    pub(crate) rank_starts: Vec<u32>,
    pub(crate) runs: Vec<Run>,
    /// Id of the first operation of each run, and the number of operations at the end.
    pub(crate) first_ops: Vec<u32>,
    pub(crate) dependency_starts: Vec<u32>,
    pub(crate) dependencies: Vec<Dependency>,
}

impl Schedule {
    /// Runs of all ranks that are held, or lowered for a simulation: some gigabytes of them.
    pub const MOST_RUNS: usize = 1 << 25;

    /// Collects the programs of all ranks, and checks that every rank, run and chunk they name exists.
    ///
    /// # Errors
    /// [`ScheduleError`], naming the first operation that is wrong.
    pub fn build(generator: &dyn Generate) -> Result<Self, ScheduleError> {
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
            if program.is_cut() || schedule.runs.len() + program.runs.len() > Self::MOST_RUNS {
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

    /// What holds for all ranks.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The same schedule for a call of another size: every segment of the layout grows in proportion, rounded down.
    #[must_use]
    pub fn scaled(mut self, bytes: Option<Bytes>) -> Self {
        if let Some(bytes) = bytes {
            self.header.layout = self.header.layout.scaled(self.header.call.bytes, bytes);
            self.header.call.bytes = bytes;
        }
        self
    }

    /// Number of operations.
    #[must_use]
    pub fn operation_count(&self) -> u32 {
        self.first_ops.last().copied().unwrap_or(0)
    }

    /// Number of runs.
    #[must_use]
    pub fn run_count(&self) -> u32 {
        self.runs.len() as u32
    }

    /// The runs of a rank, as ids.
    pub fn runs_of(&self, rank: Rank) -> impl ExactSizeIterator<Item = RunId> + use<> {
        (self.rank_starts[rank.0 as usize]..self.rank_starts[rank.0 as usize + 1]).map(RunId)
    }

    /// A run.
    #[must_use]
    pub fn run(&self, id: RunId) -> &Run {
        &self.runs[id.0 as usize]
    }

    /// The rank that executes a run.
    #[must_use]
    pub fn rank_of(&self, run: RunId) -> Rank {
        Rank(self.rank_starts.partition_point(|&start| start <= run.0) as u32 - 1)
    }

    /// Id of the run that a dependency names.
    #[must_use]
    pub fn run_id(&self, rank: Rank, run: u32) -> RunId {
        RunId(self.rank_starts[rank.0 as usize] + run)
    }

    /// What the operations of a run wait for.
    #[must_use]
    pub fn dependencies(&self, run: RunId) -> &[Dependency] {
        let i = run.0 as usize;
        &self.dependencies[self.dependency_starts[i] as usize..self.dependency_starts[i + 1] as usize]
    }

    /// Id of operation `index` of a run.
    #[must_use]
    pub fn op_id(&self, run: RunId, index: u32) -> OpId {
        OpId(self.first_ops[run.0 as usize] + index)
    }

    /// The run and place of an operation (which must exist).
    #[must_use]
    pub fn locate(&self, op: OpId) -> (RunId, u32) {
        let run = self.first_ops.partition_point(|&first| first <= op.0) - 1;
        (RunId(run as u32), op.0 - self.first_ops[run])
    }

    /// An operation (which must exist).
    #[must_use]
    pub fn operation(&self, op: OpId) -> Operation {
        let (run, index) = self.locate(op);
        self.operation_at(self.rank_of(run), run, index)
    }

    /// All operations, in id order.
    pub fn operations(&self) -> impl Iterator<Item = Operation> + '_ {
        (0..self.header.call.ranks).flat_map(move |rank| {
            self.runs_of(Rank(rank))
                .flat_map(move |run| (0..self.run(run).len).map(move |index| self.operation_at(Rank(rank), run, index)))
        })
    }

    /// The operations that an operation waits for.
    pub fn waits_for(&self, run: RunId, index: u32) -> impl Iterator<Item = OpId> + '_ {
        self.dependencies(run).iter().filter_map(move |dependency| {
            let on = self.run_id(dependency.rank, dependency.run);
            dependency.target(index, self.run(on).len).map(|target| self.op_id(on, target))
        })
    }

    /// The ranks of a team (which must exist).
    #[must_use]
    pub fn team(&self, team: TeamId) -> &[Rank] {
        &self.header.teams[team.0 as usize]
    }

    /// Number of chunks that a buffer reference may use.
    #[must_use]
    pub fn buffer_chunks(&self, buffer: super::Buffer) -> u32 {
        match buffer {
            super::Buffer::Scratch => self.header.scratch_chunks,
            super::Buffer::Input | super::Buffer::Output => self.header.layout.chunks(),
        }
    }

    /// Whether input and output are the same memory.
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

impl Generate for Schedule {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        for run in self.runs_of(rank) {
            program.push(*self.run(run), self.dependencies(run));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Buffer, Channel, OpKind, Walk};
    use super::*;

    /// Programs grow no further, and say so.
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
        let numbers: Vec<u32> = (0..Program::MOST_RUNS + 3).map(|_| program.push(run, &[])).collect();
        assert!(numbers.iter().copied().eq(0..numbers.len() as u32));
        assert!(program.is_cut() && program.runs().len() == Program::MOST_RUNS);
        program.clear();
        program.push(run, &[]);
        assert!(!program.is_cut());
    }
}
