//! Hold-out validation: rows are left out of a fit and predicted with the fit to the others.

use std::fmt;
use std::str::FromStr;

use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{Collective, Protocol};

use super::cases::Cases;
use super::cross::LeftOut;
use super::fit::Fit;
use super::parameters::Parameter;
use super::points::Point;
use super::solve::Start;
use super::{HeldOut, cross};
use crate::compare::Coverage;

/// Selection of the rows to leave out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldOut {
    /// Rows with one of these numbers of ranks.
    Ranks(Vec<u32>),
    /// Rows with one of these numbers of hosts.
    Nodes(Vec<u32>),
    /// Rows of these collectives.
    Collectives(Vec<Collective>),
    /// Rows of these protocols.
    Protocols(Vec<Protocol>),
}

/// Error: a text that does not describe a hold-out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` cannot be held out: expected gpus=N[,N], nodes=N[,N], collective=C[,C] or protocol=P[,P]")]
pub struct UnknownHoldOut(pub String);

impl FromStr for HoldOut {
    type Err = UnknownHoldOut;

    fn from_str(text: &str) -> Result<Self, UnknownHoldOut> {
        let unknown = || UnknownHoldOut(text.to_owned());
        let (key, values) = text.split_once('=').ok_or_else(unknown)?;
        fn parse_list<T: FromStr>(values: &str) -> Option<Vec<T>> {
            values.split(',').map(|word| word.trim().parse().ok()).collect()
        }
        match key.trim() {
            "gpus" => parse_list(values).map(Self::Ranks),
            "nodes" => parse_list(values).map(Self::Nodes),
            "collective" => parse_list(values).map(Self::Collectives),
            "protocol" => parse_list(values).map(Self::Protocols),
            _ => None,
        }
        .ok_or_else(unknown)
    }
}

impl fmt::Display for HoldOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn write_list(f: &mut fmt::Formatter<'_>, key: &str, values: &[impl ToString]) -> fmt::Result {
            let values: Vec<String> = values.iter().map(ToString::to_string).collect();
            write!(f, "{key}={}", values.join(","))
        }
        match self {
            Self::Ranks(ranks) => write_list(f, "gpus", ranks),
            Self::Nodes(nodes) => write_list(f, "nodes", nodes),
            Self::Collectives(collectives) => write_list(f, "collective", collectives),
            Self::Protocols(protocols) => write_list(f, "protocol", protocols),
        }
    }
}

impl HoldOut {
    pub(super) fn leaves_out(&self, point: &Point) -> bool {
        match self {
            Self::Ranks(ranks) => ranks.contains(&point.ranks),
            Self::Nodes(nodes) => nodes.contains(&point.nodes),
            Self::Collectives(collectives) => collectives.contains(&point.collective),
            Self::Protocols(protocols) => protocols.contains(&point.protocol),
        }
    }
}

/// Fits to the other points and predicts these. Parameters that only the left-out points depend on keep the values of
/// the given profile.
pub(super) fn predict(hold_out: &HoldOut, fit: &Fit<'_, '_>) -> (HeldOut, Vec<LeftOut>) {
    let (left_out, remaining): (Vec<&Point>, Vec<&Point>) =
        fit.points.iter().partition(|point| hold_out.leaves_out(point));
    // Rows of a single number of GPUs do not determine launch costs per GPU.
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

/// Predicts the left-out rows with the profile fitted to the others.
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
