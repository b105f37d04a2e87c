//! Merging of the faults of pairs into findings: about all pairs, a path class, a GPU, or both directions of a pair.

use fabricast_topologies::route::PathClass;

use super::expectations::{gpus, median};
use super::pairs::{PairVerdict, is_nvlink};
use super::{DoctorFinding, FaultKind, Severity};
use crate::gpu::bench::{Bench, Load, PointKind};
use crate::gpu::probe::Probe;

/// Findings on individual pairs, without concurrent load.
pub(super) fn findings(bench: &Bench, pairs: &[PairVerdict]) -> Vec<DoctorFinding> {
    let mut findings = peer_access_findings(bench, pairs);
    for fault in [
        FaultKind::PcieFallback,
        FaultKind::SlowLink,
        FaultKind::SlowBlocks,
        FaultKind::SlowFlag,
        FaultKind::NotMeasured,
    ] {
        let faulty: Vec<&PairVerdict> = pairs.iter().filter(|pair| pair.fault == Some(fault)).collect();
        findings.extend(groups(bench, pairs, &faulty, fault));
    }
    findings
}

/// Findings on pairs without peer access: faults first, then notes. Machines mostly grant peer access by path class, so
/// a class in which no pair has peer access is one finding.
fn peer_access_findings(bench: &Bench, pairs: &[PairVerdict]) -> Vec<DoctorFinding> {
    let fault = FaultKind::NoPeerAccess;
    let mut findings = Vec::new();
    for how_bad in [Severity::Fault, Severity::Note] {
        let is_faulty =
            |pair: &&PairVerdict| pair.fault == Some(fault) && severity(&bench.probe, fault, pair) == how_bad;
        let mut left: Vec<&PairVerdict> = pairs.iter().filter(is_faulty).collect();
        let every = left.len() == pairs.len();
        for class in PathClass::ALL.into_iter().filter(|_| !every) {
            let of_class: Vec<&PairVerdict> = left.iter().copied().filter(|pair| pair.class == class).collect();
            if of_class.len() > 2 && of_class.len() == pairs.iter().filter(|pair| pair.class == class).count() {
                let mut affected: Vec<usize> = of_class.iter().map(|pair| pair.src).collect();
                affected.dedup();
                left.retain(|pair| pair.class != class);
                findings.push(finding(bench, fault, affected, &format!("every pair over {class}"), &of_class, None));
            }
        }
        findings.extend(groups(bench, pairs, &left, fault));
    }
    findings
}

/// Severity of a pair's fault. Missing peer access is only a note if users cannot change it: many machines without
/// faults grant none between sockets, and NVIDIA's driver grants none to GeForce GPUs over PCIe.
fn severity(probe: &Probe, fault: FaultKind, pair: &PairVerdict) -> Severity {
    let geforce = |gpu: usize| probe.devices.get(gpu).is_some_and(|device| device.name.contains("GeForce"));
    let crosses_sockets = pair.class > PathClass::Phb;
    let denied = !is_nvlink(pair.class) && (geforce(pair.src) || geforce(pair.dst));
    if fault == FaultKind::NoPeerAccess && (crosses_sockets || denied) { Severity::Note } else { Severity::Fault }
}

/// Directions of a GPU in which all paths are faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultyDirections {
    Out,
    Into,
    Both,
}

/// Returns one finding if all pairs are faulty; otherwise one for each GPU whose paths are all faulty, and one for each
/// remaining pair.
fn groups(bench: &Bench, pairs: &[PairVerdict], faulty: &[&PairVerdict], fault: FaultKind) -> Vec<DoctorFinding> {
    if faulty.is_empty() {
        return Vec::new();
    }
    let count = bench.probe.devices.len();
    if faulty.len() == pairs.len() && count > 2 {
        let all_gpus: Vec<usize> = (0..count).collect();
        return vec![finding(bench, fault, all_gpus, "every pair of GPUs", faulty, None)];
    }
    let mut findings = Vec::new();
    let mut left: Vec<&PairVerdict> = faulty.to_vec();
    for gpu in (0..count).filter(|_| count > 2) {
        let peer_count = count - 1;
        let all_outgoing = faulty.iter().filter(|pair| pair.src == gpu).count() == peer_count;
        let all_incoming = faulty.iter().filter(|pair| pair.dst == gpu).count() == peer_count;
        let (directions, description) = match (all_outgoing, all_incoming) {
            (true, true) => (FaultyDirections::Both, format!("GPU {gpu}, to and from every other")),
            (true, false) => (FaultyDirections::Out, format!("GPU {gpu}, sending to every other")),
            (false, true) => (FaultyDirections::Into, format!("GPU {gpu}, receiving from every other")),
            (false, false) => continue,
        };
        let of_gpu = |pair: &&PairVerdict| match directions {
            FaultyDirections::Out => pair.src == gpu,
            FaultyDirections::Into => pair.dst == gpu,
            FaultyDirections::Both => pair.src == gpu || pair.dst == gpu,
        };
        // Pairs whose other end is a reported GPU are covered by that finding.
        let of_this_gpu: Vec<&PairVerdict> = left.iter().copied().filter(of_gpu).collect();
        if !of_this_gpu.is_empty() {
            left.retain(|pair| !of_gpu(pair));
            findings.push(finding(bench, fault, vec![gpu], &description, &of_this_gpu, Some(gpu)));
        }
    }
    while let Some(pair) = left.first().copied() {
        let (reverse, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(|candidate| {
            (candidate.src, candidate.dst) == (pair.src, pair.dst)
                || (candidate.src, candidate.dst) == (pair.dst, pair.src)
        });
        left = rest;
        let description = if reverse.len() == 2 {
            format!("between GPU {} and GPU {}", pair.src, pair.dst)
        } else {
            format!("from GPU {} to GPU {}", pair.src, pair.dst)
        };
        findings.push(finding(bench, fault, vec![pair.src, pair.dst], &description, &reverse, None));
    }
    findings
}

/// Creates a finding on some pairs. `single`: the GPU that all of them have in common.
fn finding(
    bench: &Bench,
    fault: FaultKind,
    affected: Vec<usize>,
    description: &str,
    pairs: &[&PairVerdict],
    single: Option<usize>,
) -> DoctorFinding {
    let by_blocks = fault == FaultKind::SlowBlocks;
    let ratio = |pair: &PairVerdict| if by_blocks { pair.blocks_ratio() } else { pair.ratio }.unwrap_or(0.0);
    let slowest = pairs.iter().min_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let figures = |pair: &PairVerdict| match by_blocks {
        true => (pair.blocks_gb_per_s, pair.expected_blocks_gb_per_s),
        false => (pair.measured_gb_per_s, pair.expected_gb_per_s),
    };
    let rate = slowest.map_or_else(String::new, |pair| match figures(pair) {
        (Some(measured), Some(expected)) => format!("{measured:.0} GB/s of an expected {expected:.0}"),
        (Some(measured), None) => format!("{measured:.0} GB/s"),
        _ => "not measured".to_owned(),
    });
    let first = affected.first().copied().unwrap_or(0);
    let (message, cause, look) = match fault {
        FaultKind::NoPeerAccess => (
            format!("{description}: no peer access, so data is staged in host memory ({rate})"),
            no_peer_access(&bench.probe, &affected, pairs),
            "nvidia-smi topo -p2p rw; dmesg | grep -i -e iommu -e nvrm".to_owned(),
        ),
        FaultKind::PcieFallback => (
            format!("{description}: {rate}: the speed of PCIe where NVLink is expected"),
            "NVLink is not in use: the fabric manager does not run, the GPU left the NVLink fabric, or links are down"
                .to_owned(),
            format!("nvidia-smi nvlink --status -i {first}; systemctl status nvidia-fabricmanager; nvidia-smi topo -m"),
        ),
        FaultKind::SlowFlag => {
            let slow = pairs.iter().max_by(|a, b| a.flag_us.unwrap_or(0.0).total_cmp(&b.flag_us.unwrap_or(0.0)));
            let (flag, expected) = slow.map_or((0.0, 0.0), |pair| (pair.flag_us.unwrap_or(0.0), pair.expected_flag_us));
            let usual = median(bench.points_under_load(PointKind::Flag, Load::Alone).map(|point| point.time_us)).unwrap_or(0.0);
            (
                format!("{description}: a flag needs {flag:.2} µs, expected {expected:.2}; the median of all is {usual:.2}"),
                "a link with retransmissions, a path through a CPU, or another program on the GPU".to_owned(),
                format!("nvidia-smi nvlink -e -i {first}; nvidia-smi dmon -c 5"),
            )
        }
        FaultKind::SlowBlocks => (
            format!("{description}: thread blocks send {rate}, copy engines at the expected rate"),
            "another program on the GPU's multiprocessors, clocks held low, or stores that cross the link in small pieces"
                .to_owned(),
            format!("nvidia-smi -q -d CLOCK,PERFORMANCE -i {first}; nvidia-smi dmon -c 5"),
        ),
        FaultKind::NotMeasured => {
            let mut missing: Vec<&str> = pairs.iter().flat_map(|pair| pair.missing.iter().copied()).collect();
            missing.sort_unstable();
            missing.dedup();
            (
                format!("{description}: not measured: {}", missing.join(", ")),
                "the run was cut short, or the pair was skipped".to_owned(),
                "fabricast gpu bench --quick".to_owned(),
            )
        }
        _ => (
            format!("{description}: {rate}"),
            slow_link_cause(&bench.probe, &affected, slowest.and_then(|pair| pair.ratio)),
            if single.is_some() || slowest.is_some_and(|pair| is_nvlink(pair.class)) {
                format!("nvidia-smi nvlink --status -i {first}; nvidia-smi nvlink -e -i {first}; nvidia-smi dmon -c 5")
            } else {
                "nvidia-smi topo -m; lspci -vv | grep -e NVIDIA -e LnkSta".to_owned()
            },
        ),
    };
    let worst = pairs.iter().map(|pair| severity(&bench.probe, fault, pair)).min();
    DoctorFinding { severity: worst.unwrap_or(Severity::Fault), fault, gpus: affected, message, cause, command: look }
}

fn no_peer_access(probe: &Probe, affected: &[usize], pairs: &[&PairVerdict]) -> String {
    let cut: Vec<usize> =
        probe.devices.iter().filter(|device| device.mig == Some(true)).map(|device| device.ordinal).collect();
    if affected.iter().any(|gpu| cut.contains(gpu)) {
        return format!("{}: cut into MIG instances, which have no peer access", gpus(&cut));
    }
    if pairs.iter().all(|pair| severity(probe, FaultKind::NoPeerAccess, pair) == Severity::Note) {
        return "usual: the driver gives none between sockets of many machines, and none over PCIe to GeForce"
            .to_owned();
    }
    "peer access is off: an IOMMU or PCIe access control (ACS) in the way, a virtual machine without it, or a driver \
     that denies it to this kind of GPU"
        .to_owned()
}

/// Probable cause of a slow link, derived from the driver's link states if possible.
fn slow_link_cause(probe: &Probe, affected: &[usize], ratio: Option<f64>) -> String {
    for device in probe.devices.iter().filter(|device| affected.contains(&device.ordinal)) {
        let (active, total) = (device.nvlinks.iter().filter(|link| link.active).count(), device.nvlinks.len());
        if active < total {
            return format!("GPU {} has {active} of its {total} NVLinks", device.ordinal);
        }
        if let Some(ratio) = ratio.filter(|_| total > 0) {
            let links = (ratio * total as f64).round();
            if links >= 1.0 && (links / total as f64 - ratio).abs() < 0.02 && links < total as f64 {
                return format!(
                    "the rate of {links} of {total} NVLinks, though the driver shows all of them up: links that run \
                     narrow or retransmit, or another program on the GPU"
                );
            }
        }
    }
    "another program uses the link or the GPU, or the link retransmits".to_owned()
}
