//! Placement of items along a line, each as close to its preferred position as the other items allow.

/// Returns positions in the order of `preferred` (ascending), at least `spacing` apart and between `low` and `high`,
/// that minimize the sum of squared distances from `preferred`. If the line is too short, positions start at `low`,
/// `spacing` apart.
///
/// With y(i) = x(i) − i·spacing this is isotonic regression, solved by pooling neighbours that violate the order (Ayer
/// et al. 1955); bounds clip its result.
pub(super) fn spread(preferred: &[f64], spacing: f64, low: f64, high: f64) -> Vec<f64> {
    // Pools of neighbours: number of items, and sum of their preferred positions.
    let mut pools: Vec<(usize, f64)> = Vec::new();
    for (i, &want) in preferred.iter().enumerate() {
        let mut pool = (1, want - i as f64 * spacing);
        while let Some(&last) = pools.last() {
            if last.1 / last.0 as f64 <= pool.1 / pool.0 as f64 {
                break;
            }
            pool = (last.0 + pool.0, last.1 + pool.1);
            pools.pop();
        }
        pools.push(pool);
    }
    let room = (high - low - preferred.len().saturating_sub(1) as f64 * spacing).max(0.0);
    pools
        .into_iter()
        .flat_map(|(count, sum)| std::iter::repeat_n((sum / count as f64).clamp(low, low + room), count))
        .enumerate()
        .map(|(i, y)| y + i as f64 * spacing)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn positions_match_wishes_or_share_the_displacement() {
        assert_eq!(spread(&[10.0, 30.0], 10.0, 0.0, 100.0), [10.0, 30.0]);
        assert_eq!(spread(&[50.0, 50.0, 50.0], 10.0, 0.0, 100.0), [40.0, 50.0, 60.0]);
        assert_eq!(spread(&[0.0, 0.0], 10.0, 5.0, 100.0), [5.0, 15.0]);
        assert_eq!(spread(&[99.0, 99.0], 10.0, 0.0, 100.0), [90.0, 100.0]);
        assert!(spread(&[], 10.0, 0.0, 100.0).is_empty());
    }

    proptest! {
        #[test]
        fn positions_are_spaced_bounded_and_no_worse_than_even(mut preferred in prop::collection::vec(0.0..500.0_f64, 1..20)) {
            preferred.sort_by(f64::total_cmp);
            let positions = spread(&preferred, 25.0, 0.0, 500.0);
            prop_assert!(positions.windows(2).all(|pair| pair[1] - pair[0] >= 25.0 - 1e-9));
            prop_assert!(positions.iter().all(|x| (-1e-9..=500.0 + 1e-9).contains(x)));
            let loss = |candidate: &[f64]| candidate.iter().zip(&preferred).map(|(x, w)| (x - w).powi(2)).sum::<f64>();
            let n = preferred.len() as f64;
            for start in [0.0, 12.0, 500.0 - (n - 1.0) * 25.0] {
                let even: Vec<f64> = (0..preferred.len()).map(|i| start + i as f64 * 25.0).collect();
                prop_assert!(loss(&positions) <= loss(&even) + 1e-6);
            }
        }
    }
}
