//! Writes schedules as MSCCL++ execution plans.
//!
//! Lanes become thread blocks. MSCCL++ cannot add to a peer's memory, so what puts and reduces is written as the peer's
//! read and reduce, in the peer's thread block of that lane. Thread blocks of different GPUs signal each other through a
//! memory channel for each pair, those of one GPU through a semaphore for each direction; each waits only for what it
//! does not know to be done. What goes through switches has a switch channel for each group of GPUs and buffer.
//!
//! A plan, like a schedule, takes for granted that buffers are ready on all GPUs when it begins.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use super::fuse::Fused;
use super::sequence::{Sequences, Signal};
use super::write_switch::Switched;
use fabricast_topologies::Bytes;

use crate::schedule::format::{Format, WriteError};
use crate::schedule::plain::{Plain, PlainOp, Switches, collective_name, named_once};
use crate::schedule::units::Stretch;
use crate::schedule::{Buffer, BufferUse, ChunkRef, OpKind, Protocol, Schedule};

/// Memory of a rank that an operation touches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Touched {
    rank: u32,
    stretch: Stretch,
    writes: bool,
}

impl Touched {
    fn conflicts(self, other: Self) -> bool {
        let apart =
            |a: Stretch, b: Stretch| a.buffer != b.buffer || a.from + a.count <= b.from || b.from + b.count <= a.from;
        (self.writes || other.writes) && self.rank == other.rank && !apart(self.stretch, other.stretch)
    }
}

/// More operations without a barrier of the thread block than this are not kept in mind.
const MOST_LOOSE: usize = 64;

/// Writes a schedule as an execution plan, for exactly its size.
///
/// # Errors
/// [`WriteError`]: too large, chunks that are not multiples of a common one, operations that wait for each other.
pub fn to_plan(schedule: &Schedule) -> Result<String, WriteError> {
    let bytes = schedule.header().call.bytes;
    to_plan_for(schedule, (bytes, bytes))
}

/// The same, for sizes from the first to the last: chunks are parts of whatever size there is.
///
/// # Errors
/// [`WriteError`], as [`to_plan`].
pub fn to_plan_for(schedule: &Schedule, sizes: (Bytes, Bytes)) -> Result<String, WriteError> {
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
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{{\n  \"name\": {},\n  \"collective\": \"{}\",\n  \"protocol\": \"{protocol}\",\n  \"inplace\": {},\n  \
         \"reuse_resources\": false,",
        serde_json::Value::from(header.name.as_str()),
        collective_name(call.collective),
        call.buffers == BufferUse::InPlace
    );
    if call.root.0 != 0 {
        let _ = writeln!(text, "  \"root\": {},", call.root.0);
    }
    text.push_str("  \"gpus\": [");
    for rank in 0..call.ranks {
        text.push_str(if rank == 0 { "\n" } else { ",\n" });
        writer.gpu(rank, &mut text)?;
    }
    let (first, last) = (sizes.0.0, sizes.1.0);
    let _ = writeln!(
        text,
        "\n  ],\n  \"num_threads_per_block\": 1024,\n  \"use_double_scratch_buffer\": false,\n  \
         \"buffer_alignment\": 16,\n  \"min_message_size\": {first},\n  \"max_message_size\": {last}\n}}"
    );
    Ok(text)
}

struct Writer<'a> {
    schedule: &'a Schedule,
    plain: &'a Plain,
    sequences: &'a Sequences,
    fused: &'a Fused<'a>,
    switches: &'a Switched<'a>,
}

/// What the thread blocks of a GPU share.
struct Shared {
    /// Ends of channels, by own and other thread block.
    channels: BTreeMap<(u32, u32), u32>,
    semaphores: BTreeMap<(u32, u32), u32>,
    /// Buffers of peers.
    remote: BTreeMap<(u32, Buffer), u32>,
}

/// A thread block as it is written.
#[derive(Default)]
struct BlockText {
    /// The operations, a line each.
    text: String,
    /// Operations since the last barrier of the thread block.
    loose: Vec<Touched>,
    /// Whether it has waited since.
    waited: bool,
}

impl BlockText {
    /// Room for an operation that touches this memory: behind a barrier, where it must be.
    fn touch(&mut self, touched: &[Touched]) {
        let conflict = touched.iter().any(|a| self.loose.iter().any(|b| a.conflicts(*b)));
        if self.waited || conflict || self.loose.len() > MOST_LOOSE {
            self.barrier();
        }
        self.loose.extend(touched);
    }

    /// Where the next operation is written.
    fn line(&mut self) -> &mut String {
        if !self.text.is_empty() {
            self.text.push_str(",\n            ");
        }
        &mut self.text
    }

    fn barrier(&mut self) {
        self.line().push_str("{\"name\": \"nop\"}");
        self.loose.clear();
        self.waited = false;
    }
}

/// Chunks of a buffer, as an operation names them.
struct Chunks {
    buffer: Where,
    index: u32,
    size: u32,
}

/// Whose buffer.
enum Where {
    /// The GPU's own, by letter.
    Own(char),
    /// A peer's, by its place among those that the thread block uses.
    Remote(usize),
}

impl fmt::Display for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.buffer {
            Where::Own(letter) => write!(f, "{{\"type\": \"{letter}\"")?,
            Where::Remote(id) => write!(f, "{{\"buffer_id\": {id}")?,
        }
        write!(f, ", \"index\": {}, \"size\": {}}}", self.index, self.size)
    }
}

impl Writer<'_> {
    fn gpu(&self, rank: u32, text: &mut String) -> Result<(), WriteError> {
        let shared = self.shared(rank);
        let (input, output) = self.plain.places.per_gpu;
        let _ = write!(
            text,
            "    {{\n      \"id\": {rank},\n      \"input_chunks\": {input},\n      \"output_chunks\": {output},\n      \
             \"scratch_chunks\": {},\n      \"threadblocks\": [",
            self.plain.scratch
        );
        for (number, block) in self.sequences.blocks_of(rank).enumerate() {
            text.push_str(if number == 0 { "\n" } else { ",\n" });
            self.block(number, block, &shared, text)?;
        }
        let peers: Vec<String> =
            self.sequences.channels_of(rank).iter().map(|&(_, other)| self.sequences.rank(other).to_string()).collect();
        let mut channels = Vec::new();
        if !peers.is_empty() {
            channels.push(format!("{{\"channel_type\": \"memory\", \"connected_to\": [{}]}}", peers.join(", ")));
        }
        channels.extend(self.switches.channels_of(rank));
        let channels = channels.join(", ");
        let remote: Vec<String> = shared
            .remote
            .keys()
            .map(|(peer, buffer)| {
                let letter = letter(*buffer);
                format!("{{\"rank\": {peer}, \"type\": \"{letter}\", \"access_channel_types\": [\"memory\"]}}")
            })
            .collect();
        let semaphores = vec!["{\"init_value\": 0}"; shared.semaphores.len()].join(", ");
        let _ = write!(
            text,
            "\n      ],\n      \"channels\": [{channels}],\n      \"remote_buffers\": [{}],\n      \
             \"semaphores\": [{semaphores}]\n    }}",
            remote.join(", ")
        );
        Ok(())
    }

    fn shared(&self, rank: u32) -> Shared {
        let numbered = |ends: Vec<(u32, u32)>| ends.into_iter().zip(0..).collect();
        let buffers: BTreeSet<(u32, Buffer)> =
            self.sequences.blocks_of(rank).flat_map(|block| self.remote_of(block)).collect();
        Shared {
            channels: numbered(self.sequences.channels_of(rank)),
            semaphores: numbered(self.sequences.semaphores_of(rank)),
            remote: buffers.into_iter().zip(0..).collect(),
        }
    }

    /// Buffers of peers that a thread block uses.
    fn remote_of(&self, block: u32) -> BTreeSet<(u32, Buffer)> {
        let rank = self.sequences.rank(block);
        let ops = self.sequences.ops(block).iter().map(|&op| &self.plain.ops[op as usize]);
        let ends = ops.filter(|op| op.crosses()).flat_map(|op| [(op.source(), op.src), (op.target(), op.dst)]);
        ends.filter(|(owner, _)| *owner != rank).map(|(owner, stretch)| (owner, stretch.buffer)).collect()
    }

    fn block(&self, number: usize, block: u32, shared: &Shared, text: &mut String) -> Result<(), WriteError> {
        let own_channels: Vec<u32> =
            shared.channels.iter().filter(|((own, _), _)| *own == block).map(|(_, channel)| *channel).collect();
        let own_remote: Vec<(u32, Buffer)> = self.remote_of(block).into_iter().collect();
        let own_switches = self.switches.of_block(self.sequences.rank(block), self.sequences.ops(block));
        let mut lines = BlockText::default();
        let ops = self.sequences.ops(block);
        let channel = |other: u32| {
            let channel = shared.channels.get(&(block, other));
            channel.and_then(|channel| own_channels.binary_search(channel).ok()).unwrap_or(0)
        };
        let mut begun = None;
        // Not yet written: what comes between two others of them is nothing.
        let mut waits: Vec<Signal> = Vec::new();
        let mut position = 0;
        while let Some(&op) = ops.get(position as usize) {
            waits.extend(self.sequences.waits(block, position));
            let first = position;
            position += 1;
            let next = ops.get(position as usize);
            let waits_next = !self.sequences.waits(block, position).is_empty();
            // A copy that a read adds to at once is one operation with it.
            let joined = !waits_next && self.sequences.signals(block, first).is_empty();
            if joined && next.is_some_and(|&next| self.begins_sum(op, next, begun)) {
                begun = Some(op);
                continue;
            }
            if self.plain.ops[op as usize].kind.moves_data() {
                self.waits(block, &mut waits, &mut lines, shared, channel);
                if self.plain.ops[op as usize].kind.is_multicast() {
                    self.through_switch(op, &own_switches, &mut lines)?;
                } else {
                    self.data(op, begun.take(), &own_remote, &mut lines)?;
                }
            }
            // What moves nothing and waits for nobody is done with what is before it.
            let mut signals = self.sequences.signals(block, first).to_vec();
            while let Some(&still) = ops.get(position as usize)
                && !self.plain.ops[still as usize].kind.moves_data()
                && self.sequences.waits(block, position).is_empty()
            {
                signals.extend(self.sequences.signals(block, position));
                position += 1;
            }
            signals.sort_unstable_by_key(|signal| signal.other);
            if !signals.is_empty() {
                self.waits(block, &mut waits, &mut lines, shared, channel);
                self.signals(block, &signals, &mut lines, shared, channel);
            }
        }
        waits.extend(self.sequences.waits(block, ops.len() as u32));
        self.waits(block, &mut waits, &mut lines, shared, channel);
        let ids = |list: &[u32]| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let mut channels = Vec::new();
        for (kind, own) in [("memory", &own_channels), ("switch", &own_switches)] {
            if !own.is_empty() {
                channels.push(format!("{{\"channel_type\": \"{kind}\", \"channel_ids\": [{}]}}", ids(own)));
            }
        }
        let channels = channels.join(", ");
        let remote: Vec<u32> = own_remote.iter().filter_map(|buffer| shared.remote.get(buffer).copied()).collect();
        let refs = if remote.is_empty() {
            String::new()
        } else {
            format!("{{\"access_channel_type\": \"memory\", \"remote_buffer_ids\": [{}]}}", ids(&remote))
        };
        let _ = write!(
            text,
            "        {{\n          \"id\": {number},\n          \"ops\": [\n            {}\n          ],\n          \
             \"channels\": [{channels}],\n          \"remote_buffer_refs\": [{refs}]\n        }}",
            lines.text
        );
        Ok(())
    }

    fn waits(
        &self,
        block: u32,
        waits: &mut Vec<Signal>,
        lines: &mut BlockText,
        shared: &Shared,
        channel: impl Fn(u32) -> usize,
    ) {
        waits.sort_unstable_by_key(|signal| (signal.other, signal.position));
        for Signal { other, .. } in std::mem::take(waits) {
            let line = lines.line();
            // Writing to a string does not fail.
            let _ = match shared.semaphores.get(&(other, block)) {
                Some(id) => write!(line, "{{\"name\": \"sem_acquire\", \"semaphore_ids\": [{id}]}}"),
                None => write!(
                    line,
                    "{{\"name\": \"wait\", \"channel_ids\": [{}], \"channel_type\": \"memory\"}}",
                    channel(other)
                ),
            };
            lines.waited = true;
        }
    }

    fn signals(
        &self,
        block: u32,
        signals: &[Signal],
        lines: &mut BlockText,
        shared: &Shared,
        channel: impl Fn(u32) -> usize,
    ) {
        if !lines.loose.is_empty() {
            lines.barrier();
        }
        for &Signal { other, .. } in signals {
            let line = lines.line();
            let _ = match shared.semaphores.get(&(block, other)) {
                Some(id) => write!(line, "{{\"name\": \"sem_release\", \"semaphore_ids\": [{id}]}}"),
                None => write!(
                    line,
                    "{{\"name\": \"signal\", \"channel_ids\": [{}], \"channel_type\": \"memory\"}}",
                    channel(other)
                ),
            };
        }
    }

    /// Whether an operation copies what the next one adds a peer's chunks to.
    fn begins_sum(&self, op: u32, next: u32, begun: Option<u32>) -> bool {
        let (op, next) = (&self.plain.ops[op as usize], &self.plain.ops[next as usize]);
        let adds = next.crosses() && matches!(next.kind, OpKind::GetReduce | OpKind::PutReduce);
        begun.is_none() && op.kind == OpKind::Copy && adds && next.target() == op.rank && next.dst == op.dst
    }

    /// Writes an operation, with the copy that it begins with.
    fn data(
        &self,
        id: u32,
        begun: Option<u32>,
        remote: &[(u32, Buffer)],
        lines: &mut BlockText,
    ) -> Result<(), WriteError> {
        let op = &self.plain.ops[id as usize];
        let into = Touched { rank: op.target(), stretch: op.dst, writes: true };
        let from = Touched { rank: op.source(), stretch: op.src, writes: false };
        // What a sum begins with lies in the memory of the target.
        let first = match (begun, op.kind) {
            (Some(copy), _) => self.plain.ops[copy as usize].src,
            (None, OpKind::PutReduceInput) => self.input_of(op),
            (None, _) => op.dst,
        };
        let first = Touched { rank: op.target(), stretch: first, writes: false };
        let touched = [from, into, first];
        lines.touch(&touched[..if op.kind.reduces() { 3 } else { 2 }]);
        let rank = if op.crosses() { Sequences::executor(op) } else { op.rank };
        let words = |end: Touched| -> Result<Chunks, WriteError> {
            let (letter, index) = self.plain.name(id, end.rank, end.stretch)?;
            let buffer = if end.rank == rank {
                Where::Own(letter)
            } else {
                Where::Remote(remote.binary_search(&(end.rank, end.stretch.buffer)).unwrap_or(0))
            };
            Ok(Chunks { buffer, index, size: end.stretch.count })
        };
        let (source, target) = (words(from)?, words(into)?);
        let channel = if op.crosses() { ", \"channel_type\": \"memory\"" } else { "" };
        if op.kind.reduces() {
            let name = if op.crosses() { "rre" } else { "re" };
            let first = words(first)?;
            let _ = write!(
                lines.line(),
                "{{\"name\": \"{name}\", \"src_buff\": [{first}, {source}], \"dst_buff\": [{target}]{channel}, \
                 \"reduce_op\": \"sum\"}}"
            );
        } else {
            let name = match (op.crosses(), op.kind.reads_peer()) {
                (false, _) => "copy",
                (true, true) => "get",
                (true, false) => "put",
            };
            let _ = write!(
                lines.line(),
                "{{\"name\": \"{name}\", \"src_buff\": [{source}], \"dst_buff\": [{target}]{channel}}}"
            );
        }
        Ok(())
    }

    /// Writes an operation through a switch; its thread block uses these of its GPU's switch channels.
    fn through_switch(&self, id: u32, own: &[u32], lines: &mut BlockText) -> Result<(), WriteError> {
        let op = &self.plain.ops[id as usize];
        let (loads, stores) = (self.fused.loads(op), self.fused.stores(id, op));
        let members = self.fused.members(op).iter().map(|rank| rank.0);
        let at_all = |stretch: Stretch, writes: bool| {
            members.clone().map(move |rank| Touched { rank, stretch, writes }).collect::<Vec<_>>()
        };
        let alone = |stretch: Stretch, writes: bool| vec![Touched { rank: op.rank, stretch, writes }];
        let from = if loads { at_all(op.src, false) } else { alone(op.src, false) };
        let into = if stores { at_all(op.dst, true) } else { alone(op.dst, true) };
        lines.touch(&[from, into].concat());
        let end = |stretch: Stretch, by_switch: bool| -> Result<String, WriteError> {
            if by_switch {
                return self.switches.chunks(id, op, stretch, own);
            }
            let (letter, index) = self.plain.name(id, op.rank, stretch)?;
            Ok(format!("{{\"type\": \"{letter}\", \"index\": {index}, \"size\": {}}}", stretch.count))
        };
        let (source, target) = (end(op.src, loads)?, end(op.dst, stores)?);
        let (name, sum) = if loads { ("glres", ", \"reduce_op\": \"sum\"") } else { ("gstore", "") };
        let _ = write!(
            lines.line(),
            "{{\"name\": \"{name}\", \"src_buff\": [{source}], \"dst_buff\": [{target}], \"channel_type\": \"switch\"{sum}}}"
        );
        Ok(())
    }

    /// The target's own contribution to what an operation reduces there.
    fn input_of(&self, op: &PlainOp) -> Stretch {
        let call = self.schedule.header().call;
        let input = ChunkRef { buffer: Buffer::Input, index: op.dst.from };
        let input = named_once(input, call.collective, call.buffers);
        Stretch { buffer: input.buffer, from: input.index, count: op.dst.count }
    }
}

fn letter(buffer: Buffer) -> char {
    match buffer {
        Buffer::Input => 'i',
        Buffer::Output => 'o',
        Buffer::Scratch => 's',
    }
}
