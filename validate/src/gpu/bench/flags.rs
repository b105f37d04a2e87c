//! Flag latency: time from a store on one GPU until a load on another GPU reads the value.
#![expect(unsafe_code, reason = "a kernel is launched")]

use std::time::Duration;

use fabricast_topologies::{Bytes, Picos};

use super::setup::{BenchSetup, point};
use super::{Bench, BenchError, BenchPoint, Load, PointKind};
use crate::cuda::{Arguments, Launch, Member, Stream, team};
use crate::gpu::probe::PeerAccess;

/// Number of timed round trips per measurement; `ROUNDS` is the number of measurements per pair of GPUs.
const TRIPS: u32 = 1000;
const ROUNDS: usize = 3;
/// Time limit of a polling kernel, well below that of the watchdog.
const LIMIT: Duration = Duration::from_secs(5);
/// Offset in bytes of the elapsed time that a kernel writes, relative to its flag.
const ELAPSED_OFFSET: Bytes = Bytes(128);

/// Measures the flag latency of every pair with peer access. One measurement covers both directions of a pair.
pub(super) fn measure(lab: &BenchSetup, bench: &mut Bench) -> Result<(), BenchError> {
    let count = lab.gpus.len();
    for first in 0..count {
        for second in first + 1..count {
            if bench.probe.pair(first, second).is_none_or(|pair| pair.access != PeerAccess::Direct) {
                continue;
            }
            let contexts = [lab.gpu(first)?.context.clone(), lab.gpu(second)?.context.clone()];
            for kind in [PointKind::Flag, PointKind::OrderedFlag] {
                let times = team::run(&contexts, &lab.watchdog, |member| {
                    let (gpu, peer) = if member.rank == 0 { (first, second) } else { (second, first) };
                    (0..ROUNDS).map(|_| trips(lab, member, kind, gpu, peer)).collect::<Result<Vec<_>, _>>()
                })?;
                // Only the GPU that stores first measures complete round trips.
                let times = times.into_iter().next().unwrap_or_default();
                let measured = point(kind, Load::Alone, &times, Bytes(0));
                for (src, dst) in [(first, second), (second, first)] {
                    bench.points.push(BenchPoint { src: Some(src), dst: Some(dst), ..measured.clone() });
                }
            }
        }
    }
    Ok(())
}

/// Runs one side of a flag exchange on GPU `ordinal`, with the other side on GPU `peer`. Returns half of the mean round
/// trip.
fn trips(
    lab: &BenchSetup,
    member: &Member<'_>,
    kind: PointKind,
    ordinal: usize,
    peer: usize,
) -> Result<Picos, BenchError> {
    let (gpu, peer_gpu) = (lab.gpu(ordinal)?, lab.gpu(peer)?);
    let stream = Stream::new(&gpu.context)?;
    stream.fill(gpu.flags.all(), 0)?;
    let describe = || format!("GPU {ordinal}, flags to and from GPU {peer}");
    member.watchdog.wait_for(&stream, &describe)?;
    member.barrier()?;
    let elapsed = gpu.flags.part(ELAPSED_OFFSET, Bytes(8))?;
    let arguments = Arguments::new()
        .pointer(gpu.flags.address())
        .pointer(peer_gpu.flags.address())
        .u32(TRIPS)
        .u32(u32::from(member.rank == 0))
        .u64(u64::try_from(LIMIT.as_nanos()).unwrap_or(u64::MAX))
        .pointer(elapsed.address());
    let kernel = if kind == PointKind::OrderedFlag { &gpu.kernels.ordered_flag } else { &gpu.kernels.flag };
    // SAFETY: the arguments match the kernel; flag and time lie in the flag buffers of the two GPUs, which live as long
    // as the lab and are accessible to both, since only pairs with peer access are measured.
    unsafe { kernel.launch(&stream, Launch::without_shared_memory(1, 1), &arguments)? };
    member.watchdog.wait_for(&stream, &describe)?;
    let mut bytes = [0; 8];
    stream.download(&mut bytes, elapsed)?;
    // The flag must not be cleared while the peer still reads it.
    member.barrier()?;
    match u64::from_ne_bytes(bytes) {
        0 => Err(BenchError::FlagLost { src: peer, dst: ordinal, seconds: LIMIT.as_secs() }),
        nanoseconds => Ok(Picos(nanoseconds * 1000 / u64::from(2 * TRIPS))),
    }
}
