//! GPUs, links and tokens that the kernels of each library need. Commands and jobs check them with
//! [`Exchange::check_support`] before they predict a time.

use std::collections::BTreeMap;

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{PathClass, Router};
use fabricast_topologies::{HostId, NodeId};

use crate::error::ExchangeError;
use crate::exchange::Exchange;
use crate::kernel::ExchangeKernel;
use crate::ranks::ExchangeRanks;
use crate::token::TokenType;
use crate::traffic::Traffic;

/// Smallest compute capability, times 10, of kernels that use TMA and other features of Hopper.
const HOPPER: u32 = 90;

/// Smallest compute capability, times 10, of the conversions to 4 bits per element (PTX ISA, `cvt` to `.e2m1x2`:
/// `sm_100a`, `sm_120a` and later).
const BLACKWELL: u32 = 100;

/// Reason that a library's kernel does not run on the GPUs of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum UnsupportedGpus {
    /// The library is written in CUDA.
    #[error("{0} runs on NVIDIA GPUs only")]
    Vendor(&'static str),
    /// The kernels need a newer GPU.
    #[error("{0} needs GPUs of compute capability 9.0 or later")]
    Capability(&'static str),
    /// The GPUs do not convert tokens to the type.
    #[error("{0} sends nvfp4 tokens on GPUs of compute capability 10.0 or later only")]
    TokenType(&'static str),
    /// The GPUs of a host are connected by PCIe, or only some of them by NVLink.
    #[error("{0} needs NVLink between all GPUs of a host")]
    NvLink(&'static str),
    /// The kernels write into the memory of other GPUs of the host, which these do not permit, and low-latency kernels
    /// have no NICs to reach them otherwise.
    #[error("{0} needs peer access between the GPUs of a host, or NICs if it is a low-latency kernel")]
    PeerAccess(&'static str),
    /// All ranks must be in one NVLink domain.
    #[error("{0} needs all ranks in one NVLink domain")]
    SeveralDomains(&'static str),
}

/// Reason that a kernel does not exchange the tokens of ranks.
#[derive(Clone, Debug, thiserror::Error)]
pub enum UnsupportedExchange {
    /// The kernel does not run on the GPUs.
    #[error(transparent)]
    Gpus(#[from] UnsupportedGpus),
    /// The tokens, experts or ranks exceed what can be described.
    #[error("{kernel} cannot exchange these tokens: {error}")]
    Tokens {
        /// Name of the kernel.
        kernel: &'static str,
        /// Number that is too large, or that does not divide.
        error: ExchangeError,
    },
}

impl UnsupportedExchange {
    /// Creates the reason that a kernel cannot exchange tokens.
    #[must_use]
    pub fn tokens(kernel: ExchangeKernel, error: ExchangeError) -> Self {
        Self::Tokens { kernel: kernel.name(), error }
    }
}

impl Exchange<'_> {
    /// Checks that the GPUs and links run the kernel with tokens of a type, and that the experts divide among the ranks.
    ///
    /// # Errors
    /// [`UnsupportedExchange`] with the reason.
    pub fn check_support(&self, token_type: TokenType) -> Result<(), UnsupportedExchange> {
        match self.kernel.unsupported(self.router, self.ranks, token_type) {
            Some(reason) => Err(reason.into()),
            None => {
                let traffic = Traffic::new(self.ranks, self.routing);
                traffic.map(drop).map_err(|error| UnsupportedExchange::tokens(self.kernel, error))
            }
        }
    }
}

impl ExchangeKernel {
    /// Returns true if the kernel works only inside one domain of multi-node NVLink (TensorRT-LLM,
    /// `tensorrt_llm/_mnnvl_utils.py`).
    pub(crate) fn needs_one_domain(self) -> bool {
        matches!(self, Self::TensorRtOneSided | Self::TensorRtTwoSided)
    }

    /// Returns true if the GPUs of a host must be connected by NVLink: DeepEP's normal kernels and V2 (README.md and
    /// docs/legacy.md, "Requirements"; `check_nvlink_connections` in `deep_ep/utils/envs.py`), and TensorRT-LLM's
    /// (`supports_mnnvl` in `tensorrt_llm/_mnnvl_utils.py`: all NVLinks up). Low-latency kernels put tokens through
    /// NVSHMEM, which also reaches peers over PCIe or by a NIC (`allow_nvlink_for_low_latency_mode` in
    /// `deep_ep/buffers/legacy.py`).
    fn needs_nvlink(self) -> bool {
        match self {
            Self::DeepEp | Self::DeepEpElastic | Self::TensorRtOneSided | Self::TensorRtTwoSided => true,
            Self::DeepEpLowLatency | Self::NcclEpLowLatency | Self::Pplx => false,
        }
    }

    /// Returns the reason that the kernel does not run between ranks; `None` if it runs.
    ///
    /// DeepEP needs Hopper or later (README.md, "Requirements"; `setup.py` has no build for Ampere, on which earlier
    /// versions of its normal kernels ran inside a host, docs/legacy.md). NCCL EP and pplx-kernels use the same
    /// instructions (`contrib/nccl_ep`; pplx-kernels, `CMakeLists.txt`). The kernels of TensorRT-LLM work inside one
    /// domain of multi-node NVLink (`tensorrt_llm/_mnnvl_utils.py`).
    #[must_use]
    pub fn unsupported(
        self,
        router: &Router<'_>,
        ranks: &ExchangeRanks,
        token_type: TokenType,
    ) -> Option<UnsupportedGpus> {
        let fabric = router.fabric();
        let name = self.name();
        if ranks.devices().iter().any(|&device| fabric.node(device).is_amd()) {
            return Some(UnsupportedGpus::Vendor(name));
        }
        let capability = |device| match &fabric.node(device).figures {
            Figures::Gpu(figures) => figures.compute_capability,
            _ => None,
        };
        let oldest = ranks.devices().iter().filter_map(|&device| capability(device)).min();
        if oldest.is_some_and(|capability| capability < HOPPER) {
            return Some(UnsupportedGpus::Capability(name));
        }
        if token_type == TokenType::Nvfp4 && oldest.is_some_and(|capability| capability < BLACKWELL) {
            return Some(UnsupportedGpus::TokenType(name));
        }
        let first_devices = first_devices(router, ranks);
        if self.needs_nvlink() && !has_nvlink(router, ranks, &first_devices) {
            return Some(UnsupportedGpus::NvLink(name));
        }
        if self.needs_one_domain() && ranks.domains().len() > 1 {
            return Some(UnsupportedGpus::SeveralDomains(name));
        }
        // Ranks of a host that do not reach each other's memory are in different domains. Low-latency kernels then put
        // their tokens through NICs.
        let has_nics = |host: &HostId| {
            fabric.nodes().any(|(_, node)| node.host == *host && matches!(node.figures, Figures::Nic(_)))
        };
        let uses_nics = || !self.needs_nvlink() && first_devices.keys().all(has_nics);
        (ranks.domains().len() > first_devices.len() && !uses_nics()).then_some(UnsupportedGpus::PeerAccess(name))
    }
}

/// First device of the ranks on each host.
fn first_devices(router: &Router<'_>, ranks: &ExchangeRanks) -> BTreeMap<HostId, NodeId> {
    let mut first = BTreeMap::new();
    for &device in ranks.devices() {
        first.entry(router.fabric().node(device).host).or_insert(device);
    }
    first
}

/// Returns true if NVLink connects all ranks of each host: the first one to all others, which bridges between pairs do
/// not.
fn has_nvlink(router: &Router<'_>, ranks: &ExchangeRanks, first_devices: &BTreeMap<HostId, NodeId>) -> bool {
    ranks.devices().iter().all(|&device| {
        let first = first_devices.get(&router.fabric().node(device).host).copied().unwrap_or(device);
        // Classes up to C2C are links between GPUs.
        device == first || router.path(first, device).is_ok_and(|path| path.class <= PathClass::C2c)
    })
}
