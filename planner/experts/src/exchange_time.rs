//! Completion time of a dispatch or combine, by part.

use fabricast_topologies::Picos;

/// Extent of a reported time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Timing {
    /// Time on the device: of the profiler, or of a replayed graph.
    #[default]
    Kernel,
    /// Time between events around single calls, with the host time of the call.
    Host,
}

/// Part of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExchangePart {
    /// Launches, flags and synchronization.
    Fixed,
    /// Movement of tokens at the rate of the slowest of links, NICs and thread blocks.
    Transfer,
    /// Filling and draining the buffers of forwarding blocks.
    Fill,
    /// Copies and sums from receive buffers after the transfer.
    Receive,
}

impl ExchangePart {
    /// Name of the part.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fixed => "launch and flags",
            Self::Transfer => "transfer",
            Self::Fill => "buffer fill",
            Self::Receive => "receive",
        }
    }
}

/// Completion time of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeTime {
    /// Launches, flags and synchronization.
    pub fixed: Picos,
    /// Movement of tokens.
    pub transfer: Picos,
    /// Filling and draining of buffers.
    pub fill: Picos,
    /// Copies from receive buffers.
    pub receive: Picos,
    /// Resource that limits the transfer.
    pub bottleneck: &'static str,
}

impl ExchangeTime {
    /// Completion time: the sum of all parts.
    #[must_use]
    pub fn total(&self) -> Picos {
        self.parts().into_iter().map(|(_, time)| time).sum()
    }

    /// Parts and their times, in chronological order.
    #[must_use]
    pub fn parts(&self) -> [(ExchangePart, Picos); 4] {
        [
            (ExchangePart::Fixed, self.fixed),
            (ExchangePart::Transfer, self.transfer),
            (ExchangePart::Fill, self.fill),
            (ExchangePart::Receive, self.receive),
        ]
    }
}
