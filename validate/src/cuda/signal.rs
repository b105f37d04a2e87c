//! Words that streams write and wait for: how copy engines tell each other that bytes have arrived.
#![expect(unsafe_code, reason = "driver calls")]

use cudarc::driver::sys::{self, CUstreamWaitValue_flags_enum as WaitFlags};
use fabricast_topologies::Bytes;

use super::error::CudaError;
use super::memory::Part;
use super::stream::Stream;

/// What a stream waits for a word to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// At least the value, counted around: (word − value) as a signed number is not negative.
    AtLeast,
    /// The value itself.
    Equal,
}

impl Stream {
    /// Writes a word once everything before it is done and visible, also to other GPUs. The word may be a peer's.
    ///
    /// # Errors
    /// A part of less than four bytes, or a failing call.
    pub fn write_word(&self, at: Part<'_>, value: u32) -> Result<(), CudaError> {
        word(at)?;
        self.context().bind()?;
        // SAFETY: four bytes of memory that lives.
        let result = unsafe { sys::cuStreamWriteValue32_v2(self.raw(), at.address().0, value, 0) };
        self.context().check(result, "cuStreamWriteValue32")
    }

    /// What follows waits until the word is what `until` says.
    ///
    /// # Errors
    /// A part of less than four bytes, or a failing call.
    pub fn wait_word(&self, at: Part<'_>, value: u32, until: Until) -> Result<(), CudaError> {
        word(at)?;
        self.context().bind()?;
        let flags = match until {
            Until::AtLeast => WaitFlags::CU_STREAM_WAIT_VALUE_GEQ,
            Until::Equal => WaitFlags::CU_STREAM_WAIT_VALUE_EQ,
        };
        // SAFETY: four bytes of memory that lives.
        let result = unsafe { sys::cuStreamWaitValue32_v2(self.raw(), at.address().0, value, flags as u32) };
        self.context().check(result, "cuStreamWaitValue32")
    }
}

fn word(at: Part<'_>) -> Result<(), CudaError> {
    let (length, size) = (at.length(), Bytes(4));
    if length.0 < size.0 { Err(CudaError::Range { offset: Bytes(0), length: size, size: length }) } else { Ok(()) }
}
