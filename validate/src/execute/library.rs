//! Executor for NCCL: with its default choice of strategy, with buffers registered as symmetric windows, or with a
//! forced strategy.

use std::sync::{Arc, Mutex, PoisonError};

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use crate::cuda::{DeviceAddress, Stream, Watchdog, team};
use crate::kernel::{Devices, UserBuffer};
use crate::nccl::{Communicator, CommunicatorConfig, ForcedChoice, Nccl, NcclError, NcclVersion, Operands, Operation};

use super::{Buffers, ExecuteError, Executor, Job, Testbed};

/// Choice of NCCL's strategy.
#[derive(Clone, Copy, Debug)]
pub enum NcclChoice<'a> {
    /// NCCL chooses the strategy.
    Own,
    /// NCCL chooses the strategy, with these buffers registered as windows, which its symmetric kernels need (`-R 2` of
    /// nccl-tests).
    Windows(&'a Buffers),
    /// A forced algorithm, protocol and number of channels.
    Forced(&'a ForcedChoice),
}

/// NCCL communicators of all ranks.
#[derive(Debug)]
pub struct NcclCommunicators {
    nccl: Arc<Nccl>,
    communicators: Vec<Mutex<Communicator>>,
}

impl NcclCommunicators {
    /// Creates the communicators, always without NVLink multicast ([`crate::nccl::SHARED_HOST`]). NCCL reads forced
    /// settings from the environment during creation; the environment must have been [reserved](crate::nccl::reserve).
    /// Communicators that other threads create concurrently wait for this creation.
    ///
    /// # Errors
    /// Ranks that share a GPU, an environment that was not reserved, or a failing call.
    pub fn new(
        testbed: &Testbed,
        nccl: &Arc<Nccl>,
        choice: NcclChoice<'_>,
        watchdog: &Watchdog,
    ) -> Result<Self, ExecuteError> {
        if testbed.devices() == Devices::Shared && testbed.ranks() > 1 {
            return Err(unsupported("its ranks need a GPU each"));
        }
        // The number of channels is set per communicator, because NCCL reads the variables for it only once per
        // process.
        let (forced, blocks) = match choice {
            NcclChoice::Forced(forced) => (ForcedChoice { channels: None, ..forced.clone() }, forced.channels),
            NcclChoice::Own | NcclChoice::Windows(_) => (ForcedChoice::default(), None),
        };
        let config = CommunicatorConfig { min_blocks: blocks, max_blocks: blocks };
        let make = || {
            let id = nccl.unique_id()?;
            team::run(testbed.contexts(), watchdog, |member| -> Result<Communicator, ExecuteError> {
                let mut communicator = Communicator::new(nccl, member.context, id, member.rank, member.size, config)?;
                if let NcclChoice::Windows(buffers) = choice {
                    buffers.windows(member.rank).into_iter().try_for_each(|memory| communicator.register(memory))?;
                }
                Ok(communicator)
            })
        };
        let communicators = forced.with_environment(make).map_err(|error| unsupported(&error.to_string()))??;
        Ok(Self { nccl: Arc::clone(nccl), communicators: communicators.into_iter().map(Mutex::new).collect() })
    }

    /// Version of the loaded NCCL.
    #[must_use]
    pub fn version(&self) -> NcclVersion {
        self.nccl.version()
    }

    /// Creates the executor of a job.
    ///
    /// # Errors
    /// NCCL does not support the collective, or does not support it in place.
    pub fn executor<'a>(&'a self, buffers: &'a Buffers, job: &'a Job) -> Result<impl Executor + 'a, ExecuteError> {
        use Collective as C;
        match job.header.call.collective {
            C::AllToAllV | C::Barrier => Err(unsupported("it has no such collective")),
            C::AllToAll | C::SendRecv if job.in_place() => Err(unsupported("it does not send and receive in place")),
            _ => Ok(NcclCall { library: self, buffers, job }),
        }
    }
}

impl Drop for NcclCommunicators {
    /// Drops all ranks concurrently, because releasing a window or a communicator may wait for the other ranks.
    fn drop(&mut self) {
        std::thread::scope(|scope| {
            for communicator in self.communicators.drain(..) {
                scope.spawn(move || drop(communicator));
            }
        });
    }
}

fn unsupported(reason: &str) -> ExecuteError {
    ExecuteError::Unsupported { executor: "nccl", reason: reason.to_owned() }
}

struct NcclCall<'a> {
    library: &'a NcclCommunicators,
    buffers: &'a Buffers,
    job: &'a Job,
}

impl Executor for NcclCall<'_> {
    fn waiting(&self, member: usize) -> String {
        format!("rank {member}, in {} by NCCL", self.job)
    }

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
        let (count, total_count) = ((block.0 / size) as usize, (total / size) as usize);
        let rank_offset = Bytes(block.0 * member as u64);
        let block_address = |start: DeviceAddress, peer: u64| start.plus(Bytes(block.0 * peer));
        if self.job.in_place() {
            match call.collective {
                Collective::AllGather | Collective::Gather => input = output.plus(rank_offset),
                Collective::ReduceScatter | Collective::Scatter => output = input.plus(rank_offset),
                _ => {}
            }
        }
        let (root, me, peers) = (call.root.0 as usize, member, communicator.size());
        let nccl = &self.library.nccl;
        let operands = |count| Operands { input, output, count, dtype: *dtype };
        // SAFETY: the addresses are those of the job's buffers, as long as its header states, and outlive the stream's
        // work.
        unsafe {
            match call.collective {
                Collective::AllReduce => {
                    communicator.collective(stream, Operation::AllReduce(*op), operands(total_count))
                }
                Collective::AllGather => communicator.collective(stream, Operation::AllGather, operands(count)),
                Collective::ReduceScatter => {
                    communicator.collective(stream, Operation::ReduceScatter(*op), operands(count))
                }
                Collective::Broadcast => {
                    communicator.collective(stream, Operation::Broadcast(root), operands(total_count))
                }
                Collective::Reduce => {
                    communicator.collective(stream, Operation::Reduce(*op, root), operands(total_count))
                }
                Collective::AllToAll => communicator.all_to_all(stream, operands(count)),
                Collective::Gather => nccl.group(|| {
                    communicator.send(stream, input, count, *dtype, root)?;
                    let from = if me == root { 0..peers } else { 0..0 };
                    from.into_iter().try_for_each(|peer| {
                        communicator.recv(stream, block_address(output, peer as u64), count, *dtype, peer)
                    })
                }),
                Collective::Scatter => nccl.group(|| {
                    let to = if me == root { 0..peers } else { 0..0 };
                    to.into_iter().try_for_each(|peer| {
                        communicator.send(stream, block_address(input, peer as u64), count, *dtype, peer)
                    })?;
                    communicator.recv(stream, output, count, *dtype, root)
                }),
                Collective::SendRecv => nccl.group(|| {
                    communicator.send(stream, input, total_count, *dtype, (me + 1) % peers)?;
                    communicator.recv(stream, output, total_count, *dtype, (me + peers - 1) % peers)
                }),
                Collective::AllToAllV | Collective::Barrier => Ok::<(), NcclError>(()),
            }?;
        }
        Ok(())
    }
}
