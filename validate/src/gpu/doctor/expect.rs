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
