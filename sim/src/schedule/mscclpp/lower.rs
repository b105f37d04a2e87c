//! Translates operations of plans into operations of schedules.
//!
//! | plan | schedule |
//! |---|---|
//! | `put`, `ppkt`, `rppkt`; `pws`, `pwsf` | a put for each destination; signalled |
//! | `get` | a get for each source |
//! | `copy`, `cpkt`, `upkt` | copy |
//! | `re`, `repkt`; `res`, `respkt` | a reduce for each addend; a put for each destination |
//! | `rre`; `rres` | a get_reduce for each peer's addend; a put for each destination |
//! | `recpkt`, `recspkt` | reduces, a copy into own packets, puts |
//! | `signal`, `rlxsignal` | carried by the preceding puts, or a signal |
//! | `wait`, `rlxwait`, `barrier`, `sem_acquire`, `sem_release` | dependencies of later operations |
//! | `glre`; `gstore`; `glres` | a multicast reduce; a multicast put; one after the other |
//! | `nop`, `pipeline`, `flush` | order within the thread block, which is preserved anyway |
//!
//! If the destination of a sum is not one of its addends, the sum begins with a copy (or get) of the first addend. An
//! operation that reads packets waits for the one that writes them, since packets carry flags. Operations that a
//! pipeline would overlap are executed in sequence.
//!
//! Module `switch` handles operations through switch channels.

use rustc_hash::FxHashMap;

use super::order::{BlockOrder, DependencyKey, Endpoints, OrderedDraft};
use super::parse::{BufferPieces, ChannelKey, OpContext, Plan, PlanGpu};
use crate::schedule::chunk_numbering::{ChunkNumbering, ChunksPerGpu, FileChunk, same_memory};
use crate::schedule::draft::Draft;
use crate::schedule::file_format::{FormatError, Source};
use crate::schedule::flat::MAX_UNITS_MOVED;
use crate::schedule::{Blocks, Buffer, BufferUse, Call, ChunkRef, Header, Layout, OpKind, Rank, Schedule};

/// Builds the schedule of a parsed plan.
///
/// # Errors
/// [`FormatError`] located at the operation that cannot be translated.
pub(super) fn lower(source: Source<'_>, plan: &Plan<'_>) -> Result<Schedule, FormatError> {
    let plan_error = |message: String| source.error(0..1, message);
    let buffers = if plan.in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace };
    let max_chunks = |count: fn(&PlanGpu<'_>) -> u32| {
        let (chunks, pieces) = (plan.gpus.iter().map(count).max().unwrap_or(0), plan.pieces);
        chunks.checked_mul(pieces).ok_or_else(|| plan_error(format!("{chunks} chunks, each in {pieces} pieces")))
    };
    let per_gpu =
        ChunksPerGpu { input: max_chunks(|gpu| gpu.input_chunks)?, output: max_chunks(|gpu| gpu.output_chunks)? };
    let scratch_chunks = max_chunks(|gpu| gpu.scratch_chunks)?;
    let numbering = ChunkNumbering::new(plan.collective, buffers, plan.gpus.len(), per_gpu).map_err(plan_error)?;
    let mut synchronization = Synchronization::default();
    let mut ordered = OrderedDraft::default();
    let mut moved = 0;
    for (rank, gpu) in plan.gpus.iter().enumerate() {
        for (number, block) in gpu.blocks.iter().enumerate() {
            let lane = BlockOrder::new(&mut ordered, rank as u32, number as u16, buffers);
            let mut lowering =
                BlockLowering { lane, synchronization: &mut synchronization, numbering: &numbering, moved: &mut moved };
            for op in &block.ops {
                lowering.lower_operation(OpContext { source, plan, rank: rank as u32, block: number as u32, op })?;
            }
            lowering.lane.finish();
        }
    }
    let draft = synchronization.resolve_all(ordered, plan)?;
    let blocks = plan.gpus.iter().map(|gpu| gpu.blocks.len()).max().unwrap_or(0);
    let bytes = numbering.assumed_bytes(plan.sizes.0, plan.sizes.1);
    let ranks = plan.gpus.len() as u32;
    let header = Header {
        name: plan.name.clone(),
        call: Call { collective: plan.collective, bytes, ranks, root: Rank(plan.root), buffers },
        protocol: plan.protocol,
        channels: u16::try_from(blocks).unwrap_or(u16::MAX).max(1),
        blocks: Blocks::default(),
        layout: Layout::equal(bytes, numbering.chunks),
        scratch_chunks,
        certificate: None,
        teams: plan.teams.iter().map(|ranks| ranks.iter().copied().map(Rank).collect()).collect(),
    };
    draft.schedule(header).map_err(|error| plan_error(error.to_string()))
}

/// Synchronization between thread blocks: signals, barriers, semaphores and packets.
#[derive(Default)]
pub(super) struct Synchronization<'p, 'a> {
    /// Dependencies that are not resolved yet, each with the operation that waits.
    pending_dependencies: Vec<(DependencyKey, OpContext<'p, 'a>)>,
    /// Number of waits on each channel, by the sending end of the channel.
    waits: FxHashMap<ChannelKey, u32>,
    /// Arrivals at each barrier, by (GPU, barrier, round). Each is the last operation before the barrier.
    barriers: FxHashMap<(u32, u32, u32), Vec<Option<u32>>>,
    /// Number of times each thread block has reached each barrier, by (GPU, barrier, thread block).
    rounds: FxHashMap<(u32, u32, u32), u32>,
    semaphores: FxHashMap<(u32, u32), Semaphore>,
    /// First operation that writes packets into each scratch chunk, by (GPU, chunk).
    packets: FxHashMap<(u32, u32), u32>,
}

/// Counter between thread blocks. A release is (thread block, last operation before it); acquisitions are listed by
/// thread block.
#[derive(Default)]
struct Semaphore {
    releases: Vec<(u32, Option<u32>)>,
    acquirers: Vec<u32>,
}

impl Synchronization<'_, '_> {
    /// Resolves all dependencies, and returns the draft.
    ///
    /// # Errors
    /// [`FormatError`] at an operation that waits for a signal, barrier, semaphore or packet that never arrives.
    fn resolve_all(&self, ordered: OrderedDraft, plan: &Plan<'_>) -> Result<Draft, FormatError> {
        let mut resolved: FxHashMap<DependencyKey, Vec<u32>> = FxHashMap::default();
        for (after, context) in &self.pending_dependencies {
            let ops = self.resolve(*after, context, &ordered, plan)?;
            resolved.insert(*after, ops);
        }
        let OrderedDraft { mut draft, after, .. } = ordered;
        for (op, after) in after.iter().enumerate() {
            let op = op as u32;
            for after in after {
                match after {
                    DependencyKey::Op(on) => draft.wait(op, [*on]),
                    key => draft.wait(op, resolved.get(key).into_iter().flatten().copied().filter(|&on| on != op)),
                }
            }
        }
        Ok(draft)
    }

    /// Returns the operations that a dependency represents.
    fn resolve(
        &self,
        key: DependencyKey,
        context: &OpContext<'_, '_>,
        ordered: &OrderedDraft,
        plan: &Plan<'_>,
    ) -> Result<Vec<u32>, FormatError> {
        match key {
            DependencyKey::Op(op) => Ok(vec![op]),
            DependencyKey::Signal(channel, n) => {
                let signals = ordered.signals.get(&channel).map_or(&[][..], Vec::as_slice);
                signals.get(n as usize).cloned().ok_or_else(|| {
                    let sender = channel.0;
                    context.error(format!(
                        "waits for signal {n} from gpu {sender}, which sends {} by that channel",
                        signals.len()
                    ))
                })
            }
            DependencyKey::Barrier(gpu, id, round) => {
                let arrived = self.barriers.get(&(gpu, id, round)).map_or(&[][..], Vec::as_slice);
                let expected = context.op.text.num_threadblocks as usize;
                if arrived.len() != expected {
                    let message =
                        format!("waits at barrier {id} for {expected} thread blocks, and {} arrive", arrived.len());
                    return Err(context.error(message));
                }
                Ok(arrived.iter().flatten().copied().collect())
            }
            DependencyKey::Semaphore(gpu, id, n) => {
                let initial =
                    plan.gpus.get(gpu as usize).and_then(|gpu| gpu.semaphores.get(id as usize)).copied().unwrap_or(0);
                let Some(semaphore) = self.semaphores.get(&(gpu, id)) else { return Ok(Vec::new()) };
                semaphore
                    .acquired(n, initial)
                    .map_err(|message| context.error(format!("acquires semaphore {id}, {message}")))
            }
            DependencyKey::Packet(gpu, chunk) => match self.packets.get(&(gpu, chunk)) {
                Some(&op) => Ok(vec![op]),
                None => Err(context.error(format!(
                    "waits for packets in scratch chunk {chunk} (in pieces), which no operation writes"
                ))),
            },
        }
    }
}

impl Semaphore {
    /// Returns the operations that are done after the n-th acquisition. If several thread blocks release the semaphore,
    /// their order is unknown until the last release.
    ///
    /// # Errors
    /// A message if the semaphore is acquired more often than released, or acquired by several thread blocks.
    fn acquired(&self, n: u32, initial: u32) -> Result<Vec<u32>, String> {
        let Some(n) = n.checked_sub(initial) else { return Ok(Vec::new()) };
        if self.acquirers.iter().any(|block| self.acquirers.first() != Some(block)) {
            return Err("as another thread block does: their order is undefined".to_owned());
        }
        let Some((_, release)) = self.releases.get(n as usize) else {
            return Err(format!("which is released {} times only", self.releases.len()));
        };
        let single_releaser =
            self.releases.iter().all(|(block, _)| self.releases.first().map(|first| first.0) == Some(*block));
        if single_releaser {
            return Ok(release.iter().copied().collect());
        }
        let is_last = n as usize + 1 == self.releases.len();
        Ok(self.releases.iter().filter(|_| is_last).filter_map(|(_, release)| *release).collect())
    }
}

/// Translator of the operations of one thread block, in sequence.
pub(super) struct BlockLowering<'t, 'p, 'a> {
    pub(super) lane: BlockOrder<'t>,
    synchronization: &'t mut Synchronization<'p, 'a>,
    numbering: &'t ChunkNumbering,
    moved: &'t mut u64,
}

/// Form in which an operation moves data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DataForm {
    /// Plain data, which other operations signal.
    Plain,
    /// Packets, which carry flags that their readers wait for.
    Packets,
}

/// Options of a sum operation.
struct Sum {
    /// Form in which addends are read and the sum is sent.
    form: DataForm,
    /// True if the sum is also written to the GPU's own packets.
    writes_own_packets: bool,
    sends: bool,
}

impl<'p, 'a> BlockLowering<'_, 'p, 'a> {
    fn lower_operation(&mut self, context: OpContext<'p, 'a>) -> Result<(), FormatError> {
        let sum = |form, writes_own_packets, sends| Sum { form, writes_own_packets, sends };
        match context.op.text.name.as_str() {
            "nop" | "pipeline" => Ok(()),
            "flush" => {
                self.lane.flush();
                Ok(())
            }
            "signal" | "rlxsignal" => self.signal(context),
            "wait" | "rlxwait" => self.wait(context),
            "barrier" => {
                self.barrier(context);
                Ok(())
            }
            "sem_acquire" | "sem_release" => self.semaphore(context),
            "put" => self.put(context, DataForm::Plain),
            "ppkt" => self.put(context, DataForm::Packets),
            "pws" | "pwsf" => {
                self.put(context, DataForm::Plain)?;
                self.signal(context)?;
                if context.op.text.name == "pwsf" {
                    self.lane.flush();
                }
                Ok(())
            }
            "rppkt" => self.forward_packets(context),
            "get" => self.get(context),
            "copy" | "cpkt" | "upkt" => self.copy(context),
            "re" | "rre" => self.sum(context, &sum(DataForm::Plain, false, false)),
            "res" | "rres" => self.sum(context, &sum(DataForm::Plain, false, true)),
            "repkt" => self.sum(context, &sum(DataForm::Packets, false, false)),
            "respkt" => self.sum(context, &sum(DataForm::Packets, false, true)),
            "recpkt" => self.sum(context, &sum(DataForm::Packets, true, false)),
            "recspkt" => self.sum(context, &sum(DataForm::Packets, true, true)),
            "glre" | "glres" | "gstore" => self.lower_switch_operation(context),
            _ => Err(context.error("is of no known type")),
        }
    }

    fn wait_for(&mut self, key: DependencyKey, context: OpContext<'p, 'a>) {
        self.synchronization.pending_dependencies.push((key, context));
        self.lane.wait(key);
    }

    fn signal(&mut self, context: OpContext<'p, 'a>) -> Result<(), FormatError> {
        for (channel, peer) in context.channels()? {
            self.lane.signal(channel, peer);
        }
        Ok(())
    }

    fn wait(&mut self, context: OpContext<'p, 'a>) -> Result<(), FormatError> {
        for (channel, peer) in context.channels()? {
            let Some(sender) = context.other_end(channel) else {
                return Err(context.error(format!("waits for gpu {peer}, which has no channel to it")));
            };
            let n = self.synchronization.waits.entry(sender).or_default();
            let key = DependencyKey::Signal(sender, *n);
            *n += 1;
            self.wait_for(key, context);
        }
        Ok(())
    }

    fn barrier(&mut self, context: OpContext<'p, 'a>) {
        let id = context.op.text.barrier_id;
        let round = self.synchronization.rounds.entry((context.rank, id, context.block)).or_default();
        let key = (context.rank, id, *round);
        *round += 1;
        let last_op = self.lane.join();
        self.synchronization.barriers.entry(key).or_default().push(last_op);
        self.wait_for(DependencyKey::Barrier(key.0, key.1, key.2), context);
    }

    fn semaphore(&mut self, context: OpContext<'p, 'a>) -> Result<(), FormatError> {
        let count = context.plan.gpus.get(context.rank as usize).map_or(0, |gpu| gpu.semaphores.len());
        let releases = context.op.text.name == "sem_release";
        let last_op = if releases { self.lane.join() } else { None };
        for &id in &context.op.text.semaphore_ids {
            if id as usize >= count {
                return Err(context.error(format!("uses semaphore {id} of {count}")));
            }
            let semaphore = self.synchronization.semaphores.entry((context.rank, id)).or_default();
            if releases {
                semaphore.releases.push((context.block, last_op));
            } else {
                semaphore.acquirers.push(context.block);
                let n = semaphore.acquirers.len() as u32 - 1;
                self.wait_for(DependencyKey::Semaphore(context.rank, id, n), context);
            }
        }
        Ok(())
    }

    fn put(&mut self, context: OpContext<'p, 'a>, form: DataForm) -> Result<(), FormatError> {
        let (src, dst) = context.chunks()?;
        if src.len() != dst.len() || src.is_empty() {
            return Err(context.error(format!("has {} sources for {} destinations", src.len(), dst.len())));
        }
        src.iter().zip(&dst).try_for_each(|(src, dst)| self.store(context, *src, *dst, form))
    }

    fn forward_packets(&mut self, context: OpContext<'p, 'a>) -> Result<(), FormatError> {
        let (src, dst) = context.chunks()?;
        let [src] = src[..] else {
            return Err(context.error(format!("has {} sources; expected 1", src.len())));
        };
        self.await_packets(context, src)?;
        dst.iter().try_for_each(|dst| self.store(context, src, *dst, DataForm::Packets))
    }

    fn get(&mut self, context: OpContext<'p, 'a>) -> Result<(), FormatError> {
        let (src, dst) = context.chunks()?;
        if src.len() != dst.len() || src.is_empty() {
            return Err(context.error(format!("has {} sources for {} destinations", src.len(), dst.len())));
        }
        for (src, dst) in src.iter().zip(&dst) {
            self.peer(context, *src)?;
            let ends = Endpoints { src: self.locate(context, *src)?, dst: self.local_chunk(context, *dst)? };
            let span = self.span(context, *src, *dst)?;
            self.lane.push_blocking(OpKind::Get, src.rank, ends, span);
        }
        Ok(())
    }

    fn copy(&mut self, context: OpContext<'p, 'a>) -> Result<(), FormatError> {
        let (src, dst) = context.chunks()?;
        let ([src], [dst]) = (&src[..], &dst[..]) else {
            return Err(context.error(format!(
                "has {} sources and {} destinations; expected 1 and 1",
                src.len(),
                dst.len()
            )));
        };
        if context.op.text.name == "upkt" {
            self.await_packets(context, *src)?;
        }
        let span = self.span(context, *src, *dst)?;
        let ends = Endpoints { src: self.local_chunk(context, *src)?, dst: self.local_chunk(context, *dst)? };
        let op = self.lane.push_blocking(OpKind::Copy, context.rank, ends, span);
        if context.op.text.name == "cpkt" {
            self.note_packets(context.rank, *dst, op);
        }
        Ok(())
    }

    fn sum(&mut self, context: OpContext<'p, 'a>, sum: &Sum) -> Result<(), FormatError> {
        let (src, dst) = context.chunks()?;
        let (Some((&first, addends)), Some((&destination, other_destinations))) =
            (src.split_first(), dst.split_first())
        else {
            return Err(context.error("has no source or no destination"));
        };
        if addends.is_empty() {
            return Err(context.error("has nothing to add"));
        }
        let reads_peers = context.op.text.name.starts_with("rre");
        let target = self.local_chunk(context, destination)?;
        self.local_chunk(context, first)?;
        for addend in addends {
            self.span(context, *addend, destination)?;
            match (reads_peers, sum.form) {
                (true, _) => self.peer(context, *addend)?,
                (false, DataForm::Packets) => self.await_packets(context, *addend)?,
                (false, DataForm::Plain) => {
                    self.local_chunk(context, *addend)?;
                }
            }
        }
        let span = self.span(context, first, destination)?;
        // The sum begins with the addend at the destination, or with a copy of the first addend.
        let is_at_target = |chunks: &BufferPieces| {
            chunks.rank == context.rank
                && self.locate(context, *chunks).is_ok_and(|chunk| same_memory(chunk, target, self.numbering.buffers))
        };
        let first_addend = src.iter().position(is_at_target);
        if first_addend.is_none() {
            let ends = Endpoints { src: self.locate(context, first)?, dst: target };
            self.lane.push_blocking(OpKind::Copy, context.rank, ends, span);
        }
        for (_, addend) in src.iter().enumerate().filter(|(i, _)| *i != first_addend.unwrap_or(0)) {
            let kind = if addend.rank == context.rank { OpKind::Reduce } else { OpKind::GetReduce };
            let ends = Endpoints { src: self.locate(context, *addend)?, dst: target };
            self.lane.push_blocking(kind, addend.rank, ends, span);
        }
        let mut stores = other_destinations;
        if sum.writes_own_packets {
            let Some((own_packets, remaining)) = other_destinations.split_first() else {
                return Err(context.error("has one destination; expected its own packets too"));
            };
            stores = remaining;
            let ends = Endpoints { src: target, dst: self.local_chunk(context, *own_packets)? };
            let span = self.span(context, destination, *own_packets)?;
            let op = self.lane.push_blocking(OpKind::Copy, context.rank, ends, span);
            self.note_packets(context.rank, *own_packets, op);
        }
        if !sum.sends && !stores.is_empty() {
            return Err(context.error(format!("has {} destinations too many", stores.len())));
        }
        stores.iter().try_for_each(|dst| self.store(context, destination, *dst, sum.form))
    }

    fn store(
        &mut self,
        context: OpContext<'p, 'a>,
        src: BufferPieces,
        dst: BufferPieces,
        form: DataForm,
    ) -> Result<(), FormatError> {
        self.peer(context, dst)?;
        let ends = Endpoints { src: self.local_chunk(context, src)?, dst: self.locate(context, dst)? };
        let span = self.span(context, src, dst)?;
        let op = self.lane.store(dst.rank, ends, span);
        if form == DataForm::Packets {
            self.note_packets(dst.rank, dst, op);
        }
        Ok(())
    }

    fn note_packets(&mut self, rank: u32, chunks: BufferPieces, op: u32) {
        for chunk in chunks.from..chunks.from + chunks.count {
            self.synchronization.packets.entry((rank, chunk)).or_insert(op);
        }
    }

    fn await_packets(&mut self, context: OpContext<'p, 'a>, chunks: BufferPieces) -> Result<(), FormatError> {
        self.local_chunk(context, chunks)?;
        if chunks.buffer != Buffer::Scratch {
            return Err(context.error(format!("reads packets in {}; expected scratch", chunks.buffer)));
        }
        for chunk in chunks.from..chunks.from + chunks.count {
            self.wait_for(DependencyKey::Packet(context.rank, chunk), context);
        }
        Ok(())
    }

    fn peer(&self, context: OpContext<'p, 'a>, chunks: BufferPieces) -> Result<(), FormatError> {
        if chunks.rank == context.rank { Err(context.error("uses its own memory as a peer's")) } else { Ok(()) }
    }

    /// Returns the first of some chunks, which must belong to the GPU itself.
    ///
    /// # Errors
    /// [`FormatError`] at the operation if the chunks belong to another GPU or do not exist.
    pub(super) fn local_chunk(
        &self,
        context: OpContext<'p, 'a>,
        chunks: BufferPieces,
    ) -> Result<ChunkRef, FormatError> {
        if chunks.rank != context.rank {
            return Err(context.error(format!("uses memory of gpu {} as its own", chunks.rank)));
        }
        self.locate(context, chunks)
    }

    pub(super) fn locate(&self, context: OpContext<'p, 'a>, chunks: BufferPieces) -> Result<ChunkRef, FormatError> {
        self.numbering
            .locate(chunks.rank, FileChunk { buffer: chunks.buffer, offset: chunks.from }, chunks.count)
            .ok_or_else(|| {
                context.error(format!(
                    "uses {} chunks from {} on, which the collective does not have",
                    chunks.buffer, chunks.from
                ))
            })
    }

    /// Returns the number of chunks moved from `src` to `dst`, which must be equal on both sides.
    ///
    /// # Errors
    /// [`FormatError`] at the operation if the numbers differ or the plan moves too many chunks in total.
    pub(super) fn span(
        &mut self,
        context: OpContext<'p, 'a>,
        src: BufferPieces,
        dst: BufferPieces,
    ) -> Result<u32, FormatError> {
        if src.count != dst.count {
            let message = format!("moves {} chunks to where there are {} (in pieces)", src.count, dst.count);
            return Err(context.error(message));
        }
        *self.moved += u64::from(src.count);
        if *self.moved > MAX_UNITS_MOVED {
            return Err(context.error(format!("moves more than the {MAX_UNITS_MOVED} chunks that may be moved in all")));
        }
        Ok(src.count)
    }
}
