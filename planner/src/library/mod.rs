//! What a communication library would choose by itself: algorithm, protocol, channels, threads, chunk.
//!
//! A library decides by rules and a cost model of its own, which are facts of its version and not ours to improve.
//! They live here, so that a plan can say what the library would have done and what that costs (its *regret*: the time
//! of its choice by our simulation over the time of ours, less one), and so that a log that does not name its algorithm
//! can be compared.
//!
//! ```text
//! Fabric ─► nccl::graph (channels, speeds) ─► nccl::Communicator ─► nccl::Table ─► Choice
//! ranks, bytes ─► mpi (switch points) ───────────────────────────────────────────► Choice
//! ```
//!
//! Where a library's choice is not known (a fabric whose search is not modelled, say), the answer is [`Unknown`] with the
//! reason, never a guess.

mod chooser;
pub mod mpi;
pub mod nccl;
mod offers;

use std::fmt;
use std::str::FromStr;

use fabricast_topologies::{Fabric, NodeId, Picos};

use crate::strategy::Strategy;
pub use chooser::{Chooser, Conditions, Registered};
pub use offers::Offer;

/// A library, by version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// NVIDIA's collectives.
    Nccl(nccl::Version),
    /// Open MPI with its `tuned` component, on GPU memory.
    OpenMpi(mpi::Version),
}

/// What a library chooses for a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The same in our words; its chunk is the library's.
    pub strategy: Strategy,
    /// The library's own words: `Ring LL`, `AllReduce_AGxLL_R`, `rabenseifner`.
    pub name: String,
    /// The channels that it allows the call; the strategy's are those that the bytes fill. A table that names this number for the
    /// library's own choice changes nothing.
    pub most_channels: u16,
    /// What the library itself expects; it is for ranking, not a prediction.
    pub expected: Option<Picos>,
}

/// Why a library's choice is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// Its decision depends on something that is not modelled here.
    #[error("{library}: {reason}")]
    Fabric {
        /// The library.
        library: Library,
        /// What.
        reason: nccl::graph::Uncovered,
    },
    /// Settings leave it nothing.
    #[error("{library}: its settings leave no way to do this")]
    NoWay {
        /// The library.
        library: Library,
    },
    /// It takes an algorithm of which there are no schedules here.
    #[error("{library} takes {name}, of which there is no schedule here")]
    NoSchedule {
        /// The library.
        library: Library,
        /// The library's name of it.
        name: String,
    },
    /// One rank has nobody to talk to.
    #[error("{library}: there is nothing to choose for one rank, which only copies")]
    Alone {
        /// The library.
        library: Library,
    },
    /// It has no such collective, or it is not modelled.
    #[error("{library}: what it does for {collective} is not modelled")]
    NotModelled {
        /// The library.
        library: Library,
        /// The collective.
        collective: fabricast_sim::schedule::Collective,
    },
}

impl Library {
    /// What a bare `nccl` means.
    pub const NEWEST_NCCL: Self = Self::Nccl(nccl::Version::NEWEST);

    /// Whether it runs on these devices at all: NCCL does on NVIDIA's GPUs alone.
    #[must_use]
    pub fn runs_on(self, fabric: &Fabric, devices: &[NodeId]) -> bool {
        match self {
            Self::Nccl(_) => !nccl::graph::are_of_another_maker(fabric, devices),
            Self::OpenMpi(_) => true,
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Nccl(version) => format!("nccl-{version}"),
            Self::OpenMpi(version) => format!("open_mpi-{version}"),
        };
        f.pad(&name)
    }
}

/// No library is called so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownLibrary {
    /// The name.
    #[error("`{0}` is not a library: expected nccl, nccl-2.28.9, nccl-2.30, nccl-2.31, open_mpi-4.1 or open_mpi-5.0")]
    Name(String),
    /// NCCL's version.
    #[error(transparent)]
    Nccl(#[from] nccl::UnknownVersion),
    /// Open MPI's version.
    #[error(transparent)]
    OpenMpi(#[from] mpi::UnknownVersion),
}

impl FromStr for Library {
    type Err = UnknownLibrary;

    /// `nccl`, `nccl-2.28.9`, `open_mpi-5.0`.
    fn from_str(text: &str) -> Result<Self, UnknownLibrary> {
        let lower = text.to_ascii_lowercase();
        let (name, version) =
            lower.split_once('-').map_or((lower.as_str(), None), |(name, version)| (name, Some(version)));
        match (name, version) {
            // A version that was meant and is empty (of a variable, say) is not the newest.
            (_, Some("")) => Err(UnknownLibrary::Name(text.to_owned())),
            ("nccl", None) => Ok(Self::NEWEST_NCCL),
            ("nccl", Some(version)) => Ok(Self::Nccl(version.parse()?)),
            ("open_mpi" | "openmpi" | "ompi", None) => Ok(Self::OpenMpi(mpi::Version::NEWEST)),
            ("open_mpi" | "openmpi" | "ompi", Some(version)) => Ok(Self::OpenMpi(version.parse()?)),
            _ => Err(UnknownLibrary::Name(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for text in ["nccl-2.28.9", "nccl-2.30.7", "nccl-2.31.0", "open_mpi-4.1", "open_mpi-5.0"] {
            assert_eq!(text.parse::<Library>().unwrap().to_string(), text);
        }
        assert_eq!("nccl".parse(), Ok(Library::NEWEST_NCCL));
        for wrong in ["", "rccl", "nccl-", "nccl-1", "open_mpi-", "ompi-", "open_mpi-3", "mpich"] {
            assert!(wrong.parse::<Library>().is_err(), "{wrong}");
        }
    }
}
