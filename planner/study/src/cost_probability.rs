//! Probability that each candidate has the lowest cost, with prices distributed over their bands.
//!
//! A price is uniformly distributed over its band. Prices are independent, except for those of the same price-list
//! entry, which have the same position in their bands. A score is the cost per hour times a factor that does not depend
//! on prices, so it is linear in the position u of the price, from 0 to 1. The probability has a closed form: a
//! candidate of a group of prices has the lowest score with probability
//!
//! ```text
//! ∫ [its score at u is the least of its group] × Π over other groups P(least score of the group > its score at u)  du
//! ```
//!
//! Each factor is piecewise linear in u, with breakpoints at ends of bands and where two scores of a group cross.
//! Between breakpoints Gauss-Legendre quadrature with enough points is exact up to rounding. There are no random
//! numbers and no seed.

/// Score of a candidate as a function of its price, which is linear over the price band, and the group of its price.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreBand {
    /// Score at the low end of the price band.
    pub low: f64,
    /// Score at the high end of the price band, at least `low`.
    pub high: f64,
    /// Number of the price group. The prices of all candidates of a group have the same position in their bands.
    pub group: usize,
}

impl ScoreBand {
    pub(super) fn interpolate(&self, fraction: f64) -> f64 {
        self.low + (self.high - self.low) * fraction
    }

    /// Returns the fraction of the band in which the score is below `value`.
    fn fraction_below(&self, value: f64, ties: Ties) -> f64 {
        if self.high > self.low {
            return ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        }
        if self.low < value || (self.low == value && ties == Ties::Below) { 1.0 } else { 0.0 }
    }
}

/// Order of two equal scores.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ties {
    /// An equal score counts as below.
    Below,
    /// An equal score counts as above.
    Above,
}

/// Maximum number of quadrature points. The integral is exact for polynomials up to degree 63 and thus up to 64 price
/// groups; with more groups, its error is negligible.
const MAX_POINTS: usize = 32;

/// Returns the probability that each candidate has the lowest score, indexed like `bands`; `None` for candidates
/// without a band. The probabilities add up to 1.
#[must_use]
pub fn lowest_score_probabilities(bands: &[Option<ScoreBand>]) -> Vec<Option<f64>> {
    let participants: Vec<(usize, ScoreBand)> =
        bands.iter().enumerate().filter_map(|(i, band)| Some((i, (*band)?))).collect();
    let mut groups: Vec<usize> = participants.iter().map(|entry| entry.1.group).collect();
    groups.sort_unstable();
    groups.dedup();
    let points = legendre((groups.len() / 2 + 1).min(MAX_POINTS));
    let probability = |number: usize, band: &ScoreBand| {
        let corners = breakpoints(band, &participants);
        let mut sum = 0.0;
        for (&start, &end) in corners.iter().zip(corners.iter().skip(1)) {
            let half = (end - start) / 2.0;
            for &(point, weight) in &points {
                sum += half
                    * weight
                    * probability_others_higher(number, band, start + half * (1.0 + point), &participants, &groups);
            }
        }
        // The clamp removes rounding errors.
        sum.clamp(0.0, 1.0)
    };
    bands.iter().enumerate().map(|(number, band)| band.as_ref().map(|band| probability(number, band))).collect()
}

/// Returns the positions in a candidate's band between which the integrand is one polynomial, including 0 and 1.
fn breakpoints(band: &ScoreBand, bands: &[(usize, ScoreBand)]) -> Vec<f64> {
    let mut corners = vec![0.0, 1.0];
    let width = band.high - band.low;
    let mut add = |fraction: f64| {
        if fraction > 0.0 && fraction < 1.0 {
            corners.push(fraction);
        }
    };
    for (i, (_, first)) in bands.iter().enumerate() {
        add((first.low - band.low) / width);
        add((first.high - band.low) / width);
        for (_, second) in bands.iter().skip(i + 1).filter(|(_, second)| second.group == first.group) {
            // Position at which the scores of two candidates of a group are equal. In this candidate's own group, that
            // is also the position in its band.
            let fraction = (first.low - second.low) / ((second.high - second.low) - (first.high - first.low));
            if fraction > 0.0 && fraction < 1.0 {
                add(if first.group == band.group {
                    fraction
                } else {
                    (first.interpolate(fraction) - band.low) / width
                });
            }
        }
    }
    corners.sort_unstable_by(f64::total_cmp);
    corners
}

/// Returns the probability that all other candidates have a higher score than candidate `number` at the position
/// `fraction` of its band.
fn probability_others_higher(
    number: usize,
    band: &ScoreBand,
    fraction: f64,
    bands: &[(usize, ScoreBand)],
    groups: &[usize],
) -> f64 {
    let score = band.interpolate(fraction);
    let mut probability = 1.0;
    for &group in groups {
        let members = bands.iter().filter(|(index, member)| member.group == group && *index != number);
        probability *= if group == band.group {
            let is_lower = |(index, member): &(usize, ScoreBand)| {
                let value = member.interpolate(fraction);
                value < score || (value == score && *index < number)
            };
            if members.copied().any(|member| is_lower(&member)) { 0.0 } else { 1.0 }
        } else {
            let ties = |index: usize| if index < number { Ties::Below } else { Ties::Above };
            1.0 - members.map(|(index, member)| member.fraction_below(score, ties(*index))).fold(0.0, f64::max)
        };
    }
    probability
}

/// Returns the points and weights of Gauss-Legendre quadrature with `count` points on [-1, 1]. The points are the roots
/// of the Legendre polynomial, found by Newton's method (Abramowitz and Stegun, 25.4.29).
pub(super) fn legendre(count: usize) -> Vec<(f64, f64)> {
    let n = count as f64;
    (0..count)
        .map(|i| {
            let mut x = (std::f64::consts::PI * (i as f64 + 0.75) / (n + 0.5)).cos();
            let mut slope = 1.0;
            for _ in 0..100 {
                let (mut value, mut before) = (1.0, 0.0);
                for k in 1..=count {
                    let k = k as f64;
                    (value, before) = (((2.0 * k - 1.0) * x * value - (k - 1.0) * before) / k, value);
                }
                slope = n * (x * value - before) / (x * x - 1.0);
                let step = value / slope;
                x -= step;
                if step.abs() < 1e-15 {
                    break;
                }
            }
            (x, 2.0 / ((1.0 - x * x) * slope * slope))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn probabilities(bands: &[(f64, f64, usize)]) -> Vec<f64> {
        let bands: Vec<_> = bands.iter().map(|&(low, high, group)| Some(ScoreBand { low, high, group })).collect();
        lowest_score_probabilities(&bands).into_iter().flatten().collect()
    }

    fn assert_near(actual: &[f64], expected: &[f64]) {
        let is_near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
        assert!(actual.len() == expected.len() && actual.iter().zip(expected).all(is_near), "{actual:?} {expected:?}");
    }

    #[test]
    fn simple_cases_match_hand_calculation() {
        assert_near(&probabilities(&[(1.0, 2.0, 0)]), &[1.0]);
        assert_near(&probabilities(&[(1.0, 2.0, 0), (3.0, 4.0, 1)]), &[1.0, 0.0]);
        assert_near(&probabilities(&[(1.0, 2.0, 0), (1.0, 2.0, 1)]), &[0.5, 0.5]);
        assert_near(&probabilities(&[(1.0, 2.0, 0), (1.0, 2.0, 1), (1.0, 2.0, 2)]), &[1.0 / 3.0; 3]);
        // A fixed price in the middle of another candidate's band.
        assert_near(&probabilities(&[(1.5, 1.5, 0), (1.0, 2.0, 1)]), &[0.5, 0.5]);
        // The first of several equal candidates has the probability.
        assert_near(&probabilities(&[(1.0, 1.0, 0), (1.0, 1.0, 1)]), &[1.0, 0.0]);
        // In half of its band the second candidate is above the first; in the other half, the first is lower half of
        // the time.
        assert_near(&probabilities(&[(0.0, 1.0, 0), (0.0, 2.0, 1)]), &[0.75, 0.25]);
        // With the same position in both bands, the more expensive candidate is never lowest; with crossing scores,
        // each is lowest on one side.
        assert_near(&probabilities(&[(1.0, 2.0, 0), (1.1, 2.1, 0)]), &[1.0, 0.0]);
        assert_near(&probabilities(&[(0.0, 4.0, 0), (1.0, 1.0, 0)]), &[0.25, 0.75]);
        assert_eq!(lowest_score_probabilities(&[None, Some(ScoreBand { low: 1.0, high: 2.0, group: 0 })])[0], None);
    }

    #[test]
    fn quadrature_is_exact_for_polynomials() {
        for count in 1..=MAX_POINTS {
            for power in 0..2 * count as i32 {
                let sum: f64 = legendre(count).iter().map(|(x, w)| w * x.powi(power)).sum();
                let exact = if power % 2 == 0 { 2.0 / f64::from(power + 1) } else { 0.0 };
                assert!((sum - exact).abs() < 1e-12, "{count} {power}: {sum}");
            }
        }
    }

    proptest! {
        /// The integral matches a mean over prices sampled from a low-discrepancy sequence (additive recurrence).
        #[test]
        fn integral_matches_sampled_prices(
            samples in prop::collection::vec((1u32..20, 0u32..20, 0usize..4), 1..6),
        ) {
            let bands: Vec<(f64, f64, usize)> =
                samples.iter().map(|&(low, wide, group)| (f64::from(low), f64::from(low + wide), group)).collect();
            let exact = probabilities(&bands);
            prop_assert!((exact.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{exact:?}");
            let steps = [2f64, 3.0, 5.0, 7.0].map(|prime| prime.sqrt().fract());
            let mut wins = vec![0u32; bands.len()];
            let draws = 20_000;
            for draw in 0..draws {
                let score = |&(low, high, group): &(f64, f64, usize)| {
                    low + (high - low) * (0.5 + f64::from(draw) * steps[group]).fract()
                };
                let best = (0..bands.len()).min_by(|&a, &b| score(&bands[a]).total_cmp(&score(&bands[b]))).unwrap();
                wins[best] += 1;
            }
            for (exact, wins) in exact.iter().zip(wins) {
                prop_assert!((exact - f64::from(wins) / f64::from(draws)).abs() < 0.02, "{bands:?}: {exact} {wins}");
            }
        }
    }
}
