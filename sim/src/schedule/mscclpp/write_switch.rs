//! Switch channels of a plan: one per group of GPUs and buffer accessed through a switch.

use super::block_text::{Chunks, Where};
use super::fuse::Fused;
use crate::schedule::format::WriteError;
use crate::schedule::lists::Lists;
use crate::schedule::plain::{Plain, PlainOp};
use crate::schedule::text::put;
use crate::schedule::units::Stretch;

/// A group and the letter of its buffer.
type Channel = (u32, char);

/// The switch channels of a plan.
pub(super) struct Switched<'a> {
    plain: &'a Plain,
    fused: &'a Fused<'a>,
    /// All channels, sorted; each GPU has those of its groups in this order.
    channels: Vec<Channel>,
    /// Channels that each operation uses.
    of_op: Lists<Channel>,
}

impl<'a> Switched<'a> {
    /// # Errors
    /// [`WriteError`]: chunks at different offsets in the buffers of a group's GPUs.
    pub(super) fn new(plain: &'a Plain, fused: &'a Fused<'a>) -> Result<Self, WriteError> {
        let mut all = Self { plain, fused, channels: Vec::new(), of_op: Lists::with_capacity(plain.ops.len()) };
        for (id, op) in (0u32..).zip(&plain.ops) {
            for (uses, stretch) in [(fused.loads(op), op.src), (fused.stores(id, op), op.dst)] {
                if uses {
                    let channel = (op.peer, all.place(id, op, stretch)?.0);
                    all.of_op.push(channel);
                }
            }
            all.of_op.close();
        }
        all.channels.extend(all.of_op.all());
        all.channels.sort_unstable();
        all.channels.dedup();
        Ok(all)
    }

    /// Letter of the buffer and offset of the chunks, which must be the same on all GPUs of the group.
    fn place(&self, id: u32, op: &PlainOp, stretch: Stretch) -> Result<(char, u32), WriteError> {
        let mut places = self.fused.members(op).iter().map(|rank| self.plain.name(id, rank.0, stretch));
        let first = places.next().unwrap_or_else(|| self.plain.name(id, op.rank, stretch))?;
        for place in places {
            if place? != first {
                return Err(self
                    .plain
                    .unsupported(id, "its chunks lie in different places of the buffers that it joins"));
            }
        }
        Ok(first)
    }

    fn own(&self, rank: u32) -> impl Iterator<Item = Channel> {
        let is_own = move |channel: &Channel| self.fused.team(channel.0).iter().any(|member| member.0 == rank);
        self.channels.iter().copied().filter(is_own)
    }

    /// Writes the channels of a GPU, each preceded by the separator `between`.
    pub(super) fn put_channels_of(&self, rank: u32, mut between: &'static str, text: &mut String) {
        for (team, letter) in self.own(rank) {
            let ranks: Vec<u32> = self.fused.team(team).iter().map(|member| member.0).collect();
            put!(text, between, "{\"channel_type\": \"switch\", \"buffer_type\": \"", letter);
            put!(text, "\", \"rank_groups\": [{\"size\": ", ranks.len() as u32, ", \"ranks\": [", &ranks[..], "]}]}");
            between = ", ";
        }
    }

    /// Numbers of the GPU's channels that the thread block with these operations uses.
    pub(super) fn of_block(&self, rank: u32, ops: &[u32]) -> Vec<u32> {
        let used = |channel: &Channel| ops.iter().any(|&op| self.of_op.of(op).contains(channel));
        let numbered = self.own(rank).zip(0u32..).filter(|(channel, _)| used(channel));
        numbered.map(|(_, number)| number).collect()
    }

    /// Chunks of a group in a thread block that uses the channels `own` of its GPU.
    pub(super) fn chunks(&self, id: u32, op: &PlainOp, stretch: Stretch, own: &[u32]) -> Result<Chunks, WriteError> {
        let (letter, index) = self.place(id, op, stretch)?;
        let number = self.own(op.rank).zip(0u32..).find(|(channel, _)| *channel == (op.peer, letter));
        let place = number.and_then(|(_, number)| own.binary_search(&number).ok()).unwrap_or(0);
        Ok(Chunks { buffer: Where::Switch(place as u32), index, size: stretch.count })
    }
}
