//! Finite FIFOs: NCCL's protocols send through a few slots per connection, and a slot is free again only after the
//! receiver has consumed its contents. [`add_fifo_credits`] expresses this flow control as dependencies, so that other
//! code on schedules need not know about FIFOs.
//!
//! The puts of a rank to one peer on one channel are numbered in the order in which they can be sent: by the longest
//! chain of operations before them, then by id. Put k waits until put k − depth is *consumed*: until every operation of
//! the peer that depends on that put is done or, if there is none, until it arrived.

use super::order::Graph;
use super::{Channel, Dependency, OpId, Protocol, Rank, Run, RunId, Schedule, ScheduleError};

/// Number of slots of a FIFO in NCCL (`NCCL_STEPS` in src/include/device.h).
pub const NCCL_DEPTH: u32 = 8;

/// Returns true if a protocol sends through FIFOs. One-sided protocols store directly to the destination.
#[must_use]
pub fn uses_fifo(protocol: Protocol) -> bool {
    match protocol {
        Protocol::Ll | Protocol::Ll128 | Protocol::Simple => true,
        Protocol::Symmetric | Protocol::CopyEngine => false,
    }
}

/// Returns the schedule with the waits for free FIFO slots added as dependencies. Operations and their ids do not
/// change. With a depth of 0 every put waits for itself. Runs are split where the arithmetic of the credits changes;
/// regular schedules still have few runs. A schedule that deadlocks without FIFOs is returned unchanged.
///
/// # Errors
/// [`ScheduleError::TooManyOperations`] if the start of a dependency exceeds ±2³¹.
///
/// # Complexity
/// Linear in operations and their dependencies, except for sorting the puts of each rank.
pub fn add_fifo_credits(schedule: &Schedule, depth: u32) -> Result<Schedule, ScheduleError> {
    let Some(previous_puts) = slots(schedule, depth) else { return Ok(schedule.clone()) };
    let consumers = Consumers::new(schedule);
    let mut pieces = FifoPieces::default();
    let mut credits = Vec::new();
    for run in (0..schedule.run_count()).map(RunId) {
        pieces.begin_run(run);
        for index in 0..schedule.run(run).len {
            credits.clear();
            let put = previous_puts[schedule.op_id(run, index).0 as usize];
            if put != NONE {
                let put_consumers = consumers.get(put);
                let awaited = if put_consumers.is_empty() { std::slice::from_ref(&put) } else { put_consumers };
                credits.extend(awaited.iter().map(|&op| schedule.locate(OpId(op))));
            }
            pieces.add(index, &credits);
        }
        pieces.end_run(schedule.run(run).len);
    }
    pieces.assemble(schedule)
}

const NONE: u32 = u32::MAX;

/// Returns, for every put, the put that used its slot before, or [`NONE`]. Returns `None` if operations wait for each
/// other.
fn slots(schedule: &Schedule, depth: u32) -> Option<Vec<u32>> {
    let graph = Graph::new(schedule);
    let levels = graph.levels(&graph.order().ok()?);
    let mut previous_puts = vec![NONE; levels.len()];
    let mut puts: Vec<(Rank, Channel, u32, OpId)> = Vec::new();
    for rank in (0..schedule.header.call.ranks).map(Rank) {
        puts.clear();
        for run in schedule.rank_runs(rank).filter(|&run| schedule.run(run).kind.writes_peer()) {
            for index in 0..schedule.run(run).len {
                let put = schedule.operation_at(rank, run, index);
                puts.push((put.peer, put.channel, levels[put.id.0 as usize], put.id));
            }
        }
        puts.sort_unstable();
        for connection in puts.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            for (put, previous) in connection.iter().skip(depth as usize).zip(connection) {
                previous_puts[put.3.0 as usize] = previous.3.0;
            }
        }
    }
    Some(previous_puts)
}

/// Operations of the receiver that depend on each put.
struct Consumers {
    starts: Vec<u32>,
    operations: Vec<u32>,
}

impl Consumers {
    fn new(schedule: &Schedule) -> Self {
        let mut starts = vec![0u32; schedule.operation_count() as usize + 1];
        for_each_consumption(schedule, |put, _| starts[put as usize + 1] += 1);
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut next = starts.clone();
        let mut operations = vec![0; starts.last().map_or(0, |&end| end as usize)];
        for_each_consumption(schedule, |put, consumer| {
            let slot = &mut next[put as usize];
            operations[*slot as usize] = consumer;
            *slot += 1;
        });
        Self { starts, operations }
    }

    fn get(&self, put: u32) -> &[u32] {
        &self.operations[self.starts[put as usize] as usize..self.starts[put as usize + 1] as usize]
    }
}

/// Calls `visit` with every put and every operation of its receiver that depends on it.
fn for_each_consumption(schedule: &Schedule, mut visit: impl FnMut(u32, u32)) {
    for rank in (0..schedule.header.call.ranks).map(Rank) {
        for run in schedule.rank_runs(rank) {
            for dependency in schedule.dependencies(run) {
                let on = schedule.run_id(dependency.rank, dependency.run);
                let awaited = schedule.run(on);
                if !awaited.kind.writes_peer() {
                    continue;
                }
                for index in 0..schedule.run(run).len {
                    if let Some(target) = dependency.target(index, awaited.len)
                        && awaited.peer.at(target) == rank.0
                    {
                        visit(schedule.op_id(on, target).0, schedule.op_id(run, index).0);
                    }
                }
            }
        }
    }
}

/// Dependency that represents a credit, in terms of the original schedule: operation `from + i` of the piece's run
/// waits for operation `first + step·i` of `run`.
#[derive(Clone, Copy, Debug)]
struct Credit {
    run: RunId,
    first: u32,
    step: u32,
}

/// Operations `from..to` of an original run whose credits form one arithmetic progression.
#[derive(Clone, Copy, Debug)]
struct Piece {
    run: RunId,
    start: u32,
    end: u32,
    /// Bounds of the piece's credits in [`FifoPieces::credits`]; the end is exclusive.
    credits: (u32, u32),
}

#[derive(Default)]
struct FifoPieces {
    pieces: Vec<Piece>,
    credits: Vec<Credit>,
    /// First piece of each original run, followed by the number of pieces.
    run_starts: Vec<u32>,
    run: RunId,
}

impl FifoPieces {
    fn begin_run(&mut self, run: RunId) {
        self.run = run;
        self.run_starts.push(self.pieces.len() as u32);
    }

    /// Adds the next operation of the run to the current piece if its credits continue the arithmetic progression,
    /// otherwise to a new piece.
    fn add(&mut self, index: u32, credits: &[(RunId, u32)]) {
        let first_piece = self.run_starts.last().copied().unwrap_or(0) as usize;
        if let Some(piece) = self.pieces[first_piece..].last_mut() {
            let current = &mut self.credits[piece.credits.0 as usize..piece.credits.1 as usize];
            let steps = index - piece.start;
            let continues_progression = |(credit, &(run, target)): (&Credit, &(RunId, u32))| {
                let expected = u64::from(credit.first) + u64::from(credit.step) * u64::from(steps);
                run == credit.run && if steps == 1 { target >= credit.first } else { u64::from(target) == expected }
            };
            if current.len() == credits.len() && current.iter().zip(credits).all(continues_progression) {
                for (credit, &(_, target)) in current.iter_mut().zip(credits) {
                    if steps == 1 {
                        credit.step = target - credit.first;
                    }
                }
                return;
            }
            piece.end = index;
        }
        let start = self.credits.len() as u32;
        self.credits.extend(credits.iter().map(|&(run, first)| Credit { run, first, step: 0 }));
        let credits = (start, self.credits.len() as u32);
        self.pieces.push(Piece { run: self.run, start: index, end: index, credits });
    }

    fn end_run(&mut self, len: u32) {
        let first_piece = self.run_starts.last().copied().unwrap_or(0) as usize;
        match self.pieces[first_piece..].last_mut() {
            Some(piece) => piece.end = len,
            // A run of length 0 is stored, so that indices do not change.
            None => self.pieces.push(Piece { run: self.run, start: 0, end: 0, credits: (0, 0) }),
        }
    }

    fn assemble(mut self, schedule: &Schedule) -> Result<Schedule, ScheduleError> {
        self.run_starts.push(self.pieces.len() as u32);
        let mut result = Schedule {
            header: schedule.header.clone(),
            rank_starts: schedule.rank_starts.iter().map(|&run| self.run_starts[run as usize]).collect(),
            runs: Vec::with_capacity(self.pieces.len()),
            first_ops: vec![0],
            dependency_starts: vec![0],
            dependencies: Vec::new(),
        };
        let mut operations = 0;
        for piece in &self.pieces {
            let old = schedule.run(piece.run);
            let advanced = |walk: super::Walk| walk.advanced(piece.start);
            let (peer, src, dst) = (advanced(old.peer), advanced(old.src), advanced(old.dst));
            result.runs.push(Run { len: piece.end - piece.start, peer, src, dst, ..*old });
            for &dependency in schedule.dependencies(piece.run) {
                let on = schedule.run_id(dependency.rank, dependency.run);
                let first = i64::from(dependency.start) + i64::from(dependency.step) * i64::from(piece.start);
                self.translate(
                    &result.rank_starts,
                    piece,
                    dependency.rank,
                    on,
                    first,
                    dependency.step,
                    &mut result.dependencies,
                )?;
            }
            for credit in &self.credits[piece.credits.0 as usize..piece.credits.1 as usize] {
                let (rank, first) = (schedule.run_rank(credit.run), i64::from(credit.first));
                self.translate(
                    &result.rank_starts,
                    piece,
                    rank,
                    credit.run,
                    first,
                    credit.step,
                    &mut result.dependencies,
                )?;
            }
            operations += piece.end - piece.start;
            result.first_ops.push(operations);
            result.dependency_starts.push(result.dependencies.len() as u32);
        }
        Ok(result)
    }

    /// Adds the dependencies by which operation i of a piece waits for operation `first + step·i` of an original run,
    /// in terms of the pieces of that run.
    #[allow(clippy::too_many_arguments, reason = "one dependency, taken apart")]
    fn translate(
        &self,
        rank_starts: &[u32],
        piece: &Piece,
        rank: Rank,
        on: RunId,
        first: i64,
        step: u32,
        dependencies: &mut Vec<Dependency>,
    ) -> Result<(), ScheduleError> {
        let last = first + i64::from(step) * i64::from((piece.end - piece.start).saturating_sub(1));
        for number in self.run_starts[on.0 as usize]..self.run_starts[on.0 as usize + 1] {
            let target = &self.pieces[number as usize];
            if piece.start == piece.end || last < i64::from(target.start) || first >= i64::from(target.end) {
                continue;
            }
            let start = i32::try_from(first - i64::from(target.start)).map_err(|_| ScheduleError::TooManyOperations)?;
            dependencies.push(Dependency { rank, run: number - rank_starts[rank.0 as usize], start, step });
        }
        Ok(())
    }
}
