//! Sequence of the benchmark's measurements.

use fabricast_topologies::Bytes;

use super::setup::{BenchSetup, Depth};
use super::transfers::{Engine, Flow};
use super::{Bench, BenchError, FORMAT, Load, VERSION, date, flags, host_links, launches, transfers};
use crate::cuda::{CudaError, Driver, interrupt};
use crate::gpu::probe::{Choices, PeerAccess, Probe, probe};

/// Configuration of a benchmark run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// Extent of the benchmark: the measurements for `gpu doctor` only, or all.
    pub depth: Depth,
    /// Number of GPUs to measure, starting from ordinal 0. `None` for all.
    pub gpus: Option<usize>,
}

/// Runs the benchmark on the GPUs of this machine.
///
/// # Errors
/// No driver, no GPU, no compiler, a failing measurement, or Ctrl-C.
pub fn run(plan: Plan, choices: &Choices<'_>) -> Result<Bench, BenchError> {
    let _heed = interrupt::start_polling();
    let driver = Driver::load()?;
    let mut probed = probe(choices)?;
    let count = plan.gpus.unwrap_or(driver.device_count());
    if count == 0 || count > driver.device_count() {
        return Err(CudaError::NoSuchDevice { ordinal: count.max(1) - 1, count: driver.device_count() }.into());
    }
    probed.truncate(count);
    let lab = BenchSetup::new(driver, count)?;
    let mut bench = Bench {
        format: FORMAT.to_owned(),
        version: VERSION,
        date: date::now(),
        machine: probed.machine(),
        probe: probed,
        points: Vec::new(),
        skipped: Vec::new(),
    };
    let full = plan.depth == Depth::Full;
    launches::measure(&lab, &mut bench)?;
    host_links::measure(&lab, plan.depth, &mut bench)?;
    measure_alone(&lab, plan.depth, &mut bench)?;
    measure_concurrent(&lab, &mut bench)?;
    if full {
        shapes(&lab, &mut bench)?;
    }
    flags::measure(&lab, &mut bench)?;
    Ok(bench)
}

/// Message sizes in a series from 4 KiB to the largest one (the size of a slot), each sixteen times the previous one.
/// For a quick run, the largest size only.
fn sizes(lab: &BenchSetup, depth: Depth) -> Vec<Bytes> {
    let smaller = (0..).map(|power| Bytes(4096 << (4 * power))).take_while(|size| size.0 < lab.slot.0);
    match depth {
        Depth::Quick => vec![lab.slot],
        Depth::Full => smaller.chain([lab.slot]).collect(),
    }
}

/// Launch shape that saturates the links of any current GPU.
const SATURATING_BLOCKS: Engine = Engine::Blocks { blocks: 64, threads: 512 };

/// Returns true if one GPU can access the other's memory. A GPU can always access its own.
fn has_peer_access(probe: &Probe, src: usize, dst: usize) -> bool {
    src == dst || probe.pair(src, dst).is_some_and(|pair| pair.access == PeerAccess::Direct)
}

/// Measures every pair of GPUs alone, and copies within each GPU's own memory.
fn measure_alone(lab: &BenchSetup, depth: Depth, bench: &mut Bench) -> Result<(), BenchError> {
    let count = lab.gpus.len();
    let sizes = sizes(lab, depth);
    for src in 0..count {
        for dst in 0..count {
            let flows = [Flow { src, dst }];
            transfers::measure(lab, &flows, Engine::Copy, Load::Alone, &sizes, bench)?;
            if has_peer_access(&bench.probe, src, dst) {
                transfers::measure(lab, &flows, SATURATING_BLOCKS, Load::Alone, &sizes, bench)?;
            } else {
                bench.skipped.push(format!("stores from GPU {src} to GPU {dst}: no peer access"));
            }
        }
    }
    Ok(())
}

/// Measures patterns of several concurrent flows.
fn measure_concurrent(lab: &BenchSetup, bench: &mut Bench) -> Result<(), BenchError> {
    let count = lab.gpus.len();
    if count < 2 {
        return Ok(());
    }
    let gpus = || 0..count;
    let mut patterns: Vec<(Load, Vec<Flow>)> = Vec::new();
    for src in gpus() {
        for dst in src + 1..count {
            patterns.push((Load::Bidirectional, vec![Flow { src, dst }, Flow { src: dst, dst: src }]));
        }
    }
    for step in 1..count {
        patterns.push((Load::Shift(step), gpus().map(|src| Flow { src, dst: (src + step) % count }).collect()));
    }
    for dst in gpus().filter(|_| count > 2) {
        patterns.push((Load::Incast, gpus().filter(|&src| src != dst).map(|src| Flow { src, dst }).collect()));
    }
    // Each GPU starts with its successor, so that flows that are served one after another do not all target one GPU.
    let all_flows = (1..count).flat_map(|step| gpus().map(move |src| Flow { src, dst: (src + step) % count }));
    patterns.push((Load::AllToAll, all_flows.collect()));
    for (load, flows) in patterns {
        transfers::measure(lab, &flows, Engine::Copy, load, &[lab.slot], bench)?;
        if flows.iter().all(|flow| has_peer_access(&bench.probe, flow.src, flow.dst)) {
            // Concurrent kernels of one GPU share its multiprocessors.
            let sent = flows.iter().filter(|flow| flow.src == flows.first().map_or(0, |first| first.src)).count();
            let engine = Engine::Blocks { blocks: (64 / sent.max(1) as u32).max(8), threads: 512 };
            transfers::measure(lab, &flows, engine, load, &[lab.slot], bench)?;
        }
    }
    Ok(())
}

/// Numbers of thread blocks that are measured for every pair.
const BLOCKS: [u32; 9] = [1, 2, 4, 8, 16, 24, 32, 64, 128];
/// Numbers of threads per block that are measured for the first two GPUs only, because the effect depends on the
/// sending GPU and not on the pair.
const THREADS: [u32; 4] = [128, 256, 512, 1024];
/// Number of threads per block that is measured for all other pairs.
const DEFAULT_THREADS: [u32; 1] = [512];

/// Every pair of GPUs, or the GPU itself if there is only one, with the threads per block to measure.
fn pairs_with_threads(count: usize) -> Vec<(Flow, &'static [u32])> {
    let pairs = (0..count).flat_map(|src| (0..count).map(move |dst| Flow { src, dst }));
    let pairs = pairs.filter(|flow| count == 1 || flow.src != flow.dst);
    pairs.map(|flow| (flow, if flow.src.max(flow.dst) < 2 { &THREADS[..] } else { &DEFAULT_THREADS[..] })).collect()
}

/// Measures other numbers of thread blocks and of threads. A pair takes about 0.1 s over NVLink.
fn shapes(lab: &BenchSetup, bench: &mut Bench) -> Result<(), BenchError> {
    let bytes = Bytes(lab.slot.0.min(32 << 20));
    for (flow, sizes) in pairs_with_threads(lab.gpus.len()) {
        if !has_peer_access(&bench.probe, flow.src, flow.dst) {
            continue;
        }
        for blocks in BLOCKS {
            for &threads in sizes {
                transfers::measure(lab, &[flow], Engine::Blocks { blocks, threads }, Load::Alone, &[bytes], bench)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_has_its_launch_shapes() {
        assert_eq!(pairs_with_threads(1), [(Flow { src: 0, dst: 0 }, &THREADS[..])]);
        let of_four = pairs_with_threads(4);
        assert_eq!(of_four.len(), 12);
        let complete: Vec<_> =
            of_four.iter().filter(|(_, threads)| threads.len() == 4).map(|(flow, _)| *flow).collect();
        assert_eq!(complete, [Flow { src: 0, dst: 1 }, Flow { src: 1, dst: 0 }]);
        assert!(of_four.iter().all(|(flow, threads)| flow.src != flow.dst && threads.contains(&512)));
    }
}
