//! What a file shows of its GPUs, and which models it leaves possible.

use super::{GpuModel, models};
use crate::Bytes;

/// Who makes the GPUs that a file describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vendor {
    /// NVIDIA.
    #[default]
    Nvidia,
    /// AMD.
    Amd,
}

/// What is known of the GPUs of a fabric without their name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Compute capability × 10, or the gfx number.
    pub capability: Option<u32>,
    /// NVLinks of the GPU that has most: the sum over its peers, or those to its switch.
    pub nvlinks: u32,
    /// Whether no GPU has NVLinks to more than one peer, and none to a switch: cards joined by bridges.
    pub bridged: bool,
    /// Whether GPUs hang on a CPU by NVLink-C2C.
    pub on_grace: bool,
    /// Memory, where a table says.
    pub memory: Option<Bytes>,
    /// Whose tools wrote the file; a capability tells that by itself.
    pub vendor: Vendor,
}

impl Evidence {
    /// The models that fit, those of the data file's order.
    ///
    /// A model has at least the links that are seen; where some models have exactly as many, those. Fewer links than a
    /// model has are seen where its peers or bridges are hidden. Where none are seen nothing follows from it: links may be
    /// hidden, or bridges not fitted.
    #[must_use]
    pub fn candidates(&self) -> Vec<&'static GpuModel> {
        let fits = |model: &&GpuModel| {
            self.capability.is_none_or(|capability| model.compute_capability == capability)
                && (self.capability.is_some() || model.is_amd() == (self.vendor == Vendor::Amd))
                && (!self.on_grace || model.c2c.is_some())
                && model.links >= self.nvlinks
                && self.memory.zip(model.memory).is_none_or(|(seen, own)| seen.0.abs_diff(own.0) * 20 <= own.0)
        };
        let all: Vec<&'static GpuModel> = models().iter().filter(fits).collect();
        let exact: Vec<&'static GpuModel> = all.iter().copied().filter(|model| model.links == self.nvlinks).collect();
        if self.nvlinks > 0 && !exact.is_empty() { exact } else { all }
    }

    /// The candidates of the generation that is meant most: machines whose GPUs have 18 links each and no Grace are Hopper
    /// in nearly every public matrix, though Blackwell has as many (and twice their speed); with Grace they are GB200. The
    /// sentence says so. `None` where the links do not tell generations apart.
    #[must_use]
    pub fn usual(&self) -> Option<(Vec<&'static GpuModel>, &'static str)> {
        let (capability, why) = match (self.nvlinks, self.on_grace) {
            _ if self.capability.is_some() => return None,
            (18, true) => (100, "18 NVLinks, and their memory has NUMA nodes (Grace)"),
            (18, false) => (90, "18 NVLinks; Blackwell has as many and twice their speed"),
            (13..18, false) => (90, "more than 12 NVLinks"),
            // Bridges of 12 links join A100 PCIe, H100 PCIe and H100 NVL.
            (9..=12, false) if !self.bridged => (80, "up to 12 NVLinks"),
            // Bridges of up to four links join many; links to several peers, so few, only Pascal and Volta have.
            (2..=6, false) if !self.bridged => (70, "up to 6 NVLinks"),
            (5 | 6, false) => (70, "up to 6 NVLinks"),
            _ => return None,
        };
        let candidates = Self { capability: Some(capability), ..*self }.candidates();
        (!candidates.is_empty()).then_some((candidates, why))
    }
}
