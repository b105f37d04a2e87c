//! Rank-sum test: is one side slower than the other by more than chance explains?
//!
//! Mann and Whitney, "On a Test of Whether one of Two Random Variables is Stochastically Larger than the Other",
//! 1947. No distribution of times is assumed. The probability is exact, counted over all orders of the two samples;
//! ties count as one half.

/// One-sided p-value: the probability of a U statistic at least as large as that of `these` against `those` under
/// equal distributions. Small if `these` are larger; 1 if one sample is empty.
#[must_use]
pub fn chance_larger(these: &[f64], those: &[f64]) -> f64 {
    // Twice U: pairs in which `these` are larger, ties as one half.
    let doubled: usize = these
        .iter()
        .flat_map(|this| those.iter().map(move |that| this.partial_cmp(that)))
        .map(|order| match order {
            Some(std::cmp::Ordering::Greater) => 2,
            Some(std::cmp::Ordering::Equal) => 1,
            _ => 0,
        })
        .sum();
    let ways = ways(these.len(), those.len());
    let all: f64 = ways.iter().sum();
    if all == 0.0 || these.is_empty() || those.is_empty() {
        return 1.0;
    }
    // Rounded down, which is conservative.
    let least = doubled / 2;
    ways.iter().skip(least).sum::<f64>() / all
}

/// Number of orders of `n` and `m` values that give each U from 0 to n·m, up to a common factor.
fn ways(n: usize, m: usize) -> Vec<f64> {
    // Coefficients of the Gaussian binomial: the product over i of (1 − q^(m+i)) / (1 − q^i).
    let most = n * m;
    let mut ways = vec![0.0; most + 1];
    if let Some(first) = ways.first_mut() {
        *first = 1.0;
    }
    for i in 1..=n {
        let up = m + i;
        for u in (up..=most).rev() {
            ways[u] -= ways[u - up];
        }
        for u in i..=most {
            ways[u] += ways[u - i];
        }
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_match_the_published_table() {
        // Mann and Whitney 1947, table I: n = 3, m = 3: P(U ≤ 0) = .05, P(U ≤ 1) = .1; n = m = 5: P(U ≤ 2) = .016,
        // P(U ≤ 4) = .048.
        let low = |n, m, most: usize| {
            let ways = ways(n, m);
            ways.iter().take(most + 1).sum::<f64>() / ways.iter().sum::<f64>()
        };
        assert!((low(3, 3, 0) - 0.05).abs() < 1e-12);
        assert!((low(3, 3, 1) - 0.1).abs() < 1e-12);
        assert!((low(5, 5, 2) - 0.016).abs() < 5e-4);
        assert!((low(5, 5, 4) - 0.048).abs() < 5e-4);
    }

    #[test]
    fn larger_samples_are_significant_and_equal_ones_are_not() {
        let low: Vec<f64> = (0..15).map(|i| 10.0 + 0.01 * f64::from(i)).collect();
        let high: Vec<f64> = low.iter().map(|value| value * 1.1).collect();
        assert!(chance_larger(&high, &low) < 1e-8);
        assert!(chance_larger(&low, &high) > 0.999);
        assert!(chance_larger(&low, &low) > 0.4);
        assert_eq!(chance_larger(&[], &low), 1.0);
    }

    #[test]
    fn order_counts_sum_to_the_binomial_coefficient() {
        // Binomial coefficients C(15, 7) and C(30, 15).
        assert_eq!(ways(7, 8).iter().sum::<f64>(), 6435.0);
        assert_eq!(ways(15, 15).iter().sum::<f64>(), 155_117_520.0);
    }
}
