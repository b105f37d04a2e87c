//! Executor for NVSHMEM's own collectives on a stream.

use std::sync::Arc;

use fabricast_sim::schedule::{BufferUse, Collective, DataType};
use fabricast_topologies::Bytes;

use super::rank::Rank;
use crate::cuda::{DeviceAddress, Stream};
use crate::execute::{ExecuteError, Executor, Job};
use crate::kernel::UserBuffer;
use crate::nvshmem::{Element, Reduction, SourceAndDestination};

/// A call of an NVSHMEM collective.
#[derive(Debug)]
pub(super) struct Collectives {
    element: Arc<Element>,
    job: Job,
    input: DeviceAddress,
    output: DeviceAddress,
}

pub(super) fn unsupported(reason: &str) -> ExecuteError {
    ExecuteError::Unsupported { executor: "nvshmem", reason: reason.to_owned() }
}

impl Collectives {
    /// Creates the call of a job.
    ///
    /// # Errors
    /// NVSHMEM does not support the collective, the data type or the use of buffers.
    pub(super) fn new(rank: &Rank, job: &Job) -> Result<Self, ExecuteError> {
        use Collective as C;
        let call = &job.header.call;
        let reduces = matches!(call.collective, C::AllReduce | C::ReduceScatter);
        if reduces && matches!(job.dtype, DataType::F8e4m3 | DataType::F8e5m2) {
            return Err(unsupported("it does not reduce eight-bit floats"));
        }
        match (call.collective, call.buffers) {
            (C::AllReduce | C::Barrier, _) => {}
            (C::AllGather | C::ReduceScatter | C::AllToAll | C::Broadcast, BufferUse::OutOfPlace) => {}
            (C::AllGather | C::ReduceScatter | C::AllToAll | C::Broadcast, BufferUse::InPlace) => {
                return Err(unsupported("its collectives other than reductions take two buffers"));
            }
            _ => return Err(unsupported("it has no such collective")),
        }
        let (input, output) = (rank.symmetric(job, UserBuffer::Input), rank.symmetric(job, UserBuffer::Output));
        Ok(Self { element: Arc::clone(&rank.element), job: job.clone(), input, output })
    }
}

impl Executor for Collectives {
    #[expect(unsafe_code, reason = "hands addresses to NVSHMEM")]
    fn enqueue(&self, _: usize, stream: &Stream) -> Result<(), ExecuteError> {
        let Job { header, dtype, op } = &self.job;
        let call = &header.call;
        let element = &self.element;
        let buffers = SourceAndDestination { source: self.input, destination: self.output };
        let total = header.layout.bytes();
        let block = Bytes(total.0 / u64::from(call.ranks.max(1)));
        let count = |bytes: Bytes| (bytes.0 / dtype.size().0) as usize;
        // SAFETY: the addresses are those of the job's buffers on the heap, as long as its header states, and outlive
        // the stream's work.
        let reduced = unsafe {
            match call.collective {
                Collective::AllReduce => element.reduce(stream, Reduction::All, buffers, count(total), *dtype, *op)?,
                Collective::ReduceScatter => {
                    element.reduce(stream, Reduction::Scatter, buffers, count(block), *dtype, *op)?
                }
                Collective::AllGather => Some(element.gather(stream, buffers, block)?),
                Collective::AllToAll => Some(element.all_to_all(stream, buffers, block)?),
                Collective::Broadcast => Some(element.broadcast(stream, buffers, total, call.root.0 as usize)?),
                _ => Some(element.barrier(stream)?),
            }
        };
        reduced.ok_or_else(|| unsupported("it does not reduce this type"))
    }
}
