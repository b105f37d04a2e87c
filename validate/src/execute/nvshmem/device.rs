//! Executor that runs a schedule's steps in one kernel with NVSHMEM's device library. Every message is a put with a
//! signal by a thread block, and every wait is a wait for a signal. Each block handles a part of every step, so the
//! blocks of a rank do not wait for each other.

use std::sync::Arc;

use fabricast_topologies::Bytes;

use super::collectives::unsupported;
use super::heap::to_bytes;
use super::puts::ArenaLayout;
use super::rank::Rank;
use crate::cuda::{Arguments, DeviceAddress, DeviceMemory, Function, Launch, Module, Stream};
use crate::execute::{ExecuteError, Executor, Job};
use crate::kernel::{Alignment, COMBINE_THREADS, GridShape, Location, MAX_BLOCKS, Step, Steps, steps_text};
use crate::nvshmem::{PreparedModule, SymmetricMemory, compile_with_library};

/// The kernel of a rank with its memory.
#[derive(Debug)]
pub(super) struct RankKernel {
    function: Function,
    launch: Launch,
    arguments: Arguments,
    shape: GridShape,
    /// Keeps the memory of the kernel allocated.
    _prepared: PreparedModule,
    _arena: Arc<SymmetricMemory>,
    _rows: DeviceMemory,
}

/// Minimum bytes of a message per block. With fewer bytes, the cost of the additional signals exceeds the gain.
const BLOCK_BYTES: u64 = 16 << 10;

/// Number of 64-bit words of a row of the step table that `steps.cu` reads.
const ROW_WORDS: u64 = 6;

impl RankKernel {
    /// Compiles and links the kernel and allocates its memory, collectively with the other ranks.
    ///
    /// # Errors
    /// The device library or its linker is missing, memory is exhausted, or the blocks cannot all be co-resident.
    pub(super) fn new(
        rank: &mut Rank,
        job: &Job,
        steps: &Steps,
        shape: Option<GridShape>,
    ) -> Result<Self, ExecuteError> {
        let me = rank.number();
        let context = Arc::clone(&rank.context);
        if job.header.call.ranks > 64 {
            return Err(unsupported("sets of more than 64 ranks are not one word"));
        }
        let largest = steps.by_rank.iter().flatten().map(bytes).max().unwrap_or(0);
        let usual = (largest / BLOCK_BYTES).clamp(1, u64::from(MAX_BLOCKS)) as u32;
        let blocks = shape.map_or(usual, |shape| shape.split);
        let threads = shape.map_or(COMBINE_THREADS, |shape| shape.threads.min(COMBINE_THREADS));
        let layout = ArenaLayout::new(rank, job, steps, u64::from(blocks));
        let arena = rank.arena(layout.bytes)?;
        let base = arena.address();
        let rows = rows(&layout, job, steps, me, base, blocks);
        let is_aligned = rows.iter().all(|row| row[2..5].iter().all(|address| address.is_multiple_of(16)));
        let alignment = if is_aligned { Alignment::Vectors } else { Alignment::Bytes };
        let arch = context.device().arch()?;
        let text = steps_text(job.dtype, job.op, alignment, arch.number())?;
        let code = compile_with_library(&text, arch, rank.element.library().path())
            .map_err(|error| unsupported(&error.to_string()))?;
        let module = Module::load(&context, &code)?;
        let prepared = rank.element.prepare(&module)?;
        let function = module.function("run_kernel")?;
        let multiprocessors = context.device().attribute(crate::cuda::Attribute::Multiprocessors)?.unsigned_abs();
        let max_blocks = function.blocks_per_multiprocessor(threads, Bytes(0))? * multiprocessors;
        if blocks > max_blocks {
            return Err(ExecuteError::TooManyBlocks { blocks, threads, device: me, max: max_blocks });
        }
        let content: Vec<u64> = rows.iter().flatten().copied().collect();
        let memory = DeviceMemory::new(&context, Bytes((content.len() * 8) as u64))?;
        if !content.is_empty() {
            Stream::new(&context)?.upload(memory.all(), &to_bytes(&content))?;
        }
        let set = |ranks: Vec<usize>| ranks.into_iter().fold(0u64, |set, rank| set | 1 << rank);
        let plan = [
            memory.address().0,
            rows.len() as u64,
            base.0,
            base.plus(layout.ready).0,
            set(steps.senders(me)),
            set(steps.receivers(me)),
            me as u64,
        ];
        Ok(Self {
            function,
            launch: Launch::without_shared_memory(blocks, threads),
            arguments: Arguments::new().bytes(&to_bytes(&plan)),
            shape: GridShape { threads, split: blocks, unroll: 1, tiles_per_phase: 1 },
            _prepared: prepared,
            _arena: arena,
            _rows: memory,
        })
    }

    /// Shape of the grid: number of blocks and of threads per block. A thread moves one word at a time.
    pub(super) fn shape(&self) -> GridShape {
        self.shape
    }
}

fn bytes(step: &Step) -> u64 {
    match *step {
        Step::Send { bytes, .. }
        | Step::Await { bytes, .. }
        | Step::Copy { bytes, .. }
        | Step::Reduce { bytes, .. } => bytes.0,
    }
}

/// Rows of the step table that `steps.cu` reads, one per step: kind and peer, signal, left operand, right operand,
/// destination, bytes.
fn rows(
    layout: &ArenaLayout,
    job: &Job,
    steps: &Steps,
    me: usize,
    base: DeviceAddress,
    blocks: u32,
) -> Vec<[u64; ROW_WORDS as usize]> {
    let address = |spot: Location, peer: usize| layout.address(job, base, spot, peer).0;
    let signal = |message: u32| base.plus(layout.signals).0 + u64::from(message) * u64::from(blocks) * 8;
    let rank_steps = steps.by_rank.get(me).map(Vec::as_slice).unwrap_or_default();
    let row = |step: &Step| match *step {
        Step::Send { message, to, from, destination: at, bytes } => {
            [u64::from(to) << 32, signal(message), address(from, me), 0, address(at, to as usize), bytes.0]
        }
        Step::Await { message, bytes, .. } => [1, signal(message), 0, 0, 0, bytes.0],
        Step::Copy { from, to, bytes } => [2, 0, address(from, me), 0, address(to, me), bytes.0],
        Step::Reduce { left, right, to, bytes } => {
            [3, 0, address(left, me), address(right, me), address(to, me), bytes.0]
        }
    };
    rank_steps.iter().map(row).collect()
}

impl Executor for RankKernel {
    #[expect(unsafe_code, reason = "launches a kernel")]
    fn enqueue(&self, _: usize, stream: &Stream) -> Result<(), ExecuteError> {
        // SAFETY: the argument is that of `run_kernel` of steps.cu; the memory that it refers to is owned by `self`, by
        // the rank or by its peers, which outlive it in every caller here.
        Ok(unsafe { self.function.launch(stream, self.launch, &self.arguments) }?)
    }
}
