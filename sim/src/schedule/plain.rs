//! A schedule as writers of other formats want it: every operation with its memory in units and all that it waits for.

use super::format::WriteError;
use super::order::Graph;
use super::places::{Places, cell};
use super::units::{Stretch, Units};
use super::{Buffer, BufferUse, ChunkRef, Collective, OpId, OpKind, Operation, RunId, Schedule};

/// More chunks moved in all than this are neither written nor read.
pub(super) const MOST_MOVED: u64 = 1 << 22;

/// More operations than this are not written: a line each.
pub(super) const MOST_OPERATIONS: u32 = 1 << 18;

/// An operation.
#[derive(Clone, Debug)]
pub(super) struct PlainOp {
    pub(super) kind: OpKind,
    pub(super) rank: u32,
    /// A rank, or a team where a switch is passed.
    pub(super) peer: u32,
    pub(super) channel: u16,
    /// Chunks read, in the numbering of the call.
    pub(super) src: Stretch,
    /// Chunks written.
    pub(super) dst: Stretch,
    pub(super) after: Vec<u32>,
    /// Operations on the longest chain before it.
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

    /// Whether bytes cross from one rank to another, by a way of these two.
    pub(super) fn crosses(&self) -> bool {
        self.kind.is_transfer() && !self.kind.is_multicast() && self.peer != self.rank
    }
}

/// The first operation of a team, if there is one.
fn first_multicast(schedule: &Schedule) -> Option<Operation> {
    let is_multicast = |run: RunId| schedule.run(run).kind.is_multicast() && schedule.run(run).len > 0;
    let run = (0..schedule.run_count()).map(RunId).find(|&run| is_multicast(run))?;
    Some(schedule.operation(schedule.op_id(run, 0)))
}

/// Whether a format has words for what switches combine and copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Switches {
    Unknown,
    Known,
}

/// All operations, by id.
pub(super) struct Plain {
    pub(super) ops: Vec<PlainOp>,
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
            let mut after: Vec<u32> = schedule.waits_for(op.run, op.index).map(|on| on.0).collect();
            after.sort_unstable();
            after.dedup();
            ops.push(PlainOp {
                kind: op.kind,
                rank: op.rank.0,
                peer: op.team.map_or(op.peer.0, |team| team.0),
                channel: op.channel.0,
                src,
                dst,
                after,
                level,
            });
        }
        // A transfer is a step at each end, and files that move more are not read.
        let moved: u64 = ops.iter().map(|op| 2 * u64::from(op.dst.count)).sum();
        if moved > MOST_MOVED {
            let reason = format!("the common one is so small that {moved} are moved; expected at most {MOST_MOVED}");
            return Err(WriteError::UnequalChunks { reason });
        }
        Ok(Self { ops, places, scratch: units.scratch })
    }

    /// Replaces waiting for operations that move nothing by waiting for what they wait for.
    pub(super) fn see_through_waits(&mut self) -> Result<(), WriteError> {
        const MOST: usize = 1 << 24;
        let mut by_level: Vec<u32> = (0..self.ops.len() as u32).collect();
        by_level.sort_by_key(|&op| self.ops[op as usize].level);
        let mut total = 0;
        for id in by_level {
            let after = std::mem::take(&mut self.ops[id as usize].after);
            let mut seen = Vec::with_capacity(after.len());
            for on in after {
                let op = &self.ops[on as usize];
                if op.kind.moves_data() {
                    seen.push(on);
                } else {
                    seen.extend(&op.after);
                }
            }
            seen.sort_unstable();
            seen.dedup();
            total += seen.len();
            if total > MOST {
                return Err(self.unsupported(id, "it waits for too many operations, by way of others"));
            }
            self.ops[id as usize].after = seen;
        }
        Ok(())
    }

    /// What a file calls a stretch of a rank's buffer, by letter and offset.
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

    /// Why an operation cannot be written.
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

/// In place, input and output are one; it goes by the name of the buffer that every rank has whole.
pub(super) fn named_once(chunk: ChunkRef, collective: Collective, buffers: BufferUse) -> ChunkRef {
    let chunk = cell(chunk, buffers);
    match (chunk.buffer, buffers, collective) {
        (Buffer::Output, BufferUse::InPlace, Collective::ReduceScatter | Collective::Scatter) => {
            ChunkRef { buffer: Buffer::Input, ..chunk }
        }
        _ => chunk,
    }
}

/// What files call a collective.
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
