//! Setup of the benchmark: GPUs with their buffers and kernels, and construction of points from measured times.

use std::sync::Arc;
use std::time::Duration;

use fabricast_topologies::{Bytes, Picos};

use super::kernels::Kernels;
use super::{BenchError, BenchPoint, Load, PointKind};
use crate::cuda::{Context, CudaError, DeviceMemory, Driver, Stream, Watchdog};

/// Time limit of any operation on a GPU, after which the GPU is assumed to hang.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// Largest transfer between GPUs, in bytes.
const LARGEST: Bytes = Bytes(256 << 20);

/// Extent of the measurements of a benchmark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// The measurements for `gpu doctor`: each pair at the largest size.
    Quick,
    /// Additionally, other message sizes, launch shapes and loads.
    #[default]
    Full,
}

/// A GPU with its buffers and kernels.
#[derive(Debug)]
pub(super) struct Gpu {
    pub context: Arc<Context>,
    pub kernels: Kernels,
    /// Send buffer of one slot, filled with a non-zero pattern.
    pub source: DeviceMemory,
    /// Receive buffer with one slot for each sending GPU.
    pub target: DeviceMemory,
    /// A 4-byte flag and, 128 bytes after it, the elapsed time in ns that a kernel writes.
    pub flags: DeviceMemory,
}

/// GPUs of the benchmark, with the size of their buffers and the watchdog of their work.
#[derive(Debug)]
pub(super) struct BenchSetup {
    pub gpus: Vec<Gpu>,
    /// Size in bytes of the part of a receive buffer that belongs to one sender. Also the size of the largest transfer.
    pub slot: Bytes,
    pub watchdog: Watchdog,
}

impl BenchSetup {
    pub(super) fn new(driver: Driver, count: usize) -> Result<Self, BenchError> {
        let contexts = (0..count)
            .map(|ordinal| driver.device(ordinal).and_then(crate::cuda::CudaDevice::context))
            .collect::<Result<Vec<_>, _>>()?;
        for from in &contexts {
            for to in &contexts {
                match from.enable_peer_access(to) {
                    // Copies do not need peer access. Measurements that need it are skipped for GPUs without it.
                    Ok(()) | Err(CudaError::NoPeerAccess { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        let free = contexts.iter().map(|context| context.free_memory()).collect::<Result<Vec<_>, _>>()?;
        let room = free.iter().min().map_or(0, |bytes| bytes.0 / 2 / (count as u64 + 1));
        let slot = Bytes(LARGEST.0.min(room) >> 20 << 20);
        if slot.0 == 0 {
            let requested = Bytes((count as u64 + 1) << 20);
            return Err(CudaError::OutOfMemory { device: 0, requested, free: free.into_iter().min() }.into());
        }
        let watchdog = Watchdog::new(TIME_LIMIT);
        let gpu = |context: Arc<Context>| -> Result<Gpu, BenchError> {
            let gpu = Gpu {
                kernels: Kernels::load(&context)?,
                source: DeviceMemory::new(&context, slot)?,
                target: DeviceMemory::new(&context, Bytes(slot.0 * count as u64))?,
                flags: DeviceMemory::new(&context, Bytes(256))?,
                context,
            };
            let stream = Stream::new(&gpu.context)?;
            // The pattern is not zero, because some hardware moves zeros faster.
            stream.fill_words(gpu.source.all(), 0x9e37_79b9)?;
            stream.fill(gpu.target.all(), 0xA5)?;
            watchdog.wait_for(&stream, &|| format!("GPU {}, filling its buffers", gpu.context.ordinal()))?;
            Ok(gpu)
        };
        let gpus = contexts.into_iter().map(gpu).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { gpus, slot, watchdog })
    }

    /// Returns the GPU with a CUDA ordinal.
    pub(super) fn gpu(&self, ordinal: usize) -> Result<&Gpu, BenchError> {
        let missing = CudaError::NoSuchDevice { ordinal, count: self.gpus.len() };
        self.gpus.get(ordinal).ok_or_else(|| missing.into())
    }
}

/// Creates a point with the median, shortest and longest time of several rounds. Source, destination and launch shape
/// are unset.
pub(super) fn point(kind: PointKind, load: Load, rounds: &[Picos], bytes: Bytes) -> BenchPoint {
    let mut sorted = rounds.to_vec();
    sorted.sort_unstable();
    let time_at = |index: usize| sorted.get(index).copied().unwrap_or(Picos(0)).us();
    let time_us = time_at(sorted.len() / 2);
    let gb_per_s = (bytes.0 > 0 && time_us > 0.0).then(|| rounded(bytes.0 as f64 / time_us / 1e3));
    BenchPoint {
        kind,
        load,
        src: None,
        dst: None,
        blocks: None,
        threads: None,
        bytes: bytes.0,
        time_us: rounded(time_us),
        fastest_us: rounded(time_at(0)),
        slowest_us: rounded(time_at(sorted.len().saturating_sub(1))),
        gb_per_s,
    }
}

/// Rounds to three decimal places, the precision of the measurements.
fn rounded(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}
