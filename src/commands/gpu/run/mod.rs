//! `gpu run`: strategies on this machine's GPUs, checked, timed, and beside what was predicted and what NCCL takes.

mod answer;
mod asked;
mod measurements;

use std::time::Duration;

use fabricast_sim::engine::Watch;
use fabricast_sim::schedule::Schedule;
use fabricast_sim::{Surroundings, simulate};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, NodeId, Picos};
use fabricast_validate::cuda::{Driver, Watchdog};
use fabricast_validate::execute::{
    Buffers, Copies, Effort, ExecuteError, Executor, Generated, Job, Library, Stage, Times, Wanted, check, measure,
};
use fabricast_validate::kernel::{Carrier, Devices, GridShape, Kernel};

use crate::args::{ExecutorChoice, GpuRunArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::setup;
use answer::{Answer, Row};

pub fn run(args: &GpuRunArgs, output: &Output) -> Result<(), Failure> {
    let fabric = setup::fabric(&args.fabric.fabric, &args.fabric.size, &args.what_if, output)?;
    let placement = setup::ranks(&fabric, args.fabric.ranks_per_gpu)?;
    let router = Router::new(&fabric, setup::call_options(&args.fabric, &fabric)?);
    let profile = setup::profile(&args.costs, &fabric)?;
    let ground = Ground { args, fabric: &fabric, router: &router, placement: &placement, profile: &profile };
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
    let library = if args.execution.executor.contains(&ExecutorChoice::Nccl) {
        match Library::new(&stage, args.execution.nccl.as_deref(), &watchdog) {
            Ok(library) => Some(library),
            Err(error @ ExecuteError::Unsupported { .. }) => {
                output.warn(&error.to_string());
                None
            }
            Err(error) => return Err(error.into()),
        }
    } else {
        None
    };
    let theatre = Theatre { ground: &ground, stage, buffers, watchdog, library };
    let mut answer = Answer::new(&fabric, &profile.name, &theatre.stage, theatre.library.as_ref());
    let mut nccl: Option<(Job, Option<Times>)> = None;
    let mut wrong = None;
    for ask in &asked {
        let schedule = &ask.schedule;
        let job = ground.job(schedule);
        if !nccl.as_ref().is_some_and(|(same, _)| alike(same, &job)) {
            let times = theatre.of_library(&job, &mut answer, output)?;
            nccl = Some((job.clone(), times));
        }
        let beside = nccl.as_ref().and_then(|(_, times)| times.as_ref()).map(|times| times.graph);
        for mut row in theatre.rows(schedule, &job, output, &mut wrong)? {
            let over = ask.over_blocks(&ground, row.blocks())?;
            row.predicted = ground.predicted(over.as_ref().unwrap_or(schedule))?;
            row.nccl = beside;
            answer.push(row);
        }
        if output.shows_progress() {
            answer.progress();
        }
    }
    if let Some(folder) = &args.execution.measurements {
        measurements::write(folder, &answer)?;
    }
    answer.write(&profile, output)?;
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
    profile: &'a fabricast_sim::profile::Profile,
}

impl Ground<'_> {
    fn job(&self, schedule: &Schedule) -> Job {
        let call = &self.args.call;
        Job { header: schedule.header().clone(), dtype: call.dtype.unwrap_or_default(), op: call.op }
    }

    fn predicted(&self, schedule: &Schedule) -> Result<Picos, Failure> {
        let mode = setup::launch_mode(&self.args.costs, self.fabric, self.placement);
        let ranks = schedule.header().call.ranks as usize;
        let placement = self.placement.get(..ranks).unwrap_or(self.placement);
        let setting = setup::setting(self.fabric, self.router, placement, self.profile, &[]);
        let surroundings = Surroundings { folding: fabricast_sim::Folding::WhereProved, background: &[] };
        Ok(simulate(schedule, setting, mode, surroundings, Watch::default())?.time)
    }
}

/// Where things run.
struct Theatre<'a> {
    ground: &'a Ground<'a>,
    stage: Stage,
    buffers: Buffers,
    watchdog: Watchdog,
    library: Option<Library>,
}

impl Theatre<'_> {
    fn effort(&self, bytes: Bytes) -> Effort {
        // Calls of about the same time together, by the largest size that takes so many.
        const CALLS: [(u64, u32); 3] = [(256 << 10, 100), (4 << 20, 50), (64 << 20, 20)];
        let calls = CALLS.iter().find(|(most, _)| bytes.0 <= *most).map_or(8, |(_, calls)| *calls);
        Effort { warm: calls.min(20), calls, trials: 7, singles: self.ground.args.execution.singles }
    }

    /// Checks and times one way to run a job.
    fn performed(&self, job: &Job, executor: &dyn Executor, effort: Effort) -> Result<Option<Times>, ExecuteError> {
        let rounds: Vec<u32> = (0..self.ground.args.execution.checks).map(|i| if i % 2 == 0 { 1 } else { 5 }).collect();
        let seed = job.header.layout.bytes().0 ^ 0x1234_5678_9abc_def0;
        check(&self.stage, &self.buffers, job, executor, &self.watchdog, &rounds, seed)?;
        if self.ground.args.execution.untimed {
            return Ok(None);
        }
        measure(&self.stage, executor, &self.watchdog, effort).map(Some)
    }

    /// NCCL's own way, which all rows of the call stand beside.
    fn of_library(&self, job: &Job, answer: &mut Answer, output: &Output) -> Result<Option<Times>, Failure> {
        let Some(library) = &self.library else { return Ok(None) };
        match library.of(&self.buffers, job) {
            Ok(executor) => {
                let times = self.performed(job, &executor, self.effort(job.header.layout.bytes()))?;
                answer.push(Row::new(job, "nccl", None, times.as_ref()));
                Ok(times)
            }
            Err(error) => {
                output.warn(&error.to_string());
                Ok(None)
            }
        }
    }

    /// Our ways. What is wrong is told in its row, and ends the command at the end.
    fn rows(
        &self,
        schedule: &Schedule,
        job: &Job,
        output: &Output,
        wrong: &mut Option<ExecuteError>,
    ) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        let wants = |choice| self.ground.args.execution.executor.contains(&choice);
        if wants(ExecutorChoice::Kernels) {
            for carrier in self.carriers(schedule) {
                match self.generated(schedule, job, carrier) {
                    Ok(row) => rows.push(row),
                    Err(error @ (ExecuteError::Wrong { .. } | ExecuteError::Unsupported { .. })) => {
                        output.warn(&format!("{} {}: {error}", job.header.name, carrier.name()));
                        rows.push(Row::new(job, "kernels", Some((carrier, None)), None).failed(&error));
                        if matches!(error, ExecuteError::Wrong { .. }) {
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
                    let times = self.performed(job, &copies, self.effort(job.header.layout.bytes()))?;
                    rows.push(Row::new(job, "copies", None, times.as_ref()));
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
            let wanted = Wanted { shape, patience };
            Generated::new(&self.stage, &self.buffers, job, kernel.clone(), wanted)
        };
        let given = self.ground.args.execution.shape.as_deref();
        if given == Some("sweep") {
            return self.swept(job, &kernel, carrier, effort, &made);
        }
        let generated = made(given.and_then(shape_of))?;
        let times = self.performed(job, &generated, effort)?;
        Ok(Row::new(job, "kernels", Some((carrier, Some(generated.shape()))), times.as_ref()))
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
        let times = self.performed(job, &generated, effort)?;
        Ok(Row::new(job, "kernels", Some((carrier, Some(shape))), times.as_ref()).with_tried(tried))
    }
}

/// `8x512x2`.
fn shape_of(text: &str) -> Option<GridShape> {
    let mut numbers = text.split('x').map(|number| number.parse::<u32>().ok().filter(|&number| number > 0));
    let shape = GridShape { split: numbers.next()??, threads: numbers.next()??, unroll: numbers.next()?? };
    (numbers.next().is_none() && shape.threads.is_multiple_of(32) && (64..=1024).contains(&shape.threads))
        .then_some(shape)
}

/// Shapes that might be the fastest.
fn shapes(kernel: &Kernel) -> Vec<GridShape> {
    const MOST_BLOCKS: u32 = 264;
    let usual = kernel.shape(128);
    let mut shapes = vec![usual];
    for unroll in [1, 2, 4] {
        for threads in [128, 256, 512] {
            for split in [usual.split / 2, usual.split, usual.split * 2] {
                let shape = GridShape { threads, split, unroll };
                let is_sane =
                    split > 0 && kernel.blocks(shape) <= MOST_BLOCKS && kernel.tiles(shape) >= u64::from(split);
                if is_sane && !shapes.contains(&shape) {
                    shapes.push(shape);
                }
            }
        }
    }
    shapes
}
