//! Messages between two ranks, of which both sides tell: the n-th that one sends is the n-th that the other receives.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use super::{Call, What};

/// Who tells of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Sender,
    Receiver,
}

/// Messages in order: their events, and how many each side has told of.
#[derive(Default)]
pub(super) struct Messages {
    events: Vec<u32>,
    sent: usize,
    received: usize,
}

impl Messages {
    /// The event of the next message that a side tells of; `None` where the other side has not told of it yet: then it is
    /// `new` from now on.
    pub fn next(&mut self, side: Side, new: u32) -> Option<u32> {
        let told = match side {
            Side::Sender => &mut self.sent,
            Side::Receiver => &mut self.received,
        };
        let known = self.events.get(*told).copied();
        *told += 1;
        if known.is_none() {
            self.events.push(new);
        }
        known
    }

    /// How many the receiver waits for that the sender does not send.
    pub fn missing(&self) -> usize {
        self.received.saturating_sub(self.sent)
    }
}

/// A message between the two.
pub(super) fn message(from: u32, to: u32, bytes: u64) -> What {
    What::Message(Call { group: [from, to].into(), collective: Collective::SendRecv, bytes: Bytes(bytes) })
}
