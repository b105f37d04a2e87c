//! CUDA kernels generated from schedules, for programs that compile and launch them.

use fabricast_sim::schedule::{DataType, ReduceOp, Schedule};
use fabricast_validate::cuda::Arch;
use fabricast_validate::cuda::compile::compile;
use fabricast_validate::execute::{ExecuteError, KERNEL_OPTIONS};
use fabricast_validate::kernel::{
    Addresses, Alignment, Carrier, Devices, GridShape, Kernel, KernelError, KernelParameter, MAX_BLOCKS, SharedArena,
    WaitMonitor,
};

use super::{CommandAnswer, RequestError};
use crate::failure::Failure;

/// Call and GPU for which a kernel is generated.
#[derive(Clone, Debug)]
pub struct KernelTarget {
    /// Element type by its name in nccl-tests, for example `f32` or `bf16`.
    pub dtype: String,
    /// Reduction: `sum`, `prod`, `max` or `min`.
    pub op: String,
    /// Number of multiprocessors of the GPU.
    pub multiprocessors: u32,
    /// Compute capability of the GPU × 10.
    pub capability: u32,
}

/// Kernel of a schedule with its launch configuration. All ranks run the same kernel with different parameters.
#[derive(Clone, Debug)]
pub struct ScheduleKernel {
    kernel: Kernel,
    shape: GridShape,
    op: ReduceOp,
    capability: u32,
}

impl ScheduleKernel {
    pub(super) fn new(schedule: &Schedule, target: &KernelTarget) -> Result<Self, Failure> {
        let dtype: DataType = target.dtype.parse().map_err(|error| Failure::input(format!("{error}")))?;
        let op: ReduceOp = target.op.parse().map_err(|error| Failure::input(format!("{error}")))?;
        let header = schedule.header();
        let carrier = Carrier::for_schedule(header)
            .ok_or_else(|| Failure::input(format!("thread blocks do not run protocol {}", header.protocol)))?;
        let mut kernel = Kernel::new(schedule, dtype, carrier).map_err(failure)?;
        kernel.wait_for_all_ranks();
        let shape = kernel.shape(MAX_BLOCKS.min(target.multiprocessors));
        Ok(Self { kernel, shape, op, capability: target.capability })
    }

    /// CUDA source for an alignment of the addresses of all parameters [`KernelParameter::Input`] and
    /// [`KernelParameter::Output`]. The kernel is called `run_kernel` and has one argument, the parameters by value.
    ///
    /// # Errors
    /// [`RequestError`]: the GPU cannot reduce the element type.
    pub fn source(&self, alignment: Alignment) -> Result<String, RequestError> {
        let variant = self.shape.variant(self.blocks(), alignment, Devices::Own);
        let text = self.kernel.text(self.op, variant, self.capability);
        text.map_err(|error| RequestError::new(&failure(error), CommandAnswer::default()))
    }

    /// Machine code for the GPU, compiled by NVRTC or from the cache of compiled kernels. `alignment` as for
    /// [`Self::source`].
    ///
    /// # Errors
    /// [`RequestError`]: the GPU cannot reduce the element type, or NVRTC is missing.
    pub fn compile(&self, alignment: Alignment) -> Result<Vec<u8>, RequestError> {
        let source = self.source(alignment)?;
        let compiled = compile(&source, Arch::new(self.capability), &KERNEL_OPTIONS);
        let code = compiled.map_err(ExecuteError::from);
        code.map(|code| code.image().to_vec())
            .map_err(|error| RequestError::new(&error.into(), CommandAnswer::default()))
    }

    /// Number of thread blocks. All of them must be able to run at the same time.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.kernel.blocks(self.shape)
    }

    /// Number of threads per block.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.shape.threads
    }

    /// Message format: `packets`, `lines` or `flags`.
    #[must_use]
    pub fn carrier(&self) -> &'static str {
        self.kernel.carrier().name()
    }

    /// Returns true if any rank writes to the output of another. Otherwise only a rank itself accesses its input and its
    /// output.
    #[must_use]
    pub fn writes_peer_outputs(&self) -> bool {
        self.kernel.writes_peer_outputs()
    }

    /// Parameters of a rank on a shared arena. `None` if the kernel reads its operands from memory.
    ///
    /// # Errors
    /// [`RequestError`]: the arena has too little space.
    pub fn parameters(&self, rank: u32, arena: &SharedArena) -> Result<Option<KernelParameters>, RequestError> {
        let layout = self.kernel.arena_in(arena, self.shape);
        let layout = layout.map_err(|error| RequestError::new(&failure(error), CommandAnswer::default()))?;
        let (parameters, table) = self.kernel.unresolved_parameters(rank, self.shape, &layout);
        Ok(table.is_none().then_some(KernelParameters { parameters }))
    }
}

/// Parameters of a rank's kernel before the addresses of its buffers are known.
#[derive(Clone, Debug)]
pub struct KernelParameters {
    parameters: Vec<KernelParameter>,
}

impl KernelParameters {
    /// Returns true if all chunks of the buffers begin at multiples of 16 bytes.
    #[must_use]
    pub fn is_aligned(&self, addresses: &[Addresses]) -> bool {
        let buffers = |parameter: &&KernelParameter| {
            matches!(parameter, KernelParameter::Input { .. } | KernelParameter::Output { .. })
        };
        let watch = WaitMonitor::default();
        self.parameters.iter().filter(buffers).all(|parameter| parameter.value(addresses, watch).is_multiple_of(16))
    }

    /// Returns the argument of the kernel.
    #[must_use]
    pub fn resolve(&self, addresses: &[Addresses], watch: WaitMonitor) -> Vec<u8> {
        self.parameters.iter().flat_map(|parameter| parameter.value(addresses, watch).to_ne_bytes()).collect()
    }
}

fn failure(error: KernelError) -> Failure {
    ExecuteError::from(error).into()
}
