//! Links between GPUs and the host: pinned memory by copy engines, pageable memory through the driver's staging
//! buffers.

use std::time::Instant;

use fabricast_topologies::{Bytes, Picos};

use super::setup::{BenchSetup, Depth, point};
use super::{Bench, BenchError, BenchPoint, Load, PointKind};
use crate::cuda::{Event, HostMemory, Member, Stream, team};

const ROUNDS: usize = 3;
/// Size of the largest transfer in bytes. It takes some milliseconds over PCIe.
const LARGEST: Bytes = Bytes(64 << 20);

/// Measures the host link of each GPU alone, then of all GPUs concurrently.
pub(super) fn measure(lab: &BenchSetup, depth: Depth, bench: &mut Bench) -> Result<(), BenchError> {
    let largest = Bytes(LARGEST.0.min(lab.slot.0));
    let sizes: Vec<Bytes> = match depth {
        Depth::Quick => vec![largest],
        Depth::Full => [4096, 64 << 10, 1 << 20].map(Bytes).into_iter().chain([largest]).collect(),
    };
    let contexts: Vec<_> = lab.gpus.iter().map(|gpu| gpu.context.clone()).collect();
    for single in contexts.chunks(1) {
        let results = team::run(single, &lab.watchdog, |member| {
            let mut points = pinned(lab, member, Load::Alone, &sizes)?;
            points.extend(pageable(lab, member, largest)?);
            Ok::<_, BenchError>(points)
        })?;
        bench.points.extend(results.into_iter().flatten());
    }
    if contexts.len() > 1 {
        let results = team::run(&contexts, &lab.watchdog, |member| pinned(lab, member, Load::AllGpus, &[largest]))?;
        bench.points.extend(results.into_iter().flatten());
    }
    Ok(())
}

/// Measures copies to and from pinned memory, one direction after the other.
fn pinned(lab: &BenchSetup, member: &Member<'_>, load: Load, sizes: &[Bytes]) -> Result<Vec<BenchPoint>, BenchError> {
    let ordinal = member.context.ordinal();
    let gpu = lab.gpu(ordinal)?;
    let host = HostMemory::new(member.context, sizes.iter().copied().max().unwrap_or(Bytes(0)))?;
    let stream = Stream::new(member.context)?;
    let (start, end) = (Event::timing(member.context)?, Event::timing(member.context)?);
    let describe = || format!("GPU {ordinal}, copies to and from the host");
    let mut points = Vec::new();
    for kind in [PointKind::PinnedToDevice, PointKind::DeviceToPinned] {
        for &bytes in sizes {
            let part = gpu.source.part(Bytes(0), bytes)?;
            let repeats = ((512 << 20) / bytes.0.max(1)).clamp(4, 100);
            let mut times = Vec::new();
            for round in 0..=ROUNDS {
                member.barrier()?;
                stream.record(&start)?;
                for _ in 0..if round == 0 { 1 } else { repeats } {
                    match kind {
                        PointKind::PinnedToDevice => stream.copy_from_host(part, &host, Bytes(0))?,
                        _ => stream.copy_to_host(&host, Bytes(0), part)?,
                    }
                }
                stream.record(&end)?;
                member.watchdog.wait_for(&stream, &describe)?;
                if round > 0 {
                    times.push(Picos(end.since(&start)?.0 / repeats));
                }
            }
            points.push(with_gpu(point(kind, load, &times, bytes), ordinal));
        }
    }
    Ok(points)
}

/// Measures copies to and from pageable memory with the host's clock.
fn pageable(lab: &BenchSetup, member: &Member<'_>, bytes: Bytes) -> Result<Vec<BenchPoint>, BenchError> {
    let ordinal = member.context.ordinal();
    let part = lab.gpu(ordinal)?.source.part(Bytes(0), bytes)?;
    let stream = Stream::new(member.context)?;
    let mut memory = vec![1_u8; bytes.0 as usize];
    let mut points = Vec::new();
    for kind in [PointKind::PageableToDevice, PointKind::DeviceToPageable] {
        let mut times = Vec::new();
        for round in 0..=ROUNDS {
            let start = Instant::now();
            match kind {
                PointKind::PageableToDevice => stream.upload(part, &memory)?,
                _ => stream.download(&mut memory, part)?,
            }
            if round > 0 {
                times.push(Picos::from_ns(start.elapsed().as_nanos() as f64));
            }
        }
        points.push(with_gpu(point(kind, Load::Alone, &times, bytes), ordinal));
    }
    Ok(points)
}

/// Stores the GPU as destination of the point for copies to the device, otherwise as source.
fn with_gpu(mut point: BenchPoint, gpu: usize) -> BenchPoint {
    match point.kind {
        PointKind::PinnedToDevice | PointKind::PageableToDevice => point.dst = Some(gpu),
        _ => point.src = Some(gpu),
    }
    point
}
