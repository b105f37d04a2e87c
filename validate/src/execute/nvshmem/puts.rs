//! Executor that runs a schedule's steps on a stream. Every message is a put with a signal, every wait is a wait for a
//! signal, and reductions use a kernel.
//!
//! A signal is 0 or 1: a sender sets it, and the receiver clears it after its wait, so that a captured graph can be
//! launched repeatedly. At the start of a call, receivers signal their senders that they have entered, so that no data
//! of the previous call is overwritten before it is read.

use std::sync::Arc;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use super::rank::Rank;
use crate::cuda::{Arguments, DeviceAddress, DeviceSlice, Function, Launch, Module, Stream, compile};
use crate::execute::{ExecuteError, Executor, Job};
use crate::kernel::{Alignment, BufferExtent, COMBINE_THREADS, Location, Step, Steps, UserBuffer, combine_text};
use crate::nvshmem::{Element, Signal, SourceAndDestination, SymmetricMemory};

/// Layout of the symmetric memory of an executor of steps, as byte offsets.
#[derive(Clone, Debug)]
pub(super) struct ArenaLayout {
    pub(super) ready: Bytes,
    pub(super) signals: Bytes,
    slots: Bytes,
    scratch: Bytes,
    pub(super) bytes: Bytes,
    /// Start of the caller's input and output, in this rank's heap.
    input: DeviceAddress,
    output: DeviceAddress,
}

impl ArenaLayout {
    /// Computes the layout for `words` signals per message and per rank.
    pub(super) fn new(rank: &Rank, job: &Job, steps: &Steps, words: u64) -> Self {
        let up = |bytes: u64| bytes.next_multiple_of(256);
        let ready = up(words * 8);
        let signals = ready + up(u64::from(job.header.call.ranks) * words * 8);
        let slots = signals + up(u64::from(steps.messages) * words * 8);
        let scratch = slots + up(steps.slots.0);
        Self {
            ready: Bytes(ready),
            signals: Bytes(signals),
            slots: Bytes(slots),
            scratch: Bytes(scratch),
            bytes: Bytes(scratch + up(steps.scratch.0)),
            input: rank.symmetric(job, UserBuffer::Input),
            output: rank.symmetric(job, UserBuffer::Output),
        }
    }

    /// Symmetric address, in terms of this rank's heap, of a location in the memory of rank `peer`.
    pub(super) fn address(&self, job: &Job, arena: DeviceAddress, spot: Location, peer: usize) -> DeviceAddress {
        match spot {
            Location::User(buffer, offset) => {
                let base = if buffer == UserBuffer::Input { self.input } else { self.output };
                let origin = BufferExtent::new(&job.header, peer as u32, buffer).start;
                base.plus(Bytes(offset.0.wrapping_sub(origin)))
            }
            Location::Slot(offset) => arena.plus(self.slots).plus(offset),
            Location::Scratch(offset) => arena.plus(self.scratch).plus(offset),
        }
    }
}

/// A single operation in the stream of a rank.
#[derive(Clone, Copy, Debug)]
enum StreamOperation {
    Put { source: DeviceAddress, target: DeviceAddress, bytes: Bytes, signal: Signal, peer: usize },
    Await { signal: Signal, at: Bytes },
    Copy { from: DeviceAddress, to: DeviceAddress, bytes: Bytes },
    Reduce { left: DeviceAddress, right: DeviceAddress, to: DeviceAddress, bytes: Bytes },
}

/// The steps of a rank, with their memory and kernel.
#[derive(Debug)]
pub(super) struct Puts {
    element: Arc<Element>,
    arena: Arc<SymmetricMemory>,
    ready: Bytes,
    senders: Vec<usize>,
    receivers: Vec<usize>,
    work: Vec<StreamOperation>,
    combine: Option<Combine>,
}

/// The reduction kernel, for buffers aligned to 16 bytes and for others.
#[derive(Debug)]
struct Combine {
    vectors: Function,
    bytes: Function,
    max_blocks: u64,
}

impl Puts {
    /// Allocates memory and compiles the kernel.
    ///
    /// # Errors
    /// Exhausted memory, a data type that cannot be reduced, or a failing call.
    pub(super) fn new(rank: &mut Rank, job: &Job, steps: &Steps) -> Result<Self, ExecuteError> {
        let combine = match job.header.call.collective {
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => Some(Combine::new(rank, job)?),
            _ => None,
        };
        let layout = ArenaLayout::new(rank, job, steps, 1);
        let arena = rank.arena(layout.bytes)?;
        let (me, base) = (rank.number(), arena.address());
        let signal = |message: u32| layout.signals.0 + u64::from(message) * 8;
        let address = |spot: Location, peer: usize| layout.address(job, base, spot, peer);
        let rank_steps = steps.by_rank.get(me).map(Vec::as_slice).unwrap_or_default();
        let work = rank_steps.iter().map(|step| match *step {
            Step::Send { message, to, from, destination: at, bytes } => {
                let (peer, signal) = (to as usize, Signal(base.plus(Bytes(signal(message)))));
                StreamOperation::Put { source: address(from, me), target: address(at, peer), bytes, signal, peer }
            }
            Step::Await { message, .. } => {
                let at = Bytes(signal(message));
                StreamOperation::Await { signal: Signal(base.plus(at)), at }
            }
            Step::Copy { from, to, bytes } => {
                StreamOperation::Copy { from: address(from, me), to: address(to, me), bytes }
            }
            Step::Reduce { left, right, to, bytes } => StreamOperation::Reduce {
                left: address(left, me),
                right: address(right, me),
                to: address(to, me),
                bytes,
            },
        });
        Ok(Self {
            element: Arc::clone(&rank.element),
            ready: layout.ready,
            senders: steps.senders(me),
            receivers: steps.receivers(me),
            work: work.collect(),
            combine,
            arena,
        })
    }

    /// Enqueues the clearing of the signal at a byte offset of this rank's arena.
    fn clear(&self, stream: &Stream, offset: Bytes) -> Result<(), ExecuteError> {
        Ok(stream.write_word(self.arena.all().part(offset, Bytes(8))?, 0)?)
    }

    fn ready(&self, peer: usize) -> (Signal, Bytes) {
        let offset = Bytes(self.ready.0 + peer as u64 * 8);
        (Signal(self.arena.address().plus(offset)), offset)
    }
}

impl Executor for Puts {
    #[expect(unsafe_code, reason = "hands addresses to NVSHMEM")]
    fn enqueue(&self, _: usize, stream: &Stream) -> Result<(), ExecuteError> {
        let element = &self.element;
        // SAFETY: all addresses lie in the buffers and the arena on the heap, which outlive the stream's work in every
        // caller here; the lengths are those of the verified schedule's chunks.
        unsafe {
            for &sender in &self.senders {
                element.set_signal(stream, self.ready(element.rank()).0, 1, sender)?;
            }
            for &receiver in &self.receivers {
                let (signal, offset) = self.ready(receiver);
                element.wait_for(stream, signal)?;
                self.clear(stream, offset)?;
            }
            for work in &self.work {
                match *work {
                    StreamOperation::Put { bytes: Bytes(0), signal, peer, .. } => {
                        element.set_signal(stream, signal, 1, peer)?;
                    }
                    StreamOperation::Put { source, target, bytes, signal, peer } => {
                        let ends = SourceAndDestination { source, destination: target };
                        element.put_with_signal(stream, ends, bytes, signal, peer)?;
                    }
                    StreamOperation::Await { signal, at: offset } => {
                        element.wait_for(stream, signal)?;
                        self.clear(stream, offset)?;
                    }
                    StreamOperation::Copy { from, to, bytes } => {
                        let part = |address| DeviceSlice::from_external(element.context(), address, bytes);
                        stream.copy_accessible(part(to), part(from))?;
                    }
                    StreamOperation::Reduce { left, right, to, bytes } => {
                        if let Some(combine) = &self.combine {
                            combine.enqueue(stream, CombineAddresses { left, right, to }, bytes)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Addresses of two operands and of their reduction.
#[derive(Clone, Copy)]
struct CombineAddresses {
    left: DeviceAddress,
    right: DeviceAddress,
    to: DeviceAddress,
}

impl Combine {
    fn new(rank: &Rank, job: &Job) -> Result<Self, ExecuteError> {
        let arch = rank.context.device().arch()?;
        let function = |alignment| -> Result<Function, ExecuteError> {
            let text = combine_text(job.dtype, job.op, alignment, arch.number())?;
            let module = Module::load(&rank.context, &compile::compile(&text, arch, &["--std=c++17"])?)?;
            Ok(module.function("combine_buffers")?)
        };
        let multiprocessors = rank.context.device().attribute(crate::cuda::Attribute::Multiprocessors)?.unsigned_abs();
        Ok(Self {
            vectors: function(Alignment::Vectors)?,
            bytes: function(Alignment::Bytes)?,
            max_blocks: 4 * u64::from(multiprocessors),
        })
    }

    /// Enqueues the reduction of `left` and `right` into `to`.
    ///
    /// # Safety
    /// Each address must refer to at least `bytes` bytes.
    #[expect(unsafe_code, reason = "launches a kernel")]
    unsafe fn enqueue(&self, stream: &Stream, addresses: CombineAddresses, bytes: Bytes) -> Result<(), ExecuteError> {
        let CombineAddresses { left, right, to } = addresses;
        let is_aligned = [left, right, to].iter().all(|address| address.0.is_multiple_of(16));
        let function = if is_aligned { &self.vectors } else { &self.bytes };
        let blocks = bytes.0.div_ceil(16 * u64::from(COMBINE_THREADS)).clamp(1, self.max_blocks);
        let arguments = Arguments::new().pointer(to).pointer(left).pointer(right).u64(bytes.0);
        // SAFETY: the arguments are those of `combine_buffers`; the caller guarantees the addresses.
        Ok(unsafe {
            function.launch(stream, Launch::without_shared_memory(blocks as u32, COMBINE_THREADS), &arguments)
        }?)
    }
}
