//! How far off a prediction may be: 80 % intervals by regime, wider the further a call is from what the profile was
//! fitted to.
//!
//! An interval is a pair of factors of the predicted time. Predictions of one regime are off alike: a protocol's, where
//! latency decides, where bytes do, or where the floor of a launch mode does. For each regime `calibrate` takes the tenth
//! and ninetieth percentiles of measured ÷ predicted over rows that were left out and predicted
//! (cross-validation). Calls unlike all of those rows (another collective, another number of GPUs or hosts, other
//! hardware) get an interval that is so many times wider in the logarithm as rows left out by that trait needed.

use fabricast_topologies::Picos;
use serde::{Deserialize, Serialize};

use crate::schedule::{Collective, Protocol};

/// Fractions of a predicted time within which 80 % of measurements lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// Lower end ÷ prediction.
    pub low: f64,
    /// Upper end ÷ prediction.
    pub high: f64,
}

/// What decides a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decides {
    /// The floor of the launch mode: the host is slower than the device.
    Floor,
    /// Software and the latency of paths: more than half of the time.
    Latency,
    /// Bytes at their rates: at least half of it.
    Bytes,
}

/// The intervals of a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Bands {
    /// Where no regime says more.
    pub usual: Band,
    /// By regime.
    pub regimes: Vec<RegimeBand>,
    /// What the rows had in common that the intervals were worked out from.
    pub known: Known,
    /// How much wider intervals are beyond them.
    pub beyond: Beyond,
}

/// The interval of a regime.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegimeBand {
    /// The protocol.
    pub protocol: Protocol,
    /// What decides.
    pub decides: Decides,
    /// The interval.
    pub band: Band,
    /// From how many rows.
    pub rows: u32,
}

/// What rows had in common; an empty list says nothing, and nothing is beyond it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Their collectives.
    pub collectives: Vec<Collective>,
    /// GPUs of a host; numbers between them are known too.
    pub gpus: Vec<u32>,
    /// Hosts.
    pub nodes: Vec<u32>,
}

/// How many times wider, in the logarithm, intervals are for calls beyond what is known; at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beyond {
    /// Of other collectives.
    pub collective: f64,
    /// On other numbers of GPUs.
    pub gpus: f64,
    /// On other numbers of hosts.
    pub nodes: f64,
    /// On other hardware.
    pub hardware: f64,
}

/// A call, as far as its interval depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circumstances {
    /// What is called.
    pub collective: Collective,
    /// How bytes move.
    pub protocol: Protocol,
    /// GPUs of a host.
    pub gpus: u32,
    /// Hosts.
    pub nodes: u32,
    /// What decides.
    pub decides: Decides,
}

impl Band {
    /// No room for error.
    pub const NONE: Self = Self { low: 1.0, high: 1.0 };

    /// The ends of the band around a prediction.
    #[must_use]
    pub fn around(self, time: Picos) -> (Picos, Picos) {
        let times = |factor: f64| Picos((time.0 as f64 * factor).round() as u64);
        (times(self.low), times(self.high))
    }

    /// So many times as wide, in the logarithm.
    #[must_use]
    pub fn widened(self, times: f64) -> Self {
        Self { low: self.low.powf(times), high: self.high.powf(times) }
    }
}

impl Decides {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Floor, Self::Latency, Self::Bytes];

    /// `floor`, `latency`, `bytes`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Latency => "latency",
            Self::Bytes => "bytes",
        }
    }

    /// Of a time, of which the device takes a part, and bytes a part of that.
    #[must_use]
    pub fn of(time: Picos, device_and_launch: Picos, bytes: Picos) -> Self {
        if time > device_and_launch {
            Self::Floor
        } else if bytes.0.saturating_mul(2) >= time.0 {
            Self::Bytes
        } else {
            Self::Latency
        }
    }
}

impl Beyond {
    /// What is assumed where no rows tell. Hardware: what the profile of H200 needs on the A100, B200, GB200 and L40S of
    /// ai-dynamo/aiconfigurator for four of five of 588 rows to lie inside. The others are judged.
    pub const ASSUMED: Self = Self { collective: 1.5, gpus: 1.5, nodes: 2.0, hardware: 3.2 };
    /// Nothing is wider.
    pub const NOTHING: Self = Self { collective: 1.0, gpus: 1.0, nodes: 1.0, hardware: 1.0 };
}

impl Bands {
    /// The same interval for all calls.
    #[must_use]
    pub fn same(usual: Band) -> Self {
        Self { usual, regimes: Vec::new(), known: Known::default(), beyond: Beyond::NOTHING }
    }

    /// The interval of a call on the hardware that the profile is of.
    #[must_use]
    pub fn of(&self, call: Circumstances) -> Band {
        self.of_regime(call.protocol, call.decides).widened(self.widening(call))
    }

    /// The interval of a regime, nothing being beyond what is known: that of the protocol, or of all where too few
    /// rows told of it.
    #[must_use]
    pub fn of_regime(&self, protocol: Protocol, decides: Decides) -> Band {
        let known = self.regimes.iter().find(|one| (one.protocol, one.decides) == (protocol, decides));
        known.map_or(self.usual, |one| one.band)
    }

    /// How many times wider the interval of a call is than that of its regime. What is beyond in several ways is off for
    /// several reasons: their parts beyond 1 add up as independent errors do, by squares.
    #[must_use]
    pub fn widening(&self, call: Circumstances) -> f64 {
        let Known { collectives, gpus, nodes } = &self.known;
        let beyond = [
            (!collectives.is_empty() && !collectives.contains(&call.collective), self.beyond.collective),
            (!gpus.is_empty() && !is_between(gpus, call.gpus), self.beyond.gpus),
            (!nodes.is_empty() && !nodes.contains(&call.nodes), self.beyond.nodes),
        ];
        let squares = beyond.iter().filter(|(is_beyond, _)| *is_beyond).map(|(_, times)| times * times - 1.0);
        (1.0 + squares.map(|more| more.max(0.0)).sum::<f64>()).sqrt()
    }

    /// Intervals that hold this one too, which rows of several hosts told.
    #[must_use]
    pub fn with_all(mut self, other: Band) -> Self {
        let regimes = self.regimes.iter_mut().map(|one| &mut one.band);
        for band in regimes.chain([&mut self.usual]) {
            *band = Band { low: band.low.min(other.low), high: band.high.max(other.high) };
        }
        self.known.nodes.clear();
        self
    }

    /// The intervals on other hardware.
    #[must_use]
    pub fn elsewhere(mut self) -> Self {
        let times = self.beyond.hardware;
        self.usual = self.usual.widened(times);
        for one in &mut self.regimes {
            one.band = one.band.widened(times);
        }
        self
    }
}

/// Whether a number lies between others: four GPUs between two and eight are nothing new. (Of 86 rows of four H200, which no
/// fit has seen, 72 % lie inside the intervals of two and eight, 82 % of those that are no all_to_all:
/// `validate/runs/2026-11-21-4xh200`.)
fn is_between(known: &[u32], number: u32) -> bool {
    known.iter().any(|&one| one <= number) && known.iter().any(|&one| one >= number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(collective: Collective, gpus: u32, nodes: u32) -> Circumstances {
        Circumstances { collective, protocol: Protocol::Ll, gpus, nodes, decides: Decides::Latency }
    }

    fn bands() -> Bands {
        let band = Band { low: 0.8, high: 1.1 };
        Bands {
            usual: Band { low: 0.5, high: 2.0 },
            regimes: vec![RegimeBand { protocol: Protocol::Ll, decides: Decides::Latency, band, rows: 40 }],
            known: Known { collectives: vec![Collective::AllReduce], gpus: vec![8], nodes: vec![1] },
            beyond: Beyond { collective: 2.0, gpus: 1.0, nodes: 3.0, hardware: 2.0 },
        }
    }

    #[test]
    fn intervals_widen_with_distance() {
        let bands = bands();
        let ratio = |call| bands.of(call).low.ln() / 0.8f64.ln();
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        near(ratio(call(Collective::AllReduce, 8, 1)), 1.0);
        near(ratio(call(Collective::AllGather, 8, 1)), 2.0);
        near(ratio(call(Collective::AllReduce, 4, 1)), 1.0);
        near(ratio(call(Collective::AllReduce, 8, 2)), 3.0);
        near(ratio(call(Collective::AllGather, 2, 2)), (1.0f64 + 3.0 + 8.0).sqrt());
        near(bands.clone().elsewhere().of(call(Collective::AllReduce, 8, 1)).high.ln() / 1.1f64.ln(), 2.0);
        // Of a regime without rows of its own.
        let other = Circumstances { decides: Decides::Bytes, ..call(Collective::AllReduce, 8, 1) };
        assert_eq!(bands.of(other), bands.usual);
    }

    #[test]
    fn what_decides_a_time() {
        let of = |time, device, bytes| Decides::of(Picos(time), Picos(device), Picos(bytes));
        assert_eq!(of(100, 60, 50), Decides::Floor);
        assert_eq!(of(100, 100, 49), Decides::Latency);
        assert_eq!(of(100, 100, 50), Decides::Bytes);
    }
}
