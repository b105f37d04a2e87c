//! Where time goes, along the chain of operations that ends last.

use fabricast_topologies::Picos;

/// A sum of durations by kind; along a chain of operations they add up to its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Costs {
    /// Software: start-up and the overhead of each step.
    pub software: Picos,
    /// Latency of paths.
    pub latency: Picos,
    /// Bytes at the rate that a transfer would have alone.
    pub bandwidth: Picos,
    /// Everything else: shared capacities, ranks that start late.
    pub waiting: Picos,
    /// The part of `waiting` that was for ranks that start late.
    pub late: Picos,
}

impl Costs {
    /// The sum.
    #[must_use]
    pub fn total(self) -> Picos {
        self.software + self.latency + self.bandwidth + self.waiting
    }

    /// What sharing capacities with others added.
    #[must_use]
    pub fn sharing(self) -> Picos {
        self.waiting - self.late
    }
}

/// Costs of a chain of operations up to a known instant: what is not spent otherwise was waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spent {
    pub software: Picos,
    pub latency: Picos,
    pub bandwidth: Picos,
    /// For ranks that start late: part of what was waited for.
    pub late: Picos,
}

impl Spent {
    /// The costs of the chain, which ends at `until`.
    pub fn until(self, until: Picos) -> Costs {
        let Self { software, latency, bandwidth, late } = self;
        Costs { software, latency, bandwidth, waiting: until - software - latency - bandwidth, late }
    }
}
