//! What a stream runs of NVSHMEM: its collectives over all elements, puts with a signal, signals. Addresses of the heap are
//! this element's own, whoever's memory is meant. Nothing here returns what went wrong later on the stream; that shows when
//! the stream is waited for.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{c_int, c_void};

use fabricast_sim::schedule::{DataType, ReduceOp};
use fabricast_topologies::Bytes;

use super::element::{Element, check};
use super::error::NvshmemError;
use super::library::{Exchange, Reduction, Team};
use crate::cuda::{DeviceAddress, Stream};

/// `NVSHMEM_TEAM_WORLD`.
const ALL: Team = 0;
/// `NVSHMEM_SIGNAL_SET`.
const SET: c_int = 9;
/// `NVSHMEM_CMP_EQ`.
const EQUAL: c_int = 0;

/// A word of the heap that tells that something has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(pub DeviceAddress);

/// Where a call reads and where it writes.
pub type Ends = (DeviceAddress, DeviceAddress);

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

/// Of every function here: addresses are those of symmetric memory (a put's source may be any of this GPU's), with room for
/// what the call reads and writes until the stream is done, and the stream is of the element's GPU.
impl Element {
    /// Waits until all elements' streams have come here and all their puts are done.
    ///
    /// # Errors
    /// A failing call.
    pub fn barrier(&self, stream: &Stream) -> Result<(), NvshmemError> {
        self.context().bind()?;
        // SAFETY: element and stream live.
        unsafe { (self.nvshmem.functions.barrier)(stream.raw().cast()) };
        Ok(())
    }

    /// Everyone ends with the reduction of all inputs, or element r with block r of it; `None` where NVSHMEM does not
    /// reduce the type.
    ///
    /// # Safety
    /// The addresses are as said above: `count` elements at `output`, and as many at `input`, or for each element where they
    /// are scattered.
    ///
    /// # Errors
    /// A failing call, or a library without it.
    pub unsafe fn reduce(
        &self,
        stream: &Stream,
        scope: Reduction,
        (input, output): Ends,
        count: usize,
        dtype: DataType,
        op: ReduceOp,
    ) -> Result<Option<()>, NvshmemError> {
        let Some((function, call)) = self.nvshmem.reduction(scope, dtype, op)? else { return Ok(None) };
        self.context().bind()?;
        // SAFETY: the caller answers for the addresses; element and stream live.
        let code = unsafe { function(ALL, to(output), from(input), count, stream.raw().cast()) };
        check(code, call, Some(self.rank())).map(Some)
    }

    /// Everyone ends with all inputs, in the order of the elements.
    ///
    /// # Safety
    /// The addresses are as said above: `block` bytes at `input`, as many for each at `output`.
    ///
    /// # Errors
    /// A failing call.
    pub unsafe fn gather(&self, stream: &Stream, ends: Ends, block: Bytes) -> Result<(), NvshmemError> {
        let call = (self.nvshmem.functions.fcollect, "nvshmemx_fcollectmem_on_stream");
        // SAFETY: the caller answers for the addresses.
        unsafe { self.exchange(stream, call, ends, block) }
    }

    /// Block r of everyone's input ends on element r, in the order of the elements.
    ///
    /// # Safety
    /// The addresses are as said above: `block` bytes for each, at both.
    ///
    /// # Errors
    /// A failing call.
    pub unsafe fn all_to_all(&self, stream: &Stream, ends: Ends, block: Bytes) -> Result<(), NvshmemError> {
        let call = (self.nvshmem.functions.alltoall, "nvshmemx_alltoallmem_on_stream");
        // SAFETY: the caller answers for the addresses.
        unsafe { self.exchange(stream, call, ends, block) }
    }

    unsafe fn exchange(
        &self,
        stream: &Stream,
        (function, call): (Exchange, &'static str),
        (input, output): Ends,
        block: Bytes,
    ) -> Result<(), NvshmemError> {
        self.context().bind()?;
        // SAFETY: the caller answers for the addresses; element and stream live.
        let code = unsafe { function(ALL, to(output), from(input), block.0 as usize, stream.raw().cast()) };
        check(code, call, Some(self.rank()))
    }

    /// Everyone ends with the root's input.
    ///
    /// # Safety
    /// The addresses are as said above: `bytes` each.
    ///
    /// # Errors
    /// A failing call.
    pub unsafe fn broadcast(
        &self,
        stream: &Stream,
        (input, output): Ends,
        bytes: Bytes,
        root: usize,
    ) -> Result<(), NvshmemError> {
        self.context().bind()?;
        let (root, stream) = (number(root), stream.raw().cast());
        // SAFETY: the caller answers for the addresses; element and stream live.
        let code =
            unsafe { (self.nvshmem.functions.broadcast)(ALL, to(output), from(input), bytes.0 as usize, root, stream) };
        check(code, "nvshmemx_broadcastmem_on_stream", Some(self.rank()))
    }

    /// Writes to `peer`, and sets the signal there to 1 when all has arrived.
    ///
    /// # Safety
    /// The addresses are as said above: `bytes` each, and a word.
    ///
    /// # Errors
    /// The context cannot be made current.
    pub unsafe fn put_with_signal(
        &self,
        stream: &Stream,
        (source, target): Ends,
        bytes: Bytes,
        signal: Signal,
        peer: usize,
    ) -> Result<(), NvshmemError> {
        self.context().bind()?;
        let (peer, stream) = (number(peer), stream.raw().cast());
        let put = self.nvshmem.functions.put_signal;
        // SAFETY: the caller answers for the addresses; element and stream live.
        unsafe { put(to(target), from(source), bytes.0 as usize, word(signal), 1, SET, peer, stream) };
        Ok(())
    }

    /// Sets a signal of `peer`.
    ///
    /// # Safety
    /// The address is as said above: a word.
    ///
    /// # Errors
    /// The context cannot be made current.
    pub unsafe fn set(&self, stream: &Stream, signal: Signal, value: u64, peer: usize) -> Result<(), NvshmemError> {
        self.context().bind()?;
        // SAFETY: the caller answers for the address; element and stream live.
        unsafe { (self.nvshmem.functions.signal)(word(signal), value, SET, number(peer), stream.raw().cast()) };
        Ok(())
    }

    /// What follows waits until this element's own signal is 1.
    ///
    /// # Safety
    /// The address is as said above: a word.
    ///
    /// # Errors
    /// The context cannot be made current.
    pub unsafe fn wait_for(&self, stream: &Stream, signal: Signal) -> Result<(), NvshmemError> {
        self.context().bind()?;
        // SAFETY: the caller answers for the address; element and stream live.
        unsafe { (self.nvshmem.functions.wait)(word(signal), EQUAL, 1, stream.raw().cast()) };
        Ok(())
    }
}
