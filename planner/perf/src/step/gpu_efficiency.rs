//! Share of its 16-bit peak that a GPU model reaches in large GEMMs. The efficiency curves of models without measured
//! steps are derived from it.
//!
//! **Measured**: `gemm_tflops` of `topologies/data/gpus.toml`, most of which was measured with the same program on all
//! models.
//!
//! **By the power limit**: boards of a generation that differ in power and in the number of SMs reach
//!
//! ```text
//! rate per SM ∝ (power limit / SMs)^0.64
//! ```
//!
//! as long as the power limit, and not the maximum clock rate, determines their speed. A part of the power is constant,
//! and the rest grows with the clock rate and the square of the voltage. The exponent is the median of three pairs of
//! that table: 0.58 (H100 SXM and PCIe), 0.64 (L40S and L4) and 0.85 (RTX PRO 6000 Server and Max-Q). Each pair
//! predicts the others within 16 %.
//!
//! **Assumed**: the median of the measured models.

use fabricast_topologies::gpus::{GpuModel, models};

/// Exponent by which the rate per SM grows with the power per SM. See the module documentation.
const POWER_EXPONENT: f64 = 0.64;

/// Largest share of the peak if power is not the limit, an estimate. A100 reaches 0.85, RTX PRO 6000 0.83, H20 0.96.
const MAX_SHARE: f64 = 0.9;

/// Median share of the 16-bit peak over the models with a measured rate in `topologies/data/gpus.toml`.
const TYPICAL_SHARE: f64 = 0.77;

/// Basis of the GEMM throughput of a GPU model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GemmEvidence {
    /// The curve was fitted to training or inference steps on this model.
    Steps,
    /// The GEMM throughput of this model was measured.
    Measured,
    /// The GEMM throughput was derived from another model of the generation, by the power limit.
    PowerLimit,
    /// The GEMM throughput is an assumption, because neither throughput nor power limit is known.
    Assumed,
}

/// Share of the 16-bit peak in large GEMMs, and its basis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct GemmShare {
    pub share: f64,
    pub evidence: GemmEvidence,
}

impl GemmShare {
    /// Returns the share of a model, or [`TYPICAL_SHARE`] if neither its rate nor its power limit is known.
    pub(super) fn new(model: Option<&GpuModel>) -> Self {
        model.and_then(Self::from_model).unwrap_or(Self { share: TYPICAL_SHARE, evidence: GemmEvidence::Assumed })
    }

    /// Returns the share of a model; `None` if neither its rate nor its power limit is known.
    pub(super) fn from_model(model: &GpuModel) -> Option<Self> {
        let peak = model.bf16_tflops?;
        if let Some(measured) = model.gemm_tflops {
            return Some(Self { share: measured / peak, evidence: GemmEvidence::Measured });
        }
        let scale = power_scale(model)?;
        let same_generation = models().iter().filter(|other| other.compute_capability == model.compute_capability);
        // Boards whose matrix units are limited to half their rate give no information on power.
        let best = same_generation
            .filter_map(|other| Some(other.gemm_tflops? / power_scale(other)?))
            .max_by(f64::total_cmp)?;
        Some(Self { share: (best * scale / peak).min(MAX_SHARE), evidence: GemmEvidence::PowerLimit })
    }
}

/// Returns the rate of a power-limited model up to a factor of its generation: SMs × (power limit / SMs)^0.64.
fn power_scale(model: &GpuModel) -> Option<f64> {
    let sms = f64::from(model.sm_count?);
    Some(sms * (model.power_w? / sms).powf(POWER_EXPONENT))
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::fabric::GpuFigures;
    use fabricast_topologies::gpus::{find_model, model};

    use super::*;

    fn share(name: &str) -> GemmShare {
        GemmShare::new(find_model(&model(name).unwrap().figures()))
    }

    #[test]
    fn measured_shares_come_from_the_table() {
        for (name, rate, peak) in [("H100 SXM", 790.6, 989.5), ("MI300X", 668.4, 1307.4), ("RTX 4090", 164.8, 165.2)] {
            let GemmShare { share, evidence } = share(name);
            assert!((share - rate / peak).abs() < 1e-9 && evidence == GemmEvidence::Measured, "{name}: {share}");
        }
    }

    /// Each measured board is predicted from the other boards of its generation.
    #[test]
    fn power_law_predicts_held_out_boards() {
        for (name, from) in [
            ("H100 PCIe", "H100 SXM"),
            ("H100 SXM", "H100 PCIe"),
            ("L4", "L40S"),
            ("L40S", "L4"),
            ("RTX PRO 6000 Blackwell Max-Q", "RTX PRO 6000 Blackwell Server"),
        ] {
            let [model, from] = [name, from].map(|name| model(name).unwrap());
            let predicted = from.gemm_tflops.unwrap() * power_scale(model).unwrap() / power_scale(from).unwrap();
            let error = predicted / model.gemm_tflops.unwrap() - 1.0;
            assert!(error.abs() < 0.17, "{name}: {error}");
        }
    }

    #[test]
    fn boards_without_rate_follow_their_power_limit() {
        for (name, low, high) in [("H100 NVL", 0.6, 0.75), ("RTX 6000 Ada", 0.6, 0.75), ("H200 NVL", 0.8, 0.9)] {
            let GemmShare { share, evidence } = share(name);
            assert!((low..high + 1e-9).contains(&share) && evidence == GemmEvidence::PowerLimit, "{name}: {share}");
        }
        assert_eq!(share("GB10").evidence, GemmEvidence::Assumed);
        assert_eq!(GemmShare::new(find_model(&GpuFigures::default())).evidence, GemmEvidence::Assumed);
    }

    #[test]
    fn typical_share_is_the_median_of_the_table() {
        let mut shares: Vec<f64> =
            models().iter().filter_map(|model| Some(model.gemm_tflops? / model.bf16_tflops?)).collect();
        shares.sort_by(f64::total_cmp);
        assert!((shares[shares.len() / 2] - TYPICAL_SHARE).abs() < 0.02, "{shares:?}");
    }
}
