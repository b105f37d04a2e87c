//! The collectives, on a stream. Counts are in elements, as NCCL's; addresses are checked by nobody.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{c_int, c_void};

use fabricast_sim::schedule::{DataType, ReduceOp};

use super::communicator::Communicator;
use super::error::NcclError;
use super::types::{data_type, operation};
use crate::cuda::{DeviceAddress, Stream};

fn from(address: DeviceAddress) -> *const c_void {
    address.0 as usize as *const c_void
}

fn to(address: DeviceAddress) -> *mut c_void {
    address.0 as usize as *mut c_void
}

fn rank(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// Of every function here: `input` and `output` are addresses on the communicator's GPU with room for what the call
/// reads and writes until the stream is done, and the stream is of that GPU.
impl Communicator {
    /// Every rank ends with the reduction of all inputs.
    ///
    /// # Safety
    /// The addresses are as said above: `count` elements each.
    ///
    /// # Errors
    /// A failing call.
    pub unsafe fn all_reduce(
        &self,
        stream: &Stream,
        input: DeviceAddress,
        output: DeviceAddress,
        count: usize,
        dtype: DataType,
        op: ReduceOp,
    ) -> Result<(), NcclError> {
        let (dtype, op, stream) = (data_type(dtype), operation(op), stream.raw().cast());
        // SAFETY: the caller answers for the addresses; communicator and stream live.
        let code =
            unsafe { (self.nccl.functions.all_reduce)(from(input), to(output), count, dtype, op, self.raw, stream) };
        self.check(code, "ncclAllReduce")
    }

    /// Every rank ends with all inputs in rank order.
    ///
    /// # Safety
    /// The addresses are as said above: `count` elements at `input`, as many a rank at `output`.
    ///
    /// # Errors
    /// A failing call.
    pub unsafe fn all_gather(
        &self,
        stream: &Stream,
        input: DeviceAddress,
        output: DeviceAddress,
        count: usize,
        dtype: DataType,
    ) -> Result<(), NcclError> {
        let (dtype, stream) = (data_type(dtype), stream.raw().cast());
        // SAFETY: the caller answers for the addresses; communicator and stream live.
        let code = unsafe { (self.nccl.functions.all_gather)(from(input), to(output), count, dtype, self.raw, stream) };
        self.check(code, "ncclAllGather")
    }

    /// Rank r ends with block r of the reduction of all inputs.
    ///
    /// # Safety
    /// The addresses are as said above: `count` elements a rank at `input`, `count` at `output`.
    ///
    /// # Errors
    /// A failing call.
    pub unsafe fn reduce_scatter(
        &self,
        stream: &Stream,
        input: DeviceAddress,
        output: DeviceAddress,
        count: usize,
        dtype: DataType,
        op: ReduceOp,
    ) -> Result<(), NcclError> {
        let (dtype, op, stream) = (data_type(dtype), operation(op), stream.raw().cast());
        // SAFETY: the caller answers for the addresses; communicator and stream live.
        let code = unsafe {
            (self.nccl.functions.reduce_scatter)(from(input), to(output), count, dtype, op, self.raw, stream)
        };
        self.check(code, "ncclReduceScatter")
    }

    /// Every rank ends with the root's input.
    ///
    /// # Safety
    /// The addresses are as said above: `count` elements each.
    ///
    /// # Errors
    /// A failing call.
    pub unsafe fn broadcast(
        &self,
        stream: &Stream,
        input: DeviceAddress,
        output: DeviceAddress,
        count: usize,
        dtype: DataType,
        root: usize,
    ) -> Result<(), NcclError> {
        let (dtype, stream) = (data_type(dtype), stream.raw().cast());
        // SAFETY: the caller answers for the addresses; communicator and stream live.
        let code = unsafe {
            (self.nccl.functions.broadcast)(from(input), to(output), count, dtype, rank(root), self.raw, stream)
        };
        self.check(code, "ncclBroadcast")
    }

    /// The root ends with the reduction of all inputs.
    ///
    /// # Safety
    /// The addresses are as said above: `count` elements each; `output` matters on the root alone.
    ///
    /// # Errors
    /// A failing call.
    #[expect(clippy::too_many_arguments, reason = "NCCL's own arguments, in words of ours")]
    pub unsafe fn reduce(
        &self,
        stream: &Stream,
        input: DeviceAddress,
        output: DeviceAddress,
        count: usize,
        dtype: DataType,
        op: ReduceOp,
        root: usize,
    ) -> Result<(), NcclError> {
        let (dtype, op, stream) = (data_type(dtype), operation(op), stream.raw().cast());
        // SAFETY: the caller answers for the addresses; communicator and stream live.
        let code = unsafe {
            (self.nccl.functions.reduce)(from(input), to(output), count, dtype, op, rank(root), self.raw, stream)
        };
        self.check(code, "ncclReduce")
    }

    /// Sends to `peer`, which must receive as much. Sends and receives that need each other go into one
    /// [group](super::Nccl::group).
    ///
    /// # Safety
    /// The address is as said above: `count` elements.
    ///
    /// # Errors
    /// A failing call.
    pub unsafe fn send(
        &self,
        stream: &Stream,
        input: DeviceAddress,
        count: usize,
        dtype: DataType,
        peer: usize,
    ) -> Result<(), NcclError> {
        let stream = stream.raw().cast();
        // SAFETY: the caller answers for the address; communicator and stream live.
        let code =
            unsafe { (self.nccl.functions.send)(from(input), count, data_type(dtype), rank(peer), self.raw, stream) };
        self.check(code, "ncclSend")
    }

    /// Receives from `peer`, which must send as much.
    ///
    /// # Safety
    /// The address is as said above: `count` elements.
    ///
    /// # Errors
    /// A failing call.
    pub unsafe fn recv(
        &self,
        stream: &Stream,
        output: DeviceAddress,
        count: usize,
        dtype: DataType,
        peer: usize,
    ) -> Result<(), NcclError> {
        let stream = stream.raw().cast();
        // SAFETY: the caller answers for the address; communicator and stream live.
        let code =
            unsafe { (self.nccl.functions.recv)(to(output), count, data_type(dtype), rank(peer), self.raw, stream) };
        self.check(code, "ncclRecv")
    }

    /// Block r of every rank's input ends on rank r, in rank order: sends and receives in one group, as NCCL itself
    /// does it.
    ///
    /// # Safety
    /// The addresses are as said above: `count` elements a rank each.
    ///
    /// # Errors
    /// A failing call.
    pub unsafe fn all_to_all(
        &self,
        stream: &Stream,
        input: DeviceAddress,
        output: DeviceAddress,
        count: usize,
        dtype: DataType,
    ) -> Result<(), NcclError> {
        let block = fabricast_topologies::Bytes((count * dtype.size().0 as usize) as u64);
        let at = |start: DeviceAddress, peer: usize| start.plus(fabricast_topologies::Bytes(block.0 * peer as u64));
        self.nccl.group(|| {
            for peer in 0..self.size() {
                // SAFETY: the caller answers for the addresses.
                unsafe {
                    self.send(stream, at(input, peer), count, dtype, peer)?;
                    self.recv(stream, at(output, peer), count, dtype, peer)?;
                }
            }
            Ok(())
        })
    }
}
