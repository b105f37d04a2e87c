//! JSON of a calibration.

use fabricast_sim::profile::{Bottleneck, RegimeBand};
use fabricast_sim::schedule::Protocol;
use fabricast_validate::calibrate::{HeldOutErrors, Residual};
use fabricast_validate::compare::Coverage;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::summary::{CoverageJson, SummaryJson};
use super::figure::ParameterEstimate;
use super::{CalibrationAnswer, ErrorsByChoice};

/// JSON of `calibrate` with manifests.
#[derive(Serialize, JsonSchema)]
pub struct CalibrationJson {
    /// Name of the fitted profile.
    profile: String,
    /// Fitted parameters.
    parameters: Vec<ParameterEstimate>,
    /// Sets of parameters whose individual values the data do not determine, only combinations of them.
    inseparable: Vec<Vec<String>>,
    /// Errors of the rows used in the fit.
    fit: SummaryJson,
    /// Errors of the rows used in the fit whose algorithm and protocol were forced.
    fit_forced: SummaryJson,
    /// Errors of the rows from which only launch costs were fitted.
    fit_launches: SummaryJson,
    /// Errors of all rows, each predicted by a fit without this row.
    cross_validated: LeftOutJson,
    /// Errors of the held-out rows, each predicted by a fit without them.
    held_out: Vec<HeldOutJson>,
    /// Prediction intervals, as factors of the predicted time.
    band: BandJson,
    /// Number of rows that were not used because their strategy is unknown.
    rows_without_strategy: usize,
    /// Number of rows with the role `check`, which were not used.
    rows_to_check: usize,
}

/// Errors of a set of held-out rows.
#[derive(Serialize, JsonSchema)]
struct HeldOutJson {
    /// Description of the held-out rows.
    what: String,
    #[serde(flatten)]
    rows: LeftOutJson,
}

/// Errors of rows that were predicted by fits without them.
#[derive(Serialize, JsonSchema)]
struct LeftOutJson {
    #[serde(flatten)]
    summary: SummaryJson,
    /// Errors of rows whose algorithm and protocol were forced.
    forced: SummaryJson,
    /// Errors of rows whose algorithm and protocol the library chose.
    chosen: SummaryJson,
    /// Number of measured times inside the prediction interval.
    coverage: CoverageJson,
}

/// Prediction intervals, as factors of the predicted time.
#[derive(Serialize, JsonSchema)]
struct BandJson {
    /// Lower end ÷ prediction, for regimes (protocol and bottleneck) without a separate interval.
    low: f64,
    /// Upper end ÷ prediction, for regimes (protocol and bottleneck) without a separate interval.
    high: f64,
    /// Intervals by protocol and bottleneck.
    regimes: Vec<RegimeJson>,
}

/// Prediction interval of a regime, which is a protocol with a bottleneck.
#[derive(Serialize, JsonSchema)]
struct RegimeJson {
    /// Protocol of the regime.
    protocol: Protocol,
    /// Bottleneck of the regime.
    decides: Bottleneck,
    /// Lower end ÷ prediction.
    low: f64,
    /// Upper end ÷ prediction.
    high: f64,
    /// Number of rows from which the interval was computed.
    rows: u32,
}

impl LeftOutJson {
    fn new(answer: &CalibrationAnswer<'_>, rows: &[Residual], coverage: Coverage) -> Self {
        let ErrorsByChoice { all, forced, chosen } = answer.by_choice(rows);
        Self { summary: all.into(), forced: forced.into(), chosen: chosen.into(), coverage: coverage.into() }
    }
}

pub(super) fn calibration_json(answer: &CalibrationAnswer<'_>) -> CalibrationJson {
    let calibration = answer.calibration;
    let fitted = answer.by_choice(&calibration.fitted);
    let held_out = |held_out: &HeldOutErrors| HeldOutJson {
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
