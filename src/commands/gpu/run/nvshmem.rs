//! NVSHMEM executor of `gpu run`: its processes, and the methods by which they run a call.

use std::time::Duration;

use fabricast_sim::schedule::{Protocol, Schedule};
use fabricast_topologies::Bytes;
use fabricast_validate::cuda::CudaError;
use fabricast_validate::execute::nvshmem::{LaunchSettings, NvshmemMethod, NvshmemRanks, RunRequest, RunResult};
use fabricast_validate::execute::{ExecuteError, Job, Testbed, Times};
use fabricast_validate::kernel::{Carrier, Devices, GridShape};

use super::row::{ExecutorKind, RunRow};
use super::{RunMessages, RunTestbed};
use crate::args::{ExecutionArgs, ExecutorChoice};
use crate::failure::Failure;

/// Creates the processes, one per rank, without starting them. `max_bytes` is the size of the largest call.
pub(super) fn processes(args: &ExecutionArgs, testbed: &Testbed, max_bytes: Bytes) -> Result<NvshmemRanks, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("nvshmem: cannot find the executable of this program: {error}")))?;
    let settings = LaunchSettings {
        library: args.nvshmem.clone(),
        ranks: testbed.ranks() as usize,
        largest_call: max_bytes,
        offset: args.offset,
        time_limit: Duration::from_secs(args.patience),
    };
    Ok(NvshmemRanks::new(settings, move |_| {
        let mut command = std::process::Command::new(&program);
        command.args(["gpu", "nvshmem-rank"]);
        command
    }))
}

/// NVSHMEM processes, if requested.
pub(super) struct NvshmemExecutor {
    ranks: Option<NvshmemRanks>,
    methods: Vec<NvshmemMethod>,
}

impl NvshmemExecutor {
    /// Creates the processes without starting them. `max_bytes` is the size of the largest call.
    pub(super) fn new(args: &ExecutionArgs, testbed: &Testbed, max_bytes: Bytes) -> Result<Self, Failure> {
        let methods = args.nvshmem_by.iter().map(|&choice| choice.into()).collect();
        if !args.wants(ExecutorChoice::Nvshmem, Protocol::Symmetric) {
            return Ok(Self { ranks: None, methods });
        }
        if testbed.devices() == Devices::Shared && testbed.ranks() > 1 {
            return Err(Failure::input("nvshmem: its ranks need a GPU each"));
        }
        Ok(Self { ranks: Some(processes(args, testbed, max_bytes)?), methods })
    }

    /// Version of NVSHMEM, and path of the NCCL library that it uses for its collectives, if any. `None` if NVSHMEM did
    /// not run.
    pub(super) fn library(&self) -> Option<(String, Option<String>)> {
        let ranks = self.ranks.as_ref()?;
        Some((ranks.version()?.to_owned(), ranks.nccl().map(|path| path.display().to_string())))
    }

    /// Runs NVSHMEM's own collective, once per call.
    pub(super) fn collective(
        &mut self,
        testbed: &RunTestbed<'_>,
        schedule: &Schedule,
        job: &Job,
        messages: &mut RunMessages<'_>,
    ) -> Result<Option<RunRow>, Failure> {
        if !self.methods.contains(&NvshmemMethod::Collectives) {
            return Ok(None);
        }
        self.row(testbed, schedule, job, NvshmemMethod::Collectives, None, messages)
    }

    /// Runs the schedule by every requested method.
    pub(super) fn rows(
        &mut self,
        testbed: &RunTestbed<'_>,
        schedule: &Schedule,
        job: &Job,
        messages: &mut RunMessages<'_>,
    ) -> Result<Vec<RunRow>, Failure> {
        let mut rows = Vec::new();
        for method in self.methods.clone() {
            let carriers: Vec<Option<Carrier>> = match method {
                NvshmemMethod::Collectives => Vec::new(),
                NvshmemMethod::Heap => testbed.carriers(schedule).into_iter().map(Some).collect(),
                NvshmemMethod::Puts | NvshmemMethod::Device => vec![None],
            };
            for carrier in carriers {
                rows.extend(self.row(testbed, schedule, job, method, carrier, messages)?);
            }
        }
        Ok(rows)
    }

    /// Runs the call by one method. Errors are reported in the row, and determine the exit status of the command. If
    /// the processes have failed, new ones are started for the next method.
    fn row(
        &mut self,
        testbed: &RunTestbed<'_>,
        schedule: &Schedule,
        job: &Job,
        method: NvshmemMethod,
        carrier: Option<Carrier>,
        messages: &mut RunMessages<'_>,
    ) -> Result<Option<RunRow>, Failure> {
        let used_carrier = carrier.or((method == NvshmemMethod::Device).then_some(Carrier::Flags));
        let row = |shape: Option<GridShape>, times: Option<&Times>| {
            RunRow::new(
                job,
                ExecutorKind::Nvshmem(method),
                used_carrier,
                shape.filter(|_| used_carrier.is_some()),
                times,
            )
        };
        let error = match self.run_method(testbed, schedule, job, method, carrier) {
            Ok(result) => return Ok(result.map(|result| row(result.shape, result.times.as_ref()))),
            Err(error) => error,
        };
        // Further methods cannot succeed if NVSHMEM did not start, or after Ctrl-C.
        if self.library().is_none() || matches!(error, ExecuteError::Cuda(CudaError::Interrupted)) {
            return Err(error.into());
        }
        messages.output.warn(&format!(
            "{job} by {}, {}: {error}",
            job.header.name,
            ExecutorKind::Nvshmem(method).name()
        ));
        if matches!(error, ExecuteError::Unsupported { .. }) {
            return Ok(None);
        }
        let failed_row = row(None, None).with_fault(&error);
        messages.first_wrong_result.get_or_insert(error);
        Ok(Some(failed_row))
    }

    fn run_method(
        &mut self,
        testbed: &RunTestbed<'_>,
        schedule: &Schedule,
        job: &Job,
        method: NvshmemMethod,
        carrier: Option<Carrier>,
    ) -> Result<Option<RunResult>, ExecuteError> {
        let Some(ranks) = &mut self.ranks else { return Ok(None) };
        let args = &testbed.context.args.execution;
        let (rounds, seed) = testbed.checks(job);
        let effort = (!args.untimed).then(|| testbed.effort(job.header.layout.bytes()));
        let (shape, offset, streak) = (args.given_shape(), args.offset, args.streak);
        let request = RunRequest { method, carrier, shape, offset, rounds, series_calls: streak, seed, effort };
        ranks.run(schedule, job.dtype, job.op, &request).map(Some)
    }
}
