//! Drives of the hosts, for data that jobs offload to them.

use super::Fabric;
use crate::Bandwidth;

/// Bandwidths of the NVMe drives of each host, all drives together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostDrives {
    /// Bandwidth of reads.
    pub read: Bandwidth,
    /// Bandwidth of writes.
    pub write: Bandwidth,
}

impl Fabric {
    /// Returns the drives of each host; `None` if they are not stated.
    #[must_use]
    pub fn drives(&self) -> Option<HostDrives> {
        self.drives
    }

    /// Returns the fabric with other drives in each host.
    #[must_use]
    pub fn with_drives(self, drives: Option<HostDrives>) -> Self {
        Self { drives, ..self }
    }
}
