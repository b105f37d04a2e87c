//! Peak rates of a GPU: operations per second at the precision of a job, and memory bandwidth.

use fabricast_topologies::fabric::{Figures, GpuFigures};
use fabricast_topologies::gpus::find_model;
use fabricast_topologies::{Bandwidth, Fabric, HostDrives};

use super::block_scheduling::BlockScheduling;
use fabricast_workload::job::{FlashKernel, JobError, JobSpans, Precision};

/// Compute capability of Blackwell Ultra, as major × 10 + minor.
const BLACKWELL_ULTRA: u32 = 103;

/// Peak rates of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeakRates {
    /// Matrix operations per second at the precision of the job's GEMMs.
    pub flops_per_s: f64,
    /// Matrix operations per second of GEMMs that stay in 16 bits if others use 8.
    pub wide_flops_per_s: f64,
    /// Matrix operations per second of 8-bit GEMMs with exact accumulation.
    pub exact_flops_per_s: f64,
    /// Speed of FlashAttention-2 relative to the newest attention kernel.
    pub flash_attention_2: f64,
    /// Memory bandwidth of the GPU.
    pub memory: Bandwidth,
    /// Number of streaming multiprocessors; `None` if the fabric does not state it, in which case calls do not slow
    /// kernels.
    pub sms: Option<u32>,
    /// Scheduling of GEMM thread blocks on the GPU's SMs.
    pub block_scheduling: BlockScheduling,
    /// Bandwidth to offloaded state for reads, and for concurrent writes; `None` if all data is in the GPU's own
    /// memory.
    pub offload_bandwidth: Option<Bandwidth>,
    /// Share of a rank in the memory bandwidth of its CPU; `None` if it is not known or no data is stored there.
    pub host_memory_bandwidth: Option<Bandwidth>,
    /// Bandwidth to weights that are not in the GPU's own memory, for reads; `None` if they are.
    pub weights_bandwidth: Option<Bandwidth>,
    /// Bandwidth from host memory for adapters that are not resident; `None` if the job has none or the fabric states no
    /// path.
    pub adapter_bandwidth: Option<Bandwidth>,
    /// Share of a rank in the bandwidths of its host's drives; `None` if no data is stored there.
    pub drives: Option<HostDrives>,
}

impl PeakRates {
    /// Returns the rates of a fabric's slowest GPU at a precision, with all data in its own memory. Data sheets state
    /// 16-bit peaks. Relative to 16 bits, 8-bit units are twice as fast (NVIDIA H100, B200 and L40S and AMD MI300X data
    /// sheets) and 4-bit units four times, on B300 and GB300 six times (NVIDIA GB200 and GB300 NVL72 data sheets,
    /// dense). 32-bit GEMMs are half as fast (TF32, xf32), on GPUs before these formats an eighth (V100). `spans`:
    /// source locations of the job's keys, for errors.
    ///
    /// # Errors
    /// [`JobError`] at the precision: the fabric does not state a figure, or the GPU has no units for the precision.
    pub fn new(fabric: &Fabric, precision: Precision, spans: &JobSpans) -> Result<Self, JobError> {
        let mut slowest: Option<Self> = None;
        for &gpu in fabric.gpus() {
            let node = fabric.node(gpu);
            let refuse = |problem: &str| {
                let model = match &node.figures {
                    Figures::Gpu(figures) => figures.model.as_deref(),
                    _ => None,
                };
                let model = model.map(|model| format!(" ({model})")).unwrap_or_default();
                let message = format!("{}{model} of fabric `{}` {problem}", node.id, fabric.name());
                Err(JobError::at(&spans.precision, message))
            };
            let Figures::Gpu(figures) = &node.figures else { return refuse("states no figures") };
            let Some(tflops) = figures.bf16_tflops else { return refuse("states no bf16_tflops") };
            let Some(memory) = figures.memory_bandwidth else { return refuse("states no memory_bandwidth") };
            let capability = figures.compute_capability.unwrap_or(0);
            let factor = match precision {
                // Tensor cores support bf16 from compute capability 8.0 on (CUDA C++ Programming Guide, "Tensor
                // Cores").
                Precision::Bf16 if (1..80).contains(&capability) => {
                    return refuse("has no units for bf16: expected precision = \"fp16\"");
                }
                Precision::Bf16 | Precision::Fp16 => 1.0,
                Precision::Fp8 if has_fp8(capability) => fp8_factor(figures),
                Precision::Fp8 => {
                    return refuse("has no units for 8-bit floating point: expected precision = \"bf16\" or \"fp16\"");
                }
                Precision::Nvfp4 if (100..FIRST_GFX).contains(&capability) => nvfp4_factor(figures, capability),
                Precision::Nvfp4 if has_fp8(capability) => {
                    return refuse(
                        "has no units for 4-bit floating point of NVFP4: expected precision = \"fp8\" or \"bf16\"",
                    );
                }
                Precision::Nvfp4 => {
                    return refuse(
                        "has no units for 4-bit floating point of NVFP4: expected precision = \"bf16\" or \"fp16\"",
                    );
                }
                Precision::Fp32 if capability >= 80 => 0.5,
                Precision::Fp32 => 0.125,
            };
            let flops_per_s = tflops * 1e12 * factor;
            let rates = Self {
                flops_per_s,
                wide_flops_per_s: tflops * 1e12 * factor.min(1.0),
                exact_flops_per_s: flops_per_s * exact_sum_rate(precision, capability),
                flash_attention_2: flash_attention_2_speed(capability),
                memory,
                sms: figures.sm_count,
                block_scheduling: BlockScheduling::new(capability),
                offload_bandwidth: None,
                host_memory_bandwidth: None,
                weights_bandwidth: None,
                adapter_bandwidth: None,
                drives: None,
            };
            slowest = Some(slowest.map_or(rates, |other| Self {
                flops_per_s: rates.flops_per_s.min(other.flops_per_s),
                wide_flops_per_s: rates.wide_flops_per_s.min(other.wide_flops_per_s),
                exact_flops_per_s: rates.exact_flops_per_s.min(other.exact_flops_per_s),
                flash_attention_2: rates.flash_attention_2.min(other.flash_attention_2),
                memory: rates.memory.min(other.memory),
                sms: rates.sms.zip(other.sms).map(|(a, b)| a.min(b)),
                block_scheduling: rates.block_scheduling.min(other.block_scheduling),
                offload_bandwidth: None,
                host_memory_bandwidth: None,
                weights_bandwidth: None,
                adapter_bandwidth: None,
                drives: None,
            }));
        }
        slowest.ok_or_else(|| JobError::at(&spans.job, format!("fabric `{}` has no GPU", fabric.name())))
    }

    /// Returns the speed of an attention kernel relative to the newest one. The first FlashAttention is half as fast as
    /// the second (arXiv 2307.08691, abstract).
    pub(super) fn attention_rate(&self, kernel: FlashKernel) -> f64 {
        match kernel {
            FlashKernel::Newest => 1.0,
            FlashKernel::Second => self.flash_attention_2,
            FlashKernel::First => self.flash_attention_2 / 2.0,
        }
    }
}

/// Returns the 8-bit rate relative to the 16-bit rate: twice, or the measured value for GPUs on which libraries reach
/// less.
fn fp8_factor(figures: &GpuFigures) -> f64 {
    find_model(figures).and_then(|model| Some(model.fp8_gemm_tflops? / model.gemm_tflops?)).unwrap_or(2.0)
}

/// Returns the NVFP4 peak relative to the 16-bit peak: that of the model, or of its generation. GeForce boards have
/// half the 16-bit rate with accumulation in 32 bits, but the full rate in 4 bits.
fn nvfp4_factor(figures: &GpuFigures, capability: u32) -> f64 {
    let of_model = find_model(figures).and_then(|model| Some(model.fp4_tflops? / model.bf16_tflops?));
    of_model.unwrap_or(if capability == BLACKWELL_ULTRA { 6.0 } else { 4.0 })
}

/// Smallest `compute_capability` value that is an AMD gfx number.
const FIRST_GFX: u32 = 600;

/// Returns true for GPUs with units for 8-bit floating point: NVIDIA from compute capability 8.9 on, AMD CDNA 3 and 4
/// (gfx940 to gfx950) and RDNA 4 (gfx1200). (CUDA C++ Programming Guide, "Tensor Cores"; AMD, "Instruction Set
/// Architecture" of CDNA 3 and RDNA 4.)
fn has_fp8(capability: u32) -> bool {
    (89..FIRST_GFX).contains(&capability) || (940..1000).contains(&capability) || capability >= 1200
}

/// Returns the speed of FlashAttention-2 relative to the newest attention kernel. On Ampere, FlashAttention-2 is the
/// newest kernel. It does not use the new units of Hopper and reaches 35 % of the peak there (Shah et al., arXiv
/// 2407.08608, abstract), whereas the cuDNN kernel of the efficiency curve reaches 54 % with many keys. It is also the
/// newest kernel on AMD GPUs, and on Ada and workstation Blackwell, whose matrix instructions are those of Ampere.
fn flash_attention_2_speed(capability: u32) -> f64 {
    match capability {
        90..110 => 0.65,
        _ => 1.0,
    }
}

/// Returns the rate of 8-bit GEMMs with exact accumulation relative to the default. Hopper's matrix units accumulate
/// with reduced precision, and exact sums need additional instructions. `torch._scaled_mm` on H100 with and without
/// `use_fast_accum`, for five shapes of published runs: 0.90 to 0.95, mean 0.93
/// (`planner/data/h200-steps/shares-h100.jsonl`). Matrix units of other generations accumulate exactly.
fn exact_sum_rate(precision: Precision, capability: u32) -> f64 {
    match (precision, capability) {
        (Precision::Fp8, 90..100) => 0.93,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::preset;

    use super::*;

    fn load_rates(name: &str, precision: Precision) -> Result<PeakRates, JobError> {
        PeakRates::new(&preset::load(name).unwrap(), precision, &JobSpans::default())
    }

    /// Dense NVFP4 peaks equal those of the data sheets: 10 Pflop/s per GB200 GPU, 9 per B200, 15 per GB300 GPU, 13.5
    /// per B300.
    #[test]
    fn nvfp4_peaks_match_data_sheets() {
        for (name, petaflops) in [("gb200-nvl72", 10.0), ("hgx-b200", 9.0), ("gb300-nvl72", 15.0), ("hgx-b300", 13.5)] {
            let predicted = load_rates(name, Precision::Nvfp4).unwrap().flops_per_s / 1e15;
            assert!((predicted / petaflops - 1.0).abs() < 0.02, "{name}: {predicted}");
        }
        assert!(
            load_rates("hgx-h200", Precision::Nvfp4)
                .unwrap_err()
                .to_string()
                .contains("no units for 4-bit floating point")
        );
    }

    /// AMD's gfx numbers are larger than NVIDIA's compute capabilities and are not comparable with them.
    #[test]
    fn nvfp4_error_names_gpu_and_supported_precision() {
        for (name, gpu, expected) in [
            ("hgx-h100", "gpu0 (H100", "\"fp8\""),
            ("mi300x", "gpu0 (", "\"fp8\""),
            ("dgx-a100", "gpu0 (A100", "\"bf16\""),
        ] {
            let error = load_rates(name, Precision::Nvfp4).unwrap_err().to_string();
            assert!(error.contains(gpu) && error.contains("NVFP4") && error.contains(expected), "{error}");
        }
        assert!(load_rates("mi300x", Precision::Fp8).is_ok() && load_rates("hgx-b200", Precision::Nvfp4).is_ok());
    }

    /// FlashAttention-2 is the newest kernel on Ampere. FlashAttention is half as fast as FlashAttention-2 on all GPUs.
    #[test]
    fn older_attention_is_slower() {
        let kernels = [FlashKernel::Newest, FlashKernel::Second, FlashKernel::First];
        for (name, expected) in [("dgx-a100", [1.0, 1.0, 0.5]), ("hgx-h100", [1.0, 0.65, 0.325])] {
            assert_eq!(
                kernels.map(|kernel| load_rates(name, Precision::Bf16).unwrap().attention_rate(kernel)),
                expected,
                "{name}"
            );
        }
    }

    /// The factor for exact sums equals the measured one. It applies only to Hopper and only to 8 bits.
    #[test]
    fn exact_sums_of_eight_bits_cost_hopper() {
        let lines = include_str!("../../../data/h200-steps/shares-h100.jsonl").lines();
        let lines: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
        let rates = |sums: &str| -> Vec<f64> {
            let matching = lines.iter().filter(|line| line["bits"] == 8 && line["sums"] == sums);
            matching.map(|line| line["tflops"][1].as_f64().unwrap()).collect()
        };
        let ratios: Vec<f64> = rates("exact").iter().zip(rates("short")).map(|(exact, short)| exact / short).collect();
        assert_eq!(ratios.len(), 5);
        assert!((ratios.iter().sum::<f64>() / 5.0 - exact_sum_rate(Precision::Fp8, 90)).abs() < 0.005, "{ratios:?}");
        for (name, precision, expected) in
            [("hgx-h100", Precision::Fp8, 0.93), ("hgx-h100", Precision::Bf16, 1.0), ("hgx-b200", Precision::Fp8, 1.0)]
        {
            let speeds = load_rates(name, precision).unwrap();
            assert!((speeds.exact_flops_per_s / speeds.flops_per_s - expected).abs() < 1e-9, "{name}");
        }
    }
}
