//! Priors of a fit: where it starts and how strongly parameters are held there.

use std::fmt;
use std::str::FromStr;

use fabricast_sim::profile::{LaunchCosts, Profile};

/// Prior of the parameters: how strongly a fit holds them at the starting profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prior {
    /// Parameters are free; only those that no row depends on keep their values. Undetermined combinations take the
    /// plainest values: equal waits in all passes, and zero for corrections of other costs (per warp, for example).
    /// For data that determine nearly all parameters.
    #[default]
    Open,
    /// Free parameters as with `Open`, but undetermined combinations have no preferred values, and all rows have equal
    /// weights. For data with several numbers of GPUs, where the preference does not help.
    Plain,
    /// The device or host differs from the starting profile by two common factors, one of pass times and one of all
    /// other device times; single parameters deviate from them only on clear evidence. For data with few sizes, GPU
    /// counts or protocols.
    Proportional,
}

impl Prior {
    /// Profile where a fit starts. For a proportional prior, stream launches retain only the delay between processes;
    /// their other costs are those of a graph launch, as if the host never delayed the GPUs.
    pub(super) fn start(self, base: &Profile) -> Profile {
        match self {
            Self::Open | Self::Plain => base.clone(),
            Self::Proportional => {
                let [graph, stream] = base.launches;
                let paced = std::array::from_fn(|mode| match (graph.get(mode), stream.get(mode)) {
                    (Some(&graph), Some(stream)) => LaunchCosts { added_per_gpu: stream.added_per_gpu, ..graph },
                    _ => LaunchCosts::default(),
                });
                Profile { launches: [graph, paced], ..base.clone() }
            }
        }
    }

    /// Residual that a parameter counts as when it deviates from its starting value by that value. Negligible for
    /// `Open`; for `Proportional` as much as one row with an error of a quarter.
    pub(super) fn deviation_residual(self) -> f64 {
        match self {
            Self::Open | Self::Plain => 0.01,
            Self::Proportional => 0.25,
        }
    }

    /// Residual that a difference of one wait between two kinds of pass counts as, in multiples of the median residual;
    /// `None` if such differences have no prior.
    pub(super) fn equal_waits_residual(self) -> Option<f64> {
        match self {
            Self::Open => Some(14.0),
            Self::Plain | Self::Proportional => None,
        }
    }

    /// Residual that a correction of its usual size counts as, in multiples of the median residual; `None` if
    /// corrections have no prior. Rows of one number of GPUs cannot separate a cost per call from one per warp or of
    /// the first receive; other numbers of GPUs are predicted best if the plainer cost has all of it.
    pub(super) fn zero_correction_residual(self) -> Option<f64> {
        match self {
            Self::Open => Some(2.0),
            Self::Plain | Self::Proportional => None,
        }
    }

    /// Returns true if rows that deviate from their neighbours in size have less weight.
    pub(super) fn weights_rows(self) -> bool {
        self != Self::Plain
    }

    fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Plain => "plain",
            Self::Proportional => "proportional",
        }
    }
}

/// Error: a word that is not the name of a prior.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}`: expected open, plain or proportional")]
pub struct UnknownPrior(pub String);

impl FromStr for Prior {
    type Err = UnknownPrior;

    fn from_str(text: &str) -> Result<Self, UnknownPrior> {
        [Self::Open, Self::Plain, Self::Proportional]
            .into_iter()
            .find(|prior| prior.name() == text)
            .ok_or_else(|| UnknownPrior(text.to_owned()))
    }
}

impl fmt::Display for Prior {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
