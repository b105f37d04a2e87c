//! JSON of a calibration.

use fabricast_sim::profile::{Decides, RegimeBand};
use fabricast_sim::schedule::Protocol;
use fabricast_validate::calibrate::{HeldOut, Residual};
use fabricast_validate::compare::Coverage;
use serde::Serialize;

use super::super::summary::{CoverageJson, SummaryJson};
use super::figure::Figure;
use super::{Answer, ByChoice};

#[derive(Serialize)]
pub struct CalibrationJson {
    profile: String,
    parameters: Vec<Figure>,
    /// Sets of parameters of which the data determine only combinations.
    entangled: Vec<Vec<String>>,
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
    decides: Decides,
    low: f64,
    high: f64,
    rows: u32,
}

impl LeftOutJson {
    fn of(answer: &Answer<'_>, rows: &[Residual], coverage: Coverage) -> Self {
        let ByChoice { all, forced, chosen } = answer.by_choice(rows);
        Self { summary: all.into(), forced: forced.into(), chosen: chosen.into(), coverage: coverage.into() }
    }
}

pub fn of(answer: &Answer<'_>) -> CalibrationJson {
    let calibration = answer.calibration;
    let fitted = answer.by_choice(&calibration.fitted);
    let held_out = |held_out: &HeldOut| HeldOutJson {
        what: held_out.what.to_string(),
        rows: LeftOutJson::of(answer, &held_out.residuals, held_out.coverage),
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
        parameters: calibration.estimates.iter().map(Figure::from).collect(),
        entangled: calibration.entangled.iter().map(|set| set.iter().map(|one| one.name()).collect()).collect(),
        fit: fitted.all.into(),
        fit_forced: fitted.forced.into(),
        fit_launches: answer.by_choice(&calibration.launches).all.into(),
        cross_validated: LeftOutJson::of(answer, &calibration.cross_validated, calibration.coverage),
        held_out: calibration.held_out.iter().map(held_out).collect(),
        band: BandJson {
            low: bands.usual.low,
            high: bands.usual.high,
            regimes: bands.regimes.iter().map(regime).collect(),
        },
        rows_without_strategy: calibration.without_strategy,
        rows_to_check: calibration.to_check,
    }
}
