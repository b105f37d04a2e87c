//! All-reduces of tensor-parallel ranks by the kernels of serving software instead of NCCL.
//!
//! Every rank reads the buffers of all others over NVLink, between two rounds of flags; from 256 to 512 KiB on, it
//! reduces its part and reads the parts of the others (vLLM, `csrc/custom_all_reduce.cuh`; SGLang,
//! `sgl-kernel/csrc/allreduce`; TensorRT-LLM, `cpp/tensorrt_llm/kernels/customAllReduceKernels.cu`). vLLM uses it for
//! less than 8 MiB among 2, 4, 6 or 8 ranks that are connected by NVLink
//! (`vllm/distributed/device_communicators/custom_all_reduce.py`, `should_custom_ar`).
//!
//! ```text
//! time = 3.0 µs + 0.35 µs × ranks + 2 (ranks - 1) / ranks × bytes / 62 GB/s
//! ```
//!
//! The three figures are fitted to the table of H100 in sgl-project/sglang#2904 (2, 4 and 8 ranks, 512 B to 1 MiB): 6 %
//! in the median, 22 % at the 90th percentile. The call takes NCCL's time where that is shorter.

use fabricast_topologies::{Bytes, Picos};

/// Smallest size for which the software uses NCCL.
const MAX_BYTES: Bytes = Bytes(8 << 20);

/// Largest number of ranks.
const MAX_RANKS: u32 = 8;

/// Time of a kernel without data, and for each rank.
const START: Picos = Picos(3_000_000);
const RANK: Picos = Picos(350_000);

/// Bytes per second that a rank sends and receives, limited by the few thread blocks of the kernel.
const BYTES_PER_S: f64 = 62e9;

/// Returns the time of an all-reduce of `bytes` among `ranks` connected by NVLink; `None` if the software uses the
/// library.
pub(super) fn custom_all_reduce_time(bytes: Bytes, ranks: u32) -> Option<Picos> {
    let is_custom = bytes.0 < MAX_BYTES.0 && (2..=MAX_RANKS).contains(&ranks) && ranks.is_multiple_of(2);
    is_custom.then(|| {
        let traffic = 2.0 * f64::from(ranks - 1) / f64::from(ranks) * bytes.0 as f64;
        Picos(START.0 + u64::from(ranks) * RANK.0 + (traffic / BYTES_PER_S * 1e12).round() as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published table of H100: sgl-project/sglang#2904, µs of 2, 4 and 8 ranks by bytes.
    const PUBLISHED: [(u64, [f64; 3]); 6] = [
        (512, [3.7, 4.8, 5.9]),
        (4096, [3.9, 3.7, 5.7]),
        (32_768, [4.5, 4.8, 7.8]),
        (262_144, [7.9, 13.9, 16.7]),
        (524_288, [12.5, 20.2, 22.1]),
        (1_048_576, [19.9, 31.1, 33.8]),
    ];

    #[test]
    fn times_match_the_published_table() {
        let mut errors = Vec::new();
        for (bytes, row) in PUBLISHED {
            for (ranks, measured) in [2, 4, 8].into_iter().zip(row) {
                let predicted = custom_all_reduce_time(Bytes(bytes), ranks).unwrap().us();
                errors.push((predicted / measured - 1.0).abs());
            }
        }
        errors.sort_by(f64::total_cmp);
        assert!(errors[9] < 0.08 && errors[16] < 0.26, "{errors:?}");
    }

    #[test]
    fn large_calls_and_other_numbers_of_ranks_use_the_library() {
        assert_eq!(custom_all_reduce_time(Bytes(8 << 20), 8), None);
        assert_eq!(custom_all_reduce_time(Bytes(1024), 1), None);
        assert_eq!(custom_all_reduce_time(Bytes(1024), 3), None);
        assert_eq!(custom_all_reduce_time(Bytes(1024), 16), None);
    }
}
