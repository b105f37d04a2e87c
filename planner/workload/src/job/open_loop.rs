//! Requests that arrive at a mean rate, whatever the machine does: gaps between them, and their lengths.

use fabricast_topologies::Picos;

/// Requests that arrive independently of the machine, as from many users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenLoop {
    /// Mean time between two arrivals, over all replicas.
    pub mean_gap: Picos,
    /// Number of requests of a benchmark: the machine is idle before the first, and none follows the last. `None`: the
    /// requests never end, and the machine is in steady state.
    pub requests: Option<u64>,
    /// Largest number of running requests per replica: vLLM's `max_num_seqs`.
    pub max_num_seqs: u64,
}

impl OpenLoop {
    /// Mean number of arriving requests per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        1e12 / self.mean_gap.0.max(1) as f64
    }
}

/// Random properties of the requests of an open loop. Gaps, prompts and outputs are independent of each other.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestVariation {
    /// Shape of the gamma distribution of gaps between arrivals: 1 for a Poisson process, less for bursts (vLLM's
    /// `--burstiness`).
    pub burstiness: f64,
    /// Distribution of the numbers of prompt tokens.
    pub prompt: LengthDistribution,
    /// Distribution of the numbers of output tokens, including the first.
    pub output: LengthDistribution,
}

/// Distribution of numbers of tokens: equally spaced quantiles, from the minimum to the maximum, with values spread evenly
/// between neighbours. One quantile is a fixed length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LengthDistribution(Vec<u64>);

impl LengthDistribution {
    /// Returns the distribution with these quantiles; `None` if there are none, they decrease, or one is 0.
    #[must_use]
    pub fn new(quantiles: Vec<u64>) -> Option<Self> {
        let is_valid = quantiles.first().is_some_and(|&smallest| smallest > 0) && quantiles.is_sorted();
        is_valid.then_some(Self(quantiles))
    }

    /// Distribution of one length.
    #[must_use]
    pub fn fixed(tokens: u64) -> Self {
        Self(vec![tokens])
    }

    /// Returns the largest number of tokens.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.0.last().copied().unwrap_or_default()
    }

    /// Returns the mean number of tokens, rounded to a whole number.
    #[must_use]
    pub fn mean(&self) -> u64 {
        let intervals = (self.0.len() as u64 - 1).max(1) as f64;
        let sums: f64 = self.0.windows(2).map(|pair| pair.iter().sum::<u64>() as f64 / 2.0).sum();
        if self.0.len() == 1 { self.max() } else { (sums / intervals).round() as u64 }
    }

    /// Returns the number of tokens below which a share of the requests lies. `share`: 0 to 1.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u64 {
        let position = share.clamp(0.0, 1.0) * (self.0.len() - 1) as f64;
        let below = position.floor() as usize;
        let [low, high] = [below, below + 1].map(|index| self.0.get(index).copied().unwrap_or(self.max()) as f64);
        (low + (high - low) * position.fract()).round() as u64
    }

    /// Returns true if all requests have the same number of tokens.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        self.0.first() == self.0.last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_are_interpolated() {
        let lengths = LengthDistribution::new(vec![10, 20, 100]).unwrap();
        assert_eq!([0.0, 0.25, 0.5, 0.75, 1.0].map(|share| lengths.quantile(share)), [10, 15, 20, 60, 100]);
        assert_eq!((lengths.mean(), lengths.max(), lengths.is_fixed()), (38, 100, false));
        let fixed = LengthDistribution::fixed(7);
        assert_eq!((fixed.mean(), fixed.max(), fixed.quantile(0.3), fixed.is_fixed()), (7, 7, 7, true));
        assert_eq!(LengthDistribution::new(vec![]), None);
        assert_eq!(LengthDistribution::new(vec![3, 2]), None);
        assert_eq!(LengthDistribution::new(vec![0, 2]), None);
    }

    proptest! {
        /// The mean is that of 100,000 quantiles.
        #[test]
        fn mean_is_that_of_quantiles(mut lengths in proptest::collection::vec(1u64..10_000, 1..9)) {
            lengths.sort_unstable();
            let lengths = LengthDistribution::new(lengths).unwrap();
            let count = 100_000;
            let sum: u64 = (0..count).map(|index| lengths.quantile((index as f64 + 0.5) / count as f64)).sum();
            prop_assert!((sum as f64 / count as f64 - lengths.mean() as f64).abs() <= 1.0);
        }
    }
}
