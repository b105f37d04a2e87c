//! The host's links: each GPU's rate to and from pinned memory against its PCIe link and against its siblings.

use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Fabric, NodeKind};
use serde::Serialize;

use super::expect::{self, SLOW, gpus, median};
use super::{Fault, Finding, Severity};
use crate::gpu::bench::{Bench, Kind, Load};
use crate::gpu::probe::vertex;

/// A GPU further from the memory that was used is slower than those near to it by this part at least: 0.85 is an
/// assumption between what sound siblings differ by (3 % on 8 × H200) and what a way between sockets costs.
const FAR: f64 = 0.85;

/// One way between the host and a GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostVerdict {
    /// The GPU.
    pub gpu: usize,
    /// Which way.
    pub way: Way,
    /// The nominal rate of its link in GB/s; absent where the fabric states none.
    pub nominal_gbps: Option<f64>,
    /// What a large copy should reach.
    pub expected_gbps: Option<f64>,
    /// What it reached.
    pub measured_gbps: Option<f64>,
    /// What is wrong with it, if anything.
    pub fault: Option<Fault>,
}

/// To or from the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// From the host to the GPU.
    ToGpu,
    /// From the GPU to the host.
    FromGpu,
}

/// Judges both ways of every GPU.
pub(super) fn verdicts(bench: &Bench, fabric: &Fabric) -> Vec<HostVerdict> {
    let router = Router::new(fabric, RouteOptions::default());
    let mut verdicts = Vec::new();
    for device in &bench.probe.devices {
        let gpu = device.ordinal;
        let cpus = fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Cpu);
        let nominal = vertex(fabric, gpu).and_then(|to| {
            let rates = cpus.filter_map(|(cpu, _)| router.path(cpu, to).ok()?.bandwidth);
            rates.max().map(fabricast_topologies::Bandwidth::gbps)
        });
        for (way, kind, src, dst) in
            [(Way::ToGpu, Kind::PinnedToDevice, None, Some(gpu)), (Way::FromGpu, Kind::DeviceToPinned, Some(gpu), None)]
        {
            let measured_gbps = bench.rate(kind, Load::Alone, src, dst);
            let expected_gbps =
                nominal.map(|nominal| nominal * expect::reached(fabricast_topologies::route::PathClass::Loc));
            verdicts.push(HostVerdict { gpu, way, nominal_gbps: nominal, expected_gbps, measured_gbps, fault: None });
        }
    }
    for way in [Way::ToGpu, Way::FromGpu] {
        let middle =
            median(verdicts.iter().filter(|verdict| verdict.way == way).filter_map(|verdict| verdict.measured_gbps));
        for verdict in verdicts.iter_mut().filter(|verdict| verdict.way == way) {
            let Some(measured) = verdict.measured_gbps else { continue };
            let below_siblings = middle.is_some_and(|middle| measured < middle * FAR);
            let below_link = verdict.expected_gbps.is_some_and(|expected| measured < expected * SLOW);
            if below_siblings || below_link {
                let far = below_siblings && is_far(bench, verdict.gpu);
                verdict.fault = Some(if far { Fault::NumaDistance } else { Fault::SlowHostLink });
            }
        }
    }
    verdicts
}

/// Whether a GPU sits at another NUMA node than the fastest ones.
fn is_far(bench: &Bench, gpu: usize) -> bool {
    let node = |gpu: usize| bench.probe.devices.get(gpu).map_or(-1, |device| device.pci.numa);
    let rate = |gpu: usize| bench.rate(Kind::PinnedToDevice, Load::Alone, None, Some(gpu)).unwrap_or(0.0);
    let fastest = (0..bench.probe.devices.len()).max_by(|&a, &b| rate(a).total_cmp(&rate(b)));
    fastest.is_some_and(|fastest| node(gpu) >= 0 && node(fastest) >= 0 && node(gpu) != node(fastest))
}

/// What is wrong with the host's links, by GPUs.
pub(super) fn findings(bench: &Bench, verdicts: &[HostVerdict]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for fault in [Fault::NumaDistance, Fault::SlowHostLink] {
        let ill: Vec<&HostVerdict> = verdicts.iter().filter(|verdict| verdict.fault == Some(fault)).collect();
        let mut of: Vec<usize> = ill.iter().map(|verdict| verdict.gpu).collect();
        of.dedup();
        let Some(slowest) = ill.iter().min_by(|a, b| rate(a).total_cmp(&rate(b))) else { continue };
        let best = verdicts.iter().map(rate).fold(0.0, f64::max);
        let against =
            slowest.expected_gbps.map_or_else(String::new, |expected| format!(" of an expected {expected:.1}"));
        let figures = format!("{:.1} GB/s{against}; the best GPU has {best:.1}", rate(slowest));
        let first = of.first().copied().unwrap_or(0);
        findings.push(match fault {
            Fault::NumaDistance => Finding {
                severity: Severity::Fault,
                fault,
                message: format!("{}, to and from the host: {figures}", gpus(&of)),
                cause: format!(
                    "the host's memory lay at another NUMA node than {}: this process ran at the other one",
                    gpus(&of)
                ),
                look: "nvidia-smi topo -m; numactl --hardware; numactl --cpunodebind N --membind N fabricast gpu bench"
                    .to_owned(),
                gpus: of,
            },
            _ => Finding {
                severity: Severity::Fault,
                fault,
                message: format!("{}, to and from the host: {figures}", gpus(&of)),
                cause: narrow(bench, &of),
                look: format!("nvidia-smi -q -d PCIE -i {first}; lspci -vv | grep -e NVIDIA -e LnkSta"),
                gpus: of,
            },
        });
    }
    findings
}

fn rate(verdict: &HostVerdict) -> f64 {
    verdict.measured_gbps.unwrap_or(0.0)
}

/// Why a PCIe link is slow.
fn narrow(bench: &Bench, of: &[usize]) -> String {
    for device in bench.probe.devices.iter().filter(|device| of.contains(&device.ordinal)) {
        let pci = &device.pci;
        if let (Some(width), Some(most)) = (pci.width, pci.max_width)
            && width < most
        {
            let gpu = device.ordinal;
            return format!("GPU {gpu} runs {width} of its {most} PCIe lanes: a card or riser badly seated");
        }
    }
    "the PCIe link runs at a lower generation or width, is shared with busy devices, or the machine's memory is busy"
        .to_owned()
}
