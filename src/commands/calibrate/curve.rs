//! Fit of the kernel efficiency curve to a study's measured steps.

use std::path::{Path, PathBuf};

use fabricast_reports::table::{Column, Table, Unit, Value, stacked};
use fabricast_study::is_study;
use fabricast_topologies::read::{Limit, read_text_file};
use fabricast_validate::calibrate::curve::{CurveError, CurveFit, StepErrors, calibrate_curve};
use fabricast_validate::compare::Summary;
use schemars::JsonSchema;
use serde::Serialize;

use super::figure::{self, ParameterEstimate};
use crate::args::CalibrateArgs;
use crate::commands::study::LoadedStudy;
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{self, AdditionalFile, Output};
use crate::output_format::Format;
use crate::run_control;

/// Returns the study among the input files, which must then be the only file; `None` if there is no study.
///
/// # Errors
/// [`Failure`]: a file cannot be read, or there are other files in addition to the study.
pub fn find_study(paths: &[PathBuf]) -> Result<Option<&Path>, Failure> {
    let mut study = None;
    for path in paths {
        if is_study(&read_text_file(path, Limit::STUDY)?) {
            study = Some(path.as_path());
        }
    }
    match study {
        Some(path) if paths.len() > 1 => {
            let message = "measured steps determine the kernel efficiency curve, manifests the costs of collectives: expected one or the other";
            Err(Failure::input(format!("{}: {message}", path.display())))
        }
        study => Ok(study),
    }
}

/// JSON of `calibrate` with a study.
#[derive(Serialize, JsonSchema)]
pub struct CurveCalibrationJson {
    /// Fitted parameters of the efficiency curve.
    figures: Vec<ParameterEstimate>,
    /// Measured steps, with the errors of their predictions.
    steps: Vec<MeasuredStepJson>,
    /// Errors with the study's curve.
    before: ErrorsJson,
    /// Errors with the fitted curve.
    fitted: ErrorsJson,
    /// Errors of steps predicted by a fit to all others.
    left_out: ErrorsJson,
}

/// Measured step. Errors are predicted ÷ measured − 1 of its time, as fractions.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StepJson")]
struct MeasuredStepJson {
    /// Name of the candidate.
    candidate: String,
    /// Name of the job.
    job: String,
    /// Key of the measured figure, with its unit.
    figure: &'static str,
    /// Measured value, in the unit of `figure`.
    measured: f64,
    /// Error with the study's curve, as a fraction.
    error_before: f64,
    /// Error with the fitted curve, as a fraction.
    error_fitted: f64,
    /// Error with a curve fitted to all other steps, as a fraction.
    error_left_out: f64,
}

/// Statistics of errors (predicted ÷ measured − 1).
#[derive(Serialize, JsonSchema)]
struct ErrorsJson {
    /// Number of steps.
    steps: usize,
    /// Median of the absolute errors, as a fraction.
    median: f64,
    /// 90th percentile of the absolute errors, as a fraction.
    p90: f64,
    /// Mean of the signed errors, as a fraction.
    bias: f64,
}

/// Measured step, with the names of its candidate and job.
struct StepRow<'a> {
    candidate: &'a str,
    job: &'a str,
    figure: &'static str,
    measured: f64,
    errors: StepErrors,
}

pub fn run(args: &CalibrateArgs, path: &Path, output: &Output) -> Result<(), Failure> {
    let profile_options = [
        ("--hold-out", !args.hold_out.is_empty()),
        ("--network", args.network.is_some()),
        ("--profile", args.profile.is_some()),
        ("--name", args.name.is_some()),
        ("--date", args.date.is_some()),
        ("--chart", args.chart.is_some()),
    ];
    if let Some((option, _)) = profile_options.iter().find(|(_, is_set)| *is_set) {
        return Err(Failure::input(format!(
            "{option} is for profiles: measured steps determine only the kernel efficiency curve"
        )));
    }
    let loaded = LoadedStudy::read(path, output)?;
    let fit = run_control::with_monitor(output, "fitting", |monitor| {
        calibrate_curve(&loaded.study, &loaded.fabrics, monitor)
    })
    .map_err(|error| match error {
        CurveError::Study(error) => error.into(),
        CurveError::NoSuchStep { ref place, .. } | CurveError::Contradiction { ref place, .. } => {
            Failure::input_at(error.to_string(), None, Some(place.as_ref()))
        }
        CurveError::Interrupted => Failure::Interrupted,
        CurveError::TooFewSteps { .. } => Failure::input(format!("{}: {error}", path.display())),
    })?;
    let study = &loaded.study;
    let row = |(step, &errors)| -> Option<StepRow<'_>> {
        let step: &fabricast_study::MeasuredStep = step;
        Some(StepRow {
            candidate: &study.candidates.get(step.candidate)?.name,
            job: study.jobs.get(step.job)?.name(),
            figure: step.figure.key(),
            measured: step.value,
            errors,
        })
    };
    let rows: Vec<StepRow<'_>> = study.measured.iter().zip(&fit.errors).filter_map(row).collect();
    let written = match output.format {
        Format::Text => stacked(&[steps(&rows), errors(&fit), figures(&fit)], &output.text_options()),
        Format::Csv => crate::commands::csv(&steps(&rows))?,
        Format::Json => output::json(&Document::EfficiencyFit.with(&json(&rows, &fit)))?,
    };
    let table = toml(&fit, path);
    let additional_file = output.file.as_deref().map(|path| AdditionalFile { path, content: table.as_bytes() });
    output.to_stdout().write_with(&written, additional_file)
}

/// The fitted parameters as the `[efficiency]` table of a study.
fn toml(fit: &CurveFit, path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut text = format!("# fabricast calibrate {name}: {} measured steps\n[efficiency]\n", fit.run_errors().count());
    for figure in fit.figures {
        let value = match figure.unit {
            "" => format!("{:.4}", figure.value),
            unit => format!("\"{:.3} {unit}\"", figure.value),
        };
        text += &format!("{} = {value}  # 80 % between {:.4} and {:.4}\n", figure.name, figure.low, figure.high);
    }
    text
}

/// Error statistics with labels: of the study's curve, of the fitted curve, and of curves fitted without the predicted
/// step.
fn lines(fit: &CurveFit) -> [(&'static str, Summary); 3] {
    let summarize = |error: fn(&StepErrors) -> f64| Summary::from_errors(fit.run_errors().map(error));
    [
        ("the study's curve", summarize(|step| step.initial)),
        ("fitted", summarize(|step| step.fitted)),
        ("each held out and predicted", summarize(|step| step.left_out)),
    ]
}

fn json(rows: &[StepRow<'_>], fit: &CurveFit) -> CurveCalibrationJson {
    let [before, fitted, left_out] = lines(fit).map(|(_, summary)| ErrorsJson {
        steps: summary.rows,
        median: summary.median,
        p90: summary.p90,
        bias: summary.bias,
    });
    let step = |row: &StepRow<'_>| MeasuredStepJson {
        candidate: row.candidate.to_owned(),
        job: row.job.to_owned(),
        figure: row.figure,
        measured: row.measured,
        error_before: row.errors.initial,
        error_fitted: row.errors.fitted,
        error_left_out: row.errors.left_out,
    };
    CurveCalibrationJson {
        figures: fit.figures.into_iter().map(ParameterEstimate::from).collect(),
        steps: rows.iter().map(step).collect(),
        before,
        fitted,
        left_out,
    }
}

fn steps(rows: &[StepRow<'_>]) -> Table {
    let text = |key: &str| Column::new(key, key, Unit::Text);
    let mut table = Table::new(vec![
        text("candidate"),
        text("job"),
        text("figure"),
        Column::new("measured", "measured", Unit::Number),
        Column::new("error_before", "study's curve", Unit::Percent),
        Column::new("error_fitted", "fitted", Unit::Percent),
        Column::new("error_left_out", "held out", Unit::Percent),
    ]);
    for row in rows {
        table.row(vec![
            Value::text(row.candidate).into(),
            Value::text(row.job).into(),
            Value::text(row.figure).into(),
            Value::Number(row.measured).into(),
            Value::Deviation(row.errors.initial).into(),
            Value::Deviation(row.errors.fitted).into(),
            Value::Deviation(row.errors.left_out).into(),
        ]);
    }
    table.heading("measured steps, and errors of their predictions");
    table
}

fn errors(fit: &CurveFit) -> Table {
    let mut table = Table::new(vec![
        Column::new("curve", "error of predictions", Unit::Text),
        Column::new("steps", "steps", Unit::Number),
        Column::new("median", "median", Unit::Percent),
        Column::new("p90", "p90", Unit::Percent),
        Column::new("bias", "bias", Unit::Percent),
    ]);
    for (curve, summary) in lines(fit) {
        table.row(vec![
            Value::text(curve).into(),
            Value::Count(summary.rows as u64).into(),
            Value::Share(summary.median).into(),
            Value::Share(summary.p90).into(),
            Value::Deviation(summary.bias).into(),
        ]);
    }
    table
}

fn figures(fit: &CurveFit) -> Table {
    let first = Column::new("figure", "[efficiency]", Unit::Text);
    figure::table(first, fit.figures.into_iter().map(ParameterEstimate::from), |value| format!("{value:8.4}"))
}
