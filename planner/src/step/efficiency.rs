//! How long a kernel takes: one curve for all kernels and jobs of a generation of GPUs.
//!
//! ```text
//! time(work, bytes) = start + max(work / (matrix × peak), bytes / (memory × bandwidth))
//! ```
//!
//! Operations over that time and the peak are the efficiency, a function of a kernel's work and of its operations per byte:
//! it rises with both and saturates at `matrix`, as rooflines do (Williams et al., 2009), and small kernels lose what it
//! takes to start, fill and drain them.
//!
//! **A100 and before**: `matrix` is set by hand to what suits the four step times of `planner/data/scaling.csv` together (arXiv
//! 2205.05198, table 5). Twenty other published runs on A100, of 1.7 to 1,008 thousand million parameters, are held against it and set
//! nothing (`planner/data/published.csv`, the test `published`). `memory` and `start` are estimates that these steps hardly tell: what
//! streams reach on data-sheet bandwidths, and some microseconds to start and drain a kernel.
//!
//! **Hopper and later**: fitted by `fabricast calibrate planner/data/h200-steps/steps.toml` to 37 steps of prompts, answers and training,
//! measured with PyTorch on one and two H200. A smaller part of a higher peak: the data sheet's clock is not held under such load.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::{Bandwidth, Fabric, NodeId, Picos};

use super::Kernel;
use super::slowing::Blocks;
use crate::job::{JobError, Places, Precision};

/// The parameters of the curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiency {
    /// What large matrix products reach of the peak, over 0 to 1.
    pub matrix: f64,
    /// What streams reach of the memory's bandwidth, over 0 to 1.
    pub memory: f64,
    /// What each kernel takes besides.
    pub start: Picos,
}

impl Default for Efficiency {
    fn default() -> Self {
        let [(_, oldest), _] = GENERATIONS;
        oldest
    }
}

/// What a GPU does at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Operations of matrix units a second.
    pub flops_per_s: f64,
    /// Of its memory.
    pub memory: Bandwidth,
    /// Streaming multiprocessors; `None` where the fabric does not say: kernels are not slowed by calls beside them then.
    pub sms: Option<u32>,
    /// How the blocks of its products come to them.
    pub blocks: Blocks,
}

/// The curve of GPUs from a compute capability on, major × 10 + minor.
const GENERATIONS: [(u32, Efficiency); 2] = [
    (0, Efficiency { matrix: 0.715, memory: 0.80, start: Picos(5_000_000) }),
    (90, Efficiency { matrix: 0.6316, memory: 0.8585, start: Picos(4_768_000) }),
];

impl Efficiency {
    /// That of a fabric's GPUs: of their generation, or the latest before it of which steps are known; of the oldest GPUs where
    /// there are several, and the default's where they do not say what they are.
    #[must_use]
    pub fn of(fabric: &Fabric) -> Self {
        let capability = |&gpu: &NodeId| match &fabric.node(gpu).figures {
            Figures::Gpu(figures) => figures.compute_capability,
            _ => None,
        };
        let oldest = fabric.gpus().iter().map(|gpu| capability(gpu).unwrap_or(0)).min().unwrap_or(0);
        GENERATIONS.iter().rfind(|(from, _)| *from <= oldest).map_or_else(Self::default, |(_, curve)| *curve)
    }

    /// The time of a kernel.
    #[must_use]
    pub fn time(&self, kernel: &Kernel, speeds: &Speeds) -> Picos {
        let work = kernel.flops.0 as f64 / (speeds.flops_per_s * self.matrix);
        let stream = kernel.bytes.0 as f64 / (speeds.memory.0 as f64 * self.memory);
        Picos((work.max(stream) * 1e12).round() as u64) + self.start
    }

    /// Whether a kernel waits for its operations rather than for its bytes.
    pub(super) fn is_bound_by_units(&self, kernel: &Kernel, speeds: &Speeds) -> bool {
        let work = kernel.flops.0 as f64 / (speeds.flops_per_s * self.matrix);
        work >= kernel.bytes.0 as f64 / (speeds.memory.0 as f64 * self.memory)
    }

    /// The time of kernels one after the other.
    #[must_use]
    pub fn total(&self, kernels: &[Kernel], speeds: &Speeds) -> Picos {
        kernels.iter().filter(|kernel| **kernel != Kernel::default()).map(|kernel| self.time(kernel, speeds)).sum()
    }
}

impl Speeds {
    /// Those of a fabric's slowest GPU at the precision of a job, which stands at these places. Data sheets give 16-bit peaks; units for 8 bits, where there are
    /// any, do twice as much (NVIDIA H100, B200 and L40S and AMD MI300X data sheets), for 32 bits (TF32, xf32) half, before
    /// them (V100) an eighth.
    ///
    /// # Errors
    /// [`JobError`] at the precision: a figure that the fabric does not state, or no units for it.
    pub fn of(fabric: &Fabric, precision: Precision, places: &Places) -> Result<Self, JobError> {
        let mut slowest: Option<Self> = None;
        for &gpu in fabric.gpus() {
            let node = fabric.node(gpu);
            let refuse = |what: &str| {
                let message = format!("{} of fabric `{}` {what}", node.id, fabric.name());
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
                Precision::Fp8 if capability >= 89 => 2.0,
                Precision::Fp8 => return refuse("has no units for 8-bit floating point"),
                Precision::Fp32 if capability >= 80 => 0.5,
                Precision::Fp32 => 0.125,
            };
            let flops_per_s = tflops * 1e12 * factor;
            let own = Self { flops_per_s, memory, sms: figures.sm_count, blocks: Blocks::of(capability) };
            slowest = Some(slowest.map_or(own, |other| Self {
                flops_per_s: own.flops_per_s.min(other.flops_per_s),
                memory: own.memory.min(other.memory),
                sms: own.sms.zip(other.sms).map(|(own, other)| own.min(other)),
                blocks: own.blocks.min(other.blocks),
            }));
        }
        slowest.ok_or_else(|| JobError::at(&places.job, format!("fabric `{}` has no GPU", fabric.name())))
    }
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::Bytes;

    use super::*;
    use crate::job::Flops;

    #[test]
    fn efficiency_rises_with_work_and_intensity_and_saturates() {
        let (curve, speeds) = (
            Efficiency::default(),
            Speeds {
                flops_per_s: 312e12,
                memory: Bandwidth(2_039_000_000_000),
                sms: Some(108),
                blocks: Blocks::AsSmsComeFree,
            },
        );
        let reached = |flops: u128, bytes: u64| {
            let time = curve.time(&Kernel { flops: Flops(flops), bytes: Bytes(bytes) }, &speeds);
            flops as f64 / (time.0 as f64 / 1e12) / speeds.flops_per_s
        };
        let mut before = 0.0;
        for power in 6..15 {
            let now = reached(10u128.pow(power), 10u64.pow(power) / 1000);
            assert!(now > before && now <= curve.matrix, "{now}");
            before = now;
        }
        assert!(reached(1 << 40, 1 << 20) > 0.99 * curve.matrix);
        // At ten operations a byte memory decides.
        assert!((reached(10_u128.pow(13), 10_u64.pow(12)) / (10.0 * 0.8 * 2.039e12 / 312e12) - 1.0).abs() < 0.01);
    }
}
