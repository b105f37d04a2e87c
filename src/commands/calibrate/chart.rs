//! Chart of a calibration.

use std::path::Path;

use fabricast_reports::chart::{EstimatesTable, Format, ParameterEstimate};

use super::{CalibrationAnswer, text};
use crate::failure::Failure;
use crate::output::Output;

/// File and format of the chart.
pub struct CalibrationChart<'a> {
    path: &'a Path,
    format: Format,
}

impl<'a> CalibrationChart<'a> {
    /// Creates the chart's destination. Checks that it can be written, before the fit.
    ///
    /// # Errors
    /// [`Failure`]: the extension of the file names no image format, or the file cannot be written.
    pub fn new(path: Option<&'a Path>, output: &Output) -> Result<Option<Self>, Failure> {
        let Some(path) = path else { return Ok(None) };
        let format = Format::from_path(path).map_err(|error| Failure::input(error.to_string()))?;
        output.check_additional_file(path)?;
        Ok(Some(Self { path, format }))
    }

    /// Renders the chart of a calibration in the format of its file.
    ///
    /// # Errors
    /// [`Failure`]: the chart cannot be rendered.
    pub fn draw(&self, answer: &CalibrationAnswer<'_>) -> Result<Vec<u8>, Failure> {
        let calibration = answer.calibration;
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let lines = text::lines(answer).into_iter().filter(|line| line.summary.rows > 0);
        let errors = lines.map(|text::ErrorLine { label, summary, coverage }| {
            let inside = coverage.map_or(String::new(), |coverage| percent(coverage.share()));
            [label, percent(summary.median), percent(summary.p90), inside]
        });
        let estimates = calibration.estimates.iter().map(|estimate| ParameterEstimate {
            name: estimate.parameter.name(),
            unit: estimate.parameter.unit().name().to_owned(),
            value: estimate.value,
            low: estimate.low,
            high: estimate.high,
        });
        let table = EstimatesTable {
            title: format!("Calibration of {}", calibration.profile.name),
            subtitle: calibration.profile.sources.first().cloned().unwrap_or_default(),
            error_heads: ["error of predictions", "median", "p90", "in band"].map(str::to_owned),
            errors: errors.collect(),
            estimates: estimates.collect(),
        };
        table.render(self.format).map_err(|error| Failure::Failed(error.to_string()))
    }

    /// Path of the chart's file.
    pub fn path(&self) -> &'a Path {
        self.path
    }
}
