//! NCCL, as it chooses by itself or was made to by its environment.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use crate::cuda::{DeviceAddress, Stream, Watchdog, team};
use crate::kernel::{Devices, UserBuffer};
use crate::nccl::{Communicator, Config, Nccl, NcclError, NcclVersion};

use super::{Buffers, ExecuteError, Executor, Job, Stage};

/// Communicators of all ranks.
#[derive(Debug)]
pub struct Library {
    nccl: std::sync::Arc<Nccl>,
    communicators: Vec<Mutex<Communicator>>,
}

impl Library {
    /// Loads NCCL and makes the communicators.
    ///
    /// # Errors
    /// No NCCL, ranks that share a GPU, or a failing call.
    pub fn new(stage: &Stage, choice: Option<&Path>, watchdog: &Watchdog) -> Result<Self, ExecuteError> {
        if stage.devices() == Devices::Shared && stage.ranks() > 1 {
            return Err(unsupported("its ranks need a GPU each"));
        }
        let nccl = Nccl::open(choice)?;
        let id = nccl.unique_id()?;
        let made = team::run(stage.contexts(), watchdog, |member| {
            Communicator::new(&nccl, member.context, id, member.rank, member.size, Config::default())
        })?;
        Ok(Self { nccl, communicators: made.into_iter().map(Mutex::new).collect() })
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> NcclVersion {
        self.nccl.version()
    }

    /// The executor of a job.
    ///
    /// # Errors
    /// A collective, or a way to call it, that NCCL has not.
    pub fn of<'a>(&'a self, buffers: &'a Buffers, job: &'a Job) -> Result<impl Executor + 'a, ExecuteError> {
        use Collective as C;
        match job.header.call.collective {
            C::AllToAllV | C::Barrier => Err(unsupported("it has no such collective")),
            C::AllToAll | C::SendRecv if job.in_place() => Err(unsupported("it does not send and receive in place")),
            _ => Ok(Call { library: self, buffers, job }),
        }
    }
}

fn unsupported(reason: &str) -> ExecuteError {
    ExecuteError::Unsupported { executor: "nccl", reason: reason.to_owned() }
}

struct Call<'a> {
    library: &'a Library,
    buffers: &'a Buffers,
    job: &'a Job,
}

impl Executor for Call<'_> {
    #[expect(unsafe_code, reason = "hands addresses to NCCL")]
    fn enqueue(&self, member: usize, stream: &Stream) -> Result<(), ExecuteError> {
        let Job { header, dtype, op } = self.job;
        let call = &header.call;
        let communicator = self.library.communicators[member].lock().unwrap_or_else(PoisonError::into_inner);
        let mut input = self.buffers.part(self.job, member, UserBuffer::Input)?.address();
        let mut output = self.buffers.part(self.job, member, UserBuffer::Output)?.address();
        let (size, ranks) = (dtype.size().0, u64::from(call.ranks.max(1)));
        let total = header.layout.bytes().0;
        let block = Bytes(total / ranks);
        let (count, all) = ((block.0 / size) as usize, (total / size) as usize);
        let own = Bytes(block.0 * member as u64);
        let at = |start: DeviceAddress, peer: u64| start.plus(Bytes(block.0 * peer));
        if self.job.in_place() {
            match call.collective {
                Collective::AllGather | Collective::Gather => input = output.plus(own),
                Collective::ReduceScatter | Collective::Scatter => output = input.plus(own),
                _ => {}
            }
        }
        let (root, me, peers) = (call.root.0 as usize, member, communicator.size());
        let nccl = &self.library.nccl;
        // SAFETY: the addresses are those of the job's buffers, as long as its header says, and outlive the stream's work.
        unsafe {
            match call.collective {
                Collective::AllReduce => communicator.all_reduce(stream, input, output, all, *dtype, *op),
                Collective::AllGather => communicator.all_gather(stream, input, output, count, *dtype),
                Collective::ReduceScatter => communicator.reduce_scatter(stream, input, output, count, *dtype, *op),
                Collective::Broadcast => communicator.broadcast(stream, input, output, all, *dtype, root),
                Collective::Reduce => communicator.reduce(stream, input, output, all, *dtype, *op, root),
                Collective::AllToAll => communicator.all_to_all(stream, input, output, count, *dtype),
                Collective::Gather => nccl.group(|| {
                    communicator.send(stream, input, count, *dtype, root)?;
                    let from = if me == root { 0..peers } else { 0..0 };
                    from.into_iter()
                        .try_for_each(|peer| communicator.recv(stream, at(output, peer as u64), count, *dtype, peer))
                }),
                Collective::Scatter => nccl.group(|| {
                    let to = if me == root { 0..peers } else { 0..0 };
                    to.into_iter()
                        .try_for_each(|peer| communicator.send(stream, at(input, peer as u64), count, *dtype, peer))?;
                    communicator.recv(stream, output, count, *dtype, root)
                }),
                Collective::SendRecv => nccl.group(|| {
                    communicator.send(stream, input, all, *dtype, (me + 1) % peers)?;
                    communicator.recv(stream, output, all, *dtype, (me + peers - 1) % peers)
                }),
                Collective::AllToAllV | Collective::Barrier => Ok::<(), NcclError>(()),
            }?;
        }
        Ok(())
    }
}
