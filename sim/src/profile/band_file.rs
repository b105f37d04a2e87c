//! Reader and writer of the `[band]` table of a profile file.
//!
//! ```toml
//! [band]
//! low = 0.9                       # interval over all regimes: 80 % of measured ÷ predicted are inside
//! high = 1.12
//! collectives = ["all_reduce"]    # traits of the fitted rows; intervals are wider for others
//! gpus = [2, 8]                   # per host
//! nodes = [1]
//! beyond = { collective = 1.5, gpus = 1.3, nodes = 2, hardware = 2.5 }   # factors on the logarithmic width
//! [[band.regime]]
//! protocol = "ll"
//! decides = "latency"             # or bytes, or floor (of the launch mode)
//! low = 0.95
//! high = 1.06
//! rows = 120
//! ```

use std::fmt::Write as _;

use serde::Deserialize;

use super::band::{Bottleneck, FittedTraits, PredictionInterval, PredictionIntervals, RegimeBand, WideningFactors};
use super::write::{fraction, listed};
use crate::schedule::{Collective, Protocol};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BandsFile {
    low: f64,
    high: f64,
    #[serde(default)]
    collectives: Vec<Collective>,
    #[serde(default)]
    gpus: Vec<u32>,
    #[serde(default)]
    nodes: Vec<u32>,
    #[serde(rename = "beyond")]
    widening: Option<BeyondFile>,
    #[serde(default)]
    regime: Vec<RegimeFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BeyondFile {
    collective: f64,
    gpus: f64,
    nodes: f64,
    hardware: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegimeFile {
    protocol: Protocol,
    decides: Bottleneck,
    low: f64,
    high: f64,
    rows: u32,
}

fn is_band(low: f64, high: f64) -> bool {
    low > 0.0 && low <= 1.0 && high >= 1.0 && high.is_finite()
}

impl BandsFile {
    /// Converts the table to intervals.
    ///
    /// # Errors
    /// The invalid key in `[band]`, and the expected value.
    pub fn bands(self) -> Result<PredictionIntervals, (&'static str, &'static str)> {
        let is_right = is_band(self.low, self.high);
        if !is_right || !self.regime.iter().all(|one| is_band(one.low, one.high)) {
            return Err((if is_right { "band.regime" } else { "band" }, "expected 0 < low ≤ 1 ≤ high"));
        }
        let widening = match self.widening {
            None => WideningFactors::DEFAULT,
            Some(BeyondFile { collective, gpus, nodes, hardware }) => {
                if ![collective, gpus, nodes, hardware].iter().all(|times| *times >= 1.0 && times.is_finite()) {
                    return Err(("band.beyond", "expected how many times wider, at least 1"));
                }
                WideningFactors { collective, gpus, nodes, hardware }
            }
        };
        let regime = |RegimeFile { protocol, decides, low, high, rows }| RegimeBand {
            protocol,
            decides,
            band: PredictionInterval { low, high },
            rows,
        };
        Ok(PredictionIntervals {
            default: PredictionInterval { low: self.low, high: self.high },
            regimes: self.regime.into_iter().map(regime).collect(),
            known: FittedTraits { collectives: self.collectives, gpus: self.gpus, nodes: self.nodes },
            widening,
        })
    }
}

impl PredictionIntervals {
    /// Writes the table in the form that [`BandsFile`] reads.
    pub(super) fn write(&self, out: &mut String) -> std::fmt::Result {
        let FittedTraits { collectives, gpus, nodes } = &self.known;
        let WideningFactors { collective, gpus: other_gpus, nodes: other_nodes, hardware } = self.widening;
        writeln!(out, "\n[band]\nlow = {}\nhigh = {}", fraction(self.default.low), fraction(self.default.high))?;
        writeln!(out, "collectives = [{}]", listed(collectives, |one| format!("\"{one}\"")))?;
        writeln!(out, "gpus = [{}]\nnodes = [{}]", listed(gpus, u32::to_string), listed(nodes, u32::to_string))?;
        writeln!(
            out,
            "beyond = {{ collective = {}, gpus = {}, nodes = {}, hardware = {} }}",
            fraction(collective),
            fraction(other_gpus),
            fraction(other_nodes),
            fraction(hardware)
        )?;
        for RegimeBand { protocol, decides, band, rows } in &self.regimes {
            writeln!(out, "[[band.regime]]\nprotocol = \"{protocol}\"\ndecides = \"{}\"", decides.name())?;
            writeln!(out, "low = {}\nhigh = {}\nrows = {rows}", fraction(band.low), fraction(band.high))?;
        }
        Ok(())
    }
}
