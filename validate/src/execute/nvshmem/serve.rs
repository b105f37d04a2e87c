//! One process from its own point of view: it joins the others, then runs requests until its parent has ended.

use fabricast_sim::schedule::{Schedule, json};

use super::collectives::Collectives;
use super::device::RankKernel;
use super::heap::Heap;
use super::message::{Answer, NvshmemMethod, RankRequest, RunFault, RunRequest};
use super::puts::Puts;
use super::rank::Rank;
use crate::cuda::{Driver, Member, Stream};
use crate::execute::measure::{MemberTimes, check_member_series, check_one, measure_one};
use crate::execute::{ExecuteError, Executor, Job};
use crate::kernel::{Carrier, GridShape, Kernel, Steps};
use crate::nvshmem::{Channel, Element, Nvshmem, NvshmemError, NvshmemUniqueId};

/// Serves the parent that started this process, until the parent ends.
///
/// # Errors
/// The process was not started by such a parent.
pub fn serve() -> Result<(), String> {
    let channel = Channel::to_parent().map_err(|_| "this is started by `gpu run` alone".to_owned())?;
    let failed = match run(&channel) {
        Ok(never) => match never {},
        Err(error) => Answer::Failed(RunFault::from_error(&error)),
    };
    channel.send(&failed);
    // Finalizing the library would wait for the other processing elements, so the process waits until its parent ends
    // it.
    channel.receive::<RankRequest>().map(|_| ())
}

enum Never {}

/// Executor with a description of the current call, for errors of waits.
struct DescribedExecutor<'a> {
    executor: &'a dyn Executor,
    job: &'a Job,
    method: NvshmemMethod,
}

impl Executor for DescribedExecutor<'_> {
    fn enqueue(&self, member: usize, stream: &Stream) -> Result<(), ExecuteError> {
        self.executor.enqueue(member, stream)
    }

    fn waiting(&self, member: usize) -> String {
        format!("rank {member}, in {} by NVSHMEM's {}", self.job, self.method.name())
    }

    fn timed_out_waits(&self) -> Vec<String> {
        self.executor.timed_out_waits()
    }
}

fn parse_request<T>(result: Result<T, String>) -> Result<T, ExecuteError> {
    result.map_err(|message| protocol_error(&format!("an unknown request: {message}")))
}

fn protocol_error(message: &str) -> ExecuteError {
    NvshmemError::Start { rank: 0, operation: "its orders", reason: message.to_owned() }.into()
}

fn run(channel: &Channel) -> Result<Never, ExecuteError> {
    let RankRequest::Begin { rank, size, library, room, offset, patience } = parse_request(channel.receive())? else {
        return Err(protocol_error("no start request"));
    };
    let nvshmem = Nvshmem::open(library.as_deref())?;
    let context = Driver::load()?.device(rank)?.context()?;
    context.bind()?;
    let id = if rank == 0 { Some(nvshmem.unique_id()?.bytes()) } else { None };
    channel.send(&Answer::Started { version: nvshmem.version().to_string(), id });
    let RankRequest::Join { id } = parse_request(channel.receive())? else {
        return Err(protocol_error("no join request"));
    };
    let id = NvshmemUniqueId::from_bytes(&id).ok_or_else(|| protocol_error("the id is invalid"))?;
    let element = Element::join(&nvshmem, &context, &id, rank, size)?;
    let mut rank = Rank::new(element, context, room, offset, patience)?;
    channel.send(&Answer::Joined { nccl: nvshmem.nccl_path() });
    loop {
        let RankRequest::Run { schedule, dtype, op, request } = parse_request(channel.receive())? else {
            return Err(protocol_error("a second start request"));
        };
        let schedule = json::from_json(&schedule, "the program").map_err(|error| protocol_error(&error.to_string()))?;
        let job = Job { header: schedule.header().clone(), dtype, op };
        match rank.run(channel, &schedule, &job, &request) {
            Ok((shape, raw)) => channel.send(&Answer::Completed { shape, raw }),
            Err(ExecuteError::Unsupported { reason, .. }) => channel.send(&Answer::Unsupported { reason }),
            Err(ExecuteError::Kernel(error)) => channel.send(&Answer::Unsupported { reason: error.to_string() }),
            Err(error) => return Err(error),
        }
    }
}

impl Rank {
    fn run(
        &mut self,
        channel: &Channel,
        schedule: &Schedule,
        job: &Job,
        request: &RunRequest,
    ) -> Result<(Option<GridShape>, Option<MemberTimes>), ExecuteError> {
        self.buffers = self.buffers.with_offset(request.offset);
        self.offset = request.offset;
        match request.method {
            NvshmemMethod::Collectives => {
                let executor = Collectives::new(self, job)?;
                Ok((None, self.check_and_measure(channel, job, &executor, request)?))
            }
            NvshmemMethod::Puts => {
                let steps = Steps::new(schedule, job.dtype)?;
                let executor = Puts::new(self, job, &steps)?;
                Ok((None, self.check_and_measure(channel, job, &executor, request)?))
            }
            NvshmemMethod::Heap => {
                let kernel = Kernel::new(schedule, job.dtype, request.carrier.unwrap_or(Carrier::Flags))?;
                let executor = Heap::new(self, job, kernel, request.shape)?;
                Ok((Some(executor.shape()), self.check_and_measure(channel, job, &executor, request)?))
            }
            NvshmemMethod::Device => {
                let steps = Steps::new(schedule, job.dtype)?;
                let executor = RankKernel::new(self, job, &steps, request.shape)?;
                Ok((Some(executor.shape()), self.check_and_measure(channel, job, &executor, request)?))
            }
        }
    }

    /// Checks the results of an executor and measures its times; `None` if no measurement was requested.
    fn check_and_measure(
        &self,
        channel: &Channel,
        job: &Job,
        executor: &dyn Executor,
        request: &RunRequest,
    ) -> Result<Option<MemberTimes>, ExecuteError> {
        let wait_for_ranks = || self.barrier(channel);
        let rank = self.number();
        let executor = &DescribedExecutor { executor, job, method: request.method };
        let member = Member::for_process(rank, self.element.size(), &self.context, &self.watchdog, &wait_for_ranks);
        // Peers may write to an executor's memory only after all ranks have cleared theirs.
        member.barrier()?;
        check_one(&member, rank..rank + 1, &self.buffers, job, executor, &request.rounds, request.seed)?;
        if request.series_calls > 0 {
            check_member_series(
                &member,
                rank..rank + 1,
                &self.buffers,
                job,
                executor,
                request.series_calls,
                !request.seed,
            )?;
        }
        request.effort.map(|effort| measure_one(&member, executor, effort)).transpose()
    }
}
