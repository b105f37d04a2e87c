//! Flat view of a schedule for writers of other formats: every operation with its memory in units and its dependencies.

use super::format::WriteError;
use super::lists::{Lists, by_key};
use super::order::Graph;
use super::places::{Places, cell};
use super::units::{Stretch, Units};
use super::{Buffer, BufferUse, ChunkRef, Collective, OpId, OpKind, Operation, RunId, Schedule};

/// Largest number of units moved in total that is written or read.
pub(super) const MOST_MOVED: u64 = 1 << 22;

/// Largest number of operations written; each is one line of a file.
pub(super) const MOST_OPERATIONS: u32 = 1 << 18;

/// One operation, flattened.
#[derive(Clone, Debug)]
pub(super) struct PlainOp {
    pub(super) kind: OpKind,
    pub(super) rank: u32,
    /// Rank, or team for multicast operations.
    pub(super) peer: u32,
    pub(super) channel: u16,
    /// Chunks read, in the call's numbering.
    pub(super) src: Stretch,
    /// Chunks written.
    pub(super) dst: Stretch,
    /// Length of the longest dependency chain before it.
    pub(super) level: u32,
}

impl PlainOp {
    /// The rank whose memory is read.
    pub(super) fn source(&self) -> u32 {
        if self.kind.reads_peer() { self.peer } else { self.rank }
    }

    /// The rank whose memory is written.
    pub(super) fn target(&self) -> u32 {
        if self.kind.writes_peer() { self.peer } else { self.rank }
    }

    /// Returns true if bytes move between two different ranks, without multicast.
    pub(super) fn crosses(&self) -> bool {
        self.kind.is_transfer() && !self.kind.is_multicast() && self.peer != self.rank
    }
}

/// The first multicast operation, if there is one.
fn first_multicast(schedule: &Schedule) -> Option<Operation> {
    let is_multicast = |run: RunId| schedule.run(run).kind.is_multicast() && schedule.run(run).len > 0;
    let run = (0..schedule.run_count()).map(RunId).find(|&run| is_multicast(run))?;
    Some(schedule.operation(schedule.op_id(run, 0)))
}

/// Support of a format for switch multicast and reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Switches {
    Unknown,
    Known,
}

/// All operations, by id.
pub(super) struct Plain {
    pub(super) ops: Vec<PlainOp>,
    /// Dependencies of each operation, sorted.
    pub(super) waits: Lists,
    pub(super) places: Places,
    /// Scratch of a rank, in units.
    pub(super) scratch: u32,
}

impl Plain {
    /// # Errors
    /// [`WriteError`]: too many operations, chunks of no common size, operations that wait for each other.
    pub(super) fn new(schedule: &Schedule, format: &'static str, switches: Switches) -> Result<Self, WriteError> {
        let header = schedule.header();
        let collective = header.call.collective;
        if !collective.has_sizes() {
            return Err(WriteError::Collective { format, collective });
        }
        if let Some(op) = first_multicast(schedule).filter(|_| switches == Switches::Unknown) {
            let what = format!("rank {}, {}", op.rank.0, op.kind.name());
            let reason = format!("{format} files are written without multicast");
            return Err(WriteError::Unsupported { operation: op.id, what, reason });
        }
        if schedule.operation_count() > MOST_OPERATIONS {
            let (operations, most) = (u64::from(schedule.operation_count()), u64::from(MOST_OPERATIONS));
            return Err(WriteError::TooLarge { format, operations, most });
        }
        let units = Units::new(schedule)?;
        let call = header.call;
        let blocks = units.total() / call.ranks.max(1);
        let per_gpu = match call.collective {
            Collective::AllGather | Collective::Gather => (blocks, units.total()),
            Collective::ReduceScatter | Collective::Scatter => (units.total(), blocks),
            _ => (units.total(), units.total()),
        };
        let places = Places {
            collective: call.collective,
            buffers: call.buffers,
            chunks: units.total(),
            per_gpu,
            scratch_from: 0,
        };
        let graph = Graph::new(schedule);
        let order = graph
            .order()
            .map_err(|cycle| WriteError::Deadlock { operation: cycle.0.first().copied().unwrap_or_default() })?;
        let levels = graph.levels(&order);
        let mut ops = Vec::with_capacity(levels.len());
        let mut waits = Lists::with_capacity(levels.len());
        for (op, level) in schedule.operations().zip(levels) {
            let stretch = |chunk: ChunkRef| match op.kind.moves_data() {
                true => units.stretch(named_once(chunk, call.collective, call.buffers), op.span),
                false => Some(Stretch { buffer: Buffer::Output, from: 0, count: 0 }),
            };
            let unsupported = |reason: &str| unsupported(op.id, op.rank.0, op.kind, op.peer.0, reason);
            let (Some(src), Some(dst)) = (stretch(op.src), stretch(op.dst)) else {
                return Err(unsupported("its chunks cannot be counted in equal units"));
            };
            if src.count != dst.count {
                return Err(unsupported("it moves chunks to a place of another size"));
            }
            waits.extend(graph.dependencies(op.id.0));
            waits.close_sorted();
            ops.push(PlainOp {
                kind: op.kind,
                rank: op.rank.0,
                peer: op.team.map_or(op.peer.0, |team| team.0),
                channel: op.channel.0,
                src,
                dst,
                level,
            });
        }
        // A transfer is a step at each end; readers reject files that move more.
        let moved: u64 = ops.iter().map(|op| 2 * u64::from(op.dst.count)).sum();
        if moved > MOST_MOVED {
            return Err(WriteError::TooFine { moved, most: MOST_MOVED });
        }
        Ok(Self { ops, waits, places, scratch: units.scratch })
    }

    /// The operations that an operation waits for, sorted.
    pub(super) fn after(&self, op: u32) -> &[u32] {
        self.waits.of(op)
    }

    /// The operations by level, then by id: a topological order.
    pub(super) fn by_level(&self) -> Vec<u32> {
        by_key(self.ops.iter().map(|op| op.level))
    }

    /// Replaces dependencies on operations that move no data by the dependencies of those operations.
    pub(super) fn see_through_waits(&mut self) -> Result<(), WriteError> {
        const MOST: usize = 1 << 24;
        if self.ops.iter().all(|op| op.kind.moves_data()) {
            return Ok(());
        }
        // Data-moving operations that each other operation represents, in level order.
        let mut seen: Vec<Vec<u32>> = vec![Vec::new(); self.ops.len()];
        let mut total = 0;
        for id in self.by_level().into_iter().filter(|&id| !self.ops[id as usize].kind.moves_data()) {
            let mut through: Vec<u32> = self.through(id, &seen).collect();
            through.sort_unstable();
            through.dedup();
            total += through.len();
            if total > MOST {
                return Err(self.unsupported(id, "it waits for too many operations, by way of others"));
            }
            seen[id as usize] = through;
        }
        let mut waits = Lists::with_capacity(self.ops.len());
        for id in 0..self.ops.len() as u32 {
            waits.extend(self.through(id, &seen));
            waits.close_sorted();
            if waits.all().len() > MOST {
                return Err(self.unsupported(id, "it waits for too many operations, by way of others"));
            }
        }
        self.waits = waits;
        Ok(())
    }

    /// Dependencies of an operation, with operations that move no data replaced by those they represent.
    fn through<'a>(&'a self, id: u32, seen: &'a [Vec<u32>]) -> impl Iterator<Item = u32> + 'a {
        let stands_for = |on: &'a u32| match self.ops[*on as usize].kind.moves_data() {
            true => std::slice::from_ref(on),
            false => &seen[*on as usize],
        };
        self.after(id).iter().flat_map(stands_for).copied()
    }

    /// Buffer letter and offset of a stretch of a rank's buffer, as used in files.
    pub(super) fn name(&self, op: u32, rank: u32, stretch: Stretch) -> Result<(char, u32), WriteError> {
        let letter = match stretch.buffer {
            Buffer::Input => 'i',
            Buffer::Output => 'o',
            Buffer::Scratch => 's',
        };
        let chunk = ChunkRef { buffer: stretch.buffer, index: stretch.from };
        let limit = match stretch.buffer {
            Buffer::Input => self.places.per_gpu.0,
            Buffer::Output => self.places.per_gpu.1,
            Buffer::Scratch => self.scratch,
        };
        let offset = self.places.offset(rank, chunk).filter(|offset| offset.saturating_add(stretch.count) <= limit);
        offset
            .map(|offset| (letter, offset))
            .ok_or_else(|| self.unsupported(op, "it uses a part of a buffer that is not its rank's"))
    }

    /// Creates the error for an operation that cannot be written.
    pub(super) fn unsupported(&self, op: u32, reason: &str) -> WriteError {
        let plain = &self.ops[op as usize];
        unsupported(OpId(op), plain.rank, plain.kind, plain.peer, reason)
    }
}

fn unsupported(operation: OpId, rank: u32, kind: OpKind, peer: u32, reason: &str) -> WriteError {
    let what = if kind.is_multicast() {
        format!("rank {rank}, {}, team {peer}", kind.name())
    } else if kind.is_transfer() || kind == OpKind::Signal {
        format!("rank {rank}, {}, rank {peer}", kind.name())
    } else {
        format!("rank {rank}, {}", kind.name())
    };
    WriteError::Unsupported { operation, what, reason: reason.to_owned() }
}

/// Unique reference to a chunk. In place, input and output are one buffer, named after the one that every rank holds
/// whole.
pub(super) fn named_once(chunk: ChunkRef, collective: Collective, buffers: BufferUse) -> ChunkRef {
    let chunk = cell(chunk, buffers);
    match (chunk.buffer, buffers, collective) {
        (Buffer::Output, BufferUse::InPlace, Collective::ReduceScatter | Collective::Scatter) => {
            ChunkRef { buffer: Buffer::Input, ..chunk }
        }
        _ => chunk,
    }
}

/// Name of a collective in other tools' files.
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
