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
//! A sum whose destination is none of its addends begins with a copy (or get) of the first. Readers of packets wait for
//! the writer, because packets carry flags. Operations that a pipeline overlaps are executed in sequence.
//!
//! Module `switch` handles operations through switch channels.

use rustc_hash::FxHashMap;

use super::order::{After, Lane, Ordered};
use super::parse::{At, ChannelKey, Chunks, Gpu, Plan};
use crate::schedule::draft::Draft;
use crate::schedule::format::{FormatError, Source};
use crate::schedule::places::{Places, same_memory};
use crate::schedule::plain::MOST_MOVED;
use crate::schedule::{Blocks, Buffer, BufferUse, Call, ChunkRef, Header, Layout, OpKind, Rank, Schedule};

/// Builds the schedule.
pub(super) fn lower(source: Source<'_>, plan: &Plan<'_>) -> Result<Schedule, FormatError> {
    let in_plan = |message: String| source.error(0..1, message);
    let buffers = if plan.in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace };
    let most = |count: fn(&Gpu<'_>) -> u32| {
        let (chunks, pieces) = (plan.gpus.iter().map(count).max().unwrap_or(0), plan.pieces);
        chunks.checked_mul(pieces).ok_or_else(|| in_plan(format!("{chunks} chunks, each in {pieces} pieces")))
    };
    let per_gpu = (most(|gpu| gpu.input_chunks)?, most(|gpu| gpu.output_chunks)?);
    let scratch_chunks = most(|gpu| gpu.scratch_chunks)?;
    let places = Places::new(plan.collective, buffers, plan.gpus.len(), per_gpu).map_err(in_plan)?;
    let mut heard = Heard::default();
    let mut all = Ordered::default();
    let mut moved = 0;
    for (rank, gpu) in plan.gpus.iter().enumerate() {
        for (number, block) in gpu.blocks.iter().enumerate() {
            let lane = Lane::new(&mut all, rank as u32, number as u16, buffers);
            let mut taker = Taker { lane, heard: &mut heard, places: &places, moved: &mut moved };
            for op in &block.ops {
                taker.take(At { source, plan, rank: rank as u32, block: number as u32, op })?;
            }
            taker.lane.finish();
        }
    }
    let draft = heard.settle(all, plan)?;
    let blocks = plan.gpus.iter().map(|gpu| gpu.blocks.len()).max().unwrap_or(0);
    let bytes = places.assumed_bytes(plan.sizes.0, plan.sizes.1);
    let ranks = plan.gpus.len() as u32;
    let header = Header {
        name: plan.name.clone(),
        call: Call { collective: plan.collective, bytes, ranks, root: Rank(plan.root), buffers },
        protocol: plan.protocol,
        channels: u16::try_from(blocks).unwrap_or(u16::MAX).max(1),
        blocks: Blocks::default(),
        layout: Layout::equal(bytes, places.chunks),
        scratch_chunks,
        teams: plan.teams.iter().map(|ranks| ranks.iter().copied().map(Rank).collect()).collect(),
    };
    draft.schedule(header).map_err(|error| in_plan(error.to_string()))
}

/// Communication between thread blocks: signals, barriers, semaphores and packets.
#[derive(Default)]
pub(super) struct Heard<'p, 'a> {
    /// All dependencies to resolve, each with the operation that waits.
    asked: Vec<(After, At<'p, 'a>)>,
    /// Number of waits on each channel, by its sending end.
    waits: FxHashMap<ChannelKey, u32>,
    /// Arrivals at each barrier, by (GPU, barrier, round): the last operation before it.
    barriers: FxHashMap<(u32, u32, u32), Vec<Option<u32>>>,
    /// Number of times each thread block has reached each barrier, by (GPU, barrier, thread block).
    rounds: FxHashMap<(u32, u32, u32), u32>,
    semaphores: FxHashMap<(u32, u32), Semaphore>,
    /// First operation that writes packets into each scratch chunk, by (GPU, chunk).
    packets: FxHashMap<(u32, u32), u32>,
}

/// Counter between thread blocks: releases as (thread block, last operation before it), and the acquiring thread
/// blocks.
#[derive(Default)]
struct Semaphore {
    releases: Vec<(u32, Option<u32>)>,
    acquirers: Vec<u32>,
}

impl Heard<'_, '_> {
    /// Resolves all dependencies and returns the draft.
    fn settle(&self, all: Ordered, plan: &Plan<'_>) -> Result<Draft, FormatError> {
        let mut known: FxHashMap<After, Vec<u32>> = FxHashMap::default();
        for (after, at) in &self.asked {
            let ops = self.answer(*after, at, &all, plan)?;
            known.insert(*after, ops);
        }
        let Ordered { mut draft, after, .. } = all;
        for (op, after) in after.iter().enumerate() {
            let op = op as u32;
            for after in after {
                match after {
                    After::Op(on) => draft.wait(op, [*on]),
                    other => draft.wait(op, known.get(other).into_iter().flatten().copied().filter(|&on| on != op)),
                }
            }
        }
        Ok(draft)
    }

    /// The operations that a dependency resolves to.
    fn answer(&self, after: After, at: &At<'_, '_>, all: &Ordered, plan: &Plan<'_>) -> Result<Vec<u32>, FormatError> {
        match after {
            After::Op(op) => Ok(vec![op]),
            After::Signal(channel, n) => {
                let signals = all.signals.get(&channel).map_or(&[][..], Vec::as_slice);
                signals.get(n as usize).cloned().ok_or_else(|| {
                    let from = channel.0;
                    at.error(format!(
                        "waits for signal {n} from gpu {from}, which sends {} by that channel",
                        signals.len()
                    ))
                })
            }
            After::Barrier(gpu, id, round) => {
                let arrived = self.barriers.get(&(gpu, id, round)).map_or(&[][..], Vec::as_slice);
                let expected = at.op.text.num_threadblocks as usize;
                if arrived.len() != expected {
                    let message =
                        format!("waits at barrier {id} for {expected} thread blocks, and {} come", arrived.len());
                    return Err(at.error(message));
                }
                Ok(arrived.iter().flatten().copied().collect())
            }
            After::Semaphore(gpu, id, n) => {
                let free =
                    plan.gpus.get(gpu as usize).and_then(|gpu| gpu.semaphores.get(id as usize)).copied().unwrap_or(0);
                let Some(semaphore) = self.semaphores.get(&(gpu, id)) else { return Ok(Vec::new()) };
                semaphore.acquired(n, free).map_err(|message| at.error(format!("acquires semaphore {id}, {message}")))
            }
            After::Packet(gpu, chunk) => match self.packets.get(&(gpu, chunk)) {
                Some(&op) => Ok(vec![op]),
                None => Err(at
                    .error(format!("waits for packets in scratch chunk {chunk} (in pieces), which nobody puts there"))),
            },
        }
    }
}

impl Semaphore {
    /// Operations that are done after the n-th acquisition. If several thread blocks release the semaphore, their order
    /// is known only after the last release.
    fn acquired(&self, n: u32, free: u32) -> Result<Vec<u32>, String> {
        let Some(n) = n.checked_sub(free) else { return Ok(Vec::new()) };
        if self.acquirers.iter().any(|block| self.acquirers.first() != Some(block)) {
            return Err("as another thread block does: which of them comes first is not known".to_owned());
        }
        let Some((_, release)) = self.releases.get(n as usize) else {
            return Err(format!("which is released {} times only", self.releases.len()));
        };
        let by_one = self.releases.iter().all(|(block, _)| self.releases.first().map(|first| first.0) == Some(*block));
        if by_one {
            return Ok(release.iter().copied().collect());
        }
        let all = n as usize + 1 == self.releases.len();
        Ok(self.releases.iter().filter(|_| all).filter_map(|(_, release)| *release).collect())
    }
}

/// Translates the operations of a thread block in sequence.
pub(super) struct Taker<'t, 'p, 'a> {
    pub(super) lane: Lane<'t>,
    heard: &'t mut Heard<'p, 'a>,
    places: &'t Places,
    moved: &'t mut u64,
}

/// Variant of a sum operation.
struct Sum {
    /// Addends are read as packets, and the sum is sent as packets.
    packets: bool,
    /// The sum is also written to the GPU's own packets.
    keeps_packets: bool,
    sends: bool,
}

impl<'p, 'a> Taker<'_, 'p, 'a> {
    fn take(&mut self, at: At<'p, 'a>) -> Result<(), FormatError> {
        let sum = |packets, keeps_packets, sends| Sum { packets, keeps_packets, sends };
        match at.op.text.name.as_str() {
            "nop" | "pipeline" => Ok(()),
            "flush" => {
                self.lane.flush();
                Ok(())
            }
            "signal" | "rlxsignal" => self.signal(at),
            "wait" | "rlxwait" => self.wait(at),
            "barrier" => {
                self.barrier(at);
                Ok(())
            }
            "sem_acquire" | "sem_release" => self.semaphore(at),
            "put" => self.put(at, false),
            "ppkt" => self.put(at, true),
            "pws" | "pwsf" => {
                self.put(at, false)?;
                self.signal(at)?;
                if at.op.text.name == "pwsf" {
                    self.lane.flush();
                }
                Ok(())
            }
            "rppkt" => self.forward_packets(at),
            "get" => self.get(at),
            "copy" | "cpkt" | "upkt" => self.copy(at),
            "re" | "rre" => self.sum(at, &sum(false, false, false)),
            "res" | "rres" => self.sum(at, &sum(false, false, true)),
            "repkt" => self.sum(at, &sum(true, false, false)),
            "respkt" => self.sum(at, &sum(true, false, true)),
            "recpkt" => self.sum(at, &sum(true, true, false)),
            "recspkt" => self.sum(at, &sum(true, true, true)),
            "glre" | "glres" | "gstore" => self.through_switch(at),
            _ => Err(at.error("is of no known type")),
        }
    }

    fn ask(&mut self, after: After, at: At<'p, 'a>) {
        self.heard.asked.push((after, at));
        self.lane.wait(after);
    }

    fn signal(&mut self, at: At<'p, 'a>) -> Result<(), FormatError> {
        for (channel, peer) in at.channels()? {
            self.lane.signal(channel, peer);
        }
        Ok(())
    }

    fn wait(&mut self, at: At<'p, 'a>) -> Result<(), FormatError> {
        for (channel, peer) in at.channels()? {
            let Some(sender) = at.other_end(channel) else {
                return Err(at.error(format!("waits for gpu {peer}, which has no channel to it")));
            };
            let n = self.heard.waits.entry(sender).or_default();
            let after = After::Signal(sender, *n);
            *n += 1;
            self.ask(after, at);
        }
        Ok(())
    }

    fn barrier(&mut self, at: At<'p, 'a>) {
        let id = at.op.text.barrier_id;
        let round = self.heard.rounds.entry((at.rank, id, at.block)).or_default();
        let key = (at.rank, id, *round);
        *round += 1;
        let before = self.lane.join();
        self.heard.barriers.entry(key).or_default().push(before);
        self.ask(After::Barrier(key.0, key.1, key.2), at);
    }

    fn semaphore(&mut self, at: At<'p, 'a>) -> Result<(), FormatError> {
        let known = at.plan.gpus.get(at.rank as usize).map_or(0, |gpu| gpu.semaphores.len());
        let releases = at.op.text.name == "sem_release";
        let before = if releases { self.lane.join() } else { None };
        for &id in &at.op.text.semaphore_ids {
            if id as usize >= known {
                return Err(at.error(format!("uses semaphore {id} of {known}")));
            }
            let semaphore = self.heard.semaphores.entry((at.rank, id)).or_default();
            if releases {
                semaphore.releases.push((at.block, before));
            } else {
                semaphore.acquirers.push(at.block);
                let n = semaphore.acquirers.len() as u32 - 1;
                self.ask(After::Semaphore(at.rank, id, n), at);
            }
        }
        Ok(())
    }

    fn put(&mut self, at: At<'p, 'a>, packets: bool) -> Result<(), FormatError> {
        let (src, dst) = at.chunks()?;
        if src.len() != dst.len() || src.is_empty() {
            return Err(at.error(format!("has {} sources for {} destinations", src.len(), dst.len())));
        }
        src.iter().zip(&dst).try_for_each(|(src, dst)| self.store(at, *src, *dst, packets))
    }

    fn forward_packets(&mut self, at: At<'p, 'a>) -> Result<(), FormatError> {
        let (src, dst) = at.chunks()?;
        let [src] = src[..] else {
            return Err(at.error(format!("has {} sources; expected 1", src.len())));
        };
        self.await_packets(at, src)?;
        dst.iter().try_for_each(|dst| self.store(at, src, *dst, true))
    }

    fn get(&mut self, at: At<'p, 'a>) -> Result<(), FormatError> {
        let (src, dst) = at.chunks()?;
        if src.len() != dst.len() || src.is_empty() {
            return Err(at.error(format!("has {} sources for {} destinations", src.len(), dst.len())));
        }
        for (src, dst) in src.iter().zip(&dst) {
            self.peer(at, *src)?;
            let ends = (self.place(at, *src)?, self.own(at, *dst)?);
            let span = self.span(at, *src, *dst)?;
            self.lane.hold(OpKind::Get, src.rank, ends, span);
        }
        Ok(())
    }

    fn copy(&mut self, at: At<'p, 'a>) -> Result<(), FormatError> {
        let (src, dst) = at.chunks()?;
        let ([src], [dst]) = (&src[..], &dst[..]) else {
            return Err(at.error(format!(
                "has {} sources and {} destinations; expected 1 and 1",
                src.len(),
                dst.len()
            )));
        };
        if at.op.text.name == "upkt" {
            self.await_packets(at, *src)?;
        }
        let span = self.span(at, *src, *dst)?;
        let op = self.lane.hold(OpKind::Copy, at.rank, (self.own(at, *src)?, self.own(at, *dst)?), span);
        if at.op.text.name == "cpkt" {
            self.note_packets(at.rank, *dst, op);
        }
        Ok(())
    }

    fn sum(&mut self, at: At<'p, 'a>, sum: &Sum) -> Result<(), FormatError> {
        let (src, dst) = at.chunks()?;
        let (Some((&first, addends)), Some((&into, further))) = (src.split_first(), dst.split_first()) else {
            return Err(at.error("has no source or no destination"));
        };
        if addends.is_empty() {
            return Err(at.error("has nothing to add"));
        }
        let reads_peers = at.op.text.name.starts_with("rre");
        let target = self.own(at, into)?;
        self.own(at, first)?;
        for addend in addends {
            self.span(at, *addend, into)?;
            match (reads_peers, sum.packets) {
                (true, _) => self.peer(at, *addend)?,
                (false, true) => self.await_packets(at, *addend)?,
                (false, false) => {
                    self.own(at, *addend)?;
                }
            }
        }
        let span = self.span(at, first, into)?;
        // The sum begins with the addend at the destination, or with a copy of the first.
        let lies_there = |chunks: &Chunks| {
            chunks.rank == at.rank
                && self.place(at, *chunks).is_ok_and(|place| same_memory(place, target, self.places.buffers))
        };
        let begin = src.iter().position(lies_there);
        if begin.is_none() {
            self.lane.hold(OpKind::Copy, at.rank, (self.place(at, first)?, target), span);
        }
        for (_, addend) in src.iter().enumerate().filter(|(i, _)| *i != begin.unwrap_or(0)) {
            let kind = if addend.rank == at.rank { OpKind::Reduce } else { OpKind::GetReduce };
            self.lane.hold(kind, addend.rank, (self.place(at, *addend)?, target), span);
        }
        let mut stores = further;
        if sum.keeps_packets {
            let Some((kept, rest)) = further.split_first() else {
                return Err(at.error("has one destination; expected its own packets too"));
            };
            stores = rest;
            let (ends, span) = ((target, self.own(at, *kept)?), self.span(at, into, *kept)?);
            let op = self.lane.hold(OpKind::Copy, at.rank, ends, span);
            self.note_packets(at.rank, *kept, op);
        }
        if !sum.sends && !stores.is_empty() {
            return Err(at.error(format!("has {} destinations too many", stores.len())));
        }
        stores.iter().try_for_each(|dst| self.store(at, into, *dst, sum.packets))
    }

    fn store(&mut self, at: At<'p, 'a>, src: Chunks, dst: Chunks, packets: bool) -> Result<(), FormatError> {
        self.peer(at, dst)?;
        let ends = (self.own(at, src)?, self.place(at, dst)?);
        let span = self.span(at, src, dst)?;
        let op = self.lane.store(dst.rank, ends, span);
        if packets {
            self.note_packets(dst.rank, dst, op);
        }
        Ok(())
    }

    fn note_packets(&mut self, rank: u32, chunks: Chunks, op: u32) {
        for chunk in chunks.from..chunks.from + chunks.count {
            self.heard.packets.entry((rank, chunk)).or_insert(op);
        }
    }

    fn await_packets(&mut self, at: At<'p, 'a>, chunks: Chunks) -> Result<(), FormatError> {
        self.own(at, chunks)?;
        if chunks.buffer != Buffer::Scratch {
            return Err(at.error(format!("reads packets in {}; expected scratch", chunks.buffer)));
        }
        for chunk in chunks.from..chunks.from + chunks.count {
            self.ask(After::Packet(at.rank, chunk), at);
        }
        Ok(())
    }

    fn peer(&self, at: At<'p, 'a>, chunks: Chunks) -> Result<(), FormatError> {
        if chunks.rank == at.rank { Err(at.error("uses its own memory as a peer's")) } else { Ok(()) }
    }

    /// Location of chunks that must belong to the GPU itself.
    pub(super) fn own(&self, at: At<'p, 'a>, chunks: Chunks) -> Result<ChunkRef, FormatError> {
        if chunks.rank != at.rank {
            return Err(at.error(format!("uses memory of gpu {} as its own", chunks.rank)));
        }
        self.place(at, chunks)
    }

    pub(super) fn place(&self, at: At<'p, 'a>, chunks: Chunks) -> Result<ChunkRef, FormatError> {
        self.places.place(chunks.rank, (chunks.buffer, chunks.from), chunks.count).ok_or_else(|| {
            at.error(format!(
                "uses {} chunks from {} on, which the collective does not have",
                chunks.buffer, chunks.from
            ))
        })
    }

    /// Number of chunks moved from `src` to `dst`, which must be equally large.
    pub(super) fn span(&mut self, at: At<'p, 'a>, src: Chunks, dst: Chunks) -> Result<u32, FormatError> {
        if src.count != dst.count {
            let message = format!("moves {} chunks to where there are {} (in pieces)", src.count, dst.count);
            return Err(at.error(message));
        }
        *self.moved += u64::from(src.count);
        if *self.moved > MOST_MOVED {
            return Err(at.error(format!("moves more than the {MOST_MOVED} chunks that may be moved in all")));
        }
        Ok(src.count)
    }
}
