//! Writer of MSCCL++ execution plans.
//!
//! Channels become thread blocks. MSCCL++ cannot reduce into a peer's memory, so a put that reduces is written as the
//! peer's read and reduce, in the peer's thread block of that channel. Thread blocks of different GPUs signal each
//! other through one memory channel per pair, those of one GPU through one semaphore per direction; each waits only for
//! operations not yet known to be done. Switch operations have one switch channel per group of GPUs and buffer.
//!
//! A plan, like a schedule, assumes that buffers are ready on all GPUs when it begins.

use std::collections::BTreeMap;

use super::block_text::{BlockText, Chunks, Touched, Where};
use super::fuse::Fused;
use super::sequence::{Sequences, Signal};
use super::write_switch::Switched;
use fabricast_topologies::Bytes;

use crate::schedule::format::{Format, WriteError};
use crate::schedule::plain::{Plain, PlainOp, Switches, collective_name, named_once};
use crate::schedule::text::put;
use crate::schedule::units::Stretch;
use crate::schedule::{Buffer, BufferUse, ChunkRef, OpKind, Protocol, Rank, Schedule};

/// Writes a schedule as an execution plan for exactly its size.
///
/// # Errors
/// [`WriteError`]: too large, chunks without a common size, or operations that wait for each other.
pub fn to_plan(schedule: &Schedule) -> Result<String, WriteError> {
    let bytes = schedule.header().call.bytes;
    let mut text = String::new();
    write_plan(schedule, (bytes, bytes), &mut text)?;
    Ok(text)
}

/// Variant of [`to_plan`] that appends to `text` and covers call sizes from `sizes.0` to `sizes.1`; chunks scale with
/// the size.
///
/// # Errors
/// [`WriteError`], as [`to_plan`]; `text` may then end with a partial plan.
pub(in crate::schedule) fn write_plan(
    schedule: &Schedule,
    sizes: (Bytes, Bytes),
    text: &mut String,
) -> Result<(), WriteError> {
    let mut plain = Plain::new(schedule, "MSCCL++", Switches::Known)?;
    let fused = Fused::new(schedule, &mut plain)?;
    let (header, call) = (schedule.header(), schedule.header().call);
    let sequences = Sequences::new(schedule, &plain, &fused)?;
    let switches = Switched::new(&plain, &fused)?;
    let writer = Writer { schedule, plain: &plain, sequences: &sequences, fused: &fused, switches: &switches };
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
    put!(text, "  \"buffer_alignment\": 16,\n  \"min_message_size\": ", sizes.0.0);
    put!(text, ",\n  \"max_message_size\": ", sizes.1.0, "\n}\n");
    Ok(())
}

struct Writer<'a> {
    schedule: &'a Schedule,
    plain: &'a Plain,
    sequences: &'a Sequences,
    fused: &'a Fused<'a>,
    switches: &'a Switched<'a>,
}

/// Resources shared by the thread blocks of a GPU.
struct Shared {
    /// Ends of each channel: own and other thread block.
    channels: Vec<(u32, u32)>,
    semaphores: BTreeMap<(u32, u32), u32>,
    /// Buffers of peers, sorted; the position is the buffer's number.
    remote: Vec<(u32, Buffer)>,
}

/// Resources of a thread block, sorted; its operations refer to them by position.
struct Own {
    block: u32,
    /// Numbers of its channels.
    channels: Vec<u32>,
    /// Pairs of other thread block and position of the channel to it, sorted.
    places: Vec<(u32, u32)>,
    /// Buffers of peers that it uses.
    remote: Vec<(u32, Buffer)>,
    /// Numbers of its switch channels.
    switches: Vec<u32>,
}

impl Own {
    fn new(block: u32, shared: &Shared, remote: Vec<(u32, Buffer)>, switches: Vec<u32>) -> Self {
        let own = shared.channels.iter().zip(0u32..).filter(|((own, _), _)| *own == block);
        let (others, channels): (Vec<u32>, Vec<u32>) = own.map(|((_, other), channel)| (*other, channel)).unzip();
        let mut places: Vec<(u32, u32)> = others.into_iter().zip(0..).collect();
        places.sort_unstable();
        Self { block, channels, places, remote, switches }
    }

    /// Position of the channel to another thread block.
    fn channel(&self, other: u32) -> u32 {
        let at = self.places.binary_search_by_key(&other, |(other, _)| *other);
        at.ok().and_then(|at| self.places.get(at)).map_or(0, |(_, place)| *place)
    }

    /// Position of a peer's buffer.
    fn remote(&self, rank: u32, buffer: Buffer) -> u32 {
        self.remote.binary_search(&(rank, buffer)).unwrap_or(0) as u32
    }
}

impl Writer<'_> {
    fn gpu(&self, rank: u32, text: &mut String) -> Result<(), WriteError> {
        let remote = self.remote_of(rank);
        let shared = self.shared(rank, &remote);
        let (input, output) = self.plain.places.per_gpu;
        put!(text, "    {\n      \"id\": ", rank, ",\n      \"input_chunks\": ", input);
        put!(text, ",\n      \"output_chunks\": ", output, ",\n      \"scratch_chunks\": ", self.plain.scratch);
        put!(text, ",\n      \"threadblocks\": [");
        for ((block, remote), number) in self.sequences.blocks_of(rank).zip(remote).zip(0u32..) {
            put!(text, if number == 0 { "\n" } else { ",\n" });
            let switches = self.switches.of_block(rank, self.sequences.ops(block));
            let own = Own::new(block, &shared, remote, switches);
            put!(text, "        {\n          \"id\": ", number, ",\n          \"ops\": [\n            ");
            self.operations(&own, &shared, &mut BlockText::new(text))?;
            put!(text, "\n          ],\n");
            own.put(&shared, text);
            put!(text, "\n        }");
        }
        let peers: Vec<u32> = shared.channels.iter().map(|&(_, other)| self.sequences.rank(other)).collect();
        put!(text, "\n      ],\n      \"channels\": [");
        if !peers.is_empty() {
            put!(text, "{\"channel_type\": \"memory\", \"connected_to\": [", &peers[..], "]}");
        }
        self.switches.put_channels_of(rank, if peers.is_empty() { "" } else { ", " }, text);
        put!(text, "],\n      \"remote_buffers\": [");
        for (at, &(peer, buffer)) in shared.remote.iter().enumerate() {
            put!(text, if at == 0 { "" } else { ", " }, "{\"rank\": ", peer, ", \"type\": \"", letter(buffer));
            put!(text, "\", \"access_channel_types\": [\"memory\"]}");
        }
        put!(text, "],\n      \"semaphores\": [");
        for at in 0..shared.semaphores.len() {
            put!(text, if at == 0 { "" } else { ", " }, "{\"init_value\": 0}");
        }
        put!(text, "]\n    }");
        Ok(())
    }

    fn shared(&self, rank: u32, remote: &[Vec<(u32, Buffer)>]) -> Shared {
        let mut remote = remote.concat();
        remote.sort_unstable();
        remote.dedup();
        let semaphores = self.sequences.semaphores_of(rank).into_iter().zip(0..).collect();
        Shared { channels: self.sequences.channels_of(rank), semaphores, remote }
    }

    /// Buffers of peers that each thread block of a GPU uses, sorted.
    fn remote_of(&self, rank: u32) -> Vec<Vec<(u32, Buffer)>> {
        const BUFFERS: usize = 3;
        // The thread block in which each buffer was last seen.
        let mut met = vec![u32::MAX; BUFFERS * self.schedule.header().call.ranks as usize];
        let of_block = |block: u32| {
            let mut remote = Vec::new();
            let ops = self.sequences.ops(block).iter().map(|&op| &self.plain.ops[op as usize]);
            for op in ops.filter(|op| op.crosses()) {
                for (owner, buffer) in [(op.source(), op.src.buffer), (op.target(), op.dst.buffer)] {
                    let met = &mut met[owner as usize * BUFFERS + buffer as usize];
                    if owner != rank && *met != block {
                        *met = block;
                        remote.push((owner, buffer));
                    }
                }
            }
            remote.sort_unstable();
            remote
        };
        self.sequences.blocks_of(rank).map(of_block).collect()
    }

    /// Writes the operations of a thread block.
    fn operations(&self, own: &Own, shared: &Shared, lines: &mut BlockText<'_>) -> Result<(), WriteError> {
        let ops = self.sequences.ops(own.block);
        let (mut waits, mut signals) = (self.sequences.waits(own.block), self.sequences.signals(own.block));
        let mut begun = None;
        // Waits and signals not yet written; no data is moved in between.
        let mut waited: Vec<Signal> = Vec::new();
        let mut told: Vec<Signal> = Vec::new();
        let mut position = 0;
        while let Some(&op) = ops.get(position as usize) {
            waited.extend(waits.take(position));
            told.clear();
            told.extend(signals.take(position));
            position += 1;
            let next = ops.get(position as usize);
            // A copy and the reduce directly after it are written as one operation.
            let joined = !waits.has(position) && told.is_empty();
            if joined && next.is_some_and(|&next| self.begins_sum(op, next, begun)) {
                begun = Some(op);
                continue;
            }
            let kind = self.plain.ops[op as usize].kind;
            if kind.moves_data() {
                put_waits(own, &mut waited, lines, shared);
                if kind.is_multicast() {
                    self.through_switch(op, own, lines)?;
                } else {
                    self.data(op, begun.take(), own, lines)?;
                }
            }
            // Subsequent operations that move no data and have no waits are done at the same point.
            while let Some(&still) = ops.get(position as usize)
                && !self.plain.ops[still as usize].kind.moves_data()
                && !waits.has(position)
            {
                told.extend(signals.take(position));
                position += 1;
            }
            if !told.is_empty() {
                told.sort_unstable_by_key(|signal| signal.other);
                put_waits(own, &mut waited, lines, shared);
                put_signals(own, &told, lines, shared);
            }
        }
        waited.extend(waits.take(ops.len() as u32));
        put_waits(own, &mut waited, lines, shared);
        Ok(())
    }

    /// Returns true if operation `op` copies the data that `next` reduces a peer's chunks into.
    fn begins_sum(&self, op: u32, next: u32, begun: Option<u32>) -> bool {
        let (op, next) = (&self.plain.ops[op as usize], &self.plain.ops[next as usize]);
        let adds = next.crosses() && matches!(next.kind, OpKind::GetReduce | OpKind::PutReduce);
        begun.is_none() && op.kind == OpKind::Copy && adds && next.target() == op.rank && next.dst == op.dst
    }

    /// Writes an operation, fused with the copy `begun` that precedes it.
    fn data(&self, id: u32, begun: Option<u32>, own: &Own, lines: &mut BlockText<'_>) -> Result<(), WriteError> {
        let op = &self.plain.ops[id as usize];
        let into = Touched { rank: op.target(), stretch: op.dst, writes: true };
        let from = Touched { rank: op.source(), stretch: op.src, writes: false };
        // The first addend is in the memory of the target.
        let first = match (begun, op.kind) {
            (Some(copy), _) => self.plain.ops[copy as usize].src,
            (None, OpKind::PutReduceInput) => self.input_of(op),
            (None, _) => op.dst,
        };
        let first = Touched { rank: op.target(), stretch: first, writes: false };
        let touched = [from, into, first];
        lines.touch(touched[..if op.kind.reduces() { 3 } else { 2 }].iter().copied());
        let rank = if op.crosses() { Sequences::executor(op) } else { op.rank };
        let words = |end: Touched| -> Result<Chunks, WriteError> {
            let (letter, index) = self.plain.name(id, end.rank, end.stretch)?;
            let buffer = if end.rank == rank {
                Where::Own(letter)
            } else {
                Where::Remote(own.remote(end.rank, end.stretch.buffer))
            };
            Ok(Chunks { buffer, index, size: end.stretch.count })
        };
        let (source, target) = (words(from)?, words(into)?);
        let channel = if op.crosses() { ", \"channel_type\": \"memory\"" } else { "" };
        if op.kind.reduces() {
            let first = words(first)?;
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
    fn through_switch(&self, id: u32, own: &Own, lines: &mut BlockText<'_>) -> Result<(), WriteError> {
        let op = &self.plain.ops[id as usize];
        let (loads, stores) = (self.fused.loads(op), self.fused.stores(id, op));
        let alone = [Rank(op.rank)];
        let members = self.fused.members(op);
        let end = |by_switch: bool, stretch: Stretch, writes: bool| {
            let ranks = if by_switch { members } else { &alone[..] };
            ranks.iter().map(move |rank| Touched { rank: rank.0, stretch, writes })
        };
        lines.touch(end(loads, op.src, false).chain(end(stores, op.dst, true)));
        let chunks = |stretch: Stretch, by_switch: bool| -> Result<Chunks, WriteError> {
            if by_switch {
                return self.switches.chunks(id, op, stretch, &own.switches);
            }
            let (letter, index) = self.plain.name(id, op.rank, stretch)?;
            Ok(Chunks { buffer: Where::Own(letter), index, size: stretch.count })
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

    /// The target's own contribution to an operation that reduces with the input.
    fn input_of(&self, op: &PlainOp) -> Stretch {
        let call = self.schedule.header().call;
        let input = ChunkRef { buffer: Buffer::Input, index: op.dst.from };
        let input = named_once(input, call.collective, call.buffers);
        Stretch { buffer: input.buffer, from: input.index, count: op.dst.count }
    }
}

impl Own {
    /// Writes the resources of the thread block.
    fn put(&self, shared: &Shared, text: &mut String) {
        put!(text, "          \"channels\": [");
        let kinds = [("memory", &self.channels), ("switch", &self.switches)];
        let kinds = kinds.into_iter().filter(|(_, channels)| !channels.is_empty());
        for (at, (kind, channels)) in kinds.enumerate() {
            put!(text, if at == 0 { "" } else { ", " }, "{\"channel_type\": \"", kind);
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
fn put_waits(own: &Own, waits: &mut Vec<Signal>, lines: &mut BlockText<'_>, shared: &Shared) {
    waits.sort_unstable_by_key(|signal| (signal.other, signal.position));
    for Signal { other, .. } in waits.drain(..) {
        let text = lines.wait();
        match shared.semaphores.get(&(other, own.block)) {
            Some(&id) => put!(text, "{\"name\": \"sem_acquire\", \"semaphore_ids\": [", id, "]}"),
            None => {
                put!(text, "{\"name\": \"wait\", \"channel_ids\": [", own.channel(other));
                put!(text, "], \"channel_type\": \"memory\"}");
            }
        }
    }
}

/// Writes the signals of a thread block.
fn put_signals(own: &Own, signals: &[Signal], lines: &mut BlockText<'_>, shared: &Shared) {
    lines.settle();
    for &Signal { other, .. } in signals {
        let text = lines.line();
        match shared.semaphores.get(&(own.block, other)) {
            Some(&id) => put!(text, "{\"name\": \"sem_release\", \"semaphore_ids\": [", id, "]}"),
            None => {
                put!(text, "{\"name\": \"signal\", \"channel_ids\": [", own.channel(other));
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
