//! Messages between two ranks, which both sides record. The n-th send of one side is the n-th receive of the other.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use super::{Call, EventKind};

/// Side of a message that recorded it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Sender,
    Receiver,
}

/// Messages from one sender to one receiver in order: indices of their events, and the number recorded on each side.
#[derive(Default)]
pub(super) struct Messages {
    events: Vec<u32>,
    sent: usize,
    received: usize,
}

impl Messages {
    /// Returns the event index of the next message that a side records. Returns `None` if the other side has not
    /// recorded the message yet; its event index is then `new`.
    pub fn next(&mut self, side: Endpoint, new: u32) -> Option<u32> {
        let count = match side {
            Endpoint::Sender => &mut self.sent,
            Endpoint::Receiver => &mut self.received,
        };
        let known = self.events.get(*count).copied();
        *count += 1;
        if known.is_none() {
            self.events.push(new);
        }
        known
    }

    /// Returns the number of receives without a send.
    pub fn missing(&self) -> usize {
        self.received.saturating_sub(self.sent)
    }
}

/// Creates the event kind of a message of `bytes` bytes between two ranks.
pub(super) fn message(from: u32, to: u32, bytes: u64) -> EventKind {
    EventKind::Message(Call { group: [from, to].into(), collective: Collective::SendRecv, bytes: Bytes(bytes) })
}
