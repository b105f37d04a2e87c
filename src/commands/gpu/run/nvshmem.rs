//! NVSHMEM executor of `gpu run`: its processes, and the methods by which they run a call.

use std::time::Duration;

use fabricast_sim::schedule::{Protocol, Schedule};
use fabricast_topologies::Bytes;
use fabricast_validate::cuda::CudaError;
use fabricast_validate::execute::nvshmem::{NvshmemRanks, Performed, Setting, Turn, Way};
use fabricast_validate::execute::{ExecuteError, Job, Stage, Times};
use fabricast_validate::kernel::{Carrier, Devices, GridShape};

use super::answer::{By, Row};
use super::{Theatre, Told};
use crate::args::{ExecutionArgs, ExecutorChoice};
use crate::failure::Failure;

/// Creates the processes, one per rank, without starting them. `most` is the size of the largest call.
pub(super) fn processes(args: &ExecutionArgs, stage: &Stage, most: Bytes) -> Result<NvshmemRanks, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("nvshmem: this program does not know its own file: {error}")))?;
    let setting = Setting {
        library: args.nvshmem.clone(),
        ranks: stage.ranks() as usize,
        room: most,
        offset: args.offset,
        patience: Duration::from_secs(args.patience),
    };
    Ok(NvshmemRanks::new(setting, move |_| {
        let mut command = std::process::Command::new(&program);
        command.args(["gpu", "nvshmem-rank"]);
        command
    }))
}

/// NVSHMEM processes, if requested.
pub(super) struct Elements {
    ranks: Option<NvshmemRanks>,
    ways: Vec<Way>,
}

impl Elements {
    /// Creates the processes without starting them. `most` is the size of the largest call.
    pub(super) fn new(args: &ExecutionArgs, stage: &Stage, most: Bytes) -> Result<Self, Failure> {
        let ways = args.nvshmem_by.iter().map(|&way| way.into()).collect();
        if !args.wants(ExecutorChoice::Nvshmem, Protocol::Symmetric) {
            return Ok(Self { ranks: None, ways });
        }
        if stage.devices() == Devices::Shared && stage.ranks() > 1 {
            return Err(Failure::input("nvshmem: its ranks need a GPU each"));
        }
        Ok(Self { ranks: Some(processes(args, stage, most)?), ways })
    }

    /// NVSHMEM version, and the NCCL that it uses for its collectives; `None` if it did not run.
    pub(super) fn library(&self) -> Option<(String, Option<String>)> {
        let ranks = self.ranks.as_ref()?;
        Some((ranks.version()?.to_owned(), ranks.nccl().map(|path| path.display().to_string())))
    }

    /// Runs NVSHMEM's own collective, once per call.
    pub(super) fn collective(
        &mut self,
        theatre: &Theatre<'_>,
        schedule: &Schedule,
        job: &Job,
        told: &mut Told<'_>,
    ) -> Result<Option<Row>, Failure> {
        if !self.ways.contains(&Way::Collectives) {
            return Ok(None);
        }
        self.row(theatre, schedule, job, (Way::Collectives, None), told)
    }

    /// Runs the schedule by every requested method.
    pub(super) fn rows(
        &mut self,
        theatre: &Theatre<'_>,
        schedule: &Schedule,
        job: &Job,
        told: &mut Told<'_>,
    ) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        for way in self.ways.clone() {
            let carriers: Vec<Option<Carrier>> = match way {
                Way::Collectives => Vec::new(),
                Way::Heap => theatre.carriers(schedule).into_iter().map(Some).collect(),
                Way::Puts | Way::Device => vec![None],
            };
            for carrier in carriers {
                rows.extend(self.row(theatre, schedule, job, (way, carrier), told)?);
            }
        }
        Ok(rows)
    }

    /// Runs one method. Errors are reported in the row, and determine the exit status at the end. The failed processes
    /// are replaced for the next method.
    fn row(
        &mut self,
        theatre: &Theatre<'_>,
        schedule: &Schedule,
        job: &Job,
        (way, carrier): (Way, Option<Carrier>),
        told: &mut Told<'_>,
    ) -> Result<Option<Row>, Failure> {
        let carried = carrier.or((way == Way::Device).then_some(Carrier::Flags));
        let row = |shape: Option<GridShape>, times: Option<&Times>| {
            Row::new(job, By::Nvshmem(way), carried.map(|one| (one, shape)), times)
        };
        let error = match self.performed(theatre, schedule, job, way, carrier) {
            Ok(done) => return Ok(done.map(|done| row(done.shape, done.times.as_ref()))),
            Err(error) => error,
        };
        // Continuing is useless if NVSHMEM did not start, or after Ctrl-C.
        if self.library().is_none() || matches!(error, ExecuteError::Cuda(CudaError::Interrupted)) {
            return Err(error.into());
        }
        told.output.warn(&format!("{job} by {}, {}: {error}", job.header.name, By::Nvshmem(way).name()));
        if matches!(error, ExecuteError::Unsupported { .. }) {
            return Ok(None);
        }
        let failed = row(None, None).failed(&error);
        told.wrong.get_or_insert(error);
        Ok(Some(failed))
    }

    fn performed(
        &mut self,
        theatre: &Theatre<'_>,
        schedule: &Schedule,
        job: &Job,
        way: Way,
        carrier: Option<Carrier>,
    ) -> Result<Option<Performed>, ExecuteError> {
        let Some(ranks) = &mut self.ranks else { return Ok(None) };
        let args = &theatre.ground.args.execution;
        let (rounds, seed) = theatre.checks(job);
        let effort = (!args.untimed).then(|| theatre.effort(job.header.layout.bytes()));
        let (shape, offset, streak) = (args.given_shape(), args.offset, args.streak);
        let turn = Turn { way, carrier, shape, offset, rounds, streak, seed, effort };
        ranks.perform(schedule, job.dtype, job.op, &turn).map(Some)
    }
}
