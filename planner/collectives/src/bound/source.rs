//! Limiting resources of lower bounds, and their names.

use std::fmt;
use std::sync::Arc;

/// Resource that limits the completion time in a lower bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoundSource {
    /// Latency only, without a limiting capacity.
    Latency,
    /// Ports of a rank's device.
    RankPorts,
    /// Memory of a rank's device.
    RankMemory,
    /// Ports of a host.
    HostPorts,
    /// Ports of a rack, which is a group of hosts that share NVLink.
    RackPorts,
    /// Ports of a group of hosts under the same network switches.
    SwitchPorts,
    /// Boundary of another set of ranks, with its name: `cut of 8 ranks: n0`.
    Cut(Arc<str>),
    /// Boundaries of this number of disjoint sets that contain all ranks.
    Partition(u32),
    /// Total capacity of the links of one kind, if all bytes take shortest paths.
    LinkCapacity,
}

impl fmt::Display for BoundSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name;
        f.pad(match self {
            Self::Latency => "latency",
            Self::RankPorts => "rank ports",
            Self::RankMemory => "rank memory",
            Self::HostPorts => "host ports",
            Self::RackPorts => "rack ports",
            Self::SwitchPorts => "switch ports",
            Self::Cut(name) => name,
            Self::Partition(sets) => {
                name = format!("ports of {sets} sets of ranks");
                &name
            }
            Self::LinkCapacity => "shortest paths",
        })
    }
}
