//! Kernel times from one efficiency curve per GPU model, for all kernels and jobs.
//!
//! ```text
//! GEMMs      start + max(operations / (matrix × peak), bytes / (memory × bandwidth))
//! experts    2 × start + max(operations × (1 + 500 bytes / row) / (matrix × peak), bytes / (0.85 × memory × bandwidth))
//! attention  start + max(operations × (1 + 300 / keys) / (attention × 16-bit peak), bytes / (memory × bandwidth))
//! others     start + bytes / (stream × bandwidth)
//! ```
//!
//! The efficiency is operations divided by this time and by the peak. It rises with the kernel's work and arithmetic
//! intensity and saturates, as in the roofline model (Williams et al., 2009). For small kernels, the time for launch,
//! fill and drain dominates. Attention is one kernel for scores, softmax and values (Dao, arXiv 2307.08691); it is
//! slower with fewer keys per query row ([`ROW_OVERHEAD_KEYS`]). In grouped GEMMs of experts, the start and the end of
//! each tile add a time that is relatively longer for a short inner dimension ([`TILE_OVERHEAD_BYTES`]). Elementwise
//! and normalization kernels reach a smaller fraction of the bandwidth than memory-bound GEMMs, since the units for
//! exponentials are slow compared with the matrix units.
//!
//! **A100 and before**: `matrix` is set by hand to fit the four step times of `planner/data/scaling.csv` (arXiv
//! 2205.05198, table 5). Twenty other published runs on A100, with 1.7 to 1,008 billion parameters, are held out
//! (`planner/data/published.csv`, the test in `tests/published.rs`). `memory`, `stream` and `start` are estimates,
//! which these steps hardly determine: stream benchmarks relative to data-sheet bandwidths, and a few microseconds to
//! launch and drain a kernel. None of the runs has fused attention: `attention` is the best backward efficiency of
//! FlashAttention-2, 63 % (arXiv 2307.08691, section 4.1; forward 73 %).
//!
//! **Hopper**: fitted by `fabricast calibrate planner/data/h200-steps/steps.toml` to 48 steps of prefill, decode and
//! training, measured with PyTorch on one and two H200. The throughput of elementwise kernels is proportional to the
//! number of SMs: H100 reaches the same throughput with two thirds of the memory bandwidth ([`StreamModel`]). Ten steps
//! on H100 (`h100.toml`) and five shares of larger models' layers (`shares-h100.toml`) are held out. GPUs of one model
//! reach different clock rates at their power limit, and the slowest GPU determines the speed of a job
//! ([`Efficiency::for_slowest_gpu`]).
//!
//! **Blackwell**: `matrix` and `attention` are fitted to 8-bit training results that NVIDIA published for dense models
//! on B200 and GB200 (`fabricast calibrate planner/data/megatron-bridge/blackwell.toml`, 33 steps) and on GB300
//! (`gb300.toml`, 8 steps). These steps do not determine the other three parameters, which are those of Hopper, fitted
//! without a setting for kernel fusion. Boards of 1,000 and 1,200 W reach half of their peak, boards of 1,400 W two
//! thirds.

use fabricast_topologies::fabric::{Figures, GpuFigures};
use fabricast_topologies::gpus::{find_model, model};
use fabricast_topologies::{Bandwidth, Bytes, Fabric, Picos};

use super::gpu_efficiency::{GemmEvidence, GemmShare};
use super::kernel::{Kernel, KernelKind};
use super::peak_rates::PeakRates;

/// Parameters of the efficiency curve of a GPU generation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiency {
    /// Fraction of the peak that large GEMMs reach, 0 to 1.
    pub matrix: f64,
    /// Fraction of the 16-bit peak that attention reaches with many keys per row, 0 to 1.
    pub attention: f64,
    /// Fraction of the memory bandwidth that memory-bound GEMMs and attention reach, 0 to 1.
    pub memory: f64,
    /// Fraction of the memory bandwidth that elementwise and normalization kernels reach, 0 to 1.
    pub stream: f64,
    /// Fixed time per kernel, for launch, fill and drain.
    pub start: Picos,
    /// Variation of the speed of GPUs of one model at their power limit: standard deviation divided by mean. 0 if the
    /// curve was fitted to steps of many GPUs, which include the effect. The value 0.0073 is that of six H100 of three
    /// hosts, which reached 681 to 697 Tflop/s in a GEMM sustained for half a minute
    /// (`planner/data/h200-steps/spread.jsonl`).
    pub spread: f64,
}

impl Default for Efficiency {
    fn default() -> Self {
        AMPERE
    }
}

/// Fixed cost of a query row in attention, in keys: blocks that are computed although half of them is masked, and the
/// start and end of a row. The formula 0.535 / (1 + 300 / keys) is within 0.03 of the efficiency of cuDNN's attention
/// on H200 (both passes, heads of 128) for 256 to 16,384 keys per row (`planner/data/h200-steps/fsdp.jsonl`, `kinds`;
/// `sustained.jsonl`).
const ROW_OVERHEAD_KEYS: f64 = 300.0;

/// Cost of the start and the end of an output tile in a grouped GEMM of experts, in bytes of the inner dimension.
/// Fitted to `torch._grouped_mm` and `torch._scaled_grouped_mm` on H200 (16 and 8 bits, six shapes of Qwen3 and
/// DeepSeek-V3, 4 to 1,024 rows per expert; `planner/data/h200-steps/products.jsonl`). With [`EXPERTS_MEMORY`], the
/// efficiencies of single GEMMs from that file and tiles that are computed as a whole, the error is 4 % in the median
/// and 10 % at the 90th percentile.
const TILE_OVERHEAD_BYTES: f64 = 500.0;

/// Memory efficiency of a grouped GEMM relative to a single GEMM; fitted together with [`TILE_OVERHEAD_BYTES`].
const EXPERTS_MEMORY: f64 = 0.85;

const AMPERE: Efficiency =
    Efficiency { matrix: 0.715, attention: 0.63, memory: 0.80, stream: 0.80, start: Picos(5_000_000), spread: 0.0 };

const HOPPER: Efficiency = Efficiency {
    matrix: 0.7161,
    attention: 0.5242,
    memory: 0.8943,
    stream: 0.4970,
    start: Picos(5_189_100),
    spread: 0.0073,
};

const BLACKWELL: Efficiency = Efficiency {
    matrix: 0.5014,
    attention: 0.5627,
    memory: 0.8925,
    stream: 0.5009,
    start: Picos(5_160_000),
    spread: 0.0,
};

/// Model of the throughput of elementwise and normalization kernels.
#[derive(Clone, Copy, Debug)]
enum StreamModel {
    /// Fraction of the memory bandwidth, given by `stream` of the curve.
    MemoryFraction,
    /// Number of bytes per second per SM, limited to the memory efficiency of memory-bound GEMMs.
    PerSm(f64),
}

/// Throughput per SM of an H200: `stream` × 4.8 TB/s ÷ 132 SMs. H100 (3.35 TB/s) has about the same throughput per SM:
/// a curve fitted to its own steps is 2 % higher (`planner/data/h200-steps/h100.toml`).
const HOPPER_STREAMS: StreamModel = StreamModel::PerSm(HOPPER.stream * 4.8e12 / 132.0);

/// Efficiency curve of a range of compute capabilities.
struct Generation {
    /// First compute capability of the range, as major × 10 + minor; for AMD, the gfx number.
    first: u32,
    /// Curve of the models on which steps were measured; without steps, the curve of a hypothetical model whose GEMMs
    /// reach their peak.
    curve: Efficiency,
    streams: StreamModel,
    /// Models on which the steps were measured that determine the curve. The first one represents their share of the
    /// peak in GEMMs.
    models: &'static [&'static str],
}

/// Curve for generations without measured steps, for a hypothetical model whose GEMMs reach their peak. `matrix`
/// relative to the GEMM benchmark is that of H100 (0.7161 / 0.799), and `attention` that of A100 (0.63 / 0.848).
const WITHOUT_STEPS: Efficiency = Efficiency { matrix: 0.896, attention: 0.743, ..HOPPER };

/// Generations in ascending order of compute capability.
const GENERATIONS: [Generation; 7] = [
    Generation {
        first: 0,
        curve: AMPERE,
        streams: StreamModel::MemoryFraction,
        models: &["A100 SXM 80GB", "A100 SXM 40GB", "A800 SXM 80GB", "A800 SXM 40GB"],
    },
    Generation { first: 89, curve: WITHOUT_STEPS, streams: HOPPER_STREAMS, models: &[] },
    Generation {
        first: 90,
        curve: HOPPER,
        streams: HOPPER_STREAMS,
        models: &["H100 SXM", "H100 SXM 94GB", "H100 SXM 96GB", "H200 SXM", "H800 SXM", "GH200 96GB", "GH200 144GB"],
    },
    Generation { first: 100, curve: BLACKWELL, streams: StreamModel::MemoryFraction, models: &["B200 SXM", "GB200"] },
    Generation {
        first: 103,
        curve: Efficiency { matrix: 0.6442, attention: 0.5952, ..BLACKWELL },
        streams: StreamModel::MemoryFraction,
        models: &["B300 SXM", "GB300"],
    },
    Generation { first: 110, curve: WITHOUT_STEPS, streams: HOPPER_STREAMS, models: &[] },
    Generation {
        first: 900,
        curve: Efficiency { memory: 0.79, ..WITHOUT_STEPS },
        streams: HOPPER_STREAMS,
        models: &[],
    },
];

impl Generation {
    /// Returns the share of the peak in GEMMs for which `matrix` and `attention` of the curve hold.
    fn reference_share(&self) -> f64 {
        let reference = self.models.first().and_then(|name| GemmShare::from_model(model(name)?));
        reference.map_or(1.0, |reference| reference.share)
    }
}

/// Efficiency curve of a GPU, and the basis of its GEMM throughput.
struct GpuCurve {
    curve: Efficiency,
    evidence: GemmEvidence,
}

impl GpuCurve {
    fn new(figures: &GpuFigures) -> Self {
        let capability = figures.compute_capability.unwrap_or(0);
        let Some(generation) = GENERATIONS.iter().rfind(|generation| generation.first <= capability) else {
            return Self { curve: Efficiency::default(), evidence: GemmEvidence::Assumed };
        };
        let (scale, evidence) = match find_model(figures) {
            Some(model) if generation.models.contains(&model.name.as_str()) => (1.0, GemmEvidence::Steps),
            None if !generation.models.is_empty() => (1.0, GemmEvidence::Assumed),
            model => {
                let GemmShare { share, evidence } = GemmShare::new(model);
                (share / generation.reference_share(), evidence)
            }
        };
        let Efficiency { matrix, attention, .. } = generation.curve;
        let stream = match (generation.streams, figures.sm_count, figures.memory_bandwidth) {
            (StreamModel::PerSm(each), Some(sms), Some(memory)) => {
                (f64::from(sms) * each / memory.0.max(1) as f64).min(generation.curve.memory)
            }
            _ => generation.curve.stream,
        };
        let curve = Efficiency { matrix: matrix * scale, attention: attention * scale, stream, ..generation.curve };
        Self { curve, evidence }
    }
}

/// Returns the curves of the different GPUs of a fabric, each with its GEMM rate in TFLOP/s.
fn gpu_curves(fabric: &Fabric) -> Vec<(GpuCurve, f64)> {
    let mut kinds: Vec<&GpuFigures> = Vec::new();
    let unknown = GpuFigures::default();
    let mut has_unknown = false;
    for &gpu in fabric.gpus() {
        match &fabric.node(gpu).figures {
            Figures::Gpu(figures) if !kinds.contains(&figures.as_ref()) => kinds.push(figures),
            Figures::Gpu(_) => {}
            _ => has_unknown = true,
        }
    }
    let mut kinds: Vec<_> = kinds.into_iter().chain(has_unknown.then_some(&unknown)).collect();
    // Of models with equal rates, the oldest one is selected, then the one with the slowest memory.
    kinds.sort_by_key(|figures| (figures.compute_capability.unwrap_or(0), figures.memory_bandwidth));
    let with_rate = |figures: &GpuFigures| {
        let gpu = GpuCurve::new(figures);
        let rate = gpu.curve.matrix * figures.bf16_tflops.unwrap_or(0.0);
        (gpu, rate)
    };
    kinds.into_iter().map(with_rate).collect()
}

impl Efficiency {
    /// Returns the curve of a fabric's GPUs. If the GPUs are of several models, it is the curve of the model with the
    /// lowest GEMM rate, or of the oldest one if the rates are not known.
    #[must_use]
    pub fn new(fabric: &Fabric) -> Self {
        let slowest = gpu_curves(fabric).into_iter().min_by(|(_, a), (_, b)| a.total_cmp(b));
        slowest.map_or_else(Self::default, |(gpu, _)| gpu.curve)
    }

    /// Returns the least certain basis of the GEMM throughput of a fabric's GPUs.
    #[must_use]
    pub fn evidence(fabric: &Fabric) -> GemmEvidence {
        gpu_curves(fabric).into_iter().map(|(gpu, _)| gpu.evidence).max().unwrap_or(GemmEvidence::Assumed)
    }

    /// Returns the curve of the slowest of `gpus` GPUs, which determines the time of a step. The speed of GEMMs,
    /// attention and elementwise kernels depends on the clock rate under the power limit; that of memory does not.
    #[must_use]
    pub fn for_slowest_gpu(&self, gpus: u64) -> Self {
        let slowdown = 1.0 + self.spread * expected_maximum(gpus);
        let [matrix, attention, stream] = [self.matrix, self.attention, self.stream].map(|part| part / slowdown);
        Self { matrix, attention, stream, ..*self }
    }

    /// Returns the duration of a kernel on GPUs with these peak rates.
    #[must_use]
    pub fn time(&self, kernel: &Kernel, speeds: &PeakRates) -> Picos {
        let (operations, bytes) = self.seconds(kernel, speeds);
        // A separate kernel computes the row offsets of the experts.
        let launches = if matches!(kernel.kind, KernelKind::GroupedGemm { .. }) { 2 } else { 1 };
        Picos((operations.max(bytes) * 1e12).round() as u64 + launches * self.start.0)
    }

    /// Returns the time for a kernel's operations and the time for its bytes, in seconds, without launch. The longer
    /// one determines its duration.
    fn seconds(&self, kernel: &Kernel, speeds: &PeakRates) -> (f64, f64) {
        let (flops, bytes) = (kernel.flops.0 as f64, kernel.bytes.0 as f64 / speeds.memory.0 as f64);
        match kernel.kind {
            KernelKind::Stream => (0.0, bytes / self.stream),
            KernelKind::Gemm => (flops / (speeds.flops_per_s * self.matrix), bytes / self.memory),
            KernelKind::GemmExactSums => (flops / (speeds.exact_flops_per_s * self.matrix), bytes / self.memory),
            KernelKind::Gemm16Bit => (flops / (speeds.wide_flops_per_s * self.matrix), bytes / self.memory),
            KernelKind::GroupedGemm { inner } => {
                let overhead = 1.0 + TILE_OVERHEAD_BYTES / inner.max(1) as f64;
                (flops * overhead / (speeds.flops_per_s * self.matrix), bytes / (self.memory * EXPERTS_MEMORY))
            }
            KernelKind::Attention { keys, implementation: by } => {
                let overhead = 1.0 + ROW_OVERHEAD_KEYS / keys.max(1) as f64;
                let efficiency = self.attention * speeds.attention_rate(by);
                (flops * overhead / (speeds.wide_flops_per_s * efficiency), bytes / self.memory)
            }
        }
    }

    /// Returns the time to transfer bytes from or to another memory whose links have bandwidth `rate`. Assumes that
    /// links reach the fraction of their rate that memory-bound kernels reach of the memory bandwidth.
    pub(crate) fn transfer_time(&self, bytes: Bytes, rate: Bandwidth) -> Picos {
        Picos((bytes.0 as f64 / (rate.0 as f64 * self.memory) * 1e12).round() as u64) + self.start
    }

    /// Returns true if a kernel is compute-bound rather than memory-bound.
    pub(super) fn is_compute_bound(&self, kernel: &Kernel, speeds: &PeakRates) -> bool {
        let (operations, bytes) = self.seconds(kernel, speeds);
        operations >= bytes
    }

    /// Returns the total duration of kernels that run one after the other.
    #[must_use]
    pub fn total(&self, kernels: &[Kernel], speeds: &PeakRates) -> Picos {
        kernels.iter().filter(|kernel| **kernel != Kernel::default()).map(|kernel| self.time(kernel, speeds)).sum()
    }
}

/// Returns the expected maximum of `n` independent standard normal variables, in standard deviations.
fn expected_maximum(n: u64) -> f64 {
    // Values for n = 1, 2, 4, …: the integral of 1 − Φⁿ over positive values minus that of Φⁿ over negative values.
    const EXPECTED_MAXIMA: [f64; 18] = [
        0.0, 0.564, 1.029, 1.423, 1.766, 2.069, 2.343, 2.594, 2.827, 3.044, 3.248, 3.441, 3.626, 3.802, 3.971, 4.134,
        4.291, 4.443,
    ];
    let power = (n.max(1) as f64).log2().min(EXPECTED_MAXIMA.len() as f64 - 1.0);
    let at = |index: usize| EXPECTED_MAXIMA.get(index).or(EXPECTED_MAXIMA.last()).copied().unwrap_or_default();
    let below = power.floor();
    at(below as usize) + (power - below) * (at(below as usize + 1) - at(below as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::BlockScheduling;
    use fabricast_workload::job::{FlashKernel, Flops};

    #[test]
    fn efficiency_rises_with_work_and_intensity_and_saturates() {
        let (curve, speeds) = (
            Efficiency::default(),
            PeakRates {
                flops_per_s: 312e12,
                wide_flops_per_s: 312e12,
                exact_flops_per_s: 312e12,
                flash_attention_2: 1.0,
                memory: Bandwidth(2_039_000_000_000),
                sms: Some(108),
                block_scheduling: BlockScheduling::Dynamic,
                offload_bandwidth: None,
                host_memory_bandwidth: None,
                weights_bandwidth: None,
                adapter_bandwidth: None,
                drives: None,
            },
        );
        let efficiency = |flops: u128, bytes: u64| {
            let kind = KernelKind::Gemm;
            let time = curve.time(&Kernel { kind, flops: Flops(flops), bytes: Bytes(bytes) }, &speeds);
            flops as f64 / (time.0 as f64 / 1e12) / speeds.flops_per_s
        };
        let mut previous = 0.0;
        for power in 6..15 {
            let current = efficiency(10u128.pow(power), 10u64.pow(power) / 1000);
            assert!(current > previous && current <= curve.matrix, "{current}");
            previous = current;
        }
        assert!(efficiency(1 << 40, 1 << 20) > 0.99 * curve.matrix);
        // At ten operations per byte the kernel is memory-bound.
        assert!((efficiency(10_u128.pow(13), 10_u64.pow(12)) / (10.0 * 0.8 * 2.039e12 / 312e12) - 1.0).abs() < 0.01);
    }

    /// Each type of kernel reaches its own fraction of its own peak: 8-bit, 16-bit and memory bandwidth.
    #[test]
    fn kinds_reach_their_own_fraction_of_peak() {
        let curve = Efficiency { matrix: 0.5, attention: 0.25, memory: 0.8, stream: 0.4, start: Picos(0), spread: 0.0 };
        let speeds = PeakRates {
            flops_per_s: 2e15,
            wide_flops_per_s: 1e15,
            exact_flops_per_s: 1.6e15,
            flash_attention_2: 1.0,
            memory: Bandwidth(1_000_000_000_000),
            sms: None,
            block_scheduling: BlockScheduling::Dynamic,
            offload_bandwidth: None,
            host_memory_bandwidth: None,
            weights_bandwidth: None,
            adapter_bandwidth: None,
            drives: None,
        };
        let ms = |kind, flops: u128, bytes| {
            let kernel = Kernel { kind, flops: Flops(flops), bytes: Bytes(bytes) };
            curve.time(&kernel, &speeds).0 as f64 / 1e9
        };
        let work = 10u128.pow(12);
        let times = [KernelKind::Gemm, KernelKind::GemmExactSums, KernelKind::Gemm16Bit].map(|kind| ms(kind, work, 0));
        assert_eq!(times, [1.0, 1.25, 2.0]);
        // If the number of keys equals the fixed cost of a row, the efficiency is halved.
        assert_eq!(ms(KernelKind::Attention { keys: 300, implementation: FlashKernel::Newest }, work, 0), 8.0);
        assert!(ms(KernelKind::Attention { keys: 1 << 30, implementation: FlashKernel::Newest }, work, 0) < 4.01);
        assert_eq!(ms(KernelKind::Attention { keys: 300, implementation: FlashKernel::First }, work, 0), 16.0);
        let bytes = 10u64.pow(9);
        assert_eq!([ms(KernelKind::Stream, 0, bytes), ms(KernelKind::Gemm, 0, bytes)], [2.5, 1.25]);
        // For experts, the tile cost here equals the inner dimension, the memory efficiency is lower, and there are two
        // launches.
        let experts = KernelKind::GroupedGemm { inner: 500 };
        assert_eq!([ms(experts, work, 0), ms(experts, 0, 85 * bytes / 100)], [2.0, 1.25]);
        let slow_launch = Efficiency { start: Picos(1_000_000_000), ..curve };
        let launches = |kind| slow_launch.time(&Kernel { kind, ..Kernel::default() }, &speeds).0 / 1_000_000_000;
        assert_eq!([launches(KernelKind::Gemm), launches(experts)], [1, 2]);
    }

    /// The throughput of elementwise kernels is proportional to the number of SMs on Hopper, up to the memory limit,
    /// and to the memory bandwidth on other GPUs.
    #[test]
    fn hopper_elementwise_throughput_scales_with_sms() {
        let curve = |preset: &str| Efficiency::new(&fabricast_topologies::preset::load(preset).unwrap());
        let (h200, h100) = (curve("hgx-h200"), curve("hgx-h100"));
        assert!((h200.stream - HOPPER.stream).abs() < 1e-9);
        assert!((h100.stream * 3.35 / (h200.stream * 4.8) - 1.0).abs() < 1e-9, "{h100:?}");
        assert_eq!(Efficiency { stream: 0.0, ..h100 }, Efficiency { stream: 0.0, ..h200 });
        assert_eq!(curve("dgx-a100").stream, Efficiency::default().stream);
        assert_eq!(curve("hgx-b200").stream, BLACKWELL.stream);
    }

    /// Models without measured steps differ from those with steps by their GEMM benchmark. The gfx numbers of AMD GPUs
    /// select no curve of NVIDIA GPUs.
    #[test]
    fn models_without_steps_follow_their_gemm_benchmark() {
        let curve = |preset: &str| Efficiency::new(&fabricast_topologies::preset::load(preset).unwrap());
        let pcie = curve("h100-pcie");
        assert!((pcie.matrix / HOPPER.matrix - 495.9 / 756.0 / (790.6 / 989.5)).abs() < 1e-9, "{pcie:?}");
        assert!((pcie.attention / HOPPER.attention - pcie.matrix / HOPPER.matrix).abs() < 1e-9);
        let mi300x = curve("mi300x");
        assert!((mi300x.matrix - 0.896 * 668.4 / 1307.4).abs() < 1e-9 && mi300x.memory == 0.79, "{mi300x:?}");
        assert!(mi300x.stream <= mi300x.memory);
        // Ada generation: half the tensor rate at twice the fraction of the peak.
        let (rtx4090, l40s) = (curve("rtx4090-pcie"), curve("l40s-pcie"));
        let ratio = l40s.matrix * 362.0 / (rtx4090.matrix * 165.2);
        assert!((1.4..1.8).contains(&ratio), "{ratio}");
        for (preset, evidence) in [
            ("hgx-h200", GemmEvidence::Steps),
            ("mi300x", GemmEvidence::Measured),
            ("h100-nvl", GemmEvidence::PowerLimit),
            ("gb10", GemmEvidence::Assumed),
        ] {
            assert_eq!(
                Efficiency::evidence(&fabricast_topologies::preset::load(preset).unwrap()),
                evidence,
                "{preset}"
            );
        }
    }

    /// A GPU without a compute capability counts as the oldest GPU, regardless of the other GPUs.
    #[test]
    fn unknown_gpus_use_the_oldest_curve() {
        let gpus = |second: &str| {
            let text = format!(
                "[[node]]\nid = \"a\"\nkind = \"gpu\"\ncompute_capability = 90\n[[node]]\nid = \"b\"\nkind = \"gpu\"\n{second}\n\
                 [[link]]\na = \"a\"\nb = \"b\"\nkind = \"nvlink\"\nbandwidth = \"450 GB/s\"\n"
            );
            Efficiency::new(&fabricast_topologies::read_text(&text, "two.toml").unwrap())
        };
        assert_eq!(gpus("compute_capability = 90"), HOPPER);
        assert_eq!(gpus(""), Efficiency::default());
    }

    /// The factor for the slowest GPU matches a Monte Carlo estimate. Memory efficiency does not depend on the clock
    /// rate.
    #[test]
    fn slowest_gpu_matches_monte_carlo() {
        let mut seed = 2026u64;
        // The sum of twelve uniform numbers minus six is approximately normal.
        let mut uniform = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut sample_maximum = |gpus: u64| {
            let normal = (0..gpus).map(|_| (0..12).map(|_| uniform()).sum::<f64>() - 6.0);
            normal.fold(f64::NEG_INFINITY, f64::max)
        };
        for gpus in [2, 3, 8, 48, 512] {
            let mean = (0..1_000).map(|_| sample_maximum(gpus)).sum::<f64>() / 1_000.0;
            assert!((expected_maximum(gpus) - mean).abs() < 0.1, "{gpus}: {} and {mean}", expected_maximum(gpus));
        }
        assert_eq!(HOPPER.for_slowest_gpu(1), HOPPER);
        assert_eq!(Efficiency::default().for_slowest_gpu(4096), Efficiency::default());
        let slowest = HOPPER.for_slowest_gpu(2048);
        assert!((HOPPER.matrix / slowest.matrix - 1.0 - 0.0073 * 3.441).abs() < 1e-9);
        assert_eq!((slowest.memory, slowest.start), (HOPPER.memory, HOPPER.start));
        assert!(expected_maximum(u64::MAX) >= expected_maximum(1 << 17) && expected_maximum(0) == 0.0);
    }

    /// The `spread` of Hopper's curve matches six measured H100.
    #[test]
    fn spread_matches_six_h100() {
        let lines = include_str!("../../../data/h200-steps/spread.jsonl").lines();
        let rates: Vec<f64> = lines
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .filter(|line| line["gpu"].as_str().unwrap().contains("H100"))
            .map(|line| line["tflops"][1].as_f64().unwrap())
            .collect();
        assert_eq!(rates.len(), 6);
        let mean = rates.iter().sum::<f64>() / 6.0;
        let spread = (rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / 5.0).sqrt() / mean;
        assert!((spread - HOPPER.spread).abs() < 5e-5, "{spread}");
    }

    /// Times of grouped GEMMs measured on an H200 are predicted from the single-GEMM efficiencies of the same file.
    #[test]
    fn grouped_gemm_times_match_measurement() {
        let lines = include_str!("../../../data/h200-steps/products.jsonl").lines().skip(1);
        let speeds = |bits: u64| PeakRates {
            flops_per_s: 989e12 * 16.0 / bits as f64,
            wide_flops_per_s: 989e12,
            exact_flops_per_s: 989e12 * 16.0 / bits as f64,
            flash_attention_2: 1.0,
            memory: Bandwidth(4_800_000_000_000),
            sms: Some(132),
            block_scheduling: BlockScheduling::Persistent,
            offload_bandwidth: None,
            host_memory_bandwidth: None,
            weights_bandwidth: None,
            adapter_bandwidth: None,
            drives: None,
        };
        let mut errors = Vec::new();
        for line in lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()) {
            let bits = line["bits"].as_u64().unwrap();
            let [rows, experts, columns, inner] = [0, 1, 2, 3].map(|at| line["of"][at].as_u64().unwrap_or(0));
            // Outlier of the library: with 8 bits, 192 and 256 rows for 32 experts take twice as long as 512 rows.
            if line["what"] != "experts" || (bits == 8 && [192, 256].contains(&rows)) {
                continue;
            }
            let fitted = if bits == 16 { (0.678, 3.4e6) } else { (0.662, 5.5e6) };
            let curve = Efficiency { matrix: fitted.0, memory: 0.815, start: Picos(fitted.1 as u64), ..HOPPER };
            // Rows are rounded up to whole tiles.
            let computed = u128::from(rows.next_multiple_of(128) * experts * columns * inner);
            let bytes = bits / 8 * experts * inner * (columns + rows) + 2 * experts * rows * columns;
            let kind = KernelKind::GroupedGemm { inner: bits / 8 * inner };
            let predicted =
                curve.time(&Kernel { kind, flops: Flops(2 * computed), bytes: Bytes(bytes) }, &speeds(bits));
            errors.push((predicted.0 as f64 / 1e6 / line["us"].as_f64().unwrap() - 1.0).abs());
        }
        assert_eq!(errors.len(), 108);
        errors.sort_by(f64::total_cmp);
        assert!(errors[54] < 0.05 && errors[97] < 0.12, "{errors:?}");
    }
}
