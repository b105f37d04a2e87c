//! JSON of error statistics of predictions.

use fabricast_validate::compare::{Coverage, Summary};
use serde::Serialize;

#[derive(Serialize)]
pub struct SummaryJson {
    rows: usize,
    mean: f64,
    median: f64,
    p90: f64,
    bias: f64,
}

impl From<Summary> for SummaryJson {
    fn from(Summary { rows, mean, median, p90, bias }: Summary) -> Self {
        Self { rows, mean, median, p90, bias }
    }
}

/// Coverage: share of measured times inside their prediction intervals.
#[derive(Serialize)]
pub struct CoverageJson {
    rows: usize,
    inside: usize,
    share: f64,
}

impl From<Coverage> for CoverageJson {
    fn from(coverage: Coverage) -> Self {
        Self { rows: coverage.rows, inside: coverage.inside, share: coverage.share() }
    }
}
