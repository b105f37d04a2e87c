//! Worker process with one thread per GPU. The environment configures NCCL, and each requested call is captured in a
//! graph.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_sim::schedule::{BufferUse, Call, Protocol, Rank, ReduceOp, Schedule};
use fabricast_topologies::{Bytes, Picos};

use super::message::{Trial, WorkerRequest, WorkerResponse};
use crate::cuda::{CudaError, Driver, Event, Graph, Member, Stream, Watchdog, team};
use crate::execute::{Buffers, ExecuteError, Executor, Job, NcclChoice, NcclCommunicators, Testbed};
use crate::kernel::Devices;
use crate::nccl::Nccl;
use crate::nvshmem::Channel;

/// Runs the trials that the parent process requests, until its end request or an error. Then waits until the parent
/// terminates this process.
///
/// # Errors
/// The process was not started by `gpu prove`.
pub fn serve() -> Result<(), String> {
    let channel = Channel::to_parent().map_err(|_| "this is started by `gpu prove` alone".to_owned())?;
    let channel = SharedChannel(Mutex::new(channel));
    let last = match run(&channel) {
        Ok(()) => WorkerResponse::Done,
        Err(error) => WorkerResponse::Failed { no_gpu: is_absence(&error), reason: error.to_string() },
    };
    channel.send(&last);
    // The parent terminates this process, so operations that hang are not waited for.
    let _ = channel.order();
    Ok(())
}

/// Channel to the parent process, shared by the threads that drive the GPUs.
struct SharedChannel(Mutex<Channel>);

impl SharedChannel {
    fn send(&self, answer: &WorkerResponse) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).send(answer);
    }

    fn order(&self) -> Result<WorkerRequest, ExecuteError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).receive().map_err(|error| misunderstood(&error))
    }
}

fn is_absence(error: &ExecuteError) -> bool {
    matches!(error, ExecuteError::TooFewGpus { .. }) || matches!(error, ExecuteError::Cuda(error) if error.is_absence())
}

fn misunderstood(reason: &str) -> ExecuteError {
    ExecuteError::Unsupported { executor: "prove", reason: format!("an unknown request: {reason}") }
}

fn run(channel: &SharedChannel) -> Result<(), ExecuteError> {
    let WorkerRequest::Begin { library, ranks, room, timeout: patience } = channel.order()? else {
        return Err(misunderstood("no start request"));
    };
    let testbed = Testbed::new(Driver::load()?, ranks, Devices::Own)?;
    let buffers = Buffers::new(&testbed, room, Bytes(0))?;
    let watchdog = Watchdog::new(patience);
    let nccl = Nccl::open(library.as_deref())?;
    let communicators = NcclCommunicators::new(&testbed, &nccl, NcclChoice::Own, &watchdog)?;
    channel.send(&WorkerResponse::Begun { version: nccl.version().to_string() });
    loop {
        match channel.order()? {
            WorkerRequest::Prepare(trial) => {
                let job = job(trial, ranks)?;
                let executor = communicators.executor(&buffers, &job)?;
                serve_graph(channel, &testbed, &watchdog, &executor, trial.calls.max(1))?;
                channel.send(&WorkerResponse::Done);
            }
            WorkerRequest::End => return Ok(()),
            _ => return Err(misunderstood("there is no graph")),
        }
    }
}

/// Creates the job for executors. Executors use only its call and sizes.
fn job(trial: Trial, ranks: u32) -> Result<Job, ExecuteError> {
    let Trial { collective, bytes, dtype, .. } = trial;
    let call = Call { collective, bytes, ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
    let shape = Shape { ranks_per_node: ranks, ..Shape::new(call, Protocol::Simple) };
    let convert_error = |error: &dyn std::fmt::Display| misunderstood(&error.to_string());
    let program = generator(Algorithm::Ring, &shape).map_err(|error| convert_error(&error))?;
    let schedule = Schedule::build(program.as_ref()).map_err(|error| convert_error(&error))?;
    Ok(Job { header: schedule.header().clone(), dtype, op: ReduceOp::default() })
}

/// Next action of all threads: to time the graph or to discard it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ThreadAction {
    Time,
    Done,
}

/// Captures a graph of calls on each GPU's thread and times it on request, until the graph is discarded.
#[expect(unsafe_code, reason = "captures a graph")]
fn serve_graph(
    channel: &SharedChannel,
    testbed: &Testbed,
    watchdog: &Watchdog,
    executor: &dyn Executor,
    calls: u32,
) -> Result<(), ExecuteError> {
    let members = testbed.contexts().len();
    // The first thread receives the parent's requests and forwards them. The other threads sleep, so that they do not
    // disturb the measurement of the other process.
    let (senders, receivers): (Vec<Sender<ThreadAction>>, Vec<Mutex<Receiver<ThreadAction>>>) = (0..members)
        .map(|_| {
            let (sender, receiver) = mpsc::channel();
            (sender, Mutex::new(receiver))
        })
        .unzip();
    let times: Vec<Mutex<Picos>> = (0..members).map(|_| Mutex::default()).collect();
    team::run(testbed.contexts(), watchdog, |member: &Member<'_>| -> Result<(), ExecuteError> {
        let stream = Stream::new(member.context)?;
        let (start, end) = (Event::timing(member.context)?, Event::timing(member.context)?);
        let enqueue_calls = || (0..calls).try_for_each(|_| executor.enqueue(member.rank, &stream));
        let wait = || member.watchdog.wait_for(&stream, &|| format!("rank {}", member.rank));
        // The first call establishes connections, and not every environment can capture this in a graph.
        executor.enqueue(member.rank, &stream)?;
        wait()?;
        member.barrier()?;
        // SAFETY: the executor borrows buffers and communicators, and both outlive this closure.
        let graph = unsafe { Graph::capture(&stream, &enqueue_calls) }?;
        graph.upload(&stream)?;
        wait()?;
        member.barrier()?;
        if member.rank == 0 {
            channel.send(&WorkerResponse::Prepared);
        }
        loop {
            let step = if member.rank == 0 {
                let step = match channel.order()? {
                    WorkerRequest::Time => ThreadAction::Time,
                    WorkerRequest::Done => ThreadAction::Done,
                    _ => return Err(misunderstood("a graph is waiting")),
                };
                for sender in senders.iter().skip(1) {
                    // A thread that has ended has failed, and reports its own error.
                    let _ = sender.send(step);
                }
                step
            } else {
                next(receivers.get(member.rank), member)?
            };
            if step == ThreadAction::Done {
                return Ok(());
            }
            for _ in 0..2 {
                member.barrier()?;
                stream.record(&start)?;
                graph.launch(&stream)?;
                stream.record(&end)?;
                wait()?;
            }
            let time = Picos(end.since(&start)?.0 / u64::from(calls));
            if let Some(slot) = times.get(member.rank) {
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = time;
            }
            member.barrier()?;
            if member.rank == 0 {
                let measured = times.iter().map(|slot| *slot.lock().unwrap_or_else(PoisonError::into_inner));
                channel.send(&WorkerResponse::Time(measured.max().unwrap_or_default()));
            }
        }
    })?;
    Ok(())
}

/// Receives the next step from the first thread. The wait has no time limit, because the other process may be measured
/// for any time. If the first thread failed, the watchdog reports the failure at the next poll.
fn next(receiver: Option<&Mutex<Receiver<ThreadAction>>>, member: &Member<'_>) -> Result<ThreadAction, ExecuteError> {
    let receiver = receiver.ok_or(CudaError::Abandoned)?.lock().unwrap_or_else(PoisonError::into_inner);
    let clock = member.watchdog.start();
    loop {
        match receiver.recv_timeout(std::time::Duration::from_millis(200)) {
            Ok(step) => return Ok(step),
            Err(_) => clock.check(|| vec![format!("rank {}", member.rank)])?,
        }
    }
}
