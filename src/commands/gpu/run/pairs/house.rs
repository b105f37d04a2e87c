//! Test bench for one number of ranks: memory, NCCL communicators and NVSHMEM processes.

use std::time::Duration;

use fabricast_topologies::Bytes;
use fabricast_validate::cuda::Watchdog;
use fabricast_validate::execute::nvshmem::{NvshmemRanks, Turn};
use fabricast_validate::execute::{
    Buffers, Calls, Choice, Copies, ExecuteError, Executor, Generated, Library, Stage, Wanted, check,
};
use fabricast_validate::kernel::{Carrier, Kernel};
use fabricast_validate::nccl::Nccl;
use rayon::prelude::*;

use super::super::libraries::forced;
use super::super::nvshmem;
use super::{Case, Way};
use crate::args::GpuRunArgs;
use crate::failure::Failure;

/// Numbers of calls before each check.
const ROUNDS: [u32; 2] = [1, 3];

pub(super) struct House {
    stage: Stage,
    buffers: Buffers,
    watchdog: Watchdog,
    patience: Duration,
    /// Communicators by variant.
    libraries: Vec<(Way, Library)>,
    /// Memory of symmetric windows, allocated by NCCL.
    windows: Option<Buffers>,
    nvshmem: Option<NvshmemRanks>,
}

impl House {
    /// Creates what the cases need.
    pub(super) fn new(stage: Stage, args: &GpuRunArgs, cases: &[&Case]) -> Result<Self, Failure> {
        let watchdog = Watchdog::new(Duration::from_secs(args.execution.patience));
        let most = cases.iter().map(|case| case.job.header.layout.bytes()).max().unwrap_or_default();
        let buffers = Buffers::new(&stage, most, Bytes(0)).map_err(ExecuteError::from)?;
        let nvshmem = match cases.iter().any(|case| matches!(case.way, Way::Nvshmem(_))) {
            true => Some(nvshmem::processes(&args.execution, &stage, most)?),
            false => None,
        };
        let patience = Duration::from_secs(args.execution.patience) / 4;
        let mut house = Self { stage, buffers, watchdog, patience, libraries: Vec::new(), windows: None, nvshmem };
        let mut ways: Vec<Way> = Vec::new();
        for case in cases {
            if !ways.contains(&case.way) {
                ways.push(case.way);
            }
        }
        for way in ways {
            house.open(way, args, most)?;
        }
        Ok(house)
    }

    /// Creates the NCCL communicator of a variant, if it uses NCCL.
    fn open(&mut self, way: Way, args: &GpuRunArgs, most: Bytes) -> Result<(), ExecuteError> {
        let nccl = || Nccl::open(args.execution.nccl.as_deref());
        let library = match way {
            Way::Kernels(_) | Way::Copies | Way::Nvshmem(_) => return Ok(()),
            Way::Nccl => Library::new(&self.stage, &nccl()?, Choice::Own, &self.watchdog)?,
            Way::NcclSymmetric => {
                let nccl = nccl()?;
                let memory = Buffers::for_windows(&self.stage, &nccl, most, Bytes(0))?;
                let library = Library::new(&self.stage, &nccl, Choice::Windows(&memory), &self.watchdog)?;
                self.windows = Some(memory);
                library
            }
            Way::NcclForced(..) => {
                let Some(forced) = way.strategy().and_then(forced) else { return Ok(()) };
                Library::new(&self.stage, &nccl()?, Choice::Forced(&forced), &self.watchdog)?
            }
        };
        self.libraries.push((way, library));
        Ok(())
    }

    fn wanted(&self) -> Wanted {
        Wanted { shape: None, calls: Calls::Overlap, patience: self.patience }
    }

    /// Compiles all kernels, on all cores.
    pub(super) fn compile(&self, cases: &[&Case]) -> Result<(), ExecuteError> {
        let (stage, buffers, wanted) = (&self.stage, &self.buffers, self.wanted());
        cases.par_iter().try_for_each(|case| {
            let Way::Kernels(carrier) = case.way else { return Ok(()) };
            let Ok(kernel) = Kernel::new(&case.schedule, case.job.dtype, carrier) else { return Ok(()) };
            Generated::compile_ahead(stage, &buffers.beginning(case.offset), &case.job, &kernel, wanted)
        })
    }

    /// Runs a case and checks its results.
    pub(super) fn perform(&mut self, case: &Case) -> Result<(), ExecuteError> {
        let job = &case.job;
        if let (Way::Nvshmem(way), Some(ranks)) = (case.way, &mut self.nvshmem) {
            let turn = Turn {
                way,
                carrier: None,
                shape: None,
                offset: case.offset,
                rounds: ROUNDS.to_vec(),
                streak: 0,
                seed: case.elements,
                effort: None,
            };
            return ranks.perform(&case.schedule, job.dtype, job.op, &turn).map(|_| ());
        }
        let buffers = self.buffers.beginning(case.offset);
        let checked = |buffers: &Buffers, executor: &dyn Executor| {
            check(&self.stage, buffers, job, executor, &self.watchdog, &ROUNDS, case.elements)
        };
        let library = self.libraries.iter().find(|(way, _)| *way == case.way).map(|(_, library)| library);
        match (case.way, library, &self.windows) {
            (Way::Kernels(carrier), ..) => {
                let kernel = Kernel::new(&case.schedule, job.dtype, carrier)?;
                checked(&buffers, &Generated::new(&self.stage, &buffers, job, kernel, self.wanted())?)
            }
            (Way::Copies, ..) => {
                let kernel = Kernel::new(&case.schedule, job.dtype, Carrier::Flags)?;
                checked(&buffers, &Copies::new(&self.stage, &buffers, job, &kernel)?)
            }
            (Way::NcclSymmetric, Some(library), Some(memory)) => {
                let memory = memory.beginning(case.offset);
                checked(&memory, &library.of(&memory, job)?)
            }
            (_, Some(library), _) => checked(&buffers, &library.of(&buffers, job)?),
            (_, None, _) => Ok(()),
        }
    }
}
