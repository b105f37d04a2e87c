//! Default choices of communication libraries: algorithm, protocol, channels, threads, chunk.
//!
//! A library decides by the rules and the cost model of its version, which this crate reproduces unchanged. A plan
//! reports the predicted choice and its slowdown: simulated time of the library's choice divided by that of the
//! selected strategy, minus one. A comparison uses them for logs that do not name the algorithm.
//!
//! ```text
//! Fabric ─► nccl::graph (channels, speeds) ─► nccl::Communicator ─► nccl::Table ─► Choice
//! Fabric ─► rccl::RcclHosts ─► rccl::Estimates, byte ranges, MSCCL's files ──────► Choice
//! ranks, bytes ─► mpi (switch points) ───────────────────────────────────────────► Choice
//! ```
//!
//! If a library's choice cannot be predicted (for example on a fabric for which NCCL's topology search is not
//! modelled), the result is [`Unknown`] with the reason, never a guess.
//!
//! # Example
//!
//! Predicts the choices of NCCL and Open MPI for an all_reduce on eight H100.
//!
//! ```
//! use fabricast_collectives::algorithm::Algorithm;
//! use fabricast_libraries::{Chooser, Conditions};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Rank};
//! use fabricast_topologies::route::{RouteOptions, Router};
//! use fabricast_topologies::{Bytes, FabricRequest, load};
//!
//! let fabric = load(&FabricRequest::new("hgx-h100"))?;
//! let router = Router::new(&fabric, RouteOptions::default());
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = |bytes: u64| Call { collective, bytes: Bytes(bytes), ranks: 8, root: Rank(0), buffers };
//!
//! let nccl = Chooser::new("nccl-2.28.9".parse()?, &fabric, &router, fabric.gpus(), Conditions::default());
//! let small = nccl.choose(&call(64 << 10))?;
//! assert_eq!((small.name.as_str(), small.strategy.channels), ("Ring LL", 2));
//! assert_eq!(nccl.choose(&call(16 << 20))?.strategy.algorithm, Algorithm::Nvls);
//!
//! let open_mpi = Chooser::new("open_mpi-5.0".parse()?, &fabric, &router, fabric.gpus(), Conditions::default());
//! assert_eq!(open_mpi.choose(&call(1 << 20))?.strategy.algorithm, Algorithm::RecursiveHalvingDoubling);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

mod capabilities;
mod chooser;
mod group_choice;
pub mod mpi;
pub mod nccl;
pub mod rccl;

use std::fmt;
use std::str::FromStr;

use fabricast_topologies::{Fabric, NodeId, Picos};

pub use capabilities::LibraryCapabilities;
pub use chooser::{BufferRegistration, Chooser, Conditions};
use fabricast_collectives::strategy::Strategy;
pub use group_choice::GroupChoice;

/// Communication library with its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// NVIDIA's NCCL.
    Nccl(nccl::NcclVersion),
    /// AMD's RCCL.
    Rccl(rccl::RcclVersion),
    /// Open MPI with its `tuned` component, on GPU memory.
    OpenMpi(mpi::OpenMpiVersion),
}

/// Choice of a library for a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The library's own name of the choice: `Ring LL`, `AllReduce_AGxLL_R`, `rabenseifner`.
    pub strategy: Strategy,
    /// The library's own name for the choice: `Ring LL`, `AllReduce_AGxLL_R`, `rabenseifner`.
    pub name: String,
    /// Maximum number of channels that the library allows for the call; the strategy's channels are those that get
    /// work. A tuning table with this maximum and the library's own algorithm and protocol does not change the
    /// library's behaviour.
    pub max_channels: u16,
    /// Time estimated by the library's own cost model. The library uses it to rank its algorithms; it is not an
    /// accurate prediction.
    pub expected: Option<Picos>,
}

/// Reason why a library's choice cannot be predicted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// The choice depends on a property of the fabric that is not modelled.
    #[error("{library}: {reason}")]
    Fabric {
        /// Library whose choice was requested.
        library: Library,
        /// Property of the fabric that is not modelled.
        reason: nccl::graph::SearchNotModelled,
    },
    /// The choice depends on a property of the hosts that is not modelled.
    #[error("{library}: {reason}")]
    Hosts {
        /// Library whose choice was requested.
        library: Library,
        /// Property of the hosts that is not modelled.
        reason: rccl::HostsNotModelled,
    },
    /// The settings exclude every algorithm and protocol.
    #[error("{library}: its settings exclude every algorithm for this call")]
    NothingAllowed {
        /// Library whose choice was requested.
        library: Library,
    },
    /// The library chooses an algorithm for which fabricast has no schedule.
    #[error("{library} chooses {name}, for which fabricast has no schedule")]
    NoSchedule {
        /// Library whose choice was requested.
        library: Library,
        /// The library's name for the algorithm.
        name: String,
    },
    /// NCCL uses a network that reduces, and its settings permit several algorithms.
    #[error(
        "{library}: its choice with a network that reduces (NCCL_COLLNET_ENABLE=1) is not modelled; expected NCCL_ALGO=NVLS, CollNetChain or an algorithm without the network"
    )]
    CollNet {
        /// Library whose choice was requested.
        library: Library,
    },
    /// The communicator has a single rank, so the library chooses no algorithm.
    #[error("{library}: no algorithm is chosen for one rank, which only copies")]
    SingleRank {
        /// Library whose choice was requested.
        library: Library,
    },
    /// Groups of calls with this collective, of this library or on these buffers are not modelled.
    #[error(
        "{library}: a group with {collective} is not modelled; expected all_reduce, all_gather, reduce_scatter, broadcast and reduce of NCCL 2.21 or later without symmetric windows"
    )]
    GroupNotModelled {
        /// Library whose choice was requested.
        library: Library,
        /// Collective of the call.
        collective: fabricast_sim::schedule::Collective,
    },
    /// The library has no such collective, or it is not modelled.
    #[error("{library}: its choice for {collective} is not modelled")]
    NotModelled {
        /// Library whose choice was requested.
        library: Library,
        /// Collective of the call.
        collective: fabricast_sim::schedule::Collective,
    },
}

impl Library {
    /// Library meant by `nccl` without a version number: the newest release of NCCL.
    pub const NEWEST_NCCL: Self = Self::Nccl(nccl::NcclVersion::NEWEST);

    /// Library meant by `rccl` without a version number: the newest modelled release of RCCL.
    pub const NEWEST_RCCL: Self = Self::Rccl(rccl::RcclVersion::NEWEST);

    /// Returns true if the library runs on these devices: NCCL on NVIDIA's GPUs only, RCCL on all others.
    #[must_use]
    pub fn runs_on(self, fabric: &Fabric, devices: &[NodeId]) -> bool {
        match self {
            Self::Nccl(_) => !nccl::graph::are_not_nvidia(fabric, devices),
            Self::Rccl(_) => nccl::graph::are_not_nvidia(fabric, devices),
            Self::OpenMpi(_) => true,
        }
    }

    /// The GPU vendor's own library for these devices, in its newest version.
    #[must_use]
    pub fn from_vendor(fabric: &Fabric, devices: &[NodeId]) -> Self {
        if Self::NEWEST_RCCL.runs_on(fabric, devices) { Self::NEWEST_RCCL } else { Self::NEWEST_NCCL }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Nccl(version) => format!("nccl-{version}"),
            Self::Rccl(version) => format!("rccl-{version}"),
            Self::OpenMpi(version) => format!("open_mpi-{version}"),
        };
        f.pad(&name)
    }
}

/// Error for an unknown library name or version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownLibrary {
    /// The text is not the name of a library.
    #[error(
        "`{0}` is not a library: expected nccl, nccl-2.28.9, nccl-2.30, nccl-2.31, rccl, rccl-2.27.7, open_mpi-4.1 or open_mpi-5.0"
    )]
    Name(String),
    /// The version of NCCL is not known.
    #[error(transparent)]
    Nccl(#[from] nccl::UnknownNcclVersion),
    /// The version of RCCL is not known.
    #[error(transparent)]
    Rccl(#[from] rccl::UnknownRcclVersion),
    /// The version of Open MPI is not known.
    #[error(transparent)]
    OpenMpi(#[from] mpi::UnknownOpenMpiVersion),
}

impl FromStr for Library {
    type Err = UnknownLibrary;

    /// Parses `nccl`, `nccl-2.28.9`, `rccl-2.27.7`, `open_mpi-5.0`.
    fn from_str(text: &str) -> Result<Self, UnknownLibrary> {
        let lower = text.to_ascii_lowercase();
        let (name, version) =
            lower.split_once('-').map_or((lower.as_str(), None), |(name, version)| (name, Some(version)));
        match (name, version) {
            // An empty version (from an unset variable, for example) is an error and does not mean the newest version.
            (_, Some("")) => Err(UnknownLibrary::Name(text.to_owned())),
            ("nccl", None) => Ok(Self::NEWEST_NCCL),
            ("nccl", Some(version)) => Ok(Self::Nccl(version.parse()?)),
            ("rccl", None) => Ok(Self::NEWEST_RCCL),
            ("rccl", Some(version)) => Ok(Self::Rccl(version.parse()?)),
            ("open_mpi" | "openmpi" | "ompi", None) => Ok(Self::OpenMpi(mpi::OpenMpiVersion::NEWEST)),
            ("open_mpi" | "openmpi" | "ompi", Some(version)) => Ok(Self::OpenMpi(version.parse()?)),
            _ => Err(UnknownLibrary::Name(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_names_round_trip() {
        for text in ["nccl-2.28.9", "nccl-2.30.7", "nccl-2.31.0", "rccl-2.27.7", "open_mpi-4.1", "open_mpi-5.0"] {
            assert_eq!(text.parse::<Library>().unwrap().to_string(), text);
        }
        assert_eq!("nccl".parse(), Ok(Library::NEWEST_NCCL));
        assert_eq!("rccl".parse(), Ok(Library::NEWEST_RCCL));
        for wrong in ["", "rccl-", "rccl-2.9", "nccl-", "nccl-1", "open_mpi-", "ompi-", "open_mpi-3", "mpich"] {
            assert!(wrong.parse::<Library>().is_err(), "{wrong}");
        }
    }
}
