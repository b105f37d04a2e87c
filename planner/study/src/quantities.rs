//! Conversion between whole units and the floating-point figures of `results.json` and `runs.jsonl`.
//!
//! A figure that was written from a whole number is read back as a number with the same figure, so a saved run gives
//! the results of the run. Also the mean over jobs by which candidates are compared.

use fabricast_topologies::{Bandwidth, Bytes, Picos};

const PICOS_PER_SECOND: f64 = 1e12;
const PICOS_PER_MICRO: f64 = 1e6;
const BYTES_PER_GB: f64 = 1e9;

/// Time in seconds.
pub(crate) fn seconds(time: Picos) -> f64 {
    time.0 as f64 / PICOS_PER_SECOND
}

/// Seconds per million tokens at `tokens_per_s`; without tokens, the time of a step in seconds.
pub(crate) fn seconds_per_unit(tokens_per_s: Option<f64>, step_seconds: f64) -> f64 {
    tokens_per_s.map_or(step_seconds, |tokens| 1e6 / tokens)
}

/// Weighted geometric mean of figures, each with its weight; `None` without weights.
pub(crate) fn weighted_geometric_mean(figures: impl IntoIterator<Item = (f64, f64)>) -> Option<f64> {
    let (mut sum, mut weights) = (0.0, 0.0);
    for (value, weight) in figures {
        (sum, weights) = (sum + weight * value.ln(), weights + weight);
    }
    (weights > 0.0).then(|| (sum / weights).exp())
}

/// Size in GB (10⁹ bytes).
pub(crate) fn gb(bytes: Bytes) -> f64 {
    bytes.0 as f64 / BYTES_PER_GB
}

/// Time of a figure in seconds.
pub(crate) fn from_seconds(figure: f64) -> Picos {
    Picos(whole(figure, PICOS_PER_SECOND))
}

/// Time of a figure in µs.
pub(crate) fn from_micros(figure: f64) -> Picos {
    Picos(whole(figure, PICOS_PER_MICRO))
}

/// Size of a figure in GB.
pub(crate) fn from_gb(figure: f64) -> Bytes {
    Bytes(whole(figure, BYTES_PER_GB))
}

/// Bandwidth of a figure in GB/s.
pub(crate) fn from_gb_per_s(figure: f64) -> Bandwidth {
    Bandwidth(whole(figure, BYTES_PER_GB))
}

/// Whole number whose quotient by `unit` is the figure, or the nearest number if there is none. Above 2⁵³, several
/// numbers have the same quotient.
fn whole(figure: f64, unit: f64) -> u64 {
    /// Number of neighbours on each side that may have the quotient: the product differs from the number by less.
    const NEIGHBOURS: u64 = 4;
    let near = (figure * unit).round() as u64;
    // Distance between floating-point numbers of this size.
    let distance = 1u64 << (64 - near.leading_zeros()).saturating_sub(53);
    let above = (0..=NEIGHBOURS).map(|steps| near.saturating_add(steps * distance));
    let below = (1..=NEIGHBOURS).map(|steps| near.saturating_sub(steps * distance));
    above.chain(below).find(|&number| number as f64 / unit == figure).unwrap_or(near)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        /// Figures are read back as numbers with the same figures, and below 2⁵¹ as the numbers themselves.
        #[test]
        fn figures_survive_reading(number: u64, shift in 0u32..64) {
            let number = number >> shift;
            let (time, bytes) = (Picos(number), Bytes(number));
            prop_assert_eq!(seconds(from_seconds(seconds(time))), seconds(time));
            prop_assert_eq!(from_micros(time.us()).us(), time.us());
            prop_assert_eq!(gb(from_gb(gb(bytes))), gb(bytes));
            prop_assert_eq!(from_gb_per_s(Bandwidth(number).gb_per_s()).gb_per_s(), Bandwidth(number).gb_per_s());
            if number < 1 << 51 {
                prop_assert_eq!((from_seconds(seconds(time)), from_gb(gb(bytes))), (time, bytes));
            }
        }
    }
}
