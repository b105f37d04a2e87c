//! NCCL collectives on a stream. Counts are in elements, as in NCCL; addresses are not checked.
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

/// Buffers of a rank for a call: addresses on the communicator's GPU, valid for all bytes that the call reads and
/// writes until the stream is done. For collectives with blocks, `count` is the size of one block, and the larger
/// buffer has one block per rank.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// Address of the input buffer.
    pub input: DeviceAddress,
    /// Address of the output buffer.
    pub output: DeviceAddress,
    /// Number of elements; for collectives with blocks, of one block.
    pub count: usize,
    /// Element type of both buffers.
    pub dtype: DataType,
}

/// Collectives that every rank calls with the same arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// All ranks receive the reduction of all inputs.
    AllReduce(ReduceOp),
    /// All ranks receive all inputs in rank order (a collective with blocks).
    AllGather,
    /// Rank r receives block r of the reduction of all inputs (a collective with blocks).
    ReduceScatter(ReduceOp),
    /// All ranks receive the input of this rank.
    Broadcast(usize),
    /// This rank receives the reduction of all inputs; the output of the others is undefined.
    Reduce(ReduceOp, usize),
}

impl Communicator {
    /// Enqueues a collective on a stream.
    ///
    /// # Safety
    /// The operands must be valid as described at [`Operands`], and the stream must belong to the communicator's GPU.
    ///
    /// # Errors
    /// An NCCL function returns an error.
    pub unsafe fn collective(
        &self,
        stream: &Stream,
        operation: Operation,
        operands: Operands,
    ) -> Result<(), NcclError> {
        let (input, output, count, dtype) =
            (from(operands.input), to(operands.output), operands.count, data_type(operands.dtype));
        let (raw, stream, nccl) = (self.raw, stream.raw().cast(), &self.nccl.functions);
        // SAFETY: the caller guarantees the addresses; communicator and stream are alive.
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

    /// Sends `count` elements to `peer`, which must receive as many. Sends and receives that depend on each other must
    /// be in one [group](super::Nccl::group).
    ///
    /// # Safety
    /// Address and stream must belong to the communicator's GPU; the buffer must hold `count` elements until the stream
    /// is done.
    ///
    /// # Errors
    /// An NCCL function returns an error.
    pub unsafe fn send(
        &self,
        stream: &Stream,
        input: DeviceAddress,
        count: usize,
        dtype: DataType,
        peer: usize,
    ) -> Result<(), NcclError> {
        let stream = stream.raw().cast();
        // SAFETY: the caller guarantees the address; communicator and stream are alive.
        let code =
            unsafe { (self.nccl.functions.send)(from(input), count, data_type(dtype), rank(peer), self.raw, stream) };
        self.check(code, "ncclSend")
    }

    /// Receives `count` elements from `peer`, which must send as many.
    ///
    /// # Safety
    /// Address and stream must belong to the communicator's GPU; the buffer must hold `count` elements until the stream
    /// is done.
    ///
    /// # Errors
    /// An NCCL function returns an error.
    pub unsafe fn recv(
        &self,
        stream: &Stream,
        output: DeviceAddress,
        count: usize,
        dtype: DataType,
        peer: usize,
    ) -> Result<(), NcclError> {
        let stream = stream.raw().cast();
        // SAFETY: the caller guarantees the address; communicator and stream are alive.
        let code =
            unsafe { (self.nccl.functions.recv)(to(output), count, data_type(dtype), rank(peer), self.raw, stream) };
        self.check(code, "ncclRecv")
    }

    /// All-to-all: block r of every rank's input is sent to rank r, in rank order. Implemented by sends and receives
    /// in one group, as in NCCL.
    ///
    /// # Safety
    /// See [`Communicator::collective`]; both buffers must have one block per rank.
    ///
    /// # Errors
    /// An NCCL function returns an error.
    pub unsafe fn all_to_all(&self, stream: &Stream, operands: Operands) -> Result<(), NcclError> {
        let Operands { input, output, count, dtype } = operands;
        let block = dtype.size().0 * count as u64;
        let block_address = |start: DeviceAddress, peer: usize| start.plus(Bytes(block * peer as u64));
        self.nccl.group(|| {
            for peer in 0..self.size() {
                // SAFETY: the caller guarantees the addresses.
                unsafe {
                    self.send(stream, block_address(input, peer), count, dtype, peer)?;
                    self.recv(stream, block_address(output, peer), count, dtype, peer)?;
                }
            }
            Ok(())
        })
    }
}
