//! Contents of buffers and checks of results. Every check uses new small whole numbers, and outputs are filled with a
//! poison value first. Elements are numbered over the whole data of a call, in which the blocks of all ranks follow
//! each other ("the numbering of the call").

use std::sync::Arc;

use fabricast_sim::schedule::{Collective, ReduceOp};
use fabricast_topologies::Bytes;

use crate::cuda::{Arguments, Context, DeviceMemory, DeviceSlice, Function, Launch, Module, Stream, compile};
use crate::kernel::{BufferExtent, UserBuffer};

use super::codes::{Numbers, code};
use super::{Buffers, ExecuteError, Job};

const TEXT: &str = include_str!("contents.cu");

/// Number of 64-bit words that the GPU uses to record the errors of a rank (`wrong` in contents.cu).
const WORDS: usize = 7;

/// Size in bytes of the recorded errors of a rank.
const RECORD_BYTES: u64 = 8 * WORDS as u64;

/// Fill byte that is not the first byte of a small number in any data type.
const POISON: u8 = 0xab;

/// Fills and checks the buffers of the ranks on one GPU.
#[derive(Debug)]
pub struct Contents<'a> {
    job: &'a Job,
    buffers: &'a Buffers,
    fill: Function,
    check: Function,
    codes: DeviceMemory,
    /// Recorded errors of each rank of the call, [`WORDS`] words per rank.
    wrong: DeviceMemory,
    numbers: Numbers,
}

/// Errors found by the comparisons of a rank's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordedErrors {
    /// Lowest index of a wrong element in any comparison, in the numbering of the call.
    pub first: u64,
    /// Total number of wrong elements.
    pub count: u64,
    /// A wrong element of the first comparison that failed.
    pub example: WrongElement,
}

/// A wrong element of the first comparison that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WrongElement {
    /// Index, in the numbering of the call.
    pub index: u64,
    /// Bits of the wrong element.
    pub found: u64,
    /// Bits that the element should have.
    pub expected: u64,
    /// Seed of the contents that were compared.
    pub seed: u64,
}

/// Part of an expected result: its position, and the input from which it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ExpectedPart {
    /// First element, in the numbering of the call.
    start: u64,
    count: u64,
    /// Rank of the input. `None` for the reduction of all inputs.
    source: Option<u32>,
    /// First element of this part in the input, in the numbering of the call.
    first: u64,
}

/// Parts of the expected result of a rank.
fn expected(job: &Job, rank: u32) -> Vec<ExpectedPart> {
    let call = &job.header.call;
    let size = job.dtype.size().0;
    let (total, ranks) = (job.header.layout.bytes().0 / size, u64::from(call.ranks.max(1)));
    let block = total / ranks;
    let block_start = block * u64::from(rank);
    let entire_call = |source: Option<u32>| vec![ExpectedPart { start: 0, count: total, source, first: 0 }];
    let is_root = rank == call.root.0;
    match call.collective {
        Collective::AllReduce => entire_call(None),
        Collective::Reduce if is_root => entire_call(None),
        Collective::ReduceScatter => {
            vec![ExpectedPart { start: block_start, count: block, source: None, first: block_start }]
        }
        Collective::Broadcast => entire_call(Some(call.root.0)),
        Collective::SendRecv => entire_call(Some((rank + call.ranks - 1) % call.ranks)),
        Collective::Scatter => {
            vec![ExpectedPart { start: block_start, count: block, source: Some(call.root.0), first: block_start }]
        }
        Collective::AllGather | Collective::Gather if call.collective == Collective::AllGather || is_root => (0..call
            .ranks)
            .map(|from| (from, block * u64::from(from)))
            .map(|(from, at)| ExpectedPart { start: at, count: block, source: Some(from), first: at })
            .collect(),
        Collective::AllToAll => (0..call.ranks)
            .map(|from| ExpectedPart {
                start: block * u64::from(from),
                count: block,
                source: Some(from),
                first: block_start,
            })
            .collect(),
        Collective::AllToAllV => pair_blocks(job)
            .filter(|block| block.receiver == rank)
            .map(|PairBlock { first, sender, count, .. }| ExpectedPart {
                start: first,
                count,
                source: Some(sender),
                first,
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// Block of an all_to_allv.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PairBlock {
    /// First element, in the numbering of the call.
    first: u64,
    /// Number of elements.
    count: u64,
    /// Rank that sends the block.
    sender: u32,
    /// Rank that receives the block.
    receiver: u32,
}

/// Iterates over the blocks of an all_to_allv, by sender, then by receiver.
fn pair_blocks(job: &Job) -> impl Iterator<Item = PairBlock> {
    let (size, ranks) = (job.dtype.size().0, job.header.call.ranks.max(1));
    let mut offset = 0;
    job.header.layout.segments().iter().zip(0u32..).map(move |(segment, pair)| {
        let (first, count) = (offset, segment.bytes.0 / size);
        offset += count;
        PairBlock { first, count, sender: pair / ranks, receiver: pair % ranks }
    })
}

/// Elements of a rank's input: the first one, in the numbering of the call, and their number.
fn input_range(job: &Job, rank: u32) -> (u64, u64) {
    let call = &job.header.call;
    let total = job.header.layout.bytes().0 / job.dtype.size().0;
    let block = total / u64::from(call.ranks.max(1));
    match call.collective {
        Collective::AllGather | Collective::Gather => (block * u64::from(rank), block),
        Collective::Broadcast | Collective::Scatter if rank != call.root.0 => (0, 0),
        Collective::Barrier => (0, 0),
        _ => (0, total),
    }
}

impl<'a> Contents<'a> {
    /// Compiles the kernels for the ranks on a GPU, and uploads the table of element codes.
    ///
    /// # Errors
    /// NVRTC is missing, or a driver call fails.
    pub fn new(
        context: &Arc<Context>,
        stream: &Stream,
        job: &'a Job,
        buffers: &'a Buffers,
    ) -> Result<Self, ExecuteError> {
        let code_of = compile::compile(TEXT, context.device().arch()?, &["--std=c++17"])?;
        let module = Module::load(context, &code_of)?;
        let numbers = Numbers::for_reduction(job.dtype, job.op, job.header.call.ranks);
        let table: Vec<u8> =
            (0..=numbers.largest.max(numbers.range)).flat_map(|number| code(job.dtype, number).to_ne_bytes()).collect();
        let codes = DeviceMemory::new(context, Bytes(table.len() as u64))?;
        stream.upload(codes.all(), &table)?;
        let wrong = DeviceMemory::new(context, Bytes(RECORD_BYTES * u64::from(job.header.call.ranks)))?;
        Ok(Self {
            job,
            buffers,
            fill: module.function("fill")?,
            check: module.function("check")?,
            codes,
            wrong,
            numbers,
        })
    }

    fn rule(&self, seed: u64) -> Vec<u8> {
        let job = self.job;
        let op: u32 = match job.op {
            ReduceOp::Sum => 0,
            ReduceOp::Prod => 1,
            ReduceOp::Max => 2,
            ReduceOp::Min => 3,
        };
        let mut rule = seed.to_ne_bytes().to_vec();
        for word in [job.header.call.ranks, self.numbers.active, self.numbers.range, op] {
            rule.extend(word.to_ne_bytes());
        }
        rule
    }

    /// Fills a rank's input with the numbers of `seed`, and its output with the poison value.
    ///
    /// # Errors
    /// A driver call fails.
    #[expect(unsafe_code, reason = "launches a kernel")]
    pub fn prepare(&self, rank: usize, seed: u64, stream: &Stream) -> Result<(), ExecuteError> {
        let Self { job, buffers, .. } = *self;
        stream.fill(buffers.part(job, rank, UserBuffer::Output)?, POISON)?;
        let (first, count) = input_range(job, rank as u32);
        if count == 0 {
            return Ok(());
        }
        let size = job.dtype.size().0;
        let input = buffers.part(job, rank, UserBuffer::Input)?;
        let before = first * size - BufferExtent::new(&job.header, rank as u32, UserBuffer::Input).start;
        let arguments = Arguments::new()
            .pointer(input.address().plus(Bytes(before)))
            .u64(first)
            .u64(count)
            .u32(rank as u32)
            .bytes(&self.rule(seed))
            .pointer(self.codes.address())
            .u32(size as u32);
        // SAFETY: the arguments are those of `fill`; `count` elements from this address lie in the rank's input.
        Ok(unsafe { self.fill.launch(stream, Launch::without_shared_memory(264, 256), &arguments) }?)
    }

    /// Compares a rank's result with the one expected for `seed`, and waits for the comparison.
    ///
    /// # Errors
    /// [`ExecuteError::Wrong`], or a failing driver call.
    pub fn check(&self, rank: usize, seed: u64, stream: &Stream) -> Result<(), ExecuteError> {
        let Self { job, buffers, .. } = *self;
        self.clear_errors(stream)?;
        self.compare(rank, seed, stream)?;
        let Some(RecordedErrors { first: index, count, .. }) = self.wrong(rank, stream)? else { return Ok(()) };
        let size = job.dtype.size().0;
        let origin = BufferExtent::new(&job.header, rank as u32, UserBuffer::Output).start;
        let parts = expected(job, rank as u32);
        let mut actual = vec![0; size as usize];
        stream.download(&mut actual, buffers.element(rank, index * size - origin, size)?)?;
        actual.resize(8, 0);
        let number = parts
            .iter()
            .find(|part| (part.start..part.start + part.count).contains(&index))
            .map_or(0, |part| self.number(job, seed, part.source, part.first + index - part.start));
        let actual = u64::from_ne_bytes(std::array::from_fn(|i| actual[i]));
        Err(ExecuteError::Wrong { rank, index, count, found: actual, expected: code(job.dtype, number), number })
    }

    /// Clears the recorded errors of all ranks.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn clear_errors(&self, stream: &Stream) -> Result<(), ExecuteError> {
        let mut words = [0; WORDS];
        words[0] = u64::MAX;
        let clean: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let clean = clean.repeat(self.job.header.call.ranks as usize);
        Ok(stream.upload(self.wrong.all(), &clean)?)
    }

    /// Enqueues a comparison of a rank's result with the one expected for `seed`. Errors are recorded on the GPU until
    /// they are read.
    ///
    /// # Errors
    /// A driver call fails.
    #[expect(unsafe_code, reason = "launches a kernel")]
    pub fn compare(&self, rank: usize, seed: u64, stream: &Stream) -> Result<(), ExecuteError> {
        let Self { job, buffers, .. } = *self;
        let size = job.dtype.size().0;
        let output = buffers.part(job, rank, UserBuffer::Output)?;
        let origin = BufferExtent::new(&job.header, rank as u32, UserBuffer::Output).start;
        for part in expected(job, rank as u32).iter().filter(|part| part.count > 0) {
            let arguments = Arguments::new()
                .pointer(output.address().plus(Bytes(part.start * size - origin)))
                .u64(part.start)
                .u64(part.first)
                .u64(part.count)
                .u32(part.source.unwrap_or(u32::MAX))
                .bytes(&self.rule(seed))
                .pointer(self.codes.address())
                .u32(size as u32)
                .pointer(self.record(rank)?.address());
            // SAFETY: the arguments are those of `check`; `count` elements from this address lie in the rank's output.
            unsafe { self.check.launch(stream, Launch::without_shared_memory(264, 256), &arguments) }?;
        }
        Ok(())
    }

    /// Recorded errors of a rank.
    fn record(&self, rank: usize) -> Result<DeviceSlice<'_>, ExecuteError> {
        Ok(self.wrong.part(Bytes(RECORD_BYTES * rank as u64), Bytes(RECORD_BYTES))?)
    }

    /// Waits, and returns the errors of a rank recorded since the last [`Self::clear_errors`]; `None` if there are
    /// none.
    ///
    /// # Errors
    /// A driver call fails.
    pub(super) fn wrong(&self, rank: usize, stream: &Stream) -> Result<Option<RecordedErrors>, ExecuteError> {
        let mut result = [0; 8 * WORDS];
        stream.download(&mut result, self.record(rank)?)?;
        let [first, count, _, index, found, expected, seed]: [u64; WORDS] =
            std::array::from_fn(|word| u64::from_ne_bytes(std::array::from_fn(|byte| result[8 * word + byte])));
        let example = WrongElement { index, found, expected, seed };
        Ok((count > 0).then_some(RecordedErrors { first, count, example }))
    }

    /// Expected number of an element, computed as in contents.cu.
    fn number(&self, job: &Job, seed: u64, source: Option<u32>, index: u64) -> u32 {
        let contribution = |rank: u32| {
            let mut x = seed
                .wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))
                .wrapping_add(u64::from(rank).wrapping_mul(0xd1b5_4a32_d192_ed03));
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^= x >> 31;
            match job.op {
                ReduceOp::Prod if rank < self.numbers.active => 1 + (x & 1) as u32,
                ReduceOp::Prod => 1,
                ReduceOp::Sum if rank >= self.numbers.active => 0,
                _ => (x % u64::from(self.numbers.range)) as u32,
            }
        };
        let contributions = (0..job.header.call.ranks).map(contribution);
        match (source, job.op) {
            (Some(rank), _) => contribution(rank),
            (None, ReduceOp::Sum) => contributions.sum(),
            (None, ReduceOp::Prod) => contributions.product(),
            (None, ReduceOp::Max) => contributions.max().unwrap_or(0),
            (None, ReduceOp::Min) => contributions.min().unwrap_or(0),
        }
    }
}
