//! Executor for kernels generated from a schedule.

use std::time::Duration;

use fabricast_topologies::Bytes;

use crate::cuda::{
    Arguments, Attribute, CudaError, DeviceMemory, Function, HostMemory, Launch, LaunchMode, Module, Stream, compile,
};
use crate::kernel::{Devices, GridShape, Kernel, MAX_BLOCKS, WaitMonitor};

use super::{Buffers, ExecuteError, Executor, Job, Testbed};

/// Settings of a kernel that its schedule does not determine.
#[derive(Clone, Copy, Debug)]
pub struct KernelOptions {
    /// Blocks per channel, threads per block and words per thread; `None` for the shape that was fastest in
    /// measurements.
    pub shape: Option<GridShape>,
    /// Order of consecutive calls: overlapping or sequential.
    pub calls: CallOrder,
    /// Time limit of each wait of a thread block.
    pub time_limit: Duration,
}

/// Order of consecutive calls on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOrder {
    /// The next call is launched while the previous one runs, and begins when the previous one is complete. Requires
    /// compute capability 9.0; on older GPUs this is [`Self::Sequential`].
    Overlap,
    /// Each call is launched after the previous one is complete.
    Sequential,
}

/// A kernel loaded on every GPU of a run, with its memory.
#[derive(Debug)]
pub struct GeneratedExecutor {
    kernel: Kernel,
    shape: GridShape,
    members: Vec<LoadedKernel>,
    records: Vec<HostMemory>,
    /// Keeps the memory of the kernels allocated.
    _memory: Vec<DeviceMemory>,
    _buffers: Buffers,
}

#[derive(Debug)]
struct LoadedKernel {
    function: Function,
    launch: Launch,
    arguments: Arguments,
}

/// Options of NVRTC for every kernel.
pub const KERNEL_OPTIONS: [&str; 1] = ["--std=c++17"];

impl GeneratedExecutor {
    /// Compiles the code for [`GeneratedExecutor::new`] and stores it in the cache.
    ///
    /// # Errors
    /// [`ExecuteError`] if the kernel does not compile.
    pub fn precompile(
        testbed: &Testbed,
        buffers: &Buffers,
        job: &Job,
        kernel: &Kernel,
        options: KernelOptions,
    ) -> Result<(), ExecuteError> {
        let shape = options.shape.unwrap_or(kernel.shape(max_blocks(testbed)?));
        let variant = shape.variant(kernel.blocks(shape), kernel.alignment(&buffers.addresses(job)), testbed.devices());
        for context in testbed.contexts() {
            let arch = context.device().arch()?;
            compile::compile(&kernel.text(job.op, variant, arch.number())?, arch, &KERNEL_OPTIONS)?;
        }
        Ok(())
    }

    /// Compiles a kernel and allocates its memory.
    ///
    /// # Errors
    /// [`ExecuteError`] if the kernel does not compile, memory is exhausted, or its blocks cannot all be co-resident.
    pub fn new(
        testbed: &Testbed,
        buffers: &Buffers,
        job: &Job,
        kernel: Kernel,
        options: KernelOptions,
    ) -> Result<Self, ExecuteError> {
        let multiprocessors = testbed.contexts()[0].device().attribute(Attribute::Multiprocessors)?.unsigned_abs();
        let shape = options.shape.unwrap_or(kernel.shape(max_blocks(testbed)?));
        let arena = kernel.arena(shape);
        let ranks = testbed.ranks() as usize;
        let blocks = kernel.blocks(shape);
        let mut addresses = buffers.addresses(job);
        let (mut memory, mut records) = (Vec::new(), Vec::new());
        for (rank, address) in addresses.iter_mut().enumerate() {
            let context = testbed.rank_context(rank);
            let arena_memory = DeviceMemory::new(context, Bytes(arena.bytes))?;
            let stream = Stream::new(context)?;
            stream.fill(arena_memory.all(), 0)?;
            stream.synchronize()?;
            address.arena = arena_memory.address().0;
            memory.push(arena_memory);
            records.push(HostMemory::new(context, Bytes(u64::from(blocks) * 16))?);
        }
        let variant = shape.variant(blocks, kernel.alignment(&addresses), testbed.devices());
        let mut parameters = Vec::with_capacity(ranks);
        for (rank, record) in records.iter().enumerate() {
            let context = testbed.rank_context(rank);
            let mut watch = WaitMonitor {
                records: record.address().0,
                time_limit_ns: options.time_limit.as_nanos() as u64,
                table: 0,
            };
            if kernel.table_entries() > 0 {
                let table = DeviceMemory::new(context, Bytes(kernel.table_entries() * 8))?;
                watch.table = table.address().0;
                let (all, content) = kernel.parameters(rank as u32, shape, &addresses, watch);
                let mut content = bytes(&content.unwrap_or_default());
                content.resize(table.length().0 as usize, 0);
                Stream::new(context)?.upload(table.all(), &content)?;
                memory.push(table);
                parameters.push(all);
            } else {
                parameters.push(kernel.parameters(rank as u32, shape, &addresses, watch).0);
            }
        }
        let mut members = Vec::new();
        for (member, context) in testbed.contexts().iter().enumerate() {
            let arch = context.device().arch()?;
            let text = kernel.text(job.op, variant, arch.number())?;
            let module = Module::load(context, &compile::compile(&text, arch, &KERNEL_OPTIONS)?)?;
            let function = module.function("run_kernel")?;
            let member_ranks: Vec<usize> = testbed.member_ranks(member).collect();
            let all_blocks = blocks * member_ranks.len() as u32;
            let max_blocks = function.blocks_per_multiprocessor(shape.threads, Bytes(0))? * multiprocessors;
            if all_blocks > max_blocks {
                let (device, threads) = (context.ordinal(), shape.threads);
                return Err(ExecuteError::TooManyBlocks { blocks: all_blocks, threads, device, max: max_blocks });
            }
            let mode = match options.calls {
                _ if member_ranks.len() > 1 => LaunchMode::Cooperative,
                CallOrder::Overlap if arch.number() >= 90 => LaunchMode::Overlapping,
                CallOrder::Overlap | CallOrder::Sequential => LaunchMode::Plain,
            };
            let launch = Launch { mode, ..Launch::without_shared_memory(all_blocks, shape.threads) };
            let arguments = match testbed.devices() {
                Devices::Own => Arguments::new().bytes(&bytes(&parameters[member])),
                Devices::Shared => {
                    let all: Vec<u64> = parameters.iter().flatten().copied().collect();
                    let table = DeviceMemory::new(context, Bytes(all.len() as u64 * 8))?;
                    Stream::new(context)?.upload(table.all(), &bytes(&all))?;
                    let address = table.address();
                    memory.push(table);
                    Arguments::new().pointer(address).u32(blocks)
                }
            };
            members.push(LoadedKernel { function, launch, arguments });
        }
        Ok(Self { kernel, shape, members, records, _memory: memory, _buffers: buffers.clone() })
    }

    /// Shape of the grid: blocks per channel, threads per block and words per thread.
    #[must_use]
    pub fn shape(&self) -> GridShape {
        self.shape
    }

    /// Kernel that the executor runs.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Number of registers per thread of the compiled kernel.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn registers(&self) -> Result<u32, CudaError> {
        self.members.first().map_or(Ok(0), |member| member.function.registers())
    }
}

/// Maximum number of blocks per rank. Ranks that share a GPU have equal shares of its multiprocessors.
fn max_blocks(testbed: &Testbed) -> Result<u32, CudaError> {
    let multiprocessors = testbed.contexts()[0].device().attribute(Attribute::Multiprocessors)?.unsigned_abs();
    Ok(match testbed.devices() {
        Devices::Own => MAX_BLOCKS.min(multiprocessors),
        Devices::Shared => (multiprocessors / testbed.ranks().max(1)).max(1),
    })
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

impl Executor for GeneratedExecutor {
    #[expect(unsafe_code, reason = "launches a kernel")]
    fn enqueue(&self, member: usize, stream: &Stream) -> Result<(), ExecuteError> {
        let LoadedKernel { function, launch, arguments } = &self.members[member];
        // SAFETY: the arguments are those of the generated kernel, and `self` owns all memory that they refer to.
        // Freeing it waits for the streams of its own GPU; members wait for the streams of peers before the executor is
        // dropped.
        Ok(unsafe { function.launch(stream, *launch, arguments) }?)
    }

    fn waiting(&self, member: usize) -> String {
        // One member runs all ranks that share a GPU.
        match self.records.len() {
            ranks if ranks > self.members.len() => format!("ranks 0 to {}", ranks - 1),
            _ => format!("rank {member}"),
        }
    }

    fn timed_out_waits(&self) -> Vec<String> {
        let mut lost: Vec<(usize, String, String, u32)> = Vec::new();
        for (rank, record) in self.records.iter().enumerate() {
            for block in 0..self.kernel.blocks(self.shape) {
                let word = |i: u64| record.load(Bytes(u64::from(block) * 16 + 4 * i)).unwrap_or(0);
                if word(0) == 0 {
                    continue;
                }
                let description = self.kernel.describe_wait(rank as u32, word(2));
                match lost.iter_mut().find(|wait| wait.0 == rank && wait.1 == description) {
                    Some(wait) => wait.3 += 1,
                    None => {
                        let (channel, part) = (block / self.shape.split, block % self.shape.split);
                        lost.push((rank, description, format!("channel {channel}.{part}, tile {}", word(3)), 0));
                    }
                }
            }
        }
        let describe = |(rank, description, location, more): (usize, String, String, u32)| match more {
            0 => format!("rank {rank} ({location}) {description}"),
            _ => format!("rank {rank} ({location} and {more} more blocks) {description}"),
        };
        lost.into_iter().map(describe).collect()
    }
}
