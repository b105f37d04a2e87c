//! Route of a two-sided message, and its staging in host memory.

use fabricast_topologies::route::Staging;
use fabricast_topologies::{Bandwidth, Bytes, Picos};

use crate::profile::DataPath;

/// Route of a two-sided message between two ranks.
#[derive(Clone, Debug, Default)]
pub(super) struct MessageRoute {
    /// Sum of the latencies of the route's links.
    pub latency: Picos,
    /// Buffers in host memory that stage the data.
    pub staging: Staging,
    /// True if the route leaves the host.
    pub leaves: bool,
    /// Bandwidth of each section of the route between its ends and the staging buffers; empty if nothing is staged.
    pub sections: Vec<Bandwidth>,
}

impl MessageRoute {
    /// Route between two ranks on one device.
    pub const SAME_DEVICE: Self =
        Self { latency: Picos::ZERO, staging: Staging { out: None, into: None }, leaves: false, sections: Vec::new() };

    /// Returns the hardware that carries the data of large messages on this route.
    pub(super) fn carried(&self) -> DataPath {
        match (self.staging == Staging::default(), self.leaves) {
            (false, _) => DataPath::HostStaged,
            (true, true) => DataPath::Nic,
            (true, false) => DataPath::CopyEngine,
        }
    }

    /// Time until the first fragment has reached every staging buffer and the pipeline is full. Each section of the
    /// route adds its transfer time for a fragment, except for the slowest section, whose time is part of the transfer
    /// of all fragments.
    pub(super) fn filling(&self, fragment: Bytes) -> Picos {
        let times = || self.sections.iter().map(|&rate| rate.transfer_time(fragment));
        let slowest = times().max().unwrap_or(Picos::ZERO);
        Picos(times().sum::<Picos>().0.saturating_sub(slowest.0))
    }
}
