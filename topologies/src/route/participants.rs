//! Which devices take part in a call.

use crate::NodeId;

/// The devices of a call's ranks: only they pass on what is for others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Participants {
    /// Ascending.
    devices: Vec<NodeId>,
}

impl Participants {
    /// The devices of some ranks, in any order and any number of times.
    #[must_use]
    pub fn new(devices: &[NodeId]) -> Self {
        let mut devices = devices.to_vec();
        devices.sort_unstable();
        devices.dedup();
        Self { devices }
    }

    /// Whether a device is one of them.
    #[must_use]
    pub fn contains(&self, device: NodeId) -> bool {
        self.devices.binary_search(&device).is_ok()
    }
}

/// Who may relay.
#[derive(Clone, Copy, Debug)]
pub(super) enum Relaying<'p> {
    /// Any rank of the fabric.
    AnyRank,
    /// These of them.
    Among(&'p Participants),
}

impl Relaying<'_> {
    pub fn allows(self, device: NodeId) -> bool {
        match self {
            Self::AnyRank => true,
            Self::Among(participants) => participants.contains(device),
        }
    }
}
