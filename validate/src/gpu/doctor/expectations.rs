//! Expected performance as a fraction of the nominal rate or latency of a path.

use fabricast_topologies::route::PathClass;

/// Fraction of the nominal rate that a large copy by a copy engine reaches without a fault.
///
/// NVLink: 395 of 450 GB/s between any two of 8 × H200 (512 MiB; source notes of the preset `hgx-h200`). PCIe to the
/// host: 55 of 63 GB/s on the same machine; this fraction is also used between GPUs below one PCIe switch. Rates of
/// paths through CPUs depend on the CPU: one half is an assumption that detects only gross faults.
pub(super) fn copy_engine_efficiency(class: PathClass) -> f64 {
    match class {
        PathClass::Nvl | PathClass::Nvb | PathClass::C2c => 0.877,
        PathClass::Loc | PathClass::Pix | PathClass::Pxb => 0.87,
        _ => 0.5,
    }
}

/// Fraction of the nominal rate that large copies by thread blocks reach without a fault.
///
/// NVLink: 364–369 of 450 GB/s between any two of 4 and 8 × H200 (64 blocks of 512 threads, 256 MiB). PCIe below a
/// switch: 0.71, as fitted in the shipped profile `nccl-2.27-l40s`. Paths through CPUs: an assumption, as for copy
/// engines.
pub(super) fn thread_block_efficiency(class: PathClass) -> f64 {
    match class {
        PathClass::Nvl | PathClass::Nvb | PathClass::C2c => 0.81,
        PathClass::Loc | PathClass::Pix | PathClass::Pxb => 0.71,
        _ => 0.4,
    }
}

/// Latency of a flag in addition to that of its path, in µs. The polling reads are about 0.2 of the 0.69–0.78 µs
/// measured between 8 × H200 (source notes of the preset `hgx-h200`).
pub(super) const FLAG_POLLING_US: f64 = 0.2;

/// Maximum ratio of measured to expected flag latency without a fault, independent of other pairs.
///
/// Over NVLink, 0.70 µs are expected, and 0.60–0.78 µs were measured on 4 and 8 × H200. A factor of 3 allows for other
/// GPU generations, which were not measured. PCIe latencies are estimates and have twice this factor.
pub(super) fn max_flag_latency_ratio(class: PathClass) -> f64 {
    match class {
        PathClass::Nvl | PathClass::Nvb | PathClass::C2c => 3.0,
        _ => 6.0,
    }
}

/// Minimum fraction of its rate without load that a pair must reach while its opposite direction, or every GPU, sends
/// as well.
///
/// Over NVLink, 0.93–0.99 were measured on 4 and 8 × H200, by copy engines and by thread blocks. Over PCIe, both
/// directions may share a switch or the host's memory, which at worst halves each rate; 0.4 detects only gross faults.
pub(super) fn min_loaded_share(class: PathClass) -> f64 {
    match class {
        PathClass::Nvl | PathClass::Nvb => 0.85,
        _ => 0.4,
    }
}

/// Minimum total rate that a GPU receives while all others send to it, as a fraction of one pair's rate. Measured:
/// 1.01–1.03 on 4 and 8 × H200.
pub(super) const MIN_INCAST_SHARE: f64 = 0.7;
/// Minimum total rate that a GPU sends during all-to-all, as a fraction of one pair's rate. Measured on 4 and 8 × H200:
/// 0.94–0.99 by copy engines, 0.75–0.94 by thread blocks.
pub(super) const MIN_ALL_TO_ALL_SHARE: f64 = 0.5;

/// Minimum bandwidth of the host memory, in GB/s per direction, which all GPUs share. Measured: 165–210 GB/s on 4 ×
/// H200, 183 GB/s on 8 × H200.
pub(super) const MIN_HOST_MEMORY_GBPS: f64 = 160.0;
/// Fraction of the expected rate below which a host link is slow while all GPUs copy. A virtual machine may hide a
/// switch that two GPUs share, which halves the rate of each.
pub(super) const MIN_LOADED_HOST_SHARE: f64 = 0.4;

/// Fraction of the expected rate below which a link is slow. Rates of pairs on a machine without faults differ by up to
/// 2 %.
pub(super) const SLOW: f64 = 0.9;

/// Ratio of a measured rate to the nominal rate above which the fabric must be wrong. The margin of 2 % is an estimate.
pub(super) const IMPOSSIBLE: f64 = 1.02;

/// Median of values; of an even number of values, the upper middle one.
pub(super) fn median(figures: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// List of GPUs as text: `GPU 3`, `GPUs 1, 2 and 5`.
pub(super) fn gpus(ordinals: &[usize]) -> String {
    match ordinals {
        [] => "no GPU".to_owned(),
        [one] => format!("GPU {one}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(ToString::to_string).collect();
            format!("GPUs {} and {last}", first.join(", "))
        }
    }
}
