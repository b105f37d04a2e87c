//! Devices that participate in a call.

use crate::NodeId;

/// The devices of a call's ranks. Only these devices relay traffic of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Participants {
    /// Devices of the ranks, sorted, without duplicates.
    devices: Vec<NodeId>,
}

impl Participants {
    /// Collects the devices of some ranks, in any order; duplicates are removed.
    #[must_use]
    pub fn new(devices: &[NodeId]) -> Self {
        let mut devices = devices.to_vec();
        devices.sort_unstable();
        devices.dedup();
        Self { devices }
    }

    /// Returns true if a participating rank runs on this device.
    #[must_use]
    pub fn contains(&self, device: NodeId) -> bool {
        self.devices.binary_search(&device).is_ok()
    }
}

/// Devices that may relay traffic between two other GPUs.
#[derive(Clone, Copy, Debug)]
pub(super) enum RelaySet<'p> {
    /// Any rank of the fabric.
    AnyRank,
    /// Only the devices of these participants.
    Among(&'p Participants),
}

impl RelaySet<'_> {
    pub fn allows(self, device: NodeId) -> bool {
        match self {
            Self::AnyRank => true,
            Self::Among(participants) => participants.contains(device),
        }
    }
}
