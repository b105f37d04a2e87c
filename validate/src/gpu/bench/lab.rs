//! The bench: GPUs with their buffers and kernels, and the order in which everything is measured on them.

use std::sync::Arc;
use std::time::Duration;

use fabricast_topologies::{Bytes, Picos};

use super::kernels::Kernels;
use super::transfers::{Engine, Flow};
use super::{Bench, BenchError, FORMAT, Kind, Load, Point, VERSION, date, flags, host_links, launches, transfers};
use crate::cuda::{Context, CudaError, DeviceMemory, Driver, Stream, Watchdog, interrupt};
use crate::gpu::probe::{Choices, PeerAccess, Probe, probe};

/// How long anything on a GPU may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(20);
/// The largest transfer.
const LARGEST: Bytes = Bytes(256 << 20);

/// How much is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// Everything that the doctor needs: each pair at the largest size.
    Quick,
    /// Sizes, shapes and loads as well.
    #[default]
    Full,
}

/// What to measure.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// How much.
    pub depth: Depth,
    /// On how many GPUs, the first ones; absent: on all.
    pub gpus: Option<usize>,
}

/// A GPU with what is needed to measure it.
#[derive(Debug)]
pub(super) struct Gpu {
    pub context: Arc<Context>,
    pub kernels: Kernels,
    /// What is sent.
    pub source: DeviceMemory,
    /// Where it is received: a slot for each GPU that sends.
    pub target: DeviceMemory,
    /// A flag and, 128 bytes further, the time that a kernel took.
    pub flags: DeviceMemory,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Lab {
    pub gpus: Vec<Gpu>,
    /// Bytes of a slot.
    pub slot: Bytes,
    pub watchdog: Watchdog,
}

impl Lab {
    fn new(driver: Driver, count: usize) -> Result<Self, BenchError> {
        let contexts = (0..count)
            .map(|ordinal| driver.device(ordinal).and_then(crate::cuda::Device::context))
            .collect::<Result<Vec<_>, _>>()?;
        for from in &contexts {
            for to in &contexts {
                match from.reach(to) {
                    // Copies work without peer access; what else needs it is left out.
                    Ok(()) | Err(CudaError::NoPeerAccess { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        let free = contexts.iter().map(|context| context.free_memory()).collect::<Result<Vec<_>, _>>()?;
        let room = free.iter().min().map_or(0, |bytes| bytes.0 / 2 / (count as u64 + 1));
        let slot = Bytes(LARGEST.0.min(room) >> 20 << 20);
        if slot.0 == 0 {
            let asked = Bytes((count as u64 + 1) << 20);
            return Err(CudaError::OutOfMemory { device: 0, asked, free: free.into_iter().min() }.into());
        }
        let watchdog = Watchdog::new(PATIENCE);
        let gpu = |context: Arc<Context>| -> Result<Gpu, BenchError> {
            let gpu = Gpu {
                kernels: Kernels::load(&context)?,
                source: DeviceMemory::new(&context, slot)?,
                target: DeviceMemory::new(&context, Bytes(slot.0 * count as u64))?,
                flags: DeviceMemory::new(&context, Bytes(256))?,
                context,
            };
            let stream = Stream::new(&gpu.context)?;
            // Not zeros: some parts move those faster.
            stream.fill_words(gpu.source.all(), 0x9e37_79b9)?;
            stream.fill(gpu.target.all(), 0xA5)?;
            watchdog.wait_for(&stream, &|| format!("GPU {}, filling its buffers", gpu.context.ordinal()))?;
            Ok(gpu)
        };
        let gpus = contexts.into_iter().map(gpu).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { gpus, slot, watchdog })
    }

    /// A GPU.
    pub(super) fn gpu(&self, ordinal: usize) -> Result<&Gpu, BenchError> {
        let missing = CudaError::NoSuchDevice { ordinal, count: self.gpus.len() };
        self.gpus.get(ordinal).ok_or_else(|| missing.into())
    }
}

/// The median of rounds with the fastest and the slowest, as a point.
pub(super) fn point(kind: Kind, load: Load, rounds: &[Picos], bytes: Bytes) -> Point {
    let mut sorted = rounds.to_vec();
    sorted.sort_unstable();
    let at = |index: usize| sorted.get(index).copied().unwrap_or(Picos(0)).us();
    let time_us = at(sorted.len() / 2);
    let gbps = (bytes.0 > 0 && time_us > 0.0).then(|| rounded(bytes.0 as f64 / time_us / 1e3));
    Point {
        kind,
        load,
        src: None,
        dst: None,
        blocks: None,
        threads: None,
        bytes: bytes.0,
        time_us: rounded(time_us),
        fastest_us: rounded(at(0)),
        slowest_us: rounded(at(sorted.len().saturating_sub(1))),
        gbps,
    }
}

/// To a thousandth: more was not measured.
fn rounded(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}

/// Measures the GPUs of this machine.
///
/// # Errors
/// No driver, no GPU, no compiler, or what went wrong while measuring; Ctrl-C.
pub fn run(plan: Plan, choices: &Choices<'_>) -> Result<Bench, BenchError> {
    let _heed = interrupt::heed();
    let driver = Driver::load()?;
    let mut found = probe(choices)?;
    let count = plan.gpus.unwrap_or(driver.device_count());
    if count == 0 || count > driver.device_count() {
        return Err(CudaError::NoSuchDevice { ordinal: count.max(1) - 1, count: driver.device_count() }.into());
    }
    found.keep_first(count);
    let lab = Lab::new(driver, count)?;
    let mut bench = Bench {
        format: FORMAT.to_owned(),
        version: VERSION,
        date: date::now(),
        machine: found.machine(),
        probe: found,
        points: Vec::new(),
        skipped: Vec::new(),
    };
    let full = plan.depth == Depth::Full;
    launches::measure(&lab, &mut bench)?;
    host_links::measure(&lab, plan.depth, &mut bench)?;
    alone(&lab, plan.depth, &mut bench)?;
    together(&lab, &mut bench)?;
    if full {
        shapes(&lab, &mut bench)?;
    }
    flags::measure(&lab, &mut bench)?;
    Ok(bench)
}

/// Sizes from 4 KiB to the slot, each sixteen times the one before, or the slot alone.
fn sizes(lab: &Lab, depth: Depth) -> Vec<Bytes> {
    let smaller = (0..).map(|power| Bytes(4096 << (4 * power))).take_while(|size| size.0 < lab.slot.0);
    match depth {
        Depth::Quick => vec![lab.slot],
        Depth::Full => smaller.chain([lab.slot]).collect(),
    }
}

/// Thread blocks that fill a link of any GPU of today.
const MANY: Engine = Engine::Blocks { blocks: 64, threads: 512 };

/// Whether one GPU reaches the other's memory; itself it always does.
fn reaches(found: &Probe, src: usize, dst: usize) -> bool {
    src == dst || found.pair(src, dst).is_some_and(|pair| pair.access == PeerAccess::Direct)
}

/// Every pair alone, and every GPU within its own memory.
fn alone(lab: &Lab, depth: Depth, bench: &mut Bench) -> Result<(), BenchError> {
    let count = lab.gpus.len();
    let sizes = sizes(lab, depth);
    for src in 0..count {
        for dst in 0..count {
            let flows = [Flow { src, dst }];
            transfers::measure(lab, &flows, Engine::Copy, Load::Alone, &sizes, bench)?;
            if reaches(&bench.probe, src, dst) {
                transfers::measure(lab, &flows, MANY, Load::Alone, &sizes, bench)?;
            } else {
                bench.skipped.push(format!("stores from GPU {src} to GPU {dst}: no peer access"));
            }
        }
    }
    Ok(())
}

/// Patterns of several pairs at once.
fn together(lab: &Lab, bench: &mut Bench) -> Result<(), BenchError> {
    let count = lab.gpus.len();
    if count < 2 {
        return Ok(());
    }
    let gpus = || 0..count;
    let mut patterns: Vec<(Load, Vec<Flow>)> = Vec::new();
    for src in gpus() {
        for dst in src + 1..count {
            patterns.push((Load::BothWays, vec![Flow { src, dst }, Flow { src: dst, dst: src }]));
        }
    }
    for step in 1..count {
        patterns.push((Load::Shift(step), gpus().map(|src| Flow { src, dst: (src + step) % count }).collect()));
    }
    for dst in gpus().filter(|_| count > 2) {
        patterns.push((Load::Incast, gpus().filter(|&src| src != dst).map(|src| Flow { src, dst }).collect()));
    }
    // Each GPU begins with the one after itself, so that not all send to the same one where flows take turns.
    let everyone = (1..count).flat_map(|step| gpus().map(move |src| Flow { src, dst: (src + step) % count }));
    patterns.push((Load::AllToAll, everyone.collect()));
    for (load, flows) in patterns {
        transfers::measure(lab, &flows, Engine::Copy, load, &[lab.slot], bench)?;
        if flows.iter().all(|flow| reaches(&bench.probe, flow.src, flow.dst)) {
            // Several kernels of one GPU share its multiprocessors.
            let sent = flows.iter().filter(|flow| flow.src == flows.first().map_or(0, |first| first.src)).count();
            let engine = Engine::Blocks { blocks: (64 / sent.max(1) as u32).max(8), threads: 512 };
            transfers::measure(lab, &flows, engine, load, &[lab.slot], bench)?;
        }
    }
    Ok(())
}

/// Numbers of thread blocks: of every pair.
const BLOCKS: [u32; 9] = [1, 2, 4, 8, 16, 24, 32, 64, 128];
/// Threads of each: of the first two GPUs, both ways. What they change lies within the sender, whatever the pair.
const THREADS: [u32; 4] = [128, 256, 512, 1024];
/// Of the others.
const ONE_SIZE: [u32; 1] = [512];

/// Every way between GPUs, or within the GPU where it is alone, with the threads that are tried of it.
fn ways(count: usize) -> Vec<(Flow, &'static [u32])> {
    let pairs = (0..count).flat_map(|src| (0..count).map(move |dst| Flow { src, dst }));
    let pairs = pairs.filter(|flow| count == 1 || flow.src != flow.dst);
    pairs.map(|flow| (flow, if flow.src.max(flow.dst) < 2 { &THREADS[..] } else { &ONE_SIZE[..] })).collect()
}

/// Thread blocks of other numbers and sizes: about a tenth of a second a pair over NVLink.
fn shapes(lab: &Lab, bench: &mut Bench) -> Result<(), BenchError> {
    let bytes = Bytes(lab.slot.0.min(32 << 20));
    for (flow, sizes) in ways(lab.gpus.len()) {
        if !reaches(&bench.probe, flow.src, flow.dst) {
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
    fn every_way_has_its_shapes() {
        assert_eq!(ways(1), [(Flow { src: 0, dst: 0 }, &THREADS[..])]);
        let of_four = ways(4);
        assert_eq!(of_four.len(), 12);
        let whole: Vec<_> = of_four.iter().filter(|(_, threads)| threads.len() == 4).map(|(flow, _)| *flow).collect();
        assert_eq!(whole, [Flow { src: 0, dst: 1 }, Flow { src: 1, dst: 0 }]);
        assert!(of_four.iter().all(|(flow, threads)| flow.src != flow.dst && threads.contains(&512)));
    }
}
