//! Prediction intervals: 80 % intervals by regime, widened for calls that differ from the data that the profile was
//! fitted to.
//!
//! An interval is a pair of factors of the predicted time. Predictions of one regime have similar errors; a regime is a
//! protocol together with the bottleneck: latency, bytes or the floor of a launch mode. For each regime `calibrate`
//! determines the 10th and 90th percentiles of measured ÷ predicted over held-out rows (cross-validation). For calls
//! unlike all of those rows (another collective, number of GPUs or hosts, or other hardware) the logarithmic width is
//! multiplied by a factor that is determined by holding out all rows with that trait.

use fabricast_topologies::Picos;
use fabricast_topologies::variants::variants;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{EnumCount, VariantArray};

use crate::schedule::{Collective, Protocol};

/// 80 % prediction interval, as factors of the predicted time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictionInterval {
    /// Lower end of the interval ÷ predicted time, at most 1.
    pub low: f64,
    /// Upper end of the interval ÷ predicted time, at least 1.
    pub high: f64,
}

/// Bottleneck of a call.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    EnumCount,
    VariantArray,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// Floor of the launch mode: the host is slower than the device.
    Floor,
    /// Software and path latency: more than half of the time.
    Latency,
    /// Bytes at their rates: at least half of the time.
    Bytes,
}

/// Prediction intervals of a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictionIntervals {
    /// Interval for regimes without a specific interval.
    pub default: PredictionInterval,
    /// Intervals of the regimes that were fitted separately.
    pub regimes: Vec<RegimeBand>,
    /// Traits of the rows that the intervals were determined from.
    pub known: FittedTraits,
    /// Widening factors for calls with other traits.
    pub widening: WideningFactors,
}

/// Prediction interval of a regime.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegimeBand {
    /// Protocol of the regime.
    pub protocol: Protocol,
    /// Bottleneck that defines the regime.
    pub decides: Bottleneck,
    /// Prediction interval of calls of the regime.
    pub band: PredictionInterval,
    /// Number of rows that the interval was determined from.
    pub rows: u32,
}

/// Traits of the fitted rows; an empty list sets no restriction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FittedTraits {
    /// Collectives of the fitted rows.
    pub collectives: Vec<Collective>,
    /// Numbers of GPUs per host; numbers between them count as known.
    pub gpus: Vec<u32>,
    /// Numbers of hosts of the fitted rows.
    pub nodes: Vec<u32>,
}

/// Factors on the logarithmic interval width for calls with other traits; at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WideningFactors {
    /// Factor for collectives that no fitted row has.
    pub collective: f64,
    /// Factor for numbers of GPUs per host outside the range of the fitted rows.
    pub gpus: f64,
    /// Factor for numbers of hosts that no fitted row has.
    pub nodes: f64,
    /// Factor for hardware other than the profile's.
    pub hardware: f64,
}

/// Traits of a call that determine its interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTraits {
    /// Collective of the call.
    pub collective: Collective,
    /// Protocol of the call.
    pub protocol: Protocol,
    /// Number of GPUs per host that take part in the call.
    pub gpus: u32,
    /// Number of hosts that take part in the call.
    pub nodes: u32,
    /// Bottleneck of the call's completion time.
    pub decides: Bottleneck,
}

/// Ends of a prediction interval, as times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeInterval {
    /// Lower end of the interval.
    pub low: Picos,
    /// Upper end of the interval.
    pub high: Picos,
}

impl PredictionInterval {
    /// Interval of zero width around the prediction.
    pub const NONE: Self = Self { low: 1.0, high: 1.0 };

    /// Returns the interval around a predicted time.
    #[must_use]
    pub fn around(self, time: Picos) -> TimeInterval {
        let times = |factor: f64| Picos((time.0 as f64 * factor).round() as u64);
        TimeInterval { low: times(self.low), high: times(self.high) }
    }

    /// Returns the interval with its logarithmic width multiplied by `times`.
    #[must_use]
    pub fn widened(self, times: f64) -> Self {
        Self { low: self.low.powf(times), high: self.high.powf(times) }
    }
}

impl Bottleneck {
    /// All bottlenecks, in the order of their variants.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Name: `floor`, `latency` or `bytes`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Latency => "latency",
            Self::Bytes => "bytes",
        }
    }

    /// Returns the bottleneck of a call. `time`: completion time; `device_and_launch`: sum of device time and launch
    /// cost; `bytes`: data transfer time.
    #[must_use]
    pub fn classify(time: Picos, device_and_launch: Picos, bytes: Picos) -> Self {
        if time > device_and_launch {
            Self::Floor
        } else if bytes.0.saturating_mul(2) >= time.0 {
            Self::Bytes
        } else {
            Self::Latency
        }
    }
}

impl WideningFactors {
    /// Factors assumed without data. `hardware` is the factor with which 80 % of 588 measurements on A100, B200, GB200
    /// and L40S (ai-dynamo/aiconfigurator) lie inside the intervals of the H200 profile; the other factors are
    /// estimates.
    pub const DEFAULT: Self = Self { collective: 1.5, gpus: 1.5, nodes: 2.0, hardware: 3.2 };
    /// Factors of 1: no widening.
    pub const NONE: Self = Self { collective: 1.0, gpus: 1.0, nodes: 1.0, hardware: 1.0 };
}

impl PredictionIntervals {
    /// Creates intervals that are the same for all calls.
    #[must_use]
    pub fn uniform(default: PredictionInterval) -> Self {
        Self { default, regimes: Vec::new(), known: FittedTraits::default(), widening: WideningFactors::NONE }
    }

    /// Returns the interval of a call on the profile's hardware, widened for traits that the fitted rows lack.
    #[must_use]
    pub fn interval(&self, call: CallTraits) -> PredictionInterval {
        self.regime_interval(call.protocol, call.decides).widened(self.widening(call))
    }

    /// Returns the interval of a regime for calls with known traits, or the default interval if the regime has none of
    /// its own.
    #[must_use]
    pub fn regime_interval(&self, protocol: Protocol, decides: Bottleneck) -> PredictionInterval {
        let known = self.regimes.iter().find(|one| (one.protocol, one.decides) == (protocol, decides));
        known.map_or(self.default, |one| one.band)
    }

    /// Factor on the logarithmic width for a call with unknown traits. The factors f of several traits are combined as
    /// independent errors: √(1 + Σ(f² − 1)).
    #[must_use]
    pub fn widening(&self, call: CallTraits) -> f64 {
        let FittedTraits { collectives, gpus, nodes } = &self.known;
        let widenings = [
            (!collectives.is_empty() && !collectives.contains(&call.collective), self.widening.collective),
            (!gpus.is_empty() && !is_between(gpus, call.gpus), self.widening.gpus),
            (!nodes.is_empty() && !nodes.contains(&call.nodes), self.widening.nodes),
        ];
        let squares = widenings.iter().filter(|(is_outside, _)| *is_outside).map(|(_, times)| times * times - 1.0);
        (1.0 + squares.map(|more| more.max(0.0)).sum::<f64>()).sqrt()
    }

    /// Returns the intervals extended to include `other`, an interval measured on several hosts.
    #[must_use]
    pub fn extended_by(mut self, other: PredictionInterval) -> Self {
        let regimes = self.regimes.iter_mut().map(|one| &mut one.band);
        for band in regimes.chain([&mut self.default]) {
            *band = PredictionInterval { low: band.low.min(other.low), high: band.high.max(other.high) };
        }
        self.known.nodes.clear();
        self
    }

    /// Returns the intervals widened for other hardware.
    #[must_use]
    pub fn for_other_hardware(mut self) -> Self {
        let times = self.widening.hardware;
        self.default = self.default.widened(times);
        for one in &mut self.regimes {
            one.band = one.band.widened(times);
        }
        self
    }
}

/// Returns true if a number lies within the range of the known numbers. Four GPUs count as known if two and eight are:
/// rows measured on four H200 and not used in the fit are inside the interval (`validate/runs/2026-11-21-4xh200`).
fn is_between(known: &[u32], number: u32) -> bool {
    known.iter().any(|&one| one <= number) && known.iter().any(|&one| one >= number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(collective: Collective, gpus: u32, nodes: u32) -> CallTraits {
        CallTraits { collective, protocol: Protocol::Ll, gpus, nodes, decides: Bottleneck::Latency }
    }

    fn bands() -> PredictionIntervals {
        let band = PredictionInterval { low: 0.8, high: 1.1 };
        PredictionIntervals {
            default: PredictionInterval { low: 0.5, high: 2.0 },
            regimes: vec![RegimeBand { protocol: Protocol::Ll, decides: Bottleneck::Latency, band, rows: 40 }],
            known: FittedTraits { collectives: vec![Collective::AllReduce], gpus: vec![8], nodes: vec![1] },
            widening: WideningFactors { collective: 2.0, gpus: 1.0, nodes: 3.0, hardware: 2.0 },
        }
    }

    #[test]
    fn intervals_widen_with_distance() {
        let bands = bands();
        let ratio = |call| bands.interval(call).low.ln() / 0.8f64.ln();
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        near(ratio(call(Collective::AllReduce, 8, 1)), 1.0);
        near(ratio(call(Collective::AllGather, 8, 1)), 2.0);
        near(ratio(call(Collective::AllReduce, 4, 1)), 1.0);
        near(ratio(call(Collective::AllReduce, 8, 2)), 3.0);
        near(ratio(call(Collective::AllGather, 2, 2)), (1.0f64 + 3.0 + 8.0).sqrt());
        near(
            bands.clone().for_other_hardware().interval(call(Collective::AllReduce, 8, 1)).high.ln() / 1.1f64.ln(),
            2.0,
        );
        // Regime for which the profile has no rows.
        let other = CallTraits { decides: Bottleneck::Bytes, ..call(Collective::AllReduce, 8, 1) };
        assert_eq!(bands.interval(other), bands.default);
    }

    #[test]
    fn bottlenecks_are_classified_by_their_share_of_time() {
        let classify = |time, device, bytes| Bottleneck::classify(Picos(time), Picos(device), Picos(bytes));
        assert_eq!(classify(100, 60, 50), Bottleneck::Floor);
        assert_eq!(classify(100, 100, 49), Bottleneck::Latency);
        assert_eq!(classify(100, 100, 50), Bottleneck::Bytes);
    }
}
