//! What a GPU does at most: its peaks at the precision of a job, and its memory's bandwidth.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::{Bandwidth, Fabric};

use super::slowing::Blocks;
use crate::job::{FlashKernel, JobError, Places, Precision};

/// Compute capability × 10 of Blackwell Ultra.
const ULTRA: u32 = 103;

/// What a GPU does at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Operations of matrix units a second, in the precision of products.
    pub flops_per_s: f64,
    /// Of those that keep 16 bits where products have 8.
    pub wide_flops_per_s: f64,
    /// Of those in 8 bits whose sums are kept exact.
    pub exact_flops_per_s: f64,
    /// What FlashAttention-2 reaches of what the newest attention does.
    pub second_flash: f64,
    /// Of its memory.
    pub memory: Bandwidth,
    /// Streaming multiprocessors; `None` where the fabric does not say: kernels are not slowed by calls beside them then.
    pub sms: Option<u32>,
    /// How the blocks of its products come to them.
    pub blocks: Blocks,
    /// How fast it reads, and writes beside, what its job keeps elsewhere; `None`: all is in its own memory.
    pub elsewhere: Option<Bandwidth>,
}

impl Speeds {
    /// Those of a fabric's slowest GPU at the precision of a job, which stands at these places and keeps all in its own memory. Data
    /// sheets give 16-bit peaks; units for 8 bits, where there are any, do twice as much (NVIDIA H100, B200 and L40S and AMD MI300X data sheets), for 4 bits four
    /// times, of B300 and GB300 six times as much (NVIDIA GB200 and GB300 NVL72 data sheets, dense), for 32 bits (TF32, xf32) half, before them (V100) an
    /// eighth.
    ///
    /// # Errors
    /// [`JobError`] at the precision: a figure that the fabric does not state, or no units for it.
    pub fn of(fabric: &Fabric, precision: Precision, places: &Places) -> Result<Self, JobError> {
        let mut slowest: Option<Self> = None;
        for &gpu in fabric.gpus() {
            let node = fabric.node(gpu);
            let refuse = |what: &str| {
                let model = match &node.figures {
                    Figures::Gpu(figures) => figures.model.as_deref(),
                    _ => None,
                };
                let model = model.map(|model| format!(" ({model})")).unwrap_or_default();
                let message = format!("{}{model} of fabric `{}` {what}", node.id, fabric.name());
                Err(JobError::at(&places.precision, message))
            };
            let Figures::Gpu(figures) = &node.figures else { return refuse("states no figures") };
            let Some(tflops) = figures.bf16_tflops else { return refuse("states no bf16_tflops") };
            let Some(memory) = figures.memory_bandwidth else { return refuse("states no memory_bandwidth") };
            let capability = figures.compute_capability.unwrap_or(0);
            let factor = match precision {
                // Tensor cores take bf16 from compute capability 8.0 on (CUDA C++ Programming Guide, "Tensor Cores").
                Precision::Bf16 if (1..80).contains(&capability) => {
                    return refuse("has no units for bf16: expected precision = \"fp16\"");
                }
                Precision::Bf16 | Precision::Fp16 => 1.0,
                Precision::Fp8 if has_fp8(capability) => 2.0,
                Precision::Fp8 => {
                    return refuse("has no units for 8-bit floating point: expected precision = \"bf16\" or \"fp16\"");
                }
                Precision::Nvfp4 if capability == ULTRA => 6.0,
                Precision::Nvfp4 if (100..FIRST_GFX).contains(&capability) => 4.0,
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
            let own = Self {
                flops_per_s,
                wide_flops_per_s: tflops * 1e12 * factor.min(1.0),
                exact_flops_per_s: flops_per_s * exact(precision, capability),
                second_flash: second_flash(capability),
                memory,
                sms: figures.sm_count,
                blocks: Blocks::of(capability),
                elsewhere: None,
            };
            slowest = Some(slowest.map_or(own, |other| Self {
                flops_per_s: own.flops_per_s.min(other.flops_per_s),
                wide_flops_per_s: own.wide_flops_per_s.min(other.wide_flops_per_s),
                exact_flops_per_s: own.exact_flops_per_s.min(other.exact_flops_per_s),
                second_flash: own.second_flash.min(other.second_flash),
                memory: own.memory.min(other.memory),
                sms: own.sms.zip(other.sms).map(|(own, other)| own.min(other)),
                blocks: own.blocks.min(other.blocks),
                elsewhere: None,
            }));
        }
        slowest.ok_or_else(|| JobError::at(&places.job, format!("fabric `{}` has no GPU", fabric.name())))
    }

    /// What a kernel of attention reaches of what the newest does: the first is half as fast as the second (arXiv 2307.08691, abstract).
    pub(super) fn of_newest(&self, kernel: FlashKernel) -> f64 {
        match kernel {
            FlashKernel::Newest => 1.0,
            FlashKernel::Second => self.second_flash,
            FlashKernel::First => self.second_flash / 2.0,
        }
    }
}

/// From here on a compute capability is a gfx number of AMD's.
const FIRST_GFX: u32 = 600;

/// True for GPUs with units for 8-bit floating point: NVIDIA's from compute capability 8.9 on, AMD's CDNA 3 and 4 (gfx940 to gfx950)
/// and RDNA 4 (gfx1200). (CUDA C++ Programming Guide, "Tensor Cores"; AMD, "Instruction Set Architecture" of CDNA 3 and RDNA 4.)
fn has_fp8(capability: u32) -> bool {
    (89..FIRST_GFX).contains(&capability) || (940..1000).contains(&capability) || capability >= 1200
}

/// What FlashAttention-2 reaches of what the newest attention does: it is that on Ampere; on Hopper, whose units it does not know, it
/// reaches 35 % of the peak (Shah et al., arXiv 2407.08608, abstract), where the curve's cuDNN reaches 54 with many keys.
fn second_flash(capability: u32) -> f64 {
    if capability < 90 { 1.0 } else { 0.65 }
}

/// What exact sums leave of the rate of 8-bit products: Hopper's matrix units sum short, and exact sums are added up beside them.
/// `torch._scaled_mm` on H100 with and without `use_fast_accum`, five shapes of published runs, held for ten seconds: 0.90 to 0.95, 0.93
/// in the mean (`planner/data/h200-steps/shares-h100.jsonl`). Matrix units of other generations sum exactly.
fn exact(precision: Precision, capability: u32) -> f64 {
    match (precision, capability) {
        (Precision::Fp8, 90..100) => 0.93,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::preset;

    use super::*;

    fn of(name: &str, precision: Precision) -> Result<Speeds, JobError> {
        Speeds::of(&preset::load(name).unwrap(), precision, &Places::default())
    }

    /// Dense NVFP4 of the data sheets: 10 petaFLOP/s of a GB200's GPU, 9 of a B200, 15 of a GB300's, 13.5 of a B300.
    #[test]
    fn products_of_four_bits_are_those_of_the_data_sheets() {
        for (name, petaflops) in [("gb200-nvl72", 10.0), ("hgx-b200", 9.0), ("gb300-nvl72", 15.0), ("hgx-b300", 13.5)] {
            let found = of(name, Precision::Nvfp4).unwrap().flops_per_s / 1e15;
            assert!((found / petaflops - 1.0).abs() < 0.02, "{name}: {found}");
        }
        assert!(
            of("hgx-h200", Precision::Nvfp4).unwrap_err().to_string().contains("no units for 4-bit floating point")
        );
    }

    /// AMD's gfx numbers are larger than NVIDIA's compute capabilities, and no such thing.
    #[test]
    fn four_bits_are_refused_with_the_gpu_and_what_it_has() {
        for (name, gpu, expected) in [
            ("hgx-h100", "gpu0 (H100", "\"fp8\""),
            ("mi300x", "gpu0 (", "\"fp8\""),
            ("dgx-a100", "gpu0 (A100", "\"bf16\""),
        ] {
            let error = of(name, Precision::Nvfp4).unwrap_err().to_string();
            assert!(error.contains(gpu) && error.contains("NVFP4") && error.contains(expected), "{error}");
        }
        assert!(of("mi300x", Precision::Fp8).is_ok() && of("hgx-b200", Precision::Nvfp4).is_ok());
    }

    /// On Ampere the second is the newest; the first is half of the second everywhere.
    #[test]
    fn older_attention_is_slower() {
        let kernels = [FlashKernel::Newest, FlashKernel::Second, FlashKernel::First];
        for (name, parts) in [("dgx-a100", [1.0, 1.0, 0.5]), ("hgx-h100", [1.0, 0.65, 0.325])] {
            assert_eq!(kernels.map(|kernel| of(name, Precision::Bf16).unwrap().of_newest(kernel)), parts, "{name}");
        }
    }

    /// As measured, on Hopper alone, and of 8 bits alone.
    #[test]
    fn exact_sums_of_eight_bits_cost_hopper() {
        let lines = include_str!("../../data/h200-steps/shares-h100.jsonl").lines();
        let lines: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
        let rates = |sums: &str| -> Vec<f64> {
            let of = lines.iter().filter(|line| line["bits"] == 8 && line["sums"] == sums);
            of.map(|line| line["tflops"][1].as_f64().unwrap()).collect()
        };
        let parts: Vec<f64> = rates("exact").iter().zip(rates("short")).map(|(exact, short)| exact / short).collect();
        assert_eq!(parts.len(), 5);
        assert!((parts.iter().sum::<f64>() / 5.0 - exact(Precision::Fp8, 90)).abs() < 0.005, "{parts:?}");
        for (name, precision, part) in
            [("hgx-h100", Precision::Fp8, 0.93), ("hgx-h100", Precision::Bf16, 1.0), ("hgx-b200", Precision::Fp8, 1.0)]
        {
            let speeds = of(name, precision).unwrap();
            assert!((speeds.exact_flops_per_s / speeds.flops_per_s - part).abs() < 1e-9, "{name}");
        }
    }
}
