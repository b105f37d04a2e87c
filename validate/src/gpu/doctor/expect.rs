//! What transfers should reach of the nominal rate of their way.

use fabricast_topologies::route::PathClass;

/// The part of the nominal rate that a large copy reaches when nothing is wrong.
///
/// NVLink: 395 of 450 GB/s between any two of 8 × H200 (copy engines, 512 MiB; the source notes of the preset
/// `hgx-h200`). PCIe to the host: 55 of 63 GB/s on the same machine. Between GPUs below one PCIe switch as much; through
/// CPUs less, by how much depends on the CPU: half is an assumption that only catches what is far off.
pub(super) fn reached(class: PathClass) -> f64 {
    match class {
        PathClass::Nvl | PathClass::Nvb | PathClass::C2c => 0.877,
        PathClass::Loc | PathClass::Pix | PathClass::Pxb => 0.87,
        _ => 0.5,
    }
}

/// The part of the nominal rate that large copies by thread blocks reach when nothing is wrong.
///
/// NVLink: 364–366 of 450 GB/s between any two of 4 × H200 (64 blocks of 512 threads, 256 MiB), 365–369 on 8 × H200.
/// PCIe below a switch: 0.71 of nominal, the part that the shipped profile `nccl-2.27-l40s` was fitted to. Through CPUs an
/// assumption, as for copy engines.
pub(super) fn reached_by_blocks(class: PathClass) -> f64 {
    match class {
        PathClass::Nvl | PathClass::Nvb | PathClass::C2c => 0.81,
        PathClass::Loc | PathClass::Pix | PathClass::Pxb => 0.71,
        _ => 0.4,
    }
}

/// What a flag takes beyond the latency of its way: the reads that wait for it, some 0.2 µs of the 0.69–0.78 µs that were
/// measured between 8 × H200 (the source notes of the preset `hgx-h200`).
pub(super) const WAITING_US: f64 = 0.2;

/// How many times what is expected a flag may take by itself, whatever others take.
///
/// Over NVLink 0.70 µs are expected, and 0.60–0.63 were measured on 4 × H200, 0.69–0.78 on 8: three times leaves room for
/// other generations, whose flags nobody measured for us. Latencies of PCIe are estimates, so twice that room.
pub(super) fn flag_room(class: PathClass) -> f64 {
    match class {
        PathClass::Nvl | PathClass::Nvb | PathClass::C2c => 3.0,
        _ => 6.0,
    }
}

/// The part of its rate alone that a pair keeps at least while its other way, or every GPU, sends too.
///
/// Over NVLink 0.93–0.99 on 4 and 8 × H200, by copy engines and by thread blocks. Over PCIe both ways may meet in a switch
/// or in the host's memory, which halves them at worst: 0.4 only catches what is far off.
pub(super) fn kept(class: PathClass) -> f64 {
    match class {
        PathClass::Nvl | PathClass::Nvb => 0.85,
        _ => 0.4,
    }
}

/// The part of one pair's rate that reaches a GPU at least when all others send to it: 1.01–1.03 on 4 and 8 × H200.
pub(super) const KEPT_INTO_ONE: f64 = 0.7;
/// The part of one pair's rate that leaves a GPU at least when all send to all: 0.94–0.99 by copy engines, 0.75–0.94 by
/// thread blocks on 4 and 8 × H200.
pub(super) const KEPT_ALL_TO_ALL: f64 = 0.5;

/// GB/s that the host's memory gives all GPUs together at least, each way: 165–210 on 4 × H200, 183 on 8 × H200.
pub(super) const HOST_MEMORY: f64 = 160.0;
/// Below this part of what is expected a GPU's link to the host is slow while all GPUs copy: a virtual machine may hide a
/// switch that two GPUs share, which halves what each has.
pub(super) const SLOW_HOSTS: f64 = 0.4;

/// Below this part of what is expected a link is slow: pairs of a sound machine lie within 2 % of each other.
pub(super) const SLOW: f64 = 0.9;

/// Above this part of the nominal rate a measurement contradicts the fabric.
pub(super) const IMPOSSIBLE: f64 = 1.02;

/// The middle of some figures.
pub(super) fn median(figures: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// GPUs in words: `GPU 3`, `GPUs 1, 2 and 5`.
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
