//! What is thought of a profile's figures before any row is seen: where a fit begins and how firmly it stays there.

use std::fmt;
use std::str::FromStr;

use fabricast_sim::profile::{LaunchCosts, Profile};

/// What is thought of the figures of the profile where a fit begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prior {
    /// They may be anything; only what no row feels stays. Of what rows cannot tell apart the plainest is thought: each
    /// pass waits as long, whatever it waits for, and what corrects other costs (by warps, say) is nothing. For data that tell nearly everything.
    #[default]
    Open,
    /// As `Open`, but nothing is thought of what rows cannot tell apart, and all rows count alike, whatever their neighbours in size
    /// are. For data of several numbers of GPUs, which thoughts do not help.
    Plain,
    /// Another device or host differs by two common factors, one of the times of passes and one of all other device times,
    /// and a figure by more than that only as the rows say so clearly. For data of few sizes, GPU counts or protocols, which would leave most to chance.
    Proportional,
}

impl Prior {
    /// The profile where a fit begins: of another host's launches only how far apart they are is kept, and what a graph's
    /// take of the device, as if the host kept up.
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

    /// What it costs, as a residual, to be as far from the expected value as that is large. `Open`: next to nothing. A
    /// residual of `Proportional` counts as one row that is off by a quarter.
    pub(super) fn held(self) -> f64 {
        match self {
            Self::Open | Self::Plain => 0.01,
            Self::Proportional => 0.25,
        }
    }

    /// How many times the usual residual it costs that waits of two kinds of pass differ by as much as one takes; `None` where
    /// they stay as different as they are.
    pub(super) fn alike(self) -> Option<f64> {
        match self {
            Self::Open => Some(14.0),
            Self::Plain | Self::Proportional => None,
        }
    }

    /// How many times the usual residual it costs that what only corrects others is as large as it may well be; `None` where it
    /// stays what it is. Rows of one number of GPUs cannot tell a cost of a call from one of each warp or of the first receive, and those of
    /// other numbers are predicted best where the plainer of the two has all of it.
    pub(super) fn nothing(self) -> Option<f64> {
        match self {
            Self::Open => Some(2.0),
            Self::Plain | Self::Proportional => None,
        }
    }

    /// Whether a row counts less where it does not go with its neighbours in size.
    pub(super) fn doubts_rows(self) -> bool {
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

/// A word that is no prior.
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
