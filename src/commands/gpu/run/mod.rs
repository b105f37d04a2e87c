//! `gpu run`: strategies on this machine's GPUs, checked, timed, and beside what was predicted and what NCCL takes.

mod answer;
mod asked;
mod libraries;
mod measurements;
mod nvshmem;
mod pairs;
mod summary;
mod watched;

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
use fabricast_validate::kernel::{Carrier, Devices, GridShape, Kernel, Tiles};

use crate::args::{ExecutorChoice, GpuRunArgs};
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
    let fabric = setup::fabric(&args.fabric.fabric, &args.fabric.size, &args.what_if, output)?;
    let placement = setup::ranks(&fabric, args.fabric.ranks_per_gpu)?;
    let router = Router::new(&fabric, setup::call_options(&args.fabric, &fabric)?);
    let profile = setup::profile(&args.costs, &fabric)?;
    let kernels = setup::kernels_profile(&args.costs, &fabric)?;
    let (placement, router) = (&placement[..], &router);
    let ground = Ground { args, fabric: &fabric, router, placement, profile: &profile, kernels: &kernels };
    let asked = asked::schedules(&ground, output)?;
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
    let mut answer = Answer::new(&fabric, &kernels.name, &theatre.stage, version);
    let mut last: Option<Job> = None;
    let mut wrong = None;
    for ask in &asked {
        let schedule = &ask.schedule;
        let job = ground.job(schedule);
        if !last.as_ref().is_some_and(|same| alike(same, &job)) {
            for row in theatre.of_libraries(&job, output)? {
                answer.push(row);
            }
            if let Some(row) = elements.collective(&theatre, schedule, &job, output, &mut wrong)? {
                answer.push(row);
            }
            last = Some(job.clone());
        }
        let mut rows = theatre.rows(ask, &job, output, &mut wrong)?;
        rows.extend(elements.rows(&theatre, schedule, &job, output, &mut wrong)?);
        for mut row in rows {
            let over = if row.by.runs_schedule() { ask.over_blocks(&ground, row.blocks())? } else { None };
            let profile = if row.by.runs_schedule() { ground.kernels } else { ground.profile };
            row.predicted = Some(ground.predicted(over.as_ref().unwrap_or(schedule), profile)?);
            answer.push(row);
        }
        if output.shows_progress() {
            answer.progress();
        }
    }
    answer.nvshmem = elements.library();
    if let Some(folder) = &args.execution.measurements {
        measurements::write(folder, &answer)?;
    }
    answer.write(output)?;
    wrong.map_or(Ok(()), |error: ExecuteError| Err(error.into()))
}

/// Whether two jobs are the same call.
fn alike(one: &Job, other: &Job) -> bool {
    one.header.call == other.header.call && one.dtype == other.dtype && one.op == other.op
}

/// What is asked, and the fabric that it is predicted on.
struct Ground<'a> {
    args: &'a GpuRunArgs,
    fabric: &'a Fabric,
    router: &'a Router<'a>,
    placement: &'a [NodeId],
    /// What NCCL costs.
    profile: &'a Profile,
    /// What kernels made of schedules cost.
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

/// A call to which one rank never comes.
struct Without<'a> {
    executor: &'a dyn Executor,
    lost: usize,
}

impl Executor for Without<'_> {
    fn enqueue(&self, member: usize, stream: &Stream) -> Result<(), ExecuteError> {
        if member == self.lost { Ok(()) } else { self.executor.enqueue(member, stream) }
    }

    fn lost(&self) -> Vec<String> {
        self.executor.lost()
    }
}

/// Where things run.
struct Theatre<'a> {
    ground: &'a Ground<'a>,
    stage: Stage,
    buffers: Buffers,
    watchdog: Watchdog,
    libraries: Option<Libraries>,
}

impl Theatre<'_> {
    fn effort(&self, bytes: Bytes) -> Effort {
        // Calls of about the same time together, by the largest size that takes so many.
        const CALLS: [(u64, u32); 3] = [(256 << 10, 100), (4 << 20, 50), (64 << 20, 20)];
        let calls = CALLS.iter().find(|(most, _)| bytes.0 <= *most).map_or(8, |(_, calls)| *calls);
        Effort { warm: calls.min(20), calls, trials: 7, singles: self.ground.args.execution.singles }
    }

    /// Calls before each check, and where the contents come from.
    fn checks(&self, job: &Job) -> (Vec<u32>, u64) {
        let rounds = (0..self.ground.args.execution.checks).map(|i| if i % 2 == 0 { 1 } else { 5 }).collect();
        (rounds, job.header.layout.bytes().0 ^ 0x1234_5678_9abc_def0)
    }

    /// Checks and times one way to run a job.
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

    /// NCCL's own choices, which all rows of the call stand beside.
    fn of_libraries(&self, job: &Job, output: &Output) -> Result<Vec<Row>, Failure> {
        let Some(libraries) = &self.libraries else { return Ok(Vec::new()) };
        let own = libraries.own().map(|library| (By::Nccl, &self.buffers, library));
        let windows = libraries.windows().map(|(buffers, library)| (By::NcclSymmetric, buffers, library));
        let rows = own.into_iter().chain(windows);
        Ok(rows
            .filter_map(|(by, buffers, library)| self.of_library(by, job, buffers, library, output).transpose())
            .collect::<Result<_, _>>()?)
    }

    /// A row of NCCL; nothing where it has no such call.
    fn of_library(
        &self,
        by: By,
        job: &Job,
        buffers: &Buffers,
        library: &Library,
        output: &Output,
    ) -> Result<Option<Row>, ExecuteError> {
        let executor = match library.of(buffers, job) {
            Ok(executor) => executor,
            Err(error) => {
                output.warn(&error.to_string());
                return Ok(None);
            }
        };
        match self.performed(by, job, buffers, &executor) {
            Ok(times) => Ok(Some(Row::new(job, by, None, times.as_ref()))),
            // What it cannot be forced to, it says when it is called.
            Err(error @ ExecuteError::Nccl(_)) if by == By::NcclForced => {
                output.warn(&format!("{} {}: {error}", job.header.name, job.header.protocol));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The ways that run the schedule, or its strategy. What is wrong is told in its row, and ends the command at the end.
    fn rows(
        &self,
        ask: &asked::Ask,
        job: &Job,
        output: &Output,
        wrong: &mut Option<ExecuteError>,
    ) -> Result<Vec<Row>, Failure> {
        let schedule = &ask.schedule;
        let mut rows = Vec::new();
        let wants = |choice| self.ground.args.execution.executor.contains(&choice);
        if let (Some(libraries), Some(strategy)) = (&self.libraries, ask.strategy())
            && let Some(library) = libraries.forced(strategy, &self.stage, &self.watchdog)?
        {
            let row = self.of_library(By::NcclForced, job, &self.buffers, library, output)?;
            rows.extend(row.map(|row| row.forced_to(strategy.channels)));
        }
        if wants(ExecutorChoice::Kernels) {
            for carrier in self.carriers(schedule) {
                match self.generated(schedule, job, carrier) {
                    Ok(row) => rows.push(row),
                    Err(
                        error @ (ExecuteError::Wrong { .. }
                        | ExecuteError::WrongAmong { .. }
                        | ExecuteError::Unsupported { .. }),
                    ) => {
                        output.warn(&format!("{} {}: {error}", job.header.name, carrier.name()));
                        rows.push(Row::new(job, By::Kernels, Some((carrier, None)), None).failed(&error));
                        if !matches!(error, ExecuteError::Unsupported { .. }) {
                            *wrong = Some(error);
                        }
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        if wants(ExecutorChoice::Copies) {
            let kernel = Kernel::new(schedule, job.dtype, Carrier::Flags).map_err(ExecuteError::from)?;
            match Copies::new(&self.stage, &self.buffers, job, &kernel) {
                Ok(copies) => {
                    let times = self.performed(By::Copies, job, &self.buffers, &copies)?;
                    rows.push(Row::new(job, By::Copies, None, times.as_ref()));
                }
                Err(error @ ExecuteError::Unsupported { .. }) => output.detail(&error.to_string()),
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
        let given = self.ground.args.execution.shape.as_deref();
        if given == Some("sweep") {
            return self.swept(job, &kernel, carrier, effort, &made);
        }
        let generated = made(given.and_then(shape_of))?;
        let times = self.performed(By::Kernels, job, &self.buffers, &generated)?;
        Ok(Row::new(job, By::Kernels, Some((carrier, Some(generated.shape()))), times.as_ref()))
    }

    /// The fastest of many shapes; each is checked once.
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
        for shape in shapes(kernel) {
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

/// `8x512x2`, or `8x512x2x4`.
fn shape_of(text: &str) -> Option<GridShape> {
    let mut numbers = text.split('x').map(|number| number.parse::<u32>().ok().filter(|&number| number > 0));
    let (split, threads, unroll) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let shape = GridShape { split, threads, unroll, together: numbers.next().unwrap_or(Some(1))? };
    (numbers.next().is_none() && shape.threads.is_multiple_of(32) && (64..=1024).contains(&shape.threads))
        .then_some(shape)
}

/// Shapes that might be the fastest.
fn shapes(kernel: &Kernel) -> Vec<GridShape> {
    const MOST_BLOCKS: u32 = 264;
    let usual = kernel.shape(128);
    let mut shapes = vec![usual];
    // Plain vectors keep more in flight; what tells of its own arrival is spread wider.
    let (unrolls, widths): ([u32; 2], &[u32]) = match kernel.carrier() {
        Carrier::Flags => ([2, 4], &[256, 512]),
        Carrier::Packets | Carrier::Lines => ([1, 2], &[128, 256, 512]),
    };
    for unroll in unrolls {
        for &threads in widths {
            for split in [usual.split / 2, usual.split, usual.split * 2] {
                let shape = GridShape { threads, split, unroll, together: 1 };
                let is_sane =
                    split > 0 && kernel.blocks(shape) <= MOST_BLOCKS && kernel.tiles(shape) >= u64::from(split);
                if !is_sane {
                    continue;
                }
                for shape in together(kernel, shape) {
                    if !shapes.contains(&shape) {
                        shapes.push(shape);
                    }
                }
            }
        }
    }
    shapes
}

/// A shape with its tiles one by one, and with a quarter of them and all of them in a phase together.
fn together(kernel: &Kernel, shape: GridShape) -> Vec<GridShape> {
    let most = kernel.tiles(shape).div_ceil(u64::from(shape.split.max(1))) as u32;
    let parts = match kernel.phases() {
        Tiles::Together => vec![1, most.div_ceil(4), most],
        Tiles::OneByOne => vec![1],
    };
    parts.into_iter().map(|together| GridShape { together, ..shape }).collect()
}
