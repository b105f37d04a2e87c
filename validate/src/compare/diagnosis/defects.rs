//! Published defects of NCCL releases that slow down calls.
//!
//! A defect is a hypothesis only if the measurement states an affected release and makes affected calls. Its severity
//! is not known in advance, so several are simulated ([`SLOWDOWNS`]).

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::bound::InNetwork;
use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::variants::variants;
use strum::{EnumCount, VariantArray};

use super::super::Compared;
use super::rules::{self, Release};
use crate::measured::manifest::{Measurement, RegistrationKind};

/// Defect of some releases of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, VariantArray)]
pub enum KnownDefect {
    /// NVLSTree over four or more nodes uses chunks of 64 KiB at most, which is slow on networks with long latencies.
    NvlsTreeChunks,
    /// The cost model overestimates ring LL128 between two Blackwell GPUs, so that it replaces Simple.
    TwoRankLl128,
    /// Symmetric kernels receive with `ld.acquire.sys` instead of `ld.volatile`.
    SymmetricLoads,
}

/// Ratios of the time with a defect to the time without it that are simulated: published slowdowns are 1.1 to 2.7, and
/// neighbouring severities differ by the factors for which the likelihood allows.
pub(super) const SLOWDOWNS: [Slowdown; 4] = [Slowdown(125), Slowdown(150), Slowdown(200), Slowdown(300)];

/// Ratio of the time with a defect to the time without it, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowdown(u16);

impl Slowdown {
    /// Time with the defect for a time without it, in ps.
    pub(super) fn apply(self, time: u64) -> u64 {
        time.saturating_mul(self.0.into()) / 100
    }

    /// Ratio of the time with the defect to the time without it.
    #[must_use]
    pub fn ratio(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

/// Row of the table of defects.
struct Entry {
    /// First and last affected release.
    first: Release,
    last: Release,
    description: &'static str,
    remedy: &'static str,
    source: &'static str,
}

impl KnownDefect {
    pub(super) const ALL: [Self; Self::COUNT] = variants();

    fn entry(self) -> Entry {
        match self {
            // 2.20.3 made the limit a variable, which the libfabric plugin for AWS sets (aws-ofi-nccl pull 332).
            Self::NvlsTreeChunks => Entry {
                first: Release::new(2, 19, 3),
                last: Release::new(2, 19, 4),
                description: "limits chunks of NVLSTree to 64 KiB from 4 nodes on, which is slow on networks with long \
                              latencies",
                remedy: "an update to NCCL 2.20.3 or later with NCCL_NVLSTREE_MAX_CHUNKSIZE=524288; or NCCL_ALGO=^NVLSTree",
                source: "NVIDIA/nccl pull 1112, aws-ofi-nccl pull 332",
            },
            // Blackwell has constants in `perChMaxRingLL128Bws` (src/graph/tuning.cc) from 2.25.1 on.
            Self::TwoRankLl128 => Entry {
                first: Release::new(2, 25, 1),
                last: Release::new(2, 31, 2),
                description: "overestimates ring LL128 between two Blackwell GPUs and runs it instead of Simple",
                remedy: "NCCL_PROTO=^LL128",
                source: "NVIDIA/nccl pull 2343",
            },
            Self::SymmetricLoads => Entry {
                first: Release::new(2, 29, 7),
                last: Release::new(2, 29, 7),
                description: "has slower loads in symmetric kernels",
                remedy: "another release of NCCL; or buffers that are not registered as symmetric windows",
                source: "NVIDIA/nccl issue 2058",
            },
        }
    }

    /// Returns true if the defect may affect calls of a measurement: it states an affected release, and its machine and
    /// settings let the library run the affected kernel.
    pub(super) fn applies(self, measurement: &Measurement) -> bool {
        let Entry { first, last, .. } = self.entry();
        let is_affected =
            rules::release(measurement).is_some_and(|release| release.is_from(first) && release.is_until(last));
        let configuration = &measurement.configuration;
        let is_all_reduce = configuration.collective == Collective::AllReduce;
        let may_run = match self {
            Self::NvlsTreeChunks => {
                configuration.nodes >= 4
                    && configuration.in_network == InNetwork::Allowed
                    && configuration.algorithm.is_none_or(|algorithm| algorithm == Algorithm::NvlsTree)
                    && measurement.variable("NCCL_NVLSTREE_MAX_CHUNKSIZE").is_none()
            }
            Self::TwoRankLl128 => {
                (configuration.nodes, configuration.gpus) == (1, 2)
                    && capability(measurement).is_some_and(|capability| capability >= 100)
                    && configuration.algorithm.is_none_or(|algorithm| algorithm == Algorithm::Ring)
                    && configuration.protocol.is_none()
            }
            Self::SymmetricLoads => configuration.registered == RegistrationKind::Symmetric,
        };
        is_affected && may_run && (is_all_reduce || self == Self::SymmetricLoads)
    }

    /// Returns true if the defect may affect a row: the library runs the affected kernel at sizes for which Simple is
    /// predicted, because its own cost model and the modelled one may differ.
    pub(super) fn affects(self, row: &Compared) -> bool {
        match self {
            Self::NvlsTreeChunks => row.strategy.protocol == Protocol::Simple,
            Self::TwoRankLl128 => matches!(row.strategy.protocol, Protocol::Simple | Protocol::Ll128),
            Self::SymmetricLoads => row.strategy.protocol == Protocol::Symmetric,
        }
    }

    /// Algorithm and protocol of the affected kernel; `None` if it is the predicted one.
    pub(super) fn kernel(self) -> Option<(Algorithm, Protocol)> {
        match self {
            Self::NvlsTreeChunks => Some((Algorithm::NvlsTree, Protocol::Simple)),
            Self::TwoRankLl128 => Some((Algorithm::Ring, Protocol::Ll128)),
            Self::SymmetricLoads => None,
        }
    }

    /// Description of the defect: the end of a sentence that begins with the release.
    #[must_use]
    pub fn description(self) -> &'static str {
        self.entry().description
    }

    /// Setting or release without the defect.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        self.entry().remedy
    }

    /// Thread in which the defect was published.
    #[must_use]
    pub fn source(self) -> &'static str {
        self.entry().source
    }
}

/// Compute capability of the first GPU × 10; `None` if the fabric does not state it.
pub(super) fn capability(measurement: &Measurement) -> Option<u32> {
    let gpu = *measurement.fabric.gpus().first()?;
    match &measurement.fabric.node(gpu).figures {
        Figures::Gpu(figures) => figures.compute_capability,
        _ => None,
    }
}
