//! The collectives, on a stream. Counts are in elements, as NCCL's; addresses are checked by nobody.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{c_int, c_void};

use fabricast_sim::schedule::{DataType, ReduceOp};
use fabricast_topologies::Bytes;

use super::communicator::Communicator;
use super::error::NcclError;
use super::types::{data_type, operation as reduction};
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

/// What a rank brings to a call and takes from it: addresses on the communicator's GPU with room for what the call reads
/// and writes until the stream is done. Of a call in blocks `count` is a block's, and the larger buffer has one for each rank.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// Where its input lies.
    pub input: DeviceAddress,
    /// Where its result goes.
    pub output: DeviceAddress,
    /// Elements.
    pub count: usize,
    /// Of which type.
    pub dtype: DataType,
}

/// The collectives that every rank calls with the same arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Every rank ends with the reduction of all inputs.
    AllReduce(ReduceOp),
    /// Every rank ends with all inputs in rank order; in blocks.
    AllGather,
    /// Rank r ends with block r of the reduction of all inputs; in blocks.
    ReduceScatter(ReduceOp),
    /// Every rank ends with the input of this rank.
    Broadcast(usize),
    /// This rank ends with the reduction of all inputs; the output of others does not matter.
    Reduce(ReduceOp, usize),
}

impl Communicator {
    /// Puts a collective on a stream.
    ///
    /// # Safety
    /// The operands are as [`Operands`] says, and the stream is of the communicator's GPU.
    ///
    /// # Errors
    /// A failing call.
    pub unsafe fn collective(&self, stream: &Stream, operation: Operation, of: Operands) -> Result<(), NcclError> {
        let (input, output, count, dtype) = (from(of.input), to(of.output), of.count, data_type(of.dtype));
        let (raw, stream, nccl) = (self.raw, stream.raw().cast(), &self.nccl.functions);
        // SAFETY: the caller answers for the addresses; communicator and stream live.
        let (code, call) = unsafe {
            match operation {
                Operation::AllReduce(op) => {
                    ((nccl.all_reduce)(input, output, count, dtype, reduction(op), raw, stream), "ncclAllReduce")
                }
                Operation::AllGather => ((nccl.all_gather)(input, output, count, dtype, raw, stream), "ncclAllGather"),
                Operation::ReduceScatter(op) => (
                    (nccl.reduce_scatter)(input, output, count, dtype, reduction(op), raw, stream),
                    "ncclReduceScatter",
                ),
                Operation::Broadcast(root) => {
                    ((nccl.broadcast)(input, output, count, dtype, rank(root), raw, stream), "ncclBroadcast")
                }
                Operation::Reduce(op, root) => {
                    ((nccl.reduce)(input, output, count, dtype, reduction(op), rank(root), raw, stream), "ncclReduce")
                }
            }
        };
        self.check(code, call)
    }

    /// Sends to `peer`, which must receive as much. Sends and receives that need each other go into one
    /// [group](super::Nccl::group).
    ///
    /// # Safety
    /// The address is on the communicator's GPU, as is the stream, with room for `count` elements until the stream is done.
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
    /// The address is on the communicator's GPU, as is the stream, with room for `count` elements until the stream is done.
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
    /// As of [`Communicator::collective`]; in blocks, both buffers have one for each rank.
    ///
    /// # Errors
    /// A failing call.
    pub unsafe fn all_to_all(&self, stream: &Stream, of: Operands) -> Result<(), NcclError> {
        let Operands { input, output, count, dtype } = of;
        let block = dtype.size().0 * count as u64;
        let at = |start: DeviceAddress, peer: usize| start.plus(Bytes(block * peer as u64));
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
