//! Accesses of operations to the caller's buffers, if those lie outside the memory of the devices.
//!
//! A device reads its own contribution when it first uses it, and writes a result when it is complete. Data that it
//! only forwards stays on the device, as in NCCL's FIFO slots: a received chunk is not read again from the output, and
//! a partial sum of an all_reduce is not written there, although the schedule names its chunk of the output. (This also
//! omits the part of an all_reduce that a rank finishes itself, 1/n of its output in rings.)
//!
//! Pages of managed memory migrate once: only the first operation that reads a chunk of the caller accesses it, in the
//! order of ranks and programs. Concurrent readers of the chunk are not delayed. They end no earlier than the whole
//! call, which does wait for the page.

use rustc_hash::FxHashSet;

use crate::schedule::{Buffer, BufferUse, Call, Collective, Dependency, Header, OpKind, Rank, Run};
use crate::verify::contents::Contents;

/// Method by which ranks obtain the results of an all_reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Results {
    /// Another rank completes the result and puts it into the output. Local sums in the output are partial.
    Put,
    /// The rank sums all contributions in its output.
    Summed,
}

/// Accesses of an operation to the caller's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct BufferAccess {
    /// True if the source chunk is read from the buffers of the sending rank.
    pub reads_source: bool,
    /// True if the second operand of a reduction is read from the buffers of the receiving rank.
    pub reads_target: bool,
    /// True if the result is written to the buffers of the receiving rank.
    pub writes_target: bool,
}

/// End of an operation: the first chunk that it reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OperationEnd {
    rank: Rank,
    buffer: Buffer,
    chunk: u32,
}

impl BufferAccess {
    /// Determines the accesses of a run of `rank` with dependencies `waits`.
    pub fn new(call: &Call, results: Results, rank: Rank, run: &Run, waits: &[Dependency]) -> Self {
        if !run.kind.moves_data() {
            return Self::default();
        }
        let is_users = |buffer: Buffer| buffer != Buffer::Scratch;
        let passes_on = run.src_buffer != Buffer::Input && waits.iter().any(|wait| wait.rank != rank);
        let partial = call.collective == Collective::AllReduce && results == Results::Put;
        let is_partial = partial && run.kind.reduces();
        Self {
            reads_source: is_users(run.src_buffer) && !passes_on,
            reads_target: match run.kind {
                OpKind::PutReduceInput => true,
                kind => kind.reduces() && is_users(run.dst_buffer),
            },
            writes_target: is_users(run.dst_buffer) && !is_partial,
        }
    }

    /// Returns the accesses that remain in managed memory, where chunks that were read or written before are already on
    /// the device. `ends`: source and destination of the run.
    fn at_first_touch(self, header: &Header, ends: [OperationEnd; 2], run: &Run, touched: &mut MigratedChunks) -> Self {
        let is_callers = |buffer: Buffer| {
            buffer == Buffer::Input || (buffer == Buffer::Output && header.call.buffers == BufferUse::InPlace)
        };
        let contents = Contents::new(&header.call, &header.layout);
        // In place, received data lies where contributions may have been.
        let brings = |rank: Rank, chunk: u32| contents.is_none_or(|contents| contents.has_input(rank.0, chunk));
        let mut first = |wanted: bool, OperationEnd { rank, buffer, chunk }: OperationEnd| {
            let mut is_new = false;
            if wanted && is_callers(buffer) {
                for chunk in (0..run.span).map(|i| chunk.wrapping_add(i)).filter(|&chunk| brings(rank, chunk)) {
                    is_new |= touched.0.insert((rank, chunk));
                }
            }
            is_new
        };
        let [source, target] = ends;
        let added_to = if run.kind == OpKind::PutReduceInput { Buffer::Input } else { target.buffer };
        Self {
            reads_source: first(self.reads_source, source),
            reads_target: first(self.reads_target, OperationEnd { buffer: added_to, ..target }),
            writes_target: false,
        }
    }

    /// Returns true if the operation accesses the caller's buffers.
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// Chunks of the caller's buffers that have been read and thus migrated, by rank.
#[derive(Debug, Default)]
pub(super) struct MigratedChunks(FxHashSet<(Rank, u32)>);

/// Accesses of the operations of a run.
#[derive(Clone, Debug)]
pub(super) enum RunBufferAccess {
    /// Equal accesses for all operations.
    Same(BufferAccess),
    /// Accesses of each operation, by index.
    Each(Vec<BufferAccess>),
}

impl RunBufferAccess {
    /// Determines the accesses of a run in managed memory. `access`: accesses of each operation if pages did not
    /// migrate.
    pub fn at_first_touch(
        access: BufferAccess,
        header: &Header,
        rank: Rank,
        run: &Run,
        touched: &mut MigratedChunks,
    ) -> Self {
        if !access.any() || run.kind.is_multicast() {
            return Self::Same(BufferAccess::default());
        }
        let access_of = |index: u32| {
            let peer = Rank(run.peer.at(index));
            let source = if run.kind.reads_peer() { peer } else { rank };
            let target = if run.kind.writes_peer() { peer } else { rank };
            let ends = [
                OperationEnd { rank: source, buffer: run.src_buffer, chunk: run.src.at(index) },
                OperationEnd { rank: target, buffer: run.dst_buffer, chunk: run.dst.at(index) },
            ];
            access.at_first_touch(header, ends, run, touched)
        };
        let each: Vec<BufferAccess> = (0..run.len).map(access_of).collect();
        match each.split_first() {
            Some((&first, rest)) if rest.iter().all(|&other| other == first) => Self::Same(first),
            Some(_) => Self::Each(each),
            None => Self::Same(BufferAccess::default()),
        }
    }

    /// Returns the accesses of the operation at `index`.
    pub fn at(&self, index: u32) -> BufferAccess {
        match self {
            Self::Same(access) => *access,
            Self::Each(each) => each.get(index as usize).copied().unwrap_or_default(),
        }
    }

    /// Returns true if all operations have the same accesses.
    pub fn is_same(&self) -> bool {
        matches!(self, Self::Same(_))
    }
}
