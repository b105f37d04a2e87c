//! Probability that each candidate has the lowest score, with prices distributed over their bands and times subject to
//! the model's error.
//!
//! The score of a candidate is its score by prices ([`ScoreBand`]) × measured ÷ predicted time, which has the distribution
//! of the model's error for its jobs and GPUs ([`ModelError`]): exp(ε(z)) for a standard normal variable z. It is one number
//! for all jobs of a candidate, and independent between candidates. (The errors of candidates with the same GPUs have a common part, which would make
//! the decision more certain. It is not modelled, because there are no data to determine it.) Let u be the position of
//! a price in its band:
//!
//! ```text
//! ∫ du ∫ φ(z) dz  Π over the others of its price group P(score > s) × Π over other groups ∫ dv Π P(score at v > s),
//! s = its score at u × exp(ε(z))
//! ```
//!
//! Both integrals are Gauss-Legendre quadratures; there are no random numbers.

use super::cost_probability::{ScoreBand, legendre};
use super::model_error::ModelError;

/// Minimum error of a score, as a fraction. Times of equal runs differ by about 1 %. The minimum also makes the integrand
/// smooth.
const MIN_ERROR: f64 = 0.013;
/// Number of quadrature points for the price band; the next constant is the number for each side of the model's error.
const PRICE_POINTS: usize = 12;
const ERROR_POINTS: usize = 24;
/// Integration limit of the model's error, in standard deviations.
const ERROR_RANGE: f64 = 4.5;

/// Score of a candidate over its price band, with the error of its times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct UncertainScore {
    /// Score as a function of the price.
    pub band: ScoreBand,
    /// Error of the times.
    pub error: ModelError,
}

impl UncertainScore {
    fn smoothed(self) -> Self {
        Self { error: self.error.larger(ModelError::from_fraction(MIN_ERROR)), ..self }
    }
}

/// Returns the probability that each candidate has the lowest score, indexed like `scores`; `None` for candidates
/// without a score. The probabilities add up to 1.
pub(super) fn lowest_score_probabilities(scores: &[Option<UncertainScore>]) -> Vec<Option<f64>> {
    let participants: Vec<(usize, UncertainScore)> =
        scores.iter().enumerate().filter_map(|(number, score)| Some((number, (*score)?.smoothed()))).collect();
    let mut groups: Vec<usize> = participants.iter().map(|(_, score)| score.band.group).collect();
    groups.sort_unstable();
    groups.dedup();
    // Positions in price bands with weights that add up to 1, and deviations with the weights of the normal
    // distribution.
    let positions: Vec<(f64, f64)> =
        legendre(PRICE_POINTS).into_iter().map(|(point, weight)| ((1.0 + point) / 2.0, weight / 2.0)).collect();
    // The slope of the error changes at its median, so that each side has its own points.
    let half = ERROR_RANGE / 2.0;
    let normals: Vec<(f64, f64)> = [-half, half]
        .into_iter()
        .flat_map(|middle| {
            legendre(ERROR_POINTS).into_iter().map(move |(point, weight)| (middle + point * half, weight))
        })
        .map(|(deviate, weight)| (deviate, weight * half * normal_density(deviate)))
        .collect();
    let above = |score: &UncertainScore, position: f64, value: f64| {
        1.0 - normal_share_below(score.error.deviate(value.ln() - score.band.interpolate(position).ln()))
    };
    let probability = |number: usize, own: &UncertainScore| {
        let mut sum = 0.0;
        for &(position, weight) in &positions {
            for &(normal, density) in &normals {
                let value = own.band.interpolate(position) * own.error.log_ratio(normal).exp();
                let mut product = weight * density;
                for &group in &groups {
                    let members =
                        || participants.iter().filter(|(other, score)| score.band.group == group && *other != number);
                    product *= if group == own.band.group {
                        members().map(|(_, score)| above(score, position, value)).product::<f64>()
                    } else {
                        let at = |&(other, weight): &(f64, f64)| {
                            weight * members().map(|(_, score)| above(score, other, value)).product::<f64>()
                        };
                        positions.iter().map(at).sum::<f64>()
                    };
                }
                sum += product;
            }
        }
        sum
    };
    let raw: Vec<(usize, f64)> =
        participants.iter().map(|(number, score)| (*number, probability(*number, score))).collect();
    let total: f64 = raw.iter().map(|(_, probability)| probability).sum();
    let mut probabilities = vec![None; scores.len()];
    for (number, probability) in raw {
        if let Some(entry) = probabilities.get_mut(number) {
            *entry = Some(probability / total.max(f64::MIN_POSITIVE));
        }
    }
    probabilities
}

fn normal_density(x: f64) -> f64 {
    (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

/// Returns the distribution function of the standard normal distribution, exact to 10⁻⁷ (Abramowitz and Stegun,
/// 26.2.17).
fn normal_share_below(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let polynomial = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let tail = normal_density(x) * polynomial.iter().rev().fold(0.0, |sum, coefficient| (sum + coefficient) * t);
    if x < 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn score(low: f64, high: f64, group: usize, error: f64) -> Option<UncertainScore> {
        Some(UncertainScore { band: ScoreBand { low, high, group }, error: ModelError::from_fraction(error) })
    }

    fn probabilities(scores: &[Option<UncertainScore>]) -> Vec<f64> {
        lowest_score_probabilities(scores).into_iter().flatten().collect()
    }

    #[test]
    fn two_fixed_prices_have_a_closed_form() {
        // The 90th percentile of a nearly exact score is 1 ÷ (1 − 0.2) times it.
        let found = probabilities(&[score(1.0, 1.0, 0, 0.2), score(1.25, 1.25, 1, 0.0)]);
        assert!((found[0] - 0.9).abs() < 2e-3, "{found:?}");
        // Its 10th percentile is 1 ÷ (1 + 0.2).
        let found = probabilities(&[score(1.2, 1.2, 0, 0.2), score(1.0, 1.0, 1, 0.0)]);
        assert!((found[0] - 0.1).abs() < 2e-3, "{found:?}");
        assert!((normal_share_below(1.0) - 0.841_344_7).abs() < 1e-6);
        // Equal candidates, with prices of the same group and of different groups.
        for group in [0, 1] {
            let found = probabilities(&[score(1.0, 2.0, 0, 0.1), score(1.0, 2.0, group, 0.1)]);
            assert!((found[0] - 0.5).abs() < 1e-6, "{found:?}");
        }
        assert_eq!(lowest_score_probabilities(&[None, score(1.0, 1.0, 0, 0.1)]), [None, Some(1.0)]);
    }

    /// An advantage of a tenth is certain with respect to prices alone, but too close to call with an error of a fifth.
    #[test]
    fn errors_make_small_advantages_unsure() {
        let sure = probabilities(&[score(1.0, 1.0, 0, 0.0), score(1.1, 1.1, 1, 0.0)]);
        let unsure = probabilities(&[score(1.0, 1.0, 0, 0.2), score(1.1, 1.1, 1, 0.2)]);
        assert!(sure[0] > 0.999 && (0.55..0.7).contains(&unsure[0]), "{sure:?} {unsure:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// The integral matches a mean over samples of prices and errors (additive recurrences).
        #[test]
        fn integral_matches_samples(
            samples in prop::collection::vec((5u32..20, 0u32..10, 0usize..3, 2u32..40), 2..5),
        ) {
            let scores: Vec<Option<UncertainScore>> = samples
                .iter()
                .map(|&(low, wide, group, error)| {
                    score(f64::from(low), f64::from(low + wide), group, f64::from(error) / 100.0)
                })
                .collect();
            let exact = probabilities(&scores);
            prop_assert!((exact.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            let part = |prime: f64, draw: u32| (0.5 + f64::from(draw) * prime.sqrt().fract()).fract();
            let (prices, errors) = ([2.0, 3.0, 5.0], [(7.0, 11.0), (13.0, 17.0), (19.0, 23.0), (29.0, 31.0)]);
            let mut wins = vec![0u32; scores.len()];
            let draws = 20_000;
            for draw in 1..=draws {
                let sampled: Vec<f64> = scores.iter().flatten().zip(errors).map(|(score, (a, b))| {
                    // Box-Muller transform.
                    let normal = (-2.0 * part(a, draw).max(1e-12).ln()).sqrt() * (std::f64::consts::TAU * part(b, draw)).cos();
                    score.band.interpolate(part(prices[score.band.group], draw)) * score.error.log_ratio(normal).exp()
                }).collect();
                let best = (0..sampled.len()).min_by(|&a, &b| sampled[a].total_cmp(&sampled[b])).unwrap();
                wins[best] += 1;
            }
            for (exact, wins) in exact.iter().zip(wins) {
                prop_assert!((exact - f64::from(wins) / f64::from(draws)).abs() < 0.03, "{samples:?}: {exact} {wins}");
            }
        }
    }
}
