//! Collectives that MPI runs in host memory: the whole input is copied there, the collective runs in place, and the
//! whole result is copied back.
//!
//! Open MPI reduces on the CPU; for buffers in GPU memory, its `accelerator` component stages reductions like this. The
//! processes then exchange host memory. The time is that of the inner algorithm in host memory, plus two copies of the
//! bytes between a device and its CPU that overlap with nothing. (Open MPI's extra copy of the old output contents is
//! not modelled.)
//!
//! The working copy is in scratch, after the inner schedule's own slots: `chunks` slots that represent input and
//! output, as in an in-place call. Run 0 of every rank fills it, and the last run copies the rank's result out. If an
//! algorithm reduces with the target's input into scratch, the target first copies that chunk of its working copy
//! there, like an MPI implementation that reduces into a temporary buffer.
//!
//! Source: Open MPI 5.0 ompi/mca/coll/accelerator/coll_accelerator_allreduce.c, _reduce.c, _reduce_scatter_block.c
//! (4.1: ompi/mca/coll/cuda).
//!
//! # Example
//!
//! An all_reduce whose sums are computed on the CPUs. The first operation of rank 0 copies its input to host memory,
//! the last one copies the result back.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, OpKind, Processor, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 4, root: Rank(0), buffers };
//! let shape = Shape { reduction_device: Processor::Host, ..Shape::new(call, Protocol::Simple) };
//! let schedule = Schedule::build(&*generator(Algorithm::Ring, &shape)?)?;
//! let operations = schedule.operations().filter(|op| op.rank == Rank(0));
//! let kinds: Vec<OpKind> = operations.map(|op| op.kind).collect();
//! assert_eq!(schedule.header().blocks.processor, Processor::Host);
//! assert_eq!((kinds.first(), kinds.last()), (Some(&OpKind::Copy), Some(&OpKind::Copy)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, BufferUse, Call, Channel, ChunkRef, Collective, Dependency, Header, OpKind, Processor, Program, Rank, Run,
    ScheduleGenerator, Walk,
};

use super::{Algorithm, Shape, Unsupported, generator};

/// Schedule generator of an algorithm in host memory, between copies.
pub(super) struct HostStaging {
    header: Header,
    inner: Box<dyn ScheduleGenerator + Send + Sync>,
    /// Scratch slot of the working copy's first chunk.
    copy: u32,
    /// By rank, the initial chunks of its scratch sums as (first, count), in ascending order. Each has one run after
    /// [`FILL`].
    initial_chunks: Vec<Vec<(u32, u32)>>,
    /// By rank, the dependencies of its last run.
    last: Vec<Vec<Dependency>>,
}

/// Number of the run that fills the working copy.
const FILL: u32 = 0;

impl HostStaging {
    pub(super) fn new(algorithm: Algorithm, shape: &Shape) -> Result<Self, Unsupported> {
        let call = Call { buffers: BufferUse::InPlace, ..shape.call };
        let inner = generator(algorithm, &Shape { call, reduction_device: Processor::Device, ..shape.clone() })?;
        let chunks = inner.header().layout.chunks().max(1);
        let too_many = |chunks: u64| Unsupported::TooManyChunks { chunks };
        // Slots have the sizes of the corresponding chunks.
        let copy = inner.header().scratch_chunks.div_ceil(chunks).checked_mul(chunks);
        let end = copy.and_then(|copy| copy.checked_add(chunks));
        let (Some(copy), Some(scratch_chunks)) = (copy, end) else {
            return Err(too_many(u64::from(inner.header().scratch_chunks) + 2 * u64::from(chunks)));
        };
        let mut header = Header { call: shape.call, scratch_chunks, ..inner.header().clone() };
        header.blocks.processor = Processor::Host;
        let mut staged = Self { header, inner, copy, initial_chunks: Vec::new(), last: Vec::new() };
        staged.initial_chunks = staged.find_initial_chunks().ok_or(Unsupported::NotStaged { algorithm })?;
        staged.last = staged.writers();
        Ok(staged)
    }

    /// Returns the initial chunks of the sums in each rank's scratch; `None` if the initial value of some sum is not a
    /// chunk of the call.
    fn find_initial_chunks(&self) -> Option<Vec<Vec<(u32, u32)>>> {
        let Call { ranks, .. } = self.header.call;
        let mut initial_chunks = vec![Vec::new(); ranks as usize];
        let mut program = Program::default();
        for rank in (0..ranks).map(Rank) {
            program.clear();
            self.inner.program(rank, &mut program);
            for run in program.runs().iter().filter(|run| begins_in_scratch(run)) {
                for index in 0..run.len {
                    let from = run.dst.at(index);
                    let end = from.checked_add(run.span).filter(|&end| end <= self.header.layout.chunks());
                    initial_chunks.get_mut(run.peer.at(index) as usize).zip(end)?.0.push((from, run.span));
                }
            }
        }
        for chunks in &mut initial_chunks {
            chunks.sort_unstable();
            chunks.dedup();
        }
        Some(initial_chunks)
    }

    /// Returns the number of the run that corresponds to run `inner` of the inner schedule.
    fn run_number(&self, rank: Rank, inner: u32) -> u32 {
        FILL + 1 + self.initial_chunks.get(rank.0 as usize).map_or(0, |chunks| chunks.len() as u32) + inner
    }

    /// Returns all operations that write the working copy of each rank.
    fn writers(&self) -> Vec<Vec<Dependency>> {
        let ranks = self.header.call.ranks;
        let mut writers = vec![Vec::new(); ranks as usize];
        let mut program = Program::default();
        for rank in (0..ranks).map(Rank) {
            program.clear();
            self.inner.program(rank, &mut program);
            for (run, number) in program.runs().iter().zip(self.run_number(rank, 0)..) {
                let writes = run.kind.moves_data() && run.dst_buffer != Buffer::Scratch;
                for index in (0..run.len).filter(|_| writes) {
                    let target = if run.kind.writes_peer() { Rank(run.peer.at(index)) } else { rank };
                    if let Some(list) = writers.get_mut(target.0 as usize) {
                        list.push(Dependency::on_operation(rank, number, index));
                    }
                }
            }
        }
        writers
    }

    /// Returns the chunks of a rank's result as (first, count); `None` if the rank has no result.
    fn result(&self, rank: Rank) -> Option<(u32, u32)> {
        let (call, chunks) = (self.header.call, self.header.layout.chunks());
        match call.collective {
            Collective::AllReduce => Some((0, chunks)),
            Collective::Reduce => (rank == call.root).then_some((0, chunks)),
            _ => {
                let block = chunks / call.ranks.max(1);
                Some((rank.0 * block, block))
            }
        }
    }

    /// Maps a buffer of the inner schedule, and a walk over its chunks, to the working copy.
    fn map_to_working_copy(&self, buffer: Buffer, walk: Walk) -> (Buffer, Walk) {
        match buffer {
            Buffer::Scratch => (buffer, walk),
            Buffer::Input | Buffer::Output => {
                (Buffer::Scratch, Walk { base: walk.base.wrapping_add(self.copy), ..walk })
            }
        }
    }
}

/// Returns true if the operations reduce with the target's input into scratch.
fn begins_in_scratch(run: &Run) -> bool {
    run.kind == OpKind::PutReduceInput && run.dst_buffer == Buffer::Scratch
}

/// Returns a run that copies `span` chunks between two buffers of a rank.
fn copy(rank: Rank, src: ChunkRef, dst: ChunkRef, span: u32) -> Run {
    Run {
        len: 1,
        kind: OpKind::Copy,
        channel: Channel(0),
        peer: Walk::fixed(rank.0),
        src_buffer: src.buffer,
        src: Walk::fixed(src.index),
        dst_buffer: dst.buffer,
        dst: Walk::fixed(dst.index),
        span,
    }
}

impl ScheduleGenerator for HostStaging {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let chunks = self.header.layout.chunks();
        let input = ChunkRef { buffer: Buffer::Input, index: 0 };
        let scratch = |index: u32| ChunkRef { buffer: Buffer::Scratch, index };
        program.push(copy(rank, input, scratch(self.copy), chunks), &[]);
        let filled = |rank: Rank| Dependency::on_operation(rank, FILL, 0);
        for &(from, span) in self.initial_chunks.get(rank.0 as usize).into_iter().flatten() {
            let initialize = copy(rank, scratch(self.copy + from), scratch(from), span);
            program.push(initialize, &[filled(rank)]);
        }
        let mut inner = Program::default();
        self.inner.program(rank, &mut inner);
        let mut waits = Vec::new();
        for (number, run) in inner.runs().iter().enumerate() {
            waits.clear();
            let inner_waits = inner.dependencies(number).iter();
            waits.extend(inner_waits.map(|wait| Dependency { run: self.run_number(wait.rank, wait.run), ..*wait }));
            waits.push(filled(rank));
            // A peer's working copy must be filled before it is written or read.
            if run.kind.writes_peer() || run.kind.reads_peer() {
                let mut peers: Vec<u32> = (0..run.len).map(|index| run.peer.at(index)).collect();
                peers.sort_unstable();
                peers.dedup();
                waits.extend(peers.into_iter().filter(|&peer| peer != rank.0).map(|peer| filled(Rank(peer))));
            }
            if begins_in_scratch(run) {
                let initialized = |index: u32| {
                    let (peer, chunks) = (Rank(run.peer.at(index)), (run.dst.at(index), run.span));
                    let position = self.initial_chunks.get(peer.0 as usize)?.binary_search(&chunks).ok()?;
                    Some(Dependency::on_operation(peer, FILL + 1 + position as u32, 0))
                };
                waits.extend((0..run.len).filter_map(initialized));
            }
            let (src_buffer, src) = self.map_to_working_copy(run.src_buffer, run.src);
            let (dst_buffer, dst) = self.map_to_working_copy(run.dst_buffer, run.dst);
            // The target's own contribution is already at the destination of the sum.
            let kind = if run.kind == OpKind::PutReduceInput { OpKind::PutReduce } else { run.kind };
            program.push(Run { kind, src_buffer, src, dst_buffer, dst, ..*run }, &waits);
        }
        if let Some((from, span)) = self.result(rank) {
            let mut waits = vec![filled(rank)];
            waits.extend(self.last.get(rank.0 as usize).into_iter().flatten());
            let output = ChunkRef { buffer: Buffer::Output, index: from };
            program.push(copy(rank, scratch(self.copy + from), output, span), &waits);
        }
    }
}
