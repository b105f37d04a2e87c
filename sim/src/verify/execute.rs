//! Symbolic execution. It processes every operation in order, and checks every chunk that the operation accesses; at
//! the end it checks the final contents.

use super::contents::{Contents, RequiredContents};
use super::fault::{Fault, FaultKind, RankChunk, Reporter, chunk_text};
use super::memory::{ChunkLocation, Memory, NONE, ReduceError, Value, reduce};
use super::precedence::{Precedence, Reachability};
use super::sets::{Set, Sets};
use crate::schedule::order::{Graph, TotalOrder};
use crate::schedule::{Buffer, ChunkRef, ChunkSize, Collective, OpId, OpKind, Rank, Run, Schedule, TeamId, Walk};

/// Maximum number of chunks that are stored, summed over all ranks.
const MAX_CELLS: u64 = 1 << 26;

/// Two accesses to a cell, at least one of which is a write, as positions in the order. They race unless the earlier
/// one precedes the later one by dependencies.
#[derive(Clone, Copy, Debug)]
struct CellConflict {
    earlier: u32,
    later: u32,
    /// Index of the cell.
    cell: u32,
    kind: ConflictKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConflictKind {
    /// The later access reads data that the earlier one wrote.
    ReadAfterWrite,
    /// The later access overwrites data that the earlier one read.
    WriteAfterRead,
    /// Both accesses are writes.
    WriteAfterWrite,
}

/// Executes a schedule symbolically.
///
/// # Errors
/// The first [`Fault`] found.
pub(super) fn execute(
    schedule: &Schedule,
    graph: &Graph<'_>,
    order: &TotalOrder,
    reporter: &Reporter<'_>,
) -> Result<(), Fault> {
    let header = schedule.header();
    let cells = Memory::cell_count(schedule);
    if cells > MAX_CELLS || header.call.ranks > 1 << 30 {
        return Err(reporter.too_large(cells, "chunks over all ranks", MAX_CELLS));
    }
    let Some(contents) = Contents::new(&header.call, &header.layout) else {
        let (chunks, ranks) = (header.layout.chunks(), header.call.ranks);
        let end = RankChunk::new(0, ChunkRef { buffer: Buffer::Output, index: chunks });
        let (found, expected) = match header.call.collective {
            Collective::AllToAllV => {
                let segments = header.layout.segments().len();
                (format!("{segments} segments"), format!("one for each of {ranks} × {ranks} pairs of ranks"))
            }
            _ => (format!("{chunks} chunks"), format!("a multiple of {ranks}")),
        };
        return Err(reporter.chunk_fault(FaultKind::UnevenBlocks, end, found, expected));
    };
    let mut execution = Execution {
        schedule,
        graph,
        order,
        reporter,
        contents,
        memory: Memory::new(schedule, contents),
        sets: Sets::new(header.call.ranks),
        reachability: Reachability::new(graph, order),
        open: Vec::new(),
        proven: (NONE, NONE),
        current: 0,
    };
    // A race whose check was deferred precedes the fault that stopped the execution.
    let outcome = execution.run();
    execution.resolve_open()?;
    outcome?;
    execution.check_result()
}

struct Execution<'a> {
    schedule: &'a Schedule,
    graph: &'a Graph<'a>,
    order: &'a TotalOrder,
    reporter: &'a Reporter<'a>,
    contents: Contents<'a>,
    memory: Memory<'a>,
    sets: Sets,
    reachability: Reachability<'a>,
    /// Conflicts whose precedence query was deferred to the end.
    open: Vec<CellConflict>,
    /// Last pair of operations that was found to be ordered. Consecutive chunks of a span repeat the query.
    proven: (u32, u32),
    /// Position in the order of the operation that is being executed.
    current: u32,
}

impl Execution<'_> {
    fn run(&mut self) -> Result<(), Fault> {
        let schedule = self.schedule;
        let order = self.order;
        let run_ranks: Vec<u32> = (0..schedule.header().call.ranks)
            .flat_map(|rank| std::iter::repeat_n(rank, schedule.rank_runs(Rank(rank)).len()))
            .collect();
        for (position, &op) in order.operations.iter().enumerate() {
            let (run_id, index) = self.graph.locate(op);
            let run = schedule.run(run_id);
            if !run.kind.moves_data() {
                continue;
            }
            self.current = position as u32;
            self.reachability.enter(self.current);
            let rank = run_ranks[run_id.0 as usize];
            let peer = run.peer.at(index);
            if run.kind.is_multicast() {
                self.multicast(run, index, rank)?;
                continue;
            }
            if !run.kind.is_transfer() && peer != rank {
                let chunk = RankChunk::new(rank, ChunkRef { buffer: run.dst_buffer, index: run.dst.at(index) });
                let (found, expected) = (format!("rank {peer}"), format!("rank {rank}"));
                return Err(self.reporter.fault(FaultKind::LocalOperationWithPeer, OpId(op), chunk, found, expected));
            }
            let source = if run.kind.reads_peer() { peer } else { rank };
            let target = if run.kind.writes_peer() { peer } else { rank };
            let at = |walk: Walk, buffer, i| ChunkRef { buffer, index: walk.at(index) + i };
            for i in 0..run.span {
                let src = at(run.src, run.src_buffer, i);
                let dst = at(run.dst, run.dst_buffer, i);
                self.step(run.kind, RankChunk::new(source, src), RankChunk::new(target, dst))?;
            }
        }
        Ok(())
    }

    /// Executes a multicast operation: the data of the executing rank is replicated to all ranks of the team, the data
    /// of all ranks is reduced into the executing rank, or the data of all ranks is reduced into all ranks.
    ///
    /// # Errors
    /// The first [`Fault`] found.
    fn multicast(&mut self, run: &Run, index: u32, rank: u32) -> Result<(), Fault> {
        let members = self.schedule.team(TeamId(run.peer.at(index)));
        let receivers = [Rank(rank)];
        let receivers = if run.kind == OpKind::SwitchAllReduce { members } else { &receivers };
        for i in 0..run.span {
            let src = ChunkRef { buffer: run.src_buffer, index: run.src.at(index) + i };
            let dst = ChunkRef { buffer: run.dst_buffer, index: run.dst.at(index) + i };
            if run.kind == OpKind::MulticastPut {
                let moved = self.read(rank, src)?;
                for member in members {
                    // Data that is already at its destination does not change.
                    let is_target_cell = matches!(self.memory.locate(rank, src), ChunkLocation::Cell(cell) if self.memory.locate(member.0, dst) == ChunkLocation::Cell(cell));
                    if !is_target_cell {
                        self.put(moved, RankChunk { rank: *member, chunk: dst })?;
                    }
                }
                continue;
            }
            for receiver in receivers {
                self.writable(RankChunk { rank: *receiver, chunk: dst })?;
            }
            // A sum may replace the data from which it is computed.
            let replaced = |memory: &Memory<'_>, member: &Rank| match memory.locate(member.0, src) {
                ChunkLocation::Cell(cell) if receivers.contains(member) => {
                    Some(cell).filter(|&cell| memory.locate(member.0, dst) == ChunkLocation::Cell(cell))
                }
                _ => None,
            };
            let mut sum = None;
            for member in members {
                let moved = match replaced(&self.memory, member) {
                    Some(cell) => self.accumulated(cell)?,
                    None => self.read(member.0, src)?,
                };
                sum = Some(match sum {
                    None => moved,
                    Some(sum) => self.reduced(sum, moved, RankChunk { rank: *member, chunk: src })?,
                });
            }
            for receiver in receivers {
                match (sum, replaced(&self.memory, receiver)) {
                    (Some(sum), Some(cell)) => {
                        self.check_write(cell)?;
                        self.memory.write(cell, sum, self.current);
                    }
                    (Some(sum), None) => self.put(sum, RankChunk { rank: *receiver, chunk: dst })?,
                    (None, _) => {}
                }
            }
        }
        Ok(())
    }

    /// Overwrites a chunk with moved data, after all checks of the write.
    ///
    /// # Errors
    /// The first [`Fault`] found.
    fn put(&mut self, moved: Value, location: RankChunk) -> Result<(), Fault> {
        let Some(cell) = self.writable(location)? else { return Ok(()) };
        self.check_fits(moved, location)?;
        self.check_write(cell)?;
        self.check_overwritten(cell)?;
        self.memory.write(cell, moved, self.current);
        Ok(())
    }

    /// Returns the cell of a chunk.
    ///
    /// # Errors
    /// [`FaultKind::ForbiddenWrite`] if the rank must not write the chunk.
    fn writable(&self, location: RankChunk) -> Result<Option<usize>, Fault> {
        let RankChunk { rank: Rank(rank), chunk } = location;
        if !self.memory.is_writable(rank, chunk) {
            let found = "a write".to_owned();
            let expected = "writes to scratch and to the rank's part of the output only".to_owned();
            return Err(self.current_fault(FaultKind::ForbiddenWrite, location, found, expected));
        }
        Ok(match self.memory.locate(rank, chunk) {
            ChunkLocation::Cell(cell) => Some(cell),
            ChunkLocation::Input => None,
        })
    }

    /// Executes an operation other than multicast on one of its chunks. A chunk that is its own source is read before
    /// it is written, as the destination of a reduction is.
    ///
    /// # Errors
    /// The first [`Fault`] found.
    fn step(&mut self, kind: OpKind, source: RankChunk, target: RankChunk) -> Result<(), Fault> {
        let source_cell = self.memory.locate(source.rank.0, source.chunk);
        let is_own_source = source_cell == self.memory.locate(target.rank.0, target.chunk);
        let moved = match source_cell {
            ChunkLocation::Cell(cell) if is_own_source => self.accumulated(cell)?,
            _ => self.read(source.rank.0, source.chunk)?,
        };
        let Some(cell) = self.writable(target)? else { return Ok(()) };
        self.check_fits(moved, target)?;
        self.check_write(cell)?;
        let value = match kind {
            OpKind::Put | OpKind::Get | OpKind::Copy => {
                if !is_own_source {
                    self.check_overwritten(cell)?;
                }
                moved
            }
            OpKind::PutReduceInput => {
                let input = ChunkRef { buffer: Buffer::Input, index: target.chunk.index };
                let current_value = if self.memory.locate(target.rank.0, input) == ChunkLocation::Cell(cell) {
                    self.accumulated(cell)?
                } else {
                    if !is_own_source {
                        self.check_overwritten(cell)?;
                    }
                    self.read(target.rank.0, input)?
                };
                self.reduced(current_value, moved, target)?
            }
            OpKind::PutReduce | OpKind::GetReduce | OpKind::Reduce => {
                let current_value = self.accumulated(cell)?;
                self.reduced(current_value, moved, target)?
            }
            OpKind::MulticastPut
            | OpKind::MulticastReduce
            | OpKind::SwitchAllReduce
            | OpKind::Signal
            | OpKind::Wait => return Ok(()),
        };
        self.memory.write(cell, value, self.current);
        Ok(())
    }

    fn read(&mut self, rank: u32, chunk: ChunkRef) -> Result<Value, Fault> {
        let value = match self.memory.locate(rank, chunk) {
            ChunkLocation::Input => self.memory.input(rank, chunk.index),
            ChunkLocation::Cell(cell) => {
                let state = self.memory.cell(cell);
                self.check(state.writer, cell, ConflictKind::ReadAfterWrite)?;
                self.memory.note_reader(cell, self.current);
                state.value
            }
        };
        self.check_written(value, RankChunk::new(rank, chunk))
    }

    /// Returns the contents of a cell into which data is about to be reduced.
    ///
    /// # Errors
    /// [`FaultKind::ReadUnwritten`] if nothing was written to the cell.
    fn accumulated(&self, cell: usize) -> Result<Value, Fault> {
        self.check_written(self.memory.cell(cell).value, self.memory.owner(cell))
    }

    fn check_written(&self, value: Value, location: RankChunk) -> Result<Value, Fault> {
        if value.ranks == Set::EMPTY {
            let (found, expected) = ("nothing".to_owned(), "a contribution".to_owned());
            return Err(self.current_fault(FaultKind::ReadUnwritten, location, found, expected));
        }
        Ok(value)
    }

    fn reduced(&mut self, present: Value, moved: Value, location: RankChunk) -> Result<Value, Fault> {
        reduce(&mut self.sets, present, moved).map_err(|clash| {
            let kind = match clash {
                ReduceError::Chunks => FaultKind::MixedChunks,
                ReduceError::Ranks => FaultKind::CountedTwice,
            };
            let (present_text, arriving) = (self.describe(present), self.describe(moved));
            let expected = match clash {
                ReduceError::Chunks => format!("contributions to chunk {}", present.chunk),
                ReduceError::Ranks => "contributions of other ranks".to_owned(),
            };
            self.current_fault(kind, location, format!("{arriving} arriving on {present_text}"), expected)
        })
    }

    /// Checks that the data is not larger than the chunk to which it is moved.
    ///
    /// # Errors
    /// [`FaultKind::DoesNotFit`].
    fn check_fits(&self, moved: Value, location: RankChunk) -> Result<(), Fault> {
        let layout = &self.schedule.header().layout;
        if layout.segments().len() < 2 {
            return Ok(());
        }
        let (data, room) = (layout.size(moved.chunk), layout.size(location.chunk.index));
        let product = |bytes: u64, parts: u32| u128::from(bytes) * u128::from(parts);
        if product(data.numerator, room.denominator) <= product(room.numerator, data.denominator) {
            return Ok(());
        }
        let describe_size = |size: ChunkSize| match size.denominator {
            1 => format!("{} bytes", size.numerator),
            parts => format!("{}/{parts} bytes", size.numerator),
        };
        Err(self.current_fault(
            FaultKind::DoesNotFit,
            location,
            describe_size(data),
            format!("at most {}", describe_size(room)),
        ))
    }

    /// Checks that the data to be overwritten has been read.
    ///
    /// # Errors
    /// [`FaultKind::Unread`].
    fn check_overwritten(&self, cell: usize) -> Result<(), Fault> {
        let state = self.memory.cell(cell);
        if state.writer == NONE || state.readers != NONE {
            return Ok(());
        }
        let location = self.memory.owner(cell);
        let found = format!("{} overwriting it", self.name(self.current));
        Err(self.reporter.fault(
            FaultKind::Unread,
            self.op(state.writer),
            location,
            found,
            "a read before that".to_owned(),
        ))
    }

    /// Checks that a write follows the previous write of the cell and all reads since then.
    ///
    /// # Errors
    /// [`FaultKind::WriteRace`] or [`FaultKind::ReadRace`].
    fn check_write(&mut self, cell: usize) -> Result<(), Fault> {
        let state = self.memory.cell(cell);
        self.check(state.writer, cell, ConflictKind::WriteAfterWrite)?;
        let mut link = state.readers;
        while link != NONE {
            let (reader, next) = self.memory.reader(link);
            self.check(reader, cell, ConflictKind::WriteAfterRead)?;
            link = next;
        }
        Ok(())
    }

    #[inline]
    fn check(&mut self, earlier: u32, cell: usize, kind: ConflictKind) -> Result<(), Fault> {
        if earlier == NONE || self.proven == (earlier, self.current) {
            return Ok(());
        }
        let conflict = CellConflict { earlier, later: self.current, cell: cell as u32, kind };
        // Overlapping chunks of one operation are unordered.
        let answer =
            if earlier == self.current { Precedence::NotBefore } else { self.reachability.before_current(earlier) };
        match answer {
            Precedence::Before => self.proven = (earlier, self.current),
            Precedence::NotBefore => return Err(self.race(conflict)),
            Precedence::Deferred => self.open.push(conflict),
        }
        Ok(())
    }

    fn resolve_open(&self) -> Result<(), Fault> {
        let questions: Vec<(u32, u32)> = self.open.iter().map(|c| (c.earlier, c.later)).collect();
        let answers = self.reachability.resolve(&questions);
        match self.open.iter().zip(answers).find(|(_, before)| !before) {
            Some((&conflict, _)) => Err(self.race(conflict)),
            None => Ok(()),
        }
    }

    fn race(&self, conflict: CellConflict) -> Fault {
        let (kind, to_blame, other) = match conflict.kind {
            ConflictKind::ReadAfterWrite => (FaultKind::ReadRace, conflict.later, conflict.earlier),
            ConflictKind::WriteAfterRead => (FaultKind::ReadRace, conflict.earlier, conflict.later),
            ConflictKind::WriteAfterWrite => (FaultKind::WriteRace, conflict.later, conflict.earlier),
        };
        let location = self.memory.owner(conflict.cell as usize);
        let found = if to_blame == other {
            "chunks of its own span that overlap".to_owned()
        } else {
            format!("{}, which writes it, and neither waits for the other", self.name(other))
        };
        let expected = "one to wait for the other".to_owned();
        self.reporter.fault(kind, self.op(to_blame), location, found, expected)
    }

    /// Checks the final contents: first the result, then data that was never read.
    ///
    /// # Errors
    /// [`FaultKind::WrongResult`] or [`FaultKind::Unread`].
    fn check_result(&mut self) -> Result<(), Fault> {
        for rank in 0..self.schedule.header().call.ranks {
            for index in 0..self.schedule.header().layout.chunks() {
                let chunk = ChunkRef { buffer: Buffer::Output, index };
                let (Some(expected), ChunkLocation::Cell(cell)) =
                    (self.contents.expected(rank, index), self.memory.locate(rank, chunk))
                else {
                    continue;
                };
                let expected = match expected {
                    RequiredContents::From { rank, chunk } => Value { ranks: Set::single(rank), chunk },
                    RequiredContents::Reduced => Value { ranks: self.sets.all(), chunk: index },
                };
                let state = self.memory.cell(cell);
                if state.value.chunk != expected.chunk || !self.sets.equal(state.value.ranks, expected.ranks) {
                    return Err(self.wrong_result(RankChunk::new(rank, chunk), state.writer, state.value, expected));
                }
            }
        }
        let unread = |cell: usize| {
            let RankChunk { rank: Rank(rank), chunk } = self.memory.owner(cell);
            chunk.buffer == Buffer::Scratch || self.contents.expected(rank, chunk.index).is_none()
        };
        let first = self
            .memory
            .cells()
            .filter(|&(index, cell)| cell.writer != NONE && cell.readers == NONE && unread(index))
            .min_by_key(|&(index, cell)| (cell.writer, index));
        match first {
            None => Ok(()),
            Some((index, cell)) => {
                let location = self.memory.owner(index);
                let (found, expected) = ("no reader".to_owned(), "a reader".to_owned());
                Err(self.reporter.fault(FaultKind::Unread, self.op(cell.writer), location, found, expected))
            }
        }
    }

    fn wrong_result(&mut self, location: RankChunk, writer: u32, found: Value, expected: Value) -> Fault {
        let (found, expected) = (self.describe(found), self.describe(expected));
        if writer == NONE {
            self.reporter.chunk_fault(FaultKind::WrongResult, location, found, expected)
        } else {
            self.reporter.fault(FaultKind::WrongResult, self.op(writer), location, found, expected)
        }
    }

    fn describe(&mut self, value: Value) -> String {
        if value.ranks == Set::EMPTY {
            return "nothing".to_owned();
        }
        let input = ChunkRef { buffer: Buffer::Input, index: value.chunk };
        format!("{} of {}", chunk_text(input), self.sets.describe(value.ranks))
    }

    fn op(&self, position: u32) -> OpId {
        OpId(self.order.operations[position as usize])
    }

    fn name(&self, position: u32) -> String {
        self.reporter.name(self.op(position))
    }

    fn current_fault(&self, kind: FaultKind, location: RankChunk, found: String, expected: String) -> Fault {
        self.reporter.fault(kind, self.op(self.current), location, found, expected)
    }
}
