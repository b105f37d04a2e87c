//! Memory tiers that are available to a GPU, and buffers of data on drives.

use serde::Deserialize;

/// Memory tier of the KV cache or of optimizer states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Memory of the GPU itself.
    #[default]
    Hbm,
    /// Memory of another GPU, which in turn stores the same amount of data for a peer. It is accessed over the fabric
    /// and adds no capacity.
    Peer,
    /// Memory of the attached CPU (Grace over NVLink-C2C, others over PCIe), shared by the CPU's GPUs. Unlimited if the
    /// fabric does not state its size.
    Host,
    /// NVMe drives of the host, shared by its GPUs, through buffers in the memory of the CPU (Rajbhandari et al.,
    /// ZeRO-Infinity, arXiv 2104.07857, section 5). Only for training.
    Nvme,
}

impl Tier {
    /// Returns true if the data passes through the memory of the CPU.
    #[must_use]
    pub fn is_behind_cpu(self) -> bool {
        matches!(self, Self::Host | Self::Nvme)
    }

    /// Returns the name of the tier in job files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hbm => "hbm",
            Self::Peer => "peer",
            Self::Host => "host",
            Self::Nvme => "nvme",
        }
    }
}
