//! Work of kernels: operations, memory traffic and kind, by pass.

use fabricast_topologies::Bytes;

use super::elementwise::PassBytes;
use fabricast_workload::job::{FlashKernel, Flops, Precision, Training, WeightMatrix};

/// Type of kernel, which determines its efficiency ([`Efficiency`](super::Efficiency)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelKind {
    /// Elementwise and normalization kernels, optimizer updates and copies, which are bound by memory bandwidth.
    #[default]
    Stream,
    /// GEMM in the job's precision.
    Gemm,
    /// 8-bit GEMM with exact accumulation, used in the backward pass (Transformer Engine, `use_split_accumulator` of
    /// its recipes).
    GemmExactSums,
    /// GEMM in 16 bits, also if other GEMMs use 8 bits: logits, router, and attention in several kernels (as in
    /// Transformer Engine and vLLM).
    Gemm16Bit,
    /// Fused attention: one kernel for scores, softmax and values.
    Attention {
        /// Mean number of keys per query row.
        keys: u64,
        /// Implementation of the fused kernel.
        implementation: FlashKernel,
    },
    /// Grouped GEMM of all experts of a rank, each with separate rows.
    GroupedGemm {
        /// Size in bytes of the inner dimension, over which an output element is summed.
        inner: u64,
    },
}

/// Number of rows of a tile of a grouped GEMM. The last tile of an expert is computed as a whole, and is half full on
/// average (`torch._grouped_mm` has the same time for 192 and for 256 rows per expert,
/// `planner/data/h200-steps/products.jsonl`).
const TILE: f64 = 128.0;

/// Returns the mean number of rows computed for an expert with `rows` rows, which are padded to whole tiles.
pub(crate) fn padded_rows(rows: f64) -> f64 {
    (rows + TILE / 2.0).max(TILE)
}

/// Work of one kernel: type, operations and memory traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Type of the kernel.
    pub kind: KernelKind,
    /// Number of operations of the matrix units. The time of other operations is hidden behind memory traffic.
    pub flops: Flops,
    /// Number of bytes read from and written to memory.
    pub bytes: Bytes,
}

impl Kernel {
    /// Returns true for grouped GEMMs of routed experts.
    pub(crate) fn is_of_experts(&self) -> bool {
        matches!(self.kind, KernelKind::GroupedGemm { .. })
    }

    /// Creates a memory-bound kernel that moves `bytes` bytes.
    pub(crate) fn stream(bytes: u64) -> Self {
        Self { bytes: Bytes(bytes), ..Self::default() }
    }
}

/// Shape of the GEMM of an m × k matrix and a k × n matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct GemmShape {
    pub m: u64,
    pub n: u64,
    pub k: u64,
}

impl GemmShape {
    /// Returns the shape of the product of `rows` rows with a weight matrix.
    pub fn with_weights(rows: u64, matrix: WeightMatrix) -> Self {
        Self { m: rows, n: matrix.columns, k: matrix.inner }
    }
}

/// Kernels of a part of the model in the forward and in the backward pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassKernels {
    /// Kernels of the forward pass, in order.
    pub forward: Vec<Kernel>,
    /// Kernels of the backward pass, in order, recomputation included.
    pub backward: Vec<Kernel>,
}

impl PassKernels {
    /// Adds `times` GEMMs with `element` bytes per element. The backward pass has two GEMMs for each, one per operand.
    pub(super) fn add_gemm(&mut self, kind: KernelKind, shape: GemmShape, element: u64, times: u64) {
        let GemmShape { m, n, k } = shape;
        let flops = Flops(2 * u128::from(m) * u128::from(n) * u128::from(k) * u128::from(times));
        let bytes = Bytes(element * times * (m * k + k * n + m * n));
        let kernel = Kernel { kind, flops, bytes };
        self.forward.push(kernel);
        self.backward.extend([kernel, kernel]);
    }

    /// Adds GEMMs whose k × n matrix contains weights of the job. The gradient of the weights is accumulated in a
    /// buffer of the gradient width, which is read and written. In all other respects this is [`Self::add_gemm`].
    pub(super) fn add_weight_gemm(&mut self, job: &Training, kind: KernelKind, shape: GemmShape, times: u64) {
        if job.lora.is_some() {
            return self.add_frozen_gemm(job, kind, shape, times);
        }
        let GemmShape { m, n, k } = shape;
        let (element, gradient) = (job.precision.bytes(), job.gradient_bytes());
        // For 8-bit GEMMs, a cast reads 16-bit operands and writes them in 8 bits, both as they are and transposed:
        // operands of the forward pass once for both passes, gradients for both GEMMs of the backward pass
        // (TransformerEngine, transformer_engine/common/transpose/cast_transpose.cu).
        let is_fp8 = (job.precision, kind) == (Precision::Fp8, KernelKind::Gemm);
        if is_fp8 {
            self.add_stream(PassBytes { forward: 4 * times * m * k, backward: 4 * times * m * n });
        }
        self.add_gemm(kind, shape, element, times);
        if let [.., input_gemm, weight_gemm] = self.backward.as_mut_slice() {
            weight_gemm.bytes = Bytes(weight_gemm.bytes.0 + (2 * gradient - element) * n * k * times);
            if is_fp8 {
                (input_gemm.kind, weight_gemm.kind) = (KernelKind::GemmExactSums, KernelKind::GemmExactSums);
            }
        }
    }

    /// Adds GEMMs with frozen weights, for which the backward pass computes only the gradient of the input. Operands of
    /// 8-bit GEMMs are cast without a transposed copy, which only weight gradients need.
    fn add_frozen_gemm(&mut self, job: &Training, kind: KernelKind, shape: GemmShape, times: u64) {
        let GemmShape { m, n, k } = shape;
        let is_fp8 = (job.precision, kind) == (Precision::Fp8, KernelKind::Gemm);
        if is_fp8 {
            self.add_stream(PassBytes { forward: 3 * times * m * k, backward: 3 * times * m * n });
        }
        self.add_gemm(kind, shape, job.precision.bytes(), times);
        self.backward.pop();
        if let Some(input_gemm) = self.backward.last_mut().filter(|_| is_fp8) {
            input_gemm.kind = KernelKind::GemmExactSums;
        }
    }

    /// Adds the grouped GEMM of `experts` experts with weights of the job. `shape`: shape of the GEMM of each expert.
    pub(super) fn add_experts(&mut self, job: &Training, shape: GemmShape, experts: u64) {
        let GemmShape { m: rows, n, k } = shape;
        let element = job.precision.bytes();
        self.add_weight_gemm(job, KernelKind::Gemm, shape, experts);
        let computed = padded_rows(rows as f64) / rows.max(1) as f64;
        let group_gemms = |kernel: &mut Kernel, inner: u64, computed: f64| {
            kernel.kind = KernelKind::GroupedGemm { inner: element * inner };
            kernel.flops = Flops((kernel.flops.0 as f64 * computed).round() as u128);
        };
        if let Some(forward) = self.forward.last_mut() {
            group_gemms(forward, k, computed);
        }
        if job.lora.is_some() {
            if let Some(row_gemm) = self.backward.last_mut() {
                group_gemms(row_gemm, n, computed);
            }
            return;
        }
        // The weight gradient is summed over the rows of an expert.
        if let [.., row_gemm, weight_gemm] = self.backward.as_mut_slice() {
            group_gemms(row_gemm, n, computed);
            group_gemms(weight_gemm, rows, 1.0);
        }
    }

    pub(super) fn add_stream(&mut self, bytes: PassBytes) {
        let PassBytes { forward, backward } = bytes;
        self.forward.extend((forward > 0).then(|| Kernel::stream(forward)));
        self.backward.extend((backward > 0).then(|| Kernel::stream(backward)));
    }
}
