//! Decomposition of a schedule into local operations of each rank on single chunks, and messages between ranks.
//!
//! The receiver executes every operation on its own memory: a put is a message that the receiver stores, a put_reduce
//! is a message that the receiver reduces, and a get is a message that the other rank sends. Only the owning rank
//! accesses a chunk, and it does so in order of level. The level of an operation is the length of the longest chain of
//! operations that precede it. This order satisfies all dependencies within a rank without flags.

use rustc_hash::FxHashSet;

use fabricast_sim::schedule::{Buffer, ChunkRef, Collective, OpKind, Schedule};

use super::KernelError;

/// Maximum number of operations of a schedule that can be run as a kernel.
const MAX_OPERATIONS: u32 = 1 << 20;

/// Maximum number of moves of a schedule that can be run as a kernel.
const MAX_MOVES: usize = 1 << 22;

/// Index of a chunk of one rank's memory, numbered over all ranks.
pub(super) type Cell = u32;

/// Marks the absence of a chunk.
const NONE: u32 = u32::MAX;

/// Memory to which a cell belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum CellMemory {
    /// Chunk of the caller's input, by index.
    Input(u32),
    /// Chunk of the caller's output, by index. In place, the chunk of the input with this index is the same memory.
    Output(u32),
    /// Chunk of scratch memory, or the token of a rank in a barrier.
    Scratch,
}

/// A chunk sent from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) from: u32,
    pub(super) to: u32,
    /// Chunk of the call that has the size of the message.
    pub(super) data: u32,
    /// Operation of the schedule from which the message was made.
    pub(super) operation: u32,
}

/// Kind of a move, with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum MoveKind {
    /// Sends the chunk in cell `src` as a message.
    Send { message: u32, src: Cell },
    /// Copies cell `src` to cell `dst`.
    Copy { src: Cell, dst: Cell },
    /// Reduces cell `src` into cell `dst`: `dst` = `dst` ⊕ `src`.
    Reduce { src: Cell, dst: Cell },
    /// Stores a received message in cell `dst`.
    Receive { message: u32, dst: Cell },
    /// Reduces a received message into cell `dst`: `dst` = `dst` ⊕ message.
    ReceiveReduce { message: u32, dst: Cell },
    /// Reduces cell `input` and a received message into cell `dst`: `dst` = `input` ⊕ message.
    ReceiveReduceInput { message: u32, input: Cell, dst: Cell },
}

/// A single operation of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) rank: u32,
    pub(super) channel: u16,
    /// Length of the longest chain of preceding operations.
    pub(super) level: u32,
    pub(super) kind: MoveKind,
}

/// All moves of a schedule, in an order that satisfies every dependency.
#[derive(Clone, Debug)]
pub(super) struct Moves {
    pub(super) moves: Vec<Move>,
    pub(super) messages: Vec<Message>,
    /// Pairs of different chunks: a chunk of data and the output chunk in which it is stored.
    pub(super) stored_in: FxHashSet<(u32, u32)>,
    chunks: u32,
    per_rank: u32,
    in_place: bool,
}

impl MoveKind {
    /// Returns the cell that the move writes. `None` for a send.
    pub(super) fn written(self) -> Option<Cell> {
        match self {
            Self::Send { .. } => None,
            Self::Copy { dst, .. }
            | Self::Reduce { dst, .. }
            | Self::Receive { dst, .. }
            | Self::ReceiveReduce { dst, .. }
            | Self::ReceiveReduceInput { dst, .. } => Some(dst),
        }
    }

    /// Returns the source cell, other than the cell that the move writes. `None` if the only source is a message.
    pub(super) fn read(self) -> Option<Cell> {
        match self {
            Self::Send { src, .. } | Self::Copy { src, .. } | Self::Reduce { src, .. } => Some(src),
            Self::ReceiveReduceInput { input, .. } => Some(input),
            Self::Receive { .. } | Self::ReceiveReduce { .. } => None,
        }
    }

    /// Returns the message that is sent or received. `None` for a local move.
    pub(super) fn message(self) -> Option<u32> {
        match self {
            Self::Send { message, .. }
            | Self::Receive { message, .. }
            | Self::ReceiveReduce { message, .. }
            | Self::ReceiveReduceInput { message, .. } => Some(message),
            Self::Copy { .. } | Self::Reduce { .. } => None,
        }
    }

    /// Sort key within a level: sends first, then local operations, then receives, so that no rank waits longer than
    /// necessary.
    fn order_within_level(self) -> u8 {
        match self {
            Self::Send { .. } => 0,
            Self::Copy { .. } | Self::Reduce { .. } => 1,
            _ => 2,
        }
    }
}

impl Moves {
    /// Decomposes a schedule that [`verify`](fabricast_sim::verify::verify) accepts.
    ///
    /// # Errors
    /// [`KernelError::TooLarge`] for too many operations, chunks or moves, [`KernelError::Deadlock`] for a dependency
    /// cycle.
    ///
    /// # Complexity
    /// Linear in operations, dependencies and chunks moved, except for sorting.
    pub(super) fn new(schedule: &Schedule) -> Result<Self, KernelError> {
        let header = schedule.header();
        let operations = schedule.operation_count();
        if operations > MAX_OPERATIONS {
            return Err(KernelError::TooLarge {
                item: "operations",
                count: operations.into(),
                max: MAX_OPERATIONS.into(),
            });
        }
        let chunks = header.layout.chunks();
        let per_rank = 2 * chunks + header.scratch_chunks + 1;
        if u64::from(per_rank) * u64::from(header.call.ranks) >= u64::from(NONE) {
            let max = u64::from(NONE);
            return Err(KernelError::TooLarge {
                item: "chunks",
                count: u64::from(per_rank) * u64::from(header.call.ranks),
                max,
            });
        }
        let levels = levels(schedule)?;
        let mut order: Vec<u32> = (0..operations).collect();
        order.sort_by_key(|&op| levels[op as usize]);
        let mut moves = Self {
            moves: Vec::new(),
            messages: Vec::new(),
            stored_in: FxHashSet::default(),
            chunks,
            per_rank,
            in_place: schedule.is_in_place(),
        };
        for op in order {
            moves.add_operation(schedule, op, levels[op as usize])?;
        }
        moves.sort(header.call.ranks);
        moves.size_messages(header.call.ranks);
        Ok(moves)
    }

    /// Returns the rank that owns a cell, and the memory that the cell belongs to.
    pub(super) fn memory(&self, cell: Cell) -> (u32, CellMemory) {
        let (rank, offset) = (cell / self.per_rank, cell % self.per_rank);
        let memory = if offset < self.chunks {
            CellMemory::Output(offset)
        } else if offset < 2 * self.chunks {
            CellMemory::Input(offset - self.chunks)
        } else {
            CellMemory::Scratch
        };
        (rank, memory)
    }

    /// Returns true if the cell belongs to an input buffer, which no move writes.
    pub(super) fn is_input(&self, cell: Cell) -> bool {
        matches!(self.memory(cell).1, CellMemory::Input(_))
    }

    /// Number of cells of all ranks.
    pub(super) fn cells(&self, ranks: u32) -> usize {
        self.per_rank as usize * ranks as usize
    }

    fn cell(&self, rank: u32, chunk: ChunkRef) -> Cell {
        let offset = match chunk.buffer {
            Buffer::Input if self.in_place => chunk.index,
            Buffer::Output => chunk.index,
            Buffer::Input => self.chunks + chunk.index,
            Buffer::Scratch => 2 * self.chunks + chunk.index,
        };
        rank * self.per_rank + offset
    }

    /// Returns the cell that represents a rank's token in a barrier.
    fn token(&self, rank: u32) -> Cell {
        rank * self.per_rank + self.per_rank - 1
    }

    fn message(&mut self, from: u32, to: u32, operation: u32) -> u32 {
        self.messages.push(Message { from, to, data: NONE, operation });
        self.messages.len() as u32 - 1
    }

    fn add_operation(&mut self, schedule: &Schedule, op: u32, level: u32) -> Result<(), KernelError> {
        let number = op;
        let op = schedule.operation(fabricast_sim::schedule::OpId(op));
        let (rank, peer) = (op.rank.0, op.peer.0);
        let push = |moves: &mut Self, rank: u32, kind: MoveKind| {
            moves.moves.push(Move { rank, channel: op.channel.0, level, kind });
        };
        if op.kind == OpKind::Signal && schedule.header().call.collective == Collective::Barrier {
            let (src, dst) = (self.token(rank), self.token(peer));
            let message = self.message(rank, peer, number);
            push(self, rank, MoveKind::Send { message, src });
            push(self, peer, MoveKind::Receive { message, dst });
            return Ok(());
        }
        if op.kind == OpKind::SwitchAllReduce {
            return Err(KernelError::NetworkSwitches);
        }
        for i in 0..op.span {
            let src = ChunkRef { index: op.src.index + i, ..op.src };
            let dst = ChunkRef { index: op.dst.index + i, ..op.dst };
            // The input that a receiver adds has the chunk index of the destination.
            let receiver_input = ChunkRef { buffer: Buffer::Input, index: dst.index };
            // The operation is a message, or a local operation if both ends are on one rank.
            let moved = |moves: &mut Self, from: u32, to: u32, kind: OpKind| {
                let (src, dst) = (moves.cell(from, src), moves.cell(to, dst));
                let input = moves.cell(to, receiver_input);
                if from == to {
                    let reduces = matches!(kind, OpKind::PutReduce | OpKind::GetReduce | OpKind::Reduce);
                    if kind == OpKind::PutReduceInput && input != dst {
                        push(moves, to, MoveKind::Copy { src: input, dst });
                        push(moves, to, MoveKind::Reduce { src, dst });
                    } else if reduces || kind == OpKind::PutReduceInput {
                        push(moves, to, MoveKind::Reduce { src, dst });
                    } else if src != dst {
                        push(moves, to, MoveKind::Copy { src, dst });
                    }
                    return;
                }
                let message = moves.message(from, to, number);
                push(moves, from, MoveKind::Send { message, src });
                push(
                    moves,
                    to,
                    match kind {
                        OpKind::PutReduce | OpKind::GetReduce => MoveKind::ReceiveReduce { message, dst },
                        OpKind::PutReduceInput if input == dst => MoveKind::ReceiveReduce { message, dst },
                        OpKind::PutReduceInput => MoveKind::ReceiveReduceInput { message, input, dst },
                        _ => MoveKind::Receive { message, dst },
                    },
                );
            };
            match op.kind {
                OpKind::Put | OpKind::PutReduce | OpKind::PutReduceInput => moved(self, rank, peer, op.kind),
                OpKind::Get | OpKind::GetReduce => moved(self, peer, rank, op.kind),
                OpKind::Copy | OpKind::Reduce => moved(self, rank, rank, op.kind),
                // The kernel does not use the switches: messages between ranks replace operations of switches.
                OpKind::MulticastPut => {
                    for member in schedule.team(op.team.unwrap_or_default()) {
                        moved(self, rank, member.0, OpKind::Put);
                    }
                }
                // The reduction starts with the rank's own data, which need not be copied if source and destination are
                // one chunk.
                OpKind::MulticastReduce => {
                    if src != dst {
                        moved(self, rank, rank, OpKind::Copy);
                    }
                    for member in schedule.team(op.team.unwrap_or_default()).iter().filter(|member| member.0 != rank) {
                        moved(self, member.0, rank, OpKind::GetReduce);
                    }
                }
                OpKind::SwitchAllReduce | OpKind::Signal | OpKind::Wait => {}
            }
        }
        if self.moves.len() > MAX_MOVES {
            return Err(KernelError::TooLarge { item: "moves", count: self.moves.len() as u64, max: MAX_MOVES as u64 });
        }
        Ok(())
    }

    /// Sorts moves by level. Within a level, sends come first and receives last. Peers are ordered by their distance
    /// from the sender, so that the ranks of a symmetric schedule have programs of equal structure.
    fn sort(&mut self, ranks: u32) {
        let messages = std::mem::take(&mut self.messages);
        self.moves.sort_by_key(|operation| {
            let distance = match operation.kind.message().map(|message| messages[message as usize]) {
                Some(Message { from, to, .. }) if from == operation.rank => (to + ranks - from) % ranks,
                Some(Message { from, to, .. }) => (to + ranks - from) % ranks,
                None => 0,
            };
            (operation.level, operation.kind.order_within_level(), distance)
        });
        self.messages = messages;
    }

    /// Determines the chunk whose size each message has. The contents of the message are traced back to the input.
    fn size_messages(&mut self, ranks: u32) {
        let mut contents = vec![NONE; self.cells(ranks)];
        for (cell, contents) in contents.iter_mut().enumerate() {
            if let (_, CellMemory::Input(chunk) | CellMemory::Output(chunk)) = self.memory(cell as u32) {
                *contents = chunk;
            }
        }
        for operation in &self.moves {
            match operation.kind {
                MoveKind::Send { message, src } => self.messages[message as usize].data = contents[src as usize],
                MoveKind::Copy { src, dst } => contents[dst as usize] = contents[src as usize],
                MoveKind::Receive { message, dst } => contents[dst as usize] = self.messages[message as usize].data,
                MoveKind::ReceiveReduceInput { input, dst, .. } => contents[dst as usize] = contents[input as usize],
                MoveKind::Reduce { .. } | MoveKind::ReceiveReduce { .. } => {}
            }
            if let Some(dst) = operation.kind.written()
                && let (_, CellMemory::Output(chunk)) = self.memory(dst)
                && contents[dst as usize] != chunk
            {
                self.stored_in.insert((contents[dst as usize], chunk));
            }
        }
    }
}

/// Returns, for each operation, the length of the longest chain of operations that precede it.
fn levels(schedule: &Schedule) -> Result<Vec<u32>, KernelError> {
    let count = schedule.operation_count() as usize;
    let mut dependencies: Vec<Vec<u32>> = Vec::with_capacity(count);
    for run in (0..schedule.run_count()).map(fabricast_sim::schedule::RunId) {
        for index in 0..schedule.run(run).len {
            dependencies.push(schedule.awaited_operations(run, index).map(|op| op.0).collect());
        }
    }
    let mut open: Vec<u32> = dependencies.iter().map(|list| list.len() as u32).collect();
    let mut dependents: Vec<Vec<u32>> = vec![Vec::new(); count];
    for (op, list) in dependencies.iter().enumerate() {
        for &dependency in list {
            dependents[dependency as usize].push(op as u32);
        }
    }
    let mut levels = vec![0u32; count];
    let mut ready: Vec<u32> = (0..count as u32).filter(|&op| open[op as usize] == 0).collect();
    let mut completed = 0;
    while let Some(op) = ready.pop() {
        completed += 1;
        for &next in &dependents[op as usize] {
            levels[next as usize] = levels[next as usize].max(levels[op as usize] + 1);
            open[next as usize] -= 1;
            if open[next as usize] == 0 {
                ready.push(next);
            }
        }
    }
    if completed < count { Err(KernelError::Deadlock) } else { Ok(levels) }
}
