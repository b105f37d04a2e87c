//! A single process, from its own side: joins the others, then runs requests until its parent is gone.

use std::sync::Arc;
use std::time::Duration;

use fabricast_sim::schedule::{Schedule, json};
use fabricast_topologies::Bytes;

use super::collectives::Collectives;
use super::device::Device;
use super::heap::Heap;
use super::message::{Answer, Fault, Order, Turn, Way};
use super::puts::Puts;
use crate::cuda::{Context, CudaError, Driver, Member, Stream, Watchdog};
use crate::execute::measure::{Raw, check_one, measure_one, streak_one};
use crate::execute::{Buffers, ExecuteError, Executor, Job};
use crate::kernel::{Carrier, GridShape, Kernel, Steps};
use crate::nvshmem::{Channel, Element, Nvshmem, NvshmemError, SymmetricMemory, UniqueId};

/// Serves the parent that started this process. Ends when the parent does.
///
/// # Errors
/// The process was not started by such a parent.
pub fn serve() -> Result<(), String> {
    let channel = Channel::of_parent().map_err(|_| "this is started by `gpu run` alone".to_owned())?;
    let failed = match run(&channel) {
        Ok(never) => match never {},
        Err(error) => Answer::Failed(Fault::of(&error)),
    };
    channel.tell(&failed);
    // Finalizing the library would wait for the other elements; the parent ends this process instead.
    channel.hear::<Order>().map(|_| ())
}

enum Never {}

/// Executor with a description of the current call, for the errors of waits.
struct InTurn<'a> {
    executor: &'a dyn Executor,
    job: &'a Job,
    way: Way,
}

impl Executor for InTurn<'_> {
    fn enqueue(&self, member: usize, stream: &Stream) -> Result<(), ExecuteError> {
        self.executor.enqueue(member, stream)
    }

    fn waiting(&self, member: usize) -> String {
        format!("rank {member}, in {} by NVSHMEM's {}", self.job, self.way.name())
    }

    fn lost(&self) -> Vec<String> {
        self.executor.lost()
    }
}

fn told<T>(result: Result<T, String>) -> Result<T, ExecuteError> {
    result.map_err(|message| other(&format!("an order that is not understood: {message}")))
}

fn other(message: &str) -> ExecuteError {
    NvshmemError::Start { rank: 0, what: "its orders", reason: message.to_owned() }.into()
}

fn run(channel: &Channel) -> Result<Never, ExecuteError> {
    let Order::Begin { rank, size, library, room, offset, patience } = told(channel.hear())? else {
        return Err(other("it does not begin"));
    };
    let nvshmem = Nvshmem::open(library.as_deref())?;
    let context = Driver::load()?.device(rank)?.context()?;
    context.bind()?;
    let id = if rank == 0 { Some(nvshmem.unique_id()?.bytes()) } else { None };
    channel.tell(&Answer::Begun { version: nvshmem.version().to_string(), id });
    let Order::Join { id } = told(channel.hear())? else { return Err(other("it does not join")) };
    let id = UniqueId::from_bytes(&id).ok_or_else(|| other("the id is none"))?;
    let element = Element::join(&nvshmem, &context, &id, rank, size)?;
    let mut rank = Rank::new(element, context, room, offset, patience)?;
    channel.tell(&Answer::Joined { nccl: nvshmem.nccl_inside() });
    loop {
        let Order::Perform { schedule, dtype, op, turn } = told(channel.hear())? else {
            return Err(other("it begins twice"));
        };
        let schedule = json::from_json(&schedule, "the program").map_err(|error| other(&error.to_string()))?;
        let job = Job { header: schedule.header().clone(), dtype, op };
        match rank.perform(channel, &schedule, &job, &turn) {
            Ok((shape, raw)) => channel.tell(&Answer::Performed { shape, raw }),
            Err(ExecuteError::Unsupported { reason, .. }) => channel.tell(&Answer::Unsupported { reason }),
            Err(ExecuteError::Kernel(error)) => channel.tell(&Answer::Unsupported { reason: error.to_string() }),
            Err(error) => return Err(error),
        }
    }
}

/// State of this process: its buffers and the heap memory of executors.
pub(super) struct Rank {
    pub(super) element: Arc<Element>,
    pub(super) context: Arc<Context>,
    pub(super) buffers: Buffers,
    input: Arc<SymmetricMemory>,
    output: Arc<SymmetricMemory>,
    offset: Bytes,
    /// Symmetric memory for executors. It grows on demand.
    arena: Option<Arc<SymmetricMemory>>,
    meeting: Stream,
    watchdog: Watchdog,
    pub(super) patience: Duration,
}

impl Rank {
    fn new(
        element: Arc<Element>,
        context: Arc<Context>,
        room: Bytes,
        offset: Bytes,
        patience: Duration,
    ) -> Result<Self, ExecuteError> {
        let length = Bytes(room.0 + offset.0 + 16);
        let input = Arc::new(SymmetricMemory::new(&element, length)?);
        let output = Arc::new(SymmetricMemory::new(&element, length)?);
        let buffers = Buffers::lent(input.everywhere()?, output.everywhere()?, offset);
        let meeting = Stream::new(&context)?;
        let watchdog = Watchdog::new(patience);
        Ok(Self { element, context, buffers, input, output, offset, arena: None, meeting, watchdog, patience })
    }

    /// Returns symmetric memory of at least `bytes` bytes, zeroed on this rank. Earlier contents are lost. All ranks
    /// must request the same size.
    pub(super) fn arena(&mut self, bytes: Bytes) -> Result<Arc<SymmetricMemory>, ExecuteError> {
        let arena = match self.arena.take() {
            Some(arena) if arena.length() >= bytes => arena,
            old => {
                if let Some(old) = old.and_then(Arc::into_inner) {
                    old.free();
                }
                Arc::new(SymmetricMemory::new(&self.element, bytes)?)
            }
        };
        let stream = Stream::new(&self.context)?;
        stream.fill(arena.all(), 0)?;
        stream.synchronize()?;
        self.arena = Some(Arc::clone(&arena));
        Ok(arena)
    }

    /// Number of this rank.
    pub(super) fn number(&self) -> usize {
        self.element.rank()
    }

    /// Start of this rank's input or output, as a symmetric address.
    pub(super) fn symmetric(&self, job: &Job, buffer: crate::kernel::UserBuffer) -> crate::cuda::DeviceAddress {
        let in_place = job.header.call.buffers == fabricast_sim::schedule::BufferUse::InPlace;
        let is_input = buffer == crate::kernel::UserBuffer::Input && !in_place;
        if is_input { self.input.address() } else { self.output.address() }.plus(self.offset)
    }

    /// Synchronizes with all other ranks, on a separate stream.
    fn meet(&self, channel: &Channel) -> Result<(), CudaError> {
        channel.alive();
        self.element.barrier(&self.meeting).map_err(|error| match error {
            NvshmemError::Cuda(error) => error,
            _ => CudaError::Abandoned,
        })?;
        let who = || format!("rank {}, for the other ranks", self.number());
        self.watchdog.wait_for(&self.meeting, &who)
    }

    fn perform(
        &mut self,
        channel: &Channel,
        schedule: &Schedule,
        job: &Job,
        turn: &Turn,
    ) -> Result<(Option<GridShape>, Option<Raw>), ExecuteError> {
        self.buffers = self.buffers.beginning(turn.offset);
        self.offset = turn.offset;
        match turn.way {
            Way::Collectives => {
                let executor = Collectives::new(self, job)?;
                Ok((None, self.executed(channel, job, &executor, turn)?))
            }
            Way::Puts => {
                let steps = Steps::new(schedule, job.dtype)?;
                let executor = Puts::new(self, job, &steps)?;
                Ok((None, self.executed(channel, job, &executor, turn)?))
            }
            Way::Heap => {
                let kernel = Kernel::new(schedule, job.dtype, turn.carrier.unwrap_or(Carrier::Flags))?;
                let executor = Heap::new(self, job, kernel, turn.shape)?;
                Ok((Some(executor.shape()), self.executed(channel, job, &executor, turn)?))
            }
            Way::Device => {
                let steps = Steps::new(schedule, job.dtype)?;
                let executor = Device::new(self, job, &steps, turn.shape)?;
                Ok((Some(executor.shape()), self.executed(channel, job, &executor, turn)?))
            }
        }
    }

    /// Checks the results and measures the times.
    fn executed(
        &self,
        channel: &Channel,
        job: &Job,
        executor: &dyn Executor,
        turn: &Turn,
    ) -> Result<Option<Raw>, ExecuteError> {
        let meet = || self.meet(channel);
        let rank = self.number();
        let executor = &InTurn { executor, job, way: turn.way };
        let member = Member::apart(rank, self.element.size(), &self.context, &self.watchdog, &meet);
        // Peers may write to memory that an executor has cleared only after all ranks have cleared theirs.
        member.meet()?;
        check_one(&member, rank..rank + 1, &self.buffers, job, executor, &turn.rounds, turn.seed)?;
        if turn.streak > 0 {
            streak_one(&member, rank..rank + 1, &self.buffers, job, executor, turn.streak, !turn.seed)?;
        }
        turn.effort.map(|effort| measure_one(&member, executor, effort)).transpose()
    }
}
