//! JSON of error statistics of predictions.

use fabricast_validate::compare::{Coverage, Summary};
use schemars::JsonSchema;
use serde::Serialize;

/// Statistics of errors (predicted ÷ measured − 1).
#[derive(Serialize, JsonSchema)]
pub struct SummaryJson {
    /// Number of rows.
    rows: usize,
    /// Mean of the absolute errors, as a fraction.
    mean: f64,
    /// Median of the absolute errors, as a fraction.
    median: f64,
    /// 90th percentile of the absolute errors, as a fraction.
    p90: f64,
    /// Mean of the signed errors, as a fraction.
    bias: f64,
}

impl From<Summary> for SummaryJson {
    fn from(Summary { rows, mean, median, p90, bias }: Summary) -> Self {
        Self { rows, mean, median, p90, bias }
    }
}

/// Coverage: share of measured times inside their prediction intervals.
#[derive(Serialize, JsonSchema)]
pub struct CoverageJson {
    /// Number of rows.
    rows: usize,
    /// Number of rows inside their intervals.
    inside: usize,
    /// Share of rows inside their intervals.
    share: f64,
}

impl From<Coverage> for CoverageJson {
    fn from(coverage: Coverage) -> Self {
        Self { rows: coverage.rows, inside: coverage.inside, share: coverage.share() }
    }
}
