//! Memory that a GPU can keep things in.

use serde::Deserialize;

/// Where keys and values, or the state of an optimizer, are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// In the GPU's own memory.
    #[default]
    Hbm,
    /// In another GPU's, which has the same to keep: read over the fabric, and no room is gained.
    Peer,
    /// In the memory of the CPU next to it (Grace's, over NVLink-C2C; others', over PCIe), which those next to it share;
    /// where a fabric does not state how much there is, it is taken to be enough.
    Host,
}

impl Tier {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hbm => "hbm",
            Self::Peer => "peer",
            Self::Host => "host",
        }
    }
}
