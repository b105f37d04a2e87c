//! The switch channels of a plan: one for each group of GPUs and buffer that operations go through a switch to.

use super::fuse::Fused;
use crate::schedule::format::WriteError;
use crate::schedule::plain::{Plain, PlainOp};
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
    of_op: Vec<Vec<Channel>>,
}

impl<'a> Switched<'a> {
    /// # Errors
    /// [`WriteError`]: chunks that lie in other places of the buffers of a group's GPUs.
    pub(super) fn new(plain: &'a Plain, fused: &'a Fused<'a>) -> Result<Self, WriteError> {
        let mut all = Self { plain, fused, channels: Vec::new(), of_op: Vec::with_capacity(plain.ops.len()) };
        for (id, op) in (0u32..).zip(&plain.ops) {
            let mut used = Vec::new();
            for (uses, stretch) in [(fused.loads(op), op.src), (fused.stores(id, op), op.dst)] {
                if uses {
                    used.push((op.peer, all.place(id, op, stretch)?.0));
                }
            }
            all.channels.extend(&used);
            all.of_op.push(used);
        }
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

    /// The channels of a GPU as they are written.
    pub(super) fn channels_of(&self, rank: u32) -> Vec<String> {
        let written = |(team, letter): Channel| {
            let ranks: Vec<String> = self.fused.team(team).iter().map(|member| member.0.to_string()).collect();
            format!(
                "{{\"channel_type\": \"switch\", \"buffer_type\": \"{letter}\", \"rank_groups\": [{{\"size\": {}, \
                 \"ranks\": [{}]}}]}}",
                ranks.len(),
                ranks.join(", ")
            )
        };
        self.own(rank).map(written).collect()
    }

    /// Those of its GPU's that a thread block of these operations uses, by number.
    pub(super) fn of_block(&self, rank: u32, ops: &[u32]) -> Vec<u32> {
        let used = |channel: &Channel| {
            let is_used = |op: &u32| self.of_op.get(*op as usize).is_some_and(|used| used.contains(channel));
            ops.iter().any(is_used)
        };
        let numbered = self.own(rank).zip(0u32..).filter(|(channel, _)| used(channel));
        numbered.map(|(_, number)| number).collect()
    }

    /// Chunks of a group, in a thread block that uses these of its GPU's channels.
    pub(super) fn chunks(&self, id: u32, op: &PlainOp, stretch: Stretch, own: &[u32]) -> Result<String, WriteError> {
        let (letter, index) = self.place(id, op, stretch)?;
        let number = self.own(op.rank).zip(0u32..).find(|(channel, _)| *channel == (op.peer, letter));
        let place = number.and_then(|(_, number)| own.binary_search(&number).ok()).unwrap_or(0);
        Ok(format!("{{\"switch_channel_id\": {place}, \"index\": {index}, \"size\": {}}}", stretch.count))
    }
}
