//! Draft of a schedule as a list of single operations, the form of other tools' files: every operation has a number and
//! lists the numbers of its dependencies.

use super::{Buffer, ScheduleGenerator};
use super::{Channel, ChunkRef, Dependency, Header, OpKind, Program, Rank, Run, Schedule, ScheduleError, Walk};

/// One operation of a draft.
#[derive(Clone, Debug)]
pub(super) struct DraftOp {
    pub(super) rank: u32,
    pub(super) peer: u32,
    pub(super) channel: u16,
    pub(super) kind: OpKind,
    pub(super) src: ChunkRef,
    pub(super) dst: ChunkRef,
    pub(super) span: u32,
    /// Numbers of the operations that this one waits for.
    pub(super) dependencies: Vec<u32>,
}

impl DraftOp {
    /// Creates an operation that moves no data.
    pub(super) fn without_data(kind: OpKind, rank: u32, peer: u32, channel: u16) -> Self {
        let unused = ChunkRef { buffer: Buffer::Output, index: 0 };
        Self { rank, peer, channel, kind, src: unused, dst: unused, span: 0, dependencies: Vec::new() }
    }
}

/// Operations of all ranks, in any order.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    pub(super) ops: Vec<DraftOp>,
}

impl Draft {
    /// Adds an operation; returns its number.
    pub(super) fn push(&mut self, op: DraftOp) -> u32 {
        self.ops.push(op);
        self.ops.len() as u32 - 1
    }

    /// Adds dependencies to an operation, without duplicates.
    pub(super) fn wait(&mut self, op: u32, on: impl IntoIterator<Item = u32>) {
        if let Some(op) = self.ops.get_mut(op as usize) {
            for on in on {
                if !op.dependencies.contains(&on) {
                    op.dependencies.push(on);
                }
            }
        }
    }

    /// Builds the schedule: runs of one operation each, grouped by rank, in the order of the draft within each rank.
    pub(super) fn schedule(&self, header: Header) -> Result<Schedule, ScheduleError> {
        let mut by_rank: Vec<Vec<u32>> = vec![Vec::new(); header.call.ranks as usize];
        let mut numbers = vec![0u32; self.ops.len()];
        for (i, (op, number)) in self.ops.iter().zip(&mut numbers).enumerate() {
            if let Some(list) = by_rank.get_mut(op.rank as usize) {
                *number = list.len() as u32;
                list.push(i as u32);
            }
        }
        Schedule::build(&NumberedDraft { draft: self, header, by_rank, numbers })
    }
}

/// Draft whose operations are numbered within their ranks.
struct NumberedDraft<'a> {
    draft: &'a Draft,
    header: Header,
    by_rank: Vec<Vec<u32>>,
    numbers: Vec<u32>,
}

impl ScheduleGenerator for NumberedDraft<'_> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let mut dependencies = Vec::new();
        for op in self.by_rank.get(rank.0 as usize).into_iter().flatten().filter_map(|&i| self.op(i)) {
            dependencies.clear();
            dependencies.extend(op.dependencies.iter().filter_map(|&on| {
                let number = self.numbers.get(on as usize)?;
                Some(Dependency::on_operation(Rank(self.op(on)?.rank), *number, 0))
            }));
            let run = Run {
                len: 1,
                kind: op.kind,
                channel: Channel(op.channel),
                peer: Walk::fixed(op.peer),
                src_buffer: op.src.buffer,
                src: Walk::fixed(op.src.index),
                dst_buffer: op.dst.buffer,
                dst: Walk::fixed(op.dst.index),
                span: op.span,
            };
            program.push(run, &dependencies);
        }
    }
}

impl NumberedDraft<'_> {
    fn op(&self, number: u32) -> Option<&DraftOp> {
        self.draft.ops.get(number as usize)
    }
}
