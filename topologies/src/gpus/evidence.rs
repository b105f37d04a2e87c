//! Evidence of GPU models in a file, and the models that are compatible with it.

use super::{GpuModel, models};
use crate::Bytes;

/// Vendor of the GPUs that a file describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vendor {
    /// The file describes NVIDIA GPUs.
    #[default]
    Nvidia,
    /// The file describes AMD GPUs.
    Amd,
}

/// Facts that a file states about GPUs whose model it does not name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Compute capability × 10, or the gfx number of an AMD GPU; `None` if the file does not state it.
    pub capability: Option<u32>,
    /// Maximum number of NVLinks of a GPU: the sum over its peers, or the number of links to its switch.
    pub nvlinks: u32,
    /// True if GPUs are joined by NVLink bridges: no GPU has NVLinks to a switch or to more than one peer.
    pub bridged: bool,
    /// True if GPUs are attached to a CPU by NVLink-C2C.
    pub has_c2c: bool,
    /// Memory size of one GPU, if the file states it.
    pub memory: Option<Bytes>,
    /// Vendor of the tool that wrote the file. Ignored if the compute capability is known.
    pub vendor: Vendor,
}

impl Evidence {
    /// The compatible models, in the order of the data file.
    ///
    /// A compatible model has at least the observed number of links; models with exactly this number are preferred. A
    /// file may show fewer links than the model has, because peers or bridges are hidden. A file without links excludes
    /// no model: links may be hidden, or bridges may not be fitted.
    #[must_use]
    pub fn candidates(&self) -> Vec<&'static GpuModel> {
        let fits = |model: &&GpuModel| {
            self.capability.is_none_or(|capability| model.compute_capability == capability)
                && (self.capability.is_some() || model.is_amd() == (self.vendor == Vendor::Amd))
                && (!self.has_c2c || model.c2c.is_some())
                && model.links >= self.nvlinks
                && self
                    .memory
                    .zip(model.memory)
                    .is_none_or(|(reported, nominal)| reported.0.abs_diff(nominal.0) * 20 <= nominal.0)
        };
        let all: Vec<&'static GpuModel> = models().iter().filter(fits).collect();
        let exact: Vec<&'static GpuModel> = all.iter().copied().filter(|model| model.links == self.nvlinks).collect();
        if self.nvlinks > 0 && !exact.is_empty() { exact } else { all }
    }

    /// Candidates of the most likely generation, with the reason for the warning. Machines with 18 links per GPU and no
    /// Grace CPU are assumed to be Hopper: nearly every public matrix of this kind is, although Blackwell also has 18
    /// links (at twice the bandwidth). With Grace they are assumed to be GB200. Returns `None` if the number of links
    /// does not distinguish generations.
    #[must_use]
    pub fn likely_candidates(&self) -> Option<(Vec<&'static GpuModel>, &'static str)> {
        let (capability, why) = match (self.nvlinks, self.has_c2c) {
            _ if self.capability.is_some() => return None,
            (18, true) => (100, "18 NVLinks, and their memory has NUMA nodes (Grace)"),
            (18, false) => (90, "18 NVLinks; Blackwell has as many and twice their speed"),
            (13..18, false) => (90, "more than 12 NVLinks"),
            // NVLink bridges of 12 links are fitted to A100 PCIe, H100 PCIe and H100 NVL.
            (9..=12, false) if !self.bridged => (80, "up to 12 NVLinks"),
            // Bridges of up to four links are fitted to many models. Six or fewer links to several peers occur on
            // Pascal and Volta only.
            (2..=6, false) if !self.bridged => (70, "up to 6 NVLinks"),
            (5 | 6, false) => (70, "up to 6 NVLinks"),
            _ => return None,
        };
        let candidates = Self { capability: Some(capability), ..*self }.candidates();
        (!candidates.is_empty()).then_some((candidates, why))
    }
}
