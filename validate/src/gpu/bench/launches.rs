//! Launch overheads of an empty kernel, of a graph with one kernel, and per kernel of a long graph.
#![expect(unsafe_code, reason = "a kernel is launched")]

use std::time::Instant;

use fabricast_topologies::{Bytes, Picos};

use super::setup::{BenchSetup, Gpu, point};
use super::{Bench, BenchError, BenchPoint, Load, PointKind};
use crate::cuda::{Arguments, CudaError, Event, Graph, Launch, Stream, Watchdog};

/// Number of launches per round; `ROUNDS` is the number of timed rounds.
const LAUNCHES: u32 = 200;
const ROUNDS: usize = 5;
/// Number of kernels in the long graph.
const NODES: u32 = 100;

/// Measures the launch overheads of every GPU.
pub(super) fn measure(lab: &BenchSetup, bench: &mut Bench) -> Result<(), BenchError> {
    for gpu in &lab.gpus {
        let stream = Stream::new(&gpu.context)?;
        let kernel = || launch(gpu, &stream);
        let launch_repeatedly = || (0..NODES).try_for_each(|_| launch(gpu, &stream));
        // SAFETY: the kernel accesses no memory.
        let (single, long) =
            unsafe { (Graph::capture(&stream, &kernel)?, Graph::capture(&stream, &launch_repeatedly)?) };
        let graph = || single.launch(&stream);
        let nodes = || long.launch(&stream);
        let on_gpu = |point: BenchPoint| BenchPoint { src: Some(gpu.context.ordinal()), ..point };
        let timed = LaunchTimer { gpu, stream: &stream, watchdog: &lab.watchdog };
        for (work, kinds) in [
            (
                &kernel as &dyn Fn() -> Result<(), CudaError>,
                [PointKind::LaunchKernel, PointKind::LaunchKernelCall, PointKind::LaunchKernelWait],
            ),
            (&graph, [PointKind::LaunchGraph, PointKind::LaunchGraphCall, PointKind::LaunchGraphWait]),
        ] {
            let [each, call, wait] = kinds;
            let LaunchTimes { gpu: gpu_times, host: host_times } = timed.back_to_back(work, LAUNCHES)?;
            bench.points.push(on_gpu(point(each, Load::Alone, &gpu_times, Bytes(0))));
            bench.points.push(on_gpu(point(call, Load::Alone, &host_times, Bytes(0))));
            bench.points.push(on_gpu(point(wait, Load::Alone, &timed.one_by_one(work)?, Bytes(0))));
        }
        let times = timed.back_to_back(&nodes, 5)?.gpu;
        let times: Vec<Picos> = times.into_iter().map(|time| Picos(time.0 / u64::from(NODES))).collect();
        bench.points.push(on_gpu(point(PointKind::GraphNode, Load::Alone, &times, Bytes(0))));
    }
    Ok(())
}

fn launch(gpu: &Gpu, stream: &Stream) -> Result<(), CudaError> {
    // SAFETY: the kernel has no parameters and accesses no memory.
    unsafe { gpu.kernels.nothing.launch(stream, Launch::without_shared_memory(1, 32), &Arguments::new()) }
}

/// Times of back-to-back launches, one per round.
struct LaunchTimes {
    /// Time per launch on the GPU.
    gpu: Vec<Picos>,
    /// Time per call on the host.
    host: Vec<Picos>,
}

/// Measurement of launches on one stream of a GPU.
struct LaunchTimer<'a> {
    gpu: &'a Gpu,
    stream: &'a Stream,
    watchdog: &'a Watchdog,
}

impl LaunchTimer<'_> {
    fn wait(&self) -> Result<(), CudaError> {
        self.watchdog.wait_for(self.stream, &|| format!("GPU {}, empty kernels", self.gpu.context.ordinal()))
    }

    /// Runs `launches` launches back to back in each round.
    fn back_to_back(&self, work: &dyn Fn() -> Result<(), CudaError>, launches: u32) -> Result<LaunchTimes, BenchError> {
        let (start, end) = (Event::timing(&self.gpu.context)?, Event::timing(&self.gpu.context)?);
        let mut times = LaunchTimes { gpu: Vec::new(), host: Vec::new() };
        for round in 0..=ROUNDS {
            self.stream.record(&start)?;
            let begin = Instant::now();
            for _ in 0..launches {
                work()?;
            }
            let elapsed = begin.elapsed();
            self.stream.record(&end)?;
            self.wait()?;
            if round > 0 {
                times.gpu.push(Picos(end.since(&start)?.0 / u64::from(launches)));
                times.host.push(Picos::from_ns(elapsed.as_nanos() as f64 / f64::from(launches)));
            }
        }
        Ok(times)
    }

    /// Time of each launch from the call until the host detects its completion.
    fn one_by_one(&self, work: &dyn Fn() -> Result<(), CudaError>) -> Result<Vec<Picos>, BenchError> {
        let mut times = Vec::new();
        for number in 0..LAUNCHES {
            let begin = Instant::now();
            work()?;
            self.wait()?;
            if number > 0 {
                times.push(Picos::from_ns(begin.elapsed().as_nanos() as f64));
            }
        }
        Ok(times)
    }
}
