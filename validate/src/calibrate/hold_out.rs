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
#[error("`{0}` cannot be left out: expected gpus=N[,N], nodes=N[,N], collective=C[,C] or protocol=P[,P]")]
pub struct UnknownHoldOut(pub String);

impl FromStr for HoldOut {
    type Err = UnknownHoldOut;

    fn from_str(text: &str) -> Result<Self, UnknownHoldOut> {
        let unknown = || UnknownHoldOut(text.to_owned());
        let (what, list) = text.split_once('=').ok_or_else(unknown)?;
        fn all<T: FromStr>(list: &str) -> Option<Vec<T>> {
            list.split(',').map(|word| word.trim().parse().ok()).collect()
        }
        match what.trim() {
            "gpus" => all(list).map(Self::Ranks),
            "nodes" => all(list).map(Self::Nodes),
            "collective" => all(list).map(Self::Collectives),
            "protocol" => all(list).map(Self::Protocols),
            _ => None,
        }
        .ok_or_else(unknown)
    }
}

impl fmt::Display for HoldOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list(f: &mut fmt::Formatter<'_>, what: &str, all: &[impl ToString]) -> fmt::Result {
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            write!(f, "{what}={}", all.join(","))
        }
        match self {
            Self::Ranks(ranks) => list(f, "gpus", ranks),
            Self::Nodes(nodes) => list(f, "nodes", nodes),
            Self::Collectives(collectives) => list(f, "collective", collectives),
            Self::Protocols(protocols) => list(f, "protocol", protocols),
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
pub(super) fn predict(what: &HoldOut, all: &Fit<'_, '_>) -> (HeldOut, Vec<LeftOut>) {
    let (out, kept): (Vec<&Point>, Vec<&Point>) = all.points.iter().partition(|point| what.leaves_out(point));
    // Rows of a single number of GPUs do not determine launch costs per GPU.
    let of_launch = super::launch_parameters(&kept, all.base);
    let is_told = |parameter: Parameter| match parameter.is_of_launch() {
        true => of_launch.contains(&parameter),
        false => kept.iter().any(|point| point.feels(parameter)),
    };
    let felt: Vec<Parameter> = all.parameters.iter().copied().filter(|&parameter| is_told(parameter)).collect();
    let (profile, _) = Fit { points: kept, parameters: &felt, ..*all }.run(Start::Far);
    predicted(what, all.cases, &out, &profile)
}

/// Predicts the left-out rows with the profile fitted to the others.
pub(super) fn predicted(what: &HoldOut, cases: &Cases<'_>, out: &[&Point], told: &Profile) -> (HeldOut, Vec<LeftOut>) {
    let rows = cross::of(cases, out, told);
    let residuals = rows.iter().map(|row| row.residual).collect();
    (HeldOut { what: what.clone(), residuals, coverage: Coverage::default() }, rows)
}
