//! JSON objects of an execution plan, in the form of the file. Other keys do not affect the computation and are
//! ignored, as in MSCCL++.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::schedule::Buffer;

/// Execution plan: the whole file.
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
    /// Root of a rooted collective; an extension that is not part of MSCCL++.
    #[serde(default)]
    pub(super) root: u32,
}

/// Buffer sizes, thread blocks and channels of a GPU.
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

/// Operations of a thread block, and the channels and buffers that they use.
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

/// Mechanism by which a channel reaches a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ChannelType {
    /// Loads and stores by the GPU's threads.
    Memory,
    /// Transfers by a proxy: copy engines or RDMA.
    Port,
    /// Multicast and reduction by the NVSwitch.
    Switch,
    /// No access to a peer.
    None,
}

/// Channels of one type of a GPU, one per listed peer.
#[derive(Deserialize)]
pub(super) struct ChannelText {
    pub(super) channel_type: ChannelType,
    #[serde(default)]
    pub(super) connected_to: Vec<u32>,
    /// Buffer that a switch channel accesses on every GPU of a group; absent for other channels.
    pub(super) buffer_type: Option<BufferType>,
    /// Groups of GPUs of switch channels, one channel each; empty for other channels.
    #[serde(default)]
    pub(super) rank_groups: Vec<RankGroupText>,
}

/// Group of GPUs whose buffers a switch reduces, or to which it replicates data.
#[derive(Deserialize)]
pub(super) struct RankGroupText {
    pub(super) ranks: Vec<u32>,
}

/// Channels used by a thread block, as indices into the GPU's channels of that type.
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

/// Buffers used by a thread block, as indices into the GPU's remote buffers.
#[derive(Deserialize)]
pub(super) struct RemoteBufferRefsText {
    pub(super) access_channel_type: ChannelType,
    pub(super) remote_buffer_ids: Vec<u32>,
}

/// Counter shared by thread blocks of a GPU.
#[derive(Deserialize)]
pub(super) struct SemaphoreText {
    #[serde(default)]
    pub(super) init_value: u32,
}

/// Buffer of a GPU, given by its letter in the file.
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

/// Operation of a thread block, with its operands.
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
    /// Operations that a pipeline contains.
    #[serde(borrow, default)]
    pub(super) ops: Vec<&'a RawValue>,
}

/// Chunks of a buffer: the GPU's own by letter, another GPU's by index, or a group's by switch channel.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct ChunksText {
    #[serde(rename = "type")]
    pub(super) buffer: Option<BufferType>,
    pub(super) buffer_id: Option<u32>,
    pub(super) switch_channel_id: Option<u32>,
    pub(super) index: u32,
    pub(super) size: u32,
}

/// Share of a thread block in an operation that several thread blocks execute: its index among them.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct GroupText {
    pub(super) tb_id: u32,
    pub(super) tbg_size: u32,
}
