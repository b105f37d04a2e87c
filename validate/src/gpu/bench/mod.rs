//! `gpu bench`: performance of the GPUs of this machine and of their links, without collectives.
//!
//! Measures transfers by copy engines and by thread blocks, alone and concurrent, flags, host links, and launches. One
//! host thread drives each GPU. Times are measured by GPU events, or by the host's clock if the host waits.
//! docs/bench.md describes the file format.

mod date;
mod file;
mod flags;
mod host_links;
mod kernels;
mod lab;
mod launches;
mod setup;
mod text;
mod transfers;

use serde::{Deserialize, Serialize};

use super::probe::Probe;
use crate::cuda::team::Consequence;
use crate::cuda::{CompileError, CudaError};

pub use file::{BenchFileError, FORMAT, VERSION, read};
pub use lab::{Plan, run};
pub use setup::Depth;

/// Result of `gpu bench`, and content of benchmark files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bench {
    /// Value that identifies benchmark files: always `fabricast-bench`.
    pub format: String,
    /// Version of the file format: 1.
    pub version: u32,
    /// Date of the measurement, such as `2026-11-21T04:00:00Z`.
    pub date: String,
    /// Short description of the machine: `4 × NVIDIA H200, driver 580.159.04`.
    pub machine: String,
    /// Inventory of the machine: GPUs, links and libraries.
    pub probe: Probe,
    /// Measured points, in the order of measurement.
    pub points: Vec<BenchPoint>,
    /// Descriptions of the measurements that were skipped, with reasons.
    #[serde(default)]
    pub skipped: Vec<String>,
}

/// Measured time of one quantity under one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchPoint {
    /// Quantity that was measured.
    pub kind: PointKind,
    /// Other traffic during the measurement.
    #[serde(default)]
    pub load: Load,
    /// The GPU that was measured or that sent. `None` for the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src: Option<usize>,
    /// The GPU that received. `None` for the host and without a transfer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst: Option<usize>,
    /// Number of thread blocks, if thread blocks moved the bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u32>,
    /// Threads per block, if thread blocks moved the bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Bytes per transfer; 0 for quantities without a transfer.
    pub bytes: u64,
    /// Time per operation in µs: the median of several rounds.
    pub time_us: f64,
    /// Time of the fastest round in µs.
    pub fastest_us: f64,
    /// Time of the slowest round in µs.
    pub slowest_us: f64,
    /// Bytes ÷ time in GB/s, for transfers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "gbps")]
    pub gb_per_s: Option<f64>,
}

/// Quantity that a point measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PointKind {
    /// Back-to-back copies from `src` to `dst` by a copy engine of `src`. `dst` may equal `src`.
    CopyEngine,
    /// Back-to-back kernels of `src` that store to `dst`. `dst` may equal `src`.
    Blocks,
    /// One-way latency of a flag from `src` to `dst`: half of a round trip with relaxed stores and loads.
    Flag,
    /// Variant of `Flag` with release and acquire, as needed for a flag that follows data.
    OrderedFlag,
    /// Back-to-back copies from pinned host memory to `dst`.
    PinnedToDevice,
    /// Back-to-back copies from `src` to pinned host memory.
    DeviceToPinned,
    /// Copy from pageable host memory to `dst`, timed by the host's clock.
    PageableToDevice,
    /// Copy from `src` to pageable host memory, timed by the host's clock.
    DeviceToPageable,
    /// GPU time per empty kernel, launched back to back.
    LaunchKernel,
    /// Duration of the host's call that launches an empty kernel.
    LaunchKernelCall,
    /// Time from the call that launches an empty kernel until the host detects its completion.
    LaunchKernelWait,
    /// GPU time per graph of one empty kernel, launched back to back.
    LaunchGraph,
    /// Duration of the host's call that launches a graph of one empty kernel.
    LaunchGraphCall,
    /// Time from the call that launches a graph of one empty kernel until the host detects its completion.
    LaunchGraphWait,
    /// GPU time per empty kernel in a graph of a hundred kernels.
    GraphNode,
}

/// Other traffic during a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// No other traffic.
    #[default]
    Alone,
    /// The opposite direction of the pair sends as well.
    #[serde(rename = "both_ways")]
    Bidirectional,
    /// Every GPU sends to the GPU this many ordinals further, modulo the number of GPUs.
    Shift(usize),
    /// Every other GPU sends to `dst`.
    Incast,
    /// Every GPU sends to every other. The time covers all flows of the sender.
    AllToAll,
    /// Every GPU copies to or from the host concurrently.
    AllGpus,
}

impl PointKind {
    /// Returns the value of `kind` in benchmark files.
    pub fn name(self) -> &'static str {
        match self {
            Self::CopyEngine => "copy_engine",
            Self::Blocks => "blocks",
            Self::Flag => "flag",
            Self::OrderedFlag => "ordered_flag",
            Self::PinnedToDevice => "pinned_to_device",
            Self::DeviceToPinned => "device_to_pinned",
            Self::PageableToDevice => "pageable_to_device",
            Self::DeviceToPageable => "device_to_pageable",
            Self::LaunchKernel => "launch_kernel",
            Self::LaunchKernelCall => "launch_kernel_call",
            Self::LaunchKernelWait => "launch_kernel_wait",
            Self::LaunchGraph => "launch_graph",
            Self::LaunchGraphCall => "launch_graph_call",
            Self::LaunchGraphWait => "launch_graph_wait",
            Self::GraphNode => "graph_node",
        }
    }
}

impl Load {
    /// Returns the value of `load` in CSV files. A shift includes its step.
    pub fn name(self) -> String {
        match self {
            Self::Alone => "alone".to_owned(),
            Self::Bidirectional => "both_ways".to_owned(),
            Self::Shift(step) => format!("shift_{step}"),
            Self::Incast => "incast".to_owned(),
            Self::AllToAll => "all_to_all".to_owned(),
            Self::AllGpus => "all_gpus".to_owned(),
        }
    }
}

/// Reasons why the benchmark failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BenchError {
    /// The driver or a GPU failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The kernels do not compile, or NVRTC is missing.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A flag did not arrive within the time limit.
    #[error("a flag from GPU {src} to GPU {dst} did not arrive within {seconds} s: stores to peer memory do not work")]
    FlagLost {
        /// Ordinal of the GPU that sent the flag.
        src: usize,
        /// Ordinal of the GPU that waited for the flag.
        dst: usize,
        /// Time limit of the wait in seconds.
        seconds: u64,
    },
}

impl Consequence for BenchError {
    fn is_consequence(&self) -> bool {
        matches!(self, Self::Cuda(error) if error.is_consequence())
    }
}

impl Bench {
    /// Returns the points of a kind that were measured under a load.
    pub fn points_under_load(&self, kind: PointKind, load: Load) -> impl Iterator<Item = &BenchPoint> {
        self.points.iter().filter(move |point| point.kind == kind && point.load == load)
    }

    /// Rate in GB/s of the largest transfer of a kind between two ends under a load. For thread blocks, the fastest
    /// launch shape is used.
    pub fn rate(&self, kind: PointKind, load: Load, src: Option<usize>, dst: Option<usize>) -> Option<f64> {
        let points = || self.points_under_load(kind, load).filter(|point| point.src == src && point.dst == dst);
        let largest = points().map(|point| point.bytes).max()?;
        points().filter(|point| point.bytes == largest).filter_map(|point| point.gb_per_s).reduce(f64::max)
    }

    /// Restricts the benchmark to the first `count` GPUs. Points whose load involves other GPUs are removed.
    #[must_use]
    pub fn truncate_gpus(mut self, count: usize) -> Self {
        if count >= self.probe.devices.len() {
            return self;
        }
        self.probe.truncate(count);
        self.machine = self.probe.machine();
        let by_itself = |load: Load| matches!(load, Load::Alone | Load::Bidirectional);
        self.points.retain(|point| {
            by_itself(point.load) && [point.src, point.dst].into_iter().flatten().all(|gpu| gpu < count)
        });
        self
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::gpu::probe::tests::machine;

    /// Returns a benchmark of `gpus` H200 GPUs with the given points.
    pub(crate) fn measured(gpus: usize, points: Vec<BenchPoint>) -> Bench {
        let probe = machine(gpus);
        Bench {
            format: FORMAT.into(),
            version: VERSION,
            date: "2026-11-21T04:00:00Z".into(),
            machine: probe.machine(),
            probe,
            points,
            skipped: Vec::new(),
        }
    }

    #[test]
    fn first_gpus_retain_points_without_shared_load() {
        let point = |load, src, dst| BenchPoint {
            kind: PointKind::CopyEngine,
            load,
            src: Some(src),
            dst: Some(dst),
            blocks: None,
            threads: None,
            bytes: 4096,
            time_us: 2.0,
            fastest_us: 2.0,
            slowest_us: 2.0,
            gb_per_s: Some(2.048),
        };
        let retained = [point(Load::Alone, 0, 1), point(Load::Bidirectional, 1, 0)];
        let left = [point(Load::Alone, 0, 2), point(Load::Bidirectional, 2, 0), point(Load::Shift(1), 0, 1)];
        let bench = measured(4, retained.iter().chain(&left).cloned().collect());
        let two = bench.clone().truncate_gpus(2);
        assert_eq!(two.points, retained);
        assert_eq!(two.probe, machine(2));
        assert_eq!(two.machine, machine(2).machine());
        assert_eq!(bench.clone().truncate_gpus(4), bench);
    }
}
