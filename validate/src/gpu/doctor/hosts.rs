//! Verdicts on host links: each GPU's rate to and from pinned memory, alone and while all GPUs copy, compared with its
//! PCIe link and with the other GPUs.

use std::cmp::Reverse;
use std::collections::HashMap;

use fabricast_topologies::route::{Path, PathClass, RouteOptions, Router};
use fabricast_topologies::{Bandwidth, Fabric, LinkId, NodeKind};
use schemars::JsonSchema;
use serde::Serialize;

use super::FaultKind;
use super::expectations::{self, MIN_HOST_MEMORY_GBPS, MIN_LOADED_HOST_SHARE, SLOW, median};
use crate::gpu::bench::{Bench, Load, PointKind};
use crate::gpu::probe::vertex;

/// Fraction of the median rate below which a GPU is assumed to be on another NUMA node than the host memory in use. An
/// assumption: the value lies between the spread of GPUs without faults (3 % on 8 × H200) and the reduction by a path
/// between sockets.
const FAR_NUMA_SHARE: f64 = 0.85;

/// Verdict on one direction between the host and a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct HostVerdict {
    /// Ordinal of the GPU.
    pub gpu: usize,
    /// Direction of the copies.
    pub direction: HostDirection,
    /// Nominal rate of the link in GB/s. `None` if the fabric states none.
    pub nominal_gb_per_s: Option<f64>,
    /// Expected rate of a large copy in GB/s.
    pub expected_gb_per_s: Option<f64>,
    /// Measured rate in GB/s.
    pub measured_gb_per_s: Option<f64>,
    /// Minimum rate in GB/s expected while all GPUs copy, given the shared links and the host memory. `None` for a
    /// single GPU.
    pub expected_concurrent_gb_per_s: Option<f64>,
    /// Measured rate in GB/s while all GPUs copy.
    pub concurrent_gb_per_s: Option<f64>,
    /// The fault; `None` if there is none.
    pub fault: Option<FaultKind>,
}

/// Direction of a copy between host and GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostDirection {
    /// From the host to the GPU.
    ToGpu,
    /// From the GPU to the host.
    FromGpu,
}

/// Returns the verdicts on both directions of every GPU.
pub(super) fn verdicts(bench: &Bench, fabric: &Fabric) -> Vec<HostVerdict> {
    let mut verdicts = Vec::new();
    for direction in [HostDirection::ToGpu, HostDirection::FromGpu] {
        let count = bench.probe.devices.len();
        let paths: Vec<Option<Path>> = (0..count).map(|gpu| nearest_cpu_path(fabric, gpu, direction)).collect();
        let crossings = crossings(&paths);
        let mut candidates: Vec<HostVerdict> = paths
            .iter()
            .enumerate()
            .map(|(gpu, path)| verdict(bench, fabric, gpu, direction, path.as_ref(), &crossings))
            .collect();
        let middle = median(candidates.iter().filter_map(|verdict| verdict.measured_gb_per_s));
        for verdict in &mut candidates {
            verdict.fault = fault(bench, verdict, middle);
        }
        verdicts.extend(candidates);
    }
    verdicts.sort_by_key(|verdict| verdict.gpu);
    verdicts
}

/// Path between the host and a GPU in the given direction. Of the paths to or from all CPUs, the one with the highest
/// bandwidth and then the lowest latency is used. `None` if no path has a known bandwidth.
fn nearest_cpu_path(fabric: &Fabric, gpu: usize, direction: HostDirection) -> Option<Path> {
    let router = Router::new(fabric, RouteOptions::default());
    let vertex = vertex(fabric, gpu)?;
    let cpus = fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Cpu);
    let paths = cpus.filter_map(|(cpu, _)| match direction {
        HostDirection::ToGpu => router.path(cpu, vertex).ok(),
        HostDirection::FromGpu => router.path(vertex, cpu).ok(),
    });
    paths.filter(|path| path.bandwidth.is_some()).max_by_key(|path| (path.bandwidth, Reverse(path.latency)))
}

/// Number of paths that use each link.
fn crossings(paths: &[Option<Path>]) -> HashMap<LinkId, usize> {
    let mut counts = HashMap::new();
    for link in paths.iter().flatten().flat_map(Path::links) {
        *counts.entry(link).or_insert(0) += 1;
    }
    counts
}

fn verdict(
    bench: &Bench,
    fabric: &Fabric,
    gpu: usize,
    direction: HostDirection,
    path: Option<&Path>,
    crossings: &HashMap<LinkId, usize>,
) -> HostVerdict {
    let (kind, src, dst) = match direction {
        HostDirection::ToGpu => (PointKind::PinnedToDevice, None, Some(gpu)),
        HostDirection::FromGpu => (PointKind::DeviceToPinned, Some(gpu), None),
    };
    let efficiency = expectations::copy_engine_efficiency(PathClass::Loc);
    let nominal_gb_per_s = path.and_then(|path| path.bandwidth).map(Bandwidth::gb_per_s);
    // Equal share of each link on the path, if every GPU that uses the link sends at the same rate.
    let left = path.into_iter().flat_map(Path::links).filter_map(|link| {
        let rate = fabric.link(link).bandwidth?.gb_per_s();
        Some(rate / crossings.get(&link).copied().unwrap_or(1) as f64)
    });
    let count = bench.probe.devices.len();
    let min_bandwidth = left.reduce(f64::min).filter(|_| count > 1);
    HostVerdict {
        gpu,
        direction,
        nominal_gb_per_s,
        expected_gb_per_s: nominal_gb_per_s.map(|nominal| nominal * efficiency),
        measured_gb_per_s: bench.rate(kind, Load::Alone, src, dst),
        expected_concurrent_gb_per_s: min_bandwidth
            .map(|min_bandwidth| (min_bandwidth * efficiency).min(MIN_HOST_MEMORY_GBPS / count as f64)),
        concurrent_gb_per_s: bench.rate(kind, Load::AllGpus, src, dst),
        fault: None,
    }
}

/// Fault of one direction of a host link; `None` if there is none. `middle`: median rate of all GPUs in this direction,
/// in GB/s.
fn fault(bench: &Bench, verdict: &HostVerdict, middle: Option<f64>) -> Option<FaultKind> {
    let Some(measured) = verdict.measured_gb_per_s else { return Some(FaultKind::NotMeasured) };
    let below_siblings = middle.is_some_and(|middle| measured < middle * FAR_NUMA_SHARE);
    let below_link = verdict.expected_gb_per_s.is_some_and(|expected| measured < expected * SLOW);
    if below_siblings || below_link {
        let is_remote = below_siblings && is_remote_numa_node(bench, verdict.gpu);
        return Some(if is_remote { FaultKind::NumaDistance } else { FaultKind::SlowHostLink });
    }
    let (concurrent, expected) = verdict.concurrent_gb_per_s.zip(verdict.expected_concurrent_gb_per_s)?;
    (concurrent < expected * MIN_LOADED_HOST_SHARE).then_some(FaultKind::SlowUnderLoad)
}

/// Returns true if a GPU is on another NUMA node than the GPU with the fastest host link.
fn is_remote_numa_node(bench: &Bench, gpu: usize) -> bool {
    let node = |gpu: usize| bench.probe.devices.get(gpu).map_or(-1, |device| device.pci.numa);
    let rate = |gpu: usize| bench.rate(PointKind::PinnedToDevice, Load::Alone, None, Some(gpu)).unwrap_or(0.0);
    let fastest = (0..bench.probe.devices.len()).max_by(|&a, &b| rate(a).total_cmp(&rate(b)));
    fastest.is_some_and(|fastest| node(gpu) >= 0 && node(fastest) >= 0 && node(gpu) != node(fastest))
}
