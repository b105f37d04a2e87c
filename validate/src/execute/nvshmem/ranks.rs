//! The set of processes from the point of view of the main program. They are started on first use, receive requests
//! concurrently, and are killed if one of them fails.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fabricast_sim::schedule::{DataType, ReduceOp, Schedule, json};
use fabricast_topologies::Bytes;

use super::message::{Answer, RankRequest, RunRequest};
use crate::execute::ExecuteError;
use crate::execute::measure::{MemberTimes, Times};
use crate::kernel::GridShape;
use crate::nvshmem::{NvshmemError, Processes, environment};

/// Settings for starting the processes.
#[derive(Clone, Debug)]
pub struct LaunchSettings {
    /// File or folder of the library. `None` to search for it.
    pub library: Option<PathBuf>,
    /// Number of ranks, each with its own GPU.
    pub ranks: usize,
    /// Bytes of the largest call.
    pub largest_call: Bytes,
    /// Offset of buffers from an aligned address, in bytes, for which memory is allocated. Runs may use up to 16 bytes
    /// more.
    pub offset: Bytes,
    /// Time limit of every wait.
    pub time_limit: Duration,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunResult {
    /// Blocks per channel, threads per block and words per thread of the kernel; `None` for methods without a generated
    /// kernel.
    pub shape: Option<GridShape>,
    /// Measured times; `None` if no measurement was requested.
    pub times: Option<Times>,
}

/// Returns the command that starts the process of a rank.
type RankCommand = Box<dyn Fn(usize) -> Command>;

/// One process per rank.
pub struct NvshmemRanks {
    setting: LaunchSettings,
    start: RankCommand,
    processes: Option<Processes>,
    version: Option<String>,
    nccl: Option<PathBuf>,
}

impl std::fmt::Debug for NvshmemRanks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NvshmemRanks({:?})", self.processes)
    }
}

/// Time after the processes' own time limit during which they can report waits that hang.
const GRACE: Duration = Duration::from_secs(10);

impl NvshmemRanks {
    /// Creates the set without starting processes. `start` returns the command of a process that
    /// [serves](super::serve).
    #[must_use]
    pub fn new(setting: LaunchSettings, start: impl Fn(usize) -> Command + 'static) -> Self {
        Self { setting, start: Box::new(start), processes: None, version: None, nccl: None }
    }

    /// Version of the library; `None` before the first start.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Path of the NCCL library that NVSHMEM uses for its collectives; `None` if it uses none.
    #[must_use]
    pub fn nccl(&self) -> Option<&Path> {
        self.nccl.as_deref()
    }

    /// Runs a call of a schedule with one method on all ranks.
    ///
    /// # Errors
    /// [`ExecuteError::Unsupported`], after which the processes remain usable. After any other error, the next run
    /// starts new processes.
    pub fn run(
        &mut self,
        schedule: &Schedule,
        dtype: DataType,
        op: ReduceOp,
        request: &RunRequest,
    ) -> Result<RunResult, ExecuteError> {
        let mut processes = match self.processes.take() {
            Some(processes) => processes,
            None => self.begin()?,
        };
        let order = RankRequest::Run { schedule: json::to_json(schedule), dtype, op, request: request.clone() };
        // An early return drops the processes, which kills them.
        let answers = self.request_all(&mut processes, |_| order.clone())?;
        let mut by_rank: Vec<MemberTimes> = Vec::new();
        let mut shape = None;
        for answer in answers {
            match answer {
                Answer::Completed { shape: answer_shape, raw } => {
                    shape = answer_shape;
                    by_rank.extend(raw);
                }
                Answer::Unsupported { reason } => {
                    self.processes = Some(processes);
                    return Err(ExecuteError::Unsupported { executor: "nvshmem", reason });
                }
                answer => return Err(unexpected_answer(&answer)),
            }
        }
        self.processes = Some(processes);
        let times = (by_rank.len() == self.setting.ranks).then(|| Times::from_members(&by_rank));
        Ok(RunResult { shape, times })
    }

    fn begin(&mut self) -> Result<Processes, ExecuteError> {
        let LaunchSettings { library, ranks, largest_call: room, offset, time_limit: patience } = self.setting.clone();
        let mut processes = Processes::start(ranks, |rank| {
            let mut command = (self.start)(rank);
            command.envs(environment());
            command
        })?;
        let begin = |rank| RankRequest::Begin { rank, size: ranks, library: library.clone(), room, offset, patience };
        let (mut library_version, mut id) = (None, None);
        for answer in self.request_all(&mut processes, begin)? {
            match answer {
                Answer::Started { version, id: unique_id } => {
                    library_version = Some(version);
                    id = id.or(unique_id);
                }
                other => return Err(unexpected_answer(&other)),
            }
        }
        let join = RankRequest::Join { id: id.unwrap_or_default() };
        for answer in self.request_all(&mut processes, |_| join.clone())? {
            match answer {
                Answer::Joined { nccl } => self.nccl = nccl,
                other => return Err(unexpected_answer(&other)),
            }
        }
        self.version = library_version;
        Ok(processes)
    }

    /// Sends a message to every process and waits for all answers. Returns the first failure, if any.
    fn request_all(
        &self,
        processes: &mut Processes,
        order: impl Fn(usize) -> RankRequest,
    ) -> Result<Vec<Answer>, ExecuteError> {
        let ranks: Vec<usize> = (0..processes.count()).collect();
        for &rank in &ranks {
            processes.send(rank, &order(rank))?;
        }
        let stop = |answer: &Answer| matches!(answer, Answer::Failed(_));
        let answers = processes.receive(&ranks, self.setting.time_limit + GRACE, stop)?;
        let mut received = Vec::with_capacity(ranks.len());
        for (rank, answer) in answers {
            match answer {
                Answer::Failed(fault) => return Err(fault.into_error(rank)),
                answer => received.push(answer),
            }
        }
        Ok(received)
    }
}

fn unexpected_answer(answer: &Answer) -> ExecuteError {
    let message = format!("unexpected response: {answer:?}");
    NvshmemError::Rank { rank: 0, message }.into()
}

#[cfg(test)]
#[path = "ranks_tests.rs"]
mod tests;
