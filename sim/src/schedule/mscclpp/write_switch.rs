//! Switch channels of a plan: one per group of GPUs and buffer accessed through a switch.

use super::block_text::{BufferOwner, OperandChunks};
use super::fuse::FusedSwitchOps;
use crate::schedule::file_format::WriteError;
use crate::schedule::flat::{FlatOp, FlatSchedule};
use crate::schedule::lists::Lists;
use crate::schedule::text::put;
use crate::schedule::units::UnitRange;

/// Switch channel: number of the group and letter of the buffer.
type SwitchChannelKey = (u32, char);

/// Switch channels of a plan, and those that each operation uses.
pub(super) struct SwitchChannels<'a> {
    flat: &'a FlatSchedule,
    fused: &'a FusedSwitchOps<'a>,
    /// All channels, sorted. Each GPU has the channels of its groups in this order.
    channels: Vec<SwitchChannelKey>,
    /// Channels that each operation uses.
    operation_channels: Lists<SwitchChannelKey>,
}

impl<'a> SwitchChannels<'a> {
    /// Determines the switch channels that each operation uses.
    ///
    /// # Errors
    /// [`WriteError`]: chunks at different offsets in the buffers of a group's GPUs.
    pub(super) fn new(flat: &'a FlatSchedule, fused: &'a FusedSwitchOps<'a>) -> Result<Self, WriteError> {
        let mut result =
            Self { flat, fused, channels: Vec::new(), operation_channels: Lists::with_capacity(flat.ops.len()) };
        for (id, op) in (0u32..).zip(&flat.ops) {
            for (uses, range) in [(fused.loads(op), op.src), (fused.stores(id, op), op.dst)] {
                if uses {
                    let channel = (op.peer, result.locate(id, op, range)?.0);
                    result.operation_channels.push(channel);
                }
            }
            result.operation_channels.close();
        }
        result.channels.extend(result.operation_channels.items());
        result.channels.sort_unstable();
        result.channels.dedup();
        Ok(result)
    }

    /// Returns the letter of the buffer and the offset of the chunks, which must be the same on all GPUs of the group.
    ///
    /// # Errors
    /// [`WriteError`] otherwise.
    fn locate(&self, id: u32, op: &FlatOp, range: UnitRange) -> Result<(char, u32), WriteError> {
        let mut positions = self.fused.members(op).iter().map(|rank| self.flat.name(id, rank.0, range));
        let first = positions.next().unwrap_or_else(|| self.flat.name(id, op.rank, range))?;
        for position in positions {
            if position? != first {
                return Err(self
                    .flat
                    .unsupported(id, "its chunks have different offsets in the buffers that it joins"));
            }
        }
        Ok(first)
    }

    fn gpu_channels(&self, rank: u32) -> impl Iterator<Item = SwitchChannelKey> {
        let is_own = move |channel: &SwitchChannelKey| self.fused.team(channel.0).iter().any(|member| member.0 == rank);
        self.channels.iter().copied().filter(is_own)
    }

    /// Writes the switch channels of a GPU, each preceded by `separator`.
    pub(super) fn write_channels(&self, rank: u32, mut separator: &'static str, text: &mut String) {
        for (team, letter) in self.gpu_channels(rank) {
            let ranks: Vec<u32> = self.fused.team(team).iter().map(|member| member.0).collect();
            put!(text, separator, "{\"channel_type\": \"switch\", \"buffer_type\": \"", letter);
            put!(text, "\", \"rank_groups\": [{\"size\": ", ranks.len() as u32, ", \"ranks\": [", &ranks[..], "]}]}");
            separator = ", ";
        }
    }

    /// Returns the numbers of the GPU's channels that a thread block with these operations uses.
    pub(super) fn block_channels(&self, rank: u32, ops: &[u32]) -> Vec<u32> {
        let used = |channel: &SwitchChannelKey| ops.iter().any(|&op| self.operation_channels.get(op).contains(channel));
        let numbered = self.gpu_channels(rank).zip(0u32..).filter(|(channel, _)| used(channel));
        numbered.map(|(_, number)| number).collect()
    }

    /// Returns the chunks of a group, as referred to in a thread block that uses the channels `block_channels` of its
    /// GPU.
    ///
    /// # Errors
    /// [`WriteError`] for chunks at different offsets on the GPUs of the group.
    pub(super) fn chunks(
        &self,
        id: u32,
        op: &FlatOp,
        range: UnitRange,
        block_channels: &[u32],
    ) -> Result<OperandChunks, WriteError> {
        let (letter, index) = self.locate(id, op, range)?;
        let number = self.gpu_channels(op.rank).zip(0u32..).find(|(channel, _)| *channel == (op.peer, letter));
        let position = number.and_then(|(_, number)| block_channels.binary_search(&number).ok()).unwrap_or(0);
        Ok(OperandChunks { buffer: BufferOwner::Switch(position as u32), index, size: range.count })
    }
}
