//! The calibration as JSON.

use fabricast_validate::calibrate::{Estimate, HeldOut};
use fabricast_validate::compare::Summary;
use serde::Serialize;

use super::super::summary::SummaryJson;
use super::Answer;

#[derive(Serialize)]
pub struct CalibrationJson {
    profile: String,
    parameters: Vec<ParameterJson>,
    /// Sets of parameters of which the data tell combinations only.
    entangled: Vec<Vec<String>>,
    fit: SummaryJson,
    fit_forced: SummaryJson,
    fit_launches: SummaryJson,
    held_out: Vec<HeldOutJson>,
    band: BandJson,
    rows_without_strategy: usize,
    rows_to_check: usize,
}

#[derive(Serialize)]
struct ParameterJson {
    name: String,
    value: f64,
    low: f64,
    high: f64,
    unit: &'static str,
}

#[derive(Serialize)]
struct HeldOutJson {
    what: String,
    #[serde(flatten)]
    summary: SummaryJson,
}

#[derive(Serialize)]
struct BandJson {
    low: f64,
    high: f64,
}

pub fn of(answer: &Answer<'_>) -> CalibrationJson {
    let calibration = answer.calibration;
    let [forced, all, launches] = answer.fitted().map(|(_, summary)| SummaryJson::from(summary));
    let held_out = |held_out: &HeldOut| HeldOutJson {
        what: held_out.what.to_string(),
        summary: Summary::of(held_out.residuals.iter().map(|row| row.error)).into(),
    };
    CalibrationJson {
        profile: calibration.profile.name.clone(),
        parameters: calibration.estimates.iter().map(ParameterJson::from).collect(),
        entangled: calibration.entangled.iter().map(|set| set.iter().map(|one| one.name()).collect()).collect(),
        fit: all,
        fit_forced: forced,
        fit_launches: launches,
        held_out: calibration.held_out.iter().map(held_out).collect(),
        band: BandJson { low: calibration.profile.band.low, high: calibration.profile.band.high },
        rows_without_strategy: calibration.without_strategy,
        rows_to_check: calibration.to_check,
    }
}

impl From<&Estimate> for ParameterJson {
    fn from(estimate: &Estimate) -> Self {
        let Estimate { parameter, value, low, high } = *estimate;
        Self { name: parameter.name(), value, low, high, unit: parameter.unit().name() }
    }
}
