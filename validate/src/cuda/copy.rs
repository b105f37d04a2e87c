//! Asynchronous copies and fills on a stream: within a GPU, between GPUs, and to and from the host.
#![expect(unsafe_code, reason = "driver calls")]

use cudarc::driver::sys;
use fabricast_topologies::Bytes;

use super::error::CudaError;
use super::host_memory::HostMemory;
use super::memory::DeviceSlice;
use super::stream::Stream;

impl Stream {
    /// Copies within a GPU or between GPUs with a copy engine of this stream's GPU. Without peer access between the
    /// GPUs, the driver stages the bytes in host memory.
    ///
    /// # Errors
    /// Ranges of different lengths, or a failing driver call.
    pub fn copy(&self, to: DeviceSlice<'_>, from: DeviceSlice<'_>) -> Result<(), CudaError> {
        let length = equal_length(from.length(), to.length())?;
        self.context().bind()?;
        let (target, source) = (to.context(), from.context());
        if target.ordinal() == source.ordinal() {
            // SAFETY: both ranges lie in live memory; freeing it waits for the copy.
            let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to.address().0, from.address().0, length, self.raw()) };
            return self.context().check(result, "cuMemcpyDtoDAsync");
        }
        // SAFETY: likewise; each address belongs to the context passed with it.
        let result = unsafe {
            sys::cuMemcpyPeerAsync(to.address().0, target.raw(), from.address().0, source.raw(), length, self.raw())
        };
        self.context().check(result, "cuMemcpyPeerAsync")
    }

    /// Copies between ranges of memory that this stream's GPU can access: its own memory, or that of GPUs with [peer
    /// access](super::enable_peer_access_between). Unlike [`copy`](Self::copy) between GPUs, such a copy can be
    /// captured in a graph.
    ///
    /// # Errors
    /// Ranges of different lengths, or a failing driver call.
    pub fn copy_accessible(&self, to: DeviceSlice<'_>, from: DeviceSlice<'_>) -> Result<(), CudaError> {
        let length = equal_length(from.length(), to.length())?;
        self.context().bind()?;
        // SAFETY: both ranges lie in live memory, in the one address space of all GPUs; freeing this GPU's memory waits
        // for the copy, and members synchronize before a peer's memory is freed.
        let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to.address().0, from.address().0, length, self.raw()) };
        self.context().check(result, "cuMemcpyDtoDAsync")
    }

    /// Copies from pinned host memory, starting at its byte `offset`, as many bytes as `to` has.
    ///
    /// # Errors
    /// A range outside the memory, or a failing driver call.
    pub fn copy_from_host(&self, to: DeviceSlice<'_>, from: &HostMemory, offset: Bytes) -> Result<(), CudaError> {
        check_range(from, offset, to.length())?;
        self.context().bind()?;
        // SAFETY: both ranges were checked; freeing either memory waits for the copy.
        let result = unsafe {
            let start = from.start().add(offset.0 as usize);
            sys::cuMemcpyHtoDAsync_v2(to.address().0, start.cast(), to.length().0 as usize, self.raw())
        };
        self.context().check(result, "cuMemcpyHtoDAsync")
    }

    /// Copies to pinned host memory, starting at its byte `offset`, as many bytes as `from` has.
    ///
    /// # Errors
    /// A range outside the memory, or a failing driver call.
    pub fn copy_to_host(&self, to: &HostMemory, offset: Bytes, from: DeviceSlice<'_>) -> Result<(), CudaError> {
        check_range(to, offset, from.length())?;
        self.context().bind()?;
        // SAFETY: both ranges were checked; freeing either memory waits for the copy.
        let result = unsafe {
            let start = to.start().add(offset.0 as usize);
            sys::cuMemcpyDtoHAsync_v2(start.cast(), from.address().0, from.length().0 as usize, self.raw())
        };
        self.context().check(result, "cuMemcpyDtoHAsync")
    }

    /// Copies pageable host memory to the GPU and waits for completion. Not allowed during a graph capture.
    ///
    /// # Errors
    /// Different lengths, or a failing driver call.
    pub fn upload(&self, to: DeviceSlice<'_>, bytes: &[u8]) -> Result<(), CudaError> {
        let length = equal_length(Bytes(bytes.len() as u64), to.length())?;
        self.context().bind()?;
        // SAFETY: the range lies in live memory, and `bytes` lives until the copy is complete, which is awaited below.
        let result = unsafe { sys::cuMemcpyHtoDAsync_v2(to.address().0, bytes.as_ptr().cast(), length, self.raw()) };
        self.context().check(result, "cuMemcpyHtoDAsync")?;
        self.synchronize()
    }

    /// Copies from the GPU to pageable host memory and waits for completion. Not allowed during a graph capture.
    ///
    /// # Errors
    /// Different lengths, or a failing driver call.
    pub fn download(&self, bytes: &mut [u8], from: DeviceSlice<'_>) -> Result<(), CudaError> {
        let length = equal_length(from.length(), Bytes(bytes.len() as u64))?;
        self.context().bind()?;
        // SAFETY: the range lies in live memory, and `bytes` is borrowed until the copy is complete, which is awaited
        // below; for memory that is not pinned the driver itself returns only then.
        let result =
            unsafe { sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from.address().0, length, self.raw()) };
        self.context().check(result, "cuMemcpyDtoHAsync")?;
        self.synchronize()
    }

    /// Sets every byte of the range to `byte`.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn fill(&self, part: DeviceSlice<'_>, byte: u8) -> Result<(), CudaError> {
        self.context().bind()?;
        // SAFETY: the range lies in live memory.
        let result = unsafe { sys::cuMemsetD8Async(part.address().0, byte, part.length().0 as usize, self.raw()) };
        self.context().check(result, "cuMemsetD8Async")
    }

    /// Sets every complete four-byte word of the range to `word`. The range must be aligned to four bytes.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn fill_words(&self, part: DeviceSlice<'_>, word: u32) -> Result<(), CudaError> {
        self.context().bind()?;
        // SAFETY: the range lies in live memory.
        let result = unsafe { sys::cuMemsetD32Async(part.address().0, word, part.length().0 as usize / 4, self.raw()) };
        self.context().check(result, "cuMemsetD32Async")
    }
}

fn equal_length(from: Bytes, to: Bytes) -> Result<usize, CudaError> {
    if from == to { Ok(from.0 as usize) } else { Err(CudaError::LengthMismatch { from, to }) }
}

fn check_range(memory: &HostMemory, offset: Bytes, length: Bytes) -> Result<(), CudaError> {
    match offset.0.checked_add(length.0) {
        Some(end) if end <= memory.length().0 => Ok(()),
        _ => Err(CudaError::Range { offset, length, size: memory.length() }),
    }
}
