//! Hold-out validation: rows are left out of a fit and predicted by the fit to the other rows.

use fabricast_sim::profile::Profile;

use super::cases::Cases;
use super::cross::LeftOut;
use super::fit::ProfileFit;
use super::hold_out_selection::HoldOut;
use super::parameters::FitParameter;
use super::points::FitPoint;
use super::solve::StartDistance;
use super::{HeldOutErrors, cross};
use crate::compare::Coverage;

/// Predicts the points that a hold-out selects, by a fit to all other points. Parameters on which only the left-out
/// points depend keep the values of `fit.base`.
pub(super) fn predict(hold_out: &HoldOut, fit: &ProfileFit<'_, '_>) -> (HeldOutErrors, Vec<LeftOut>) {
    let (left_out, remaining): (Vec<&FitPoint>, Vec<&FitPoint>) =
        fit.points.iter().partition(|point| hold_out.leaves_out(point));
    // Rows with a single number of GPUs do not determine launch costs per GPU, so the launch parameters are selected
    // again.
    let of_launch = super::launch_parameters(&remaining, fit.base);
    let is_determined = |parameter: FitParameter| match parameter.is_launch_parameter() {
        true => of_launch.contains(&parameter),
        false => remaining.iter().any(|point| point.depends_on(parameter)),
    };
    let determined: Vec<FitParameter> =
        fit.parameters.iter().copied().filter(|&parameter| is_determined(parameter)).collect();
    let (profile, _) = ProfileFit { points: remaining, parameters: &determined, ..*fit }.run(StartDistance::Far);
    predict_held_out(hold_out, fit.cases, &left_out, &profile)
}

/// Predicts the left-out rows with the profile that was fitted to the other rows.
pub(super) fn predict_held_out(
    hold_out: &HoldOut,
    cases: &Cases<'_>,
    left_out: &[&FitPoint],
    profile: &Profile,
) -> (HeldOutErrors, Vec<LeftOut>) {
    let rows = cross::predict_rows(cases, left_out, profile);
    let residuals = rows.iter().map(|row| row.residual).collect();
    (HeldOutErrors { selection: hold_out.clone(), residuals, coverage: Coverage::default() }, rows)
}
