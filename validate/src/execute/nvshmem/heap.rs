//! Executor that runs generated kernels, without changes, on NVSHMEM's symmetric heap. Each rank accesses the memory of
//! others through addresses from `nvshmem_ptr`.

use std::sync::Arc;

use fabricast_topologies::Bytes;

use super::rank::Rank;
use crate::cuda::{Arguments, Attribute, DeviceMemory, Function, HostMemory, Launch, Module, Stream, compile};
use crate::execute::{Buffers, ExecuteError, Executor, Job};
use crate::kernel::{Devices, GridShape, Kernel, MAX_BLOCKS, WaitMonitor};
use crate::nvshmem::SymmetricMemory;

/// The kernel of a rank with its memory.
#[derive(Debug)]
pub(super) struct Heap {
    kernel: Kernel,
    shape: GridShape,
    rank: usize,
    function: Function,
    launch: Launch,
    arguments: Arguments,
    records: HostMemory,
    /// Keeps the memory of the kernel allocated.
    _arena: Arc<SymmetricMemory>,
    _table: Option<DeviceMemory>,
    _buffers: Buffers,
}

pub(super) fn to_bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

impl Heap {
    /// Compiles the kernel and allocates its memory, collectively with the other ranks.
    ///
    /// # Errors
    /// The kernel does not compile, memory is exhausted, or its blocks cannot all be co-resident.
    pub(super) fn new(
        rank: &mut Rank,
        job: &Job,
        kernel: Kernel,
        shape: Option<GridShape>,
    ) -> Result<Self, ExecuteError> {
        let context = Arc::clone(&rank.context);
        let me = rank.number();
        let multiprocessors = context.device().attribute(Attribute::Multiprocessors)?.unsigned_abs();
        let shape = shape.unwrap_or_else(|| kernel.shape(MAX_BLOCKS.min(multiprocessors)));
        let blocks = kernel.blocks(shape);
        let arena = rank.arena(Bytes(kernel.arena(shape).bytes))?;
        let mut addresses = rank.buffers.addresses(job);
        for (peer, address) in addresses.iter_mut().enumerate() {
            address.arena = if peer == me { arena.address().0 } else { arena.peer_address(peer)?.0 };
        }
        let records = HostMemory::new(&context, Bytes(u64::from(blocks) * 16))?;
        let mut watch = WaitMonitor {
            records: records.address().0,
            time_limit_ns: (rank.patience / 4).as_nanos() as u64,
            table: 0,
        };
        let mut memory = None;
        if kernel.table_entries() > 0 {
            let table = DeviceMemory::new(&context, Bytes(kernel.table_entries() * 8))?;
            watch.table = table.address().0;
            memory = Some(table);
        }
        let (parameters, table) = kernel.parameters(me as u32, shape, &addresses, watch);
        if let (Some(memory), Some(table)) = (&memory, table) {
            let mut content = to_bytes(&table);
            content.resize(memory.length().0 as usize, 0);
            Stream::new(&context)?.upload(memory.all(), &content)?;
        }
        let arch = context.device().arch()?;
        let variant = shape.variant(blocks, kernel.alignment(&addresses), Devices::Own);
        let text = kernel.text(job.op, variant, arch.number())?;
        let module = Module::load(&context, &compile::compile(&text, arch, &["--std=c++17"])?)?;
        let function = module.function("run_kernel")?;
        let max_blocks = function.blocks_per_multiprocessor(shape.threads, Bytes(0))? * multiprocessors;
        if blocks > max_blocks {
            return Err(ExecuteError::TooManyBlocks { blocks, threads: shape.threads, device: me, max: max_blocks });
        }
        let launch = Launch::without_shared_memory(blocks, shape.threads);
        let arguments = Arguments::new().bytes(&to_bytes(&parameters));
        Ok(Self {
            kernel,
            shape,
            rank: me,
            function,
            launch,
            arguments,
            records,
            _arena: arena,
            _table: memory,
            _buffers: rank.buffers.clone(),
        })
    }

    /// Shape of the grid: blocks per channel, threads per block and words per thread.
    pub(super) fn shape(&self) -> GridShape {
        self.shape
    }
}

impl Executor for Heap {
    #[expect(unsafe_code, reason = "launches a kernel")]
    fn enqueue(&self, _: usize, stream: &Stream) -> Result<(), ExecuteError> {
        // SAFETY: the arguments are those of the generated kernel, and `self` owns all memory of this process that they
        // refer to. Memory of peers lies in NVSHMEM's heap, which all ranks free collectively.
        Ok(unsafe { self.function.launch(stream, self.launch, &self.arguments) }?)
    }

    fn timed_out_waits(&self) -> Vec<String> {
        let mut lost = Vec::new();
        for block in 0..self.kernel.blocks(self.shape) {
            let word = |i: u64| self.records.load(Bytes(u64::from(block) * 16 + 4 * i)).unwrap_or(0);
            if word(0) != 0 {
                let description = self.kernel.describe_wait(self.rank as u32, word(2));
                let (channel, part) = (block / self.shape.split, block % self.shape.split);
                lost.push(format!("rank {}, channel {channel}.{part}, tile {}: {description}", self.rank, word(3)));
            }
        }
        lost
    }
}
