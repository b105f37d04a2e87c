//! Hold-out validation: rows are left out of a fit and predicted by the fit to the other rows.

use fabricast_sim::profile::Profile;

use super::cases::Cases;
use super::cross::LeftOut;
use super::fit::Fit;
use super::hold_out_selection::HoldOut;
use super::parameters::Parameter;
use super::points::Point;
use super::solve::Start;
use super::{HeldOut, cross};
use crate::compare::Coverage;

/// Predicts the points that a hold-out selects, by a fit to all other points. Parameters on which only the left-out
/// points depend keep the values of `fit.base`.
pub(super) fn predict(hold_out: &HoldOut, fit: &Fit<'_, '_>) -> (HeldOut, Vec<LeftOut>) {
    let (left_out, remaining): (Vec<&Point>, Vec<&Point>) =
        fit.points.iter().partition(|point| hold_out.leaves_out(point));
    // Rows with a single number of GPUs do not determine launch costs per GPU, so the launch parameters are selected
    // again.
    let of_launch = super::launch_parameters(&remaining, fit.base);
    let is_determined = |parameter: Parameter| match parameter.is_launch_parameter() {
        true => of_launch.contains(&parameter),
        false => remaining.iter().any(|point| point.depends_on(parameter)),
    };
    let determined: Vec<Parameter> =
        fit.parameters.iter().copied().filter(|&parameter| is_determined(parameter)).collect();
    let (profile, _) = Fit { points: remaining, parameters: &determined, ..*fit }.run(Start::Far);
    predict_held_out(hold_out, fit.cases, &left_out, &profile)
}

/// Predicts the left-out rows with the profile that was fitted to the other rows.
pub(super) fn predict_held_out(
    hold_out: &HoldOut,
    cases: &Cases<'_>,
    left_out: &[&Point],
    profile: &Profile,
) -> (HeldOut, Vec<LeftOut>) {
    let rows = cross::predict_rows(cases, left_out, profile);
    let residuals = rows.iter().map(|row| row.residual).collect();
    (HeldOut { selection: hold_out.clone(), residuals, coverage: Coverage::default() }, rows)
}
