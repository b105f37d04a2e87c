//! Writer of MSCCL++ execution plans.
//!
//! Each channel of the schedule becomes a thread block. MSCCL++ cannot reduce into a peer's memory, so a put that
//! reduces is written as the peer's read and reduce, in the peer's thread block of that channel. Thread blocks of
//! different GPUs signal each other through one memory channel per pair, those of one GPU through one semaphore per
//! direction. A thread block waits only for operations that it does not know to be done. Switch operations have one
//! switch channel per group of GPUs and buffer.
//!
//! A plan, like a schedule, assumes that buffers are ready on all GPUs when it begins.

use std::collections::BTreeMap;

use super::block_text::{BlockWriter, BufferOwner, OperandChunks, RankAccess};
use super::fuse::FusedSwitchOps;
use super::sequence::{Sequences, Signal};
use super::write_switch::SwitchChannels;

use crate::schedule::chunk_numbering::ChunksPerGpu;
use crate::schedule::file_format::{CallSizes, Format, WriteError};
use crate::schedule::flat::{FlatOp, FlatSchedule, SwitchSupport, canonical_chunk, collective_name};
use crate::schedule::text::put;
use crate::schedule::units::UnitRange;
use crate::schedule::{Buffer, BufferUse, ChunkRef, OpKind, Protocol, Rank, Schedule};

/// Writes a schedule as an execution plan for exactly its size.
///
/// # Errors
/// [`WriteError`]: a schedule that is too large, chunks without a common size, or operations that wait for each other.
pub fn to_plan(schedule: &Schedule) -> Result<String, WriteError> {
    let bytes = schedule.header().call.bytes;
    let mut text = String::new();
    write_plan(schedule, CallSizes::only(bytes), &mut text)?;
    Ok(text)
}

/// Appends a schedule as an execution plan to `text`, declared valid for the call sizes `sizes`; chunks scale with the
/// size.
///
/// # Errors
/// [`WriteError`], as [`to_plan`]; `text` may then end with a partial plan.
pub(in crate::schedule) fn write_plan(
    schedule: &Schedule,
    sizes: CallSizes,
    text: &mut String,
) -> Result<(), WriteError> {
    let mut flat = FlatSchedule::new(schedule, "MSCCL++", SwitchSupport::Supported)?;
    let fused = FusedSwitchOps::new(schedule, &mut flat)?;
    let (header, call) = (schedule.header(), schedule.header().call);
    let sequences = Sequences::new(schedule, &flat, &fused)?;
    let switches = SwitchChannels::new(&flat, &fused)?;
    let writer = PlanWriter { schedule, flat: &flat, sequences: &sequences, fused: &fused, switches: &switches };
    let protocol = match Format::Mscclpp.protocol(header.protocol) {
        Protocol::Ll => "LL",
        _ => "Simple",
    };
    let name = serde_json::Value::from(header.name.as_str()).to_string();
    put!(text, "{\n  \"name\": ", name.as_str(), ",\n  \"collective\": \"", collective_name(call.collective));
    put!(text, "\",\n  \"protocol\": \"", protocol, "\",\n  \"inplace\": ");
    put!(text, if call.buffers == BufferUse::InPlace { "true" } else { "false" });
    put!(text, ",\n  \"reuse_resources\": false,\n");
    if call.root.0 != 0 {
        put!(text, "  \"root\": ", call.root.0, ",\n");
    }
    put!(text, "  \"gpus\": [");
    for rank in 0..call.ranks {
        put!(text, if rank == 0 { "\n" } else { ",\n" });
        writer.gpu(rank, text)?;
    }
    put!(text, "\n  ],\n  \"num_threads_per_block\": 1024,\n  \"use_double_scratch_buffer\": false,\n");
    put!(text, "  \"buffer_alignment\": 16,\n  \"min_message_size\": ", sizes.min.0);
    put!(text, ",\n  \"max_message_size\": ", sizes.max.0, "\n}\n");
    Ok(())
}

struct PlanWriter<'a> {
    schedule: &'a Schedule,
    flat: &'a FlatSchedule,
    sequences: &'a Sequences,
    fused: &'a FusedSwitchOps<'a>,
    switches: &'a SwitchChannels<'a>,
}

/// Resources shared by the thread blocks of a GPU.
struct GpuResources {
    /// Ends of each channel: the GPU's own thread block, and the other thread block.
    channels: Vec<(u32, u32)>,
    semaphores: BTreeMap<(u32, u32), u32>,
    /// Buffers of peers, sorted. The position of a buffer is its number.
    remote: Vec<(u32, Buffer)>,
}

/// Resources of a thread block, sorted; its operations refer to them by position.
struct BlockResources {
    block: u32,
    /// Numbers of the thread block's channels among those of the GPU.
    channels: Vec<u32>,
    /// Other thread blocks, each with the position of the channel to it, sorted.
    channel_positions: Vec<(u32, u32)>,
    /// Buffers of peers that the thread block uses.
    remote: Vec<(u32, Buffer)>,
    /// Numbers of the thread block's switch channels among those of the GPU.
    switches: Vec<u32>,
}

impl BlockResources {
    fn new(block: u32, shared: &GpuResources, remote: Vec<(u32, Buffer)>, switches: Vec<u32>) -> Self {
        let own_channels = shared.channels.iter().zip(0u32..).filter(|((own_block, _), _)| *own_block == block);
        let (others, channels): (Vec<u32>, Vec<u32>) =
            own_channels.map(|((_, other), channel)| (*other, channel)).unzip();
        let mut channel_positions: Vec<(u32, u32)> = others.into_iter().zip(0..).collect();
        channel_positions.sort_unstable();
        Self { block, channels, channel_positions, remote, switches }
    }

    /// Returns the position of the channel to another thread block.
    fn channel(&self, other: u32) -> u32 {
        let index = self.channel_positions.binary_search_by_key(&other, |(other, _)| *other);
        index.ok().and_then(|index| self.channel_positions.get(index)).map_or(0, |(_, position)| *position)
    }

    /// Returns the position of a peer's buffer among those that the thread block uses.
    fn remote(&self, rank: u32, buffer: Buffer) -> u32 {
        self.remote.binary_search(&(rank, buffer)).unwrap_or(0) as u32
    }
}

impl PlanWriter<'_> {
    fn gpu(&self, rank: u32, text: &mut String) -> Result<(), WriteError> {
        let remote = self.remote_buffers(rank);
        let shared = self.shared(rank, &remote);
        let ChunksPerGpu { input, output } = self.flat.numbering.per_gpu;
        put!(text, "    {\n      \"id\": ", rank, ",\n      \"input_chunks\": ", input);
        put!(text, ",\n      \"output_chunks\": ", output, ",\n      \"scratch_chunks\": ", self.flat.scratch);
        put!(text, ",\n      \"threadblocks\": [");
        for ((block, remote), number) in self.sequences.rank_blocks(rank).zip(remote).zip(0u32..) {
            put!(text, if number == 0 { "\n" } else { ",\n" });
            let switches = self.switches.block_channels(rank, self.sequences.ops(block));
            let resources = BlockResources::new(block, &shared, remote, switches);
            put!(text, "        {\n          \"id\": ", number, ",\n          \"ops\": [\n            ");
            self.operations(&resources, &shared, &mut BlockWriter::new(text))?;
            put!(text, "\n          ],\n");
            resources.put(&shared, text);
            put!(text, "\n        }");
        }
        let peers: Vec<u32> = shared.channels.iter().map(|&(_, other)| self.sequences.rank(other)).collect();
        put!(text, "\n      ],\n      \"channels\": [");
        if !peers.is_empty() {
            put!(text, "{\"channel_type\": \"memory\", \"connected_to\": [", &peers[..], "]}");
        }
        self.switches.write_channels(rank, if peers.is_empty() { "" } else { ", " }, text);
        put!(text, "],\n      \"remote_buffers\": [");
        for (index, &(peer, buffer)) in shared.remote.iter().enumerate() {
            put!(text, if index == 0 { "" } else { ", " }, "{\"rank\": ", peer, ", \"type\": \"", letter(buffer));
            put!(text, "\", \"access_channel_types\": [\"memory\"]}");
        }
        put!(text, "],\n      \"semaphores\": [");
        for index in 0..shared.semaphores.len() {
            put!(text, if index == 0 { "" } else { ", " }, "{\"init_value\": 0}");
        }
        put!(text, "]\n    }");
        Ok(())
    }

    fn shared(&self, rank: u32, remote: &[Vec<(u32, Buffer)>]) -> GpuResources {
        let mut remote = remote.concat();
        remote.sort_unstable();
        remote.dedup();
        let semaphores = self.sequences.rank_semaphores(rank).into_iter().zip(0..).collect();
        GpuResources { channels: self.sequences.rank_channels(rank), semaphores, remote }
    }

    /// Returns the buffers of peers that each thread block of a GPU uses, sorted.
    fn remote_buffers(&self, rank: u32) -> Vec<Vec<(u32, Buffer)>> {
        const BUFFERS: usize = 3;
        // The thread block in which each buffer was last seen.
        let mut last_block = vec![u32::MAX; BUFFERS * self.schedule.header().call.ranks as usize];
        let block_buffers = |block: u32| {
            let mut remote = Vec::new();
            let ops = self.sequences.ops(block).iter().map(|&op| &self.flat.ops[op as usize]);
            for op in ops.filter(|op| op.crosses()) {
                for (owner, buffer) in [(op.source(), op.src.buffer), (op.target(), op.dst.buffer)] {
                    let last_block = &mut last_block[owner as usize * BUFFERS + buffer as usize];
                    if owner != rank && *last_block != block {
                        *last_block = block;
                        remote.push((owner, buffer));
                    }
                }
            }
            remote.sort_unstable();
            remote
        };
        self.sequences.rank_blocks(rank).map(block_buffers).collect()
    }

    /// Writes the operations of a thread block.
    ///
    /// # Errors
    /// [`WriteError`] for an operation that MSCCL++ does not support.
    fn operations(
        &self,
        resources: &BlockResources,
        shared: &GpuResources,
        lines: &mut BlockWriter<'_>,
    ) -> Result<(), WriteError> {
        let ops = self.sequences.ops(resources.block);
        let (mut waits, mut signals) = (self.sequences.waits(resources.block), self.sequences.signals(resources.block));
        let mut copy = None;
        // Waits and signals that are not written yet; no data is moved between them.
        let mut pending_waits: Vec<Signal> = Vec::new();
        let mut pending_signals: Vec<Signal> = Vec::new();
        let mut position = 0;
        while let Some(&op) = ops.get(position as usize) {
            pending_waits.extend(waits.take(position));
            pending_signals.clear();
            pending_signals.extend(signals.take(position));
            position += 1;
            let next = ops.get(position as usize);
            // A copy, and the reduce that directly follows it, are written as one operation.
            let can_fuse = !waits.has(position) && pending_signals.is_empty();
            if can_fuse && next.is_some_and(|&next| self.begins_sum(op, next, copy)) {
                copy = Some(op);
                continue;
            }
            let kind = self.flat.ops[op as usize].kind;
            if kind.moves_data() {
                put_waits(resources, &mut pending_waits, lines, shared);
                if kind == OpKind::SwitchAllReduce {
                    return Err(self
                        .flat
                        .unsupported(op, "MSCCL++ plans have no all_reduce in the switches of a network"));
                }
                if kind.is_multicast() {
                    self.write_switch_operation(op, resources, lines)?;
                } else {
                    self.data(op, copy.take(), resources, lines)?;
                }
            }
            // Subsequent operations that move no data and have no waits are done at the same point.
            while let Some(&next_op) = ops.get(position as usize)
                && !self.flat.ops[next_op as usize].kind.moves_data()
                && !waits.has(position)
            {
                pending_signals.extend(signals.take(position));
                position += 1;
            }
            if !pending_signals.is_empty() {
                pending_signals.sort_unstable_by_key(|signal| signal.other);
                put_waits(resources, &mut pending_waits, lines, shared);
                put_signals(resources, &pending_signals, lines, shared);
            }
        }
        pending_waits.extend(waits.take(ops.len() as u32));
        put_waits(resources, &mut pending_waits, lines, shared);
        Ok(())
    }

    /// Returns true if operation `op` copies the data into which operation `next` reduces a peer's chunks.
    fn begins_sum(&self, op: u32, next: u32, copy: Option<u32>) -> bool {
        let (op, next) = (&self.flat.ops[op as usize], &self.flat.ops[next as usize]);
        let adds = next.crosses() && matches!(next.kind, OpKind::GetReduce | OpKind::PutReduce);
        copy.is_none() && op.kind == OpKind::Copy && adds && next.target() == op.rank && next.dst == op.dst
    }

    /// Writes an operation, fused with the copy that precedes it if there is one.
    ///
    /// # Errors
    /// [`WriteError`] for an operation that MSCCL++ does not support.
    fn data(
        &self,
        id: u32,
        copy: Option<u32>,
        resources: &BlockResources,
        lines: &mut BlockWriter<'_>,
    ) -> Result<(), WriteError> {
        let op = &self.flat.ops[id as usize];
        let destination = RankAccess { rank: op.target(), range: op.dst, writes: true };
        let origin = RankAccess { rank: op.source(), range: op.src, writes: false };
        // The first addend is in the memory of the target.
        let first = match (copy, op.kind) {
            (Some(copy), _) => self.flat.ops[copy as usize].src,
            (None, OpKind::PutReduceInput) => self.input_range(op),
            (None, _) => op.dst,
        };
        let first = RankAccess { rank: op.target(), range: first, writes: false };
        let accesses = [origin, destination, first];
        lines.begin_access(accesses[..if op.kind.reduces() { 3 } else { 2 }].iter().copied());
        let rank = if op.crosses() { Sequences::executor(op) } else { op.rank };
        let chunks = |end: RankAccess| -> Result<OperandChunks, WriteError> {
            let (letter, index) = self.flat.name(id, end.rank, end.range)?;
            let buffer = if end.rank == rank {
                BufferOwner::Own(letter)
            } else {
                BufferOwner::Remote(resources.remote(end.rank, end.range.buffer))
            };
            Ok(OperandChunks { buffer, index, size: end.range.count })
        };
        let (source, target) = (chunks(origin)?, chunks(destination)?);
        let channel = if op.crosses() { ", \"channel_type\": \"memory\"" } else { "" };
        if op.kind.reduces() {
            let first = chunks(first)?;
            let text = lines.line();
            put!(text, if op.crosses() { "{\"name\": \"rre\"" } else { "{\"name\": \"re\"" }, ", \"src_buff\": [");
            first.put(text);
            put!(text, ", ");
            source.put(text);
            put!(text, "], \"dst_buff\": [");
            target.put(text);
            put!(text, "]", channel, ", \"reduce_op\": \"sum\"}");
        } else {
            let text = lines.line();
            let name = match (op.crosses(), op.kind.reads_peer()) {
                (false, _) => "{\"name\": \"copy\"",
                (true, true) => "{\"name\": \"get\"",
                (true, false) => "{\"name\": \"put\"",
            };
            put!(text, name, ", \"src_buff\": [");
            source.put(text);
            put!(text, "], \"dst_buff\": [");
            target.put(text);
            put!(text, "]", channel, "}");
        }
        Ok(())
    }

    /// Writes a switch operation.
    fn write_switch_operation(
        &self,
        id: u32,
        resources: &BlockResources,
        lines: &mut BlockWriter<'_>,
    ) -> Result<(), WriteError> {
        let op = &self.flat.ops[id as usize];
        let (loads, stores) = (self.fused.loads(op), self.fused.stores(id, op));
        let own_rank = [Rank(op.rank)];
        let members = self.fused.members(op);
        let accesses = |by_switch: bool, range: UnitRange, writes: bool| {
            let ranks = if by_switch { members } else { &own_rank[..] };
            ranks.iter().map(move |rank| RankAccess { rank: rank.0, range, writes })
        };
        lines.begin_access(accesses(loads, op.src, false).chain(accesses(stores, op.dst, true)));
        let chunks = |range: UnitRange, by_switch: bool| -> Result<OperandChunks, WriteError> {
            if by_switch {
                return self.switches.chunks(id, op, range, &resources.switches);
            }
            let (letter, index) = self.flat.name(id, op.rank, range)?;
            Ok(OperandChunks { buffer: BufferOwner::Own(letter), index, size: range.count })
        };
        let (source, target) = (chunks(op.src, loads)?, chunks(op.dst, stores)?);
        let text = lines.line();
        put!(text, if loads { "{\"name\": \"glres\"" } else { "{\"name\": \"gstore\"" }, ", \"src_buff\": [");
        source.put(text);
        put!(text, "], \"dst_buff\": [");
        target.put(text);
        put!(text, "], \"channel_type\": \"switch\"", if loads { ", \"reduce_op\": \"sum\"}" } else { "}" });
        Ok(())
    }

    /// Returns the target's own contribution to an operation that reduces with the input.
    fn input_range(&self, op: &FlatOp) -> UnitRange {
        let call = self.schedule.header().call;
        let input = ChunkRef { buffer: Buffer::Input, index: op.dst.start };
        let input = canonical_chunk(input, call.collective, call.buffers);
        UnitRange { buffer: input.buffer, start: input.index, count: op.dst.count }
    }
}

impl BlockResources {
    /// Writes the resources of the thread block.
    fn put(&self, shared: &GpuResources, text: &mut String) {
        put!(text, "          \"channels\": [");
        let kinds = [("memory", &self.channels), ("switch", &self.switches)];
        let kinds = kinds.into_iter().filter(|(_, channels)| !channels.is_empty());
        for (index, (kind, channels)) in kinds.enumerate() {
            put!(text, if index == 0 { "" } else { ", " }, "{\"channel_type\": \"", kind);
            put!(text, "\", \"channel_ids\": [", &channels[..], "]}");
        }
        put!(text, "],\n          \"remote_buffer_refs\": [");
        if !self.remote.is_empty() {
            let number = |buffer| shared.remote.binary_search(buffer).unwrap_or(0) as u32;
            let numbers: Vec<u32> = self.remote.iter().map(number).collect();
            put!(text, "{\"access_channel_type\": \"memory\", \"remote_buffer_ids\": [", &numbers[..], "]}");
        }
        put!(text, "]");
    }
}

/// Writes the waits of a thread block and clears the list.
fn put_waits(resources: &BlockResources, waits: &mut Vec<Signal>, lines: &mut BlockWriter<'_>, shared: &GpuResources) {
    waits.sort_unstable_by_key(|signal| (signal.other, signal.position));
    for Signal { other, .. } in waits.drain(..) {
        let text = lines.wait();
        match shared.semaphores.get(&(other, resources.block)) {
            Some(&id) => put!(text, "{\"name\": \"sem_acquire\", \"semaphore_ids\": [", id, "]}"),
            None => {
                put!(text, "{\"name\": \"wait\", \"channel_ids\": [", resources.channel(other));
                put!(text, "], \"channel_type\": \"memory\"}");
            }
        }
    }
}

/// Writes the signals of a thread block.
fn put_signals(resources: &BlockResources, signals: &[Signal], lines: &mut BlockWriter<'_>, shared: &GpuResources) {
    lines.fence();
    for &Signal { other, .. } in signals {
        let text = lines.line();
        match shared.semaphores.get(&(resources.block, other)) {
            Some(&id) => put!(text, "{\"name\": \"sem_release\", \"semaphore_ids\": [", id, "]}"),
            None => {
                put!(text, "{\"name\": \"signal\", \"channel_ids\": [", resources.channel(other));
                put!(text, "], \"channel_type\": \"memory\"}");
            }
        }
    }
}

fn letter(buffer: Buffer) -> char {
    match buffer {
        Buffer::Input => 'i',
        Buffer::Output => 'o',
        Buffer::Scratch => 's',
    }
}
