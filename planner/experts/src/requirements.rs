//! GPUs and links that the kernels of each library need.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::Router;

use crate::kernel::ExchangeKernel;
use crate::ranks::ExchangeRanks;

/// Smallest compute capability, times 10, of kernels that use TMA and other features of Hopper.
const HOPPER: u32 = 90;

/// Reason that a library's kernel does not run on the GPUs of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum UnsupportedGpus {
    /// The library is written in CUDA.
    #[error("{0} runs on NVIDIA GPUs only")]
    Vendor(&'static str),
    /// The kernels need a newer GPU.
    #[error("{0} needs GPUs of compute capability 9.0 or later")]
    Capability(&'static str),
    /// The kernels write into the memory of other GPUs of the host, but these GPUs permit no peer access.
    #[error("{0} needs NVLink, or peer access, between the GPUs of a host")]
    PeerAccess(&'static str),
    /// All ranks must be in one NVLink domain.
    #[error("{0} needs all ranks in one NVLink domain")]
    SeveralDomains(&'static str),
}

impl ExchangeKernel {
    /// Returns true if the kernel works only inside one domain of multi-node NVLink (TensorRT-LLM,
    /// `tensorrt_llm/_mnnvl_utils.py`).
    pub(crate) fn needs_one_domain(self) -> bool {
        matches!(self, Self::TensorRtOneSided | Self::TensorRtTwoSided)
    }

    /// Returns the reason that the kernel does not run between ranks; `None` if it runs.
    ///
    /// DeepEP needs Hopper or later and NVLink inside a host (README.md, "Requirements"; `setup.py` refuses earlier
    /// GPUs); peer access over PCIe is assumed to suffice. NCCL EP and pplx-kernels use the same instructions
    /// (`contrib/nccl_ep`; pplx-kernels, `CMakeLists.txt`). The kernels of TensorRT-LLM work inside one domain of
    /// multi-node NVLink (`tensorrt_llm/_mnnvl_utils.py`).
    #[must_use]
    pub fn unsupported(self, router: &Router<'_>, ranks: &ExchangeRanks) -> Option<UnsupportedGpus> {
        let fabric = router.fabric();
        let name = self.name();
        if ranks.devices().iter().any(|&device| fabric.node(device).is_amd()) {
            return Some(UnsupportedGpus::Vendor(name));
        }
        let capability = |device| match &fabric.node(device).figures {
            Figures::Gpu(figures) => figures.compute_capability,
            _ => None,
        };
        if ranks.devices().iter().filter_map(|&device| capability(device)).any(|capability| capability < HOPPER) {
            return Some(UnsupportedGpus::Capability(name));
        }
        if self.needs_one_domain() && ranks.domains().len() > 1 {
            return Some(UnsupportedGpus::SeveralDomains(name));
        }
        // Ranks of a host that do not reach each other's memory are in different domains.
        let hosts: std::collections::BTreeSet<u32> =
            ranks.devices().iter().map(|&device| fabric.node(device).host.0).collect();
        (ranks.domains().len() > hosts.len()).then_some(UnsupportedGpus::PeerAccess(name))
    }
}
