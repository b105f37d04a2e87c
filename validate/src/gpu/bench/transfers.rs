//! Transfers between GPUs: one flow or several concurrent ones, by copy engines or by thread blocks.
#![expect(unsafe_code, reason = "a kernel is launched")]

use fabricast_topologies::{Bytes, Picos};

use super::setup::{BenchSetup, point};
use super::{Bench, BenchError, BenchPoint, Load, PointKind};
use crate::cuda::{Arguments, CudaError, DeviceSlice, Event, Launch, Member, Stream, team};

/// Transfer from one GPU to another, or within one GPU, by CUDA ordinals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub src: usize,
    pub dst: usize,
}

/// Hardware that moves the bytes of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// A copy engine of the sending GPU.
    Copy,
    /// A kernel of the sending GPU, with this number of thread blocks and of threads per block.
    Blocks { blocks: u32, threads: u32 },
}

/// Number of timed rounds per message size. The median is reported.
const ROUNDS: usize = 3;
/// Number of bytes per round. A round takes some milliseconds over NVLink, so that a start skew of 1 µs between threads
/// is negligible.
const BYTES_PER_ROUND: u64 = 2 << 30;

/// Number of thread blocks that saturates a GPU's links. Fewer blocks send proportionally slower, so their rounds have
/// proportionally fewer bytes.
const SATURATING_BLOCKS: u64 = 64;

/// Returns the number of transfers per flow in a round: at least 4, at most 200.
fn repeats(bytes: Bytes, engine: Engine, flows: usize) -> u64 {
    let part = match engine {
        Engine::Copy => SATURATING_BLOCKS,
        Engine::Blocks { blocks, .. } => u64::from(blocks).saturating_mul(flows as u64).min(SATURATING_BLOCKS),
    };
    (BYTES_PER_ROUND / SATURATING_BLOCKS * part / bytes.0.max(1)).clamp(4, 200)
}

/// Measures concurrent flows at each size, and adds one point per flow and size.
pub(super) fn measure(
    lab: &BenchSetup,
    flows: &[Flow],
    engine: Engine,
    load: Load,
    sizes: &[Bytes],
    bench: &mut Bench,
) -> Result<(), BenchError> {
    let mut senders: Vec<usize> = flows.iter().map(|flow| flow.src).collect();
    senders.sort_unstable();
    senders.dedup();
    let contexts =
        senders.iter().map(|&src| lab.gpu(src).map(|gpu| gpu.context.clone())).collect::<Result<Vec<_>, _>>()?;
    let results = team::run(&contexts, &lab.watchdog, |member| {
        let src = member.context.ordinal();
        let own_flows: Vec<Flow> = flows.iter().copied().filter(|flow| flow.src == src).collect();
        sender(lab, member, &own_flows, engine, load, sizes)
    })?;
    bench.points.extend(results.into_iter().flatten());
    Ok(())
}

/// Measures the flows of one sender. All flows have the same time, from the start of the first to the end of the last,
/// because a copy engine may serve them one after another and single flows would then appear too fast.
fn sender(
    lab: &BenchSetup,
    member: &Member<'_>,
    flows: &[Flow],
    engine: Engine,
    load: Load,
    sizes: &[Bytes],
) -> Result<Vec<BenchPoint>, BenchError> {
    let mut points = Vec::new();
    let lanes = SenderStreams::new(lab, member, flows)?;
    for &bytes in sizes {
        let mut times = Vec::new();
        let repeats = repeats(bytes, engine, flows.len());
        // The first round is a warm-up.
        lanes.round(engine, bytes, 2)?;
        for _ in 0..ROUNDS {
            times.push(Picos(lanes.round(engine, bytes, repeats)?.0 / repeats));
        }
        for flow in flows {
            let (kind, shape) = match engine {
                Engine::Copy => (PointKind::CopyEngine, None),
                Engine::Blocks { blocks, threads } => (PointKind::Blocks, Some((blocks, threads))),
            };
            points.push(BenchPoint {
                src: Some(flow.src),
                dst: Some(flow.dst),
                blocks: shape.map(|shape| shape.0),
                threads: shape.map(|shape| shape.1),
                ..point(kind, load, &times, bytes)
            });
        }
    }
    Ok(points)
}

/// Streams of one sender, one per flow. The start and end events of all flows are in the first stream.
struct SenderStreams<'a> {
    lab: &'a BenchSetup,
    member: &'a Member<'a>,
    first: (Flow, Stream),
    others: Vec<(Flow, Stream, Event)>,
    start: Event,
    end: Event,
}

impl<'a> SenderStreams<'a> {
    fn new(lab: &'a BenchSetup, member: &'a Member<'a>, flows: &[Flow]) -> Result<Self, BenchError> {
        let context = member.context;
        let (first, remaining) = flows.split_first().ok_or(CudaError::Abandoned)?;
        let remaining = remaining.iter().map(|&flow| Ok((flow, Stream::new(context)?, Event::ordering(context)?)));
        Ok(Self {
            lab,
            member,
            first: (*first, Stream::new(context)?),
            others: remaining.collect::<Result<_, BenchError>>()?,
            start: Event::timing(context)?,
            end: Event::timing(context)?,
        })
    }

    /// Sends `repeats` times on every flow, starting at the same time as the other GPUs. Returns the total time of the
    /// round.
    fn round(&self, engine: Engine, bytes: Bytes, repeats: u64) -> Result<Picos, BenchError> {
        let (flow, stream) = &self.first;
        self.member.barrier()?;
        stream.record(&self.start)?;
        for (_, other_stream, _) in &self.others {
            other_stream.wait_for(&self.start)?;
        }
        for _ in 0..repeats {
            send(self.lab, *flow, engine, bytes, stream)?;
            for (flow, other_stream, _) in &self.others {
                send(self.lab, *flow, engine, bytes, other_stream)?;
            }
        }
        for (_, other_stream, done) in &self.others {
            other_stream.record(done)?;
            stream.wait_for(done)?;
        }
        stream.record(&self.end)?;
        self.member.watchdog.wait_for(stream, &|| format!("GPU {}, sending", flow.src))?;
        Ok(self.end.since(&self.start)?)
    }
}

/// Enqueues one transfer into the receive slot that the destination reserves for the sender.
fn send(lab: &BenchSetup, flow: Flow, engine: Engine, bytes: Bytes, stream: &Stream) -> Result<(), BenchError> {
    let (sender, receiver) = (lab.gpu(flow.src)?, lab.gpu(flow.dst)?);
    let from: DeviceSlice<'_> = sender.source.part(Bytes(0), bytes)?;
    let to: DeviceSlice<'_> = receiver.target.part(Bytes(lab.slot.0 * flow.src as u64), bytes)?;
    match engine {
        Engine::Copy => stream.copy(to, from)?,
        Engine::Blocks { blocks, threads } => {
            let arguments = Arguments::new().pointer(to.address()).pointer(from.address()).u64(bytes.0 / 16);
            // SAFETY: the arguments match the kernel; both ranges were checked, are 16-byte aligned (slots are whole
            // MiB), and live as long as the lab. Flows by thread blocks are measured only if the sender can access the
            // receiver.
            unsafe { sender.kernels.put.launch(stream, Launch::without_shared_memory(blocks, threads), &arguments)? };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_shrink_in_proportion_to_thread_blocks() {
        let blocks = |blocks| Engine::Blocks { blocks, threads: 512 };
        let repeat_count = |mib: u64, engine, flows| repeats(Bytes(mib << 20), engine, flows);
        assert_eq!(
            (repeat_count(256, Engine::Copy, 1), repeat_count(256, blocks(64), 1), repeat_count(256, blocks(128), 1)),
            (8, 8, 8)
        );
        assert_eq!(
            (repeat_count(32, Engine::Copy, 3), repeat_count(32, blocks(64), 1), repeat_count(32, blocks(16), 1)),
            (64, 64, 16)
        );
        // A round has at least 4 and at most 200 repeats, and the blocks of concurrent flows are summed.
        assert_eq!(
            (repeat_count(32, blocks(1), 1), repeat_count(0, blocks(64), 1), repeat_count(256, blocks(21), 3)),
            (4, 200, 7)
        );
    }
}
