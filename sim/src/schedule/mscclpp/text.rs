//! The objects of an execution plan as they stand in the file. Keys that are not named here say nothing about what is
//! computed and are passed over, as MSCCL++ does.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::schedule::Buffer;

/// The whole file.
#[derive(Deserialize)]
pub(super) struct PlanText<'a> {
    pub(super) name: String,
    pub(super) collective: String,
    pub(super) protocol: String,
    pub(super) inplace: bool,
    #[serde(borrow)]
    pub(super) gpus: Vec<&'a RawValue>,
    #[serde(default)]
    pub(super) min_message_size: u64,
    #[serde(default)]
    pub(super) max_message_size: u64,
    /// Not MSCCL++'s own: the root of a rooted collective.
    #[serde(default)]
    pub(super) root: u32,
}

/// A GPU.
#[derive(Deserialize)]
pub(super) struct GpuText<'a> {
    pub(super) id: u32,
    pub(super) input_chunks: u32,
    pub(super) output_chunks: u32,
    pub(super) scratch_chunks: u32,
    #[serde(borrow)]
    pub(super) threadblocks: Vec<BlockText<'a>>,
    #[serde(default)]
    pub(super) channels: Vec<ChannelText>,
    #[serde(default)]
    pub(super) remote_buffers: Vec<RemoteBufferText>,
    #[serde(default)]
    pub(super) semaphores: Vec<SemaphoreText>,
}

/// A thread block.
#[derive(Deserialize)]
pub(super) struct BlockText<'a> {
    pub(super) id: u32,
    #[serde(borrow)]
    pub(super) ops: Vec<&'a RawValue>,
    #[serde(default)]
    pub(super) channels: Vec<BlockChannelsText>,
    #[serde(default)]
    pub(super) remote_buffer_refs: Vec<RemoteBufferRefsText>,
}

/// How a peer is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ChannelType {
    /// Loads and stores.
    Memory,
    /// A proxy: copy engines or RDMA.
    Port,
    /// Multicast.
    Switch,
    /// Not at all.
    None,
}

/// Channels of a GPU, one for each peer listed.
#[derive(Deserialize)]
pub(super) struct ChannelText {
    pub(super) channel_type: ChannelType,
    #[serde(default)]
    pub(super) connected_to: Vec<u32>,
    /// Of switch channels: which buffer of every GPU of a group is reached.
    pub(super) buffer_type: Option<BufferType>,
    /// Of switch channels: one for each group.
    #[serde(default)]
    pub(super) rank_groups: Vec<RankGroupText>,
}

/// GPUs whose buffers a switch combines and copies.
#[derive(Deserialize)]
pub(super) struct RankGroupText {
    pub(super) ranks: Vec<u32>,
}

/// Channels that a thread block uses, by their numbers among the GPU's of that type.
#[derive(Deserialize)]
pub(super) struct BlockChannelsText {
    pub(super) channel_type: ChannelType,
    pub(super) channel_ids: Vec<u32>,
}

/// A buffer of another GPU.
#[derive(Deserialize)]
pub(super) struct RemoteBufferText {
    pub(super) rank: u32,
    #[serde(rename = "type")]
    pub(super) buffer: BufferType,
}

/// Buffers that a thread block uses, by their numbers among the GPU's.
#[derive(Deserialize)]
pub(super) struct RemoteBufferRefsText {
    pub(super) access_channel_type: ChannelType,
    pub(super) remote_buffer_ids: Vec<u32>,
}

/// A counter between thread blocks of a GPU.
#[derive(Deserialize)]
pub(super) struct SemaphoreText {
    #[serde(default)]
    pub(super) init_value: u32,
}

/// A buffer by its letter.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) enum BufferType {
    #[serde(rename = "i")]
    Input,
    #[serde(rename = "o")]
    Output,
    #[serde(rename = "s")]
    Scratch,
}

impl From<BufferType> for Buffer {
    fn from(letter: BufferType) -> Self {
        match letter {
            BufferType::Input => Self::Input,
            BufferType::Output => Self::Output,
            BufferType::Scratch => Self::Scratch,
        }
    }
}

/// An operation.
#[derive(Deserialize)]
pub(super) struct OpText<'a> {
    pub(super) name: String,
    #[serde(default)]
    pub(super) src_buff: Vec<ChunksText>,
    #[serde(default)]
    pub(super) dst_buff: Vec<ChunksText>,
    pub(super) channel_type: Option<ChannelType>,
    #[serde(default)]
    pub(super) channel_ids: Vec<u32>,
    #[serde(default)]
    pub(super) barrier_id: u32,
    #[serde(default)]
    pub(super) num_threadblocks: u32,
    #[serde(default)]
    pub(super) semaphore_ids: Vec<u32>,
    pub(super) tbg_info: Option<GroupText>,
    /// Of a pipeline.
    #[serde(borrow, default)]
    pub(super) ops: Vec<&'a RawValue>,
}

/// Chunks of a buffer: an own one by its letter, another GPU's by number, or those of a group by their switch channel.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct ChunksText {
    #[serde(rename = "type")]
    pub(super) buffer: Option<BufferType>,
    pub(super) buffer_id: Option<u32>,
    pub(super) switch_channel_id: Option<u32>,
    pub(super) index: u32,
    pub(super) size: u32,
}

/// The thread block's place in a group that shares an operation.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct GroupText {
    pub(super) tb_id: u32,
    pub(super) tbg_size: u32,
}
