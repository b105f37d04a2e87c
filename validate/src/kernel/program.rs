//! A rank's part of a round as values that are loaded, received, reduced, sent and stored. Each thread runs the program
//! for its own elements of every chunk, so values stay in registers and no scratch memory is needed.

use rustc_hash::FxHashMap;

use super::local_operations::{Cell, CellMemory, MoveKind, Moves};
use super::rounds::Round;

/// Index of a value. Exactly one instruction of the program computes the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Value(pub(super) u32);

/// Chunk of the caller's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum UserChunk {
    /// Chunk of the input, by index.
    Input(u32),
    /// Chunk of the output, by index.
    Output(u32),
}

/// Instruction of a rank's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Instruction {
    /// Reads a chunk of the caller's buffers.
    Load { value: Value, place: UserChunk },
    /// Sends a value to another rank as a message.
    Send { message: u32, value: Value },
    /// Receives a message of another rank as a value.
    Receive { message: u32, value: Value },
    /// Reduces two values into a third.
    Reduce { value: Value, left: Value, right: Value },
    /// Writes the final value of an output chunk. Each chunk is written once.
    Store { place: UserChunk, value: Value },
    /// Defines a value without contents, which only represents the progress of a barrier.
    Token { value: Value },
}

/// Instructions of one rank in a round, in execution order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RankProgram {
    pub(super) instructions: Vec<Instruction>,
}

/// State of the generator of one rank's program: the current value of each cell.
struct ProgramWriter<'a> {
    moves: &'a Moves,
    values: FxHashMap<Cell, Value>,
    next: u32,
    program: RankProgram,
}

impl ProgramWriter<'_> {
    fn value(&mut self) -> Value {
        self.next += 1;
        Value(self.next - 1)
    }

    /// Returns the current value of a cell. A cell that was not accessed before is loaded first.
    fn read(&mut self, cell: Cell) -> Value {
        if let Some(&value) = self.values.get(&cell) {
            return value;
        }
        let value = self.value();
        let instruction = match self.moves.memory(cell).1 {
            CellMemory::Input(chunk) => Instruction::Load { value, place: UserChunk::Input(chunk) },
            CellMemory::Output(chunk) => Instruction::Load { value, place: UserChunk::Output(chunk) },
            CellMemory::Scratch => Instruction::Token { value },
        };
        self.program.instructions.push(instruction);
        self.values.insert(cell, value);
        value
    }

    fn reduce(&mut self, left: Value, right: Value) -> Value {
        let value = self.value();
        self.program.instructions.push(Instruction::Reduce { value, left, right });
        value
    }

    fn receive(&mut self, message: u32) -> Value {
        let value = self.value();
        self.program.instructions.push(Instruction::Receive { message, value });
        value
    }

    /// Adds the instructions of a move. Returns the cell that it writes, with its new value.
    fn step(&mut self, kind: MoveKind) -> Option<(Cell, Value)> {
        let (dst, value) = match kind {
            MoveKind::Send { message, src } => {
                let value = self.read(src);
                self.program.instructions.push(Instruction::Send { message, value });
                return None;
            }
            MoveKind::Copy { src, dst } => (dst, self.read(src)),
            MoveKind::Reduce { src, dst } => {
                let (left, right) = (self.read(dst), self.read(src));
                (dst, self.reduce(left, right))
            }
            MoveKind::Receive { message, dst } => (dst, self.receive(message)),
            MoveKind::ReceiveReduce { message, dst } => {
                let (left, right) = (self.read(dst), self.receive(message));
                (dst, self.reduce(left, right))
            }
            MoveKind::ReceiveReduceInput { message, input, dst } => {
                let (left, right) = (self.read(input), self.receive(message));
                (dst, self.reduce(left, right))
            }
        };
        self.values.insert(dst, value);
        Some((dst, value))
    }

    /// Stores the final value of a cell if the cell is in the output.
    fn store(&mut self, cell: Cell, value: Value) {
        if let CellMemory::Output(chunk) = self.moves.memory(cell).1 {
            self.program.instructions.push(Instruction::Store { place: UserChunk::Output(chunk), value });
        }
    }
}

/// Returns the programs of all ranks in a round.
pub(super) fn programs(moves: &Moves, round: &Round, ranks: u32) -> Vec<RankProgram> {
    let mut last: FxHashMap<Cell, u32> = FxHashMap::default();
    for &i in &round.moves {
        if let Some(cell) = moves.moves[i as usize].kind.written() {
            last.insert(cell, i);
        }
    }
    let writer = || ProgramWriter { moves, values: FxHashMap::default(), next: 0, program: RankProgram::default() };
    let mut writers: Vec<ProgramWriter<'_>> = (0..ranks).map(|_| writer()).collect();
    for &i in &round.moves {
        let operation = moves.moves[i as usize];
        let writer = &mut writers[operation.rank as usize];
        if let Some((cell, value)) = writer.step(operation.kind).filter(|(cell, _)| last.get(cell) == Some(&i)) {
            writer.store(cell, value);
        }
    }
    writers.into_iter().map(|writer| writer.program).collect()
}
