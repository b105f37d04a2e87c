//! Rates under concurrent load, compared with the rates alone: both directions, shifts, incast and all-to-all.

use fabricast_topologies::route::PathClass;

use super::expect::{self, gpus};
use super::pairs::{PairVerdict, over_nvlink};
use super::{Fault, Finding, Severity};
use crate::gpu::bench::{Bench, Kind, Load};

/// Copy engines and thread blocks, with their names.
const ENGINES: [(Kind, &str); 2] = [(Kind::CopyEngine, "copy engine"), (Kind::Blocks, "thread blocks")];

/// A rate under load that is too far below the rate alone.
struct Slow {
    /// Rate under load ÷ rate alone.
    part: f64,
    /// Observation with figures.
    message: String,
    /// Affected GPUs.
    of: Vec<usize>,
}

/// Findings on concurrent load, at most one per kind of load.
pub(super) fn findings(bench: &Bench, pairs: &[PairVerdict]) -> Vec<Finding> {
    let both_ways = with_others(bench, pairs, |load| load == Load::BothWays, "the other way sends too");
    let over_nvlink: Vec<PairVerdict> = pairs.iter().filter(|pair| over_nvlink(pair.class)).cloned().collect();
    let shifts =
        with_others(bench, &over_nvlink, |load| matches!(load, Load::Shift(_)), "every GPU sends to one other");
    let switches = "a switch with fewer links than its GPUs, or another program on the same switches";
    let loads = [
        (both_ways, "a link that repeats what it sends, or another program that uses it the other way"),
        (shifts, switches),
        (added_up(bench, pairs, Load::Incast), switches),
        (added_up(bench, pairs, Load::AllToAll), switches),
    ];
    loads.into_iter().filter_map(|(slow, cause)| finding(slow, cause)).collect()
}

/// The worst case as a finding, with all affected GPUs.
fn finding(slow: Vec<Slow>, cause: &str) -> Option<Finding> {
    let mut of: Vec<usize> = slow.iter().flat_map(|slow| slow.of.iter().copied()).collect();
    of.sort_unstable();
    of.dedup();
    let worst = slow.into_iter().min_by(|a, b| a.part.total_cmp(&b.part))?;
    let others = if of.len() > worst.of.len() { format!("; so for {}", gpus(&of)) } else { String::new() };
    Some(Finding {
        severity: Severity::Fault,
        fault: Fault::SlowTogether,
        gpus: of,
        message: worst.message + &others,
        cause: cause.to_owned(),
        look: "nvidia-smi nvlink --status; nvidia-smi nvlink -gt d; nvidia-smi dmon -c 5".to_owned(),
    })
}

/// Compares the rate of each pair under a load with its rate alone.
fn with_others(bench: &Bench, pairs: &[PairVerdict], is_load: impl Fn(Load) -> bool, when: &str) -> Vec<Slow> {
    let mut slow = Vec::new();
    for (kind, name) in ENGINES {
        for pair in pairs.iter().filter(|pair| is_as_it_should_be(pair) || pair.fault == Some(Fault::SlowBlocks)) {
            let (src, dst) = (pair.src, pair.dst);
            let Some(alone) = bench.rate(kind, Load::Alone, Some(src), Some(dst)) else { continue };
            let points = bench.points.iter().filter(|point| {
                point.kind == kind && is_load(point.load) && (point.src, point.dst) == (Some(src), Some(dst))
            });
            let Some(rate) = points.filter_map(|point| point.gbps).reduce(f64::min) else { continue };
            if rate < alone * expect::kept(pair.class) {
                let message = format!(
                    "from GPU {src} to GPU {dst} by {name}: {rate:.0} GB/s while {when}, {alone:.0} GB/s alone"
                );
                slow.push(Slow { part: rate / alone, message, of: vec![src, dst] });
            }
        }
    }
    slow
}

/// Compares the total rate into a GPU, or out of it, with the fastest of its pairs alone.
fn added_up(bench: &Bench, pairs: &[PairVerdict], load: Load) -> Vec<Slow> {
    let (kept, way, when) = match load {
        Load::Incast => (expect::KEPT_INTO_ONE, "into", "every other sends to it"),
        _ => (expect::KEPT_ALL_TO_ALL, "out of", "all send to all"),
    };
    let is_at = |gpu: usize, src: usize, dst: usize| gpu == if load == Load::Incast { dst } else { src };
    let mut slow = Vec::new();
    for (kind, name) in ENGINES {
        for gpu in 0..bench.probe.devices.len() {
            let ways: Vec<&PairVerdict> = pairs.iter().filter(|pair| is_at(gpu, pair.src, pair.dst)).collect();
            let Some(alone) = alone(bench, kind, &ways) else { continue };
            let under_load = ways.iter().filter_map(|pair| bench.rate(kind, load, Some(pair.src), Some(pair.dst)));
            let rates: Vec<f64> = under_load.collect();
            let total: f64 = rates.iter().sum();
            if rates.len() == ways.len() && total < alone * kept {
                let message = format!(
                    "{way} GPU {gpu} by {name}: {total:.0} GB/s in all while {when}, {alone:.0} GB/s by one pair alone"
                );
                slow.push(Slow { part: total / alone, message, of: vec![gpu] });
            }
        }
    }
    slow
}

/// Returns true if the pair uses its expected path at its expected rate. A slow flag does not contradict that.
fn is_as_it_should_be(pair: &PairVerdict) -> bool {
    matches!(pair.fault, None | Some(Fault::SlowFlag | Fault::NotMeasured))
}

/// Fastest rate of some pairs alone. `None` unless NVLink joins all of them and none has a fault.
fn alone(bench: &Bench, kind: Kind, ways: &[&PairVerdict]) -> Option<f64> {
    let sound = ways.iter().all(|pair| pair.class == PathClass::Nvl && is_as_it_should_be(pair));
    let rates = ways.iter().filter_map(|pair| bench.rate(kind, Load::Alone, Some(pair.src), Some(pair.dst)));
    rates.filter(|_| sound).reduce(f64::max)
}
