//! What sets a bound, in words.

use std::fmt;
use std::sync::Arc;

/// What sets a bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoundSource {
    /// Latency alone.
    Latency,
    /// The ports of a rank's device.
    RankPorts,
    /// The memory of a rank's device.
    RankMemory,
    /// The ports of a host.
    HostPorts,
    /// The ports of a rack: of hosts that share NVLink.
    RackPorts,
    /// The ports of the hosts under some network switches.
    SwitchPorts,
    /// Another set of ranks, named: `cut of 8 ranks: n0`.
    Cut(Arc<str>),
    /// What all bytes together need of links of one kind, each by the shortest way.
    Lengths,
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
            Self::Lengths => "shortest ways",
        })
    }
}
