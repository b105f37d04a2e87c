//! Comparison of rates under concurrent load with rates without it: both directions, shifts, incast and all-to-all.

use fabricast_topologies::route::PathClass;

use super::expectations::{self, gpus};
use super::pairs::{PairVerdict, is_nvlink};
use super::{DoctorFinding, FaultKind, Severity};
use crate::gpu::bench::{Bench, Load, PointKind};

/// Hardware that moves data, with its names in messages.
const ENGINES: [(PointKind, &str); 2] = [(PointKind::CopyEngine, "copy engine"), (PointKind::Blocks, "thread blocks")];

/// A rate under load that is too far below the rate without load.
struct SlowUnderLoad {
    /// Rate under load ÷ rate without load.
    part: f64,
    /// Message of the finding, with rates in GB/s.
    message: String,
    /// Ordinals of the affected GPUs.
    gpus: Vec<usize>,
}

/// Findings on concurrent load, at most one per kind of load.
pub(super) fn findings(bench: &Bench, pairs: &[PairVerdict]) -> Vec<DoctorFinding> {
    let bidirectional =
        compare_pairs_under_load(bench, pairs, |load| load == Load::Bidirectional, "the other way sends too");
    let over_nvlink: Vec<PairVerdict> = pairs.iter().filter(|pair| is_nvlink(pair.class)).cloned().collect();
    let shifts = compare_pairs_under_load(
        bench,
        &over_nvlink,
        |load| matches!(load, Load::Shift(_)),
        "every GPU sends to one other",
    );
    let switches = "a switch with fewer links than its GPUs, or another program on the same switches";
    let loads = [
        (bidirectional, "a link with retransmissions, or another program that uses it the other way"),
        (shifts, switches),
        (compare_totals_under_load(bench, pairs, Load::Incast), switches),
        (compare_totals_under_load(bench, pairs, Load::AllToAll), switches),
    ];
    loads.into_iter().filter_map(|(slow, cause)| finding(slow, cause)).collect()
}

/// Merges observations into one finding with the message of the slowest one and the GPUs of all. `None` if there are no
/// observations.
fn finding(slow: Vec<SlowUnderLoad>, cause: &str) -> Option<DoctorFinding> {
    let mut affected: Vec<usize> = slow.iter().flat_map(|slow| slow.gpus.iter().copied()).collect();
    affected.sort_unstable();
    affected.dedup();
    let worst = slow.into_iter().min_by(|a, b| a.part.total_cmp(&b.part))?;
    let also_affected =
        if affected.len() > worst.gpus.len() { format!("; so for {}", gpus(&affected)) } else { String::new() };
    Some(DoctorFinding {
        severity: Severity::Fault,
        fault: FaultKind::SlowUnderLoad,
        gpus: affected,
        message: worst.message + &also_affected,
        cause: cause.to_owned(),
        command: "nvidia-smi nvlink --status; nvidia-smi nvlink -gt d; nvidia-smi dmon -c 5".to_owned(),
    })
}

/// Returns the pairs whose rate under a load is too far below their rate without load.
fn compare_pairs_under_load(
    bench: &Bench,
    pairs: &[PairVerdict],
    is_load: impl Fn(Load) -> bool,
    when: &str,
) -> Vec<SlowUnderLoad> {
    let mut slow = Vec::new();
    for (kind, name) in ENGINES {
        for pair in pairs.iter().filter(|pair| has_expected_rate(pair) || pair.fault == Some(FaultKind::SlowBlocks)) {
            let (src, dst) = (pair.src, pair.dst);
            let Some(alone) = bench.rate(kind, Load::Alone, Some(src), Some(dst)) else { continue };
            let points = bench.points.iter().filter(|point| {
                point.kind == kind && is_load(point.load) && (point.src, point.dst) == (Some(src), Some(dst))
            });
            let Some(rate) = points.filter_map(|point| point.gb_per_s).reduce(f64::min) else { continue };
            if rate < alone * expectations::min_loaded_share(pair.class) {
                let message = format!(
                    "from GPU {src} to GPU {dst} by {name}: {rate:.0} GB/s while {when}, {alone:.0} GB/s alone"
                );
                slow.push(SlowUnderLoad { part: rate / alone, message, gpus: vec![src, dst] });
            }
        }
    }
    slow
}

/// Returns the GPUs whose total rate under a load is too far below the fastest rate of their pairs without load. The
/// total is that of incoming traffic for incast, and of outgoing traffic otherwise.
fn compare_totals_under_load(bench: &Bench, pairs: &[PairVerdict], load: Load) -> Vec<SlowUnderLoad> {
    let (min_share, direction, condition) = match load {
        Load::Incast => (expectations::MIN_INCAST_SHARE, "into", "every other sends to it"),
        _ => (expectations::MIN_ALL_TO_ALL_SHARE, "out of", "all send to all"),
    };
    let is_at = |gpu: usize, src: usize, dst: usize| gpu == if load == Load::Incast { dst } else { src };
    let mut slow = Vec::new();
    for (kind, name) in ENGINES {
        for gpu in 0..bench.probe.devices.len() {
            let gpu_pairs: Vec<&PairVerdict> = pairs.iter().filter(|pair| is_at(gpu, pair.src, pair.dst)).collect();
            let Some(baseline) = unloaded_rate(bench, kind, &gpu_pairs) else { continue };
            let under_load = gpu_pairs.iter().filter_map(|pair| bench.rate(kind, load, Some(pair.src), Some(pair.dst)));
            let rates: Vec<f64> = under_load.collect();
            let total: f64 = rates.iter().sum();
            if rates.len() == gpu_pairs.len() && total < baseline * min_share {
                let message = format!(
                    "{direction} GPU {gpu} by {name}: {total:.0} GB/s in all while {condition}, {baseline:.0} GB/s by one pair alone"
                );
                slow.push(SlowUnderLoad { part: total / baseline, message, gpus: vec![gpu] });
            }
        }
    }
    slow
}

/// Returns true if the pair uses its expected path at its expected rate, even if its flag latency is too high.
fn has_expected_rate(pair: &PairVerdict) -> bool {
    matches!(pair.fault, None | Some(FaultKind::SlowFlag | FaultKind::NotMeasured))
}

/// Rate in GB/s of the fastest of the given pairs without load. `None` unless NVLink joins all pairs and all have the
/// expected rate.
fn unloaded_rate(bench: &Bench, kind: PointKind, pairs: &[&PairVerdict]) -> Option<f64> {
    let is_complete = pairs.iter().all(|pair| pair.class == PathClass::Nvl && has_expected_rate(pair));
    let rates = pairs.iter().filter_map(|pair| bench.rate(kind, Load::Alone, Some(pair.src), Some(pair.dst)));
    rates.filter(|_| is_complete).reduce(f64::max)
}
