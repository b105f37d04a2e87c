//! Routing of tokens to experts, and the probability that a token has an expert in a block of experts.
//!
//! A token chooses *k* distinct experts among a pool of *p*. If all choices are equally likely, the number of them in a
//! block of *m* experts is hypergeometric, so the token misses the block with probability C(*p* − *m*, *k*) ÷ C(*p*,
//! *k*). With a limit of groups, the pool consists of the experts of *l* groups, of which all sets are equally likely;
//! the miss probability is averaged over the number of groups of the block that are in the pool.

use crate::error::ExchangeError;

/// Distribution of the experts of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RoutingPattern {
    /// Every set of experts is equally likely.
    #[default]
    Random,
    /// Every set of `limit` groups is equally likely, and so is every set of experts in these groups: node-limited
    /// routing (DeepSeek-V3, arXiv 2412.19437, §2.1.2).
    GroupLimited {
        /// Number of equal groups of consecutive experts.
        groups: u32,
        /// Number of groups that a token may use.
        limit: u32,
    },
    /// Experts of a token are spread evenly, so that every rank receives the same number of tokens.
    Balanced,
}

/// Tokens of each rank and their routing.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenRouting {
    tokens: u64,
    hidden: u32,
    experts: u32,
    top_k: u32,
    pattern: RoutingPattern,
    skew: f64,
}

impl TokenRouting {
    /// Largest number of tokens of a rank.
    pub const MAX_TOKENS: u64 = 1 << 30;
    /// Largest number of elements of a token.
    pub const MAX_HIDDEN: u32 = 1 << 20;
    /// Largest number of experts.
    pub const MAX_EXPERTS: u32 = 1 << 14;

    /// Describes `tokens` tokens per rank of `hidden` elements, each routed to `top_k` of `experts` experts.
    ///
    /// # Errors
    /// [`ExchangeError`]: a number is 0 or too large, `top_k` exceeds the number of experts that a token can choose
    /// from, the number of experts is not a multiple of the number of groups, or the group limit exceeds the number of
    /// groups.
    pub fn new(
        tokens: u64,
        hidden: u32,
        experts: u32,
        top_k: u32,
        pattern: RoutingPattern,
    ) -> Result<Self, ExchangeError> {
        if top_k == 0 {
            return Err(ExchangeError::Zero("experts per token"));
        }
        for (what, value, max) in [
            ("tokens", tokens, Self::MAX_TOKENS),
            ("hidden elements", hidden.into(), Self::MAX_HIDDEN.into()),
            ("experts", experts.into(), Self::MAX_EXPERTS.into()),
        ] {
            if value == 0 {
                return Err(ExchangeError::Zero(what));
            }
            if value > max {
                return Err(ExchangeError::TooLarge { what, value, max });
            }
        }
        let choices = match pattern {
            RoutingPattern::GroupLimited { groups, limit } => {
                if groups == 0 || limit == 0 || limit > groups {
                    return Err(ExchangeError::GroupLimit { limit, groups });
                }
                if !experts.is_multiple_of(groups) {
                    return Err(ExchangeError::Uneven { experts, parts: groups, what: "groups" });
                }
                experts / groups * limit
            }
            RoutingPattern::Random | RoutingPattern::Balanced => experts,
        };
        if top_k > choices {
            return Err(ExchangeError::TopK { top_k, choices });
        }
        Ok(Self { tokens, hidden, experts, top_k, pattern, skew: 1.0 })
    }

    /// Variant in which the most loaded rank sends and receives `skew` times the mean.
    ///
    /// # Errors
    /// [`ExchangeError::Skew`] for values below 1.
    pub fn with_skew(self, skew: f64) -> Result<Self, ExchangeError> {
        if skew >= 1.0 && skew.is_finite() { Ok(Self { skew, ..self }) } else { Err(ExchangeError::Skew(skew)) }
    }

    /// Number of tokens of a rank.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Number of elements of a token.
    #[must_use]
    pub fn hidden(&self) -> u32 {
        self.hidden
    }

    /// Number of experts of all ranks.
    #[must_use]
    pub fn experts(&self) -> u32 {
        self.experts
    }

    /// Number of experts of a token.
    #[must_use]
    pub fn top_k(&self) -> u32 {
        self.top_k
    }

    /// Distribution of the experts of a token.
    #[must_use]
    pub fn pattern(&self) -> RoutingPattern {
        self.pattern
    }

    /// Load of the most loaded rank relative to the mean.
    #[must_use]
    pub fn skew(&self) -> f64 {
        self.skew
    }

    /// Probability that a token has at least one of the experts `first` to `first + count − 1`.
    #[must_use]
    pub fn hit_probability(&self, first: u32, count: u32) -> f64 {
        let count = count.min(self.experts.saturating_sub(first));
        match self.pattern {
            RoutingPattern::Balanced => (f64::from(self.top_k) * f64::from(count) / f64::from(self.experts)).min(1.0),
            RoutingPattern::Random => 1.0 - self.miss_probability(self.experts, count),
            RoutingPattern::GroupLimited { groups, limit } => 1.0 - self.group_miss(first, count, groups, limit),
        }
    }

    /// Probability that none of the token's choices among `pool` experts is one of `block` of them.
    fn miss_probability(&self, pool: u32, block: u32) -> f64 {
        let (pool, block) = (f64::from(pool), f64::from(block));
        (0..self.top_k).map(f64::from).map(|i| ((pool - block - i) / (pool - i)).max(0.0)).product()
    }

    /// Probability that a token misses a block if it may use `limit` of `groups` groups.
    fn group_miss(&self, first: u32, count: u32, groups: u32, limit: u32) -> f64 {
        let size = self.experts / groups;
        let pool = size * limit;
        let overlap = |group: u32| {
            let (start, end) = (first.max(group * size), (first + count).min((group + 1) * size));
            end.saturating_sub(start)
        };
        let overlaps: Vec<u32> = (0..groups).map(overlap).filter(|&experts| experts > 0).collect();
        let full = overlaps.iter().filter(|&&experts| experts == size).count() as u32;
        let partial: Vec<u32> = overlaps.into_iter().filter(|&experts| experts < size).collect();
        let other = groups - full - partial.len() as u32;
        let binomials = Binomials::new(groups);
        let all = binomials.ln(groups, limit);
        // A consecutive block covers at most two groups in part.
        (0..1u32 << partial.len())
            .map(|chosen| {
                let is_chosen = |index: &usize| chosen >> index & 1 == 1;
                let partial_experts: u32 =
                    partial.iter().enumerate().filter(|(index, _)| is_chosen(index)).map(|(_, &experts)| experts).sum();
                let remaining = limit.checked_sub(chosen.count_ones());
                remaining.map_or(0.0, |remaining| {
                    (0..=full.min(remaining))
                        .map(|j| {
                            let sets = binomials.ln(full, j) + binomials.ln(other, remaining - j);
                            (sets - all).exp() * self.miss_probability(pool, partial_experts + j * size)
                        })
                        .sum::<f64>()
                })
            })
            .sum()
    }
}

/// Logarithms of numbers of sets, which overflow for hundreds of groups.
struct Binomials {
    ln_factorials: Vec<f64>,
}

impl Binomials {
    fn new(max: u32) -> Self {
        let mut sum = 0.0;
        let logarithms = (1..=max).map(|factor| {
            sum += f64::from(factor).ln();
            sum
        });
        Self { ln_factorials: std::iter::once(0.0).chain(logarithms).collect() }
    }

    /// Logarithm of the number of sets of `k` out of `n`; −∞ if `k` exceeds `n`.
    fn ln(&self, n: u32, k: u32) -> f64 {
        let at = |number: u32| self.ln_factorials.get(number as usize).copied().unwrap_or(f64::NEG_INFINITY);
        n.checked_sub(k).map_or(f64::NEG_INFINITY, |rest| at(n) - at(k) - at(rest))
    }
}
