//! Test bench for one number of ranks: memory, NCCL communicators and NVSHMEM processes.

use std::time::Duration;

use fabricast_topologies::Bytes;
use fabricast_validate::cuda::Watchdog;
use fabricast_validate::execute::nvshmem::{NvshmemRanks, RunRequest};
use fabricast_validate::execute::{
    Buffers, CallOrder, Copies, ExecuteError, Executor, GeneratedExecutor, KernelOptions, NcclChoice,
    NcclCommunicators, Testbed, check,
};
use fabricast_validate::kernel::{Carrier, Kernel};
use fabricast_validate::nccl::Nccl;
use rayon::prelude::*;

use super::super::libraries::forced;
use super::super::nvshmem;
use super::{ExecutorCase, ExecutorVariant};
use crate::args::GpuRunArgs;
use crate::failure::Failure;

/// Numbers of calls before the first and before the second check.
const ROUNDS: [u32; 2] = [1, 3];

pub(super) struct PairsTestbed {
    contexts: Testbed,
    buffers: Buffers,
    watchdog: Watchdog,
    patience: Duration,
    /// NCCL communicators of all ranks, by variant.
    libraries: Vec<(ExecutorVariant, NcclCommunicators)>,
    /// Memory of symmetric windows, allocated by NCCL.
    windows: Option<Buffers>,
    nvshmem: Option<NvshmemRanks>,
}

impl PairsTestbed {
    /// Creates the buffers, NCCL communicators and NVSHMEM processes that the cases need.
    pub(super) fn new(contexts: Testbed, args: &GpuRunArgs, cases: &[&ExecutorCase]) -> Result<Self, Failure> {
        let watchdog = Watchdog::new(Duration::from_secs(args.execution.patience));
        let max_bytes = cases.iter().map(|case| case.job.header.layout.bytes()).max().unwrap_or_default();
        let buffers = Buffers::new(&contexts, max_bytes, Bytes(0)).map_err(ExecuteError::from)?;
        let nvshmem = match cases.iter().any(|case| matches!(case.variant, ExecutorVariant::Nvshmem(_))) {
            true => Some(nvshmem::processes(&args.execution, &contexts, max_bytes)?),
            false => None,
        };
        let patience = Duration::from_secs(args.execution.patience) / 4;
        let mut testbed = Self { contexts, buffers, watchdog, patience, libraries: Vec::new(), windows: None, nvshmem };
        let mut variants: Vec<ExecutorVariant> = Vec::new();
        for case in cases {
            if !variants.contains(&case.variant) {
                variants.push(case.variant);
            }
        }
        for variant in variants {
            testbed.open(variant, args, max_bytes)?;
        }
        Ok(testbed)
    }

    /// Creates the NCCL communicator of a variant, if it uses NCCL.
    fn open(&mut self, variant: ExecutorVariant, args: &GpuRunArgs, max_bytes: Bytes) -> Result<(), ExecuteError> {
        let nccl = || Nccl::open(args.execution.nccl.as_deref());
        let library = match variant {
            ExecutorVariant::Kernels(_) | ExecutorVariant::Copies | ExecutorVariant::Nvshmem(_) => return Ok(()),
            ExecutorVariant::Nccl => NcclCommunicators::new(&self.contexts, &nccl()?, NcclChoice::Own, &self.watchdog)?,
            ExecutorVariant::NcclSymmetric => {
                let nccl = nccl()?;
                let memory = Buffers::for_windows(&self.contexts, &nccl, max_bytes, Bytes(0))?;
                let library =
                    NcclCommunicators::new(&self.contexts, &nccl, NcclChoice::Windows(&memory), &self.watchdog)?;
                self.windows = Some(memory);
                library
            }
            ExecutorVariant::NcclForced(..) => {
                let Some(forced) = variant.strategy().and_then(forced) else { return Ok(()) };
                NcclCommunicators::new(&self.contexts, &nccl()?, NcclChoice::Forced(&forced), &self.watchdog)?
            }
        };
        self.libraries.push((variant, library));
        Ok(())
    }

    fn kernel_options(&self) -> KernelOptions {
        KernelOptions { shape: None, calls: CallOrder::Overlap, time_limit: self.patience }
    }

    /// Compiles the kernels of all cases in parallel.
    pub(super) fn compile(&self, cases: &[&ExecutorCase]) -> Result<(), ExecuteError> {
        let (contexts, buffers, options) = (&self.contexts, &self.buffers, self.kernel_options());
        cases.par_iter().try_for_each(|case| {
            let ExecutorVariant::Kernels(carrier) = case.variant else { return Ok(()) };
            let Ok(kernel) = Kernel::new(&case.schedule, case.job.dtype, carrier) else { return Ok(()) };
            GeneratedExecutor::precompile(contexts, &buffers.with_offset(case.offset), &case.job, &kernel, options)
        })
    }

    /// Runs a case and checks its results.
    pub(super) fn run(&mut self, case: &ExecutorCase) -> Result<(), ExecuteError> {
        let job = &case.job;
        if let (ExecutorVariant::Nvshmem(method), Some(ranks)) = (case.variant, &mut self.nvshmem) {
            let request = RunRequest {
                method,
                carrier: None,
                shape: None,
                offset: case.offset,
                rounds: ROUNDS.to_vec(),
                series_calls: 0,
                seed: case.elements,
                effort: None,
            };
            return ranks.run(&case.schedule, job.dtype, job.op, &request).map(|_| ());
        }
        let buffers = self.buffers.with_offset(case.offset);
        let run_check = |buffers: &Buffers, executor: &dyn Executor| {
            check(&self.contexts, buffers, job, executor, &self.watchdog, &ROUNDS, case.elements)
        };
        let library = self.libraries.iter().find(|(variant, _)| *variant == case.variant).map(|(_, library)| library);
        match (case.variant, library, &self.windows) {
            (ExecutorVariant::Kernels(carrier), ..) => {
                let kernel = Kernel::new(&case.schedule, job.dtype, carrier)?;
                run_check(
                    &buffers,
                    &GeneratedExecutor::new(&self.contexts, &buffers, job, kernel, self.kernel_options())?,
                )
            }
            (ExecutorVariant::Copies, ..) => {
                let kernel = Kernel::new(&case.schedule, job.dtype, Carrier::Flags)?;
                run_check(&buffers, &Copies::new(&self.contexts, &buffers, job, &kernel)?)
            }
            (ExecutorVariant::NcclSymmetric, Some(library), Some(memory)) => {
                let memory = memory.with_offset(case.offset);
                run_check(&memory, &library.executor(&memory, job)?)
            }
            (_, Some(library), _) => run_check(&buffers, &library.executor(&buffers, job)?),
            (variant, None, _) => {
                let reason = format!("{} has no communicator or processes", variant.name());
                Err(ExecuteError::Unsupported { executor: "the test bench", reason })
            }
        }
    }
}
