//! Memory tiers that are available to a GPU.

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
}

impl Tier {
    /// Returns the name of the tier in job files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hbm => "hbm",
            Self::Peer => "peer",
            Self::Host => "host",
        }
    }
}
