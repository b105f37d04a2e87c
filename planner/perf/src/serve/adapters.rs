//! Kernels of low-rank adapters in an inference step, and the time to swap a resident adapter.
//!
//! The requests of a batch use different adapters. For each packed linear layer, one kernel multiplies the tokens with
//! the A of their adapters and one with the B, and adds the result to the output of the layer (Punica's SGMV, arXiv
//! 2310.18547, section 4; vLLM, `vllm/lora/punica_wrapper/punica_gpu.py`, `add_lora_linear`: `lora_shrink` and
//! `lora_expand` of all slices of a packed layer). The product with A has 32 bits. Every adapter of the batch is read
//! once.
//!
//! An adapter is copied from host memory tensor by tensor. A copy has the start of a kernel: 448 tensors of 84 MB took
//! 3.4 ms on an H200 over PCIe 5, of which the bytes need 1.5 ms (`planner/data/jobs/lora-h200.toml`).

use fabricast_topologies::{Bandwidth, Bytes, Picos};

use super::steady_state::StepTokens;
use crate::step::{Efficiency, Kernel, KernelKind, PeakRates};
use crate::time::scaled;
use fabricast_workload::job::{AdapterLoading, AdapterTarget, Flops, HostAllocation, Layout, Serving, WeightMatrix};

/// Bytes of an element of the product with A.
const PRODUCT_BYTES: f64 = 4.0;

/// Bandwidth of copies from pageable host memory: 4.5 to 6.1 GB/s in four measurements on a host of H200, for 84 and
/// 336 MB (`planner/data/jobs/lora-h200.toml`).
const PAGEABLE_BANDWIDTH: Bandwidth = Bandwidth(5_400_000_000);

/// Linear layers whose weights are packed in one matrix, so that two kernels compute all of their adapters.
const PACKED: [&[AdapterTarget]; 4] = [
    &[AdapterTarget::Query, AdapterTarget::Key, AdapterTarget::Value],
    &[AdapterTarget::Output],
    &[AdapterTarget::Gate, AdapterTarget::Up],
    &[AdapterTarget::Down],
];

/// Returns the kernels of adapters in a layer; none without adapters.
pub(super) fn adapter_kernels(job: &Serving, layout: &Layout, mix: &StepTokens) -> Vec<Kernel> {
    let Some(served) = &job.adapters else { return Vec::new() };
    let (tokens, element) = (mix.tokens(), job.adapter_element_bytes() as f64);
    let rank = served.adapter.rank as f64;
    let distinct = served.distinct(mix.decode + mix.chunks);
    let packed = PACKED.iter().flat_map(|&targets| {
        let matrices: Vec<WeightMatrix> =
            served.adapter.among(targets).map(|target| target.matrix(&job.model, layout.degrees.tensor)).collect();
        let slices = matrices.len() as f64;
        let inner = matrices.first().map_or(0, |matrix| matrix.inner) as f64;
        let columns = matrices.iter().map(|matrix| matrix.columns).sum::<u64>() as f64;
        let kernel = |flops: f64, bytes: f64| Kernel {
            kind: KernelKind::Gemm16Bit,
            flops: Flops(flops.round() as u128),
            bytes: Bytes(bytes.round() as u64),
        };
        let products = tokens * rank * slices * PRODUCT_BYTES;
        let shrink = kernel(
            2.0 * tokens * inner * rank * slices,
            element * (tokens * inner + distinct * rank * inner * slices) + products,
        );
        let expand = kernel(
            2.0 * tokens * rank * columns,
            element * (2.0 * tokens * columns + distinct * rank * columns) + products,
        );
        if matrices.is_empty() { Vec::new() } else { vec![shrink, expand] }
    });
    packed.collect()
}

/// Returns the time to copy an adapter from host memory to the GPUs of a replica, each of which has its part; `None`
/// without adapters or without a stated path to the host memory.
pub(super) fn swap_time(job: &Serving, layout: &Layout, speeds: &PeakRates, curve: &Efficiency) -> Option<Picos> {
    let served = job.adapters.as_ref()?;
    let bytes = job.adapter_bytes_per_rank(layout);
    let path = speeds.adapter_bandwidth?;
    let copy = match served.host_memory {
        HostAllocation::Pinned => curve.transfer_time(bytes, path) - curve.start,
        HostAllocation::Pageable => PAGEABLE_BANDWIDTH.min(path).transfer_time(bytes),
    };
    Some(copy + scaled(curve.start, job.adapter_tensors_per_rank(layout)))
}

/// Returns the mean time in a step during which its requests wait for adapters that are not resident: each request
/// whose adapter is missing swaps one before its first step. Zero if copies overlap with steps.
pub(super) fn mean_swap_wait(
    job: &Serving,
    layout: &Layout,
    mix: &StepTokens,
    speeds: &PeakRates,
    curve: &Efficiency,
) -> Picos {
    let blocking = job.adapters.as_ref().filter(|served| served.loading == AdapterLoading::Blocking);
    let Some(served) = blocking else { return Picos::ZERO };
    let swaps = served.miss_probability() * mix.finished_prefills;
    let each = swap_time(job, layout, speeds, curve).unwrap_or_default();
    Picos((each.0 as f64 * swaps).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::super::tests::served;
    use super::*;
    use crate::serve::AttentionContext;
    use crate::serve::kernels::layer;

    const H200: PeakRates =
        PeakRates { adapter_bandwidth: Some(Bandwidth(64_000_000_000)), ..super::super::tests::H100 };

    fn job(adapters: &str) -> Serving {
        served(&format!(
            "parallel = {{ tp = 1 }}\nadapters = {{ targets = \"all\", {adapters} }}\n\
             model = {{ layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, gated = true, vocab = 128256 }}\n"
        ))
    }

    fn layout(job: &Serving) -> Layout {
        Layout::specified_by_serving(job, 1).unwrap().unwrap()
    }

    /// Measured on one H200 with PCIe 5 x16 (`planner/data/jobs/lora-h200.toml`): 448 tensors in 3.38 and 7.63 ms from
    /// pinned memory, in 18.5 and 63.9 ms from pageable memory.
    #[test]
    fn swap_times_match_measurement() {
        let curve = Efficiency { memory: 0.8943, start: Picos(5_189_100), ..Efficiency::default() };
        for (rank, memory, measured) in
            [(16, "pinned", 3.38), (64, "pinned", 7.63), (16, "pageable", 18.5), (64, "pageable", 63.9)]
        {
            let job = job(&format!("rank = {rank}, number = 2, host_memory = \"{memory}\""));
            let predicted = swap_time(&job, &layout(&job), &H200, &curve).unwrap().us() / 1e3;
            println!("{rank} {memory}: {predicted:.2} for {measured} ms");
            assert!((0.8..1.2).contains(&(predicted / measured)), "{rank} {memory}: {predicted} for {measured}");
        }
    }

    /// Copies over a slow path take at most the largest time.
    #[test]
    fn swap_times_saturate() {
        let slow = PeakRates { adapter_bandwidth: Some(Bandwidth(1)), ..H200 };
        let curve = Efficiency { start: Picos::ZERO, ..Efficiency::default() };
        let job = job("rank = 64, number = 2, host_memory = \"pageable\"");
        assert_eq!(swap_time(&job, &layout(&job), &slow, &curve), Some(Picos(u64::MAX)));
    }

    /// A step reads each adapter of its batch once, with two kernels for each of four packed layers.
    #[test]
    fn kernels_read_each_adapter_of_the_batch() {
        let tokens = |decode: f64| StepTokens { decode, ..StepTokens::default() };
        let bytes = |number: u64, decode: f64| {
            let job = job(&format!("rank = 16, number = {number}"));
            let kernels = adapter_kernels(&job, &layout(&job), &tokens(decode));
            assert_eq!(kernels.len(), 8);
            kernels.iter().map(|kernel| kernel.bytes.0).sum::<u64>() as f64
        };
        let adapter = 2.0 * 16.0 * f64::from(2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14_336));
        assert!((bytes(1 << 20, 64.0) - bytes(1, 64.0) - 63.0 * adapter).abs() < adapter * 0.01);
        // One request per adapter: 64 adapters and their tokens.
        assert!((bytes(1 << 20, 64.0) / bytes(1 << 20, 1.0) - 64.0).abs() < 0.01);
        let job = served("");
        let layout = Layout::specified_by_serving(&job, 8).unwrap().unwrap();
        assert!(adapter_kernels(&job, &layout, &tokens(8.0)).is_empty());
    }

    /// Kernels of adapters add to those of a layer, and swaps only occur if adapters are missing.
    #[test]
    fn layers_contain_adapter_kernels() {
        let (all, some) = (job("rank = 16, number = 8"), job("rank = 16, number = 8, resident = 2"));
        let overlapped = job("rank = 16, number = 8, resident = 2, loading = \"overlapped\"");
        let layout = layout(&all);
        let mix = StepTokens { decode: 8.0, finished_prefills: 0.5, ..StepTokens::default() };
        let plain = served(
            "parallel = { tp = 1 }\nmodel = { layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, gated = true, vocab = 128256 }\n",
        );
        let count = |job: &Serving| {
            let loaded = job.with_concurrency(&layout, None);
            layer(&loaded, &layout, &mix, &AttentionContext::in_steady_state(&loaded, 1.0)).kernels.len()
        };
        assert_eq!(count(&all), count(&plain) + 8);
        let curve = Efficiency::default();
        assert_eq!(mean_swap_wait(&all, &layout, &mix, &H200, &curve), Picos::ZERO);
        assert_eq!(mean_swap_wait(&overlapped, &layout, &mix, &H200, &curve), Picos::ZERO);
        let (wait, swap) =
            (mean_swap_wait(&some, &layout, &mix, &H200, &curve), swap_time(&some, &layout, &H200, &curve).unwrap());
        assert!((wait.0 as f64 / swap.0 as f64 - 0.75 * 0.5).abs() < 1e-6);
    }
}
