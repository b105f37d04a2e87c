//! GPU models: figures that topology files omit, and the names that tools use for each GPU.
//!
//! [`models`] is the table of `topologies/data/gpus.toml`, which states the source of each figure. [`name`] finds
//! models by name. [`Evidence`] narrows them down by what a file states of its GPUs (links, compute capability, Grace).

mod evidence;
mod fill;
pub mod name;

pub use evidence::{Evidence, Vendor};
pub use fill::find_model;
pub(crate) use fill::{complete, generation, identify, identify_amd, identify_capability, model_by_pci_id, set_model};

use std::sync::OnceLock;

use serde::Deserialize;

use crate::fabric::GpuFigures;
use crate::{Bandwidth, Bytes};

/// A GPU model.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuModel {
    /// Marketing name, as in presets: `H200 SXM`.
    pub name: String,
    /// Other names, without the vendor, as printed by `nvidia-smi`, `rocm-smi` and nccl-tests.
    pub aliases: Vec<String>,
    /// Pairs of PCI vendor and device id by which a GPU of this model is recognized.
    pub pci: Vec<(u32, u32)>,
    /// Compute capability × 10; for AMD the gfx number.
    pub compute_capability: u32,
    /// Number of streaming multiprocessors (AMD: compute units).
    pub sm_count: Option<u32>,
    /// Memory size as the driver reports it.
    pub memory: Option<Bytes>,
    /// Memory bandwidth, sum of reads and writes.
    pub memory_bandwidth: Option<Bandwidth>,
    /// Number of NVLinks or xGMI links; 0 for none.
    pub links: u32,
    /// Bandwidth of one NVLink or xGMI link in each direction.
    pub link: Option<Bandwidth>,
    /// NVSwitch of the HGX boards of this GPU, if it supports in-network reduction and multicast.
    pub multicast_switch: Option<String>,
    /// Bandwidth of NVLink-C2C to its CPU in each direction.
    pub c2c: Option<Bandwidth>,
    /// Generation of the GPU's PCIe link: 5 is PCIe 5.0.
    pub pcie_generation: Option<u32>,
    /// Number of copy engines that can transfer to peers concurrently.
    pub copy_engines: Option<u32>,
    /// Dense 16-bit tensor throughput in TFLOP/s, without sparsity.
    pub bf16_tflops: Option<f64>,
    /// Dense 8-bit tensor throughput in TFLOP/s, without sparsity.
    pub fp8_tflops: Option<f64>,
    /// Dense 4-bit tensor throughput in TFLOP/s, without sparsity.
    pub fp4_tflops: Option<f64>,
    /// Measured 16-bit throughput of large GEMMs, in TFLOP/s.
    pub gemm_tflops: Option<f64>,
    /// Measured 8-bit throughput of large GEMMs, in TFLOP/s; set if it differs much from twice `gemm_tflops`.
    pub fp8_gemm_tflops: Option<f64>,
    /// Power limit of the board in watts.
    pub power_w: Option<f64>,
    /// Documents and tool outputs from which the figures were read.
    pub source: Vec<String>,
    /// Figures that could not be verified in a public document, by their keys in the data file.
    pub unverified: Vec<String>,
}

impl GpuModel {
    /// Returns true if the model is one of AMD's.
    #[must_use]
    pub fn is_amd(&self) -> bool {
        self.compute_capability >= AMD_FROM
    }

    /// The compute capability in the usual notation: `9.0`, or `gfx942`.
    #[must_use]
    pub fn capability(&self) -> String {
        format_capability(self.compute_capability)
    }

    /// Converts the model to the figures that a fabric stores for each GPU.
    #[must_use]
    pub fn figures(&self) -> GpuFigures {
        GpuFigures {
            model: Some(self.name.clone()),
            compute_capability: Some(self.compute_capability),
            sm_count: self.sm_count,
            memory: self.memory,
            memory_bandwidth: self.memory_bandwidth,
            copy_engines: self.copy_engines,
            bf16_tflops: self.bf16_tflops,
        }
    }
}

/// Smallest gfx number of an AMD GPU. All compute capabilities × 10 of NVIDIA GPUs are smaller.
const AMD_FROM: u32 = 900;

/// Formats a compute capability: `9.0` for 90, `gfx942` for 942.
#[must_use]
pub fn format_capability(capability: u32) -> String {
    match capability {
        // LLVM writes the last digit in hexadecimal.
        910 => "gfx90a".to_owned(),
        AMD_FROM.. => format!("gfx{capability}"),
        _ => format!("{}.{}", capability / 10, capability % 10),
    }
}

/// All models, in the order of the data file.
#[must_use]
pub fn models() -> &'static [GpuModel] {
    static MODELS: OnceLock<Vec<GpuModel>> = OnceLock::new();
    // A test reads the built-in file, so it always parses here; an unreadable table would contain no models.
    MODELS.get_or_init(|| read(include_str!("../../data/gpus.toml")).unwrap_or_default())
}

/// Looks up a model by its exact name in the table.
#[must_use]
pub fn model(name: &str) -> Option<&'static GpuModel> {
    models().iter().find(|model| model.name == name)
}

/// Looks up a model by PCI vendor and device id.
#[must_use]
pub fn find_by_pci(vendor: u32, device: u32) -> Option<&'static GpuModel> {
    models().iter().find(|model| model.pci.contains(&(vendor, device)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuTable {
    gpu: Vec<GpuEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuEntry {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    pci: Vec<u32>,
    compute_capability: u32,
    sm_count: Option<u32>,
    memory: Option<String>,
    memory_bandwidth: Option<String>,
    links: u32,
    link: Option<String>,
    multicast_switch: Option<String>,
    c2c: Option<String>,
    pcie_generation: Option<u32>,
    copy_engines: Option<u32>,
    bf16_tflops: Option<f64>,
    fp8_tflops: Option<f64>,
    fp4_tflops: Option<f64>,
    gemm_tflops: Option<f64>,
    fp8_gemm_tflops: Option<f64>,
    power_w: Option<f64>,
    source: Vec<String>,
    #[serde(default)]
    unverified: Vec<String>,
}

/// Parses a data file of models; the error is a message.
fn read(text: &str) -> Result<Vec<GpuModel>, String> {
    fn quantity<T: std::str::FromStr<Err = crate::UnitError>>(text: Option<&String>) -> Result<Option<T>, String> {
        text.map(|text| text.parse().map_err(|error: crate::UnitError| error.to_string())).transpose()
    }
    let file: GpuTable = toml::from_str(text).map_err(|error| error.to_string())?;
    let to_model = |entry: GpuEntry| {
        Ok(GpuModel {
            memory: quantity(entry.memory.as_ref())?,
            memory_bandwidth: quantity(entry.memory_bandwidth.as_ref())?,
            link: quantity(entry.link.as_ref())?,
            c2c: quantity(entry.c2c.as_ref())?,
            pci: entry.pci.iter().map(|id| (id >> 16, id & 0xffff)).collect(),
            name: entry.name,
            aliases: entry.aliases,
            compute_capability: entry.compute_capability,
            sm_count: entry.sm_count,
            links: entry.links,
            multicast_switch: entry.multicast_switch,
            pcie_generation: entry.pcie_generation,
            copy_engines: entry.copy_engines,
            bf16_tflops: entry.bf16_tflops,
            fp8_tflops: entry.fp8_tflops,
            fp4_tflops: entry.fp4_tflops,
            gemm_tflops: entry.gemm_tflops,
            fp8_gemm_tflops: entry.fp8_gemm_tflops,
            power_w: entry.power_w,
            source: entry.source,
            unverified: entry.unverified,
        })
    };
    file.gpu.into_iter().map(to_model).collect()
}

#[cfg(test)]
mod tests;
