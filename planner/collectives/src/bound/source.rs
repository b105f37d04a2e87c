//! Limiting resources of lower bounds, and their names.

use std::fmt;
use std::sync::Arc;

/// Limiting resource of a lower bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoundSource {
    /// Latency alone, without a limiting capacity.
    Latency,
    /// Ports of a rank's device.
    RankPorts,
    /// Memory of a rank's device.
    RankMemory,
    /// Ports of a host.
    HostPorts,
    /// Ports of a rack, a group of hosts that share NVLink.
    RackPorts,
    /// Ports of a group of hosts under the same network switches.
    SwitchPorts,
    /// Boundary of another set of ranks, by name: `cut of 8 ranks: n0`.
    Cut(Arc<str>),
    /// Total capacity of links of one kind, with all bytes on shortest paths.
    LinkCapacity,
}

impl fmt::Display for BoundSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Latency => "latency",
            Self::RankPorts => "rank ports",
            Self::RankMemory => "rank memory",
            Self::HostPorts => "host ports",
            Self::RackPorts => "rack ports",
            Self::SwitchPorts => "switch ports",
            Self::Cut(name) => name,
            Self::LinkCapacity => "shortest paths",
        })
    }
}
