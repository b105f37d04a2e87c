//! `gpu run`: runs strategies on the GPUs of this machine, verifies results, measures times, and compares them with
//! predictions and NCCL.

mod answer;
mod asked;
mod libraries;
mod measurements;
mod nvshmem;
mod pairs;
mod shapes;
mod summary;
mod watched;

use std::collections::BTreeMap;
use std::time::Duration;

use fabricast_sim::engine::Watch;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::Schedule;
use fabricast_sim::{Surroundings, simulate};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, NodeId};
use fabricast_validate::cuda::Stream;
use fabricast_validate::cuda::{Driver, Watchdog};
use fabricast_validate::execute::{
    Buffers, Calls, Copies, Effort, ExecuteError, Executor, Generated, Job, Library, Stage, Times, Wanted, check,
    measure, streak,
};
use fabricast_validate::kernel::{Carrier, Devices, GridShape, Kernel};

use crate::args::{ExecutorChoice, GpuRunArgs, ShapeChoice};
use crate::failure::Failure;
use crate::output::Output;
use crate::setup;
use answer::{Answer, By, Predicted, Row};
use libraries::Libraries;
use watched::Watched;

pub fn run(args: &GpuRunArgs, output: &Output) -> Result<(), Failure> {
    if args.pairs {
        return pairs::run(args, output);
    }
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
    let ground = Ground { args, fabric: &fabric, router, placement, profile: &profile, kernels: &kernels };
    let asked = asked::schedules(&ground, output)?;
    if asked.is_empty() {
        return Err(Failure::input(
            "there is nothing to run: no strategy that is asked for is one of these collectives",
        ));
    }
    let ranks = asked.iter().map(|one| one.schedule.header().call.ranks).max().unwrap_or(1);
    if let Some(other) = asked.iter().find(|one| one.schedule.header().call.ranks != ranks) {
        let found = other.schedule.header().call.ranks;
        return Err(Failure::input(format!("all rows must have as many ranks: {found} and {ranks}")));
    }
    let driver = Driver::load().map_err(ExecuteError::from)?;
    let devices = if args.fabric.ranks_per_gpu > 1 { Devices::Shared } else { Devices::Own };
    let stage = Stage::new(driver, ranks, devices)?;
    let most = asked.iter().map(|one| one.schedule.header().layout.bytes()).max().unwrap_or_default();
    let buffers = Buffers::new(&stage, most, args.execution.offset).map_err(ExecuteError::from)?;
    let watchdog = Watchdog::new(Duration::from_secs(args.execution.patience));
    let strategies = asked.iter().filter_map(asked::Ask::strategy);
    let libraries = Libraries::new(&stage, &watchdog, most, &args.execution, strategies, output)?;
    let mut elements = nvshmem::Elements::new(&args.execution, &stage, most)?;
    let theatre = Theatre { ground: &ground, stage, buffers, watchdog, libraries };
    let version = theatre.libraries.as_ref().map(Libraries::version);
    let launch = setup::launch_mode(&args.costs, &fabric, placement).launch;
    let mut answer = Answer::new(&fabric, &kernels.name, launch, &theatre.stage, version);
    answer.fabric_spec = measurements::spec(&ground)?;
    answer.verified = args.schedule.as_ref().map(|_| !args.verify.no_verify);
    let mut last: Option<Job> = None;
    let mut told = Told { output, wrong: None, not_run: BTreeMap::new() };
    for ask in &asked {
        let schedule = &ask.schedule;
        let job = ground.job(schedule);
        if !last.as_ref().is_some_and(|same| alike(same, &job)) {
            for row in theatre.of_libraries(&job, &mut told)? {
                answer.push(row);
            }
            if let Some(row) = elements.collective(&theatre, schedule, &job, &mut told)? {
                answer.push(row);
            }
            last = Some(job.clone());
        }
        let mut rows = theatre.rows(ask, &job, &mut told)?;
        rows.extend(elements.rows(&theatre, schedule, &job, &mut told)?);
        for mut row in rows {
            let over = match row.by {
                By::Copies => ask.by_copy_engines(&ground)?,
                by if by.runs_schedule() => ask.over_blocks(&ground, row.blocks())?,
                _ => None,
            };
            let profile = if row.by.runs_schedule() { ground.kernels } else { ground.profile };
            row.predicted = Some(ground.predicted(over.as_ref().unwrap_or(schedule), profile)?);
            answer.push(row);
        }
        if output.shows_progress() {
            answer.progress();
        }
    }
    answer.nvshmem = elements.library();
    told.tell_not_run();
    if answer.rows.is_empty() {
        return Err(Failure::Failed("nothing ran: no executor that is asked for runs any of it".to_owned()));
    }
    if let Some(folder) = &args.execution.measurements {
        measurements::write(folder, &ground, &answer, output)?;
    }
    answer.write(output)?;
    told.wrong.map_or(Ok(()), |error| Err(error.into()))
}

/// Messages and errors collected during the runs.
struct Told<'a> {
    output: &'a Output,
    /// First wrong result, which becomes the exit status.
    wrong: Option<ExecuteError>,
    /// Calls that were not run, by reason.
    not_run: BTreeMap<String, Vec<String>>,
}

impl Told<'_> {
    /// Records a call that is not run.
    fn leave_out(&mut self, job: &Job, why: &str) {
        self.not_run.entry(why.to_owned()).or_default().push(format!("{job} by {}", job.header.name));
    }

    /// Reports each reason once, with its first and last call.
    fn tell_not_run(&self) {
        for (why, calls) in &self.not_run {
            let (first, last) = (calls.first().map_or("", String::as_str), calls.last().map_or("", String::as_str));
            self.output.warn(&match calls.len() {
                1 => format!("not run: {first}: {why}"),
                count => format!("not run: {count} calls, from {first} to {last}: {why}"),
            });
        }
    }

    /// Returns the row, or a row with the error if the result is wrong or the call is unsupported. Other errors are
    /// returned.
    fn kept(&mut self, made: Result<Row, ExecuteError>, failed: impl FnOnce() -> Row) -> Result<Row, ExecuteError> {
        use ExecuteError::{Unsupported, Wrong, WrongAmong};
        match made {
            Err(error @ (Wrong { .. } | WrongAmong { .. } | Unsupported { .. })) => {
                let row = failed().failed(&error);
                self.output.warn(&format!("{}: {error}", row.what()));
                if !matches!(error, Unsupported { .. }) {
                    self.wrong.get_or_insert(error);
                }
                Ok(row)
            }
            made => made,
        }
    }
}

/// Returns true if two jobs are the same call.
fn alike(one: &Job, other: &Job) -> bool {
    one.header.call == other.header.call && one.dtype == other.dtype && one.op == other.op
}

/// Arguments, and the fabric for predictions.
struct Ground<'a> {
    args: &'a GpuRunArgs,
    fabric: &'a Fabric,
    router: &'a Router<'a>,
    placement: &'a [NodeId],
    /// Cost profile of NCCL.
    profile: &'a Profile,
    /// Cost profile of generated kernels.
    kernels: &'a Profile,
}

impl Ground<'_> {
    fn job(&self, schedule: &Schedule) -> Job {
        let call = &self.args.call;
        Job { header: schedule.header().clone(), dtype: call.dtype.unwrap_or_default(), op: call.op }
    }

    fn predicted(&self, schedule: &Schedule, profile: &Profile) -> Result<Predicted, Failure> {
        let mode = setup::launch_mode(&self.args.costs, self.fabric, self.placement);
        let ranks = schedule.header().call.ranks as usize;
        let placement = self.placement.get(..ranks).unwrap_or(self.placement);
        let setting = setup::setting(self.fabric, self.router, placement, profile, &[]);
        let surroundings = Surroundings { folding: fabricast_sim::Folding::WhereProved, background: &[] };
        let timeline = simulate(schedule, setting, mode, surroundings, Watch::default())?;
        let (low, high) = timeline.band.around(timeline.time);
        Ok(Predicted { time: timeline.time, low, high })
    }
}

/// Fault injection: a call that one rank never joins.
struct Without<'a> {
    executor: &'a dyn Executor,
    lost: usize,
}

impl Executor for Without<'_> {
    fn enqueue(&self, member: usize, stream: &Stream) -> Result<(), ExecuteError> {
        if member == self.lost { Ok(()) } else { self.executor.enqueue(member, stream) }
    }

    fn waiting(&self, member: usize) -> String {
        self.executor.waiting(member)
    }

    fn lost(&self) -> Vec<String> {
        self.executor.lost()
    }
}

/// GPU test bench: contexts, buffers and libraries.
struct Theatre<'a> {
    ground: &'a Ground<'a>,
    stage: Stage,
    buffers: Buffers,
    watchdog: Watchdog,
    libraries: Option<Libraries>,
}

impl Theatre<'_> {
    fn effort(&self, bytes: Bytes) -> Effort {
        // Calls per trial by maximum message size, for trials of similar duration.
        const CALLS: [(u64, u32); 3] = [(256 << 10, 100), (4 << 20, 50), (64 << 20, 20)];
        let calls = CALLS.iter().find(|(most, _)| bytes.0 <= *most).map_or(8, |(_, calls)| *calls);
        Effort { warm: calls.min(20), calls, trials: 7, singles: self.ground.args.execution.singles }
    }

    /// Numbers of calls before each check, and the seed of the contents.
    fn checks(&self, job: &Job) -> (Vec<u32>, u64) {
        let rounds = (0..self.ground.args.execution.checks).map(|i| if i % 2 == 0 { 1 } else { 5 }).collect();
        (rounds, job.header.layout.bytes().0 ^ 0x1234_5678_9abc_def0)
    }

    /// Checks and times a job on one executor.
    fn performed(
        &self,
        by: By,
        job: &Job,
        buffers: &Buffers,
        executor: &dyn Executor,
    ) -> Result<Option<Times>, ExecuteError> {
        let execution = &self.ground.args.execution;
        let without = execution.lose.map(|lost| Without { executor, lost });
        let executor = without.as_ref().map_or(executor, |one| one);
        let (bytes, members) = (job.header.layout.bytes(), self.stage.contexts().len());
        let patience = Duration::from_secs(execution.patience);
        let what = format!("{} of {bytes} by {}", job.header.call.collective, by.name());
        Watched::during(executor, members, patience, &what, |executor| self.watched(job, buffers, executor))
    }

    fn watched(&self, job: &Job, buffers: &Buffers, executor: &dyn Executor) -> Result<Option<Times>, ExecuteError> {
        let execution = &self.ground.args.execution;
        let (rounds, seed) = self.checks(job);
        let bytes = job.header.layout.bytes();
        check(&self.stage, buffers, job, executor, &self.watchdog, &rounds, seed)?;
        if execution.streak > 0 {
            streak(&self.stage, buffers, job, executor, &self.watchdog, execution.streak, !seed)?;
        }
        if execution.untimed {
            return Ok(None);
        }
        measure(&self.stage, executor, &self.watchdog, self.effort(bytes)).map(Some)
    }

    /// Runs NCCL's own choices, the reference for all rows of the call.
    fn of_libraries(&self, job: &Job, told: &mut Told<'_>) -> Result<Vec<Row>, Failure> {
        let Some(libraries) = &self.libraries else { return Ok(Vec::new()) };
        let own = libraries.own().map(|library| (By::Nccl, &self.buffers, library));
        let windows = libraries.windows().map(|(buffers, library)| (By::NcclSymmetric, buffers, library));
        let rows = own.into_iter().chain(windows);
        Ok(rows
            .filter_map(|(by, buffers, library)| self.of_library(by, job, buffers, library, told).transpose())
            .collect::<Result<_, _>>()?)
    }

    /// Runs one communicator of NCCL; `None` if NCCL lacks the call.
    fn of_library(
        &self,
        by: By,
        job: &Job,
        buffers: &Buffers,
        library: &Library,
        told: &mut Told<'_>,
    ) -> Result<Option<Row>, ExecuteError> {
        let executor = match library.of(buffers, job) {
            Ok(executor) => executor,
            Err(error) => {
                told.output.warn(&format!("{job}: {error}"));
                return Ok(None);
            }
        };
        let row = |times: Option<&Times>| Row::new(job, by, None, times);
        match self.performed(by, job, buffers, &executor).map(|times| row(times.as_ref())) {
            // NCCL reports an impossible forced choice only when it is called.
            Err(error @ ExecuteError::Nccl(_)) if by == By::NcclForced => {
                told.output.warn(&format!("{} {}: {error}", job.header.name, job.header.protocol));
                Ok(None)
            }
            made => told.kept(made, || row(None)).map(Some),
        }
    }

    /// Runs the schedule or its strategy on all requested executors. Errors are reported in the rows, and determine the
    /// exit status at the end.
    fn rows(&self, ask: &asked::Ask, job: &Job, told: &mut Told<'_>) -> Result<Vec<Row>, Failure> {
        let schedule = &ask.schedule;
        let mut rows = Vec::new();
        let execution = &self.ground.args.execution;
        let wants = |choice| execution.wants(choice, job.header.protocol);
        if let (Some(libraries), Some(strategy)) = (&self.libraries, ask.strategy())
            && let Some(library) = libraries.forced(strategy, &self.stage, &self.watchdog)?
        {
            let row = self.of_library(By::NcclForced, job, &self.buffers, library, told)?;
            rows.extend(row.map(|row| row.forced_to(strategy.channels)));
        }
        if wants(ExecutorChoice::Kernels) {
            let carriers = self.carriers(schedule);
            if carriers.is_empty() && !wants(ExecutorChoice::Copies) {
                told.leave_out(job, "it is for copy engines (--executor copies)");
            }
            for carrier in carriers {
                let made = self.generated(schedule, job, carrier);
                rows.push(told.kept(made, || Row::new(job, By::Kernels, Some((carrier, None)), None))?);
            }
        }
        if wants(ExecutorChoice::Copies) {
            let kernel = Kernel::new(schedule, job.dtype, Carrier::Flags).map_err(ExecuteError::from)?;
            match Copies::new(&self.stage, &self.buffers, job, &kernel) {
                Ok(copies) => {
                    let row = |times: Option<&Times>| Row::new(job, By::Copies, None, times);
                    let made = self.performed(By::Copies, job, &self.buffers, &copies);
                    rows.push(told.kept(made.map(|times| row(times.as_ref())), || row(None))?);
                }
                Err(error @ ExecuteError::Unsupported { .. }) => told.leave_out(job, &error.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(rows)
    }

    fn carriers(&self, schedule: &Schedule) -> Vec<Carrier> {
        let given: Vec<Carrier> = self.ground.args.execution.carrier.iter().map(|&one| one.into()).collect();
        if !given.is_empty() {
            return given;
        }
        let header = schedule.header();
        let largest = (0..header.layout.chunks()).map(|chunk| header.layout.size(chunk));
        let largest = largest.map(|size| size.numerator / u64::from(size.denominator)).max().unwrap_or(0);
        let lane = largest * u64::from(header.channels);
        Carrier::of(header.protocol, Bytes(lane)).into_iter().collect()
    }

    fn generated(&self, schedule: &Schedule, job: &Job, carrier: Carrier) -> Result<Row, ExecuteError> {
        let kernel = Kernel::new(schedule, job.dtype, carrier)?;
        let effort = self.effort(job.header.layout.bytes());
        let patience = Duration::from_secs(self.ground.args.execution.patience) / 4;
        let made = |shape| {
            let calls = if self.ground.args.execution.no_overlap { Calls::Apart } else { Calls::Overlap };
            let wanted = Wanted { shape, calls, patience };
            Generated::new(&self.stage, &self.buffers, job, kernel.clone(), wanted)
        };
        if self.ground.args.execution.shape == Some(ShapeChoice::Sweep) {
            return self.swept(job, &kernel, carrier, effort, &made);
        }
        let generated = made(self.ground.args.execution.given_shape())?;
        let times = self.performed(By::Kernels, job, &self.buffers, &generated)?;
        Ok(Row::new(job, By::Kernels, Some((carrier, Some(generated.shape()))), times.as_ref()))
    }

    /// Returns the fastest of many shapes; each is checked once.
    fn swept(
        &self,
        job: &Job,
        kernel: &Kernel,
        carrier: Carrier,
        effort: Effort,
        made: &dyn Fn(Option<GridShape>) -> Result<Generated, ExecuteError>,
    ) -> Result<Row, ExecuteError> {
        let mut best: Option<(GridShape, Times)> = None;
        let mut tried = Vec::new();
        for shape in shapes::shapes(kernel) {
            let generated = match made(Some(shape)) {
                Ok(generated) => generated,
                Err(ExecuteError::TooManyBlocks { .. }) => continue,
                Err(error) => return Err(error),
            };
            let quick = Effort { trials: 3, singles: 0, warm: 5, calls: effort.calls.div_ceil(2) };
            check(&self.stage, &self.buffers, job, &generated, &self.watchdog, &[1], 77)?;
            let times = measure(&self.stage, &generated, &self.watchdog, quick)?;
            tried.push((shape, times.graph));
            if best.as_ref().is_none_or(|(_, least)| times.graph < least.graph) {
                best = Some((shape, times));
            }
        }
        let Some((shape, _)) = best else {
            return Err(ExecuteError::Unsupported { executor: "kernels", reason: "no shape fits".to_owned() });
        };
        let generated = made(Some(shape))?;
        let times = self.performed(By::Kernels, job, &self.buffers, &generated)?;
        Ok(Row::new(job, By::Kernels, Some((carrier, Some(shape))), times.as_ref()).with_tried(tried))
    }
}
