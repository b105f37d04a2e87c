//! Symmetric kernels, which NCCL runs on buffers registered in symmetric windows, and their estimates in NCCL's cost
//! model.
//!
//! Source: NCCL 2.30.7 `src/sym_kernels.cc`. NCCL uses the estimates only to rank kernels; they are not accurate
//! predictions (they exceed the capacity of links). Kernels over several nodes (GIN) and kernels with TMA are off by
//! default and not modelled.

use fabricast_sim::schedule::{DataType, ReduceOp};
use fabricast_topologies::Picos;

use super::communicator::Communicator;
use super::index::Function;
use super::settings::{Settings, Windows};
use super::time::Request;

/// Kernel of NCCL on buffers in symmetric windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SymmetricKernel {
    /// AllReduce in one phase: all-gather by LL, then local reduction (`AGxLL_R`).
    OneShot,
    /// One-phase AllReduce with multicast stores (`AGxLLMC_R`).
    OneShotMulticast,
    /// AllReduce in two phases: loads with reduction, then stores (`RSxLD_AGxST`).
    TwoShot,
    /// Two-phase AllReduce through the switches (`RSxLDMC_AGxSTMC`).
    TwoShotMulticast,
    /// AllGather or ReduceScatter by LL.
    Ll,
    /// AllGather by multicast LL.
    LlMulticast,
    /// AllGather by stores, ReduceScatter by loads.
    Plain,
    /// AllGather by multicast stores, ReduceScatter by reducing loads through the switches.
    Multicast,
}

/// NCCL's choice among symmetric kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymmetricPick {
    /// Kernel that NCCL chooses.
    pub kernel: SymmetricKernel,
    /// Number of thread blocks.
    pub blocks: u16,
    /// Time estimated by NCCL's cost model, which only ranks kernels.
    pub time: Picos,
}

/// Number of threads per block of a symmetric kernel.
pub const SYMMETRIC_THREADS: u16 = 512;

/// Factor from the model's GB/s to bytes per µs: 2³⁰ ÷ 10⁶.
const RATE: f64 = 1.073_741_824e3;

use SymmetricKernel as K;

impl SymmetricKernel {
    /// Returns NCCL's name of the kernel for a function: `AllReduce_AGxLL_R`.
    #[must_use]
    pub fn name(self, function: Function) -> String {
        let reduces = function == Function::ReduceScatter;
        let kernel = match self {
            K::OneShot => "AGxLL_R",
            K::OneShotMulticast => "AGxLLMC_R",
            K::TwoShot => "RSxLD_AGxST",
            K::TwoShotMulticast => "RSxLDMC_AGxSTMC",
            K::Ll => "LL",
            K::LlMulticast => "LLMC",
            K::Plain if reduces => "LD",
            K::Plain => "ST",
            K::Multicast if reduces => "LDMC",
            K::Multicast => "STMC",
        };
        format!("{function}_{kernel}")
    }

    /// Names of NCCL's symmetric kernels that are not modelled: those with TMA, and those over several nodes.
    pub const UNMODELLED: [&'static str; 7] = [
        "AllReduce_RSxTmaLD_AGxTmaST",
        "AllGather_TmaST",
        "AllGather_TmaSTMC",
        "AllGather_RailRing_LsaSTMC",
        "ReduceScatter_TmaLD",
        "ReduceScatter_RailA2A_LsaLD",
        "ReduceScatter_RailA2A_LsaLDMC",
    ];

    /// Returns the function and the kernel of NCCL's name, which is case-sensitive; `None` if no modelled kernel has it.
    #[must_use]
    pub fn parse(name: &str) -> Option<(Function, Self)> {
        let kernels = Function::ALL
            .into_iter()
            .flat_map(|function| Self::for_function(function).iter().map(move |&kernel| (function, kernel)));
        kernels.into_iter().find(|(function, kernel)| kernel.name(*function) == name)
    }

    fn for_function(function: Function) -> &'static [Self] {
        match function {
            Function::AllReduce => &[K::OneShot, K::OneShotMulticast, K::TwoShot, K::TwoShotMulticast],
            Function::AllGather => &[K::Ll, K::LlMulticast, K::Plain, K::Multicast],
            Function::ReduceScatter => &[K::Ll, K::Plain, K::Multicast],
            Function::Broadcast | Function::Reduce => &[],
        }
    }

    /// Returns true if the kernel uses multicast or reduction in the switches.
    #[must_use]
    pub fn is_multicast(self) -> bool {
        matches!(self, K::OneShotMulticast | K::TwoShotMulticast | K::LlMulticast | K::Multicast)
    }

    fn is_ll(self) -> bool {
        matches!(self, K::OneShot | K::OneShotMulticast | K::Ll | K::LlMulticast)
    }
}

/// Predicts the symmetric kernel with the minimum estimated time; `None` if NCCL uses its other kernels instead.
#[must_use]
pub fn pick_symmetric(communicator: &Communicator, settings: &Settings, request: &Request) -> Option<SymmetricPick> {
    let one_team = communicator.nodes == 1 && communicator.nvlinks > 0 && communicator.ranks > 1;
    if settings.windows == Windows::Off || !one_team || !supports_reduction(request) {
        return None;
    }
    let multicast = communicator.graphs.nvls.is_some() && communicator.ranks > 2;
    let kernels = SymmetricKernel::for_function(request.function).iter().copied();
    let mut best: Option<(f64, SymmetricPick)> = None;
    let is_allowed =
        |kernel: SymmetricKernel| settings.symmetric_kernel.is_none_or(|only| only == (request.function, kernel));
    for kernel in kernels.filter(|&kernel| is_allowed(kernel) && (multicast || !kernel.is_multicast())) {
        let model = SymmetricTimeModel::new(communicator, request, kernel);
        // LL kernels count bytes with 32-bit integers.
        if kernel.is_ll() && model.bus >= f64::from(1u32 << 31) {
            continue;
        }
        let (blocks, us) = model.min_blocks(settings);
        let score = us * (1.0 + 0.025 * f64::from(blocks));
        if best.is_none_or(|(known, _)| score < known) {
            best = Some((score, SymmetricPick { kernel, blocks, time: Picos::from_us(us) }));
        }
    }
    best.map(|(_, pick)| pick)
}

/// Returns true if the kernels support the reduction: sums of floats of at most 32 bits.
fn supports_reduction(request: &Request) -> bool {
    use DataType::{Bf16, F8e4m3, F8e5m2, F16, F32};
    let floats = matches!(request.dtype, F32 | F16 | Bf16 | F8e4m3 | F8e5m2);
    request.function == Function::AllGather || (floats && request.op == ReduceOp::Sum)
}

struct SymmetricTimeModel {
    base: f64,
    /// Bytes that pass a rank's port.
    bus: f64,
    /// Rate of a thread block, in bytes per µs.
    block: f64,
    /// Width of the transition to the peak bandwidth, in bytes per µs; equal to the rate of a block that only copies.
    softness: f64,
    peak: f64,
    max_blocks: u16,
}

impl SymmetricTimeModel {
    fn new(communicator: &Communicator, request: &Request, kernel: SymmetricKernel) -> Self {
        let ranks = f64::from(communicator.ranks);
        let blackwell = communicator.capability.0 >= 100;
        let sums = request.function == Function::AllReduce;
        let gathers = request.function == Function::AllGather;
        // The whole buffer for AllReduce, a rank's part for other functions.
        let bytes = request.bytes.0 as f64 / if sums { 1.0 } else { ranks };
        let team = (if blackwell { 32.0 } else { 16.0 } / ranks).ceil().clamp(1.0, 64.0) as u16;
        let (bus, rate, max_blocks) = match kernel {
            K::OneShot | K::Ll => (9.0 * ranks * bytes, 1.0, 64),
            K::OneShotMulticast | K::LlMulticast => (9.0 * ranks * bytes, 1.1, 64),
            K::TwoShot => (2.0 * bytes * (ranks - 1.0) / ranks, 1.0, 64),
            K::TwoShotMulticast => (bytes / ranks + bytes, ranks, team),
            K::Plain => ((ranks - 1.0) * bytes, 1.0, 64),
            K::Multicast => ((ranks - 1.0) * bytes, 0.55 * ranks, team),
        };
        let ll = kernel.is_ll();
        let base = match (blackwell, ll) {
            (false, true) => 4.5,
            (false, false) => 7.8,
            (true, true) if gathers => 8.5,
            (true, true) => 11.0,
            (true, false) if sums => 19.5,
            (true, false) => 13.0,
        };
        let block = match (blackwell, sums) {
            (true, _) => 55.0,
            (false, true) => 65.0,
            (false, false) => 44.0,
        };
        let peak = match (blackwell, kernel == K::TwoShotMulticast) {
            (false, true) => 480.0,
            (false, false) => 320.0,
            (true, true) => 1000.0,
            (true, false) => 600.0,
        };
        Self { base, bus, block: block * rate * RATE, softness: block * RATE, peak: peak * RATE, max_blocks }
    }

    fn time(&self, blocks: u16) -> f64 {
        let bandwidth = soft_minimum(f64::from(blocks) * self.block, self.peak, self.softness);
        self.base + soft_plus(self.bus / bandwidth - 1.0)
    }

    /// Returns the minimum number of blocks whose time is within 2.5 % of the time with the maximum number of blocks,
    /// and this time in µs.
    fn min_blocks(&self, settings: &Settings) -> (u16, f64) {
        if let Some(blocks) = settings.symmetric_blocks {
            return (blocks, self.time(blocks));
        }
        let min = settings.min_channels.unwrap_or(1).min(self.max_blocks);
        let limit = 1.025 * self.time(self.max_blocks);
        let blocks = (min..=self.max_blocks).find(|&blocks| self.time(blocks) <= limit);
        let blocks = blocks.unwrap_or(self.max_blocks);
        (blocks, self.time(blocks))
    }
}

/// Smooth minimum of `x` and `c` with transition width `s`: c − s ln(1 + (e^(c/s) − 1) e^(−x/s)). Approximately `x` for
/// small `x`, and at most `c`.
fn soft_minimum(x: f64, c: f64, s: f64) -> f64 {
    // ln(1 + (e^a − 1) e^−b), without overflow.
    let (a, b) = (c / s, x / s);
    c - s * ((a - b).exp() - (-b).exp()).ln_1p()
}

/// Softplus function ln(1 + e^x).
fn soft_plus(x: f64) -> f64 {
    if x > 30.0 { x } else { x.exp().ln_1p() }
}
