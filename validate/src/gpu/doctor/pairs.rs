//! Pairs of GPUs: measured rates and flag latency, compared with the expectation for their path.

use fabricast_topologies::route::{PathClass, RouteOptions, Router};
use fabricast_topologies::{Fabric, NodeId, Result};
use schemars::JsonSchema;
use serde::Serialize;

use super::FaultKind;
use super::expectations::{self, SLOW, median};
use crate::gpu::bench::{Bench, Load, PointKind};
use crate::gpu::probe::{PeerAccess, Probe, vertex};

/// Maximum ratio of a flag latency to the median of its path class without a fault. Measured latencies between 8 × H200
/// are 0.69–0.78 µs.
const SLOW_FLAG: f64 = 1.5;

/// Verdict on one ordered pair.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PairVerdict {
    /// Ordinal of the sending GPU.
    pub src: usize,
    /// Ordinal of the receiving GPU.
    pub dst: usize,
    /// Class of the path in the fabric, as named by NCCL.
    pub class: PathClass,
    /// Nominal rate of the path in GB/s. `None` if the fabric states none.
    pub nominal_gb_per_s: Option<f64>,
    /// Expected rate of a large copy by a copy engine, in GB/s.
    pub expected_gb_per_s: Option<f64>,
    /// Measured rate of a large copy by a copy engine, in GB/s.
    pub measured_gb_per_s: Option<f64>,
    /// Measured ÷ expected rate.
    pub ratio: Option<f64>,
    /// Rate of a copy engine in GB/s while the opposite direction sends as well.
    pub bidirectional_gb_per_s: Option<f64>,
    /// Expected rate of a large copy by thread blocks, in GB/s.
    pub expected_blocks_gb_per_s: Option<f64>,
    /// Measured rate of a large copy by thread blocks, in GB/s.
    pub blocks_gb_per_s: Option<f64>,
    /// One-way latency of a flag in µs.
    pub flag_us: Option<f64>,
    /// Expected latency of a flag in µs: the latency of the path plus the polling reads.
    pub expected_flag_us: f64,
    /// Latency of the path in µs.
    pub latency_us: f64,
    /// Expected measurements that are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<&'static str>,
    /// The fault; `None` if there is none.
    pub fault: Option<FaultKind>,
}

/// Returns the verdict on every pair.
pub(super) fn verdicts(bench: &Bench, fabric: &Fabric) -> Result<Vec<PairVerdict>> {
    let router = Router::new(fabric, RouteOptions::default());
    let count = bench.probe.devices.len();
    let mut verdicts = Vec::new();
    for src in 0..count {
        for dst in (0..count).filter(|&dst| dst != src) {
            if let (Some(from), Some(to)) = (vertex(fabric, src), vertex(fabric, dst)) {
                verdicts.push(verdict(
                    bench,
                    &router,
                    PairEnd { index: src, node: from },
                    PairEnd { index: dst, node: to },
                )?);
            }
        }
    }
    mark_slow_flags(&mut verdicts);
    Ok(verdicts)
}

/// GPU at one end of a pair, by its CUDA ordinal and its vertex in the fabric.
#[derive(Clone, Copy)]
struct PairEnd {
    index: usize,
    node: NodeId,
}

fn verdict(bench: &Bench, router: &Router<'_>, src: PairEnd, dst: PairEnd) -> Result<PairVerdict> {
    let path = router.path(src.node, dst.node)?;
    let (src, dst) = (src.index, dst.index);
    let nominal = path.bandwidth.map(fabricast_topologies::Bandwidth::gb_per_s);
    let rate = |kind, load| bench.rate(kind, load, Some(src), Some(dst));
    let measured = rate(PointKind::CopyEngine, Load::Alone);
    let expected = nominal.map(|nominal| nominal * expectations::copy_engine_efficiency(path.class));
    let flag = bench
        .points_under_load(PointKind::Flag, Load::Alone)
        .find(|point| point.src == Some(src) && point.dst == Some(dst));
    let mut pair = PairVerdict {
        src,
        dst,
        class: path.class,
        nominal_gb_per_s: nominal,
        expected_gb_per_s: expected,
        measured_gb_per_s: measured,
        ratio: measured.zip(expected).map(|(measured, expected)| measured / expected),
        bidirectional_gb_per_s: rate(PointKind::CopyEngine, Load::Bidirectional),
        expected_blocks_gb_per_s: nominal.map(|nominal| nominal * expectations::thread_block_efficiency(path.class)),
        blocks_gb_per_s: rate(PointKind::Blocks, Load::Alone),
        flag_us: flag.map(|point| point.time_us),
        expected_flag_us: path.latency.us() + expectations::FLAG_POLLING_US,
        latency_us: path.latency.us(),
        missing: Vec::new(),
        fault: None,
    };
    let access = bench.probe.pair(src, dst).map(|pair| pair.access);
    // Thread blocks and flags need peer access, so they are expected only for pairs with it.
    let direct = access == Some(PeerAccess::Direct);
    let required = [
        ("copies", true, pair.measured_gb_per_s),
        ("copies both ways", true, pair.bidirectional_gb_per_s),
        ("thread blocks", direct, pair.blocks_gb_per_s),
        ("flags", direct, pair.flag_us),
    ];
    pair.missing =
        required.iter().filter(|(_, due, figure)| *due && figure.is_none()).map(|(name, ..)| *name).collect();
    pair.fault = fault(bench, &pair, access);
    Ok(pair)
}

/// The most severe fault of a pair, without concurrent load. `access`: peer access between the GPUs, if it is known.
fn fault(bench: &Bench, pair: &PairVerdict, access: Option<PeerAccess>) -> Option<FaultKind> {
    let staged = access == Some(PeerAccess::Staged);
    if staged && pair.class <= PathClass::Phb {
        return Some(FaultKind::NoPeerAccess);
    }
    if let (Some(measured), Some(ratio)) = (pair.measured_gb_per_s, pair.ratio)
        && ratio < SLOW
    {
        let bus = pcie(&bench.probe, pair.src).max(pcie(&bench.probe, pair.dst));
        return Some(if is_nvlink(pair.class) && measured <= bus {
            FaultKind::PcieFallback
        } else {
            FaultKind::SlowLink
        });
    }
    if pair.blocks_ratio().is_some_and(|ratio| ratio < SLOW) {
        return Some(FaultKind::SlowBlocks);
    }
    if !pair.missing.is_empty() {
        return Some(FaultKind::NotMeasured);
    }
    // Many machines without faults grant no peer access between sockets, so this is only a note.
    staged.then_some(FaultKind::NoPeerAccess)
}

impl PairVerdict {
    /// Measured ÷ expected rate of copies by thread blocks. `None` if either is unknown.
    pub(super) fn blocks_ratio(&self) -> Option<f64> {
        self.blocks_gb_per_s.zip(self.expected_blocks_gb_per_s).map(|(measured, expected)| measured / expected)
    }
}

pub(super) fn is_nvlink(class: PathClass) -> bool {
    matches!(class, PathClass::Nvl | PathClass::Nvb)
}

/// Nominal rate of a GPU's PCIe link in GB/s: 0.985 per lane in generation 3, doubled with each later generation. If
/// the machine hides the link, 16 lanes of generation 5 are assumed.
fn pcie(probe: &Probe, gpu: usize) -> f64 {
    let device = probe.devices.get(gpu);
    let generation = device.and_then(|device| device.pci.max_generation).unwrap_or(5).clamp(1, 7);
    let lanes = device.and_then(|device| device.pci.max_width).filter(|&width| width > 0).unwrap_or(16);
    f64::from(lanes) * 0.985 * 2_f64.powi(generation as i32 - 3)
}

/// Marks pairs whose flags are slower than those of other pairs of their class, or slower than their path explains. A
/// fault that was already found takes precedence.
fn mark_slow_flags(verdicts: &mut [PairVerdict]) {
    let middle = |class: PathClass, all_verdicts: &[PairVerdict]| {
        median(all_verdicts.iter().filter(|pair| pair.class == class).filter_map(|pair| pair.flag_us))
    };
    let middles: Vec<Option<f64>> = verdicts.iter().map(|pair| middle(pair.class, verdicts)).collect();
    for (pair, middle) in verdicts.iter_mut().zip(middles) {
        if let (Some(flag), Some(middle), None) = (pair.flag_us, middle, pair.fault)
            && (flag > middle * SLOW_FLAG
                || flag > pair.expected_flag_us * expectations::max_flag_latency_ratio(pair.class))
        {
            pair.fault = Some(FaultKind::SlowFlag);
        }
    }
}
