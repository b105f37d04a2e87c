//! Parser of plans: converts the text to indices, and checks that all ranks, channels and chunks that it refers to
//! exist.

use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::text::{BlockText, ChannelType, ChunksText, GpuText, OpText, PlanText};
use crate::schedule::file_format::{FormatError, Source, shortened};
use crate::schedule::json::MAX_RANKS;
use crate::schedule::{Buffer, Collective, Protocol, gcd};

/// Maximum number of pieces per chunk that groups of thread blocks may require.
const MAX_PIECES: u32 = 1 << 12;

/// Maximum number of thread blocks per GPU. MSCCL++ allows 64; channel numbers have 16 bits.
const MAX_BLOCKS: usize = 1 << 16;

/// Parsed execution plan.
pub(super) struct Plan<'a> {
    pub(super) name: String,
    pub(super) collective: Collective,
    pub(super) protocol: Protocol,
    pub(super) in_place: bool,
    pub(super) root: u32,
    /// Smallest and largest message size in bytes. A largest size of 0 means no limit.
    pub(super) sizes: (u64, u64),
    /// Number of pieces that each chunk is divided into, for thread blocks that share chunks.
    pub(super) pieces: u32,
    pub(super) gpus: Vec<PlanGpu<'a>>,
    /// Groups of GPUs connected by switch channels, without duplicates, in ascending order.
    pub(super) teams: Vec<Vec<u32>>,
    /// The opposite end of every channel.
    other_ends: FxHashMap<ChannelKey, ChannelKey>,
}

/// GPU of a plan, with its thread blocks.
pub(super) struct PlanGpu<'a> {
    /// Number of input chunks, in the units of the file.
    pub(super) input_chunks: u32,
    /// Number of output chunks, in the units of the file.
    pub(super) output_chunks: u32,
    /// Number of scratch chunks, in the units of the file.
    pub(super) scratch_chunks: u32,
    /// Peers of the memory channels, and of the port channels.
    peers: [Vec<u32>; 2],
    remote: Vec<(u32, Buffer)>,
    switches: Vec<Switch>,
    pub(super) semaphores: Vec<u32>,
    pub(super) blocks: Vec<PlanBlock<'a>>,
}

/// Switch channel: one buffer on all GPUs of a group, which are in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Switch {
    ranks: Vec<u32>,
    buffer: Buffer,
}

/// Thread block of a GPU, with indices into the GPU's channels and buffers.
pub(super) struct PlanBlock<'a> {
    channels: [Vec<u32>; 2],
    remote: [Vec<u32>; 2],
    switches: Vec<u32>,
    pub(super) ops: Vec<PlanOp<'a>>,
}

/// Operation, with its location in the text.
pub(super) struct PlanOp<'a> {
    pub(super) text: OpText<'a>,
    pub(super) at: usize,
    /// Index in the thread block, as in `operation 3 (put) of thread block 0 of gpu 1`.
    number: usize,
}

/// Chunks of a rank's buffer, measured in pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferPieces {
    pub(super) rank: u32,
    pub(super) buffer: Buffer,
    pub(super) from: u32,
    pub(super) count: u32,
}

/// Channel as (rank, type, index among the channels of that type). Type 0 is memory, type 1 is port.
pub(super) type ChannelKey = (u32, usize, u32);

fn slot(channel: ChannelType) -> Option<usize> {
    match channel {
        ChannelType::Memory => Some(0),
        ChannelType::Port => Some(1),
        ChannelType::Switch | ChannelType::None => None,
    }
}

/// Parses an execution plan.
///
/// # Errors
/// [`FormatError`] with line and column: invalid JSON, or references to ranks, channels, buffers and chunks that do not
/// exist.
pub(super) fn parse(source: Source<'_>) -> Result<Plan<'_>, FormatError> {
    let text: PlanText<'_> = object(source, source.text, 0)?;
    let at_key = |key: &str, message: String| {
        let offset = source.text.find(&format!("\"{key}\"")).unwrap_or(0);
        source.error(offset..offset, message)
    };
    if text.gpus.is_empty() || text.gpus.len() > MAX_RANKS as usize {
        return Err(at_key("gpus", format!("{} gpus; expected 1 to {MAX_RANKS}", text.gpus.len())));
    }
    let collective = text.collective.parse().map_err(|error| at_key("collective", format!("collective: {error}")))?;
    let protocol = match text.protocol.as_str() {
        "Simple" => Protocol::Symmetric,
        "LL" => Protocol::Ll,
        other => {
            return Err(at_key("protocol", format!("protocol: `{}`; expected Simple or LL", shortened(other))));
        }
    };
    if text.root as usize >= text.gpus.len() {
        return Err(at_key("root", format!("root: {} of {} gpus", text.root, text.gpus.len())));
    }
    let sizes = (text.min_message_size, text.max_message_size);
    if sizes.1 > 0 && sizes.1 < sizes.0 {
        let message = format!("max_message_size {} is below min_message_size {}", sizes.1, sizes.0);
        return Err(at_key("max_message_size", message));
    }
    let mut plan = Plan {
        name: text.name,
        collective,
        protocol,
        in_place: text.inplace,
        root: text.root,
        sizes,
        pieces: 1,
        gpus: Vec::with_capacity(text.gpus.len()),
        teams: Vec::new(),
        other_ends: FxHashMap::default(),
    };
    for (rank, raw) in text.gpus.iter().enumerate() {
        let gpu = parse_gpu(source, raw, rank, text.gpus.len(), &mut plan.pieces)?;
        plan.gpus.push(gpu);
    }
    plan.other_ends = other_ends(&plan.gpus);
    plan.teams = plan.gpus.iter().flat_map(|gpu| &gpu.switches).map(|switch| switch.ranks.clone()).collect();
    plan.teams.sort_unstable();
    plan.teams.dedup();
    Ok(plan)
}

/// Pairs channel ends of each type: the k-th channel of a rank to a peer with the k-th channel of the peer to the rank.
fn other_ends(gpus: &[PlanGpu<'_>]) -> FxHashMap<ChannelKey, ChannelKey> {
    let mut channels_by_pair: FxHashMap<(u32, u32, usize), Vec<u32>> = FxHashMap::default();
    for (rank, gpu) in gpus.iter().enumerate() {
        for (slot, peers) in gpu.peers.iter().enumerate() {
            for (channel, &peer) in peers.iter().enumerate() {
                channels_by_pair.entry((rank as u32, peer, slot)).or_default().push(channel as u32);
            }
        }
    }
    let mut ends = FxHashMap::default();
    for (&(rank, peer, slot), channels) in &channels_by_pair {
        for (&local, &remote) in channels.iter().zip(channels_by_pair.get(&(peer, rank, slot)).into_iter().flatten()) {
            ends.insert((rank, slot, local), (peer, slot, remote));
        }
    }
    ends
}

/// Deserializes an object of the file, which begins at byte `base`.
///
/// # Errors
/// [`FormatError`] with line and column.
fn object<'a, T: Deserialize<'a>>(source: Source<'_>, part: &'a str, base: usize) -> Result<T, FormatError> {
    serde_json::from_str(part).map_err(|error| {
        // serde_json counts lines from 1 and columns in bytes.
        let line: usize = part.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        let offset = base + line + error.column().saturating_sub(1);
        let message = error.to_string();
        source.error(offset..offset, message.split(" at line ").next().unwrap_or_default())
    })
}

fn parse_gpu<'a>(
    source: Source<'_>,
    raw: &'a RawValue,
    rank: usize,
    ranks: usize,
    pieces: &mut u32,
) -> Result<PlanGpu<'a>, FormatError> {
    let at = source.offset(raw.get());
    let gpu_error = |message: String| source.error(at..at, message);
    let text: GpuText<'a> = object(source, raw.get(), at)?;
    if text.id as usize != rank {
        return Err(gpu_error(format!("gpu {} at position {rank}; expected gpus in order", text.id)));
    }
    let mut peers = [Vec::new(), Vec::new()];
    for channel in &text.channels {
        if let Some(slot) = slot(channel.channel_type) {
            peers[slot].extend(&channel.connected_to);
        }
    }
    let peer_ranks = peers.iter().flatten().chain(text.remote_buffers.iter().map(|buffer| &buffer.rank));
    if let Some(peer) = peer_ranks.copied().find(|&peer| peer as usize >= ranks || peer as usize == rank) {
        return Err(gpu_error(format!("gpu {rank} is joined to gpu {peer}; expected another one of {ranks}")));
    }
    if text.threadblocks.len() > MAX_BLOCKS {
        return Err(gpu_error(format!("{} thread blocks; expected at most {MAX_BLOCKS}", text.threadblocks.len())));
    }
    let switches = switches(&text, rank, ranks).map_err(gpu_error)?;
    let mut gpu = PlanGpu {
        input_chunks: text.input_chunks,
        output_chunks: text.output_chunks,
        scratch_chunks: text.scratch_chunks,
        peers,
        remote: text.remote_buffers.iter().map(|buffer| (buffer.rank, buffer.buffer.into())).collect(),
        switches,
        semaphores: text.semaphores.iter().map(|semaphore| semaphore.init_value).collect(),
        blocks: Vec::new(),
    };
    for (number, block) in text.threadblocks.into_iter().enumerate() {
        if block.id as usize != number {
            return Err(gpu_error(format!(
                "thread block {} of gpu {rank} at position {number}; expected them in order",
                block.id
            )));
        }
        gpu.blocks.push(parse_block(source, block, &gpu, at, pieces)?);
    }
    Ok(gpu)
}

/// Returns the switch channels of a GPU, one per group, in order.
///
/// # Errors
/// A message if a group is invalid.
fn switches(text: &GpuText<'_>, rank: usize, ranks: usize) -> Result<Vec<Switch>, String> {
    let mut switches = Vec::new();
    for channel in text.channels.iter().filter(|channel| channel.channel_type == ChannelType::Switch) {
        let buffer = channel.buffer_type.ok_or_else(|| format!("a switch channel of gpu {rank} has no buffer_type"))?;
        for group in &channel.rank_groups {
            let mut members = group.ranks.clone();
            members.sort_unstable();
            members.dedup();
            let is_valid = members.len() == group.ranks.len() && members.last().is_some_and(|&m| (m as usize) < ranks);
            if !is_valid || members.binary_search(&(rank as u32)).is_err() {
                return Err(format!(
                    "a switch channel of gpu {rank} joins gpus {:?}; expected different ones of {ranks}, gpu {rank} too",
                    group.ranks.get(..16).unwrap_or(&group.ranks)
                ));
            }
            switches.push(Switch { ranks: members, buffer: buffer.into() });
        }
    }
    Ok(switches)
}

fn parse_block<'a>(
    source: Source<'_>,
    text: BlockText<'a>,
    gpu: &PlanGpu<'_>,
    at: usize,
    pieces: &mut u32,
) -> Result<PlanBlock<'a>, FormatError> {
    let mut block =
        PlanBlock { channels: Default::default(), remote: Default::default(), switches: Vec::new(), ops: Vec::new() };
    for list in &text.channels {
        match (slot(list.channel_type), list.channel_type) {
            (Some(slot), _) => block.channels[slot].extend(&list.channel_ids),
            (None, ChannelType::Switch) => block.switches.extend(&list.channel_ids),
            (None, _) => {}
        }
    }
    for list in &text.remote_buffer_refs {
        if let Some(slot) = slot(list.access_channel_type) {
            block.remote[slot].extend(&list.remote_buffer_ids);
        }
    }
    let channels = (0..2).find_map(|s| block.channels[s].iter().find(|id| **id as usize >= gpu.peers[s].len()));
    let buffers = block.remote.iter().flatten().find(|id| **id as usize >= gpu.remote.len());
    let switches = block.switches.iter().find(|id| **id as usize >= gpu.switches.len());
    for (kind, id) in [("channel", channels), ("remote buffer", buffers), ("switch channel", switches)] {
        if let Some(id) = id {
            let message = format!("thread block {} uses {kind} {id}, which its gpu does not have", text.id);
            return Err(source.error(at..at, message));
        }
    }
    let mut parse_op = |raw: &'a RawValue, number: usize| -> Result<PlanOp<'a>, FormatError> {
        let at = source.offset(raw.get());
        let text: OpText<'a> = object(source, raw.get(), at)?;
        if let Some(group) = text.tbg_info {
            let common = group.tbg_size.max(1) / gcd(u128::from(*pieces), u128::from(group.tbg_size.max(1))) as u32;
            *pieces = pieces.checked_mul(common).filter(|&pieces| pieces <= MAX_PIECES).ok_or_else(|| {
                source.error(at..at, format!("a group of {} thread blocks; chunks cannot be cut so", group.tbg_size))
            })?;
        }
        Ok(PlanOp { text, at, number })
    };
    for (number, raw) in text.ops.into_iter().enumerate() {
        let op = parse_op(raw, number)?;
        // A pipeline executes its operations slice by slice. It moves the same data in the same order.
        let inner = if op.text.name == "pipeline" { op.text.ops.clone() } else { Vec::new() };
        block.ops.push(op);
        for raw in inner {
            block.ops.push(parse_op(raw, number)?);
        }
    }
    Ok(block)
}

/// Operation with its GPU and plan, to resolve its references.
#[derive(Clone, Copy)]
pub(super) struct OpContext<'p, 'a> {
    pub(super) source: Source<'p>,
    pub(super) plan: &'p Plan<'a>,
    pub(super) rank: u32,
    pub(super) block: u32,
    pub(super) op: &'p PlanOp<'a>,
}

impl OpContext<'_, '_> {
    fn gpu(&self) -> &PlanGpu<'_> {
        &self.plan.gpus[self.rank as usize]
    }

    fn block(&self) -> &PlanBlock<'_> {
        &self.gpu().blocks[self.block as usize]
    }

    /// Creates an error about the operation; the message follows the name of the operation.
    pub(super) fn error(&self, message: impl std::fmt::Display) -> FormatError {
        let (name, number) = (shortened(&self.op.text.name), self.op.number);
        let description = format!("operation {number} ({name}) of thread block {} of gpu {}", self.block, self.rank);
        self.source.error(self.op.at..self.op.at + 1, format!("{description} {message}"))
    }

    fn slot(&self) -> Result<usize, FormatError> {
        let channel = self.op.text.channel_type.unwrap_or(ChannelType::None);
        slot(channel).ok_or_else(|| self.error("names no memory or port channel"))
    }

    /// Returns the channels that the operation refers to, and their peers.
    ///
    /// # Errors
    /// [`FormatError`] for a channel that does not exist.
    pub(super) fn channels(&self) -> Result<Vec<(ChannelKey, u32)>, FormatError> {
        let slot = self.slot()?;
        let ids = self.op.text.channel_ids.iter().map(|&id| {
            let known = self.block().channels[slot].get(id as usize);
            let peer = known.and_then(|&channel| Some((channel, *self.gpu().peers[slot].get(channel as usize)?)));
            let message = || self.error(format!("uses channel {id} of its thread block, which has no such channel"));
            peer.map(|(channel, peer)| ((self.rank, slot, channel), peer)).ok_or_else(message)
        });
        ids.collect()
    }

    /// Returns the opposite end of a channel.
    pub(super) fn other_end(&self, channel: ChannelKey) -> Option<ChannelKey> {
        self.plan.other_ends.get(&channel).copied()
    }

    /// Returns the chunks that the operation reads, and the chunks that it writes, in order.
    ///
    /// # Errors
    /// [`FormatError`] for chunks that do not exist.
    pub(super) fn chunks(&self) -> Result<(Vec<BufferPieces>, Vec<BufferPieces>), FormatError> {
        let resolve =
            |list: &[ChunksText]| list.iter().map(|chunks| self.chunk(*chunks)).collect::<Result<Vec<_>, _>>();
        Ok((resolve(&self.op.text.src_buff)?, resolve(&self.op.text.dst_buff)?))
    }

    pub(super) fn chunk(&self, text: ChunksText) -> Result<BufferPieces, FormatError> {
        let (rank, buffer) = match (text.buffer, text.buffer_id) {
            (_, Some(id)) => {
                let slot = self.slot()?;
                let remote = self.block().remote[slot].get(id as usize);
                let remote = remote.and_then(|&id| self.gpu().remote.get(id as usize)).copied();
                remote.ok_or_else(|| {
                    self.error(format!("uses remote buffer {id} of its thread block, which has no such buffer"))
                })?
            }
            (Some(letter), None) => (self.rank, letter.into()),
            (None, None) => {
                let message = match text.switch_channel_id {
                    Some(_) => "uses a switch channel, which only glre, glres and gstore do",
                    None => "uses a buffer that is neither its own nor a peer's",
                };
                return Err(self.error(message));
            }
        };
        self.buffer_chunks(rank, buffer, text)
    }

    /// Returns the team of a switch channel, and the chunks on each of its GPUs.
    ///
    /// # Errors
    /// [`FormatError`] for a channel or chunks that do not exist.
    pub(super) fn switch_chunks(&self, text: ChunksText) -> Result<(u32, Vec<BufferPieces>), FormatError> {
        let id = text.switch_channel_id.ok_or_else(|| self.error("names no switch channel"))?;
        let switch = self.block().switches.get(id as usize).and_then(|&id| self.gpu().switches.get(id as usize));
        let switch = switch.ok_or_else(|| {
            self.error(format!("uses switch channel {id} of its thread block, which has no such channel"))
        })?;
        let lacks = |rank: &&u32| self.plan.gpus.get(**rank as usize).is_none_or(|gpu| !gpu.switches.contains(switch));
        if let Some(rank) = switch.ranks.iter().find(lacks) {
            return Err(self.error(format!("uses switch channel {id}, which gpu {rank} does not have")));
        }
        let chunks = switch.ranks.iter().map(|&rank| self.buffer_chunks(rank, switch.buffer, text));
        let team = self.plan.teams.binary_search(&switch.ranks).unwrap_or(0) as u32;
        Ok((team, chunks.collect::<Result<_, _>>()?))
    }

    /// Resolves chunks of a GPU's buffer to pieces.
    ///
    /// # Errors
    /// [`FormatError`] for chunks that do not exist.
    fn buffer_chunks(&self, rank: u32, buffer: Buffer, text: ChunksText) -> Result<BufferPieces, FormatError> {
        let owner = &self.plan.gpus[rank as usize];
        let chunks = match buffer {
            Buffer::Input | Buffer::Output if self.plan.in_place => owner.input_chunks.max(owner.output_chunks),
            Buffer::Input => owner.input_chunks,
            Buffer::Output => owner.output_chunks,
            Buffer::Scratch => owner.scratch_chunks,
        };
        let end = u64::from(text.index) + u64::from(text.size);
        if end > u64::from(chunks) || text.size == 0 {
            return Err(self.error(format!(
                "uses {} {buffer} chunks from {} on of gpu {rank}, which has {chunks}",
                text.size, text.index
            )));
        }
        let pieces = u64::from(self.plan.pieces);
        let (mut from, mut count) = (u64::from(text.index) * pieces, u64::from(text.size) * pieces);
        if let Some(group) = self.op.text.tbg_info {
            let size = u64::from(group.tbg_size.max(1));
            if u64::from(group.tb_id) >= size {
                return Err(self.error(format!("is done by thread block {} of a group of {size}", group.tb_id)));
            }
            from += count / size * u64::from(group.tb_id);
            count /= size;
        }
        match (u32::try_from(from), u32::try_from(from + count)) {
            (Ok(from), Ok(_)) => Ok(BufferPieces { rank, buffer, from, count: count as u32 }),
            _ => Err(self.error(format!("uses chunk {}, beyond what can be counted", text.index))),
        }
    }
}
