//! Pairs of GPUs: rates and flag of each against what its way should give.

use fabricast_topologies::route::{PathClass, RouteOptions, Router};
use fabricast_topologies::{Fabric, NodeId, Result};
use serde::Serialize;

use super::Fault;
use super::expect::{self, SLOW, median};
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
    /// What a large copy by a copy engine should reach.
    pub expected_gbps: Option<f64>,
    /// What it reached.
    pub measured_gbps: Option<f64>,
    /// Measured ÷ expected.
    pub ratio: Option<f64>,
    /// What a copy engine reached while the other way sent too.
    pub both_ways_gbps: Option<f64>,
    /// What a large copy by thread blocks should reach.
    pub expected_blocks_gbps: Option<f64>,
    /// What it reached.
    pub blocks_gbps: Option<f64>,
    /// What a flag takes, one way.
    pub flag_us: Option<f64>,
    /// What it should take: the latency of the way and the reads that wait for it.
    pub expected_flag_us: f64,
    /// The latency of the way.
    pub latency_us: f64,
    /// What should have been measured of it and was not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<&'static str>,
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
    let rate = |kind, load| bench.rate(kind, load, Some(src), Some(dst));
    let measured = rate(Kind::CopyEngine, Load::Alone);
    let expected = nominal.map(|nominal| nominal * expect::reached(path.class));
    let flag = bench.points_of(Kind::Flag, Load::Alone).find(|point| point.src == Some(src) && point.dst == Some(dst));
    let mut pair = PairVerdict {
        src,
        dst,
        class: path.class,
        nominal_gbps: nominal,
        expected_gbps: expected,
        measured_gbps: measured,
        ratio: measured.zip(expected).map(|(measured, expected)| measured / expected),
        both_ways_gbps: rate(Kind::CopyEngine, Load::BothWays),
        expected_blocks_gbps: nominal.map(|nominal| nominal * expect::reached_by_blocks(path.class)),
        blocks_gbps: rate(Kind::Blocks, Load::Alone),
        flag_us: flag.map(|point| point.time_us),
        expected_flag_us: path.latency.us() + expect::WAITING_US,
        latency_us: path.latency.us(),
        missing: Vec::new(),
        fault: None,
    };
    let access = bench.probe.pair(src, dst).map(|pair| pair.access);
    // Thread blocks and flags need peer access.
    let direct = access == Some(PeerAccess::Direct);
    let wanted = [
        ("copies", true, pair.measured_gbps),
        ("copies both ways", true, pair.both_ways_gbps),
        ("thread blocks", direct, pair.blocks_gbps),
        ("flags", direct, pair.flag_us),
    ];
    pair.missing = wanted.iter().filter(|(_, due, figure)| *due && figure.is_none()).map(|(what, ..)| *what).collect();
    pair.fault = fault(bench, &pair, access == Some(PeerAccess::Staged));
    Ok(pair)
}

/// The worst that is wrong with a pair by itself.
fn fault(bench: &Bench, pair: &PairVerdict, staged: bool) -> Option<Fault> {
    if staged && pair.class <= PathClass::Phb {
        return Some(Fault::NoPeerAccess);
    }
    if let (Some(measured), Some(ratio)) = (pair.measured_gbps, pair.ratio)
        && ratio < SLOW
    {
        let bus = pcie(&bench.probe, pair.src).max(pcie(&bench.probe, pair.dst));
        return Some(if over_nvlink(pair.class) && measured <= bus { Fault::PcieFallback } else { Fault::SlowLink });
    }
    if pair.blocks_ratio().is_some_and(|ratio| ratio < SLOW) {
        return Some(Fault::SlowBlocks);
    }
    if !pair.missing.is_empty() {
        return Some(Fault::NotMeasured);
    }
    // Between sockets many sound machines give none: worth knowing, no more.
    staged.then_some(Fault::NoPeerAccess)
}

impl PairVerdict {
    /// What thread blocks reached ÷ what they should.
    pub(super) fn blocks_ratio(&self) -> Option<f64> {
        self.blocks_gbps.zip(self.expected_blocks_gbps).map(|(measured, expected)| measured / expected)
    }
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

/// Marks flags that take longer than others of their class, or than their way explains; a pair with a worse fault keeps
/// that.
fn flags(verdicts: &mut [PairVerdict]) {
    let middle = |class: PathClass, all: &[PairVerdict]| {
        median(all.iter().filter(|pair| pair.class == class).filter_map(|pair| pair.flag_us))
    };
    let middles: Vec<Option<f64>> = verdicts.iter().map(|pair| middle(pair.class, verdicts)).collect();
    for (pair, middle) in verdicts.iter_mut().zip(middles) {
        if let (Some(flag), Some(middle), None) = (pair.flag_us, middle, pair.fault)
            && (flag > middle * SLOW_FLAG || flag > pair.expected_flag_us * expect::flag_room(pair.class))
        {
            pair.fault = Some(Fault::SlowFlag);
        }
    }
}
