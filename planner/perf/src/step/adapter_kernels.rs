//! Kernels of low-rank adapters next to frozen linear layers, and of the conversion of quantized weights.
//!
//! Forward, an adapter of rank r computes z = A x and B z for m tokens: GEMMs of m × k × r and m × r × d. Backward, each
//! matrix has a GEMM for its own gradient and one for that of its input (Hu et al., arXiv 2106.09685, section 4.1). The
//! GEMMs are memory-bound. They have 16 bits, also next to 8-bit layers. The kernels that scale and add the results
//! depend on the software ([`ElementwiseTraffic::adapter`](super::elementwise::ElementwiseTraffic::adapter)).
//!
//! Weights in 4 bits are converted to the precision of the job before the GEMM of each pass.

use super::elementwise::PassBytes;
use super::kernel::{GemmShape, KernelKind, PassKernels};
use super::software_traffic::SoftwareTraffic;
use fabricast_workload::job::{AdapterTarget, BaseWeights, Layout, Training, WeightMatrix};

/// Kernels of a job's adapters in one layer of a rank.
pub(super) struct AdapterKernels<'a> {
    job: &'a Training,
    /// Tensor-parallel degree.
    tensor: u32,
}

impl<'a> AdapterKernels<'a> {
    pub(super) fn new(job: &'a Training, layout: &Layout) -> Self {
        Self { job, tensor: layout.degrees.tensor }
    }

    /// Adds the kernels of `targets`, whose frozen GEMMs have `rows` rows: conversion of their weights, and adapters.
    pub(super) fn add(&self, passes: &mut PassKernels, rows: u64, targets: &[AdapterTarget]) {
        let Some(lora) = &self.job.lora else { return };
        let model = &self.job.model;
        let targets = targets.iter().filter(|target| target.exists_in(model));
        for &target in targets {
            let matrix = target.matrix(model, self.tensor);
            self.add_conversion(passes, matrix, 1);
            if lora.adapter.targets.contains(&target) {
                self.add_adapter(passes, rows, matrix, lora.adapter.rank);
            }
        }
    }

    /// Adds the kernels that convert `count` matrices of weights in 4 bits, one each; none for unquantized weights.
    pub(super) fn add_conversion(&self, passes: &mut PassKernels, matrix: WeightMatrix, count: u64) {
        let Some(lora) = self.job.lora.as_ref().filter(|lora| lora.base == BaseWeights::Nf4) else { return };
        let weights = matrix.inner * matrix.columns;
        let converted = lora.base.bytes(weights, self.job.precision) + self.job.precision.bytes() * weights;
        for _ in 0..count {
            passes.add_stream(PassBytes { forward: converted, backward: converted });
        }
    }

    fn add_adapter(&self, passes: &mut PassKernels, rows: u64, matrix: WeightMatrix, rank: u64) {
        let WeightMatrix { inner, columns } = matrix;
        // Activations have 16 bits next to 8-bit GEMMs.
        let element = self.job.precision.bytes().max(2);
        let mut gemm = |n: u64, k: u64| passes.add_gemm(KernelKind::Gemm16Bit, GemmShape { m: rows, n, k }, element, 1);
        gemm(rank, inner);
        gemm(columns, rank);
        passes.add_stream(
            SoftwareTraffic::new(self.job).bytes(|software| software.adapter(rows * columns, rows * inner)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::Kernel;
    use super::super::kernels::{layer, tensor_parallel_gemms};
    use super::super::tests::read;
    use super::*;

    fn passes(lines: &str) -> PassKernels {
        let job = job(lines);
        layer(&job, &Layout::specified_by(&job, 1).unwrap().unwrap())
    }

    fn job(lines: &str) -> Training {
        read(&format!(
            "name = \"j\"\nglobal_batch = 1\nflash_attention = true\ndropout = false\nparallel = {{ tp = 1 }}\n\
             model = {{ layers = 4, hidden = 1024, heads = 8, ffn = 4096, gated = true, vocab = 512, seq = 512 }}\n{lines}"
        ))
    }

    fn flops(kernels: &[Kernel]) -> u128 {
        kernels.iter().map(|kernel| kernel.flops.0).sum()
    }

    fn bytes(kernels: &[Kernel]) -> u64 {
        kernels.iter().map(|kernel| kernel.bytes.0).sum()
    }

    /// A backward pass with frozen weights has the GEMMs of a forward pass, and those of the adapters twice.
    #[test]
    fn frozen_layers_have_no_weight_gradient_gemms() {
        let full = passes("");
        let lora = passes("lora = { rank = 16, targets = \"all\" }\n");
        let adapters = 2 * 512 * 16 * u128::from(4 * (1024 + 1024) + 3 * (1024 + 4096u64));
        assert_eq!(flops(&lora.forward), flops(&full.forward) + adapters);
        let weights = 2 * 512 * u128::from(4 * 1024 * 1024 + 3 * 1024 * 4096u64);
        assert_eq!(flops(&lora.backward), flops(&full.backward) - weights + 2 * adapters);
    }

    /// GEMMs of adapters have no tensor-parallel calls of their own.
    #[test]
    fn tensor_parallel_gemms_exclude_adapters() {
        let job = job("lora = { rank = 16, targets = \"all\" }\n");
        let layout = Layout::specified_by(&job, 1).unwrap().unwrap();
        let gemms = tensor_parallel_gemms(&job, &layer(&job, &layout));
        let flops: Vec<u128> = gemms.iter().map(|one| one.flops.0 / (2 * 512 * 1024 * 1024)).collect();
        assert_eq!(flops, [3, 1, 8, 4]);
    }

    /// A pass reads 4.127 bits and writes 16 for each weight of a quantized layer; recomputation repeats it.
    #[test]
    fn quantized_weights_are_converted_in_each_pass() {
        let lora = |base: &str, recompute: &str| {
            passes(&format!("recompute = \"{recompute}\"\nlora = {{ rank = 16, targets = \"all\"{base} }}\n"))
        };
        let weights = (4 * 1024 * 1024 + 3 * 1024 * 4096) as f64;
        for (recompute, repeated) in [("none", 1.0), ("full", 2.0)] {
            let (plain, quantized) = (lora("", recompute), lora(", base = \"nf4\"", recompute));
            let added = |pass: fn(&PassKernels) -> &[Kernel]| (bytes(pass(&quantized)) - bytes(pass(&plain))) as f64;
            let expected = weights * (4.127 / 8.0 + 2.0);
            assert!((added(|passes| &passes.forward) / expected - 1.0).abs() < 1e-4);
            assert!((added(|passes| &passes.backward) / (expected * repeated) - 1.0).abs() < 1e-4);
        }
    }

    /// All routed experts of a rank and the shared ones are converted, however many tokens they have.
    #[test]
    fn quantized_weights_of_all_experts_are_converted() {
        let added = |experts: &str, lines: &str| {
            let lora = |base: &str| {
                let job = read(&format!(
                    "name = \"j\"\nglobal_batch = 2\nflash_attention = true\ndropout = false\n{lines}\
                     model = {{ layers = 4, hidden = 1024, heads = 8, ffn = 4096, gated = true, vocab = 512, seq = 512{experts} }}\n\
                     lora = {{ rank = 16, targets = \"attention\"{base} }}\n"
                ));
                let ranks = if lines.contains("ep = 2") { 2 } else { 1 };
                layer(&job, &Layout::specified_by(&job, ranks).unwrap().unwrap())
            };
            let (plain, quantized) = (lora(""), lora(", base = \"nf4\""));
            (bytes(&quantized.forward) - bytes(&plain.forward)) as f64 / (4.127 / 8.0 + 2.0)
        };
        let (attention, expert) = (f64::from(4 * 1024 * 1024), f64::from(3 * 1024 * 4096));
        let (one, two) = ("parallel = { tp = 1 }\n", "parallel = { dp = 2, ep = 2 }\n");
        for (experts, lines, expected) in [
            ("", one, 1.0),
            (", experts = 8, experts_per_token = 2", one, 8.0),
            (", experts = 8, experts_per_token = 2", two, 4.0),
            (", experts = 8, experts_per_token = 2, shared_experts = 1", one, 9.0),
        ] {
            let ratio = added(experts, lines) / (attention + expected * expert);
            assert!((ratio - 1.0).abs() < 1e-4, "{experts} {lines}: {ratio}");
        }
    }
}
