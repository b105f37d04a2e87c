//! `gpu bench`: how fast the GPUs of this machine and their links are, without any collective.
//!
//! Transfers by copy engines and by thread blocks, alone and together, flags, the host's links, and launches. A host
//! thread drives each GPU; times are those of events on the GPU, or of the host's clock where the host waits. The file
//! is described in docs/bench.md.

mod date;
mod file;
mod flags;
mod host_links;
mod kernels;
mod lab;
mod launches;
mod text;
mod transfers;

use serde::{Deserialize, Serialize};

use super::probe::Probe;
use crate::cuda::team::Consequence;
use crate::cuda::{CompileError, CudaError};

pub use file::{BenchFileError, FORMAT, VERSION, read};
pub use lab::{Depth, Plan, run};

/// What `gpu bench` measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bench {
    /// Always `fabricast-bench`.
    pub format: String,
    /// Version of the format: 1.
    pub version: u32,
    /// When, as `2026-11-21T04:00:00Z`.
    pub date: String,
    /// The machine in a few words: `4 × NVIDIA H200, driver 580.159.04`.
    pub machine: String,
    /// What the machine is.
    pub probe: Probe,
    /// What was measured.
    pub points: Vec<Point>,
    /// What could not be measured, and why.
    #[serde(default)]
    pub skipped: Vec<String>,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// What was measured.
    pub kind: Kind,
    /// What else ran at the same time.
    #[serde(default)]
    pub load: Load,
    /// The GPU that it was measured on, or that sent; absent for the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src: Option<usize>,
    /// The GPU that received; absent for the host and where nothing is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst: Option<usize>,
    /// Thread blocks, where these moved the bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u32>,
    /// Threads of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Bytes of each transfer; 0 where nothing is sent.
    pub bytes: u64,
    /// Time of one, the median of several rounds, in µs.
    pub time_us: f64,
    /// The fastest round.
    pub fastest_us: f64,
    /// The slowest.
    pub slowest_us: f64,
    /// Bytes ÷ time in GB/s, where bytes were sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gbps: Option<f64>,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A copy engine of `src` copies to `dst`, one copy after the other. `dst` may be `src`.
    CopyEngine,
    /// Thread blocks of `src` store to `dst`, one kernel after the other. `dst` may be `src`.
    Blocks,
    /// A flag goes from `src` to `dst`, one way: half of a round trip. Relaxed stores and loads.
    Flag,
    /// The same with a release and an acquire, as a flag that follows data needs.
    OrderedFlag,
    /// From pinned memory of the host to `dst`.
    PinnedToDevice,
    /// From `src` to pinned memory of the host.
    DeviceToPinned,
    /// From ordinary memory of the host to `dst`, by the host's clock.
    PageableToDevice,
    /// From `src` to ordinary memory of the host, by the host's clock.
    DeviceToPageable,
    /// An empty kernel, back to back: what each takes the GPU.
    LaunchKernel,
    /// The host's call that launches it.
    LaunchKernelCall,
    /// From that call until the host sees that it is done.
    LaunchKernelWait,
    /// A graph of one empty kernel, back to back.
    LaunchGraph,
    /// The host's call that launches it.
    LaunchGraphCall,
    /// From that call until the host sees that it is done.
    LaunchGraphWait,
    /// An empty kernel within a graph of a hundred.
    GraphNode,
}

/// What ran at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Nothing.
    #[default]
    Alone,
    /// The same the other way round.
    BothWays,
    /// Every GPU sends to the one so many further on.
    Shift(usize),
    /// Every other GPU sends to `dst`.
    Incast,
    /// Every GPU sends to every other; the time is that of all its flows.
    AllToAll,
    /// The same on every GPU.
    AllGpus,
}

impl Kind {
    /// Its name, as in the file.
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
    /// Its name; of a shift with its step.
    pub fn name(self) -> String {
        match self {
            Self::Alone => "alone".to_owned(),
            Self::BothWays => "both_ways".to_owned(),
            Self::Shift(step) => format!("shift_{step}"),
            Self::Incast => "incast".to_owned(),
            Self::AllToAll => "all_to_all".to_owned(),
            Self::AllGpus => "all_gpus".to_owned(),
        }
    }
}

/// Why nothing was measured.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BenchError {
    /// The driver or a GPU failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The kernels do not compile, or there is no compiler.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A flag did not arrive.
    #[error("a flag from GPU {src} to GPU {dst} did not arrive within {seconds} s: stores to a peer do not get there")]
    FlagLost {
        /// The GPU that sent it.
        src: usize,
        /// The GPU that waited.
        dst: usize,
        /// How long.
        seconds: u64,
    },
}

impl Consequence for BenchError {
    fn is_consequence(&self) -> bool {
        matches!(self, Self::Cuda(error) if error.is_consequence())
    }
}

impl Bench {
    /// Points of a kind under a load.
    pub fn points_of(&self, kind: Kind, load: Load) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(move |point| point.kind == kind && point.load == load)
    }

    /// The rate of the largest transfer between two GPUs by a kind, alone; with thread blocks, of the best shape.
    pub fn rate(&self, kind: Kind, load: Load, src: Option<usize>, dst: Option<usize>) -> Option<f64> {
        let points = || self.points_of(kind, load).filter(|point| point.src == src && point.dst == dst);
        let largest = points().map(|point| point.bytes).max()?;
        points().filter(|point| point.bytes == largest).filter_map(|point| point.gbps).reduce(f64::max)
    }

    /// What was measured of the first `count` GPUs by themselves; what ran beside further ones is left out.
    #[must_use]
    pub fn first(mut self, count: usize) -> Self {
        if count >= self.probe.devices.len() {
            return self;
        }
        self.probe.keep_first(count);
        self.machine = self.probe.machine();
        let by_itself = |load: Load| matches!(load, Load::Alone | Load::BothWays);
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

    /// What was measured on a machine of so many GPUs.
    pub(crate) fn measured(gpus: usize, points: Vec<Point>) -> Bench {
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
    fn the_first_gpus_keep_what_they_did_by_themselves() {
        let point = |load, src, dst| Point {
            kind: Kind::CopyEngine,
            load,
            src: Some(src),
            dst: Some(dst),
            blocks: None,
            threads: None,
            bytes: 4096,
            time_us: 2.0,
            fastest_us: 2.0,
            slowest_us: 2.0,
            gbps: Some(2.048),
        };
        let kept = [point(Load::Alone, 0, 1), point(Load::BothWays, 1, 0)];
        let left = [point(Load::Alone, 0, 2), point(Load::BothWays, 2, 0), point(Load::Shift(1), 0, 1)];
        let bench = measured(4, kept.iter().chain(&left).cloned().collect());
        let two = bench.clone().first(2);
        assert_eq!(two.points, kept);
        assert_eq!(two.probe, machine(2));
        assert_eq!(two.machine, machine(2).machine());
        assert_eq!(bench.clone().first(4), bench);
    }
}
