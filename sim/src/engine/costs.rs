//! Costs along the chain of operations that ends last (the critical path).

use fabricast_topologies::Picos;

/// Durations along a chain of operations, by kind; they add up to the length of the chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Costs {
    /// Software time: start-up and the overhead of each step.
    pub software: Picos,
    /// Latency of the paths of the chain's operations.
    pub latency: Picos,
    /// Transfer time of the bytes at the rate without contention.
    pub bandwidth: Picos,
    /// All other time: shared capacities, ranks that start late.
    pub waiting: Picos,
    /// Part of `waiting` due to ranks that start late.
    pub start_delay: Picos,
}

impl Costs {
    /// Returns the sum of all kinds: the length of the chain.
    #[must_use]
    pub fn total(self) -> Picos {
        self.software + self.latency + self.bandwidth + self.waiting
    }

    /// Returns the waiting time due to shared capacities.
    #[must_use]
    pub fn sharing(self) -> Picos {
        self.waiting - self.start_delay
    }
}

/// Costs of a chain of operations up to a known instant; the remaining time is waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChainCosts {
    pub software: Picos,
    pub latency: Picos,
    pub bandwidth: Picos,
    /// Part of the waiting time due to ranks that start late.
    pub start_delay: Picos,
}

impl From<Costs> for ChainCosts {
    fn from(costs: Costs) -> Self {
        let Costs { software, latency, bandwidth, start_delay, waiting: _ } = costs;
        Self { software, latency, bandwidth, start_delay }
    }
}

impl std::ops::Add for ChainCosts {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            software: self.software + other.software,
            latency: self.latency + other.latency,
            bandwidth: self.bandwidth + other.bandwidth,
            start_delay: self.start_delay + other.start_delay,
        }
    }
}

impl ChainCosts {
    /// Returns the costs of the chain without those of `part`; `None` if `part` exceeds any kind of cost.
    pub fn checked_sub(self, part: Self) -> Option<Self> {
        let subtract = |costs: Picos, part: Picos| costs.0.checked_sub(part.0).map(Picos);
        Some(Self {
            software: subtract(self.software, part.software)?,
            latency: subtract(self.latency, part.latency)?,
            bandwidth: subtract(self.bandwidth, part.bandwidth)?,
            start_delay: subtract(self.start_delay, part.start_delay)?,
        })
    }

    /// Returns the costs of `count` equal parts of a chain.
    pub fn times(self, count: u32) -> Self {
        let times = |costs: Picos| Picos(costs.0 * u64::from(count));
        Self {
            software: times(self.software),
            latency: times(self.latency),
            bandwidth: times(self.bandwidth),
            start_delay: times(self.start_delay),
        }
    }

    /// Returns the costs of the chain that ends at `until`. Time that belongs to no other kind counts as waiting.
    pub fn costs_at(self, until: Picos) -> Costs {
        let Self { software, latency, bandwidth, start_delay: late } = self;
        Costs { software, latency, bandwidth, waiting: until - software - latency - bandwidth, start_delay: late }
    }
}
