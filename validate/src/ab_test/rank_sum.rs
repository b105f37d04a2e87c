//! Rank-sum test, which determines if one sample is larger than another by more than chance explains.
//!
//! Mann and Whitney, "On a Test of Whether one of Two Random Variables is Stochastically Larger than the Other", 1947.
//! The test assumes no distribution of the times. The probability is exact: all orders of the two samples are counted,
//! and ties count as one half.

/// One-sided p-value: probability, if both samples have the same distribution, that the U statistic is at least that of
/// `sample` against `reference`. Small if `sample` is larger; 1 if a sample is empty.
#[must_use]
pub fn one_sided_p_value(sample: &[f64], reference: &[f64]) -> f64 {
    // Twice the U statistic: number of pairs in which `sample` is larger, with ties as one half.
    let doubled: usize = sample
        .iter()
        .flat_map(|value| reference.iter().map(move |reference_value| value.partial_cmp(reference_value)))
        .map(|order| match order {
            Some(std::cmp::Ordering::Greater) => 2,
            Some(std::cmp::Ordering::Equal) => 1,
            _ => 0,
        })
        .sum();
    let counts = u_counts(sample.len(), reference.len());
    let total: f64 = counts.iter().sum();
    if total == 0.0 || sample.is_empty() || reference.is_empty() {
        return 1.0;
    }
    // U is rounded down, which increases the p-value and is therefore conservative.
    let u = doubled / 2;
    counts.iter().skip(u).sum::<f64>() / total
}

/// Number of orders of `n` and `m` values with each value of U from 0 to n·m, up to a common factor.
fn u_counts(n: usize, m: usize) -> Vec<f64> {
    // The counts are the coefficients of the Gaussian binomial: the product over i of (1 − q^(m+i)) / (1 − q^i).
    let max_u = n * m;
    let mut counts = vec![0.0; max_u + 1];
    if let Some(first) = counts.first_mut() {
        *first = 1.0;
    }
    for i in 1..=n {
        let shift = m + i;
        for u in (shift..=max_u).rev() {
            counts[u] -= counts[u - shift];
        }
        for u in i..=max_u {
            counts[u] += counts[u - i];
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_match_the_published_table() {
        // Table I of Mann and Whitney (1947): for n = m = 3, P(U ≤ 0) = .05 and P(U ≤ 1) = .1; for n = m = 5, P(U ≤ 2)
        // = .016 and P(U ≤ 4) = .048.
        let low = |n, m, max_u: usize| {
            let counts = u_counts(n, m);
            counts.iter().take(max_u + 1).sum::<f64>() / counts.iter().sum::<f64>()
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
        assert!(one_sided_p_value(&high, &low) < 1e-8);
        assert!(one_sided_p_value(&low, &high) > 0.999);
        assert!(one_sided_p_value(&low, &low) > 0.4);
        assert_eq!(one_sided_p_value(&[], &low), 1.0);
    }

    #[test]
    fn order_counts_sum_to_the_binomial_coefficient() {
        // The sums are the binomial coefficients C(15, 7) and C(30, 15).
        assert_eq!(u_counts(7, 8).iter().sum::<f64>(), 6435.0);
        assert_eq!(u_counts(15, 15).iter().sum::<f64>(), 155_117_520.0);
    }
}
