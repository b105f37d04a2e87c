//! JSON of a calibration.

use fabricast_sim::profile::{Bottleneck, RegimeBand};
use fabricast_sim::schedule::Protocol;
use fabricast_validate::calibrate::{HeldOut, Residual};
use fabricast_validate::compare::Coverage;
use serde::Serialize;

use super::super::summary::{CoverageJson, SummaryJson};
use super::figure::ParameterEstimate;
use super::{Answer, ErrorsByChoice};

#[derive(Serialize)]
pub struct CalibrationJson {
    profile: String,
    parameters: Vec<ParameterEstimate>,
    /// Sets of parameters of which the data determine only combinations.
    inseparable: Vec<Vec<String>>,
    fit: SummaryJson,
    fit_forced: SummaryJson,
    fit_launches: SummaryJson,
    cross_validated: LeftOutJson,
    held_out: Vec<HeldOutJson>,
    band: BandJson,
    rows_without_strategy: usize,
    rows_to_check: usize,
}

#[derive(Serialize)]
struct HeldOutJson {
    what: String,
    #[serde(flatten)]
    rows: LeftOutJson,
}

/// Errors of rows predicted by fits without them.
#[derive(Serialize)]
struct LeftOutJson {
    #[serde(flatten)]
    summary: SummaryJson,
    forced: SummaryJson,
    chosen: SummaryJson,
    coverage: CoverageJson,
}

#[derive(Serialize)]
struct BandJson {
    low: f64,
    high: f64,
    regimes: Vec<RegimeJson>,
}

#[derive(Serialize)]
struct RegimeJson {
    protocol: Protocol,
    decides: Bottleneck,
    low: f64,
    high: f64,
    rows: u32,
}

impl LeftOutJson {
    fn new(answer: &Answer<'_>, rows: &[Residual], coverage: Coverage) -> Self {
        let ErrorsByChoice { all, forced, chosen } = answer.by_choice(rows);
        Self { summary: all.into(), forced: forced.into(), chosen: chosen.into(), coverage: coverage.into() }
    }
}

pub fn calibration_json(answer: &Answer<'_>) -> CalibrationJson {
    let calibration = answer.calibration;
    let fitted = answer.by_choice(&calibration.fitted);
    let held_out = |held_out: &HeldOut| HeldOutJson {
        what: held_out.selection.to_string(),
        rows: LeftOutJson::new(answer, &held_out.residuals, held_out.coverage),
    };
    let bands = &calibration.profile.bands;
    let regime = |&RegimeBand { protocol, decides, band, rows }: &RegimeBand| RegimeJson {
        protocol,
        decides,
        low: band.low,
        high: band.high,
        rows,
    };
    CalibrationJson {
        profile: calibration.profile.name.clone(),
        parameters: calibration.estimates.iter().map(ParameterEstimate::from).collect(),
        inseparable: calibration
            .inseparable
            .iter()
            .map(|set| set.iter().map(|parameter| parameter.name()).collect())
            .collect(),
        fit: fitted.all.into(),
        fit_forced: fitted.forced.into(),
        fit_launches: answer.by_choice(&calibration.launches).all.into(),
        cross_validated: LeftOutJson::new(answer, &calibration.cross_validated, calibration.coverage),
        held_out: calibration.held_out.iter().map(held_out).collect(),
        band: BandJson {
            low: bands.default.low,
            high: bands.default.high,
            regimes: bands.regimes.iter().map(regime).collect(),
        },
        rows_without_strategy: calibration.without_strategy,
        rows_to_check: calibration.to_check,
    }
}
