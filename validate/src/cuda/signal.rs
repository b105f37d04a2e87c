//! Memory words that streams write and wait for. Copy engines use them to signal the arrival of data.
#![expect(unsafe_code, reason = "driver calls")]

use cudarc::driver::sys::{self, CUstreamBatchMemOpParams, CUstreamBatchMemOpType as Operation};
use cudarc::driver::sys::{
    CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st as WaitParameters,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 as WaitValue,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as WriteParameters,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as WriteValue,
    CUstreamWaitValue_flags_enum as WaitFlags,
};
use fabricast_topologies::Bytes;

use super::error::CudaError;
use super::memory::DeviceSlice;
use super::stream::Stream;

/// Condition that a stream waits for: a comparison of a 32-bit word in memory with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitCondition {
    /// The word is at least the value, with wrap-around: (word − value) as a signed number is not negative.
    AtLeast,
    /// The word is equal to the value.
    Equal,
}

impl WaitCondition {
    fn flags(self) -> u32 {
        (match self {
            Self::AtLeast => WaitFlags::CU_STREAM_WAIT_VALUE_GEQ,
            Self::Equal => WaitFlags::CU_STREAM_WAIT_VALUE_EQ,
        }) as u32
    }
}

/// Operation of a stream on a 32-bit word.
#[derive(Clone, Copy, Debug)]
pub enum WordOperation<'a> {
    /// Writes a value to the word. See [`Stream::write_word`].
    Write(DeviceSlice<'a>, u32),
    /// Waits until the word satisfies a condition on a value. See [`Stream::wait_word`].
    Wait(DeviceSlice<'a>, u32, WaitCondition),
}

impl Stream {
    /// Enqueues writes of words and waits for words, in order, as one batch. In a graph, the batch is a single node and
    /// has the cost of one operation.
    ///
    /// # Errors
    /// A range of less than four bytes, or a failing driver call.
    pub fn enqueue_word_operations(&self, steps: &[WordOperation<'_>]) -> Result<(), CudaError> {
        let mut operations = Vec::with_capacity(steps.len());
        for step in steps {
            operations.push(match *step {
                WordOperation::Write(slice, value) => {
                    word(slice)?;
                    let (operation, address) = (Operation::CU_STREAM_MEM_OP_WRITE_VALUE_32, slice.address().0);
                    let value = WriteValue { value };
                    let write = WriteParameters { operation, address, __bindgen_anon_1: value, flags: 0, alias: 0 };
                    CUstreamBatchMemOpParams { writeValue: write }
                }
                WordOperation::Wait(slice, value, until) => {
                    word(slice)?;
                    let (operation, address) = (Operation::CU_STREAM_MEM_OP_WAIT_VALUE_32, slice.address().0);
                    let (value, flags) = (WaitValue { value }, until.flags());
                    let wait = WaitParameters { operation, address, __bindgen_anon_1: value, flags, alias: 0 };
                    CUstreamBatchMemOpParams { waitValue: wait }
                }
            });
        }
        self.context().bind()?;
        // SAFETY: the count matches the array; each parameter refers to four bytes of live memory.
        let result =
            unsafe { sys::cuStreamBatchMemOp_v2(self.raw(), operations.len() as u32, operations.as_mut_ptr(), 0) };
        self.context().check(result, "cuStreamBatchMemOp")
    }

    /// Writes `value` to a word after all previous work of the stream is complete and visible, also to other GPUs. The
    /// word may be in a peer's memory.
    ///
    /// # Errors
    /// A range of less than four bytes, or a failing driver call.
    pub fn write_word(&self, slice: DeviceSlice<'_>, value: u32) -> Result<(), CudaError> {
        word(slice)?;
        self.context().bind()?;
        // SAFETY: four bytes of live memory.
        let result = unsafe { sys::cuStreamWriteValue32_v2(self.raw(), slice.address().0, value, 0) };
        self.context().check(result, "cuStreamWriteValue32")
    }

    /// Makes subsequent work of the stream wait until the word satisfies the condition `until` on `value`.
    ///
    /// # Errors
    /// A range of less than four bytes, or a failing driver call.
    pub fn wait_word(&self, slice: DeviceSlice<'_>, value: u32, until: WaitCondition) -> Result<(), CudaError> {
        word(slice)?;
        self.context().bind()?;
        // SAFETY: four bytes of live memory.
        let result = unsafe { sys::cuStreamWaitValue32_v2(self.raw(), slice.address().0, value, until.flags()) };
        self.context().check(result, "cuStreamWaitValue32")
    }
}

fn word(slice: DeviceSlice<'_>) -> Result<(), CudaError> {
    let (length, size) = (slice.length(), Bytes(4));
    if length.0 < size.0 { Err(CudaError::Range { offset: Bytes(0), length: size, size: length }) } else { Ok(()) }
}
