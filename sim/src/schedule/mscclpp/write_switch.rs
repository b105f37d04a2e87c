//! The switch channels of a plan: one for each group of GPUs and buffer that operations go through a switch to.

use super::block_text::{Chunks, Where};
use super::fuse::Fused;
use crate::schedule::format::WriteError;
use crate::schedule::lists::Lists;
use crate::schedule::plain::{Plain, PlainOp};
use crate::schedule::text::put;
use crate::schedule::units::Stretch;

/// A group, and the letter of its buffer.
type Channel = (u32, char);

/// The switch channels.
pub(super) struct Switched<'a> {
    plain: &'a Plain,
    fused: &'a Fused<'a>,
    /// In the order in which each GPU has those of its groups.
    channels: Vec<Channel>,
    /// Those that each operation uses, by its number.
    of_op: Lists<Channel>,
}

impl<'a> Switched<'a> {
    /// # Errors
    /// [`WriteError`]: chunks that lie in other places of the buffers of a group's GPUs.
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

    /// The letter of the buffer, and where in it the chunks lie on all GPUs of the group.
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

    /// Writes the channels of a GPU, each behind what is between two.
    pub(super) fn put_channels_of(&self, rank: u32, mut between: &'static str, text: &mut String) {
        for (team, letter) in self.own(rank) {
            let ranks: Vec<u32> = self.fused.team(team).iter().map(|member| member.0).collect();
            put!(text, between, "{\"channel_type\": \"switch\", \"buffer_type\": \"", letter);
            put!(text, "\", \"rank_groups\": [{\"size\": ", ranks.len() as u32, ", \"ranks\": [", &ranks[..], "]}]}");
            between = ", ";
        }
    }

    /// Those of its GPU's that a thread block of these operations uses, by number.
    pub(super) fn of_block(&self, rank: u32, ops: &[u32]) -> Vec<u32> {
        let used = |channel: &Channel| ops.iter().any(|&op| self.of_op.of(op).contains(channel));
        let numbered = self.own(rank).zip(0u32..).filter(|(channel, _)| used(channel));
        numbered.map(|(_, number)| number).collect()
    }

    /// Chunks of a group, in a thread block that uses these of its GPU's channels.
    pub(super) fn chunks(&self, id: u32, op: &PlainOp, stretch: Stretch, own: &[u32]) -> Result<Chunks, WriteError> {
        let (letter, index) = self.place(id, op, stretch)?;
        let number = self.own(op.rank).zip(0u32..).find(|(channel, _)| *channel == (op.peer, letter));
        let place = number.and_then(|(_, number)| own.binary_search(&number).ok()).unwrap_or(0);
        Ok(Chunks { buffer: Where::Switch(place as u32), index, size: stretch.count })
    }
}
