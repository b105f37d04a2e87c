//! Flat view of a schedule for writers of other formats: every operation with its memory in units and its dependencies.

use super::chunk_numbering::{ChunkNumbering, ChunksPerGpu, cell};
use super::file_format::WriteError;
use super::lists::{Lists, order_by_key};
use super::order::Graph;
use super::units::{UnitRange, Units};
use super::{Buffer, BufferUse, ChunkRef, Collective, OpId, OpKind, Operation, RunId, Schedule};

/// Maximum total number of units moved by a schedule that is read or written.
pub(super) const MAX_UNITS_MOVED: u64 = 1 << 22;

/// Maximum number of operations that are written; each is one line of a file.
pub(super) const MAX_OPERATIONS: u32 = 1 << 18;

/// Operation of a schedule with its memory in units.
#[derive(Clone, Debug)]
pub(super) struct FlatOp {
    pub(super) kind: OpKind,
    pub(super) rank: u32,
    /// Peer rank, or team for multicast operations.
    pub(super) peer: u32,
    pub(super) channel: u16,
    /// Units read, in the call's numbering.
    pub(super) src: UnitRange,
    /// Units written, in the call's numbering.
    pub(super) dst: UnitRange,
    /// Length of the longest dependency chain before the operation, in operations.
    pub(super) level: u32,
}

impl FlatOp {
    /// Returns the rank whose memory is read.
    pub(super) fn source(&self) -> u32 {
        if self.kind.reads_peer() { self.peer } else { self.rank }
    }

    /// Returns the rank whose memory is written.
    pub(super) fn target(&self) -> u32 {
        if self.kind.writes_peer() { self.peer } else { self.rank }
    }

    /// Returns true if the operation transfers data between two different ranks without multicast.
    pub(super) fn crosses(&self) -> bool {
        self.kind.is_transfer() && !self.kind.is_multicast() && self.peer != self.rank
    }
}

/// Returns the first multicast operation, if there is one.
fn first_multicast(schedule: &Schedule) -> Option<Operation> {
    let is_multicast = |run: RunId| schedule.run(run).kind.is_multicast() && schedule.run(run).len > 0;
    let run = (0..schedule.run_count()).map(RunId).find(|&run| is_multicast(run))?;
    Some(schedule.operation(schedule.op_id(run, 0)))
}

/// Support of a file format for multicast and reduction in the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SwitchSupport {
    Unsupported,
    Supported,
}

/// Operations of a schedule by id, their dependencies, and the numbering of chunks in files.
pub(super) struct FlatSchedule {
    pub(super) ops: Vec<FlatOp>,
    /// Dependencies of each operation, sorted.
    pub(super) waits: Lists,
    pub(super) numbering: ChunkNumbering,
    /// Size of a rank's scratch, in units.
    pub(super) scratch: u32,
}

impl FlatSchedule {
    /// Flattens a schedule for the writer of a format, whose name appears in errors.
    ///
    /// # Errors
    /// [`WriteError`]: too many operations, chunks of no common size, operations that wait for each other.
    pub(super) fn new(schedule: &Schedule, format: &'static str, switches: SwitchSupport) -> Result<Self, WriteError> {
        let header = schedule.header();
        let collective = header.call.collective;
        if !collective.has_variable_size() {
            return Err(WriteError::Collective { format, collective });
        }
        if let Some(op) = first_multicast(schedule).filter(|_| switches == SwitchSupport::Unsupported) {
            let description = format!("rank {}, {}", op.rank.0, op.kind.name());
            let reason = format!("{format} files are written without multicast");
            return Err(WriteError::Unsupported { operation: op.id, description, reason });
        }
        if schedule.operation_count() > MAX_OPERATIONS {
            let (operations, max) = (u64::from(schedule.operation_count()), u64::from(MAX_OPERATIONS));
            return Err(WriteError::TooLarge { format, operations, most: max });
        }
        let units = Units::new(schedule)?;
        let call = header.call;
        let blocks = units.total() / call.ranks.max(1);
        let per_gpu = match call.collective {
            Collective::AllGather | Collective::Gather => ChunksPerGpu { input: blocks, output: units.total() },
            Collective::ReduceScatter | Collective::Scatter => ChunksPerGpu { input: units.total(), output: blocks },
            _ => ChunksPerGpu { input: units.total(), output: units.total() },
        };
        let numbering = ChunkNumbering {
            collective: call.collective,
            buffers: call.buffers,
            chunks: units.total(),
            per_gpu,
            scratch_offset: 0,
        };
        let graph = Graph::new(schedule);
        let order = graph
            .order()
            .map_err(|cycle| WriteError::Deadlock { operation: cycle.0.first().copied().unwrap_or_default() })?;
        let levels = graph.levels(&order);
        let mut ops = Vec::with_capacity(levels.len());
        let mut waits = Lists::with_capacity(levels.len());
        for (op, level) in schedule.operations().zip(levels) {
            let unit_range = |chunk: ChunkRef| match op.kind.moves_data() {
                true => units.unit_range(canonical_chunk(chunk, call.collective, call.buffers), op.span),
                false => Some(UnitRange { buffer: Buffer::Output, start: 0, count: 0 }),
            };
            let unsupported = |reason: &str| unsupported(op.id, op.rank.0, op.kind, op.peer.0, reason);
            let (Some(src), Some(dst)) = (unit_range(op.src), unit_range(op.dst)) else {
                return Err(unsupported("its chunks cannot be counted in equal units"));
            };
            if src.count != dst.count {
                return Err(unsupported("it moves chunks to a location of another size"));
            }
            waits.extend(graph.dependencies(op.id.0));
            waits.close_sorted();
            ops.push(FlatOp {
                kind: op.kind,
                rank: op.rank.0,
                peer: op.team.map_or(op.peer.0, |team| team.0),
                channel: op.channel.0,
                src,
                dst,
                level,
            });
        }
        // A transfer is one step at each end. Readers reject files that move more.
        let moved: u64 = ops.iter().map(|op| 2 * u64::from(op.dst.count)).sum();
        if moved > MAX_UNITS_MOVED {
            return Err(WriteError::TooFine { moved, most: MAX_UNITS_MOVED });
        }
        Ok(Self { ops, waits, numbering, scratch: units.scratch })
    }

    /// Returns the ids of the operations that an operation waits for, sorted.
    pub(super) fn dependencies(&self, op: u32) -> &[u32] {
        self.waits.get(op)
    }

    /// Returns the operations ordered by level, then by id: a topological order.
    pub(super) fn level_order(&self) -> Vec<u32> {
        order_by_key(self.ops.iter().map(|op| op.level))
    }

    /// Replaces dependencies on operations that move no data by the dependencies of those operations.
    pub(super) fn inline_waits(&mut self) -> Result<(), WriteError> {
        const MAX: usize = 1 << 24;
        if self.ops.iter().all(|op| op.kind.moves_data()) {
            return Ok(());
        }
        // Data-moving operations by which each other operation is replaced, in level order.
        let mut represented: Vec<Vec<u32>> = vec![Vec::new(); self.ops.len()];
        let mut total = 0;
        for id in self.level_order().into_iter().filter(|&id| !self.ops[id as usize].kind.moves_data()) {
            let mut resolved: Vec<u32> = self.resolve_waits(id, &represented).collect();
            resolved.sort_unstable();
            resolved.dedup();
            total += resolved.len();
            if total > MAX {
                return Err(self.unsupported(id, "it waits for too many operations, directly or indirectly"));
            }
            represented[id as usize] = resolved;
        }
        let mut waits = Lists::with_capacity(self.ops.len());
        for id in 0..self.ops.len() as u32 {
            waits.extend(self.resolve_waits(id, &represented));
            waits.close_sorted();
            if waits.items().len() > MAX {
                return Err(self.unsupported(id, "it waits for too many operations, directly or indirectly"));
            }
        }
        self.waits = waits;
        Ok(())
    }

    /// Returns the dependencies of an operation; operations that move no data are replaced by the operations that
    /// `represented` lists for them.
    fn resolve_waits<'a>(&'a self, id: u32, represented: &'a [Vec<u32>]) -> impl Iterator<Item = u32> + 'a {
        let represented_ops = |on: &'a u32| match self.ops[*on as usize].kind.moves_data() {
            true => std::slice::from_ref(on),
            false => &represented[*on as usize],
        };
        self.dependencies(id).iter().flat_map(represented_ops).copied()
    }

    /// Returns the buffer letter and the offset of a range of a rank's buffer, as used in files.
    pub(super) fn name(&self, op: u32, rank: u32, range: UnitRange) -> Result<(char, u32), WriteError> {
        let letter = match range.buffer {
            Buffer::Input => 'i',
            Buffer::Output => 'o',
            Buffer::Scratch => 's',
        };
        let chunk = ChunkRef { buffer: range.buffer, index: range.start };
        let limit = match range.buffer {
            Buffer::Input => self.numbering.per_gpu.input,
            Buffer::Output => self.numbering.per_gpu.output,
            Buffer::Scratch => self.scratch,
        };
        let offset = self.numbering.offset(rank, chunk).filter(|offset| offset.saturating_add(range.count) <= limit);
        offset
            .map(|offset| (letter, offset))
            .ok_or_else(|| self.unsupported(op, "it uses a part of a buffer that is not its rank's"))
    }

    /// Creates the error for an operation that cannot be written.
    pub(super) fn unsupported(&self, op: u32, reason: &str) -> WriteError {
        let flat_op = &self.ops[op as usize];
        unsupported(OpId(op), flat_op.rank, flat_op.kind, flat_op.peer, reason)
    }
}

fn unsupported(operation: OpId, rank: u32, kind: OpKind, peer: u32, reason: &str) -> WriteError {
    let description = if kind.is_multicast() {
        format!("rank {rank}, {}, team {peer}", kind.name())
    } else if kind.is_transfer() || kind == OpKind::Signal {
        format!("rank {rank}, {}, rank {peer}", kind.name())
    } else {
        format!("rank {rank}, {}", kind.name())
    };
    WriteError::Unsupported { operation, description, reason: reason.to_owned() }
}

/// Returns the canonical reference to a chunk. In place, input and output are one buffer, which has the name of the one
/// that every rank holds as a whole.
pub(super) fn canonical_chunk(chunk: ChunkRef, collective: Collective, buffers: BufferUse) -> ChunkRef {
    let chunk = cell(chunk, buffers);
    match (chunk.buffer, buffers, collective) {
        (Buffer::Output, BufferUse::InPlace, Collective::ReduceScatter | Collective::Scatter) => {
            ChunkRef { buffer: Buffer::Input, ..chunk }
        }
        _ => chunk,
    }
}

/// Returns the name of a collective in the files of other tools.
pub(super) fn collective_name(collective: Collective) -> &'static str {
    match collective {
        Collective::AllReduce => "allreduce",
        Collective::AllGather => "allgather",
        Collective::ReduceScatter => "reducescatter",
        Collective::Broadcast => "broadcast",
        Collective::Reduce => "reduce",
        Collective::AllToAll => "alltoall",
        Collective::Gather => "gather",
        Collective::Scatter => "scatter",
        Collective::SendRecv => "sendrecv",
        Collective::AllToAllV => "alltoallv",
        Collective::Barrier => "barrier",
    }
}
