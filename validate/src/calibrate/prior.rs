//! Priors of a fit: its starting point, and the weight with which parameters are held there.

use std::fmt;
use std::str::FromStr;

use fabricast_sim::profile::{LaunchCosts, Profile};
use strum::VariantArray;

/// Prior of the parameters, which determines how strongly a fit holds them at the starting profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, VariantArray)]
pub enum Prior {
    /// Parameters are free, and those on which no row depends keep their values. Combinations that the rows do not
    /// determine get default values: equal waits in all passes, and zero for corrections of other costs (per warp, for
    /// example). For data that determine nearly all parameters.
    #[default]
    Open,
    /// Variant of `Open` without default values for undetermined combinations, and with equal weights of all rows. For
    /// data with several numbers of GPUs, which determine these combinations.
    Plain,
    /// The device or host differs from the starting profile by two common factors: one for pass times and one for all
    /// other device times. Single parameters deviate from the common factors only if the rows clearly require it. For
    /// data with few sizes, numbers of GPUs or protocols.
    Proportional,
}

impl Prior {
    /// Starting profile of a fit. With a proportional prior, stream launches keep only the delay between processes;
    /// their other costs are set to those of graph launches, as if the host never delayed the GPUs.
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

    /// Residual to which the deviation of a parameter from its starting value is equivalent, if it is as large as this
    /// value. Negligible for `Open`; for `Proportional` equivalent to one row with an error of a quarter.
    pub(super) fn deviation_residual(self) -> f64 {
        match self {
            Self::Open | Self::Plain => 0.01,
            Self::Proportional => 0.25,
        }
    }

    /// Residual to which a difference of one wait between two kinds of passes is equivalent, in multiples of the median
    /// residual. `None` if such differences have no prior.
    pub(super) fn equal_waits_residual(self) -> Option<f64> {
        match self {
            Self::Open => Some(14.0),
            Self::Plain | Self::Proportional => None,
        }
    }

    /// Residual to which a correction of its usual size is equivalent, in multiples of the median residual. `None` if
    /// corrections have no prior. Rows with one number of GPUs cannot separate a cost per call from a cost per warp or
    /// of the first receive. Predictions for other numbers of GPUs are best if the cost per call includes all of it.
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
        Self::VARIANTS.iter().copied().find(|prior| prior.name() == text).ok_or_else(|| UnknownPrior(text.to_owned()))
    }
}

impl fmt::Display for Prior {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
