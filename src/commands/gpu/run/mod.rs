//! `gpu run`: runs strategies on the GPUs of this machine, verifies results, measures times, and compares them with
//! predictions and NCCL.

pub mod answer;
mod libraries;
mod measurements;
mod nvshmem;
pub mod pairs;
mod row;
mod schedules;
mod shapes;
mod summary;
mod watched;

use std::collections::BTreeMap;
use std::time::Duration;

use fabricast_sim::engine::Watch;
use fabricast_sim::profile::{Profile, TimeInterval};
use fabricast_sim::schedule::Schedule;
use fabricast_sim::{SimulationOptions, simulate};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, NodeId};
use fabricast_validate::cuda::Stream;
use fabricast_validate::cuda::{Driver, Watchdog};
use fabricast_validate::execute::{
    Buffers, CallOrder, Copies, Effort, ExecuteError, Executor, GeneratedExecutor, Job, KernelOptions,
    NcclCommunicators, Testbed, Times, check, check_series, measure,
};
use fabricast_validate::kernel::{Carrier, Devices, GridShape, Kernel};

use crate::args::{ExecutorChoice, GpuRunArgs, ShapeChoice};
use crate::failure::Failure;
use crate::output::Output;
use crate::setup;
use answer::RunAnswer;
use libraries::Libraries;
use row::{ExecutorKind, PredictedTime, RunRow};
use watched::WatchedExecutor;

pub fn run(args: &GpuRunArgs, output: &Output) -> Result<(), Failure> {
    if args.pairs {
        return pairs::run(args, output);
    }
    setup::check_trees(&args.strategy)?;
    if let Some(folder) = &args.execution.measurements {
        measurements::check(folder, output)?;
    }
    let fabric = setup::fabric(&args.fabric.fabric, &args.fabric.size, &args.what_if, output)?;
    if args.fabric.ranks_per_gpu > 1 && fabric.gpus().len() > 1 {
        let gpus = fabric.gpus().len();
        return Err(Failure::input_with_help(
            format!("ranks that share a GPU share one, and the fabric has {gpus}"),
            "--gpus 1",
        ));
    }
    let placement = setup::ranks(&fabric, args.fabric.ranks_per_gpu)?;
    let router = Router::new(&fabric, setup::call_options(&args.fabric, &fabric)?);
    let profile = setup::profile(&args.costs, &fabric)?;
    let kernels = setup::kernels_profile(&args.costs, &fabric)?;
    let (placement, router) = (&placement[..], &router);
    let context = RunContext { args, fabric: &fabric, router, placement, profile: &profile, kernels: &kernels };
    let schedules = schedules::schedules(&context, output)?;
    if schedules.is_empty() {
        return Err(Failure::input("there is nothing to run: no requested strategy implements these collectives"));
    }
    let ranks = schedules.iter().map(|entry| entry.schedule.header().call.ranks).max().unwrap_or(1);
    if let Some(mismatch) = schedules.iter().find(|entry| entry.schedule.header().call.ranks != ranks) {
        let other_ranks = mismatch.schedule.header().call.ranks;
        return Err(Failure::input(format!("all rows must have as many ranks: {other_ranks} and {ranks}")));
    }
    let driver = Driver::load().map_err(ExecuteError::from)?;
    let devices = if args.fabric.ranks_per_gpu > 1 { Devices::Shared } else { Devices::Own };
    let contexts = Testbed::new(driver, ranks, devices)?;
    let max_bytes = schedules.iter().map(|entry| entry.schedule.header().layout.bytes()).max().unwrap_or_default();
    let buffers = Buffers::new(&contexts, max_bytes, args.execution.offset).map_err(ExecuteError::from)?;
    let watchdog = Watchdog::new(Duration::from_secs(args.execution.patience));
    let strategies = schedules.iter().filter_map(schedules::ScheduleToRun::strategy);
    let libraries = Libraries::new(&contexts, &watchdog, max_bytes, &args.execution, strategies, output)?;
    let mut nvshmem_executor = nvshmem::NvshmemExecutor::new(&args.execution, &contexts, max_bytes)?;
    let testbed = RunTestbed { context: &context, contexts, buffers, watchdog, libraries };
    let version = testbed.libraries.as_ref().map(Libraries::version);
    let launch = setup::launch_mode(&args.costs, &fabric, placement).launch;
    let mut answer = RunAnswer::new(&fabric, &kernels.name, launch, &testbed.contexts, version);
    answer.fabric_spec = measurements::spec(&context)?;
    answer.verified = args.schedule.as_ref().map(|_| !args.verify.no_verify);
    let mut last: Option<Job> = None;
    let mut messages = RunMessages { output, first_wrong_result: None, not_run: BTreeMap::new() };
    for entry in &schedules {
        let schedule = &entry.schedule;
        let job = context.job(schedule);
        if !last.as_ref().is_some_and(|previous| is_same_call(previous, &job)) {
            for row in testbed.run_library_defaults(&job, &mut messages)? {
                answer.push(row);
            }
            if let Some(row) = nvshmem_executor.collective(&testbed, schedule, &job, &mut messages)? {
                answer.push(row);
            }
            last = Some(job.clone());
        }
        let mut rows = testbed.rows(entry, &job, &mut messages)?;
        rows.extend(nvshmem_executor.rows(&testbed, schedule, &job, &mut messages)?);
        for mut row in rows {
            let variant = match row.executor {
                ExecutorKind::Copies => entry.copy_engine_variant(&context)?,
                by if by.runs_schedule() => entry.block_variant(&context, row.blocks())?,
                _ => None,
            };
            let profile = if row.executor.runs_schedule() { context.kernels } else { context.profile };
            row.predicted = Some(context.predict(variant.as_ref().unwrap_or(schedule), profile)?);
            answer.push(row);
        }
        if output.shows_progress() {
            answer.progress();
        }
    }
    answer.nvshmem = nvshmem_executor.library();
    messages.report_skipped();
    if answer.rows.is_empty() {
        return Err(Failure::Failed("nothing ran: no requested executor supports any of the calls".to_owned()));
    }
    if let Some(folder) = &args.execution.measurements {
        measurements::write(folder, &context, &answer, output)?;
    }
    answer.write(output)?;
    messages.first_wrong_result.map_or(Ok(()), |error| Err(error.into()))
}

/// Messages and errors collected during the runs.
struct RunMessages<'a> {
    output: &'a Output,
    /// First wrong result, which becomes the exit status.
    first_wrong_result: Option<ExecuteError>,
    /// Calls that were not run, by reason.
    not_run: BTreeMap<String, Vec<String>>,
}

impl RunMessages<'_> {
    /// Records a call that is not run.
    fn record_skipped(&mut self, job: &Job, reason: &str) {
        self.not_run.entry(reason.to_owned()).or_default().push(format!("{job} by {}", job.header.name));
    }

    /// Reports each reason once, with its first and last call.
    fn report_skipped(&self) {
        for (reason, calls) in &self.not_run {
            let (first, last) = (calls.first().map_or("", String::as_str), calls.last().map_or("", String::as_str));
            self.output.warn(&match calls.len() {
                1 => format!("not run: {first}: {reason}"),
                count => format!("not run: {count} calls, from {first} to {last}: {reason}"),
            });
        }
    }

    /// Returns the row, or a row with the error if the result is wrong or the call is unsupported. All other errors are
    /// returned as errors.
    fn row_or_fault(
        &mut self,
        result: Result<RunRow, ExecuteError>,
        empty_row: impl FnOnce() -> RunRow,
    ) -> Result<RunRow, ExecuteError> {
        use ExecuteError::{Unsupported, Wrong, WrongInSeries};
        match result {
            Err(error @ (Wrong { .. } | WrongInSeries { .. } | Unsupported { .. })) => {
                let row = empty_row().with_fault(&error);
                self.output.warn(&format!("{}: {error}", row.description()));
                if !matches!(error, Unsupported { .. }) {
                    self.first_wrong_result.get_or_insert(error);
                }
                Ok(row)
            }
            result => result,
        }
    }
}

/// Returns true if two jobs have the same call, element type and reduction.
fn is_same_call(one: &Job, other: &Job) -> bool {
    one.header.call == other.header.call && one.dtype == other.dtype && one.op == other.op
}

/// Arguments of the run, with the fabric and the profiles for predictions.
struct RunContext<'a> {
    args: &'a GpuRunArgs,
    fabric: &'a Fabric,
    router: &'a Router<'a>,
    placement: &'a [NodeId],
    /// Cost profile of NCCL.
    profile: &'a Profile,
    /// Cost profile of generated kernels.
    kernels: &'a Profile,
}

impl RunContext<'_> {
    fn job(&self, schedule: &Schedule) -> Job {
        let call = &self.args.call;
        Job { header: schedule.header().clone(), dtype: call.dtype.unwrap_or_default(), op: call.op }
    }

    fn predict(&self, schedule: &Schedule, profile: &Profile) -> Result<PredictedTime, Failure> {
        let mode = setup::launch_mode(&self.args.costs, self.fabric, self.placement);
        let ranks = schedule.header().call.ranks as usize;
        let placement = self.placement.get(..ranks).unwrap_or(self.placement);
        let environment = setup::environment(self.fabric, self.router, placement, profile, &[]);
        let options = SimulationOptions { folding: fabricast_sim::Folding::WhereProved, background: &[] };
        let timeline = simulate(schedule, environment, mode, options, Watch::default())?;
        let TimeInterval { low, high } = timeline.band.around(timeline.time);
        Ok(PredictedTime { time: timeline.time, low, high })
    }
}

/// Executor for fault injection: one rank never joins the call.
struct WithoutRank<'a> {
    executor: &'a dyn Executor,
    missing_rank: usize,
}

impl Executor for WithoutRank<'_> {
    fn enqueue(&self, member: usize, stream: &Stream) -> Result<(), ExecuteError> {
        if member == self.missing_rank { Ok(()) } else { self.executor.enqueue(member, stream) }
    }

    fn waiting(&self, member: usize) -> String {
        self.executor.waiting(member)
    }

    fn timed_out_waits(&self) -> Vec<String> {
        self.executor.timed_out_waits()
    }
}

/// GPU test bench with contexts, buffers and libraries.
struct RunTestbed<'a> {
    context: &'a RunContext<'a>,
    contexts: Testbed,
    buffers: Buffers,
    watchdog: Watchdog,
    libraries: Option<Libraries>,
}

impl RunTestbed<'_> {
    fn effort(&self, bytes: Bytes) -> Effort {
        // Calls per trial, by maximum message size. The numbers give trials of similar duration.
        const CALLS: [(u64, u32); 3] = [(256 << 10, 100), (4 << 20, 50), (64 << 20, 20)];
        let calls = CALLS.iter().find(|(max_bytes, _)| bytes.0 <= *max_bytes).map_or(8, |(_, calls)| *calls);
        Effort { warm: calls.min(20), calls, trials: 7, singles: self.context.args.execution.singles }
    }

    /// Number of calls before each result check, and the seed of the buffer contents.
    fn checks(&self, job: &Job) -> (Vec<u32>, u64) {
        let rounds = (0..self.context.args.execution.checks).map(|i| if i % 2 == 0 { 1 } else { 5 }).collect();
        (rounds, job.header.layout.bytes().0 ^ 0x1234_5678_9abc_def0)
    }

    /// Checks and times a job on one executor. Returns no times with `--untimed`.
    fn run_and_time(
        &self,
        by: ExecutorKind,
        job: &Job,
        buffers: &Buffers,
        executor: &dyn Executor,
    ) -> Result<Option<Times>, ExecuteError> {
        let execution = &self.context.args.execution;
        let faulty = execution.lose.map(|lost| WithoutRank { executor, missing_rank: lost });
        let executor = faulty.as_ref().map_or(executor, |one| one);
        let (bytes, members) = (job.header.layout.bytes(), self.contexts.contexts().len());
        let timeout = Duration::from_secs(execution.patience);
        let label = format!("{} of {bytes} by {}", job.header.call.collective, by.name());
        WatchedExecutor::run(executor, members, timeout, &label, |executor| {
            self.check_and_measure(job, buffers, executor)
        })
    }

    fn check_and_measure(
        &self,
        job: &Job,
        buffers: &Buffers,
        executor: &dyn Executor,
    ) -> Result<Option<Times>, ExecuteError> {
        let execution = &self.context.args.execution;
        let (rounds, seed) = self.checks(job);
        let bytes = job.header.layout.bytes();
        check(&self.contexts, buffers, job, executor, &self.watchdog, &rounds, seed)?;
        if execution.streak > 0 {
            check_series(&self.contexts, buffers, job, executor, &self.watchdog, execution.streak, !seed)?;
        }
        if execution.untimed {
            return Ok(None);
        }
        measure(&self.contexts, executor, &self.watchdog, self.effort(bytes)).map(Some)
    }

    /// Runs NCCL with its own choices. The times are the reference for all rows of the call.
    fn run_library_defaults(&self, job: &Job, messages: &mut RunMessages<'_>) -> Result<Vec<RunRow>, Failure> {
        let Some(libraries) = &self.libraries else { return Ok(Vec::new()) };
        let default_choice = libraries.default_choice().map(|library| (ExecutorKind::Nccl, &self.buffers, library));
        let windows = libraries.windows().map(|(buffers, library)| (ExecutorKind::NcclSymmetric, buffers, library));
        let rows = default_choice.into_iter().chain(windows);
        Ok(rows
            .filter_map(|(by, buffers, library)| self.run_library(by, job, buffers, library, messages).transpose())
            .collect::<Result<_, _>>()?)
    }

    /// Runs the call on one set of NCCL communicators; `None` if NCCL does not have the call.
    fn run_library(
        &self,
        by: ExecutorKind,
        job: &Job,
        buffers: &Buffers,
        library: &NcclCommunicators,
        messages: &mut RunMessages<'_>,
    ) -> Result<Option<RunRow>, ExecuteError> {
        let executor = match library.executor(buffers, job) {
            Ok(executor) => executor,
            Err(error) => {
                messages.output.warn(&format!("{job}: {error}"));
                return Ok(None);
            }
        };
        let row = |times: Option<&Times>| RunRow::new(job, by, None, None, times);
        match self.run_and_time(by, job, buffers, &executor).map(|times| row(times.as_ref())) {
            // NCCL reports an impossible forced strategy only when the collective is called.
            Err(error @ ExecuteError::Nccl(_)) if by == ExecutorKind::NcclForced => {
                messages.output.warn(&format!("{} {}: {error}", job.header.name, job.header.protocol));
                Ok(None)
            }
            result => messages.row_or_fault(result, || row(None)).map(Some),
        }
    }

    /// Runs the schedule or its strategy on all requested executors. Errors are reported in the rows, and determine the
    /// exit status at the end.
    fn rows(
        &self,
        entry: &schedules::ScheduleToRun,
        job: &Job,
        messages: &mut RunMessages<'_>,
    ) -> Result<Vec<RunRow>, Failure> {
        let schedule = &entry.schedule;
        let mut rows = Vec::new();
        let execution = &self.context.args.execution;
        let wants = |choice| execution.wants(choice, job.header.protocol);
        if let (Some(libraries), Some(strategy)) = (&self.libraries, entry.strategy())
            && let Some(library) = libraries.forced(strategy, &self.contexts, &self.watchdog)?
        {
            let row = self.run_library(ExecutorKind::NcclForced, job, &self.buffers, library, messages)?;
            rows.extend(row.map(|row| row.with_forced_channels(strategy.channels)));
        }
        if wants(ExecutorChoice::Kernels) {
            let carriers = self.carriers(schedule);
            if carriers.is_empty() && !wants(ExecutorChoice::Copies) {
                messages.record_skipped(job, "it is for copy engines (--executor copies)");
            }
            for carrier in carriers {
                let result = self.run_kernels(schedule, job, carrier);
                rows.push(
                    messages
                        .row_or_fault(result, || RunRow::new(job, ExecutorKind::Kernels, Some(carrier), None, None))?,
                );
            }
        }
        if wants(ExecutorChoice::Copies) {
            let kernel = Kernel::new(schedule, job.dtype, Carrier::Flags).map_err(ExecuteError::from)?;
            match Copies::new(&self.contexts, &self.buffers, job, &kernel) {
                Ok(copies) => {
                    let row = |times: Option<&Times>| RunRow::new(job, ExecutorKind::Copies, None, None, times);
                    let result = self.run_and_time(ExecutorKind::Copies, job, &self.buffers, &copies);
                    rows.push(messages.row_or_fault(result.map(|times| row(times.as_ref())), || row(None))?);
                }
                Err(error @ ExecuteError::Unsupported { .. }) => messages.record_skipped(job, &error.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(rows)
    }

    fn carriers(&self, schedule: &Schedule) -> Vec<Carrier> {
        let requested: Vec<Carrier> = self.context.args.execution.carrier.iter().map(|&choice| choice.into()).collect();
        if !requested.is_empty() {
            return requested;
        }
        Carrier::for_schedule(schedule.header()).into_iter().collect()
    }

    fn run_kernels(&self, schedule: &Schedule, job: &Job, carrier: Carrier) -> Result<RunRow, ExecuteError> {
        let kernel = Kernel::new(schedule, job.dtype, carrier)?;
        let effort = self.effort(job.header.layout.bytes());
        let time_limit = Duration::from_secs(self.context.args.execution.patience) / 4;
        let generate = |shape| {
            let calls = if self.context.args.execution.no_overlap { CallOrder::Sequential } else { CallOrder::Overlap };
            let options = KernelOptions { shape, calls, time_limit };
            GeneratedExecutor::new(&self.contexts, &self.buffers, job, kernel.clone(), options)
        };
        if self.context.args.execution.shape == Some(ShapeChoice::Sweep) {
            return self.sweep_shapes(job, &kernel, carrier, effort, &generate);
        }
        let generated = generate(self.context.args.execution.given_shape())?;
        let times = self.run_and_time(ExecutorKind::Kernels, job, &self.buffers, &generated)?;
        Ok(RunRow::new(job, ExecutorKind::Kernels, Some(carrier), Some(generated.shape()), times.as_ref()))
    }

    /// Checks and times many shapes of a kernel, and returns the row of the fastest one.
    fn sweep_shapes(
        &self,
        job: &Job,
        kernel: &Kernel,
        carrier: Carrier,
        effort: Effort,
        generate: &dyn Fn(Option<GridShape>) -> Result<GeneratedExecutor, ExecuteError>,
    ) -> Result<RunRow, ExecuteError> {
        let mut best: Option<(GridShape, Times)> = None;
        let mut tried = Vec::new();
        for shape in shapes::shapes(kernel) {
            let generated = match generate(Some(shape)) {
                Ok(generated) => generated,
                Err(ExecuteError::TooManyBlocks { .. }) => continue,
                Err(error) => return Err(error),
            };
            let quick = Effort { trials: 3, singles: 0, warm: 5, calls: effort.calls.div_ceil(2) };
            check(&self.contexts, &self.buffers, job, &generated, &self.watchdog, &[1], 77)?;
            let times = measure(&self.contexts, &generated, &self.watchdog, quick)?;
            tried.push((shape, times.graph));
            if best.as_ref().is_none_or(|(_, fastest)| times.graph < fastest.graph) {
                best = Some((shape, times));
            }
        }
        let Some((shape, _)) = best else {
            return Err(ExecuteError::Unsupported { executor: "kernels", reason: "no shape fits".to_owned() });
        };
        let generated = generate(Some(shape))?;
        let times = self.run_and_time(ExecutorKind::Kernels, job, &self.buffers, &generated)?;
        Ok(RunRow::new(job, ExecutorKind::Kernels, Some(carrier), Some(shape), times.as_ref()).with_tried(tried))
    }
}
