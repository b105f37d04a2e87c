//! NVSHMEM operations on a stream: collectives over all elements, puts with a signal, and signals. An address in a
//! peer's heap is given by the corresponding address in this element's own heap. Errors that occur later on the stream
//! are reported by a wait for the stream.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{c_int, c_void};

use fabricast_sim::schedule::{DataType, ReduceOp};
use fabricast_topologies::Bytes;

use super::element::{Element, check};
use super::error::NvshmemError;
use super::library::{ExchangeFunction, Reduction, Team};
use crate::cuda::{DeviceAddress, Stream};

/// Team of all elements: `NVSHMEM_TEAM_WORLD`.
const ALL: Team = 0;
/// Signal operation that stores a value: `NVSHMEM_SIGNAL_SET`.
const SET: c_int = 9;
/// Comparison for equality: `NVSHMEM_CMP_EQ`.
const EQUAL: c_int = 0;

/// Address of an 8-byte word of the heap that signals an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(pub DeviceAddress);

/// Source and destination address of a call, on this element's GPU or heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceAndDestination {
    /// Address that is read.
    pub source: DeviceAddress,
    /// Address that is written.
    pub destination: DeviceAddress,
}

fn from(address: DeviceAddress) -> *const c_void {
    address.0 as usize as *const c_void
}

fn to(address: DeviceAddress) -> *mut c_void {
    address.0 as usize as *mut c_void
}

fn word(signal: Signal) -> *mut u64 {
    signal.0.0 as usize as *mut u64
}

fn number(value: usize) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// Operations on a stream. Every function has two requirements. Addresses must lie in symmetric memory (the source of a
/// put may be any memory of this GPU) and be valid for all bytes that the call reads and writes until the stream is
/// done. The stream must belong to the element's GPU.
impl Element {
    /// Makes the stream wait until all elements have reached the barrier and all their puts are complete.
    ///
    /// # Errors
    /// The context cannot be made current.
    pub fn barrier(&self, stream: &Stream) -> Result<(), NvshmemError> {
        self.context().bind()?;
        // SAFETY: element and stream are alive.
        unsafe { (self.nvshmem.functions.barrier)(stream.raw().cast()) };
        Ok(())
    }

    /// All-reduce or reduce-scatter of all inputs: every element gets the whole result, or element r gets block r.
    /// `None` if NVSHMEM cannot reduce the data type.
    ///
    /// # Safety
    /// The addresses must satisfy the requirements of this `impl` block, for `count` elements at the destination, and
    /// as many at the source, or as many per element for a reduce-scatter.
    ///
    /// # Errors
    /// An NVSHMEM function returns an error, or the library lacks the function.
    pub unsafe fn reduce(
        &self,
        stream: &Stream,
        scope: Reduction,
        ends: SourceAndDestination,
        count: usize,
        dtype: DataType,
        op: ReduceOp,
    ) -> Result<Option<()>, NvshmemError> {
        let Some((function, call)) = self.nvshmem.reduction(scope, dtype, op)? else { return Ok(None) };
        self.context().bind()?;
        // SAFETY: the caller guarantees the addresses; element and stream are alive.
        let code = unsafe { function(ALL, to(ends.destination), from(ends.source), count, stream.raw().cast()) };
        check(code, call, Some(self.rank())).map(Some)
    }

    /// All-gather: every element gets all inputs, in the order of the elements.
    ///
    /// # Safety
    /// The addresses must satisfy the requirements of this `impl` block, for `block` bytes at the source, and as many
    /// per element at the destination.
    ///
    /// # Errors
    /// An NVSHMEM function returns an error.
    pub unsafe fn gather(&self, stream: &Stream, ends: SourceAndDestination, block: Bytes) -> Result<(), NvshmemError> {
        let (function, name) = (self.nvshmem.functions.fcollect, "nvshmemx_fcollectmem_on_stream");
        // SAFETY: the caller guarantees the addresses.
        unsafe { self.exchange(stream, function, name, ends, block) }
    }

    /// All-to-all: element r gets block r of every input, in the order of the elements.
    ///
    /// # Safety
    /// The addresses must satisfy the requirements of this `impl` block, for `block` bytes per element at both.
    ///
    /// # Errors
    /// An NVSHMEM function returns an error.
    pub unsafe fn all_to_all(
        &self,
        stream: &Stream,
        ends: SourceAndDestination,
        block: Bytes,
    ) -> Result<(), NvshmemError> {
        let (function, name) = (self.nvshmem.functions.alltoall, "nvshmemx_alltoallmem_on_stream");
        // SAFETY: the caller guarantees the addresses.
        unsafe { self.exchange(stream, function, name, ends, block) }
    }

    unsafe fn exchange(
        &self,
        stream: &Stream,
        function: ExchangeFunction,
        call: &'static str,
        ends: SourceAndDestination,
        block: Bytes,
    ) -> Result<(), NvshmemError> {
        self.context().bind()?;
        // SAFETY: the caller guarantees the addresses; element and stream are alive.
        let code =
            unsafe { function(ALL, to(ends.destination), from(ends.source), block.0 as usize, stream.raw().cast()) };
        check(code, call, Some(self.rank()))
    }

    /// Broadcast: every element gets the root's input.
    ///
    /// # Safety
    /// The addresses must satisfy the requirements of this `impl` block, for `bytes` bytes each.
    ///
    /// # Errors
    /// An NVSHMEM function returns an error.
    pub unsafe fn broadcast(
        &self,
        stream: &Stream,
        ends: SourceAndDestination,
        bytes: Bytes,
        root: usize,
    ) -> Result<(), NvshmemError> {
        self.context().bind()?;
        let (root, stream) = (number(root), stream.raw().cast());
        // SAFETY: the caller guarantees the addresses; element and stream are alive.
        let code = unsafe {
            (self.nvshmem.functions.broadcast)(
                ALL,
                to(ends.destination),
                from(ends.source),
                bytes.0 as usize,
                root,
                stream,
            )
        };
        check(code, "nvshmemx_broadcastmem_on_stream", Some(self.rank()))
    }

    /// Writes to `peer`, and sets the signal there to 1 after all data has arrived.
    ///
    /// # Safety
    /// The addresses must satisfy the requirements of this `impl` block, for `bytes` bytes each, and for a word at the
    /// signal.
    ///
    /// # Errors
    /// The context cannot be made current.
    pub unsafe fn put_with_signal(
        &self,
        stream: &Stream,
        ends: SourceAndDestination,
        bytes: Bytes,
        signal: Signal,
        peer: usize,
    ) -> Result<(), NvshmemError> {
        self.context().bind()?;
        let (peer, stream) = (number(peer), stream.raw().cast());
        let put = self.nvshmem.functions.put_signal;
        // SAFETY: the caller guarantees the addresses; element and stream are alive.
        unsafe { put(to(ends.destination), from(ends.source), bytes.0 as usize, word(signal), 1, SET, peer, stream) };
        Ok(())
    }

    /// Sets a signal of `peer` to `value`.
    ///
    /// # Safety
    /// The address must satisfy the requirements of this `impl` block, for a word.
    ///
    /// # Errors
    /// The context cannot be made current.
    pub unsafe fn set_signal(
        &self,
        stream: &Stream,
        signal: Signal,
        value: u64,
        peer: usize,
    ) -> Result<(), NvshmemError> {
        self.context().bind()?;
        // SAFETY: the caller guarantees the address; element and stream are alive.
        unsafe { (self.nvshmem.functions.signal)(word(signal), value, SET, number(peer), stream.raw().cast()) };
        Ok(())
    }

    /// Makes subsequent work of the stream wait until this element's own signal is 1.
    ///
    /// # Safety
    /// The address must satisfy the requirements of this `impl` block, for a word.
    ///
    /// # Errors
    /// The context cannot be made current.
    pub unsafe fn wait_for(&self, stream: &Stream, signal: Signal) -> Result<(), NvshmemError> {
        self.context().bind()?;
        // SAFETY: the caller guarantees the address; element and stream are alive.
        unsafe { (self.nvshmem.functions.wait)(word(signal), EQUAL, 1, stream.raw().cast()) };
        Ok(())
    }
}
