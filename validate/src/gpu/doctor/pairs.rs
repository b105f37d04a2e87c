//! Pairs of GPUs: rate and flag of each against what its way should give, and what slow pairs have in common.

use fabricast_topologies::route::{PathClass, RouteOptions, Router};
use fabricast_topologies::{Fabric, NodeId, Result};
use serde::Serialize;

use super::expect::{self, SLOW, gpus, median};
use super::{Fault, Finding, Severity};
use crate::gpu::bench::{Bench, Kind, Load};
use crate::gpu::probe::{PeerAccess, Probe, vertex};

/// How far a flag may take longer than the middle of its class: 0.69–0.78 µs were seen between 8 × H200.
const SLOW_FLAG: f64 = 1.5;

/// One ordered pair.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairVerdict {
    /// The GPU that sends.
    pub src: usize,
    /// The GPU that receives.
    pub dst: usize,
    /// Its way in the fabric, in NCCL's words.
    pub class: PathClass,
    /// The way's nominal rate in GB/s; absent where the fabric states none.
    pub nominal_gbps: Option<f64>,
    /// What a large copy should reach.
    pub expected_gbps: Option<f64>,
    /// What it reached.
    pub measured_gbps: Option<f64>,
    /// Measured ÷ expected.
    pub ratio: Option<f64>,
    /// What a flag takes, one way.
    pub flag_us: Option<f64>,
    /// What it should take: the latency of the way.
    pub latency_us: f64,
    /// What is wrong with it, if anything.
    pub fault: Option<Fault>,
}

/// Judges every pair.
pub(super) fn verdicts(bench: &Bench, fabric: &Fabric) -> Result<Vec<PairVerdict>> {
    let router = Router::new(fabric, RouteOptions::default());
    let count = bench.probe.devices.len();
    let mut verdicts = Vec::new();
    for src in 0..count {
        for dst in (0..count).filter(|&dst| dst != src) {
            if let (Some(from), Some(to)) = (vertex(fabric, src), vertex(fabric, dst)) {
                verdicts.push(verdict(bench, &router, (src, from), (dst, to))?);
            }
        }
    }
    flags(&mut verdicts);
    Ok(verdicts)
}

fn verdict(bench: &Bench, router: &Router<'_>, src: (usize, NodeId), dst: (usize, NodeId)) -> Result<PairVerdict> {
    let path = router.path(src.1, dst.1)?;
    let (src, dst) = (src.0, dst.0);
    let nominal = path.bandwidth.map(fabricast_topologies::Bandwidth::gbps);
    let expected = nominal.map(|nominal| nominal * expect::reached(path.class));
    let measured = bench.rate(Kind::CopyEngine, Load::Alone, Some(src), Some(dst));
    let ratio = measured.zip(expected).map(|(measured, expected)| measured / expected);
    let flag = bench.points_of(Kind::Flag, Load::Alone).find(|point| point.src == Some(src) && point.dst == Some(dst));
    let access = bench.probe.pair(src, dst).map(|pair| pair.access);
    let over_nvlink = over_nvlink(path.class);
    let fault = match (measured, ratio) {
        _ if access == Some(PeerAccess::Staged) && (over_nvlink || path.class <= PathClass::Pxb) => {
            Some(Fault::NoPeerAccess)
        }
        (None, _) => Some(Fault::NotMeasured),
        (Some(measured), Some(ratio)) if ratio < SLOW => {
            let bus = pcie(&bench.probe, src).max(pcie(&bench.probe, dst));
            Some(if over_nvlink && measured <= bus { Fault::PcieFallback } else { Fault::SlowLink })
        }
        _ => None,
    };
    Ok(PairVerdict {
        src,
        dst,
        class: path.class,
        nominal_gbps: nominal,
        expected_gbps: expected,
        measured_gbps: measured,
        ratio,
        flag_us: flag.map(|point| point.time_us),
        latency_us: path.latency.us(),
        fault,
    })
}

pub(super) fn over_nvlink(class: PathClass) -> bool {
    matches!(class, PathClass::Nvl | PathClass::Nvb)
}

/// What a GPU's PCIe link carries, by data sheet: 0.985 GB/s for each lane of generation 3, twice that for each further
/// one. Sixteen lanes of generation 5 where the machine hides it.
fn pcie(probe: &Probe, gpu: usize) -> f64 {
    let device = probe.devices.get(gpu);
    let generation = device.and_then(|device| device.pci.max_generation).unwrap_or(5).clamp(1, 7);
    let lanes = device.and_then(|device| device.pci.max_width).filter(|&width| width > 0).unwrap_or(16);
    f64::from(lanes) * 0.985 * 2_f64.powi(generation as i32 - 3)
}

/// Marks flags that take longer than others of their class; a pair with a worse fault keeps that.
fn flags(verdicts: &mut [PairVerdict]) {
    let middle = |class: PathClass, all: &[PairVerdict]| {
        median(all.iter().filter(|pair| pair.class == class).filter_map(|pair| pair.flag_us))
    };
    let middles: Vec<Option<f64>> = verdicts.iter().map(|pair| middle(pair.class, verdicts)).collect();
    for (pair, middle) in verdicts.iter_mut().zip(middles) {
        if let (Some(flag), Some(middle), None) = (pair.flag_us, middle, pair.fault)
            && flag > middle * SLOW_FLAG
        {
            pair.fault = Some(Fault::SlowFlag);
        }
    }
}

/// What the pairs' faults have in common.
pub(super) fn findings(bench: &Bench, pairs: &[PairVerdict]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for fault in [Fault::NoPeerAccess, Fault::PcieFallback, Fault::SlowLink, Fault::SlowFlag, Fault::NotMeasured] {
        let ill: Vec<&PairVerdict> = pairs.iter().filter(|pair| pair.fault == Some(fault)).collect();
        findings.extend(groups(bench, pairs, &ill, fault));
    }
    findings.extend(together(bench, pairs));
    findings
}

/// Which ways of a GPU are ill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ways {
    Out,
    Into,
    Both,
}

/// One finding for all pairs, or for each GPU whose ways are all ill, then for each pair that is left.
fn groups(bench: &Bench, pairs: &[PairVerdict], ill: &[&PairVerdict], fault: Fault) -> Vec<Finding> {
    if ill.is_empty() {
        return Vec::new();
    }
    let count = bench.probe.devices.len();
    if ill.len() == pairs.len() && count > 2 {
        let everyone: Vec<usize> = (0..count).collect();
        return vec![finding(bench, fault, everyone, "every pair of GPUs", ill, None)];
    }
    let mut findings = Vec::new();
    let mut left: Vec<&PairVerdict> = ill.to_vec();
    for gpu in (0..count).filter(|_| count > 2) {
        let others = count - 1;
        let out = ill.iter().filter(|pair| pair.src == gpu).count() == others;
        let into = ill.iter().filter(|pair| pair.dst == gpu).count() == others;
        let (ways, words) = match (out, into) {
            (true, true) => (Ways::Both, format!("GPU {gpu}, to and from every other")),
            (true, false) => (Ways::Out, format!("GPU {gpu}, sending to every other")),
            (false, true) => (Ways::Into, format!("GPU {gpu}, receiving from every other")),
            (false, false) => continue,
        };
        let of_gpu = |pair: &&PairVerdict| match ways {
            Ways::Out => pair.src == gpu,
            Ways::Into => pair.dst == gpu,
            Ways::Both => pair.src == gpu || pair.dst == gpu,
        };
        // A pair whose other end is the ill GPU is already told of.
        let own: Vec<&PairVerdict> = left.iter().copied().filter(of_gpu).collect();
        if !own.is_empty() {
            left.retain(|pair| !of_gpu(pair));
            findings.push(finding(bench, fault, vec![gpu], &words, &own, Some(gpu)));
        }
    }
    while let Some(pair) = left.first().copied() {
        let (back, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(|other| {
            (other.src, other.dst) == (pair.src, pair.dst) || (other.src, other.dst) == (pair.dst, pair.src)
        });
        left = rest;
        let words = if back.len() == 2 {
            format!("between GPU {} and GPU {}", pair.src, pair.dst)
        } else {
            format!("from GPU {} to GPU {}", pair.src, pair.dst)
        };
        findings.push(finding(bench, fault, vec![pair.src, pair.dst], &words, &back, None));
    }
    findings
}

/// A finding on some pairs; `single` is the GPU that all of them share.
fn finding(
    bench: &Bench,
    fault: Fault,
    of: Vec<usize>,
    words: &str,
    pairs: &[&PairVerdict],
    single: Option<usize>,
) -> Finding {
    let slowest = pairs.iter().min_by(|a, b| a.ratio.unwrap_or(0.0).total_cmp(&b.ratio.unwrap_or(0.0)));
    let rate = slowest.map_or_else(String::new, |pair| match (pair.measured_gbps, pair.expected_gbps) {
        (Some(measured), Some(expected)) => format!("{measured:.0} GB/s of an expected {expected:.0}"),
        (Some(measured), None) => format!("{measured:.0} GB/s"),
        _ => "not measured".to_owned(),
    });
    let first = of.first().copied().unwrap_or(0);
    let (message, cause, look) = match fault {
        Fault::NoPeerAccess => (
            format!("{words}: no peer access, so bytes rest in the host's memory ({rate})"),
            no_peer_access(&bench.probe, &of),
            "nvidia-smi topo -p2p rw; dmesg | grep -i -e iommu -e nvrm".to_owned(),
        ),
        Fault::PcieFallback => (
            format!("{words}: {rate}: the speed of PCIe where NVLink is expected"),
            "NVLink is not in use: the fabric manager does not run, the GPU left the NVLink fabric, or links are down"
                .to_owned(),
            format!("nvidia-smi nvlink --status -i {first}; systemctl status nvidia-fabricmanager; nvidia-smi topo -m"),
        ),
        Fault::SlowFlag => {
            let flag = pairs.iter().filter_map(|pair| pair.flag_us).reduce(f64::max).unwrap_or(0.0);
            let usual = median(bench.points_of(Kind::Flag, Load::Alone).map(|point| point.time_us)).unwrap_or(0.0);
            (
                format!("{words}: a flag takes {flag:.2} µs, between others {usual:.2} µs"),
                "a link that repeats what it sends, a way through a CPU, or another program on the GPU".to_owned(),
                format!("nvidia-smi nvlink -e -i {first}; nvidia-smi dmon -c 5"),
            )
        }
        Fault::NotMeasured => (
            format!("{words}: not measured"),
            "the run was cut short, or the pair was left out".to_owned(),
            "fabricast gpu bench --quick".to_owned(),
        ),
        _ => (
            format!("{words}: {rate}"),
            slow(&bench.probe, &of, slowest.and_then(|pair| pair.ratio)),
            if single.is_some() || slowest.is_some_and(|pair| over_nvlink(pair.class)) {
                format!("nvidia-smi nvlink --status -i {first}; nvidia-smi nvlink -e -i {first}; nvidia-smi dmon -c 5")
            } else {
                "nvidia-smi topo -m; lspci -vv | grep -e NVIDIA -e LnkSta".to_owned()
            },
        ),
    };
    Finding { severity: Severity::Fault, fault, gpus: of, message, cause, look }
}

fn no_peer_access(probe: &Probe, of: &[usize]) -> String {
    let cut: Vec<usize> =
        probe.devices.iter().filter(|device| device.mig == Some(true)).map(|device| device.ordinal).collect();
    if of.iter().any(|gpu| cut.contains(gpu)) {
        return format!("{}: cut into MIG instances, which have no peer access", gpus(&cut));
    }
    "peer access is off: an IOMMU or PCIe access control (ACS) in the way, a virtual machine without it, or a driver \
     that denies it to this kind of GPU"
        .to_owned()
}

/// Why a link is slow: what the driver says of its links explains it, or it does not.
fn slow(probe: &Probe, of: &[usize], ratio: Option<f64>) -> String {
    for device in probe.devices.iter().filter(|device| of.contains(&device.ordinal)) {
        let (up, all) = (device.nvlinks.iter().filter(|link| link.active).count(), device.nvlinks.len());
        if up < all {
            return format!("GPU {} has {up} of its {all} NVLinks", device.ordinal);
        }
        if let Some(ratio) = ratio.filter(|_| all > 0) {
            let links = (ratio * all as f64).round();
            if links >= 1.0 && (links / all as f64 - ratio).abs() < 0.02 && links < all as f64 {
                return format!(
                    "the rate of {links} of {all} NVLinks, though the driver shows all of them up: links that run \
                     narrow or repeat what they send, or another program on the GPU"
                );
            }
        }
    }
    "another program uses the link or the GPU, or the link repeats what it sends".to_owned()
}

/// Pairs joined by NVLink that are fast alone and slow when all GPUs send at once.
fn together(bench: &Bench, pairs: &[PairVerdict]) -> Option<Finding> {
    let mut worst: Option<(f64, usize, usize, f64, f64)> = None;
    for pair in pairs.iter().filter(|pair| over_nvlink(pair.class) && pair.fault.is_none()) {
        let Some(alone) = pair.measured_gbps else { continue };
        let shifts = bench.points.iter().filter(|point| {
            point.kind == Kind::CopyEngine
                && matches!(point.load, Load::Shift(_))
                && (point.src, point.dst) == (Some(pair.src), Some(pair.dst))
        });
        for rate in shifts.filter_map(|point| point.gbps) {
            if rate < alone * 0.85 && worst.is_none_or(|(ratio, ..)| rate / alone < ratio) {
                worst = Some((rate / alone, pair.src, pair.dst, rate, alone));
            }
        }
    }
    let (_, src, dst, rate, alone) = worst?;
    Some(Finding {
        severity: Severity::Fault,
        fault: Fault::SlowTogether,
        gpus: vec![src, dst],
        message: format!(
            "from GPU {src} to GPU {dst}: {rate:.0} GB/s while every GPU sends to another, {alone:.0} GB/s alone"
        ),
        cause: "a switch with fewer links than its GPUs, or another program on the same switches".to_owned(),
        look: "nvidia-smi nvlink --status; nvidia-smi nvlink -gt d".to_owned(),
    })
}
